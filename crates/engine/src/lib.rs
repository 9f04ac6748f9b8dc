//! Caliburn's engine: recoverable memory with declared ranges, and the recovery policies `redo`, after RVM
//! (Satyanarayanan et al., SOSP 1993), and `undo`, after Vista (Lowell and Chen, SOSP 1997).
//!
//! | folder | what is in it | uses |
//! |---|---|---|
//! | `api` | what a program holds: stores, options, segments, regions, transactions | all below |
//! | `inspect` | looking at a store that is not open | `policy`, `storage` |
//! | `policy/table.rs` | the policies that there are | each |
//! | `policy/redo` | stage, log, truncation | the seam and what is below it |
//! | `policy/undo` | runs of old values in memory that survives | the same |
//! | `policy` | the seam: what a store asks of its policy | `write_set`, `storage` |
//! | `tracking` | stores that no transaction declared: prevented, found | `write_set`, `storage` |
//! | `write_set` | what each open transaction has declared, with the old bytes | `storage` |
//! | `storage` | the catalog, segments, mapped regions | |
//!
//! `cargo xtask tidy` holds them to it.

mod api;
mod inspect;
mod policy;
mod storage;
mod tracking;
mod write_set;

pub use api::compact::Compacted;
pub use api::image::Image;
pub use api::metrics::{Metric, Metrics, Told, Value, watch};
pub use api::options;
pub use api::options::Options;
pub use api::query::RegionQuery;
pub use api::region::{Region, Sequential, UnmapError};
pub use api::segment::Segment;
pub use api::store::{BeginError, Store};
pub use api::ticket::Ticket;
pub use api::transaction::{Branch, ByAddress, Mode, OldValue, Savepoint, Transaction, TransactionId};
pub use api::view::{Access, Refusal, View, Viewed};
pub use caliburn_log::SegmentId;
pub use caliburn_log::dump::StreamError;
pub use caliburn_log::format::Defect;
pub use caliburn_log::images::ImagesError;
pub use caliburn_log::log::LogError;
pub use caliburn_log::media_error::MediaError;
pub use caliburn_log::scan::Damage;
pub use caliburn_log::staged_tail::StageError;
pub use caliburn_log::uncommitted::UndoError;
/// The seam to storage, and what the running system puts there.
pub mod medium {
    pub use caliburn_os::files::Files;
    pub use caliburn_os::host::{Boot, Clock};
    pub use caliburn_os::medium::*;
}
pub use inspect::check::check;
pub use inspect::info::{Info, SegmentInfo, info};
pub use policy::backup::dump::{DumpOptions, Dumped};
pub use policy::backup::restore::{RestoreOptions, Restored, Until};
pub use policy::backup::{BackupError, Mended};
pub use policy::kind::Policy;
pub use policy::query::{Archived, LogInfo, Prepared, Query, Statistics};
pub use policy::redo::backup::archive::{ArchiveOptions, ArchivePart, Archiver, archive_parts};
pub use policy::redo::backup::past::{Changed, Past};
pub use policy::redo::history::{Change, Event, Filter, History};
pub use tracking::Tracking;

pub use storage::ahead::{PrefetchEnd, Prefetched, Prefetching};
pub use storage::class::Class;
pub use storage::close_error::CloseError;
pub use storage::error::{
    BranchError, CommitError, Failure, Inherited, MapError, OpenError, RangeError, SavepointError,
    SegmentError,
};
pub use storage::pool::PoolCounts;
pub use storage::progress::{Phase, Progress};
pub use storage::replica::{Replica, ReplicaError, ReplicaPart};
pub use storage::report::{OpenReport, Problem, Report};
pub use storage::settings::{BeforeImages, BufferPool, Extent, Prefetch, Replacement};
pub use storage::tuning::Tuning;
pub use tracking::guard::Guard;
pub use tracking::verify::Undeclared;
pub use zerocopy;
