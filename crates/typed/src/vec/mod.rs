//! Vectors.

mod change;

pub use change::IterMut;

use crate::link::Link;
use crate::value::datum::{Datum, Loader, Loading, Piece, absorb_item, collect};
use crate::value::guard::{Mut, Owned};
use crate::value::layout::Types;
use crate::value::recoverable::{Init, Recoverable, Yes, free_all};
use crate::value::tx::Tx;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::{ptr, slice};

/// A vector in a store: what `Vec` is elsewhere. It reads as a slice, and changes through its guard.
#[repr(C)]
pub struct PVec<T> {
    items: Link<T>,
    len: u64,
    capacity: u64,
}

impl<T> PVec<T> {
    /// An empty vector.
    pub const fn new() -> PVec<T> {
        PVec { items: Link::NONE, len: 0, capacity: 0 }
    }

    /// Values that it can hold without growing.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Its values.
    #[inline(always)]
    pub fn as_slice(&self) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `items` leads to `len` values, which nobody changes while the vector is borrowed.
        unsafe { slice::from_raw_parts(self.items.get(), self.len as usize) }
    }
}

impl<T> Default for PVec<T> {
    fn default() -> PVec<T> {
        PVec::new()
    }
}

impl<T> Deref for PVec<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        self.as_slice()
    }
}

impl<'v, T> IntoIterator for &'v PVec<T> {
    type Item = &'v T;
    type IntoIter = slice::Iter<'v, T>;

    fn into_iter(self) -> slice::Iter<'v, T> {
        self.iter()
    }
}

impl<T: fmt::Debug> fmt::Debug for PVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

impl<T: PartialEq<U>, U> PartialEq<PVec<U>> for PVec<T> {
    fn eq(&self, other: &PVec<U>) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl<T: PartialEq<U>, U> PartialEq<[U]> for PVec<T> {
    fn eq(&self, other: &[U]) -> bool {
        self.as_slice() == other
    }
}

impl<T: PartialEq<U>, U> PartialEq<Vec<U>> for PVec<T> {
    fn eq(&self, other: &Vec<U>) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl<T: Eq> Eq for PVec<T> {}

impl<T: PartialOrd> PartialOrd for PVec<T> {
    fn partial_cmp(&self, other: &PVec<T>) -> Option<Ordering> {
        self.as_slice().partial_cmp(other.as_slice())
    }
}

impl<T: Ord> Ord for PVec<T> {
    fn cmp(&self, other: &PVec<T>) -> Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl<T: Hash> Hash for PVec<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl<T> std::borrow::Borrow<[T]> for PVec<T> {
    fn borrow(&self) -> &[T] {
        self
    }
}

impl<T: Recoverable> std::borrow::Borrow<[T]> for Owned<'_, PVec<T>> {
    fn borrow(&self) -> &[T] {
        self
    }
}

impl<T> AsRef<[T]> for PVec<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

// SAFETY: a link, told when it is moved, and two numbers.
unsafe impl<T: Recoverable> Recoverable for PVec<T> {
    type Pointers = Yes;
    type Borrowed = [T];
    const PADDED: bool = false;

    fn describe(types: &mut Types) -> String {
        format!("PVec<{}>", types.name_of::<T>())
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word.
        unsafe { ptr::copy_nonoverlapping(from, to, 1) }
    }

    #[inline]
    unsafe fn moved(this: *mut Self, by: isize) {
        // SAFETY: the caller's word.
        unsafe { Link::moved(&raw mut (*this).items, by) }
    }

    unsafe fn free(this: *mut Self, tx: Tx<'_>) {
        /// Frees what the values own.
        unsafe fn contents<T: Recoverable>(at: *mut u8, tx: Tx<'_>, count: usize) {
            // SAFETY: so many values are there, see below.
            unsafe { free_all(at.cast::<T>(), count, tx) }
        }
        // SAFETY: the vector owns its memory and the values in it.
        unsafe {
            if (*this).capacity == 0 {
                return;
            }
            let items = (*this).items.get();
            tx.free_counted(items.cast(), (*this).len as usize, contents::<T>);
        }
    }

    unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
        let items = loader.items(from).into_iter().map(|item| Loading(item, loader));
        // SAFETY: the caller's word.
        unsafe { collect(to, PVec::new(), loader, |mut made| made.extend(items)) }
    }

    unsafe fn absorb(this: *mut Self, path: &[String], piece: Piece, loader: &Loader<'_, '_>) {
        // SAFETY: the caller's word.
        unsafe {
            absorb_item(this, (path, piece), loader, |mut values, item| values.push(Loading(item, loader)));
        }
    }
}

// SAFETY: an empty vector is the same anywhere, and no other has a value outside of a store.
unsafe impl<'id, T: Recoverable> Init<'id, PVec<T>> for PVec<T> {
    unsafe fn init(self, to: *mut PVec<T>, _tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe { to.write(self) }
    }
}

// SAFETY: a vector is made, of values that are made.
unsafe impl<'id, T: Recoverable, I: Init<'id, T>> Init<'id, PVec<T>> for Vec<I> {
    unsafe fn init(self, to: *mut PVec<T>, tx: Tx<'id>) {
        // SAFETY: memory for a vector, declared if need be; it is one from here on.
        let mut made = unsafe {
            to.write(PVec::new());
            Mut::<PVec<T>>::new(to, tx)
        };
        made.reserve_exact(self.len());
        made.extend(self);
    }
}
