//! Programs that just store: changes that are found by page faults.

mod support;

use caliburn::BeforeImages::{self, Adaptive, Eager};
use caliburn::{
    Class, DumpOptions, MapError, Mode, OpenError, Options, Policy, Region, RestoreOptions, Store, Tracking,
};
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use support::{copy_store, limit_files, set};

const LEN: usize = 1 << 20;
const ALL: [Kind; 4] =
    [(Policy::Shadow, Eager), (Policy::Shadow, Adaptive), (Policy::Undo, Eager), (Policy::Redo, Eager)];

type Kind = (Policy, BeforeImages);

fn options((policy, before): Kind) -> Options {
    let mut options = support::options();
    options.policy(policy).tracking(Tracking::Fault).before_images(before).log_bytes(4 << 20);
    options
}

fn opened(path: &Path, kind: Kind) -> (Store, Region) {
    let store = options(kind).open(path).unwrap();
    let region = store.segment_or_create("data", LEN as u64).unwrap().map_all().unwrap();
    (store, region)
}

/// Some tests fill what they are about to the page.
fn pages_are_small() -> bool {
    // SAFETY: takes a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) == 4096 }
}

fn word(region: &Region, at: usize) -> u64 {
    region.load(at)
}

#[test]
fn a_program_just_stores() {
    for kind in ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (store, region) = opened(&path, kind);
        for turn in 1..=3u64 {
            let tx = store.begin(Mode::Restore).unwrap();
            (0..100).for_each(|i| set(&region, i * 9001, turn));
            tx.commit(Class::Process).unwrap();
            // What is stored again is found again.
            let tx = store.begin(Mode::Restore).unwrap();
            (0..100).for_each(|i| set(&region, i * 9001, 99));
            (0..LEN / 8).for_each(|i| set(&region, i * 8, 98));
            tx.abort();
            assert!((0..100).all(|i| word(&region, i * 9001) == turn), "{kind:?}");
        }
        drop(region);
        store.close().unwrap();
        let (_store, region) = opened(&path, kind);
        assert!((0..100).all(|i| word(&region, i * 9001) == 3));
    }
}

/// In memory that is taken for persistent, what was found is sealed, and written back, as what was declared.
#[test]
fn a_program_just_stores_to_persistent_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s"), dir.path().join("c"));
    let with = || {
        let mut with = options((Policy::Undo, Eager));
        with.memory_survives(Class::Power);
        with
    };
    let store = with().open(&path).unwrap();
    let region = store.create_segment("data", LEN as u64).unwrap().map_all().unwrap();
    for turn in 1..=3u64 {
        let tx = store.begin(Mode::Restore).unwrap();
        (0..LEN / 8).for_each(|i| set(&region, i * 8, turn));
        if turn == 2 {
            tx.abort()
        } else {
            tx.commit(Class::Power).unwrap()
        }
        let there = if turn == 2 { 1 } else { turn };
        assert!((0..LEN / 8).all(|i| word(&region, i * 8) == there));
    }
    let tx = store.begin(Mode::Restore).unwrap();
    (0..LEN / 8).for_each(|i| set(&region, i * 8, 4));
    copy_store(&path, &copy);
    drop(tx);
    let store = with().open(&copy).unwrap();
    let region = store.segment("data").unwrap().map_all().unwrap();
    assert!((0..LEN / 8).all(|i| word(&region, i * 8) == 3));
}

#[test]
fn declared_ranges_and_found_pages_mix() {
    for kind in ALL {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = opened(&dir.path().join("s"), kind);
        for commits in [true, false] {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.store(&region, 100, &1u64).unwrap();
            set(&region, 200, 2);
            set(&region, 5000, 3);
            tx.store(&region, 5100, &4u64).unwrap();
            // Over several pages, of which some are open.
            tx.write(&region, 3000, &[5; 20_000]).unwrap();
            set(&region, 22_000, 6);
            if commits {
                tx.commit(Class::Process).unwrap()
            } else {
                tx.abort()
            }
            assert_eq!((word(&region, 100), word(&region, 200), word(&region, 22_000)), (1, 2, 6));
        }
    }
}

#[test]
fn a_killed_process_leaves_what_was_committed() {
    for kind in ALL {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("s"), dir.path().join("c"));
        let (store, region) = opened(&path, kind);
        let tx = store.begin(Mode::NoRestore).unwrap();
        set(&region, 40, 1);
        tx.commit(Class::Process).unwrap();
        let tx = store.begin(Mode::NoRestore).unwrap();
        (0..LEN / 8).for_each(|i| set(&region, i * 8, 2));
        copy_store(&path, &copy);
        let (_second, restored) = opened(&copy, kind);
        assert!((0..LEN / 8).all(|i| word(&restored, i * 8) == u64::from(i == 5)), "{kind:?}");
        tx.commit(Class::Process).unwrap();
        assert_eq!(word(&region, 40), 2);
    }
}

#[test]
fn many_threads_store_at_once() {
    for kind in ALL {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = opened(&dir.path().join("s"), kind);
        support::many_threads_store(&store, &region);
    }
}

/// More pages apart than the system gives mappings for.
#[test]
fn scattered_pages_do_not_run_out_of_mappings() {
    const PAGES: usize = 80_000;
    if !pages_are_small() {
        return;
    }
    for before in [Eager, Adaptive] {
        scattered_pages(PAGES, before);
    }
}

fn scattered_pages(pages: usize, before: BeforeImages) {
    let dir = tempfile::tempdir().unwrap();
    let store = options((Policy::Shadow, before)).open(dir.path().join("s")).unwrap();
    let segment = store.create_segment("large", (pages * 4096) as u64).unwrap();
    let region = segment.map_all().unwrap();
    let tx = store.begin(Mode::NoRestore).unwrap();
    // Every second page, the far ones first, up to where runs get wider; then some of the rest.
    (0..18_000).for_each(|i| set(&region, (pages - 1 - i * 2) * 4096, 7));
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    assert!(mappings < 60_000, "{mappings}");
    tx.abort();
    assert!((0..pages).all(|page| word(&region, page * 4096) == 0));
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    assert!(mappings < 1000, "{mappings}");
}

#[test]
fn a_system_call_stores_to_what_was_declared() {
    for before in [Eager, Adaptive] {
        a_system_call_stores(before);
    }
}

fn a_system_call_stores(before: BeforeImages) {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"), (Policy::Shadow, before));
    let mut tx = store.begin(Mode::Restore).unwrap();
    let read = |at: usize| {
        // SAFETY: the bytes are mapped, and nobody else uses them.
        let target = unsafe { std::slice::from_raw_parts_mut(region.as_ptr().add(at), 5000) };
        std::fs::File::open("/proc/self/exe").unwrap().read_exact(target)
    };
    assert_eq!(read(8192).unwrap_err().raw_os_error(), Some(14), "EFAULT");
    tx.set_range(&region, 8192..8192 + 5000).unwrap();
    read(8192).unwrap();
    assert_ne!(word(&region, 8192), 0);
    tx.abort();
    assert_eq!(word(&region, 8192), 0);
}

/// Also where nothing is declared, and no set says what was changed.
#[test]
fn a_region_that_was_stored_to_stays_mapped() {
    for kind in ALL {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = opened(&dir.path().join("s"), kind);
        let tx = store.begin(Mode::Restore).unwrap();
        set(&region, 4096, 1);
        let refused = region.unmap().unwrap_err();
        assert!(matches!(refused.cause, MapError::Uncommitted { .. }), "{kind:?}: {}", refused.cause);
        tx.commit(Class::Process).unwrap();
        assert_eq!(word(&refused.region, 4096), 1);
        refused.region.unmap().unwrap();
    }
}

#[test]
fn what_cannot_be_had_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let both = options((Policy::Undo, Eager)).verify(true).open(dir.path().join("s")).unwrap_err();
    assert!(matches!(both, OpenError::Option { name: "verify", .. }), "{both}");
    let (store, _region) = opened(&dir.path().join("t"), (Policy::Undo, Eager));
    let mut tx = store.begin(Mode::Restore).unwrap();
    assert!(tx.savepoint().is_err() && tx.branch().is_err() && store.begin(Mode::Restore).is_err());
    assert!(tx.prepare(b"id").is_err());
}

/// A transaction that is too large for the log is lost, and nothing else.
#[test]
fn what_the_log_cannot_take_is_undone() {
    if !pages_are_small() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut options = options((Policy::Redo, Eager));
    let store = options.large_transactions(false).log_bytes(1 << 20).open(dir.path().join("s")).unwrap();
    let region = store.create_segment("data", LEN as u64).unwrap().map_all().unwrap();
    let tx = store.begin(Mode::Restore).unwrap();
    // Where several pages at once are too much, one by one they are not.
    (0..120).for_each(|page| set(&region, page * 4096 + 8, 1));
    tx.commit(Class::Process).unwrap();
    for commits in [true, false] {
        let tx = store.begin(Mode::Restore).unwrap();
        (0..256).for_each(|page| set(&region, page * 4096 + 8, 2));
        store.truncate().unwrap();
        if commits {
            let lost = tx.commit(Class::Process).unwrap_err().to_string();
            assert!(lost.contains("need a log of at least"), "{lost}");
        } else {
            tx.abort();
        }
        assert!((0..256).all(|page| word(&region, page * 4096 + 8) == u64::from(page < 120)));
    }
    store.truncate().unwrap();
    drop(region);
    store.close().unwrap();
    let (_store, region) = opened(&dir.path().join("s"), (Policy::Redo, Eager));
    assert!((0..256).all(|page| word(&region, page * 4096 + 8) == u64::from(page < 120)));
}

/// Whole pages are logged: what was aborted must not be in one.
#[test]
fn what_was_aborted_is_part_of_no_later_commit() {
    for kind in ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (store, region) = opened(&path, kind);
        let tx = store.begin(Mode::NoRestore).unwrap();
        set(&region, 4096, 9);
        tx.abort();
        let tx = store.begin(Mode::NoRestore).unwrap();
        set(&region, 4104, 1);
        tx.commit(Class::Process).unwrap();
        drop(region);
        store.close().unwrap();
        let (_store, region) = opened(&path, kind);
        assert_eq!((word(&region, 4096), word(&region, 4104)), (0, 1), "{kind:?}");
    }
}

/// A dump is of a moment at which no transaction had stored anything.
#[test]
fn a_dump_has_no_part_of_a_transaction() {
    const WIDE: usize = 32 << 20;
    const STEP: usize = 1 << 20;
    for kind in [(Policy::Shadow, Eager), (Policy::Shadow, Adaptive), (Policy::Undo, Eager)] {
        let dir = tempfile::tempdir().unwrap();
        let store = options(kind).open(dir.path().join("s")).unwrap();
        let region = store.create_segment("data", WIDE as u64).unwrap().map_all().unwrap();
        let tx = store.begin(Mode::Restore).unwrap();
        (0..WIDE / 4096).for_each(|page| set(&region, page * 4096 + 8, 1));
        tx.commit(Class::Process).unwrap();
        let begun = &Barrier::new(2);
        let dumps: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let (store, region) = (&store, &region);
            scope.spawn(move || {
                for turn in 1..=4 {
                    let tx = store.begin(Mode::Restore).unwrap();
                    begun.wait();
                    // It stores while the dump reads. If it does so before, the dump waits, and shows nothing.
                    std::thread::sleep(Duration::from_millis(turn));
                    (0..WIDE).step_by(STEP).for_each(|at| set(region, at, turn));
                    tx.commit(Class::Process).unwrap();
                }
            });
            let dump = |_| {
                let mut dump = Vec::new();
                begun.wait();
                store.dump(&DumpOptions::new(), &mut dump).unwrap();
                dump
            };
            (1..=4).map(dump).collect()
        });
        for (number, dump) in dumps.iter().enumerate() {
            let to = dir.path().join(number.to_string());
            Options::new().restore(&mut &dump[..], &RestoreOptions::new(), &to).unwrap();
            let store = Store::options().read_only(true).open(&to).unwrap();
            let region = store.segment("data").unwrap().map_all().unwrap();
            let first = word(&region, 0);
            let other = (0..WIDE).step_by(STEP).find(|at| word(&region, *at) != first);
            assert_eq!(other, None, "{kind:?}, dump {number}");
        }
    }
}

/// A child that stores; this process tells what it ended by.
fn in_a_child(store: &Store, region: &Region) {
    let _tx = store.begin(Mode::Restore).unwrap();
    // SAFETY: the child does nothing but store and end.
    if unsafe { libc::fork() } == 0 {
        set(region, 12_345, 1);
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child.
    unsafe { libc::wait(&raw mut status) };
    std::process::exit(100 + libc::WTERMSIG(status));
}

/// A handler that was put in place of ours gets what is not ours.
fn with_another_handler(store: &Store, region: &Region) {
    static COMMITTED: AtomicBool = AtomicBool::new(false);
    extern "C" fn other(_: libc::c_int) {
        // SAFETY: ends the process.
        unsafe { libc::_exit(if COMMITTED.load(SeqCst) { 77 } else { 78 }) };
    }
    // SAFETY: the handler does nothing but end the process.
    unsafe { libc::signal(libc::SIGSEGV, other as *const () as libc::sighandler_t) };
    let tx = store.begin(Mode::Restore).unwrap();
    set(region, 12_345, 1);
    tx.commit(Class::Power).unwrap();
    assert_eq!(word(region, 12_345), 1);
    COMMITTED.store(true, SeqCst);
    // What is not ours goes to it.
    // SAFETY: nothing is there, which is what it is for.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(64).write_volatile(1) };
}

/// The log of before-images cannot become longer: the transaction is lost, and nothing else.
fn on_a_full_disk(dir: &Path, store: Store, region: Region) {
    let tx = store.begin(Mode::Restore).unwrap();
    set(&region, 0, 1);
    tx.commit(Class::Power).unwrap();
    limit_files(std::fs::metadata(dir.join("s/shadow")).unwrap().len());
    for commits in [true, false] {
        let tx = store.begin(Mode::Restore).unwrap();
        (0..256).for_each(|page| set(&region, page * 4096 + 8, 2));
        assert!((0..256).all(|page| word(&region, page * 4096 + 8) == 2), "it sees what it stored");
        if commits {
            let lost = tx.commit(Class::Power).unwrap_err().to_string();
            assert!(lost.contains("old values could not be kept"), "{lost}");
        } else {
            tx.abort();
        }
        assert!((0..256).all(|page| word(&region, page * 4096 + 8) == 0));
    }
    // Room comes back in the middle: what was lost is lost.
    let mut tx = store.begin(Mode::Restore).unwrap();
    (0..256).for_each(|page| set(&region, page * 4096 + 8, 2));
    limit_files(libc::RLIM_INFINITY);
    tx.set_range(&region, 0..LEN).unwrap();
    (0..256).for_each(|page| set(&region, page * 4096 + 8, 2));
    assert!(tx.commit(Class::Power).is_err());
    assert!((0..256).all(|page| word(&region, page * 4096 + 8) == 0));
    let tx = store.begin(Mode::Restore).unwrap();
    (0..256).for_each(|page| set(&region, page * 4096 + 8, 3));
    tx.commit(Class::Power).unwrap();
    drop(region);
    store.close().unwrap();
    let (_store, region) = opened(&dir.join("s"), (Policy::Shadow, Eager));
    assert!((0..256).all(|page| word(&region, page * 4096 + 8) == 3));
    std::process::exit(55);
}

/// Without a transaction, and in a forked child, a store ends the process, with a message; what others' handlers get
/// they get still, also those that were put in place of ours.
#[test]
fn stores_that_are_nobodys_end_the_process() {
    const KIND: &str = "CALIBURN_FAULTS_KIND";
    if let Some(kind) = std::env::var_os(KIND) {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = opened(&dir.path().join("s"), (Policy::Shadow, Eager));
        match kind.to_str().unwrap() {
            "outside" => set(&region, 12_345, 1),
            "forked" => in_a_child(&store, &region),
            "replaced" => with_another_handler(&store, &region),
            "full" => on_a_full_disk(dir.path(), store, region),
            _ => unreachable!(),
        }
        std::process::exit(3);
    }
    let run = |kind: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "stores_that_are_nobodys_end_the_process", "--nocapture"]).env(KIND, kind);
        let output = command.output().unwrap();
        (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    use std::os::unix::process::ExitStatusExt;
    let (status, text) = run("outside");
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{text}");
    assert!(text.contains("segment \"data\", byte 12345"), "{text}");
    let (status, text) = run("forked");
    assert_eq!(status.code(), Some(100 + libc::SIGSEGV), "{text}");
    assert!(text.contains("byte 12345"), "{text}");
    let (status, text) = run("replaced");
    assert_eq!(status.code(), Some(77), "{text}");
    if pages_are_small() {
        let (status, text) = run("full");
        assert_eq!(status.code(), Some(55), "{text}");
    }
}
