//! Walks through a tree, from both ends.

use super::PBTreeMap;
use super::path::Path;
use crate::value::guard::Mut;
use crate::value::recoverable::Recoverable;
use crate::value::tx::Tx;
use std::fmt;
use std::marker::PhantomData;

/// What is left of a walk: from the one to the other, both included.
pub struct Walk<K, V> {
    /// Changed in place: paths are long.
    ends: Option<(Path<K, V>, Path<K, V>)>,
}

impl<K, V> Walk<K, V> {
    /// From one entry to another that is not before it.
    pub fn new(ends: Option<(Path<K, V>, Path<K, V>)>) -> Walk<K, V> {
        Walk { ends }
    }

    #[inline]
    fn next(&mut self) -> Option<(*const K, *mut V)> {
        let (first, last) = self.ends.as_mut()?;
        let (node, index) = first.last();
        if first.is(last) || !first.advance() {
            self.ends = None;
        }
        Some((node.key(index), node.value(index)))
    }

    fn next_back(&mut self) -> Option<(*const K, *mut V)> {
        let (first, last) = self.ends.as_mut()?;
        let (node, index) = last.last();
        if first.is(last) || !last.retreat() {
            self.ends = None;
        }
        Some((node.key(index), node.value(index)))
    }
}

/// Entries of a map in order.
pub struct Iter<'m, K, V> {
    walk: Walk<K, V>,
    borrows: PhantomData<&'m PBTreeMap<K, V>>,
}

impl<K, V> Iter<'_, K, V> {
    pub(super) fn new(walk: Walk<K, V>) -> Self {
        Iter { walk, borrows: PhantomData }
    }
}

impl<K, V> fmt::Debug for Iter<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Iter")
    }
}

impl<'m, K, V> Iterator for Iter<'m, K, V> {
    type Item = (&'m K, &'m V);

    fn next(&mut self) -> Option<(&'m K, &'m V)> {
        // SAFETY: an entry of the map, which nobody changes for 'm.
        self.walk.next().map(|(key, value)| unsafe { (&*key, &*value) })
    }
}

impl<'m, K, V> DoubleEndedIterator for Iter<'m, K, V> {
    fn next_back(&mut self) -> Option<(&'m K, &'m V)> {
        // SAFETY: as in `next`.
        self.walk.next_back().map(|(key, value)| unsafe { (&*key, &*value) })
    }
}

/// Entries of a map in order, with guards of their values.
pub struct IterMut<'a, 'id, K, V> {
    walk: Walk<K, V>,
    tx: Tx<'id>,
    borrows: PhantomData<&'a mut PBTreeMap<K, V>>,
}

impl<'id, K, V> IterMut<'_, 'id, K, V> {
    pub(super) fn new(walk: Walk<K, V>, tx: Tx<'id>) -> Self {
        IterMut { walk, tx, borrows: PhantomData }
    }
}

impl<K, V> fmt::Debug for IterMut<'_, '_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IterMut")
    }
}

impl<'a, 'id, K: Recoverable, V: Recoverable> Iterator for IterMut<'a, 'id, K, V> {
    type Item = (&'a K, Mut<'a, 'id, V>);

    fn next(&mut self) -> Option<(&'a K, Mut<'a, 'id, V>)> {
        // SAFETY: an entry of a map that the iterator has alone, given away once.
        self.walk.next().map(|(key, value)| unsafe { (&*key, Mut::new(value, self.tx)) })
    }
}

impl<'a, 'id, K: Recoverable, V: Recoverable> DoubleEndedIterator for IterMut<'a, 'id, K, V> {
    fn next_back(&mut self) -> Option<(&'a K, Mut<'a, 'id, V>)> {
        // SAFETY: as in `next`.
        self.walk.next_back().map(|(key, value)| unsafe { (&*key, Mut::new(value, self.tx)) })
    }
}
