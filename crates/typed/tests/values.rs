//! What values are when they were written down and brought back: as the program reads them, and to the last bit.

mod support;

use caliburn::typed::Format;
use caliburn::{Objects, PBox, PRc, PString, PVec, Policy, Recoverable};
use std::ops::ControlFlow;
use support::store;

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
    for (i, (number, fits)) in [
        ("1e300", false),
        ("-1e39", false),
        ("1e-300", false),
        ("0.0", true),
        ("-2e38", true),
        // Halves of the unit in the last place, and one above.
        ("16777216", true),
        ("16777217", false),
        ("0.1", true),
        ("0.10", true),
        ("1e-1", true),
        ("0.123456789", false),
    ]
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

/// The tag of an enum is of the language's type, whatever the program calls by that name.
mod shadowing {
    use caliburn::Recoverable;

    #[allow(non_camel_case_types, dead_code, reason = "what a program may do")]
    type u8 = u64;

    #[derive(Recoverable, Debug, PartialEq)]
    #[repr(u8)]
    pub enum Kind {
        Of(std::primitive::u8, std::primitive::u8),
        Nothing,
    }
}

#[test]
fn a_tag_takes_its_own_bytes_alone() {
    use shadowing::Kind;
    let (_dir, store) = store(Policy::Undo);
    let kinds: Objects<PVec<Kind>> = Objects::open(&store, "kinds").unwrap();
    kinds
        .update(|mut kinds| {
            kinds.extend([Kind::Of(1, 2), Kind::Nothing, Kind::Of(3, 4)]);
            kinds.at(1).set(Kind::Of(5, 6));
        })
        .unwrap();
    assert_eq!(kinds.read()[..], [Kind::Of(1, 2), Kind::Of(5, 6), Kind::Of(3, 4)]);
}

/// A default is what its own function returns, whatever it does there.
#[test]
fn the_default_of_a_field_may_be_any_expression() {
    mod old {
        use caliburn::{PVec, Recoverable};

        #[derive(Recoverable, Default)]
        #[repr(C)]
        pub struct Root<T> {
            pub list: PVec<Item<T>>,
        }

        #[derive(Recoverable)]
        #[repr(C)]
        pub struct Item<T> {
            pub value: T,
        }
    }

    #[derive(Recoverable, Default)]
    #[repr(C)]
    struct Root<T> {
        list: PVec<Item<T>>,
    }

    #[derive(Recoverable)]
    #[repr(C)]
    struct Item<T> {
        #[recoverable(default = return 5u64)]
        early: u64,
        #[recoverable(default = Self::LIMIT)]
        limit: u32,
        #[recoverable(default = 'inner: { break 'inner "text" })]
        text: PString,
        #[recoverable(default = { let digit: u8 = "7".parse().ok()?; Some(digit + 1) })]
        asked: Option<u8>,
        #[recoverable(default = PVec::<T>::new())]
        more: PVec<T>,
        value: T,
    }

    impl<T> Item<T> {
        const LIMIT: u32 = 9;
    }

    let (_dir, store) = store(Policy::Undo);
    let before: Objects<old::Root<u16>> = Objects::open(&store, "root").unwrap();
    before.update(|mut root| root.fields().list.push(old::Item { value: 3 })).unwrap();
    drop(before);
    let root = Objects::<Root<u16>>::migrate_fields(&store, "root", ON).unwrap();
    let view = root.read();
    let item = &view.list[0];
    assert_eq!((item.early, item.limit, &*item.text), (5, 9, "text"));
    assert_eq!((item.asked, item.more.len(), item.value), (Some(8), 0, 3));
}
