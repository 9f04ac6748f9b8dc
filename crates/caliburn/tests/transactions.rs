//! What transactions promise while nothing crashes, and across orderly and disorderly ends.

mod support;

use caliburn::{Class, Guard, Mode, RangeError, Region, Store, Tuning};
use std::path::Path;
use std::time::Duration;
use support::{clean, copy_store, open, options, region};

#[test]
fn a_committed_change_is_there_after_reopening_and_an_aborted_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path);
    let memory = region(&store);
    for (class, at) in [(Class::Process, 0), (Class::Power, 8), (Class::Os, 16)] {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&memory, at, &(at as u64 + 1)).unwrap();
        tx.commit(class).unwrap();
    }
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&memory, 0, &99u64).unwrap();
    tx.store(&memory, 4096, &99u64).unwrap();
    assert_eq!(memory.load::<u64>(0), 99);
    tx.abort();
    assert_eq!((memory.load::<u64>(0), memory.load::<u64>(4096)), (1, 0));
    memory.unmap().unwrap();
    store.close().unwrap();
    clean(&path);
    let store = open(&path);
    let memory = region(&store);
    assert_eq!([0, 8, 16, 4096].map(|at| memory.load::<u64>(at)), [1, 9, 17, 0]);
    drop((memory, store));
    clean(&path);
}

#[test]
fn a_store_left_without_closing_is_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for round in 0..5u64 {
        let store = open(&path);
        let memory = region(&store);
        assert_eq!(memory.load::<u64>(0), round);
        assert_eq!(memory.load::<u64>(8192), round * 10);
        let mut tx = store.begin(Mode::NoRestore).unwrap();
        tx.store(&memory, 0, &(round + 1)).unwrap();
        tx.store(&memory, 8192, &((round + 1) * 10)).unwrap();
        tx.commit(if round % 2 == 0 { Class::Process } else { Class::Power }).unwrap();
        // As a killed process leaves it: nothing is flushed, truncated or marked.
        leave(store, memory);
    }
}

/// Short ranges are declared in a way of their own, until there are too many of them, or one is long, or
/// touches another.
#[test]
fn ranges_short_and_long_in_any_order_are_undone_or_committed_together() {
    // Where nobody must be told of ranges, and where somebody must.
    for guard in [Guard::Off, Guard::Pages] {
        short_and_long(guard);
    }
}

fn short_and_long(guard: Guard) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options().guard(guard).open(&path).unwrap();
    let memory = region(&store);
    let short = |n: usize| (n * 100, 24 + n % 9);
    let (long, touching) = ((8192, 5000), (16, 200));
    let mut last = [0u8; 16384];
    let sequences: [Vec<(usize, usize)>; 6] = [
        (0..4).map(short).collect(),
        (0..40).map(short).collect(),
        vec![short(3), short(1), long, short(7)],
        vec![long, short(3), short(1)],
        vec![short(0), short(9), touching, short(4), short(0)],
        (0..20).map(short).chain([long, touching]).collect(),
    ];
    for (round, ranges) in sequences.iter().cycle().take(24).enumerate() {
        let mode = if round < 12 { Mode::Restore } else { Mode::NoRestore };
        let change = |value: u8| {
            let mut tx = store.begin(mode).unwrap();
            ranges.iter().for_each(|&(at, len)| tx.write(&memory, at, &vec![value; len]).unwrap());
            tx
        };
        if mode == Mode::Restore {
            change(200).abort();
            assert_eq!(memory.load::<[u8; 16384]>(0), last, "{ranges:?}");
            change(201).prepare(b"undecided").unwrap();
            store.abort_prepared(b"undecided").unwrap();
            assert_eq!(memory.load::<[u8; 16384]>(0), last, "{ranges:?}");
        }
        let value = round as u8 + 1;
        if mode == Mode::Restore && round % 2 == 0 {
            let old = change(value).commit_returning_old(Class::Process).unwrap();
            let was = |o: &caliburn::OldValue| o.bytes == last[o.offset as usize..][..o.bytes.len()];
            assert!(!old.is_empty() && old.iter().all(was), "{ranges:?}");
        } else {
            change(value).commit([Class::Process, Class::Power][round % 2]).unwrap();
        }
        ranges.iter().for_each(|&(at, len)| last[at..at + len].fill(value));
        assert_eq!(memory.load::<[u8; 16384]>(0), last, "{ranges:?}");
        let copy = dir.path().join(format!("copy{round}"));
        copy_store(&path, &copy);
        let killed = open(&copy);
        assert_eq!(region(&killed).load::<[u8; 16384]>(0), last, "{ranges:?}, as a killed process leaves it");
    }
}

/// Goes on with a copy of the store's files as they are now, which is what a killed process leaves.
fn leave(store: Store, memory: Region) {
    let path = store.path().to_owned();
    let copy = path.with_extension("copy");
    copy_store(&path, &copy);
    drop((memory, store));
    std::fs::remove_dir_all(&path).unwrap();
    clean(&copy);
    std::fs::rename(&copy, &path).unwrap();
}

#[test]
fn ranges_declared_twice_overlapping_or_adjacent_are_logged_once_and_restored_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"));
    let memory = region(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    let first: Vec<u8> = (0..200).collect();
    tx.write(&memory, 100, &first).unwrap();
    tx.commit(Class::Process).unwrap();

    // Order and shape: after, before, inside, bridging, identical.
    for ranges in
        [vec![120..140, 140..150, 110..120, 125..130, 100..160, 100..160], vec![100..110, 130..140, 105..135]]
    {
        let before = store.statistics();
        let mut tx = store.begin(Mode::Restore).unwrap();
        for range in &ranges {
            tx.write(&memory, range.start, &vec![0xEE; range.len()]).unwrap();
        }
        tx.abort();
        let mut now = vec![0; 200];
        memory.read(100, &mut now);
        assert_eq!(now, first);

        let mut tx = store.begin(Mode::Restore).unwrap();
        for range in &ranges {
            tx.set_range(&memory, range.clone()).unwrap();
        }
        tx.commit(Class::Process).unwrap();
        let after = store.statistics();
        let hull =
            ranges.iter().map(|r| r.end).max().unwrap() - ranges.iter().map(|r| r.start).min().unwrap();
        let logged = after.committed_log_bytes - before.committed_log_bytes;
        assert_eq!(logged, 16 + (hull as u64).next_multiple_of(8), "one range of {hull} bytes");
        assert!(after.duplicate_bytes > before.duplicate_bytes);
    }
}

#[test]
fn many_ranges_many_transactions_many_threads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path);
    let memory = region(&store);
    // Each thread owns every fourth 64-byte cell; each transaction changes 100 of them, far beyond the
    // slot's own list; every other one aborts. Truncation runs all the while: the log is 1 MiB.
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (store, memory) = (&store, &memory);
            scope.spawn(move || {
                for round in 1..=600u64 {
                    let mut tx = store.begin(Mode::Restore).unwrap();
                    for i in 0..100 {
                        let cell = (i * 37 + round as usize * 11) % 4096 * 4 + thread;
                        tx.store(memory, cell * 64, &round).unwrap();
                    }
                    if round % 2 == 0 {
                        tx.abort();
                    } else {
                        tx.commit(if round % 15 == 0 { Class::Power } else { Class::Process }).unwrap();
                    }
                }
            });
        }
    });
    let mut expected = vec![0u64; 16384];
    for thread in 0..4 {
        for round in (1..=600u64).filter(|r| r % 2 == 1) {
            for i in 0..100 {
                expected[(i * 37 + round as usize * 11) % 4096 * 4 + thread] = round;
            }
        }
    }
    let found = |memory: &Region| (0..16384).map(|cell| memory.load::<u64>(cell * 64)).collect::<Vec<_>>();
    assert_eq!(found(&memory), expected);
    let statistics = store.statistics();
    assert_eq!((statistics.committed, statistics.aborted), (1200, 1200));
    assert!(statistics.truncations + statistics.epochs > 0, "{statistics:?}");
    drop((memory, store));
    clean(&path);
    let store = open(&path);
    assert_eq!(found(&region(&store)), expected);
}

#[test]
fn a_transaction_over_several_regions_and_segments_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path);
    let a = store.create_segment("a", 1 << 20).unwrap();
    let b = store.create_segment("b", 1 << 20).unwrap();
    let (a1, a2, b1) = (a.map(0..65536).unwrap(), a.map(131072..196608).unwrap(), b.map_all().unwrap());
    let mut tx = store.begin(Mode::Restore).unwrap();
    for region in [&a1, &a2, &b1] {
        tx.store(region, 65528, &7u64).unwrap();
    }
    tx.commit(Class::Power).unwrap();
    drop((a1, a2, b1));
    store.close().unwrap();
    let store = open(&path);
    let a = store.segment("a").unwrap().map_all().unwrap();
    assert_eq!((a.load::<u64>(65528), a.load::<u64>(196600), a.load::<u64>(0)), (7, 7, 0));
    assert_eq!(store.segment("b").unwrap().map_all().unwrap().load::<u64>(65528), 7);
}

#[test]
fn sizes_around_every_limit_commit_and_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    // Stage chunks of 32 KiB and a log of 1 MiB: around each, one byte less, exact, one more.
    let sizes = [1, 7, 8, 9, 4095, 4096, 4097, 32600, 32688, 32689, 32700, 32768, 65536, 400_000, 524_000];
    for (i, size) in sizes.into_iter().enumerate() {
        let store = open(&path);
        let memory = region(&store);
        let value = vec![i as u8 + 1; size];
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&memory, 3, &value).unwrap();
        tx.commit(Class::Process).unwrap();
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&memory, 3, &vec![0xFF; size]).unwrap();
        tx.abort();
        leave(store, memory);
        let store = open(&path);
        let memory = region(&store);
        let mut found = vec![0; size];
        memory.read(3, &mut found);
        assert_eq!(found, value, "{size} bytes");
    }
}

#[test]
fn numbers_of_ranges_around_every_limit_commit_and_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for count in [1usize, 15, 16, 17, 31, 32, 33, 127, 128, 129, 255, 256, 2051, 2052, 2053, 5000] {
        let store = open(&path);
        let memory = region(&store);
        let mut tx = store.begin(Mode::Restore).unwrap();
        for i in 0..count {
            tx.store(&memory, i * 200, &(count as u64 + i as u64)).unwrap();
        }
        tx.commit(Class::Process).unwrap();
        leave(store, memory);
        let store = open(&path);
        let memory = region(&store);
        assert!((0..count).all(|i| memory.load::<u64>(i * 200) == (count + i) as u64), "{count} ranges");
    }
}

#[test]
fn what_does_not_fit_the_log_is_refused_before_anything_is_lost_where_it_may_not_grow() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options().large_transactions(false).open(&path).unwrap();
    let memory = store.create_segment("big", 8 << 20).unwrap().map_all().unwrap();
    for mode in [Mode::Restore, Mode::NoRestore] {
        let mut tx = store.begin(mode).unwrap();
        tx.store(&memory, 0, &5u64).unwrap();
        let error = tx.write(&memory, 4096, &vec![1; 2 << 20]).unwrap_err();
        let RangeError::LogTooSmall { needed, capacity } = error else { panic!("{error}") };
        assert!(needed > 2 << 20 && capacity == 1 << 20, "{needed} {capacity}");
        assert_eq!(memory.load::<u64>(4096), 0);
        // The transaction goes on.
        tx.commit(Class::Power).unwrap();
        assert_eq!(memory.load::<u64>(0), 5);
    }
    // Declaring the same bytes again and again takes no space.
    let mut tx = store.begin(Mode::Restore).unwrap();
    for _ in 0..100 {
        tx.set_range(&memory, 0..500_000).unwrap();
    }
    tx.commit(Class::Process).unwrap();
}

#[test]
fn lazy_commits_are_forced_within_the_interval_and_by_flush() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    let store = options
        .tuning(Tuning { flush_interval: Duration::from_millis(20), ..Tuning::default() })
        .open(dir.path().join("s"))
        .unwrap();
    let memory = region(&store);
    for round in 0..3u64 {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&memory, 0, &round).unwrap();
        let ticket = tx.commit_async().unwrap();
        if round == 1 {
            store.flush().unwrap();
            assert!(ticket.is_durable());
        }
        ticket.wait().unwrap();
    }
    // Without anybody asking.
    let forces = store.statistics().forces;
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&memory, 0, &9u64).unwrap();
    tx.commit(Class::Process).unwrap();
    let start = std::time::Instant::now();
    while store.statistics().forces == forces {
        assert!(start.elapsed() < Duration::from_secs(20), "the interval passed without a force");
        std::thread::yield_now();
    }
}

#[test]
fn an_interval_can_be_given_to_a_store_that_forced_nothing_for_the_times_sake() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    options.tuning(Tuning { flush_interval: Duration::MAX, ..Tuning::default() });
    let store = options.open(dir.path().join("s")).unwrap();
    let memory = region(&store);
    let commit = |value: u64, class| {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&memory, 0, &value).unwrap();
        tx.commit(class).unwrap();
    };
    // The flusher sleeps, and is woken by those who need it.
    commit(1, Class::Process);
    commit(2, Class::Power);
    commit(3, Class::Process);
    store.flush().unwrap();
    let forces = store.statistics().forces;
    commit(4, Class::Process);
    store.set_options(Tuning { flush_interval: Duration::from_millis(5), ..Tuning::default() }).unwrap();
    let start = std::time::Instant::now();
    while store.statistics().forces == forces {
        assert!(start.elapsed() < Duration::from_secs(20), "the new interval passed without a force");
        std::thread::yield_now();
    }
    leave(store, memory);
}

#[test]
fn superseded_bytes_of_lazy_commits_are_dropped_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut options = options();
    options.tuning(Tuning { flush_interval: Duration::from_secs(3600), ..Tuning::default() });
    let store = options.open(&path).unwrap();
    let memory = region(&store);
    for round in 0..100u64 {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&memory, 0, &round).unwrap();
        tx.store(&memory, 800 + round as usize * 8, &round).unwrap();
        tx.commit(Class::Process).unwrap();
    }
    store.flush().unwrap();
    let statistics = store.statistics();
    assert_eq!(statistics.merged_transactions, 100);
    // 99 of the 100 stores to offset 0, with their headers, and the frames of 99 records.
    assert_eq!(statistics.merged_bytes, 99 * 24 + 99 * 40);
    leave(store, memory);
    let store = options.open(&path).unwrap();
    let memory = region(&store);
    assert_eq!(memory.load::<u64>(0), 99);
    assert!((0..100u64).all(|i| memory.load::<u64>(800 + i as usize * 8) == i));
}

#[test]
fn a_commit_hands_back_the_old_values_it_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"));
    let memory = region(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&memory, 10, b"before").unwrap();
    tx.commit(Class::Process).unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&memory, 10, b"after!").unwrap();
    let old = tx.commit_returning_old(Class::Process).unwrap();
    assert_eq!(old.len(), 1);
    assert_eq!((old[0].offset, &old[0].bytes[..]), (10, &b"before"[..]));
}

#[test]
fn query_tells_who_is_uncommitted_where() {
    let dir = tempfile::tempdir().unwrap();
    // Threads in the background may write the page before it is asked for.
    let store = Store::options().create(true).background(false).open(dir.path().join("s")).unwrap();
    let memory = region(&store);
    let mut one = store.begin(Mode::Restore).unwrap();
    one.store(&memory, 0, &1u64).unwrap();
    let two = store.begin(Mode::Restore).unwrap();
    assert_eq!(memory.query().uncommitted, [one.id()]);
    assert_eq!(store.query().uncommitted, 2);
    two.commit(Class::Process).unwrap();
    one.commit(Class::Power).unwrap();
    assert_eq!((memory.query().uncommitted.len(), memory.query().dirty_pages), (0, 1));
    assert!(store.query().log_used > 0);
    store.truncate().unwrap();
    assert_eq!((memory.query().dirty_pages, store.query().log_used, store.query().dirty_pages), (0, 0, 0));
}

#[test]
fn hundreds_of_transactions_of_one_thread_may_be_open_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"));
    let memory = region(&store);
    let mut open: Vec<_> = (0..1000usize)
        .map(|i| {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.store(&memory, i * 8, &(i as u64 + 1)).unwrap();
            tx
        })
        .collect();
    assert_eq!(memory.query().uncommitted.len(), 1000);
    for (i, tx) in open.drain(..).enumerate() {
        if i % 3 == 0 { tx.abort() } else { tx.commit(Class::Process).unwrap() }
    }
    assert!((0..1000usize).all(|i| memory.load::<u64>(i * 8) == if i % 3 == 0 { 0 } else { i as u64 + 1 }));
}

#[test]
fn the_largest_commit_finds_room_in_a_log_that_is_partly_full() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    options.log_bytes(64 << 10);
    let store = options.open(dir.path().join("s")).unwrap();
    let memory = region(&store);
    for (i, size) in [12_000, 32_000, 1000, 32_000, 32_000, 20_000, 32_000].into_iter().enumerate() {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&memory, 0, &vec![i as u8 + 1; size]).unwrap();
        tx.commit(Class::Power).unwrap();
    }
    assert_eq!((memory.load::<u8>(0), memory.load::<u8>(31_999)), (7, 7));
}

#[test]
fn a_failed_write_fails_the_store_for_good_and_what_was_acknowledged_is_there_after_reopening() {
    use caliburn::medium::{Files, Media, Medium, Replaced};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    /// A disk whose forces fail from a given moment on.
    #[derive(Debug)]
    struct Failing(Arc<AtomicBool>);
    #[derive(Debug)]
    struct FailingMedium(Arc<dyn Medium>, Arc<AtomicBool>);
    // SAFETY: all of it is passed on to files of the running system.
    unsafe impl Media for Failing {
        fn open(&self, path: &Path, write: bool) -> std::io::Result<Arc<dyn Medium>> {
            Ok(Arc::new(FailingMedium(Files.open(path, write)?, self.0.clone())))
        }
        fn create(&self, path: &Path) -> std::io::Result<Arc<dyn Medium>> {
            Ok(Arc::new(FailingMedium(Files.create(path)?, self.0.clone())))
        }
        fn replace(&self, path: &Path, content: &[u8]) -> std::io::Result<Replaced> {
            Files.replace(path, content)
        }
        fn sync_directory(&self, path: &Path) -> std::io::Result<()> {
            Files.sync_directory(path)
        }
    }
    // SAFETY: everything mapped is passed on from a file's medium.
    unsafe impl Medium for FailingMedium {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
            self.0.read_at(buffer, offset)
        }
        fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
            self.0.write_at(bytes, offset)
        }
        fn sync(&self) -> std::io::Result<()> {
            // Fails once, as Linux reports a writeback error once; later forces would "succeed".
            if self.1.swap(false, Ordering::SeqCst) {
                Err(std::io::Error::from_raw_os_error(5))
            } else {
                self.0.sync()
            }
        }
        fn len(&self) -> std::io::Result<u64> {
            self.0.len()
        }
        fn set_len(&self, len: u64) -> std::io::Result<()> {
            self.0.set_len(len)
        }
        fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
            self.0.descriptor()
        }
        fn path(&self) -> &Path {
            self.0.path()
        }
    }

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let failing = Arc::new(AtomicBool::new(false));
    let store = options().media(Arc::new(Failing(failing.clone()))).open(&path).unwrap();
    let memory = region(&store);
    let commit = |value: u64, class| {
        let mut tx = store.begin(Mode::Restore).map_err(|e| e.to_string())?;
        tx.store(&memory, 0, &value).unwrap();
        tx.commit(class).map_err(|e| e.to_string())
    };
    commit(1, Class::Power).unwrap();
    let before = store.begin(Mode::Restore).unwrap();
    failing.store(true, Ordering::SeqCst);
    let first = commit(2, Class::Power).unwrap_err();
    assert!(first.contains("force the log") && first.contains("os error 5"), "{first}");
    // No later force counts, though the disk would let it.
    for class in [Class::Process, Class::Power] {
        assert_eq!(commit(3, class).unwrap_err(), first);
    }
    assert!(store.flush().is_err() && store.truncate().is_err() && store.query().failed);
    assert!(before.prepare(b"g").is_err());
    let refused = memory.unmap().unwrap_err();
    assert!(refused.to_string().contains("has failed"), "{refused}");
    drop(refused);
    assert!(store.close().is_err());
    let copy = dir.path().join("copy");
    copy_store(&path, &copy);
    clean(&copy);
    let store = options().open(&copy).unwrap();
    assert!([1, 2].contains(&region(&store).load::<u64>(0)));
}

#[test]
fn a_long_transaction_blocks_incremental_truncation_and_the_epoch_takes_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut options = options();
    options.log_bytes(64 << 10);
    let store = options.open(&path).unwrap();
    let memory = region(&store);
    let mut long = store.begin(Mode::Restore).unwrap();
    long.store(&memory, 8, &99u64).unwrap();
    // The same page changes with each commit, and twenty times the log passes.
    for i in 0..20_000u64 {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&memory, 16, &i).unwrap();
        tx.store(&memory, 4096 + (i as usize % 1000) * 64, &i).unwrap();
        tx.commit(if i % 100 == 0 { Class::Power } else { Class::Process }).unwrap();
    }
    store.flush().unwrap();
    let statistics = store.statistics();
    assert!(statistics.epochs > 0 && statistics.pages_blocked > 0, "{statistics:?}");
    // The page went to its segment from the log, without the uncommitted bytes.
    store.truncate().unwrap();
    let segment = std::fs::read(path.join("data.segment")).unwrap();
    let word = |at: usize| u64::from_ne_bytes(segment[65536 + at..65536 + at + 8].try_into().unwrap());
    assert_eq!((word(8), word(16)), (0, 19_999));
    long.commit(Class::Power).unwrap();
    drop((memory, store));
    clean(&path);
    let store = open(&path);
    let memory = region(&store);
    assert_eq!((memory.load::<u64>(8), memory.load::<u64>(16)), (99, 19_999));
}
