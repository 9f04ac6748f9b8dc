//! Transactions that are told to abort from elsewhere, while they wait, before, and when they are given the lock.

use caliburn_lock::Standard::Exclusive;
use caliburn_lock::{Detector, LockError, Locks};
use std::time::{Duration, Instant};

/// Nobody waits so long: who is not woken does.
const LONG: Duration = Duration::from_secs(20);

#[test]
fn who_waits_is_told_and_nobody_waits_behind_it() {
    let detector = Detector::new();
    let locks: Locks<&str> = detector.locks();
    let (mut holder, mut top) = (detector.owner(), detector.owner());
    locks.lock(&mut holder, "a", Exclusive).unwrap();
    locks.lock(&mut top, "b", Exclusive).unwrap();
    let canceller = detector.canceller(&top);
    let mut child = top.child();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| locks.lock_timeout(&mut child, "a", Exclusive, LONG));
        while detector.waiting() == 0 {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        canceller.cancel();
        assert!(matches!(waits.join().unwrap(), Err(LockError::Cancelled)));
        assert!(begun.elapsed() < LONG / 2, "it was told when its time was over");
    });
    assert_eq!(detector.waiting(), 0);
    // What it holds it holds until it has ended; more it does not get.
    assert!(matches!(locks.try_lock(&mut child, "c", Exclusive), Err(LockError::Cancelled)));
    assert!(matches!(top.goes_on(), Err(LockError::Cancelled)));
    assert!(!locks.try_lock(&mut holder, "b", Exclusive).unwrap());
    child.end();
    top.end();
    assert!(locks.try_lock(&mut holder, "b", Exclusive).unwrap());
}

/// At the moment at which it begins to wait, or is given the lock: it never waits on.
#[test]
fn whenever_it_is_told_it_does_not_wait_on() {
    let detector = Detector::new();
    let locks: Locks<&str> = detector.locks();
    for turn in 0..2_000u32 {
        let (mut holder, mut owner) = (detector.owner(), detector.owner());
        locks.lock(&mut holder, "a", Exclusive).unwrap();
        let canceller = detector.canceller(&owner);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| locks.lock_timeout(&mut owner, "a", Exclusive, LONG));
            (0..turn % 97).for_each(|_| std::hint::spin_loop());
            canceller.cancel();
            if turn % 3 == 0 {
                holder.end();
            }
            assert!(!matches!(waits.join().unwrap(), Err(LockError::Timeout { .. })));
        });
        owner.end();
    }
    assert_eq!((locks.len(), detector.waiting()), (0, 0));
}
