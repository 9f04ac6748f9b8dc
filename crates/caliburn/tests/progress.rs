//! Opening and checking tell how far they are, and can be ended at any such moment without a loss.

mod support;

use caliburn::{Class, Mode, OpenError, Options, Phase, Policy, Progress, Report, Store};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};
use support::*;

const BYTES: usize = 3 << 20;

/// The files of a store in use with half of a transaction more than was committed, as a kill leaves them.
fn killed(dir: &Path, policy: Policy) -> std::path::PathBuf {
    let (from, to) = (dir.join("killed"), dir.join("left"));
    let store = with(policy).open(&from).unwrap();
    let region = store.segment_or_create("data", BYTES as u64).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&region, 0, &vec![1; BYTES]).unwrap();
    tx.commit(if policy == Policy::Redo { Class::Power } else { Class::Process }).unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.write(&region, 0, &vec![2; BYTES]).unwrap();
    copy_store(&from, &to);
    tx.abort();
    to
}

fn with(policy: Policy) -> Options {
    let mut with = options();
    with.log_bytes(8 << 20).policy(policy);
    with
}

/// Does something with the options; it is told `most` times at most. What it was told, and what came of it.
fn told<T>(
    options: &Options,
    most: usize,
    act: impl FnOnce(&Options) -> Result<T, OpenError>,
) -> (Vec<Progress>, Result<T, OpenError>) {
    let all = Arc::new(Mutex::new(Vec::new()));
    let (mut options, noted) = (options.clone(), all.clone());
    options.progress(move |progress| {
        let mut noted = noted.lock().unwrap();
        noted.push(*progress);
        if noted.len() > most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let outcome = act(&options);
    let all = all.lock().unwrap().clone();
    (all, outcome)
}

fn in_order(told: &[Progress]) {
    for pair in told.windows(2) {
        let on = pair[0].phase != pair[1].phase || pair[0].done <= pair[1].done;
        assert!(on && pair[0].done <= pair[0].total, "{pair:?}");
    }
}

#[test]
fn opening_tells_how_far_it_is_and_can_be_ended_at_any_moment() {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let (left, options) = (killed(dir.path(), policy), with(policy));
        let mut times = 0;
        let store = loop {
            let (told, opened) = told(&options, times, |options| options.open(&left));
            in_order(&told);
            assert!(told.iter().any(|progress| progress.phase == Phase::ReadLog), "{policy:?}: {told:?}");
            match opened {
                Ok(store) => break store,
                Err(OpenError::Interrupted { path }) => assert_eq!(path, left),
                Err(other) => panic!("{other}"),
            }
            times += 1;
        };
        assert!(times > 2, "{policy:?}: ended {times} times");
        let region = store.segment("data").unwrap().map_all().unwrap();
        assert!((0..BYTES / 8).all(|i| region.load::<u64>(i * 8) == 0x0101_0101_0101_0101), "{policy:?}");
        drop(region);
        store.close().unwrap();
        clean(&left);
    }
}

#[test]
fn checking_tells_how_far_it_is_and_can_be_ended() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = with(Policy::Redo).open(&path).unwrap();
    put(&store, &region(&store), 0, 7, Class::Power);
    store.create_segment("large", 8 << 20).unwrap();
    store.close().unwrap();
    let check = |options: &Options| options.check(&path);
    let (all, report) = told(&options(), usize::MAX, check);
    in_order(&all);
    assert!(report.unwrap().is_clean());
    let last = all.last().unwrap();
    assert_eq!((last.phase, last.total), (Phase::VerifySegments, 9 << 20));
    for most in 0..all.len() {
        let report: Result<Report, _> = told(&options(), most, check).1;
        assert!(matches!(report, Err(OpenError::Interrupted { .. })), "{most}: {report:?}");
    }
    // Options that were told to stop once open a store the next time.
    let mut once = options();
    let stop = Mutex::new(true);
    once.progress(move |_| match std::mem::take(&mut *stop.lock().unwrap()) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    assert!(matches!(once.check(&path), Err(OpenError::Interrupted { .. })));
    assert!(once.check(&path).unwrap().is_clean());
    Store::open(&path).unwrap();
}
