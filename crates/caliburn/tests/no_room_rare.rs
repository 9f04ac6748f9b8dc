//! Moments in which a store's memory is detached from files that have no room (see `no_room.rs`): while it is
//! being closed, while what recovery has found is committed, while a guard opens pages; and again and again in one
//! process.

mod support;

use caliburn::{Class, Guard, Mode, Options, Policy, Region, Store};
use std::fs;
use std::path::Path;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn options(policy: Policy) -> Options {
    let mut options = support::options();
    options.policy(policy).log_bytes(32 << 20).stage_bytes(1 << 20);
    options
}

fn region(store: &Store, name: &str, len: u64) -> Region {
    store.segment_or_create(name, len).unwrap().map_all().unwrap()
}

/// Waits so long, without sleeping.
fn spin(micros: u64) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_micros(micros) {
        std::hint::spin_loop();
    }
}

#[test]
fn a_transaction_of_shadow_may_meet_thousands_of_pages_without_room() {
    let Some(disk) = support::mount_loop("xfs", 400) else { return };
    let path = disk.path.join("s");
    let store = options(Policy::Shadow).create(true).open(&path).unwrap();
    let a = region(&store, "a", 16 << 20);
    // The log has room for that much.
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&a, 0, &vec![1; 8 << 20]).unwrap();
    tx.commit(Class::Power).unwrap();
    support::punch(&path.join("a.segment"), 64 << 10, 12 << 20);
    support::fill(&disk.path.join("filler"));
    let mut tx = store.begin(Mode::Restore).unwrap();
    let _ = tx.write(&a, 1 << 20, &vec![9; 2048 * 4096]);
    assert!(tx.commit(Class::Power).is_err());
}

/// A transaction that stores a value to many pages.
fn put<'s>(store: &'s Store, a: &'s Region, ranges: usize, value: u64) -> caliburn::Transaction<'s> {
    let mut tx = store.begin(Mode::Restore).unwrap();
    (0..ranges).for_each(|range| tx.store(a, range * 8192, &value).unwrap());
    tx
}

/// How many ranges have the second value.
fn new(a: &Region, ranges: usize) -> usize {
    (0..ranges).filter(|range| a.load::<u64>(range * 8192) == 2).count()
}

/// It is undecided and nothing of it is seen, or it is committed as a whole.
fn is_whole(path: &Path, ranges: usize) {
    let store = options(Policy::Undo).open(path).unwrap();
    let undecided = store.prepared().len();
    let a = region(&store, "a", 16 << 20);
    let there = new(&a, ranges);
    assert!([(1, 0), (0, ranges)].contains(&(undecided, there)), "{undecided} undecided, {there} new");
    if undecided == 1 {
        store.abort_prepared(b"g").unwrap();
        assert_eq!(new(&a, ranges), 0, "it was aborted");
    }
}

/// What recovery found is committed, and the undo log has no room. A thread makes room after the failure.
#[test]
fn what_recovery_has_found_is_committed_as_a_whole_or_stays_undecided() {
    // What is saved of them is longer than a page, and shorter than what there is of undo logs.
    const RANGES: usize = 200;
    for _ in 0..3 {
        let Some(disk) = support::mount_loop("xfs", 400) else { return };
        let path = disk.path.join("s");
        let store = options(Policy::Undo).create(true).open(&path).unwrap();
        let a = region(&store, "a", 16 << 20);
        put(&store, &a, RANGES, 1).commit(Class::Process).unwrap();
        put(&store, &a, RANGES, 2).prepare(b"g").unwrap();
        drop(a);
        store.close().unwrap();
        let store = options(Policy::Undo).open(&path).unwrap();
        let b = region(&store, "b", 1 << 20);
        support::put(&store, &b, 0, 1, Class::Process);
        support::punch(&path.join("undo"), (64 << 10) + 4096, 28 << 10);
        let filler = disk.path.join("filler");
        support::fill(&filler);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while store.begin(Mode::Restore).is_ok() {}
                fs::remove_file(&filler).unwrap();
            });
            assert!(store.commit_prepared(b"g").is_err());
        });
        drop(b);
        let _ = store.close();
        is_whole(&path, RANGES);
    }
}

/// A store is closed with something undecided; old values find no room.
#[test]
fn a_store_that_finds_no_room_while_it_is_closed_is_not_in_order() {
    const RANGES: usize = 1200;
    for spare in [256u64 << 10, 512 << 10, 1 << 20, 2 << 20] {
        let Some(disk) = support::mount_loop("xfs", 400) else { return };
        let path = disk.path.join("s");
        let store = options(Policy::Undo).create(true).open(&path).unwrap();
        let a = region(&store, "a", 16 << 20);
        put(&store, &a, RANGES, 1).commit(Class::Process).unwrap();
        put(&store, &a, RANGES, 2).prepare(b"g").unwrap();
        let file = fs::File::open(path.join("a.segment")).unwrap();
        file.sync_all().unwrap();
        let copy = fs::File::create(disk.path.join("copy")).unwrap();
        rustix::fs::ioctl_ficlone(&copy, &file).unwrap();
        copy.sync_all().unwrap();
        let filler = disk.path.join("filler");
        support::fill(&filler);
        let file = fs::OpenOptions::new().write(true).open(&filler).unwrap();
        file.set_len(file.metadata().unwrap().len() - spare).unwrap();
        file.sync_all().unwrap();
        drop((a, file));
        let _ = store.close();
        fs::remove_file(&filler).unwrap();
        is_whole(&path, RANGES);
    }
}

/// A guard opens pages that are protected while the logs are detached. Many regions make that take its time.
#[test]
fn a_guard_opens_nothing_meanwhile() {
    for _ in 0..2 {
        let Some(disk) = support::mount_loop("xfs", 1500) else { return };
        let path = disk.path.join("s");
        let mut options = options(Policy::Undo);
        let store = options.guard(Guard::Pages).create(true).open(&path).unwrap();
        let parts = |name: &str, count: u64| -> Vec<Region> {
            let segment = store.segment_or_create(name, count << 20).unwrap();
            (0..count).map(|part| segment.map(part << 20..(part + 1) << 20).unwrap()).collect()
        };
        let (many, b, own) = (parts("a", 400), region(&store, "b", 4 << 20), parts("own", 32));
        let touched = many.iter().flat_map(|a| (0..1 << 20).step_by(4096).map(|page| a.load::<u8>(page)));
        assert!(touched.into_iter().all(|byte| byte == 0));
        support::punch(&path.join("a.segment"), 576 << 10, 256 << 10);
        let turns = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for number in 0..2 {
                let (store, own, turns) = (&store, &own[number * 16..][..16], &turns);
                scope.spawn(move || {
                    while let Ok(mut tx) = store.begin(Mode::Restore) {
                        for range in 0..960 {
                            if tx.store(&own[range % 16], range / 16 * 8192, &7u64).is_err() {
                                break;
                            }
                            spin(15);
                        }
                        tx.abort();
                        turns.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.store(&b, 3 << 20, &9u64).unwrap();
            support::fill(&disk.path.join("filler"));
            let seen = turns.load(Ordering::SeqCst);
            while turns.load(Ordering::SeqCst) < seen + 3 {
                std::thread::yield_now();
            }
            tx.store(&many[0], 600 << 10, &9u64).unwrap();
            assert!(tx.commit(Class::Process).is_err());
        });
        drop((many, b, own));
        assert!(store.close().is_err());
        fs::remove_file(disk.path.join("filler")).unwrap();
        let store = options.open(&path).unwrap();
        let own = store.segment("own").unwrap().map_all().unwrap();
        let there = (0..8192).filter(|page| own.load::<u64>(page * 4096) != 0).count();
        assert_eq!(there, 0, "pages hold what was never committed");
    }
}

/// A store and a region of it in which threads store.
struct Round(Store, Region);

/// Stores and commits until each store has failed; then waits for the next one.
fn live(rounds: &RwLock<Option<Round>>, number: usize, stopped: &AtomicUsize, end: &AtomicBool) {
    while !end.load(Ordering::SeqCst) {
        let round = rounds.read().unwrap();
        let Some(Round(store, region)) = &*round else {
            drop(round);
            std::thread::yield_now();
            continue;
        };
        let mut value = 0u64;
        while let Ok(mut tx) = store.begin(Mode::Restore) {
            value += 1;
            for _ in 0..200 {
                if tx.store(region, number * 4096, &value).is_err() {
                    break;
                }
                spin(20);
            }
            if tx.commit(Class::Process).is_err() {
                break;
            }
        }
        stopped.fetch_add(1, Ordering::SeqCst);
        drop(round);
        while stopped.load(Ordering::SeqCst) != 0 && !end.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }
}

extern "C" fn other(_: libc::c_int) {
    // SAFETY: it ends this process and does nothing else.
    unsafe { libc::_exit(77) };
}

/// The same pages at the same addresses, in one process; another handler comes after ours.
#[test]
fn a_process_goes_on_again_and_again() {
    const BIG: u64 = 256 << 20;
    let Some(disk) = support::mount_loop("xfs", 1000) else { return };
    let (path, filler) = (disk.path.join("s"), disk.path.join("filler"));
    let mut options = options(Policy::Undo);
    options.guard(Guard::Off).create(true);
    let (rounds, end, stopped) = (RwLock::new(None), AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (rounds, end, stopped) = (&rounds, &end, &stopped);
            scope.spawn(move || live(rounds, number, stopped, end));
        }
        for round in 0..5 {
            let store = options.open(&path).unwrap();
            let segment = store.segment_or_create("a", BIG).unwrap();
            let part = |part: u64| {
                let address = 0x7100_0000_0000 + (part << 20) as usize;
                segment.map_at(part << 20..(part + 1) << 20, address).unwrap()
            };
            let many: Vec<Region> = (0..BIG >> 20).map(part).collect();
            let b =
                store.segment_or_create("b", 1 << 20).unwrap().map_at(0..1 << 20, 0x7200_0000_0000).unwrap();
            let touched = many.iter().flat_map(|a| (0..1 << 20).step_by(4096).map(|page| a.load::<u8>(page)));
            assert!(touched.into_iter().all(|byte| byte == 0));
            support::punch(&path.join("a.segment"), 576 << 10, 256 << 10);
            support::put(&store, &b, 400 << 10, 1, Class::Process);
            if round == 2 {
                // SAFETY: the handler ends the process, which is not to be.
                unsafe { libc::signal(libc::SIGSEGV, other as *const () as usize) };
            }
            support::fill(&filler);
            *rounds.write().unwrap() = Some(Round(store, b));
            {
                let round = rounds.read().unwrap();
                let Round(store, b) = round.as_ref().unwrap();
                let mut tx = store.begin(Mode::Restore).unwrap();
                tx.store(b, 500 << 10, &1u64).unwrap();
                spin(20_000);
                tx.store(&many[0], 600 << 10, &9u64).unwrap();
                assert!(tx.commit(Class::Process).is_err());
            }
            while stopped.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            let Round(store, b) = rounds.write().unwrap().take().unwrap();
            drop((many, b));
            assert!(store.close().is_err());
            fs::remove_file(&filler).unwrap();
            stopped.store(0, Ordering::SeqCst);
        }
        end.store(true, Ordering::SeqCst);
    });
}
