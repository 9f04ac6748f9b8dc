//! A file had room for a page, and its file system has none any more: a hole was punched, or a copy shares the
//! extents. The store fails, the program goes on, and what was acknowledged is there when the
//! store is opened again.

mod support;

use caliburn::{Class, Mode, Options, Policy, Region, Store};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LEN: u64 = 1 << 20;
const THREADS: usize = 3;
/// Bytes that a transaction declares now and then: more than a chunk of an undo log has.
const LARGE: usize = 200 << 10;

fn options(policy: Policy) -> Options {
    let mut options = support::options();
    options.policy(policy).log_bytes(4 << 20).stage_bytes(1 << 20);
    options
}

fn regions(store: &Store) -> [Region; 2] {
    ["a", "b"].map(|name| store.segment_or_create(name, LEN).unwrap().map_all().unwrap())
}

/// The file, and a part of it that nothing was stored to and that a transaction of the test stores to.
fn hole(policy: Policy) -> (&'static str, u64, u64) {
    match policy {
        // Behind the chunk that is used first.
        Policy::Redo => ("stage", 64 << 10, 512 << 10),
        _ => ("a.segment", 576 << 10, 256 << 10),
    }
}

#[test]
fn a_hole_on_a_full_disk_fails_the_store_and_not_the_process() {
    for policy in [Policy::Redo, Policy::Undo, Policy::Shadow] {
        let Some(disk) = support::mount_loop("xfs", 400) else { return };
        let path = disk.path.join("s");
        let store = options(policy).create(true).open(&path).unwrap();
        let all = regions(&store);
        let mut tx = store.begin(Mode::Restore).unwrap();
        all.iter().for_each(|region| tx.store(region, 8, &7u64).unwrap());
        tx.commit(Class::Process).unwrap();

        let (name, from, len) = hole(policy);
        support::punch(&path.join(name), from, len);
        let filler = disk.path.join("filler");
        support::fill(&filler);
        let mut ended = None;
        for turn in 0..400u64 {
            let mut tx = match store.begin(Mode::Restore) {
                Ok(tx) => tx,
                // Another thread of the store has met it.
                Err(error) => {
                    ended = Some((turn, error.to_string()));
                    break;
                }
            };
            // Also before the hole is met.
            let told = tx.store(&all[1], 8, &(8 + turn)).map_err(|e| e.to_string());
            let nines = if policy == Policy::Redo { 8 << 10 } else { 8 };
            let told =
                told.and_then(|()| tx.write(&all[0], 600 << 10, &vec![9; nines]).map_err(|e| e.to_string()));
            let told = told.and_then(|()| tx.commit(Class::Process).map_err(|e| e.to_string()));
            if let Err(error) = told {
                ended = Some((turn, error));
                break;
            }
        }
        let (turn, error) = ended.expect("the hole was met");
        assert!(error.contains("no room"), "{policy:?}: {error}");
        let refused = store.begin(Mode::Restore).map(drop).unwrap_err().to_string();
        assert!(refused.contains("make room"), "{policy:?}: {refused}");
        drop(all);
        assert!(store.close().is_err());

        fs::remove_file(&filler).unwrap();
        let store = options(policy).open(&path).unwrap();
        let [a, b] = regions(&store);
        assert_eq!(a.load::<u64>(8), 7, "{policy:?}");
        let there = b.load::<u64>(8);
        let last = if turn == 0 { 7 } else { 8 + turn - 1 };
        assert!(
            there == last || policy == Policy::Redo && there == last + 1,
            "{policy:?}: {there} and {last}"
        );
        let nine = a.load::<u8>(600 << 10) == 9;
        assert_eq!(nine, there > 7, "{policy:?}: half a transaction");
    }
}

/// What a thread had acknowledged, and what it was told last.
struct Lived {
    acknowledged: u64,
    error: String,
}

/// Commits the same number in both regions again and again, aborts now and then, until the store fails. `over`: one
/// has failed.
fn live(
    store: &Store,
    [a, b]: &[Region; 2],
    number: usize,
    (class, grows): (Class, bool),
    over: &AtomicBool,
) -> Lived {
    let (mine, large) = (number * 4096, (256 << 10) * (number + 1) - LARGE);
    let mut acknowledged = 0u64;
    loop {
        let next = acknowledged + 1;
        let attempt = |value: u64, commit: bool| -> Result<(), String> {
            let mut tx = store.begin(Mode::Restore).map_err(|e| e.to_string())?;
            tx.store(a, mine, &value).map_err(|e| e.to_string())?;
            if grows && value.is_multiple_of(7) {
                tx.write(a, large, &vec![value as u8; LARGE]).map_err(|e| e.to_string())?;
            }
            tx.store(b, mine, &value).map_err(|e| e.to_string())?;
            if commit {
                return tx.commit(class).map_err(|e| e.to_string());
            }
            tx.abort();
            Ok(())
        };
        let done = match next.is_multiple_of(5) {
            true => attempt(u64::MAX, false),
            false => Ok(()),
        };
        match done.and_then(|()| attempt(next, true)) {
            Ok(()) => acknowledged = next,
            Err(error) => {
                over.store(true, Ordering::Relaxed);
                return Lived { acknowledged, error };
            }
        }
    }
}

/// What was acknowledged is there, and nothing by half.
fn is_there(a: &Region, b: &Region, lived: &[Lived]) {
    for (number, Lived { acknowledged, error }) in lived.iter().enumerate() {
        let [a, b] = [a, b].map(|region| region.load::<u64>(number * 4096));
        assert_eq!(a, b, "thread {number}: half a transaction; {error}");
        assert!((*acknowledged..=acknowledged + 1).contains(&a), "{a} of {acknowledged}; {error}");
    }
}

/// Pages of a transaction that takes its time.
const SLOWLY: std::ops::Range<usize> = 100..200;

/// One transaction meets a hole, and the others are anywhere.
#[test]
fn others_that_have_room_lose_nothing_either() {
    for _ in 0..3 {
        let Some(disk) = support::mount_loop("xfs", 400) else { return };
        let path = disk.path.join("s");
        let store = options(Policy::Undo).create(true).open(&path).unwrap();
        let all = regions(&store);
        support::punch(&path.join("a.segment"), 576 << 10, 256 << 10);
        let over = AtomicBool::new(false);
        let lived: Vec<Lived> = std::thread::scope(|scope| {
            let live = |number: usize| {
                let (store, all, over) = (&store, &all, &over);
                scope.spawn(move || live(store, all, number, (Class::Process, false), over))
            };
            let threads: Vec<_> = (0..THREADS).map(live).collect();
            while (0..THREADS).any(|number| all[1].load::<u64>(number * 4096) < 100) {
                std::thread::yield_now();
            }
            // One that is open all the time stores to one page after the other.
            let open = scope.spawn(|| {
                let mut tx = store.begin(Mode::Restore).unwrap();
                for page in SLOWLY {
                    if tx.store(&all[1], page * 4096, &1u64).is_err() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            while all[1].load::<u64>((SLOWLY.start + 10) * 4096) == 0 {
                std::thread::yield_now();
            }
            // Its undo log is there before the disk is full.
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.store(&all[1], 50 * 4096, &9u64).unwrap();
            let filler = disk.path.join("filler");
            support::fill(&filler);
            tx.store(&all[0], 600 << 10, &9u64).unwrap();
            assert!(tx.commit(Class::Process).is_err());
            open.join().unwrap();
            let lived = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            fs::remove_file(&filler).unwrap();
            lived
        });
        drop(all);
        assert!(store.close().is_err());
        let store = options(Policy::Undo).open(&path).unwrap();
        let [a, b] = regions(&store);
        is_there(&a, &b, &lived);
        assert_eq!([a.load::<u64>(600 << 10), b.load::<u64>(50 * 4096)], [0; 2]);
        assert!(SLOWLY.into_iter().all(|page| b.load::<u64>(page * 4096) == 0), "what was never committed");
    }
}

/// Times that all files of a store are copied.
const COPIES: usize = 64;

/// The store's files, and empty ones that become their copies.
fn copies(path: &Path) -> Vec<(fs::File, Vec<fs::File>)> {
    let aside = path.with_extension("copies");
    fs::create_dir(&aside).unwrap();
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|file| !file.ends_with("lock"));
    let copies = |number: usize| {
        (0..COPIES).map(|copy| fs::File::create(aside.join(format!("{number}.{copy}"))).unwrap()).collect()
    };
    files.enumerate().map(|(number, file)| (fs::File::open(file).unwrap(), copies(number))).collect()
}

/// Of a copy that shares its extents each page that was written back needs room when it is stored to again.
#[test]
fn shared_extents_on_a_full_disk_lose_nothing() {
    let Some(disk) = support::mount_loop("xfs", 400) else { return };
    let mut detached = 0;
    for (round, policy) in
        [Policy::Undo, Policy::Redo, Policy::Shadow, Policy::Undo, Policy::Undo].into_iter().enumerate()
    {
        let (path, filler) = (disk.path.join(round.to_string()), disk.path.join("filler"));
        let store = options(policy).create(true).open(&path).unwrap();
        let all = regions(&store);
        let (class, threads) = match policy {
            Policy::Shadow => (Class::Power, 1),
            _ => (Class::Process, THREADS),
        };
        let over = AtomicBool::new(false);
        let lived: Vec<Lived> = std::thread::scope(|scope| {
            let (store, all, over) = (&store, &all, &over);
            let threads: Vec<_> = (0..threads)
                .map(|number| scope.spawn(move || live(store, all, number, (class, true), over)))
                .collect();
            let copies = copies(&path);
            support::fill(&filler);
            // Each time all extents are shared again; a full disk may have no room for what says so.
            for copy in 0..COPIES {
                for (file, copies) in &copies {
                    let _ = rustix::fs::ioctl_ficlone(&copies[copy], file);
                }
                support::fill(&filler);
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
            let begun = Instant::now();
            while !over.load(Ordering::Relaxed) {
                assert!(begun.elapsed() < Duration::from_secs(60), "{policy:?}: no page needed room");
                std::thread::yield_now();
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        detached += u32::from(lived.iter().any(|lived| lived.error.contains("no room for a page")));
        drop(all);
        assert!(store.close().is_err(), "{policy:?}");

        fs::remove_file(&filler).unwrap();
        fs::remove_dir_all(path.with_extension("copies")).unwrap();
        let store = options(policy).open(&path).unwrap();
        let [a, b] = regions(&store);
        is_there(&a, &b, &lived);
        println!("{policy:?}: {:?}", lived.iter().map(|l| (l.acknowledged, &l.error)).collect::<Vec<_>>());
        drop((a, b));
        store.close().unwrap();
        fs::remove_dir_all(&path).unwrap();
    }
    assert!(detached > 0, "memory was never detached");
}
