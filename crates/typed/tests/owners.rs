//! Queues, sets, slot maps and counted pointers, against what the standard library has.

mod support;

use caliburn::typed::{Entry, Tx};
use caliburn::{
    Class, Error, Mut, Objects, PBTreeSet, PHashMap, PHashSet, PLog, PRc, PSlotMap, PString, PVec, PVecDeque,
    PWeak, Policy, Recoverable, SlotKey,
};
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use support::{allocated, objects, store};

#[derive(Recoverable, Default, Debug)]
#[repr(C)]
struct Root {
    queue: PVecDeque<PString>,
    sorted: PBTreeSet<u32>,
    names: PHashSet<PString>,
    graph: PSlotMap<Node>,
    log: PLog<PString>,
}

#[derive(Recoverable, Debug)]
#[repr(C)]
struct Node {
    name: PString,
    edges: PVec<SlotKey<Node>>,
}

#[derive(Default)]
struct Model {
    queue: VecDeque<String>,
    sorted: BTreeSet<u32>,
    names: HashSet<String>,
    graph: HashMap<SlotKey<Node>, String>,
    log: Vec<String>,
    stale: Vec<SlotKey<Node>>,
}

fn step(root: &mut Mut<'_, '_, Root>, model: &mut Model, kind: u8, value: u32) {
    let text = format!("name {}", value % 97);
    let mut fields = root.fields();
    fields.log.push(text.as_str());
    model.log.push(text.clone());
    match kind % 14 {
        0 | 1 => {
            fields.queue.push_back(text.as_str());
            model.queue.push_back(text);
        }
        2 => {
            fields.queue.push_front(&text);
            model.queue.push_front(text);
        }
        3 => assert_eq!(fields.queue.pop_front().map(|t| t.to_string()), model.queue.pop_front()),
        4 => assert_eq!(fields.queue.pop_back().map(|t| t.to_string()), model.queue.pop_back()),
        5 => {
            fields.queue.truncate(value as usize % 50);
            model.queue.truncate(value as usize % 50);
            fields.queue.iter_mut().for_each(|mut text| text.push('.'));
            model.queue.iter_mut().for_each(|text| text.push('.'));
        }
        6 | 7 => assert_eq!(fields.sorted.insert(value % 97), model.sorted.insert(value % 97)),
        8 => assert_eq!(fields.sorted.remove(&(value % 97)), model.sorted.remove(&(value % 97))),
        9 => assert_eq!(fields.names.insert(text.as_str()), model.names.insert(text)),
        10 => assert_eq!(fields.names.remove(text.as_str()), model.names.remove(&text)),
        11 | 12 => {
            let edges: Vec<SlotKey<Node>> = model.graph.keys().take(3).copied().collect();
            let key = fields.graph.insert(NodeInit { name: &text, edges });
            assert!(model.graph.insert(key, text).is_none(), "a key twice");
        }
        _ => {
            if let Some(key) = model.graph.keys().nth(value as usize % model.graph.len().max(1)).copied() {
                assert_eq!(
                    fields.graph.remove(key).map(|node| node.name.to_string()),
                    model.graph.remove(&key)
                );
                assert!(fields.graph.remove(key).is_none());
                model.stale.push(key);
            }
        }
    }
}

fn same(root: &Root, model: &Model) {
    assert!(root.queue.iter().map(|t| t.as_str()).eq(model.queue.iter().map(String::as_str)));
    assert!(root.queue.iter().rev().map(|t| t.as_str()).eq(model.queue.iter().rev().map(String::as_str)));
    assert!(root.sorted.iter().eq(model.sorted.iter()));
    assert!(root.log.iter().map(|t| t.as_str()).eq(model.log.iter().map(String::as_str)));
    assert!(root.log.last().map(|t| t.as_str()) == model.log.last().map(String::as_str));
    assert_eq!(root.names.len(), model.names.len());
    assert!(model.names.iter().all(|name| root.names.contains(name.as_str())));
    assert_eq!(root.graph.len(), model.graph.len());
    assert_eq!(root.graph.iter().count(), model.graph.len());
    assert!(model.graph.iter().all(|(key, name)| root.graph[*key].name == *name));
    assert!(model.stale.iter().all(|key| !root.graph.contains_key(*key)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_is_as_the_one_of_the_standard_library(
        undo in any::<bool>(),
        steps in prop::collection::vec((any::<u8>(), any::<u32>()), 1..600),
    ) {
        let (_dir, store) = store(if undo { Policy::Undo } else { Policy::Redo });
        let root: Objects<Root> = objects(&store);
        let before = allocated(&root);
        let mut model = Model::default();
        for some in steps.chunks(40) {
            root.transact_in::<_, Error>(Class::Process, |mut root| {
                some.iter().for_each(|(kind, value)| step(&mut root, &mut model, *kind, *value));
                Ok(())
            }).unwrap();
            same(&root.read(), &model);
        }
        // Undone, whatever it did.
        let done = root.transact_in::<(), Error>(Class::Process, |mut root| {
            let mut fields = root.fields();
            fields.queue.clear();
            fields.graph.clear();
            fields.log.clear();
            fields.names.clear();
            fields.sorted.set(PBTreeSet::new());
            Err(Error::NotTyped { heap: String::new(), why: String::new() })
        });
        prop_assert!(done.is_err());
        same(&root.read(), &model);
        root.update(|mut root| root.set(Root::default())).unwrap();
        prop_assert_eq!(allocated(&root), before);
    }
}

#[derive(Recoverable, Default, Debug)]
#[repr(C)]
struct Family {
    people: PHashMap<PString, PRc<Person>>,
    oldest: PWeak<Person>,
    houses: PVec<Option<PRc<PString>>>,
}

#[derive(Recoverable, Debug)]
#[repr(C)]
struct Person {
    name: PString,
    parent: PWeak<Person>,
    house: Option<PRc<PString>>,
}

fn person<'id>(tx: Tx<'id>, name: &str) -> caliburn::Owned<'id, PRc<Person>> {
    caliburn::Owned::new(PRc::new(PersonInit { name, parent: PWeak::new(), house: None::<PRc<PString>> }), tx)
}

#[test]
fn an_object_goes_with_its_last_owner_and_weak_pointers_know() {
    for policy in [Policy::Redo, Policy::Undo] {
        let (_dir, store) = store(policy);
        let family: Objects<Family> = objects(&store);
        let before = allocated(&family);
        family
            .update(|mut root| {
                let tx = root.tx();
                let mut fields = root.fields();
                let ann = person(tx, "ann");
                fields.oldest.set(PRc::downgrade(&ann, tx));
                fields.houses.push(Some(PRc::new("by the sea")));
                let house = PRc::share(fields.houses[0].as_ref().unwrap(), tx);
                let parent = PRc::downgrade(&ann, tx);
                let bob = PersonInit { name: "bob", parent, house: Some(house) };
                fields.people.insert("ann", ann);
                fields.people.insert("bob", PRc::new(bob));
            })
            .unwrap();
        {
            let view = family.read();
            let bob = &view.people["bob"];
            assert_eq!(view.weak(&bob.parent).unwrap().name, "ann");
            assert_eq!(PRc::strong_count(bob.house.as_ref().unwrap()), 2);
            assert!(PRc::ptr_eq(bob.house.as_ref().unwrap(), view.houses[0].as_ref().unwrap()));
        }
        family
            .update(|mut root| {
                let tx = root.tx();
                let mut fields = root.fields();
                // Shared: not to be changed; alone: it is.
                assert!(fields.houses.at(0).as_mut().unwrap().get_mut().is_none());
                assert!(fields.people.get_mut("bob").unwrap().get_mut().is_some());
                let again = fields.oldest.upgrade(tx).unwrap();
                drop(fields.people.remove("ann"));
                assert_eq!(again.name, "ann");
                drop(again);
                assert!(!fields.oldest.has_owners() && fields.oldest.upgrade(tx).is_none());
                assert!(!fields.people["bob"].parent.has_owners());
                fields.houses.clear();
                assert_eq!(PRc::strong_count(fields.people["bob"].house.as_ref().unwrap()), 1);
                let Entry::Occupied(mut bob) = fields.people.entry("bob") else { unreachable!() };
                let mut bob = bob.get_mut();
                let mut bob = bob.get_mut().unwrap();
                bob.fields().house.as_mut().unwrap().get_mut().unwrap().assign("in the hills");
            })
            .unwrap();
        assert_eq!(
            family.read().people["bob"].house.as_deref().map(|house| house.as_str()),
            Some("in the hills")
        );
        family.update(|mut root| root.set(Family::default())).unwrap();
        assert_eq!(allocated(&family), before);
    }
}

#[test]
#[should_panic(expected = "the object is in another heap")]
fn a_counted_object_is_not_shared_across_heaps() {
    let (_dir, store) = store(Policy::Redo);
    let one: Objects<Family> = Objects::open(&store, "one").unwrap();
    let other: Objects<Family> = Objects::open(&store, "other").unwrap();
    one.update(|mut root| {
        let ann = person(root.tx(), "ann");
        root.fields().people.insert("ann", ann);
    })
    .unwrap();
    let view = one.read();
    let _ = other.update(|mut root| {
        let ann = PRc::share(&view.people["ann"], root.tx());
        root.fields().people.insert("ann", ann);
    });
}
