//! The undo policy (Vista): segments are mapped shared, and old values kept until the commit.
//!
//! ```text
//!   write set in memory that survives --commit--> empty
//! ```

mod chunks;
mod recovery;
mod runs;

pub(crate) use chunks::UndoChunks;
pub(crate) use recovery::{check, check_ranges, create, open};
