//! Regions, growth, the segment loader, raw devices.

mod support;

use caliburn::{Class, MapError, Mode, Store};
use support::{clean, loop_device, open, options, put, region};

const PROT: rustix::mm::ProtFlags = rustix::mm::ProtFlags::READ.union(rustix::mm::ProtFlags::WRITE);

/// Two ranges that adjoin in memory and belong to different regions are told apart in a place that is slower;
/// what is declared after them must not be looked for elsewhere.
#[test]
fn what_is_declared_after_ranges_of_adjoining_regions_is_committed_and_undone() {
    const HALF: usize = 65536;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path);
    let segment = store.create_segment("a", 2 * HALF as u64).unwrap();
    // SAFETY: a new mapping of the test's own.
    let memory = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), 2 * HALF, PROT, rustix::mm::MapFlags::PRIVATE)
    };
    let memory = memory.unwrap().addr();
    // SAFETY: nothing else refers to the memory.
    let (low, high) = unsafe {
        (
            segment.map_over(0..HALF as u64, memory).unwrap(),
            segment.map_over(HALF as u64..2 * HALF as u64, memory + HALF).unwrap(),
        )
    };
    let change = |value: u64| {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&low, HALF - 8, &value).unwrap();
        tx.store(&high, 0, &value).unwrap();
        tx.store(&high, 30000, &value).unwrap();
        // Declared again in the midst of its own changes.
        tx.store(&low, HALF - 8, &(value + 1)).unwrap();
        tx.store(&high, 30000, &(value + 1)).unwrap();
        tx
    };
    let found = || [low.load::<u64>(HALF - 8), high.load(0), high.load(30000)];
    change(5).commit(Class::Power).unwrap();
    assert_eq!(found(), [6, 5, 6]);
    change(8).abort();
    assert_eq!(found(), [6, 5, 6]);
    drop((low, high));
    store.close().unwrap();
    let store = open(&path);
    let all = store.segment("a").unwrap().map_all().unwrap();
    assert_eq!([all.load::<u64>(HALF - 8), all.load(HALF), all.load(HALF + 30000)], [6, 5, 6]);
}

#[test]
fn regions_do_not_overlap_and_are_mapped_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"));
    let segment = store.create_segment("a", 1 << 20).unwrap();
    let one = segment.map(65536..131072).unwrap();
    for range in [65536..131072, 0..65537 + 4095, 126976..196608, 0..1 << 20, 69632..73728] {
        assert!(matches!(segment.map(range.clone()), Err(MapError::Mapped { .. })), "{range:?}");
    }
    let two = segment.map(0..65536).unwrap();
    let three = segment.map(131072..1 << 20).unwrap();
    assert!(matches!(segment.map(0..(1 << 20) + 65536), Err(MapError::OutOfBounds { .. })));
    #[expect(clippy::reversed_empty_ranges, reason = "that is the bad input")]
    for range in [0..1, 1..4096, 0..0, 4096..0] {
        assert!(matches!(segment.map(range), Err(MapError::Alignment { .. })));
    }
    put(&store, &one, 0, 5, Class::Process);
    put(&store, &two, 0, 6, Class::Process);
    put(&store, &three, 0, 7, Class::Process);
    // Unmapped with committed changes still in the log, and mapped again elsewhere, shows them.
    drop((one, two, three));
    let all = segment.map_all().unwrap();
    assert_eq!([0, 65536, 131072].map(|at| all.load::<u64>(at)), [6, 5, 7]);
}

#[test]
fn a_region_with_uncommitted_changes_is_not_unmapped() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"));
    let memory = region(&store);
    let mut tx = store.begin(Mode::Restore).unwrap();
    // SAFETY: this is what the contract forbids to succeed: the refusal is what keeps the region mapped.
    unsafe { tx.set_range_at(memory.as_ptr(), 8).unwrap() };
    let refused = memory.unmap().unwrap_err();
    assert!(matches!(refused.cause, MapError::Uncommitted { transactions: 1, .. }), "{refused}");
    tx.abort();
    refused.region.unmap().unwrap();
}

#[test]
fn a_segment_grows_while_mapped_and_the_region_stays_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path);
    let segment = store.create_segment("a", 1 << 16).unwrap();
    let memory = segment.map_all().unwrap();
    let address = memory.as_ptr();
    put(&store, &memory, 0, 1, Class::Process);
    for step in 1..=20u64 {
        segment.grow((step + 1) << 16).unwrap();
        memory.grow(segment.len() as usize).unwrap();
        assert_eq!((memory.as_ptr(), memory.len()), (address, ((step + 1) << 16) as usize));
        assert_eq!(memory.load::<u64>((step << 16) as usize), 0);
        put(&store, &memory, (step << 16) as usize, step + 1, Class::Process);
    }
    assert!(matches!(memory.grow(2 << 30), Err(MapError::OutOfBounds { .. })));
    segment.grow(2 << 30).unwrap();
    assert!(matches!(memory.grow(2 << 30), Err(MapError::Reserved { .. })), "1 GiB was reserved for growth");
    drop(memory);
    store.close().unwrap();
    clean(&path);
    let store = open(&path);
    let memory = store.segment("a").unwrap().map_all().unwrap();
    assert!((0..=20).all(|step| memory.load::<u64>(step << 16) == step as u64 + 1));
}

/// A list in native form: each node holds the address of the next.
#[repr(C)]
struct Node {
    next: *mut Node,
    value: u64,
}

#[test]
fn the_loader_keeps_native_pointers_valid() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut address = None;
    for round in 0..3u64 {
        let store = open(&path);
        let memory = store.segment_or_create("list", 1 << 20).unwrap().load().unwrap();
        assert_eq!(*address.get_or_insert(memory.as_ptr().addr()), memory.as_ptr().addr());
        let nodes = memory.as_ptr().cast::<Node>();
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.set_range(&memory, 0..4096).unwrap();
        // SAFETY: node 0 heads the list; nodes lie in the declared range, and this thread alone uses them.
        unsafe {
            let new = nodes.add(round as usize + 1);
            new.write(Node { next: (*nodes).next, value: round });
            (*nodes).next = new;
        }
        tx.commit(Class::Power).unwrap();
        let mut values = Vec::new();
        // SAFETY: the list was built above and in earlier rounds, at this same address.
        unsafe {
            let mut at = (*nodes).next;
            while !at.is_null() {
                values.push((*at).value);
                at = (*at).next;
            }
        }
        assert_eq!(values, (0..=round).rev().collect::<Vec<_>>());
    }
    // Something else is there: a clear error, and no silent move.
    let store = open(&path);
    let segment = store.segment("list").unwrap();
    let thief = store.create_segment("thief", 1 << 20).unwrap().map_at(0..1 << 20, address.unwrap()).unwrap();
    let error = segment.load().unwrap_err();
    assert!(matches!(&error, MapError::AddressTaken { address: a, .. } if Some(*a) == address), "{error}");
    drop(thief);
    segment.load().unwrap();
}

#[test]
fn a_large_segment_is_mapped_without_being_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open(&path);
    store.create_segment("large", 10 << 30).unwrap();
    store.close().unwrap();
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let before = resident();
    let store = open(&path);
    let memory = store.segment("large").unwrap().map_all().unwrap();
    assert_eq!(memory.len(), 10 << 30);
    put(&store, &memory, (10 << 30) - 8, 9, Class::Power);
    assert_eq!((memory.load::<u64>(5 << 30), memory.load::<u64>((10 << 30) - 8)), (0, 9));
    assert!(resident() < before + (32 << 20), "mapping 10 GiB made {} bytes resident", resident() - before);
}

#[test]
fn log_and_segment_on_raw_devices() {
    let dir = tempfile::tempdir().unwrap();
    let Some(log) = loop_device(&dir.path().join("log.img"), 4 << 20) else { return };
    let Some(data) = loop_device(&dir.path().join("data.img"), 4 << 20) else { return };
    let path = dir.path().join("s");
    let mut options = options();
    options.log_path(&log.path).outside(&data.path);
    for round in 0..3u64 {
        let store = options.open(&path).unwrap();
        let segment = match store.segment("raw") {
            Ok(segment) => segment,
            Err(_) => {
                let error = store.create_segment_at("raw", 8 << 20, &data.path).unwrap_err().to_string();
                assert!(error.contains("the device holds 4194304 bytes"), "{error}");
                store.create_segment_at("raw", 1 << 20, &data.path).unwrap()
            }
        };
        let memory = segment.map_all().unwrap();
        assert_eq!(memory.load::<u64>(0), round);
        for i in 0..20_000 {
            put(&store, &memory, 8 + i % 1000 * 8, i as u64, Class::Process);
        }
        put(&store, &memory, 0, round + 1, Class::Power);
        drop(memory);
        store.close().unwrap();
        assert!(options.check(&path).unwrap().is_clean());
    }
    // A device that holds one store's segment is not taken for another.
    let other = open(&dir.path().join("other"));
    let error = other.create_segment_at("raw", 1 << 20, &data.path).unwrap_err().to_string();
    assert!(error.contains("already holds part of a store"), "{error}");
}

#[test]
fn two_stores_in_one_process_are_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (open(&dir.path().join("a")), open(&dir.path().join("b")));
    let (ra, rb) = (region(&a), region(&b));
    std::thread::scope(|scope| {
        for (store, memory, base) in [(&a, &ra, 0u64), (&b, &rb, 1000)] {
            scope.spawn(move || {
                (0..500).for_each(|i| {
                    put(store, memory, 0, base + i, if i % 50 == 0 { Class::Power } else { Class::Process })
                })
            });
        }
    });
    assert_eq!((ra.load::<u64>(0), rb.load::<u64>(0)), (499, 1499));
    let mut ta = a.begin(Mode::Restore).unwrap();
    let mut tb = b.begin(Mode::Restore).unwrap();
    ta.store(&ra, 0, &1u64).unwrap();
    tb.store(&rb, 0, &2u64).unwrap();
    // SAFETY: nothing is unmapped.
    let stranger = unsafe { ta.set_range_at(rb.as_ptr(), 8) };
    assert!(stranger.is_err(), "the other store's region is not mapped in this one");
    ta.abort();
    tb.commit(Class::Power).unwrap();
    assert_eq!((ra.load::<u64>(0), rb.load::<u64>(0)), (499, 2));
}

#[test]
fn a_read_only_opening_sees_what_was_committed_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (live, path) = (dir.path().join("live"), dir.path().join("s"));
    let store = open(&live);
    let memory = region(&store);
    put(&store, &memory, 0, 5, Class::Power);
    put(&store, &memory, 8, 6, Class::Process);
    support::copy_store(&live, &path);
    let files = || {
        let mut all: Vec<_> = std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()).collect();
        all.sort();
        all.iter().map(|p| std::fs::read(p).unwrap()).collect::<Vec<_>>()
    };
    let before = files();
    let one = Store::options().read_only(true).memory_kept(true).open(&path).unwrap();
    let two = Store::options().read_only(true).memory_kept(true).open(&path).unwrap();
    for store in [&one, &two] {
        let memory = store.segment("data").unwrap().map_all().unwrap();
        assert_eq!((memory.load::<u64>(0), memory.load::<u64>(8)), (5, 6));
        assert!(store.begin(Mode::Restore).is_err());
        assert!(store.create_segment("x", 1).is_err());
    }
    drop((one, two));
    assert!(before == files(), "a read-only opening changed a file");
}
