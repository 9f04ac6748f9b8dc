//! Guards: the only way to change what is in a store. A guard declares what it changes, and nothing more.

use crate::error::Error;
use crate::value::recoverable::{Fields, Init, No, Recoverable};
use crate::value::tx::{Tx, making};
use caliburn_os::simulated::planted;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{self, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// A value in a store that may be changed, for `'a`, by the transaction `'id`: what `&mut T` is elsewhere.
///
/// It reads as a `&T`. A value without pointers is changed through `*guard`, which declares all of it, or by
/// [`set`](Mut::set); a struct field by field with [`fields`](Mut::fields), which declares just what is touched;
/// collections by their methods.
pub struct Mut<'a, 'id, T> {
    at: *mut T,
    tx: Tx<'id>,
    borrows: PhantomData<&'a mut T>,
}

impl<'a, 'id, T> Mut<'a, 'id, T> {
    /// A guard for the value at `at`.
    ///
    /// # Safety
    /// It is a value of the transaction's heap, and nothing else refers to it for `'a`.
    #[inline(always)]
    pub unsafe fn new(at: *mut T, tx: Tx<'id>) -> Mut<'a, 'id, T> {
        Mut { at, tx, borrows: PhantomData }
    }

    /// Where the value is.
    #[inline(always)]
    pub fn as_ptr(&self) -> *mut T {
        self.at
    }

    /// The transaction.
    #[inline(always)]
    pub fn tx(&self) -> Tx<'id> {
        self.tx
    }

    /// The guard once more, for as long as this one is not used.
    #[inline(always)]
    pub fn reborrow(&mut self) -> Mut<'_, 'id, T> {
        Mut { at: self.at, tx: self.tx, borrows: PhantomData }
    }

    /// The value, for as long as the guard would have lived.
    #[inline(always)]
    pub fn into_ref(self) -> &'a T {
        // SAFETY: see `new`: nothing changes it for 'a.
        unsafe { &*self.at }
    }
}

impl<'a, 'id, T: Recoverable> Mut<'a, 'id, T> {
    /// Guards of the parts of a struct, a tuple, or an enum's variant.
    #[inline(always)]
    pub fn fields(&mut self) -> T::Of<'_, 'id>
    where
        T: Fields,
    {
        T::of(self.reborrow())
    }

    /// The same, for as long as the guard would have lived.
    #[inline(always)]
    pub fn into_fields(self) -> T::Of<'a, 'id>
    where
        T: Fields,
    {
        T::of(self)
    }

    /// Replaces the value. What it owned is freed.
    #[inline]
    pub fn set<I: Init<'id, T>>(&mut self, value: I) {
        self.tx.declare(self.at, 1);
        // SAFETY: it is a value, declared, and a new one takes its place.
        unsafe {
            if !planted("typed-old-value-kept") {
                T::free(self.at, self.tx);
            }
            making(self.tx, || value.init(self.at, self.tx));
        }
    }

    /// Exchanges the values of two places.
    pub fn swap_with(&mut self, other: &mut Mut<'_, 'id, T>) {
        let (a, b) = (self.at, other.at);
        if a == b {
            return;
        }
        self.tx.declare(a, 1);
        self.tx.declare(b, 1);
        // SAFETY: both are values, declared, and apart, since both guards have theirs alone.
        unsafe {
            ptr::swap_nonoverlapping(a, b, 1);
            let by = a.addr().wrapping_sub(b.addr()).cast_signed();
            T::moved(a, by);
            T::moved(b, -by);
        }
    }

    /// Takes the value, and leaves the default of its type in its place.
    pub fn take(&mut self) -> crate::value::recoverable::Taken<'id, T>
    where
        T: Default + Init<'id, T>,
    {
        let empty = T::default();
        self.tx.declare(self.at, 1);
        // SAFETY: a value is taken out of its place, and another put there.
        unsafe {
            let taken = crate::value::recoverable::take(self.at, self.tx);
            empty.init(self.at, self.tx);
            taken
        }
    }
}

impl<'a, 'id, T: Recoverable> Mut<'a, 'id, Option<T>> {
    /// A guard of the value, if there is one.
    pub fn as_mut(&mut self) -> Option<Mut<'_, 'id, T>> {
        self.reborrow().into_option()
    }

    /// The same, for as long as the guard would have lived.
    pub fn into_option(self) -> Option<Mut<'a, 'id, T>> {
        // SAFETY: the guard has the option alone, and is gone.
        unsafe { (*self.at).as_mut().map(|value| Mut::new(ptr::from_mut(value), self.tx)) }
    }
}

impl<'a, 'id, T: Recoverable, const N: usize> Mut<'a, 'id, [T; N]> {
    /// A guard of one of the values.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn at(&mut self, index: usize) -> Mut<'_, 'id, T> {
        assert!(index < N, "index {index} of an array of {N}");
        // SAFETY: within the array, which the guard has alone.
        unsafe { Mut::new(self.at.cast::<T>().add(index), self.tx) }
    }

    /// Guards of all of them.
    pub fn each(&mut self) -> impl Iterator<Item = Mut<'_, 'id, T>> {
        let (at, tx) = (self.at.cast::<T>(), self.tx);
        // SAFETY: apart from each other, within the array, which the guard has alone.
        (0..N).map(move |i| unsafe { Mut::new(at.add(i), tx) })
    }
}

impl<T> Deref for Mut<'_, '_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: see `new`; who changes it needs the guard for itself.
        unsafe { &*self.at }
    }
}

impl<T: Recoverable<Pointers = No>> DerefMut for Mut<'_, '_, T> {
    /// Declares the whole value. Only of values without pointers, and without bytes that belong to no field: use
    /// [`Mut::set`] for those.
    ///
    /// ```compile_fail
    /// use caliburn::prelude::*;
    ///
    /// #[derive(Recoverable, Default)]
    /// #[repr(C)]
    /// struct Padded {
    ///     small: u8,
    ///     large: u64,
    /// }
    ///
    /// let objects: Objects<Padded> = Objects::create("store").unwrap();
    /// // What lay in memory between the two would get into the store.
    /// objects.update(|mut root| *root = Padded { small: 1, large: 2 }).unwrap();
    /// ```
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        const { assert!(!T::PADDED, "the type has padding, which would leak: change it by `set` or by `fields`") };
        self.tx.declare(self.at, 1);
        // SAFETY: declared, and the guard has it alone.
        unsafe { &mut *self.at }
    }
}

impl<T: fmt::Debug> fmt::Debug for Mut<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: fmt::Display> fmt::Display for Mut<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A value with pointers that was taken out of its place and has no other yet: the transaction's. Put it
/// anywhere in the same transaction; dropped, what it owns is freed.
pub struct Owned<'id, T: Recoverable> {
    /// In one place while it is on its way: its pointers count from there.
    value: Box<MaybeUninit<T>>,
    tx: Tx<'id>,
}

impl<'id, T: Recoverable> Owned<'id, T> {
    /// Takes a value out of its place.
    ///
    /// # Safety
    /// It is a value of the transaction's heap, and its place is not read as one again.
    pub(crate) unsafe fn take(from: *mut T, tx: Tx<'id>) -> Owned<'id, T> {
        let mut value = Box::<T>::new_uninit();
        // SAFETY: the caller's word.
        unsafe { crate::value::recoverable::relocate(from, value.as_mut_ptr(), 1) };
        Owned { value, tx }
    }

    /// A value that is made now and put somewhere later.
    pub fn new<I: Init<'id, T>>(value: I, tx: Tx<'id>) -> Owned<'id, T> {
        let mut made = Box::<T>::new_uninit();
        // SAFETY: memory for a value, outside of the heap: nothing is to be declared.
        unsafe { making(tx, || value.init(made.as_mut_ptr(), tx)) };
        Owned { value: made, tx }
    }

    /// A guard of the value.
    pub fn as_mut(&mut self) -> Mut<'_, 'id, T> {
        // SAFETY: a value of the transaction's heap, borrowed from its only owner.
        unsafe { Mut::new(self.value.as_mut_ptr(), self.tx) }
    }
}

impl<T: Recoverable> Deref for Owned<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: there is a value until it is put somewhere.
        unsafe { self.value.assume_init_ref() }
    }
}

impl<T: Recoverable> Drop for Owned<'_, T> {
    fn drop(&mut self) {
        if self.tx.is_frozen() {
            return;
        }
        if planted("typed-owned-kept") {
            return;
        }
        let (value, tx) = (self.value.as_mut_ptr(), self.tx);
        // SAFETY: the value is not used again, and its pointers count from here.
        let free = || unsafe { T::free(value, tx) };
        if !std::thread::panicking() {
            free();
        } else if catch_unwind(AssertUnwindSafe(free)).is_err() {
            // There was no room. What unwinds must not unwind again.
            tx.spoil(Error::Unwound);
        }
    }
}

impl<T: Recoverable + fmt::Debug> fmt::Debug for Owned<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Recoverable> std::borrow::Borrow<T> for Owned<'_, T> {
    fn borrow(&self) -> &T {
        self
    }
}

impl<T: Recoverable + PartialEq> PartialEq<T> for Owned<'_, T> {
    fn eq(&self, other: &T) -> bool {
        **self == *other
    }
}

// SAFETY: a value of the same transaction's heap, told that it was moved.
unsafe impl<'id, T: Recoverable> Init<'id, T> for Owned<'id, T> {
    unsafe fn init(self, to: *mut T, _tx: Tx<'id>) {
        let mut this = mem::ManuallyDrop::new(self);
        // SAFETY: the caller's word; the value is not used here again, only its memory is given back.
        unsafe {
            crate::value::recoverable::relocate(this.value.as_ptr(), to, 1);
            ptr::drop_in_place(&raw mut this.value);
        }
    }
}
