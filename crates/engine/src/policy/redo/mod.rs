//! The redo policy (RVM): segments are mapped copy-on-write, new values go to a log, and from there to the segments.
//!
//! ```text
//!   write set --commit--> stage --flusher--> log --truncation--> segments, sums
//! ```

mod checkpoint;
mod cohort;
mod commit;
pub(crate) mod flusher;
pub(crate) mod history;
mod memory;
pub(crate) mod pages;
pub(crate) mod prepared;
pub(crate) mod stage;
pub(crate) mod truncation;
