//! Objects of older types, made anew by the names of their fields: whole, wherever it was cut short.

mod support;

use caliburn::{
    Error, Objects, Options, PBTreeMap, PBTreeSet, PBox, PHashMap, PHashSet, PLog, PRc, PSlotMap, PString,
    PVec, PVecDeque, PWeak, Policy, Recoverable, SlotKey, Store, back_out,
};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::{allocated, store};

/// As the types were, and as they are.
macro_rules! version {
    ($module:ident $(#[$said:meta])? { $($root:tt)* } { $($node:tt)* } { $($choice:tt)* }) => {
        mod $module {
            use super::*;

            #[derive(Recoverable, Default)]
            #[repr(C)]
            $(#[$said])?
            pub struct World { $($root)* }

            #[derive(Recoverable)]
            #[repr(C)]
            pub struct Node { $($node)* }

            #[derive(Recoverable)]
            #[repr(u8)]
            #[allow(dead_code, reason = "made of what older ones were")]
            pub enum Choice { $($choice)* }
        }
    };
}

version! { old {
    pub gone: PVec<PString>,
    pub count: u16,
    pub real: f32,
    pub letter: char,
    pub truth: Option<bool>,
    pub nested: Option<Option<u8>>,
    pub array: [i8; 3],
    pub pair: (u8, PString),
    pub hashed: PHashMap<PString, Node>,
    pub sorted: PBTreeMap<u32, PVec<u8>>,
    pub words: PHashSet<PString>,
    pub numbers: PBTreeSet<i16>,
    pub queue: PVecDeque<PString>,
    pub log: PLog<(u64, bool)>,
    pub nodes: PSlotMap<Choice>,
    pub stale: PVec<SlotKey<Choice>>,
    pub shared: PVec<PRc<Node>>,
    pub weak: PVec<PWeak<Node>>,
    pub boxed: Option<PBox<Node>>,
    pub nothing: PVec<()>,
} {
    pub text: PString,
    pub money: i32,
    pub next: Option<PRc<Node>>,
    pub own: PWeak<Node>,
} {
    Nothing,
    Link(SlotKey<Choice>),
    Weight { grams: u32 },
} }

version! { new #[recoverable(gone("gone"))] {
    pub count: u64,
    pub hashed: PBTreeMap<PString, Node>,
    pub pair: (u32, PString),
    pub sorted: PHashMap<u64, PVec<u32>>,
    pub words: PBTreeSet<PString>,
    pub numbers: PVec<i64>,
    pub queue: PVec<PString>,
    pub log: PVecDeque<(u64, bool)>,
    pub real: f64,
    pub letter: PString,
    pub truth: Option<bool>,
    pub nested: Option<Option<u32>>,
    pub array: [i32; 3],
    pub nodes: PSlotMap<Choice>,
    #[recoverable(was = "stale")]
    pub keys: PVec<SlotKey<Choice>>,
    pub shared: PVecDeque<PRc<Node>>,
    pub weak: PVec<PWeak<Node>>,
    pub boxed: Option<PBox<Node>>,
    pub nothing: PVec<()>,
    pub fresh: PVec<u8>,
} {
    #[recoverable(default = 7)]
    pub grade: u8,
    #[recoverable(default)]
    pub tags: PVec<PString>,
    #[recoverable(was = "money", was = "cents")]
    pub balance: i64,
    pub text: PString,
    pub next: Option<PRc<Node>>,
    pub own: PWeak<Node>,
} {
    #[recoverable(was = "Weight")]
    Mass { #[recoverable(was = "grams")] milligrams: u64, #[recoverable(default)] exact: bool },
    Link(SlotKey<Choice>),
    Nothing,
} }

fn node(text: &str, money: i32) -> old::NodeInit<String, i32, Option<PRc<old::Node>>, PWeak<old::Node>> {
    old::NodeInit { text: text.to_owned(), money, next: None, own: PWeak::new() }
}

const ENTRIES: u32 = 700;

fn fill(store: &Store) {
    let world = Objects::<old::World>::open(store, "world").unwrap();
    world
        .update(|mut root| {
            let tx = root.tx();
            let mut root = root.fields();
            root.gone.extend(["one", "two"]);
            (*root.count, *root.real, *root.letter) = (65_000, 0.1, 'ß');
            root.truth.set(Some(false));
            root.nested.set(Some(None::<u8>));
            root.array.set([-1, 0, 1]);
            root.pair.set((9, "a pair"));
            for i in 0..ENTRIES {
                root.hashed.insert(format!("key {i}"), node(&format!("node {i}"), -(i as i32)));
                root.sorted.insert(i * 3, vec![i as u8; i as usize % 5]);
                root.log.push((u64::from(i) << 40, i % 3 == 0));
            }
            root.words.extend(["b", "a", "a"]);
            root.numbers.extend([-5, 7, 0]);
            root.queue.extend(["first", "second", "third"]);
            drop(root.queue.pop_front());
            root.queue.push_back("fourth");
            let first = root.nodes.insert(old::Choice::Weight { grams: 5 });
            let gone = root.nodes.insert(old::Choice::Nothing);
            root.nodes.insert(old::Choice::Link(first));
            root.nodes.remove(gone);
            root.stale.extend([first, gone]);
            root.shared.push(PRc::new(node("shared", 1)));
            let again = PRc::share(&root.shared[0], tx);
            root.shared.push(again);
            let next = Some(PRc::share(&root.shared[0], tx));
            root.shared.push(PRc::new(old::NodeInit { text: "owner", money: 2, next, own: PWeak::new() }));
            for of in [2, 0] {
                let weak = PRc::downgrade(&root.shared[of], tx);
                root.weak.push(weak);
            }
            root.weak.push(PWeak::new());
            root.boxed.set(Some(PBox::new(node("boxed", 3))));
            root.nothing.resize_with(1500, || ());
        })
        .unwrap();
}

fn check(world: &Objects<new::World>) {
    let root = world.read();
    assert_eq!((root.count, root.real, &*root.letter), (65_000, 0.1, "ß"));
    assert_eq!((root.truth, root.nested, root.array), (Some(false), Some(None), [-1, 0, 1]));
    assert_eq!((root.pair.0, &*root.pair.1), (9, "a pair"));
    assert_eq!(root.hashed.len(), ENTRIES as usize);
    for i in 0..ENTRIES {
        let node = &root.hashed[&*format!("key {i}")];
        assert_eq!((&*node.text, node.balance, node.grade), (&*format!("node {i}"), -i64::from(i), 7));
        assert!(node.tags.is_empty() && node.next.is_none());
        assert_eq!(root.sorted[&u64::from(i * 3)].to_vec(), vec![i % 256; i as usize % 5]);
        assert_eq!(root.log[i as usize], (u64::from(i) << 40, i % 3 == 0));
    }
    assert_eq!(root.words.iter().map(|w| &**w).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(root.numbers.to_vec(), [-5, 0, 7]);
    assert_eq!(root.queue.iter().map(|w| &**w).collect::<Vec<_>>(), ["second", "third", "fourth"]);
    let (first, gone) = (root.keys[0], root.keys[1]);
    assert!(matches!(root.nodes[first], new::Choice::Mass { milligrams: 5, exact: false }));
    assert!(!root.nodes.contains_key(gone));
    assert!(root.nodes.iter().any(|(_, node)| matches!(node, new::Choice::Link(key) if *key == first)));
    assert!(PRc::ptr_eq(&root.shared[0], &root.shared[1]));
    assert!(PRc::ptr_eq(&root.shared[0], root.shared[2].next.as_ref().unwrap()));
    assert_eq!((PRc::strong_count(&root.shared[0]), PRc::strong_count(&root.shared[2])), (3, 1));
    let weak = |i: usize| root.weak(&root.weak[i]).map(|node| node.text.to_string());
    assert_eq!([weak(0), weak(1), weak(2)], [Some("owner".into()), Some("shared".into()), None]);
    assert_eq!(root.boxed.as_ref().unwrap().balance, 3);
    assert_eq!((root.nothing.len(), root.fresh.len()), (1500, 0));
    drop(root);
    assert!(world.unreached().unwrap().is_empty(), "{:?}", world.unreached());
    // A key that was stale does not become valid by what comes next.
    world
        .transact(|mut root| {
            let (gone, mut root) = (root.keys[1], root.fields());
            let new = root.nodes.insert(new::Choice::Nothing);
            assert!(new != gone && !root.nodes.contains_key(gone));
            Err::<(), Error>(Error::Unwound)
        })
        .unwrap_err();
}

const ON: fn(u64) -> ControlFlow<()> = |_| ControlFlow::Continue(());

#[test]
fn every_kind_of_value_is_made_anew() {
    for policy in [Policy::Redo, Policy::Undo] {
        let (dir, store) = store(policy);
        fill(&store);
        let mut told = Vec::new();
        let world = Objects::<new::World>::migrate_fields(&store, "world", |done| {
            told.push(done);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(told.len() > 5 && told.is_sorted(), "{told:?}");
        check(&world);
        let objects = allocated(&world);
        drop((world, store));
        let store = Store::options().open(dir.path().join("store")).unwrap();
        // Done once, it is opening.
        let world =
            Objects::<new::World>::migrate_fields(&store, "world", |_| ControlFlow::Break(())).unwrap();
        check(&world);
        assert_eq!(allocated(&world), objects);
        // The old objects are still there, and as whole as the new ones; then they are not.
        assert!(world.keeps_old() && world.forget_old().unwrap());
        check(&world);
        assert!(allocated(&world) < objects && !world.keeps_old() && !world.forget_old().unwrap());
    }
}

#[test]
fn who_ends_it_finds_the_old_objects() {
    let (_dir, store) = store(Policy::Undo);
    fill(&store);
    let before = allocated(&Objects::<old::World>::open(&store, "world").unwrap());
    for most in 1.. {
        let mut calls = 0;
        let migrated = Objects::<new::World>::migrate_fields(&store, "world", |_| {
            calls += 1;
            if calls == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match migrated {
            Ok(world) => {
                check(&world);
                assert!(most > 5);
                return;
            }
            Err(error) => assert!(matches!(error, Error::Interrupted), "{error}"),
        }
        let world = Objects::<old::World>::open(&store, "world").unwrap();
        assert_eq!(world.read().hashed.len(), ENTRIES as usize);
        assert_eq!(allocated(&world), before);
        assert!(world.unreached().unwrap().is_empty());
    }
}

mod refusing {
    use super::*;

    #[derive(Recoverable, Default)]
    #[repr(C)]
    #[recoverable(gone(
        "gone", "real", "letter", "truth", "nested", "array", "pair", "sorted", "words", "numbers"
    ))]
    #[recoverable(gone("queue", "log", "nodes", "stale", "shared", "weak", "boxed", "nothing"))]
    pub struct Narrow {
        pub hashed: PHashMap<PString, Money>,
        pub count: u8,
    }
    #[derive(Recoverable)]
    #[repr(C)]
    #[recoverable(gone("text", "next", "own"))]
    pub struct Money {
        pub money: i8,
    }
    #[derive(Recoverable, Default)]
    #[repr(C)]
    #[recoverable(gone(
        "gone", "real", "letter", "truth", "nested", "array", "pair", "sorted", "words", "numbers"
    ))]
    #[recoverable(gone("queue", "log", "nodes", "stale", "shared", "weak", "boxed", "nothing", "count"))]
    pub struct Lacking {
        pub hashed: PHashMap<PString, Lacks>,
    }
    #[derive(Recoverable)]
    #[repr(C)]
    #[recoverable(gone("text", "next", "own"))]
    pub struct Lacks {
        pub money: i32,
        pub grade: u8,
    }
    #[derive(Recoverable, Default)]
    #[repr(C)]
    #[recoverable(gone(
        "gone", "real", "letter", "truth", "nested", "array", "pair", "sorted", "words", "numbers"
    ))]
    #[recoverable(gone("queue", "log", "nodes", "stale", "shared", "weak", "boxed", "nothing", "count"))]
    pub struct Other {
        pub hashed: PVec<PString>,
    }
}

#[test]
fn what_cannot_be_made_is_refused_and_the_old_objects_stay() {
    fn refused<R: Recoverable + Default + for<'id> caliburn::typed::Init<'id, R>>(store: &Store) -> String {
        match Objects::<R>::migrate_fields(store, "world", ON).map(|_| ()) {
            Err(error @ Error::NotMade { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }
    let (_dir, store) = store(Policy::Redo);
    fill(&store);
    let before = allocated(&Objects::<old::World>::open(&store, "world").unwrap());
    let narrow = refused::<refusing::Narrow>(&store);
    assert!(narrow.contains("is no i8") || narrow.contains("65000 is no u8"), "{narrow}");
    let lacking = refused::<refusing::Lacking>(&store);
    assert!(lacking.contains("grade of Lacks"), "{lacking}");
    let other = refused::<refusing::Other>(&store);
    assert!(other.contains("one more value for what is no collection"), "{other}");
    let world = Objects::<old::World>::open(&store, "world").unwrap();
    assert_eq!((allocated(&world), world.unreached().unwrap().is_empty()), (before, true));
    drop(world);
    check(&Objects::<new::World>::migrate_fields(&store, "world", ON).unwrap());
}

mod chains {
    use super::*;

    #[derive(Recoverable, Default)]
    #[repr(C)]
    pub struct Old {
        pub first: Option<PBox<Link>>,
    }
    #[derive(Recoverable, Default)]
    #[repr(C)]
    pub struct New {
        pub first: Option<PBox<Link>>,
        pub name: PString,
    }
    #[derive(Recoverable)]
    #[repr(C)]
    pub struct Link {
        pub number: u64,
        pub next: Option<PBox<Link>>,
    }
}

/// Who makes values of data calls itself for each that is in another: as deep as a stack holds, and no deeper.
#[test]
fn chains_of_boxes_are_moved_as_far_as_they_may_be_deep() {
    let (_dir, store) = store(Policy::Undo);
    for (name, links, fits) in [("short", 130, true), ("long", 1000, false)] {
        let old = Objects::<chains::Old>::open(&store, name).unwrap();
        old.update(|mut old| {
            let mut old = old.fields();
            for number in 0..links {
                let next = old.first.take();
                old.first.set(Some(PBox::new(chains::LinkInit { number, next })));
            }
        })
        .unwrap();
        drop(old);
        match Objects::<chains::New>::migrate_fields(&store, name, ON) {
            Ok(new) => {
                let view = new.read();
                let chain = std::iter::successors(view.first.as_deref(), |link| link.next.as_deref());
                assert!(fits && chain.map(|link| link.number).eq((0..links).rev()));
            }
            Err(error) => {
                assert!(!fits && error.to_string().contains("deeper than 400"), "{error}");
                let old = Objects::<chains::Old>::open(&store, name).unwrap();
                assert_eq!(old.read().first.as_ref().unwrap().number, links - 1);
                assert!(old.unreached().unwrap().is_empty());
            }
        }
    }
}

fn options(policy: Policy) -> Options {
    let mut options = Store::options();
    options.create(true).policy(policy).log_bytes(4 << 20).stage_bytes(2 << 20).reserve_bytes(1 << 30);
    options
}

/// Run in the child.
#[test]
fn child() {
    let Some(path) = std::env::var_os("CALIBURN_MIGRATED_STORE") else { return };
    let store = Store::open(Path::new(&path)).unwrap();
    let mut calls = HashMap::new();
    let migrated = Objects::<new::World>::migrate_fields(&store, "world", |done| {
        *calls.entry(done).or_insert(0) += 1;
        // So that a kill comes in between.
        std::thread::sleep(Duration::from_micros(300));
        ControlFlow::Continue(())
    });
    if std::env::var_os("CALIBURN_MIGRATED_BACK").is_some() {
        drop(migrated);
        back_out(&store, "world").unwrap();
    } else {
        migrated.unwrap().forget_old().unwrap();
    }
    drop(store);
}

#[test]
fn killed_anywhere_the_next_try_completes_it() {
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let (mut killed, mut old, mut new) = (0, 0, 0);
        for round in 0..24u64 {
            let path = dir.path().join(format!("store {round}"));
            let store = options(policy).open(&path).unwrap();
            fill(&store);
            drop(store);
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["child", "--exact", "--nocapture"])
                .env("CALIBURN_MIGRATED_STORE", &path)
                .envs((round % 2 == 1).then_some(("CALIBURN_MIGRATED_BACK", "yes")))
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_micros(4_000 + round * 6_000));
            child.kill().unwrap();
            let status = child.wait().unwrap();
            assert!(status.signal() == Some(9) || status.success(), "the child failed: {status}");
            killed += u64::from(status.signal() == Some(9));
            let store = options(policy).open(&path).unwrap();
            match Objects::<old::World>::open(&store, "world") {
                Ok(world) => {
                    old += 1;
                    assert_eq!(world.read().hashed.len(), ENTRIES as usize);
                }
                Err(error) => {
                    new += 1;
                    assert!(matches!(error, Error::Changed { .. }), "{error}");
                }
            }
            let world = Objects::<new::World>::migrate_fields(&store, "world", ON).unwrap();
            check(&world);
            world.forget_old().unwrap();
            check(&world);
        }
        println!("{policy:?}: {killed} killed, {old} found old, {new} new");
        assert!(old > 0 && killed > 3);
    }
}
