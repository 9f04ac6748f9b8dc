//! How sorted maps change.

use super::PBTreeMap;
use super::iter::IterMut;
use super::node::{FEWEST, MOST, Node};
use super::path::Path;
use crate::entry::{AsKey, Entry, Places};
use crate::link::Link;
use crate::value::guard::{Mut, Owned};
use crate::value::recoverable::{Init, Recoverable, Taken, relocate, take};
use crate::value::tx::{Tx, making};
use caliburn_os::simulated::{even_if, unless};
use std::borrow::Borrow;
use std::mem::MaybeUninit;
use std::ops::RangeBounds;

/// What `BTreeMap` does, with std's names. A key that is put in is of any kind that a key can be made of and
/// looked up by.
impl<'a, 'id, K, V> Mut<'a, 'id, PBTreeMap<K, V>>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Ord,
    V: Recoverable,
{
    fn set_len(&mut self, len: u64) {
        // SAFETY: the field of the guard's map, declared.
        unsafe {
            let field = &raw mut (*self.as_ptr()).len;
            self.tx().declare(field, 1);
            field.write(len);
        }
    }

    fn set_root(&mut self, root: Option<Node<K, V>>) {
        let this = self.as_ptr();
        self.tx().declare(this, 1);
        // SAFETY: the guard's map, declared.
        unsafe {
            match root {
                Some(root) => Link::set(&raw mut (*this).root, root.as_ptr()),
                None => (&raw mut (*this).root).write(Link::NONE),
            }
            (*this).height = root.map_or(0, |root| root.height);
        }
    }

    /// Puts an entry in. The value that the key had is the transaction's.
    pub fn insert<I, J>(&mut self, key: I, value: J) -> Option<Taken<'id, V>>
    where
        I: AsKey<'id, K>,
        J: Init<'id, V>,
    {
        match self.reborrow().into_entry(key) {
            Entry::Occupied(mut entry) => Some(entry.insert(value)),
            Entry::Vacant(entry) => {
                entry.insert(value);
                None
            }
        }
    }

    /// The place of a key, with its value or without.
    pub fn entry<I: AsKey<'id, K>>(&mut self, key: I) -> Entry<'_, 'id, PBTreeMap<K, V>, I> {
        self.reborrow().into_entry(key)
    }

    /// The same, for as long as the guard would have lived.
    pub fn into_entry<I: AsKey<'id, K>>(self, key: I) -> Entry<'a, 'id, PBTreeMap<K, V>, I> {
        match Path::find::<K::Borrowed>(&self, key.borrow()) {
            Some((path, true)) => Entry::occupied(self, path),
            Some((path, false)) => Entry::vacant(self, key, Some(path)),
            None => Entry::vacant(self, key, None),
        }
    }

    /// A guard of the value of a key.
    #[inline]
    pub fn get_mut<Q>(&mut self, key: &Q) -> Option<Mut<'_, 'id, V>>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.reborrow().into_get(key)
    }

    /// The same, for as long as the guard would have lived.
    #[inline]
    pub fn into_get<Q>(self, key: &Q) -> Option<Mut<'a, 'id, V>>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        // SAFETY: an entry of the map, which the guard has alone.
        self.find(key).map(|(node, index)| unsafe { Mut::new(node.value(index), self.tx()) })
    }

    /// Takes an entry out: its value is the transaction's, its key is freed.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<Taken<'id, V>>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.remove_entry(key).map(|(_, value)| value)
    }

    /// Takes an entry out.
    pub fn remove_entry<Q>(&mut self, key: &Q) -> Option<(Taken<'id, K>, Taken<'id, V>)>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let path = Path::find(self, key).and_then(|(path, found)| found.then_some(path))?;
        Some(self.take_path(path))
    }

    /// Takes the entry with the least key out.
    pub fn pop_first(&mut self) -> Option<(Taken<'id, K>, Taken<'id, V>)> {
        let path = Path::first_of(self)?;
        Some(self.take_path(path))
    }

    /// Takes the entry with the greatest key out.
    pub fn pop_last(&mut self) -> Option<(Taken<'id, K>, Taken<'id, V>)> {
        let path = Path::last_of(self)?;
        Some(self.take_path(path))
    }

    /// Takes the entry out that a path leads to.
    fn take_path(&mut self, path: Path<K, V>) -> (Taken<'id, K>, Taken<'id, V>) {
        let (tx, (node, index)) = (self.tx(), path.last());
        self.leave(path, |_| {
            // SAFETY: the entry is no longer the map's.
            unsafe { (take(node.key(index), tx), take(node.value(index), tx)) }
        })
    }

    /// Forgets the entry that a path leads to: somebody else has it.
    fn forget(&mut self, path: Path<K, V>) {
        self.leave(path, |_| ());
    }

    /// Lets an entry leave. `taken` is called when all that its leaving needs is declared, and its place is not
    /// yet another's.
    fn leave<T>(&mut self, mut path: Path<K, V>, taken: impl FnOnce(Tx<'id>) -> T) -> T {
        let tx = self.tx();
        let (node, index) = path.last();
        // 1 In an inner node the entry before, which is in a leaf, takes its place.
        if node.height > 0 {
            path.descend(node.child(index), true);
        }
        let (leaf, at) = path.last();
        leaf.declare_gap(tx, at);
        if leaf != node {
            node.declare_entry(tx, index);
        }
        self.set_len(self.len - 1);
        let taken = taken(tx);
        // 2 Nothing fails here.
        if leaf == node {
            leaf.close(at)
        } else {
            leaf.move_last(node, index)
        }
        // 3 Nodes with too few are filled up, from the leaf towards the root.
        for depth in (1..path.len()).rev() {
            if even_if("btree-nodes-not-filled", path.step(depth).0.len() >= FEWEST) {
                break;
            }
            let (parent, child) = *path.step(depth - 1);
            parent.fill_child(tx, child);
        }
        // 4 A root without entries goes.
        let root = path.step(0).0;
        if root.len() == 0 {
            self.set_root((root.height > 0).then(|| root.child(0)));
            tx.free(root.as_ptr());
        }
        taken
    }

    /// Frees all entries.
    pub fn clear(&mut self) {
        self.set(PBTreeMap::new());
    }

    /// Keeps the entries for which `keep` holds, and frees the others. If it panics, all are there.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, Mut<'_, 'id, V>) -> bool) {
        let kept: Vec<bool> = self.iter_mut().map(|(key, value)| keep(key, value)).collect();
        let mut at = Path::last_of(self);
        for kept in kept.into_iter().rev() {
            let Some(path) = at.take() else { break };
            at = if kept {
                path.previous()
            } else {
                let (key, _) = self.take_path(path);
                let key: &K = key.borrow();
                Path::last_before(self, |there| there.borrow() < Borrow::<K::Borrowed>::borrow(key))
            };
        }
    }

    /// The entries in order, with guards of their values.
    pub fn iter_mut(&mut self) -> IterMut<'_, 'id, K, V> {
        IterMut::new(self.walk(), self.tx())
    }

    /// Guards of the values, in the order of their keys.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = Mut<'_, 'id, V>> {
        self.iter_mut().map(|(_, value)| value)
    }

    /// The entries of a range of keys, with guards of their values.
    ///
    /// # Panics
    /// If it begins behind its end.
    pub fn range_mut<Q>(&mut self, range: impl RangeBounds<Q>) -> IterMut<'_, 'id, K, V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        IterMut::new(self.walk_range(range), self.tx())
    }

    /// Makes room for an entry where it belongs, and lets `fill` make it; where it is then.
    fn put(&mut self, path: Option<Path<K, V>>, fill: impl FnOnce(*mut K, *mut V)) -> *mut V {
        let tx = self.tx();
        let Some(mut path) = path else {
            let root = Node::make(tx, 0);
            self.set_root(Some(root));
            self.set_len(1);
            root.put(tx, 0, fill);
            return root.value(0);
        };
        // What comes in order fills the leaf before.
        let depth = path.len() - 1;
        let (leaf, at) = path.last();
        if depth > 0 && at == MOST {
            let (parent, child) = *path.step(depth - 1);
            if child > 0 && parent.child(child - 1).len() <= FEWEST + 3 {
                *path.step(depth) = (leaf, at - parent.share_left(tx, child));
            }
        }
        // Full nodes are split, from the first of those that all others below are of, so that each parent has
        // room.
        let full = (0..path.len()).rev().take_while(|depth| path.step(*depth).0.len() == MOST).count();
        let mut from = path.len() - full;
        if from == 0 && full > 0 {
            let (old, _) = *path.step(0);
            let root = Node::make(tx, old.height + 1);
            root.adopt(tx, 0, old);
            self.set_root(Some(root));
            path.begin_with(root, 0);
            from = 1;
        }
        for depth in from..path.len() {
            let (parent, child) = *path.step(depth - 1);
            parent.split_child(tx, child);
            let index = path.step(depth).1;
            if unless("btree-split-goes-left", index > FEWEST) {
                *path.step(depth - 1) = (parent, child + 1);
                *path.step(depth) = (parent.child(child + 1), index - FEWEST - 1);
            }
        }
        self.set_len(self.len + 1);
        let (leaf, index) = path.last();
        leaf.put(tx, index, fill);
        leaf.value(index)
    }

    /// Moves an entry of another map to this: in place of one with an equal key, or where it belongs.
    fn put_from(
        &mut self,
        other: &mut Mut<'_, 'id, PBTreeMap<K, V>>,
        from: Path<K, V>,
        path: Option<Path<K, V>>,
    ) {
        let (node, index) = from.last();
        let mut aside = (MaybeUninit::<K>::uninit(), MaybeUninit::<V>::uninit());
        // SAFETY: an entry is copied aside, from where it goes to its place; the other map forgets it without
        // freeing.
        unsafe {
            relocate(node.key(index), aside.0.as_mut_ptr(), 1);
            relocate(node.value(index), aside.1.as_mut_ptr(), 1);
        }
        self.put(path, |key, value| {
            other.forget(from);
            // SAFETY: an entry's place, declared, that nothing else fills.
            unsafe {
                relocate(aside.0.as_ptr(), key, 1);
                relocate(aside.1.as_ptr(), value, 1);
            }
        });
    }

    /// The entries from a key on as a map of their own, to be put somewhere in the same transaction.
    pub fn split_off<Q>(&mut self, from: &Q) -> Owned<'id, PBTreeMap<K, V>>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let mut made = Owned::<PBTreeMap<K, V>>::new(PBTreeMap::new(), self.tx());
        let mut other = made.as_mut();
        while let Some(last) = Path::last_of(self) {
            let (node, index) = last.last();
            // SAFETY: an entry of the map.
            if Borrow::<Q>::borrow(unsafe { &*node.key(index) }) < from {
                break;
            }
            let first = Path::first_of(&other);
            other.put_from(self, last, first);
        }
        made
    }

    /// Moves all entries of another map to this. Of equal keys the other's value stays.
    pub fn append(&mut self, other: &mut Mut<'_, 'id, PBTreeMap<K, V>>) {
        while let Some(first) = Path::first_of(other) {
            let (node, index) = first.last();
            // SAFETY: an entry of the other map, which stays until it is moved.
            let key = || -> &K::Borrowed { unsafe { (*node.key(index)).borrow() } };
            let mut path = Path::find::<K::Borrowed>(self, key());
            if let Some((equal, true)) = path {
                drop(self.take_path(equal));
                // A place in a leaf, whatever the keys say of their order this time.
                path = Path::leaf_place(self, |there| there.borrow() < key()).map(|path| (path, false));
            }
            let path = path.map(|(path, _)| path);
            self.put_from(other, first, path);
        }
    }
}

// SAFETY: a place is a path to an entry, or to where one belongs.
unsafe impl<K, V> Places for PBTreeMap<K, V>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Ord,
    V: Recoverable,
{
    type Key = K;
    type Value = V;
    type Occupied = Path<K, V>;
    type Vacant = Option<Path<K, V>>;

    fn entry(path: &Path<K, V>) -> (*const K, *mut V) {
        let (node, index) = path.last();
        (node.key(index), node.value(index))
    }

    fn put<'id, I: Init<'id, K>, J: Init<'id, V>>(
        mut map: Mut<'_, 'id, Self>,
        path: Option<Path<K, V>>,
        key: I,
        value: J,
    ) -> *mut V {
        let tx = map.tx();
        // SAFETY: an entry's place, declared, is filled.
        map.put(path, |k, v| unsafe {
            making(tx, || {
                key.init(k, tx);
                value.init(v, tx);
            });
        })
    }

    fn take_out<'id>(mut map: Mut<'_, 'id, Self>, path: Path<K, V>) -> (Taken<'id, K>, Taken<'id, V>) {
        map.take_path(path)
    }
}

impl<'id, K, V, I, J> Extend<(I, J)> for Mut<'_, 'id, PBTreeMap<K, V>>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Ord,
    V: Recoverable,
    I: AsKey<'id, K>,
    J: Init<'id, V>,
{
    fn extend<L: IntoIterator<Item = (I, J)>>(&mut self, entries: L) {
        entries.into_iter().for_each(|(key, value)| drop(self.insert(key, value)));
    }
}
