//! The layouts of the types in a heap, as text: recorded with the first opening, compared at every other.
//!
//! ```text
//! caliburn types 2
//! hashing 8d3a41c29f0e7b56
//! root Bank
//! struct Bank 40 8
//!   accounts 0 PHashMap<PString, Account>
//!   transfers 32 u64
//! enum Kind 16 8 u8
//!   Open 0
//!     0 8 i64
//!   Closed 1
//! option Option<Kind> 16 8 0/0/02
//!   0 0 Kind
//! ```
//!
//! After the name of a type its size and alignment in bytes, and the type of an enum's tag; after the name of a
//! field its offset and type; after that of a variant its tag. An option is told to be none by one number: its
//! tag, or one in its value. `A/B/C`: byte A is in that number; of a none all bytes are 0 but for those of C, in
//! hexadecimal, which begin at B. The types of the language and of this crate are
//! known by their names. Two types of one name are told apart by a number behind it, and so is one that is
//! called as one of those is.

use crate::value::recoverable::Recoverable;
use caliburn_os::simulated::unless;
use std::any::TypeId;
use std::fmt::Write;

/// First line of a record.
pub(crate) const HEADER: &str = "caliburn types 2";

/// The types that a root is made of.
#[derive(Debug, Default)]
pub struct Types {
    defined: Vec<Defined>,
}

#[derive(Debug)]
struct Defined {
    id: TypeId,
    /// As it calls itself, with the names of its parameters.
    called: (String, String),
    name: String,
    text: String,
    said: Said,
}

/// What a program says of a type beside its layout: how its parts are made of what older types had. It is in no
/// record.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// Of the fields of a struct or a variant, in their order.
    pub fields: Vec<SaidField>,
    /// Of an enum's variants: the names that each has and had, and its fields.
    pub variants: Vec<(Vec<String>, Said)>,
    /// Fields, or an enum's variants, that older types had, and that may be dropped.
    pub gone: Vec<String>,
}

/// What is said of a field.
#[derive(Debug)]
pub(crate) struct SaidField {
    /// The name that it has, and those that it had.
    pub names: Vec<String>,
    /// Whether it has a default.
    pub default: bool,
}

/// Names of the types of the language and of this crate, which no other type has without a number.
const KNOWN: [&str; 41] = [
    "u8",
    "u16",
    "u32",
    "u64",
    "u128",
    "i8",
    "i16",
    "i32",
    "i64",
    "i128",
    "f32",
    "f64",
    "bool",
    "char",
    "Option",
    "PhantomData",
    "NonZeroU8",
    "NonZeroU16",
    "NonZeroU32",
    "NonZeroU64",
    "NonZeroU128",
    "NonZeroI8",
    "NonZeroI16",
    "NonZeroI32",
    "NonZeroI64",
    "NonZeroI128",
    "PBox",
    "PRc",
    "PWeak",
    "PVec",
    "PVecDeque",
    "PString",
    "PHashMap",
    "PHashSet",
    "PBTreeMap",
    "PBTreeSet",
    "PSlotMap",
    "SlotKey",
    "PLog",
    "usize",
    "isize",
];

/// The layout of a type, being written down.
#[derive(Debug)]
pub struct Definition<'a> {
    types: &'a mut Types,
    text: String,
    said: Said,
}

impl Types {
    /// The record of a root and all it is made of.
    pub(crate) fn record<R: Recoverable>() -> String {
        Types::of::<R>().1
    }

    /// The types of a root, and their record.
    pub(crate) fn of<R: Recoverable>() -> (Types, String) {
        let mut types = Types::default();
        let root = types.name_of::<R>();
        let mut text = format!("{HEADER}\nhashing {:016x}\nroot {root}\n", crate::hash::fingerprint());
        types.defined.iter().for_each(|defined| text.push_str(&defined.text));
        (types, text)
    }

    /// What is said of the type that is called so in the record.
    pub(crate) fn said(&self, name: &str) -> Option<&Said> {
        self.defined.iter().find(|defined| defined.name == name).map(|defined| &defined.said)
    }

    /// A constant among the parameters of a type, as one word: whoever reads the record need not know of characters
    /// that stand for themselves.
    pub fn constant(value: &impl std::fmt::Debug) -> String {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        let word =
            |letter: char| if plain(letter) { letter.to_string() } else { format!("u{:x}", letter as u32) };
        format!("{value:?}").chars().map(word).collect()
    }

    /// The name of a type, whose layout is noted.
    pub fn name_of<T: Recoverable>(&mut self) -> String {
        T::describe(self)
    }

    /// Notes the layout of a struct or an enum (`what`, with what follows its size), if that was not done; its
    /// name in the record. `parameters`: as they are written behind the name, or nothing.
    pub fn define<T: Recoverable>(
        &mut self,
        what: &str,
        base: &str,
        parameters: &str,
        body: impl FnOnce(&mut Definition<'_>),
    ) -> String {
        let id = TypeId::of::<T>();
        if let Some(defined) = self.defined.iter().find(|defined| defined.id == id) {
            return defined.name.clone();
        }
        let called = (base.to_owned(), parameters.to_owned());
        let (kind, rest) = what.split_once(' ').unwrap_or((what, ""));
        // Ours are called what they are called everywhere.
        let ours = ["option", "tuple"].contains(&kind);
        let others = self.defined.iter().filter(|defined| !ours && defined.called == called).count();
        let number = 1 + others + usize::from(!ours && unless("typed-names-shared", KNOWN.contains(&base)));
        let name =
            if number == 1 { format!("{base}{parameters}") } else { format!("{base}'{number}{parameters}") };
        // Before the fields: a type may be reached from itself.
        let at = self.defined.len();
        let called = if ours { Default::default() } else { called };
        self.defined.push(Defined {
            id,
            called,
            name: name.clone(),
            text: String::new(),
            said: Said::default(),
        });
        let text = format!("{kind} {name} {} {} {rest}", size_of::<T>(), align_of::<T>());
        let text = format!("{}\n", text.trim_end());
        let mut definition = Definition { types: self, text, said: Said::default() };
        body(&mut definition);
        let (text, said) = (definition.text, definition.said);
        (self.defined[at].text, self.defined[at].said) = (text, said);
        name
    }

    /// Notes where the compiler has put the value of an option, and how it says that there is none.
    pub(crate) fn note_option<T: Recoverable>(
        &mut self,
        inner: &str,
        (told_at, number_at, number): (usize, usize, Vec<u8>),
    ) {
        let number: String = number.iter().map(|byte| format!("{byte:02x}")).collect();
        let what = format!("option {told_at}/{number_at}/{number}");
        self.define::<Option<T>>(&what, "Option", &format!("<{inner}>"), |definition| {
            definition.line(&format!("0 {} {inner}", size_of::<Option<T>>() - size_of::<T>()));
        });
    }

    /// Notes where the compiler has put the fields of a tuple.
    pub(crate) fn note_tuple<T: Recoverable>(&mut self, names: &[String], offsets: &[usize]) -> String {
        let comma = if names.len() == 1 { "," } else { "" };
        self.define::<T>("tuple", "", &format!("({}{comma})", names.join(", ")), |definition| {
            for (i, (name, offset)) in names.iter().zip(offsets).enumerate() {
                definition.line(&format!("{i} {offset} {name}"));
            }
        })
    }
}

impl Definition<'_> {
    fn line(&mut self, text: &str) {
        writeln!(self.text, "  {text}").expect("a string takes all");
    }

    /// A field of a struct.
    pub fn field<T: Recoverable>(&mut self, name: &str, offset: usize) {
        let of = self.types.name_of::<T>();
        self.line(&format!("{name} {offset} {of}"));
        self.said().fields.push(SaidField { names: vec![name.to_owned()], default: false });
    }

    /// What is said of the variant that came last, or of the whole.
    fn said(&mut self) -> &mut Said {
        match self.said.variants.is_empty() {
            true => &mut self.said,
            false => &mut self.said.variants.last_mut().expect("there is one").1,
        }
    }

    /// Older names of the field that came last, and whether it has a default.
    pub fn field_was(&mut self, names: &[&str], default: bool) {
        if let Some(field) = self.said().fields.last_mut() {
            field.names.extend(names.iter().map(|name| (*name).to_owned()));
            field.default = default;
        }
    }

    /// Older names of the variant that came last.
    pub fn variant_was(&mut self, names: &[&str]) {
        if let Some((all, _)) = self.said.variants.last_mut() {
            all.extend(names.iter().map(|name| (*name).to_owned()));
        }
    }

    /// Names of fields that the variant that came last had; before the first variant, of what the type had.
    pub fn gone(&mut self, names: &[&str]) {
        self.said().gone.extend(names.iter().map(|name| (*name).to_owned()));
    }

    /// A variant of an enum, whose fields come next.
    pub fn variant(&mut self, name: &str, tag: u64) {
        self.line(&format!("{name} {tag}"));
        self.said.variants.push((vec![name.to_owned()], Said::default()));
    }

    /// A field of that variant.
    pub fn variant_field<T: Recoverable>(&mut self, name: &str, offset: usize) {
        let of = self.types.name_of::<T>();
        self.line(&format!("  {name} {offset} {of}"));
        self.said().fields.push(SaidField { names: vec![name.to_owned()], default: false });
    }
}

/// What differs between two records, line by line: `-` for what the store has, `+` for what the program has,
/// with the heading of each type that differs.
pub(crate) fn difference(store: &str, program: &str) -> String {
    let (store, program): (Vec<&str>, Vec<&str>) = (store.lines().collect(), program.lines().collect());
    // Longest common subsequence; records have some hundred lines.
    let mut longest = vec![vec![0u32; program.len() + 1]; store.len() + 1];
    for i in (0..store.len()).rev() {
        for j in (0..program.len()).rev() {
            longest[i][j] = match store[i] == program[j] {
                true => longest[i + 1][j + 1] + 1,
                false => longest[i + 1][j].max(longest[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut heading, mut text) = (0, 0, None, String::new());
    while i < store.len() || j < program.len() {
        let both = i < store.len() && j < program.len();
        if both && store[i] == program[j] {
            if !store[i].starts_with(' ') {
                heading = Some(store[i]);
            }
            (i, j) = (i + 1, j + 1);
            continue;
        }
        let from_store = j == program.len() || i < store.len() && longest[i + 1][j] >= longest[i][j + 1];
        let (sign, line) = if from_store { ('-', store[i]) } else { ('+', program[j]) };
        match heading.take() {
            Some(heading) if line.starts_with(' ') => {
                writeln!(text, "  {heading}").expect("a string takes all")
            }
            _ => {}
        }
        writeln!(text, "{sign} {line}").expect("a string takes all");
        if from_store { i += 1 } else { j += 1 }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_the_type_and_the_fields() {
        let store = "root A\nstruct A 16 8\n  x 0 u64\n  y 8 u64\nstruct B 8 8\n  z 0 u64\n";
        let program = "root A\nstruct A 16 8\n  x 0 u64\n  y 8 i64\nstruct B 8 8\n  z 0 u64\n";
        assert_eq!(difference(store, program), "  struct A 16 8\n-   y 8 u64\n+   y 8 i64\n");
        assert_eq!(difference(store, store), "");
        assert_eq!(difference("", "a\n"), "+ a\n");
    }

    #[test]
    fn a_record_lists_what_the_root_is_made_of() {
        let text = Types::record::<(u64, [Option<u32>; 2], (u8,))>();
        assert!(text.starts_with("caliburn types 2\nhashing "), "{text}");
        let text = text.split_once("\nroot ").unwrap().1;
        let wanted = "(u64, [Option<u32>; 2], (u8,))\noption Option<u32> 8 4 0/0/\n  0 4 u32\ntuple (u8,) 1 1\n  0 0 u8\n";
        assert!(text.starts_with(wanted), "{text}");
        assert!(text.contains("tuple (u64, [Option<u32>; 2], (u8,)) 32 8\n"), "{text}");
    }
}
