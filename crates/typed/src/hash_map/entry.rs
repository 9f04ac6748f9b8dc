//! Entries of a map, there or not.

use super::PHashMap;
use super::table::Table;
use crate::guard::Mut;
use crate::recoverable::{Init, Recoverable, Taken, take};
use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;

/// The place of a key in a map, with a value or without.
pub enum Entry<'a, 'id, K: Recoverable, V: Recoverable, I> {
    /// There is a value.
    Occupied(OccupiedEntry<'a, 'id, K, V>),
    /// There is none.
    Vacant(VacantEntry<'a, 'id, K, V, I>),
}

/// An entry that is there.
pub struct OccupiedEntry<'a, 'id, K, V> {
    pub(super) map: Mut<'a, 'id, PHashMap<K, V>>,
    pub(super) table: Table<K, V>,
    pub(super) index: usize,
}

/// A key that has no entry.
pub struct VacantEntry<'a, 'id, K, V, I> {
    pub(super) map: Mut<'a, 'id, PHashMap<K, V>>,
    pub(super) key: I,
    pub(super) hash: u64,
}

impl<K: Recoverable, V: Recoverable, I> fmt::Debug for Entry<'_, '_, K, V, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Entry::Occupied(_) => "Occupied",
            Entry::Vacant(_) => "Vacant",
        })
    }
}

impl<K, V> fmt::Debug for OccupiedEntry<'_, '_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OccupiedEntry").field("index", &self.index).finish_non_exhaustive()
    }
}

impl<K, V, I> fmt::Debug for VacantEntry<'_, '_, K, V, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VacantEntry").field("hash", &self.hash).finish_non_exhaustive()
    }
}

impl<'a, 'id, K, V, I> Entry<'a, 'id, K, V, I>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Hash + Eq,
    V: Recoverable,
    I: Init<'id, K> + Borrow<K::Borrowed>,
{
    /// The value, which is put in if there is none.
    pub fn or_insert<J: Init<'id, V>>(self, value: J) -> Mut<'a, 'id, V> {
        self.or_insert_with(|| value)
    }

    /// The value, which is made if there is none.
    pub fn or_insert_with<J: Init<'id, V>>(self, value: impl FnOnce() -> J) -> Mut<'a, 'id, V> {
        match self {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(value()),
        }
    }

    /// The value, or the default of its type.
    pub fn or_default(self) -> Mut<'a, 'id, V>
    where
        V: Default + Init<'id, V>,
    {
        self.or_insert_with(V::default)
    }

    /// Changes the value if there is one.
    pub fn and_modify(mut self, change: impl FnOnce(Mut<'_, 'id, V>)) -> Self {
        if let Entry::Occupied(entry) = &mut self {
            change(entry.get_mut());
        }
        self
    }
}

impl<'a, 'id, K, V> OccupiedEntry<'a, 'id, K, V>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Hash + Eq,
    V: Recoverable,
{
    /// The key.
    pub fn key(&self) -> &K {
        // SAFETY: an entry of the map.
        unsafe { &(*self.table.slot(self.index)).key }
    }

    /// The value.
    pub fn get(&self) -> &V {
        // SAFETY: an entry of the map.
        unsafe { &(*self.table.slot(self.index)).value }
    }

    /// A guard of the value.
    pub fn get_mut(&mut self) -> Mut<'_, 'id, V> {
        // SAFETY: an entry of the map, which the entry's guard has alone.
        unsafe { Mut::new(&raw mut (*self.table.slot(self.index)).value, self.map.tx()) }
    }

    /// The same, for as long as the map's guard would have lived.
    pub fn into_mut(self) -> Mut<'a, 'id, V> {
        // SAFETY: likewise.
        unsafe { Mut::new(&raw mut (*self.table.slot(self.index)).value, self.map.tx()) }
    }

    /// Replaces the value; the one before is the transaction's.
    pub fn insert<J: Init<'id, V>>(self, value: J) -> Taken<'id, V> {
        let tx = self.map.tx();
        // SAFETY: the value of an entry, declared, is taken out and another put there.
        unsafe {
            let place = &raw mut (*self.table.slot(self.index)).value;
            tx.declare(place, 1);
            let before = take(place, tx);
            value.init(place, tx);
            before
        }
    }

    /// Takes the entry out.
    pub fn remove(mut self) -> Taken<'id, V> {
        self.map.take_out(self.table, self.index).1
    }
}

impl<'a, 'id, K, V, I> VacantEntry<'a, 'id, K, V, I>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Hash + Eq,
    V: Recoverable,
    I: Init<'id, K> + Borrow<K::Borrowed>,
{
    /// What the key is to be made of.
    pub fn key(&self) -> &I {
        &self.key
    }

    /// Puts the entry in.
    pub fn insert<J: Init<'id, V>>(mut self, value: J) -> Mut<'a, 'id, V> {
        let mut table = self.map.table(self.map.place(self.hash));
        while table.header().free == 0 {
            self.map.make_room(self.hash);
            table = self.map.table(self.map.place(self.hash));
        }
        let tx = self.map.tx();
        let len = self.map.len;
        self.map.set_len(len + 1);
        // Where the entry will be: before its tag says that it is there.
        let index = table.next_open(self.hash);
        let slot = table.slot(index);
        // SAFETY: a slot that holds no entry, declared, is filled.
        unsafe {
            tx.declare(slot, 1);
            self.key.init(&raw mut (*slot).key, tx);
            value.init(&raw mut (*slot).value, tx);
            table.claim(tx, self.hash);
            Mut::new(&raw mut (*slot).value, tx)
        }
    }
}
