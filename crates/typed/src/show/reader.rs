//! Values read by the layouts that are recorded: every byte by its offset, which is compared with the heap's length,
//! and nothing followed as a pointer. What is in a collection is met one by one, so that reading takes no memory for
//! what is read.

use super::Shown;
use super::record::{Field, Record, Type};
use crate::btree_map::MOST;
use crate::hash_map::GROUP;
use crate::log::{CHUNKS, FIRST};
use caliburn_engine::{Image, Region};
use caliburn_os::simulated::unless;
use std::cell::Cell;

/// Values that are looked at, at most, where objects with several owners may be reached by more ways than there are
/// bytes.
pub(crate) const MOST_VALUES: u64 = 1_000_000;

/// What a value consists of.
pub(crate) enum Parts<'r> {
    /// It shows itself.
    Single(Shown),
    /// It is another, or none.
    Other(Option<(u64, &'r Type)>),
    /// It points to an object with counts at this place, if there is one: see [`Counted`].
    Counted(Option<Counted<'r>>),
    /// Fields of a struct, or of an enum's variant: its name.
    Fields(&'r str, bool, &'r [Field]),
    /// Values in order: how many.
    Items(u64, &'r Type),
    /// Values by keys that are not stored, how many.
    Slots(u64, &'r Type),
    /// Entries of a map, or values of a set: how many.
    Entries(u64, &'r Type, Option<&'r Type>),
}

/// An object with several owners, as one of its pointers sees it.
pub(crate) struct Counted<'r> {
    /// Where its counts are, owners first.
    pub at: u64,
    pub owners: u64,
    pub weak: u64,
    pub value: (u64, &'r Type),
    /// Whether the pointer owns it.
    pub owned: bool,
}

/// What is met in a collection.
pub(crate) enum Element {
    Item(u64),
    Entry(u64, u64),
    /// Index and generation of a slot, and its value if it has one.
    Slot((u64, u32), Option<u64>),
}

/// The key of a slot, as text.
pub(crate) fn slot_key((index, generation): (u64, u32)) -> String {
    format!("{index}v{generation}")
}

/// Whether to go on.
pub(crate) type GoesOn = Result<bool, String>;

/// Where the bytes of a heap's objects are read: its region, or an image of that.
pub(crate) trait Bytes {
    fn len(&self) -> u64;
    fn read(&self, at: u64, target: &mut [u8]);
}

impl Bytes for Region {
    fn len(&self) -> u64 {
        Region::len(self) as u64
    }

    fn read(&self, at: u64, target: &mut [u8]) {
        Region::read(self, at as usize, target);
    }
}

impl Bytes for Image {
    fn len(&self) -> u64 {
        Image::len(self) as u64
    }

    fn read(&self, at: u64, target: &mut [u8]) {
        Image::read(self, at as usize, target);
    }
}

/// What reads a heap.
pub(crate) struct Reader<'r> {
    pub bytes: &'r dyn Bytes,
    pub record: &'r Record,
    /// Nodes and values that may still be looked at.
    pub left: Cell<u64>,
    /// Called with the place of each object that a collection or a box owns, before it is read.
    pub owns: &'r dyn Fn(u64) -> Result<(), String>,
}

impl<'r> Reader<'r> {
    /// `len` bytes.
    fn copy(&self, at: u64, len: u64) -> Result<Vec<u8>, String> {
        self.check(at, len)?;
        let mut bytes = vec![0; len as usize];
        self.bytes.read(at, &mut bytes);
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
        let all = self.bytes.len();
        match at.checked_add(len).is_some_and(|end| end <= all) {
            true => Ok(()),
            false => Err(format!("{len} bytes at {at} are beyond its end: it is damaged")),
        }
    }

    pub fn word(&self, at: u64) -> Result<u64, String> {
        self.number(at, 8).map(|word| word as u64)
    }

    /// An integer of so many bytes.
    pub fn number(&self, at: u64, len: u64) -> Result<u128, String> {
        let mut bytes = [0; 16];
        if len > 16 {
            return Err(format!("a number of {len} bytes at {at}"));
        }
        self.check(at, len)?;
        self.bytes.read(at, &mut bytes[..len as usize]);
        Ok(u128::from_le_bytes(bytes))
    }

    /// Where a link leads.
    fn distance(&self, at: u64) -> Result<Option<u64>, String> {
        let distance = self.word(at)? as i64;
        Ok((distance != 0).then(|| at.wrapping_add_signed(distance)))
    }

    /// Where a link to an object leads that nothing else owns.
    fn link(&self, at: u64) -> Result<Option<u64>, String> {
        let to = self.distance(at)?;
        if let Some(to) = to {
            (self.owns)(to)?;
        }
        Ok(to)
    }

    /// Meets `count` values from `at` on.
    fn run(&self, at: u64, count: u64, of: &Type, found: &mut dyn FnMut(Element) -> GoesOn) -> GoesOn {
        let size = self.record.size(of)?.0;
        let len = count.checked_mul(size).ok_or("a length is beyond all memory: it is damaged")?;
        self.check(at, len)?;
        // Values without bytes are counted, not looked at.
        let count = if size == 0 { count.min(1000) } else { count };
        for i in 0..count {
            if !found(Element::Item(at + i * size))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What a value consists of.
    pub fn parts(&self, at: u64, of: &'r Type) -> Result<Parts<'r>, String> {
        let size = |of: &Type| self.record.size(of).map(|(size, _)| size);
        let number = |text: String| Ok(Parts::Single(Shown::Number(text)));
        if let Some(count) = of.count {
            return Ok(Parts::Items(count, of.parameter(0)?));
        }
        if of.name == "Option" {
            return self.option(at, of);
        }
        if let Some(layout) = self.record.layouts.get(&of.text) {
            if layout.tag == 0 {
                return Ok(Parts::Fields(&of.name, false, &layout.fields));
            }
            let tag = self.number(at, layout.tag)? as u64;
            let mask = u64::MAX >> (64 - 8 * layout.tag.min(8));
            let found = layout.variants.iter().find(|(_, known, _)| known & mask == tag);
            let (name, _, fields) =
                found.ok_or_else(|| format!("tag {tag} at {at} is no variant of {:?}", of.text))?;
            return Ok(Parts::Fields(name, true, fields));
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
            "slotkey" => {
                let text = format!("{}v{}", self.number(at, 4)?, self.number(at + 4, 4)?);
                Ok(Parts::Single(Shown::Text(text)))
            }
            "pbox" => Ok(Parts::Other(match self.link(at)? {
                Some(to) => Some((to, of.parameter(0)?)),
                None => None,
            })),
            "prc" | "pweak" => {
                let Some(counted) = self.distance(at)? else { return Ok(Parts::Counted(None)) };
                let value = of.parameter(0)?;
                let place = (counted + 16).next_multiple_of(self.record.size(value)?.1);
                let (owners, weak) = (self.word(counted)?, self.word(counted + 8)?);
                let owned = of.name == "PRc";
                Ok(Parts::Counted(Some(Counted { at: counted, owners, weak, value: (place, value), owned })))
            }
            "pstring" => {
                let text = match self.link(at)? {
                    Some(items) => self.copy(items, self.word(at + 8)?)?,
                    None => Vec::new(),
                };
                Ok(Parts::Single(Shown::Text(String::from_utf8_lossy(&text).into_owned())))
            }
            "pvec" | "phashmap" | "phashset" | "pbtreemap" | "pbtreeset" => {
                let len = self.word(at + 8)?;
                let none = self.word(at)? == 0;
                let (len, first) = (if none { 0 } else { len }, of.parameter(0)?);
                match of.name.ends_with("Vec") {
                    true => Ok(Parts::Items(len, first)),
                    false if of.name.ends_with("Map") => {
                        Ok(Parts::Entries(len, first, Some(of.parameter(1)?)))
                    }
                    false => Ok(Parts::Entries(len, first, None)),
                }
            }
            "pvecdeque" => Ok(Parts::Items(self.word(at + 16)?, of.parameter(0)?)),
            "plog" => Ok(Parts::Items(self.word(at)?, of.parameter(0)?)),
            "pslotmap" => Ok(Parts::Slots(self.word(at + 24)?, of.parameter(0)?)),
            _ => Ok(Parts::Single(Shown::Nothing)),
        }
    }

    /// Meets what is in a collection or an array, in order, until `found` says that it is enough.
    pub fn each(&self, at: u64, of: &Type, found: &mut dyn FnMut(Element) -> GoesOn) -> GoesOn {
        if let Some(count) = of.count {
            return self.run(at, count, of.parameter(0)?, found);
        }
        match of.known().as_str() {
            "pvec" => match self.link(at)? {
                Some(items) => self.run(items, self.word(at + 8)?, of.parameter(0)?, found),
                None => Ok(true),
            },
            "pvecdeque" => self.deque(at, of.parameter(0)?, found),
            "plog" => self.log(at, of.parameter(0)?, found),
            "phashmap" | "phashset" => self.hash_map(at, of, found),
            "pbtreemap" | "pbtreeset" => self.btree_map(at, of, found),
            "pslotmap" => self.slot_map(at, of.parameter(0)?, found),
            _ => Ok(true),
        }
    }

    /// An option is none if a number says so: its tag, or one in its value, which no value has.
    fn option(&self, at: u64, of: &'r Type) -> Result<Parts<'r>, String> {
        let value = of.parameter(0)?;
        let layout =
            self.record.layouts.get(&of.text).ok_or_else(|| format!("nothing is said of {:?}", of.text))?;
        let offset = layout.fields.first().map_or(0, |field| field.offset);
        let (number_at, none) = self.record.none(of)?;
        let number_at = at.saturating_add(number_at);
        self.check(number_at, none.len() as u64)?;
        let mut number = vec![0; none.len()];
        self.bytes.read(number_at, &mut number);
        let there = unless("option-never-there", number != none);
        Ok(Parts::Other(there.then_some((at + offset, value))))
    }

    fn deque(&self, at: u64, of: &Type, found: &mut dyn FnMut(Element) -> GoesOn) -> GoesOn {
        let (first, len, capacity) = (self.word(at + 8)?, self.word(at + 16)?, self.word(at + 24)?);
        let size = self.record.size(of)?.0;
        let Some(items) = self.link(at)? else { return Ok(true) };
        if first > capacity || len > capacity {
            return Err(format!("the queue at {at} is longer than its memory: it is damaged"));
        }
        let straight = len.min(capacity - first);
        let start = size.checked_mul(first).and_then(|by| by.checked_add(items)).ok_or("it is damaged")?;
        Ok(self.run(start, straight, of, found)? && self.run(items, len - straight, of, found)?)
    }

    fn log(&self, at: u64, of: &Type, found: &mut dyn FnMut(Element) -> GoesOn) -> GoesOn {
        let mut left = self.word(at)?;
        for chunk in 0..CHUNKS as u64 {
            if let Some(values) = self.link(at + 8 + chunk * 8)? {
                if !self.run(values, left.min(FIRST << chunk), of, found)? {
                    return Ok(false);
                }
                left = left.saturating_sub(FIRST << chunk);
            }
        }
        Ok(true)
    }

    fn slot_map(&self, at: u64, of: &Type, found: &mut dyn FnMut(Element) -> GoesOn) -> GoesOn {
        let (size, align) = self.record.size(of)?;
        let value = 8u64.next_multiple_of(align);
        let slot = (value + size).next_multiple_of(align.max(4));
        let Some(items) = self.link(at)? else { return Ok(true) };
        let count = self.word(at + 8)?;
        self.check(items, count.checked_mul(slot).ok_or("it is damaged")?)?;
        for index in 0..count {
            let place = items + index * slot;
            let generation = self.number(place, 4)? as u32;
            let there = (generation % 2 == 1).then_some(place + value);
            if !found(Element::Slot((index, generation), there))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sizes and alignments of a map's keys and values.
    fn sizes(&self, of: &Type) -> Result<[(u64, u64); 2], String> {
        let value = if of.name.ends_with("Map") { self.record.size(of.parameter(1)?)? } else { (0, 1) };
        Ok([self.record.size(of.parameter(0)?)?, value])
    }

    fn hash_map(&self, at: u64, of: &Type, found: &mut dyn FnMut(Element) -> GoesOn) -> GoesOn {
        let [(key, key_align), (value, value_align)] = self.sizes(of)?;
        let align = key_align.max(value_align);
        let value_at = key.next_multiple_of(value_align);
        let slot = (value_at + value).next_multiple_of(align);
        let Some(directory) = self.link(at)? else { return Ok(true) };
        let (depth, most) = (self.number(at + 32, 4)? as u32, self.word(at + 8)?);
        let places = 1u64.checked_shl(depth).ok_or("a directory is beyond all memory: it is damaged")?;
        self.check(directory, places.saturating_mul(8))?;
        let (mut place, mut met) = (0, 0u64);
        while place < places {
            let door = directory + place * 8;
            let header = door.wrapping_add_signed(self.word(door)? as i64 >> 8);
            (self.owns)(header)?;
            let (local, groups) = (self.number(header, 4)? as u32, self.number(header + 4, 4)? as u64);
            if local > depth {
                return Err(format!("the table at {header} is deeper than its directory: it is damaged"));
            }
            let tags = self.copy(header.saturating_add(16), groups * GROUP as u64)?;
            let slots = header + (16 + tags.len() as u64).next_multiple_of(align);
            self.check(slots, slot.saturating_mul(tags.len() as u64))?;
            for (i, _) in tags.iter().enumerate().filter(|(_, tag)| **tag < 0x80) {
                // A map that says how many entries it has has no more, by however many ways a table is reached.
                met += 1;
                if met > most {
                    return Err(format!("the map at {at} has more entries than it counts: it is damaged"));
                }
                let entry = slots + i as u64 * slot;
                if !found(Element::Entry(entry, entry + value_at))? {
                    return Ok(false);
                }
            }
            place += 1 << (depth - local);
        }
        Ok(true)
    }

    fn btree_map(&self, at: u64, of: &Type, found: &mut dyn FnMut(Element) -> GoesOn) -> GoesOn {
        let sizes = self.sizes(of)?;
        let Some(root) = self.link(at)? else { return Ok(true) };
        // Each entry takes a byte at least, but for what has none.
        let mut most = self.word(at + 8)?.min(self.bytes.len());
        let height = self.number(at + 16, 4)? as u32;
        if height > 30 {
            return Err(format!("the tree at {at} is higher than any: it is damaged"));
        }
        let mut counted = |element: Element| {
            most = most.checked_sub(1).ok_or("a tree has more entries than it counts: it is damaged")?;
            found(element)
        };
        self.node(root, height, sizes, &mut counted)
    }

    fn node(
        &self,
        at: u64,
        height: u32,
        sizes: [(u64, u64); 2],
        found: &mut dyn FnMut(Element) -> GoesOn,
    ) -> GoesOn {
        let [(key, key_align), (value, value_align)] = sizes;
        let len = self.word(at)?;
        self.look()?;
        if len > MOST as u64 {
            return Err(format!("the node at {at} has more entries than a node has: it is damaged"));
        }
        let keys = at + 8u64.next_multiple_of(key_align);
        let keys_end = keys + key * MOST as u64 - at;
        let values = at + keys_end.next_multiple_of(value_align);
        let leaf = (values + value * MOST as u64 - at).next_multiple_of(key_align.max(value_align).max(8));
        for i in 0..=len {
            if height > 0 {
                let child = self.link(at + leaf + i * 8)?.ok_or("a child is missing: it is damaged")?;
                if !self.node(child, height - 1, sizes, found)? {
                    return Ok(false);
                }
            }
            if i < len && !found(Element::Entry(keys + i * key, values + i * value))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
