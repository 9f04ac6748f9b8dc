//! What a migration by the names of fields would do, found by comparing the types alone: every field that the store
//! has is taken by one of the program's, or is declared gone, or would be lost.
//!
//! The rules are those by which values are made ([`Loader`](crate::Loader)): boxes and options around a value don't
//! matter, collections are compared by what is in them, fields and variants go by their names.

use crate::error::Error;
use crate::pieces::{DEEPEST, LeftOut, Pieces};
use crate::show::reader::Reader;
use crate::show::record::{Field, Record, Type, Variant};
use crate::value::layout::{Said, SaidField, Types};
use caliburn_heap::{Heap, Place};
use caliburn_os::simulated::planted;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write};
use std::ptr;

/// What becomes of a field or a variant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// A part of this name and type takes it.
    Moved {
        /// Its name.
        to: String,
        /// Its type.
        of: String,
    },
    /// It is declared gone.
    Dropped,
    /// It is new, and is what it is by default.
    Defaulted,
    /// It is new, and nothing says what it is: the migration is refused when there is a value that it is part of.
    Missing,
    /// Nothing takes it: the migration is refused. Of a variant: if there are values of it.
    Untaken,
}

/// A field or a variant, where it is met first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Planned {
    /// Where it is, by the names that the store has: `accounts{}.money`.
    pub path: String,
    /// The type that it is in.
    pub within: String,
    /// Its type; of a variant nothing.
    pub of: String,
    /// Of a variant that nothing takes, or that is declared gone: how many values of it there are.
    pub values: Option<u64>,
    /// What becomes of it.
    pub fate: Fate,
}

/// What a migration by the names of fields would do ([`Objects::plan_fields`](crate::Objects::plan_fields)). It
/// displays as a line for each field and variant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    parts: Vec<Planned>,
}

impl Plan {
    /// All fields and variants, each where it is met first.
    pub fn parts(&self) -> &[Planned] {
        &self.parts
    }

    /// Those that would be lost.
    pub fn lost(&self) -> impl Iterator<Item = &Planned> {
        self.parts.iter().filter(|part| part.fate == Fate::Untaken && part.values != Some(0))
    }

    /// Refuses to lose anything.
    pub(crate) fn accept(&self, heap: &Heap) -> Result<(), Error> {
        let mut lost = String::new();
        self.lost().for_each(|part| writeln!(lost, "  {part}").expect("a string takes all"));
        if lost.is_empty() || planted("losses-accepted") {
            return Ok(());
        }
        Err(Error::WouldLose { heap: heap.name().to_owned(), lost })
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Planned { path, within, of, values, fate } = self;
        let what = match fate {
            Fate::Moved { .. } => "moved",
            Fate::Dropped => "dropped",
            Fate::Defaulted => "by default",
            Fate::Missing => "missing",
            Fate::Untaken => "lost",
        };
        write!(f, "{what:<10} {path}")?;
        if !of.is_empty() {
            write!(f, ": {of}")?;
        }
        write!(f, " of {within}")?;
        match (fate, values) {
            (Fate::Moved { to, of }, _) if of.is_empty() => write!(f, " -> {to}"),
            (Fate::Moved { to, of }, _) => write!(f, " -> {to}: {of}"),
            (_, Some(values)) => write!(f, ", {values} values"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().try_for_each(|part| writeln!(f, "{part}"))
    }
}

/// A part of a type of the store's: the type, and the name of a field or a variant.
type Part = (String, String);

/// The plan for a heap, and what its migration leaves out.
pub(crate) struct Planning {
    pub plan: Plan,
    /// Declared gone wherever the type is met.
    gone: HashSet<Part>,
}

impl Planning {
    /// Whether a part is left out when the old objects are taken apart.
    pub fn left_out(&self) -> Box<LeftOut<'_>> {
        Box::new(|of: &Type, name: &str| !self.gone.is_empty() && self.gone.contains(&part(&of.text, name)))
    }
}

/// For the objects at an anchor, of the types that `old` records, and the program's types, whose record is `new`.
pub(crate) fn plan(
    heap: &Heap,
    anchor: Place,
    old: &Record,
    (types, new): (&Types, &Record),
) -> Result<Planning, Error> {
    let mut matching = Matching {
        old,
        new,
        types,
        met: HashSet::new(),
        parts: Vec::new(),
        left: HashMap::new(),
        apart: false,
    };
    matching.pair("", &old.root, &new.root, true);
    let Matching { mut parts, left, apart, .. } = matching;
    let only = |wanted: &dyn Fn(&Left) -> bool| -> HashSet<Part> {
        left.iter().filter(|(_, left)| wanted(left)).map(|(part, _)| part.clone()).collect()
    };
    let planned = |parts: &[Planned]| parts.iter().any(|part| part.values.is_some());
    // Where types are not compared, nobody knows whether something takes it: it is taken along, and refused.
    let gone = only(&|left| left.gone && !apart);
    if planned(&parts) {
        let counted = count(heap, anchor, old, &only(&|left| left.untaken), &gone)?;
        for part in parts.iter_mut().filter(|part| part.values.is_some()) {
            let name = part.path.rsplit("::").next().unwrap_or_default();
            part.values = Some(counted.get(&self::part(&part.within, name)).copied().unwrap_or(0));
        }
    }
    Ok(Planning { plan: Plan { parts }, gone })
}

fn part(of: &str, name: &str) -> Part {
    (of.to_owned(), name.to_owned())
}

/// How many values there are of variants that nothing takes, but for those in fields that are gone.
fn count(
    heap: &Heap,
    anchor: Place,
    old: &Record,
    untaken: &HashSet<Part>,
    gone: &HashSet<Part>,
) -> Result<HashMap<Part, u64>, Error> {
    let bad = |why: String| Error::NotTyped { heap: heap.name().to_owned(), why };
    let counted = RefCell::new(HashMap::new());
    let left_out = |of: &Type, name: &str| {
        let part = part(&of.text, name);
        let is_variant = old.layouts.get(&of.text).is_some_and(|layout| layout.tag > 0);
        if is_variant && untaken.contains(&part) {
            *counted.borrow_mut().entry(part).or_insert(0) += 1;
            return true;
        }
        gone.contains(&part)
    };
    let reader = Reader { bytes: heap.region(), record: old, left: Cell::new(u64::MAX), owns: &|_| Ok(()) };
    let root = old.root_at(anchor.0).map_err(bad)?;
    Pieces::each(&reader, root, DEEPEST, &left_out, &mut |_, _| Ok(())).map_err(bad)?;
    Ok(counted.into_inner())
}

/// In what ways a part is left, wherever its type is met.
struct Left {
    gone: bool,
    /// Gone, or nothing takes it.
    untaken: bool,
}

/// What is in a collection.
enum Within<'r> {
    Items(&'r Type),
    Entries(&'r Type, &'r Type),
    Slots(&'r Type),
    Other,
}

fn within(of: &Type) -> Within<'_> {
    match (of.name.as_str(), &of.of[..]) {
        ("PVec" | "PVecDeque" | "PLog" | "PHashSet" | "PBTreeSet" | "[]", [item]) => Within::Items(item),
        ("PHashMap" | "PBTreeMap", [key, value]) => Within::Entries(key, value),
        ("PSlotMap", [value]) => Within::Slots(value),
        _ => Within::Other,
    }
}

/// The types of a store and those of a program, side by side.
struct Matching<'p> {
    old: &'p Record,
    new: &'p Record,
    types: &'p Types,
    met: HashSet<(&'p str, &'p str, bool)>,
    parts: Vec<Planned>,
    left: HashMap<Part, Left>,
    /// Types of different kinds have met, which are not compared.
    apart: bool,
}

impl<'p> Matching<'p> {
    /// Compares what values at a path are made of. `top`: the fields of the root, which have its default.
    fn pair(&mut self, path: &str, old: &'p Type, new: &'p Type, top: bool) {
        let (from, to) = bare(old, new);
        let top = top && ptr::eq(from, old) && ptr::eq(to, new);
        if !self.met.insert((&from.text, &to.text, top)) {
            return;
        }
        match (within(from), within(to)) {
            (Within::Items(old), Within::Items(new)) => {
                return self.pair(&format!("{path}[]"), old, new, false);
            }
            (Within::Entries(old_key, old), Within::Entries(new_key, new)) => {
                self.pair(&format!("{path}{{key}}"), old_key, new_key, false);
                return self.pair(&format!("{path}{{}}"), old, new, false);
            }
            (Within::Slots(old), Within::Slots(new) | Within::Entries(_, new)) => {
                return self.pair(&format!("{path}{{}}"), old, new, false);
            }
            _ => {}
        }
        let (records, none) = ((self.old, self.new), Said::default());
        let layouts = (records.0.layouts.get(&from.text), records.1.layouts.get(&to.text));
        let (Some(before), Some(after)) = layouts else {
            let plain = from.of.is_empty() || ["SlotKey", "PhantomData"].contains(&&*from.name);
            self.apart |= layouts.0.is_some() || !plain;
            return;
        };
        let said = self.types.said(&to.text).unwrap_or(&none);
        match (before.tag > 0, after.tag > 0) {
            (false, false) => {
                self.fields(path, &from.text, &before.fields, (&to.text, &after.fields, said), top)
            }
            (true, true) => {
                self.variants(path, (&from.text, &before.variants), (&to.text, &after.variants), said)
            }
            _ => self.apart = true,
        }
    }

    fn fields(
        &mut self,
        path: &str,
        within: &str,
        old: &'p [Field],
        (new_within, new, said): (&str, &'p [Field], &Said),
        top: bool,
    ) {
        let at = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let mut left: Vec<&'p Field> = old.iter().collect();
        for (i, field) in new.iter().enumerate() {
            let own = SaidField { names: vec![field.name.clone()], default: false };
            let said = said.fields.get(i).unwrap_or(&own);
            let found = said.names.iter().find_map(|name| left.iter().position(|field| field.name == *name));
            let Some(found) = found else {
                let fate = if said.default || top { Fate::Defaulted } else { Fate::Missing };
                self.note(at(&field.name), new_within, &field.of.text, None, fate);
                continue;
            };
            let taken = left.remove(found);
            let fate = Fate::Moved { to: field.name.clone(), of: field.of.text.clone() };
            self.leave(within, &taken.name, &fate);
            self.note(at(&taken.name), within, &taken.of.text, None, fate);
            self.pair(&at(&taken.name), &taken.of, &field.of, top);
        }
        for field in left.into_iter().filter(|field| self.old.size(&field.of).is_ok_and(|(size, _)| size > 0))
        {
            let fate = if said.gone.contains(&field.name) { Fate::Dropped } else { Fate::Untaken };
            self.leave(within, &field.name, &fate);
            self.note(at(&field.name), within, &field.of.text, None, fate);
        }
    }

    fn variants(
        &mut self,
        path: &str,
        (within, old): (&str, &'p [Variant]),
        (new_within, new): (&str, &'p [Variant]),
        said: &Said,
    ) {
        let none = Said::default();
        for (name, _, fields) in old {
            let at = format!("{path}::{name}");
            let said_of = |i: usize| said.variants.get(i);
            let takes = |i: &usize| said_of(*i).map_or(new[*i].0 == *name, |(names, _)| names.contains(name));
            let Some(i) = (0..new.len()).find(takes) else {
                let fate = if said.gone.contains(name) { Fate::Dropped } else { Fate::Untaken };
                self.leave(within, name, &fate);
                self.note(at, within, "", Some(0), fate);
                continue;
            };
            let (to, _, new_fields) = &new[i];
            let fate = Fate::Moved { to: to.clone(), of: String::new() };
            self.leave(within, name, &fate);
            self.note(at.clone(), within, "", None, fate);
            let said = said_of(i).map_or(&none, |(_, said)| said);
            let (within, new_within) = (format!("{within}::{name}"), format!("{new_within}::{to}"));
            self.fields(&at, &within, fields, (&new_within, new_fields, said), false);
        }
    }

    fn note(&mut self, path: String, within: &str, of: &str, values: Option<u64>, fate: Fate) {
        self.parts.push(Planned { path, within: within.to_owned(), of: of.to_owned(), values, fate });
    }

    fn leave(&mut self, within: &str, name: &str, fate: &Fate) {
        let gone = *fate == Fate::Dropped;
        let untaken = gone || *fate == Fate::Untaken;
        let left = self.left.entry(part(within, name)).or_insert(Left { gone: true, untaken: true });
        (left.gone, left.untaken) = (left.gone && gone, left.untaken && untaken);
    }
}

/// What is in boxes, in options and behind counted pointers: values are made through all of these alike.
fn bare<'p>(mut old: &'p Type, mut new: &'p Type) -> (&'p Type, &'p Type) {
    fn inner<'p>(of: &'p Type, names: &[&str]) -> Option<&'p Type> {
        of.of.first().filter(|_| names.contains(&&*of.name))
    }
    loop {
        let (wraps, counts) = (["Option", "PBox"], ["PRc", "PWeak"]);
        (old, new) = match (inner(old, &wraps), inner(new, &wraps), inner(old, &counts), inner(new, &counts))
        {
            (Some(inner), ..) => (inner, new),
            (_, Some(inner), ..) => (old, inner),
            (_, _, Some(old), Some(new)) => (old, new),
            _ => return (old, new),
        };
    }
}
