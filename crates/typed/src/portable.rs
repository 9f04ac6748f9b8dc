//! Objects as text, or as CBOR: whoever keeps something in a store can take it elsewhere, with or without the
//! program that made it, and bring it back.
//!
//! ```text
//! {"caliburn":1,"root":"Bank","types":"caliburn types 1\n..."}
//! {"at":["accounts"],"key":"ann","value":{"balance":5}}
//! {"at":["history"],"item":17}
//! {"at":["transfers"],"is":1}
//! {"end":3}
//! ```
//!
//! A line, or an item of a CBOR sequence (RFC 8742), for each value of a collection that fields lead to from the
//! root: so neither side needs memory for more than one. Numbers that JSON has not are texts, and maps whose keys
//! are no texts are lists of pairs. An object with several owners has a number (`#`) and is there once (`=`).

use crate::error::Error;
use crate::objects::{ANCHOR, IMPORT, Objects, TYPES, is_empty, read_types, run};
use crate::pieces::{Pieces, WHOLE};
use crate::rebuild::{Progressed, Rebuild, wipe};
use crate::show::reader::{Bytes, Reader};
use crate::show::record::Record;
use crate::value::datum::{Datum, NUMBER, Piece, VALUE};
use crate::value::layout::Types;
use crate::value::recoverable::{Init, Recoverable};
use caliburn_engine::Store;
use caliburn_heap::Heap;
use caliburn_os::simulated::unless;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use std::cell::Cell;
use std::fmt;
use std::io::{BufRead, Write};
use std::ops::ControlFlow;

/// How objects are written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A line of JSON for each piece.
    JsonLines,
    /// A sequence of CBOR items.
    Cbor,
}

/// Values in values that are written; each takes three levels of a document at most.
const DEEPEST: u32 = 150;
/// Levels of a document that are read.
const LEVELS: u32 = 500;
const VERSION: u32 = 1;

impl Serialize for Datum {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Datum::Nothing | Datum::Vacant => to.serialize_unit(),
            Datum::Bool(value) => to.serialize_bool(*value),
            Datum::Number(digits) => number(digits, to),
            Datum::Text(text) => to.serialize_str(text),
            Datum::List(items) => to.collect_seq(items),
            Datum::Map(entries) if !entries.is_empty() && entries.iter().all(|(key, _)| is_text(key)) => {
                to.collect_map(entries.iter().map(|(key, value)| (key, value)))
            }
            Datum::Map(entries) => {
                let mut list = to.serialize_seq(Some(entries.len()))?;
                entries.iter().try_for_each(|pair| list.serialize_element(pair))?;
                list.end()
            }
            Datum::Fields(fields) => to.collect_map(fields.iter().map(|(name, value)| (name, value))),
            Datum::Counted(number, value) => {
                let mut map = to.serialize_map(None)?;
                if let Some(number) = number {
                    map.serialize_entry(NUMBER, number)?;
                }
                if let Some(value) = value {
                    map.serialize_entry(VALUE, value)?;
                }
                map.end()
            }
        }
    }
}

fn is_text(key: &Datum) -> bool {
    matches!(key, Datum::Text(_))
}

/// A number, if the format's numbers have all of its digits.
fn number<S: Serializer>(digits: &str, to: S) -> Result<S::Ok, S::Error> {
    if digits.bytes().all(|digit| digit.is_ascii_digit() || digit == b'-') && digits != "-0" {
        return match (digits.parse::<u64>(), digits.parse::<i64>()) {
            (Ok(value), _) => to.serialize_u64(value),
            (_, Ok(value)) => to.serialize_i64(value),
            _ => to.serialize_str(digits),
        };
    }
    match digits.parse::<f64>() {
        Ok(value) if value.is_finite() => to.serialize_f64(value),
        _ => to.serialize_str(digits),
    }
}

/// Reads a datum that may have so many levels.
struct Levels(u32);

impl<'de> DeserializeSeed<'de> for Levels {
    type Value = Datum;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Datum, D::Error> {
        if self.0 == 0 {
            return Err(serde::de::Error::custom(format!("it has more than {LEVELS} levels")));
        }
        from.deserialize_any(self)
    }
}

macro_rules! visit {
    ($($name:ident $type:ty => $of:expr;)*) => {$(
        fn $name<E>(self, value: $type) -> Result<Datum, E> {
            Ok($of(value))
        }
    )*};
}

impl<'de> Visitor<'de> for Levels {
    type Value = Datum;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    visit! {
        visit_bool bool => Datum::Bool;
        visit_u64 u64 => |value: u64| Datum::Number(value.to_string());
        visit_i64 i64 => |value: i64| Datum::Number(value.to_string());
        visit_u128 u128 => |value: u128| Datum::Number(value.to_string());
        visit_i128 i128 => |value: i128| Datum::Number(value.to_string());
        visit_f64 f64 => |value: f64| Datum::Number(value.to_string());
        visit_str &str => |value: &str| Datum::Text(value.to_owned());
        visit_string String => Datum::Text;
    }

    fn visit_unit<E>(self) -> Result<Datum, E> {
        Ok(Datum::Nothing)
    }

    fn visit_none<E>(self) -> Result<Datum, E> {
        Ok(Datum::Nothing)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Datum, D::Error> {
        self.deserialize(from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Datum, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element_seed(Levels(self.0 - 1))? {
            items.push(item);
        }
        Ok(Datum::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Datum, A::Error> {
        let mut fields = Vec::new();
        while let Some(name) = from.next_key::<String>()? {
            fields.push((name, from.next_value_seed(Levels(self.0 - 1))?));
        }
        Ok(Datum::Fields(fields))
    }
}

/// Writes data down, one after the other.
struct Writing<W> {
    out: W,
    format: Format,
    lines: u64,
}

impl<W: Write> Writing<W> {
    fn put(&mut self, fields: Vec<(&str, Datum)>) -> Result<(), Error> {
        let named = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let datum = Datum::Fields(named);
        self.lines += 1;
        let line = self.lines;
        let fail = |why: String| Error::Portable { line, why };
        match self.format {
            Format::JsonLines => {
                serde_json::to_writer(&mut self.out, &datum).map_err(|e| fail(e.to_string()))?;
                self.out.write_all(b"\n").map_err(|e| fail(e.to_string()))
            }
            Format::Cbor => ciborium::into_writer(&datum, &mut self.out).map_err(|e| fail(e.to_string())),
        }
    }
}

/// Reads them again.
struct Reading<B> {
    from: B,
    format: Format,
    line: u64,
    text: Vec<u8>,
}

impl<B: BufRead> Reading<B> {
    fn fail(&self, why: impl Into<String>) -> Error {
        Error::Portable { line: self.line, why: why.into() }
    }

    /// The next datum's fields.
    fn next(&mut self) -> Result<Option<Vec<(String, Datum)>>, Error> {
        self.line += 1;
        let datum = match self.format {
            Format::JsonLines => {
                self.text.clear();
                let read = self.from.read_until(b'\n', &mut self.text);
                if read.map_err(|e| self.fail(e.to_string()))? == 0 {
                    return Ok(None);
                }
                let mut json = serde_json::Deserializer::from_slice(&self.text);
                json.disable_recursion_limit();
                let read = Levels(LEVELS).deserialize(&mut json);
                read.and_then(|datum| json.end().map(|()| datum)).map_err(|e| self.fail(e.to_string()))?
            }
            Format::Cbor => {
                let ends = self.from.fill_buf().map(<[u8]>::is_empty);
                if ends.map_err(|e| self.fail(e.to_string()))? {
                    return Ok(None);
                }
                let Whole(datum) =
                    ciborium::de::from_reader_with_recursion_limit(&mut self.from, LEVELS as usize)
                        .map_err(|e| self.fail(e.to_string()))?;
                datum
            }
        };
        match datum {
            Datum::Fields(fields) => Ok(Some(fields)),
            _ => Err(self.fail("it is no object")),
        }
    }
}

/// A datum with as many levels as there may be.
struct Whole(Datum);

impl<'de> serde::Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Whole, D::Error> {
        Levels(LEVELS).deserialize(from).map(Whole)
    }
}

/// Writes all typed objects of a heap down. `progressed` is told how many pieces were written, and may end it.
/// Nobody changes the heap meanwhile: programs export while they write by [`Objects::export`].
///
/// # Errors
/// [`Error::NotTyped`] when the heap is not one of typed objects, or not what its record says; [`Error::Portable`]
/// when it cannot be written; [`Error::Interrupted`].
pub fn export(
    heap: &Heap,
    format: Format,
    out: impl Write,
    progressed: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<u64, Error> {
    write(heap, heap.region(), format, out, progressed)
}

fn write(
    heap: &Heap,
    bytes: &dyn Bytes,
    format: Format,
    out: impl Write,
    mut progressed: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<u64, Error> {
    let bad = |why: String| Error::NotTyped { heap: heap.name().to_owned(), why };
    let (Some(anchor), Some(types)) = (heap.root(ANCHOR), heap.root(TYPES)) else {
        return Err(bad("it has no root of typed objects".to_owned()));
    };
    let text = read_types(heap, types)?;
    let record = Record::parse(&text).map_err(bad)?;
    let mut to = Writing { out, format, lines: 0 };
    to.put(vec![
        ("caliburn", Datum::Number(VERSION.to_string())),
        ("root", Datum::Text(record.root.text.clone())),
        ("types", Datum::Text(text)),
    ])?;
    let reader = Reader { bytes, record: &record, left: Cell::new(u64::MAX), owns: &|_| Ok(()) };
    let (mut failed, mut count) = (None, 0);
    let mut put = |path: &[String], piece| {
        let mut fields = Vec::with_capacity(3);
        if !path.is_empty() {
            fields.push(("at", Datum::List(path.iter().map(|name| Datum::Text(name.clone())).collect())));
        }
        match piece {
            Piece::Whole(value) => fields.push(("is", value)),
            Piece::Item(value) => fields.push(("item", value)),
            Piece::Entry(key, value) => fields.extend([("key", key), ("value", value)]),
        }
        to.put(fields)?;
        count += 1;
        match progressed(count) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Interrupted),
        }
    };
    let root = record.root_at(anchor.0).map_err(bad)?;
    let done = Pieces::each(&reader, root, DEEPEST, WHOLE, &mut |path, piece| {
        put(path, piece).map_err(|error| {
            failed = Some(error);
            String::new()
        })
    });
    match (failed, done) {
        (Some(error), _) => return Err(error),
        (None, done) => done.map_err(bad)?,
    }
    to.put(vec![("end", Datum::Number(count.to_string()))])?;
    let line = to.lines;
    to.out.flush().map_err(|e| Error::Portable { line, why: e.to_string() })?;
    Ok(count)
}

impl<R> Objects<R>
where
    R: Recoverable + Default + for<'id> Init<'id, R>,
{
    /// Writes all objects down as they are now, while transactions go on; how many pieces there were. `progressed`
    /// is told how many were written, and may end it. `caliburn export` does it without the program.
    ///
    /// ```
    /// use caliburn::prelude::*;
    /// use caliburn::typed::Format;
    /// use std::ops::ControlFlow;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let words = Objects::<PBTreeMap<PString, u64>>::create(dir.path().join("words"))?;
    /// words.update(|mut words| drop(words.insert("memory", 2)))?;
    /// let mut text = Vec::new();
    /// words.export(Format::JsonLines, &mut text, |_| ControlFlow::Continue(()))?;
    /// assert!(String::from_utf8(text.clone())?.contains(r#"{"key":"memory","value":2}"#));
    ///
    /// // Into another store, and another kind of map.
    /// let store = Store::options().create(true).open(dir.path().join("copy"))?;
    /// let go_on = |_| ControlFlow::Continue(());
    /// let copy = Objects::<PHashMap<PString, u64>>::import(&store, "words", Format::JsonLines, &text[..], go_on)?;
    /// assert_eq!(copy.read().get("memory"), Some(&2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotTyped`] where values are in each other too deep, as in a long chain of boxes; [`Error::Portable`]
    /// when it cannot be written; [`Error::Interrupted`]; as [`Objects::snapshot`].
    pub fn export(
        &self,
        format: Format,
        out: impl Write,
        progressed: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<u64, Error> {
        let snapshot = self.snapshot()?;
        write(&self.inner.heap, snapshot.image(), format, out, progressed)
    }

    /// Makes the objects of a new heap of what was exported, of these types or of others: fields go by their
    /// names, as with [`Objects::migrate_fields`]. Until it is complete, the heap cannot be opened; after an
    /// error, an interruption or a crash the next import begins anew.
    ///
    /// # Errors
    /// [`Error::Portable`] when the text is not what was exported, or not all of it; [`Error::NotMade`] when a value
    /// cannot be made of it; [`Error::NotTyped`] when there is something in the heap; as [`Objects::open`].
    pub fn import(
        store: &Store,
        name: &str,
        format: Format,
        from: impl BufRead,
        mut progressed: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Objects<R>, Error> {
        let heap = Heap::open(store, name)?;
        if heap.root(IMPORT).is_some() {
            wipe(&heap)?;
        }
        if !is_empty(&heap) {
            let why = "there are objects in it already".to_owned();
            return Err(Error::NotTyped { heap: name.to_owned(), why });
        }
        let mut reading = Reading { from, format, line: 0, text: Vec::new() };
        begin(&mut reading)?;
        let (anchor, _) = Objects::<R>::make(&heap, &Types::record::<R>(), true)?;
        let imported = fill::<R>(&heap, anchor, &mut reading, &mut progressed);
        if imported.is_err() {
            wipe(&heap)?;
        }
        imported?;
        if unless("import-not-ended", true) {
            run::<(), Error>(&heap, [0; 2], &[], None, |tx| {
                tx.remove_root(IMPORT);
                Ok(())
            })?;
        }
        drop(heap);
        Objects::open(store, name)
    }
}

/// Reads the first line.
fn begin(reading: &mut Reading<impl BufRead>) -> Result<(), Error> {
    let fields = reading.next()?.ok_or_else(|| reading.fail("there is nothing"))?;
    let version = fields.iter().find(|(name, _)| name == "caliburn").map(|(_, version)| version);
    match version {
        Some(Datum::Number(version)) if *version == VERSION.to_string() => Ok(()),
        Some(version) => {
            Err(reading.fail(format!("its version is {version:?}; this program knows {VERSION}")))
        }
        None => Err(reading.fail("it does not begin as what Caliburn exports")),
    }
}

/// Puts the rest together.
fn fill<R: Recoverable>(
    heap: &Heap,
    anchor: caliburn_heap::Place,
    reading: &mut Reading<impl BufRead>,
    progressed: &mut Progressed<'_>,
) -> Result<(), Error> {
    // SAFETY: the anchor was just made, and nobody else has the heap.
    let mut rebuild = unsafe { Rebuild::<R>::new(heap, anchor, progressed) };
    let mut count = 0;
    loop {
        let fields = reading.next()?.ok_or_else(|| reading.fail("it ends before its end: it was cut off"))?;
        let (mut path, mut parts) = (Vec::new(), [const { None }; 4]);
        for (name, value) in fields {
            match (name.as_str(), value) {
                ("at", Datum::List(names)) => {
                    for name in names {
                        let Datum::Text(name) = name else { return Err(reading.fail("a path is of names")) };
                        path.push(name);
                    }
                }
                ("is", value) => parts[0] = Some(value),
                ("item", value) => parts[1] = Some(value),
                ("key", value) => parts[2] = Some(value),
                ("value", value) => parts[3] = Some(value),
                ("end", Datum::Number(end)) if end == count.to_string() => return rebuild.finish().map(drop),
                ("end", Datum::Number(end)) => {
                    return Err(reading.fail(format!("{end} pieces were written, {count} are there")));
                }
                (name, _) => return Err(reading.fail(format!("{name:?} is not known"))),
            }
        }
        let piece = match parts {
            [Some(value), None, None, None] => Piece::Whole(value),
            [None, Some(value), None, None] => Piece::Item(value),
            [None, None, Some(key), Some(value)] => Piece::Entry(key, value),
            _ => return Err(reading.fail("it is no piece")),
        };
        count += 1u64;
        rebuild.put(&path, piece)?;
    }
}
