//! Recovery takes no more memory than the run did, whatever the logs hold: a process in a control group of 64 MB
//! changes more than that in a transaction, or leaves more in the log, and is killed. In the same group its store is
//! checked, described, shown, salvaged, recovered and dumped.

mod support;

use caliburn::{
    BeforeImages, BufferPool, Class, CommitError, DumpOptions, Guard, Mode, Options, Policy, Region,
    Replacement, Store, Tracking, Transaction, Tuning,
};
use std::path::Path;

const LIMIT: u64 = 64 << 20;
const DATA: u64 = LIMIT / 2 * 3;
const PAGE: usize = 4096;
/// The test reads a word at each of these places of a page.
const CHECKED: [usize; 4] = [0, 512, PAGE / 2, PAGE - 8];
const PAGES: usize = DATA as usize / PAGE;
/// Offset of the word that shows which transaction was committed last.
const LAST: usize = DATA as usize - 8;

fn options(world: &str) -> Options {
    let mut options = Store::options();
    options.create(true).guard(Guard::Off).log_bytes(8 << 20).stage_bytes(4 << 20);
    match world.split(' ').next().unwrap() {
        "undo" => options.policy(Policy::Undo),
        "sealed" => options.policy(Policy::Undo).memory_survives(Class::Os),
        "shadow" => options.policy(Policy::Shadow),
        "faults" => {
            options.policy(Policy::Shadow).tracking(Tracking::Fault).before_images(BeforeImages::Eager)
        }
        "pool" => options.policy(Policy::Shadow).tracking(Tracking::Fault).buffer_pool(BufferPool {
            bytes: 8 << 20,
            page_bytes: 64 << 10,
            replacement: Replacement::Random,
        }),
        "lost" => options.tracking(Tracking::Fault).large_transactions(false),
        "redo" => {
            options.tuning(Tuning { merge_lazy: false, ..Tuning::default() });
            options.log_bytes(4 * DATA).background(false)
        }
        _ => panic!("no world {world:?}"),
    };
    options
}

fn map(store: &Store) -> Region {
    store.segment_or_create("data", DATA).unwrap().map_all().unwrap()
}

/// The last page is committed, and stays.
fn pages() -> std::ops::Range<usize> {
    0..PAGES - 1
}

fn write<'t>(tx: &mut Transaction<'t>, memory: &'t Region, pages: std::ops::Range<usize>) {
    pages.for_each(|page| tx.write(memory, page * PAGE, &[1; PAGE]).unwrap());
}

/// Changes all pages but the last, and ends the process as a kill does.
fn make(world: &str, path: &Path) -> ! {
    let store = options(world).open(path).unwrap();
    let memory = map(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&memory, LAST, &7u64).unwrap();
    tx.commit(store.reach()).unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    match world.split_once(' ').map_or("", |(_, what)| what) {
        "" => write(&mut tx, &memory, pages()),
        // Each word of a part by itself.
        "words" => (0..DATA as usize / 64 / 8 * 8)
            .step_by(8)
            .for_each(|i| tx.store(&memory, i * 3, &u64::MAX).unwrap()),
        "branches" => {
            let half = pages().end / 2;
            write(&mut tx, &memory, 0..half);
            let mut branch = tx.branch().unwrap();
            write(&mut branch, &memory, half / 2..pages().end);
            std::mem::forget(branch);
        }
        "prepared" => {
            write(&mut tx, &memory, 0..PAGES / 4);
            tx.prepare(b"undecided").unwrap();
            std::process::exit(0)
        }
        "caught" => pages().for_each(|page| support::set(&memory, page * PAGE, 1)),
        // Each by itself, so that all of it is in the log.
        "committed" => {
            drop(tx);
            for page in pages() {
                let mut tx = store.begin(Mode::Restore).unwrap();
                tx.write(&memory, page * PAGE, &[1; PAGE]).unwrap();
                tx.commit(Class::Process).unwrap();
                if page % 256 == 255 {
                    store.tend_flush(true).unwrap();
                }
            }
            println!("{} bytes of the log are in use", store.query().log_used);
        }
        // The log has millions of ranges, and their places do not fit in memory.
        "rounds committed" => {
            drop(tx);
            let commit = |pages: std::ops::Range<usize>, value: u8| {
                let mut tx = store.begin(Mode::Restore).unwrap();
                for page in pages {
                    CHECKED.iter().for_each(|at| tx.write(&memory, page * PAGE + at, &[value; 8]).unwrap());
                }
                tx.commit(Class::Process).unwrap();
                store.tend_flush(false).unwrap();
            };
            pages().for_each(|page| commit(page..page + 1, 1));
            (0..600u32).for_each(|round| commit(0..1024, round as u8));
            commit(0..1024, 1);
            println!("{} bytes of the log are in use", store.query().log_used);
        }
        what => panic!("no {what:?}"),
    }
    std::process::exit(0)
}

/// Stores to all pages but the last in a transaction that cannot commit.
fn lose(world: &str, path: &Path) {
    let store = options(world).open(path).unwrap();
    let memory = map(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&memory, LAST, &7u64).unwrap();
    tx.commit(store.reach()).unwrap();
    for _ in 0..2 {
        let tx = store.begin(Mode::Restore).unwrap();
        pages().for_each(|page| support::set(&memory, page * PAGE, 1));
        assert!(pages().all(|page| memory.load::<u64>(page * PAGE) == 1));
        assert!(matches!(tx.commit(store.reach()), Err(CommitError::Range(_))));
        shows(world, &memory);
    }
    support::put(&store, &memory, 8, 9, Class::Power);
    assert_eq!(memory.load::<u64>(8), 9);
}

/// Whether memory shows what was committed, and nothing else.
fn shows(world: &str, memory: &Region) {
    assert_eq!(memory.load::<u64>(LAST), 7);
    let there = if world.ends_with("committed") { u64::from_ne_bytes([1; 8]) } else { 0 };
    for page in pages() {
        for at in CHECKED {
            assert_eq!(memory.load::<u64>(page * PAGE + at), there, "byte {at} of page {page}");
        }
    }
}

/// Run in the child, inside the group.
#[test]
fn child() {
    let Some((what, path)) = support::inside() else { return };
    let (act, world) = what.split_once(' ').unwrap();
    let undecided = u64::from(world.ends_with("prepared"));
    match act {
        "make" => make(world, &path),
        "lose" => lose(world, &path),
        "check" => {
            let report = options(world).check(&path).unwrap();
            assert!(report.is_clean(), "{:#?}", report.problems);
            assert_eq!(report.prepared, undecided);
        }
        "closed" => {
            let report = options(world).check(&path).unwrap();
            assert!(report.is_clean() && report.prepared == 0, "{:#?}", report.problems);
        }
        "info" => assert!(!options(world).info(&path).unwrap().clean),
        "show" | "salvage" => {
            let mut options = Store::options();
            let store = options.read_only(true).salvage(act == "salvage").open(&path).unwrap();
            shows(world, &store.segment("data").unwrap().map_all().unwrap());
        }
        "open" => {
            let mut options = options(world);
            let store = options.create(false).open(&path).unwrap();
            shows(world, &map(&store));
            if undecided > 0 {
                assert_eq!(store.prepared().len(), 1);
                store.commit_prepared(b"undecided").unwrap();
                let memory = map(&store);
                assert!((0..PAGES / 4).all(|page| memory.load::<u8>(page * PAGE + 5) == 1));
            }
            store.close().unwrap();
        }
        "dump" => {
            let dumped = Options::new().dump(&path, &DumpOptions::new(), &mut std::io::sink()).unwrap();
            assert!(dumped.data_bytes > 0);
        }
        _ => panic!("{act}"),
    }
}

#[track_caller]
fn within(world: &str) {
    // Not in memory: what does not fit must have a disk to go to.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("s");
    for act in ["make", "check", "info", "show", "salvage", "open", "closed", "dump"] {
        if act == "make" || path.exists() {
            let begun = std::time::Instant::now();
            support::in_group(LIMIT, &format!("{act} {world}"), &path);
            println!("{act} {world}: {:?}", begun.elapsed());
        }
    }
}

#[test]
fn an_undo_transaction() {
    within("undo");
}

#[test]
fn an_undo_transaction_of_many_small_ranges() {
    within("undo words");
}

#[test]
fn an_undo_transaction_with_a_branch() {
    within("undo branches");
}

#[test]
fn an_undo_transaction_in_persistent_memory() {
    within("sealed");
}

#[test]
fn an_undecided_undo_transaction() {
    within("undo prepared");
}

#[test]
fn a_shadow_transaction() {
    within("shadow");
}

#[test]
fn a_shadow_transaction_whose_changes_are_caught() {
    within("faults caught");
}

#[test]
fn a_shadow_transaction_in_a_buffer_pool() {
    within("pool caught");
}

/// What each page held cannot be kept: the transaction is undone, and the process lives.
#[test]
fn a_redo_transaction_that_cannot_commit() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    support::in_group(LIMIT, "lose lost caught", &dir.path().join("s"));
}

#[test]
fn a_long_log() {
    within("redo committed");
}

#[test]
fn a_log_of_very_many_small_ranges() {
    within("redo rounds committed");
}
