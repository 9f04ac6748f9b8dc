//! Prepared transactions stay undecided across crashes until they are decided.

mod support;

use caliburn::{BackupError, Class, CommitError, DumpOptions, Mode, Options, Policy, RestoreOptions, Store};
use std::path::{Path, PathBuf};
use support::{clean, copy_store, options, patch, put, region};

/// A store as a killed process leaves it: with transaction "g" prepared, which writes these bytes.
fn left_undecided(dir: &Path, policy: Policy, at: usize, bytes: &[u8]) -> PathBuf {
    let (live, path) = (dir.join("live"), dir.join("s"));
    let store = open(&live, policy);
    let memory = region(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&memory, at, bytes).unwrap();
    tx.prepare(b"g").unwrap();
    copy_store(&live, &path);
    path
}

/// What holds with every policy.
const POLICIES: [Policy; 2] = [Policy::Redo, Policy::Undo];

fn open(path: &Path, policy: Policy) -> Store {
    options().policy(policy).open(path).unwrap()
}

#[test]
fn undecided_across_crashes_then_committed_or_aborted() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let (live, path) = (dir.path().join("live"), dir.path().join("s"));
        let store = open(&live, policy);
        let memory = region(&store);
        for (i, id) in [b"one", b"two", b"six"].into_iter().enumerate() {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.store(&memory, i * 8192, &(i as u64 + 1)).unwrap();
            tx.prepare(id).unwrap();
        }
        assert_eq!(store.prepared().len(), 3);
        assert!(memory.query().uncommitted.len() == 3);
        // In the process that prepared it: the new values are there, aborting brings the old ones.
        store.abort_prepared(b"six").unwrap();
        assert_eq!([0, 8192, 16384].map(|at| memory.load::<u64>(at)), [1, 2, 0]);
        copy_store(&live, &path);

        for round in 0..3 {
            let store = open(&path, policy);
            let memory = region(&store);
            let found: Vec<_> = store
                .prepared()
                .into_iter()
                .map(|p| (p.global_id, p.ranges[0].1.clone(), p.recovered))
                .collect();
            assert_eq!(
                found,
                [(b"one".to_vec(), 0..8, true), (b"two".to_vec(), 8192..8200, true)],
                "round {round}"
            );
            assert_eq!([0, 8192].map(|at| memory.load::<u64>(at)), [0, 0], "undecided changes are not seen");
            // Other work, and truncation, go on around them.
            (0..2000).for_each(|i| put(&store, &memory, 32768 + i % 100 * 8, i as u64, Class::Process));
            store.truncate().unwrap();
            drop(memory);
            store.close().unwrap();
            clean(&path);
        }
        let store = open(&path, policy);
        let memory = region(&store);
        store.commit_prepared(b"one").unwrap();
        store.abort_prepared(b"two").unwrap();
        assert_eq!([0, 8192].map(|at| memory.load::<u64>(at)), [1, 0]);
        assert!(matches!(store.commit_prepared(b"one"), Err(CommitError::NotPrepared(_))));
        let after = dir.path().join("after");
        copy_store(&path, &after);
        drop((memory, store));
        for path in [&path, &after] {
            let store = open(path, policy);
            assert!(store.prepared().is_empty());
            assert_eq!(region(&store).load::<u64>(0), 1);
        }
    }
}

#[test]
fn committed_after_a_crash_while_its_segment_is_not_mapped() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let path = left_undecided(dir.path(), policy, 4092, &0x1122_3344_5566_7788u64.to_ne_bytes());
        let store = open(&path, policy);
        store.commit_prepared(b"g").unwrap();
        for _ in 0..3 {
            assert_eq!(region(&store).load::<u64>(4092), 0x1122_3344_5566_7788);
            put(&store, &region(&store), 0, 1, Class::Process);
            store.truncate().unwrap();
        }
        store.close().unwrap();
        clean(&path);
    }
}

#[test]
fn an_undecided_transaction_does_not_stop_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut options = options();
    options.log_bytes(128 << 10);
    let store = options.open(&path).unwrap();
    let memory = region(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&memory, 0, &[7; 10_000]).unwrap();
    tx.prepare(b"slow").unwrap();
    // Many times the log's size passes.
    for i in 0..30_000u64 {
        put(
            &store,
            &memory,
            65536 + i as usize % 5000 * 8,
            i,
            if i % 1000 == 0 { Class::Power } else { Class::Process },
        );
    }
    let copy = dir.path().join("copy");
    copy_store(&path, &copy);
    store.abort_prepared(b"slow").unwrap();
    assert_eq!(memory.load::<u64>(0), 0);
    let recovered = options.open(&copy).unwrap();
    recovered.commit_prepared(b"slow").unwrap();
    let mut bytes = vec![0; 10_000];
    region(&recovered).read(0, &mut bytes);
    assert!(bytes.iter().all(|b| *b == 7));
}

#[test]
fn identifiers_are_checked_and_the_transaction_is_aborted() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("s"), policy);
        let memory = region(&store);
        let begin = || {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.store(&memory, 0, &9u64).unwrap();
            tx
        };
        for id in [&[][..], &[1; 1025]] {
            assert!(matches!(begin().prepare(id), Err(CommitError::GlobalId { .. })));
            assert_eq!(memory.load::<u64>(0), 0);
        }
        begin().prepare(&[1; 1024]).unwrap();
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&memory, 8192, &9u64).unwrap();
        assert!(tx.prepare(&[1; 1024]).unwrap_err().to_string().contains("undecided"));
        store.commit_prepared(&[1; 1024]).unwrap();
        assert_eq!((memory.load::<u64>(0), memory.load::<u64>(8192)), (9, 0));
    }
}

#[test]
fn one_thread_decides_and_the_other_is_told() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("s"), policy);
        let memory = region(&store);
        for round in 1..=50u64 {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.store(&memory, 0, &round).unwrap();
            let before: u64 = round - 1;
            tx.prepare(b"race").unwrap();
            let (committed, aborted) = std::thread::scope(|scope| {
                let commit = scope.spawn(|| store.commit_prepared(b"race").is_ok());
                let abort = scope.spawn(|| store.abort_prepared(b"race").is_ok());
                (commit.join().unwrap(), abort.join().unwrap())
            });
            assert!(committed != aborted, "exactly one decision stands");
            assert_eq!(memory.load::<u64>(0), if committed { round } else { before });
            put(&store, &memory, 0, round, Class::Process);
        }
        assert_eq!(store.query().uncommitted, 0);
    }
}

#[test]
fn undecided_transactions_may_take_a_quarter_of_the_log_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    options.log_bytes(64 << 10).large_transactions(false);
    let store = options.open(dir.path().join("s")).unwrap();
    let memory = region(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&memory, 0, &[1; 20_000]).unwrap();
    assert!(matches!(tx.prepare(b"large"), Err(CommitError::LogTooSmall { .. })));
    assert_eq!(memory.load::<u8>(0), 0, "it was aborted");
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&memory, 0, &[1; 15_000]).unwrap();
    tx.prepare(b"fits").unwrap();
    // The largest commit still has its room beside it, again and again.
    for i in 0..20u8 {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&memory, 65536, &[i; 32_000]).unwrap();
        tx.commit(Class::Power).unwrap();
    }
    store.commit_prepared(b"fits").unwrap();
    assert_eq!((memory.load::<u8>(0), memory.load::<u8>(65536)), (1, 19));
}

#[test]
fn a_read_only_store_decides_nothing() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let path = left_undecided(dir.path(), policy, 0, &1u64.to_ne_bytes());
        let reader = Store::options().read_only(true).memory_kept(true).open(&path).unwrap();
        let _memory = region(&reader);
        assert_eq!(reader.prepared().len(), 1);
        for refused in
            [reader.commit_prepared(b"g"), reader.abort_prepared(b"g"), reader.flush(), reader.truncate()]
        {
            assert!(matches!(refused, Err(CommitError::ReadOnly)));
        }
    }
}

/// What recovery found is brought where it is mapped, which may be here and there.
#[test]
fn a_decision_reaches_the_parts_that_are_mapped_and_those_mapped_later() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let page = caliburn::Segment::page_size();
        let len = 50 * page;
        let path = left_undecided(dir.path(), policy, 100, &vec![7; len]);
        let store = open(&path, policy);
        let segment = store.segment("data").unwrap();
        let map = |first: usize, end: usize| segment.map((first * page) as u64..(end * page) as u64).unwrap();
        let parts = [(0, 1), (5, 6), (6, 8), (40, 70)].map(|(first, end)| (first, map(first, end)));
        store.commit_prepared(b"g").unwrap();
        let later = [(1, 5), (8, 40), (70, 80)].map(|(first, end)| (first, map(first, end)));
        for (first, part) in parts.iter().chain(&later) {
            let mut bytes = vec![0; part.len()];
            part.read(0, &mut bytes);
            for (i, byte) in bytes.iter().enumerate() {
                let at = first * page + i;
                assert_eq!(*byte == 7, (100..100 + len).contains(&at), "byte {at}");
            }
        }
    }
}

/// Closing leaves nothing but what recovery would find.
#[test]
fn a_store_closes_in_good_order_with_what_it_has_prepared() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = open(&path, policy);
        let memory = region(&store);
        for (i, id) in [b"one", b"two"].into_iter().enumerate() {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.write(&memory, i * 8192, &[i as u8 + 1; 5000]).unwrap();
            tx.prepare(id).unwrap();
        }
        store.close().unwrap();
        assert_eq!(memory.load::<u8>(0), 0, "what is undecided is not seen");
        drop(memory);
        // What is undecided is in the log with the redo policy, which is not empty then.
        assert_eq!(Store::options().info(&path).unwrap().clean, policy == Policy::Undo);
        let report = options().check(&path).unwrap();
        assert!(report.is_clean() && report.prepared == 2, "{report:#?}");
        let store = open(&path, policy);
        let memory = region(&store);
        assert_eq!(store.prepared().len(), 2);
        store.commit_prepared(b"one").unwrap();
        store.close().unwrap();
        drop(memory);
        let store = open(&path, policy);
        assert_eq!(region(&store).load::<u8>(4999), 1);
        store.abort_prepared(b"two").unwrap();
        assert_eq!(region(&store).load::<u8>(8192), 0);
        store.close().unwrap();
        clean(&path);
    }
}

/// A transaction that comes after may change the same bytes, and wins.
#[test]
fn what_was_committed_late_is_not_brought_again() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let after = dir.path().join("after");
        let path = left_undecided(dir.path(), policy, 0, &1u64.to_ne_bytes());
        let store = open(&path, policy);
        let memory = region(&store);
        store.commit_prepared(b"g").unwrap();
        put(&store, &memory, 0, 2, Class::Process);
        copy_store(&path, &after);
        let store = open(&after, policy);
        assert_eq!((region(&store).load::<u64>(0), store.prepared().len()), (2, 0));
    }
}

#[test]
fn large_ones_and_many_with_the_undo_policy() {
    let dir = tempfile::tempdir().unwrap();
    let (live, path) = (dir.path().join("live"), dir.path().join("s"));
    let store = open(&live, Policy::Undo);
    let memory = region(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&memory, 8, &[7; 300_000]).unwrap();
    tx.prepare(&[b'x'; 1024]).unwrap();
    for i in 0..100u64 {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&memory, 400_000 + i as usize * 8, &(i + 1)).unwrap();
        tx.prepare(&i.to_le_bytes()).unwrap();
    }
    for i in (0..100u64).filter(|i| i % 3 < 2) {
        let decide = if i % 3 == 0 { Store::commit_prepared } else { Store::abort_prepared };
        decide(&store, &i.to_le_bytes()).unwrap();
    }
    copy_store(&live, &path);
    let store = open(&path, Policy::Undo);
    let memory = region(&store);
    assert_eq!(store.prepared().len(), 1 + 33);
    assert!(matches!(store.dump(&DumpOptions::new(), &mut Vec::new()), Err(BackupError::Undecided { .. })));
    store.commit_prepared(&[b'x'; 1024]).unwrap();
    let mut bytes = vec![0; 300_000];
    memory.read(8, &mut bytes);
    assert!(bytes.iter().all(|b| *b == 7));
    for i in 0..100u64 {
        let wanted = if i % 3 == 0 { i + 1 } else { 0 };
        assert_eq!(memory.load::<u64>(400_000 + i as usize * 8), wanted, "{i}");
    }
}

#[test]
fn a_damaged_file_of_undecided_transactions_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path, Policy::Undo);
    let memory = region(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&memory, 0, &1u64).unwrap();
    tx.prepare(b"g").unwrap();
    drop(memory);
    store.close().unwrap();
    let intact = std::fs::read(path.join("prepared")).unwrap();
    patch(&path.join("prepared"), 60, b"?");
    let error = options().open(&path).unwrap_err().to_string();
    assert!(error.contains("prepared") && error.contains("checksum"), "{error}");
    let report = options().check(&path).unwrap();
    assert_eq!(report.problems.len(), 1, "{report:#?}");
    let salvage = Store::options().read_only(true).salvage(true).open(&path).unwrap();
    assert!(salvage.damage().is_some());
    drop(salvage);
    // What the undo logs say is seen all the same.
    std::fs::write(path.join("prepared"), intact).unwrap();
    let store = open(&path, Policy::Undo);
    let memory = region(&store);
    let mut uncommitted = store.begin(Mode::Restore).unwrap();
    uncommitted.store(&memory, 8192, &9u64).unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&memory, 16_384, &9u64).unwrap();
    tx.prepare(b"h").unwrap();
    let copy = dir.path().join("copy");
    copy_store(&path, &copy);
    uncommitted.abort();
    patch(&copy.join("prepared"), 60, b"?");
    let salvage = Store::options().read_only(true).salvage(true).open(&copy).unwrap();
    let memory = region(&salvage);
    assert_eq!([8192, 16_384].map(|at| memory.load::<u64>(at)), [0, 0]);
    let ids: Vec<_> = salvage.prepared().into_iter().map(|one| one.global_id).collect();
    assert_eq!(ids, [b"h"]);
}

/// Threads that prepare and decide, beside one that dumps: it gets all that is committed, or is refused.
#[test]
fn threads_prepare_and_decide_while_the_store_is_dumped() {
    const THREADS: usize = 3;
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"), Policy::Undo);
    let memory = region(&store);
    let running = std::sync::atomic::AtomicUsize::new(THREADS);
    let mut dumped = Vec::new();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, memory, running) = (&store, &memory, &running);
            scope.spawn(move || {
                let id = (thread as u64).to_le_bytes();
                for number in 1..=4000u64 {
                    let mut tx = store.begin(Mode::Restore).unwrap();
                    for at in [0, 9000] {
                        tx.store(memory, thread * 64 + at, &number).unwrap();
                    }
                    tx.prepare(&id).unwrap();
                    let decide =
                        if number.is_multiple_of(4) { Store::abort_prepared } else { Store::commit_prepared };
                    decide(store, &id).unwrap();
                    // Now and then there is nothing undecided.
                    if number.is_multiple_of(16) {
                        std::thread::yield_now();
                    }
                }
                running.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            });
        }
        while running.load(std::sync::atomic::Ordering::SeqCst) > 0 {
            let mut stream = Vec::new();
            match store.dump(&DumpOptions::new(), &mut stream) {
                Ok(_) => dumped.push(stream),
                Err(BackupError::Undecided { .. } | BackupError::NotQuiet { .. }) => {}
                Err(other) => panic!("{other}"),
            }
            assert!(store.prepared().len() <= THREADS && store.query().prepared <= THREADS);
        }
    });
    assert!(store.prepared().is_empty() && store.query().uncommitted == 0);
    let mut last = Vec::new();
    store.dump(&DumpOptions::new(), &mut last).unwrap();
    dumped.truncate(5);
    for (i, stream) in dumped.into_iter().chain([last]).enumerate() {
        let path = dir.path().join(format!("restored{i}"));
        Options::new().restore(&mut &stream[..], &RestoreOptions::new(), &path).unwrap();
        let memory = region(&open(&path, Policy::Undo));
        for thread in 0..THREADS {
            let two = [0, 9000].map(|at| memory.load::<u64>(thread * 64 + at));
            assert!(two[0] == two[1] && !(two[0] > 0 && two[0].is_multiple_of(4)), "{two:?}");
        }
    }
}

/// What recovery found is brought to what is mapped; what is being unmapped stays until it was.
#[test]
fn a_region_is_not_unmapped_while_a_decision_is_brought_to_it() {
    const RANGES: usize = 4000;
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let (live, path) = (dir.path().join("live"), dir.path().join("s"));
        let store = open(&live, policy);
        let memory = region(&store);
        let mut tx = store.begin(Mode::Restore).unwrap();
        (0..RANGES).for_each(|i| tx.store(&memory, i * 256, &(i as u64 + 1)).unwrap());
        tx.prepare(b"g").unwrap();
        copy_store(&live, &path);
        let there =
            |memory: &caliburn::Region| (0..RANGES).all(|i| memory.load::<u64>(i * 256) == i as u64 + 1);
        for round in 0..24 {
            let copy = dir.path().join("c");
            copy_store(&path, &copy);
            let store = open(&copy, policy);
            let memory = region(&store);
            // So that there is something to be written before it goes.
            put(&store, &memory, 128, 1, Class::Process);
            let ready = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    ready.wait();
                    store.commit_prepared(b"g").unwrap();
                });
                ready.wait();
                (0..round * 400).for_each(|_| std::hint::spin_loop());
                memory.unmap().unwrap();
            });
            assert!(there(&region(&store)), "{policy:?}, round {round}");
            store.close().unwrap();
            assert!(there(&region(&open(&copy, policy))), "{policy:?}, round {round}");
            std::fs::remove_dir_all(&copy).unwrap();
        }
    }
}

/// More than files of the store have that are read whole.
#[test]
fn what_is_undecided_may_be_long() {
    const LEN: usize = 66 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path, Policy::Undo);
    let memory = store.create_segment("long", 68 << 20).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&memory, 8, &vec![7; LEN]).unwrap();
    tx.prepare(b"long").unwrap();
    drop(memory);
    store.close().unwrap();
    assert!(std::fs::metadata(path.join("prepared")).unwrap().len() > LEN as u64);
    clean(&path);
    let store = open(&path, Policy::Undo);
    let memory = store.segment("long").unwrap().map_all().unwrap();
    assert_eq!((memory.load::<u8>(8), memory.load::<u8>(LEN)), (0, 0));
    store.commit_prepared(b"long").unwrap();
    assert_eq!((memory.load::<u8>(8), memory.load::<u8>(LEN)), (7, 7));
}
