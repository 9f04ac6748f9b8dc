//! The checker is tried on histories that no order explains.

use caliburn_history::{Anomaly, History, Op, check};

#[test]
fn the_checker_finds_each_anomaly() {
    use Op::{Append, Read};
    let check_of = |committed: Vec<Vec<Op>>, aborted: &[u64], lists: &[&[u64]]| {
        let history = History { committed, aborted: aborted.iter().copied().collect() };
        check(&history, &lists.iter().map(|list| list.to_vec()).collect::<Vec<_>>())
    };
    // One after the other.
    let sound = vec![vec![Append(0, 1), Read(0, vec![1])], vec![Read(0, vec![1]), Append(0, 2)]];
    assert_eq!(check_of(sound, &[9], &[&[1, 2]]), Ok(()));
    let found = check_of(vec![vec![Append(0, 1)], vec![Read(0, vec![9])]], &[9], &[&[1]]);
    assert_eq!(found, Err(Anomaly::AbortedRead(9)));
    let found = check_of(vec![vec![Append(0, 1)]], &[9], &[&[9, 1]]);
    assert_eq!(found, Err(Anomaly::AbortedRead(9)), "what is left of it");
    let found = check_of(vec![vec![Append(0, 1), Append(0, 2)], vec![Read(0, vec![1])]], &[], &[&[1, 2]]);
    assert_eq!(found, Err(Anomaly::IntermediateRead(1)));
    let found = check_of(vec![vec![Append(0, 1)], vec![Append(0, 2)]], &[], &[&[2]]);
    assert_eq!(found, Err(Anomaly::Lists(0)), "a lost update");
    let found =
        check_of(vec![vec![Append(0, 1)], vec![Append(0, 2)], vec![Read(0, vec![2])]], &[], &[&[1, 2]]);
    assert_eq!(found, Err(Anomaly::Lists(0)));
    let circle = |found: Result<(), Anomaly>, name: &str, mut of: Vec<usize>| match found {
        Err(Anomaly::Circle(kind, mut circle)) => {
            circle.sort_unstable();
            of.sort_unstable();
            assert_eq!((kind, circle), (name, of));
        }
        other => panic!("{name}: {other:?}"),
    };
    let written = vec![vec![Append(0, 1), Append(1, 2)], vec![Append(0, 3), Append(1, 4)]];
    circle(check_of(written, &[], &[&[1, 3], &[4, 2]]), "G0", vec![0, 1]);
    let read = vec![vec![Append(0, 1), Read(1, vec![2])], vec![Append(1, 2), Read(0, vec![1])]];
    circle(check_of(read, &[], &[&[1], &[2]]), "G1c", vec![0, 1]);
    let skewed = vec![vec![Read(0, vec![]), Append(1, 2)], vec![Read(1, vec![]), Append(0, 1)]];
    circle(check_of(skewed, &[], &[&[1], &[2]]), "G2", vec![0, 1]);
}
