//! Why a transaction of a family did not do what was asked.

use caliburn_engine::{BeginError, BranchError, CommitError, RangeError, SavepointError};
use std::borrow::Cow;

/// Why a transaction, or a family, was aborted by the program: a text.
pub type Reason = Cow<'static, str>;

/// What a transaction of a family ends with when it does not commit, or a call of it. A program's own errors stand
/// beside it: `E: From<Error>`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program aborted the innermost transaction: [`Tx::abort`](crate::Tx::abort).
    #[error("aborted: {0}")]
    Aborted(Reason),
    /// The whole family is aborted, by somebody in it: [`Tx::abort_family`](crate::Tx::abort_family).
    #[error("the family is aborted: {0}")]
    Family(Reason),
    /// What follows the family does not let the transaction go on, or commit: the victim of a deadlock.
    #[error(transparent)]
    Followed(#[from] Box<dyn std::error::Error + Send + Sync>),
    /// The store has failed, or is read-only.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// A range could not be declared; the transaction goes on.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// A child, or a savepoint, could not be begun, or a savepoint is not this transaction's.
    #[error(transparent)]
    Savepoint(#[from] SavepointError),
    /// A parallel child could not be begun.
    #[error(transparent)]
    Branch(#[from] BranchError),
    /// A timestamp, or what a clock is made of, cannot be right.
    #[error("clock: {0}")]
    Clock(Reason),
    /// The top could not commit.
    #[error(transparent)]
    Commit(#[from] CommitError),
}
