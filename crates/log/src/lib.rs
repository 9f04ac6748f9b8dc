//! Caliburn's formats, its log, and the stage in front of it. Knows segments as numbers and offsets
//! only: no mappings of recoverable memory, no transactions in progress.
//!
//! | module | noun |
//! |---|---|
//! | [`mod@format`] | every byte that reaches a medium: structures, offsets, magics, checksums |
//! | [`record`] | one log record: encoded and decoded |
//! | [`log`] | the ring on its medium: append, force, head and status pages |
//! | [`images`] | what pages held before they were stored to, durable before they are |
//! | [`mend`](mod@mend) | what one of two copies of a log lacks, from the other |
//! | [`media_error`] | media that fail, and forces that fail for good |
//! | `ring` | the ring of a log, read and written |
//! | `window` | goes along a log, record by record |
//! | [`scan`](mod@scan) | the live part of a log, read back and verified |
//! | [`image_status`] | the status of a log of before-images, and the sums that it brings |
//! | [`search`] | records wherever they stand in the ring: proof of damage, and the past |
//! | [`staged_tail`] | what a killed process left in its stage |
//! | [`status_pages`] | a small structure that changes durably |
//! | [`uncommitted`] | undo logs as an opening finds them |
//! | [`prepared`](mod@prepared) | undecided transactions of a store without a log |
//! | [`sealed`] | their ranges in persistent memory |
//! | [`merge`] | the inter-transaction optimisation: superseded bytes dropped from a batch |
//! | [`archive`] | a part of the log, stored elsewhere |
//! | [`order`] | in which order a program touched what was mapped |
//! | [`dump`] | a store as a stream of pieces |
//! | [`pagemap`] | a sparse array indexed by segment and page |

#![cfg_attr(not(test), forbid(unsafe_code))]

pub mod archive;
pub mod dump;
pub mod format;
pub mod image_status;
pub mod images;
pub mod log;
pub mod media_error;
pub mod mend;
pub mod merge;
pub mod order;
pub mod pagemap;
pub mod prepared;
pub mod record;
mod ring;
pub mod scan;
pub mod sealed;
pub mod search;
pub mod staged_tail;
pub mod status_pages;
pub mod uncommitted;
mod window;

pub use format::{Lsn, SegmentId};
