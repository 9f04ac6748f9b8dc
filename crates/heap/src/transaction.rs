//! A transaction that allocates and frees.
//!
//! ```text
//!   allocate:  an object is taken, for this process to see        no recoverable word changes
//!   free:      an object is marked as given up                    none either
//!   commit:    lock the spans - change their words - commit - unlock - what was freed can be taken again
//!   abort:     what was taken is given back, what was given up is kept
//! ```

use crate::change::{self, Change, of_objects};
use crate::class::{self, SIZES, SPAN};
use crate::heap::{Heap, HeapError, Place, Root};
use crate::meta::{self, Kind, NAME_MAX, PER_WORD, ROOT_BYTES, ROOTS};
use crate::span::SPANS_MAX;
use caliburn_engine::zerocopy::{Immutable, IntoBytes};
use caliburn_engine::{
    BeginError, ByAddress, Class, Inherited, Mode, RangeError, Region, SavepointError, Ticket, Transaction,
};
use caliburn_os::simulated::{planted, unless};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::PoisonError;

/// Largest alignment: regions begin at pages.
const ALIGN_MAX: usize = 4096;

/// A transaction with allocations. Dropped without commit, it is aborted: the heap is as it was.
pub struct HeapTransaction<'h> {
    pub(crate) heap: &'h Heap,
    pub(crate) tx: Option<Transaction<'h>>,
    pub(crate) changes: SmallVec<[Change; 4]>,
    pub(crate) rare: Option<Box<Rare>>,
}

/// A place in a transaction that it can be rolled back to: [`HeapTransaction::savepoint`].
#[derive(Debug, Clone)]
pub struct Savepoint {
    inner: caliburn_engine::Savepoint,
    changes: usize,
    roots: Vec<(String, Option<Place>)>,
}

/// What most transactions do without.
#[derive(Default)]
pub(crate) struct Rare {
    pub roots: Vec<(String, Option<Place>)>,
    /// What others did, which goes into the words with this one's: a transaction that is being prepared took it, or
    /// one that is decided gave it up. For the process it is theirs.
    pub others: Vec<Change>,
    /// Objects of so many changes, when there are too many to look through.
    objects: HashSet<u64>,
    changes: usize,
}

/// Changes that are looked through one by one.
const SCANNED: usize = 64;

impl fmt::Debug for HeapTransaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeapTransaction").field("tx", &self.tx).finish_non_exhaustive()
    }
}

impl<'h> HeapTransaction<'h> {
    #[inline(always)]
    pub(crate) fn new(heap: &'h Heap, tx: Transaction<'h>) -> HeapTransaction<'h> {
        HeapTransaction { heap, tx: Some(tx), changes: SmallVec::new(), rare: None }
    }

    #[inline(always)]
    pub(crate) fn inner(&mut self) -> &mut Transaction<'h> {
        self.tx.as_mut().expect("a transaction is there until it is spent")
    }

    /// Declares bytes of any region of the store.
    ///
    /// # Errors
    /// As [`Transaction::set_range`].
    #[inline(always)]
    pub fn set_range(&mut self, region: &'h Region, range: Range<usize>) -> Result<(), RangeError> {
        self.inner().set_range(region, range)
    }

    /// Declares bytes by their addresses.
    #[inline]
    pub fn by_address(&mut self) -> ByAddress<'_, 'h> {
        self.inner().by_address()
    }

    /// Declares and stores bytes in any region of the store.
    ///
    /// # Errors
    /// As [`Transaction::write`].
    pub fn write_to(&mut self, region: &'h Region, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        self.inner().write(region, offset, bytes)
    }

    /// Allocates `len` bytes, aligned to 16. What they hold is unknown.
    ///
    /// # Errors
    /// When the heap is full and cannot grow, or `len` is 0 or more than any heap holds.
    pub fn allocate(&mut self, len: usize) -> Result<Place, HeapError> {
        self.allocate_aligned(len, 16)
    }

    /// Allocates room for a list of intentions. Where a heap is full, that is in spans of its own behind all that
    /// programs may have: what is to be freed could not be otherwise.
    pub(crate) fn allocate_list(&mut self, len: usize) -> Result<Place, HeapError> {
        match self.allocate(len) {
            Err(HeapError::Full { .. }) => {
                let number = self.heap.take_large((len as u64).div_ceil(SPAN) as u32, SPANS_MAX)?;
                self.changes.push(Change::new(number, 0, false));
                Ok(Place(u64::from(number) * SPAN))
            }
            allocated => allocated,
        }
    }

    /// Allocates `len` bytes at a multiple of `align`, a power of two up to 4096.
    ///
    /// # Errors
    /// As [`HeapTransaction::allocate`].
    pub fn allocate_aligned(&mut self, len: usize, align: usize) -> Result<Place, HeapError> {
        let (place, change) = self.heap.take(len, align)?;
        self.changes.push(change);
        Ok(place)
    }

    /// Whether this transaction did something with an object.
    fn took(&mut self, span: u32, object: u32) -> bool {
        let whose = Change::new(span, object, false).whose();
        if self.changes.len() <= SCANNED {
            return self.changes.iter().any(|change| change.whose() == whose);
        }
        let Rare { objects, changes, .. } = &mut **self.rare.get_or_insert_default();
        objects.extend(self.changes[*changes..].iter().map(|change| change.whose()));
        *changes = self.changes.len();
        objects.contains(&whose)
    }

    /// Frees an object. Its memory can be allocated again when the transaction has committed, not before.
    ///
    /// # Errors
    /// [`HeapError::NotAllocated`] when no object begins there, or somebody freed it, or another transaction
    /// that is open has allocated it: no other error, also when the heap is full.
    pub fn free(&mut self, place: Place) -> Result<(), HeapError> {
        let heap = self.heap;
        heap.own()?;
        let (number, object, kind) = heap.place_in_span(place)?;
        let span = heap.spans.get(number);
        match span.freshness(object) {
            Some(fresh) if (!fresh || self.took(number, object)) && span.give_up(kind, object, fresh) => {}
            _ => return Err(heap.not_allocated(place)),
        }
        self.changes.push(Change::new(number, object, true));
        Ok(())
    }

    /// Makes an object larger or smaller, elsewhere if need be; its bytes go with it. The place where it is now.
    ///
    /// # Errors
    /// As [`HeapTransaction::allocate`] and [`HeapTransaction::free`]; the object stays as it was.
    pub fn reallocate(&mut self, place: Place, len: usize) -> Result<Place, HeapError> {
        let now = self.heap.usable_len(place)?;
        let same = match class::class_of(len as u64, 16) {
            Some(class) => SIZES[usize::from(class)] as usize == now,
            None => len.checked_next_multiple_of(SPAN as usize) == Some(now),
        };
        if same && len > 0 {
            return Ok(place);
        }
        let new = self.allocate(len)?;
        let mut bytes = vec![0; now.min(len)];
        self.heap.data.read(place.0 as usize, &mut bytes);
        let moved = self.write(new, 0, &bytes).map_err(HeapError::from).and_then(|()| self.free(place));
        if let Err(error) = moved {
            self.free(new)?;
            return Err(error);
        }
        Ok(new)
    }

    /// Declares and stores bytes at an offset of an object.
    ///
    /// # Errors
    /// As [`Transaction::write`].
    pub fn write(&mut self, place: Place, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        let heap = self.heap;
        self.inner().write(&heap.data, (place.0 as usize).saturating_add(offset), bytes)
    }

    /// Declares and stores a value at an offset of an object.
    ///
    /// # Errors
    /// As [`Transaction::store`].
    pub fn store<T: IntoBytes + Immutable>(
        &mut self,
        place: Place,
        offset: usize,
        value: &T,
    ) -> Result<(), RangeError> {
        self.write(place, offset, value.as_bytes())
    }

    /// Names an object, or takes the name away. It is so when the transaction has committed.
    ///
    /// # Errors
    /// When the name is empty, longer than 48 bytes or has a zero byte; too many roots show at the commit.
    pub fn set_root(&mut self, name: &str, place: Option<Place>) -> Result<(), HeapError> {
        if name.is_empty() || name.len() > NAME_MAX || name.contains('\0') {
            return Err(self.heap.root_error(name, "a name has 1 to 48 bytes, none of them zero"));
        }
        if let Some(place) = place {
            self.heap.find(place)?;
        }
        let roots = &mut self.rare.get_or_insert_default().roots;
        roots.retain(|(other, _)| other != name);
        roots.push((name.to_owned(), place));
        Ok(())
    }

    /// What a name stands for, as the transaction sees it.
    pub fn root(&self, name: &str) -> Option<Place> {
        let own = self.rare.as_ref().and_then(|rare| rare.roots.iter().find(|(other, _)| other == name));
        own.map_or_else(|| self.heap.root(name), |(_, place)| *place)
    }

    /// Marks a place that the transaction can be rolled back to.
    ///
    /// # Errors
    /// As [`Transaction::savepoint`].
    pub fn savepoint(&mut self) -> Result<Savepoint, SavepointError> {
        let inner = self.inner().savepoint()?;
        let roots = self.rare.as_ref().map_or_else(Vec::new, |rare| rare.roots.clone());
        Ok(Savepoint { inner, changes: self.changes.len(), roots })
    }

    /// Undoes what was changed, allocated and freed since a savepoint, which stays; those that came after it are
    /// gone. What was allocated since is anybody's again.
    ///
    /// # Errors
    /// As [`Transaction::rollback_to`].
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<(), SavepointError> {
        // The old values first: nobody may take the memory before.
        self.inner().rollback_to(&savepoint.inner)?;
        if planted("heap-savepoint-forgets") {
            return Ok(());
        }
        let mut undone: SmallVec<[Change; 4]> = self.changes.drain(savepoint.changes..).collect();
        if let Some(rare) = &mut self.rare {
            rare.roots.clone_from(&savepoint.roots);
            (rare.objects, rare.changes) = (HashSet::new(), 0);
        }
        // What it had taken before, and gave up since, is fresh again.
        undo_changes(self.heap, &mut undone, |change| self.took(change.span(), change.object()));
        Ok(())
    }

    /// Forgets a savepoint, and those that came after it.
    ///
    /// # Errors
    /// As [`Transaction::release`].
    pub fn release(&mut self, savepoint: &Savepoint) -> Result<(), SavepointError> {
        self.inner().release(&savepoint.inner)
    }

    /// The transaction, which somebody else goes on with; what stays does nothing.
    #[doc(hidden)]
    pub fn lend(&mut self) -> HeapTransaction<'h> {
        let spent = HeapTransaction { heap: self.heap, tx: None, changes: SmallVec::new(), rare: None };
        std::mem::replace(self, spent)
    }

    /// Commits in a failure class, the heap's changes with the others.
    ///
    /// # Errors
    /// As [`Transaction::commit`], and when there are too many roots: the transaction is aborted. If only the
    /// force fails that another class than `Process` waits for, it stays committed in memory, and the store has
    /// failed.
    ///
    /// # Panics
    /// With [`Options::verify`](caliburn_engine::Options::verify), when recoverable memory was changed without
    /// being declared; the text names the object.
    #[inline(always)]
    pub fn commit(mut self, class: Class) -> Result<(), HeapError> {
        if self.rare.is_some() || self.heap.store.verifies() {
            return self.commit_all(class);
        }
        if self.changes.is_empty() {
            return Ok(self.tx.take().expect("not spent").commit(class)?);
        }
        if !self.changes.is_sorted() {
            self.changes.sort_unstable();
        }
        if !of_objects(&self.changes).all(change::passing) {
            return self.commit_all(class);
        }
        // Nothing of the heap's own has changed.
        self.tx.take().expect("not spent").commit(class)?;
        self.put_freed();
        Ok(())
    }

    /// What it has freed can be taken again.
    #[inline]
    fn put_freed(mut self) {
        let heap = self.heap;
        self.changes.iter().filter(|c| c.freed()).for_each(|freed| heap.put(freed.span(), freed.object()));
        self.changes.clear();
    }

    #[inline(never)]
    fn commit_all(self, class: Class) -> Result<(), HeapError> {
        let ticket = self.make_lasting(class, false)?;
        Ok(ticket.map_or(Ok(()), Ticket::wait).map_err(caliburn_engine::CommitError::from)?)
    }

    /// Commits in class `Process`, visibly at once; in `class` when the ticket was waited for
    /// ([`Transaction::commit_ticket`]).
    ///
    /// # Errors
    /// As [`HeapTransaction::commit`].
    ///
    /// # Panics
    /// As [`HeapTransaction::commit`].
    pub fn commit_ticket(self, class: Class) -> Result<Ticket, HeapError> {
        Ok(self.make_lasting(class, true)?.expect("one was asked for"))
    }

    /// Commits like [`HeapTransaction::commit`] with `Class::Process`, and asks for the force without waiting for
    /// it.
    ///
    /// # Errors
    /// As [`HeapTransaction::commit`].
    ///
    /// # Panics
    /// As [`HeapTransaction::commit`].
    pub fn commit_async(self) -> Result<Ticket, HeapError> {
        self.commit_ticket(Class::Power)
    }

    /// Commits. What there is to wait for, without locks; a ticket in any case if it is wanted.
    fn make_lasting(mut self, class: Class, wanted: bool) -> Result<Option<Ticket>, HeapError> {
        self.heap.own()?;
        self.verify();
        self.changes.sort_unstable();
        let Rare { mut roots, others, .. } = self.rare.take().map(|rare| *rare).unwrap_or_default();
        let own = roots.is_empty() && others.is_empty() && of_objects(&self.changes).all(change::passing);
        let ticket = if own {
            commit_inner(self.tx.take().expect("not spent"), class, wanted)?
        } else {
            self.commit_changes((class, wanted), &others, &mut roots)?
        };
        // 4
        self.put_freed();
        Ok(ticket)
    }

    /// Panics if something was stored to an object without being declared, where that is verified.
    pub(crate) fn verify(&self) {
        let heap = self.heap;
        if heap.store.verifies()
            && let Some((found, Some(object))) =
                heap.undeclared().into_iter().find(|(_, object)| object.is_some())
        {
            panic!("{found}, in the object at {} of heap {:?}", object.0, heap.name());
        }
    }

    /// Commits with the words that tell of objects, and the roots.
    fn commit_changes(
        &mut self,
        (class, wanted): (Class, bool),
        others: &[Change],
        named: &mut [(String, Option<Place>)],
    ) -> Result<Option<Ticket>, HeapError> {
        let heap = self.heap;
        let own: Vec<Change> =
            of_objects(&self.changes).filter(|of| !change::passing(of)).flatten().copied().collect();
        let mut lasting = [&own, others].concat();
        lasting.sort_unstable();
        // 1 In the order of their numbers, so that committers do not wait for each other in a circle.
        let mut spans = lasting.chunk_by(|a, b| a.span() == b.span()).map(|of_span| {
            heap.spans.get(of_span[0].span()).commit.lock().unwrap_or_else(PoisonError::into_inner)
        });
        let locks = (spans.next(), spans.collect::<Vec<_>>());
        let mut roots =
            (!named.is_empty()).then(|| heap.roots.lock().unwrap_or_else(PoisonError::into_inner));
        // From here on the transaction ends before the locks do, however it ends: nobody must see words that
        // are yet to be restored.
        let mut tx = self.tx.take().expect("not spent");
        // 2
        change_words(heap, &mut tx, &lasting)?;
        let next = match &roots {
            Some(roots) => Some(change_roots(heap, &mut tx, roots, named)?),
            None => None,
        };
        // 3
        let ticket = commit_inner(tx, class, wanted)?;
        // Before anybody can reach them by a root.
        for change in of_objects(&own).map(|of| of[of.len() - 1]).filter(|change| !change.freed()) {
            heap.spans.get(change.span()).mark_allocated(change.object());
        }
        if let (Some(roots), Some(next)) = (&mut roots, next) {
            **roots = next;
        }
        drop(locks);
        Ok(ticket)
    }

    /// Undoes everything.
    pub fn abort(self) {
        drop(self);
    }
}

impl Heap {
    /// Refuses in a process that was forked from the one that has opened the store. Before any lock: it may be one
    /// that a thread of the parent held.
    #[inline(always)]
    pub(crate) fn own(&self) -> Result<(), RangeError> {
        if self.store.is_inherited() { Err(Inherited.into()) } else { Ok(()) }
    }

    /// Takes an object, for an open transaction.
    #[inline(always)]
    pub(crate) fn take(&self, len: usize, align: usize) -> Result<(Place, Change), HeapError> {
        self.own()?;
        let bad = |why| Err(HeapError::Size { heap: self.name().to_owned(), len, align, why });
        if len == 0 {
            return bad("an object has at least one byte");
        }
        if !align.is_power_of_two() || align > ALIGN_MAX {
            return bad("an alignment is a power of two, 4096 at most");
        }
        let spans = (len as u64).div_ceil(SPAN);
        let (span, object, size) = match class::class_of(len as u64, align as u64) {
            Some(class) => {
                let (span, object) = self.take_small(class)?;
                (span, object, u64::from(SIZES[usize::from(class)]))
            }
            None if spans > u64::from(SPANS_MAX) => return bad("no heap is that large"),
            None => (self.take_large(spans as u32, self.most())?, 0, 0),
        };
        Ok((Place(u64::from(span) * SPAN + u64::from(object) * size), Change::new(span, object, false)))
    }

    /// Begins a transaction that can allocate and free.
    ///
    /// # Errors
    /// As [`caliburn_engine::Store::begin`].
    #[inline(always)]
    pub fn begin(&self) -> Result<HeapTransaction<'_>, BeginError> {
        Ok(HeapTransaction::new(self, self.store.begin(Mode::Restore)?))
    }
}

impl Drop for HeapTransaction<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.tx.is_some() || !self.changes.is_empty() {
            self.undo();
        }
    }
}

impl HeapTransaction<'_> {
    #[cold]
    fn undo(&mut self) {
        // The old values first: nobody may take the memory before.
        drop(self.tx.take());
        if self.heap.store.is_inherited() {
            // In a forked child: they are the parent's.
            self.changes.clear();
            return;
        }
        undo_changes(self.heap, &mut std::mem::take(&mut self.changes), |_| false);
    }
}

/// What was taken is given back, what was given up is kept: fresh, where the transaction took it before.
pub(crate) fn undo_changes(heap: &Heap, changes: &mut [Change], mut is_fresh: impl FnMut(Change) -> bool) {
    changes.sort_unstable();
    for of_object in of_objects(changes) {
        let first = of_object[0];
        if first.freed() {
            heap.spans.get(first.span()).keep(first.object(), is_fresh(first));
        } else if !planted("heap-abort-keeps") {
            heap.put(first.span(), first.object());
        }
    }
}

/// Commits; another class than the least is waited for later, without locks, by a ticket.
fn commit_inner(tx: Transaction<'_>, class: Class, wanted: bool) -> Result<Option<Ticket>, HeapError> {
    Ok(match class {
        Class::Process if !wanted => tx.commit(class).map(|()| None),
        _ => tx.commit_ticket(class).map(Some),
    }?)
}

/// Brings the words of the spans up to date; they are locked.
fn change_words<'h>(heap: &'h Heap, tx: &mut Transaction<'h>, changes: &[Change]) -> Result<(), HeapError> {
    let mut set = |offset: u64, bits: u64| tx.store(&heap.meta, offset as usize, &meta::seal(bits, offset));
    for of_span in changes.chunk_by(|a, b| a.span() == b.span()) {
        let span = of_span[0].span();
        let head = meta::word_at(span, 0);
        let kind = heap.spans.get(span).kind();
        let there = heap.word(head)?;
        if let Kind::Large(spans) = kind {
            let freed = of_span.iter().any(|change| change.freed());
            // Spans behind the first may have been of a class, and been emptied.
            for offset in (span + 1..span + spans).map(|span| meta::word_at(span, 0)) {
                if heap.word(offset)? != 0 {
                    set(offset, 0)?;
                }
            }
            let wanted = if freed { Kind::Free } else { kind }.encode();
            if there != wanted {
                set(head, wanted)?;
            }
            continue;
        }
        if unless("heap-kind-forgotten", there != kind.encode()) {
            set(head, kind.encode())?;
        }
        for of_word in of_span.chunk_by(|a, b| a.object() / PER_WORD == b.object() / PER_WORD) {
            let offset = meta::word_at(span, 1 + of_word[0].object() / PER_WORD);
            let before = heap.word(offset)?;
            let after = of_word.iter().fold(before, |bits, change| {
                let bit = 1 << (change.object() % PER_WORD);
                if change.freed() { bits & !bit } else { bits | bit }
            });
            let forgotten = planted("heap-word-forgotten") && after.count_ones() < before.count_ones();
            if after != before && !forgotten {
                set(offset, after)?;
            }
        }
    }
    Ok(())
}

/// Stores the roots; what they are after the commit.
fn change_roots<'h>(
    heap: &'h Heap,
    tx: &mut Transaction<'h>,
    roots: &[Option<Root>],
    changes: &mut [(String, Option<Place>)],
) -> Result<Vec<Option<Root>>, HeapError> {
    let mut next = roots.to_vec();
    // Those that go make room for those that come.
    changes.sort_by_key(|(_, place)| place.is_some());
    for (name, place) in changes.iter() {
        let same = next.iter().position(|root| root.as_ref().is_some_and(|root| root.name == *name));
        let number = match same.or_else(|| next.iter().position(Option::is_none)) {
            Some(number) => number,
            None if place.is_none() => continue,
            None => return Err(heap.root_error(name, "the heap has 256 roots already")),
        };
        if same.is_none() && place.is_none() {
            continue;
        }
        next[number] = place.map(|place| Root { name: name.clone(), place });
        let offset = ROOTS + number as u64 * ROOT_BYTES;
        let mut words = [0u64; 8];
        if let Some(place) = place {
            let mut bytes = [0; NAME_MAX];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            }
            words[6] = place.0;
            words[7] = meta::check_of(words[..7].iter().copied().chain([offset]));
        }
        tx.store(&heap.meta, offset as usize, &words)?;
    }
    Ok(next)
}
