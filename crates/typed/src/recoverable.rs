//! What may live in a store: [`Recoverable`], for the types of the language.
//!
//! A value in a store is found again by another process, at another address, and by a later version of the program. So
//! it holds no address of this process, nothing whose size depends on the machine, and its layout is recorded
//! ([`layout`](crate::layout)). Pointers to other objects of the heap are distances from where they stand
//! ([`Link`](crate::link::Link)); a value that holds some must be told when it was moved.

use crate::guard::{Mut, Owned};
use crate::layout::Types;
use crate::tx::Tx;
use caliburn_os::simulated::{planted, unless};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::num::{
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroI64, NonZeroI128, NonZeroU8, NonZeroU16, NonZeroU32,
    NonZeroU64, NonZeroU128,
};
use std::ptr;

/// A type whose values may live in a store. Derive it: `#[derive(Recoverable)]` with `#[repr(C)]`, or `#[repr(u8)]`
/// for an enum.
///
/// # Safety
/// Any bytes that [`store`](Recoverable::store) has written, moved as [`moved`](Recoverable::moved) allows, are a
/// value, in every process that finds the same [description](Recoverable::describe). There is no interior mutability
/// in it.
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
    /// It is a value of the transaction's heap, at an address from which its pointers count, and is not used again.
    unsafe fn free(_this: *mut Self, _tx: Tx<'_>) {}
}

/// A type with parts that can be changed one by one: structs and enums that derive [`Recoverable`].
pub trait Fields: Recoverable {
    /// A guard for each field; for an enum, for those of its present variant.
    type Of<'a, 'id>;

    /// The guards of a value's fields.
    fn of<'a, 'id>(value: Mut<'a, 'id, Self>) -> Self::Of<'a, 'id>;
}

/// How a new value comes to its place in a store: from a value of the type, or from something that it can be made of
/// there, as a [`PString`](crate::PString) from a `&str`.
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
    impl Sealed for super::Yes {}
    impl Sealed for super::No {}
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

macro_rules! plain {
    ($whole:literal: $($type:ident)*) => {$(
        // SAFETY: it holds no address, and its bytes mean the same everywhere (little-endian machines only).
        unsafe impl Recoverable for $type {
            type Pointers = No;
            type Borrowed = Self;
            const PADDED: bool = false;
            const NONE_IS_WHOLE: bool = $whole;

            fn describe(_types: &mut Types) -> String {
                stringify!($type).to_owned()
            }

            #[inline(always)]
            unsafe fn store(from: *const Self, to: *mut Self) {
                // SAFETY: the caller's word.
                unsafe { to.write(from.read()) }
            }
        }

        // SAFETY: the value is stored.
        unsafe impl<'id> Init<'id, $type> for $type {
            #[inline(always)]
            unsafe fn init(self, to: *mut $type, _tx: Tx<'id>) {
                // SAFETY: the caller's word.
                unsafe { to.write(self) }
            }
        }
    )*};
}

plain!(false: u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64 bool char);

// SAFETY: nothing is in it.
unsafe impl Recoverable for () {
    type Pointers = No;
    type Borrowed = ();
    const PADDED: bool = false;

    fn describe(_types: &mut Types) -> String {
        "()".to_owned()
    }

    unsafe fn store(_from: *const Self, _to: *mut Self) {}
}

// SAFETY: nothing is to be made.
unsafe impl<'id> Init<'id, ()> for () {
    unsafe fn init(self, _to: *mut (), _tx: Tx<'id>) {}
}

plain!(true: NonZeroU8 NonZeroU16 NonZeroU32 NonZeroU64 NonZeroU128 NonZeroI8 NonZeroI16 NonZeroI32 NonZeroI64 NonZeroI128);

// SAFETY: nothing is in it.
unsafe impl<T: Recoverable> Recoverable for PhantomData<T> {
    type Pointers = No;
    type Borrowed = Self;
    const PADDED: bool = false;

    fn describe(types: &mut Types) -> String {
        format!("PhantomData<{}>", types.name_of::<T>())
    }

    unsafe fn store(_from: *const Self, _to: *mut Self) {}
}

// SAFETY: nothing is to be made.
unsafe impl<'id, T: Recoverable> Init<'id, PhantomData<T>> for PhantomData<T> {
    unsafe fn init(self, _to: *mut PhantomData<T>, _tx: Tx<'id>) {}
}

// SAFETY: values one after the other, without gaps.
unsafe impl<T: Recoverable, const N: usize> Recoverable for [T; N] {
    type Pointers = T::Pointers;
    type Borrowed = Self;
    const PADDED: bool = T::PADDED;

    fn describe(types: &mut Types) -> String {
        format!("[{}; {N}]", types.name_of::<T>())
    }

    #[inline(always)]
    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word, for each.
        unsafe {
            if T::PADDED {
                (0..N).for_each(|i| T::store(from.cast::<T>().add(i), to.cast::<T>().add(i)));
            } else {
                ptr::copy_nonoverlapping(from, to, 1);
            }
        }
    }

    unsafe fn moved(this: *mut Self, by: isize) {
        // SAFETY: the caller's word, for each.
        (0..N).for_each(|i| unsafe { T::moved(this.cast::<T>().add(i), by) });
    }

    unsafe fn free(this: *mut Self, tx: Tx<'_>) {
        // SAFETY: the caller's word, for each.
        unsafe { free_all(this.cast::<T>(), N, tx) }
    }
}

// SAFETY: each is made.
unsafe impl<'id, T: Recoverable, I: Init<'id, T>, const N: usize> Init<'id, [T; N]> for [I; N] {
    #[inline(always)]
    unsafe fn init(self, to: *mut [T; N], tx: Tx<'id>) {
        for (i, value) in self.into_iter().enumerate() {
            // SAFETY: the caller's word, for each.
            unsafe { value.init(to.cast::<T>().add(i), tx) }
        }
    }
}

// SAFETY: nothing, or a value. Where in it the value and the tag are is the compiler's choice, which is described.
unsafe impl<T: Recoverable> Recoverable for Option<T> {
    type Pointers = T::Pointers;
    type Borrowed = Self;
    const PADDED: bool = T::PADDED || !T::NONE_IS_WHOLE;

    fn describe(types: &mut Types) -> String {
        let inner = types.name_of::<T>();
        types.note_option::<T>(&inner);
        format!("Option<{inner}>")
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word; the value is written where it is in `from`, and the tag in front of it.
        unsafe {
            let Some(value) = &*from else { return to.write(None) };
            if planted("typed-padding-stored") {
                return ptr::copy_nonoverlapping(from, to, 1);
            }
            let at = ptr::from_ref(value).addr() - from.addr();
            ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), at);
            T::store(value, to.byte_add(at).cast());
            let end = at + size_of::<T>();
            let behind = size_of::<Self>() - end;
            ptr::copy_nonoverlapping(from.cast::<u8>().add(end), to.cast::<u8>().add(end), behind);
        }
    }

    unsafe fn moved(this: *mut Self, by: isize) {
        // SAFETY: the caller's word.
        if let Some(value) = unsafe { &mut *this } {
            // SAFETY: likewise.
            unsafe { T::moved(value, by) }
        }
    }

    unsafe fn free(this: *mut Self, tx: Tx<'_>) {
        // SAFETY: the caller's word.
        if let Some(value) = unsafe { &mut *this } {
            // SAFETY: likewise.
            unsafe { T::free(value, tx) }
        }
    }
}

// SAFETY: nothing is written, or a value and the tag that says so.
unsafe impl<'id, T: Recoverable, I: Init<'id, T>> Init<'id, Option<T>> for Option<I> {
    unsafe fn init(self, to: *mut Option<T>, tx: Tx<'id>) {
        let Some(value) = self else {
            // SAFETY: the caller's word.
            return unsafe { to.write(None) };
        };
        // Only the compiler knows where in an option its value is: it is made here, and told that it was moved.
        let mut made = MaybeUninit::<T>::zeroed();
        // SAFETY: the caller's word; nothing but `moved` is done with the bytes between.
        unsafe {
            value.init(made.as_mut_ptr(), tx);
            to.write(Some(made.assume_init_read()));
            if let Some(value) = &mut *to {
                T::moved(value, ptr::from_mut(value).addr().wrapping_sub(made.as_ptr().addr()).cast_signed());
            }
        }
    }
}

macro_rules! tuple {
    ($($name:ident $made:ident $index:tt)+) => {
        // SAFETY: its fields, where the compiler puts them, which is described.
        unsafe impl<$($name: Recoverable),+> Recoverable for ($($name,)+) {
            type Pointers = tuple!(@or $($name)+);
            type Borrowed = Self;
            const PADDED: bool = $($name::PADDED ||)+ size_of::<Self>() > 0 $(+ size_of::<$name>())+;

            fn describe(types: &mut Types) -> String {
                let names = [$(types.name_of::<$name>()),+];
                let offsets = [$(std::mem::offset_of!(Self, $index)),+];
                types.note_tuple::<Self>(&names, &offsets)
            }

            #[inline(always)]
            unsafe fn store(from: *const Self, to: *mut Self) {
                // SAFETY: the caller's word, for each.
                unsafe { $($name::store(&raw const (*from).$index, &raw mut (*to).$index);)+ }
            }

            unsafe fn moved(this: *mut Self, by: isize) {
                // SAFETY: the caller's word, for each.
                unsafe { $($name::moved(&raw mut (*this).$index, by);)+ }
            }

            unsafe fn free(this: *mut Self, tx: Tx<'_>) {
                // SAFETY: the caller's word, for each.
                unsafe { $($name::free(&raw mut (*this).$index, tx);)+ }
            }
        }

        // SAFETY: each is made.
        unsafe impl<'id, $($name: Recoverable, $made: Init<'id, $name>),+> Init<'id, ($($name,)+)> for ($($made,)+) {
            #[inline(always)]
            unsafe fn init(self, to: *mut ($($name,)+), tx: Tx<'id>) {
                // SAFETY: the caller's word, for each.
                unsafe { $(self.$index.init(&raw mut (*to).$index, tx);)+ }
            }
        }

        impl<$($name: Recoverable),+> Fields for ($($name,)+) {
            type Of<'a, 'id> = ($(Mut<'a, 'id, $name>,)+);

            fn of<'a, 'id>(value: Mut<'a, 'id, Self>) -> Self::Of<'a, 'id> {
                let (at, tx) = (value.as_ptr(), value.tx());
                // SAFETY: the fields are apart, each in the value that the guard has alone.
                unsafe { ($(Mut::new(&raw mut (*at).$index, tx),)+) }
            }
        }
    };
    (@or $first:ident) => { $first::Pointers };
    (@or $first:ident $($rest:ident)+) => { <$first::Pointers as Answer>::Or<tuple!(@or $($rest)+)> };
}

tuple!(A IA 0);
tuple!(A IA 0 B IB 1);
tuple!(A IA 0 B IB 1 C IC 2);
tuple!(A IA 0 B IB 1 C IC 2 D ID 3);
tuple!(A IA 0 B IB 1 C IC 2 D ID 3 E IE 4);
tuple!(A IA 0 B IB 1 C IC 2 D ID 3 E IE 4 F IF 5);
