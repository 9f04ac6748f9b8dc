//! Objects written down and brought back, whole or not at all.

mod support;
#[path = "support/workload.rs"]
mod workload;

use caliburn::typed::Format;
use caliburn::{
    Error, Objects, PBTreeMap, PBox, PHashMap, PRc, PSlotMap, PString, PVec, PWeak, Policy, Recoverable,
    SlotKey, Store,
};
use std::io::Read;
use std::ops::ControlFlow;
use support::{allocated, store};
use workload::{Root, of_root, step, steps};

const FORMATS: [Format; 2] = [Format::JsonLines, Format::Cbor];
const ON: fn(u64) -> ControlFlow<()> = |_| ControlFlow::Continue(());

fn exported<R>(objects: &Objects<R>, format: Format) -> Vec<u8>
where
    R: Recoverable + Default + for<'id> caliburn::typed::Init<'id, R>,
{
    let mut out = Vec::new();
    objects.export(format, &mut out, ON).unwrap();
    out
}

#[test]
fn all_collections_come_back_in_both_forms() {
    for (policy, format) in [(Policy::Redo, FORMATS[0]), (Policy::Undo, FORMATS[1])] {
        let (_dir, store) = store(policy);
        let world: Objects<Root> = Objects::open(&store, "world").unwrap();
        for round in 0..4u64 {
            for number in round * 60..(round + 1) * 60 {
                world
                    .update(|mut root| {
                        // No long chains of boxes.
                        steps(number).filter(|(kind, _)| *kind != 8).for_each(|s| step(&mut root, s));
                        *root.fields().done = number + 1;
                    })
                    .unwrap();
            }
            let out = exported(&world, format);
            let name = format!("copy{round}");
            let mut told = 0;
            let copy = Objects::<Root>::import(&store, &name, format, &out[..], |done| {
                told = done;
                ControlFlow::Continue(())
            });
            let copy = copy.unwrap();
            assert!(told > 0);
            assert!(of_root(&copy.read()) == of_root(&world.read()), "{format:?}");
            assert!(copy.unreached().unwrap().is_empty());
            // Written down again it is the same, but for the numbers of objects and the order of hash maps.
            assert_eq!(exported(&copy, format).len().abs_diff(out.len()) / 100, 0);
        }
    }
}

type Flags = PVec<(bool, Option<u8>)>;

#[derive(Recoverable, Default)]
#[repr(C)]
struct Odd {
    largest: u128,
    least: i128,
    reals: [f64; 6],
    narrow: [f32; 3],
    letter: char,
    text: PString,
    nested: PVec<Option<Option<PBox<()>>>>,
    pairs: PBTreeMap<(u8, i64), Flags>,
    shared: PVec<PRc<PString>>,
    weak: PVec<PWeak<PString>>,
    slots: PSlotMap<SlotKey<u8>>,
    map_of_numbers: PHashMap<PString, PRc<PHashMap<PString, u64>>>,
}

fn odd(store: &Store) -> Objects<Odd> {
    let odd: Objects<Odd> = Objects::open(store, "odd").unwrap();
    odd.update(|mut root| {
        let tx = root.tx();
        let mut root = root.fields();
        (*root.largest, *root.least) = (u128::MAX, i128::MIN);
        root.reals.set([f64::NAN, f64::INFINITY, -0.0, 1e300, 0.1, f64::MIN_POSITIVE]);
        root.narrow.set([0.1, f32::MAX, -7.0]);
        root.letter.set('\u{1F600}');
        root.text.set("\"quoted\",\nand \u{0} more");
        root.nested.push(None::<Option<PBox<()>>>);
        root.nested.push(Some(None::<PBox<()>>));
        root.nested.push(Some(Some(PBox::new(()))));
        root.pairs.insert((1, -1), vec![(true, None), (false, Some(3))]);
        root.shared.push(PRc::new("one"));
        let again = PRc::share(&root.shared[0], tx);
        root.shared.push(again);
        for of in [0, 0] {
            let weak = PRc::downgrade(&root.shared[of], tx);
            root.weak.push(weak);
        }
        root.map_of_numbers.insert(
            "#",
            PRc::new(
                [("#".to_owned(), 1), ("=".to_owned(), 2)]
                    .into_iter()
                    .collect::<std::collections::HashMap<_, _>>(),
            ),
        );
    })
    .unwrap();
    odd
}

#[test]
fn odd_values_come_back() {
    for format in FORMATS {
        let (_dir, store) = store(Policy::Undo);
        let out = exported(&odd(&store), format);
        let copy = Objects::<Odd>::import(&store, "copy", format, &out[..], ON).unwrap();
        let root = copy.read();
        assert_eq!((root.largest, root.least, root.letter), (u128::MAX, i128::MIN, '\u{1F600}'));
        assert!(root.reals[0].is_nan() && root.reals[2].is_sign_negative());
        assert_eq!(root.reals[1..], [f64::INFINITY, 0.0, 1e300, 0.1, f64::MIN_POSITIVE]);
        assert_eq!(root.narrow, [0.1, f32::MAX, -7.0]);
        assert_eq!(&*root.text, "\"quoted\",\nand \u{0} more");
        let nested: Vec<_> = root.nested.iter().map(|v| v.as_ref().map(|v| v.is_some())).collect();
        assert_eq!(nested, [None, Some(false), Some(true)]);
        assert_eq!(root.pairs[&(1, -1)].to_vec(), [(true, None), (false, Some(3))]);
        assert!(PRc::ptr_eq(&root.shared[0], &root.shared[1]));
        assert_eq!(root.weak(&root.weak[1]).map(|text| text.to_string()), Some("one".to_owned()));
        assert_eq!(root.map_of_numbers["#"]["="], 2);
        drop(root);
        assert!(copy.unreached().unwrap().is_empty());
    }
}

type Words = PHashMap<PString, u64>;

/// Objects of which somebody wrote the text.
fn import(store: &Store, text: &str) -> Result<Objects<Words>, Error> {
    let text = text.replace('\'', "\"");
    Objects::import(store, "words", Format::JsonLines, text.as_bytes(), ON)
}

#[test]
fn what_is_not_whole_is_refused_with_its_line_and_leaves_nothing() {
    let (_dir, store) = store(Policy::Redo);
    let head = "{'caliburn':1}\n";
    let one = "{'key':'a','value':1}\n";
    for (text, why) in [
        (String::new(), "line 1: there is nothing"),
        (one.to_owned(), "line 1: it does not begin as"),
        ("{'caliburn':2}\n".to_owned(), "line 1: its version"),
        (head.to_owned(), "line 2: it ends before its end"),
        (format!("{head}{one}"), "line 3: it ends before its end"),
        (format!("{head}{one}{{'end':2}}\n"), "line 3: 2 pieces were written, 1 are there"),
        (format!("{head}{one}{{'key':'b','val"), "line 3: "),
        (format!("{head}{{'key':'a'}}\n"), "line 2: it is no piece"),
        (format!("{head}{{'kye':'a','value':1}}\n"), "line 2: \"kye\" is not known"),
        (format!("{head}17\n"), "line 2: it is no object"),
        (format!("{head}{{'item':1}}\n{{'end':1}}"), "one more value for what is no collection"),
        (format!("{head}{{'key':'a','value':-1}}\n{{'end':1}}"), "-1 is no u64"),
        (format!("{head}{{'key':7,'value':1}}\n{{'end':1}}"), "a number where a text should be"),
        (format!("{head}{{'at':['x'],'is':1}}\n{{'end':1}}"), "there is nothing by the name of x"),
        (format!("{head}{{'is':{}1", "[".repeat(100_000)), "more than 500 levels"),
    ] {
        let refused = import(&store, &text).unwrap_err().to_string();
        assert!(refused.contains(why), "{text:.100}: {refused}");
        // Nothing is there: what comes next is as if it was the first.
        let words = import(&store, &format!("{head}{one}{{'end':1}}\n")).unwrap();
        assert_eq!((words.read().len(), words.read().get("a")), (1, Some(&1)));
        assert_eq!(allocated(&words), 5);
        words
            .transact(|mut words| {
                words.clear();
                Ok::<(), Error>(())
            })
            .unwrap();
        drop(words);
        let full = import(&store, head).unwrap_err();
        assert!(full.to_string().contains("objects in it already"), "{full}");
        let heap = caliburn::heap::Heap::open(&store, "words").unwrap();
        let mut tx = heap.begin().unwrap();
        heap.objects().for_each(|(place, _)| tx.free(place).unwrap());
        heap.roots().iter().for_each(|(name, _)| tx.set_root(name, None).unwrap());
        tx.commit(caliburn::Class::Process).unwrap();
    }
}

/// Numbers of objects that somebody made up lead nowhere.
#[test]
fn made_up_objects_are_refused_or_made_and_nothing_of_another_type_is_shared() {
    #[derive(Recoverable, Default)]
    #[repr(C)]
    struct Two {
        texts: PHashMap<u8, PRc<PString>>,
        numbers: PVec<PRc<u64>>,
        weak: PVec<PWeak<PString>>,
    }
    let (_dir, store) = store(Policy::Undo);
    let import = |name: &str, lines: &[&str]| {
        let all: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let text = format!("{{'caliburn':1}}\n{all}{{'end':{}}}\n", lines.len()).replace('\'', "\"");
        Objects::<Two>::import(&store, name, Format::JsonLines, text.as_bytes(), ON)
    };
    let first = "{'at':['texts'],'key':1,'value':{'#':1,'=':'text'}}";
    for (i, (lines, why)) in [
        (&[first, "{'at':['numbers'],'item':{'#':1}}"][..], "of another type"),
        (&["{'at':['texts'],'key':1,'value':{'#':9}}"], "named before it is there"),
        (&[first, first], "is there twice"),
        (&["{'at':['texts'],'key':1,'value':{}}"], "without a number or a value"),
        // The second would replace the first.
        (
            &[
                first,
                "{'at':['texts'],'key':1,'value':{'=':'b'}}",
                "{'at':['texts'],'key':2,'value':{'#':1}}",
            ],
            "a key is there twice",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let refused = import(&format!("refused{i}"), lines).unwrap_err().to_string();
        assert!(refused.contains(why), "{lines:?}: {refused}");
    }
    // A weak pointer to what never comes; and to what comes later.
    let weak = [
        "{'at':['weak'],'item':{'#':5}}",
        "{'at':['weak'],'item':{'#':1}}",
        first,
        "{'at':['weak'],'item':null}",
    ];
    let two = import("weak", &weak).unwrap();
    let view = two.read();
    let seen: Vec<_> = view.weak.iter().map(|weak| view.weak(weak).map(|text| text.to_string())).collect();
    assert_eq!(seen, [None, Some("text".to_owned()), None]);
    drop(view);
    assert!(two.unreached().unwrap().is_empty(), "{:?}", two.unreached());
    two.update(|mut two| {
        two.fields().weak.clear();
        two.fields().texts.clear()
    })
    .unwrap();
    assert!(two.unreached().unwrap().is_empty());
}

/// Ends after so many bytes by an error, as a pipe whose writer has died.
struct Cut<'t>(&'t [u8]);

impl Read for Cut<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(to)? {
            0 => Err(std::io::ErrorKind::BrokenPipe.into()),
            read => Ok(read),
        }
    }
}

#[test]
fn an_import_that_is_cut_short_is_done_again() {
    for format in FORMATS {
        let (_dir, store) = store(Policy::Redo);
        let words: Objects<Words> = Objects::open(&store, "words").unwrap();
        words
            .update(|mut words| (0..2000u64).for_each(|i| _ = words.insert(format!("word {i}"), i)))
            .unwrap();
        let out = exported(&words, format);
        let cut = std::io::BufReader::new(Cut(&out[..out.len() / 2]));
        let refused = Objects::<Words>::import(&store, "copy", format, cut, ON).unwrap_err();
        assert!(matches!(refused, Error::Portable { .. }), "{refused}");
        let ended = Objects::<Words>::import(&store, "copy", format, &out[..], |done| {
            if done > 700 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(ended, Err(Error::Interrupted)));
        let copy = Objects::<Words>::import(&store, "copy", format, &out[..], ON).unwrap();
        assert!(*copy.read() == *words.read());
        let ended = words.export(format, Vec::new(), |done| {
            if done > 700 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(ended, Err(Error::Interrupted)));
    }
}

#[test]
fn a_killed_import_leaves_a_heap_that_only_an_import_opens() {
    let (dir, store) = store(Policy::Undo);
    let words: Objects<Words> = Objects::open(&store, "words").unwrap();
    words.update(|mut words| (0..2000u64).for_each(|i| _ = words.insert(format!("word {i}"), i))).unwrap();
    let out = exported(&words, Format::JsonLines);
    drop((words, store));
    let path = dir.path().join("store");
    // As a killed process leaves it: nothing runs any more.
    let child = std::thread::spawn({
        let (path, out) = (path.clone(), out.clone());
        move || {
            let store = Store::options().open(path).unwrap();
            let panics = |done| if done > 700 { panic!("the end") } else { ControlFlow::Continue(()) };
            drop(Objects::<Words>::import(&store, "copy", Format::JsonLines, &out[..], panics));
        }
    });
    assert!(child.join().is_err());
    let store = Store::options().open(&path).unwrap();
    let refused = Objects::<Words>::open(&store, "copy").unwrap_err();
    assert!(refused.to_string().contains("import it again"), "{refused}");
    let copy = Objects::<Words>::import(&store, "copy", Format::JsonLines, &out[..], ON).unwrap();
    assert_eq!(copy.read().len(), 2000);
    assert!(copy.unreached().unwrap().is_empty());
}
