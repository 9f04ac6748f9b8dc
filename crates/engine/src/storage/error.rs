//! What can go wrong, one enum per operation. Every message says what, where, and what to do.

use crate::storage::class::Class;
pub use crate::storage::inherited::{Inherited, SavepointError};
use caliburn_log::format::Defect;
use caliburn_log::images::ImagesError;
use caliburn_log::log::LogError;
use caliburn_log::media_error::MediaError;
use caliburn_log::scan::Damage;
use caliburn_log::staged_tail::StageError;
use caliburn_log::uncommitted::UndoError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The store has failed: a write or a force went wrong, and nothing after it can be trusted. Every later
/// operation reports the same failure. What was acknowledged is in the log; reopen the store to recover.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the store has failed and takes no more changes; close it, mend the cause and reopen it: {cause}")]
pub struct Failure {
    /// The first thing that went wrong.
    #[source]
    pub cause: Arc<MediaError>,
}

/// Why a store could not be created, opened or checked.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An operation on the directory or one of its files failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Reading, writing or forcing a medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// Another process, or another place in this one, has the store open.
    #[error("store {} is in use by {holder}: one process at a time opens a store", path.display())]
    InUse {
        /// The store.
        path: PathBuf,
        /// Who has it.
        holder: String,
    },
    /// Its files are not those that were last in use, and were not closed: they were copied, or restored from a
    /// copy, while a program changed them. They may be of different moments.
    #[error(
        "store {} was in use when it was copied, or was restored from such a copy: commits may be missing or torn. Copy it again when it is closed; to go on with what there is, open it with Options::copied, by which it is verified first",
        path.display()
    )]
    Copied {
        /// The store.
        path: PathBuf,
    },
    /// The program ended it: see [`Options::progress`](crate::Options::progress). The next opening begins anew.
    #[error("store {}: interrupted by the program; nothing is lost, and the next opening begins anew", path.display())]
    Interrupted {
        /// The store.
        path: PathBuf,
    },
    /// Its log cannot go on in the replica that the options name.
    #[error("store {}: {why}", path.display())]
    Replica {
        /// The store.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// It has another recovery policy than the one that was asked for.
    #[error("store {} has the recovery policy {found}, and {wanted} was asked for: a store keeps the one that it was made with", path.display())]
    OtherPolicy {
        /// The store.
        path: PathBuf,
        /// What was asked for.
        wanted: &'static str,
        /// What it has.
        found: &'static str,
    },
    /// The store has failed, or failed while it was changed.
    #[error("store {}: {failure}", path.display())]
    Failed {
        /// The store.
        path: PathBuf,
        /// How.
        failure: Failure,
    },
    /// What was asked for is not to be had of a store with this recovery policy.
    #[error("store {}: {why}", path.display())]
    Policy {
        /// The store.
        path: PathBuf,
        /// What, and what to do instead.
        why: &'static str,
    },
    /// Its media cannot give the class that was required.
    #[error(
        "store {}: class {wanted:?} was required, and what is in {} survives class {reach:?}: the undo policy needs a file system mounted with -o dax on persistent memory for more, the redo policy one that is not in memory",
        path.display(),
        weakest.display()
    )]
    Class {
        /// The store.
        path: PathBuf,
        /// The file that survives least.
        weakest: PathBuf,
        /// What was required.
        wanted: Class,
        /// The most that can be had.
        reach: Class,
    },
    /// There is no store in that directory.
    #[error("{} is not a store: it has no file named \"catalog\" (create one with `caliburn create`, or Options::create)", path.display())]
    NotAStore {
        /// The directory.
        path: PathBuf,
    },
    /// A store is already there.
    #[error("{} already holds a store or other files: choose another directory", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// An option has a value that cannot work.
    #[error("option {name} = {value}: {why}")]
    Option {
        /// The option.
        name: &'static str,
        /// Its value.
        value: u64,
        /// What is wrong and which values work.
        why: String,
    },
    /// The catalog is unusable.
    #[error("catalog {}, offset {offset}: {defect}", path.display())]
    Catalog {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        defect: Defect,
    },
    /// The log is unusable.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The undo logs are unusable.
    #[error(transparent)]
    Undo(#[from] UndoError),
    /// The log of before-images is unusable.
    #[error(transparent)]
    Images(#[from] ImagesError),
    /// The stage is unusable.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// Records that were forced are missing from the log.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// A segment is unusable.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// A record of the log, or an old value of an undo log, names bytes that no segment has.
    #[error("{what} {}, offset {offset}: {text}", path.display())]
    Stray {
        /// Log or undo logs.
        what: &'static str,
        /// The log.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What it names.
        text: String,
    },
}

impl SegmentError {
    /// Whether it could not be looked at, whatever it holds.
    pub(crate) fn is_permission(&self) -> bool {
        matches!(self, SegmentError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl OpenError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
        let path = path.to_owned();
        move |source| OpenError::Io { action, path, source }
    }
}

/// Why a segment could not be created, found, grown or read.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The store is the parent process's.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// There is a segment of that name.
    #[error("the store already has a segment named {name:?}, or that file under this name")]
    Exists {
        /// The name.
        name: String,
    },
    /// There is no segment of that name.
    #[error("the store has no segment named {name:?}; `caliburn info` lists those it has")]
    Unknown {
        /// The name.
        name: String,
    },
    /// The name cannot be used.
    #[error(
        "a segment's name is 1 to 255 bytes of letters, digits, '.', '_' and '-', not beginning with '.': {name:?}"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// It is used, and so cannot be moved.
    #[error("segment {name:?} cannot be moved: {why}")]
    InUse {
        /// The segment.
        name: String,
        /// By what.
        why: &'static str,
    },
    /// The length cannot be used.
    #[error("segment {name:?}: {len} bytes: {why}")]
    Length {
        /// The segment.
        name: String,
        /// The length asked for.
        len: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// The medium is not this segment.
    #[error("segment {}, offset {offset}: {defect}", path.display())]
    Bad {
        /// The file or device.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        defect: Defect,
    },
    /// It survives less than commits of the store.
    #[error(
        "segment {}: commits of this store survive class {store:?}, and what this file holds class {segment:?}: put it where the others are",
        path.display()
    )]
    Weaker {
        /// The file.
        path: PathBuf,
        /// What the store's commits survive.
        store: Class,
        /// What it does.
        segment: Class,
    },
    /// A file that is nothing but data cannot be a segment of a store with the undo policy.
    #[error(
        "{}: a file is taken over as it is by a store with the redo or the shadow policy; create a segment in place of it",
        path.display()
    )]
    Undo {
        /// The file.
        path: PathBuf,
    },
    /// A file could not be opened or made.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Reading, writing or forcing failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The store has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The store was opened read-only.
    #[error("the store was opened read-only")]
    ReadOnly,
}

/// Why a region could not be mapped, grown or unmapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Start, end or address is not a multiple of the page size.
    #[error(
        "segment {segment:?}, bytes {start}..{end}: regions are whole pages of {page} bytes, and at least one"
    )]
    Alignment {
        /// The segment.
        segment: String,
        /// First byte.
        start: u64,
        /// End.
        end: u64,
        /// Page size.
        page: usize,
    },
    /// The region lies outside the segment.
    #[error("segment {segment:?}, bytes {start}..{end}: the segment has {len} bytes; grow it first")]
    OutOfBounds {
        /// The segment.
        segment: String,
        /// First byte.
        start: u64,
        /// End.
        end: u64,
        /// Bytes of the segment.
        len: u64,
    },
    /// Part of it is mapped already.
    #[error(
        "segment {segment:?}, bytes {start}..{end}: bytes {mapped_start}..{mapped_end} are mapped already; each part of a segment is mapped once"
    )]
    Mapped {
        /// The segment.
        segment: String,
        /// First byte.
        start: u64,
        /// End.
        end: u64,
        /// First byte of the region in the way.
        mapped_start: u64,
        /// Its end.
        mapped_end: u64,
    },
    /// The store was closed.
    #[error("the store is closed: its segments can no longer be mapped")]
    Closed,
    /// The address range is in use.
    #[error(
        "segment {segment:?}: {len} bytes at address {address:#x} are not free in this process; nothing was mapped or moved"
    )]
    AddressTaken {
        /// The segment.
        segment: String,
        /// The address.
        address: usize,
        /// Bytes wanted.
        len: usize,
    },
    /// Memory that does not show its segment cannot be written to it page by page.
    #[error(
        "segment {segment:?}: a region is mapped unread in a store opened with Options::declared_only, redo policy"
    )]
    Unread {
        /// The segment.
        segment: String,
    },
    /// A view takes memory that is the segment, and several transactions.
    #[error(
        "segment {segment:?}: views take a store with Policy::Undo and Tracking::Declared, opened for writing"
    )]
    View {
        /// The segment.
        segment: String,
    },
    /// With the undo policy a region's memory is the segment's, and cannot be left to the program.
    #[error("segment {segment:?}: with the undo policy the memory is the segment's own: unmap the region")]
    Shared {
        /// The segment.
        segment: String,
    },
    /// The region cannot become that long.
    #[error(
        "segment {segment:?}: the region has address space for {reserved} bytes and {wanted} were asked for; map it anew with Options::reserve_bytes or unmap and map again"
    )]
    Reserved {
        /// The segment.
        segment: String,
        /// Bytes reserved.
        reserved: usize,
        /// Bytes wanted.
        wanted: u64,
    },
    /// Uncommitted transactions have declared ranges in the region.
    #[error(
        "segment {segment:?}: {transactions} uncommitted transaction(s) have ranges in the region; commit or abort them first"
    )]
    Uncommitted {
        /// The segment.
        segment: String,
        /// How many.
        transactions: usize,
    },
    /// The system refused the mapping.
    #[error("map {len} bytes of segment {segment:?}: {source}")]
    Io {
        /// The segment.
        segment: String,
        /// Bytes wanted.
        len: u64,
        /// Why not.
        source: io::Error,
    },
    /// The segment's address could not be remembered, or the segment could not be read.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// The store has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Why a range could not be declared. Nothing was declared and the transaction goes on.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    /// The store is the parent process's.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The range leaves the region.
    #[error(
        "range of {len} bytes at {start} of segment {segment:?}: the region there holds bytes {region_start}..{region_end}"
    )]
    OutOfBounds {
        /// The segment.
        segment: String,
        /// First byte, as an offset in the segment.
        start: u64,
        /// Bytes.
        len: u64,
        /// First byte of the region.
        region_start: u64,
        /// Its end.
        region_end: u64,
    },
    /// No region is mapped at the address.
    #[error("range of {len} bytes at address {address:#x}: no single region of this store is mapped there")]
    NotMapped {
        /// The address.
        address: usize,
        /// Bytes.
        len: usize,
    },
    /// The system did not let the region's protection be lifted: the range must not be stored to.
    #[error("segment {segment:?}: its protection (Options::guard) could not be lifted: {source}")]
    Guard {
        /// The segment.
        segment: String,
        /// Why not.
        source: std::io::Error,
    },
    /// Pages that wait in memory ([`BeforeImages`](crate::BeforeImages)) could not be made the segment, as they must
    /// when memory is short and when they are declared.
    #[error("segment {segment:?}: pages that were stored to could not be mapped from their file: {source}")]
    Steal {
        /// The segment.
        segment: String,
        /// Why not.
        source: std::io::Error,
    },
    /// What a transaction has changed is looked for when it commits
    /// ([`Tracking::Scan`](crate::Tracking::Scan)), and cannot be known of this region any more.
    #[error(
        "segment {segment:?}: something else was mapped over its region, so that nobody knows what was changed: unmap the region, and map it again"
    )]
    Replaced {
        /// The segment.
        segment: String,
    },
    /// The undo log, or that of before-images, could not be made longer.
    #[error("the transaction's old values could not be kept: {0}")]
    Undo(#[from] MediaError),
    /// There is no memory for old values.
    #[error("{bytes} bytes of memory for the transaction's old values: {source}")]
    Memory {
        /// Bytes wanted.
        bytes: u64,
        /// Why not.
        source: std::io::Error,
    },
    /// The transaction would not fit the log.
    #[error(
        "the transaction's changes need a log of at least {needed} bytes and this one has {capacity}: commit in smaller pieces, or make a store with a larger log (Options::log_bytes)"
    )]
    LogTooSmall {
        /// Bytes that the log must have.
        needed: u64,
        /// Bytes it has.
        capacity: u64,
    },
    /// The transaction's pages and old values would not fit the memory budget.
    #[error(
        "the transaction's pages and old values need {needed} bytes of memory and the budget is {budget}: commit in smaller pieces, or raise Options::memory_budget"
    )]
    MemoryTooSmall {
        /// Bytes that it needs.
        needed: u64,
        /// The budget.
        budget: u64,
    },
}

/// Why a branch could not be begun.
#[derive(Debug, thiserror::Error)]
pub enum BranchError {
    /// The store is the parent process's.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The transaction keeps no old values.
    #[error(
        "the transaction has no branches: it keeps no old values. With the redo policy begin it in Mode::Restore; with the shadow policy no transaction has branches"
    )]
    NoOldValues,
    /// The undo log could not be made longer.
    #[error("the branch's old values could not be kept: {0}")]
    Undo(#[from] MediaError),
}

/// Why a commit, flush or truncation did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The store is the parent process's.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The store has failed. Whether the transaction is durable is found out by reopening; it is never
    /// durable in part.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A global identifier is too long or already in use.
    #[error("global identifier of {len} bytes: {why}")]
    GlobalId {
        /// Its length.
        len: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// The undecided transactions would take more than a quarter of the log.
    #[error(
        "undecided transactions need a log of at least {needed} bytes and this one has {capacity}: decide some, or make a store with a larger log (Options::log_bytes)"
    )]
    LogTooSmall {
        /// Bytes that the log must have.
        needed: u64,
        /// Bytes it has.
        capacity: u64,
    },
    /// The log could not be made larger for the transaction, which was aborted.
    #[error(
        "the log could not be made larger, to {needed} bytes, for what the transaction changes: {source}"
    )]
    Log {
        /// Bytes that the log must have.
        needed: u64,
        /// Why not.
        source: Box<OpenError>,
    },
    /// The store's medium cannot give what was asked for. The transaction was aborted.
    #[error(
        "a commit in class {wanted:?} was asked for, and what this store's memory survives is class {reach:?}: make a store with the redo policy, or commit in that class"
    )]
    Class {
        /// What was asked for.
        wanted: Class,
        /// The most that the store can give.
        reach: Class,
    },
    /// The store was opened read-only.
    #[error("the store was opened read-only: it takes no changes")]
    ReadOnly,
    /// A store that tells changes apart by pages has no undecided transactions. This one was aborted.
    #[error(
        "a store with the shadow policy, or that finds changes by page faults, cannot prepare a transaction: use another policy, and declare changes"
    )]
    NeverUndecided,
    /// No prepared transaction has that identifier.
    #[error("no prepared transaction has the global identifier {0:?}; Store::prepared lists them")]
    NotPrepared(String),
    /// A prepared transaction's range is not within its segment.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// A prepared transaction's changes could not be brought to memory; or what a page held that was stored to
    /// could not be kept ([`Tracking::Fault`](crate::Tracking::Fault)), and the transaction was aborted.
    #[error(transparent)]
    Range(#[from] RangeError),
}
