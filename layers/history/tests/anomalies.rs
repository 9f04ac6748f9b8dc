//! The checker is tried on histories that no order explains.

use caliburn_history::{Anomaly, History, Op, check};

#[test]
fn the_checker_finds_each_anomaly() {
    use Op::{Append, Read};
    let check_of = |committed: Vec<Vec<Op>>, aborted: &[u64], lists: &[&[u64]]| {
        let aborted = aborted.iter().copied().collect();
        let history = History { committed, aborted, ..History::default() };
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

/// One has ended before the other began, which has not seen it.
#[test]
fn a_stale_read_is_found_where_times_are_known() {
    use Op::{Append, Read};
    let committed = vec![vec![Append(0, 1)], vec![Read(0, vec![])], vec![Read(0, vec![1])]];
    let check_at = |times: &[(u64, Option<u64>)]| {
        let history = History { committed: committed.clone(), times: times.to_vec(), ..History::default() };
        check(&history, &[vec![1]])
    };
    assert_eq!(check_at(&[]), Ok(()), "in some order");
    assert_eq!(check_at(&[(5, Some(9)), (1, Some(3)), (10, Some(11))]), Ok(()));
    assert_eq!(check_at(&[(5, Some(9)), (8, Some(12)), (8, Some(20))]), Ok(()), "side by side");
    assert_eq!(check_at(&[(5, None), (10, Some(12)), (11, Some(13))]), Ok(()), "nobody was told when");
    let Err(Anomaly::Circle("real time", mut circle)) =
        check_at(&[(5, Some(9)), (10, Some(12)), (20, Some(21))])
    else {
        panic!("it read what was no more")
    };
    circle.sort_unstable();
    assert_eq!(circle, [0, 1]);
    // By way of others.
    let found = check_at(&[(13, Some(14)), (1, Some(3)), (10, Some(12))]);
    assert!(
        matches!(found, Err(Anomaly::Circle("real time", _))),
        "it was read before it was there: {found:?}"
    );
}

#[test]
fn a_long_history_is_checked() {
    let committed: Vec<Vec<Op>> = (0..300_000).map(|number| vec![Op::Append(0, number)]).collect();
    let times = (0..300_000).map(|at| (at * 2, Some(at * 2 + 1))).collect();
    let history = History { committed, times, ..History::default() };
    assert_eq!(check(&history, &[(0..300_000).collect()]), Ok(()));
}
