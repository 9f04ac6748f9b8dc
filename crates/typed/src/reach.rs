//! What the roots of a heap reach, by the layouts that are recorded, and what they don't: objects that nothing
//! owns any more. Safe programs leave some when they forget ([`std::mem::forget`]) what they took out of a
//! collection; a transaction that was undone, or cut short by a crash, leaves none. There are no cycles of owners:
//! a counted object is changed while it has one owner only ([`PRc`](crate::PRc)), so none can be made its own.

use crate::error::Error;
use crate::objects::{ANCHOR, KEPT, KEPT_TYPES, Objects, TYPES, read_types};
use crate::shared::set_counts;
use crate::show::reader::{Element, Parts, Reader};
use crate::show::record::{Record, Type};
use crate::value::recoverable::Recoverable;
use crate::value::tx::Tx;
use caliburn_heap::{Heap, Place};
use caliburn_os::simulated::{planted, unless};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

/// What no root of a heap reaches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unreached {
    /// Objects, with the bytes that each can hold.
    pub objects: Vec<(Place, usize)>,
    /// Reached objects with counts that name owners or weak pointers that are not there: where they are, and how
    /// many owners and weak pointers there are.
    pub counts: Vec<(Place, [u64; 2])>,
}

impl Unreached {
    /// Bytes that the objects take.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|(_, len)| *len as u64).sum()
    }

    /// Whether everything is reached, and counted as it is.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.counts.is_empty()
    }
}

/// What no root of the heap reaches. It takes some sixteen bytes of memory for each object, and time for every
/// value that owns something. Nobody changes the heap meanwhile.
///
/// # Errors
/// [`Error::NotTyped`] when the heap is not one of typed objects, or not what its record says: an object with two
/// owners that know nothing of each other, a pointer to where no object is; while prepared transactions are
/// undecided.
pub fn unreached(heap: &Heap) -> Result<Unreached, Error> {
    let bad = |why: String| Error::NotTyped { heap: heap.name().to_owned(), why };
    let mut rooted = vec![typed_root(heap, ANCHOR, TYPES)?];
    if heap.root(KEPT).is_some() && !planted("kept-objects-unreached") {
        rooted.push(typed_root(heap, KEPT, KEPT_TYPES)?);
    }
    if !heap.prepared().is_empty() {
        return Err(bad("what undecided transactions hold, no root reaches: decide them first".to_owned()));
    }
    let named = heap.roots().into_iter().map(|(_, place)| place.0);
    let (marks, counts) = reached(heap, &rooted, named.collect())?;
    Ok(Unreached { counts, objects: heap.objects().filter(|(place, _)| !marks.contains(&place.0)).collect() })
}

/// The root of typed objects of that name, with its record.
fn typed_root(heap: &Heap, anchor: &str, types: &str) -> Result<(Place, Record), Error> {
    let bad = |why: String| Error::NotTyped { heap: heap.name().to_owned(), why };
    let (Some(anchor), Some(types)) = (heap.root(anchor), heap.root(types)) else {
        return Err(bad(format!("it has no root of typed objects by the names {anchor} and {types}")));
    };
    Ok((anchor, Record::parse(&read_types(heap, types)?).map_err(bad)?))
}

/// Follows everything from a root: whether it is whole, with each object owned once and counted as it is.
///
/// # Errors
/// [`Error::NotTyped`] when it is not.
pub(crate) fn verify(heap: &Heap, anchor: Place, record: Record) -> Result<(), Error> {
    let (_, counts) = reached(heap, &[(anchor, record)], HashSet::from([anchor.0]))?;
    let wrong = counts.first().map(|(place, _)| {
        let why = format!("the object at {} counts owners that are not there: it is damaged", place.0);
        Error::NotTyped { heap: heap.name().to_owned(), why }
    });
    wrong.map_or(Ok(()), Err)
}

/// Places of objects; and objects that name other counts than there are, with those.
type Reached = (HashSet<u64>, Vec<(Place, [u64; 2])>);

/// What roots reach, with the places that are `named`.
fn reached(heap: &Heap, roots: &[(Place, Record)], named: HashSet<u64>) -> Result<Reached, Error> {
    let bad = |why: String| Error::NotTyped { heap: heap.name().to_owned(), why };
    let marks = RefCell::new(named);
    let mut wrong = Vec::new();
    let owns = |at: u64| match heap.usable_len(Place(at)) {
        Ok(_) if marks.borrow_mut().insert(at) => Ok(()),
        Ok(_) => Err(format!("the object at {at} has two owners: it is damaged")),
        Err(_) => Err(format!("a pointer leads to {at}, where no object is: it is damaged")),
    };
    for (anchor, record) in roots {
        let reader = Reader { bytes: heap.region(), record, left: Cell::new(u64::MAX), owns: &owns };
        let counts = walk(&reader, record.root_at(anchor.0).map_err(bad)?).map_err(bad)?;
        for (at, [owners, weak]) in counts {
            owns(at).map_err(bad)?;
            let stored = [reader.word(at).map_err(bad)?, reader.word(at + 8).map_err(bad)?];
            // All owners together count as one weak pointer.
            let there = [owners, weak + u64::from(owners > 0)];
            if stored != there {
                wrong.push((Place(at), there));
            }
        }
    }
    wrong.sort_unstable();
    Ok((marks.into_inner(), wrong))
}

/// Pointers that lead to each counted object, those that own it and the others.
type Counts = HashMap<u64, [u64; 2]>;

/// Goes everywhere from the root. A list of what is still to be looked at, since a chain may be a million long.
fn walk<'r>(reader: &Reader<'r>, root: u64) -> Result<Counts, String> {
    let record = reader.record;
    let (mut counts, mut owning) = (Counts::new(), HashMap::new());
    let mut todo: Vec<(u64, &'r Type)> = vec![(root, &record.root)];
    while let Some((at, of)) = todo.pop() {
        let mut go = |at: u64, of: &'r Type| {
            if owns_something(record, of, &mut owning) {
                todo.push((at, of));
            }
        };
        match reader.parts(at, of)? {
            Parts::Single(_) | Parts::Other(None) | Parts::Counted(None) => {}
            Parts::Other(Some((at, of))) => go(at, of),
            Parts::Counted(Some(counted)) => {
                let count = counts.entry(counted.at).or_default();
                count[usize::from(!counted.owned)] += 1;
                if counted.owned && count[0] == 1 {
                    go(counted.value.0, counted.value.1);
                }
            }
            Parts::Fields(_, _, fields) => {
                fields.iter().for_each(|field| go(at.saturating_add(field.offset), &field.of));
            }
            Parts::Items(_, item) => {
                reader.each(at, of, &mut |element| {
                    if let Element::Item(at) = element {
                        go(at, item);
                    }
                    Ok(true)
                })?;
            }
            Parts::Slots(_, value) => {
                reader.each(at, of, &mut |element| {
                    if let Element::Slot(_, Some(at)) = element {
                        go(at, value);
                    }
                    Ok(true)
                })?;
            }
            Parts::Entries(_, key_type, value_type) => {
                reader.each(at, of, &mut |element| {
                    if let Element::Entry(key, value) = element {
                        go(key, key_type);
                        value_type.into_iter().for_each(|of| go(value, of));
                    }
                    Ok(true)
                })?;
            }
        }
    }
    Ok(counts)
}

/// Whether a value of the type may own, or point to, something.
fn owns_something<'r>(record: &'r Record, of: &'r Type, known: &mut HashMap<&'r str, bool>) -> bool {
    if let Some(known) = known.get(&*of.text) {
        return *known;
    }
    // A type that holds itself does so through something that owns.
    known.insert(&of.text, true);
    let mut any = |of: &'r Type| owns_something(record, of, known);
    let owns = match record.layouts.get(&of.text) {
        Some(layout) if layout.tag > 0 => {
            layout.variants.iter().flat_map(|(_, _, fields)| fields).any(|field| any(&field.of))
        }
        Some(layout) if of.name != "Option" => layout.fields.iter().any(|field| any(&field.of)),
        _ if of.name == "Option" || of.count.is_some() => of.of.iter().any(any),
        _ => of.name.starts_with('P') && of.name != "PhantomData",
    };
    known.insert(&of.text, owns);
    owns
}

/// Objects that are freed in a transaction.
const BATCH: usize = 4096;

/// Frees what no root reaches, in transactions of some thousand objects; what was found. Whenever it is cut short,
/// the rest is found again.
///
/// # Errors
/// As [`unreached`]; when the log or the disk is full.
pub fn reclaim(heap: &Heap) -> Result<Unreached, Error> {
    let found = unreached(heap)?;
    for batch in batches(&found) {
        crate::objects::run::<(), Error>(heap, [0; 2], &[], None, |tx| {
            batch.apply(tx);
            Ok(())
        })?;
    }
    Ok(found)
}

/// A part of what is to be done, for a transaction.
pub(crate) struct Batch<'f> {
    counts: &'f [(Place, [u64; 2])],
    objects: &'f [(Place, usize)],
}

pub(crate) fn batches(found: &Unreached) -> impl Iterator<Item = Batch<'_>> {
    // Counts first: they stay right whatever becomes of the objects.
    let counts = found.counts.chunks(BATCH).map(|counts| Batch { counts, objects: &[] });
    counts.chain(found.objects.chunks(BATCH).map(|objects| Batch { counts: &[], objects }))
}

impl Batch<'_> {
    pub(crate) fn apply(&self, tx: Tx<'_>) {
        for (place, [owners, weak]) in self.counts.iter().filter(|_| unless("leaked-owner-counted", true)) {
            let at = tx.at::<u64>(*place);
            tx.declare(at, 2);
            // SAFETY: two counts of an object that is there, declared.
            unsafe { set_counts(at, [*owners, *weak]) }
        }
        self.objects.iter().for_each(|(place, _)| tx.free(tx.at::<u8>(*place)));
    }
}

impl<R: Recoverable> Objects<R> {
    /// What the root does not reach: objects that the program has taken out of their places and forgotten
    /// ([`std::mem::forget`]). Waits for the end of the transaction that is open, and keeps others waiting.
    ///
    /// # Panics
    /// As [`Objects::read`].
    ///
    /// # Errors
    /// As [`unreached`].
    pub fn unreached(&self) -> Result<Unreached, Error> {
        let _turn = self.inner.turns.read();
        unreached(&self.inner.heap)
    }

    /// Frees that, in transactions of some thousand objects.
    ///
    /// # Panics
    /// As [`Objects::write`].
    ///
    /// # Errors
    /// As [`unreached`], and as [`Objects::transact`].
    pub fn reclaim(&self) -> Result<Unreached, Error> {
        let mut writer = self.write();
        let found = unreached(&self.inner.heap)?;
        for batch in batches(&found) {
            writer.transact(|root| {
                batch.apply(root.tx());
                Ok::<(), Error>(())
            })?;
        }
        Ok(found)
    }
}
