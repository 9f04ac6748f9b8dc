//! A heap of cells, with a lock for each that is in use.

use crate::cell::{Head, Numbers, Ptr, VALUE, Value};
use crate::error::Error;
use crate::gate::Gate;
use caliburn_engine::Store;
use caliburn_heap::{Heap, Place};
use caliburn_lock::{Detector, Locks, Standard};
use caliburn_os::simulated::unless;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Cells in a heap of a store, which transactions on any number of threads read and change, as if one after the
/// other.
pub struct Cells {
    pub(crate) heap: Heap,
    pub(crate) detector: Detector,
    /// By places.
    pub(crate) locks: Locks<u64, Standard>,
    /// By names of roots.
    pub(crate) names: Locks<String, Standard>,
    pub(crate) numbers: Numbers,
    pub(crate) counts: Counts,
    pub(crate) gate: Gate,
}

impl std::fmt::Debug for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cells").field("heap", &self.heap).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub committed: AtomicU64,
    pub aborted: AtomicU64,
    pub read: AtomicU64,
    pub retried: AtomicU64,
    pub most_tries: AtomicU64,
}

/// What transactions did since the cells were opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Transactions that committed.
    pub committed: u64,
    /// That were undone by an error.
    pub aborted: u64,
    /// That only read.
    pub read: u64,
    /// Tries that were undone since they were in a deadlock.
    pub retried: u64,
    /// Most tries that one transaction took.
    pub most_tries: u64,
    /// Cells and names that are locked at the moment.
    pub locked: u64,
}

impl Cells {
    /// Opens the cells in the heap of that name, made if there is none. A heap is open once at a time.
    ///
    /// # Errors
    /// As [`Heap::open`].
    pub fn open(store: &Store, name: &str) -> Result<Cells, Error> {
        let detector = Detector::new();
        let (locks, names) = (detector.locks(), detector.locks());
        let heap = Heap::open(store, name)?;
        Ok(Cells {
            heap,
            detector,
            locks,
            names,
            numbers: Numbers::default(),
            counts: Counts::default(),
            gate: Gate::default(),
        })
    }

    /// What transactions did.
    pub fn statistics(&self) -> Statistics {
        let Counts { committed, aborted, read, retried, most_tries } = &self.counts;
        let [committed, aborted, read, retried, most_tries] =
            [committed, aborted, read, retried, most_tries].map(|count| count.load(Relaxed));
        let locked = (self.locks.len() + self.names.len()) as u64;
        Statistics { committed, aborted, read, retried, most_tries: most_tries.max(1), locked }
    }

    /// How many transactions and readers wait for a lock at this moment.
    pub fn waiting(&self) -> usize {
        self.detector.waiting()
    }

    /// Lets no transaction hold another up for longer than this; none, as at first: as long as it takes. Who does
    /// is warned about and then aborted, with [`LockError::Overlong`](caliburn_lock::LockError::Overlong)
    /// ([`Detector::set_limit`]).
    pub fn set_limit(&self, limit: Option<std::time::Duration>) {
        self.detector.set_limit(limit);
    }

    /// The store.
    pub fn store(&self) -> &Store {
        self.heap.store()
    }

    /// The value of a cell, which is locked.
    pub(crate) fn load<T: Value>(&self, cell: &Ptr<T>) -> Result<T, Error> {
        let gone = || Error::Gone { heap: self.heap.name().to_owned(), place: cell.place() };
        let head: Head = self.heap.load(cell.place(), 0).map_err(|_| gone())?;
        if cell.is_none() || unless("stale-cells-believed", head.number != cell.number()) {
            return Err(gone());
        }
        let wanted = size_of::<T>();
        if head.len != wanted as u64 {
            let heap = self.heap.name().to_owned();
            return Err(Error::Type { heap, place: cell.place(), found: head.len, wanted });
        }
        Ok(self.heap.load(cell.place(), VALUE)?)
    }

    /// What the pointer says that a name, which is locked, has at a place.
    pub(crate) fn named<T: Value>(&self, at: Option<Place>) -> Result<Option<Ptr<T>>, Error> {
        Ok(at.map(|at| self.heap.load(at, VALUE)).transpose()?)
    }
}
