//! Nested transactions (Camelot, sections 3.1.4 and 3.1.5; Moss). A child commits to its parent, or is undone and
//! nothing else is; what a family has changed is durable when its top commits, and not before.
//!
//! ```
//! # use caliburn_engine::{Class, Store};
//! # let dir = tempfile::tempdir().unwrap();
//! # let store = Store::options().create(true).open(dir.path().join("s")).unwrap();
//! # let region = store.create_segment("data", 65_536).unwrap().map_all().unwrap();
//! use caliburn_nest::{Error, transact};
//!
//! transact(&store, Class::Power, |tx| {
//!     tx.store(&region, 0, &1u64)?;
//!     let booked = tx.nest(|child| {
//!         child.store(&region, 0, &2u64)?;
//!         child.store(&region, 8, &3u64)?;
//!         Err::<(), Error>(child.abort("no seat is left"))
//!     });
//!     assert!(booked.is_err());
//!     // What the child has changed is as it was before, and nothing else is.
//!     assert_eq!((region.load::<u64>(0), region.load::<u64>(8)), (1, 0));
//!     Ok::<_, Error>(())
//! })
//! # .unwrap();
//! ```
//!
//! | module | noun |
//! |---|---|
//! | `transaction` | a transaction of a family: what it does, children one after the other |
//! | `parallel` | children, and threads, side by side |
//! | `family` | what all of a family's transactions share |
//! | `follow` | what goes with a family from level to level, such as its locks |
//! | `hooks` | what a program wants done when one ends |
//! | `clock` | timestamps that agree with the serial order |
//! | `top` | top-level transactions; prepared ones |
//! | `error` | why one did not commit |
//!
//! ```text
//!                    top          a transaction of the store: commits in a failure class
//!                  /  |  \
//!           child  child  child   one after the other: each from a savepoint on
//!           /   \
//!       branch  branch            side by side: each a branch of the transaction, with a run of its own
//!                 |
//!               child
//! ```
//!
//! Invariant: a parent does nothing while a child is open: it is borrowed, or waits.
//! Invariant: a parallel child is adopted before anybody can learn that it committed: what it has declared is then
//! declared by its parent, and may be by another child.
#![forbid(unsafe_code)]

mod clock;
mod error;
mod family;
mod follow;
mod hooks;
mod parallel;
mod top;
mod transaction;

pub use clock::{AHEAD_NS, Ahead, CLOCK_BYTES, Clock, DRIFT_NS, Hybrid, Timestamp};
pub use error::{Error, Reason};
pub use family::{FamilyId, Status, Watch};
pub use follow::Follow;
pub use hooks::Hooks;
pub use parallel::{Child, Crew, Shared, Threads, child};
pub use top::{Prepared, cobegin, cofor, prepare, transact, transact_at, transact_following};
pub use transaction::{Savepoint, Tx, TxId};
