//! What can be told of an open store: its state at one moment, counters, undecided transactions.

use caliburn_log::SegmentId;
use std::ops::Range;
use std::path::PathBuf;

/// The state of a store at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Query {
    /// Transactions begun and neither committed nor aborted; prepared ones among them.
    pub uncommitted: usize,
    /// Prepared transactions that are undecided.
    pub prepared: usize,
    /// Bytes of the log's ring.
    pub log_bytes: u64,
    /// Media that have the log: two if it is [duplexed](crate::Options::duplex_log) and none was lost.
    pub log_copies: u64,
    /// Bytes in use.
    pub log_used: u64,
    /// Bytes before those, which are kept until they are archived, or the log's replica has them.
    pub log_kept: u64,
    /// Bytes that are not forced yet.
    pub log_unforced: u64,
    /// Bytes that are forced and that the log's replica has not got.
    pub log_unreplicated: u64,
    /// Pages with committed changes that their segment lacks.
    pub dirty_pages: u64,
    /// Pages of which the process has a private copy.
    pub private_pages: u64,
    /// Bytes of pages that lie in files, since a transaction has outgrown the memory budget.
    pub overflow_bytes: u64,
    /// Bytes per page.
    pub page_bytes: u64,
    /// Bytes of private pages that may be kept.
    pub memory_budget: u64,
    /// Whether the store has failed.
    pub failed: bool,
}

/// Counters since the store was opened. Bytes saved are log bytes, range headers included, except
/// `duplicate_bytes` and `declared_bytes`, which are bytes of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Transactions committed, and aborted.
    pub committed: u64,
    /// Transactions aborted.
    pub aborted: u64,
    /// Calls of `set_range`.
    pub ranges: u64,
    /// Bytes declared by them.
    pub declared_bytes: u64,
    /// Bytes declared again within a transaction: the intra-transaction optimisation kept them out.
    pub duplicate_bytes: u64,
    /// Ranges joined to adjacent or overlapping ones.
    pub joined_ranges: u64,
    /// Bytes of ranges handed to the log by commits, before the inter-transaction optimisation.
    pub committed_log_bytes: u64,
    /// Transactions merged with others into one record.
    pub merged_transactions: u64,
    /// Log bytes dropped because a later lazy commit superseded them.
    pub merged_bytes: u64,
    /// Records written.
    pub records: u64,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// Movements from the stage to the log.
    pub flushes: u64,
    /// Forces of the log for commits.
    pub forces: u64,
    /// Parts of the log that its replica has got.
    pub replicated_parts: u64,
    /// Bytes of log in them.
    pub replicated_bytes: u64,
    /// Incremental truncations that wrote something.
    pub truncations: u64,
    /// Epoch truncations.
    pub epochs: u64,
    /// Pages written to segments.
    pub pages_written: u64,
    /// Private pages given back to the system.
    pub pages_dropped: u64,
    /// Times that an uncommitted transaction kept a page from being written.
    pub pages_blocked: u64,
}

/// An undecided transaction, as [`Store::prepared`](crate::Store::prepared) lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The identifier that it was prepared under.
    pub global_id: Vec<u8>,
    /// The bytes it changes: segment and offsets. To be kept from other transactions until it is decided.
    pub ranges: Vec<(SegmentId, Range<u64>)>,
    /// When it was prepared, nanoseconds since 1970.
    pub time: u64,
    /// Whether it was found by recovery: the memory then shows the old values.
    pub recovered: bool,
}

/// A store's log, as its status page describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogInfo {
    /// File or device.
    pub path: PathBuf,
    /// The second one, if it is [duplexed](crate::Options::duplex_log).
    pub second: Option<PathBuf>,
    /// Bytes of the ring.
    pub capacity: u64,
    /// Oldest record needed.
    pub head: u64,
    /// The log was forced up to here when the status was last written.
    pub forced: u64,
    /// It goes at least to here, forced or not; what is in the stage is not counted.
    pub appended: u64,
    /// Commits that wait in the stage and are not in the log yet: the next opening recovers them. While the store
    /// is in use this is the number of one moment.
    pub staged: u64,
    /// Openings for writing so far.
    pub incarnation: u32,
    /// How far it is archived, if it is kept until it is.
    pub archived: Option<Archived>,
}

/// How far a log is archived: it is kept from there on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Archived {
    /// All before this LSN is in the archive.
    pub lsn: u64,
    /// When archiving began, nanoseconds since 1970.
    pub since: u64,
    /// When it came to that LSN.
    pub moved: u64,
}
