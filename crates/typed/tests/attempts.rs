//! Attempts to break objects from safe code, at run time: panics and lack of room that are caught in the midst,
//! keys that lie, types that call themselves as others do.

mod support;

use caliburn::typed::Error;
use caliburn::{
    Class, Objects, Owned, PBTreeMap, PBox, PHashMap, PRc, PString, PVec, PVecDeque, PWeak, Policy,
    Recoverable, Store,
};
use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use support::{allocated, objects, store};

thread_local! {
    /// How many comparisons and hashes are honest; then they panic, or lie.
    static HONEST: Cell<u32> = const { Cell::new(u32::MAX) };
    static LIES: Cell<bool> = const { Cell::new(false) };
}

/// A key whose code panics, or lies.
#[derive(Recoverable, Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
struct Key(u64);

fn honest() -> bool {
    let left = HONEST.get();
    if left == 0 && !LIES.get() {
        panic!("as planned");
    }
    HONEST.set(left.saturating_sub(u32::from(left != u32::MAX)));
    left > 0
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        if honest() { self.0.hash(state) } else { 1u64.hash(state) }
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        if honest() { self.0.cmp(&other.0) } else { Ordering::Equal }
    }
}

#[derive(Recoverable, Default)]
#[repr(C)]
struct Root {
    hashed: PHashMap<Key, PString>,
    sorted: PBTreeMap<Key, PString>,
    other: PBTreeMap<Key, PString>,
    name: PString,
    both: Option<Both>,
    counted: PVec<PRc<PString>>,
    one: Option<PRc<PString>>,
    two: Option<PRc<PString>>,
    weak: PWeak<PString>,
}

#[derive(Recoverable)]
#[repr(C)]
struct Both {
    hashed: PHashMap<Key, u64>,
    name: PString,
}

fn caught(what: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(what)).is_err()
}

#[test]
fn what_a_panic_left_half_made_is_not_committed_nor_changed() {
    for policy in [Policy::Redo, Policy::Undo] {
        let (_dir, store) = store(policy);
        let root: Objects<Root> = objects(&store);
        let both =
            |name| BothInit { hashed: HashMap::from([(Key(1), 1u64), (Key(2), 2), (Key(3), 3)]), name };
        root.update(|mut root| root.fields().both.set(Some(both("first")))).unwrap();
        let before = allocated(&root);
        for honest in 0..12 {
            let done = root.update(|mut root| {
                let second = both("second");
                HONEST.set(honest);
                let panicked = caught(|| {
                    if let Some(mut there) = root.fields().both.as_mut() {
                        there.set(second);
                    }
                });
                HONEST.set(u32::MAX);
                if panicked {
                    // It can be read, and not changed: memory that was given up is still whole.
                    assert!(
                        root.both
                            .as_ref()
                            .is_some_and(|both| ["first", "second", ""].contains(&both.name.as_str()))
                    );
                    assert!(caught(|| root.fields().name.set("changed")));
                    assert!(caught(|| root.fields().name.push('x')));
                    assert!(root.name.is_empty());
                }
                panicked
            });
            match done {
                Ok(panicked) => assert!(!panicked),
                Err(error) => assert!(matches!(error, Error::Unwound), "{error}"),
            }
            let view = root.read();
            assert_eq!(view.both.as_ref().unwrap().hashed.len(), 3);
            assert_eq!(view.both.as_ref().unwrap().hashed.iter().count(), 3);
            drop(view);
            root.update(|mut root| root.fields().both.set(Some(both("first")))).unwrap();
            assert_eq!(allocated(&root), before);
        }
    }
}

#[test]
fn a_panic_of_a_key_leaves_a_map_as_it_was() {
    let (_dir, store) = store(Policy::Redo);
    let root: Objects<Root> = objects(&store);
    root.update(|mut root| {
        let mut root = root.fields();
        root.hashed.extend((0..300).map(|i| (Key(i), "text")));
        root.sorted.extend((0..300).map(|i| (Key(i), "text")));
    })
    .unwrap();
    for honest in 0..40 {
        root.update(|mut root| {
            let mut root = root.fields();
            HONEST.set(honest);
            // Between the steps of a map nothing is half done, so that the rest of the transaction can go on.
            caught(|| drop(root.hashed.insert(Key(1000 + u64::from(honest)), "new")));
            HONEST.set(honest);
            caught(|| drop(root.sorted.insert(Key(1000 + u64::from(honest)), "new")));
            HONEST.set(honest);
            caught(|| drop(root.hashed.remove(&Key(5))));
            HONEST.set(honest);
            caught(|| drop(root.sorted.remove(&Key(u64::from(honest)))));
            HONEST.set(honest);
            caught(|| root.hashed.retain(|key, _| honest_key(key)));
            HONEST.set(u32::MAX);
            assert_eq!(root.hashed.len(), root.hashed.iter().count());
            assert_eq!(root.sorted.len(), root.sorted.iter().count());
            assert!(root.sorted.keys().is_sorted());
        })
        .unwrap();
    }
}

fn honest_key(key: &Key) -> bool {
    honest() && !key.0.is_multiple_of(7)
}

#[test]
fn keys_that_lie_do_not_corrupt_memory() {
    for seed in 0..200u32 {
        let (_dir, store) = store(Policy::Undo);
        let root: Objects<Root> = objects(&store);
        let before = allocated(&root);
        root.transact_in::<_, Error>(Class::Process, |mut root| {
            let mut root = root.fields();
            root.sorted.extend((0..200).map(|i| (Key(i * 2), format!("first {i}"))));
            root.other.extend((0..50).map(|i| (Key(i * 3), format!("second {i}"))));
            LIES.set(true);
            HONEST.set(seed * 7);
            root.sorted.append(&mut root.other);
            HONEST.set(seed);
            let mut off = root.sorted.split_off(&Key(100));
            HONEST.set(seed * 3);
            root.sorted.append(&mut off.as_mut());
            HONEST.set(seed);
            root.sorted.retain(|key, _| key.0 % 3 != 0);
            (0..40).for_each(|i| drop(root.sorted.insert(Key(i), "lied")));
            (0..40).for_each(|i| drop(root.sorted.remove(&Key(i * 5))));
            HONEST.set(u32::MAX);
            LIES.set(false);
            assert_eq!(root.sorted.len(), root.sorted.iter().count());
            assert!(root.sorted.values().all(|text| !text.is_empty()));
            Ok(())
        })
        .unwrap();
        root.update(|mut root| root.set(Root::default())).unwrap();
        assert_eq!(allocated(&root), before);
    }
}

#[test]
fn after_a_lack_of_room_nothing_is_changed_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let options = Store::options()
        .create(true)
        .log_bytes(1 << 20)
        .large_transactions(false)
        .stage_bytes(1 << 20)
        .clone();
    let store = options.open(dir.path().join("store")).unwrap();
    let root: Objects<Root> = objects(&store);
    root.update(|mut root| {
        let tx = root.tx();
        let mut root = root.fields();
        (0..400).for_each(|i| root.counted.push(PRc::new(format!("text {i}"))));
        root.one.set(Some(PRc::new("shared")));
        let shared = PRc::share(root.one.as_ref().unwrap(), tx);
        root.two.set(Some(shared));
    })
    .unwrap();
    let long = "x".repeat(1 << 20);
    for used in 0..60 {
        let done = root.update(|mut root| {
            let mut root = root.fields();
            // Fills the log up to somewhere in the midst of what comes.
            caught(|| root.name.set("y".repeat(510_000 - used * 400).as_str()));
            let mut room = caught(|| root.two.set(Some(PRc::new(long.as_str()))));
            room |= caught(|| root.counted.retain(|text| text.len() % 2 == 0));
            assert!(room, "there was room for all of it");
            // What is there twice, perhaps, cannot be changed in either place.
            assert!(caught(|| root.one.as_mut().unwrap().get_mut().unwrap().push('!')));
            let last = root.counted.len() - 1;
            assert!(caught(|| root.counted.at(last).get_mut().unwrap().push('!')));
            assert!(root.counted.iter().all(|text| text.starts_with("text ")));
        });
        assert!(matches!(done, Err(Error::Range(_))), "{done:?}");
    }
    assert_eq!(root.read().counted.len(), 400);
}

#[test]
fn a_weak_pointer_keeps_what_is_read_through_it() {
    let (_dir, store) = store(Policy::Redo);
    let root: Objects<Root> = objects(&store);
    root.update(|mut root| {
        let tx = root.tx();
        let mut root = root.fields();
        root.one.set(Some(PRc::new("text")));
        root.weak.set(PRc::downgrade(root.one.as_ref().unwrap(), tx));
    })
    .unwrap();
    root.update(|mut root| {
        let tx = root.tx();
        let mut root = root.fields();
        let text = root.weak.upgrade(tx).unwrap();
        root.one.set(None::<Owned<'_, PRc<PString>>>);
        assert_eq!((text.as_str(), PRc::strong_count(&text)), ("text", 1));
        assert!(root.weak.has_owners());
        drop(text);
        assert!(!root.weak.has_owners());
    })
    .unwrap();
    let view = root.read();
    assert!(view.weak(&view.weak).is_none());
}

/// A type with the name of one of the crate's.
mod impostor {
    use caliburn::Recoverable;

    #[derive(Recoverable, Default)]
    #[repr(C)]
    pub struct PString {
        pub words: [u64; 3],
    }

    #[derive(Recoverable, Default)]
    #[repr(C)]
    pub struct Pair<T: Default> {
        pub one: T,
    }
}

#[derive(Recoverable, Default)]
#[repr(C)]
struct Pair<T: Default> {
    one: T,
}

#[derive(Recoverable, Default)]
#[repr(C)]
struct Text<A: Default, B: Default> {
    first: A,
    second: B,
}

#[derive(Recoverable, Default, Clone, Copy)]
#[repr(u8)]
enum Narrow {
    #[default]
    One,
    Two(u16),
}

mod wide {
    #[derive(caliburn::Recoverable, Default, Clone, Copy)]
    #[repr(u16)]
    pub enum Narrow {
        #[default]
        One,
        Two(u16),
    }
}

#[test]
fn types_of_one_name_are_told_apart() {
    let (_dir, store) = store(Policy::Redo);
    type Made = Text<impostor::PString, impostor::PString>;
    drop(Objects::<Made>::open(&store, "names").unwrap());
    let error = Objects::<Text<impostor::PString, PString>>::open(&store, "names").unwrap_err();
    assert!(error.to_string().contains("-   second 24 PString'2\n+   second 24 PString\n"), "{error}");
    drop(Objects::<Made>::open(&store, "names").unwrap());

    type Pairs =
        Text<Text<Pair<impostor::PString>, impostor::Pair<impostor::PString>>, PVec<Pair<impostor::PString>>>;
    type Other = Text<
        Text<Pair<impostor::PString>, impostor::Pair<impostor::PString>>,
        PVec<impostor::Pair<impostor::PString>>,
    >;
    drop(Objects::<Pairs>::open(&store, "pairs").unwrap());
    assert!(matches!(Objects::<Other>::open(&store, "pairs"), Err(Error::Changed { .. })));

    drop(Objects::<Pair<Narrow>>::open(&store, "tags").unwrap());
    let error = Objects::<Pair<wide::Narrow>>::open(&store, "tags").unwrap_err();
    assert!(error.to_string().contains("- enum Narrow 4 2 u8\n+ enum Narrow 4 2 u16\n"), "{error}");
    let _ = (Narrow::Two(1), wide::Narrow::Two(1));
}

#[derive(Recoverable, Default)]
#[repr(C)]
struct Deep {
    children: PVecDeque<Self>,
    next: Option<PBox<Self>>,
}

#[test]
fn queues_in_queues_are_freed_however_deep() {
    let (_dir, store) = store(Policy::Undo);
    let root: Objects<Deep> = objects(&store);
    let before = allocated(&root);
    root.transact_in::<_, Error>(Class::Process, |mut root| {
        let tx = root.tx();
        let mut inner = Owned::<PVecDeque<Deep>>::new(PVecDeque::new(), tx);
        for _ in 0..200_000 {
            let mut outer = Owned::<PVecDeque<Deep>>::new(PVecDeque::new(), tx);
            outer.as_mut().push_back(DeepInit { children: inner, next: None::<PBox<Deep>> });
            inner = outer;
        }
        root.fields().children.set(inner);
        Ok(())
    })
    .unwrap();
    root.update(|mut root| root.fields().children.clear()).unwrap();
    root.update(|mut root| root.set(Deep::default())).unwrap();
    assert_eq!(allocated(&root), before);
}

/// Runs a transaction while something else unwinds.
struct AtTheEnd<'o>(&'o Objects<PVec<PString>>);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        assert!(std::thread::panicking());
        self.0.update(|mut texts| drop(texts.pop())).unwrap();
    }
}

#[test]
fn a_destructor_that_runs_a_transaction_while_unwinding_can_free() {
    let (_dir, store) = store(Policy::Redo);
    let texts: Objects<PVec<PString>> = objects(&store);
    texts.update(|mut texts| texts.extend(["one", "two"])).unwrap();
    let before = allocated(&texts);
    assert!(caught(|| {
        let _end = AtTheEnd(&texts);
        panic!("as planned");
    }));
    assert_eq!(texts.read().len(), 1);
    assert_eq!(allocated(&texts), before - 1);
}

#[test]
fn values_without_bytes_are_counted() {
    let (_dir, store) = store(Policy::Redo);
    let units: Objects<PVec<()>> = objects(&store);
    units
        .update(|mut units| {
            units.extend((0..1000).map(|_| ()));
            assert_eq!((units.len(), units.pop()), (1000, Some(())));
            assert!(caught(|| units.extend_from_slice(&[(); usize::MAX])));
            units.push(());
        })
        .unwrap();
    assert_eq!(units.read().len(), 1000);
}

#[derive(Recoverable, Clone, Copy)]
#[repr(C)]
struct Large {
    flag: bool,
    data: [u8; 63],
}

#[derive(Recoverable)]
#[repr(C)]
struct Holds {
    large: Option<Large>,
}

/// Fills the stack with what must not reach the store.
#[inline(never)]
fn fill_the_stack() -> u8 {
    let bytes = std::hint::black_box([0xA5u8; 16 << 10]);
    bytes[std::hint::black_box(77)]
}

/// Pushes values onto a dirty stack, and counts what of it is in the store.
fn stored_of_the_stack<T>(value: impl Fn() -> T) -> usize
where
    T: Recoverable + for<'id> caliburn::typed::Init<'id, T>,
{
    let (_dir, store) = store(Policy::Redo);
    let all: Objects<PVec<T>> = objects(&store);
    all.update(|mut all| {
        all.reserve(60);
        for _ in 0..60 {
            assert_eq!(fill_the_stack(), 0xA5);
            all.push(value());
        }
    })
    .unwrap();
    // SAFETY: it is only read.
    let region = unsafe { all.heap() }.region();
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes.iter().filter(|byte| **byte == 0xA5).count()
}

#[derive(Recoverable, Clone, Copy)]
#[repr(C, align(32))]
struct Wide(u8);

#[derive(Recoverable, Clone, Copy)]
#[repr(C)]
struct Loose {
    small: u8,
    large: u64,
    wide: Option<Wide>,
}

/// The heap's hash keys are random, and may have such bytes; each of sixty values has at least one that must not.
const FEW: usize = 17;

#[test]
fn nothing_of_the_stack_is_stored() {
    assert!(stored_of_the_stack(|| Holds { large: None }) < FEW);
    assert!(stored_of_the_stack(|| Holds { large: Some(Large { flag: true, data: [1; 63] }) }) < FEW);
    assert!(stored_of_the_stack(|| None::<Loose>) < FEW);
    assert!(stored_of_the_stack(|| Some(Loose { small: 1, large: 2, wide: None })) < FEW);
    assert!(stored_of_the_stack(|| None::<[u8; 64]>) < FEW);
    assert!(stored_of_the_stack(|| Some(None::<[u8; 32]>)) < FEW);
    assert!(stored_of_the_stack(|| Some(Wide(7))) < FEW);
    assert!(stored_of_the_stack(|| Loose { small: 1, large: 2, wide: None }) < FEW);
    assert!(stored_of_the_stack(|| (1u8, Some(Loose { small: 1, large: 2, wide: Some(Wide(3)) }))) < FEW);
}

#[test]
fn values_of_any_alignment_are_queued() {
    let (_dir, store) = store(Policy::Redo);
    let queue: Objects<PVecDeque<u128>> = objects(&store);
    queue.update(|mut queue| (0..9).for_each(|i| queue.push_back(i))).unwrap();
    assert!(queue.read().iter().copied().eq(0..9));
}

#[test]
fn a_view_is_kept_by_a_thread_to_its_end() {
    static OBJECTS: std::sync::OnceLock<Objects<u64>> = std::sync::OnceLock::new();
    thread_local! {
        static VIEW: std::cell::RefCell<Option<caliburn::View<'static, u64>>> = const { std::cell::RefCell::new(None) };
    }
    let (_dir, store) = store(Policy::Redo);
    let objects = OBJECTS.get_or_init(|| objects(&store));
    std::thread::spawn(|| VIEW.set(Some(OBJECTS.get().unwrap().read()))).join().unwrap();
    objects.update(|mut count| *count += 1).unwrap();
}

/// Frees values in a panic within a destructor that unwinds.
struct FreesInAPanic<'o>(&'o Objects<PVec<PVec<PRc<u64>>>>);

impl Drop for FreesInAPanic<'_> {
    fn drop(&mut self) {
        let done = self.0.update(|mut all| {
            let taken: Vec<_> = all.drain(..).collect();
            assert!(caught(move || {
                let _taken = taken;
                panic!("inner");
            }));
        });
        assert!(done.is_err(), "there was room");
    }
}

#[test]
fn a_lack_of_room_while_values_are_dropped_by_a_panic_ends_nothing_but_the_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let options = Store::options()
        .create(true)
        .log_bytes(1 << 20)
        .large_transactions(false)
        .stage_bytes(1 << 20)
        .clone();
    let store = options.open(dir.path().join("store")).unwrap();
    let all: Objects<PVec<PVec<PRc<u64>>>> = objects(&store);
    for _ in 0..50 {
        all.update(|mut all| {
            all.push(PVec::new());
            let last = all.len() - 1;
            (0..400).for_each(|i| all.at(last).push(PRc::new(i)));
        })
        .unwrap();
    }
    assert!(caught(|| {
        let _frees = FreesInAPanic(&all);
        panic!("outer");
    }));
    assert_eq!(all.read().iter().map(|one| one.len()).sum::<usize>(), 20_000);
}

#[test]
fn sorted_maps_are_made_of_those_of_the_standard_library() {
    let (_dir, store) = store(Policy::Redo);
    let map: Objects<PBTreeMap<PString, PVec<u64>>> = objects(&store);
    map.update(|mut map| map.set(BTreeMap::from([("a", vec![1u64, 2]), ("b", vec![])]))).unwrap();
    assert_eq!(map.read()["a"], vec![1, 2]);
}
