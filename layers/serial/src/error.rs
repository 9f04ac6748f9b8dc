//! Why something could not be done.

use caliburn_engine::{BeginError, RangeError, SavepointError};
use caliburn_heap::{HeapError, Place};
use caliburn_lock::LockError;

/// Why a transaction could not begin, go on or commit. Nothing of it is in the store then, unless the heap's error
/// says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The heap is full or damaged, or the commit failed.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// A lock was not had. Of a deadlock only those hear who are within the transaction, which is tried again.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The cell was removed, or the pointer never was one of these cells.
    #[error("heap {heap:?}: there is no cell any more at {place:?}: it was removed")]
    Gone {
        /// Name of the heap.
        heap: String,
        /// Where it was.
        place: Place,
    },
    /// The cell has a value of another type.
    #[error(
        "heap {heap:?}: the cell at {place:?} has {found} bytes, and its type {wanted}: it is of another type"
    )]
    Type {
        /// Name of the heap.
        heap: String,
        /// Where it is.
        place: Place,
        /// Bytes that it has.
        found: u64,
        /// Bytes of the type that was asked for.
        wanted: usize,
    },
    /// The program's own reason.
    #[error("aborted: {0}")]
    Aborted(String),
}

impl From<BeginError> for Error {
    fn from(error: BeginError) -> Error {
        Error::Heap(error.into())
    }
}

impl From<RangeError> for Error {
    fn from(error: RangeError) -> Error {
        Error::Heap(error.into())
    }
}

impl From<SavepointError> for Error {
    fn from(error: SavepointError) -> Error {
        Error::Heap(error.into())
    }
}
