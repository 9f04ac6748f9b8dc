//! What may live in a store: [`Recoverable`].
//!
//! A value in a store is found again by another process, at another address, and by a later version of the
//! program. So it holds no address of this process, nothing whose size depends on the machine, and its layout
//! is recorded ([`layout`](crate::value::layout)). Pointers to other objects of the heap are distances from where
//! they stand ([`Link`](crate::link::Link)); a value that holds some must be told when it was moved.

use crate::value::datum::{Datum, Loader, Piece, replace};
use crate::value::guard::{Mut, Owned};
use crate::value::layout::Types;
use crate::value::tx::Tx;
use caliburn_os::simulated::unless;
use std::borrow::Borrow;
use std::mem::MaybeUninit;
use std::ptr;

/// A type whose values may live in a store. Derive it: `#[derive(Recoverable)]` with `#[repr(C)]`, or
/// `#[repr(u8)]` for an enum.
///
/// # Safety
/// Any bytes that [`store`](Recoverable::store) has written, moved as [`moved`](Recoverable::moved) allows, are
/// a value, in every process that finds the same [description](Recoverable::describe). There is no interior
/// mutability in it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot live in a store",
    label = "holds what means nothing after a restart, or whose layout is not fixed",
    note = "in place of `usize` and `isize` use `u64` and `i64`; of `String`, `Vec`, `Box`, `HashMap`, `BTreeMap`: \
            `PString`, `PVec`, `PBox`, `PHashMap`, `PBTreeMap`",
    note = "references, raw pointers, functions, files, locks and clocks mean nothing in another process",
    note = "a type of your own needs `#[derive(Recoverable)]`"
)]
pub unsafe trait Recoverable: Sized + Send + Sync + 'static {
    /// Whether it holds pointers into its heap: [`Yes`] or [`No`].
    type Pointers: Answer;
    /// What it is looked up by as a key: `str` for a [`PString`](crate::PString), for most types themselves.
    type Borrowed: ?Sized;
    /// Whether there are bytes in it that belong to no field.
    const PADDED: bool;
    /// Whether `None` of an option of it says something about all of its bytes: others leave them as they are.
    const NONE_IS_WHOLE: bool = false;
    /// Whether a value may be [nothing](Datum::Nothing) outside of a store.
    const MAY_BE_NOTHING: bool = false;

    /// Its name, with the layout of what it is made of noted in `types`.
    fn describe(types: &mut Types) -> String;

    /// Writes a value, and no byte that is not part of it: what pads a value in volatile memory stays there.
    ///
    /// # Safety
    /// `from` is a value, `to` is for one, and its bytes are declared. The value is moved: pointers in it are not
    /// changed.
    unsafe fn store(from: *const Self, to: *mut Self);

    /// Tells a value that its bytes were copied to here from `by` bytes lower.
    ///
    /// # Safety
    /// They were, and nothing else was done with them; if this is in a store, the bytes are declared.
    unsafe fn moved(_this: *mut Self, _by: isize) {}

    /// Frees what the value owns.
    ///
    /// # Safety
    /// It is a value of the transaction's heap, at an address from which its pointers count, and is not used
    /// again.
    unsafe fn free(_this: *mut Self, _tx: Tx<'_>) {}

    /// Makes a value of what one was outside of a store.
    ///
    /// # Safety
    /// As [`Init::init`].
    unsafe fn load(_from: Datum, _to: *mut Self, loader: &Loader<'_, '_>) {
        loader.refuse(format!("a {} is not made of data", std::any::type_name::<Self>()))
    }

    /// Puts a piece where it belongs in a value: names of fields lead there.
    ///
    /// # Safety
    /// It is a value of the transaction's heap, and nothing else refers to it.
    unsafe fn absorb(this: *mut Self, path: &[String], piece: Piece, loader: &Loader<'_, '_>) {
        // SAFETY: the caller's word.
        unsafe { replace(this, path, piece, loader) }
    }
}

/// A type with parts that can be changed one by one: structs and enums that derive [`Recoverable`].
pub trait Fields: Recoverable {
    /// A guard for each field; for an enum, for those of its present variant.
    type Of<'a, 'id>;

    /// The guards of a value's fields.
    fn of<'a, 'id>(value: Mut<'a, 'id, Self>) -> Self::Of<'a, 'id>;
}

/// How a new value comes to its place in a store: from a value of the type, or from something that it can be
/// made of there, as a [`PString`](crate::PString) from a `&str`.
///
/// # Safety
/// After `init`, a value is there, whose pointers stay within the heap of `'id`.
#[diagnostic::on_unimplemented(
    message = "a `{T}` in a store cannot be made of `{Self}`",
    note = "values with pointers do not leave a store: they are made where they are, of `&str`, `Vec`, `Box`, \
            the generated `...Init` of a struct, or what was taken out of the same transaction"
)]
pub unsafe trait Init<'id, T: Recoverable>: Sized {
    /// Makes the value.
    ///
    /// # Safety
    /// `to` is for a `T` in the transaction's heap, declared, and holds none that is still to be freed.
    unsafe fn init(self, to: *mut T, tx: Tx<'id>);
}

/// Yes or no, as a type.
pub trait Answer: private::Sealed + 'static {
    /// The answer.
    const YES: bool;
    /// Yes if either is.
    type Or<B: Answer>: Answer;
    /// What a value is when it was taken out of its collection: itself, or with pointers still the transaction's.
    type Taken<'id, T: Recoverable>: Borrow<T>;

    /// Takes a value out of its place.
    ///
    /// # Safety
    /// It is a value of the transaction's heap, and its place is not read as one again.
    unsafe fn take<'id, T: Recoverable<Pointers = Self>>(from: *mut T, tx: Tx<'id>) -> Self::Taken<'id, T>;
}

mod private {
    pub trait Sealed {}
    impl Sealed for crate::value::recoverable::Yes {}
    impl Sealed for crate::value::recoverable::No {}
}

/// It does.
#[derive(Debug)]
pub struct Yes;
/// It does not.
#[derive(Debug)]
pub struct No;

impl Answer for Yes {
    const YES: bool = true;
    type Or<B: Answer> = Yes;
    type Taken<'id, T: Recoverable> = Owned<'id, T>;

    unsafe fn take<'id, T: Recoverable<Pointers = Yes>>(from: *mut T, tx: Tx<'id>) -> Owned<'id, T> {
        // SAFETY: the caller's word.
        unsafe { Owned::take(from, tx) }
    }
}

impl Answer for No {
    const YES: bool = false;
    type Or<B: Answer> = B;
    type Taken<'id, T: Recoverable> = T;

    unsafe fn take<'id, T: Recoverable<Pointers = No>>(from: *mut T, _tx: Tx<'id>) -> T {
        // SAFETY: the caller's word; without pointers a value is the same anywhere.
        unsafe { from.read() }
    }
}

/// What a value is when it was taken out of a collection: itself, or, if it holds pointers, an [`Owned`].
pub type Taken<'id, T> = <<T as Recoverable>::Pointers as Answer>::Taken<'id, T>;

/// Takes a value out of its place.
///
/// # Safety
/// As [`Answer::take`].
pub(crate) unsafe fn take<'id, T: Recoverable>(from: *mut T, tx: Tx<'id>) -> Taken<'id, T> {
    // SAFETY: the caller's word.
    unsafe { <T::Pointers as Answer>::take(from, tx) }
}

/// Moves `count` values, which may overlap with where they go, within a heap.
///
/// # Safety
/// They are values; where they go is declared and holds none that is still to be freed.
pub(crate) unsafe fn relocate<T: Recoverable>(from: *const T, to: *mut T, count: usize) {
    // SAFETY: the caller's word.
    unsafe {
        ptr::copy(from, to, count);
        if unless("typed-links-not-moved", <T::Pointers as Answer>::YES) {
            let by = to.addr().wrapping_sub(from.addr()).cast_signed();
            (0..count).for_each(|i| T::moved(to.add(i), by));
        }
    }
}

/// Moves the value behind `count` others in front of them.
///
/// # Safety
/// `count` and one values are at `at`, declared.
pub(crate) unsafe fn turn<T: Recoverable>(at: *mut T, count: usize) {
    if count == 0 {
        return;
    }
    let mut aside = MaybeUninit::<T>::uninit();
    // SAFETY: the caller's word.
    unsafe {
        relocate(at.add(count), aside.as_mut_ptr(), 1);
        relocate(at, at.add(1), count);
        relocate(aside.as_ptr(), at, 1);
    }
}

/// Frees what `count` values own.
///
/// # Safety
/// As [`Recoverable::free`].
pub(crate) unsafe fn free_all<T: Recoverable>(at: *mut T, count: usize, tx: Tx<'_>) {
    if <T::Pointers as Answer>::YES {
        // SAFETY: the caller's word.
        (0..count).for_each(|i| unsafe { T::free(at.add(i), tx) });
    }
}
