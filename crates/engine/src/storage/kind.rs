//! The recovery policy of a store, as its catalog names it.

/// How a store's changes are undone and redone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// New values go to a log, and from there to the segments (RVM): survives what the log's medium does,
    /// a power cut as well. The default.
    Redo,
    /// The segments are the store: they are mapped shared, and old values are kept in memory of the same kind until
    /// the commit (Vista). No log, no truncation, no copy but one; survives what that memory does. On files
    /// that is the death of the process; a store in use when the system goes down is lost. On persistent memory, a file
    /// system mounted with `-o dax`, it is a power cut, and every commit is in [`Class::Power`](crate::Class::Power); on a region that
    /// `memmap=` reserves, a warm start, [`Class::Os`](crate::Class::Os). [`Store::reach`](crate::Store::reach) tells.
    Undo,
}
