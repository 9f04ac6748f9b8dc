//! The examples do what they say.

#[path = "../examples/bank.rs"]
mod bank;
#[path = "../examples/reservation.rs"]
mod reservation;

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
