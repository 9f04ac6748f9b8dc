//! Where the page cache lies between memory and the medium: what was written since the medium was forced last.
//!
//! Invariant: until then no place is written to that the medium may need after a power cut, and of each block the
//! entry that was forced stays: before a block is written again, the medium is forced.

use caliburn_os::sync::{Mutex, RwLock};
use std::collections::HashSet;
use std::sync::atomic::AtomicI64;

/// What was written since the medium was forced.
#[derive(Debug, Default)]
pub(crate) struct Epoch {
    /// Held by writers; alone by who forces.
    pub gate: RwLock<()>,
    /// Places that are free, less those that writers are about to take. Only who has found one here waits for it.
    pub room: AtomicI64,
    pub changed: Mutex<Changed>,
}

/// Blocks, and places.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// Blocks whose newest entry is not forced.
    pub blocks: HashSet<u64>,
    /// Places of what they were before.
    pub retired: Vec<u32>,
}
