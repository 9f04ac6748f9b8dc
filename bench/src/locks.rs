//! `locks`: what locks cost that nobody else wants. Four names of 100,000, at random, are locked and all given up
//! again: with an owner and a table of locks, and with read-write locks in a hash map, that know nothing of
//! transactions, of waiting in turn, or of deadlocks; and as ranges of eight bytes. And what they add to a debit and
//! credit.

use crate::Arguments;
use crate::report::{self, Line, Random, Sample};
use crate::target::{Failure, options};
use caliburn::{Class, Mode, Policy};
use caliburn_lock::{Counters, Detector, Locks, RangeLocks, Standard};
use caliburn_nest::{Error, transact_following};
use caliburn_serial::{Cells, Ptr};
use hashbrown::HashMap;
use parking_lot::RwLock;
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const NAMES: usize = 100_000;
const EACH: usize = 4;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let detector = Detector::new();
    let locks: Locks<u64> = detector.locks();
    let ranges: RangeLocks<u32> = detector.range_locks();
    let map: HashMap<u64, RwLock<()>> = (0..NAMES as u64).map(|name| (name, RwLock::new(()))).collect();
    for (what, mode) in [("exclusive", Standard::Exclusive), ("shared", Standard::Shared)] {
        let line = |system| Line::new(system, "none", "process", 1, json!({"mode": what, "names": NAMES}));
        let mut lines = [line("parking_lot in a hash map"), line("caliburn"), line("caliburn, ranges")];
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        report::interleave(arguments.rounds, &mut lines, || {
            let per_lock = |sample: Sample| Sample { ns_per_tx: sample.ns_per_tx / EACH as f64, ..sample };
            let plain = report::measure(arguments.seconds, 64, || {
                let names: [u64; EACH] = std::array::from_fn(|_| random.below(NAMES) as u64);
                // One after the other: a name may come twice.
                for name in names {
                    let lock = map.get(&name).expect("it is there");
                    match mode {
                        Standard::Shared => drop(lock.read()),
                        _ => drop(lock.write()),
                    }
                }
            });
            let own = report::measure(arguments.seconds, 64, || {
                let mut owner = detector.owner();
                for _ in 0..EACH {
                    let name = random.below(NAMES) as u64;
                    locks.lock(&mut owner, name, mode).expect("nobody is in the way");
                }
                owner.end();
            });
            let of_bytes = report::measure(arguments.seconds, 64, || {
                let mut owner = detector.owner();
                for _ in 0..EACH {
                    let at = random.below(NAMES) as u64 * 8;
                    ranges.lock(&mut owner, &1, at..at + 8, mode).expect("nobody is in the way");
                }
                owner.end();
            });
            vec![per_lock(plain), per_lock(own), per_lock(of_bytes)]
        });
        report::print("locks", arguments.json, &lines, 0);
    }
    debits(arguments)?;
    hot(arguments)
}

/// What is done with four accounts.
type Act<'a> = &'a (dyn Fn([usize; EACH]) + Sync);

/// A debit and credit: four words of many, at random, changed in a transaction. By itself; with a lock for each;
/// and in cells, whose transactions lock by themselves.
fn debits(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    for policy in [Policy::Redo, Policy::Undo] {
        let store = options(arguments.log_mb, arguments.stage_mb)
            .policy(policy)
            .open(dir.path().join(format!("{policy:?}")))?;
        let region = store.create_segment("accounts", NAMES as u64 * 64)?.map_all()?;
        let detector = Detector::new();
        let locks: Locks<u64> = detector.locks();
        let cells = Cells::open(&store, "cells")?;
        let mut accounts: Vec<Ptr<[u64; 8]>> = Vec::new();
        while accounts.len() < NAMES {
            let some = |tx: &mut caliburn_serial::Tx<'_>| (0..1000).map(|_| tx.insert([0; 8])).collect();
            let made: Vec<_> = cells.transact::<_, caliburn_serial::Error>(Class::Process, some)?;
            accounts.extend(made);
        }
        let plain = |four: [usize; EACH]| {
            let mut tx = store.begin(Mode::Restore).expect("the store is sound");
            for at in four {
                let value = region.load::<u64>(at * 64) + 1;
                tx.store(&region, at * 64, &value).expect("there is room");
            }
            tx.commit(Class::Process).expect("the store is sound");
        };
        let family = |four: [usize; EACH]| {
            let done = transact_following(&store, detector.owner(), Class::Process, |tx| {
                four.into_iter()
                    .try_for_each(|at| tx.store(&region, at * 64, &(region.load::<u64>(at * 64) + 1)))
            });
            done.expect("the store is sound");
        };
        let locked = |four: [usize; EACH]| {
            let done = transact_following(&store, detector.owner(), Class::Process, |tx| {
                four.into_iter().try_for_each(|at| {
                    locks.lock(tx.companion(), at as u64, Standard::Exclusive)?;
                    tx.store(&region, at * 64, &(region.load::<u64>(at * 64) + 1))
                })
            });
            done.expect("nobody is in the way");
        };
        let celled = |four: [usize; EACH]| {
            let done = cells.transact(Class::Process, |tx| {
                four.into_iter().try_for_each(|at| {
                    tx.write(&accounts[at])?[0] += 1;
                    Ok::<_, caliburn_serial::Error>(())
                })
            });
            done.expect("nobody is in the way");
        };
        let acts: [(&str, Act<'_>); 4] =
            [("alone", &plain), ("in a family", &family), ("with locks", &locked), ("in cells", &celled)];
        let name = if policy == Policy::Redo { "redo" } else { "undo" };
        for threads in [1, 2] {
            let line = |(what, _)| {
                Line::new("caliburn", name, "process", threads, json!({"debit and credit": what}))
            };
            let mut lines = acts.map(line);
            report::interleave(arguments.rounds, &mut lines, || {
                acts.map(|(_, act)| disjoint(threads, arguments.seconds, act)).into()
            });
            report::print("locks", arguments.json, &lines, 0);
        }
    }
    Ok(())
}

/// Four accounts in a transaction, on so many threads that each have a part of them.
fn disjoint(threads: usize, seconds: f64, act: Act<'_>) -> Sample {
    let one = |thread: usize| {
        let mut random = Random(0x9E37_79B9_7F4A_7C15 + thread as u64);
        let part = NAMES / threads;
        let four = || act(std::array::from_fn(|_| thread * part + random.below(part)));
        report::measure(seconds, 64, four).ns_per_tx
    };
    let per_ns: f64 = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        all.into_iter().map(|thread| 1.0 / thread.join().expect("it has not panicked")).sum()
    });
    Sample { ns_per_tx: 1.0 / per_ns, latencies: Vec::new() }
}

/// One account that eight threads add to, each commit forced: under an exclusive lock, and put off as changes that
/// commute are.
fn hot(arguments: &Arguments) -> Result<(), Failure> {
    const THREADS: u64 = 8;
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let store = options(arguments.log_mb, arguments.stage_mb).open(dir.path().join("s"))?;
    let region = store.create_segment("account", 65_536)?.map_all()?;
    let detector = Detector::new();
    let locks: Locks<u64> = detector.locks();
    let counters = Counters::new(&detector, &region, 8, 1, 0..=i64::MAX);
    let exclusive = || {
        transact_following(&store, detector.owner(), Class::Power, |tx| {
            locks.lock(tx.companion(), 0, Standard::Exclusive)?;
            tx.store(&region, 0, &(region.load::<i64>(0) + 1))
        })
    };
    let escrow = || {
        transact_following(&store, counters.companion(&detector), Class::Power, |tx| {
            let (put_off, owner) = tx.companion();
            Ok(counters.change(put_off, owner, 0, 1)?)
        })
    };
    let mut done = [0; 2];
    let mut side_by_side = |number: usize, act: &(dyn Fn() -> Result<(), Error> + Sync)| {
        let (begun, count) = (Instant::now(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while begun.elapsed().as_secs_f64() < arguments.seconds {
                        act().expect("nobody is in the way for ever");
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let count = count.into_inner();
        done[number] += count as i64;
        Sample { ns_per_tx: begun.elapsed().as_nanos() as f64 / count as f64, latencies: Vec::new() }
    };
    let line = |what| Line::new("caliburn", "redo", "power", THREADS as usize, json!({"hot account": what}));
    let mut lines = [line("exclusive lock"), line("changes that commute")];
    report::interleave(arguments.rounds, &mut lines, || {
        vec![side_by_side(0, &exclusive), side_by_side(1, &escrow)]
    });
    assert_eq!([0, 8].map(|at| region.load::<i64>(at)), done, "no change is lost");
    report::print("locks", arguments.json, &lines, 0);
    Ok(())
}
