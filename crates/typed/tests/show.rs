//! What a store holds, shown by the layouts that it records, without the types.

mod support;

use caliburn::heap::Heap;
use caliburn::typed::{Extent, Shown, show};
use caliburn::{
    Error, Objects, PBTreeMap, PBTreeSet, PBox, PHashMap, PLog, PRc, PSlotMap, PString, PVec, PVecDeque,
    PWeak, Policy, Recoverable, SlotKey, Store,
};
use std::num::NonZeroU16;
use support::store_with;

#[derive(Recoverable, Default)]
#[repr(C)]
struct Root {
    flag: bool,
    small: i8,
    real: f64,
    letter: Option<char>,
    truth: Option<bool>,
    number: Option<NonZeroU16>,
    plain: Option<u32>,
    choice: Option<Choice>,
    pair: (u8, Option<i32>),
    array: [u16; 3],
    texts: PVec<PString>,
    queue: PVecDeque<u64>,
    hashed: PHashMap<PString, Option<PBox<Link>>>,
    sorted: PBTreeMap<(u32, u8), PVec<u8>>,
    set: PBTreeSet<u64>,
    nodes: PSlotMap<Choice>,
    counted: Option<PRc<PString>>,
    weak: PWeak<PString>,
    nothing: PVec<()>,
    log: PLog<u32>,
}

#[derive(Recoverable)]
#[repr(C)]
struct Link {
    value: u64,
    next: Option<PBox<Link>>,
}

#[derive(Recoverable)]
#[repr(i8)]
enum Choice {
    First = -3,
    Second(u64, bool),
    Third { text: PString, key: SlotKey<Choice> },
}

fn fill(store: &Store) -> Result<(), Error> {
    Objects::<Root>::open(store, "objects")?.update(|mut root| {
        let tx = root.tx();
        let mut root = root.fields();
        (*root.flag, *root.small, *root.real) = (true, -7, 1.5);
        root.letter.set(Some('x'));
        root.truth.set(Some(false));
        root.plain.set(Some(0));
        root.choice.set(Some(Choice::Second(9, true)));
        root.pair.set((1, Some(-2)));
        root.array.set([1, 2, 3]);
        root.texts.extend(["one", "two\n"]);
        root.queue.extend(0..6);
        (0..4).for_each(|i| {
            root.queue.pop_front();
            root.queue.push_back(10 + i);
        });
        for i in 0..1000u64 {
            let last = Some(PBox::new(LinkInit { value: 1, next: None::<PBox<Link>> }));
            root.hashed.insert(format!("key {i}"), Some(PBox::new(LinkInit { value: i, next: last })));
        }
        (0..300).for_each(|i| drop(root.sorted.insert((i, 7), vec![1u8; i as usize % 3])));
        root.set.extend([5, 3, 8]);
        let key = root.nodes.insert(Choice::First);
        root.nodes.insert(Choice::Third { text: PString::new(), key });
        let gone = root.nodes.insert(Choice::First);
        root.nodes.remove(gone);
        root.counted.set(Some(PRc::new("shared")));
        root.weak.set(PRc::downgrade(root.counted.as_ref().unwrap(), tx));
        root.nothing.extend([(), ()]);
        root.log.extend(0..500);
    })
}

const WHOLE: &str = r#"Root {
    flag: true,
    small: -7,
    real: 1.5,
    letter: "x",
    truth: false,
    number: None,
    plain: 0,
    choice: Second {
        0: 9,
        1: true,
    },
    pair: {
        0: 1,
        1: -2,
    },
    array: [
        1,
        2,
        ... 1 more
    ],
    texts: [
        "one",
        "two\n",
    ],
    queue: [
        4,
        5,
        ... 4 more
    ],
"#;

#[test]
fn a_store_is_shown_without_its_types() {
    for policy in [Policy::Redo, Policy::Undo] {
        let (dir, store) = store_with(policy, false);
        fill(&store).unwrap();
        store.close().unwrap();
        let store = Store::options().read_only(true).open(dir.path().join("store")).unwrap();
        let heap = Heap::open(&store, "objects").unwrap();
        let two = Extent { items: 2, depth: 4 };
        let whole = show(&heap, &[] as &[&str], two).unwrap().to_string();
        assert!(whole.starts_with(WHOLE), "{whole}");
        let at = |path: &[&str]| show(&heap, path, Extent { items: 3, depth: 9 }).unwrap().to_string();
        assert_eq!(at(&["hashed", "key 77", "value"]), "77");
        assert_eq!(at(&["hashed", "key 999", "next", "value"]), "1");
        assert_eq!(at(&["hashed", "key 999", "next", "next"]), "None");
        assert!(at(&["hashed"]).ends_with("... 997 more\n}"));
        assert!(
            at(&["sorted"]).starts_with("{\n    {\n        0: 0,\n        1: 7,\n    }: [],\n"),
            "{}",
            at(&["sorted"])
        );
        assert_eq!(at(&["set"]), "[\n    3,\n    5,\n    8,\n]");
        assert_eq!(
            at(&["nodes"]),
            "{\n    \"0v1\": First,\n    \"1v1\": Third {\n        text: \"\",\n        key: \"0v1\",\n    },\n}"
        );
        assert_eq!((at(&["counted"]), at(&["weak"])), ("\"shared\"".to_owned(), "\"shared\"".to_owned()));
        assert_eq!(
            (at(&["array", "2"]), at(&["nothing"])),
            ("3".to_owned(), "[\n    None,\n    None,\n]".to_owned())
        );
        assert_eq!((at(&["log", "499"]), at(&["log", "15"])), ("499".to_owned(), "15".to_owned()));
        assert_eq!(show(&heap, &["truth"], two).unwrap(), Shown::Bool(false));
        for path in [&["array", "3"][..], &["hashed", "key"], &["small", "x"], &["other"]] {
            assert!(matches!(show(&heap, path, two), Err(Error::NotThere { .. })), "{path:?}");
        }
    }
}

#[test]
fn a_damaged_heap_is_refused_or_shown_and_never_followed_out_of_it() {
    let (dir, store) = store_with(Policy::Undo, false);
    fill(&store).unwrap();
    store.close().unwrap();
    let path = dir.path().join("store/objects.segment");
    let whole = std::fs::read(&path).unwrap();
    let anything = Extent { items: u64::MAX, depth: 20 };
    let (mut refused, mut random) = (0, 0x9E37_79B9_7F4A_7C15u64);
    for _ in 0..400 {
        let mut bytes = whole.clone();
        for _ in 0..40 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (random >> 20) as usize % bytes.len().min(120_000);
            // Behind the file's header, which has a checksum of its own.
            if at >= 8192 {
                bytes[at] = (random >> 8) as u8;
            }
        }
        std::fs::write(&path, bytes).unwrap();
        let Ok(store) = Store::options().read_only(true).open(dir.path().join("store")) else { continue };
        let Ok(heap) = Heap::open(&store, "objects") else { continue };
        refused += u32::from(show(&heap, &[] as &[&str], anything).is_err());
    }
    assert!(refused > 20, "{refused}");
}

#[derive(Recoverable, Default)]
#[repr(C)]
struct Job {
    inner: Option<bool>,
    last: Option<Option<Option<bool>>>,
}

#[derive(Recoverable, Default, Clone, Copy)]
#[repr(C, align(32))]
struct Wide(u8);

type Twice<T> = PVec<PRc<PVec<PRc<T>>>>;

#[derive(Recoverable, Default)]
#[repr(C)]
struct Nested {
    none: Option<Job>,
    some: Option<Job>,
    wide: Option<Wide>,
    many: Twice<Twice<Twice<PVec<u8>>>>,
}

#[test]
fn nested_options_and_objects_of_many_owners_are_shown() {
    let (_dir, store) = store_with(Policy::Redo, false);
    let nested = Objects::<Nested>::open(&store, "objects").unwrap();
    macro_rules! level {
        ($tx:ident, $inner:expr) => {{
            let one = caliburn::Owned::new(PRc::new($inner), $tx);
            let mut all = caliburn::Owned::<PVec<_>>::new(PVec::new(), $tx);
            (0..20).for_each(|_| all.as_mut().push(PRc::share(&one, $tx)));
            all
        }};
    }
    nested
        .update(|mut nested| {
            let tx = nested.tx();
            let mut nested = nested.fields();
            nested.some.set(Some(Job { inner: None, last: Some(Some(None)) }));
            let inner: PVec<u8> = PVec::new();
            nested.many.set(level!(tx, level!(tx, level!(tx, level!(tx, level!(tx, level!(tx, inner)))))));
        })
        .unwrap();
    nested.update(|mut nested| nested.fields().wide.set(Some(Wide(7)))).unwrap();
    drop(nested);
    let heap = Heap::open(&store, "objects").unwrap();
    let at = |path: &[&str]| show(&heap, path, Extent::default()).unwrap();
    assert_eq!((at(&["none"]), at(&["some", "inner"])), (Shown::Nothing, Shown::Nothing));
    assert_eq!((at(&["some", "last"]), at(&["wide", "0"])), (Shown::Nothing, Shown::Number("7".into())));
    // 20 to the sixth ways: not all of them are gone.
    assert!(matches!(at(&["many"]), Shown::List(_, 0)));
}

/// Shows a heap whose record says what somebody has made up.
fn made_up(record: &str) -> Result<Shown, Error> {
    let (_dir, store) = store_with(Policy::Undo, false);
    let heap = Heap::open(&store, "h").unwrap();
    let mut tx = heap.begin().unwrap();
    let text = format!("caliburn types 1\n{record}\n");
    let types = tx.allocate(8 + text.len()).unwrap();
    tx.store(types, 0, &(text.len() as u64)).unwrap();
    tx.write(types, 8, text.as_bytes()).unwrap();
    let anchor = tx.allocate(4096).unwrap();
    tx.write(anchor, 0, &[0; 4096]).unwrap();
    tx.set_root("caliburn.types", Some(types)).unwrap();
    tx.set_root("caliburn.root", Some(anchor)).unwrap();
    tx.commit(caliburn::Class::Process).unwrap();
    show(&heap, &[] as &[&str], Extent::default())
}

#[test]
fn records_that_somebody_made_up_are_refused() {
    let deep = format!("root {}u8{}", "A<".repeat(3000), ">".repeat(3000));
    let long = "root ".to_owned() + &"(".repeat(200_000);
    for record in [
        "root A\nenum A 8 8 u256\n  B 0",
        "root PSlotMap<A>\nstruct A 18446744073709551608 8",
        "root A\nstruct A 8 8\n  x 18446744073709551615 u8",
        "root Option<A>\noption Option<A> 8 8\n  0 0 A\nstruct A 8 8\n  x 0 A",
        "root A\nstruct A 0 8\n  x 0 [A; 18446744073709551615]",
        &deep,
        &long,
    ] {
        let shown = made_up(record);
        assert!(shown.is_err() || record.contains("[A;"), "{record:.60}: {shown:?}");
    }
    let _ = made_up("root PBox");
    let _ = made_up("root Option<NonZeroPVec>\noption Option<NonZeroPVec> 24 8\n  0 0 NonZeroPVec");
}
