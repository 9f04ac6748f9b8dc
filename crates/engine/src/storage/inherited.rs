//! What a child that was forked is told of a store that its parent has opened.

/// The store is the parent process's: this one was forked from it. Nothing was done.
///
/// Memory of regions can be read in the child, as the parent changes it or as it was, and with the redo policy it is
/// the child's own copy once that stores to it. With the others a store ends the child (docs/limits.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this store was opened by the parent process, and belongs to it: drop or close its handles here and open the store when the parent has closed it, or open it after the fork only"
)]
pub struct Inherited;

/// Why a savepoint could not be made or used. The transaction goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SavepointError {
    /// The store is the parent process's.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The transaction keeps no old values.
    #[error(
        "the transaction has no savepoints: it keeps no old values. With the redo policy begin it in Mode::Restore; with the shadow policy no transaction has savepoints"
    )]
    NoOldValues,
    /// A branch may have changed, or saved, what would be rolled back.
    #[error("the transaction has open branches: adopt or drop them before it is rolled back")]
    Branches,
    /// It is of another transaction, or was released, or the transaction was rolled back to an earlier one.
    #[error(
        "the transaction has no such savepoint: it was released, or the transaction was rolled back beyond it"
    )]
    Gone,
}
