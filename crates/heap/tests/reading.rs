//! What objects hold, read by their places.

use caliburn_engine::{Class, Store};
use caliburn_heap::{Heap, HeapError, Place};

#[test]
fn objects_are_read_within_their_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::options().create(true).open(dir.path().join("s")).unwrap();
    let heap = Heap::open(&store, "h").unwrap();
    let mut tx = heap.begin().unwrap();
    let place = tx.allocate(100).unwrap();
    tx.store(place, 8, &7u64).unwrap();
    tx.commit(Class::Process).unwrap();
    assert_eq!(heap.load::<u64>(place, 8).unwrap(), 7);
    let mut bytes = [0; 8];
    heap.read(place, 8, &mut bytes).unwrap();
    assert_eq!(u64::from_le_bytes(bytes), 7);
    let usable = heap.usable_len(place).unwrap();
    assert!(heap.load::<u64>(place, usable - 8).is_ok());
    for offset in [usable - 7, usize::MAX] {
        assert!(matches!(heap.load::<u64>(place, offset), Err(HeapError::Beyond { .. })));
    }
    assert!(matches!(heap.load::<u64>(Place(place.0 + 8), 0), Err(HeapError::NotAllocated { .. })));
}
