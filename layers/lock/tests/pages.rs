//! Transactions of programs that never heard of locks: pages are locked when they are touched.

mod support;

use caliburn_engine::{Access, Class, Mode, Options, Policy, Region, SegmentId, Store, Tracking};
use caliburn_history::{History, Op, check};
use caliburn_lock::{Detector, LockError, PageLocks, RangeLocks, Touching};
use caliburn_nest::Error;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Barrier, mpsc};
use std::time::Duration;
use support::Random;

const PAGE: usize = 4096;
const LISTS: usize = 6;
/// Bytes of a list.
const LIST: usize = 16 * PAGE;

fn options() -> Options {
    let mut options = Store::options();
    options.create(true).policy(Policy::Undo);
    options
}

fn opened(path: &Path) -> (Store, Region) {
    let store = options().open(path).unwrap();
    let region = match store.segment("data") {
        Ok(segment) => segment.map_all().unwrap(),
        Err(_) => store.create_segment("data", (LISTS * LIST) as u64).unwrap().map_all().unwrap(),
    };
    (store, region)
}

fn locks() -> (Detector, RangeLocks<SegmentId>) {
    let detector = Detector::new();
    let locks = detector.range_locks();
    (detector, locks)
}

/// What a program does that works with pointers.
struct Lists(*mut u64);

impl Lists {
    fn at(&self, list: usize, word: usize) -> *mut u64 {
        self.0.wrapping_add(list * LIST / 8 + word)
    }

    fn read(&self, list: usize) -> Vec<u64> {
        // SAFETY: the lists lie in the view of the transaction that does this.
        unsafe {
            let len = self.at(list, 0).read_volatile() as usize;
            // What a victim of a deadlock sees may fit nothing.
            (1..=len.min(LIST / 8 - 1)).map(|word| self.at(list, word).read_volatile()).collect()
        }
    }

    fn append(&self, list: usize, number: u64) {
        // SAFETY: as above.
        unsafe {
            let len = self.at(list, 0).read_volatile() as usize;
            self.at(list, (len + 1).min(LIST / 8 - 1)).write_volatile(number);
            self.at(list, 0).write_volatile(len as u64 + 1);
        }
    }
}

/// Some order of the transactions, one after the other, explains what they have read.
#[test]
fn programs_that_know_no_locks_are_serializable() {
    const THREADS: u64 = 4;
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    let (detector, locks) = locks();
    let next = AtomicU64::new(1);
    let (committed, aborted) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let attempts = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, region, detector, locks) = (&store, &region, &detector, &locks);
            let (next, committed, aborted, attempts) = (&next, &committed, &aborted, &attempts);
            scope.spawn(move || {
                let mut random = Random(thread + 7);
                let mut pages = PageLocks::new(store, region, detector, locks).unwrap();
                for _ in 0..150 {
                    let acts: Vec<(bool, usize)> = (0..1 + random.below(4))
                        .map(|_| (random.below(2) == 0, random.below(LISTS as u64) as usize))
                        .collect();
                    let abort = random.below(8) == 0;
                    let mut tried = Vec::new();
                    let done = pages.transact(Class::Process, |tx| {
                        attempts.fetch_add(1, SeqCst);
                        let lists = Lists(tx.as_ptr().cast());
                        let mut ops = Vec::new();
                        for &(appends, list) in &acts {
                            if appends {
                                let number = next.fetch_add(1, SeqCst);
                                tried.push(number);
                                lists.append(list, number);
                                ops.push(Op::Append(list, number));
                            } else {
                                ops.push(Op::Read(list, lists.read(list)));
                            }
                        }
                        if abort { Err(Error::Aborted("on purpose".into())) } else { Ok(ops) }
                    });
                    match done {
                        Ok(ops) => {
                            let kept = |number: &u64| {
                                ops.iter().any(|op| matches!(op, Op::Append(_, n) if n == number))
                            };
                            aborted.lock().unwrap().extend(tried.iter().filter(|number| !kept(number)));
                            committed.lock().unwrap().push(ops);
                        }
                        Err(Error::Aborted(_)) => aborted.lock().unwrap().extend(tried),
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    let committed = committed.into_inner().unwrap();
    println!("{} transactions of {} attempts", committed.len(), attempts.load(SeqCst));
    let lists = Lists(region.as_ptr().cast());
    let there: Vec<Vec<u64>> = (0..LISTS).map(|list| lists.read(list)).collect();
    let aborted = aborted.into_inner().unwrap().into_iter().collect();
    let history = History { committed, aborted, ..History::default() };
    assert_eq!(check(&history, &there), Ok(()));
}

/// Two that want each other's page: one is tried again, as old as it was.
#[test]
fn a_deadlock_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    let (detector, locks) = locks();
    let (meet, attempts) = (Barrier::new(2), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for first in [0, PAGE] {
            let (store, region, detector, locks) = (&store, &region, &detector, &locks);
            let (meet, attempts) = (&meet, &attempts);
            scope.spawn(move || {
                let mut pages = PageLocks::new(store, region, detector, locks).unwrap();
                let mut once = true;
                let add = |tx: &mut Touching<'_>, at: usize| {
                    let count: u64 = tx.load(at);
                    tx.store(at, &(count + 1));
                };
                pages
                    .transact(Class::Process, |tx| {
                        attempts.fetch_add(1, SeqCst);
                        add(tx, first);
                        if std::mem::take(&mut once) {
                            meet.wait();
                        }
                        add(tx, PAGE - first);
                        Ok(())
                    })
                    .unwrap();
            });
        }
    });
    assert_eq!((region.load::<u64>(0), region.load::<u64>(PAGE)), (2, 2));
    assert!(attempts.load(SeqCst) > 2, "nobody was tried again");
}

/// What a victim stores from then on is in a copy, which is gone when it ends.
#[test]
fn a_victim_goes_on_in_copies() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    let (_detector, _locks) = locks();
    let view = region
        .view(|access, bytes| match (access, bytes.start) {
            (Access::Store, 8192) => Err("not this one".into()),
            _ => Ok(()),
        })
        .unwrap();
    for turn in 1..=2u64 {
        let mut inside = view.enter(store.begin(Mode::Restore).unwrap());
        inside.store(0, &turn);
        assert_eq!(inside.load::<u64>(2 * PAGE), 0);
        assert!(inside.goes_on().is_ok());
        inside.store(2 * PAGE, &turn);
        inside.store(2 * PAGE + 8, &turn);
        assert_eq!(inside.load::<u64>(2 * PAGE), turn);
        assert!(inside.goes_on().unwrap_err().contains("not this one"));
        assert_eq!((region.load::<u64>(0), region.load::<u64>(2 * PAGE)), (turn, 0));
        let (tx, refused) = inside.leave();
        assert!(refused.unwrap().to_string().contains("not this one"));
        tx.abort();
        assert_eq!((region.load::<u64>(0), region.load::<u64>(2 * PAGE)), (0, 0));
    }
    // A hook that panics refuses.
    let view = region.view(|_, _| panic!("on purpose")).unwrap();
    let mut inside = view.enter(store.begin(Mode::Restore).unwrap());
    inside.load::<u64>(0);
    assert!(inside.leave().1.unwrap().to_string().contains("panicked"));
}

/// Where a page is hot, each locks its part of it; who touches the page waits for all of them.
#[test]
fn ranges_of_one_page_are_locked_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    let (detector, locks) = locks();
    let (meet, inside) = (Barrier::new(2), AtomicU64::new(0));
    let (begun, ranges_hold) = mpsc::channel();
    std::thread::scope(|scope| {
        let (store, region, detector, locks) = (&store, &region, &detector, &locks);
        let (meet, inside) = (&meet, &inside);
        for part in 0..2usize {
            let begun = begun.clone();
            scope.spawn(move || {
                let mut pages = PageLocks::new(store, region, detector, locks).unwrap();
                pages
                    .transact(Class::Process, |tx| {
                        let at = 64 * part;
                        tx.lock_range(Access::Store, at..at + 8)?;
                        inside.fetch_add(1, SeqCst);
                        // Both are in it now.
                        meet.wait();
                        begun.send(()).unwrap();
                        let count: u64 = tx.load(at);
                        tx.store(at, &(count + 1));
                        // Time for the third to come, which changes nothing if it does not.
                        std::thread::sleep(Duration::from_millis(20));
                        inside.fetch_sub(1, SeqCst);
                        Ok(())
                    })
                    .unwrap();
            });
        }
        scope.spawn(move || {
            let mut pages = PageLocks::new(store, region, detector, locks).unwrap();
            ranges_hold.recv().unwrap();
            let sum = pages.transact(Class::Process, |tx| {
                let sum = tx.load::<u64>(0) + tx.load::<u64>(64);
                assert_eq!(inside.load(SeqCst), 0, "the page was had while ranges of it were locked");
                Ok(sum)
            });
            assert_eq!((sum.unwrap(), pages.waited()), (2, vec![(0, 1)]));
        });
    });
}

/// What no range was locked for is not declared, and could not be undone.
#[test]
#[should_panic(expected = "only other ranges were opened")]
fn a_store_beside_the_locked_range_panics() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = opened(&dir.path().join("s"));
    let (detector, locks) = locks();
    let mut pages = PageLocks::new(&store, &region, &detector, &locks).unwrap();
    let _ = pages.transact(Class::Process, |tx| {
        tx.lock_range(Access::Store, 0..8)?;
        tx.lock_range(Access::Store, 64..72)?;
        (0..2).for_each(|part| tx.store(64 * part, &1u64));
        tx.store(PAGE, &1u64);
        tx.store(128, &1u64);
        Ok(())
    });
}

/// Many pages that are open take mappings: in the end all of the region is locked.
#[test]
fn many_pages_are_locked_as_one() {
    let most: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    let count = most / 6 + 100;
    if count > 1 << 18 {
        return println!("not run: the system allows {most} mappings");
    }
    let dir = tempfile::tempdir().unwrap();
    let store = options().open(dir.path().join("s")).unwrap();
    let region = store.create_segment("wide", (2 * count * PAGE) as u64).unwrap().map_all().unwrap();
    let (detector, locks) = locks();
    let mut pages = PageLocks::new(&store, &region, &detector, &locks).unwrap();
    for stores in [false, true] {
        pages
            .transact(Class::Process, |tx| {
                for page in 0..count {
                    let seen: u64 = tx.load(2 * page * PAGE);
                    assert_eq!(seen, 0);
                    if stores && page % 64 == 0 {
                        tx.store(2 * page * PAGE + 8, &1u64);
                    }
                }
                let mut other = detector.owner();
                let whole = locks.try_lock(
                    &mut other,
                    &region.segment_id(),
                    PAGE as u64..PAGE as u64 + 8,
                    caliburn_lock::Standard::Exclusive,
                );
                assert!(!whole.unwrap(), "a page that was not touched is locked as well");
                Ok(())
            })
            .unwrap();
    }
    assert_eq!(region.load::<u64>(8), 1);
}

#[test]
fn what_is_undone_and_what_was_killed_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, region) = opened(&path);
    let (detector, locks) = locks();
    let mut pages = PageLocks::new(&store, &region, &detector, &locks).unwrap();
    let mut store_there = |at: usize, value: u64| {
        let done = pages.transact(Class::Process, |tx| {
            tx.store(at, &value);
            Ok(())
        });
        done.unwrap();
    };
    store_there(0, 1);
    let refused = pages.transact(Class::Process, |tx| {
        tx.store(0, &2u64);
        tx.store(5 * PAGE, &2u64);
        Err::<(), _>(Error::Aborted("on purpose".into()))
    });
    assert!(matches!(refused, Err(Error::Aborted(_))));
    assert_eq!((region.load::<u64>(0), region.load::<u64>(5 * PAGE)), (1, 0));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pages.transact(Class::Process, |tx| {
            tx.store(0, &3u64);
            if tx.load::<u64>(0) == 3 { panic!("on purpose") } else { Ok(()) }
        })
    }));
    assert!(panicked.is_err());
    // Nothing of it is locked, nor open.
    let mut other = detector.owner();
    let all = 0..region.len() as u64;
    assert!(
        locks.try_lock(&mut other, &region.segment_id(), all, caliburn_lock::Standard::Exclusive).unwrap()
    );
    other.end();
    pages
        .transact(Class::Process, |tx| {
            let first: u64 = tx.load(0);
            tx.store(8, &first);
            Ok(())
        })
        .unwrap();
    assert_eq!((region.load::<u64>(0), region.load::<u64>(8)), (1, 1));
    // Killed in the midst of one, which is then undone.
    let copy = dir.path().join("c");
    pages
        .transact(Class::Process, |tx| {
            tx.store(16, &9u64);
            std::fs::create_dir(&copy).unwrap();
            for entry in std::fs::read_dir(&path).unwrap() {
                let entry = entry.unwrap();
                std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
            }
            Ok(())
        })
        .unwrap();
    drop(pages);
    let store = options().copied(true).memory_kept(true).open(&copy).unwrap();
    let restored = store.segment("data").unwrap().map_all().unwrap();
    assert_eq!((restored.load::<u64>(0), restored.load::<u64>(8), restored.load::<u64>(16)), (1, 1, 0));
    assert_eq!(region.load::<u64>(16), 9);
}

#[test]
fn what_cannot_be_had_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let kinds = [
        (Policy::Redo, Tracking::Declared),
        (Policy::Shadow, Tracking::Declared),
        (Policy::Undo, Tracking::Fault),
    ];
    for (number, (policy, tracking)) in kinds.into_iter().enumerate() {
        let store =
            options().policy(policy).tracking(tracking).open(dir.path().join(number.to_string())).unwrap();
        let region = store.create_segment("data", 1 << 16).unwrap().map_all().unwrap();
        let refused = region.view(|_, _| Ok(())).unwrap_err().to_string();
        assert!(refused.contains("Policy::Undo"), "{refused}");
    }
    // A lock that is not given for another reason than a deadlock: the transaction is not tried again.
    let (store, region) = opened(&dir.path().join("s"));
    let (detector, locks) = locks();
    detector.set_limit(Some(Duration::from_millis(10)));
    let (entered, done) = (Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut pages = PageLocks::new(&store, &region, &detector, &locks).unwrap();
            let mut times = 0;
            let refused = pages.transact(Class::Process, |tx| {
                times += 1;
                tx.store(0, &1u64);
                entered.wait();
                // Until it is told that it takes too long.
                while tx.goes_on().is_ok() {
                    std::thread::yield_now();
                }
                Ok(())
            });
            let Err(Error::Followed(why)) = refused else { panic!("{refused:?}") };
            assert!(matches!(why.downcast_ref(), Some(LockError::Overlong(_))), "{why}");
            assert_eq!(times, 1);
            done.store(true, SeqCst);
        });
        scope.spawn(|| {
            let mut pages = PageLocks::new(&store, &region, &detector, &locks).unwrap();
            entered.wait();
            assert_eq!(pages.transact(Class::Process, |tx| Ok(tx.load::<u64>(0))).unwrap(), 0);
        });
    });
    assert!(done.load(SeqCst));
}

/// Without a transaction in the view a touch ends the process, with a message.
#[test]
fn a_touch_that_is_nobodys_ends_the_process() {
    const CHILD: &str = "CALIBURN_VIEW_CHILD";
    if let Some(kind) = std::env::var_os(CHILD) {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = opened(&dir.path().join("s"));
        let view = region.view(|_, _| Ok(())).unwrap();
        let mut inside = view.enter(store.begin(Mode::Restore).unwrap());
        let at = inside.as_ptr().wrapping_add(12_345);
        inside.load::<u8>(12_345);
        drop(inside);
        // SAFETY: nobody may do this, which is what it is for.
        unsafe { if kind == "load" { _ = at.read_volatile() } else { at.write_volatile(1) } }
        std::process::exit(3);
    }
    for kind in ["load", "store"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_touch_that_is_nobodys_ends_the_process", "--nocapture"]).env(CHILD, kind);
        let output = command.output().unwrap();
        use std::os::unix::process::ExitStatusExt;
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{kind}: {text}");
        assert!(text.contains("byte 12345"), "{text}");
    }
}
