//! Sets: maps whose values are nothing.

use crate::btree_map::PBTreeMap;
use crate::entry::{AsKey, Entry};
use crate::hash_map::PHashMap;
use crate::value::datum::{Datum, LoadedKey, Loader, Piece, absorb_item, collect};
use crate::value::guard::Mut;
use crate::value::layout::Types;
use crate::value::recoverable::{Init, Recoverable, Taken, Yes};
use crate::value::tx::Tx;
use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::ops::RangeBounds;

macro_rules! set {
    ($set:ident, $map:ident, $std:ident, $text:literal, $($bound:ident)+) => {
        #[doc = $text]
        #[repr(transparent)]
        pub struct $set<T>($map<T, ()>);

        impl<T> $set<T> {
            /// An empty set.
            pub const fn new() -> $set<T> {
                $set($map::new())
            }

            /// Number of values.
            pub fn len(&self) -> usize {
                self.0.len()
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }

            /// Whether a value is in the set.
            pub fn contains<Q>(&self, value: &Q) -> bool
            where
                T: Borrow<Q>,
                Q: $($bound +)+ ?Sized,
            {
                self.0.contains_key(value)
            }

            /// The value in the set that is equal.
            pub fn get<Q>(&self, value: &Q) -> Option<&T>
            where
                T: Borrow<Q>,
                Q: $($bound +)+ ?Sized,
            {
                self.0.get_key_value(value).map(|(value, ())| value)
            }

            /// Whether all values are in another set.
            pub fn is_subset(&self, other: &$set<T>) -> bool
            where
                T: $($bound +)+,
            {
                self.len() <= other.len() && self.iter().all(|value| other.contains(value))
            }

            /// The values that are in both.
            pub fn intersection<'s>(&'s self, other: &'s $set<T>) -> impl Iterator<Item = &'s T>
            where
                T: $($bound +)+,
            {
                self.iter().filter(|value| other.contains(*value))
            }

            /// The values that are not in the other.
            pub fn difference<'s>(&'s self, other: &'s $set<T>) -> impl Iterator<Item = &'s T>
            where
                T: $($bound +)+,
            {
                self.iter().filter(|value| !other.contains(*value))
            }

            /// The values that are in one or both.
            pub fn union<'s>(&'s self, other: &'s $set<T>) -> impl Iterator<Item = &'s T>
            where
                T: $($bound +)+,
            {
                self.iter().chain(other.difference(self))
            }
        }

        impl<T> Default for $set<T> {
            fn default() -> $set<T> {
                $set::new()
            }
        }

        impl<T: fmt::Debug> fmt::Debug for $set<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_set().entries(self.iter()).finish()
            }
        }

        // SAFETY: a map.
        unsafe impl<T> Recoverable for $set<T>
        where
            T: Recoverable + Borrow<T::Borrowed>,
            T::Borrowed: $($bound +)+,
        {
            type Pointers = Yes;
            type Borrowed = $set<T>;
            const PADDED: bool = false;

            fn describe(types: &mut Types) -> String {
                format!(concat!(stringify!($set), "<{}>"), types.name_of::<T>())
            }

            unsafe fn store(from: *const Self, to: *mut Self) {
                // SAFETY: the caller's word.
                unsafe { $map::store(&raw const (*from).0, &raw mut (*to).0) }
            }

            unsafe fn moved(this: *mut Self, by: isize) {
                // SAFETY: the caller's word.
                unsafe { $map::moved(&raw mut (*this).0, by) }
            }

            unsafe fn free(this: *mut Self, tx: Tx<'_>) {
                // SAFETY: the caller's word.
                unsafe { $map::free(&raw mut (*this).0, tx) }
            }

            unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
                let values = loader.items(from).into_iter().map(|value| LoadedKey::new(value, loader));
                // SAFETY: the caller's word.
                unsafe {
                    collect(to, $set::new(), loader, |mut made| {
                        values.for_each(|value| loader.once(made.insert(value)));
                    });
                }
            }

            unsafe fn absorb(this: *mut Self, path: &[String], piece: Piece, loader: &Loader<'_, '_>) {
                // SAFETY: the caller's word.
                unsafe {
                    absorb_item(this, (path, piece), loader, |mut set, value| {
                        loader.once(set.insert(LoadedKey::new(value, loader)));
                    });
                }
            }
        }

        // SAFETY: an empty set is the same anywhere, and no other has a value outside of a store.
        unsafe impl<'id, T> Init<'id, $set<T>> for $set<T>
        where
            T: Recoverable + Borrow<T::Borrowed>,
            T::Borrowed: $($bound +)+,
        {
            unsafe fn init(self, to: *mut $set<T>, _tx: Tx<'id>) {
                // SAFETY: the caller's word.
                unsafe { to.write(self) }
            }
        }

        // SAFETY: a set is made, of values that are made.
        unsafe impl<'id, T, I> Init<'id, $set<T>> for std::collections::$std<I>
        where
            T: Recoverable + Borrow<T::Borrowed>,
            T::Borrowed: $($bound +)+,
            I: AsKey<'id, T>,
        {
            unsafe fn init(self, to: *mut $set<T>, tx: Tx<'id>) {
                // SAFETY: memory for a set, declared if need be; it is one from here on.
                let mut made = unsafe {
                    to.write($set::new());
                    Mut::<$set<T>>::new(to, tx)
                };
                made.extend(self);
            }
        }

        #[doc = concat!("What `", stringify!($std), "` does, with std's names.")]
        impl<'id, T> Mut<'_, 'id, $set<T>>
        where
            T: Recoverable + Borrow<T::Borrowed>,
            T::Borrowed: $($bound +)+,
        {
            fn map(&mut self) -> Mut<'_, 'id, $map<T, ()>> {
                // SAFETY: the set is a map.
                unsafe { Mut::new(self.as_ptr().cast(), self.tx()) }
            }

            /// Puts a value in. Whether it was not there.
            pub fn insert<I: AsKey<'id, T>>(&mut self, value: I) -> bool {
                match self.map().into_entry(value) {
                    Entry::Occupied(_) => false,
                    Entry::Vacant(entry) => {
                        entry.insert(());
                        true
                    }
                }
            }

            /// Takes a value out, and frees it. Whether it was there.
            pub fn remove<Q>(&mut self, value: &Q) -> bool
            where
                T: Borrow<Q>,
                Q: $($bound +)+ ?Sized,
            {
                self.take_value(value).is_some()
            }

            /// Takes a value out.
            pub fn take_value<Q>(&mut self, value: &Q) -> Option<Taken<'id, T>>
            where
                T: Borrow<Q>,
                Q: $($bound +)+ ?Sized,
            {
                self.map().remove_entry(value).map(|(value, ())| value)
            }

            /// Keeps the values for which `keep` holds, and frees the others.
            pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
                self.map().retain(|value, _| keep(value));
            }

            /// Frees all values.
            pub fn clear(&mut self) {
                self.map().clear();
            }
        }

        impl<'id, T, I> Extend<I> for Mut<'_, 'id, $set<T>>
        where
            T: Recoverable + Borrow<T::Borrowed>,
            T::Borrowed: $($bound +)+,
            I: AsKey<'id, T>,
        {
            fn extend<L: IntoIterator<Item = I>>(&mut self, values: L) {
                values.into_iter().for_each(|value| {
                    self.insert(value);
                });
            }
        }
    };
}

set!(PHashSet, PHashMap, HashSet, "A hash set in a store: what `HashSet` is elsewhere.", Hash Eq);
set!(PBTreeSet, PBTreeMap, BTreeSet, "A sorted set in a store: what `BTreeSet` is elsewhere.", Ord);

impl<T> PHashSet<T> {
    /// The values, in no particular order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.0.keys()
    }
}

impl<T: Eq + Hash> PartialEq for PHashSet<T> {
    fn eq(&self, other: &PHashSet<T>) -> bool {
        self.len() == other.len() && self.is_subset(other)
    }
}

impl<T: Eq + Hash> Eq for PHashSet<T> {}

impl<T> PBTreeSet<T> {
    /// The values in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.0.keys()
    }

    /// The values of a range, in order.
    ///
    /// # Panics
    /// If it begins behind its end.
    pub fn range<Q>(&self, range: impl RangeBounds<Q>) -> impl DoubleEndedIterator<Item = &T>
    where
        T: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.0.range(range).map(|(value, ())| value)
    }

    /// The least value.
    pub fn first(&self) -> Option<&T> {
        self.iter().next()
    }

    /// The greatest value.
    pub fn last(&self) -> Option<&T> {
        self.iter().next_back()
    }
}

impl<T: PartialEq> PartialEq for PBTreeSet<T> {
    fn eq(&self, other: &PBTreeSet<T>) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<T: Eq> Eq for PBTreeSet<T> {}

impl<'id, T> Mut<'_, 'id, PBTreeSet<T>>
where
    T: Recoverable + Borrow<T::Borrowed>,
    T::Borrowed: Ord,
{
    /// Takes the least value out.
    pub fn pop_first(&mut self) -> Option<Taken<'id, T>> {
        self.map().pop_first().map(|(value, ())| value)
    }

    /// Takes the greatest value out.
    pub fn pop_last(&mut self) -> Option<Taken<'id, T>> {
        self.map().pop_last().map(|(value, ())| value)
    }
}
