//! Stores for tests.

use caliburn::typed::Init;
use caliburn::{Objects, Recoverable};
use caliburn::{Policy, Store};
use tempfile::TempDir;

/// A store of a policy in a directory that goes with it.
#[allow(dead_code)]
pub fn store(policy: Policy) -> (TempDir, Store) {
    store_with(policy, false)
}

/// The same; `verify`: what is changed without being declared ends the test at the commit.
pub fn store_with(policy: Policy, verify: bool) -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let options = Store::options().create(true).policy(policy).verify(verify).clone();
    let store = options.open(dir.path().join("store")).unwrap();
    (dir, store)
}

#[allow(dead_code)]
pub fn objects<R: Recoverable + Default + for<'id> Init<'id, R>>(store: &Store) -> Objects<R> {
    Objects::open(store, "objects").unwrap()
}

/// Objects that are allocated.
#[allow(dead_code)]
pub fn allocated<R: Recoverable>(objects: &Objects<R>) -> u64 {
    let statistics = objects.statistics();
    statistics.large_objects + statistics.classes.iter().map(|class| class.objects).sum::<u64>()
}
