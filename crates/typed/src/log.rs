//! Logs: values that are only appended, and never move.

use crate::link::Link;
use crate::value::datum::{Datum, Loader, Loading, Piece, absorb_item, collect};
use crate::value::guard::Mut;
use crate::value::layout::Types;
use crate::value::recoverable::{Init, Recoverable, Yes, free_all};
use crate::value::tx::{Tx, making};
use std::fmt;
use std::ops::Index;
use std::ptr;

/// Values of the first chunk; each other has twice as many as the one before.
pub(crate) const FIRST: u64 = 16;
pub(crate) const CHUNKS: usize = 40;

/// An append-only log in a store: appending takes as long for the last of a billion values as for the first, as
/// none is ever moved, and changes a few bytes beside the value.
#[repr(C)]
pub struct PLog<T> {
    len: u64,
    chunks: [Link<T>; CHUNKS],
}

/// The chunk of the value at `index`, and its place in it.
pub(crate) fn place(index: u64) -> (usize, u64) {
    let chunk = (index / FIRST + 1).ilog2();
    (chunk as usize, index - ((1 << chunk) - 1) * FIRST)
}

impl<T> PLog<T> {
    /// An empty log.
    pub const fn new() -> PLog<T> {
        PLog { len: 0, chunks: [const { Link::NONE }; CHUNKS] }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value at `index`.
    pub fn get(&self, index: usize) -> Option<&T> {
        let (chunk, at) = place(index as u64);
        // SAFETY: a value of the log, in a chunk that is there; nobody changes it.
        (index < self.len()).then(|| unsafe { &*self.chunks[chunk].get().add(at as usize) })
    }

    /// The newest value.
    pub fn last(&self) -> Option<&T> {
        self.len().checked_sub(1).and_then(|last| self.get(last))
    }

    /// The values, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        (0..self.len()).map(|index| &self[index])
    }
}

impl<T> Default for PLog<T> {
    fn default() -> PLog<T> {
        PLog::new()
    }
}

impl<T> Index<usize> for PLog<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        let len = self.len();
        self.get(index).unwrap_or_else(|| panic!("index {index} of a log of {len}"))
    }
}

impl<T: fmt::Debug> fmt::Debug for PLog<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

// SAFETY: links, told when they are moved, and a number.
unsafe impl<T: Recoverable> Recoverable for PLog<T> {
    type Pointers = Yes;
    type Borrowed = PLog<T>;
    const PADDED: bool = false;

    fn describe(types: &mut Types) -> String {
        format!("PLog<{}>", types.name_of::<T>())
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word.
        unsafe { ptr::copy_nonoverlapping(from, to, 1) }
    }

    unsafe fn moved(this: *mut Self, by: isize) {
        // SAFETY: the caller's word, for each link.
        (0..CHUNKS).for_each(|chunk| unsafe { Link::moved(&raw mut (*this).chunks[chunk], by) });
    }

    unsafe fn free(this: *mut Self, tx: Tx<'_>) {
        /// Frees what the values of a chunk own.
        unsafe fn contents<T: Recoverable>(at: *mut u8, tx: Tx<'_>, count: usize) {
            // SAFETY: so many values are there, see below.
            unsafe { free_all(at.cast::<T>(), count, tx) }
        }
        // SAFETY: the log owns its chunks and the values in them.
        unsafe {
            let len = (*this).len;
            for chunk in 0..CHUNKS {
                let link = &raw const (*this).chunks[chunk];
                if !(*link).is_none() {
                    let before = ((1 << chunk) - 1) * FIRST;
                    let count = len.saturating_sub(before).min(FIRST << chunk) as usize;
                    tx.free_counted((*link).get().cast(), count, contents::<T>);
                }
            }
        }
    }

    unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
        let items = loader.items(from).into_iter().map(|item| Loading(item, loader));
        // SAFETY: the caller's word.
        unsafe { collect(to, PLog::new(), loader, |mut made| made.extend(items)) }
    }

    unsafe fn absorb(this: *mut Self, path: &[String], piece: Piece, loader: &Loader<'_, '_>) {
        // SAFETY: the caller's word.
        unsafe {
            absorb_item(this, (path, piece), loader, |mut values, item| values.push(Loading(item, loader)));
        }
    }
}

// SAFETY: an empty log is the same anywhere, and no other has a value outside of a store.
unsafe impl<'id, T: Recoverable> Init<'id, PLog<T>> for PLog<T> {
    unsafe fn init(self, to: *mut PLog<T>, _tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe { to.write(self) }
    }
}

impl<'id, T: Recoverable> Mut<'_, 'id, PLog<T>> {
    /// Appends a value.
    ///
    /// # Panics
    /// Beyond 17,592,186,044,400 values.
    pub fn push<I: Init<'id, T>>(&mut self, value: I) {
        let (this, tx) = (self.as_ptr(), self.tx());
        let (chunk, at) = place(self.len);
        assert!(chunk < CHUNKS, "a log of {} values is full", self.len);
        // SAFETY: fields of the log, declared; a place behind the newest value, declared.
        unsafe {
            let link = &raw mut (*this).chunks[chunk];
            if (*link).is_none() {
                let values = tx.allocate::<T>((FIRST << chunk) as usize);
                tx.declare(link, 1);
                Link::set(link, values);
            }
            let slot = (*link).get().add(at as usize);
            tx.declare(slot, 1);
            making(tx, || value.init(slot, tx));
            let len = &raw mut (*this).len;
            tx.declare(len, 1);
            *len += 1;
        }
    }

    /// Frees all values.
    pub fn clear(&mut self) {
        self.set(PLog::new());
    }
}

impl<'id, T: Recoverable, I: Init<'id, T>> Extend<I> for Mut<'_, 'id, PLog<T>> {
    fn extend<L: IntoIterator<Item = I>>(&mut self, values: L) {
        values.into_iter().for_each(|value| self.push(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_index_has_a_place_of_its_own() {
        let mut expected = (0, 0);
        for index in 0..100_000 {
            assert_eq!(place(index), expected);
            expected = match expected.1 + 1 == FIRST << expected.0 {
                true => (expected.0 + 1, 0),
                false => (expected.0, expected.1 + 1),
            };
        }
    }
}
