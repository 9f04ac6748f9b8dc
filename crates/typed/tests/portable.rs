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
        // It was replaced, and is gone when it is named again.
        (
            &[
                first,
                "{'at':['texts'],'key':1,'value':{'=':'b'}}",
                "{'at':['texts'],'key':2,'value':{'#':1}}",
            ],
            "named before it is there",
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

/// Enums without a variant 0, or with one below it: the compiler says that there is none by a number that is not
/// above those of the variants.
mod told_by_few {
    use super::*;

    #[derive(Recoverable, Debug, Clone, Copy, PartialEq)]
    #[repr(u8)]
    pub enum From1 {
        Asset = 1,
        Debt = 2,
    }

    #[derive(Recoverable, Debug, Clone, Copy, PartialEq)]
    #[repr(i8)]
    pub enum Around0 {
        Below = -1,
        Above = 1,
    }

    #[derive(Recoverable, Debug, Clone, Copy, PartialEq)]
    #[repr(u16)]
    pub enum Wide {
        First = 0x0100,
        Second = 0x0101,
        Third = 0xFFFF,
    }

    #[derive(Recoverable, Default, Debug)]
    #[repr(C)]
    pub struct Account {
        pub name: PString,
        pub kind: Option<From1>,
        pub before: Option<Option<From1>>,
        pub sign: Option<Option<Around0>>,
        pub wide: Option<Option<Wide>>,
        pub truth: Option<Option<Option<bool>>>,
        pub letter: Option<Option<char>>,
        pub number: Option<std::num::NonZeroU16>,
        pub pair: Option<(u32, From1)>,
        pub many: Option<[Option<From1>; 3]>,
    }
}
use told_by_few::{Account, Around0, From1, Wide};

#[derive(Recoverable, Default, Debug)]
#[repr(C)]
struct Accounts {
    all: PVec<Option<Account>>,
}

/// All that an account can say of itself, by numbers.
fn account(number: usize, mut account: caliburn::Mut<'_, '_, Account>) {
    fn pick<T: Copy>(all: &[T], number: &mut usize) -> T {
        let one = all[*number % all.len()];
        *number /= all.len();
        one
    }
    let (from1, around0) = ([Some(From1::Asset), Some(From1::Debt), None], [Around0::Below, Around0::Above]);
    let mut fields = account.fields();
    let mut n = number;
    fields.name.push_str(&format!("account {number}"));
    fields.kind.set(pick(&from1, &mut n));
    fields.before.set(pick(&[None, Some(from1[0]), Some(from1[1]), Some(None)], &mut n));
    let signs = [None, Some(None), Some(Some(around0[0])), Some(Some(around0[1]))];
    fields.sign.set(pick(&signs, &mut n));
    let wide = [Wide::First, Wide::Second, Wide::Third].map(|wide| Some(Some(wide)));
    fields.wide.set(pick(&[wide[0], wide[1], wide[2], Some(None), None], &mut n));
    let truths = [Some(Some(Some(true))), Some(Some(Some(false))), Some(Some(None)), Some(None), None];
    fields.truth.set(pick(&truths, &mut n));
    fields.letter.set(pick(&[None, Some(None), Some(Some('\0')), Some(Some('\u{10FFFF}'))], &mut n));
    fields.number.set(pick(&[None, std::num::NonZeroU16::new(256), std::num::NonZeroU16::new(1)], &mut n));
    fields.pair.set(pick(&[None, Some((0, From1::Asset)), Some((7, From1::Debt))], &mut n));
    fields.many.set(pick(&[None, Some([None; 3]), Some([from1[0], None, from1[1]])], &mut n));
}

#[test]
fn what_an_option_holds_is_read_as_the_program_reads_it() {
    for policy in [Policy::Redo, Policy::Undo] {
        let (_dir, store) = store(policy);
        let accounts: Objects<Accounts> = Objects::open(&store, "accounts").unwrap();
        accounts
            .update(|mut root| {
                let mut all = root.fields().all;
                for number in 0..700 {
                    let made = number % 7 != 3;
                    all.push(made.then(Account::default));
                    if let Some(one) = all.at(number).as_mut() {
                        account(number * 7919, one);
                    }
                }
            })
            .unwrap();
        let text = |accounts: &Objects<Accounts>| format!("{:?}", accounts.read().all);
        let before = text(&accounts);
        assert!(
            accounts.unreached().unwrap().is_empty(),
            "a name that an account has is taken for unreached"
        );
        assert!(accounts.reclaim().unwrap().is_empty());
        assert_eq!(text(&accounts), before);
        for (i, format) in FORMATS.into_iter().enumerate() {
            let out = exported(&accounts, format);
            let copy =
                Objects::<Accounts>::import(&store, &format!("copy{i}"), format, &out[..], ON).unwrap();
            assert_eq!(text(&copy), before, "{format:?}");
        }
    }
}

#[derive(Recoverable, Debug)]
#[repr(u8)]
#[allow(dead_code)]
enum Shared {
    Pointers(u64, PString),
    Owner(PRc<Shared>, u64, u64, u64),
    Nothing,
}

#[derive(Recoverable, Default, Debug)]
#[repr(C)]
struct SharedRoot {
    all: PVec<PRc<Shared>>,
}

/// The inner value was made in the place of the outer one, whose numbers then went over its pointers.
#[test]
fn an_object_that_is_its_own_part_is_refused() {
    let (_dir, store) = store(Policy::Redo);
    let inner = r##"{"#":1,"=":{"Pointers":[5,"hello"]}}"##;
    for (i, inner) in [inner, r##"{"#":1}"##].into_iter().enumerate() {
        let of_root =
            exported(&Objects::<SharedRoot>::open(&store, &format!("empty{i}")).unwrap(), FORMATS[0]);
        let head = String::from_utf8(of_root).unwrap();
        let (first, rest) = head.split_once('\n').unwrap();
        let line = format!(
            r##"{{"at":["all"],"item":{{"#":1,"=":{{"Owner":[{inner},1311768467463790320,77,88]}}}}}}"##
        );
        let end = rest.lines().last().unwrap().replace(":0", ":1");
        let text = format!("{first}\n{line}\n{end}");
        let name = format!("made{i}");
        let refused =
            Objects::<SharedRoot>::import(&store, &name, FORMATS[0], text.as_bytes(), ON).unwrap_err();
        let told = refused.to_string();
        assert!(told.contains("there twice") || told.contains("before it is there"), "{told}");
    }
}

#[derive(Recoverable, Default, Debug)]
#[repr(C)]
struct Measures {
    all: PVec<f64>,
    small: PVec<f32>,
}

#[test]
fn floats_come_back_to_the_last_bit() {
    let (_dir, store) = store(Policy::Redo);
    let measures: Objects<Measures> = Objects::open(&store, "measures").unwrap();
    let bits = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left((i % 64) as u32);
    let values: Vec<f64> = (0..20_000).map(|i| f64::from_bits(bits(i))).filter(|v| !v.is_nan()).collect();
    measures
        .update(|mut root| {
            let mut fields = root.fields();
            fields.all.extend(values.iter().copied());
            fields.small.extend(values.iter().map(|value| *value as f32));
        })
        .unwrap();
    for (i, format) in FORMATS.into_iter().enumerate() {
        let out = exported(&measures, format);
        let copy = Objects::<Measures>::import(&store, &format!("copy{i}"), format, &out[..], ON).unwrap();
        let (copy, measures) = (copy.read(), measures.read());
        assert!(copy.all.iter().zip(&values).all(|(a, b)| a.to_bits() == b.to_bits()), "{format:?}");
        assert!(
            copy.small.iter().zip(&measures.small).all(|(a, b)| a.to_bits() == b.to_bits()),
            "{format:?}"
        );
    }
}

#[test]
fn numbers_that_a_float_cannot_hold_are_refused() {
    let (_dir, store) = store(Policy::Redo);
    let measures: Objects<Measures> = Objects::open(&store, "measures").unwrap();
    measures.update(|mut root| root.fields().small.push(1.5)).unwrap();
    let text = String::from_utf8(exported(&measures, FORMATS[0])).unwrap();
    for (i, (number, fits)) in
        [("1e300", false), ("-1e39", false), ("1e-300", false), ("0.0", true), ("-2e38", true)]
            .into_iter()
            .enumerate()
    {
        let text = text.replace("1.5", number);
        let made = Objects::<Measures>::import(&store, &format!("made{i}"), FORMATS[0], text.as_bytes(), ON);
        assert_eq!(made.is_ok(), fits, "{number}: {:?}", made.map(drop));
    }
}

#[derive(Recoverable, Default, Debug, Clone, Copy, PartialEq)]
#[repr(C)]
struct Unit;

#[derive(Recoverable, Default, Debug)]
#[repr(C)]
struct Units {
    units: PVec<Unit>,
    queue: caliburn::PVecDeque<Unit>,
    nothing: PVec<()>,
}

#[test]
fn values_without_bytes_come_back_in_their_number() {
    let (_dir, store) = store(Policy::Redo);
    let units: Objects<Units> = Objects::open(&store, "units").unwrap();
    units
        .update(|mut root| {
            let mut fields = root.fields();
            fields.units.resize_with(2000, || Unit);
            fields.queue.extend([Unit; 1500]);
            fields.nothing.resize_with(3000, || ());
        })
        .unwrap();
    for (i, format) in FORMATS.into_iter().enumerate() {
        let out = exported(&units, format);
        let copy = Objects::<Units>::import(&store, &format!("copy{i}"), format, &out[..], ON).unwrap();
        let copy = copy.read();
        assert_eq!((copy.units.len(), copy.queue.len(), copy.nothing.len()), (2000, 1500, 3000));
    }
}

mod names {
    use super::*;

    #[derive(Recoverable, Debug, Clone, Copy, PartialEq)]
    #[repr(u8)]
    pub enum Option<T> {
        Just(T),
        Not,
    }

    #[derive(Recoverable, Default, Debug, Clone, Copy, PartialEq)]
    #[repr(C)]
    pub struct Phantomdata {
        pub value: u32,
    }

    #[derive(Recoverable, Default, Debug, Clone, Copy, PartialEq)]
    #[repr(C)]
    pub struct Separated<const BY: char> {
        pub value: u32,
    }

    #[derive(Recoverable, Default, Debug)]
    #[repr(C)]
    pub struct Names {
        pub own: PVec<Option<u32>>,
        pub theirs: PVec<std::option::Option<u32>>,
        pub phantom: PVec<std::option::Option<Phantomdata>>,
        pub less: PVec<Separated<'<'>>,
        pub comma: PVec<Separated<','>>,
    }
}

#[test]
fn names_of_programs_are_not_taken_for_those_of_the_language() {
    let (_dir, store) = store(Policy::Redo);
    let all: Objects<names::Names> = Objects::open(&store, "names").unwrap();
    all.update(|mut root| {
        let mut fields = root.fields();
        fields.own.extend([names::Option::Just(5), names::Option::Not]);
        fields.theirs.extend([Some(6), None::<u32>]);
        fields.phantom.extend([Some(names::Phantomdata { value: 7 }), None::<names::Phantomdata>]);
        fields.less.push(names::Separated { value: 8 });
        fields.comma.push(names::Separated { value: 9 });
    })
    .unwrap();
    assert!(all.unreached().unwrap().is_empty());
    let before = format!("{:?}", all.read());
    for (i, format) in FORMATS.into_iter().enumerate() {
        let out = exported(&all, format);
        let copy =
            Objects::<names::Names>::import(&store, &format!("copy{i}"), format, &out[..], ON).unwrap();
        assert_eq!(format!("{:?}", copy.read()), before, "{format:?}");
    }
}

#[derive(Recoverable, Debug)]
#[repr(C)]
struct Large {
    filling: [u8; 4096],
    next: Option<PBox<Option<Large>>>,
}

#[derive(Recoverable, Default, Debug)]
#[repr(C)]
struct LargeRoot {
    first: Option<PBox<Option<Large>>>,
}

/// What is in options in each other takes no stack for its size.
#[test]
fn large_values_in_each_other_are_made() {
    let (_dir, store) = store(Policy::Redo);
    let out = exported(&Objects::<LargeRoot>::open(&store, "empty").unwrap(), FORMATS[0]);
    let head = String::from_utf8(out).unwrap();
    let filling = format!("[{}]", vec!["1"; 4096].join(","));
    let mut value = "null".to_owned();
    for _ in 0..30 {
        value = format!(r#"[{{"filling":{filling},"next":{value}}}]"#);
    }
    let mut lines: Vec<String> = head.lines().map(str::to_owned).collect();
    let at = lines.iter().position(|line| line.contains("\"first\"")).unwrap();
    lines[at] = format!(r#"{{"at":["first"],"is":{value}}}"#);
    let text = lines.join("\n") + "\n";
    let made = Objects::<LargeRoot>::import(&store, "made", FORMATS[0], text.as_bytes(), ON).unwrap();
    let (mut depth, view) = (0, made.read());
    let mut next = &view.first;
    while let Some(large) = next.as_ref().and_then(|to| to.as_ref()) {
        (next, depth) = (&large.next, depth + 1);
    }
    assert_eq!(depth, 30);
}
