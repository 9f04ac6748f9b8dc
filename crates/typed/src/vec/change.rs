//! How vectors change.

use super::PVec;
use crate::link::Link;
use crate::value::guard::{Mut, Owned};
use crate::value::recoverable::{Init, No, Recoverable, Taken, free_all, relocate, take, turn};
use crate::value::tx::{Tx, making};
use caliburn_os::simulated::unless;
use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Bound, RangeBounds};
use std::{ptr, slice};

fn bounds(range: impl RangeBounds<usize>, len: usize) -> std::ops::Range<usize> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.checked_add(1).expect("a range begins within the numbers"),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1).expect("a range ends within the numbers"),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    assert!(start <= end && end <= len, "range {start}..{end} of {len} values");
    start..end
}

/// What `Vec` does, with std's names and costs.
impl<'a, 'id, T: Recoverable> Mut<'a, 'id, PVec<T>> {
    fn items(&self) -> *mut T {
        match self.capacity {
            0 => ptr::dangling_mut(),
            _ => self.items.get(),
        }
    }

    fn set_len(&mut self, len: usize) {
        let this = self.as_ptr();
        // SAFETY: the field of the guard's vector, declared.
        unsafe {
            let field = &raw mut (*this).len;
            self.tx().declare(field, 1);
            field.write(len as u64);
        }
    }

    /// Makes room for `additional` values more.
    pub fn reserve(&mut self, additional: usize) {
        let wanted = self.len().checked_add(additional).expect("so many values do not fit any memory");
        if wanted > self.capacity() {
            self.grow(wanted.max(2 * self.capacity()));
        }
    }

    /// The same, with no more than the heap's sizes have beyond.
    pub fn reserve_exact(&mut self, additional: usize) {
        let wanted = self.len().checked_add(additional).expect("so many values do not fit any memory");
        if wanted > self.capacity() {
            self.grow(wanted);
        }
    }

    #[cold]
    fn grow(&mut self, capacity: usize) {
        self.move_to(capacity.max(1));
    }

    /// Moves the values to memory for so many.
    fn move_to(&mut self, capacity: usize) {
        let (this, tx, len, old) = (self.as_ptr(), self.tx(), self.len(), self.capacity());
        let from = self.items();
        if size_of::<T>() == 0 {
            assert!(capacity <= usize::MAX >> 1, "so many values do not fit any memory");
            tx.declare(this, 1);
            // A byte that is never used, so that there is something to lead to.
            let to = if old == 0 { tx.allocate::<T>(1) } else { from };
            // SAFETY: declared; values without bytes are everywhere.
            unsafe {
                Link::set(&raw mut (*this).items, to);
                (*this).capacity = u64::MAX >> 1;
            }
            return;
        }
        let to = tx.allocate::<T>(capacity);
        let capacity = tx.usable_len(to.cast()) / size_of::<T>();
        tx.declare(to, len);
        tx.declare(this, 1);
        // SAFETY: `to` has room for the values, all is declared; what was theirs is given up.
        unsafe {
            relocate(from, to, len);
            if unless("typed-grown-vector-leaks", old > 0) {
                tx.free(from);
            }
            Link::set(&raw mut (*this).items, to);
            (*this).capacity = capacity as u64;
        }
    }

    /// Gives back what the values do not need.
    pub fn shrink_to_fit(&mut self) {
        if self.is_empty() {
            let (this, tx) = (self.as_ptr(), self.tx());
            tx.declare(this, 1);
            // SAFETY: nothing is in the vector's memory any more.
            unsafe {
                if (*this).capacity > 0 {
                    tx.free((*this).items.get());
                }
                this.write(PVec::new());
            }
        } else if size_of::<T>() > 0 && self.len() < self.capacity() * 3 / 4 {
            self.move_to(self.len());
        }
    }

    /// Puts a value at the end.
    #[inline]
    pub fn push<I: Init<'id, T>>(&mut self, value: I) {
        let len = self.len();
        if len == self.capacity() {
            self.grow((2 * len).max(4));
        }
        // SAFETY: there is room behind the last value.
        unsafe {
            let slot = self.items().add(len);
            self.tx().declare(slot, 1);
            making(self.tx(), || value.init(slot, self.tx()));
        }
        self.set_len(len + 1);
    }

    /// Takes the last value out.
    #[inline]
    pub fn pop(&mut self) -> Option<Taken<'id, T>> {
        let last = self.len().checked_sub(1)?;
        self.set_len(last);
        // SAFETY: the value at `last`, which is no longer the vector's.
        Some(unsafe { take(self.items().add(last), self.tx()) })
    }

    /// Puts a value in front of the one at `index`.
    ///
    /// # Panics
    /// If `index` is beyond the end.
    pub fn insert<I: Init<'id, T>>(&mut self, index: usize, value: I) {
        let len = self.len();
        assert!(index <= len, "index {index} of a vector of {len}");
        self.reserve(1);
        // SAFETY: made behind the last value, where nobody looks yet, it goes in front of those from `index`
        // on; all is declared.
        unsafe {
            let slot = self.items().add(index);
            self.tx().declare(slot, len - index + 1);
            making(self.tx(), || value.init(slot.add(len - index), self.tx()));
            self.set_len(len + 1);
            turn(slot, len - index);
        }
    }

    /// Takes the value at `index` out; those behind move up.
    ///
    /// # Panics
    /// If there is none.
    pub fn remove(&mut self, index: usize) -> Taken<'id, T> {
        let len = self.len();
        assert!(index < len, "index {index} of a vector of {len}");
        // SAFETY: the values behind `index` move into its place; all is declared.
        unsafe {
            let slot = self.items().add(index);
            self.tx().declare(slot, len - index - 1);
            self.set_len(len - 1);
            let taken = take(slot, self.tx());
            relocate(slot.add(1), slot, len - index - 1);
            taken
        }
    }

    /// Takes the value at `index` out; the last one takes its place.
    ///
    /// # Panics
    /// If there is none.
    pub fn swap_remove(&mut self, index: usize) -> Taken<'id, T> {
        let len = self.len();
        assert!(index < len, "index {index} of a vector of {len}");
        // SAFETY: the last value moves into the place at `index`, declared.
        unsafe {
            let slot = self.items().add(index);
            self.tx().declare(slot, 1);
            self.set_len(len - 1);
            let taken = take(slot, self.tx());
            if index < len - 1 {
                relocate(slot.add(len - 1 - index), slot, 1);
            }
            taken
        }
    }

    /// Frees the values from `len` on.
    pub fn truncate(&mut self, len: usize) {
        let now = self.len();
        if len >= now {
            return;
        }
        self.set_len(len);
        // SAFETY: values that are no longer the vector's.
        unsafe { free_all(self.items().add(len), now - len, self.tx()) }
    }

    /// Frees all values. The room stays.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// A guard of the value at `index`.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<Mut<'_, 'id, T>> {
        self.reborrow().into_get(index)
    }

    /// The same, for as long as the guard would have lived.
    #[inline]
    pub fn into_get(self, index: usize) -> Option<Mut<'a, 'id, T>> {
        // SAFETY: a value of the vector's, which the guard has alone.
        (index < self.len()).then(|| unsafe { Mut::new(self.items().add(index), self.tx()) })
    }

    /// A guard of the value at `index`: what `IndexMut` is elsewhere.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn at(&mut self, index: usize) -> Mut<'_, 'id, T> {
        let len = self.len();
        self.get_mut(index).unwrap_or_else(|| panic!("index {index} of a vector of {len}"))
    }

    /// A guard of the last value.
    pub fn last_mut(&mut self) -> Option<Mut<'_, 'id, T>> {
        let last = self.len().checked_sub(1)?;
        self.get_mut(last)
    }

    /// Guards of all values.
    pub fn iter_mut(&mut self) -> IterMut<'_, 'id, T> {
        IterMut { next: self.items(), left: self.len(), tx: self.tx(), borrows: PhantomData }
    }

    /// Exchanges two values.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn swap(&mut self, a: usize, b: usize) {
        let len = self.len();
        assert!(a < len && b < len, "indices {a} and {b} of a vector of {len}");
        // SAFETY: two values of the vector's; the same one twice is left alone.
        unsafe {
            let (mut a, mut b) = (
                Mut::<T>::new(self.items().add(a), self.tx()),
                Mut::<T>::new(self.items().add(b), self.tx()),
            );
            a.swap_with(&mut b);
        }
    }

    /// Keeps the values for which `keep` holds, and frees the others. If it panics, the vector is as it was.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        let kept: Vec<bool> = self.iter().map(&mut keep).collect();
        let Some(first) = kept.iter().position(|kept| !kept) else { return };
        let (items, tx, len) = (self.items(), self.tx(), self.len());
        let mut to = first;
        // SAFETY: values of the vector's, from the first that goes on; all is declared before anything is moved.
        unsafe {
            tx.declare(items.add(first), len - first);
            self.set_len(kept.iter().filter(|kept| **kept).count());
            for (from, kept) in kept.iter().enumerate().skip(first) {
                if *kept {
                    relocate(items.add(from), items.add(to), 1);
                    to += 1;
                } else {
                    free_all(items.add(from), 1, tx);
                }
            }
        }
    }

    /// Keeps of equal neighbours the first.
    pub fn dedup(&mut self)
    where
        T: PartialEq,
    {
        let mut same = self.windows(2).map(|pair| pair[0] == pair[1]).collect::<Vec<bool>>().into_iter();
        let mut first = true;
        self.retain(|_| std::mem::take(&mut first) || !same.next().unwrap_or(false));
    }

    /// Takes values out, which are the transaction's until they are put elsewhere. Those behind move up.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn drain(&mut self, range: impl RangeBounds<usize>) -> std::vec::IntoIter<Taken<'id, T>> {
        let len = self.len();
        let range = bounds(range, len);
        let (items, tx) = (self.items(), self.tx());
        // SAFETY: values of the vector's; those behind are declared from the gap on, before anything is moved.
        let taken: Vec<_> = unsafe {
            tx.declare(items.add(range.start), len - range.start);
            self.set_len(len - range.len());
            let taken = range.clone().map(|i| take(items.add(i), tx)).collect();
            relocate(items.add(range.end), items.add(range.start), len - range.end);
            taken
        };
        taken.into_iter()
    }

    /// The values from `at` on as a vector of their own, to be put somewhere in the same transaction.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn split_off(&mut self, at: usize) -> Owned<'id, PVec<T>> {
        let len = self.len();
        assert!(at <= len, "index {at} of a vector of {len}");
        let mut made = Owned::<PVec<T>>::new(PVec::new(), self.tx());
        let mut other = made.as_mut();
        other.reserve_exact(len - at);
        // SAFETY: values that move into memory for so many.
        unsafe {
            let to = other.items();
            other.tx().declare(to, len - at);
            self.set_len(at);
            relocate(self.items().add(at), to, len - at);
        }
        other.set_len(len - at);
        made
    }

    /// Moves all values of another vector to the end of this.
    pub fn append(&mut self, other: &mut Mut<'_, 'id, PVec<T>>) {
        let (len, more) = (self.len(), other.len());
        self.reserve(more);
        // SAFETY: values that move into the room behind the last.
        unsafe {
            let to = self.items().add(len);
            self.tx().declare(to, more);
            other.set_len(0);
            relocate(other.items(), to, more);
        }
        self.set_len(len + more);
    }

    /// Brings the values in the order of their keys; equal ones stay as they are. If `key` panics, the vector
    /// is as it was.
    pub fn sort_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        if size_of::<T>() == 0 {
            return;
        }
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by(|a, b| compare(&self[*a], &self[*b]));
        self.arrange(&order);
    }

    /// Brings the values in order.
    pub fn sort(&mut self)
    where
        T: Ord,
    {
        self.sort_by(Ord::cmp);
    }

    /// Turns the order around.
    pub fn reverse(&mut self) {
        if size_of::<T>() == 0 {
            return;
        }
        let order: Vec<usize> = (0..self.len()).rev().collect();
        self.arrange(&order);
    }

    /// Puts the value at `order[i]` at `i`, each once.
    fn arrange(&mut self, order: &[usize]) {
        let (items, tx) = (self.items(), self.tx());
        if order.iter().enumerate().all(|(i, from)| i == *from) {
            return;
        }
        let mut aside: Vec<MaybeUninit<T>> = (0..order.len()).map(|_| MaybeUninit::uninit()).collect();
        tx.declare(items, order.len());
        // SAFETY: each value is moved aside once, and back once.
        unsafe {
            for (aside, from) in aside.iter_mut().zip(order) {
                relocate(items.add(*from), aside.as_mut_ptr(), 1);
            }
            relocate(aside.as_ptr().cast(), items, order.len());
        }
    }

    /// Makes it `len` values long, with `value` called for those that come.
    pub fn resize_with<I: Init<'id, T>>(&mut self, len: usize, mut value: impl FnMut() -> I) {
        self.truncate(len);
        self.reserve(len.saturating_sub(self.len()));
        (self.len()..len).for_each(|_| self.push(value()));
    }
}

impl<'id, T: Recoverable<Pointers = No> + Copy> Mut<'_, 'id, PVec<T>> {
    /// Puts copies of values at the end.
    pub fn extend_from_slice(&mut self, values: &[T]) {
        let len = self.len();
        self.reserve(values.len());
        // SAFETY: room behind the last value, declared; `values` are not in it, since the guard has it alone.
        unsafe {
            let to = self.items().add(len);
            self.tx().declare(to, values.len());
            if T::PADDED {
                values.iter().enumerate().for_each(|(i, value)| T::store(value, to.add(i)));
            } else {
                ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
            }
        }
        self.set_len(len + values.len());
    }

    /// The values as a slice that can be changed: all of it is declared.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        const { assert!(!T::PADDED, "the type has padding, which would leak: change values one by one") };
        let len = self.len();
        self.tx().declare(self.items(), len);
        // SAFETY: the values, declared, which the guard has alone.
        unsafe { slice::from_raw_parts_mut(self.items(), len) }
    }
}

impl<'id, T: Recoverable, I: Init<'id, T>> Extend<I> for Mut<'_, 'id, PVec<T>> {
    fn extend<L: IntoIterator<Item = I>>(&mut self, values: L) {
        let values = values.into_iter();
        self.reserve(values.size_hint().0);
        values.for_each(|value| self.push(value));
    }
}

impl<'a, 'id, T: Recoverable> IntoIterator for Mut<'a, 'id, PVec<T>> {
    type Item = Mut<'a, 'id, T>;
    type IntoIter = IterMut<'a, 'id, T>;

    fn into_iter(self) -> IterMut<'a, 'id, T> {
        IterMut { next: self.items(), left: self.len(), tx: self.tx(), borrows: PhantomData }
    }
}

/// Guards of the values of a vector, one after the other.
pub struct IterMut<'a, 'id, T> {
    next: *mut T,
    left: usize,
    tx: Tx<'id>,
    borrows: PhantomData<&'a mut T>,
}

impl<T> fmt::Debug for IterMut<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterMut").field("left", &self.left).finish_non_exhaustive()
    }
}

impl<'a, 'id, T: Recoverable> Iterator for IterMut<'a, 'id, T> {
    type Item = Mut<'a, 'id, T>;

    fn next(&mut self) -> Option<Mut<'a, 'id, T>> {
        self.left = self.left.checked_sub(1)?;
        let now = self.next;
        // SAFETY: the iterator has the values that are left for itself, and gives each away once.
        unsafe {
            self.next = now.add(1);
            Some(Mut::new(now, self.tx))
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T: Recoverable> ExactSizeIterator for IterMut<'_, '_, T> {}
