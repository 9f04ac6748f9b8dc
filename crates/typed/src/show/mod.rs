//! Typed objects without the program that made them: what a store holds, by the layouts that are recorded in it.
//!
//! Every byte is read by its offset, which is compared with the heap's length: a heap that somebody has damaged
//! is shown as far as it makes sense, and nothing of it is followed as a pointer.

mod record;

use crate::btree_map::MOST;
use crate::error::Error;
use crate::hash_map::GROUP;
use crate::log::{CHUNKS, FIRST};
use crate::objects::{ANCHOR, TYPES, read_types};
use caliburn_heap::Heap;
use record::{Field, Record, Type};
use std::cell::Cell;
use std::fmt;

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
    let bad = |why: String| Error::NotTyped { heap: heap.name().to_owned(), why };
    let (Some(anchor), Some(types)) = (heap.root(ANCHOR), heap.root(TYPES)) else {
        return Err(bad("it has no root of typed objects".to_owned()));
    };
    let record = Record::parse(&read_types(heap, types)?).map_err(bad)?;
    let reader = Reader { heap, record: &record, left: Cell::new(MOST_VALUES) };
    let (_, align) = record.size(&record.root).map_err(bad)?;
    let mut at = (anchor.0 + 16).next_multiple_of(align);
    let mut of = record.root.clone();
    for step in path {
        let found = reader.step(at, &of, step.as_ref()).map_err(bad)?;
        let missing = || Error::NotThere { heap: heap.name().to_owned(), step: step.as_ref().to_owned() };
        (at, of) = found.ok_or_else(missing)?;
    }
    reader.show(at, &of, extent, 0).map_err(bad)
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

/// Where values are of which a value consists.
enum Parts {
    /// It shows itself.
    Single(Shown),
    /// It is another.
    Other(Option<(u64, Type)>),
    Fields(String, Vec<Field>),
    Items(Vec<u64>, Type),
    Entries(Vec<(u64, u64)>, Type, Option<Type>),
    /// Values with keys that are not stored.
    Slots(Vec<(Shown, u64)>, Type),
}

struct Reader<'h> {
    heap: &'h Heap,
    record: &'h Record,
    /// Values that may still be looked at: objects with several owners may be reached by more ways than there
    /// are bytes.
    left: Cell<u64>,
}

/// Values that are looked at, at most.
const MOST_VALUES: u64 = 1_000_000;

impl Reader<'_> {
    /// `len` bytes.
    fn bytes(&self, at: u64, len: u64) -> Result<Vec<u8>, String> {
        self.check(at, len)?;
        let mut bytes = vec![0; len as usize];
        self.heap.region().read(at as usize, &mut bytes);
        Ok(bytes)
    }

    /// Counts what is looked at by the way.
    fn look(&self) -> Result<(), String> {
        let left =
            self.left.get().checked_sub(1).ok_or("it has more nodes than are looked at: it is damaged")?;
        self.left.set(left);
        Ok(())
    }

    fn check(&self, at: u64, len: u64) -> Result<(), String> {
        let all = self.heap.region().len() as u64;
        match at.checked_add(len).is_some_and(|end| end <= all) {
            true => Ok(()),
            false => Err(format!("{len} bytes at {at} are beyond its end: it is damaged")),
        }
    }

    fn word(&self, at: u64) -> Result<u64, String> {
        self.number(at, 8).map(|word| word as u64)
    }

    /// An integer of so many bytes.
    fn number(&self, at: u64, len: u64) -> Result<u128, String> {
        let mut bytes = [0; 16];
        if len > 16 {
            return Err(format!("a number of {len} bytes at {at}"));
        }
        bytes[..len as usize].copy_from_slice(&self.bytes(at, len)?);
        Ok(u128::from_le_bytes(bytes))
    }

    /// Where a link leads.
    fn link(&self, at: u64) -> Result<Option<u64>, String> {
        let distance = self.word(at)? as i64;
        Ok((distance != 0).then(|| at.wrapping_add_signed(distance)))
    }

    /// `count` places of `size` bytes each, from `at` on.
    fn places(&self, at: u64, count: u64, size: u64) -> Result<Vec<u64>, String> {
        let len = count.checked_mul(size).ok_or("a length is beyond all memory: it is damaged")?;
        self.check(at, len)?;
        // Values without bytes are counted, not looked at.
        let count = if size == 0 { count.min(1000) } else { count };
        Ok((0..count).map(|i| at + i * size).collect())
    }

    /// What a value consists of.
    fn parts(&self, at: u64, of: &Type) -> Result<Parts, String> {
        let size = |of: &Type| self.record.size(of).map(|(size, _)| size);
        let number = |text: String| Ok(Parts::Single(Shown::Number(text)));
        if let Some(count) = of.count {
            return Ok(Parts::Items(
                self.places(at, count, size(of.parameter(0)?)?)?,
                of.parameter(0)?.clone(),
            ));
        }
        if of.name == "Option" {
            return self.option(at, of);
        }
        if let Some(layout) = self.record.layouts.get(&of.text) {
            if layout.tag == 0 {
                return Ok(Parts::Fields(of.name.clone(), layout.fields.clone()));
            }
            let tag = self.number(at, layout.tag)? as u64;
            let mask = u64::MAX >> (64 - 8 * layout.tag.min(8));
            let found = layout.variants.iter().find(|(_, known, _)| known & mask == tag);
            let (name, _, fields) =
                found.ok_or_else(|| format!("tag {tag} at {at} is no variant of {:?}", of.text))?;
            return Ok(Parts::Fields(name.clone(), fields.clone()));
        }
        match of.known().as_str() {
            "bool" => Ok(Parts::Single(Shown::Bool(self.number(at, 1)? != 0))),
            "char" => {
                let letter =
                    char::from_u32(self.number(at, 4)? as u32).unwrap_or(char::REPLACEMENT_CHARACTER);
                Ok(Parts::Single(Shown::Text(letter.to_string())))
            }
            "f32" => number(f32::from_bits(self.number(at, 4)? as u32).to_string()),
            "f64" => number(f64::from_bits(self.word(at)?).to_string()),
            "u8" | "u16" | "u32" | "u64" | "u128" => number(self.number(at, size(of)?)?.to_string()),
            "i8" | "i16" | "i32" | "i64" | "i128" => {
                let spare = 128 - 8 * size(of)?;
                number((((self.number(at, size(of)?)? << spare) as i128) >> spare).to_string())
            }
            "slotkey" => Ok(Parts::Single(self.key(at)?)),
            "pbox" => Ok(Parts::Other(match self.link(at)? {
                Some(to) => Some((to, of.parameter(0)?.clone())),
                None => None,
            })),
            "prc" | "pweak" => {
                let counted = self.link(at)?;
                let Some(counted) = counted else { return Ok(Parts::Other(None)) };
                let value = of.parameter(0)?;
                let there = self.word(counted)? > 0;
                let at = (counted + 16).next_multiple_of(self.record.size(value)?.1);
                Ok(Parts::Other(there.then(|| (at, value.clone()))))
            }
            "pstring" => {
                let text = match self.link(at)? {
                    Some(items) => self.bytes(items, self.word(at + 8)?)?,
                    None => Vec::new(),
                };
                Ok(Parts::Single(Shown::Text(String::from_utf8_lossy(&text).into_owned())))
            }
            "pvec" => {
                let value = of.parameter(0)?;
                let places = match self.link(at)? {
                    Some(items) => self.places(items, self.word(at + 8)?, size(value)?)?,
                    None => Vec::new(),
                };
                Ok(Parts::Items(places, value.clone()))
            }
            "pvecdeque" => self.deque(at, of.parameter(0)?),
            "plog" => self.log(at, of.parameter(0)?),
            "phashmap" | "phashset" => self.hash_map(at, of),
            "pbtreemap" | "pbtreeset" => self.btree_map(at, of),
            "pslotmap" => self.slot_map(at, of.parameter(0)?),
            _ => Ok(Parts::Single(Shown::Nothing)),
        }
    }

    /// An option is none if its tag says so, or if what would be its value is not one: that is what a niche is.
    fn option(&self, at: u64, of: &Type) -> Result<Parts, String> {
        let value = of.parameter(0)?;
        let layout =
            self.record.layouts.get(&of.text).ok_or_else(|| format!("nothing is said of {:?}", of.text))?;
        let offset = layout.fields.first().map_or(0, |field| field.offset);
        let there = match offset {
            0 => self.is_value(at, value, (0, 0))?,
            // Only the lowest byte says anything.
            _ => self.number(at, 1)? != 0,
        };
        Ok(Parts::Other(there.then(|| (at + offset, value.clone()))))
    }

    /// Whether the bytes at a place can be a value, by those of its parts that cannot be all. `nones`: in so
    /// many options it is, each of which may use a value that it cannot have.
    fn is_value(&self, at: u64, of: &Type, (nones, depth): (u64, u32)) -> Result<bool, String> {
        if depth > 60 {
            return Err(format!("the type {:?} holds itself", of.text));
        }
        let layout = self.record.layouts.get(&of.text);
        if of.name == "Option" {
            let offset = layout.and_then(|layout| layout.fields.first()).map_or(0, |field| field.offset);
            return match offset {
                0 => self.is_value(at, of.parameter(0)?, (nones + 1, depth + 1)),
                _ => Ok(self.number(at, 1)? < 2 + u128::from(nones)),
            };
        }
        if let Some(layout) = layout {
            let fields = if layout.tag == 0 {
                &layout.fields
            } else {
                let tag = self.number(at, layout.tag)? as u64;
                let mask = u64::MAX >> (64 - 8 * layout.tag);
                let known = layout.variants.iter().map(|(_, known, _)| known & mask);
                match layout.variants.iter().find(|(_, known, _)| known & mask == tag) {
                    Some((_, _, fields)) => fields,
                    None => return Ok(known.max().is_some_and(|most| tag > most && tag - most <= nones)),
                }
            };
            for field in fields {
                if !self.is_value(at.saturating_add(field.offset), &field.of, (nones, depth + 1))? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        Ok(match of.name.as_str() {
            "bool" => self.number(at, 1)? < 2 + u128::from(nones),
            "char" => {
                let letter = self.number(at, 4)? as u32;
                char::from_u32(letter).is_some()
                    || letter > 0x10_FFFF && u64::from(letter - 0x10_FFFF) <= nones
            }
            "PBox" => nones > 0 || self.word(at)? != 0,
            "[]" if of.count != Some(0) => self.is_value(at, of.parameter(0)?, (nones, depth + 1))?,
            name if name.starts_with("NonZero") => {
                nones > 0 || self.number(at, self.record.size(of)?.0)? != 0
            }
            _ => true,
        })
    }

    fn key(&self, at: u64) -> Result<Shown, String> {
        Ok(Shown::Text(format!("{}v{}", self.number(at, 4)?, self.number(at + 4, 4)?)))
    }

    fn deque(&self, at: u64, of: &Type) -> Result<Parts, String> {
        let (first, len, capacity) = (self.word(at + 8)?, self.word(at + 16)?, self.word(at + 24)?);
        let size = self.record.size(of)?.0;
        let Some(items) = self.link(at)? else { return Ok(Parts::Items(Vec::new(), of.clone())) };
        if first > capacity || len > capacity {
            return Err(format!("the queue at {at} is longer than its memory: it is damaged"));
        }
        let straight = len.min(capacity - first);
        let start = size.checked_mul(first).and_then(|by| by.checked_add(items)).ok_or("it is damaged")?;
        let mut places = self.places(start, straight, size)?;
        places.extend(self.places(items, len - straight, size)?);
        Ok(Parts::Items(places, of.clone()))
    }

    fn log(&self, at: u64, of: &Type) -> Result<Parts, String> {
        let (mut left, size, mut places) = (self.word(at)?, self.record.size(of)?.0, Vec::new());
        for chunk in 0..CHUNKS as u64 {
            if let Some(values) = self.link(at + 8 + chunk * 8)?.filter(|_| left > 0) {
                places.extend(self.places(values, left.min(FIRST << chunk), size)?);
                left = left.saturating_sub(FIRST << chunk);
            }
        }
        Ok(Parts::Items(places, of.clone()))
    }

    fn slot_map(&self, at: u64, of: &Type) -> Result<Parts, String> {
        let (size, align) = self.record.size(of)?;
        let value = 8u64.next_multiple_of(align);
        let slot = (value + size).next_multiple_of(align.max(4));
        let mut slots = Vec::new();
        if let Some(items) = self.link(at)? {
            for place in self.places(items, self.word(at + 8)?, slot)? {
                let (index, generation) = ((place - items) / slot, self.number(place, 4)?);
                if generation % 2 == 1 {
                    slots.push((Shown::Text(format!("{index}v{generation}")), place + value));
                }
            }
        }
        Ok(Parts::Slots(slots, of.clone()))
    }

    /// Where the keys and values of a map are, or the values of a set.
    fn entries(of: &Type, entries: Vec<(u64, u64)>) -> Result<Parts, String> {
        let value = if of.name.ends_with("Map") { Some(of.parameter(1)?.clone()) } else { None };
        Ok(Parts::Entries(entries, of.parameter(0)?.clone(), value))
    }

    /// Sizes and alignments of a map's keys and values.
    fn sizes(&self, of: &Type) -> Result<[(u64, u64); 2], String> {
        let value = if of.name.ends_with("Map") { self.record.size(of.parameter(1)?)? } else { (0, 1) };
        Ok([self.record.size(of.parameter(0)?)?, value])
    }

    fn hash_map(&self, at: u64, of: &Type) -> Result<Parts, String> {
        let [(key, key_align), (value, value_align)] = self.sizes(of)?;
        let align = key_align.max(value_align);
        let value_at = key.next_multiple_of(value_align);
        let slot = (value_at + value).next_multiple_of(align);
        let mut entries = Vec::new();
        let Some(directory) = self.link(at)? else { return Self::entries(of, entries) };
        let depth = self.number(at + 32, 4)? as u32;
        let places = 1u64.checked_shl(depth).ok_or("a directory is beyond all memory: it is damaged")?;
        self.check(directory, places.saturating_mul(8))?;
        let mut place = 0;
        while place < places {
            let door = directory + place * 8;
            let header = door.wrapping_add_signed(self.word(door)? as i64 >> 8);
            let (local, groups) = (self.number(header, 4)? as u32, self.number(header + 4, 4)? as u64);
            if local > depth {
                return Err(format!("the table at {header} is deeper than its directory: it is damaged"));
            }
            // A map that says how many entries it has has no more, by however many ways a table is reached.
            if entries.len() as u64 > self.word(at + 8)? || local > depth {
                return Err(format!("the map at {at} has more entries than it counts: it is damaged"));
            }
            let tags = self.bytes(header.saturating_add(16), groups * GROUP as u64)?;
            let slots = header + (16 + tags.len() as u64).next_multiple_of(align);
            self.check(slots, slot.saturating_mul(tags.len() as u64))?;
            let taken = tags.iter().enumerate().filter(|(_, tag)| **tag < 0x80);
            entries.extend(taken.map(|(i, _)| (slots + i as u64 * slot, slots + i as u64 * slot + value_at)));
            place += 1 << (depth - local);
        }
        Self::entries(of, entries)
    }

    fn btree_map(&self, at: u64, of: &Type) -> Result<Parts, String> {
        let sizes = self.sizes(of)?;
        let mut entries = Vec::new();
        if let Some(root) = self.link(at)? {
            // Each entry takes a byte at least, but for what has none.
            let most = self.word(at + 8)?.min(self.heap.region().len() as u64);
            let height = self.number(at + 16, 4)? as u32;
            if height > 30 {
                return Err(format!("the tree at {at} is higher than any: it is damaged"));
            }
            self.node(root, height, sizes, most, &mut entries)?;
        }
        Self::entries(of, entries)
    }

    fn node(
        &self,
        at: u64,
        height: u32,
        sizes: [(u64, u64); 2],
        most: u64,
        entries: &mut Vec<(u64, u64)>,
    ) -> Result<(), String> {
        let [(key, key_align), (value, value_align)] = sizes;
        let len = self.word(at)?;
        self.look()?;
        if len > MOST as u64 || entries.len() as u64 > most {
            return Err(format!("the node at {at} has more entries than a node has: it is damaged"));
        }
        let keys = at + 8u64.next_multiple_of(key_align);
        let keys_end = keys + key * MOST as u64 - at;
        let values = at + keys_end.next_multiple_of(value_align);
        let leaf = (values + value * MOST as u64 - at).next_multiple_of(key_align.max(value_align).max(8));
        for i in 0..=len {
            if height > 0 {
                let child = self.link(at + leaf + i * 8)?.ok_or("a child is missing: it is damaged")?;
                self.node(child, height - 1, sizes, most, entries)?;
            }
            if i < len {
                entries.push((keys + i * key, values + i * value));
            }
        }
        Ok(())
    }

    /// Goes one step from a value into it.
    fn step(&self, at: u64, of: &Type, step: &str) -> Result<Option<(u64, Type)>, String> {
        let shown = |key: &Shown| matches!(key, Shown::Text(text) | Shown::Number(text) if text == step);
        Ok(match self.parts(at, of)? {
            Parts::Single(_) | Parts::Other(None) => None,
            Parts::Other(Some((at, of))) => self.step(at, &of, step)?,
            Parts::Fields(_, fields) => fields
                .into_iter()
                .find(|field| field.name == step)
                .map(|field| (at.saturating_add(field.offset), field.of)),
            Parts::Items(places, of) => {
                step.parse::<usize>().ok().and_then(|i| places.get(i).map(|at| (*at, of)))
            }
            Parts::Slots(slots, of) => slots.iter().find(|(key, _)| shown(key)).map(|(_, at)| (*at, of)),
            Parts::Entries(entries, key_type, value_type) => {
                for (key, value) in entries {
                    if shown(&self.show(key, &key_type, Extent::default(), 0)?) {
                        return Ok(Some(value_type.map_or((key, key_type), |of| (value, of))));
                    }
                }
                None
            }
        })
    }

    fn show(&self, at: u64, of: &Type, extent: Extent, depth: u32) -> Result<Shown, String> {
        let left = self.left.get();
        if depth > extent.depth || left == 0 {
            return Ok(Shown::Deeper);
        }
        self.left.set(left - 1);
        let inner = |at: u64, of: &Type| self.show(at, of, extent, depth + 1);
        let most = extent.items as usize;
        let more = |all: usize| all.saturating_sub(most) as u64;
        Ok(match self.parts(at, of)? {
            Parts::Single(shown) => shown,
            Parts::Other(None) => Shown::Nothing,
            // As deep as what points to it, but for long chains.
            Parts::Other(Some((at, of))) => inner(at, &of)?,
            Parts::Fields(name, fields) => {
                let show =
                    |field: Field| Ok((field.name, inner(at.saturating_add(field.offset), &field.of)?));
                Shown::Struct(name, fields.into_iter().map(show).collect::<Result<_, String>>()?)
            }
            Parts::Items(places, of) => {
                let items = places.iter().take(most).map(|at| inner(*at, &of)).collect::<Result<_, _>>()?;
                Shown::List(items, more(places.len()))
            }
            Parts::Slots(slots, of) => {
                let all = slots.len();
                let show = |(key, at): (Shown, u64)| Ok((key, inner(at, &of)?));
                Shown::Map(slots.into_iter().take(most).map(show).collect::<Result<_, String>>()?, more(all))
            }
            Parts::Entries(entries, of, None) => {
                let items =
                    entries.iter().take(most).map(|(at, _)| inner(*at, &of)).collect::<Result<_, _>>()?;
                Shown::List(items, more(entries.len()))
            }
            Parts::Entries(entries, key, Some(value)) => {
                let show = |(k, v): &(u64, u64)| Ok((inner(*k, &key)?, inner(*v, &value)?));
                let shown = entries.iter().take(most).map(show).collect::<Result<_, String>>()?;
                Shown::Map(shown, more(entries.len()))
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
