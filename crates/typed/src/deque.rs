//! Queues with two ends: a ring of values.

use crate::link::Link;
use crate::value::datum::{Datum, Loader, Loading, Piece, absorb_item, collect};
use crate::value::guard::Mut;
use crate::value::layout::Types;
use crate::value::recoverable::{Init, Recoverable, Taken, Yes, free_all, relocate, take};
use crate::value::tx::{Tx, making};
use std::fmt;
use std::ops::Index;
use std::{ptr, slice};

/// A queue with two ends in a store: what `VecDeque` is elsewhere.
#[repr(C)]
pub struct PVecDeque<T> {
    items: Link<T>,
    /// The first value's place.
    first: u64,
    len: u64,
    capacity: u64,
}

impl<T> PVecDeque<T> {
    /// An empty queue.
    pub const fn new() -> PVecDeque<T> {
        PVecDeque { items: Link::NONE, first: 0, len: 0, capacity: 0 }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Values that it can hold without growing.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// The place of the value at `index`, or behind the last.
    #[inline(always)]
    fn place(&self, index: usize) -> usize {
        let place = self.first as usize + index;
        if place >= self.capacity as usize { place - self.capacity as usize } else { place }
    }

    /// The value at `index`.
    pub fn get(&self, index: usize) -> Option<&T> {
        // SAFETY: a value of the queue, which nobody changes while it is borrowed.
        (index < self.len()).then(|| unsafe { &*self.items.get().add(self.place(index)) })
    }

    /// The first value.
    pub fn front(&self) -> Option<&T> {
        self.get(0)
    }

    /// The last value.
    pub fn back(&self) -> Option<&T> {
        self.len().checked_sub(1).and_then(|last| self.get(last))
    }

    /// The values, in two parts.
    pub fn as_slices(&self) -> (&[T], &[T]) {
        if self.len == 0 {
            return (&[], &[]);
        }
        let straight = self.len().min(self.capacity() - self.first as usize);
        // SAFETY: values of the queue: from the first to the end of the ring, and from its beginning on.
        unsafe {
            (
                slice::from_raw_parts(self.items.get().add(self.first as usize), straight),
                slice::from_raw_parts(self.items.get(), self.len() - straight),
            )
        }
    }

    /// The values in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + Clone {
        let (front, back) = self.as_slices();
        front.iter().chain(back)
    }
}

impl<T> Default for PVecDeque<T> {
    fn default() -> PVecDeque<T> {
        PVecDeque::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for PVecDeque<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: PartialEq> PartialEq for PVecDeque<T> {
    fn eq(&self, other: &PVecDeque<T>) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<T: Eq> Eq for PVecDeque<T> {}

impl<T> Index<usize> for PVecDeque<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        let len = self.len();
        self.get(index).unwrap_or_else(|| panic!("index {index} of a queue of {len}"))
    }
}

// SAFETY: a link, told when it is moved, and numbers.
unsafe impl<T: Recoverable> Recoverable for PVecDeque<T> {
    type Pointers = Yes;
    type Borrowed = PVecDeque<T>;
    const PADDED: bool = false;

    fn describe(types: &mut Types) -> String {
        format!("PVecDeque<{}>", types.name_of::<T>())
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word.
        unsafe { ptr::copy_nonoverlapping(from, to, 1) }
    }

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
        // SAFETY: the queue owns its memory and the values in it, which lie in two parts.
        unsafe {
            if (*this).capacity > 0 {
                let (front, back) = (*this).as_slices();
                let parts = [(front.as_ptr(), front.len()), (back.as_ptr(), back.len())];
                let items = (*this).items.get();
                for (part, count) in parts {
                    tx.later(part.cast_mut().cast(), count, contents::<T>, false);
                }
                tx.free_counted(items.cast(), 0, contents::<T>);
            }
        }
    }

    unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
        let items = loader.items(from).into_iter().map(|item| Loading(item, loader));
        // SAFETY: the caller's word.
        unsafe { collect(to, PVecDeque::new(), loader, |mut made| made.extend(items)) }
    }

    unsafe fn absorb(this: *mut Self, path: &[String], piece: Piece, loader: &Loader<'_, '_>) {
        // SAFETY: the caller's word.
        unsafe {
            absorb_item(this, (path, piece), loader, |mut values, item| {
                values.push_back(Loading(item, loader))
            });
        }
    }
}

// SAFETY: an empty queue is the same anywhere, and no other has a value outside of a store.
unsafe impl<'id, T: Recoverable> Init<'id, PVecDeque<T>> for PVecDeque<T> {
    unsafe fn init(self, to: *mut PVecDeque<T>, _tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe { to.write(self) }
    }
}

/// What `VecDeque` does, with std's names and costs.
impl<'id, T: Recoverable> Mut<'_, 'id, PVecDeque<T>> {
    /// Declares the queue itself.
    fn declare(&self) -> *mut PVecDeque<T> {
        self.tx().declare(self.as_ptr(), 1);
        self.as_ptr()
    }

    /// Makes room for one value more.
    fn make_room(&mut self) {
        if self.len < self.capacity {
            return;
        }
        let (tx, len) = (self.tx(), self.len());
        // Without memory the link leads to itself, where no value could be.
        let old = if self.capacity == 0 { ptr::dangling_mut() } else { self.items.get() };
        let wanted = (2 * len).max(4);
        let to = tx.allocate::<T>(wanted);
        // Values without bytes need no room but their number.
        let capacity = tx.usable_len(to.cast()).checked_div(size_of::<T>()).unwrap_or(1 << 62);
        tx.declare(to, len);
        let this = self.declare();
        let straight = len.min(self.capacity() - self.first as usize);
        // SAFETY: the values move in order to memory for more; all is declared, and what was theirs given up.
        unsafe {
            relocate(old.add(self.first as usize), to, straight);
            relocate(old, to.add(straight), len - straight);
            if (*this).capacity > 0 {
                tx.free(old);
            }
            Link::set(&raw mut (*this).items, to);
            (*this).first = 0;
            (*this).capacity = capacity as u64;
        }
    }

    /// Puts a value at the end.
    pub fn push_back<I: Init<'id, T>>(&mut self, value: I) {
        self.make_room();
        let this = self.declare();
        // SAFETY: a place that no value has, declared.
        unsafe {
            let slot = self.items.get().add(self.place(self.len()));
            self.tx().declare(slot, 1);
            making(self.tx(), || value.init(slot, self.tx()));
            (*this).len += 1;
        }
    }

    /// Puts a value in front.
    pub fn push_front<I: Init<'id, T>>(&mut self, value: I) {
        self.make_room();
        let this = self.declare();
        let first = self.place(self.capacity() - 1);
        // SAFETY: a place that no value has, declared.
        unsafe {
            let slot = self.items.get().add(first);
            self.tx().declare(slot, 1);
            making(self.tx(), || value.init(slot, self.tx()));
            (*this).first = first as u64;
            (*this).len += 1;
        }
    }

    /// Takes the first value out.
    pub fn pop_front(&mut self) -> Option<Taken<'id, T>> {
        if self.is_empty() {
            return None;
        }
        let (this, first) = (self.declare(), self.place(1));
        // SAFETY: a value that is no longer the queue's.
        unsafe {
            let slot = self.items.get().add(self.first as usize);
            (*this).first = first as u64;
            (*this).len -= 1;
            Some(take(slot, self.tx()))
        }
    }

    /// Takes the last value out.
    pub fn pop_back(&mut self) -> Option<Taken<'id, T>> {
        let last = self.len().checked_sub(1)?;
        let (this, slot) = (self.declare(), self.place(last));
        // SAFETY: a value that is no longer the queue's.
        unsafe {
            (*this).len -= 1;
            Some(take(self.items.get().add(slot), self.tx()))
        }
    }

    /// A guard of the value at `index`.
    pub fn get_mut(&mut self, index: usize) -> Option<Mut<'_, 'id, T>> {
        // SAFETY: a value of the queue, which the guard has alone.
        (index < self.len()).then(|| unsafe { Mut::new(self.items.get().add(self.place(index)), self.tx()) })
    }

    /// A guard of the first value.
    pub fn front_mut(&mut self) -> Option<Mut<'_, 'id, T>> {
        self.get_mut(0)
    }

    /// A guard of the last value.
    pub fn back_mut(&mut self) -> Option<Mut<'_, 'id, T>> {
        let last = self.len().checked_sub(1)?;
        self.get_mut(last)
    }

    /// Guards of the values in order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = Mut<'_, 'id, T>> {
        let (items, tx, queue) = (self.items.get(), self.tx(), self.as_ptr());
        // SAFETY: values of the queue, which the guard has alone, each given away once.
        (0..self.len()).map(move |index| unsafe { Mut::new(items.add((*queue).place(index)), tx) })
    }

    /// Frees the values from `len` on.
    pub fn truncate(&mut self, len: usize) {
        while self.len() > len {
            drop(self.pop_back());
        }
    }

    /// Frees all values. The room stays.
    pub fn clear(&mut self) {
        self.truncate(0);
    }
}

impl<'id, T: Recoverable, I: Init<'id, T>> Extend<I> for Mut<'_, 'id, PVecDeque<T>> {
    fn extend<L: IntoIterator<Item = I>>(&mut self, values: L) {
        values.into_iter().for_each(|value| self.push_back(value));
    }
}
