//! The undo policy.

mod chunks;
mod runs;
mod recovery;

pub(crate) use chunks::UndoChunks;
pub(crate) use recovery::{check, check_ranges, create, open};
