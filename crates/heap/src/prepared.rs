//! Prepared transactions that have allocated or freed: undecided, across crashes too.
//!
//! A word of a row tells of 48 objects, so an undecided transaction cannot have changed it: it would hold up all who
//! allocate beside it. What it did is in an intentions list (Lampson), an object of the heap itself:
//!
//! ```text
//!   prepare    a transaction commits the list, and the words of what was taken
//!              the prepared transaction carries, with its own changes, the list's DECIDED
//!   undecided  what was taken is FRESH, what was given up is GIVEN UP: nobody has either
//!   decided    a transaction takes the list away, and the words of what was given up, or of what was taken
//! ```
//!
//! Invariant: a list that is there belongs to the transaction among whose ranges the store names its DECIDED; or
//! there is none, and DECIDED tells how it was decided: stored with what it changed, undone with it. So whoever
//! opens the heap can finish it. Identifiers do not tell: one can be refused since it is in use, and be used again.

use crate::change::{self, Change, of_objects};
use crate::class::{SIZES, SPAN};
use crate::heap::{Heap, HeapError, Place, lock};
use crate::intentions::{DECIDED, Intentions, NEXT};
use crate::meta::{self, Kind, PER_WORD};
use crate::transaction::HeapTransaction;
use caliburn_engine::zerocopy::IntoBytes;
use caliburn_engine::{Class, CommitError, Prepared};
use caliburn_os::simulated::{planted, unless};
use std::collections::HashSet;
use std::ops::Range;

/// Where the first list is named, in the header: its place and one.
const FIRST: u64 = 24;
/// Bytes that a changed word takes in the log.
const RANGE_BYTES: u64 = 24;
/// What else takes room.
const SMALL_BYTES: u64 = 16 << 10;

impl HeapTransaction<'_> {
    /// Makes the transaction durable but undecided
    /// ([`Transaction::prepare`](caliburn_engine::Transaction::prepare)): until [`Heap::commit_prepared`] or
    /// [`Heap::abort_prepared`], across crashes too, nobody is given what it has allocated or freed. Keep the heap
    /// until then: dropped, it cannot be opened again in this process.
    ///
    /// # Errors
    /// As for the engine's, and when the heap is full: the transaction is aborted. When it names a root: let a root
    /// name an object in which the transaction changes something.
    ///
    /// # Panics
    /// As [`HeapTransaction::commit`].
    pub fn prepare(mut self, global_id: &[u8]) -> Result<(), HeapError> {
        let heap = self.heap;
        heap.own()?;
        if let Some((name, _)) = self.rare.iter().flat_map(|rare| &rare.roots).next() {
            return Err(heap.root_error(name, "a transaction that changes roots cannot be prepared"));
        }
        self.verify();
        if self.changes.is_empty() {
            return Ok(self.tx.take().expect("not spent").prepare(global_id)?);
        }
        self.changes.sort_unstable();
        heap.refuse_too_many(&self.changes)?;
        let place = heap.intend(&self.changes, global_id)?;
        // From here on the list says what becomes of the objects.
        self.changes.clear();
        let mut tx = self.tx.take().expect("not spent");
        let prepared = tx
            .store(&heap.data, place.0 as usize + DECIDED * 8, &1u64)
            .map_err(HeapError::from)
            .and_then(|()| Ok(tx.prepare(global_id)?));
        if prepared.is_err() {
            heap.settle(place, false);
        }
        prepared
    }
}

impl Heap {
    /// Commits a prepared transaction, in the `Power` class, and what it did to the heap.
    ///
    /// # Errors
    /// As [`Store::commit_prepared`](caliburn_engine::Store::commit_prepared); undecided then. If the heap's own
    /// part fails after it, the transaction is committed and this is no error: the next opening of the heap
    /// finishes it.
    pub fn commit_prepared(&self, global_id: &[u8]) -> Result<(), CommitError> {
        self.own()?;
        let place = self.intended_by(global_id);
        self.store.commit_prepared(global_id)?;
        place.into_iter().for_each(|place| self.settle(place, true));
        Ok(())
    }

    /// Aborts a prepared transaction, in the `Power` class: the old values are back, what it allocated is free, and
    /// what it freed is not.
    ///
    /// # Errors
    /// As [`Heap::commit_prepared`].
    pub fn abort_prepared(&self, global_id: &[u8]) -> Result<(), CommitError> {
        self.own()?;
        let place = self.intended_by(global_id);
        self.store.abort_prepared(global_id)?;
        place.into_iter().for_each(|place| self.settle(place, false));
        Ok(())
    }

    /// The identifiers of prepared transactions that allocated or freed here and are undecided, or decided but not
    /// by [`Heap::commit_prepared`] or [`Heap::abort_prepared`]: those hold what they took until the heap is
    /// opened again.
    pub fn prepared(&self) -> Vec<Vec<u8>> {
        // Those of transactions that commit at once have no identifier.
        let lists = lock(&self.intentions);
        let prepared = lists.iter().map(|list| list.global_id.clone()).filter(|id| !id.is_empty());
        prepared.collect()
    }

    /// Commits a list of what an open transaction did, with what it took.
    pub(crate) fn intend(&self, changes: &[Change], global_id: &[u8]) -> Result<Place, HeapError> {
        let mut lists = lock(&self.intentions);
        let next = lists.last().map_or(0, |list| list.place + 1);
        let words = Intentions::encode(next, changes, global_id);
        let mut tx = self.begin()?;
        let place = tx.allocate_list(words.len() * 8)?;
        tx.write(place, 0, words.as_bytes())?;
        let first = meta::seal(place.0 + 1, FIRST);
        tx.inner().store(&self.meta, FIRST as usize, &first)?;
        let taken =
            changes.iter().filter(|change| !change.freed() && unless("intended-words-forgotten", true));
        // It is no program's object, and never was: nobody can free it.
        let own = tx.changes.pop().expect("it was just allocated");
        tx.rare.get_or_insert_default().others = taken.copied().chain([own]).collect();
        if let Err(error) = tx.commit(Class::Process) {
            self.put(own.span(), own.object());
            return Err(error);
        }
        let span = self.spans.get(own.span());
        span.give_up(span.kind(), own.object(), true);
        lists.push(Intentions { place: place.0, global_id: global_id.to_vec(), changes: changes.to_vec() });
        Ok(place)
    }

    /// Makes a list that is found an object that is none for programs: nobody may free it.
    fn hide(&self, place: Place) -> Result<(), HeapError> {
        let (span, object, kind) = self.place_in_span(place)?;
        self.spans.get(span).give_up(kind, object, false);
        Ok(())
    }

    /// The list of an undecided transaction.
    pub(crate) fn intended_by(&self, global_id: &[u8]) -> Option<Place> {
        let lists = lock(&self.intentions);
        if planted("intentions-by-name") {
            return lists.iter().rfind(|list| list.global_id == global_id).map(|list| Place(list.place));
        }
        // Most transactions have none.
        lists.iter().find(|list| list.global_id == global_id)?;
        let prepared = self.store.prepared_or_deciding();
        let own = prepared.iter().find(|prepared| prepared.global_id == global_id)?;
        lists.iter().map(|list| Place(list.place)).find(|place| self.is_bound(*place, own))
    }

    /// Whether a list is that of a transaction: it is to store the list's DECIDED.
    fn is_bound(&self, place: Place, prepared: &Prepared) -> bool {
        let (segment, word) = (self.data.segment_id(), place.0 + DECIDED as u64 * 8);
        prepared
            .ranges
            .iter()
            .any(|(of, range)| *of == segment && range.start <= word && word + 8 <= range.end)
    }

    /// Refuses a transaction of which it is not certain that what it did can be settled in one other: it may change
    /// a word for each of its objects, on as many pages.
    pub(crate) fn refuse_too_many(&self, changes: &[Change]) -> Result<(), HeapError> {
        let mut words: Vec<u64> =
            changes.iter().map(|c| meta::word_at(c.span(), 1 + c.object() / PER_WORD)).collect();
        words.dedup();
        // Heads of spans stand before the words of their objects.
        let spans = changes.chunk_by(|a, b| a.span() == b.span()).count() as u64;
        let query = self.store.query();
        let mut pages: Vec<u64> = words.iter().map(|word| word / query.page_bytes).collect();
        pages.dedup();
        let log = (words.len() as u64 + spans) * RANGE_BYTES + SMALL_BYTES;
        let memory = (pages.len() as u64 + spans.min(pages.len() as u64)) * query.page_bytes + SMALL_BYTES;
        // Without a log there is nothing that it could be too large for.
        let limited = query.log_bytes > 0;
        if limited && (log > query.log_bytes / 2 || memory > query.memory_budget / 2) {
            let objects = of_objects(changes).count();
            return Err(HeapError::TooMany { heap: self.name().to_owned(), objects });
        }
        Ok(())
    }

    /// Does to the heap what a decided transaction intended. If that fails, the list stays, and so does what was
    /// taken or given up, until the heap is opened again.
    pub(crate) fn settle(&self, place: Place, committed: bool) {
        let mut lists = lock(&self.intentions);
        let Some(at) = lists.iter().position(|list| list.place == place.0) else { return };
        if self.take_away(&lists, at, committed).is_ok() {
            lists.remove(at);
        }
    }

    fn take_away(&self, lists: &[Intentions], at: usize, committed: bool) -> Result<(), HeapError> {
        let next = at.checked_sub(1).map_or(0, |at| lists[at].place + 1);
        let mut tx = self.begin()?;
        match lists.get(at + 1) {
            Some(before) => tx.store(Place(before.place), NEXT * 8, &next)?,
            None => tx.inner().store(&self.meta, FIRST as usize, &meta::seal(next, FIRST))?,
        }
        // What goes is not this transaction's to give back if it fails.
        let (span, object, _) = self.place_in_span(Place(lists[at].place))?;
        let (mut kept, mut gone) = (Vec::new(), vec![Change::new(span, object, true)]);
        for of in of_objects(&lists[at].changes) {
            let (span, object) = (of[0].span(), of[0].object());
            let (taken, freed) = (!of[0].freed(), of[of.len() - 1].freed());
            let goes = change::passing(of) || freed == committed;
            if !goes {
                kept.push((span, object, taken));
                continue;
            }
            gone.push(Change::new(span, object, true));
        }
        tx.rare.get_or_insert_default().others = gone.clone();
        tx.commit(Class::Process)?;
        gone.iter().for_each(|change| self.put(change.span(), change.object()));
        for (span, object, taken) in kept {
            match taken {
                true => self.spans.get(span).mark_allocated(object),
                false => self.spans.get(span).keep(object, false),
            }
        }
        Ok(())
    }

    /// Takes up the lists of an earlier process: settles what was decided.
    pub(crate) fn read_intentions(&self) -> Result<(), HeapError> {
        let mut next = self.word(FIRST)?;
        if next == 0 {
            return Ok(());
        }
        let undecided = self.store.prepared_or_deciding();
        let (mut lists, mut decided, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        while next != 0 {
            let place = Place(next - 1);
            let bad = |why: &str| self.damaged(FIRST, format!("the intentions list at {}: {why}", place.0));
            if !seen.insert(next) {
                return Err(bad("it comes twice"));
            }
            let words = self.usable_len(place).map_err(|_| bad("no object begins there"))? / 8;
            let words: Vec<u64> =
                (0..words).map(|word| self.data.load(place.0 as usize + word * 8)).collect();
            let list = Intentions::decode(place.0, &words)
                .ok_or_else(|| bad("it was overwritten: its check does not match"))?;
            for of in of_objects(&list.changes) {
                self.mark_intended(of).ok_or_else(|| bad("it names what is not allocated"))?;
            }
            self.hide(place)?;
            next = words[NEXT];
            let own = undecided.iter().find(|prepared| self.is_bound(place, prepared));
            if own.is_none() || planted("undecided-settled") {
                decided.push((place, words[DECIDED] == 1));
            }
            lists.push(list);
        }
        // The last one made is the first of the chain.
        lists.reverse();
        *lock(&self.intentions) = lists;
        decided.into_iter().for_each(|(place, committed)| self.settle(place, committed));
        Ok(())
    }

    /// Makes an allocated object what it is while its transaction is undecided. Nothing if it is not allocated.
    fn mark_intended(&self, of: &[Change]) -> Option<()> {
        let (number, object) = (of[0].span(), of[0].object());
        if number >= self.count.load(caliburn_os::sync::atomic::Ordering::Acquire) {
            return None;
        }
        let span = self.spans.get(number);
        if span.is_unknown() {
            self.take_up_one(number).ok()?;
        }
        let (_, _, kind) = self.look(Place(extent(span.kind(), number, object).start)).ok()?;
        if of[of.len() - 1].freed() {
            span.give_up(kind, object, false).then_some(())
        } else {
            span.mark_fresh(object);
            Some(())
        }
    }
}

/// The bytes of an object of a span of that kind; nothing of one that is free.
pub(crate) fn extent(kind: Kind, span: u32, object: u32) -> Range<u64> {
    let (first, size) = match kind {
        Kind::Small(class) => (u64::from(object), u64::from(SIZES[usize::from(class)])),
        Kind::Large(spans) => (0, u64::from(spans) * SPAN),
        Kind::Free => (0, 0),
    };
    let start = u64::from(span) * SPAN + first * size;
    start..start + size
}
