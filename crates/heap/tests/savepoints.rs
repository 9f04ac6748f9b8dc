//! Transactions that are rolled back to savepoints: what was allocated, freed and named since is as it was.

use caliburn_engine::{Class, Policy, SavepointError, Store};
use caliburn_heap::{Heap, HeapError, Place};

fn with_heap(test: impl Fn(&Heap)) {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::options().create(true).policy(policy).open(dir.path().join("s")).unwrap();
        test(&Heap::open(&store, "h").unwrap());
    }
}

fn objects(heap: &Heap) -> u64 {
    let statistics = heap.statistics();
    statistics.classes.iter().map(|c| c.objects).sum::<u64>() + statistics.large_objects
}

#[test]
fn what_was_done_since_is_undone() {
    with_heap(|heap| {
        let mut tx = heap.begin().unwrap();
        let (there, other) = (tx.allocate(64).unwrap(), tx.allocate(100_000).unwrap());
        tx.store(there, 0, &1u64).unwrap();
        tx.set_root("root", Some(there)).unwrap();
        tx.commit(Class::Process).unwrap();

        let mut tx = heap.begin().unwrap();
        let own = tx.allocate(64).unwrap();
        tx.set_root("own", Some(own)).unwrap();
        let savepoint = tx.savepoint().unwrap();
        // So many that they are not looked through one by one.
        let gone: Vec<Place> = (0..200).map(|i| tx.allocate(64 + i % 3 * 70_000).unwrap()).collect();
        gone[..100].iter().for_each(|place| tx.free(*place).unwrap());
        tx.store(there, 0, &2u64).unwrap();
        for place in [there, other, own] {
            tx.free(place).unwrap();
        }
        tx.set_root("root", None).unwrap();
        tx.set_root("own", Some(gone[150])).unwrap();
        tx.rollback_to(&savepoint).unwrap();
        for place in &gone {
            assert!(matches!(tx.free(*place), Err(HeapError::NotAllocated { .. })));
        }
        // What it does again.
        tx.free(other).unwrap();
        assert!(matches!(tx.free(other), Err(HeapError::NotAllocated { .. })));
        // It stays, and can be rolled back to once more.
        tx.free(own).unwrap();
        tx.rollback_to(&savepoint).unwrap();
        tx.release(&savepoint).unwrap();
        assert_eq!(tx.rollback_to(&savepoint), Err(SavepointError::Gone));
        tx.free(other).unwrap();
        tx.commit(Class::Process).unwrap();
        heap.check().unwrap();
        assert_eq!((objects(heap), heap.root("root"), heap.root("own")), (2, Some(there), Some(own)));
        assert_eq!(heap.region().load::<u64>(there.0 as usize), 1);
        // Nothing is left that nobody could free.
        let mut tx = heap.begin().unwrap();
        for place in [there, own] {
            tx.free(place).unwrap();
        }
        tx.commit(Class::Process).unwrap();
        assert_eq!(objects(heap), 0);
    });
}

/// Memory that a rollback has given back is anybody's, and its new owner's bytes stay.
#[test]
fn what_was_given_back_is_anothers() {
    with_heap(|heap| {
        let mut tx = heap.begin().unwrap();
        let savepoint = tx.savepoint().unwrap();
        let first = tx.allocate(5000).unwrap();
        tx.write(first, 0, &[1; 5000]).unwrap();
        tx.rollback_to(&savepoint).unwrap();
        let mut other = heap.begin().unwrap();
        let taken: Vec<Place> = (0..20).map(|_| other.allocate(5000).unwrap()).collect();
        assert!(taken.contains(&first));
        taken.iter().for_each(|place| other.write(*place, 0, &[2; 5000]).unwrap());
        other.commit(Class::Process).unwrap();
        tx.abort();
        for place in taken {
            let mut bytes = [0; 5000];
            heap.region().read(place.0 as usize, &mut bytes);
            assert_eq!(bytes, [2; 5000]);
        }
        heap.check().unwrap();
    });
}
