//! Why something could not be done.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why something could not be done with a region or a segment.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The medium failed.
    #[error("cannot {action} {}{}: {source}", path.display(), place(*offset))]
    Medium {
        /// What was to be done.
        action: &'static str,
        /// With which file or device.
        path: PathBuf,
        /// Where, if it is a part of it.
        offset: Option<u64>,
        /// Why not.
        source: Arc<io::Error>,
    },
    /// What is there is not a region, or of another version.
    #[error("{} is not a region that can be used: {why}", path.display())]
    NotARegion {
        /// The file or device.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Both copies of the base segment are damaged.
    #[error(
        "both copies of the base segment of {} are damaged (the first: {first}; the second: {second}): what the segments hold is still there, but not where; restore a dump", path.display()
    )]
    Damaged {
        /// The file or device.
        path: PathBuf,
        /// Of the copy at byte 0.
        first: String,
        /// Of the other.
        second: String,
    },
    /// A size or a name that cannot be.
    #[error("{what} {value}: {why}")]
    Invalid {
        /// Of what.
        what: &'static str,
        /// What was given.
        value: String,
        /// What must hold.
        why: String,
    },
    /// There is no such segment.
    #[error("there is no segment {0:?}; `caliburn-pm list` shows those there are")]
    NoSegment(String),
    /// There is one of that name.
    #[error("there is a segment {0:?} already")]
    Exists(String),
    /// Somebody else uses it.
    #[error("segment {name:?} is attached {how}")]
    Busy {
        /// Which.
        name: String,
        /// By whom, as far as it is known.
        how: String,
    },
    /// The region has too little room.
    #[error("{needed} bytes are needed and {free} are free in the region")]
    Full {
        /// So much is wanted.
        needed: u64,
        /// So much is there.
        free: u64,
    },
    /// The region cannot get so small.
    #[error("segment {name:?} lies up to byte {end}: the region cannot be made smaller than that")]
    Shrink {
        /// Whose memory is the last.
        name: String,
        /// Where it ends.
        end: u64,
    },
    /// Its mode, or its protection, forbids it.
    #[error("segment {name:?} {why}")]
    Permission {
        /// Which.
        name: String,
        /// What forbids it.
        why: String,
    },
    /// Opened, or attached, for reading only.
    #[error("{0} is open for reading only")]
    ReadOnly(String),
    /// A range that is not there.
    #[error("{what} {start} to {end} of segment {name:?}, which has {len}")]
    Range {
        /// Bytes or blocks.
        what: &'static str,
        /// Which.
        name: String,
        /// From.
        start: u64,
        /// To.
        end: u64,
        /// How many there are.
        len: u64,
    },
    /// A block is not what was written. Writing it anew mends it.
    #[error(
        "block {block} of segment {name:?} is damaged: what is there is not what was written last; write it anew, or restore it"
    )]
    Block {
        /// Of which segment.
        name: String,
        /// Which.
        block: u64,
    },
}

impl Error {
    pub(crate) fn invalid(what: &'static str, value: impl ToString, why: impl Into<String>) -> Error {
        Error::Invalid { what, value: value.to_string(), why: why.into() }
    }
}

/// What may fail with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn place(offset: Option<u64>) -> String {
    offset.map(|offset| format!(" at byte {offset}")).unwrap_or_default()
}

/// Wraps an error of a medium.
pub(crate) fn medium_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Medium { action, path: path.to_owned(), offset: None, source: Arc::new(source) }
}
