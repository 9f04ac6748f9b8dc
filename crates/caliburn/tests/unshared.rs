//! File systems that map no files shared: a FUSE file system with direct I/O is one.

mod support;

use caliburn::{BeforeImages, Class, Mode, Options, Policy, Store, Tracking, Tuning};
use std::path::Path;
use std::process::Command;
use support::set;

const PAGE: usize = 4096;
/// Twice as many as may wait.
const PAGES: usize = 512;

struct Bound(tempfile::TempDir);

impl Bound {
    /// A directory that is seen through FUSE. Needs root and `bindfs`; without them says so.
    fn new() -> Option<Bound> {
        let dir = tempfile::tempdir().unwrap();
        ["below", "seen"].iter().for_each(|name| std::fs::create_dir(dir.path().join(name)).unwrap());
        let mut bind = Command::new("bindfs");
        bind.args(["-o", "direct_io"]).args(["below", "seen"].map(|name| dir.path().join(name)));
        if !support::root() || !bind.status().is_ok_and(|status| status.success()) {
            eprintln!("not run: a file system without shared mappings needs root and bindfs");
            return None;
        }
        Some(Bound(dir))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path().join("seen")).status();
    }
}

/// Why a store with a segment cannot be had.
fn refused(options: &Options, path: &Path) -> String {
    let store = match options.open(path) {
        Ok(store) => store,
        Err(error) => return error.to_string(),
    };
    let segment = store.segment_or_create("data", (PAGES * PAGE) as u64);
    match segment.map_err(|error| error.to_string()).map(|segment| segment.map_all()) {
        Ok(Ok(_)) => panic!("mapped"),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error,
    }
}

fn options(policy: Policy, before: Option<BeforeImages>) -> Options {
    let mut options = support::options();
    options.policy(policy);
    if let Some(before) = before {
        options.tracking(Tracking::Fault).before_images(before);
        options.tuning(Tuning { memory_budget: Some((PAGES * PAGE / 2) as u64), ..Tuning::default() });
    }
    options
}

fn kinds() -> [Options; 3] {
    use BeforeImages::Eager;
    [(Policy::Redo, None), (Policy::Undo, None), (Policy::Shadow, Some(Eager))]
        .map(|(policy, before)| options(policy, before))
}

#[test]
fn what_must_be_mapped_shared_says_so_and_loses_nothing() {
    let Some(bound) = Bound::new() else { return };
    let [below, seen] = ["below", "seen"].map(|name| bound.0.path().join(name));
    for (i, options) in kinds().iter().enumerate() {
        // A new store, and one that there is already.
        let text = refused(options, &seen.join(format!("new{i}")));
        assert!(text.contains("maps no files shared") && text.contains("ext4"), "{text}");
        let name = format!("old{i}");
        let store = options.open(below.join(&name)).unwrap();
        let region = store.segment_or_create("data", (PAGES * PAGE) as u64).unwrap().map_all().unwrap();
        support::put(&store, &region, 8, 7, store.reach());
        drop(region);
        store.close().unwrap();
        let text = refused(options, &seen.join(&name));
        assert!(text.contains("maps no files shared"), "{text}");
        support::clean(&below.join(&name));
        let store = options.open(below.join(&name)).unwrap();
        assert_eq!(support::region(&store).load::<u64>(8), 7);
    }
}

/// What waits in memory needs no shared mapping until it is more than the budget; then the transaction is undone.
#[test]
fn pages_that_wait_are_committed_unless_they_must_be_stolen() {
    let Some(bound) = Bound::new() else { return };
    let path = bound.0.path().join("seen/s");
    let options = options(Policy::Shadow, Some(BeforeImages::Lazy));
    let open = || {
        let store: Store = options.open(&path).unwrap();
        let region = store.segment_or_create("data", (PAGES * PAGE) as u64).unwrap().map_all().unwrap();
        (store, region)
    };
    let (store, region) = open();
    let there = |value: u64| assert!((0..PAGES).all(|page| region.load::<u64>(page * PAGE) == value));
    let tx = store.begin(Mode::Restore).unwrap();
    (0..8).for_each(|page| set(&region, page * PAGE + 8, 1));
    tx.commit(Class::Power).unwrap();
    let tx = store.begin(Mode::Restore).unwrap();
    (0..PAGES).for_each(|page| set(&region, page * PAGE, 2));
    there(2);
    let error = tx.commit(Class::Power).unwrap_err().to_string();
    assert!(error.contains("maps no files shared"), "{error}");
    there(0);
    let tx = store.begin(Mode::Restore).unwrap();
    (0..8).for_each(|page| set(&region, page * PAGE + 16, 3));
    tx.commit(Class::Power).unwrap();
    drop(region);
    store.close().unwrap();
    support::clean(&path);
    let (_store, region) = open();
    assert!((0..8).all(|page| [0, 8, 16].map(|at| region.load::<u64>(page * PAGE + at)) == [0, 1, 3]));
}
