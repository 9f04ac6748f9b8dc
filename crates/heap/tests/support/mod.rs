//! Stores of which copies stand for what a killed process leaves.

use caliburn_engine::{Options, Policy, Store};
use caliburn_heap::{Heap, Place};
use std::path::{Path, PathBuf};

pub fn options() -> Options {
    let mut options = Store::options();
    // A copy of a store that is in use stands for a process that was killed.
    options
        .copied(true)
        .memory_kept(true)
        .create(true)
        .background(false)
        .log_bytes(4 << 20)
        .stage_bytes(1 << 20);
    options.reserve_bytes(1 << 30);
    options
}

/// What holds with every policy.
pub const POLICIES: [Policy; 2] = [Policy::Redo, Policy::Undo];

pub fn copy(from: &Path, to: &Path) -> PathBuf {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match std::fs::copy(entry.path(), to.join(entry.file_name())) {
            // A file that was to take another's place has taken it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            done => drop(done.unwrap()),
        }
    }
    to.to_owned()
}

/// All that there are, in a heap that is sound.
pub fn objects(heap: &Heap) -> Vec<Place> {
    heap.check().unwrap();
    heap.objects().map(|(place, _)| place).collect()
}
