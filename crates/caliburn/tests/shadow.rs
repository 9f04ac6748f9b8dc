//! Stores with the shadow policy: what a page held is on the medium before it is stored to.

mod support;

use caliburn::{
    BackupError, BeginError, Class, CommitError, DumpOptions, Mode, OpenError, Options, Policy, Region,
    RestoreOptions, SavepointError, Store, check,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use support::{copy_store, patch};

const LEN: u64 = 1 << 20;

fn options() -> Options {
    let mut options = support::options();
    options.policy(Policy::Shadow);
    options
}

fn opened(path: &Path) -> (Store, Region) {
    let store = options().open(path).unwrap();
    let region = store.segment_or_create("data", LEN).unwrap().map_all().unwrap();
    (store, region)
}

fn put(store: &Store, region: &Region, at: usize, value: u64) {
    let mut tx = store.begin(Mode::NoRestore).unwrap();
    tx.store(region, at, &value).unwrap();
    tx.commit(Class::Power).unwrap();
}

fn word(region: &Region, at: usize) -> u64 {
    region.load(at)
}

#[test]
fn what_is_committed_is_there_and_what_is_aborted_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for turn in 0..3u64 {
        let (store, region) = opened(&path);
        assert_eq!((store.policy(), store.reach()), (Policy::Shadow, Class::Power));
        for i in 0..40usize {
            assert_eq!(word(&region, i * 9000), turn);
        }
        let mut tx = store.begin(Mode::Restore).unwrap();
        (0..40).for_each(|i| tx.store(&region, i * 9000, &99u64).unwrap());
        assert!(store.query().log_used > 0);
        tx.abort();
        assert_eq!(store.query().log_used, 0);
        let mut tx = store.begin(Mode::NoRestore).unwrap();
        for i in 0..40usize {
            assert_eq!(word(&region, i * 9000), turn);
            tx.store(&region, i * 9000, &(turn + 1)).unwrap();
        }
        tx.commit(Class::Process).unwrap();
        // What is dropped is aborted, in any mode.
        let mut tx = store.begin(Mode::NoRestore).unwrap();
        tx.store(&region, 0, &77u64).unwrap();
        drop(tx);
        assert_eq!(word(&region, 0), turn + 1);
        drop(region);
        store.close().unwrap();
        assert_eq!(check(&path).unwrap().problems, []);
    }
    let info = caliburn::info(&path).unwrap();
    assert_eq!((info.policy, info.clean), (Policy::Shadow, true));
}

#[test]
fn a_killed_process_leaves_what_was_committed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s"), dir.path().join("c"));
    let (store, region) = opened(&path);
    put(&store, &region, 5000, 1);
    let mut tx = store.begin(Mode::NoRestore).unwrap();
    tx.write(&region, 0, &[7; 300_000]).unwrap();
    copy_store(&path, &copy);
    // Who only reads sees the old values, and changes nothing.
    let reader = options().read_only(true).open(&copy).unwrap();
    let seen = reader.segment("data").unwrap().map_all().unwrap();
    assert_eq!((word(&seen, 5000), word(&seen, 8)), (1, 0));
    drop(seen);
    reader.close().unwrap();
    let report = options().check(&copy).unwrap();
    assert_eq!(report.problems, []);
    assert!(report.notes.iter().any(|note| note.contains("74 page(s)")), "{:?}", report.notes);
    let (second, restored) = opened(&copy);
    assert_eq!((word(&restored, 5000), word(&restored, 8)), (1, 0));
    put(&second, &restored, 8, 3);
    drop(restored);
    second.close().unwrap();
    tx.commit(Class::Power).unwrap();
    assert_eq!(word(&region, 8), 0x0707_0707_0707_0707);
}

/// Another thread waits; the same one would wait for itself.
#[test]
fn one_transaction_at_a_time_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    let tx = store.begin(Mode::Restore).unwrap();
    assert!(matches!(store.begin(Mode::Restore), Err(BeginError::Open)));
    drop(tx);
    let begun = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut tx = store.begin(Mode::Restore).unwrap();
        let other = scope.spawn(|| {
            let mut tx = store.begin(Mode::Restore).unwrap();
            begun.store(true, SeqCst);
            let found = word(&region, 0);
            tx.store(&region, 8, &(found + 1)).unwrap();
            tx.commit(Class::Power).unwrap();
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!begun.load(SeqCst));
        tx.store(&region, 0, &41u64).unwrap();
        tx.commit(Class::Power).unwrap();
        other.join().unwrap();
    });
    assert_eq!(word(&region, 8), 42);
    // Many that take turns.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let mut tx = store.begin(Mode::Restore).unwrap();
                    let sum = word(&region, 16) + 1;
                    tx.store(&region, 16, &sum).unwrap();
                    tx.commit(Class::Power).unwrap();
                }
            });
        }
    });
    assert_eq!(word(&region, 16), 100);
}

#[test]
fn a_transaction_is_larger_than_log_and_memory_budget() {
    const LARGE: usize = 48 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut with = options();
    with.tuning(caliburn::Tuning { memory_budget: Some(1 << 20), ..Default::default() });
    let store = with.open(&path).unwrap();
    let region = store.create_segment("large", LARGE as u64).unwrap().map_all().unwrap();
    for (value, commits) in [(1u8, true), (2, false)] {
        let mut tx = store.begin(Mode::Restore).unwrap();
        for at in (0..LARGE).step_by(1 << 20) {
            tx.write(&region, at, &vec![value; 1 << 20]).unwrap();
        }
        assert!(store.query().log_used >= LARGE as u64);
        if commits {
            tx.commit(Class::Power).unwrap()
        } else {
            tx.abort()
        }
        assert!((0..LARGE).step_by(4096).all(|at| region.load::<u8>(at) == 1));
    }
}

#[test]
fn what_it_cannot_do_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 0, &1u64).unwrap();
    assert!(matches!(tx.savepoint(), Err(SavepointError::NoOldValues)));
    assert!(tx.branch().is_err());
    let refused = tx.prepare(b"id").unwrap_err();
    assert!(matches!(refused, CommitError::NeverUndecided), "{refused}");
    assert_eq!(word(&region, 0), 0, "it was aborted");
    assert!(store.adopt_segment(dir.path().join("other")).is_err());
    drop(region);
    store.close().unwrap();
    let other = Store::options().policy(Policy::Redo).open(dir.path().join("s")).unwrap_err();
    assert!(matches!(other, OpenError::OtherPolicy { found: "shadow", .. }), "{other}");
}

/// A bit that flips in the log of a store that was killed is noticed, or does no harm; what is refused is left as it
/// was.
#[test]
fn damaged_images_are_refused_and_nothing_changes() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s"), dir.path().join("c"));
    let (store, region) = opened(&path);
    let mut tx = store.begin(Mode::NoRestore).unwrap();
    tx.write(&region, 0, &[7; 9000]).unwrap();
    tx.write(&region, 500_000, &[7; 9000]).unwrap();
    copy_store(&path, &copy);
    drop(tx);
    // The second batch's second image.
    patch(&copy.join("shadow"), (64 << 10) + 4 * 4096 + 2 * 4096 + 77, &[1]);
    let before = std::fs::read(copy.join("data.segment")).unwrap();
    let refused = options().open(&copy).unwrap_err();
    assert!(refused.to_string().contains("is damaged, and that page was stored to"), "{refused}");
    assert_eq!(std::fs::read(copy.join("data.segment")).unwrap(), before);
    assert!(!options().check(&copy).unwrap().is_clean());
    let salvaged = options().salvage(true).open(&copy).unwrap();
    assert!(salvaged.damage().is_some());
    // All images but the damaged one are laid over what the open transaction has stored.
    let memory = salvaged.segment("data").unwrap().map_all().unwrap();
    assert_eq!([0, 504_000, 508_192].map(|at| word(&memory, at)), [0, 0x0707_0707_0707_0707, 0]);
}

#[test]
fn its_log_may_lie_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log) = (dir.path().join("s"), dir.path().join("images"));
    let store = options().log_path(&log).open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    put(&store, &region, 0, 5);
    assert!(log.exists() && !path.join("shadow").exists());
    drop(region);
    store.close().unwrap();
    let store = options().outside(&log).open(&path).unwrap();
    assert_eq!(word(&store.segment("data").unwrap().map_all().unwrap(), 0), 5);
    store.close().unwrap();
    let moved = options().log_path(dir.path().join("other")).open(&path).unwrap_err();
    assert!(matches!(moved, OpenError::Policy { .. }), "{moved}");
    // It is some store's.
    let taken = options().log_path(&log).open(dir.path().join("t")).unwrap_err();
    assert!(taken.to_string().contains("it already holds part of a store"), "{taken}");
}

#[test]
fn a_dump_is_of_a_moment_between_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, region) = opened(&path);
    put(&store, &region, 0, 5);
    let mut tx = store.begin(Mode::NoRestore).unwrap();
    tx.store(&region, 0, &6u64).unwrap();
    let mut dump = Vec::new();
    std::thread::scope(|scope| {
        let dumping = scope.spawn(|| {
            let mut dump = Vec::new();
            store.dump(&DumpOptions::new(), &mut dump).map(|_| dump)
        });
        std::thread::sleep(Duration::from_millis(5));
        tx.commit(Class::Power).unwrap();
        dump = dumping.join().unwrap().unwrap();
    });
    drop(region);
    let restored = dir.path().join("r");
    Options::new().restore(&mut &dump[..], &RestoreOptions::new(), &restored).unwrap();
    let (again, region) = opened(&restored);
    assert_eq!((again.policy(), word(&region, 0)), (Policy::Shadow, 6));
    drop(region);
    again.close().unwrap();
    let killed = dir.path().join("k");
    copy_store(&path, &killed);
    let refused = Options::new().dump(&killed, &DumpOptions::new(), &mut Vec::new()).unwrap_err();
    assert!(matches!(refused, BackupError::NotClosed { .. }), "{refused}");
}

/// A file that is nothing but data is mapped as it is; its last page may be cut off.
#[test]
fn a_file_is_adopted() {
    let dir = tempfile::tempdir().unwrap();
    let (data, path) = (dir.path().join("data"), dir.path().join("s"));
    std::fs::write(&data, [1; 10_000]).unwrap();
    let with = || {
        let mut with = options();
        with.outside(dir.path());
        with
    };
    let store = with().open(&path).unwrap();
    let region = store.adopt_segment(&data).unwrap().map_all().unwrap();
    assert_eq!(region.len(), 9728);
    for commits in [true, false] {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&region, 4000, &[2 + u8::from(!commits); 200]).unwrap();
        tx.write(&region, 9720, &[2 + u8::from(!commits); 8]).unwrap();
        if commits {
            tx.commit(Class::Power).unwrap()
        } else {
            tx.abort()
        }
        let there = std::fs::read(&data).unwrap();
        assert!(there[4000..4200].iter().chain(&there[9720..9728]).all(|byte| *byte == 2));
        assert_eq!((there[3999], there[4200], there[9719], there[9728], there.len()), (1, 1, 1, 1, 10_000));
    }
    // The file became longer: what is behind the region's end is not the transaction's.
    let grown: Vec<u8> = std::fs::read(&data).unwrap().into_iter().chain([3; 6384]).collect();
    let file = std::fs::OpenOptions::new().write(true).open(&data).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &grown[9728..], 9728).unwrap();
    let again = store.adopt_segment(&data).unwrap();
    assert_eq!(again.len(), 16_384);
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&region, 9000, &[9; 700]).unwrap();
    tx.abort();
    assert_eq!(std::fs::read(&data).unwrap(), grown);
}

/// The log of before-images on a raw device (McNamee, section 6.2.3), which holds what others have left there; a
/// transaction that does not fit it is refused, and undone.
#[test]
fn before_images_lie_on_a_device() {
    let dir = tempfile::tempdir().unwrap();
    let backing = dir.path().join("log.img");
    let Some(device) = support::loop_device(&backing, 1 << 20) else { return };
    std::fs::write(&device.path, vec![0xA5; 1 << 20]).unwrap();
    let path = dir.path().join("s");
    let open = || {
        let store = options().log_path(&device.path).open(&path).unwrap();
        let region = store.segment_or_create("data", 2 * LEN).unwrap().map_all().unwrap();
        (store, region)
    };
    for turn in 1..=3u64 {
        let (store, region) = open();
        assert_eq!(store.reach(), Class::Power);
        let mut tx = store.begin(Mode::Restore).unwrap();
        (0..60).for_each(|i| tx.store(&region, i * 9000, &turn).unwrap());
        tx.commit(Class::Power).unwrap();
        let mut tx = store.begin(Mode::Restore).unwrap();
        let refused = (0..2 * LEN as usize).step_by(4096).find_map(|at| tx.store(&region, at, &99u64).err());
        assert!(refused.is_some(), "the images of two megabytes fit one");
        tx.abort();
        assert!((0..60).all(|i| word(&region, i * 9000) == turn));
        // Killed in the midst of one: its images are on the device.
        if turn == 2 {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.write(&region, 0, &[7; 300_000]).unwrap();
            let copy = dir.path().join("copy");
            copy_store(&path, &copy);
            let held = std::fs::read(&device.path).unwrap();
            tx.abort();
            drop(region);
            store.close().unwrap();
            std::fs::write(&device.path, held).unwrap();
            for entry in std::fs::read_dir(&copy).unwrap() {
                let entry = entry.unwrap();
                std::fs::copy(entry.path(), path.join(entry.file_name())).unwrap();
            }
            let (_store, region) = open();
            assert!((0..60).all(|i| word(&region, i * 9000) == turn));
        }
    }
    // It is not taken for another store's.
    let other = options().log_path(&device.path).open(dir.path().join("t")).unwrap_err().to_string();
    assert!(other.contains("already holds part of a store"), "{other}");
    assert_eq!(support::options().outside(&device.path).check(&path).unwrap().problems, []);
}
