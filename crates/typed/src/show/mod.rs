//! Typed objects without the program that made them: what a store holds, by the layouts that are recorded in it.
//!
//! Every byte is read by its offset, which is compared with the heap's length: a heap that somebody has damaged
//! is shown as far as it makes sense, and nothing of it is followed as a pointer.

pub(crate) mod reader;
pub(crate) mod record;

use crate::error::Error;
use crate::objects::{ANCHOR, TYPES, read_types};
use caliburn_heap::Heap;
use reader::{Element, MOST_VALUES, Parts, Reader, slot_key};
use record::{Record, Type};
use std::cell::Cell;
use std::fmt;
use std::ops::Range;

/// A value, as it is shown.
#[derive(Debug, Clone, PartialEq)]
pub enum Shown {
    /// `None`, a weak pointer to nothing, `()`.
    Nothing,
    /// `true` or `false`.
    Bool(bool),
    /// A number, by its digits.
    Number(String),
    /// A string or a character.
    Text(String),
    /// Values in order; how many more there are.
    List(Vec<Shown>, u64),
    /// Keys and values; how many more there are.
    Map(Vec<(Shown, Shown)>, u64),
    /// A struct or a variant, with the names and values of its fields.
    Struct(String, Vec<(String, Shown)>),
    /// Something deeper than was asked for.
    Deeper,
}

/// How much of a value is shown.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Values of each collection.
    pub items: u64,
    /// Values in values.
    pub depth: u32,
}

impl Default for Extent {
    fn default() -> Extent {
        Extent { items: 20, depth: 12 }
    }
}

/// Shows what a path leads to from the root of a heap's objects: names of fields, numbers of elements, keys of
/// maps as they are shown.
///
/// # Errors
/// [`Error::NotTyped`] when the heap is not one of typed objects, or does not hold what its record says;
/// [`Error::NotThere`] when the path leads nowhere.
pub fn show(heap: &Heap, path: &[impl AsRef<str>], extent: Extent) -> Result<Shown, Error> {
    found(heap, path, |reader, at, of| reader.show(at, of, extent, 0))
}

/// Where in the heap's segment is what a path leads to. Of a box or a collection that is the value itself, which
/// points to what it owns.
///
/// # Errors
/// As [`show`].
pub fn place(heap: &Heap, path: &[impl AsRef<str>]) -> Result<Range<u64>, Error> {
    found(heap, path, |reader, at, of| {
        let (size, _) = reader.record.size(of)?;
        Ok(at..at.saturating_add(size))
    })
}

fn found<T>(
    heap: &Heap,
    path: &[impl AsRef<str>],
    tell: impl FnOnce(&Reader<'_>, u64, &Type) -> Result<T, String>,
) -> Result<T, Error> {
    let bad = |why: String| Error::NotTyped { heap: heap.name().to_owned(), why };
    let (Some(anchor), Some(types)) = (heap.root(ANCHOR), heap.root(TYPES)) else {
        return Err(bad("it has no root of typed objects".to_owned()));
    };
    let record = Record::parse(&read_types(heap, types)?).map_err(bad)?;
    let reader =
        Reader { bytes: heap.region(), record: &record, left: Cell::new(MOST_VALUES), owns: &|_| Ok(()) };
    let (mut at, mut of) = (record.root_at(anchor.0).map_err(bad)?, &record.root);
    for step in path {
        let found = reader.step(at, of, step.as_ref()).map_err(bad)?;
        let missing = || Error::NotThere { heap: heap.name().to_owned(), step: step.as_ref().to_owned() };
        (at, of) = found.ok_or_else(missing)?;
    }
    tell(&reader, at, of).map_err(bad)
}

/// The layouts that a heap of typed objects records.
///
/// # Errors
/// [`Error::NotTyped`] when it is none.
pub fn recorded_types(heap: &Heap) -> Result<String, Error> {
    let why = "it has no root of typed objects".to_owned();
    let none = || Error::NotTyped { heap: heap.name().to_owned(), why };
    read_types(heap, heap.root(TYPES).ok_or_else(none)?)
}

/// The type of a heap's root, if its objects are typed.
pub fn recorded_root(heap: &Heap) -> Option<String> {
    Record::parse(&recorded_types(heap).ok()?).ok().map(|record| record.root.text)
}

impl<'r> Reader<'r> {
    /// Goes one step from a value into it.
    fn step(&self, at: u64, of: &'r Type, step: &str) -> Result<Option<(u64, &'r Type)>, String> {
        let is = |key: &Shown| matches!(key, Shown::Text(text) | Shown::Number(text) if text == step);
        let mut place = None;
        Ok(match self.parts(at, of)? {
            Parts::Single(_) | Parts::Other(None) => None,
            Parts::Other(Some((at, of))) => self.step(at, of, step)?,
            Parts::Counted(counted) => match counted.filter(|counted| counted.owners > 0) {
                Some(counted) => self.step(counted.value.0, counted.value.1, step)?,
                None => None,
            },
            Parts::Fields(_, _, fields) => fields
                .iter()
                .find(|field| field.name == step)
                .map(|field| (at.saturating_add(field.offset), &field.of)),
            Parts::Items(_, item) => {
                let Ok(mut index) = step.parse::<u64>() else { return Ok(None) };
                self.each(at, of, &mut |element| {
                    if let (0, Element::Item(at)) = (index, element) {
                        place = Some((at, item));
                    }
                    index = index.wrapping_sub(1);
                    Ok(place.is_none())
                })?;
                place
            }
            Parts::Slots(_, value) => {
                self.each(at, of, &mut |element| {
                    if let Element::Slot(key, Some(at)) = element
                        && slot_key(key) == step
                    {
                        place = Some((at, value));
                    }
                    Ok(place.is_none())
                })?;
                place
            }
            Parts::Entries(_, key_type, value_type) => {
                self.each(at, of, &mut |element| {
                    if let Element::Entry(key, value) = element
                        && is(&self.show(key, key_type, Extent::default(), 0)?)
                    {
                        place = Some(value_type.map_or((key, key_type), |of| (value, of)));
                    }
                    Ok(place.is_none())
                })?;
                place
            }
        })
    }

    fn show(&self, at: u64, of: &'r Type, extent: Extent, depth: u32) -> Result<Shown, String> {
        let left = self.left.get();
        if depth > extent.depth || left == 0 {
            return Ok(Shown::Deeper);
        }
        self.left.set(left - 1);
        let inner = |at: u64, of: &'r Type| self.show(at, of, extent, depth + 1);
        let most = extent.items as usize;
        let (mut items, mut entries) = (Vec::new(), Vec::new());
        let parts = self.parts(at, of)?;
        Ok(match parts {
            Parts::Single(shown) => shown,
            Parts::Other(None) => Shown::Nothing,
            // As deep as what points to it, but for long chains.
            Parts::Other(Some((at, of))) => inner(at, of)?,
            Parts::Counted(counted) => match counted.filter(|counted| counted.owners > 0) {
                Some(counted) => inner(counted.value.0, counted.value.1)?,
                None => Shown::Nothing,
            },
            Parts::Fields(name, _, fields) => {
                let show = |field: &'r record::Field| {
                    Ok((field.name.clone(), inner(at.saturating_add(field.offset), &field.of)?))
                };
                Shown::Struct(name.to_owned(), fields.iter().map(show).collect::<Result<_, String>>()?)
            }
            Parts::Items(len, item) | Parts::Entries(len, item, None) => {
                self.each(at, of, &mut |element| {
                    if let Element::Item(at) | Element::Entry(at, _) = element
                        && items.len() < most
                    {
                        items.push(inner(at, item)?);
                        return Ok(true);
                    }
                    Ok(false)
                })?;
                let more = len.saturating_sub(items.len() as u64);
                Shown::List(items, more)
            }
            Parts::Slots(len, value) => {
                self.each(at, of, &mut |element| {
                    if let Element::Slot(key, Some(at)) = element {
                        if entries.len() == most {
                            return Ok(false);
                        }
                        entries.push((Shown::Text(slot_key(key)), inner(at, value)?));
                    }
                    Ok(true)
                })?;
                let more = len.saturating_sub(entries.len() as u64);
                Shown::Map(entries, more)
            }
            Parts::Entries(len, key_type, Some(value_type)) => {
                self.each(at, of, &mut |element| {
                    if let Element::Entry(key, value) = element
                        && entries.len() < most
                    {
                        entries.push((inner(key, key_type)?, inner(value, value_type)?));
                        return Ok(true);
                    }
                    Ok(false)
                })?;
                let more = len.saturating_sub(entries.len() as u64);
                Shown::Map(entries, more)
            }
        })
    }
}

impl fmt::Display for Shown {
    /// As Rust's `{:#?}` shows values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

impl Shown {
    fn write(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        let indent = |f: &mut fmt::Formatter<'_>, depth: usize| write!(f, "{:1$}", "", 4 * depth);
        let rest = |f: &mut fmt::Formatter<'_>, more: u64| {
            if more > 0 {
                indent(f, depth + 1)?;
                writeln!(f, "... {more} more")?;
            }
            indent(f, depth)
        };
        match self {
            Shown::Nothing => f.write_str("None"),
            Shown::Bool(value) => write!(f, "{value}"),
            Shown::Number(digits) => f.write_str(digits),
            Shown::Text(text) => write!(f, "{text:?}"),
            Shown::Deeper => f.write_str("..."),
            Shown::List(items, 0) if items.is_empty() => f.write_str("[]"),
            Shown::List(items, more) => {
                f.write_str("[\n")?;
                for item in items {
                    indent(f, depth + 1)?;
                    item.write(f, depth + 1)?;
                    f.write_str(",\n")?;
                }
                rest(f, *more)?;
                f.write_str("]")
            }
            Shown::Map(entries, 0) if entries.is_empty() => f.write_str("{}"),
            Shown::Map(entries, more) => {
                f.write_str("{\n")?;
                for (key, value) in entries {
                    indent(f, depth + 1)?;
                    key.write(f, depth + 1)?;
                    f.write_str(": ")?;
                    value.write(f, depth + 1)?;
                    f.write_str(",\n")?;
                }
                rest(f, *more)?;
                f.write_str("}")
            }
            Shown::Struct(name, fields) if fields.is_empty() => f.write_str(name),
            Shown::Struct(name, fields) => {
                writeln!(f, "{name}{}{{", if name.is_empty() { "" } else { " " })?;
                for (name, value) in fields {
                    indent(f, depth + 1)?;
                    write!(f, "{name}: ")?;
                    value.write(f, depth + 1)?;
                    f.write_str(",\n")?;
                }
                indent(f, depth)?;
                f.write_str("}")
            }
        }
    }
}
