//! A log with two copies, of which one is lost, lags or lies: when the store is opened, and while it is used.

#[path = "support/failing.rs"]
mod failing;
mod support;

use caliburn::{Class, Filter, Mode, OpenError, Options, Policy, Region, Store, check, info};
use failing::Failing;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const K: u64 = 1 << 10;
/// Where records begin in a log's file.
const RING: usize = 64 << 10;

fn options(second: &Path) -> Options {
    let mut options = Store::options();
    options.create(true).log_bytes(256 * K).stage_bytes(1 << 20).reserve_bytes(1 << 30);
    options.outside(second.parent().unwrap());
    options
}

fn duplexed(second: &Path) -> Options {
    let mut options = options(second);
    options.duplex_log(second);
    options
}

/// A store's directory, and where the second copy is.
fn places(dir: &tempfile::TempDir) -> (PathBuf, PathBuf) {
    (dir.path().join("s"), dir.path().join("second"))
}

fn value(store: &Store) -> u64 {
    store.segment("data").unwrap().map_all().unwrap().load(0)
}

fn commit(store: &Store, value: u64) -> Result<(), caliburn::CommitError> {
    // What unmaps it brings the log to the segment.
    let region = store.segment_or_create("data", 64 * K).unwrap().map_all().unwrap();
    commit_to(store, &region, value)
}

fn commit_to(store: &Store, region: &Region, value: u64) -> Result<(), caliburn::CommitError> {
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(region, 0, &value).unwrap();
    tx.write(region, 4096, &[value as u8; 1000]).unwrap();
    tx.commit(Class::Power)
}

/// What [`crashed`] runs in a process of its own.
#[test]
fn of_a_process_that_is_killed() {
    let (Some(dir), Some(values)) = (std::env::var_os("DUPLEX_DIR"), std::env::var_os("DUPLEX_VALUES"))
    else {
        return;
    };
    let dir = PathBuf::from(dir);
    // No thread of the store brings the log to the segment meanwhile.
    let store = options(&dir.join("second")).background(false).open(dir.join("s")).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    for value in values.to_str().unwrap().split(' ') {
        commit_to(&store, &region, value.parse().unwrap()).unwrap();
    }
    std::process::abort();
}

/// Commits these, durably, in a process that is killed then.
fn crashed(dir: &tempfile::TempDir, values: std::ops::Range<u64>) {
    let values: Vec<String> = values.map(|value| value.to_string()).collect();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "of_a_process_that_is_killed"]);
    child.env("DUPLEX_DIR", dir.path()).env("DUPLEX_VALUES", values.join(" "));
    assert!(!child.output().unwrap().status.success());
    // As after a reboot: what is committed is in the log, and nowhere else.
    let stage = dir.path().join("s/stage");
    let bytes = std::fs::metadata(&stage).unwrap().len();
    std::fs::write(stage, vec![0; bytes as usize]).unwrap();
}

fn make(dir: &tempfile::TempDir) -> (PathBuf, PathBuf) {
    let (path, second) = places(dir);
    let store = duplexed(&second).open(&path).unwrap();
    commit(&store, 1).unwrap();
    assert_eq!(store.query().log_copies, 2);
    store.close().unwrap();
    (path, second)
}

fn damage(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x55;
    // In place: it stays the same file.
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn either_copy_may_be_lost_and_another_takes_its_place() {
    for lost in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let (path, second) = make(&dir);
        crashed(&dir, 2..8);
        let copies = [path.join("log"), second.clone()];
        std::fs::remove_file(&copies[lost]).unwrap();
        let report = options(&second).check(&path).unwrap();
        assert!(report.is_clean() && report.notes.iter().any(|note| note.contains("copies")), "{report:?}");
        let store = options(&second).open(&path).unwrap();
        assert_eq!((value(&store), store.query().log_copies), (7, 1));
        assert_eq!(options(&second).info(&path).unwrap().log.unwrap().path, copies[1 - lost]);
        commit(&store, 8).unwrap();
        // While it is used, at another place.
        let third = dir.path().join("third");
        store.relocate_log(&duplexed(&third)).unwrap();
        assert_eq!(store.query().log_copies, 2);
        drop(store);
        crashed(&dir, 9..12);
        std::fs::remove_file(&copies[1 - lost]).unwrap();
        let store = options(&second).open(&path).unwrap();
        assert_eq!((value(&store), store.query().log_copies), (11, 1));
    }
}

#[test]
fn a_copy_that_lags_gets_what_it_lacks() {
    for lags in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let (path, second) = make(&dir);
        let copies = [path.join("log"), second.clone()];
        crashed(&dir, 2..4);
        let before = std::fs::read(&copies[lags]).unwrap();
        crashed(&dir, 4..9);
        std::fs::write(&copies[lags], before).unwrap();
        drop(options(&second).open(&path).unwrap());
        std::fs::remove_file(&copies[1 - lags]).unwrap();
        let store = options(&second).open(&path).unwrap();
        assert_eq!(value(&store), 8);
    }
}

#[test]
fn both_copies_may_lie_where_the_other_does_not() {
    for first in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let (path, second) = make(&dir);
        let copies = [path.join("log"), second.clone()];
        crashed(&dir, 2..12);
        // Records are about 1100 bytes: some of these, at turns.
        for record in 0..9 {
            damage(&copies[(record + first) % 2], RING + 1100 * record + 700);
        }
        damage(&copies[first], 20);
        let report = options(&second).check(&path).unwrap();
        assert!(report.is_clean(), "{report:?}");
        // Nobody who only reads changes them.
        let read = std::fs::read(&copies[0]).unwrap();
        let mut reads = options(&second);
        assert_eq!(value(&reads.create(false).read_only(true).open(&path).unwrap()), 11);
        assert!(std::fs::read(&copies[0]).unwrap() == read);
        assert_eq!(value(&options(&second).open(&path).unwrap()), 11);
    }
}

#[test]
fn what_both_lack_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (path, second) = make(&dir);
    crashed(&dir, 2..12);
    for copy in [path.join("log"), second.clone()] {
        (5000..7000).step_by(300).for_each(|at| damage(&copy, RING + at));
    }
    assert!(!options(&second).check(&path).unwrap().is_clean());
    let error = options(&second).open(&path).unwrap_err().to_string();
    assert!(error.contains("no valid record"), "{error}");
}

/// A copy of the directory names the second copy of its original, and must not touch it.
#[test]
fn a_copied_store_leaves_the_originals_second_copy_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (path, second) = make(&dir);
    crashed(&dir, 2..5);
    let copy = dir.path().join("copy");
    support::copy_store(&path, &copy);
    let before = std::fs::read(&second).unwrap();
    let refused = options(&second).open(&copy).unwrap_err();
    assert!(matches!(refused, OpenError::Copied { .. }), "{refused}");
    let store = options(&second).copied(true).memory_kept(true).open(&copy).unwrap();
    commit(&store, 100).unwrap();
    assert_eq!(store.query().log_copies, 1);
    drop(store);
    assert_eq!(value(&options(&second).open(&copy).unwrap()), 100);
    assert!(std::fs::read(&second).unwrap() == before);
    let store = options(&second).open(&path).unwrap();
    assert_eq!((value(&store), store.query().log_copies), (4, 2));
}

#[test]
fn a_log_with_two_copies_gets_one_again_and_moves_then() {
    let dir = tempfile::tempdir().unwrap();
    let (path, second) = make(&dir);
    let third = dir.path().join("third");
    let store = options(&second).open(&path).unwrap();
    let mut elsewhere = options(&second);
    elsewhere.log_path(&third);
    let refused = store.relocate_log(&elsewhere).unwrap_err().to_string();
    assert!(refused.contains("simplex_log"), "{refused}");
    let mut same = options(&second);
    store.relocate_log(same.log_path(&second)).unwrap();
    store.relocate_log(options(&second).simplex_log()).unwrap();
    assert_eq!((store.query().log_copies, info(&path).unwrap().log.unwrap().second), (1, None));
    commit(&store, 2).unwrap();
    store.relocate_log(&elsewhere).unwrap();
    store.relocate_log(&duplexed(&second)).unwrap();
    store.relocate_log(&duplexed(&second)).unwrap();
    let own = store.relocate_log(&duplexed(&path.join("x"))).unwrap_err().to_string();
    assert!(own.contains("store's own"), "{own}");
    commit(&store, 3).unwrap();
    assert_eq!(store.query().log_copies, 2);
    drop(store);
    crashed(&dir, 4..6);
    std::fs::remove_file(&third).unwrap();
    assert_eq!(value(&options(&second).open(&path).unwrap()), 5);
}

#[test]
fn what_is_no_place_for_a_copy_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, second) = places(&dir);
    let store = options(&second).open(&path).unwrap();
    commit(&store, 1).unwrap();
    let refused = |at: &Path| store.relocate_log(&duplexed(at)).unwrap_err().to_string();
    let others = dir.path().join("others");
    drop(options(&second).open(&others).unwrap());
    assert!(refused(&others.join("log")).contains("part of a store"));
    assert!(refused(&path.join("data.segment")).contains("store's own"));
    assert!(refused(&dir.path().join("nowhere/log")).contains("No such file"));
    std::os::unix::fs::symlink(path.join("log"), dir.path().join("alias")).unwrap();
    println!("{}", refused(&dir.path().join("alias")));
    std::fs::hard_link(path.join("log"), dir.path().join("alias2")).unwrap();
    println!("{}", refused(&dir.path().join("alias2")));
    commit(&store, 2).unwrap();
    assert_eq!(store.query().log_copies, 1);
    let undo = options(&second).policy(Policy::Undo).duplex_log(&second).open(dir.path().join("u")).unwrap();
    assert!(!second.exists() && undo.query().log_bytes == 0);
}

/// The store goes on without a copy that fails, and nobody takes what that has for the log again.
#[test]
fn a_copy_that_fails_is_left_out_and_stays_out() {
    for (fails, operations) in [(0, 0), (0, 1), (0, 5), (1, 0), (1, 1), (1, 5)] {
        let dir = tempfile::tempdir().unwrap();
        let (path, second) = make(&dir);
        let copies = [path.join("log"), second.clone()];
        let failing = Failing::of(&copies[fails]);
        let store = options(&second).media(Arc::new(failing.clone())).open(&path).unwrap();
        failing.0.left.store(operations, Ordering::SeqCst);
        for value in 2..20 {
            commit(&store, value).unwrap();
        }
        assert_eq!((store.query().log_copies, store.query().failed), (1, false));
        drop(store);
        // What is left is lost, too, and the stale one is there: it must not pass for the store's.
        let aside = dir.path().join("aside");
        std::fs::rename(&copies[1 - fails], &aside).unwrap();
        let error = options(&second).open(&path).unwrap_err();
        assert!(matches!(error, OpenError::Io { action: "open log", .. }), "{error}");
        std::fs::rename(&aside, &copies[1 - fails]).unwrap();
        let store = options(&second).open(&path).unwrap();
        assert_eq!((value(&store), store.query().log_copies), (19, 1));
        // The medium was mended: it gets the log anew, where it was.
        store.relocate_log(&duplexed(&second)).unwrap();
        assert_eq!(store.query().log_copies, 2);
        drop(store);
        crashed(&dir, 20..22);
        std::fs::remove_file(&copies[1 - fails]).unwrap();
        // The file that is as it is to be takes part in the recovery; another one is made.
        let store = duplexed(&second).open(&path).unwrap();
        assert_eq!((value(&store), store.query().log_copies), (21, 2));
        // One that fails is taken up again by the process that has lost it, too.
        let failing = Failing::of(&copies[fails]);
        drop(store);
        let store = options(&second).media(Arc::new(failing.clone())).open(&path).unwrap();
        failing.0.left.store(0, Ordering::SeqCst);
        commit(&store, 22).unwrap();
        assert_eq!(store.query().log_copies, 1);
        failing.0.left.store(u64::MAX, Ordering::SeqCst);
        store.relocate_log(&duplexed(&second)).unwrap();
        assert_eq!(store.query().log_copies, 2);
    }
}

#[test]
fn when_both_fail_the_store_does() {
    let dir = tempfile::tempdir().unwrap();
    let (path, second) = make(&dir);
    let failing = Failing::of(&second);
    let store = options(&second).media(Arc::new(failing.clone())).open(&path).unwrap();
    failing.0.left.store(0, Ordering::SeqCst);
    commit(&store, 2).unwrap();
    // The only one is at another path now.
    assert_eq!(check(&path).unwrap().problems, []);
    drop(store);
    let failing = Failing::of(&path.join("log"));
    let store = options(&second).media(Arc::new(failing.clone())).open(&path).unwrap();
    failing.0.left.store(0, Ordering::SeqCst);
    assert!(commit(&store, 3).is_err() && store.query().failed);
    drop(store);
    assert!([2, 3].contains(&value(&options(&second).open(&path).unwrap())));
}

/// A sector of one copy cannot be read: of what is there, and of what is not.
#[test]
fn what_cannot_be_read_in_one_copy_is_read_in_the_other() {
    for (bad, sector) in [(0, 3), (0, 11), (0, 300), (1, 3), (1, 11), (1, 300)] {
        for written in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let (path, second) = make(&dir);
            crashed(&dir, 2..12);
            let copies = [path.join("log"), second.clone()];
            let failing = Failing::of(&copies[bad]);
            failing.0.unreadable.lock().unwrap().insert(RING as u64 / 512 + sector);
            let mut reads = options(&second);
            reads.media(Arc::new(failing.clone()));
            let report = reads.check(&path).unwrap();
            assert!(report.is_clean(), "{report:?}");
            if !written {
                failing.0.left.store(0, Ordering::SeqCst);
            }
            println!("copy {bad}, sector {sector}, written: {written}");
            let store = reads.open(&path).unwrap();
            assert_eq!(value(&store), 11, "copy {bad}, sector {sector}, written: {written}");
            commit(&store, 12).unwrap();
            store.close().unwrap();
            assert_eq!(value(&options(&second).copied(true).memory_kept(true).open(&path).unwrap()), 12);
        }
    }
}

/// Before it gives one up, the other one gets what it lacks.
#[test]
fn the_copy_that_is_kept_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (path, second) = make(&dir);
    let store = options(&second).background(false).open(&path).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    (2..22).for_each(|value| commit_to(&store, &region, value).unwrap());
    let log = options(&second).info(&path).unwrap().log.unwrap();
    let end = log.head + store.query().log_used;
    assert!(end > log.head + 10_000 && end < log.capacity);
    (log.head..end).step_by(1500).for_each(|lsn| damage(&path.join("log"), RING + lsn as usize));
    store.relocate_log(options(&second).simplex_log()).unwrap();
    commit_to(&store, &region, 22).unwrap();
    // Its own log tells the whole of it.
    assert_eq!(options(&second).check(&path).unwrap().problems, []);
    assert!(options(&second).history(&path).unwrap().live(&Filter::default(), false).unwrap().len() > 10);
}

#[test]
fn the_store_keeps_its_own_log_whatever_is_named_for_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    let (path, second) = places(&dir);
    let store = options(&second).open(&path).unwrap();
    commit(&store, 1).unwrap();
    let refused = store.relocate_log(&duplexed(&path.join("log"))).unwrap_err().to_string();
    assert!(refused.contains("there already"), "{refused}");
    drop(store);
    let error = duplexed(&path.join("log")).open(&path).unwrap_err().to_string();
    assert!(error.contains("there already"), "{error}");
    crashed(&dir, 2..4);
    assert_eq!(value(&options(&second).open(&path).unwrap()), 3);
}

/// With both outside of the store, as with two devices.
#[test]
fn a_program_that_always_names_both_goes_on_without_either() {
    for lost in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let (path, second) = places(&dir);
        let copies = [dir.path().join("first"), second.clone()];
        let both = || {
            let mut options = duplexed(&second);
            options.log_path(&copies[0]);
            options
        };
        let store = both().open(&path).unwrap();
        commit(&store, 1).unwrap();
        drop(store);
        crashed(&dir, 2..4);
        std::fs::remove_file(&copies[lost]).unwrap();
        let store = both().open(&path).unwrap();
        assert_eq!((value(&store), store.query().log_copies), (3, 2));
        assert!(copies[lost].exists() && !path.join("log").exists());
    }
}

/// The original was closed, and so is its copy, which nothing tells from a store that was moved but for the files.
#[test]
fn a_copy_of_a_closed_store_leaves_the_originals_second_copy_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (path, second) = make(&dir);
    let copy = dir.path().join("copy");
    support::copy_store(&path, &copy);
    let before = std::fs::read(&second).unwrap();
    for _ in 0..2 {
        let store = duplexed(&second).open(&copy).unwrap();
        commit(&store, 100).unwrap();
        assert_eq!(store.query().log_copies, 1);
    }
    assert!(std::fs::read(&second).unwrap() == before);
    let store = duplexed(&second).open(&path).unwrap();
    assert_eq!((value(&store), store.query().log_copies), (1, 2));
}

/// The second disk was not mounted, and the copy was made where it would be; then it is mounted, with what it had.
#[test]
fn another_file_in_the_place_of_a_copy_is_no_copy() {
    let dir = tempfile::tempdir().unwrap();
    let (path, second) = make(&dir);
    let before = dir.path().join("before");
    std::fs::rename(&second, &before).unwrap();
    for _ in 0..2 {
        let store = duplexed(&second).open(&path).unwrap();
        assert_eq!(store.query().log_copies, 2);
        drop(store);
        crashed(&dir, 2..9);
        std::fs::remove_file(&second).unwrap();
        std::fs::copy(&before, &second).unwrap();
        let store = options(&second).open(&path).unwrap();
        assert_eq!((value(&store), store.query().log_copies), (8, 1));
        drop(store);
        // What is there was a copy, and may be one again.
        let store = duplexed(&second).open(&path).unwrap();
        assert_eq!((value(&store), store.query().log_copies), (8, 2));
    }
}

/// The list names it, and nobody else.
#[test]
fn what_is_there_now_is_not_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let (path, second) = places(&dir);
    let elsewhere = tempfile::tempdir().unwrap();
    let first = elsewhere.path().join("first");
    let mut both = duplexed(&second);
    drop(both.log_path(&first).open(&path).unwrap());
    std::fs::write(&first, vec![7; 300 << 10]).unwrap();
    // Neither if it is not listed, nor if it is.
    for listed in [false, true] {
        let mut options = duplexed(&second);
        if listed {
            options.outside(elsewhere.path());
        }
        let opened = options.open(&path);
        println!("{:?}", opened.as_ref().err());
        assert_eq!(opened.is_ok_and(|store| store.query().log_copies == 1), listed);
        assert!(std::fs::read(&first).unwrap().iter().all(|byte| *byte == 7));
    }
}

#[test]
fn a_copy_of_a_store_opens_beside_its_original() {
    let dir = tempfile::tempdir().unwrap();
    let (path, second) = make(&dir);
    let copy = dir.path().join("copy");
    support::copy_store(&path, &copy);
    let original = options(&second).open(&path).unwrap();
    let region = original.segment("data").unwrap().map_all().unwrap();
    commit_to(&original, &region, 50).unwrap();
    let mut reads = options(&second);
    reads.create(false).read_only(true);
    assert_eq!(value(&reads.open(&copy).unwrap()), 1, "what the original has done since is not the copy's");
    let store = options(&second).open(&copy).unwrap();
    assert_eq!((value(&store), store.query().log_copies), (1, 1));
    assert_eq!(original.query().log_copies, 2);
}

/// One is lost, and the other was replaced by what it once was: nobody says that this is all.
#[test]
fn an_older_file_alone_is_not_taken_for_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let (path, second) = make(&dir);
    let before = dir.path().join("before");
    std::fs::copy(&second, &before).unwrap();
    crashed(&dir, 2..9);
    std::fs::remove_file(path.join("log")).unwrap();
    std::fs::remove_file(&second).unwrap();
    std::fs::rename(&before, &second).unwrap();
    let refused = options(&second).open(&path).unwrap_err();
    assert!(matches!(refused, OpenError::Copied { .. }), "{refused}");
    let refused = options(&second).copied(true).memory_kept(true).open(&path).unwrap_err().to_string();
    assert!(refused.contains("second") && refused.contains("an older copy"), "{refused}");
}

#[test]
fn copies_that_both_say_nothing_are_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (path, second) = make(&dir);
    for copy in [path.join("log"), second.clone()] {
        [20, 4116].iter().for_each(|at| damage(&copy, *at));
    }
    assert!(!options(&second).check(&path).unwrap().is_clean());
    assert!(matches!(options(&second).open(&path).unwrap_err(), OpenError::Log(_)));
}
