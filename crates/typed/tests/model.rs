//! Collections against those of the standard library: random transactions that commit, return an error or panic
//! in the midst, with both policies; then closed and opened, emptied, and nothing is left in the heap.

mod support;

use caliburn::typed::Taken;
use caliburn::{Class, Error, Mut, Objects, PBTreeMap, PHashMap, PString, PVec, Policy, Recoverable, Store};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use support::{allocated, objects, store_with};

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Commit,
    Refuse,
    Panic,
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![4 => Just(End::Commit), 1 => Just(End::Refuse), 1 => Just(End::Panic)]
}

/// Transactions of some operations each.
fn transactions<O: Debug>(op: impl Strategy<Value = O>) -> impl Strategy<Value = Vec<(Vec<O>, End)>> {
    prop::collection::vec((prop::collection::vec(op, 1..60), end()), 1..12)
}

/// Runs operations on a value and on a model: the later ones in transactions within the transaction, which end as
/// their number says, and are as if they had not been if they do not commit.
fn nested<R, M: Clone, O>(
    root: &mut Mut<'_, '_, R>,
    model: &mut M,
    operations: &[O],
    apply: &impl Fn(&mut Mut<'_, '_, R>, &mut M, &O),
    same: &impl Fn(&R, &M),
) {
    let (first, later) = operations.split_at(operations.len().min(7));
    for operation in first {
        apply(root, model, operation);
        same(root, model);
    }
    let Some(ways) = later.len().checked_sub(1) else { return };
    let mut next = model.clone();
    let done = catch_unwind(AssertUnwindSafe(|| {
        root.nest::<_, Error>(|mut child| {
            nested(&mut child, &mut next, later, apply, same);
            match ways % 4 {
                0 => Err(Error::Interrupted),
                1 => std::panic::resume_unwind(Box::new("within")),
                _ => Ok(()),
            }
        })
    }));
    match ways % 4 {
        0 => assert!(matches!(done.unwrap(), Err(Error::Interrupted))),
        1 => assert_eq!(*done.unwrap_err().downcast::<&str>().unwrap(), "within"),
        _ => {
            done.unwrap().unwrap();
            *model = next;
        }
    }
    same(root, model);
    // Once more beside what was undone.
    if ways % 4 < 2 {
        for operation in later {
            apply(root, model, operation);
        }
        same(root, model);
    }
}

/// Runs transactions on objects and on a model, which must be the same after each; then opens the store again,
/// and empties it.
fn compare<R, M: Clone, O: Debug>(
    (policy, verify): (Policy, bool),
    mut model: M,
    transactions: &[(Vec<O>, End)],
    apply: impl Fn(&mut Mut<'_, '_, R>, &mut M, &O),
    same: impl Fn(&R, &M),
    empty: impl Fn(&mut Mut<'_, '_, R>),
) where
    R: Recoverable + Default + for<'id> caliburn::typed::Init<'id, R>,
{
    let (dir, opened) = store_with(policy, verify);
    let objects: Objects<R> = objects(&opened);
    let before = allocated(&objects);
    for (operations, end) in transactions {
        let mut next = model.clone();
        let done = catch_unwind(AssertUnwindSafe(|| {
            objects.transact_in::<_, Error>(Class::Process, |mut root| {
                nested(&mut root, &mut next, operations, &apply, &same);
                match end {
                    End::Commit => Ok(()),
                    End::Refuse => Err(Error::NotTyped { heap: String::new(), why: "as planned".into() }),
                    End::Panic => std::panic::resume_unwind(Box::new("as planned")),
                }
            })
        }));
        match end {
            End::Commit => {
                done.unwrap().unwrap();
                model = next;
            }
            End::Refuse => assert!(done.unwrap().unwrap_err().to_string().contains("as planned")),
            End::Panic => assert_eq!(*done.unwrap_err().downcast::<&str>().unwrap(), "as planned"),
        }
        same(&objects.read(), &model);
    }
    drop(opened);
    objects.close().unwrap();
    let opened = Store::open(dir.path().join("store")).unwrap();
    let objects: Objects<R> = Objects::open(&opened, "objects").unwrap();
    same(&objects.read(), &model);
    objects.update(|mut root| empty(&mut root)).unwrap();
    assert_eq!(allocated(&objects), before, "objects that nothing leads to");
}

#[derive(Debug, Clone)]
enum OfMap {
    Insert(u16, u32),
    Remove(u16),
    Add(u16),
    OrDefault(u16),
    RemoveEntry(u16),
    Retain(u32),
    Many(u16, u16),
    Few(u16, u16),
    Clear,
    Change,
    PopFirst,
    PopLast,
    SplitAndAppend(u16),
    Range(u16, u16),
    Drain,
}

fn of_map() -> impl Strategy<Value = OfMap> {
    let key = || prop_oneof![0..40u16, 0..2000u16];
    prop_oneof![
        8 => (key(), any::<u32>()).prop_map(|(k, v)| OfMap::Insert(k, v)),
        6 => key().prop_map(OfMap::Remove),
        3 => key().prop_map(OfMap::Add),
        3 => key().prop_map(OfMap::OrDefault),
        2 => key().prop_map(OfMap::RemoveEntry),
        1 => (2..7u32).prop_map(OfMap::Retain),
        2 => (key(), 1..300u16).prop_map(|(k, n)| OfMap::Many(k, n)),
        1 => (key(), 1..300u16).prop_map(|(k, n)| OfMap::Few(k, n)),
        1 => Just(OfMap::Change),
        2 => Just(OfMap::PopFirst),
        2 => Just(OfMap::PopLast),
        1 => key().prop_map(OfMap::SplitAndAppend),
        2 => (key(), key()).prop_map(|(a, b)| OfMap::Range(a.min(b), a.max(b))),
        1 => Just(OfMap::Drain),
        1 => Just(OfMap::Clear),
    ]
}

fn text(key: u16) -> String {
    format!("key number {key:05}")
}

/// The operations that both kinds of maps have, on keys and values with pointers.
macro_rules! on_both {
    ($map:ident, $model:ident, $operation:ident, $($rest:tt)*) => {
        match $operation {
            OfMap::Insert(k, v) => {
                let before = $map.insert(text(*k), v.to_string());
                let wanted = $model.insert(text(*k), v.to_string());
                assert_eq!(before.as_ref().map(|text| text.as_str()), wanted.as_deref());
            }
            OfMap::Remove(k) => {
                let before = $map.remove(text(*k).as_str());
                assert_eq!(before.map(|text| text.to_string()), $model.remove(&text(*k)));
            }
            OfMap::Add(k) => {
                if let Some(mut value) = $map.get_mut(text(*k).as_str()) {
                    value.push_str(" and more");
                    $model.get_mut(&text(*k)).unwrap().push_str(" and more");
                }
            }
            OfMap::OrDefault(k) => {
                $map.entry(text(*k)).and_modify(|mut value| value.push('!')).or_default();
                $model.entry(text(*k)).and_modify(|value| value.push('!')).or_default();
            }
            OfMap::RemoveEntry(k) => {
                if let caliburn::typed::Entry::Occupied(mut entry) = $map.entry(text(*k)) {
                    assert_eq!(entry.key().as_str(), text(*k));
                    let before = entry.insert("in between");
                    assert_eq!(entry.get().as_str(), "in between");
                    let (key, value) = entry.remove_entry();
                    assert_eq!((key.as_str(), value.as_str()), (text(*k).as_str(), "in between"));
                    assert_eq!($model.remove(&text(*k)).as_deref(), Some(before.as_str()));
                } else {
                    assert!(!$model.contains_key(&text(*k)));
                }
            }
            OfMap::Retain(n) => {
                let keep = |key: &str, value: &str| (key.len() + value.len()) as u32 % n != 0;
                $map.retain(|key, mut value| {
                    value.push('.');
                    keep(key, &value)
                });
                $model.retain(|key, value| {
                    value.push('.');
                    keep(key, value)
                });
            }
            OfMap::Many(k, n) => {
                $map.extend((*k..k + n).map(|k| (text(k), "many")));
                $model.extend((*k..k + n).map(|k| (text(k), "many".to_owned())));
            }
            OfMap::Few(k, n) => {
                for k in *k..k + n {
                    assert_eq!($map.remove(text(k).as_str()).is_some(), $model.remove(&text(k)).is_some());
                }
            }
            OfMap::Clear => {
                $map.clear();
                $model.clear();
            }
            OfMap::Change => {
                $map.values_mut().for_each(|mut value| value.assign("changed"));
                $model.values_mut().for_each(|value| *value = "changed".into());
            }
            $($rest)*
        }
    };
}

fn hash_map(
    map: &mut Mut<'_, '_, PHashMap<PString, PString>>,
    model: &mut HashMap<String, String>,
    operation: &OfMap,
) {
    on_both!(map, model, operation,
        OfMap::Drain => {
            let mut drained: Vec<(String, String)> =
                map.drain().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            let mut wanted: Vec<_> = model.drain().collect();
            drained.sort();
            wanted.sort();
            assert_eq!(drained, wanted);
        }
        _ => {}
    );
}

fn same_hash(map: &PHashMap<PString, PString>, model: &HashMap<String, String>) {
    assert_eq!(map.len(), model.len());
    assert_eq!(map.iter().count(), model.len());
    for (key, value) in map {
        assert_eq!(model.get(key.as_str()).map(String::as_str), Some(value.as_str()));
        assert_eq!(map.get(key.as_str()), Some(value));
    }
}

fn btree_map(
    map: &mut Mut<'_, '_, PBTreeMap<PString, PString>>,
    model: &mut BTreeMap<String, String>,
    operation: &OfMap,
) {
    let strings = |entry: Option<(Taken<'_, PString>, Taken<'_, PString>)>| {
        entry.map(|(key, value)| (key.to_string(), value.to_string()))
    };
    on_both!(map, model, operation,
        OfMap::PopFirst => assert_eq!(strings(map.pop_first()), model.pop_first()),
        OfMap::PopLast => assert_eq!(strings(map.pop_last()), model.pop_last()),
        OfMap::SplitAndAppend(k) => {
            let mut off = map.split_off(text(*k).as_str());
            let mut model_off = model.split_off(&text(*k));
            assert!(map.iter().map(|(k, _)| k.as_str()).eq(model.keys().map(String::as_str)));
            assert!(off.iter().map(|(k, _)| k.as_str()).eq(model_off.keys().map(String::as_str)));
            // Some keys are in both.
            map.insert(text(k + 1), "of the first");
            model.insert(text(k + 1), "of the first".to_owned());
            map.append(&mut off.as_mut());
            model.append(&mut model_off);
            assert!(off.is_empty());
        }
        OfMap::Range(a, b) => {
            let (a, b) = (text(*a), text(*b));
            let found: Vec<_> = map.range::<str>((std::ops::Bound::Included(a.as_str()), std::ops::Bound::Excluded(b.as_str()))).collect();
            let wanted: Vec<_> = model.range(a.clone()..b.clone()).collect();
            assert!(found.iter().map(|(k, _)| k.as_str()).eq(wanted.iter().map(|(k, _)| k.as_str())));
            let bounds = (std::ops::Bound::Excluded(a.as_str()), std::ops::Bound::Included(b.as_str()));
            if a != b {
                let found = map.range::<str>(bounds).rev().map(|(k, _)| k.as_str().to_owned());
                assert!(found.eq(model.range::<str, _>(bounds).rev().map(|(k, _)| k.clone())));
                map.range_mut::<str>(bounds).for_each(|(_, mut value)| value.push('r'));
                model.range_mut::<str, _>(bounds).for_each(|(_, value)| value.push('r'));
            }
        }
        OfMap::Drain => {}
    );
}

fn same_btree(map: &PBTreeMap<PString, PString>, model: &BTreeMap<String, String>) {
    assert_eq!(map.len(), model.len());
    let pairs = |(key, value): (&'_ PString, &'_ PString)| (key.to_string(), value.to_string());
    assert!(map.iter().map(pairs).eq(model.iter().map(|(k, v)| (k.clone(), v.clone()))));
    assert!(map.iter().rev().map(pairs).eq(model.iter().rev().map(|(k, v)| (k.clone(), v.clone()))));
    if let Some((key, value)) = model.iter().nth(model.len() / 2) {
        assert_eq!(map.get(key.as_str()).map(|v| v.as_str()), Some(value.as_str()));
    }
}

#[derive(Debug, Clone)]
enum OfVec {
    Push(u32),
    Pop,
    Insert(usize, u32),
    Remove(usize),
    SwapRemove(usize),
    Truncate(usize),
    Many(u16),
    Retain(u32),
    Drain(usize, usize),
    SplitAndAppend(usize),
    Sort,
    Reverse,
    Dedup,
    Swap(usize, usize),
    Change(usize),
    Shrink,
    Clear,
}

fn of_vec() -> impl Strategy<Value = OfVec> {
    let at = || 0..200usize;
    prop_oneof![
        8 => (0..50u32).prop_map(OfVec::Push),
        4 => Just(OfVec::Pop),
        3 => (at(), any::<u32>()).prop_map(|(at, v)| OfVec::Insert(at, v)),
        3 => at().prop_map(OfVec::Remove),
        2 => at().prop_map(OfVec::SwapRemove),
        1 => at().prop_map(OfVec::Truncate),
        2 => (1..100u16).prop_map(OfVec::Many),
        1 => (2..5u32).prop_map(OfVec::Retain),
        1 => (at(), at()).prop_map(|(a, b)| OfVec::Drain(a.min(b), a.max(b))),
        1 => at().prop_map(OfVec::SplitAndAppend),
        1 => Just(OfVec::Sort),
        1 => Just(OfVec::Reverse),
        1 => Just(OfVec::Dedup),
        2 => (at(), at()).prop_map(|(a, b)| OfVec::Swap(a, b)),
        2 => at().prop_map(OfVec::Change),
        1 => Just(OfVec::Shrink),
        1 => Just(OfVec::Clear),
    ]
}

fn vec(vec: &mut Mut<'_, '_, PVec<PString>>, model: &mut Vec<String>, operation: &OfVec) {
    let len = model.len();
    let of = |value: &u32| format!("value number {value}");
    match operation {
        OfVec::Push(v) => {
            vec.push(of(v));
            model.push(of(v));
        }
        OfVec::Pop => assert_eq!(vec.pop().map(|text| text.to_string()), model.pop()),
        OfVec::Insert(at, v) => {
            vec.insert(at.min(&len).to_owned(), of(v));
            model.insert(*at.min(&len), of(v));
        }
        OfVec::Remove(at) if *at < len => assert_eq!(vec.remove(*at).as_str(), model.remove(*at)),
        OfVec::SwapRemove(at) if *at < len => {
            assert_eq!(vec.swap_remove(*at).as_str(), model.swap_remove(*at))
        }
        OfVec::Truncate(at) => {
            vec.truncate(*at);
            model.truncate(*at);
        }
        OfVec::Many(n) => {
            vec.extend((0..*n).map(|i| of(&u32::from(i / 3))));
            model.extend((0..*n).map(|i| of(&u32::from(i / 3))));
        }
        OfVec::Retain(n) => {
            let keep = |text: &str| text.bytes().map(u32::from).sum::<u32>() % n != 0;
            vec.retain(|text| keep(text));
            model.retain(|text| keep(text));
        }
        OfVec::Drain(a, b) if *b <= len => {
            let drained = vec.drain(*a..*b).map(|text| text.to_string()).collect::<Vec<_>>();
            assert_eq!(drained, model.drain(*a..*b).collect::<Vec<_>>());
        }
        OfVec::SplitAndAppend(at) if *at <= len => {
            let mut off = vec.split_off(*at);
            let mut model_off = model.split_off(*at);
            assert_eq!(*off, model_off);
            off.as_mut().push("of the other");
            model_off.push("of the other".into());
            vec.append(&mut off.as_mut());
            model.append(&mut model_off);
            assert!(off.is_empty());
        }
        OfVec::Sort => {
            vec.sort();
            model.sort();
        }
        OfVec::Reverse => {
            vec.reverse();
            model.reverse();
        }
        OfVec::Dedup => {
            vec.dedup();
            model.dedup();
        }
        OfVec::Swap(a, b) if *a < len && *b < len => {
            vec.swap(*a, *b);
            model.swap(*a, *b);
        }
        OfVec::Change(at) if *at < len => {
            vec.at(*at).push_str(" changed");
            model[*at].push_str(" changed");
        }
        OfVec::Shrink => vec.shrink_to_fit(),
        OfVec::Clear => {
            vec.clear();
            model.clear();
        }
        _ => {}
    }
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::Redo), Just(Policy::Undo)]
}

fn same_vec(vec: &PVec<PString>, model: &Vec<String>) {
    assert_eq!(vec, model);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_hash_map_is_as_the_one_of_the_standard_library(policy in policy(), all in transactions(of_map())) {
        compare((policy, false), HashMap::new(), &all, hash_map, same_hash, |map| map.clear());
    }

    #[test]
    fn a_sorted_map_is_as_the_one_of_the_standard_library(policy in policy(), all in transactions(of_map())) {
        compare((policy, false), BTreeMap::new(), &all, btree_map, same_btree, |map| map.clear());
    }

    #[test]
    fn a_vector_is_as_the_one_of_the_standard_library(policy in policy(), all in transactions(of_vec())) {
        compare((policy, false), Vec::new(), &all, vec, same_vec, |vec| vec.set(PVec::new()));
    }
}

proptest! {
    // Each commit reads all of the heap.
    #![proptest_config(ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_changed_undeclared(
        policy in policy(),
        maps in transactions(of_map()),
        vecs in transactions(of_vec()),
    ) {
        let how = (policy, true);
        compare(how, HashMap::new(), &maps, hash_map, same_hash, |map| map.clear());
        compare(how, BTreeMap::new(), &maps, btree_map, same_btree, |map| map.clear());
        compare(how, Vec::new(), &vecs, vec, same_vec, |vec| vec.set(PVec::new()));
    }
}
