//! Walks through a map.

use super::PHashMap;
use super::table::Table;
use crate::value::guard::Mut;
use crate::value::recoverable::Recoverable;
use std::fmt;
use std::marker::PhantomData;

/// Where a walk is.
struct Walk<K, V> {
    map: *const PHashMap<K, V>,
    /// The place in the directory of the table after the present one.
    place: usize,
    table: Option<Table<K, V>>,
    index: usize,
    left: usize,
}

impl<K, V> Walk<K, V> {
    fn new(map: *const PHashMap<K, V>, left: usize) -> Walk<K, V> {
        Walk { map, place: 0, table: None, index: 0, left }
    }

    fn next(&mut self) -> Option<(Table<K, V>, usize)> {
        // SAFETY: the map is borrowed for as long as the walk.
        let map = unsafe { &*self.map };
        self.left = self.left.checked_sub(1)?;
        loop {
            if let Some(table) = self.table
                && let Some(index) = table.next_taken(self.index)
            {
                self.index = index + 1;
                return Some((table, index));
            }
            if map.directory.is_none() || self.place == 1 << map.depth {
                return None;
            }
            let table = map.table(self.place);
            // Several places lead to a table of less depth.
            self.place += 1 << (map.depth - table.header().depth);
            (self.table, self.index) = (Some(table), 0);
        }
    }
}

/// The entries of a map.
pub struct Iter<'m, K, V> {
    walk: Walk<K, V>,
    borrows: PhantomData<&'m PHashMap<K, V>>,
}

impl<'m, K, V> Iter<'m, K, V> {
    pub(super) fn new(map: &'m PHashMap<K, V>) -> Iter<'m, K, V> {
        Iter { walk: Walk::new(map, map.len()), borrows: PhantomData }
    }
}

impl<K, V> fmt::Debug for Iter<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter").field("left", &self.walk.left).finish_non_exhaustive()
    }
}

impl<'m, K, V> Iterator for Iter<'m, K, V> {
    type Item = (&'m K, &'m V);

    fn next(&mut self) -> Option<(&'m K, &'m V)> {
        let (table, index) = self.walk.next()?;
        // SAFETY: an entry of the map, which nobody changes for 'm.
        unsafe { Some((&(*table.slot(index)).key, &(*table.slot(index)).value)) }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.walk.left, Some(self.walk.left))
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}

/// The entries of a map, with guards of their values.
pub struct IterMut<'a, 'id, K, V> {
    walk: Walk<K, V>,
    map: Mut<'a, 'id, PHashMap<K, V>>,
}

impl<K, V> fmt::Debug for IterMut<'_, '_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterMut").field("left", &self.walk.left).finish_non_exhaustive()
    }
}

impl<'a, 'id, K: Recoverable, V: Recoverable> IterMut<'a, 'id, K, V> {
    pub(super) fn new(map: Mut<'a, 'id, PHashMap<K, V>>) -> IterMut<'a, 'id, K, V> {
        IterMut { walk: Walk::new(map.as_ptr(), map.len()), map }
    }

    pub(super) fn next_slot(&mut self) -> Option<(Table<K, V>, usize)> {
        self.walk.next()
    }
}

impl<'a, 'id, K: Recoverable, V: Recoverable> Iterator for IterMut<'a, 'id, K, V> {
    type Item = (&'a K, Mut<'a, 'id, V>);

    fn next(&mut self) -> Option<(&'a K, Mut<'a, 'id, V>)> {
        let (table, index) = self.walk.next()?;
        let slot = table.slot(index);
        // SAFETY: an entry of the map, which the iterator has alone and gives away once.
        unsafe { Some((&(*slot).key, Mut::new(&raw mut (*slot).value, self.map.tx()))) }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.walk.left, Some(self.walk.left))
    }
}

impl<K: Recoverable, V: Recoverable> ExactSizeIterator for IterMut<'_, '_, K, V> {}
