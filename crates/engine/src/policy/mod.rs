//! How changes are undone and redone.

pub(crate) mod redo;
pub(crate) mod undo;
