//! The undo policy: the segments are the store.

mod support;

use caliburn::medium::{Boot, Clock, Files, Media, Medium, Replaced};
use caliburn::{Class, CommitError, Mode, OpenError, Options, Policy, Region, Store};
use std::io;
use std::path::Path;
use std::sync::Arc;
use support::{clean, copy_store};

fn options() -> Options {
    let mut options = support::options();
    options.policy(Policy::Undo);
    options
}

fn open(path: &Path) -> (Store, Region) {
    let store = options().open(path).unwrap();
    let region = store.segment_or_create("data", 8 << 20).unwrap().map_all().unwrap();
    (store, region)
}

fn put(store: &Store, region: &Region, offset: usize, value: u64) {
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(region, offset, &value).unwrap();
    tx.commit(Class::Process).unwrap();
}

/// What a killed process would leave, opened.
fn after_a_kill(from: &Path, to: &Path) -> (Store, Region) {
    copy_store(from, to);
    clean(to);
    // Looking changes nothing, and shows the committed state.
    let before = std::fs::read(to.join("data.segment")).unwrap();
    let seen = {
        let store = options().create(false).read_only(true).open(to).unwrap();
        let region = store.segment("data").unwrap().map_all().unwrap();
        let mut seen = vec![0; region.len()];
        region.read(0, &mut seen);
        seen
    };
    assert!(std::fs::read(to.join("data.segment")).unwrap() == before);
    let (store, region) = open(to);
    let mut there = vec![0; region.len()];
    region.read(0, &mut there);
    assert!(seen == there, "read-only, the store showed something else than recovery made");
    (store, region)
}

#[test]
fn what_was_committed_stays_and_what_was_not_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, region) = open(&path);
    put(&store, &region, 0, 1);
    let mut aborted = store.begin(Mode::Restore).unwrap();
    aborted.store(&region, 0, &9u64).unwrap();
    aborted.store(&region, 4, &9u64).unwrap();
    aborted.write(&region, 0, &[7; 100]).unwrap();
    aborted.abort();
    assert_eq!((region.load::<u64>(0), region.load::<u64>(8)), (1, 0));

    let mut open_tx = store.begin(Mode::Restore).unwrap();
    open_tx.store(&region, 0, &2u64).unwrap();
    open_tx.write(&region, 4096, &[5; 9000]).unwrap();
    open_tx.store(&region, 4, &3u64).unwrap();
    let mut another = store.begin(Mode::NoRestore).unwrap();
    another.store(&region, 1 << 20, &4u64).unwrap();
    let (copy, there) = after_a_kill(&path, &dir.path().join("killed"));
    assert_eq!((there.load::<u64>(0), there.load::<u64>(8), there.load::<u64>(1 << 20)), (1, 0, 0));
    let mut bytes = [1; 9000];
    there.read(4096, &mut bytes);
    assert_eq!(bytes, [0; 9000]);
    put(&copy, &there, 8, 6);
    drop(there);
    copy.close().unwrap();

    open_tx.commit(Class::Process).unwrap();
    another.commit(Class::Process).unwrap();
    let (_, there) = after_a_kill(&path, &dir.path().join("killed later"));
    assert_eq!((there.load::<u32>(0), there.load::<u64>(4), there.load::<u64>(1 << 20)), (2, 3, 4));
    drop(region);
    store.close().unwrap();
    clean(&path);
}

#[test]
fn a_transaction_larger_than_a_chunk_of_its_log_is_undone_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, region) = open(&path);
    let old: Vec<u8> = (0..8 << 20).map(|i| (i * 7 / 5) as u8).collect();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&region, 0, &old).unwrap();
    tx.commit(Class::Process).unwrap();
    for sizes in [vec![3 << 20], vec![262_072 - 64, 100, 262_000, 1 << 20], vec![8; 30_000]] {
        let mut tx = store.begin(Mode::Restore).unwrap();
        let mut at = 1000;
        for size in &sizes {
            tx.write(&region, at, &vec![0xEE; *size]).unwrap();
            // Overlapping what was declared, and adjacent.
            at += size - size / 3;
        }
        let copy = dir.path().join("copy");
        let (killed, there) = after_a_kill(&path, &copy);
        let mut bytes = vec![0; old.len()];
        there.read(0, &mut bytes);
        assert!(bytes == old, "{} ranges: undone wrongly by recovery", sizes.len());
        drop((there, killed));
        std::fs::remove_dir_all(&copy).unwrap();
        tx.abort();
        region.read(0, &mut bytes);
        assert!(bytes == old, "{} ranges: undone wrongly by abort", sizes.len());
        // The log that was long is short again, and its chunks are there for others.
        put(&store, &region, 8 << 19, u64::from_ne_bytes(old[8 << 19..][..8].try_into().unwrap()));
    }
    drop(region);
    store.close().unwrap();
    let undo = std::fs::metadata(path.join("undo")).unwrap().len();
    assert!(undo < 10 << 20, "chunks were not used again: {undo} bytes");
}

#[test]
fn threads_have_logs_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, region) = open(&path);
    let (store, region) = (&store, &region);
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            scope.spawn(move || {
                for round in 1..2000u64 {
                    let mut tx = store.begin(Mode::Restore).unwrap();
                    for i in 0..1 + round as usize % 40 {
                        tx.store(region, thread * 65536 + i * 64, &round).unwrap();
                    }
                    if round % 3 == 0 {
                        tx.abort()
                    } else {
                        tx.commit(Class::Process).unwrap()
                    }
                    let last = if round % 3 == 0 { round - 1 } else { round };
                    assert_eq!(region.load::<u64>(thread * 65536), last);
                }
            });
        }
    });
    let statistics = store.statistics();
    assert_eq!((statistics.committed, statistics.aborted), (8 * 1333, 8 * 666));
}

#[test]
fn more_than_the_memory_survives_is_refused_and_aborted() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(&dir.path().join("s"));
    let begin = |value: u64| {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&region, 0, &value).unwrap();
        tx
    };
    let wrong = |error: &CommitError| matches!(error, CommitError::Class { reach: Class::Process, .. });
    assert!(wrong(&begin(1).commit(Class::Power).unwrap_err()));
    assert!(wrong(&begin(1).commit(Class::Os).unwrap_err()));
    assert!(wrong(&begin(1).commit_async().unwrap_err()));
    assert!(wrong(&store.flush().unwrap_err()));
    assert_eq!(region.load::<u64>(0), 0);
    put(&store, &region, 0, 3);
    let old = begin(4).commit_returning_old(Class::Process).unwrap();
    assert_eq!((old.len(), &old[0].bytes[..]), (1, &3u64.to_ne_bytes()[..]));
    store.truncate().unwrap();
    assert!(matches!(caliburn::History::open(store.path()), Err(OpenError::Policy { .. })));
}

/// Files, on another boot of the machine.
#[derive(Debug)]
struct Rebooted;

// SAFETY: all of it is passed on to files of the running system.
unsafe impl Media for Rebooted {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        Files.open(path, write)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        Files.create(path)
    }
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        Files.replace(path, content)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        Files.sync_directory(path)
    }
    fn boot(&self) -> io::Result<Boot> {
        let clock = Clock { began: i64::MAX, running: u64::MAX };
        Ok(Boot { id: Some([3; 16]), clock: Some(clock) })
    }
}

#[test]
fn a_store_in_use_when_the_system_went_down_is_refused_and_one_that_was_closed_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s"), dir.path().join("copy"));
    let (store, region) = open(&path);
    put(&store, &region, 0, 5);
    copy_store(&path, &copy);
    let mut rebooted = options();
    rebooted.media(Arc::new(Rebooted)).memory_kept(false);
    let error = rebooted.open(&copy).unwrap_err().to_string();
    assert!(error.contains("in use when the system went down") && error.contains("undo"), "{error}");
    let report = rebooted.check(&copy).unwrap();
    assert!(!report.is_clean());
    let salvaged = rebooted.salvage(true).open(&copy).unwrap();
    assert_eq!(salvaged.damage().unwrap().to_string(), error);
    assert_eq!(salvaged.segment("data").unwrap().map_all().unwrap().load::<u64>(0), 5);

    drop(region);
    store.close().unwrap();
    let mut rebooted = options();
    rebooted.media(Arc::new(Rebooted));
    assert!(rebooted.check(&path).unwrap().is_clean());
    let store = rebooted.open(&path).unwrap();
    assert_eq!(store.segment("data").unwrap().map_all().unwrap().load::<u64>(0), 5);
}

#[test]
fn bad_undo_logs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("s"), dir.path().join("other"));
    let (store, region) = open(&path);
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 0, &5u64).unwrap();
    drop(open(&other));
    let refused = |change: &dyn Fn(&Path), texts: &[&str]| {
        let copy = dir.path().join("copy");
        copy_store(&path, &copy);
        change(&copy);
        let report = options().check(&copy).unwrap();
        assert!(!report.is_clean(), "check did not notice: {texts:?}");
        let error = options().open(&copy).unwrap_err().to_string();
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
        std::fs::remove_dir_all(&copy).unwrap();
    };
    let patch = |offset: u64, bytes: &'static [u8]| {
        move |copy: &Path| support::patch(&copy.join("undo"), offset, bytes)
    };
    let first = 65536;
    refused(
        &|copy| assert!(std::fs::copy(other.join("undo"), copy.join("undo")).is_ok()),
        &["undo", "another store"],
    );
    refused(
        &|copy| std::fs::File::options().write(true).open(copy.join("undo")).unwrap().set_len(100).unwrap(),
        &["undo", "cut off"],
    );
    refused(
        &|copy| {
            support::patch(&copy.join("undo"), 0, b"garbage!");
            support::patch(&copy.join("undo"), 4096, b"garbage!")
        },
        &["undo", "not a Caliburn file of undo logs"],
    );
    // In the midst of its last chunk; a file that is longer than it says was being made longer when its process
    // died.
    let resize = |copy: &Path, by: i64| {
        let file = std::fs::File::options().write(true).open(copy.join("undo")).unwrap();
        file.set_len(file.metadata().unwrap().len().checked_add_signed(by).unwrap()).unwrap();
    };
    refused(&|copy| resize(copy, -1000), &["undo", "must hold 4 chunks", "cut off"]);
    let longer = dir.path().join("longer");
    copy_store(&path, &longer);
    resize(&longer, 1000);
    clean(&longer);
    drop(open(&longer));
    refused(&patch(first, &[0xFF; 4]), &["undo", "offset 65536", "more bytes than it has"]);
    refused(&patch(first, &[23]), &["undo", "offset 65536", "malformed"]);
    refused(&patch(first + 64, &[9]), &["undo", "offset 65536", "segment 9"]);
    refused(&patch(first + 72 + 4, &[9]), &["undo", "offset 65536", "no such bytes"]);
    drop(tx);
    drop(region);
    store.close().unwrap();
}

/// A transaction of many regions, in a log that outgrows its first chunk half-way.
#[test]
fn a_transaction_is_told_of_and_undone_in_every_region_that_it_changes() {
    const REGIONS: usize = 20;
    let dir = tempfile::tempdir().unwrap();
    let store = options().open(dir.path().join("s")).unwrap();
    let map = |i: usize| store.create_segment(&format!("s{i}"), 64 << 10).unwrap().map_all().unwrap();
    let (regions, other): (Vec<Region>, Region) = ((0..REGIONS).map(map).collect(), map(REGIONS));
    // The slot's first transaction makes its log.
    put(&store, &regions[0], 0, 1);
    for changed in [2, 12, REGIONS] {
        let mut tx = store.begin(Mode::Restore).unwrap();
        for round in 0..3 {
            for region in &regions[..changed] {
                tx.write(region, round * 16, &[9; 48]).unwrap();
                tx.write(region, 4096, &[9; 20_000]).unwrap();
                // Declared once more, and in part.
                tx.write(region, 5000, &[8; 10]).unwrap();
            }
        }
        for region in &regions[..changed] {
            assert_eq!(region.query().uncommitted, [tx.id()]);
        }
        assert!(other.query().uncommitted.is_empty());
        tx.abort();
        assert!(regions.iter().all(|region| region.query().uncommitted.is_empty()));
        for (i, region) in regions.iter().enumerate() {
            let mut there = vec![0; region.len()];
            region.read(0, &mut there);
            let first = u64::from(i == 0);
            assert_eq!(u64::from_ne_bytes(there[..8].try_into().unwrap()), first);
            assert!(
                there[8..].iter().all(|byte| *byte == 0),
                "region {i} of {changed} changed is not as it was"
            );
        }
    }
}
