//! The examples do what they say.

#[path = "../examples/bank.rs"]
mod bank;
#[path = "../examples/directory.rs"]
mod directory;
#[path = "../examples/queue.rs"]
mod queue;
#[path = "../examples/reservation.rs"]
mod reservation;
#[path = "../examples/tickets.rs"]
mod tickets;

#[test]
fn no_ticket_is_sold_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (sold, left, refused) = tickets::run(&dir.path().join("s")).unwrap();
    assert!(sold + left == 500 && (0..4).contains(&left) && refused >= 4, "{sold} {left} {refused}");
}

#[test]
fn every_order_is_done_once() {
    let dir = tempfile::tempdir().unwrap();
    caliburn_lock::check::<queue::Way>().unwrap();
    assert_eq!(queue::run(&dir.path().join("s")).unwrap(), 1200);
}

#[test]
fn nobody_sees_a_phantom() {
    let dir = tempfile::tempdir().unwrap();
    let (looks, moves) = directory::run(&dir.path().join("s")).unwrap();
    assert!(looks > 100 && moves > 100, "{looks} {moves}");
}

#[test]
fn an_audit_sees_no_torn_sum() {
    let dir = tempfile::tempdir().unwrap();
    let (moved, _) = bank::run(&dir.path().join("s")).unwrap();
    assert!(moved > 1000, "{moved}");
}

#[test]
fn a_journey_is_booked_wholly_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let (journeys, left) = reservation::run(&dir.path().join("s")).unwrap();
    assert_eq!((journeys, left[2], left[3]), (20, 0, 0));
}
