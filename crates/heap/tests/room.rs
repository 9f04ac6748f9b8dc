//! Heaps that have no room.

use caliburn_engine::{Class, Policy, Store};
use caliburn_heap::Heap;

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
