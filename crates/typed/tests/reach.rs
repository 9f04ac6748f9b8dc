//! What no root reaches is found, named and freed.

mod support;
#[path = "support/workload.rs"]
mod workload;

use caliburn::heap::Heap;
use caliburn::typed::{reclaim, unreached};
use caliburn::{Error, Mut, Objects, PBox, PHashMap, PRc, PString, PVec, PWeak, Policy, Recoverable, Store};
use std::mem;
use support::{allocated, objects, store};
use workload::{Root, step, steps};

const POLICIES: [Policy; 2] = [Policy::Redo, Policy::Undo];

#[test]
fn nothing_is_unreached_in_objects_that_nobody_forgot() {
    for policy in POLICIES {
        let (_dir, store) = store(policy);
        let objects: Objects<Root> = objects(&store);
        for number in 0..200 {
            objects
                .update(|mut root| {
                    steps(number).for_each(|s| step(&mut root, s));
                    *root.fields().done += 1;
                })
                .unwrap();
            let found = objects.unreached().unwrap();
            assert!(found.is_empty(), "{policy:?}, after {number}: {found:?}");
        }
    }
}

#[derive(Recoverable, Default)]
#[repr(C)]
struct Leaky {
    texts: PVec<PString>,
    boxes: PVec<Option<PBox<Node>>>,
    shared: PVec<PRc<Node>>,
    weak: PVec<PWeak<Node>>,
    maps: PVec<PHashMap<PString, PRc<Node>>>,
}

#[derive(Recoverable)]
#[repr(C)]
struct Node {
    text: PString,
    next: Option<PRc<Node>>,
}

fn node(number: u64) -> NodeInit<String, Option<PRc<Node>>> {
    NodeInit { text: format!("a text of more than a few bytes, number {number}"), next: None }
}

/// Everything three times, of which a part is taken out and forgotten.
fn leak(mut root: Mut<'_, '_, Leaky>) {
    let tx = root.tx();
    let mut root = root.fields();
    for i in 0..3 {
        root.texts.push(format!("{i}: something that takes an object of its own"));
        root.boxes.push(Some(PBox::new(node(i))));
        root.shared.push(PRc::new(node(i)));
        let weak = PRc::downgrade(root.shared.last().unwrap(), tx);
        root.weak.push(weak);
        let again = PRc::share(root.shared.last().unwrap(), tx);
        root.maps.push(PHashMap::new());
        root.maps.at(i as usize).insert("again", again);
    }
    mem::forget(root.texts.pop());
    mem::forget(root.boxes.at(1).take());
    // One owner of two; the only one, with a weak pointer still there; a map with another owner in it.
    mem::forget(PRc::share(&root.shared[0], tx));
    mem::forget(root.shared.swap_remove(1));
    drop(root.maps.at(1).remove("again"));
    mem::forget(root.maps.pop());
}

fn used(root: &Leaky) -> (Vec<String>, Vec<u64>, Vec<bool>) {
    let owners = root.shared.iter().map(PRc::strong_count).collect();
    (
        root.texts.iter().map(ToString::to_string).collect(),
        owners,
        root.weak.iter().map(PWeak::has_owners).collect(),
    )
}

#[test]
fn what_was_forgotten_is_found_and_freed_and_the_rest_is_as_it_was() {
    for policy in POLICIES {
        let (dir, store) = store(policy);
        let objects: Objects<Leaky> = objects(&store);
        objects.update(leak).unwrap();
        let before = objects.snapshot().unwrap();
        let found = objects.unreached().unwrap();
        // A text's bytes; a box's node and its text; a counted node's text; a map's directory and table with their
        // key.
        assert_eq!(found.objects.len(), 7, "{found:?}");
        assert_eq!(found.counts.len(), 3, "{found:?}");
        let all = allocated(&objects);
        assert_eq!(objects.reclaim().unwrap(), found);
        assert!(objects.unreached().unwrap().is_empty());
        assert_eq!(allocated(&objects), all - 7);
        let view = objects.read();
        let (texts, owners, weak) = used(&view);
        assert_eq!(texts.len(), 2);
        assert_eq!((owners, weak), (vec![2, 1], vec![true, false, true]));
        drop(view);
        assert_eq!(used(&before).1, [3, 2]);
        drop(before);
        // Dropping what is left leaves nothing.
        objects
            .update(|mut root| {
                root.fields().shared.clear();
                root.fields().maps.clear();
                root.fields().boxes.clear();
                root.fields().weak.clear();
                root.fields().texts.clear();
            })
            .unwrap();
        assert!(objects.unreached().unwrap().is_empty());
        drop((objects, store));
        let store = Store::options().open(dir.path().join("store")).unwrap();
        let heap = Heap::open(&store, "objects").unwrap();
        assert!(reclaim(&heap).unwrap().is_empty());
    }
}

#[test]
fn a_chain_of_a_million_is_walked() {
    let (_dir, store) = store(Policy::Undo);
    #[derive(Recoverable, Default)]
    #[repr(C)]
    struct List {
        first: Option<PBox<Link>>,
    }
    #[derive(Recoverable)]
    #[repr(C)]
    struct Link {
        number: u64,
        next: Option<PBox<Link>>,
    }
    let list: Objects<List> = objects(&store);
    for _ in 0..10 {
        list.update(|mut list| {
            let mut list = list.fields();
            for number in 0..100_000 {
                let next = list.first.take();
                list.first.set(Some(PBox::new(LinkInit { number, next })));
            }
        })
        .unwrap();
    }
    assert!(list.unreached().unwrap().is_empty());
    list.update(|mut list| mem::forget(list.fields().first.take())).unwrap();
    assert_eq!(list.reclaim().unwrap().objects.len(), 1_000_000);
    assert!(list.unreached().unwrap().is_empty());
}

#[test]
fn other_heaps_and_damaged_ones_are_refused() {
    let (_dir, store) = store(Policy::Undo);
    let heap = Heap::open(&store, "plain").unwrap();
    assert!(matches!(unreached(&heap), Err(Error::NotTyped { .. })));
    let objects: Objects<Leaky> = objects(&store);
    objects.update(leak).unwrap();
    drop(objects);
    let heap = Heap::open(&store, "objects").unwrap();
    let root = heap.root("caliburn.root").unwrap();
    // The vector's elements are somewhere else.
    let mut tx = store.begin(caliburn::Mode::Restore).unwrap();
    tx.store(heap.region(), root.0 as usize + 16, &77_777u64).unwrap();
    tx.commit(caliburn::Class::Process).unwrap();
    let refused = unreached(&heap).unwrap_err();
    assert!(refused.to_string().contains("where no object is"), "{refused}");
}
