//! Sorted maps: a B-tree (Bayer and McCreight, 1972) of nodes with up to eleven entries, as in the standard
//! library.

mod change;
mod iter;
mod node;
mod path;

pub use iter::{Iter, IterMut};
pub(crate) use node::MOST;

use crate::entry::AsKey;
use crate::link::Link;
use crate::value::datum::{Datum, LoadedKey, Loader, Loading, Piece, absorb_entry, collect, is_entry};
use crate::value::guard::Mut;
use crate::value::layout::Types;
use crate::value::recoverable::{Init, Recoverable, Yes, free_all};
use crate::value::tx::Tx;
use iter::Walk;
use node::{Leaf, Node};
use path::Path;
use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Bound, Index, RangeBounds};
use std::ptr;

/// A sorted map in a store: what `BTreeMap` is elsewhere. The order of its keys must be the same in every
/// program that opens it.
#[repr(C)]
pub struct PBTreeMap<K, V> {
    root: Link<Leaf<K, V>>,
    len: u64,
    height: u32,
    reserved: u32,
}

impl<K, V> PBTreeMap<K, V> {
    /// An empty map.
    pub const fn new() -> PBTreeMap<K, V> {
        PBTreeMap { root: Link::NONE, len: 0, height: 0, reserved: 0 }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The root, if there are entries.
    #[inline(always)]
    fn root(&self) -> Option<Node<K, V>> {
        (!self.root.is_none()).then(|| Node::new(self.root.get(), self.height))
    }

    #[inline]
    fn find<Q>(&self, key: &Q) -> Option<(Node<K, V>, usize)>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let mut node = self.root()?;
        loop {
            match node.search(|there| there.borrow().cmp(key)) {
                (index, true) => return Some((node, index)),
                (_, false) if node.height == 0 => return None,
                (index, false) => node = node.child(index),
            }
        }
    }

    /// The value of a key.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        // SAFETY: an entry of the map, which nobody changes while it is borrowed.
        self.find(key).map(|(node, index)| unsafe { &*node.value(index) })
    }

    /// A key and its value.
    pub fn get_key_value<Q>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        // SAFETY: as in `get`.
        self.find(key).map(|(node, index)| unsafe { (&*node.key(index), &*node.value(index)) })
    }

    /// Whether there is an entry with that key.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.find(key).is_some()
    }

    /// The entry with the least key.
    pub fn first_key_value(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    /// The entry with the greatest key.
    pub fn last_key_value(&self) -> Option<(&K, &V)> {
        self.iter().next_back()
    }

    fn walk(&self) -> Walk<K, V> {
        Walk::new(Path::first_of(self).zip(Path::last_of(self)))
    }

    fn walk_range<Q>(&self, range: impl RangeBounds<Q>) -> Walk<K, V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        match (range.start_bound(), range.end_bound()) {
            (Bound::Excluded(start), Bound::Excluded(end)) if start == end => {
                panic!("a range excludes both of its ends, which are equal")
            }
            (
                Bound::Included(start) | Bound::Excluded(start),
                Bound::Included(end) | Bound::Excluded(end),
            ) if start > end => {
                panic!("a range begins behind its end")
            }
            _ => {}
        }
        let first = match range.start_bound() {
            Bound::Included(start) => Path::first_not_before(self, |there| there.borrow() < start),
            Bound::Excluded(start) => Path::first_not_before(self, |there| there.borrow() <= start),
            Bound::Unbounded => Path::first_of(self),
        };
        let last = match range.end_bound() {
            Bound::Included(end) => Path::last_before(self, |there| there.borrow() <= end),
            Bound::Excluded(end) => Path::last_before(self, |there| there.borrow() < end),
            Bound::Unbounded => Path::last_of(self),
        };
        // SAFETY: entries of the map.
        let key = |path: &Path<K, V>| unsafe { (*path.last().0.key(path.last().1)).borrow() };
        Walk::new(first.zip(last).filter(|(first, last)| key(first) <= key(last)))
    }

    /// The entries in order.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter::new(self.walk())
    }

    /// The entries of a range of keys, in order.
    ///
    /// # Panics
    /// If it begins behind its end.
    pub fn range<Q>(&self, range: impl RangeBounds<Q>) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        Iter::new(self.walk_range(range))
    }

    /// The keys in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// The values, in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<K, V> Default for PBTreeMap<K, V> {
    fn default() -> PBTreeMap<K, V> {
        PBTreeMap::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for PBTreeMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for PBTreeMap<K, V> {
    fn eq(&self, other: &PBTreeMap<K, V>) -> bool {
        self.len == other.len && self.iter().zip(other.iter()).all(|(a, b)| a == b)
    }
}

impl<K: Eq, V: Eq> Eq for PBTreeMap<K, V> {}

impl<K: PartialOrd, V: PartialOrd> PartialOrd for PBTreeMap<K, V> {
    fn partial_cmp(&self, other: &PBTreeMap<K, V>) -> Option<std::cmp::Ordering> {
        self.iter().partial_cmp(other.iter())
    }
}

impl<K: Ord, V: Ord> Ord for PBTreeMap<K, V> {
    fn cmp(&self, other: &PBTreeMap<K, V>) -> std::cmp::Ordering {
        self.iter().cmp(other.iter())
    }
}

impl<K: Hash, V: Hash> Hash for PBTreeMap<K, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len.hash(state);
        self.iter().for_each(|entry| entry.hash(state));
    }
}

impl<K, Q, V> Index<&Q> for PBTreeMap<K, V>
where
    K: Borrow<Q>,
    Q: Ord + ?Sized,
{
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("no entry has that key")
    }
}

impl<'m, K, V> IntoIterator for &'m PBTreeMap<K, V> {
    type Item = (&'m K, &'m V);
    type IntoIter = Iter<'m, K, V>;

    fn into_iter(self) -> Iter<'m, K, V> {
        self.iter()
    }
}

// SAFETY: a link, told when it is moved, and numbers.
unsafe impl<K, V> Recoverable for PBTreeMap<K, V>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Ord,
    V: Recoverable,
{
    type Pointers = Yes;
    type Borrowed = PBTreeMap<K, V>;
    const PADDED: bool = false;

    fn describe(types: &mut Types) -> String {
        format!("PBTreeMap<{}, {}>", types.name_of::<K>(), types.name_of::<V>())
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word.
        unsafe { ptr::copy_nonoverlapping(from, to, 1) }
    }

    unsafe fn moved(this: *mut Self, by: isize) {
        // SAFETY: the caller's word.
        unsafe { Link::moved(&raw mut (*this).root, by) }
    }

    unsafe fn free(this: *mut Self, tx: Tx<'_>) {
        /// Frees what is below a node of that height.
        unsafe fn below<K: Recoverable, V: Recoverable>(at: *mut u8, tx: Tx<'_>, height: usize) {
            let node = Node::<K, V>::new(at.cast(), height as u32);
            // SAFETY: a node that is there.
            unsafe {
                free_all(node.key(0), node.len(), tx);
                free_all(node.value(0), node.len(), tx);
                if height > 0 {
                    for child in (0..=node.len()).map(|index| node.child(index)) {
                        tx.free_counted(child.as_ptr().cast(), height - 1, below::<K, V>);
                    }
                }
            }
        }
        // SAFETY: the map owns its nodes.
        unsafe {
            if let Some(root) = (*this).root() {
                tx.free_counted(root.as_ptr().cast(), root.height as usize, below::<K, V>);
            }
        }
    }

    unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
        let entries = loader.entries(from).into_iter().filter(|(_, value)| is_entry(value));
        // SAFETY: the caller's word.
        unsafe {
            collect(to, PBTreeMap::new(), loader, |mut made| {
                entries.for_each(|(key, value)| {
                    let old = made.insert(LoadedKey::new(key, loader), Loading(value, loader));
                    loader.once(old.is_none());
                });
            });
        }
    }

    unsafe fn absorb(this: *mut Self, path: &[String], piece: Piece, loader: &Loader<'_, '_>) {
        // SAFETY: the caller's word.
        unsafe {
            absorb_entry(this, (path, piece), loader, |mut map, key, value| {
                if !is_entry(&value) {
                    return;
                }
                let old = map.insert(LoadedKey::new(key, loader), Loading(value, loader));
                loader.once(old.is_none());
            });
        }
    }
}

// SAFETY: an empty map is the same anywhere, and no other has a value outside of a store.
unsafe impl<'id, K, V> Init<'id, PBTreeMap<K, V>> for PBTreeMap<K, V>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Ord,
    V: Recoverable,
{
    unsafe fn init(self, to: *mut PBTreeMap<K, V>, _tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe { to.write(self) }
    }
}

// SAFETY: a map is made, of entries that are made.
unsafe impl<'id, K, V, I, J> Init<'id, PBTreeMap<K, V>> for std::collections::BTreeMap<I, J>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Ord,
    V: Recoverable,
    I: AsKey<'id, K>,
    J: Init<'id, V>,
{
    unsafe fn init(self, to: *mut PBTreeMap<K, V>, tx: Tx<'id>) {
        // SAFETY: memory for a map, declared if need be; it is one from here on.
        let mut made = unsafe {
            to.write(PBTreeMap::new());
            Mut::<PBTreeMap<K, V>>::new(to, tx)
        };
        made.extend(self);
    }
}
