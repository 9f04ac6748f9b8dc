//! Objects with several owners: counted, as `Rc` is.

use crate::link::Link;
use crate::value::datum::{Datum, Loader, Loading, Numbered};
use crate::value::guard::{Mut, Owned};
use crate::value::layout::Types;
use crate::value::recoverable::{Init, Recoverable, Yes, free_all};
use crate::value::tx::{Tx, making};
use caliburn_heap::Place;
use caliburn_os::simulated::{even_if, unless};
use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// An object that several pointers own.
///
/// The counts are all that a transaction changes without having the place alone: other threads may hold references
/// to pointers meanwhile, and read them. So each access is atomic ([`read`], [`write`]), and no reference to a count
/// is ever made.
#[repr(C)]
struct Counted<T> {
    /// Owners; and pointers that do not own, with one for all owners.
    strong: u64,
    weak: u64,
    value: T,
}

/// A pointer that owns an object together with others: what `Rc` is elsewhere (and `Arc`: a store's objects are
/// read by any thread). The object is freed with the last of them. It can be changed while it has one owner, as
/// with [`Rc::get_mut`](std::rc::Rc::get_mut).
#[repr(transparent)]
pub struct PRc<T>(Link<Counted<T>>);

/// As [`PRc`]: the same, for those who look for it by this name.
pub type PArc<T> = PRc<T>;

/// A pointer to such an object that does not own it.
#[repr(transparent)]
pub struct PWeak<T>(Link<Counted<T>>);

/// An object with a count that is to be made.
pub struct NewRc<T, I>(I, PhantomData<fn() -> T>);

/// One more owner that is to be made.
pub struct Shared<'r, T>(&'r PRc<T>);

/// A count, as any thread may read it. Nothing else is learnt from it: what it counts is kept by other means.
///
/// # Safety
/// It is one of an object that is there.
unsafe fn read(count: *const u64) -> u64 {
    // SAFETY: the caller's word; aligned, and every access is atomic.
    unsafe { AtomicU64::from_ptr(count.cast_mut()) }.load(Ordering::Relaxed)
}

/// Changes a count, which the transaction's thread alone does.
///
/// # Safety
/// As [`read`]; it is declared.
unsafe fn write(count: *mut u64, to: u64) {
    // SAFETY: the caller's word; aligned, and every access is atomic.
    unsafe { AtomicU64::from_ptr(count) }.store(to, Ordering::Relaxed);
}

impl<T, I> fmt::Debug for NewRc<T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewRc")
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> PRc<T> {
    /// An object that is allocated where the pointer is put.
    #[expect(clippy::new_ret_no_self, reason = "as `Box::new` is called")]
    pub fn new<I>(value: I) -> NewRc<T, I> {
        NewRc(value, PhantomData)
    }

    fn counted(&self) -> *mut Counted<T> {
        self.0.get()
    }

    /// Owners of the object.
    pub fn strong_count(this: &PRc<T>) -> u64 {
        // SAFETY: the pointer keeps the object.
        unsafe { read(&raw const (*this.counted()).strong) }
    }

    /// Whether both lead to the same object.
    pub fn ptr_eq(this: &PRc<T>, other: &PRc<T>) -> bool {
        ptr::eq(this.counted(), other.counted())
    }
}

impl<T: Recoverable> PRc<T> {
    /// One more owner, for a place in the same transaction.
    ///
    /// # Panics
    /// If the pointer is in another heap than the transaction's.
    pub fn share<'id>(this: &PRc<T>, tx: Tx<'id>) -> Owned<'id, PRc<T>> {
        tx.check_holds(this.counted());
        Owned::new(Shared(this), tx)
    }

    /// A pointer that does not own the object.
    ///
    /// # Panics
    /// As [`PRc::share`].
    pub fn downgrade<'id>(this: &PRc<T>, tx: Tx<'id>) -> Owned<'id, PWeak<T>> {
        tx.check_holds(this.counted());
        Owned::new(Weaker(this.counted()), tx)
    }
}

impl<T> Deref for PRc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the pointer keeps the object, which changes only while it has one owner, through its guard.
        unsafe { &(*self.counted()).value }
    }
}

impl<'id, T: Recoverable> Mut<'_, 'id, PRc<T>> {
    /// A guard of the object, if there is no other pointer to it.
    pub fn get_mut(&mut self) -> Option<Mut<'_, 'id, T>> {
        let counted = self.counted();
        // SAFETY: the guard has the only pointer to the object.
        unsafe {
            let alone = read(&raw const (*counted).strong) == 1 && read(&raw const (*counted).weak) == 1;
            let alone = even_if("shared-object-changed", alone);
            alone.then(|| Mut::new(&raw mut (*counted).value, self.tx()))
        }
    }
}

impl<T> PWeak<T> {
    /// A pointer to nothing.
    pub const fn new() -> PWeak<T> {
        PWeak(Link::NONE)
    }

    /// Whether the object still has owners. To read it: [`View::weak`](crate::View::weak), and in a transaction
    /// [`PWeak::upgrade`].
    pub fn has_owners(&self) -> bool {
        // SAFETY: the pointer keeps the counts.
        !self.0.is_none() && unsafe { read(&raw const (*self.0.get()).strong) > 0 }
    }

    /// The object, if it still has owners.
    ///
    /// # Safety
    /// Nothing is freed while the reference lives.
    pub(crate) unsafe fn object<'v>(&self) -> Option<&'v T> {
        // SAFETY: an object with owners is there, and stays by the caller's word.
        self.has_owners().then(|| unsafe { &(*self.0.get()).value })
    }

    /// Where the counts are.
    pub(crate) fn address(&self) -> *const u8 {
        self.0.get().cast()
    }
}

impl<T: Recoverable> PWeak<T> {
    /// One more owner, if there are some still.
    ///
    /// # Panics
    /// As [`PRc::share`].
    pub fn upgrade<'id>(&self, tx: Tx<'id>) -> Option<Owned<'id, PRc<T>>> {
        if !self.has_owners() {
            return None;
        }
        tx.check_holds(self.0.get());
        Some(Owned::new(Owner(self.0.get()), tx))
    }
}

impl<T> Default for PWeak<T> {
    fn default() -> PWeak<T> {
        PWeak::new()
    }
}

/// Adds to a count of an object.
///
/// # Safety
/// It is one of an object of the transaction's heap.
unsafe fn count(tx: Tx<'_>, field: *mut u64, by: i64) -> u64 {
    tx.declare(field, 1);
    // SAFETY: the caller's word; declared.
    unsafe {
        let count = read(field).checked_add_signed(by).expect("an object has fewer than 2^64 pointers");
        write(field, count);
        count
    }
}

/// The object of a number among those that are being loaded: without owners and a value when it is first named.
fn numbered<T: Recoverable>(number: u64, loader: &Loader<'_, '_>) -> *mut Counted<T> {
    let (tx, of) = (loader.tx(), TypeId::of::<T>());
    let known = loader.counted().borrow().get(&number).copied();
    match known {
        Some(numbered) if numbered.of == of => tx.at(numbered.place),
        Some(_) => loader.refuse(format!("object {number} is of another type")),
        None => {
            let at = tx.allocate::<Counted<T>>(1);
            tx.declare(at.cast::<u64>(), 2);
            // SAFETY: memory for the counts, declared.
            unsafe {
                write(&raw mut (*at).strong, 0);
                // The loader's own, until it has no use for the number any more.
                write(&raw mut (*at).weak, 1);
            }
            let numbered = Numbered { place: tx.place(at.cast()), of, made: false };
            loader.counted().borrow_mut().insert(number, numbered);
            at
        }
    }
}

/// Gives back what the loader has of a numbered object.
pub(crate) fn release(tx: Tx<'_>, place: Place) {
    let counts = tx.at::<u64>(place);
    // SAFETY: the counts of an object of the heap, which the loader has kept.
    unsafe {
        if count(tx, counts.add(1), -1) == 0 {
            tx.free(counts);
        }
    }
}

/// Puts other counts in the place of an object's two.
///
/// # Safety
/// They are those of an object that is there, declared.
pub(crate) unsafe fn set_counts(at: *mut u64, [strong, weak]: [u64; 2]) {
    // SAFETY: the caller's word.
    unsafe {
        write(at, strong);
        write(at.add(1), weak);
    }
}

/// One owner more of an object of the heap.
struct Owner<T>(*mut Counted<T>);
/// One pointer more that does not own it.
struct Weaker<T>(*mut Counted<T>);

// SAFETY: one more owner, counted.
unsafe impl<'id, T: Recoverable> Init<'id, PRc<T>> for Owner<T> {
    unsafe fn init(self, to: *mut PRc<T>, tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe {
            count(tx, &raw mut (*self.0).strong, 1);
            Link::set(to.cast(), self.0);
        }
    }
}

// SAFETY: one more pointer, counted.
unsafe impl<'id, T: Recoverable> Init<'id, PWeak<T>> for Weaker<T> {
    unsafe fn init(self, to: *mut PWeak<T>, tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe {
            count(tx, &raw mut (*self.0).weak, 1);
            Link::set(to.cast(), self.0);
        }
    }
}

// SAFETY: one more owner, counted; `share` looked whether the heap is the transaction's.
unsafe impl<'id, T: Recoverable> Init<'id, PRc<T>> for Shared<'_, T> {
    unsafe fn init(self, to: *mut PRc<T>, tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe { Owner(self.0.counted()).init(to, tx) }
    }
}

// SAFETY: an object with one owner is made.
unsafe impl<'id, T: Recoverable, I: Init<'id, T>> Init<'id, PRc<T>> for NewRc<T, I> {
    unsafe fn init(self, to: *mut PRc<T>, tx: Tx<'id>) {
        let at = tx.allocate::<Counted<T>>(1);
        tx.declare(at, 1);
        // SAFETY: memory for the object, declared.
        unsafe {
            write(&raw mut (*at).strong, 1);
            write(&raw mut (*at).weak, 1);
            self.0.init(&raw mut (*at).value, tx);
            Link::set(to.cast(), at);
        }
    }
}

// SAFETY: there is no owner to begin with: none leaves a store by value. What may hold one may be without.
unsafe impl<'id, T: Recoverable> Init<'id, PRc<T>> for PRc<T> {
    unsafe fn init(self, _to: *mut PRc<T>, _tx: Tx<'id>) {
        unreachable!("no pointer leaves a store by value")
    }
}

// SAFETY: a pointer to nothing is the same anywhere, and no other has a value outside of a store.
unsafe impl<'id, T: Recoverable> Init<'id, PWeak<T>> for PWeak<T> {
    unsafe fn init(self, to: *mut PWeak<T>, _tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe { to.write(self) }
    }
}

/// Gives the counts back with the last pointer.
///
/// # Safety
/// The object has no owner, and the pointer that goes was counted.
unsafe fn forget_weak<T: Recoverable>(counted: *mut Counted<T>, tx: Tx<'_>) {
    // SAFETY: the caller's word.
    if unsafe { count(tx, &raw mut (*counted).weak, -1) } == 0 {
        tx.free(counted);
    }
}

// SAFETY: a link, told when it is moved.
unsafe impl<T: Recoverable> Recoverable for PRc<T> {
    type Pointers = Yes;
    type Borrowed = PRc<T>;
    const PADDED: bool = false;

    fn describe(types: &mut Types) -> String {
        format!("PRc<{}>", types.name_of::<T>())
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word.
        unsafe { ptr::copy_nonoverlapping(from, to, 1) }
    }

    unsafe fn moved(this: *mut Self, by: isize) {
        // SAFETY: the caller's word.
        unsafe { Link::moved(this.cast::<Link<Counted<T>>>(), by) }
    }

    unsafe fn free(this: *mut Self, tx: Tx<'_>) {
        /// Frees what the object owns; the counts stay while others point to them.
        unsafe fn contents<T: Recoverable>(value: *mut u8, tx: Tx<'_>, _count: usize) {
            // SAFETY: the value of an object without owners.
            unsafe {
                free_all(value.cast::<T>(), 1, tx);
                forget_weak(value.byte_sub(offset_of!(Counted<T>, value)).cast::<Counted<T>>(), tx);
            }
        }
        // SAFETY: one owner goes; the last takes the object with it.
        unsafe {
            let counted = (*this).counted();
            if unless("counted-object-kept", count(tx, &raw mut (*counted).strong, -1) == 0) {
                tx.later((&raw mut (*counted).value).cast(), 1, contents::<T>, false);
            }
        }
    }

    unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
        let tx = loader.tx();
        // SAFETY: the caller's word; the counts of objects of this heap.
        unsafe {
            let counted = match loader.object(from) {
                (None, Some(value)) => return PRc::<T>::new(Loading(value, loader)).init(to, tx),
                (Some(number), Some(value)) => {
                    let counted = numbered::<T>(number, loader);
                    // Also in the midst of its own value: there are no owners yet that would tell.
                    let begun = loader
                        .counted()
                        .borrow_mut()
                        .get_mut(&number)
                        .map(|numbered| std::mem::replace(&mut numbered.made, true));
                    if unless("counted-object-made-twice", begun == Some(true)) {
                        loader.refuse(format!("object {number} is there twice"));
                    }
                    let place = &raw mut (*counted).value;
                    tx.declare(place, 1);
                    making(tx, || T::load(value, place, loader));
                    // All owners together count as one weak pointer.
                    count(tx, &raw mut (*counted).weak, 1);
                    counted
                }
                (Some(number), None) => {
                    let counted = numbered::<T>(number, loader);
                    if read(&raw const (*counted).strong) == 0 {
                        loader.refuse(format!("object {number} is named before it is there"));
                    }
                    counted
                }
                (None, None) => loader.refuse("an object without a number or a value"),
            };
            Owner(counted).init(to, tx);
        }
    }
}

// SAFETY: a link, told when it is moved.
unsafe impl<T: Recoverable> Recoverable for PWeak<T> {
    type Pointers = Yes;
    type Borrowed = PWeak<T>;
    const PADDED: bool = false;
    const MAY_BE_NOTHING: bool = true;

    fn describe(types: &mut Types) -> String {
        format!("PWeak<{}>", types.name_of::<T>())
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word.
        unsafe { ptr::copy_nonoverlapping(from, to, 1) }
    }

    unsafe fn moved(this: *mut Self, by: isize) {
        // SAFETY: the caller's word.
        unsafe { Link::moved(this.cast::<Link<Counted<T>>>(), by) }
    }

    unsafe fn free(this: *mut Self, tx: Tx<'_>) {
        // SAFETY: a pointer that was counted goes.
        unsafe {
            if !(*this).0.is_none() {
                forget_weak((*this).0.get(), tx);
            }
        }
    }

    unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
        let number = match from {
            Datum::Nothing => None,
            from => {
                let (number, value) = loader.object(from);
                if value.is_some() {
                    loader.refuse("the value of an object where a weak pointer is, which does not own it");
                }
                number
            }
        };
        // SAFETY: the caller's word; the counts of objects of this heap.
        unsafe {
            match number {
                Some(number) => Weaker(numbered::<T>(number, loader)).init(to, loader.tx()),
                None => to.write(PWeak::new()),
            }
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for PRc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> fmt::Debug for PWeak<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PWeak")
    }
}

impl<T: PartialEq> PartialEq for PRc<T> {
    fn eq(&self, other: &PRc<T>) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for PRc<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::ManuallyDrop;

    /// An object and a pointer to it, as they lie in a heap.
    #[repr(C)]
    struct Lying {
        owner: ManuallyDrop<PRc<u64>>,
        weak: ManuallyDrop<PWeak<u64>>,
        counted: Counted<u64>,
    }

    /// Where Miri runs it, it tells of any access that is no atomic one.
    #[test]
    fn threads_with_references_read_counts_that_a_transaction_changes() {
        let lying = Box::into_raw(Box::new(Lying {
            owner: ManuallyDrop::new(PRc(Link::NONE)),
            weak: ManuallyDrop::new(PWeak(Link::NONE)),
            counted: Counted { strong: 1, weak: 2, value: 7 },
        }));
        lying.expose_provenance();
        // SAFETY: fields of what was just made; links that lead to an object that stays until the end.
        unsafe {
            let counted = &raw mut (*lying).counted;
            Link::set((&raw mut (*lying).owner).cast(), counted);
            Link::set((&raw mut (*lying).weak).cast(), counted);
            let (owner, weak): (&PRc<u64>, &PWeak<u64>) = (&(*lying).owner, &(*lying).weak);
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    while PRc::strong_count(owner) == 1 {
                        std::thread::yield_now();
                    }
                    (PRc::strong_count(owner), weak.has_owners(), **owner)
                });
                // What `share` does once it has declared it.
                let strong = (&raw mut (*owner.counted()).strong).cast::<u64>();
                write(strong, read(strong) + 1);
                assert_eq!(reader.join().unwrap(), (2, true, 7));
            });
            drop(Box::from_raw(lying));
        }
    }
}
