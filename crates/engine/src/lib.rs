//! Caliburn's engine: recoverable memory with declared ranges, and the recovery policies `redo`, after RVM
//! (Satyanarayanan et al., SOSP 1993), and `undo`, after Vista (Lowell and Chen, SOSP 1997).
//!
//! | folder | what is in it |
//! |---|---|
//! | `api` | what a program holds: stores, options, segments, regions, transactions |
//! | `inspect` | looking at a store |
//! | `policy/redo` | stage, log, truncation; undecided transactions |
//! | `policy/undo` | runs of old values in memory that survives |
//! | `tracking` | stores that no transaction declared: prevented, found |
//! | `write_set` | what each open transaction has declared, with the old bytes |
//! | `storage` | the catalog, segments, mapped regions |

mod api;
mod inspect;
mod policy;
mod storage;
mod tracking;
mod write_set;

pub use api::options;
pub use api::options::Options;
pub use api::store::{BeginError, Store};
pub use api::ticket::Ticket;
pub use api::transaction::{Branch, Mode, OldValue, Savepoint, Transaction, TransactionId};
pub use caliburn_log::SegmentId;
pub use caliburn_log::format::Defect;
pub use caliburn_log::image::Damage;
pub use caliburn_log::log::{LogError, MediaError};
pub use caliburn_log::staged_tail::StageError;
pub use caliburn_log::uncommitted::UndoError;
pub use caliburn_os::medium;
pub use inspect::check::{Problem, Report, check};
pub use inspect::info::{Info, LogInfo, SegmentInfo, info};
pub use inspect::query::{Query, RegionQuery, Statistics};
pub use policy::redo::history::{Change, Event, Filter, History};
pub use policy::redo::prepared::Prepared;
pub use storage::class::Class;
pub use storage::error::{
    BranchError, CloseError, CommitError, Failure, MapError, OpenError, RangeError, SavepointError,
    SegmentError,
};
pub use storage::kind::Policy;
pub use storage::region::{Region, UnmapError};
pub use storage::segment::Segment;
pub use storage::tuning::Tuning;
pub use tracking::guard::Guard;
pub use tracking::verify::Undeclared;
pub use zerocopy;
