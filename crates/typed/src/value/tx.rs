//! A transaction on the objects of a heap, as guards see it.
//!
//! ```text
//!   transact --> closure with guards --+-- Ok ------------------> commit
//!                                      +-- Err, panic ----------> abort
//!                                      +-- out of room: unwound -> abort, an error
//! ```
//!
//! Operations on guards have std's signatures, so they cannot return that the log or the disk is full. They
//! unwind, past the closure, and [`Objects::transact`](crate::Objects::transact) returns the error. Whatever
//! was half done then is undone with the transaction: a closure that catches the unwinding can look, but not
//! commit.

use crate::error::Error;
use caliburn_engine::{Image, RangeError};
use caliburn_heap::{Heap, HeapError, HeapTransaction, Place};
use caliburn_os::simulated::{planted, unless};
use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::marker::PhantomData;
use std::panic;
use std::sync::Arc;

/// Frees what so many values at an address own.
type FreeContents = unsafe fn(*mut u8, Tx<'_>, usize);

/// What the guards of a transaction share. One thread works with it.
pub(crate) struct Core<'h> {
    heap: &'h Heap,
    tx: UnsafeCell<HeapTransaction<'h>>,
    /// First byte of the heap's objects.
    base: usize,
    /// Images that readers have of the heap, oldest first, and the newest.
    images: &'h [Arc<Image>],
    newest: Option<&'h Image>,
    /// Keys of the heap's hash function.
    hash_keys: [u64; 2],
    /// It cannot commit any more, and nothing is changed any more: what an operation has left half done is
    /// looked at, but nothing is built on it.
    frozen: Cell<bool>,
    /// It is so only until its child has ended.
    lent: Cell<bool>,
    rare: OnceCell<Box<Rare>>,
}

/// Values that are no longer used, at an address.
struct Doomed {
    at: usize,
    count: usize,
    contents: FreeContents,
    object: bool,
}

/// What most transactions do without.
#[derive(Default)]
struct Rare {
    /// Why it cannot commit any more.
    failure: RefCell<Option<Error>>,
    /// Objects that were given up and own others, which are to be given up as well: a list, since what owns
    /// a million others one in the other would otherwise take as many stack frames.
    doomed: RefCell<Vec<Doomed>>,
    freeing: Cell<bool>,
}

impl std::fmt::Debug for Core<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("heap", &self.heap).finish_non_exhaustive()
    }
}

/// What unwinds out of a closure when an operation found no room. The reason is in the core.
struct OutOfRoom;

/// Whether that is what unwound.
pub(crate) fn is_out_of_room(payload: &(dyn std::any::Any + Send)) -> bool {
    payload.is::<OutOfRoom>()
}

impl<'h> Core<'h> {
    #[inline(always)]
    pub(crate) fn new(
        heap: &'h Heap,
        tx: HeapTransaction<'h>,
        hash_keys: [u64; 2],
        images: &'h [Arc<Image>],
    ) -> Core<'h> {
        Core {
            heap,
            tx: UnsafeCell::new(tx),
            base: heap.region().as_ptr().expose_provenance(),
            images,
            newest: images.last().map(|image| &**image),
            hash_keys,
            frozen: Cell::new(false),
            lent: Cell::new(false),
            rare: OnceCell::new(),
        }
    }

    /// The transaction, to be ended, and why it cannot be committed.
    #[inline(always)]
    pub(crate) fn into_parts(self) -> (HeapTransaction<'h>, Option<Error>) {
        (self.tx.into_inner(), self.rare.into_inner().and_then(|rare| rare.failure.into_inner()))
    }

    fn rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }
}

/// What a transaction has lent to a child of it, which is given back when this is dropped.
pub(crate) struct Lent<'id> {
    parent: Tx<'id>,
    tx: HeapTransaction<'id>,
}

impl<'id> Lent<'id> {
    /// The transaction, while no core has it.
    pub(crate) fn tx(&mut self) -> &mut HeapTransaction<'id> {
        &mut self.tx
    }

    /// The child's core, which has it now.
    pub(crate) fn core(&mut self) -> Core<'id> {
        let Core { heap, hash_keys, images, .. } = *self.parent.core();
        Core::new(heap, self.tx.lend(), hash_keys, images)
    }

    /// The child has ended. Why it cannot be committed.
    pub(crate) fn take_back(&mut self, core: Core<'id>) -> Option<Error> {
        let (tx, failure) = core.into_parts();
        self.tx = tx;
        failure
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let core = self.parent.core();
        // SAFETY: this thread alone works with the core, and nobody has a reference to what is spent.
        unsafe { *core.tx.get() = self.tx.lend() };
        core.lent.set(false);
        core.frozen.set(core.rare.get().is_some_and(|rare| rare.failure.borrow().is_some()));
    }
}

/// A transaction, for as long as its guards may live. `'id` is no other transaction's: what belongs to one
/// cannot be put into another's objects.
#[derive(Clone, Copy)]
pub struct Tx<'id> {
    /// Points to a core that outlives `'id`.
    core: *const Core<'static>,
    brand: PhantomData<fn(&'id ()) -> &'id ()>,
}

impl std::fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tx")
    }
}

impl<'id> Tx<'id> {
    /// The transaction of a core.
    ///
    /// # Safety
    /// The core outlives `'id`, which no other transaction has.
    pub(crate) unsafe fn new(core: &Core<'_>) -> Tx<'id> {
        Tx { core: std::ptr::from_ref(core).cast(), brand: PhantomData }
    }

    #[inline(always)]
    fn core(&self) -> &Core<'id> {
        // SAFETY: see `new`; the heap outlives the core, and so what is asked for here.
        unsafe { &*self.core.cast() }
    }

    /// Keys of the heap's hash function.
    pub(crate) fn hash_keys(self) -> [u64; 2] {
        self.core().hash_keys
    }

    /// The transaction of the heap.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "one at a time, see below")]
    fn work(&self) -> &mut HeapTransaction<'id> {
        let core = self.core();
        if unless("typed-frozen-changes", core.frozen.get()) {
            self.refuse();
        }
        // SAFETY: this thread alone works with the core, and nothing that is done with the reference calls back.
        unsafe { &mut *core.tx.get() }
    }

    /// Lends the transaction to a child; until it is given back, nobody changes anything with this one.
    pub(crate) fn lend(self) -> Lent<'id> {
        let tx = self.work().lend();
        self.core().frozen.set(true);
        self.core().lent.set(true);
        Lent { parent: self, tx }
    }

    /// Whether a value is not in the heap.
    pub(crate) fn is_outside<T>(self, at: *const T) -> bool {
        let core = self.core();
        at.addr().wrapping_sub(core.base) >= core.heap.region().len()
    }

    /// Declares bytes that are about to change.
    #[inline(always)]
    pub(crate) fn declare<T>(self, at: *const T, count: usize) {
        let core = self.core();
        let (offset, len) = (at.addr().wrapping_sub(core.base), count * size_of::<T>());
        if len == 0 {
            return;
        }
        let tx = self.work();
        if planted("typed-undeclared") && len < 16 {
            return;
        }
        if let Err(error) = tx.set_range(core.heap.region(), offset..offset.wrapping_add(len)) {
            self.not_declared(offset, error);
        }
        // What the newest has kept all have: they are given pages together.
        if core.newest.is_some_and(|image| !image.has_kept(offset, len)) {
            self.keep(offset, len);
        }
    }

    /// Gives the heap's images what is about to change.
    #[cold]
    #[inline(never)]
    fn keep(self, offset: usize, len: usize) {
        let images = self.core().images;
        let images = if planted("older-image-not-kept") { &images[images.len() - 1..] } else { images };
        images.iter().for_each(|image| image.keep(offset, len));
    }

    #[cold]
    #[inline(never)]
    fn not_declared(self, offset: usize, error: RangeError) {
        // A value that is being made on its way to the heap needs no declaring.
        if offset < self.core().heap.region().len() {
            self.fail(error.into());
        }
    }

    /// Takes memory for `count` values. What is stored there is to be declared.
    #[inline]
    pub(crate) fn allocate<T>(self, count: usize) -> *mut T {
        let Some(len) = count.checked_mul(size_of::<T>()) else { self.too_large(count) };
        self.allocate_bytes(len, align_of::<T>()).cast()
    }

    #[cold]
    fn too_large(self, count: usize) -> ! {
        let (heap, why) = (self.core().heap.name().to_owned(), "no heap is that large");
        self.fail(HeapError::Size { heap, len: count, align: 1, why }.into())
    }

    /// Takes memory. What is stored there is to be declared.
    pub(crate) fn allocate_bytes(self, len: usize, align: usize) -> *mut u8 {
        let (core, tx) = (self.core(), self.work());
        let len = len.max(1);
        match tx.allocate_aligned(len, align.max(16)) {
            Ok(place) => std::ptr::with_exposed_provenance_mut(core.base + place.0 as usize),
            Err(error) => self.fail(error.into()),
        }
    }

    /// Bytes that an object can hold.
    pub(crate) fn usable_len(self, at: *const u8) -> usize {
        self.core().heap.usable_len(self.place(at)).unwrap_or_else(|error| self.fail(error.into()))
    }

    /// The address of a place in the heap.
    pub(crate) fn at<T>(self, place: Place) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.core().base.wrapping_add(place.0 as usize))
    }

    /// The place of an object.
    pub(crate) fn place(self, at: *const u8) -> Place {
        Place(at.addr().wrapping_sub(self.core().base) as u64)
    }

    /// Gives an object up, whose contents own nothing any more. Its bytes stay until the commit.
    pub(crate) fn free<T>(self, at: *const T) {
        let place = self.place(at.cast());
        if let Err(error) = self.work().free(place) {
            self.fail(error.into());
        }
    }

    /// Gives an object up, with what it owns.
    ///
    /// # Safety
    /// `contents` frees what the `count` values in the object at `at` own, which nothing uses again.
    pub(crate) unsafe fn free_counted(self, at: *mut u8, count: usize, contents: FreeContents) {
        // SAFETY: the caller's word.
        unsafe { self.later(at, count, contents, true) }
    }

    /// Calls `contents`, not before those that are being called have ended; then gives up the object at `at`,
    /// if it is one.
    ///
    /// # Safety
    /// As [`Tx::free_counted`].
    pub(crate) unsafe fn later(self, at: *mut u8, count: usize, contents: FreeContents, object: bool) {
        let rare = self.core().rare();
        rare.doomed.borrow_mut().push(Doomed { at: at.expose_provenance(), count, contents, object });
        if rare.freeing.replace(true) {
            return;
        }
        /// Also when it is unwound.
        struct Done<'a>(&'a Cell<bool>);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        let _done = Done(&rare.freeing);
        loop {
            let next = rare.doomed.borrow_mut().pop();
            let Some(Doomed { at, count, contents, object }) = next else { break };
            let at = std::ptr::with_exposed_provenance_mut(at);
            // SAFETY: the caller's word, here or where it was put on the list.
            unsafe { contents(at, self, count) };
            if unless("typed-object-leaked", object) {
                self.free(at);
            }
        }
    }

    /// Names an object.
    pub(crate) fn set_root<T>(self, name: &str, at: *const T) {
        self.work()
            .set_root(name, Some(self.place(at.cast())))
            .unwrap_or_else(|error| self.fail(error.into()));
    }

    /// Takes the name of an object away.
    pub(crate) fn remove_root(self, name: &str) {
        self.work().set_root(name, None).unwrap_or_else(|error| self.fail(error.into()));
    }

    /// Lets the transaction end, but not by a commit, and be left as it is until then.
    pub(crate) fn spoil(self, error: Error) {
        self.core().frozen.set(true);
        self.core().rare().failure.borrow_mut().get_or_insert(error);
    }

    /// Whether nothing is changed any more.
    pub(crate) fn is_frozen(self) -> bool {
        self.core().frozen.get()
    }

    #[cold]
    #[inline(never)]
    fn refuse(self) -> ! {
        assert!(
            !self.core().lent.get(),
            "a guard of the parent is used to change something while its nested transaction is open: use the child's"
        );
        panic::resume_unwind(Box::new(OutOfRoom))
    }

    /// Refuses a pointer into another heap.
    pub(crate) fn check_holds<T>(self, at: *const T) {
        let heap = self.core().heap;
        let holds = at.addr().wrapping_sub(self.core().base) < heap.region().len();
        assert!(holds, "the object is in another heap than {:?}, which the transaction changes", heap.name());
    }

    /// Leaves the closure: the transaction cannot go on.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail(self, error: Error) -> ! {
        self.spoil(error);
        panic::resume_unwind(Box::new(OutOfRoom))
    }
}

/// Spoils a transaction when the making of a value panics: it may have been half made in its place.
struct Spoils<'id>(Tx<'id>);

impl Drop for Spoils<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.spoil(Error::Unwound);
    }
}

/// Does what makes a value in its place, with code of the program's.
#[inline(always)]
pub(crate) fn making<T>(tx: Tx<'_>, make: impl FnOnce() -> T) -> T {
    let spoils = Spoils(tx);
    let made = make();
    std::mem::forget(spoils);
    made
}
