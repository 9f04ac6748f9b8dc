//! Real processes with counters whose changes commute, really killed: what was put off is there wholly or not at
//! all, and all that was acknowledged is.

#[path = "../../nest/tests/support/lives.rs"]
mod lives;

use caliburn_engine::{Class, Policy, Region, Store};
use caliburn_lock::{Counters, Detector};
use caliburn_nest::{Error, transact_following};
use std::path::Path;

const COUNTERS: usize = 4;
const THREADS: usize = 3;

/// Counters whose sum stays, then what each thread has done.
fn open(path: &Path, policy: Policy) -> (Store, Region) {
    let store = Store::options().create(true).policy(policy).open(path).unwrap();
    let region = store.segment_or_create("counters", 65_536).unwrap().map_all().unwrap();
    (store, region)
}

/// Run in the child.
#[test]
fn child() {
    let Some((path, policy)) = lives::own() else { return };
    let (store, region) = open(&path, policy);
    let detector = Detector::new();
    let counters = Counters::new(&detector, &region, 0, COUNTERS + THREADS, -1000..=i64::MAX);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, counters, detector) = (&store, &counters, &detector);
            scope.spawn(move || {
                for round in 0.. {
                    let (from, to) = (round % COUNTERS, (round * 3 + thread + 1) % COUNTERS);
                    let amount = (round % 40) as i64;
                    transact_following(store, counters.companion(detector), Class::Process, |tx| {
                        let (put_off, owner) = tx.companion();
                        if counters.change(put_off, owner, from, -amount).is_ok() {
                            counters.change(put_off, owner, to, amount)?;
                        }
                        let aborted = tx.nest(|child| {
                            let (put_off, owner) = child.companion();
                            counters.change(put_off, owner, to, 77)?;
                            Err::<(), Error>(child.abort("as always"))
                        });
                        assert!(aborted.is_err());
                        tx.nest(|child| {
                            let (put_off, owner) = child.companion();
                            Ok::<_, Error>(counters.change(put_off, owner, COUNTERS + thread, 1)?)
                        })
                    })
                    .unwrap();
                    lives::acknowledge(thread, counters.committed(COUNTERS + thread) as u64);
                }
            });
        }
    });
}

#[test]
fn what_was_put_off_is_there_wholly_or_not() {
    lives::all::<THREADS>(|path, policy| {
        let (_store, region) = open(path, policy);
        let value = |at: usize| region.load::<i64>(at * 8);
        assert_eq!((0..COUNTERS).map(value).sum::<i64>(), 0, "{policy:?}");
        std::array::from_fn(|thread| value(COUNTERS + thread) as u64)
    });
}
