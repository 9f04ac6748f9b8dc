//! What dumping and restoring have in common whatever a store's policy is: the stream, and the store that is made
//! of one. What a policy adds to that is behind the seam ([`Kind`](super::kind::Kind),
//! [`Recovery`](super::Recovery)).

pub(crate) mod dump;
pub(crate) mod restore;
pub(crate) mod segments;

use crate::storage::error::{Failure, OpenError, SegmentError};
use caliburn_log::dump::StreamError;
use caliburn_log::format::Defect;
use caliburn_log::media_error::MediaError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a store was not dumped, archived or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The store could not be looked at, or made.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The store has failed.
    #[error("store {}: {failure}", path.display())]
    Failed {
        /// The store.
        path: PathBuf,
        /// How.
        failure: Failure,
    },
    /// A medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The stream failed, or is no whole dump.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// An operation on a file or directory failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Nobody has the store open, and it was not closed.
    #[error("store {} was not closed in good order, and nobody has it open: recover it first (`caliburn recover`)", path.display())]
    NotClosed {
        /// The store.
        path: PathBuf,
    },
    /// The store that was restored is damaged.
    #[error("{}, offset {offset}: {text}", path.display())]
    Unsound {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        text: String,
    },
    /// A dump of a store with the undo policy does not hold what is undecided.
    #[error(
        "store {} has {count} undecided transaction(s), which a dump of a store with the undo policy cannot hold: decide them first (`Store::prepared` lists them)",
        path.display()
    )]
    Undecided {
        /// The store.
        path: PathBuf,
        /// How many.
        count: usize,
    },
    /// A store with the undo policy can be dumped only by the program that has it open.
    #[error(
        "store {} is open in another program: with the undo policy that one dumps it (`Store::dump`), or closes it before",
        path.display()
    )]
    UsedElsewhere {
        /// The store.
        path: PathBuf,
    },
    /// There was no moment at which no transaction had changed anything.
    #[error(
        "store {}: in {} s there was no moment at which no transaction had changed anything; shorter transactions help, and fewer that wait for each other",
        path.display(),
        waited.as_secs_f64()
    )]
    NotQuiet {
        /// The store.
        path: PathBuf,
        /// How long it was tried.
        waited: Duration,
    },
    /// The store is being opened, for longer than that takes.
    #[error("store {} is just being opened: try again", path.display())]
    BeingOpened {
        /// The store.
        path: PathBuf,
    },
    /// Somebody else archives its log.
    #[error("store {} is being archived by another archiver: one at a time", path.display())]
    BeingArchived {
        /// The store.
        path: PathBuf,
    },
    /// The log ends before what is archived: the store was brought back from a copy, or its medium lost what it
    /// had said to have.
    #[error(
        "store {}: its log ends at LSN {lsn}, and it is archived up to {archived}: it is not the store any more that was archived. Stop its archive, and begin another one, with another dump",
        path.display()
    )]
    TakenBack {
        /// The store.
        path: PathBuf,
        /// Where its log ends.
        lsn: u64,
        /// Where its archive does.
        archived: u64,
    },
    /// A file was adopted, or an adopted one became longer, when the segments had been read.
    #[error(
        "segment {name:?}: its file was adopted, or became longer, after the dump was made: make another dump"
    )]
    Adopted {
        /// The segment.
        name: String,
    },
    /// The log was overwritten before it was read.
    #[error(
        "log {}: what stood at LSN {lsn} was overwritten before it was read: more is committed than is read in the same time. Make the log larger, or try again when less is committed",
        path.display()
    )]
    Overtaken {
        /// The log.
        path: PathBuf,
        /// Where reading had come to.
        lsn: u64,
    },
    /// What is read is not what its checksums say, and nothing that was committed meanwhile accounts for that.
    #[error(
        "segment {segment:?} in {} is damaged at offset {offset}: it does not match its checksum, so that no dump is made of it. `caliburn restore` makes a sound store from an earlier dump and the archive",
        path.display()
    )]
    Damaged {
        /// The segment.
        segment: String,
        /// Its file.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
    },
    /// The dump that another one was to be laid over is none that the store knows of.
    #[error(
        "no dump can be laid over dump {id} of LSN {lsn}: the store does not know it as one of its last 128. It is of another store, or was made in a past that the store has not had since it was brought back from a copy; or the store has no log. Make a whole dump"
    )]
    Base {
        /// Its identity.
        id: String,
        /// Where it ends.
        lsn: u64,
    },
    /// A dump is to be laid over another one than what was read before it.
    #[error(
        "the dump is laid over dump {base} of LSN {lsn}, which must be read before it: give the whole dump first, then those that are laid over it in their order"
    )]
    NotItsBase {
        /// Identity of the base.
        base: String,
        /// Where that ends.
        lsn: u64,
    },
    /// A part of the log is neither in the dump, nor in the archive, nor in what is left of the store.
    #[error(
        "the log from LSN {from} to {to} is missing: the dump and the archive reach to LSN {from}, and what comes next begins at {to}. Restore up to LSN {from}, or find the missing part"
    )]
    Hole {
        /// Where it begins.
        from: u64,
        /// Where it ends.
        to: u64,
    },
    /// The dump is of a later moment than what is wanted.
    #[error("the dump is of LSN {lsn} (time {time}), which is later than what is wanted: use an earlier one")]
    Later {
        /// When the dump's log ended.
        lsn: u64,
        /// When that was, nanoseconds since 1970.
        time: u64,
    },
    /// What is wanted has not been reached.
    #[error("what there is ends at LSN {lsn}, and LSN {wanted} is wanted")]
    NotReached {
        /// Where the log ends.
        lsn: u64,
        /// What is wanted.
        wanted: u64,
    },
    /// A file of an archive is unusable.
    #[error("archive {}, offset {offset}: {defect}", path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        defect: Defect,
    },
    /// A record names what the store does not have.
    #[error(
        "the record at LSN {lsn} has a range in segment {segment}, which has no such bytes: the log is of another store, or a catalog is missing"
    )]
    Stray {
        /// The record.
        lsn: u64,
        /// The number of the segment.
        segment: u32,
    },
    /// A file, or a record, belongs to another store.
    #[error("{} belongs to another store ({found}), not to the one that was dumped ({expected})", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The store that it is of.
        found: String,
        /// The store that is meant.
        expected: String,
    },
    /// The command that was to archive a file did not say that it has.
    #[error("the command that archives {name} {why}; the log is kept, and it is tried again")]
    Command {
        /// The file's name.
        name: String,
        /// What it did instead.
        why: String,
    },
    /// The dump has segments that are not to be in the store's directory.
    #[error(
        "segment {name:?} was taken over from {}: say in which directory such files are to be made (`--external DIR`)",
        path.display()
    )]
    External {
        /// The segment.
        name: String,
        /// Where it was.
        path: PathBuf,
    },
}

/// A damaged page of a segment, and what became of it: [`Store::mend`](crate::Store::mend).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mended {
    /// The segment.
    pub segment: String,
    /// Where in it.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// Why it is damaged still; none: it is what it was.
    pub why_not: Option<String>,
}

impl BackupError {
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> BackupError {
        let path = path.into();
        move |source| BackupError::Io { action, path, source }
    }
}

impl From<SegmentError> for BackupError {
    fn from(error: SegmentError) -> BackupError {
        BackupError::Store(error.into())
    }
}
