//! Caliburn's engine: recoverable memory with declared ranges, and the recovery policies `redo`, after RVM
//! (Satyanarayanan et al., SOSP 1993), and `undo`, after Vista (Lowell and Chen, SOSP 1997).
//!
//! | module | noun |
//! |---|---|
//! | [`options`], `store`, `catalog` | a store: its directory, locks, options, life |
//! | `recovery` | opening: what a crash left is found and served |
//! | `segment`, `sums` | named backing storage, and the checksums beside it |
//! | `region`, `mapping` | parts of segments in memory |
//! | `transaction`, `slot` | groups of changes, and what each has announced |
//! | `flush` | from the stage to the log; group commit |
//! | `pages`, `truncation`, `patches` | from the log to the segments |
//! | `undo` | the undo policy, in place of the two above |
//! | `prepared` | undecided transactions |
//! | `guard`, `verify` | stores that no transaction declared: prevented, found |
//! | `check`, `history`, `info`, `query` | looking at a store |

mod catalog;
mod check;
mod cohort;
mod error;
mod flush;
mod guard;
mod history;
mod info;
mod mapping;
pub mod options;
mod pages;
mod patches;
mod policy;
mod prepared;
mod query;
mod recovery;
mod region;
mod region_table;
mod segment;
mod store;
mod sums;
mod ticket;
mod transaction;
mod truncation;
mod verify;
mod write_set;

pub use caliburn_log::SegmentId;
pub use caliburn_log::format::Defect;
pub use caliburn_log::image::Damage;
pub use caliburn_log::leftovers::StageError;
pub use caliburn_log::log::{LogError, MediaError};
pub use caliburn_log::uncommitted::UndoError;
pub use caliburn_os::medium;
pub use check::{Problem, Report, check};
pub use error::{
    BranchError, CloseError, CommitError, Failure, MapError, OpenError, RangeError, SavepointError,
    SegmentError,
};
pub use guard::Guard;
pub use history::{Change, Event, Filter, History};
pub use info::{Info, LogInfo, SegmentInfo, info};
pub use options::{Options, Policy, Tuning};
pub use prepared::Prepared;
pub use query::{Query, RegionQuery, Statistics};
pub use region::{Region, UnmapError};
pub use segment::Segment;
pub use store::{BeginError, Store};
pub use ticket::Ticket;
pub use transaction::{Branch, Class, Mode, OldValue, Savepoint, Transaction, TransactionId};
pub use verify::Undeclared;
pub use zerocopy;
