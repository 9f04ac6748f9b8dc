//! Those who hold others up: they are named, and with a limit to abort.

use caliburn_lock::Standard::{Exclusive, Shared};
use caliburn_lock::{Detector, LockError, Locks};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(100);

/// Waits until something is so. If it never is, those that are to be waited for after a panic would wait as well.
fn until(is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        if begun.elapsed() > Duration::from_secs(20) {
            eprintln!("it never came to be so");
            std::process::abort();
        }
        std::thread::yield_now();
    }
}

#[test]
fn who_holds_another_up_for_too_long_is_to_abort() {
    let detector = Detector::new();
    let locks: Locks<&str> = detector.locks();
    detector.set_limit(Some(SHORT));
    let top = detector.owner();
    let mut child = top.child();
    locks.lock(&mut child, "a", Exclusive).unwrap();
    child.commit();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut owner = detector.owner();
            locks.lock(&mut owner, "a", Shared).unwrap();
            owner.id()
        });
        until(|| detector.waiting() > 0);
        let held_up = detector.held_up();
        assert_eq!(
            (held_up.len(), &held_up[0].wanted[..], held_up[0].by[0].0),
            (1, "\"a\" Shared", top.id())
        );
        until(|| detector.overlong() > 0);
        // It learns it at its next call, and goes on waiting for nobody.
        let mut child = top.child();
        let error = locks.lock(&mut child, "b", Shared).unwrap_err();
        assert!(matches!(error, LockError::Overlong(_)), "{error}");
        let error = top.goes_on().unwrap_err().to_string();
        assert!(!waiter.is_finished(), "it has not ended yet");
        child.end();
        let held = top.id();
        top.end();
        let text = format!("transaction {held} took too long: {} has waited 100ms", waiter.join().unwrap());
        assert!(error.starts_with(&text), "{error}");
    });
    assert_eq!((locks.len(), detector.overlong(), detector.waiting()), (0, 1, 0));
}

/// One that waits is held up itself; each of those that take a lock in turn has a limit of its own; a reader is
/// not to abort.
#[test]
fn only_who_runs_all_the_time_is_to_abort() {
    let detector = Detector::new();
    let locks: Locks<&str> = detector.locks();
    detector.set_limit(Some(SHORT));
    let (mut reader, mut runs) = (detector.reader(), detector.owner());
    locks.lock(&mut reader, "read", Shared).unwrap();
    locks.lock(&mut runs, "first", Exclusive).unwrap();
    std::thread::scope(|scope| {
        let (detector, locks) = (&detector, &locks);
        // Holds the second, and waits for the first.
        let between = scope.spawn(move || {
            let mut owner = detector.owner();
            locks.lock(&mut owner, "second", Exclusive).unwrap();
            locks.lock(&mut owner, "first", Exclusive).unwrap();
        });
        until(|| detector.waiting() > 0);
        let last = scope.spawn(move || {
            let mut owner = detector.owner();
            locks.lock(&mut owner, "second", Exclusive).unwrap();
            // Behind the reader.
            let timeout = locks.lock_timeout(&mut owner, "read", Exclusive, 5 * SHORT);
            assert!(matches!(timeout, Err(LockError::Timeout { .. })));
        });
        until(|| detector.overlong() > 0);
        assert!(runs.goes_on().is_err());
        runs.end();
        between.join().unwrap();
        last.join().unwrap();
    });
    assert_eq!(detector.overlong(), 1);
    reader.goes_on().unwrap();
}

#[test]
fn without_a_limit_it_takes_as_long_as_it_takes() {
    let detector = Detector::new();
    let locks: Locks<&str> = detector.locks();
    detector.set_limit(Some(SHORT));
    detector.set_limit(None);
    let mut first = detector.owner();
    locks.lock(&mut first, "a", Exclusive).unwrap();
    let mut second = detector.owner();
    assert!(locks.lock_timeout(&mut second, "a", Exclusive, 4 * SHORT).is_err());
    first.goes_on().unwrap();
    assert_eq!(detector.overlong(), 0);
}

/// The lock is the child's, so its end is enough.
#[test]
fn a_child_that_holds_another_up_is_to_abort_alone() {
    let detector = Detector::new();
    let locks: Locks<&str> = detector.locks();
    detector.set_limit(Some(SHORT));
    let mut top = detector.owner();
    locks.lock(&mut top, "kept", Exclusive).unwrap();
    let mut child = top.child();
    locks.lock(&mut child, "a", Exclusive).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| locks.lock(&mut detector.owner(), "a", Shared).unwrap());
        until(|| detector.overlong() > 0);
        let error = child.goes_on().unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("transaction {} took too long", child.id())),
            "{error}"
        );
        let parent = top.goes_on();
        child.end();
        waiter.join().unwrap();
        parent.unwrap();
    });
    let mut next = top.child();
    locks.lock(&mut next, "a", Exclusive).unwrap();
    next.commit();
    top.goes_on().unwrap();
    assert_eq!((top.locks(), detector.overlong()), (2, 1));
}
