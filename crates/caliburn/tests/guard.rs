//! Stores that no transaction declared: the guard prevents them, the verifier finds them.

mod support;

use caliburn::{Class, Guard, Mode, Options, Policy, Region, Store};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use support::clean;

const POLICIES: [Policy; 2] = [Policy::Redo, Policy::Undo];

fn options(policy: Policy) -> Options {
    let mut options = support::options();
    options.policy(policy);
    options
}

fn open(options: &Options, path: &Path) -> (Store, Region) {
    let store = options.open(path).unwrap();
    let region = store.segment_or_create("data", 1 << 20).unwrap().map_all().unwrap();
    (store, region)
}

/// Stores without a word.
fn poke(region: &Region, offset: usize, value: u64) {
    // SAFETY: within the region; no other thread uses these bytes. That it was not declared is the point.
    unsafe { region.as_ptr().add(offset).cast::<u64>().write(value) };
}

/// Run in the child: uses a guarded store as it should be, then as it should not.
#[test]
fn child() {
    let Ok(what) = std::env::var("CALIBURN_GUARD") else { return };
    let words: Vec<&str> = what.split(' ').collect();
    let [policy, guard, when, path] = words[..] else { panic!("{what}") };
    let policy = if policy == "undo" { Policy::Undo } else { Policy::Redo };
    let guard = if guard == "keys" { Guard::Keys } else { Guard::Pages };
    let (store, region) = open(options(policy).guard(guard), Path::new(path));
    let change = |value: u64| {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.set_range(&region, 0..8).unwrap();
        poke(&region, 0, value);
        tx.store(&region, 4096, &value).unwrap();
        tx
    };
    // Two at a time on one thread: the first to end must not take the right from the other.
    let mut long = store.begin(Mode::Restore).unwrap();
    long.set_range(&region, 65536..65544).unwrap();
    change(1).commit(Class::Process).unwrap();
    poke(&region, 65536, 5);
    long.commit(Class::Process).unwrap();
    change(2).abort();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (store, region) = (&store, &region);
            scope.spawn(move || {
                for i in 0..200u64 {
                    let mut tx = store.begin(Mode::Restore).unwrap();
                    tx.set_range(region, 8192 + thread * 64..8200 + thread * 64).unwrap();
                    poke(region, 8192 + thread * 64, i);
                    if i % 3 == 0 { tx.abort() } else { tx.commit(Class::Process).unwrap() }
                }
            });
        }
    });
    store.segment("data").unwrap().grow(2 << 20).unwrap();
    region.grow(2 << 20).unwrap();
    assert_eq!((region.load::<u64>(0), region.load::<u64>(65536), region.load::<u64>(8192)), (1, 5, 199));
    println!("ready");
    match when {
        "once" => poke(&region, 12352, 7),
        "grown" => poke(&region, (2 << 20) - 8, 7),
        "cut" => {
            let file = std::fs::OpenOptions::new().write(true).open(Path::new(path).join("data.segment"));
            file.unwrap().set_len(65536 + 8192).unwrap();
            region.load::<u64>(1 << 20);
        }
        "never" => {
            drop(region);
            store.close().unwrap();
            return;
        }
        other => panic!("{other}"),
    }
    println!("survived");
}

fn run(policy: &str, guard: &str, when: &str, path: &Path) -> (std::process::ExitStatus, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("CALIBURN_GUARD", format!("{policy} {guard} {when} {}", path.display()))
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("ready") && !text.contains("survived"), "{policy} {guard} {when}: {text}");
    (output.status, text)
}

#[test]
fn what_faults_ends_the_process_and_says_where() {
    let keys =
        options(Policy::Redo).guard(Guard::Keys).open(tempfile::tempdir().unwrap().path().join("s")).is_ok();
    assert!(keys || std::env::var_os("CALIBURN_KEYS").is_none(), "no protection keys, where there must be");
    for policy in ["redo", "undo"] {
        for guard in ["pages", "keys"].into_iter().filter(|guard| *guard == "pages" || keys) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("s");
            for (when, place) in [("once", "byte 12352 "), ("grown", "byte 2097144 ")] {
                let (status, text) = run(policy, guard, when, &path);
                assert_eq!(status.signal(), Some(11), "{policy} {guard} {when}: {text}");
                assert!(text.contains("segment \"data\"") && text.contains(place), "{text}");
            }
            let (status, text) = run(policy, guard, "cut", &path);
            assert_eq!(status.signal(), Some(7), "{policy} {guard}: {text}");
            assert!(text.contains("segment \"data\", byte 1048576 ") && text.contains("cut off"), "{text}");
            std::fs::remove_dir_all(&path).unwrap();
            let (status, text) = run(policy, guard, "never", &path);
            assert!(status.success(), "{policy} {guard}: {text}");
            clean(&path);
        }
    }
}

#[test]
fn the_verifier_finds_what_was_not_declared() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = open(options(policy).guard(Guard::Off).verify(true), &dir.path().join("s"));
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.set_range(&region, 100..200).unwrap();
        tx.write(&region, 150, &[1; 50]).unwrap();
        assert_eq!(store.undeclared(), []);
        // Declared: 100..200. Changed: 192..208.
        poke(&region, 192, u64::MAX);
        poke(&region, 200, u64::MAX);
        let found = store.undeclared();
        assert_eq!(found.len(), 1);
        assert_eq!((&*found[0].segment, found[0].offset, found[0].len), ("data", 200, 8));
        let committed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tx.commit(Class::Process)));
        let panic = committed.unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(
            text.contains("8 byte(s) at 200 of segment \"data\"") && text.contains("set_range"),
            "{text}"
        );
        // The transaction was aborted; the stray store is still there, until it is taken back.
        assert_eq!((region.load::<u64>(192), region.load::<u64>(200)), (0, u64::MAX));
        poke(&region, 200, 0);
        assert_eq!(store.undeclared(), []);
        support::put(&store, &region, 200, 3, Class::Process);
        assert_eq!(store.undeclared(), []);
        drop(region);
        store.close().unwrap();
    }
}

#[test]
fn the_verifier_and_the_guard_find_nothing_where_nothing_is_wrong() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = open(options(policy).guard(Guard::Pages).verify(true), &dir.path().join("s"));
        let (store, region) = (&store, &region);
        std::thread::scope(|scope| {
            for thread in 0..3usize {
                scope.spawn(move || {
                    for i in 1..120u64 {
                        let mut tx = store.begin(Mode::Restore).unwrap();
                        // More than a slot holds, overlapping.
                        for k in 0..(i as usize % 30) {
                            let at = thread * 65536 + k * 50 % 900;
                            tx.write(region, at, &[i as u8; 70]).unwrap();
                        }
                        if i % 4 == 0 { tx.abort() } else { tx.commit(Class::Process).unwrap() }
                    }
                });
            }
            scope.spawn(move || {
                for i in 2..8u64 {
                    store.segment("data").unwrap().grow(i << 20).unwrap();
                    region.grow((i as usize) << 20).unwrap();
                }
            });
        });
        store.truncate().unwrap();
        assert_eq!(store.undeclared(), []);
    }
}

/// Undecided transactions, decided by this process and by the next, change memory outside of any transaction's
/// life.
#[test]
fn prepared_transactions_pass_the_guard_and_the_verifier() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut options = options(Policy::Redo);
    options.guard(Guard::Pages).verify(true);
    let prepare = |store: &Store, region: &Region, id: &[u8], offset: usize| {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(region, offset, &7u64).unwrap();
        tx.prepare(id).unwrap();
    };
    let (store, region) = open(&options, &path);
    prepare(&store, &region, b"a", 0);
    prepare(&store, &region, b"b", 64);
    prepare(&store, &region, b"c", 128);
    store.commit_prepared(b"a").unwrap();
    store.abort_prepared(b"b").unwrap();
    assert_eq!(store.undeclared(), []);
    let copy = dir.path().join("copy");
    support::copy_store(&path, &copy);
    let (next, there) = open(&options, &copy);
    next.commit_prepared(b"c").unwrap();
    assert_eq!(next.undeclared(), []);
    support::put(&next, &there, 256, 1, Class::Process);
    assert_eq!([0, 64, 128].map(|at| there.load::<u64>(at)), [7, 0, 7]);
    store.abort_prepared(b"c").unwrap();
}

/// A declaration that failed, of a transaction that was then forgotten, keeps nothing that refers to its region.
#[test]
fn a_forgotten_transaction_whose_declaration_failed_does_not_outlive_its_region() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(Policy::Redo);
    options.guard(Guard::Pages).large_transactions(false);
    let (store, region) = open(&options, &dir.path().join("s"));
    let mut tx = store.begin(Mode::Restore).unwrap();
    assert!(tx.set_range(&region, 0..1 << 20).is_err(), "the log is too small for that");
    std::mem::forget(tx);
    region.unmap().unwrap();
    assert!(store.close().is_err());
}
