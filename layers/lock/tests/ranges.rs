//! Locks of ranges: they go together if they have no byte in common, or are both shared.

mod support;

use caliburn_lock::{Detector, LockError, Owner, RangeLocks, Standard, Standard::*};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::Random;

/// Ranges near each other, of lengths of every order, at the borders of blocks and beside them.
fn ranges() -> impl Strategy<Value = Range<u64>> {
    let place = (0u32..36, 0u64..6, -2i64..3);
    let place = place.prop_map(|(shift, times, beside)| ((times << shift) as i64 + beside).max(0) as u64);
    (place.clone(), place).prop_map(|(a, b)| a.min(b)..a.max(b))
}

fn modes() -> impl Strategy<Value = Standard> {
    prop_oneof![Just(Shared), Just(Exclusive)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn two_go_together_if_they_have_nothing_in_common(
        (a, b) in (ranges(), ranges()), (of_a, of_b) in (modes(), modes()), other_space in 0u8..4,
    ) {
        let detector = Detector::new();
        let locks: RangeLocks<u8> = detector.range_locks();
        let (mut first, mut second) = (detector.owner(), detector.owner());
        locks.lock(&mut first, &1, a.clone(), of_a).unwrap();
        let space = if other_space == 0 { 2 } else { 1 };
        let common = space == 1 && a.start.max(b.start) < a.end.min(b.end);
        let goes = !common || of_a == Shared && of_b == Shared;
        prop_assert_eq!(locks.try_lock(&mut second, &space, b.clone(), of_b).unwrap(), goes);
        // A child is not in its parent's way.
        let mut child = first.child();
        if !common {
            return Ok(());
        }
        second.end();
        prop_assert!(locks.try_lock(&mut child, &1, b.clone(), of_b).unwrap());
        child.commit();
        let mut third = detector.owner();
        let goes = of_a == Shared && of_b == Shared;
        prop_assert_eq!(locks.try_lock(&mut third, &1, b.clone(), Shared).unwrap(), goes);
        first.end();
        third.end();
        prop_assert!(locks.is_empty());
    }
}

/// Threads that count themselves into the bytes that they have locked: no two writers, no writer and a reader.
#[test]
fn threads_have_what_they_have_locked_to_themselves() {
    const BYTES: usize = 300;
    const WRITER: usize = 1000;
    let detector = Detector::new();
    let locks: RangeLocks<&'static str> = detector.range_locks();
    let inside: Vec<AtomicUsize> = (0..BYTES).map(|_| AtomicUsize::new(0)).collect();
    let had = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (locks, detector, inside, had) = (&locks, &detector, &inside, &had);
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                let mut below = |end: u64| random.below(end);
                for _ in 0..3000 {
                    let mut owner = detector.owner();
                    let mut mine: Vec<(Range<u64>, usize)> = Vec::new();
                    for _ in 0..1 + below(2) {
                        let start = below(BYTES as u64);
                        let range = start..(start + 1 + below(70)).min(BYTES as u64);
                        let (mode, weight) = if below(2) == 0 { (Exclusive, WRITER) } else { (Shared, 1) };
                        match locks.lock(&mut owner, &"bytes", range.clone(), mode) {
                            Ok(()) => mine.push((range, weight)),
                            Err(LockError::Deadlock(_)) => break,
                            Err(other) => panic!("{other}"),
                        }
                    }
                    // One may have a byte twice; it is not in its own way.
                    let mut own = [0; BYTES];
                    for (range, weight) in &mine {
                        range.clone().for_each(|at| own[at as usize] += weight);
                    }
                    let each = || own.iter().enumerate().filter(|(_, weight)| **weight > 0);
                    for (at, weight) in each() {
                        let others = inside[at].fetch_add(*weight, Ordering::SeqCst);
                        assert!(
                            others == 0 || others < WRITER && *weight < WRITER,
                            "{others} {weight} at {at}"
                        );
                    }
                    for (at, weight) in each() {
                        inside[at].fetch_sub(*weight, Ordering::SeqCst);
                    }
                    had.fetch_add(mine.len(), Ordering::Relaxed);
                    owner.end();
                }
            });
        }
    });
    assert!(locks.is_empty() && had.load(Ordering::Relaxed) > 6000);
}

#[test]
fn errors_name_the_bytes() {
    let detector = Detector::new();
    let locks: RangeLocks<&'static str> = detector.range_locks();
    let mut first = detector.owner();
    locks.lock(&mut first, &"data", 4096..8192, Exclusive).unwrap();
    let mut second = detector.owner();
    let error =
        locks.lock_timeout(&mut second, &"data", 4100..4104, Shared, std::time::Duration::from_millis(5));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("4096..8192 of \"data\""), "{error}");
    let all =
        locks.lock_timeout(&mut second, &"data", 0..u64::MAX, Shared, std::time::Duration::from_millis(5));
    assert!(all.unwrap_err().to_string().contains("all of \"data\""));
}

#[test]
fn wrong_uses_are_told() {
    let detector = Detector::new();
    let locks: RangeLocks<u8> = detector.range_locks();
    let lock = |range: Range<u64>, mode| {
        let one = |mut owner: Owner| locks.lock(&mut owner, &1, range.clone(), mode);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one(detector.owner())))
    };
    assert!(lock(0..8, IntentShared).is_err());
    #[allow(clippy::reversed_empty_ranges, reason = "that is the test")]
    let reversed = lock(9..8, Shared);
    assert!(reversed.is_err());
    assert!(lock(8..8, Shared).unwrap().is_ok() && locks.is_empty());
}
