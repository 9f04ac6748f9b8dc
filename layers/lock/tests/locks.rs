//! Who may hold a lock, who waits for it, and who is told that it will not have it.

use caliburn_lock::{Deadlock, Detector, LockError, Locks, Mode, Owner, OwnerId, Standard, Standard::*};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

fn new() -> (Detector, Locks<&'static str>) {
    let detector = Detector::new();
    let locks = detector.locks();
    (detector, locks)
}

/// So long a thread waits before a test has failed.
const LONG: Duration = Duration::from_secs(10);

/// Waits until so many transactions wait for locks.
fn until_waiting(detector: &Detector, count: usize) {
    while detector.waiting() != count {
        thread::yield_now();
    }
}

fn victim(result: Result<(), LockError>) -> Arc<Deadlock> {
    match result {
        Err(LockError::Deadlock(deadlock)) => deadlock,
        other => panic!("a deadlock was expected: {other:?}"),
    }
}

#[test]
fn modes_go_together_as_the_table_says() {
    let (detector, locks) = new();
    for held in Standard::ALL {
        for asked in Standard::ALL {
            let (mut first, mut second) = (detector.owner(), detector.owner());
            locks.lock(&mut first, "a", *held).unwrap();
            assert_eq!(
                locks.try_lock(&mut second, "a", *asked).unwrap(),
                held.goes_with(*asked),
                "{held:?} {asked:?}"
            );
        }
    }
    assert_eq!(locks.len(), 0);
}

#[test]
fn a_child_takes_what_its_ancestors_hold_and_leaves_it_to_its_parent() {
    let (detector, locks) = new();
    let (mut top, mut other) = (detector.owner(), detector.owner());
    locks.lock(&mut top, "a", Exclusive).unwrap();
    let child = top.child();
    let mut inner = child.child();
    assert!(locks.try_lock(&mut inner, "a", Exclusive).unwrap());
    locks.lock(&mut inner, "b", Shared).unwrap();
    assert!(!locks.try_lock(&mut other, "b", Exclusive).unwrap());
    inner.commit();
    assert_eq!((locks.held(&child, &"a"), locks.held(&child, &"b")), (Some(Exclusive), Some(Shared)));
    // A sibling does not, until the first has committed.
    let mut sibling = top.child();
    assert!(!locks.try_lock(&mut sibling, "b", Exclusive).unwrap());
    child.commit();
    assert!(locks.try_lock(&mut sibling, "b", Exclusive).unwrap());
    sibling.end();
    // It aborted: what it had is gone, and what the parent had is not.
    assert_eq!(locks.status(&"b"), [(top.id(), Shared)]);
    assert_eq!(top.locks(), 2);
    top.end();
    assert!(locks.try_lock(&mut other, "b", Exclusive).unwrap());
    drop(other);
    assert_eq!(locks.len(), 0);
}

#[test]
fn asking_again_is_an_upgrade() {
    let (detector, locks) = new();
    let mut owner = detector.owner();
    locks.lock(&mut owner, "a", Shared).unwrap();
    locks.lock(&mut owner, "a", Shared).unwrap();
    locks.lock(&mut owner, "a", IntentExclusive).unwrap();
    assert_eq!(locks.held(&owner, &"a"), Some(SharedIntentExclusive));
    locks.lock(&mut owner, "a", Exclusive).unwrap();
    locks.lock(&mut owner, "a", Shared).unwrap();
    assert_eq!((locks.held(&owner, &"a"), owner.locks()), (Some(Exclusive), 1));
}

#[test]
fn two_that_upgrade_at_once_are_a_deadlock_and_the_younger_is_told() {
    let (detector, locks) = new();
    let (mut older, mut younger) = (detector.owner(), detector.owner());
    let older_id = older.id();
    locks.lock(&mut older, "a", Shared).unwrap();
    locks.lock(&mut younger, "a", Shared).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| locks.lock_timeout(&mut older, "a", Exclusive, LONG));
        until_waiting(&detector, 1);
        let deadlock = victim(locks.lock_timeout(&mut younger, "a", Exclusive, LONG));
        assert_eq!(deadlock.victim, younger.id());
        let text = deadlock.to_string();
        assert!(
            text.contains(&format!(
                "{} waits for \"a\" Exclusive, held Shared by {}",
                older_id,
                younger.id()
            )),
            "{text}"
        );
        // It says so until it ends.
        victim(locks.lock_timeout(&mut younger, "b", Shared, LONG));
        victim(younger.goes_on());
        younger.end();
        waits.join().unwrap().unwrap();
    });
    assert_eq!(detector.deadlocks(), 1);
}

#[test]
fn a_circle_of_many_is_found_and_named() {
    const COUNT: usize = 5;
    let detector = Detector::new();
    let locks: Locks<usize> = detector.locks();
    let texts: Locks<String> = detector.locks();
    let mut owners: Vec<Owner> = (0..COUNT).map(|_| detector.owner()).collect();
    for (number, owner) in owners.iter_mut().enumerate() {
        locks.lock(owner, number, Exclusive).unwrap();
    }
    texts.lock(&mut owners[0], "zero".to_owned(), Exclusive).unwrap();
    let mut last = owners.pop().unwrap();
    thread::scope(|scope| {
        let mut waiting = Vec::new();
        for (number, mut owner) in owners.into_iter().enumerate() {
            let locks = &locks;
            waiting.push(scope.spawn(move || locks.lock_timeout(&mut owner, number + 1, Shared, LONG)));
            until_waiting(&detector, number + 1);
        }
        // Across tables.
        let deadlock = victim(texts.lock_timeout(&mut last, "zero".to_owned(), Shared, LONG));
        assert_eq!((deadlock.victim, deadlock.waits.len()), (last.id(), COUNT));
        assert_eq!(deadlock.waits[0].wanted, "\"zero\" Shared");
        // It aborts, and all others have what they wait for, one after the other.
        last.end();
        waiting.into_iter().for_each(|waits| waits.join().unwrap().unwrap());
    });
    assert_eq!((locks.len(), texts.len()), (0, 0));
}

#[test]
fn the_victim_is_a_child_and_the_rest_of_the_family_goes_on() {
    let (detector, locks) = new();
    let (mut top, mut other) = (detector.owner(), detector.owner());
    locks.lock(&mut top, "kept", Exclusive).unwrap();
    let mut child = top.child();
    locks.lock(&mut child, "a", Exclusive).unwrap();
    let mut inner = child.child();
    locks.lock(&mut other, "b", Exclusive).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| locks.lock_timeout(&mut other, "a", Exclusive, LONG));
        until_waiting(&detector, 1);
        // The child has what the other waits for; to abort the one below it would not help.
        let deadlock = victim(locks.lock_timeout(&mut inner, "b", Shared, LONG));
        assert_eq!(deadlock.victim, child.id());
        inner.end();
        assert!(child.goes_on().is_err() && top.goes_on().is_ok());
        child.end();
        waits.join().unwrap().unwrap();
        locks.lock(&mut top, "c", Shared).unwrap();
    });
    assert_eq!(locks.status(&"kept"), [(top.id(), Exclusive)]);
}

#[test]
fn siblings_that_wait_for_each_other_are_found() {
    let (detector, locks) = new();
    let top = detector.owner();
    let (older, younger) = (top.child(), top.child());
    // What each has is below it.
    for (child, name) in [(&older, "a"), (&younger, "b")] {
        let mut inner = child.child();
        locks.lock(&mut inner, name, Exclusive).unwrap();
        inner.commit();
    }
    let (mut below_older, mut below_younger) = (older.child(), younger.child());
    thread::scope(|scope| {
        let waits = scope.spawn(|| locks.lock_timeout(&mut below_older, "b", Shared, LONG));
        until_waiting(&detector, 1);
        let deadlock = victim(locks.lock_timeout(&mut below_younger, "a", Shared, LONG));
        assert_eq!(deadlock.victim, younger.id());
        below_younger.end();
        younger.end();
        waits.join().unwrap().unwrap();
    });
    assert!(top.goes_on().is_ok());
}

#[test]
fn a_circle_through_what_a_sibling_waits_for_is_found() {
    // The top holds a; one of its children waits for another family, which waits for a: as long as the child does
    // not end, nor does the top.
    let (detector, locks) = new();
    let (mut top, mut other) = (detector.owner(), detector.owner());
    locks.lock(&mut top, "a", Exclusive).unwrap();
    locks.lock(&mut other, "b", Exclusive).unwrap();
    let (mut child, sibling) = (top.child(), top.child());
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let result = locks.lock_timeout(&mut child, "b", Shared, LONG);
            (result, child)
        });
        until_waiting(&detector, 1);
        let deadlock = victim(locks.lock_timeout(&mut other, "a", Shared, LONG));
        // Neither child has what the other family waits for: the top would have to abort, or it.
        assert!([other.id(), top.id()].contains(&deadlock.victim));
        assert_eq!(deadlock.victim, other.id(), "it is the younger");
        other.end();
        let (result, child) = waits.join().unwrap();
        result.unwrap();
        child.commit();
        sibling.commit();
    });
}

#[test]
fn a_transaction_begun_within_another_does_not_wait_for_it() {
    let (detector, locks) = new();
    let mut top = detector.owner();
    locks.lock(&mut top, "a", Exclusive).unwrap();
    let child = top.child();
    let mut independent = child.independent();
    let deadlock = victim(locks.lock_timeout(&mut independent, "a", Shared, LONG));
    // To abort the independent one does not free the lock.
    assert_eq!((deadlock.victim, deadlock.waits.len()), (top.id(), 1));
}

#[test]
fn a_writer_does_not_starve() {
    let (detector, locks) = new();
    let mut reader = detector.owner();
    locks.lock(&mut reader, "a", Shared).unwrap();
    let order = AtomicUsize::new(0);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut owner = detector.owner();
            locks.lock(&mut owner, "a", Exclusive).unwrap();
            order.fetch_add(1, Ordering::SeqCst)
        });
        until_waiting(&detector, 1);
        let mut late = detector.owner();
        assert!(!locks.try_lock(&mut late, "a", Shared).unwrap(), "a writer waits");
        // Of the family that has it, one more does: the writer waits for it anyway.
        assert!(locks.try_lock(&mut reader.child(), "a", Shared).unwrap());
        let late = scope.spawn(|| {
            let mut owner = detector.owner();
            locks.lock(&mut owner, "a", Shared).unwrap();
            order.fetch_add(1, Ordering::SeqCst)
        });
        until_waiting(&detector, 2);
        reader.end();
        assert_eq!((writer.join().unwrap(), late.join().unwrap()), (0, 1));
    });
}

#[test]
fn one_whose_family_is_waited_for_does_not_line_up() {
    let (detector, locks) = new();
    let top = detector.owner();
    let (mut child, mut sibling) = (top.child(), top.child());
    locks.lock(&mut child, "a", Shared).unwrap();
    let mut within = sibling.independent();
    thread::scope(|scope| {
        let writer = scope.spawn(|| locks.lock_timeout(&mut detector.owner(), "a", Exclusive, LONG));
        until_waiting(&detector, 1);
        // The writer waits for the end of all of the family, and of what was begun within it.
        assert!(locks.try_lock(&mut sibling, "a", Shared).unwrap());
        assert!(locks.try_lock(&mut within, "a", Shared).unwrap());
        within.end();
        sibling.end();
        child.end();
        writer.join().unwrap().unwrap();
    });
    assert_eq!(detector.deadlocks(), 0);
}

#[test]
fn a_grant_that_closes_a_circle_is_looked_at() {
    let (detector, locks) = new();
    let (mut first, mut second) = (detector.owner(), detector.owner());
    locks.lock(&mut first, "b", Exclusive).unwrap();
    locks.lock(&mut first, "a", Shared).unwrap();
    locks.lock(&mut second, "a", Shared).unwrap();
    let family = detector.owner();
    let (mut reads, mut waits) = (family.child(), family.child());
    thread::scope(|scope| {
        let locks = &locks;
        let upgrade = scope.spawn(move || (locks.lock_timeout(&mut second, "a", Exclusive, LONG), second));
        until_waiting(&detector, 1);
        let waits = scope.spawn(move || (locks.lock_timeout(&mut waits, "b", Shared, LONG), waits));
        until_waiting(&detector, 2);
        let reads = scope.spawn(move || (locks.lock_timeout(&mut reads, "a", Shared, LONG), reads));
        until_waiting(&detector, 3);
        // Two upgrades: the second gives way, and the reader behind it is given the lock, for whose family the
        // first waits from then on; and of that family one waits for the first.
        let upgraded = scope.spawn(move || (locks.lock_timeout(&mut first, "a", Exclusive, LONG), first));
        let (told, second) = upgrade.join().unwrap();
        assert_eq!(victim(told).victim, second.id());
        second.end();
        let (told, waits) = waits.join().unwrap();
        assert_eq!(victim(told).victim, family.id());
        let (had, reads) = reads.join().unwrap();
        // It may have been told before it was given the lock.
        had.err().into_iter().for_each(|error| drop(victim(Err(error))));
        drop((reads, waits, family));
        upgraded.join().unwrap().0.unwrap();
    });
}

#[test]
fn one_victim_is_enough() {
    let (detector, locks) = new();
    let (top, mut other) = (detector.owner(), detector.owner());
    let (mut older, mut younger) = (top.child(), top.child());
    locks.lock(&mut older, "a", Exclusive).unwrap();
    locks.lock(&mut other, "b", Exclusive).unwrap();
    thread::scope(|scope| {
        let locks = &locks;
        let first = scope.spawn(move || (locks.lock_timeout(&mut older, "b", Shared, LONG), older));
        until_waiting(&detector, 1);
        let second = scope.spawn(move || locks.lock_timeout(&mut younger, "b", Shared, LONG));
        until_waiting(&detector, 2);
        let had = scope.spawn(move || (locks.lock_timeout(&mut other, "a", Exclusive, LONG), other));
        let (told, older) = first.join().unwrap();
        let deadlock = victim(told);
        assert_eq!(deadlock.victim, older.id());
        older.end();
        // The other family, for which the younger child waits, has what it waited for: and ends.
        let (had, other) = had.join().unwrap();
        had.unwrap();
        other.end();
        second.join().unwrap().unwrap();
    });
    assert_eq!(detector.deadlocks(), 1);
}

#[test]
fn waiting_ends_when_its_time_is_over() {
    let (detector, locks) = new();
    let (mut first, mut second) = (detector.owner(), detector.owner());
    locks.lock(&mut first, "a", Exclusive).unwrap();
    for time in [Duration::ZERO, Duration::from_millis(20)] {
        let error = locks.lock_timeout(&mut second, "a", Shared, time).unwrap_err();
        let text = error.to_string();
        let wanted = format!("\"a\" Shared was not had within {time:?}: held Exclusive by {}", first.id());
        assert_eq!(text, wanted);
    }
    assert_eq!(detector.waiting(), 0);
    // What was given up is given to nobody.
    first.end();
    assert_eq!(locks.len(), 0);
    locks.lock_timeout(&mut second, "a", Shared, Duration::MAX).unwrap();
}

#[test]
fn what_is_not_held_cannot_be_given_up() {
    let (detector, locks) = new();
    let (mut first, mut second) = (detector.owner(), detector.owner());
    locks.lock(&mut first, "a", Shared).unwrap();
    let error = locks.unlock(&mut second, &"a").unwrap_err();
    assert_eq!(error.to_string(), format!("\"a\" is not held by transaction {}", second.id()));
    assert!(locks.unlock(&mut first, &"b").is_err());
    locks.unlock(&mut first, &"a").unwrap();
    assert!(locks.unlock(&mut first, &"a").is_err());
    assert_eq!((locks.len(), first.locks()), (0, 0));
}

#[test]
fn a_million_locks_of_one_transaction() {
    let detector = Detector::new();
    let locks: Locks<u64> = detector.locks();
    let top = detector.owner();
    let mut child = top.child();
    (0..1_000_000).for_each(|name| locks.lock(&mut child, name, Exclusive).unwrap());
    child.commit();
    assert_eq!((locks.len(), top.locks()), (1_000_000, 1_000_000));
    top.end();
    assert_eq!(locks.len(), 0);
}

#[test]
#[should_panic(expected = "One(true) goes with One(false), and One(false) does not go with One(true)")]
fn wrong_modes_are_refused() {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct One(bool);
    impl Mode for One {
        const ALL: &'static [One] = &[One(false), One(true)];
        fn goes_with(self, _: One) -> bool {
            self.0
        }
        fn and(self, other: One) -> One {
            One(self.0 && other.0)
        }
    }
    let _: Locks<u8, One> = Detector::new().locks();
}

#[test]
fn owners_are_named_by_family_and_age() {
    let (detector, _) = new();
    let top = detector.owner();
    let OwnerId { family, serial } = top.id();
    let child = top.child();
    assert_eq!(family, serial);
    assert!(child.id().family == family && child.id().serial > serial);
    assert_eq!(format!("{}", child.id()), format!("{family}.{}", child.id().serial));
}

/// However young its children are.
#[test]
fn a_family_that_is_tried_again_goes_by_its_age() {
    let (detector, locks) = new();
    let old = detector.owner();
    let id = old.id();
    let old = old.again();
    assert_eq!((old.id(), old.locks()), (id, 0));
    let mut young = detector.owner();
    let mut child = old.child();
    locks.lock(&mut child, "a", Exclusive).unwrap();
    locks.lock(&mut young, "b", Exclusive).unwrap();
    std::thread::scope(|scope| {
        let locks = &locks;
        scope.spawn(move || locks.lock(&mut child, "b", Exclusive).unwrap());
        while detector.waiting() == 0 {
            std::thread::yield_now();
        }
        let error = locks.lock(&mut young, "a", Exclusive).unwrap_err();
        assert!(matches!(error, LockError::Deadlock(_)), "{error}");
        young.end();
    });
}
