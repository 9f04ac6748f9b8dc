//! Data larger than memory, without swap: a process in a memory control group changes random places of a
//! segment of 175 % of the group's limit. It must neither be killed nor come to a stop.

mod support;

use caliburn::{Class, Mode, RangeError, Store, Tuning};
use std::time::{Duration, Instant};
use support::{clean, open, put};

const LIMIT: u64 = 96 << 20;
const DATA: u64 = LIMIT / 4 * 7 / 65536 * 65536;

/// Run in the child, inside the group.
#[test]
fn child() {
    let Some((_, path)) = support::inside() else { return };
    let mut options = Store::options();
    // Everything by default but the sizes of log and stage, which would be a good part of the limit.
    let store = options.create(true).log_bytes(8 << 20).stage_bytes(4 << 20).open(path).unwrap();
    assert_eq!(store.query().memory_budget, LIMIT / 3, "the default budget follows the group's limit");
    let memory = store.segment_or_create("data", DATA).unwrap().map_all().unwrap();
    let mut random = 1u64;
    let mut rates = Vec::new();
    let mut number = 0;
    for _ in 0..8 {
        let (start, first) = (Instant::now(), number);
        while start.elapsed() < Duration::from_millis(500) {
            for _ in 0..16 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let mut tx = store.begin(Mode::Restore).unwrap();
                tx.store(&memory, (random % (DATA / 4096)) as usize * 4096 + 8, &number).unwrap();
                tx.store(&memory, 0, &number).unwrap();
                tx.commit(Class::Process).unwrap();
                number += 1;
            }
        }
        rates.push(number - first);
    }
    let statistics = store.statistics();
    println!(
        "commits per half second {rates:?}, {} pages written, {} given back",
        statistics.pages_written, statistics.pages_dropped
    );
    assert!(statistics.pages_dropped > 1000, "no pages were given back: {statistics:?}");
    // Steady: most half seconds have more than a fiftieth of the best one's commits; a disk may pause now and
    // then.
    let mut later = rates.split_off(2);
    later.sort_unstable();
    assert!(later[1] > later[later.len() - 1] / 50, "{later:?}");
    assert_eq!(memory.load::<u64>(0), number - 1);
}

#[test]
fn data_at_175_percent_of_the_limit_without_swap() {
    // Not in memory: the pages must have a disk to go to.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("s");
    support::in_group(LIMIT, "", &path);
    if path.exists() {
        clean(&path);
    }
}

#[test]
fn private_pages_stay_within_the_budget_and_are_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut options = support::options();
    let budget = 4 << 20;
    options.log_bytes(16 << 20).tuning(Tuning { memory_budget: Some(budget), ..Tuning::default() });
    let store = options.open(&path).unwrap();
    let memory = store.create_segment("data", 64 << 20).unwrap().map_all().unwrap();
    let mut most = 0;
    for i in 0..60_000usize {
        put(&store, &memory, i * 7919 % 16384 * 4096, i as u64 + 1, Class::Process);
        if i % 500 == 0 {
            most = most.max(store.query().private_pages * 4096);
        }
    }
    // Commits between two looks of the flusher come on top.
    assert!(most < budget * 4, "{most} bytes were private");
    assert!(store.statistics().pages_dropped > 5000, "{:?}", store.statistics());
    let last = |page: usize| (0..60_000usize).rev().find(|i| i * 7919 % 16384 == page).unwrap() as u64 + 1;
    assert!((0..16384).step_by(97).all(|page| memory.load::<u64>(page * 4096) == last(page)));
    drop(memory);
    store.close().unwrap();
    clean(&path);
}

#[test]
fn a_transaction_that_must_not_outgrow_the_budget_fails_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut options = support::options();
    options
        .large_transactions(false)
        .log_bytes(64 << 20)
        .tuning(Tuning { memory_budget: Some(4 << 20), ..Tuning::default() });
    let store = options.open(&path).unwrap();
    let memory = store.create_segment("data", 64 << 20).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    let error = (0..16384).find_map(|page| tx.store(&memory, page * 4096, &1u64).err()).unwrap();
    let RangeError::MemoryTooSmall { needed, budget } = error else { panic!("{error}") };
    assert!(needed > budget && budget == 4 << 20);
    tx.abort();
    assert!((0..16384).all(|page| memory.load::<u64>(page * 4096) == 0));
    // Many ranges on few pages are no such case.
    let mut tx = store.begin(Mode::Restore).unwrap();
    (0..50_000).for_each(|i| tx.store(&memory, i * 16, &1u64).unwrap());
    tx.commit(Class::Process).unwrap();
    drop((memory, store));
    clean(&path);
    open(&path);
}
