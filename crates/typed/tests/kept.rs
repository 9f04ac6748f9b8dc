//! Old objects after a migration: there until the program is content, and the way back to them; nothing is committed
//! before all is known to be accepted.

mod support;

use caliburn::heap::Heap;
use caliburn::typed::{Datum, Loader, No, Tx, Types};
use caliburn::{
    Class, Error, Objects, PBox, PString, PVec, Policy, Recoverable, Store, back_out, forget_old,
};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use support::{allocated, store};

const ON: fn(u64) -> ControlFlow<()> = |_| ControlFlow::Continue(());

#[derive(Recoverable, Default)]
#[repr(C)]
struct First {
    words: PVec<PString>,
}

#[derive(Recoverable, Default)]
#[repr(C)]
struct Second {
    words: PVec<PString>,
    number: u64,
}

#[derive(Recoverable, Default)]
#[repr(C)]
#[recoverable(gone("number"))]
struct Third {
    words: PVec<PString>,
    another: u32,
}

/// The first objects, with how many there are.
fn fill(store: &Store) -> u64 {
    let first = Objects::<First>::open(store, "words").unwrap();
    first.update(|mut root| root.fields().words.extend(["a", "b", "c"])).unwrap();
    allocated(&first)
}

fn migrate(store: &Store) -> Objects<Second> {
    Objects::migrate_fields(store, "words", ON).unwrap()
}

fn words(words: &PVec<PString>) -> Vec<&str> {
    words.iter().map(|word| &**word).collect()
}

/// The first objects are there, and nothing else.
fn is_first(store: &Store, objects: u64) {
    let first = Objects::<First>::open(store, "words").unwrap();
    assert_eq!(words(&first.read().words), ["a", "b", "c"]);
    assert_eq!((allocated(&first), first.keeps_old()), (objects, false));
    assert!(first.unreached().unwrap().is_empty());
}

#[test]
fn until_the_program_is_content_there_is_a_way_back() {
    for policy in [Policy::Redo, Policy::Undo] {
        let (dir, store) = store(policy);
        let objects = fill(&store);
        let second = migrate(&store);
        second.update(|mut root| root.fields().words.push("d")).unwrap();
        // Nothing takes the old objects for forgotten ones.
        assert!(second.keeps_old() && second.reclaim().unwrap().is_empty());
        drop((second, store));
        let store = Store::options().open(dir.path().join("store")).unwrap();
        // Migrating once more is opening, and further migrations wait for a word.
        assert!(migrate(&store).keeps_old());
        let refused = Objects::<Third>::migrate_fields(&store, "words", ON).map(drop);
        assert!(matches!(refused, Err(Error::Kept { .. })), "{refused:?}");
        assert!(back_out(&store, "words").unwrap() && !back_out(&store, "words").unwrap());
        is_first(&store, objects);
        let second = migrate(&store);
        let before = second.snapshot().unwrap();
        assert!(second.forget_old().unwrap());
        assert_eq!(
            (words(&before.words), words(&second.read().words)),
            (vec!["a", "b", "c"], vec!["a", "b", "c"])
        );
        assert!(second.unreached().unwrap().is_empty() && allocated(&second) == objects);
        drop((before, second));
        assert!(!forget_old(&store, "words").unwrap() && !back_out(&store, "words").unwrap());
        let third = Objects::<Third>::migrate_fields(&store, "words", ON).unwrap();
        assert_eq!((words(&third.read().words), third.read().another), (vec!["a", "b", "c"], 0));
        drop(third);
        assert!(forget_old(&store, "words").unwrap());
    }
}

/// As a crash leaves it after the transaction that decides: the roots have other names.
fn rename(store: &Store, names: &[(&str, Option<&str>)]) {
    let heap = Heap::open(store, "words").unwrap();
    let mut tx = heap.begin().unwrap();
    let places: Vec<_> = names.iter().map(|(from, to)| (heap.root(from).unwrap(), to)).collect();
    names.iter().for_each(|(from, _)| tx.set_root(from, None).unwrap());
    for (place, to) in places {
        match to {
            Some(to) => tx.set_root(to, Some(place)).unwrap(),
            None => tx.free(place).unwrap(),
        }
    }
    tx.commit(Class::Process).unwrap();
}

#[test]
fn what_a_crash_leaves_to_be_freed_the_next_call_frees() {
    let forgetting = [("caliburn.kept", Some("caliburn.old")), ("caliburn.kept.types", None)];
    let backing_out = [
        ("caliburn.root", Some("caliburn.old")),
        ("caliburn.types", None),
        ("caliburn.kept", Some("caliburn.root")),
        ("caliburn.kept.types", Some("caliburn.types")),
    ];
    for again in 0..3 {
        let (_dir, store) = store(Policy::Undo);
        let objects = fill(&store);
        drop(migrate(&store));
        rename(&store, &forgetting);
        match again {
            0 => assert!(!forget_old(&store, "words").unwrap()),
            1 => assert!(!back_out(&store, "words").unwrap()),
            _ => drop(migrate(&store)),
        }
        let second = Objects::<Second>::open(&store, "words").unwrap();
        assert_eq!((allocated(&second), words(&second.read().words)), (objects, vec!["a", "b", "c"]));
        drop(second);

        let (_dir, store) = self::store(Policy::Undo);
        let objects = fill(&store);
        drop(migrate(&store));
        rename(&store, &backing_out);
        match again {
            0 => assert!(!forget_old(&store, "words").unwrap()),
            1 => assert!(!back_out(&store, "words").unwrap()),
            _ => drop(Objects::<First>::migrate_fields(&store, "words", ON).unwrap()),
        }
        is_first(&store, objects);
    }
}

/// An older program frees what its root does not lead to.
#[test]
fn nobody_goes_back_to_objects_that_were_freed() {
    let (_dir, store) = store(Policy::Undo);
    fill(&store);
    drop(migrate(&store));
    let heap = Heap::open(&store, "words").unwrap();
    let named: Vec<_> = heap.roots().iter().map(|(_, place)| *place).collect();
    let mut tx = heap.begin().unwrap();
    heap.objects().filter(|(place, _)| !named.contains(place)).for_each(|(place, _)| tx.free(place).unwrap());
    tx.commit(Class::Process).unwrap();
    drop(heap);
    let refused = back_out(&store, "words");
    assert!(matches!(refused, Err(Error::NotTyped { .. })), "{refused:?}");
    assert!(Objects::<Second>::open(&store, "words").is_ok());
}

/// A program's own type that is not what it says: its values are pointers to nowhere.
#[derive(Default)]
#[repr(transparent)]
struct Broken(u64);

// SAFETY: none: that is what is to be noticed.
unsafe impl Recoverable for Broken {
    type Pointers = No;
    type Borrowed = Broken;
    const PADDED: bool = false;

    fn describe(_: &mut Types) -> String {
        "PBox<u64>".to_owned()
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word.
        unsafe { to.write(from.read()) }
    }

    unsafe fn load(_: Datum, to: *mut Self, _: &Loader<'_, '_>) {
        // SAFETY: the caller's word.
        unsafe { to.write(Broken(4096 + 8)) }
    }
}

// SAFETY: the value is stored.
unsafe impl<'id> caliburn::typed::Init<'id, Broken> for Broken {
    unsafe fn init(self, to: *mut Broken, _: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe { to.write(self) }
    }
}

#[test]
fn new_objects_that_are_not_whole_never_take_the_place_of_the_old() {
    #[derive(Recoverable, Default)]
    #[repr(C)]
    struct Boxes {
        boxes: PVec<PBox<u64>>,
    }

    #[derive(Recoverable, Default)]
    #[repr(C)]
    struct Brokens {
        boxes: PVec<Broken>,
        number: u64,
    }

    let (_dir, store) = store(Policy::Undo);
    let boxes = Objects::<Boxes>::open(&store, "boxes").unwrap();
    boxes.update(|mut root| root.fields().boxes.push(PBox::new(7u64))).unwrap();
    let objects = allocated(&boxes);
    drop(boxes);
    let refused = Objects::<Brokens>::migrate_fields(&store, "boxes", ON).map(drop);
    assert!(matches!(refused, Err(Error::NotTyped { .. })), "{refused:?}");
    let boxes = Objects::<Boxes>::open(&store, "boxes").unwrap();
    assert_eq!((*boxes.read().boxes[0], allocated(&boxes)), (7, objects));
}

#[test]
fn a_default_that_panics_leaves_the_old_objects_alone() {
    #[derive(Recoverable, Default)]
    #[repr(C)]
    struct Root {
        words: PVec<Word>,
    }

    mod old {
        use caliburn::{PString, PVec, Recoverable};

        #[derive(Recoverable, Default)]
        #[repr(C)]
        pub struct Root {
            pub words: PVec<Word>,
        }

        #[derive(Recoverable)]
        #[repr(C)]
        pub struct Word {
            pub text: PString,
        }
    }

    #[derive(Recoverable)]
    #[repr(C)]
    struct Word {
        text: PString,
        #[recoverable(default = "no number".parse::<u64>().expect("as planned"))]
        number: u64,
    }

    let (_dir, store) = store(Policy::Undo);
    let root = Objects::<old::Root>::open(&store, "words").unwrap();
    root.update(|mut root| root.fields().words.push(old::WordInit { text: "a" })).unwrap();
    let objects = allocated(&root);
    drop(root);
    let migrate = || Objects::<Root>::migrate_fields(&store, "words", ON).map(drop);
    assert!(catch_unwind(AssertUnwindSafe(migrate)).is_err());
    let root = Objects::<old::Root>::open(&store, "words").unwrap();
    assert_eq!((&*root.read().words[0].text, allocated(&root)), ("a", objects));
    assert!(root.unreached().unwrap().is_empty());
}
