//! Counters that many families change at once: bounds hold whichever commit, and what is there in the end is the sum
//! of those that did.

use caliburn_engine::{Class, Policy, Region, Store};
use caliburn_lock::{Counters, Detector, EscrowError, Intentions, Owner, check};
use caliburn_nest::{Error, Tx, transact_following};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicI64, Ordering};

const COUNTERS: usize = 3;

fn open(dir: &Path, policy: Policy) -> (Store, Region) {
    let store = Store::options().create(true).policy(policy).open(dir.join("s")).unwrap();
    let region = store.segment_or_create("counters", 65_536).unwrap().map_all().unwrap();
    (store, region)
}

type Changes<'c, 't> = (Intentions<'c, 't, Counters<'t>>, Owner);

fn change<'t>(
    counters: &Counters<'t>,
    tx: &mut Tx<'t, Changes<'_, 't>>,
    counter: usize,
    amount: i64,
) -> Result<(), EscrowError> {
    let (put_off, owner) = tx.companion();
    counters.change(put_off, owner, counter, amount)
}

fn read<'t>(
    counters: &Counters<'t>,
    tx: &mut Tx<'t, Changes<'_, 't>>,
    counter: usize,
) -> Result<i64, EscrowError> {
    let (put_off, owner) = tx.companion();
    counters.read(put_off, owner, counter)
}

fn is_bounds(error: &Error) -> bool {
    let Error::Followed(error) = error else { return false };
    matches!(error.downcast_ref(), Some(EscrowError::Bounds { .. }))
}

#[test]
fn the_modes_are_sound() {
    check::<caliburn_lock::Access>().unwrap();
}

#[test]
fn many_change_one_counter_at_once_and_it_stays_in_bounds() {
    for (policy, class) in
        [(Policy::Redo, Class::Process), (Policy::Undo, Class::Process), (Policy::Redo, Class::Power)]
    {
        let dir = tempfile::tempdir().unwrap();
        let committed = [const { AtomicI64::new(0) }; COUNTERS];
        {
            let (store, region) = open(dir.path(), policy);
            let detector = Detector::new();
            let counters = Counters::new(&detector, &region, 64, COUNTERS, 0..=50);
            // What was lost would be mended by the next that adds to what is known: it is looked at often.
            for phase in 0..if class == Class::Power { 10 } else { 150 } {
                std::thread::scope(|scope| {
                    for thread in 0..4usize {
                        let (store, detector, counters, committed) =
                            (&store, &detector, &counters, &committed);
                        scope.spawn(move || {
                            for round in phase * 10..phase * 10 + 10 {
                                let amounts =
                                    [(thread, 7), (round, -3), (round / 3, 4), (thread + round, -6)];
                                let mut kept: [i64; COUNTERS] = Default::default();
                                let done =
                                    transact_following(store, counters.companion(detector), class, |tx| {
                                        for (place, amount) in amounts {
                                            let counter = (place + round) % COUNTERS;
                                            let child = tx.nest(|child| {
                                                change(counters, child, counter, amount)?;
                                                if (round + counter).is_multiple_of(4) {
                                                    return Err(child.abort("now and then"));
                                                }
                                                Ok(())
                                            });
                                            match child {
                                                Ok(()) => kept[counter] += amount,
                                                Err(error) => {
                                                    assert!(
                                                        matches!(error, Error::Aborted(_))
                                                            || is_bounds(&error),
                                                        "{error}"
                                                    );
                                                }
                                            }
                                        }
                                        if round.is_multiple_of(5) {
                                            Err(tx.abort("all of it"))
                                        } else {
                                            Ok(())
                                        }
                                    });
                                if done.is_ok() {
                                    for (of, sum) in committed.iter().zip(kept) {
                                        of.fetch_add(sum, Ordering::Relaxed);
                                    }
                                }
                                for counter in 0..COUNTERS {
                                    let value = counters.committed(counter);
                                    assert!((0..=50).contains(&value), "{value}");
                                }
                            }
                        });
                    }
                });
                for (counter, sum) in committed.iter().enumerate() {
                    assert_eq!(
                        region.load::<i64>(64 + counter * 8),
                        sum.load(Ordering::Relaxed),
                        "{policy:?} {counter}"
                    );
                }
            }
        }
        let (_store, region) = open(dir.path(), policy);
        for (counter, sum) in committed.iter().enumerate() {
            assert_eq!(region.load::<i64>(64 + counter * 8), sum.load(Ordering::Relaxed));
        }
    }
}

#[test]
fn bounds_count_what_is_outstanding() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Redo);
    let detector = Detector::new();
    let counters = Counters::new(&detector, &region, 0, 1, 0..=10);
    let top = |amount: i64| {
        transact_following(&store, counters.companion(&detector), Class::Process, |tx| {
            change(&counters, tx, 0, amount).map_err(Error::from)
        })
    };
    top(8).unwrap();
    let (changed, seen) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            transact_following(&store, counters.companion(&detector), Class::Process, |tx| {
                change(&counters, tx, 0, -5)?;
                // Its own are in what it reads, and nobody else's; not where nobody looks yet.
                changed.wait();
                seen.wait();
                Err::<(), _>(tx.abort("after all"))
            })
        });
        changed.wait();
        let value = region.load::<i64>(0);
        // 3 are left if the first commits; and 10 would be too many if it does not.
        let outcomes = [-4, 3, 2, -3].map(top);
        seen.wait();
        assert!(first.join().unwrap().is_err());
        assert_eq!((value, outcomes.each_ref().map(Result::is_ok)), (8, [false, false, true, true]));
        let texts = outcomes.map(|outcome| outcome.err().map(|error| error.to_string()));
        let text = "counter 0 may not change by -4: it may come to -1, and must stay within 0..=10";
        assert_eq!(texts[0].as_deref(), Some(text));
    });
    assert_eq!(region.load::<i64>(0), 7);
    top(-7).unwrap();
    assert_eq!(region.load::<i64>(0), 0);
}

#[test]
fn a_family_reads_its_own_changes() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Redo);
    let detector = Detector::new();
    let counters = Counters::new(&detector, &region, 0, 2, i64::MIN..=i64::MAX);
    transact_following(&store, counters.companion(&detector), Class::Power, |tx| {
        change(&counters, tx, 0, 5)?;
        tx.nest(|child| {
            change(&counters, child, 0, 2)?;
            assert_eq!(read(&counters, child, 0)?, 7);
            Ok::<_, Error>(())
        })?;
        let aborted = tx.nest(|child| {
            change(&counters, child, 0, 100)?;
            assert_eq!(read(&counters, child, 0)?, 107);
            Err::<(), _>(child.abort("it is not added"))
        });
        assert!(aborted.is_err());
        let children = tx.cofor(4, |_, child| change(&counters, child, 1, 1).map_err(Error::from));
        assert!(children.iter().all(Result::is_ok));
        assert_eq!((read(&counters, tx, 0)?, read(&counters, tx, 1)?), (7, 4));
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!((region.load::<i64>(0), region.load::<i64>(8)), (7, 4));
}

/// What was put off is part of what is prepared, and holds up others until that is decided.
#[test]
fn changes_that_are_prepared_are_settled_when_that_is_decided() {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = open(dir.path(), policy);
        let detector = Detector::new();
        let counters = Counters::new(&detector, &region, 64, COUNTERS, 0..=50);
        for (commits, value) in [(true, 5), (false, 5)] {
            let (_, undecided) = caliburn_nest::prepare(&store, counters.companion(&detector), b"id", |tx| {
                Ok::<_, Error>(change(&counters, tx, 0, 5)?)
            })
            .unwrap();
            // Others may change it, and be undone.
            let undone = transact_following(&store, counters.companion(&detector), Class::Process, |tx| {
                change(&counters, tx, 0, 3)?;
                Err::<(), _>(tx.abort("as planned"))
            });
            assert!(matches!(undone, Err(Error::Aborted(_))));
            if commits {
                undecided.commit().unwrap()
            } else {
                undecided.abort().unwrap()
            }
            assert_eq!((counters.committed(0), region.load::<i64>(64)), (value, value));
            // All of the room is there again.
            let full = transact_following(&store, counters.companion(&detector), Class::Process, |tx| {
                change(&counters, tx, 0, 45)?;
                Err::<(), _>(tx.abort("as planned"))
            });
            assert!(matches!(full, Err(Error::Aborted(_))));
        }
    }
}
