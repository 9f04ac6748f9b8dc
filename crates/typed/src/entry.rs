//! Entries of maps, there or not: the same for all kinds of maps.

use crate::value::guard::Mut;
use crate::value::recoverable::{Init, Recoverable, Taken, take};
use crate::value::tx::making;
use std::borrow::Borrow;
use std::fmt;

/// A map that has entries by their places.
///
/// # Safety
/// Places lead to entries of the map.
pub unsafe trait Places: Recoverable {
    /// Its keys.
    type Key: Recoverable;
    /// Its values.
    type Value: Recoverable;
    /// Where an entry is.
    type Occupied;
    /// Where one is to be.
    type Vacant;

    /// The key and the value of an entry.
    fn entry(place: &Self::Occupied) -> (*const Self::Key, *mut Self::Value);

    /// Puts an entry where its key belongs; where its value is.
    fn put<'id, I: Init<'id, Self::Key>, J: Init<'id, Self::Value>>(
        map: Mut<'_, 'id, Self>,
        place: Self::Vacant,
        key: I,
        value: J,
    ) -> *mut Self::Value;

    /// Takes an entry out.
    fn take_out<'id>(
        map: Mut<'_, 'id, Self>,
        place: Self::Occupied,
    ) -> (Taken<'id, Self::Key>, Taken<'id, Self::Value>);
}

/// The place of a key in a map, with a value or without.
pub enum Entry<'a, 'id, M: Places, I> {
    /// There is a value.
    Occupied(OccupiedEntry<'a, 'id, M>),
    /// There is none.
    Vacant(VacantEntry<'a, 'id, M, I>),
}

/// An entry that is there.
pub struct OccupiedEntry<'a, 'id, M: Places> {
    map: Mut<'a, 'id, M>,
    place: M::Occupied,
}

/// A key that has no entry.
pub struct VacantEntry<'a, 'id, M: Places, I> {
    map: Mut<'a, 'id, M>,
    key: I,
    place: M::Vacant,
}

impl<M: Places, I> fmt::Debug for Entry<'_, '_, M, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Entry::Occupied(_) => "Occupied",
            Entry::Vacant(_) => "Vacant",
        })
    }
}

impl<M: Places> fmt::Debug for OccupiedEntry<'_, '_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OccupiedEntry")
    }
}

impl<M: Places, I> fmt::Debug for VacantEntry<'_, '_, M, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VacantEntry")
    }
}

impl<'a, 'id, M: Places, I> Entry<'a, 'id, M, I> {
    /// An entry at a place of a map.
    pub(crate) fn occupied(map: Mut<'a, 'id, M>, place: M::Occupied) -> Self {
        Entry::Occupied(OccupiedEntry { map, place })
    }

    /// A place for an entry.
    pub(crate) fn vacant(map: Mut<'a, 'id, M>, key: I, place: M::Vacant) -> Self {
        Entry::Vacant(VacantEntry { map, key, place })
    }

    /// The value, which is put in if there is none.
    pub fn or_insert<J>(self, value: J) -> Mut<'a, 'id, M::Value>
    where
        I: Init<'id, M::Key>,
        J: Init<'id, M::Value>,
    {
        self.or_insert_with(|| value)
    }

    /// The value, which is made if there is none.
    pub fn or_insert_with<J>(self, value: impl FnOnce() -> J) -> Mut<'a, 'id, M::Value>
    where
        I: Init<'id, M::Key>,
        J: Init<'id, M::Value>,
    {
        match self {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(value()),
        }
    }

    /// The value, or the default of its type.
    pub fn or_default(self) -> Mut<'a, 'id, M::Value>
    where
        I: Init<'id, M::Key>,
        M::Value: Default + Init<'id, M::Value>,
    {
        self.or_insert_with(M::Value::default)
    }

    /// Changes the value if there is one.
    pub fn and_modify(mut self, change: impl FnOnce(Mut<'_, 'id, M::Value>)) -> Self {
        if let Entry::Occupied(entry) = &mut self {
            change(entry.get_mut());
        }
        self
    }
}

impl<'a, 'id, M: Places> OccupiedEntry<'a, 'id, M> {
    /// The key.
    pub fn key(&self) -> &M::Key {
        // SAFETY: an entry of the map, which the guard has alone.
        unsafe { &*M::entry(&self.place).0 }
    }

    /// The value.
    pub fn get(&self) -> &M::Value {
        // SAFETY: likewise.
        unsafe { &*M::entry(&self.place).1 }
    }

    /// A guard of the value.
    pub fn get_mut(&mut self) -> Mut<'_, 'id, M::Value> {
        // SAFETY: likewise.
        unsafe { Mut::new(M::entry(&self.place).1, self.map.tx()) }
    }

    /// The same, for as long as the map's guard would have lived.
    pub fn into_mut(self) -> Mut<'a, 'id, M::Value> {
        // SAFETY: likewise.
        unsafe { Mut::new(M::entry(&self.place).1, self.map.tx()) }
    }

    /// Replaces the value; the one before is the transaction's.
    pub fn insert<J: Init<'id, M::Value>>(&mut self, value: J) -> Taken<'id, M::Value> {
        let (tx, place) = (self.map.tx(), M::entry(&self.place).1);
        tx.declare(place, 1);
        // SAFETY: the value of an entry, declared, is taken out and another put there.
        unsafe {
            let before = take(place, tx);
            making(tx, || value.init(place, tx));
            before
        }
    }

    /// Takes the entry out; its key is freed.
    pub fn remove(self) -> Taken<'id, M::Value> {
        self.remove_entry().1
    }

    /// Takes the entry out.
    pub fn remove_entry(self) -> (Taken<'id, M::Key>, Taken<'id, M::Value>) {
        M::take_out(self.map, self.place)
    }
}

impl<'a, 'id, M: Places, I: Init<'id, M::Key>> VacantEntry<'a, 'id, M, I> {
    /// What the key is to be made of.
    pub fn key(&self) -> &I {
        &self.key
    }

    /// Puts the entry in.
    pub fn insert<J: Init<'id, M::Value>>(mut self, value: J) -> Mut<'a, 'id, M::Value> {
        let at = M::put(self.map.reborrow(), self.place, self.key, value);
        // SAFETY: the value that is there now, in a map that the guard has alone.
        unsafe { Mut::new(at, self.map.tx()) }
    }
}

/// A kind of key that can be put in and looked up by the same.
pub trait AsKey<'id, K: Recoverable>: Init<'id, K> + Borrow<K::Borrowed> {}

impl<'id, K: Recoverable, I: Init<'id, K> + Borrow<K::Borrowed>> AsKey<'id, K> for I {}
