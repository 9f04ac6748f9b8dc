//! Snapshots: what they show, while everything else goes on, and what they cost.

mod support;
#[path = "support/workload.rs"]
mod workload;

use caliburn::{Error, Objects, PRc, PVec, PWeak, Policy, Recoverable, Snapshot, Store};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use support::{objects, store};
use workload::{Expected, Model, Root, mix, of_root, step, steps};

const POLICIES: [Policy; 2] = [Policy::Redo, Policy::Undo];

/// The model after so many transactions.
fn expected(done: u64) -> Model {
    let mut expected = Expected::default();
    expected.advance(done).clone()
}

fn advance(objects: &Objects<Root>, undone: bool) {
    let done = objects.transact(|mut root| {
        let number = root.done;
        steps(number).for_each(|s| step(&mut root, s));
        *root.fields().done += 1;
        if undone { Err(Error::Unwound) } else { Ok(()) }
    });
    assert_eq!(done.is_err(), undone);
}

#[test]
fn snapshots_stay_what_they_were_whatever_comes_after() {
    for policy in POLICIES {
        for seed in 0..6u64 {
            let (dir, store) = store(policy);
            let mut objects: Objects<Root> = objects(&store);
            let mut taken: Vec<(Snapshot<Root>, Model)> = Vec::new();
            let (mut model, mut done) = (Expected::default(), 0);
            for round in 0..300u64 {
                let chance = mix(seed * 1000 + round);
                advance(&objects, chance.is_multiple_of(5));
                done += u64::from(!chance.is_multiple_of(5));
                if chance.is_multiple_of(7) {
                    taken.push((objects.snapshot().unwrap(), model.advance(done).clone()));
                }
                if chance.is_multiple_of(11) {
                    store.truncate().unwrap();
                }
                if taken.len() > 4 {
                    taken.swap_remove(chance as usize % taken.len());
                }
                for (snapshot, then) in &taken {
                    assert!(of_root(snapshot) == *then, "{policy:?}, seed {seed}, round {round}");
                }
            }
            assert_eq!(of_root(&objects.read()), *model.advance(done));
            // They hold the store open.
            let snapshot = objects.snapshot().unwrap();
            drop(taken);
            drop(store);
            assert!(matches!(objects.clone().close(), Err(Error::Close(_))));
            drop(objects);
            assert_eq!(of_root(&snapshot), *model.advance(done));
            drop(snapshot);
            let store = Store::options().open(dir.path().join("store")).unwrap();
            objects = support::objects(&store);
            assert_eq!(of_root(&objects.read()), *model.advance(done));
        }
    }
}

/// Readers on their own time, a writer that never waits for them, truncation all the time.
#[test]
fn readers_see_whole_transactions_while_a_writer_runs() {
    for policy in POLICIES {
        let (_dir, store) = store(policy);
        let objects: Objects<Root> = objects(&store);
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            for reader in 0..3u64 {
                let (objects, ended) = (objects.clone(), &ended);
                scope.spawn(move || {
                    let mut seen = 0;
                    for round in 0.. {
                        let snapshot = objects.snapshot().unwrap();
                        let model = of_root(&snapshot);
                        assert!(snapshot.done >= seen);
                        seen = snapshot.done;
                        if mix(reader * 77 + round).is_multiple_of(3) {
                            assert!(
                                model == expected(seen),
                                "{policy:?}: not what {seen} transactions leave"
                            );
                        }
                        let held = snapshot.clone();
                        drop(snapshot);
                        thread::yield_now();
                        assert!(of_root(&held) == model, "{policy:?}: a snapshot has changed");
                        if ended.load(Relaxed) {
                            return;
                        }
                    }
                });
            }
            let store = &store;
            let ended = &ended;
            scope.spawn(move || {
                while !ended.load(Relaxed) {
                    store.truncate().unwrap();
                }
            });
            for round in 0..1500 {
                advance(&objects, round % 9 == 0);
            }
            ended.store(true, Relaxed);
        });
        assert!(of_root(&objects.read()) == expected(objects.read().done));
    }
}

#[derive(Recoverable, Default)]
#[repr(C)]
struct Large {
    values: PVec<u64>,
    owner: Option<PRc<u64>>,
    weak: PWeak<u64>,
}

fn large(store: &Store, len: usize) -> Objects<Large> {
    let objects: Objects<Large> = objects(store);
    objects.update(|mut root| root.fields().values.resize_with(len, || 1)).unwrap();
    objects
}

/// Memory that is this process's alone, in bytes.
fn private() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_snapshot_takes_memory_for_what_is_changed_and_gives_it_back() {
    let (_dir, store) = store(Policy::Undo);
    let objects = large(&store, 4 << 20);
    let change = || {
        let changed = objects
            .update(|mut root| (0..4 << 20).step_by(512).for_each(|i| *root.fields().values.at(i) += 1));
        changed.unwrap();
    };
    let mut snapshot = objects.snapshot().unwrap();
    assert_eq!(snapshot.kept_bytes(), 0);
    objects.update(|mut root| *root.fields().values.at(5) += 1).unwrap();
    let one = snapshot.kept_bytes();
    assert!(one.is_power_of_two() && one <= 65_536, "a page: {one} bytes");
    change();
    assert!(snapshot.kept_bytes() >= 32 << 20);
    assert_eq!(snapshot.values.iter().sum::<u64>(), 4 << 20);
    // Other tests of this process take memory meanwhile, and less of it.
    let before = private();
    drop(snapshot);
    assert!(private() + (30 << 20) < before, "{} bytes before, {} after", before, private());
    // As often as wanted.
    for _ in 0..50 {
        snapshot = objects.snapshot().unwrap();
        change();
        drop(snapshot);
    }
    assert!(private() < before + (64 << 20));
}

#[test]
fn snapshots_of_the_same_moment_are_one_and_what_they_may_take_is_limited() {
    for policy in POLICIES {
        let (_dir, store) = store(policy);
        let objects = large(&store, 10_000);
        let all: Vec<_> = (0..1000).map(|_| objects.snapshot().unwrap()).collect();
        assert!(all.iter().all(|snapshot| std::ptr::eq(&raw const **snapshot, &raw const *all[0])));
        objects.set_snapshot_limit(1 << 20);
        objects.update(|mut root| *root.fields().values.at(5) += 1).unwrap();
        let mut others = Vec::new();
        let refused = loop {
            match objects.snapshot() {
                Ok(snapshot) => others.push(snapshot),
                Err(error) => break error,
            }
            objects.update(|mut root| *root.fields().values.at(5) += 1).unwrap();
        };
        assert!(matches!(refused, Error::Snapshots { limit: 1_048_576, .. }), "{refused}");
        let sums: Vec<u64> = others.iter().map(|snapshot| snapshot.values[5]).collect();
        assert_eq!(sums, (2..2 + others.len() as u64).collect::<Vec<_>>());
        others.clear();
        assert_eq!(objects.snapshot().unwrap().values[5], 2 + sums.len() as u64);
        assert_eq!(all[999].values[5], 1);
    }
}

#[test]
fn snapshots_by_the_writer_itself_and_their_weak_pointers() {
    let (_dir, store) = store(Policy::Redo);
    let objects = large(&store, 10);
    let mut writer = objects.write();
    let before = writer.snapshot().unwrap();
    writer
        .update(|mut root| {
            let tx = root.tx();
            let mut root = root.fields();
            root.owner.set(Some(PRc::new(7u64)));
            let weak = PRc::downgrade(root.owner.as_ref().unwrap(), tx);
            root.weak.set(weak);
        })
        .unwrap();
    let with = writer.snapshot().unwrap();
    writer.update(|mut root| root.fields().owner.set(None::<PRc<u64>>)).unwrap();
    let after = writer.snapshot().unwrap();
    drop(writer);
    let seen = |snapshot: &Snapshot<Large>| snapshot.weak(&snapshot.weak).copied();
    assert_eq!([seen(&before), seen(&with), seen(&after)], [None, Some(7), None]);
    let foreign = catch_unwind(AssertUnwindSafe(|| before.weak(&with.weak).copied()));
    assert!(foreign.is_err());
}

/// A store that is only read has no transaction to clean up after snapshots.
#[test]
fn snapshots_without_transactions_between_them_leave_no_mappings() {
    let mappings = || fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    for policy in POLICIES {
        let (_dir, store) = store(policy);
        let objects = large(&store, 10_000);
        let before = mappings();
        for _ in 0..3000 {
            drop(objects.snapshot().unwrap());
        }
        let after = mappings();
        assert!(after < before + 1000, "{policy:?}: {before} mappings before, {after} after");
    }
}

#[test]
fn a_thread_that_would_wait_for_itself_is_told_so() {
    let (_dir, store) = store(Policy::Undo);
    let objects = large(&store, 10);
    let view = objects.read();
    assert_eq!(objects.snapshot().unwrap().values.len(), view.values.len());
    drop(view);
    let told = catch_unwind(AssertUnwindSafe(|| {
        objects.update(|_| drop(objects.snapshot())).unwrap();
    }));
    assert!(told.is_err());
    assert_eq!(objects.read().values.len(), 10);
}

/// What a process that was killed has left in its log is laid over the segments, in pages of the reader's own.
#[test]
fn a_snapshot_shows_what_recovery_has_laid_over_the_segments() {
    for read_only in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let made = Store::options().create(true).background(false).open(&path).unwrap();
        large(&made, 100_000);
        made.truncate().unwrap();
        let objects: Objects<Large> = objects(&made);
        objects
            .update(|mut root| (0..100_000).step_by(700).for_each(|i| *root.fields().values.at(i) += 7))
            .unwrap();
        // As a killed process leaves it: the log has what the segments lack.
        let copy = dir.path().join("copy");
        fs::create_dir(&copy).unwrap();
        for entry in fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        drop((objects, made));
        let store = Store::options().copied(true).memory_kept(true).read_only(read_only).open(&copy).unwrap();
        let objects: Objects<Large> = support::objects(&store);
        let snapshot = objects.snapshot().unwrap();
        assert!(read_only || snapshot.kept_bytes() > 0);
        let sum = 100_000 + 7 * 100_000u64.div_ceil(700);
        assert_eq!((snapshot.values.iter().sum::<u64>(), objects.read().values.iter().sum()), (sum, sum));
        if read_only {
            let refused = objects.update(|mut root| root.fields().values.clear()).unwrap_err();
            assert!(matches!(refused, Error::Begin(_)), "{refused}");
        } else {
            objects.update(|mut root| (0..100_000).for_each(|i| *root.fields().values.at(i) = 0)).unwrap();
            store.truncate().unwrap();
        }
        assert_eq!(snapshot.values.iter().sum::<u64>(), sum);
    }
}
