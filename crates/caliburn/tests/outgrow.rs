//! Transactions that outgrow the log and the memory budget go on; whatever happens then, all of one is there or
//! nothing.

mod support;

use caliburn::{Class, CommitError, Guard, Mode, RangeError, Region, Store, Tuning};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::{clean, copy_store, open, options, put, region};

const MB: usize = 1 << 20;

/// A store with little memory, and a segment of 24 MB. Not guarded, as development builds are by default: pages
/// could not be moved.
fn tight(path: &Path) -> (Store, Region) {
    let mut options = options();
    let tuning = Tuning { memory_budget: Some(2 << 20), ..Tuning::default() };
    options.guard(Guard::Off).overflow(true).tuning(tuning);
    let store = options.open(path).unwrap();
    let memory = store.segment_or_create("data", 24 << 20).unwrap().map_all().unwrap();
    (store, memory)
}

/// Word `i` of what turn `turn` stores everywhere.
fn word(turn: u64, i: usize) -> u64 {
    turn << 32 | i as u64
}

/// Waits until something is so that a thread in the background brings about.
fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} does not come about");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn the_log_grows_for_a_transaction_that_outgrows_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for (turn, class) in [(1, Class::Process), (2, Class::Power)] {
        let store = open(&path);
        let memory = store.segment_or_create("big", 8 << 20).unwrap().map_all().unwrap();
        let small = region(&store);
        put(&store, &small, 0, turn, Class::Process);
        let mut tx = store.begin(Mode::Restore).unwrap();
        let bytes = vec![turn as u8; 6 * MB + 5];
        tx.write(&memory, 3, &bytes).unwrap();
        tx.store(&small, 8, &turn).unwrap();
        tx.commit(class).unwrap();
        put(&store, &small, 16, turn, class);
        let log = store.query().log_bytes;
        assert!((12 << 20..16 << 20).contains(&log), "{log}");
        // Left as a killed process leaves it.
        let copy = dir.path().join(format!("copy {turn}"));
        copy_store(&path, &copy);
        drop((memory, small));
        store.close().unwrap();
        for path in [&copy, &path] {
            clean(path);
            let store = Store::options().copied(true).memory_kept(true).open(path).unwrap();
            let (big, small) = (store.segment("big").unwrap().map_all().unwrap(), region(&store));
            assert_eq!([0, 8, 16].map(|at| small.load::<u64>(at)), [turn; 3]);
            assert!((3..bytes.len() + 3).step_by(511).all(|at| big.load::<u8>(at) == turn as u8), "{turn}");
            assert_eq!([0, 1, 2, bytes.len() + 3].map(|at| big.load::<u8>(at)), [0; 4]);
            assert_eq!(store.query().log_bytes, log, "a log stays as large as it has become");
        }
    }
}

#[test]
fn an_aborted_transaction_that_outgrew_the_log_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"));
    let memory = store.create_segment("big", 8 << 20).unwrap().map_all().unwrap();
    put(&store, &memory, 8, 7, Class::Process);
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&memory, 0, &vec![1; 6 * MB]).unwrap();
    tx.abort();
    assert_eq!((memory.load::<u64>(0), memory.load::<u64>(8)), (0, 7));
    assert_eq!(store.query().log_bytes, 1 << 20, "nothing was to be logged");
}

#[test]
fn an_undecided_transaction_has_the_log_grow() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path);
    let memory = store.create_segment("big", 8 << 20).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&memory, 0, &vec![1; 6 * MB]).unwrap();
    tx.prepare(b"large").unwrap();
    let copy = dir.path().join("copy");
    copy_store(&path, &copy);
    store.commit_prepared(b"large").unwrap();
    drop((memory, store));
    for path in [&path, &copy] {
        let store = open(path);
        if path == &copy {
            store.commit_prepared(b"large").unwrap();
        }
        let memory = store.segment("big").unwrap().map_all().unwrap();
        assert!((0..6 * MB).step_by(511).all(|at| memory.load::<u8>(at) == 1));
    }
}

#[test]
fn where_the_log_cannot_grow_the_range_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut elsewhere = options();
    elsewhere.log_path(dir.path().join("elsewhere"));
    let mut duplex = options();
    duplex.duplex_log(dir.path().join("second"));
    for (name, options) in [("a", elsewhere), ("b", duplex)] {
        let store = options.open(dir.path().join(name)).unwrap();
        let memory = store.create_segment("big", 8 << 20).unwrap().map_all().unwrap();
        let mut tx = store.begin(Mode::Restore).unwrap();
        let refused = tx.write(&memory, 0, &vec![1; 6 * MB]);
        assert!(matches!(refused, Err(RangeError::LogTooSmall { .. })), "{refused:?}");
        tx.store(&memory, 0, &5u64).unwrap();
        tx.commit(Class::Power).unwrap();
    }
}

/// In a child: files cannot become as long as the log must.
#[test]
fn a_log_that_cannot_grow_at_the_commit_aborts_the_transaction() {
    if std::env::args().any(|argument| argument == "--exact") {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("s"));
        let memory = store.create_segment("big", 8 << 20).unwrap().map_all().unwrap();
        put(&store, &memory, 0, 7, Class::Power);
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&memory, 0, &vec![1; 6 * MB]).unwrap();
        support::limit_files(9 << 20);
        let error = tx.commit(Class::Power).unwrap_err();
        let CommitError::Log { needed, source } = &error else { panic!("{error}") };
        assert!(*needed > 12 << 20, "{error}");
        assert!(source.to_string().contains("log"), "{source}");
        // It was aborted, and the store goes on.
        assert_eq!((memory.load::<u64>(0), memory.load::<u64>(4096)), (7, 0));
        put(&store, &memory, 0, 8, Class::Power);
        return;
    }
    let test = "a_log_that_cannot_grow_at_the_commit_aborts_the_transaction";
    let own = std::env::current_exe().unwrap();
    let child = std::process::Command::new(own).args([test, "--exact", "--nocapture"]).output().unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

#[test]
fn a_transaction_outgrows_the_memory_budget_and_its_pages_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, memory) = tight(&path);
    let words = memory.len() / 8;
    for turn in 1..=4u64 {
        let mut tx = store.begin(if turn == 4 { Mode::NoRestore } else { Mode::Restore }).unwrap();
        // Single words first, so that pages are copies before the budget is outgrown.
        for i in (0..words).step_by(5003) {
            tx.store(&memory, i * 8, &word(turn, i)).unwrap();
        }
        for i in (0..words).step_by(1024) {
            let bytes: Vec<u8> = (i..i + 1024).flat_map(|i| word(turn, i).to_ne_bytes()).collect();
            tx.write(&memory, i * 8, &bytes).unwrap();
        }
        // What was declared may be stored to until the commit.
        tx.store(&memory, 8, &word(turn, 1)).unwrap();
        assert!(store.query().overflow_bytes > 20 << 20, "{:?}", store.query());
        if turn == 2 {
            tx.abort();
        } else {
            tx.commit(if turn == 1 { Class::Power } else { Class::Process }).unwrap();
        }
        let there = if turn == 2 { 1 } else { turn };
        assert!((0..words).all(|i| memory.load::<u64>(i * 8) == word(there, i)), "turn {turn}");
        if turn != 3 {
            until("the return of the pages", || store.query().overflow_bytes == 0);
            assert!(
                (0..words).step_by(97).all(|i| memory.load::<u64>(i * 8) == word(there, i)),
                "turn {turn}"
            );
        }
    }
    drop(memory);
    store.close().unwrap();
    clean(&path);
    let store = open(&path);
    let memory = store.segment("data").unwrap().map_all().unwrap();
    assert!((0..words).all(|i| memory.load::<u64>(i * 8) == word(4, i)));
}

/// Says so when it is dropped.
struct End<'e>(&'e AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn others_commit_on_the_same_pages_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, memory) = tight(&path);
    let (pages, ended) = (memory.len() / 4096, AtomicBool::new(false));
    let last: Vec<u64> = std::thread::scope(|scope| {
        let others: Vec<_> = (0..2usize)
            .map(|thread| {
                let (store, memory, ended) = (&store, &memory, &ended);
                scope.spawn(move || {
                    let mut number = 0u64;
                    while !ended.load(Ordering::Relaxed) {
                        number += 1;
                        let mut tx = store.begin(Mode::Restore).unwrap();
                        for at in 0..8 {
                            let page = (number as usize * 7919 + at * 577) % pages;
                            tx.store(memory, page * 4096 + 8 + thread * 8, &number).unwrap();
                        }
                        tx.store(memory, 24 + thread * 8, &number).unwrap();
                        // Some are undone.
                        if number.is_multiple_of(5) { tx.abort() } else { tx.commit(Class::Process).unwrap() }
                    }
                    number
                })
            })
            .collect();
        let end = End(&ended);
        for turn in 1..=6u64 {
            let mut tx = store.begin(Mode::Restore).unwrap();
            for page in 0..pages {
                tx.store(&memory, page * 4096, &word(turn, page)).unwrap();
                tx.write(&memory, page * 4096 + 64, &[turn as u8; 1000]).unwrap();
            }
            if turn % 3 == 0 { tx.abort() } else { tx.commit(Class::Process).unwrap() }
        }
        drop(end);
        others.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // What each of the threads has stored last to each page.
    let expected = |thread: usize| {
        let mut found = vec![0; pages];
        for number in (1..=last[thread]).filter(|number| number % 5 != 0) {
            (0..8).for_each(|at| found[(number as usize * 7919 + at * 577) % pages] = number);
        }
        found
    };
    let expected: [Vec<u64>; 2] = [expected(0), expected(1)];
    let right = |memory: &Region| {
        for (page, numbers) in expected[0].iter().zip(&expected[1]).enumerate() {
            let at = page * 4096;
            assert_eq!(memory.load::<u64>(at), word(5, page), "page {page}");
            assert!((64..1064).all(|byte| memory.load::<u8>(at + byte) == 5), "page {page}");
            let others = [8, 16].map(|word| memory.load::<u64>(at + word));
            assert_eq!(others, [*numbers.0, *numbers.1], "page {page}");
        }
    };
    right(&memory);
    let copy = dir.path().join("copy");
    copy_store(&path, &copy);
    until("the return of the pages", || store.query().overflow_bytes == 0);
    right(&memory);
    drop(memory);
    store.close().unwrap();
    for path in [&path, &copy] {
        clean(path);
        let store = open(path);
        right(&store.segment("data").unwrap().map_all().unwrap());
    }
}

#[test]
fn two_outgrow_memory_at_once_and_one_of_them_is_of_branches() {
    let dir = tempfile::tempdir().unwrap();
    let (store, memory) = tight(&dir.path().join("s"));
    let pages = memory.len() / 4096;
    let (mut one, mut two) = (store.begin(Mode::Restore).unwrap(), store.begin(Mode::Restore).unwrap());
    for page in 0..pages / 2 {
        one.write(&memory, page * 4096, &[1; 2048]).unwrap();
        let mut branch = two.branch().unwrap();
        branch.write(&memory, page * 4096 + 2048, &[2; 2048]).unwrap();
        two.adopt(branch).unwrap();
    }
    let savepoint = two.savepoint().unwrap();
    for page in pages / 2..pages {
        two.write(&memory, page * 4096, &[3; 4096]).unwrap();
    }
    two.rollback_to(&savepoint).unwrap();
    one.commit(Class::Process).unwrap();
    let page = |page: usize, first: u8, second: u8| {
        let there =
            |from: usize, byte: u8| (from..from + 2048).all(|at| memory.load::<u8>(page * 4096 + at) == byte);
        assert!(there(0, first) && there(2048, second), "page {page}");
    };
    (0..pages / 2).for_each(|number| page(number, 1, 2));
    (pages / 2..pages).for_each(|number| page(number, 0, 0));
    two.abort();
    (0..pages / 2).for_each(|number| page(number, 1, 0));
    until("the return of the pages", || store.query().overflow_bytes == 0);
    (0..pages / 2).for_each(|number| page(number, 1, 0));
}

/// A store that is left as it is now, and recovered, shows these two words at the beginning of each page.
fn recovered_shows(path: &Path, segment: &str, wanted: [u64; 2]) {
    let copy = path.with_extension("copy");
    copy_store(path, &copy);
    let recovered = open(&copy);
    let there = recovered.segment(segment).unwrap().map_all().unwrap();
    for page in 0..there.len() / 4096 {
        assert_eq!([0, 8].map(|at| there.load::<u64>(page * 4096 + at)), wanted, "page {page}");
    }
}

#[test]
fn what_is_not_committed_stays_out_of_the_segments() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, memory) = tight(&path);
    let pages = memory.len() / 4096;
    // One half is of a branch's, which has not outgrown anything.
    let adopted = pages - 100;
    let mut tx = store.begin(Mode::Restore).unwrap();
    for page in 0..adopted {
        tx.store(&memory, page * 4096, &1u64).unwrap();
    }
    let mut branch = tx.branch().unwrap();
    for page in adopted..pages {
        branch.store(&memory, page * 4096, &1u64).unwrap();
    }
    tx.adopt(branch).unwrap();
    // Others commit on its pages, which are to be brought to the segment.
    for page in 0..pages {
        put(&store, &memory, page * 4096 + 8, 2, Class::Process);
    }
    store.truncate().unwrap();
    recovered_shows(&path, "data", [0, 2]);
    assert!((0..pages).all(|page| [0, 8].map(|at| memory.load::<u64>(page * 4096 + at)) == [1, 2]));
    tx.abort();
    assert!((0..pages).all(|page| [0, 8].map(|at| memory.load::<u64>(page * 4096 + at)) == [0, 2]));
}

#[test]
fn what_is_declared_after_a_rollback_stays_out_of_the_segments() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, memory) = tight(&path);
    let pages = memory.len() / 4096;
    // What was declared before is held anyway.
    let other = store.create_segment("other", 1 << 20).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&memory, 0, &1u64).unwrap();
    let savepoint = tx.savepoint().unwrap();
    (0..pages).for_each(|page| tx.store(&memory, page * 4096, &1u64).unwrap());
    tx.rollback_to(&savepoint).unwrap();
    for page in 0..256 {
        tx.store(&other, page * 4096, &1u64).unwrap();
        put(&store, &other, page * 4096 + 8, 2, Class::Process);
    }
    store.truncate().unwrap();
    recovered_shows(&path, "other", [0, 2]);
    tx.commit(Class::Process).unwrap();
    assert!((0..256).all(|page| [0, 8].map(|at| other.load::<u64>(page * 4096 + at)) == [1, 2]));
    assert!((1..pages).all(|page| memory.load::<u64>(page * 4096) == 0) && memory.load::<u64>(0) == 1);
}

#[test]
fn a_page_on_which_somebody_has_declared_a_range_is_not_moved() {
    let dir = tempfile::tempdir().unwrap();
    let (store, memory) = tight(&dir.path().join("s"));
    let pages = memory.len() / 4096;
    let (at, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    let declared: Vec<usize> = (0..pages).step_by(32).collect();
    let mut other = store.begin(Mode::Restore).unwrap();
    declared.iter().for_each(|page| other.set_range(&memory, page * 4096..page * 4096 + 8).unwrap());
    let lost = std::thread::scope(|scope| {
        let stores = scope.spawn(|| {
            let (mut lost, mut number) = (0, 0u64);
            while !ended.load(Ordering::Relaxed) {
                let page = at.load(Ordering::Relaxed) / 32 * 32;
                for _ in 0..50 {
                    number += 1;
                    support::set(&memory, page * 4096, number);
                    std::thread::yield_now();
                    lost += u32::from(memory.load::<u64>(page * 4096) != number);
                }
            }
            lost
        });
        let end = End(&ended);
        let mut tx = store.begin(Mode::Restore).unwrap();
        for page in (0..pages).filter(|page| page % 32 != 0) {
            at.store(page, Ordering::Relaxed);
            tx.store(&memory, page * 4096, &1u64).unwrap();
        }
        drop(end);
        tx.commit(Class::Process).unwrap();
        stores.join().unwrap()
    });
    assert_eq!(lost, 0, "stores went to pages that were no more");
    other.abort();
    assert!(declared.iter().all(|page| memory.load::<u64>(page * 4096) == 0));
}

#[test]
fn what_is_declared_again_and_again_does_not_move_a_log_that_must_stay() {
    let dir = tempfile::tempdir().unwrap();
    for duplex in [true, false] {
        let mut options = options();
        let tuning = Tuning { memory_budget: Some(2 << 20), ..Tuning::default() };
        options.guard(Guard::Off).overflow(true).tuning(tuning);
        let other = dir.path().join(format!("log-{duplex}"));
        if duplex {
            options.duplex_log(&other)
        } else {
            options.log_path(&other)
        };
        let store = options.open(dir.path().join(format!("s-{duplex}"))).unwrap();
        let memory = store.create_segment("data", 24 << 20).unwrap().map_all().unwrap();
        let mut tx = store.begin(Mode::Restore).unwrap();
        (0..600).for_each(|page| tx.store(&memory, page * 4096, &7u64).unwrap());
        // Nothing joins these any more before the commit.
        (0..100_000u64).for_each(|i| tx.store(&memory, (i % 2) as usize * 64, &i).unwrap());
        tx.commit(Class::Power).unwrap();
        assert_eq!(store.query().log_copies, if duplex { 2 } else { 1 });
        assert_eq!((memory.load::<u64>(64), memory.load::<u64>(4096)), (99_999, 7));
    }
}

#[test]
fn several_have_the_log_grow_when_they_are_prepared() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"));
    let memory = store.create_segment("big", 32 << 20).unwrap().map_all().unwrap();
    let barrier = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (store, memory, barrier) = (&store, &memory, &barrier);
            scope.spawn(move || {
                let mut tx = store.begin(Mode::Restore).unwrap();
                tx.write(memory, thread * (8 << 20), &vec![1; 3 * MB]).unwrap();
                barrier.wait();
                tx.prepare(format!("{thread}").as_bytes()).unwrap();
            });
        }
    });
    assert_eq!(store.prepared().len(), 4);
    (0..4).for_each(|thread| store.commit_prepared(format!("{thread}").as_bytes()).unwrap());
}

#[test]
fn pages_come_back_without_threads() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    let tuning = Tuning { memory_budget: Some(2 << 20), ..Tuning::default() };
    options.guard(Guard::Off).overflow(true).tuning(tuning).background(false);
    let store = options.open(dir.path().join("s")).unwrap();
    let memory = store.create_segment("data", 24 << 20).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    (0..memory.len() / 4096).for_each(|page| tx.store(&memory, page * 4096, &7u64).unwrap());
    tx.commit(Class::Power).unwrap();
    store.truncate().unwrap();
    assert_eq!(store.query().overflow_bytes, 0);
    assert!((0..memory.len() / 4096).all(|page| memory.load::<u64>(page * 4096) == 7));
}

#[test]
fn there_is_no_image_of_a_region_whose_pages_were_moved() {
    let dir = tempfile::tempdir().unwrap();
    let (store, memory) = tight(&dir.path().join("s"));
    let imaged = store.create_segment("imaged", 8 << 20).unwrap().map_all().unwrap();
    let image = imaged.image().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    (0..memory.len() / 4096).for_each(|page| tx.store(&memory, page * 4096, &7u64).unwrap());
    let moved = store.query().overflow_bytes;
    // Of what has an image, nothing is moved.
    (0..imaged.len() / 4096).for_each(|page| {
        image.keep(page * 4096, 8);
        tx.store(&imaged, page * 4096, &7u64).unwrap();
    });
    assert_eq!(store.query().overflow_bytes, moved);
    tx.commit(Class::Process).unwrap();
    let refused = memory.image().unwrap_err().to_string();
    assert!(refused.contains("lie in files"), "{refused}");
    drop(image);
}

/// In a child: files cannot become as long as the log must.
#[test]
fn what_cannot_be_undone_fails_the_store_when_the_log_cannot_grow() {
    let test = "what_cannot_be_undone_fails_the_store_when_the_log_cannot_grow";
    if !std::env::args().any(|argument| argument == "--exact") {
        let own = std::env::current_exe().unwrap();
        let child = std::process::Command::new(own).args([test, "--exact", "--nocapture"]).output().unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path);
    let memory = store.create_segment("big", 8 << 20).unwrap().map_all().unwrap();
    put(&store, &memory, 0, 7, Class::Power);
    let mut tx = store.begin(Mode::NoRestore).unwrap();
    tx.write(&memory, 0, &vec![1; 6 * MB]).unwrap();
    support::limit_files(9 << 20);
    let error = tx.commit(Class::Power).unwrap_err();
    assert!(matches!(error, CommitError::Failed(_)), "{error}");
    assert!(store.begin(Mode::Restore).is_err() && store.query().failed);
    drop((memory, store));
    let store = open(&path);
    assert_eq!(store.segment("big").unwrap().map_all().unwrap().load::<u64>(0), 7);
}

/// Run in the child, inside a group with a limit.
#[test]
fn child() {
    let Some((what, path)) = support::inside() else { return };
    let mut options = Store::options();
    let store = options
        .create(true)
        .guard(Guard::Off)
        .overflow(true)
        .log_bytes(8 << 20)
        .stage_bytes(4 << 20)
        .open(path)
        .unwrap();
    let memory = store.segment_or_create("data", LIMIT * 4).unwrap().map_all().unwrap();
    let turn: u64 = what.parse().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    for page in 0..memory.len() / 4096 {
        tx.write(&memory, page * 4096, &[(turn + page as u64) as u8; 4096]).unwrap();
    }
    println!("declared");
    tx.commit(Class::Power).unwrap();
    println!("committed");
    std::process::exit(0);
}

const LIMIT: u64 = 48 << 20;

#[test]
fn four_times_the_memory_is_changed_in_a_transaction() {
    // Not in memory: the pages must have a disk to go to.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("s");
    for turn in 1..=2u8 {
        // The second opens what the first has left in the log.
        support::in_group(LIMIT, &turn.to_string(), &path);
        if !path.exists() {
            return;
        }
    }
    clean(&path);
    let store = Store::open(&path).unwrap();
    let memory = store.segment("data").unwrap().map_all().unwrap();
    assert!((0..memory.len()).step_by(1021).all(|at| memory.load::<u8>(at) == (2 + at / 4096) as u8));
}

#[test]
fn one_that_stays_open_holds_its_own_pages_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, memory) = tight(&path);
    let pages = memory.len() / 4096;
    let mut open = store.begin(Mode::Restore).unwrap();
    for page in 0..pages / 2 {
        open.store(&memory, page * 4096, &1u64).unwrap();
    }
    // Another one declares ranges on the same pages, and on all others.
    let mut ends = store.begin(Mode::Restore).unwrap();
    for page in 0..pages {
        ends.store(&memory, page * 4096 + 8, &2u64).unwrap();
    }
    assert!(store.query().overflow_bytes > 20 << 20, "{:?}", store.query());
    ends.commit(Class::Process).unwrap();
    until("the return of the other's pages", || store.query().overflow_bytes <= 12 << 20);
    store.truncate().unwrap();
    let copy = dir.path().join("copy");
    copy_store(&path, &copy);
    let recovered = support::open(&copy);
    let there = recovered.segment("data").unwrap().map_all().unwrap();
    assert!((0..pages).all(|page| [0, 8].map(|at| there.load::<u64>(page * 4096 + at)) == [0, 2]));
    for page in pages / 2..pages {
        open.store(&memory, page * 4096, &1u64).unwrap();
    }
    open.commit(Class::Process).unwrap();
    until("the return of the pages", || store.query().overflow_bytes == 0);
    assert!((0..pages).all(|page| [0, 8].map(|at| memory.load::<u64>(page * 4096 + at)) == [1, 2]));
}
