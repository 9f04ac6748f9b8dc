//! The heap against a model, with both recovery policies, across aborts, crashes and openings.

use caliburn_engine::{Class, Guard, Options, Policy, SegmentError, Store};
use caliburn_heap::{Heap, HeapError, Place};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

const POLICIES: [Policy; 2] = [Policy::Redo, Policy::Undo];

fn options(policy: Policy) -> Options {
    let mut options = Store::options();
    // Some tests copy a store that is in use, in place of killing a process.
    options.copied(true).memory_kept(true);
    options.create(true).policy(policy).background(false).guard(Guard::Off);
    options.log_bytes(4 << 20).stage_bytes(8 << 20).reserve_bytes(1 << 30);
    options
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Bytes of an object that tell it from every other.
fn content(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (number * 131 + i * 7) as u8).collect()
}

fn read(heap: &Heap, place: Place, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    heap.region().read(place.0 as usize, &mut bytes);
    bytes
}

/// Objects by place: number and length.
type Model = BTreeMap<Place, (u64, usize)>;

fn compare(heap: &Heap, model: &Model) -> Result<(), TestCaseError> {
    let mut end = 0;
    for (place, (number, len)) in model {
        prop_assert!(place.0 >= end, "{:?} overlaps the object before it", place);
        let usable = heap.usable_len(*place).unwrap();
        prop_assert!(usable >= *len);
        end = place.0 + usable as u64;
        prop_assert!(read(heap, *place, *len) == content(*number, *len), "{:?} was overwritten", place);
    }
    heap.check().unwrap();
    let statistics = heap.statistics();
    let objects: u64 = statistics.classes.iter().map(|c| c.objects).sum();
    prop_assert_eq!(objects + statistics.large_objects, model.len() as u64);
    Ok(())
}

#[derive(Debug, Clone)]
enum Act {
    Allocate(usize, u32),
    Free(usize),
    Reallocate(usize, usize),
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 1..300usize, 3 => 1..5000usize, 1 => 20_000..40_000usize, 1 => 60_000..300_000usize]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (len(), prop_oneof![6 => Just(4u32), 1 => 0..13u32]).prop_map(|(len, align)| Act::Allocate(len, align)),
        4 => any::<usize>().prop_map(Act::Free),
        1 => (any::<usize>(), len()).prop_map(|(at, len)| Act::Reallocate(at, len)),
    ]
}

/// How a transaction ends, and what becomes of the process then.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Commit,
    Abort,
    DieBefore,
    DieAfter,
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![8 => Just(End::Commit), 3 => Just(End::Abort), 1 => Just(End::DieBefore), 1 => Just(End::DieAfter)]
}

fn nth(model: &Model, at: usize) -> Option<(Place, (u64, usize))> {
    model.iter().nth(at.checked_rem(model.len())?).map(|(place, object)| (*place, *object))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn what_is_allocated_is_what_committed_transactions_left(
        transactions in vec((vec(act(), 0..25), end()), 1..25),
        undo in any::<bool>(),
    ) {
        let policy = if undo { Policy::Undo } else { Policy::Redo };
        let dir = tempfile::tempdir().unwrap();
        let mut path = dir.path().join("0");
        let mut model = Model::new();
        let (mut number, mut round) = (0, 0);
        let mut transactions = transactions.into_iter().peekable();
        while transactions.peek().is_some() {
            let store = options(policy).open(&path).unwrap();
            let heap = Heap::open(&store, "h").unwrap();
            compare(&heap, &model)?;
            let mut next = None;
            for (acts, end) in transactions.by_ref() {
                let mut tx = heap.begin().unwrap();
                let mut after = model.clone();
                for act in acts {
                    number += 1;
                    match act {
                        Act::Allocate(len, align) => {
                            let place = tx.allocate_aligned(len, 1 << align).unwrap();
                            prop_assert!(place.0.is_multiple_of(1 << align));
                            tx.write(place, 0, &content(number, len)).unwrap();
                            prop_assert!(after.insert(place, (number, len)).is_none(), "{:?} twice", place);
                            // What was freed here is not to be had before the commit.
                            prop_assert!(!model.contains_key(&place), "{:?} came again too soon", place);
                        }
                        Act::Free(at) => if let Some((place, _)) = nth(&after, at) {
                            tx.free(place).unwrap();
                            prop_assert!(tx.free(place).is_err());
                            after.remove(&place);
                        },
                        Act::Reallocate(at, len) => if let Some((place, (old, before))) = nth(&after, at) {
                            let new = tx.reallocate(place, len).unwrap();
                            prop_assert!(read(&heap, new, len.min(before)) == content(old, len.min(before)));
                            tx.write(new, 0, &content(number, len)).unwrap();
                            after.remove(&place);
                            after.insert(new, (number, len));
                        },
                    }
                }
                if end == End::DieBefore {
                    round += 1;
                    next = Some(dir.path().join(round.to_string()));
                    copy(&path, next.as_ref().unwrap());
                    tx.abort();
                    break;
                }
                if end == End::Abort {
                    tx.abort();
                } else {
                    tx.commit(Class::Process).unwrap();
                    model = after;
                }
                compare(&heap, &model)?;
                if end == End::DieAfter {
                    round += 1;
                    next = Some(dir.path().join(round.to_string()));
                    copy(&path, next.as_ref().unwrap());
                    break;
                }
                if round % 2 == 0 {
                    store.tend_flush(false).unwrap();
                    store.truncate().unwrap();
                }
            }
            drop(heap);
            store.close().unwrap();
            if let Some(next) = next {
                std::fs::remove_dir_all(&path).unwrap();
                path = next;
            }
        }
    }
}

fn with_heap(policy: Policy, test: impl FnOnce(&Path, &Store, &Heap)) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options(policy).open(&path).unwrap();
    let heap = Heap::open(&store, "h").unwrap();
    test(&path, &store, &heap);
    drop(heap);
    store.close().unwrap();
    assert!(options(policy).check(&path).unwrap().is_clean());
}

#[test]
fn threads_allocate_and_free_each_others_objects() {
    for policy in POLICIES {
        with_heap(policy, |_, _, heap| {
            let (sender, receiver) = std::sync::mpsc::channel::<(Place, u64, usize)>();
            std::thread::scope(|scope| {
                for thread in 0..3u64 {
                    let sender = sender.clone();
                    scope.spawn(move || {
                        for i in 0..400u64 {
                            let mut tx = heap.begin().unwrap();
                            let len = 1 + (i * 37 + thread) as usize % 700;
                            let place = tx.allocate(len).unwrap();
                            tx.write(place, 0, &content(i, len)).unwrap();
                            let lost = tx.allocate(len).unwrap();
                            if i % 5 == 0 {
                                tx.abort();
                                continue;
                            }
                            tx.free(lost).unwrap();
                            tx.commit(Class::Process).unwrap();
                            sender.send((place, i, len)).unwrap();
                        }
                    });
                }
                drop(sender);
                scope.spawn(move || {
                    for (place, number, len) in receiver {
                        assert!(read(heap, place, len) == content(number, len));
                        let mut tx = heap.begin().unwrap();
                        tx.write(place, 0, &vec![0xFF; len]).unwrap();
                        tx.free(place).unwrap();
                        tx.commit(Class::Process).unwrap();
                    }
                });
            });
            heap.check().unwrap();
            let statistics = heap.statistics();
            assert!(statistics.classes.iter().all(|class| class.objects == 0), "{statistics:?}");
            assert!(statistics.bytes < 64 << 20, "memory was not used again: {statistics:?}");
        });
    }
}

#[test]
fn misuse_has_an_error_of_its_own_and_changes_nothing() {
    for policy in POLICIES {
        with_heap(policy, |_, _, heap| {
            let mut tx = heap.begin().unwrap();
            let place = tx.allocate(100).unwrap();
            let large = tx.allocate(200_000).unwrap();
            tx.commit(Class::Process).unwrap();
            let mut tx = heap.begin().unwrap();
            for wrong in [
                Place(place.0 + 16),
                Place(place.0 + 112),
                Place(large.0 + 65536),
                Place(1 << 40),
                Place(u64::MAX),
            ] {
                let error = tx.free(wrong).unwrap_err();
                assert!(matches!(error, HeapError::NotAllocated { .. }), "{wrong:?}: {error}");
                assert!(error.to_string().contains("freed already, or never came from this heap"));
            }
            tx.free(place).unwrap();
            assert!(matches!(tx.free(place), Err(HeapError::NotAllocated { .. })));
            // Neither can another transaction free it meanwhile.
            let mut other = heap.begin().unwrap();
            assert!(matches!(other.free(place), Err(HeapError::NotAllocated { .. })));
            other.abort();
            for (len, align) in [(0, 16), (1 << 63, 16), (usize::MAX, 16), (8, 0), (8, 24), (8, 8192)] {
                assert!(
                    matches!(tx.allocate_aligned(len, align), Err(HeapError::Size { .. })),
                    "{len} {align}"
                );
            }
            tx.abort();
            let mut tx = heap.begin().unwrap();
            tx.free(place).unwrap();
            tx.free(large).unwrap();
            tx.commit(Class::Process).unwrap();
            let mut tx = heap.begin().unwrap();
            assert!(tx.free(place).is_err() && tx.free(large).is_err());
        });
    }
}

#[test]
fn roots_come_and_go_with_their_transactions() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let long = "x".repeat(48);
        {
            let store = options(policy).open(&path).unwrap();
            let heap = Heap::open(&store, "h").unwrap();
            let mut tx = heap.begin().unwrap();
            let place = tx.allocate(8).unwrap();
            tx.set_root("first", Some(place)).unwrap();
            tx.set_root(&long, Some(place)).unwrap();
            tx.commit(Class::Process).unwrap();
            let mut tx = heap.begin().unwrap();
            tx.set_root("first", None).unwrap();
            tx.set_root("second", Some(place)).unwrap();
            tx.abort();
            let mut tx = heap.begin().unwrap();
            for wrong in ["", "a\0b", &"x".repeat(49)] {
                assert!(matches!(tx.set_root(wrong, None), Err(HeapError::Root { .. })));
            }
            assert!(matches!(tx.set_root("y", Some(Place(1 << 30))), Err(HeapError::NotAllocated { .. })));
            for i in 0..300 {
                tx.set_root(&format!("root {i}"), Some(place)).unwrap();
            }
            let error = tx.commit(Class::Process).unwrap_err().to_string();
            assert!(error.contains("256 roots"), "{error}");
            assert_eq!(
                (heap.root("first"), heap.root(&long), heap.root("second")),
                (Some(place), Some(place), None)
            );
            drop(heap);
            store.close().unwrap();
        }
        let store = options(policy).open(&path).unwrap();
        let heap = Heap::open(&store, "h").unwrap();
        assert!(heap.root("first").is_some() && heap.root(&long).is_some() && heap.root("root 0").is_none());
        let mut tx = heap.begin().unwrap();
        tx.set_root("first", None).unwrap();
        tx.commit(Class::Process).unwrap();
        assert_eq!(heap.root("first"), None);
    }
}

#[test]
fn what_was_overwritten_is_noticed_and_named() {
    for policy in POLICIES {
        with_heap(policy, |path, store, heap| {
            let mut tx = heap.begin().unwrap();
            let place = tx.allocate(24).unwrap();
            tx.set_root("r", Some(place)).unwrap();
            tx.commit(Class::Process).unwrap();
            store.truncate().unwrap();
            // Header, root, kind of the first span, its objects.
            for (offset, text) in [
                (0u64, "not that of a heap"),
                (4100, "a root was overwritten"),
                (32768, "overwritten"),
                (32776, "overwritten"),
            ] {
                let broken = path.with_extension(format!("{offset}"));
                copy(path, &broken);
                let file =
                    std::fs::OpenOptions::new().write(true).open(broken.join("h.heap.segment")).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, &[0xA5, 0x5A], 65536 + offset).unwrap();
                // The store itself sees nothing of it when it is only read.
                let other = options(policy).read_only(true).open(&broken).unwrap();
                let error = Heap::open(&other, "h").unwrap_err();
                assert!(matches!(error, HeapError::Damaged { .. }), "{error}");
                assert!(error.to_string().contains(text) && error.to_string().contains("h.heap"), "{error}");
            }
        });
    }
}

/// Mounts a small file system in memory; needs root.
fn small(test: impl FnOnce(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    let mount = |arguments: &[&str]| std::process::Command::new(arguments[0]).args(&arguments[1..]).status();
    let path = dir.path().to_str().unwrap();
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", path]).is_ok_and(|status| status.success())
    {
        eprintln!("not run: mounting a file system needs root");
        return;
    }
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(dir.path())));
    mount(&["umount", path]).unwrap();
    done.unwrap();
}

#[test]
fn a_full_heap_can_still_free() {
    for policy in POLICIES {
        small(|path| {
            let mut options = options(policy);
            options.log_bytes(1 << 20).stage_bytes(1 << 20);
            let store = options.open(path.join("s")).unwrap();
            let heap = Heap::open(&store, "h").unwrap();
            let mut places = Vec::new();
            let error = loop {
                let mut tx = heap.begin().unwrap();
                match tx.allocate(30_000) {
                    Ok(place) => {
                        tx.commit(Class::Process).unwrap();
                        store.tend_flush(false).unwrap();
                        store.truncate().unwrap();
                        places.push(place);
                    }
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, HeapError::Segment(SegmentError::Media(_))), "{error}");
            assert!(places.len() > 50, "{}", places.len());
            // One large transaction, which allocates too, once there is room.
            let mut tx = heap.begin().unwrap();
            for place in &places {
                tx.free(*place).unwrap();
            }
            tx.commit(Class::Process).unwrap();
            heap.check().unwrap();
            let mut tx = heap.begin().unwrap();
            let again: Vec<Place> = places.iter().map(|_| tx.allocate(30_000).unwrap()).collect();
            // For another size, too.
            for place in again {
                tx.free(place).unwrap();
            }
            tx.commit(Class::Process).unwrap();
            let mut tx = heap.begin().unwrap();
            assert!((0..1000).all(|_| tx.allocate(500).is_ok()));
            tx.commit(Class::Process).unwrap();
        });
    }
}

/// Whoever commits to the same span while another's commit fails must not find words that are yet to be restored.
#[test]
fn a_failing_commit_takes_nothing_from_one_beside_it() {
    const COUNT: usize = 1500;
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let (path, copied) = (dir.path().join("s"), dir.path().join("copy"));
        {
            let store = options(policy).open(&path).unwrap();
            let heap = &Heap::open(&store, "h").unwrap();
            let (sender, receiver) = std::sync::mpsc::channel::<Place>();
            std::thread::scope(|scope| {
                let failing = scope.spawn(move || {
                    // Objects in the span that this thread allocates from, for the other to free.
                    let mut tx = heap.begin().unwrap();
                    let places: Vec<Place> = (0..COUNT).map(|_| tx.allocate(16).unwrap()).collect();
                    let shared = tx.allocate(16).unwrap();
                    tx.commit(Class::Process).unwrap();
                    for place in places {
                        sender.send(place).unwrap();
                        let mut tx = heap.begin().unwrap();
                        tx.allocate(16).unwrap();
                        for i in 0..257 {
                            tx.set_root(&format!("root {i}"), Some(shared)).unwrap();
                        }
                        assert!(matches!(tx.commit(Class::Process), Err(HeapError::Root { .. })));
                    }
                });
                for place in receiver {
                    let mut tx = heap.begin().unwrap();
                    tx.free(place).unwrap();
                    tx.commit(Class::Process).unwrap();
                }
                failing.join().unwrap();
            });
            store.tend_flush(false).unwrap();
            copy(&path, &copied);
        }
        let store = options(policy).open(&copied).unwrap();
        let heap = Heap::open(&store, "h").unwrap();
        heap.check().unwrap();
        assert_eq!(heap.statistics().classes[0].objects, 1);
    }
}

#[test]
fn what_is_not_a_heaps_is_left_alone() {
    with_heap(Policy::Redo, |_, store, heap| {
        store.create_segment("raw", 65536).unwrap();
        for wrong in ["raw", "h.heap", "x.heap"] {
            assert!(matches!(Heap::open(store, wrong), Err(HeapError::Damaged { .. })), "{wrong}");
        }
        // An object of a transaction that is open is its own.
        let mut one = heap.begin().unwrap();
        let mut other = heap.begin().unwrap();
        let place = one.allocate(48).unwrap();
        assert!(matches!(other.free(place), Err(HeapError::NotAllocated { .. })));
        // Behind the last object of a span there is none.
        assert!(one.free(Place(place.0 / 65536 * 65536 + 65520)).is_err());
        one.free(place).unwrap();
        one.commit(Class::Process).unwrap();
        assert!(heap.usable_len(place).is_err());
    });
}

#[test]
fn a_stray_store_is_found_with_its_object() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let store = options(policy).verify(true).open(dir.path().join("s")).unwrap();
        let heap = Heap::open(&store, "h").unwrap();
        let mut tx = heap.begin().unwrap();
        let (small, large) = (tx.allocate(100).unwrap(), tx.allocate(200_000).unwrap());
        tx.write(small, 0, &[1; 100]).unwrap();
        tx.commit(Class::Process).unwrap();
        for (object, len, inside) in [(small, 112, 50), (large, 262_144, 150_000)] {
            assert_eq!(heap.enclosing(object.0 + inside), Some((object, len)));
            let stray = heap.region().as_ptr().wrapping_add((object.0 + inside) as usize);
            // SAFETY: within the region; nobody else uses it. That it was not declared is the point.
            let before = unsafe { std::ptr::replace(stray, 77) };
            let found = heap.undeclared();
            assert_eq!((found.len(), found[0].0.offset, found[0].1), (1, object.0 + inside, Some(object)));
            let mut tx = heap.begin().unwrap();
            tx.allocate(16).unwrap();
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tx.commit(Class::Process)));
            let text = *panic.unwrap_err().downcast::<String>().unwrap();
            assert!(text.contains(&format!("in the object at {} of heap \"h\"", object.0)), "{text}");
            // SAFETY: as above.
            unsafe { stray.write(before) };
        }
        assert_eq!(heap.enclosing(large.0 + 262_144), None);
        assert_eq!(heap.undeclared(), []);
    }
}

#[test]
fn a_heap_commits_in_every_class_that_its_store_reaches() {
    for class in [Class::Process, Class::Os, Class::Power] {
        let dir = tempfile::tempdir().unwrap();
        let store = options(Policy::Undo).memory_survives(class).open(dir.path().join("s")).unwrap();
        let heap = Heap::open(&store, "h").unwrap();
        for asked in [Class::Process, Class::Os, Class::Power] {
            let mut tx = heap.begin().unwrap();
            let place = tx.allocate(100).unwrap();
            tx.set_root("x", Some(place)).unwrap();
            let committed = tx.commit(asked);
            assert_eq!(committed.is_ok(), asked <= class, "{asked:?} of {class:?}: {committed:?}");
            if committed.is_err() {
                continue;
            }
            // Whoever finds it by its name may free it.
            let mut tx = heap.begin().unwrap();
            tx.free(heap.root("x").unwrap()).unwrap();
            // It is still there.
            heap.check().unwrap();
        }
    }
}

#[test]
fn what_is_taken_and_given_up_again_leaves_no_trace() {
    for policy in POLICIES {
        with_heap(policy, |path, store, heap| {
            let mut tx = heap.begin().unwrap();
            let kept = tx.allocate(64).unwrap();
            // So many that they are not looked through one by one, and more than there is room for at once.
            let passing: Vec<Place> = (0..500).map(|i| tx.allocate(64 + i % 3 * 70_000).unwrap()).collect();
            for place in &passing {
                tx.free(*place).unwrap();
                assert!(matches!(tx.free(*place), Err(HeapError::NotAllocated { .. })));
            }
            assert!(matches!(tx.reallocate(kept, usize::MAX), Err(HeapError::Size { .. })));
            tx.commit(Class::Process).unwrap();
            heap.check().unwrap();
            let objects = |heap: &Heap| {
                let statistics = heap.statistics();
                statistics.classes.iter().map(|c| c.objects).sum::<u64>() + statistics.large_objects
            };
            assert_eq!(objects(heap), 1);
            let _ = store.tend_flush(true);
            let copied = path.with_extension("copied");
            copy(path, &copied);
            let store = options(policy).open(&copied).unwrap();
            let heap = Heap::open(&store, "h").unwrap();
            heap.check().unwrap();
            assert_eq!((objects(&heap), heap.usable_len(kept).unwrap()), (1, 64));
        });
    }
}

/// Spans that are empty serve objects of every size, also those that threads' caches hold.
#[test]
fn a_full_heap_gives_up_what_caches_hold() {
    small(|path| {
        let store = options(Policy::Undo).open(path.join("s")).unwrap();
        let heap = Heap::open(&store, "h").unwrap();
        std::thread::scope(|scope| {
            for size in [16, 100, 1000, 30_000] {
                let heap = &heap;
                scope.spawn(move || {
                    let mut tx = heap.begin().unwrap();
                    let place = tx.allocate(size).unwrap();
                    tx.free(place).unwrap();
                    tx.commit(Class::Process).unwrap();
                });
            }
        });
        // As long as one is found that takes all there is.
        let mut largest = 1usize << 16;
        let mut tx = heap.begin().unwrap();
        while let Ok(place) = tx.allocate(largest) {
            tx.free(place).unwrap();
            tx.commit(Class::Process).unwrap();
            tx = heap.begin().unwrap();
            largest += 1 << 16;
        }
        let place = tx.allocate(largest - (1 << 16)).unwrap();
        tx.free(place).unwrap();
        tx.commit(Class::Process).unwrap();
        assert_eq!(heap.statistics().free_bytes, heap.statistics().bytes);
    });
}
