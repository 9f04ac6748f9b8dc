//! **Recoverable memory**: a program keeps its live data structures in memory mapped from a store; groups of
//! stores to it are atomic, and survive the crashes that the program names.
//!
//! There is no serialisation, no server and no query language: reading is reading memory, and a
//! transaction is a few declared ranges of it. After Satyanarayanan et al., *Lightweight Recoverable
//! Virtual Memory* (SOSP 1993).
//!
//! # A tour
//!
//! **Typed objects** are what most Rust programs want: structs and collections, reached from a root.
//!
//! ```
//! use caliburn::prelude::*;
//!
//! #[derive(Recoverable, Default)]
//! #[repr(C)]
//! struct Library {
//!     books: PBTreeMap<PString, Book>,
//!     lent: u64,
//! }
//!
//! #[derive(Recoverable)]
//! #[repr(C)]
//! struct Book {
//!     author: PString,
//!     place: Place,
//! }
//!
//! #[derive(Recoverable, Clone, Copy)]
//! #[repr(u8)]
//! enum Place {
//!     Shelf(u16),
//!     Lent { to: u64 },
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("library");
//! let library = Objects::<Library>::create(&path)?; // or opens it
//! library.update(|mut library| {
//!     let book = BookInit { author: "Vista", place: Place::Shelf(3) }; // a `PString` is made of a `&str`
//!     library.fields().books.insert("Free Transactions", book);
//! })?; // all of it, or nothing; durable when it returns
//!
//! library.update(|mut library| {
//!     let mut library = library.fields();
//!     if let Some(mut book) = library.books.get_mut("Free Transactions") {
//!         book.fields().place.set(Place::Lent { to: 7 }); // a guard declares what it changes
//!         *library.lent += 1;
//!     }
//! })?;
//!
//! let view = library.read(); // plain references, as the last transaction has left things
//! assert!(matches!(view.books["Free Transactions"].place, Place::Lent { to: 7 }));
//! # drop(view);
//!
//! // An error, a panic, a full disk or log: as if nothing had happened.
//! let refused = library.transact(|mut library| {
//!     library.fields().books.clear();
//!     Err::<(), Box<dyn std::error::Error>>("on second thoughts".into())
//! });
//! assert!(refused.is_err() && library.read().books.len() == 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`typed`] has pointers ([`PBox`], [`PRc`]) and collections ([`PVec`], [`PHashMap`], [`PBTreeMap`],
//! [`PSlotMap`], ...); [`map()`] opens a store that is simply a map; [`Objects::migrate_fields`] and
//! [`Objects::migrate`] bring objects to new types; `caliburn show`, `export` and `leaks` look at them without their
//! program. Commits are as durable as the store can be; [`transact_in`](Objects::transact_in) takes another
//! [`Class`], and a [`Ticket`] waits later:
//!
//! ```
//! # use caliburn::prelude::*;
//! # let dir = tempfile::tempdir()?;
//! # let counter = Objects::<u64>::create(dir.path().join("counter"))?;
//! let mut tickets = Vec::new();
//! for _ in 0..100 {
//!     let ((), ticket) = counter.transact_async(|mut counter| {
//!         *counter += 1;
//!         Ok::<(), caliburn::Error>(())
//!     })?;
//!     tickets.push(ticket); // a future, too
//! }
//! for ticket in tickets {
//!     ticket.wait()?;
//! }
//! counter.transact_in(Class::Process, |mut counter| { // survives the process at once, the rest in 100 ms
//!     *counter += 1;
//!     Ok::<(), caliburn::Error>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Snapshot`] shows everything as it was at one moment, for as long as it is kept, and keeps nobody waiting:
//!
//! ```
//! # use caliburn::prelude::*;
//! # let dir = tempfile::tempdir()?;
//! # let prices = Objects::<PVec<u64>>::create(dir.path().join("prices"))?;
//! prices.update(|mut prices| prices.extend([10, 20, 30]))?;
//! let before = prices.snapshot()?;
//! let report = std::thread::spawn(move || before.iter().sum::<u64>()); // plain references, on any thread
//! prices.update(|mut prices| prices.clear())?;
//! assert_eq!(report.join().unwrap(), 60);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Below: segments and ranges
//!
//! A [`Store`] is a directory. A [`Segment`] is named storage in it; a [`Region`] is a part of a segment in
//! memory. A [`Transaction`] declares what it changes, changes it, and commits in a [`Class`]:
//!
//! ```
//! use caliburn::{Class, Mode, Store};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("bank");
//! let store = Store::options().create(true).open(&path)?;
//! let accounts = store.segment_or_create("accounts", 1 << 20)?.map_all()?;
//!
//! let mut tx = store.begin(Mode::Restore)?;
//! let balance: u64 = accounts.load(64);
//! tx.store(&accounts, 64, &(balance + 100))?; // declares eight bytes, then stores them
//! tx.store(&accounts, 128, &balance)?;
//! tx.commit(Class::Power)?;                   // survives a power cut when it returns
//!
//! let mut tx = store.begin(Mode::Restore)?;
//! tx.store(&accounts, 64, &0u64)?;
//! tx.abort();                                 // as if nothing had happened
//! assert_eq!(accounts.load::<u64>(64), 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Pointers.** [`Segment::load`] maps a segment at the same address each time, so native pointers inside
//! it stay valid; [`Region::as_ptr`] and [`Transaction::set_range`] are what `unsafe` code needs to work
//! with structures in place:
//!
//! ```
//! use caliburn::{Class, Mode, Store};
//!
//! #[repr(C)]
//! struct Counter {
//!     hits: u64,
//!     misses: u64,
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("counters");
//! let store = Store::options().create(true).open(&path)?;
//! let region = store.segment_or_create("counter", 1 << 16)?.load()?;
//! let counter = region.as_ptr().cast::<Counter>();
//!
//! let mut tx = store.begin(Mode::NoRestore)?;
//! tx.set_range(&region, 0..size_of::<Counter>())?;
//! // SAFETY: the range is declared, zeros are a valid Counter, and no other thread uses it.
//! unsafe { (*counter).hits += 1 };
//! tx.commit(Class::Process)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Many at once.** Any number of threads and transactions may be at work. Atomicity and permanence are the
//! engine's; keeping transactions from stepping on each other's bytes is the program's (RVM's separation
//! of concerns). [`Transaction::commit_async`] returns a [`Ticket`] in place of waiting for the disk.
//!
//! **Deciding later.** [`Transaction::prepare`] makes a transaction durable but undecided, for coordinators.
//!
//! **Looking at a store.** [`check()`] verifies it, [`info()`] describes it, [`History`] searches its log.
//!
//! # What the compiler refuses
//!
//! A transaction is spent by its end: there is no double commit and no commit after abort.
//!
//! ```compile_fail,E0382
//! # fn f(tx: caliburn::Transaction<'_>) {
//! tx.commit(caliburn::Class::Process);
//! tx.commit(caliburn::Class::Process);
//! # }
//! ```
//! ```compile_fail,E0382
//! # fn f(tx: caliburn::Transaction<'_>) {
//! tx.abort();
//! tx.commit(caliburn::Class::Process);
//! # }
//! ```
//!
//! A region cannot be used after it was unmapped, nor unmapped under a transaction that changes it.
//!
//! ```compile_fail,E0382
//! # fn f(region: caliburn::Region) {
//! region.unmap();
//! region.load::<u64>(0);
//! # }
//! ```
//! ```compile_fail,E0505
//! # fn f(store: &caliburn::Store, region: caliburn::Region) {
//! let mut tx = store.begin(caliburn::Mode::Restore).unwrap();
//! tx.set_range(&region, 0..8);
//! region.unmap();
//! tx.commit(caliburn::Class::Process);
//! # }
//! ```

pub use caliburn_engine::*;
/// Objects that are allocated and freed in transactions.
pub use caliburn_heap as heap;
/// Typed objects: transactions as scopes, guards, pointers, collections.
pub use caliburn_typed as typed;
pub use caliburn_typed::{
    Error, Map, Mut, Objects, Owned, PArc, PBTreeMap, PBTreeSet, PBox, PHashMap, PHashSet, PLog, PRc,
    PSlotMap, PString, PVec, PVecDeque, PWeak, Recoverable, SlotKey, Snapshot, SortedMap, Tx, View, Writer,
    back_out, forget_old, map, sorted_map,
};

/// What most programs use of typed objects.
pub mod prelude {
    pub use crate::{
        Class, Mut, Objects, PBTreeMap, PBTreeSet, PBox, PHashMap, PHashSet, PLog, PRc, PSlotMap, PString,
        PVec, PVecDeque, Recoverable, SlotKey, Store,
    };
}

/// The examples of the README, run as tests.
#[doc = include_str!("../../../README.md")]
#[cfg(doctest)]
pub struct Readme;

/// The examples of the guide to typed objects, run as tests.
#[doc = include_str!("../../../docs/typed.md")]
#[cfg(doctest)]
pub struct Guide;
