//! The types of the language that may live in a store.

use crate::value::datum::{Datum, Loader, Loading, Piece, replace};
use crate::value::guard::Mut;
use crate::value::layout::Types;
use crate::value::recoverable::{Answer, Fields, Init, No, Recoverable, free_all};
use crate::value::tx::Tx;
use caliburn_os::simulated::{planted, unless};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::num::{
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroI64, NonZeroI128, NonZeroU8, NonZeroU16, NonZeroU32,
    NonZeroU64, NonZeroU128,
};
use std::ptr;

macro_rules! plain {
    (@load number $type:ident, $from:ident, $loader:ident) => {{
        let digits = $loader.digits($from);
        let wrong = || $loader.refuse(format!("{digits} is no {}", stringify!($type)));
        digits.parse().unwrap_or_else(|_| wrong())
    }};
    (@load float $type:ident, $from:ident, $loader:ident) => {{
        let digits = $loader.digits($from);
        let wrong = || $loader.refuse(format!("{digits} is no {}", stringify!($type)));
        let value: $type = digits.parse().unwrap_or_else(|_| wrong());
        // Another number is not taken in its place: neither the nearest one nor infinity.
        let some = digits.contains(|c: char| c.is_ascii_digit());
        let same = decimal(&digits) == decimal(&value.to_string());
        if some && unless("floats-rounded", !same) { wrong() } else { value }
    }};
    (@load truth $type:ident, $from:ident, $loader:ident) => { $loader.truth(&$from) };
    (@load letter $type:ident, $from:ident, $loader:ident) => {{
        let (text, one) = ($loader.text($from), |text: &str| text.chars().next());
        let rest = one(&text).map_or("none", |first| &text[first.len_utf8()..]);
        one(&text).filter(|_| rest.is_empty()).unwrap_or_else(|| $loader.refuse(format!("{text:?} is no character")))
    }};
    ($kind:ident $whole:literal: $($type:ident)*) => {$(
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

            unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
                // SAFETY: the caller's word.
                unsafe { to.write(plain!(@load $kind $type, from, loader)) }
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

plain!(number false: u8 u16 u32 u64 u128 i8 i16 i32 i64 i128);
plain!(float false: f32 f64);
plain!(truth false: bool);
plain!(letter false: char);

/// What a number's digits say, however they are written: whether it is negative, its digits without zeros around
/// them, and the power of ten that the last one counts.
fn decimal(text: &str) -> (bool, String, i64) {
    let (number, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{}{part}", whole.trim_start_matches(['-', '+']));
    let digits = digits.trim_start_matches('0');
    let shown = digits.trim_end_matches('0');
    let power = power.parse().unwrap_or(i64::MAX).saturating_sub(part.len() as i64);
    let power = power.saturating_add((digits.len() - shown.len()) as i64);
    (text.starts_with('-'), shown.to_owned(), if shown.is_empty() { 0 } else { power })
}

// SAFETY: nothing is in it.
unsafe impl Recoverable for () {
    type Pointers = No;
    type Borrowed = ();
    const PADDED: bool = false;

    const MAY_BE_NOTHING: bool = true;

    fn describe(_types: &mut Types) -> String {
        "()".to_owned()
    }

    unsafe fn store(_from: *const Self, _to: *mut Self) {}

    unsafe fn load(from: Datum, _to: *mut Self, loader: &Loader<'_, '_>) {
        loader.nothing(&from);
    }
}

// SAFETY: nothing is to be made.
unsafe impl<'id> Init<'id, ()> for () {
    unsafe fn init(self, _to: *mut (), _tx: Tx<'id>) {}
}

plain!(number true: NonZeroU8 NonZeroU16 NonZeroU32 NonZeroU64 NonZeroU128 NonZeroI8 NonZeroI16 NonZeroI32 NonZeroI64 NonZeroI128);

// SAFETY: nothing is in it.
unsafe impl<T: Recoverable> Recoverable for PhantomData<T> {
    type Pointers = No;
    type Borrowed = Self;
    const PADDED: bool = false;
    const MAY_BE_NOTHING: bool = true;

    fn describe(types: &mut Types) -> String {
        format!("PhantomData<{}>", types.name_of::<T>())
    }

    unsafe fn store(_from: *const Self, _to: *mut Self) {}

    unsafe fn load(from: Datum, _to: *mut Self, loader: &Loader<'_, '_>) {
        loader.nothing(&from);
    }
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

    unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
        let items = loader.items(from);
        if items.len() != N {
            loader.refuse(format!("{} values for an array of {N}", items.len()));
        }
        for (i, item) in items.into_iter().enumerate() {
            // SAFETY: the caller's word, for each.
            unsafe { T::load(item, to.cast::<T>().add(i), loader) }
        }
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
    const MAY_BE_NOTHING: bool = true;

    fn describe(types: &mut Types) -> String {
        let inner = types.name_of::<T>();
        types.note_option::<T>(&inner, none_of::<T>());
        format!("Option<{inner}>")
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word; the value is written where it is in `from`, and the tag in front of it, of
        // which only the lowest byte says anything.
        unsafe {
            let Some(value) = &*from else {
                store_none(to);
                return;
            };
            if planted("typed-padding-stored") {
                return ptr::copy_nonoverlapping(from, to, 1);
            }
            let at = ptr::from_ref(value).addr() - from.addr();
            if at > 0 {
                to.cast::<u8>().write_bytes(0, at);
                to.cast::<u8>().write(from.cast::<u8>().read());
            }
            T::store(value, to.byte_add(at).cast());
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

    unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
        let value = match from {
            Datum::Nothing => None,
            value if !T::MAY_BE_NOTHING => Some(value),
            value => match <[Datum; 1]>::try_from(loader.items(value)) {
                Ok([value]) => Some(value),
                Err(_) => loader.refuse("an option of what may be nothing is a list of one"),
            },
        };
        // SAFETY: the caller's word.
        unsafe { value.map(|value| Loading(value, loader)).init(to, loader.tx()) }
    }
}

// SAFETY: nothing is written, or a value and the tag that says so.
unsafe impl<'id, T: Recoverable, I: Init<'id, T>> Init<'id, Option<T>> for Option<I> {
    unsafe fn init(self, to: *mut Option<T>, tx: Tx<'id>) {
        let Some(value) = self else {
            // SAFETY: the caller's word.
            unsafe { store_none(to) };
            return;
        };
        // Only the compiler knows where in an option its value is: it is made here, and told that it was moved.
        // Not on the stack if it is large: there may be another option in it, and so on.
        // SAFETY: the caller's word, for both.
        unsafe {
            if size_of::<T>() <= LARGE {
                let mut made = MaybeUninit::<T>::zeroed();
                value.init(made.as_mut_ptr(), tx);
                store_made(made.as_ptr(), to);
            } else {
                let mut made = Box::<T>::new_zeroed();
                value.init(made.as_mut_ptr(), tx);
                store_made(made.as_ptr(), to);
            }
        }
    }
}

/// Bytes of values that are not made on the stack.
const LARGE: usize = 256;

/// Puts a value that was made elsewhere into an option.
///
/// # Safety
/// `made` is a value, which is not used again; `to` is for an option, declared.
#[inline(never)]
unsafe fn store_made<T: Recoverable>(made: *const T, to: *mut Option<T>) {
    // SAFETY: the caller's word; nothing but `moved` is done with the bytes between. What the compiler's own copies
    // take along stays here.
    unsafe {
        let some = ManuallyDrop::new(Some(made.read()));
        <Option<T> as Recoverable>::store(&*some, to);
        if let Some(value) = &mut *to {
            T::moved(value, ptr::from_mut(value).addr().wrapping_sub(made.addr()).cast_signed());
        }
    }
}

/// Writes a `None`, and nothing that lay on the stack: an assignment may copy a whole value, of which only the
/// tag, or the niche, was ever set. Where the only number is that is not 0, and its length; 0 if there is none.
///
/// # Safety
/// `to` is for an option, declared.
unsafe fn store_none<T: Recoverable>(to: *mut Option<T>) -> (usize, usize) {
    let (bytes, none) = (size_of::<Option<T>>(), MaybeUninit::new(None::<T>));
    // SAFETY: the caller's word; of what is no value yet, only whether it is none is looked at, which one
    // number in it says.
    unsafe {
        let (to_bytes, from) = (to.cast::<u8>(), none.as_ptr().cast::<u8>());
        // A tag of none is 0, and so is a box to nothing.
        to_bytes.write_bytes(0, bytes);
        let places = |len: usize| (0..bytes / len).map(move |i| (i * len, len));
        let mut number = (0, 0);
        for (at, len) in [1, 2, 4, 8].into_iter().flat_map(places) {
            if (*to).is_none() {
                return number;
            }
            number = (at, len);
            to_bytes.write_bytes(0, bytes);
            ptr::copy_nonoverlapping(from.add(at), to_bytes.add(at), len);
        }
        if (*to).is_some() {
            ptr::copy_nonoverlapping(from, to_bytes, bytes);
        }
        number
    }
}

/// How an option says that it is none: one of the bytes that it is told by, and the only number in it that is not 0:
/// where that is, and its bytes. Who reads options without their type finds the whole of what tells them from the
/// layout: the number that the byte is in.
fn none_of<T: Recoverable>() -> (usize, usize, Vec<u8>) {
    let mut memory = MaybeUninit::<Option<T>>::zeroed();
    let to = memory.as_mut_ptr();
    // SAFETY: memory for an option, of which all bytes are set, zeros and a number; of what is none any more only
    // that is looked at.
    unsafe {
        let (at, len) = store_none(to);
        let bytes = to.cast::<u8>();
        let number = std::slice::from_raw_parts(bytes.add(at), len).to_vec();
        if len > 0 || size_of::<Option<T>>() > size_of::<T>() {
            return (at, at, number);
        }
        // It is none where a number is 0, and not where it is another one.
        let tells = |byte: usize| {
            (1..=u8::MAX).any(|value| {
                bytes.add(byte).write(value);
                let told = std::hint::black_box(&*to).is_some();
                bytes.add(byte).write(0);
                told
            })
        };
        let byte = (0..size_of::<Option<T>>()).find(|byte| tells(*byte));
        (byte.expect("an option of that size is told by a number in it"), 0, number)
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

            unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
                let mut fields = loader.fields(from);
                $({
                    let value = loader.field("a tuple", &mut fields, &[stringify!($index)]);
                    // SAFETY: the caller's word, for each.
                    unsafe { $name::load(value, &raw mut (*to).$index, loader) }
                })+
                loader.nothing_left("a tuple", fields, &[]);
            }

            unsafe fn absorb(this: *mut Self, path: &[String], piece: Piece, loader: &Loader<'_, '_>) {
                match path {
                    $([name, path @ ..] if name == stringify!($index) => {
                        // SAFETY: the caller's word.
                        unsafe { $name::absorb(&raw mut (*this).$index, path, piece, loader) }
                    })+
                    // SAFETY: the caller's word.
                    _ => unsafe { replace(this, path, piece, loader) },
                }
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
