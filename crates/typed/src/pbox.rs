//! Owning pointers to single objects.

use crate::value::datum::{Datum, Loader, Loading};
use crate::value::guard::Mut;
use crate::value::layout::Types;
use crate::value::recoverable::{Init, Recoverable, Yes, free_all};
use crate::value::tx::Tx;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::num::NonZeroI64;
use std::ops::Deref;
use std::ptr;

/// A pointer that owns an object in the heap: what `Box` is elsewhere. `Option<PBox<T>>` takes eight bytes, too.
///
/// Where it goes it is made, by [`PBox::new`]:
///
/// ```
/// use caliburn::{Objects, PBox, Recoverable};
///
/// #[derive(Recoverable, Default)]
/// #[repr(C)]
/// struct List {
///     first: Option<PBox<Node>>,
/// }
/// #[derive(Recoverable)]
/// #[repr(C)]
/// struct Node {
///     value: u64,
///     next: Option<PBox<Node>>,
/// }
///
/// # let dir = tempfile::tempdir()?;
/// let list = Objects::<List>::create(dir.path().join("list"))?;
/// list.update(|mut list| {
///     let mut list = list.fields();
///     let next = list.first.take();
///     list.first.set(Some(PBox::new(NodeInit { value: 1, next })));
/// })?;
/// assert_eq!(list.read().first.as_ref().map(|node| node.value), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[repr(transparent)]
pub struct PBox<T> {
    /// Bytes from here to the object: see [`link`](crate::link).
    distance: NonZeroI64,
    owns: PhantomData<T>,
}

/// A box that is to be made.
pub struct NewBox<T, I>(I, PhantomData<fn() -> T>);

impl<T, I> fmt::Debug for NewBox<T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewBox")
    }
}

impl<T: Recoverable> PBox<T> {
    /// An object that is allocated where the box is put.
    #[expect(clippy::new_ret_no_self, reason = "as `Box::new` is called")]
    pub fn new<I>(value: I) -> NewBox<T, I> {
        NewBox(value, PhantomData)
    }

    #[inline(always)]
    fn target(this: *const PBox<T>) -> *mut T {
        // SAFETY: the box can be read.
        let distance = unsafe { (*this).distance.get() };
        ptr::with_exposed_provenance_mut(this.addr().wrapping_add_signed(distance as isize))
    }
}

impl<T: Recoverable> Deref for PBox<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: a box leads to an object of its own, which is not changed while the box is borrowed.
        unsafe { &*PBox::target(self) }
    }
}

impl<'a, 'id, T: Recoverable> Mut<'a, 'id, PBox<T>> {
    /// A guard of the object.
    #[inline(always)]
    pub fn get_mut(&mut self) -> Mut<'_, 'id, T> {
        self.reborrow().into_target()
    }

    /// The same, for as long as the guard would have lived.
    #[inline(always)]
    pub fn into_target(self) -> Mut<'a, 'id, T> {
        // SAFETY: the box owns the object, and the guard has the box alone.
        unsafe { Mut::new(PBox::target(self.as_ptr()), self.tx()) }
    }
}

// SAFETY: a distance, which is told when it is moved.
unsafe impl<T: Recoverable> Recoverable for PBox<T> {
    type Pointers = Yes;
    type Borrowed = PBox<T>;
    const PADDED: bool = false;
    const NONE_IS_WHOLE: bool = true;
    const MAY_BE_NOTHING: bool = T::MAY_BE_NOTHING;

    fn describe(types: &mut Types) -> String {
        format!("PBox<{}>", types.name_of::<T>())
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word.
        unsafe { to.write(from.read()) }
    }

    unsafe fn moved(this: *mut Self, by: isize) {
        // SAFETY: the caller's word; the object is where it was, and the box is not within it.
        unsafe {
            (*this).distance = NonZeroI64::new_unchecked((*this).distance.get().wrapping_sub(by as i64));
        }
    }

    unsafe fn free(this: *mut Self, tx: Tx<'_>) {
        /// Frees what the object owns.
        unsafe fn contents<T: Recoverable>(at: *mut u8, tx: Tx<'_>, count: usize) {
            // SAFETY: it is a `T`, see below.
            unsafe { free_all(at.cast::<T>(), count, tx) }
        }
        // SAFETY: the box owns the object.
        unsafe { tx.free_counted(PBox::target(this).cast(), 1, contents::<T>) }
    }

    unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
        // SAFETY: the caller's word.
        unsafe { PBox::<T>::new(Loading(from, loader)).init(to, loader.tx()) }
    }
}

// SAFETY: an object of the transaction's heap is made, and the box leads to it.
unsafe impl<'id, T: Recoverable, I: Init<'id, T>> Init<'id, PBox<T>> for NewBox<T, I> {
    unsafe fn init(self, to: *mut PBox<T>, tx: Tx<'id>) {
        let at = tx.allocate::<T>(1);
        tx.declare(at, 1);
        let distance = at.addr().wrapping_sub(to.addr()) as i64;
        // SAFETY: `at` is for a `T`, declared; it is somewhere else than the box.
        unsafe {
            self.0.init(at, tx);
            let distance = NonZeroI64::new_unchecked(distance);
            to.write(PBox { distance, owns: PhantomData });
        }
    }
}

// SAFETY: there is no box to begin with: none leaves a store by value. What may hold one may be without.
unsafe impl<'id, T: Recoverable> Init<'id, PBox<T>> for PBox<T> {
    unsafe fn init(self, _to: *mut PBox<T>, _tx: Tx<'id>) {
        unreachable!("no box leaves a store by value")
    }
}

impl<T: Recoverable + fmt::Debug> fmt::Debug for PBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Recoverable + fmt::Display> fmt::Display for PBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Recoverable + PartialEq> PartialEq for PBox<T> {
    fn eq(&self, other: &PBox<T>) -> bool {
        **self == **other
    }
}

impl<T: Recoverable + Eq> Eq for PBox<T> {}

impl<T: Recoverable + PartialOrd> PartialOrd for PBox<T> {
    fn partial_cmp(&self, other: &PBox<T>) -> Option<std::cmp::Ordering> {
        (**self).partial_cmp(&**other)
    }
}

impl<T: Recoverable + Ord> Ord for PBox<T> {
    fn cmp(&self, other: &PBox<T>) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl<T: Recoverable + Hash> Hash for PBox<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}
