//! Prepared transactions that allocate and free: undecided across crashes, decided in either way, by whoever.

mod support;

use caliburn_engine::{Class, CommitError, Policy, Store};
use caliburn_heap::{Heap, HeapError, Place};
use std::path::Path;
use support::{POLICIES, copy, objects, options};

fn open_with(path: impl AsRef<Path>, policy: Policy) -> Store {
    options().policy(policy).open(path).unwrap()
}

/// What a heap holds before, and what an undecided transaction has done to it.
struct Scene {
    heap: Heap,
    /// Beside objects of others: what stays, what was freed, what was allocated, what was both.
    stays: Place,
    freed: Place,
    taken: Place,
    passing: Place,
    large: Place,
}

const ID: &[u8] = b"flight 7";

fn scene(store: &Store) -> Scene {
    let heap = Heap::open(store, "h").unwrap();
    let mut tx = heap.begin().unwrap();
    let (stays, freed) = (tx.allocate(40).unwrap(), tx.allocate(40).unwrap());
    tx.store(stays, 0, &1u64).unwrap();
    tx.store(freed, 0, &2u64).unwrap();
    tx.commit(Class::Process).unwrap();
    let mut tx = heap.begin().unwrap();
    let (taken, passing, large) =
        (tx.allocate(40).unwrap(), tx.allocate(40).unwrap(), tx.allocate(200_000).unwrap());
    tx.store(taken, 0, &3u64).unwrap();
    tx.store(passing, 0, &4u64).unwrap();
    tx.store(large, 150_000, &5u64).unwrap();
    tx.store(stays, 0, &10u64).unwrap();
    tx.free(freed).unwrap();
    tx.free(passing).unwrap();
    tx.prepare(ID).unwrap();
    Scene { heap, stays, freed, taken, passing, large }
}

fn nobody_is_given(heap: &Heap, held: &[Place]) {
    let mut tx = heap.begin().unwrap();
    for _ in 0..3000 {
        assert!(!held.contains(&tx.allocate(40).unwrap()));
    }
    for _ in 0..5 {
        assert!(!held.contains(&tx.allocate(200_000).unwrap()));
    }
    for place in held {
        assert!(matches!(tx.free(*place), Err(HeapError::NotAllocated { .. })), "{place:?}");
    }
    tx.abort();
}

fn decided(heap: &Heap, scene: &Scene, committed: bool) {
    let load = |place| heap.load::<u64>(place, 0).unwrap();
    assert!(heap.prepared().is_empty());
    let mut there = objects(heap);
    there.sort_unstable();
    let mut expected = match committed {
        true => vec![scene.stays, scene.taken, scene.large],
        false => vec![scene.stays, scene.freed],
    };
    expected.sort_unstable();
    assert_eq!(there, expected);
    if committed {
        assert_eq!((load(scene.stays), load(scene.taken)), (10, 3));
        assert_eq!(heap.load::<u64>(scene.large, 150_000).unwrap(), 5);
    } else {
        assert_eq!((load(scene.stays), load(scene.freed)), (1, 2));
    }
    // All of it can be used again.
    let mut tx = heap.begin().unwrap();
    expected.iter().for_each(|place| tx.free(*place).unwrap());
    tx.commit(Class::Process).unwrap();
    assert_eq!(objects(heap), []);
}

#[test]
fn what_an_undecided_transaction_holds_is_nobody_elses_until_it_is_decided() {
    for policy in POLICIES {
        for committed in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let store = open_with(dir.path().join("s"), policy);
            let scene = scene(&store);
            let heap = &scene.heap;
            nobody_is_given(heap, &[scene.freed, scene.taken, scene.passing, scene.large]);
            // Others, beside them in the same words, go on.
            let mut tx = heap.begin().unwrap();
            let beside = tx.allocate(40).unwrap();
            tx.commit(store.reach()).unwrap();
            let mut tx = heap.begin().unwrap();
            tx.free(beside).unwrap();
            tx.commit(store.reach()).unwrap();
            assert_eq!(heap.prepared(), [ID]);
            let done = if committed { heap.commit_prepared(ID) } else { heap.abort_prepared(ID) };
            done.unwrap();
            assert!(matches!(heap.commit_prepared(ID), Err(CommitError::NotPrepared(_))));
            decided(heap, &scene, committed);
        }
    }
}

#[test]
fn a_crash_leaves_it_undecided_and_a_decision_stays() {
    for policy in POLICIES {
        for committed in [true, false] {
            for by_the_heap in [true, false] {
                let dir = tempfile::tempdir().unwrap();
                let store = open_with(dir.path().join("s"), policy);
                let scene = scene(&store);
                let after = copy(&dir.path().join("s"), &dir.path().join("after"));
                let again = open_with(&after, policy);
                let heap = Heap::open(&again, "h").unwrap();
                assert_eq!(heap.prepared(), [ID]);
                assert_eq!(heap.load::<u64>(scene.stays, 0).unwrap(), 1);
                nobody_is_given(&heap, &[scene.freed, scene.taken, scene.passing, scene.large]);
                match (by_the_heap, committed) {
                    (true, true) => heap.commit_prepared(ID).unwrap(),
                    (true, false) => heap.abort_prepared(ID).unwrap(),
                    (false, true) => again.commit_prepared(ID).unwrap(),
                    (false, false) => again.abort_prepared(ID).unwrap(),
                }
                if by_the_heap {
                    decided(&heap, &scene, committed);
                    continue;
                }
                // Killed before the heap knew, or with somebody who decides past it.
                assert_eq!(heap.prepared(), [ID]);
                let last = copy(&after, &dir.path().join("last"));
                let last = open_with(last, policy);
                decided(&Heap::open(&last, "h").unwrap(), &scene, committed);
            }
        }
    }
}

#[test]
fn many_are_undecided_at_once_and_are_decided_in_any_order() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let mut path = dir.path().join("0");
        let mut random = 7u64;
        let mut open = Vec::<(Vec<u8>, Place, Option<Place>)>::new();
        let mut there = Vec::<Place>::new();
        for round in 1..30u64 {
            let store = open_with(&path, policy);
            let heap = Heap::open(&store, "h").unwrap();
            let mut names: Vec<_> = open.iter().map(|(id, ..)| id.clone()).collect();
            names.sort();
            let mut found = heap.prepared();
            found.sort();
            assert_eq!(found, names);
            for step in 0..20u64 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let dice = random >> 33;
                if dice.is_multiple_of(2) {
                    let mut tx = heap.begin().unwrap();
                    let taken = tx.allocate(16 + dice as usize % 900).unwrap();
                    assert!(!there.contains(&taken) && open.iter().all(|(_, other, _)| *other != taken));
                    tx.store(taken, 0, &random).unwrap();
                    let freed = (!there.is_empty()).then(|| there.swap_remove(dice as usize % there.len()));
                    freed.into_iter().for_each(|place| tx.free(place).unwrap());
                    let id = (round * 100 + step).to_be_bytes().to_vec();
                    tx.prepare(&id).unwrap();
                    open.push((id, taken, freed));
                } else if !open.is_empty() {
                    let (id, taken, freed) = open.swap_remove(dice as usize % open.len());
                    if dice.is_multiple_of(3) {
                        heap.abort_prepared(&id).unwrap();
                        there.extend(freed);
                    } else {
                        heap.commit_prepared(&id).unwrap();
                        there.push(taken);
                    }
                }
            }
            // The undecided ones keep what they took and what they gave up; and each has a list.
            let taken = open.len() * 2 + open.iter().filter(|(_, _, freed)| freed.is_some()).count();
            let statistics = heap.statistics();
            let objects: u64 = statistics.classes.iter().map(|class| class.objects).sum();
            assert_eq!(objects as usize, there.len() + taken);
            path = copy(&path, &dir.path().join(round.to_string()));
        }
    }
}

#[test]
fn what_cannot_be_prepared_leaves_the_heap_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let store = options().open(dir.path().join("s")).unwrap();
    let heap = Heap::open(&store, "h").unwrap();
    let mut tx = heap.begin().unwrap();
    let place = tx.allocate(40).unwrap();
    tx.set_root("r", Some(place)).unwrap();
    assert!(matches!(tx.prepare(ID), Err(HeapError::Root { .. })));
    let prepare = |id: &[u8]| {
        let mut tx = heap.begin().unwrap();
        let place = tx.allocate(40).unwrap();
        tx.store(place, 0, &1u64).unwrap();
        tx.prepare(id)
    };
    for id in [&[][..], &[1; 2000]] {
        assert!(matches!(prepare(id), Err(HeapError::Commit(CommitError::GlobalId { .. }))));
        assert_eq!((heap.prepared().len(), objects(&heap).len()), (0, 0));
    }
    prepare(ID).unwrap();
    assert!(matches!(prepare(ID), Err(HeapError::Commit(CommitError::GlobalId { .. }))));
    assert_eq!(heap.prepared(), [ID]);
    heap.abort_prepared(ID).unwrap();
    assert_eq!((heap.prepared().len(), objects(&heap).len()), (0, 0));
    // Without anything for the heap, there is no list.
    let mut tx = heap.begin().unwrap();
    let place = tx.allocate(40).unwrap();
    tx.commit(Class::Process).unwrap();
    let mut tx = heap.begin().unwrap();
    tx.store(place, 0, &1u64).unwrap();
    tx.prepare(ID).unwrap();
    assert!(heap.prepared().is_empty());
    heap.commit_prepared(ID).unwrap();
}

#[test]
fn a_list_that_was_overwritten_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = options().open(dir.path().join("s")).unwrap();
    let scene = scene(&store);
    // The header says where it is; it is no object that a program is told of.
    store.truncate().unwrap();
    let header = std::fs::read(dir.path().join("s/h.heap.segment")).unwrap();
    let word = u64::from_le_bytes(header[65_536 + 24..][..8].try_into().unwrap());
    let list = Place((word & ((1 << 48) - 1)) - 1);
    assert!(!objects(&scene.heap).contains(&list));
    let mut tx = scene.heap.begin().unwrap();
    tx.store(list, 24, &3u64).unwrap();
    tx.commit(Class::Process).unwrap();
    let after = options().open(copy(&dir.path().join("s"), &dir.path().join("after"))).unwrap();
    let error = Heap::open(&after, "h").unwrap_err();
    assert!(error.to_string().contains("intentions list"), "{error}");
}

/// Two objects that roots name.
fn named(store: &Store) -> (Heap, Place, Place) {
    let heap = Heap::open(store, "h").unwrap();
    let mut tx = heap.begin().unwrap();
    let (a, b) = (tx.allocate(40).unwrap(), tx.allocate(40).unwrap());
    tx.set_root("a", Some(a)).unwrap();
    tx.set_root("b", Some(b)).unwrap();
    tx.commit(store.reach()).unwrap();
    (heap, a, b)
}

/// A list is a transaction's because that stores its word, not because it has the same identifier: this one was
/// settled as committed, though its transaction was aborted.
#[test]
fn an_identifier_that_is_used_again_does_not_commit_what_was_aborted() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let store = open_with(dir.path().join("s"), policy);
        let (heap, a, b) = named(&store);
        let mut tx = heap.begin().unwrap();
        tx.free(a).unwrap();
        tx.prepare(ID).unwrap();
        store.abort_prepared(ID).unwrap();
        let mut tx = heap.begin().unwrap();
        tx.store(b, 0, &7u64).unwrap();
        tx.prepare(ID).unwrap();
        heap.commit_prepared(ID).unwrap();
        heap.check().unwrap();
        nobody_is_given(&heap, &[a]);
        let store = open_with(copy(&dir.path().join("s"), &dir.path().join("c")), policy);
        let heap = Heap::open(&store, "h").unwrap();
        heap.check().unwrap();
        assert!(heap.usable_len(a).is_ok() && heap.prepared().is_empty());
    }
}

/// Another thread's attempts under the same identifier are refused, and leave nothing behind, wherever a kill meets
/// them.
#[test]
fn a_refused_prepare_leaves_nothing_to_be_committed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options().open(&path).unwrap();
    let (heap, a, b) = named(&store);
    let mut tx = heap.begin().unwrap();
    let c = tx.allocate(40).unwrap();
    tx.store(b, 0, &c.0).unwrap();
    tx.prepare(ID).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    /// Also when the test fails, which would wait for the thread.
    struct Stop<'s>(&'s std::sync::atomic::AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let stops = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let mut tx = heap.begin().unwrap();
                tx.free(a).unwrap();
                assert!(matches!(tx.prepare(ID), Err(HeapError::Commit(CommitError::GlobalId { .. }))));
            }
        });
        for round in 0..40 {
            let copied = copy(&path, &dir.path().join(format!("c{round}")));
            // A copy that is torn is none of a kill.
            let Ok(store) = options().open(&copied) else { continue };
            let Ok(heap) = Heap::open(&store, "h") else { continue };
            heap.commit_prepared(ID).unwrap();
            assert!(heap.usable_len(a).is_ok(), "round {round}: freed, though nobody committed that");
            assert!(heap.usable_len(c).is_ok(), "round {round}");
        }
        drop(stops);
    });
    heap.commit_prepared(ID).unwrap();
    assert!(heap.usable_len(a).is_ok() && heap.usable_len(c).is_ok() && heap.prepared().is_empty());
}

/// While a thread decides, what it decides is not durable: whoever opens the heap meanwhile leaves it alone.
#[test]
fn a_heap_that_is_opened_while_a_transaction_is_decided_does_not_decide_otherwise() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = open_with(&path, policy);
        let (heap, a, _) = named(&store);
        let mut tx = heap.begin().unwrap();
        let large = tx.allocate(1 << 20).unwrap();
        tx.commit(Class::Process).unwrap();
        let mut tx = heap.begin().unwrap();
        tx.free(a).unwrap();
        let taken = tx.allocate(40).unwrap();
        // It takes a while to decide.
        (0..10_000).for_each(|i| tx.store(large, i * 96, &1u64).unwrap());
        tx.prepare(ID).unwrap();
        for round in 0..30u32 {
            let copied = copy(&path, &dir.path().join(format!("c{round}")));
            let store = open_with(&copied, policy);
            let ready = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    ready.wait();
                    store.commit_prepared(ID).unwrap();
                });
                ready.wait();
                (0..round * 2000).for_each(|_| std::hint::spin_loop());
                let heap = Heap::open(&store, "h").unwrap();
                let mut tx = heap.begin().unwrap();
                (0..3000).for_each(|_| assert_ne!(tx.allocate(40).unwrap(), taken));
                tx.abort();
            });
            store.close().unwrap();
            let heap = Heap::open(&open_with(&copied, policy), "h").unwrap();
            assert!(heap.usable_len(a).is_err() && heap.usable_len(taken).is_ok(), "round {round}");
        }
    }
}

/// Objects of which each `apart` others lie between.
fn scattered(heap: &Heap, len: usize, count: usize, apart: usize) -> Vec<Place> {
    let mut all = Vec::new();
    while all.len() < count * apart {
        let mut tx = heap.begin().unwrap();
        all.extend((0..1200).map(|_| tx.allocate(len).unwrap()));
        tx.commit(Class::Process).unwrap();
    }
    all.into_iter().step_by(apart).collect()
}

#[test]
fn what_could_not_be_finished_is_not_prepared() {
    let dir = tempfile::tempdir().unwrap();
    let store = options().log_bytes(1 << 18).open(dir.path().join("s")).unwrap();
    let heap = Heap::open(&store, "h").unwrap();
    // One of each word that tells of objects: as many words change.
    let places = scattered(&heap, 16, 5000, 48);
    let mut tx = heap.begin().unwrap();
    places.iter().for_each(|place| tx.free(*place).unwrap());
    assert!(matches!(tx.prepare(ID), Err(HeapError::TooMany { .. })));
    assert!(heap.prepared().is_empty() && heap.usable_len(places[0]).is_ok());
    let mut tx = heap.begin().unwrap();
    places[..1000].iter().for_each(|place| tx.free(*place).unwrap());
    tx.prepare(ID).unwrap();
    heap.commit_prepared(ID).unwrap();
    assert!(heap.prepared().is_empty() && heap.usable_len(places[0]).is_err());
}

#[test]
fn what_cannot_be_finished_now_is_finished_later_and_nobody_has_it_until_then() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut options = options();
    options.log_bytes(8 << 20);
    let store = options.open(&path).unwrap();
    let heap = Heap::open(&store, "h").unwrap();
    // One of each span: 700 pages tell of them.
    let places = scattered(&heap, 32_768, 4000, 2);
    let mut tx = heap.begin().unwrap();
    places.iter().for_each(|place| tx.free(*place).unwrap());
    tx.prepare(ID).unwrap();
    let tuning = store.tuning();
    let small = caliburn_engine::Tuning { memory_budget: Some(2 << 20), ..tuning.clone() };
    store.set_options(small).unwrap();
    heap.commit_prepared(ID).unwrap();
    assert_eq!(heap.prepared(), [ID], "there was room for it");
    let mut tx = heap.begin().unwrap();
    assert!(places.iter().all(|place| matches!(tx.free(*place), Err(HeapError::NotAllocated { .. }))));
    assert!((0..100).all(|_| !places.contains(&tx.allocate(32_768).unwrap())));
    tx.abort();
    store.set_options(tuning).unwrap();
    store.flush().unwrap();
    let store = options.open(copy(&path, &dir.path().join("c"))).unwrap();
    let heap = Heap::open(&store, "h").unwrap();
    heap.check().unwrap();
    assert!(heap.prepared().is_empty() && heap.usable_len(places[0]).is_err());
    let mut tx = heap.begin().unwrap();
    let again = (0..10_000).any(|_| tx.allocate(32_768).unwrap() == places[0]);
    assert!(again, "what was freed is lost");
}
