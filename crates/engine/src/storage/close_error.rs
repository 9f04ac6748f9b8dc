//! Why a store did not close in good order.

use super::error::Failure;

/// Why a store did not close in good order. What was acknowledged is in the log.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// The store has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// Forgotten transactions are still open.
    #[error("{0} transaction(s) are still open; the next opening recovers the store, and undoes them")]
    Uncommitted(usize),
    /// It was not closed.
    #[error("other handles hold the store (clones, heaps): it closes when the last of them is dropped")]
    Shared,
}
