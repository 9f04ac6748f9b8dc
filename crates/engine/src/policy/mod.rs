//! How changes are undone and redone: a folder for each policy.

pub(crate) mod dispatch;
pub(crate) mod redo;
pub(crate) mod undo;
