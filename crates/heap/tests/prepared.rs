//! Prepared transactions that allocate and free: undecided across crashes, decided in either way, by whoever.

use caliburn_engine::{Class, CommitError, Options, Store};
use caliburn_heap::{Heap, HeapError, Place};
use std::path::{Path, PathBuf};

fn options() -> Options {
    let mut options = Store::options();
    // A copy of a store that is in use stands for a process that was killed.
    options.copied(true).create(true).background(false).log_bytes(4 << 20).reserve_bytes(1 << 30);
    options
}

fn copy(from: &Path, to: &Path) -> PathBuf {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    to.to_owned()
}

fn objects(heap: &Heap) -> Vec<Place> {
    heap.check().unwrap();
    heap.objects().map(|(place, _)| place).collect()
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
    for committed in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let store = options().open(dir.path().join("s")).unwrap();
        let scene = scene(&store);
        let heap = &scene.heap;
        nobody_is_given(heap, &[scene.freed, scene.taken, scene.passing, scene.large]);
        // Others, beside them in the same words, go on.
        let mut tx = heap.begin().unwrap();
        let beside = tx.allocate(40).unwrap();
        tx.commit(Class::Power).unwrap();
        let mut tx = heap.begin().unwrap();
        tx.free(beside).unwrap();
        tx.commit(Class::Power).unwrap();
        assert_eq!(heap.prepared(), [ID]);
        let done = if committed { heap.commit_prepared(ID) } else { heap.abort_prepared(ID) };
        done.unwrap();
        assert!(matches!(heap.commit_prepared(ID), Err(CommitError::NotPrepared(_))));
        decided(heap, &scene, committed);
    }
}

#[test]
fn a_crash_leaves_it_undecided_and_a_decision_stays() {
    for committed in [true, false] {
        for by_the_heap in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let store = options().open(dir.path().join("s")).unwrap();
            let scene = scene(&store);
            let after = copy(&dir.path().join("s"), &dir.path().join("after"));
            let again = options().open(&after).unwrap();
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
            let last = options().open(last).unwrap();
            decided(&Heap::open(&last, "h").unwrap(), &scene, committed);
        }
    }
}

#[test]
fn many_are_undecided_at_once_and_are_decided_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut path = dir.path().join("0");
    let mut random = 7u64;
    let mut open = Vec::<(Vec<u8>, Place, Option<Place>)>::new();
    let mut there = Vec::<Place>::new();
    for round in 1..30u64 {
        let store = options().open(&path).unwrap();
        let heap = Heap::open(&store, "h").unwrap();
        let mut names: Vec<_> = open.iter().map(|(id, ..)| id.clone()).collect();
        names.sort();
        let mut found = heap.prepared();
        found.sort();
        assert_eq!(found, names);
        for step in 0..20u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
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
    let list = *objects(&scene.heap)
        .iter()
        .find(|place| ![scene.stays, scene.freed, scene.taken, scene.large].contains(place))
        .unwrap();
    let mut tx = scene.heap.begin().unwrap();
    tx.store(list, 24, &3u64).unwrap();
    tx.commit(Class::Process).unwrap();
    let after = options().open(copy(&dir.path().join("s"), &dir.path().join("after"))).unwrap();
    let error = Heap::open(&after, "h").unwrap_err();
    assert!(error.to_string().contains("intentions list"), "{error}");
}
