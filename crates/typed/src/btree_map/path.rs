//! The way from the root to an entry.

use super::PBTreeMap;
use super::node::Node;
use smallvec::SmallVec;
use std::borrow::Borrow;
use std::cmp::Ordering;

/// Nodes from the root down, each with the child that comes next; the last with the entry. No tree is higher
/// than the numbers of its entries allow: 6^25 is more than 2^64.
pub struct Path<K, V>(SmallVec<[(Node<K, V>, usize); 10]>);

impl<K, V> Clone for Path<K, V> {
    fn clone(&self) -> Self {
        Path(self.0.clone())
    }
}

impl<K, V> Path<K, V> {
    /// From the root of a tree that has one.
    pub fn from_root(map: &PBTreeMap<K, V>) -> Option<(Path<K, V>, Node<K, V>)> {
        // Without entries it is one that was just made, and found no room for its first.
        map.root().filter(|root| root.len() > 0).map(|root| (Path(SmallVec::new()), root))
    }

    /// The node that the path ends in, and the place in it.
    #[inline(always)]
    pub fn last(&self) -> (Node<K, V>, usize) {
        *self.0.last().expect("a path leads somewhere")
    }

    /// Goes on.
    #[inline(always)]
    pub fn push(&mut self, node: Node<K, V>, index: usize) {
        self.0.push((node, index));
    }

    /// Puts a new root in front.
    pub fn begin_with(&mut self, root: Node<K, V>, index: usize) {
        self.0.insert(0, (root, index));
    }

    /// The step at a depth.
    pub fn step(&mut self, depth: usize) -> &mut (Node<K, V>, usize) {
        &mut self.0[depth]
    }

    /// Steps.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether both lead to the same entry.
    pub fn is(&self, other: &Path<K, V>) -> bool {
        self.last() == other.last()
    }

    /// Goes down to the first or the last entry below a node.
    pub fn descend(&mut self, mut node: Node<K, V>, last: bool) {
        while node.height > 0 {
            let index = if last { node.len() } else { 0 };
            self.push(node, index);
            node = node.child(index);
        }
        self.push(node, if last { node.len() - 1 } else { 0 });
    }

    /// The way to an entry, or to where it belongs; whether it is there.
    #[inline]
    pub fn find<Q>(map: &PBTreeMap<K, V>, key: &Q) -> Option<(Path<K, V>, bool)>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let (mut path, mut node) = Path::from_root(map)?;
        loop {
            let (index, found) = node.search(|there| there.borrow().cmp(key));
            path.push(node, index);
            if found || node.height == 0 {
                return Some((path, found));
            }
            node = node.child(index);
        }
    }

    /// The place in a leaf behind all entries that are before a bound.
    pub fn leaf_place(map: &PBTreeMap<K, V>, mut before: impl FnMut(&K) -> bool) -> Option<Path<K, V>> {
        let (mut path, mut node) = Path::from_root(map)?;
        loop {
            let order = |there: &K| if before(there) { Ordering::Less } else { Ordering::Greater };
            let (index, _) = node.search(order);
            path.push(node, index);
            if node.height == 0 {
                return Some(path);
            }
            node = node.child(index);
        }
    }

    /// The first entry that is not before a bound.
    pub fn first_not_before(map: &PBTreeMap<K, V>, before: impl FnMut(&K) -> bool) -> Option<Path<K, V>> {
        let path = Path::leaf_place(map, before)?;
        let (leaf, index) = path.last();
        if index < leaf.len() { Some(path) } else { path.up_to_next() }
    }

    /// The last entry in front of a bound.
    pub fn last_before(map: &PBTreeMap<K, V>, before: impl FnMut(&K) -> bool) -> Option<Path<K, V>> {
        match Path::first_not_before(map, before) {
            Some(path) => path.previous(),
            None => Path::last_of(map),
        }
    }

    /// The first entry.
    pub fn first_of(map: &PBTreeMap<K, V>) -> Option<Path<K, V>> {
        let (mut path, root) = Path::from_root(map)?;
        path.descend(root, false);
        Some(path)
    }

    /// The last entry.
    pub fn last_of(map: &PBTreeMap<K, V>) -> Option<Path<K, V>> {
        let (mut path, root) = Path::from_root(map)?;
        path.descend(root, true);
        Some(path)
    }

    /// From behind the last entry of a leaf to the next above, if there is one.
    fn up_to_next(mut self) -> Option<Path<K, V>> {
        self.ascend().then_some(self)
    }

    fn ascend(&mut self) -> bool {
        loop {
            self.0.pop();
            match self.0.last() {
                Some((node, index)) if *index < node.len() => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }

    /// The next entry.
    pub fn next(mut self) -> Option<Path<K, V>> {
        self.advance().then_some(self)
    }

    /// The entry before.
    pub fn previous(mut self) -> Option<Path<K, V>> {
        self.retreat().then_some(self)
    }

    /// Goes to the next entry; if there is none, the path leads nowhere.
    #[inline]
    pub fn advance(&mut self) -> bool {
        let (node, index) = self.last();
        self.step(self.0.len() - 1).1 = index + 1;
        if node.height > 0 {
            self.descend(node.child(index + 1), false);
            return true;
        }
        index + 1 < node.len() || self.ascend()
    }

    /// Goes to the entry before; if there is none, the path leads nowhere.
    #[inline]
    pub fn retreat(&mut self) -> bool {
        let (node, mut index) = self.last();
        if node.height > 0 {
            self.descend(node.child(index), true);
            return true;
        }
        while index == 0 {
            self.0.pop();
            match self.0.last() {
                Some((_, above)) => index = *above,
                None => return false,
            }
        }
        self.step(self.0.len() - 1).1 = index - 1;
        true
    }
}
