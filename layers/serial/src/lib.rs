//! Serializable transactions, for those who want it simple: values live in cells, which are reached through the
//! transaction alone, and so what it reads and changes is locked (Camelot, section 3.1.2; two-phase locking,
//! Eswaran and others, 1976). Who is in a deadlock is run again.
//!
//! ```
//! # use caliburn_engine::Store;
//! # let dir = tempfile::tempdir()?;
//! # let store = Store::options().create(true).open(dir.path().join("s"))?;
//! use caliburn_serial::{Cells, Error, serializable};
//!
//! let bank = Cells::open(&store, "bank")?;
//! let (ada, ben) = serializable(&bank, |tx| Ok::<_, Error>((tx.insert(100u64)?, tx.insert(0u64)?)))?;
//!
//! // From any thread, as if no other were there.
//! serializable(&bank, |tx| {
//!     if tx.read(&ada)? < 30 {
//!         return Err(tx.abort("too little is there"));
//!     }
//!     *tx.write(&ada)? -= 30;
//!     *tx.write(&ben)? += 30;
//!     Ok(())
//! })?;
//!
//! let sum = bank.read(|reader| Ok::<_, Error>(reader.read(&ada)? + reader.read(&ben)?))?;
//! assert_eq!(sum, 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | noun |
//! |---|---|
//! | `cell` | values in a heap, and pointers to them |
//! | `cells` | a heap of them, with their locks |
//! | `gate` | what keeps one from being run again for ever |
//! | `transaction` | what reads and changes them, and locks them for that |
//! | `top` | transactions, tried again; readers |
//! | `error` | why something could not be done |
//!
//! Invariant: a cell's bytes are read under a lock of its place, and changed under one that is exclusive; the
//! locks are given up when the transaction is as durable as was asked, or undone.
#![forbid(unsafe_code)]

mod cell;
mod cells;
mod error;
mod gate;
mod top;
mod transaction;

pub use cell::{Ptr, Value};
pub use cells::{Cells, Statistics};
pub use error::Error;
pub use top::serializable;
pub use transaction::{Reader, Tx, Writing};
pub use zerocopy;
