//! Heaps that have no room.

use caliburn_engine::{Class, Policy, Store};
use caliburn_heap::{Heap, Place};

#[test]
fn an_object_that_has_no_room_leaves_the_heap_as_it_was() {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Store::options();
        options.create(true).policy(policy).log_bytes(4 << 20).reserve_bytes(1 << 30);
        let store = options.open(dir.path().join("s")).unwrap();
        let heap = Heap::open(&store, "h").unwrap();
        let lengths = || ["h", "h.heap"].map(|name| store.segment(name).unwrap().len());
        let before = lengths();
        let mut tx = heap.begin().unwrap();
        let error = tx.allocate(8 << 30).unwrap_err();
        assert!(error.to_string().contains("reserve_bytes"), "{error}");
        tx.allocate(100).unwrap();
        tx.commit(Class::Process).unwrap();
        assert_eq!(lengths(), before);
    }
}

#[test]
fn what_is_free_is_cleared_and_nothing_else() {
    const LEN: usize = 60_000;
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::options().create(true).policy(policy).open(dir.path().join("s")).unwrap();
        let heap = Heap::open(&store, "h").unwrap();
        let allocate = |fill: u8| {
            let mut tx = heap.begin().unwrap();
            let place = tx.allocate(LEN).unwrap();
            tx.write(place, 0, &[fill; LEN]).unwrap();
            tx.commit(Class::Process).unwrap();
            place
        };
        let has = |place: Place, fill: u8| {
            let mut bytes = [0; LEN];
            heap.region().read(place.0 as usize, &mut bytes);
            bytes.iter().all(|byte| *byte == fill)
        };
        let free = |place| {
            let mut tx = heap.begin().unwrap();
            tx.free(place).unwrap();
            tx.commit(Class::Process).unwrap();
        };
        let kept: Vec<_> = (1..20).map(|fill| (allocate(fill), fill)).collect();
        (1..20).map(allocate).collect::<Vec<_>>().into_iter().for_each(free);
        assert!(heap.clear_free().unwrap() >= 19 * LEN as u64);
        assert_eq!(heap.clear_free().unwrap(), 0);
        // Beside threads that allocate and free.
        std::thread::scope(|scope| {
            let threads = [0, 1].map(|thread| {
                let (allocate, has, free) = (&allocate, &has, &free);
                scope.spawn(move || {
                    for round in 0..400 {
                        let fill = 100 + thread * 50 + (round % 50) as u8;
                        let places: Vec<_> = (0..6).map(|_| allocate(fill)).collect();
                        places.iter().for_each(|place| assert!(has(*place, fill), "round {round}"));
                        places.into_iter().for_each(free);
                    }
                })
            });
            while !threads.iter().all(|thread| thread.is_finished()) {
                heap.clear_free().unwrap();
            }
        });
        kept.iter().for_each(|(place, fill)| assert!(has(*place, *fill)));
        heap.check().unwrap();
    }
}
