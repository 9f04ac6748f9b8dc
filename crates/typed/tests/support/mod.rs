//! Stores for tests.

use caliburn::heap::Heap;
use caliburn::typed::Init;
use caliburn::{Objects, Recoverable};
use caliburn::{Policy, Store};
use tempfile::TempDir;

/// A store of a policy in a directory that goes with it.
pub fn store(policy: Policy) -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::options().create(true).policy(policy).open(dir.path().join("store")).unwrap();
    (dir, store)
}

pub fn objects<R: Recoverable + Default + for<'id> Init<'id, R>>(store: &Store) -> Objects<R> {
    Objects::open(store, "objects").unwrap()
}

/// Objects allocated in a heap.
#[allow(dead_code)]
pub fn allocated(heap: &Heap) -> u64 {
    let statistics = heap.statistics();
    statistics.large_objects + statistics.classes.iter().map(|class| class.objects).sum::<u64>()
}
