//! What a part of a transaction has allocated and freed, where the transaction itself is in other hands: of a
//! branch, which may be undone alone, or of one that commits together with what it did to other heaps.
//!
//! ```text
//!   allocate, free     as in a transaction of the heap's own
//!   adopt              a part that went well: its parent's from then on
//!   intend             a list of it all, and the list's DECIDED in the transaction (see `prepared`)
//!   then               the transaction commits, is prepared, or is undone
//!   settle             when that is decided: the list goes, and what it says happens
//! ```
//!
//! Invariant: what is fresh is freed only by the transaction that has taken it: locks come later than objects.
//! Invariant: it is undone, or settled, after the old values of the transaction are back, or its new ones stay:
//! nobody may take the memory before.

use crate::change::Change;
use crate::heap::{Heap, HeapError, Place, lock};
use crate::intentions::DECIDED;
use crate::prepared::extent;
use crate::transaction::undo_changes;
use caliburn_engine::Transaction;
use caliburn_os::simulated::planted;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// What a transaction has allocated and not committed, in whichever heap, all of its parts together: they may free
/// it again, and nobody else may. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Taken(Arc<Mutex<HashSet<(usize, u64)>>>);

impl Taken {
    fn with<T>(&self, heap: &Heap, act: impl FnOnce(&mut HashSet<(usize, u64)>, usize) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), std::ptr::from_ref(heap).addr())
    }

    fn add(&self, heap: &Heap, change: Change) {
        self.with(heap, |all, heap| _ = all.insert((heap, change.whose())));
    }

    fn remove(&self, heap: &Heap, change: Change) {
        self.with(heap, |all, heap| _ = all.remove(&(heap, change.whose())));
    }

    fn has(&self, heap: &Heap, change: Change) -> bool {
        self.with(heap, |all, heap| all.contains(&(heap, change.whose())))
    }
}

/// What a part of a transaction has allocated and freed. Dropped, it is undone: to be dropped when what the part has
/// stored is undone, and not before.
#[derive(Debug)]
pub struct Allocations<'h> {
    heap: &'h Heap,
    taken: Taken,
    changes: SmallVec<[Change; 4]>,
    /// Of what it has freed, that which had been allocated within the same transaction.
    fresh: SmallVec<[Change; 2]>,
}

/// A list of what a transaction has done to a heap: [`Allocations::intend`]. One that is not settled, is settled
/// when the heap is opened again.
#[derive(Debug)]
#[must_use = "what was allocated and freed hangs in the air until it is settled"]
pub struct Intended<'h> {
    heap: &'h Heap,
    place: Place,
}

/// The bytes of objects that an undecided transaction has allocated or freed: nobody else may have them until it is
/// decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undecided {
    /// The identifier that it was prepared under.
    pub global_id: Vec<u8>,
    /// Offsets in the heap's region.
    pub objects: Vec<Range<u64>>,
}

impl<'h> Allocations<'h> {
    /// None yet, of a part of the transaction that has all that is `taken`.
    pub fn new(heap: &'h Heap, taken: &Taken) -> Allocations<'h> {
        Allocations { heap, taken: taken.clone(), changes: SmallVec::new(), fresh: SmallVec::new() }
    }

    /// The heap.
    pub fn heap(&self) -> &'h Heap {
        self.heap
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Allocates `len` bytes, aligned to 16. What they hold is unknown.
    ///
    /// # Errors
    /// As [`HeapTransaction::allocate`](crate::HeapTransaction::allocate).
    pub fn allocate(&mut self, len: usize) -> Result<Place, HeapError> {
        let (place, change) = self.heap.take(len, 16)?;
        self.taken.add(self.heap, change);
        self.changes.push(change);
        Ok(place)
    }

    /// Frees an object. Its memory can be allocated again when the transaction has committed, not before.
    ///
    /// # Errors
    /// [`HeapError::NotAllocated`] when no object begins there, or somebody freed it, or another transaction that is
    /// open has allocated it.
    pub fn free(&mut self, place: Place) -> Result<(), HeapError> {
        let heap = self.heap;
        let (number, object, kind) = heap.place_in_span(place)?;
        let span = heap.spans.get(number);
        let change = Change::new(number, object, true);
        let may =
            |fresh: &bool| !fresh || planted("anybody-frees-what-is-new") || self.taken.has(heap, change);
        let fresh = span.freshness(object).filter(may).filter(|fresh| span.give_up(kind, object, *fresh));
        let fresh = fresh.ok_or_else(|| heap.not_allocated(place))?;
        self.changes.push(change);
        if fresh && !planted("heap-part-frees-for-good") {
            self.fresh.push(change);
        }
        Ok(())
    }

    /// Takes over what a part has done that has ended well, of the same heap.
    ///
    /// # Panics
    /// When it is of another heap.
    pub fn adopt(&mut self, mut part: Allocations<'h>) {
        assert!(std::ptr::eq(self.heap, part.heap), "a part of another heap");
        self.changes.extend(part.changes.drain(..));
        self.fresh.extend(part.fresh.drain(..));
    }

    /// Makes it part of a transaction, which then can be committed or prepared: both, or neither. For one that is
    /// prepared `global_id` is the identifier; for one that commits at once, nothing.
    ///
    /// # Errors
    /// When the heap is full, or the transaction becomes too large: both are undone.
    pub fn intend(
        mut self,
        mut tx: Transaction<'h>,
        global_id: &[u8],
    ) -> Result<(Transaction<'h>, Intended<'h>), HeapError> {
        let heap = self.heap;
        self.changes.sort_unstable();
        let place =
            match heap.refuse_too_many(&self.changes).and_then(|()| heap.intend(&self.changes, global_id)) {
                Ok(place) => place,
                Err(error) => {
                    drop(tx);
                    return Err(error);
                }
            };
        // From here on the list says what becomes of the objects.
        self.changes.clear();
        match tx.store(&heap.data, place.0 as usize + DECIDED * 8, &1u64) {
            Ok(()) => Ok((tx, Intended { heap, place })),
            Err(error) => {
                drop(tx);
                heap.settle(place, false);
                Err(error.into())
            }
        }
    }
}

impl Drop for Allocations<'_> {
    fn drop(&mut self) {
        // What it has taken is nobody's from now on.
        let taken = self.changes.iter().filter(|change| !change.freed());
        taken.for_each(|change| self.taken.remove(self.heap, *change));
        self.fresh.sort_unstable();
        undo_changes(self.heap, &mut self.changes, |change| self.fresh.binary_search(&change).is_ok());
    }
}

impl Intended<'_> {
    /// The transaction has committed, or is undone. If the heap's own part fails, that is no error: the next opening
    /// of the heap finishes it.
    pub fn settle(self, committed: bool) {
        self.heap.settle(self.place, committed);
    }
}

impl Heap {
    /// The list of an undecided transaction, to be settled when that is decided.
    pub fn intended(&self, global_id: &[u8]) -> Option<Intended<'_>> {
        self.intended_by(global_id).map(|place| Intended { heap: self, place })
    }

    /// The bytes of an object that is there, or was freed by a transaction that has not committed: those to be
    /// locked by whoever wants to know which.
    ///
    /// # Errors
    /// [`HeapError::NotAllocated`] when no object can begin there.
    pub fn extent_of(&self, place: Place) -> Result<Range<u64>, HeapError> {
        let (span, object, kind) = self.place_in_span(place)?;
        Ok(extent(kind, span, object))
    }

    /// What undecided transactions have allocated or freed.
    pub fn undecided(&self) -> Vec<Undecided> {
        let lists = lock(&self.intentions);
        let objects = |changes: &[Change]| {
            let mut objects: Vec<_> = changes
                .iter()
                .map(|c| extent(self.spans.get(c.span()).kind(), c.span(), c.object()))
                .collect();
            objects.dedup();
            objects
        };
        let undecided = lists.iter().filter(|list| !list.global_id.is_empty());
        undecided
            .map(|list| Undecided { global_id: list.global_id.clone(), objects: objects(&list.changes) })
            .collect()
    }
}
