//! What can go wrong with typed objects.

use caliburn_engine::{BeginError, CloseError, CommitError, Failure, OpenError, RangeError, SegmentError};
use caliburn_heap::HeapError;

/// Why objects could not be opened, read or changed. Nothing was changed then, unless it says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The heap is full, damaged, or another's.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// The transaction became larger than the log or the memory budget takes.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// It did not begin.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// It did not commit.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// It committed, and the force failed that makes it durable. What survives is known when the store was opened
    /// again.
    #[error("committed in memory, but not durable: {0}")]
    NotDurable(#[source] Failure),
    /// The store did not close in good order.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// A value that was taken out of its place was dropped by a panic.
    #[error("a panic has dropped values of the transaction, which cannot be committed any more")]
    Unwound,
    /// The types in the store are not those of the program.
    #[error(
        "heap {heap:?} holds other types than the program has (-: the store's, +: the program's); open it with the \
         types that it was made with, or migrate it:\n{difference}"
    )]
    Changed {
        /// Name of the heap.
        heap: String,
        /// What differs, line by line.
        difference: String,
    },
    /// The snapshots that are alive could take more memory than they may.
    #[error(
        "a snapshot that may come to {bytes} bytes beside others of {taken} would pass the limit of {limit}: drop one, or \
         raise Objects::set_snapshot_limit"
    )]
    Snapshots {
        /// Most bytes that it could take.
        bytes: u64,
        /// Most bytes that those that are alive could.
        taken: u64,
        /// The limit.
        limit: u64,
    },
    /// Who was told of the progress has ended it.
    #[error("interrupted: nothing was changed, or what was begun is begun anew by the next try")]
    Interrupted,
    /// A migration by the names of fields would lose what nothing takes. Nothing was changed.
    #[error(
        "heap {heap:?}: a migration would lose what nothing takes, and nothing was changed:\n{lost}say #[recoverable(was = \
         \"its old name\")] of what takes it, or #[recoverable(gone(\"its old name\"))] of the type that it was in"
    )]
    WouldLose {
        /// Name of the heap.
        heap: String,
        /// What would be lost, a line for each field and variant: its path, its type, and the type that it is in.
        lost: String,
    },
    /// The old objects of the migration before are still kept.
    #[error(
        "heap {heap:?} still keeps the objects from before its last migration: say that you are content (typed::forget_old), \
         or go back to them (typed::back_out), before it is migrated again"
    )]
    Kept {
        /// Name of the heap.
        heap: String,
    },
    /// What was to be imported is not what was exported, or could not be read or written.
    #[error("line {line}: {why}")]
    Portable {
        /// Which line, or document of CBOR, from 1 on.
        line: u64,
        /// What is wrong.
        why: String,
    },
    /// A value could not be made of data.
    #[error("no value of this type can be made: {why}")]
    NotMade {
        /// What is wrong.
        why: String,
    },
    /// A path into shown objects leads nowhere.
    #[error("heap {heap:?} holds nothing by the name {step:?} there")]
    NotThere {
        /// Name of the heap.
        heap: String,
        /// The step that leads nowhere.
        step: String,
    },
    /// The heap was not made by typed objects.
    #[error("heap {heap:?} holds no typed objects: {why}")]
    NotTyped {
        /// Name of the heap.
        heap: String,
        /// What is wrong.
        why: String,
    },
}

impl From<SegmentError> for Error {
    fn from(error: SegmentError) -> Error {
        Error::Heap(error.into())
    }
}
