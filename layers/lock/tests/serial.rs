//! Families on several threads that lock what they read and change: their histories are those of some order of them,
//! one after the other.

mod support;

use caliburn_engine::{Class, Policy, Region, Store};
use caliburn_history::{History, Op, check};
use caliburn_lock::{Detector, LockError, Locks, Owner, Standard};
use caliburn_nest::{Error, Tx, transact_following};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use support::Random;

const LISTS: usize = 6;
const LIST: usize = 64 << 10;
const THREADS: u64 = 3;
/// So long nobody waits, unless a deadlock was not found.
const LONG: Duration = Duration::from_secs(5);

struct World<'w> {
    region: &'w Region,
    locks: Locks<usize>,
    next: AtomicU64,
    aborted: Mutex<Vec<u64>>,
}

fn list(region: &Region, list: usize) -> Vec<u64> {
    let len: u64 = region.load(list * LIST);
    (1..=len as usize).map(|at| region.load(list * LIST + at * 8)).collect()
}

impl<'w> World<'w> {
    fn append(&self, tx: &mut Tx<'w, Owner>, list: usize) -> Result<Op, Error> {
        self.locks.lock_timeout(tx.companion(), list, Standard::Exclusive, LONG)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Until it is known to be committed.
        self.aborted.lock().unwrap().push(number);
        let len: u64 = self.region.load(list * LIST);
        tx.store(self.region, list * LIST + (len as usize + 1) * 8, &number)?;
        tx.store(self.region, list * LIST, &(len + 1))?;
        Ok(Op::Append(list, number))
    }

    fn read(&self, tx: &mut Tx<'w, Owner>, of: usize) -> Result<Op, Error> {
        self.locks.lock_timeout(tx.companion(), of, Standard::Shared, LONG)?;
        Ok(Op::Read(of, list(self.region, of)))
    }

    /// What a transaction does: what of it is committed if it is.
    fn acts(&self, tx: &mut Tx<'w, Owner>, random: &mut Random, depth: u32) -> Result<Vec<Op>, Error> {
        let mut done = Vec::new();
        for _ in 0..1 + random.below(3) {
            let of = random.below(LISTS as u64) as usize;
            match random.below(if depth < 3 { 8 } else { 5 }) {
                0..3 => done.push(self.append(tx, of)?),
                3..5 => done.push(self.read(tx, of)?),
                5..7 => {
                    let child = tx.nest(|child| {
                        let done = self.acts(child, random, depth + 1)?;
                        if random.below(4) == 0 { Err(child.abort("now and then")) } else { Ok(done) }
                    });
                    done.extend(child.into_iter().flatten());
                }
                _ => {
                    let seed = random.below(u64::MAX);
                    let children = tx.cofor(2, |number, child| {
                        self.acts(child, &mut Random(seed + number as u64), depth + 1)
                    });
                    done.extend(children.into_iter().flatten().flatten());
                }
            }
        }
        if random.below(8) == 0 { Err(tx.abort("now and then")) } else { Ok(done) }
    }
}

fn run(policy: Policy, seed: u64, transactions: u64) {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let store = Store::options().create(true).policy(policy).open(dir.path().join("s")).unwrap();
        let region = store.segment_or_create("lists", (LISTS * LIST) as u64).unwrap().map_all().unwrap();
        (store, region)
    };
    let (history, lists) = {
        let (store, region) = open();
        let detector = Detector::new();
        let (next, aborted) = (AtomicU64::new(1), Mutex::default());
        let world = World { region: &region, locks: detector.locks(), next, aborted };
        let committed = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (world, store, detector, committed) = (&world, &store, &detector, &committed);
                scope.spawn(move || {
                    let mut random = Random(seed * 100 + thread);
                    for _ in 0..transactions {
                        let done = transact_following(store, detector.owner(), Class::Process, |tx| {
                            world.acts(tx, &mut random, 0)
                        });
                        match done {
                            Ok(ops) => committed.lock().unwrap().push(ops),
                            Err(Error::Aborted(_)) => {}
                            Err(Error::Followed(error)) => {
                                let error = error.downcast_ref::<LockError>();
                                assert!(matches!(error, Some(LockError::Deadlock(_))), "{error:?}");
                            }
                            Err(other) => panic!("{other}"),
                        }
                    }
                });
            }
        });
        assert_eq!((world.locks.len(), detector.waiting()), (0, 0));
        let committed = committed.into_inner().unwrap();
        let appended: Vec<u64> = committed.iter().flatten().filter_map(number).collect();
        let aborted = world.aborted.into_inner().unwrap().into_iter();
        let aborted = aborted.filter(|number| !appended.contains(number)).collect();
        let lists: Vec<_> = (0..LISTS).map(|of| list(&region, of)).collect();
        (History { committed, aborted, ..History::default() }, lists)
    };
    assert!(history.committed.len() as u64 > transactions, "most were to commit");
    assert_eq!(check(&history, &lists), Ok(()), "{policy:?}, seed {seed}");
    let (_store, region) = open();
    assert!((0..LISTS).all(|of| list(&region, of) == lists[of]), "it was not that which is opened again");
}

fn number(op: &Op) -> Option<u64> {
    match op {
        Op::Append(_, number) => Some(*number),
        Op::Read(..) => None,
    }
}

#[test]
fn families_that_lock_are_serializable() {
    let rounds = if cfg!(debug_assertions) { 6 } else { 60 };
    for seed in 0..rounds {
        run(if seed % 2 == 0 { Policy::Redo } else { Policy::Undo }, seed, 300);
    }
}
