//! Locks for transactions, nested or not (Camelot, sections 3.1.2 and 4.2; Moss): by names of any type, in the
//! usual modes or a program's own; inherited by parents; deadlocks are found, and the youngest child that breaks
//! one is told.
//!
//! ```
//! use caliburn_lock::{Detector, Locks, Standard::*};
//!
//! let detector = Detector::new();
//! let accounts: Locks<u64> = detector.locks();
//! let mut transfer = detector.owner();
//! accounts.lock(&mut transfer, 17, Exclusive)?;
//! let mut child = transfer.child();
//! accounts.lock(&mut child, 17, Exclusive)?; // Only its parent holds it.
//! accounts.lock(&mut child, 21, Exclusive)?;
//! child.commit();
//! assert_eq!(accounts.held(&transfer, &21), Some(Exclusive));
//! assert!(!accounts.try_lock(&mut detector.owner(), 21, Shared)?);
//! transfer.end();
//! assert_eq!(accounts.len(), 0);
//! # Ok::<(), caliburn_lock::LockError>(())
//! ```
//!
//! With nested transactions ([`caliburn_nest`]) an owner follows its family:
//!
//! ```
//! # use caliburn_engine::{Class, Store};
//! # use caliburn_lock::{Detector, Locks, Standard::*};
//! # let dir = tempfile::tempdir().unwrap();
//! # let store = Store::options().create(true).open(dir.path().join("s")).unwrap();
//! # let region = store.create_segment("data", 65_536).unwrap().map_all().unwrap();
//! # let detector = Detector::new();
//! # let accounts: Locks<u64> = detector.locks();
//! use caliburn_nest::{Error, transact_following};
//!
//! transact_following(&store, detector.owner(), Class::Power, |tx| {
//!     tx.nest(|child| {
//!         accounts.lock(child.companion(), 17, Exclusive)?;
//!         child.store(&region, 17 * 8, &100u64)
//!     })
//! })?;
//! # Ok::<(), Error>(())
//! ```
//!
//! | module | noun |
//! |---|---|
//! | `mode` | modes, and which go together |
//! | `node` | a transaction, as far as locks know it |
//! | `queue` | one lock: who holds it and who waits for it |
//! | `deadlock` | circles of those that wait |
//! | `limit` | those who hold others up for too long |
//! | `table` | locks by name |
//! | `ranges` | locks of ranges of bytes |
//! | `owner` | who holds locks, from level to level |
//! | `pages` | pages that are locked when they are touched |
//! | `follow` | owners that follow nested transactions |
//! | `detector` | what all locks stand in |
//! | `commute` | objects whose changes commute, and are put off until the top commits |
//! | `escrow` | counters that are such objects |
//! | `error` | why a lock was not had |
//!
//! Invariant: of two transactions that hold a lock in modes that do not go together, one is an ancestor of the
//! other.
//!
//! Invariant: who waits is in one queue, and in the list of those who wait, until it was given the lock or told
//! why not; whoever lets go of a lock gives it to those who may have it, under the lock's own mutex.
//!
//! Invariant: mutexes are taken in this order: the list of those who wait, a part of a table, what one holds.
#![forbid(unsafe_code)]

#[cfg(feature = "nest")]
mod commute;
mod deadlock;
mod detector;
mod error;
#[cfg(feature = "nest")]
mod escrow;
#[cfg(feature = "nest")]
mod follow;
mod limit;
mod mode;
mod node;
mod owner;
#[cfg(feature = "nest")]
mod pages;
mod queue;
mod ranges;
mod table;

#[cfg(feature = "nest")]
pub use commute::{Commute, Intentions, Latches};
pub use deadlock::HeldUp;
pub use detector::{Canceller, Detector};
pub use error::{Deadlock, LockError, Overlong, OwnerId, Waited};
#[cfg(feature = "nest")]
pub use escrow::{Access, Counters, EscrowError};
pub use mode::{Mode, Standard, WrongModes, check};
pub use owner::Owner;
#[cfg(feature = "nest")]
pub use pages::{PageLocks, Touching};
pub use ranges::RangeLocks;
pub use table::{Locks, Name};
