//! The objects of a heap, reached from one root: opening them, reading, and changing them in transactions.

use crate::error::Error;
use crate::images::{Exchange, Images};
use crate::shared::PWeak;
use crate::turns::{Reading, Turns, Writing};
use crate::value::guard::Mut;
use crate::value::layout::{self, Types};
use crate::value::recoverable::{Init, Recoverable};
use crate::value::tx::{Core, Tx, is_out_of_room, making};
use caliburn_engine::{BeginError, Class, Image, Inherited, Store, Ticket};
use caliburn_heap::{Heap, Place, Statistics};
use caliburn_os::simulated::{planted, unless};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// Name of the heap's root that names the anchor, and of the one that names the record of types.
pub(crate) const ANCHOR: &str = "caliburn.root";
pub(crate) const TYPES: &str = "caliburn.types";
/// Name of the one that says that an import goes on.
pub(crate) const IMPORT: &str = "caliburn.import";
/// Names of the ones of the objects of older types that a migration has kept: as [`ANCHOR`] and [`TYPES`].
pub(crate) const KEPT: &str = "caliburn.kept";
pub(crate) const KEPT_TYPES: &str = "caliburn.kept.types";
/// Heap of [`Objects::create`].
const DEFAULT: &str = "objects";

/// What a typed heap begins with.
#[repr(C)]
pub(crate) struct Anchor<R> {
    pub hash_keys: [u64; 2],
    pub root: R,
}

/// Typed objects in a heap of a store, all of them reached from a root of type `R`. A handle: clones are cheap,
/// and hold the store open.
///
/// **Concurrency.** One writer and any number of readers: [`write`](Objects::write) and
/// [`transact`](Objects::transact) wait until no [`View`] is alive and no other transaction on these objects is
/// open; [`read`](Objects::read) waits until no transaction is. So a reader never sees a transaction that is
/// not committed, and a transaction is never disturbed. Threads that write in parallel use several heaps of a
/// store. A thread that would wait for itself, since it holds a `View` and asks for a transaction, panics.
pub struct Objects<R> {
    pub(crate) inner: Arc<Inner>,
    root: PhantomData<fn() -> R>,
}

pub(crate) struct Inner {
    pub turns: Turns<Images>,
    pub exchange: Arc<Exchange>,
    /// Where the root is in the heap's region, and the keys of its hash function.
    pub root: usize,
    hash_keys: [u64; 2],
    class: Class,
    pub heap: Heap,
}

impl<R> Clone for Objects<R> {
    fn clone(&self) -> Objects<R> {
        Objects { inner: self.inner.clone(), root: PhantomData }
    }
}

impl<R> fmt::Debug for Objects<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").field("heap", &self.inner.heap.name()).finish_non_exhaustive()
    }
}

impl<R: Recoverable> Objects<R> {
    /// Opens the store at `path`, made if there is none, with the objects in it.
    ///
    /// # Errors
    /// When the store cannot be opened, or as [`Objects::open`].
    pub fn create(path: impl AsRef<Path>) -> Result<Objects<R>, Error>
    where
        R: Default + for<'id> Init<'id, R>,
    {
        let store = Store::options().create(true).open(path)?;
        Objects::open(&store, DEFAULT)
    }

    /// Opens the objects in the heap of that name, made with the root's default if there is none. Commits are
    /// in the most lasting class that the store has, unless said otherwise.
    ///
    /// # Errors
    /// [`Error::Changed`] when the heap was made with other types ([`Objects::migrate`] changes them),
    /// [`Error::NotTyped`] when it is not one of typed objects.
    pub fn open(store: &Store, name: &str) -> Result<Objects<R>, Error>
    where
        R: Default + for<'id> Init<'id, R>,
    {
        let heap = Heap::open(store, name)?;
        if heap.root(IMPORT).is_some() {
            let why = "its import was cut short: import it again".to_owned();
            return Err(Error::NotTyped { heap: name.to_owned(), why });
        }
        let wanted = Types::record::<R>();
        let (anchor, types) = match (heap.root(ANCHOR), heap.root(TYPES)) {
            (Some(anchor), Some(types)) => (anchor, types),
            (None, None) if is_empty(&heap) => Self::make(&heap, &wanted, false)?,
            (anchor, types) => {
                let why = match (anchor, types) {
                    (None, None) => "another program has allocated its objects",
                    _ => "one of its two roots is missing",
                };
                return Err(Error::NotTyped { heap: name.to_owned(), why: why.to_owned() });
            }
        };
        let found = read_types(&heap, types)?;
        if unless("typed-types-not-compared", found != wanted) {
            let difference = layout::difference(&found, &wanted);
            return Err(Error::Changed { heap: name.to_owned(), difference });
        }
        if heap.usable_len(anchor)? < size_of::<Anchor<R>>() {
            let why = "its root is shorter than its type".to_owned();
            return Err(Error::NotTyped { heap: name.to_owned(), why });
        }
        let at = anchor.0 as usize;
        let hash_keys = heap.region().load(at);
        let root = at + std::mem::offset_of!(Anchor<R>, root);
        heap.region().as_ptr().expose_provenance();
        let exchange = Arc::default();
        let inner = Inner { turns: Turns::default(), exchange, root, hash_keys, class: store.reach(), heap };
        Ok(Objects { inner: Arc::new(inner), root: PhantomData })
    }

    /// Makes the root and the record of types, in one transaction, to be opened or to be filled by an import.
    pub(crate) fn make(heap: &Heap, record: &str, imported: bool) -> Result<(Place, Place), Error>
    where
        R: Default + for<'id> Init<'id, R>,
    {
        let random = RandomState::new();
        let hash_keys = [random.hash_one(1), random.hash_one(2)];
        run::<(), Error>(heap, hash_keys, &[], None, |tx| {
            let anchor = new_anchor::<R>(tx, hash_keys);
            tx.set_root(ANCHOR, anchor);
            if imported {
                tx.set_root(IMPORT, anchor);
            }
            put_types(tx, record);
            Ok(())
        })?;
        let place = |name| heap.root(name).expect("it was just named");
        Ok((place(ANCHOR), place(TYPES)))
    }

    /// Waits for the right to change the objects, for as many transactions as wanted.
    ///
    /// # Panics
    /// If this thread has it already, or holds a [`View`] of the objects: it would wait for itself. In a process
    /// that was forked from the one that has opened the store.
    pub fn write(&self) -> Writer<'_, R> {
        self.must_be_own();
        Writer { objects: self, class: self.inner.class, turn: self.inner.turns.write() }
    }

    /// Runs a transaction: committed if the closure returns `Ok`, undone if it returns an error or panics.
    /// Durable, as far as the store can be, when this returns.
    ///
    /// # Panics
    /// As [`Objects::write`]; and whatever the closure panics with.
    ///
    /// # Errors
    /// The closure's; and when the log or the disk is full, or the store has failed.
    pub fn transact<T, E: From<Error>>(
        &self,
        body: impl for<'a, 'id> FnOnce(Mut<'a, 'id, R>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.transact_in(self.inner.class, body)
    }

    /// Runs a transaction that survives what `class` names when this returns.
    ///
    /// # Errors
    /// As [`Objects::transact`].
    pub fn transact_in<T, E: From<Error>>(
        &self,
        class: Class,
        body: impl for<'a, 'id> FnOnce(Mut<'a, 'id, R>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.own()?;
        let mut writer = self.write();
        let (value, ticket) = writer.run(class, body)?;
        // Others go on while the disk is waited for.
        drop(writer);
        if let Some(ticket) = ticket {
            ticket.wait().map_err(Error::NotDurable)?;
        }
        Ok(value)
    }

    /// Runs a transaction and does not wait for the disk: the ticket does.
    ///
    /// # Errors
    /// As [`Objects::transact`]; [`CommitError::Class`](caliburn_engine::CommitError::Class) where nothing is
    /// forced.
    pub fn transact_async<T, E: From<Error>>(
        &self,
        body: impl for<'a, 'id> FnOnce(Mut<'a, 'id, R>) -> Result<T, E>,
    ) -> Result<(T, Ticket), E> {
        self.own()?;
        let (value, ticket) = self.write().run(Class::Power, body)?;
        Ok((value, ticket.expect("a class that is waited for")))
    }

    /// Runs a transaction that cannot fail by itself: committed when the closure returns.
    ///
    /// # Errors
    /// When the log or the disk is full, or the store has failed.
    pub fn update<T>(&self, body: impl for<'a, 'id> FnOnce(Mut<'a, 'id, R>) -> T) -> Result<T, Error> {
        self.transact(|root| Ok(body(root)))
    }

    /// The root, to be read, with all that it leads to. Waits for the end of the transaction that is open.
    ///
    /// # Panics
    /// In a transaction on the same objects, for whose end it would wait; in a forked child, as [`Objects::write`].
    pub fn read(&self) -> View<'_, R> {
        self.must_be_own();
        let turn = self.inner.turns.read();
        // SAFETY: nothing is changed while there are views.
        View { root: unsafe { &*self.root() }, heap: &self.inner.heap, _turn: turn }
    }

    /// Refuses in a forked child: whose turn it is, the parent says, and it may change what the child reads.
    #[inline(always)]
    fn own(&self) -> Result<(), Error> {
        if self.inner.heap.store().is_inherited() {
            Err(BeginError::Inherited(Inherited).into())
        } else {
            Ok(())
        }
    }

    #[inline(always)]
    fn must_be_own(&self) {
        self.own().unwrap_or_else(|inherited| panic!("{inherited}"));
    }

    #[inline(always)]
    fn root(&self) -> *mut R {
        self.inner.heap.region().as_ptr().wrapping_add(self.inner.root).cast()
    }

    /// The layouts of all that the root is made of, as they are recorded in the store.
    ///
    /// # Errors
    /// [`Error::NotTyped`] when the record was overwritten.
    pub fn types(&self) -> Result<String, Error> {
        let heap = &self.inner.heap;
        let gone =
            || Error::NotTyped { heap: heap.name().to_owned(), why: "its types are not named".to_owned() };
        read_types(heap, heap.root(TYPES).ok_or_else(gone)?)
    }

    /// What the heap holds.
    pub fn statistics(&self) -> Statistics {
        self.inner.heap.statistics()
    }

    /// The heap, for tools that look at its bytes.
    ///
    /// # Safety
    /// Nothing of it is changed: no transaction on it is begun, nothing is stored to its regions.
    pub unsafe fn heap(&self) -> &Heap {
        &self.inner.heap
    }

    /// The store.
    pub fn store(&self) -> &Store {
        self.inner.heap.store()
    }

    /// Closes the objects and their store, if nothing else holds them.
    ///
    /// # Errors
    /// As [`Store::close`]; while there are other handles, they are told by
    /// [`CloseError::Shared`](caliburn_engine::CloseError::Shared).
    pub fn close(self) -> Result<(), Error> {
        let inner = Arc::into_inner(self.inner).ok_or(caliburn_engine::CloseError::Shared)?;
        let store = inner.heap.store().clone();
        drop(inner);
        Ok(store.close()?)
    }
}

/// Allocates an anchor with the root's default.
pub(crate) fn new_anchor<R>(tx: Tx<'_>, hash_keys: [u64; 2]) -> *mut Anchor<R>
where
    R: Recoverable + Default + for<'id> Init<'id, R>,
{
    let anchor = tx.allocate::<Anchor<R>>(1);
    tx.declare(anchor, 1);
    // SAFETY: memory for an anchor, declared.
    unsafe {
        (&raw mut (*anchor).hash_keys).write(hash_keys);
        making(tx, || R::default().init(&raw mut (*anchor).root, tx));
    }
    anchor
}

/// Puts a record of types into a heap.
pub(crate) fn put_types(tx: Tx<'_>, record: &str) {
    let len = record.len();
    let types = tx.allocate_bytes(8 + len, 8);
    tx.declare(types, 8 + len);
    // SAFETY: memory for so many bytes, declared.
    unsafe {
        types.cast::<u64>().write(len as u64);
        ptr::copy_nonoverlapping(record.as_ptr(), types.add(8), len);
    }
    tx.set_root(TYPES, types);
}

/// Whether nothing was ever allocated, or everything was freed.
pub(crate) fn is_empty(heap: &Heap) -> bool {
    let statistics = heap.statistics();
    statistics.large_objects == 0 && statistics.classes.iter().all(|class| class.objects == 0)
}

/// The record of types of a heap.
pub(crate) fn read_types(heap: &Heap, at: Place) -> Result<String, Error> {
    let bad = |why: &str| Error::NotTyped { heap: heap.name().to_owned(), why: why.to_owned() };
    let room = heap.usable_len(at)?;
    let at = at.0 as usize;
    let len: u64 = heap.region().load(at);
    if len > room.saturating_sub(8) as u64 {
        return Err(bad("the record of its types is longer than its object"));
    }
    let mut bytes = vec![0; len as usize];
    heap.region().read(at + 8, &mut bytes);
    String::from_utf8(bytes).map_err(|_| bad("the record of its types is not text"))
}

/// The right to change objects, for as many transactions as wanted: what a thread that is the only writer takes
/// once.
pub struct Writer<'o, R> {
    pub(crate) objects: &'o Objects<R>,
    class: Class,
    pub(crate) turn: Writing<'o, Images>,
}

impl<R> fmt::Debug for Writer<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("objects", &self.objects)
            .field("class", &self.class)
            .finish_non_exhaustive()
    }
}

impl<R: Recoverable> Writer<'_, R> {
    /// Commits in this class from now on.
    pub fn set_class(&mut self, class: Class) {
        self.class = class;
    }

    /// As [`Objects::transact`].
    ///
    /// # Errors
    /// Likewise.
    #[inline]
    pub fn transact<T, E: From<Error>>(
        &mut self,
        body: impl for<'a, 'id> FnOnce(Mut<'a, 'id, R>) -> Result<T, E>,
    ) -> Result<T, E> {
        let (value, ticket) = self.run(self.class, body)?;
        if let Some(ticket) = ticket {
            ticket.wait().map_err(Error::NotDurable)?;
        }
        Ok(value)
    }

    /// As [`Objects::update`].
    ///
    /// # Errors
    /// Likewise.
    #[inline]
    pub fn update<T>(&mut self, body: impl for<'a, 'id> FnOnce(Mut<'a, 'id, R>) -> T) -> Result<T, Error> {
        self.transact(|root| Ok(body(root)))
    }

    /// The root, as the last transaction has left it.
    pub fn root(&self) -> &R {
        // SAFETY: nothing is changed meanwhile.
        unsafe { &*self.objects.root() }
    }

    #[inline]
    fn run<T, E: From<Error>>(
        &mut self,
        class: Class,
        body: impl for<'a, 'id> FnOnce(Mut<'a, 'id, R>) -> Result<T, E>,
    ) -> Result<(T, Option<Ticket>), E> {
        let (inner, root) = (&*self.objects.inner, self.objects.root());
        let images = self.turn.begin(&inner.exchange);
        run(&inner.heap, inner.hash_keys, images, Some(class), |tx| {
            // SAFETY: the root is a value of this heap, and this thread alone has the right to change it.
            body(unsafe { Mut::new(root, tx) })
        })
    }
}

/// Runs a transaction on a heap, of which there are these images; in no class: as lasting as the store is, and
/// waited for.
#[inline]
pub(crate) fn run<T, E: From<Error>>(
    heap: &Heap,
    hash_keys: [u64; 2],
    images: &[Arc<Image>],
    class: Option<Class>,
    body: impl for<'id> FnOnce(Tx<'id>) -> Result<T, E>,
) -> Result<(T, Option<Ticket>), E> {
    let core = Core::new(heap, heap.begin().map_err(Error::from)?, hash_keys, images);
    // SAFETY: the core outlives the call, and the closure takes any lifetime, so it can mix it up with no other.
    let done = panic::catch_unwind(AssertUnwindSafe(|| body(unsafe { Tx::new(&core) })));
    let (tx, failure) = core.into_parts();
    let value = match (done, failure) {
        (Ok(Ok(value)), None) => value,
        (Ok(Ok(value)), Some(_)) if planted("typed-failure-forgotten") => value,
        (Ok(Err(error)), _) => return Err(error),
        (Ok(_), Some(failure)) => return Err(failure.into()),
        (Err(payload), failure) => {
            if planted("typed-panic-commits") {
                tx.commit(Class::Process).map_err(Error::from)?;
                panic::resume_unwind(payload);
            }
            // Undone before anybody else can look.
            drop(tx);
            match failure {
                Some(failure) if is_out_of_room(&*payload) => return Err(failure.into()),
                _ => panic::resume_unwind(payload),
            }
        }
    };
    match class {
        Some(Class::Process) => tx.commit(Class::Process).map(|()| (value, None)),
        Some(class) => tx.commit_ticket(class).map(|ticket| (value, Some(ticket))),
        None => tx.commit(heap.store().reach()).map(|()| (value, None)),
    }
    .map_err(|error| Error::from(error).into())
}

/// The objects as the last transaction has left them. While it is alive, none begins.
pub struct View<'o, R> {
    root: &'o R,
    heap: &'o Heap,
    _turn: Reading<'o, Images>,
}

impl<R> View<'_, R> {
    /// The object of a weak pointer among these objects, if it still has owners.
    ///
    /// # Panics
    /// If the pointer is in another heap.
    pub fn weak<'v, T>(&'v self, pointer: &'v PWeak<T>) -> Option<&'v T> {
        let region = self.heap.region();
        let offset = pointer.address().addr().wrapping_sub(region.as_ptr().addr());
        assert!(
            !pointer.has_owners() || offset < region.len(),
            "the object is in another heap than {:?}",
            self.heap.name()
        );
        // SAFETY: nothing of this heap is changed while the view is alive.
        unsafe { pointer.object() }
    }
}

impl<R> Deref for View<'_, R> {
    type Target = R;

    fn deref(&self) -> &R {
        self.root
    }
}

impl<R: fmt::Debug> fmt::Debug for View<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(f)
    }
}
