//! The clock: in order on all threads, near the wall's, and never back, whatever dies.

#[path = "../../../crates/caliburn/tests/support/cuts.rs"]
mod cuts;
mod support;

use caliburn_engine::{Class, Policy, Region, Store};
use caliburn_nest::{AHEAD_NS, CLOCK_BYTES, Clock, DRIFT_NS, Error, Timestamp, transact_at};
use cuts::{RecordedMedia, Recorder};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use support::open;

/// A wall's clock that tests set; one for each, since they run side by side.
macro_rules! wall {
    ($name:ident, $at:expr) => {
        static WALL: AtomicU64 = AtomicU64::new($at);
        fn $name() -> u64 {
            WALL.load(Ordering::SeqCst)
        }
    };
}

#[test]
fn it_goes_with_the_wall_and_never_back() {
    wall!(wall, 5_000);
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Redo);
    let clock = Clock::of(&store, &region, 0, (Arc::default(), wall)).unwrap();
    let now = || clock.now().unwrap().0;
    assert_eq!((now(), now()), (5_000, 5_001));
    WALL.store(9_000, Ordering::SeqCst);
    assert_eq!(now(), 9_000);
    WALL.store(1_000, Ordering::SeqCst);
    assert_eq!((now(), now()), (9_001, 9_002));
    // Another machine's is ahead, but not too far.
    clock.observe(Timestamp(20_000)).unwrap();
    assert_eq!(now(), 20_001);
    clock.observe(Timestamp(3)).unwrap();
    assert_eq!(now(), 20_002);
    let refused = clock.observe(Timestamp(1_001 + DRIFT_NS)).unwrap_err();
    assert!(matches!(&refused, Error::Clock(text) if text.contains("in front of")), "{refused}");
    assert_eq!(now(), 20_003);
    // Opened again, the wall's still behind: after all that was given out, and not far.
    let next = Clock::of(&store, &region, 0, (Arc::default(), wall)).unwrap().now().unwrap().0;
    assert!((20_004..=20_003 + 2 * AHEAD_NS).contains(&next), "{next}");
}

#[test]
fn threads_are_given_different_times_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Undo);
    let clock = Clock::open(&store, &region, 64).unwrap();
    let all = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let own: Vec<Timestamp> = (0..20_000).map(|_| clock.now().unwrap()).collect();
                assert!(own.is_sorted());
                all.lock().unwrap().extend(own);
            });
        }
    });
    let mut all = all.into_inner().unwrap();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 80_000);
}

/// Each of two threads adds to one word, under a lock: the times say in which order.
#[test]
fn times_agree_with_the_serial_order() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Redo);
    let clock = Clock::open(&store, &region, 64).unwrap();
    // Held until the transaction has ended, as locks are.
    let lock = Mutex::new(());
    let all = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let _held = lock.lock().unwrap();
                    let done = transact_at(&store, &clock, (), Class::Process, |tx| {
                        let next = region.load::<u64>(0) + 1;
                        tx.store(&region, 0, &next)?;
                        Ok::<_, Error>(next)
                    });
                    all.lock().unwrap().push(done.unwrap());
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap();
    all.sort_unstable_by_key(|(_, time)| *time);
    assert!(all.iter().map(|(number, _)| *number).eq(1..=4000));
}

#[test]
fn what_is_no_clock_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, region) = open(dir.path(), Policy::Redo);
    caliburn_nest::transact(&store, Class::Process, |tx| tx.store(&region, 8, &7u64)).unwrap();
    assert!(matches!(Clock::open(&store, &region, 0), Err(Error::Clock(_))));
    assert!(Clock::open(&store, &region, 8 + CLOCK_BYTES).is_ok());
}

/// Power is cut at each of its operations: a clock that is opened then is behind nothing that was given out.
#[test]
fn it_does_not_go_back_after_a_power_cut() {
    wall!(wall, 1_000);
    let mut given_out = 0;
    // The first forty are of the opening.
    for operation in [3, 13, 23, 33].into_iter().chain(40..72) {
        let dir = tempfile::tempdir().unwrap();
        let (path, cut) = (dir.path().join("s"), dir.path().join("cut"));
        let open = |path: &std::path::Path, media: Option<&Arc<Recorder>>| -> (Store, Region) {
            let mut options = Store::options();
            options.create(true).log_bytes(1 << 20);
            if let Some(recorder) = media {
                options.media(Arc::new(RecordedMedia(recorder.clone())));
            }
            let store = options.open(path).unwrap();
            let region = store.segment_or_create("clock", 65_536).unwrap().map_all().unwrap();
            (store, region)
        };
        drop(open(&path, None));
        let recorder = Recorder::new(&path, operation, operation);
        let (store, region) = open(&path, Some(&recorder));
        let clock = Clock::of(&store, &region, 0, (Arc::default(), wall)).unwrap();
        for step in 0..10 {
            // Sometimes beyond the bound.
            WALL.fetch_add(AHEAD_NS / 2, Ordering::SeqCst);
            let given = clock.now().unwrap();
            if recorder.picture.lock().unwrap().is_some() {
                break;
            }
            recorder.acknowledged.store(given.0, Ordering::SeqCst);
            if step % 3 == 0 {
                store.flush().unwrap();
            }
        }
        let picture = recorder.picture();
        drop((region, store));
        picture.restore(&cut);
        let (store, region) = open(&cut, None);
        WALL.store(1_000, Ordering::SeqCst);
        let next = Clock::of(&store, &region, 0, (Arc::default(), wall)).unwrap().now().unwrap();
        given_out += u64::from(picture.acknowledged > 0);
        assert!(
            next.0 > picture.acknowledged,
            "{operation}: {next}, and {} was given out",
            picture.acknowledged
        );
    }
    assert!(given_out > 20, "{given_out}");
}
