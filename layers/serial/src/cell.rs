//! Cells: values in a heap, each behind a lock of its own, and pointers to them.
//!
//! ```text
//!   a cell:   0 its number  8 bytes of the value  16 the value
//! ```
//!
//! Invariant: no two cells of a heap ever have the same number, so a pointer leads to its own cell or nowhere.

use caliburn_heap::Place;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What may be in a cell: plain values, which any bytes make, without padding; pointers to cells are such.
pub trait Value: FromBytes + IntoBytes + Immutable + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + 'static> Value for T {}

/// What a cell begins with.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Head {
    pub number: u64,
    pub len: u64,
}

/// Where the value is in its cell.
pub(crate) const VALUE: usize = size_of::<Head>();

#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct At {
    place: u64,
    /// 0: none.
    number: u64,
}

/// A pointer to a cell with a `T`, or to nothing. It reads nothing by itself: [`Tx::read`](crate::Tx::read) does.
/// A plain value, to be kept in other cells; of a cell that was removed it says so.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Ptr<T>(At, PhantomData<fn() -> T>);

impl<T> Ptr<T> {
    /// To nothing.
    pub const NONE: Ptr<T> = Ptr(At { place: 0, number: 0 }, PhantomData);

    pub(crate) fn new(place: Place, number: u64) -> Ptr<T> {
        Ptr(At { place: place.0, number }, PhantomData)
    }

    /// Whether it leads nowhere.
    pub fn is_none(&self) -> bool {
        self.0.number == 0
    }

    /// Where its cell is in the heap.
    pub fn place(&self) -> Place {
        Place(self.0.place)
    }

    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }
}

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Ptr<T> {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> Default for Ptr<T> {
    fn default() -> Ptr<T> {
        Ptr::NONE
    }
}

impl<T> PartialEq for Ptr<T> {
    fn eq(&self, other: &Ptr<T>) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for Ptr<T> {}

impl<T> std::hash::Hash for Ptr<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<T> fmt::Debug for Ptr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_none() {
            true => f.write_str("Ptr(none)"),
            false => write!(f, "Ptr({}, cell {:x})", self.0.place, self.0.number),
        }
    }
}

/// Numbers for new cells.
#[derive(Debug, Default)]
pub(crate) struct Numbers(std::sync::atomic::AtomicU64, RandomState);

impl Numbers {
    /// One that nobody has: drawn of 2^64, with keys that are random in each process.
    pub fn next(&self) -> u64 {
        let count = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.1.hash_one(count).max(1)
    }
}
