//! The undo policy.

mod chunks;
mod runs;
mod undo;

pub(crate) use chunks::UndoChunks;
pub(crate) use undo::{check, check_ranges, create, open};
