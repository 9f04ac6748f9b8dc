//! How changes are found, and what watches over them besides: a file or folder for each way, and a line in
//! [`WAYS`].
//!
//! Every way sees every transaction: [`Tracked`] calls one after the other.

pub(crate) mod fault;
pub(crate) mod guard;
mod noted;
mod opened;
mod pool;
mod scan;
pub(crate) mod verify;

use crate::storage::Storage;
use crate::storage::error::{MapError, RangeError};
use crate::storage::region::RegionState;
use crate::write_set::{Sets, WriteSet};
use guard::Guard;
use std::ops::Range;
use std::sync::Arc;
use verify::Undeclared;

/// How changes are found: [`Options::tracking`](crate::Options::tracking).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Tracking {
    /// The program declares them before it makes them ([`Transaction::set_range`](crate::Transaction::set_range)).
    #[default]
    Declared,
    /// By page faults: a program just stores, while a transaction is open, and the first store to each page waits
    /// until what the page holds is kept. With the redo policy whole pages are logged then, and truncation goes by
    /// the log alone ([`Options::declared_only`](crate::Options::declared_only)). One transaction at a time is
    /// open, and stores of all threads are its; while one of its methods runs no other thread stores. What system
    /// calls store (`read` into a region) fails with EFAULT on pages that are not open: the program declares such
    /// ranges before. Ranges can be declared as well, which keeps their pages together. Transactions can neither
    /// be prepared nor have branches.
    Fault,
    /// By looking, when a transaction commits: a program just stores, and the kernel notes which pages it stores
    /// to. They are compared with an image of what is committed, kept beside each region, and the bytes that
    /// differ are logged. No signal, no protected memory: what system calls store (`read` into a region) is found
    /// as well. With the redo policy only. A page that was changed takes twice its memory, until its segment has
    /// the change. One transaction at a time is open, and stores of all threads are its; while one of its methods
    /// runs, and while none is open, nobody stores: such a store may be lost. What the kernel cannot see is not
    /// found: a device that writes to memory pinned before (buffers registered with io_uring, direct I/O that goes
    /// on across the end of a transaction): declare such ranges. Ranges can be declared as well. Transactions have
    /// neither savepoints nor branches, and cannot be prepared. Where the kernel notes no pages (before Linux 6.7,
    /// or userfaultfd is forbidden), which a warning says, all of every region is compared at each commit.
    Scan,
}

/// Saves what bytes of a region hold, as the policy does.
pub(crate) type Save<'a> = &'a dyn Fn(&WriteSet<'_>, &RegionState, usize, usize) -> Result<(), RangeError>;

/// A way of tracking at work in an open store. It knows storage and write sets, and no policy.
pub(crate) trait Tracker: Send + Sync {
    /// Part of a region, to its end, was mapped; nobody can declare bytes there yet.
    fn mapped(&self, region: &Arc<RegionState>, part: Range<usize>) -> Result<(), MapError>;

    /// A transaction is about to declare bytes, whose old values were not saved yet. Who declares keeps the
    /// region mapped.
    fn declaring(
        &self,
        _set: &WriteSet<'_>,
        _region: &RegionState,
        _offset: usize,
        _len: usize,
    ) -> Result<(), RangeError> {
        Ok(())
    }

    /// Whether it catches stores that nobody declared.
    fn catches(&self) -> bool {
        false
    }

    /// A transaction has begun, the only one that is open: where stores are caught.
    fn begun(&self, _set: &WriteSet<'_>) {}

    /// Has `len` bytes at `offset` saved by `save`, and what it needs beside them. None: they are to be saved as
    /// they are.
    fn declares(
        &self,
        _set: &WriteSet<'_>,
        _region: &RegionState,
        (_offset, _len): (usize, usize),
        _save: Save<'_>,
    ) -> Option<Result<(), RangeError>> {
        None
    }

    /// The life of the thread that serves who stores, until it is stopped.
    fn catch(&self, _save: Save<'_>) {}
    fn stop(&self) {}

    /// A transaction is about to commit. Whatever a way has found by itself is declared now, by `save`. An error: it
    /// cannot be committed.
    fn committing(&self, _set: &WriteSet<'_>, _save: Save<'_>) -> Result<(), RangeError> {
        Ok(())
    }

    /// A transaction is about to be undone: what it has stored and no policy knows of is undone now.
    fn undoing(&self) {}

    /// Tells where a transaction that ends has stored, as far as this finds that by itself.
    fn found(&self, _told: &mut dyn FnMut(&RegionState, Range<usize>)) {}

    /// Whether a transaction that is open has changed something of a region that it has not declared.
    fn touches(&self, _region: &RegionState) -> bool {
        false
    }

    /// What a branch has declared is its parent's now.
    fn adopted(&self, _set: &WriteSet<'_>, _branch: &WriteSet<'_>) {}

    /// A transaction has committed, or its changes are undone: it ends when `end` is called, which this must do
    /// once.
    fn ending(&self, _set: &WriteSet<'_>, end: &mut dyn FnMut()) {
        end();
    }

    /// What a transaction has declared is undone in part: it is declared no more when `shorten` is called, which
    /// this must do once.
    fn shortening(&self, shorten: &mut dyn FnMut()) {
        shorten();
    }

    /// A region is off the books. `left`: its memory stays, and is the program's from now on.
    fn unmapped(&self, _region: &RegionState, _left: bool) {}

    /// What was stored without having been declared.
    fn undeclared(&self) -> Vec<Undeclared> {
        Vec::new()
    }

    /// Whether [`Tracker::undeclared`] finds such stores.
    fn verifies(&self) -> bool {
        false
    }
}

/// What a program asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    pub guard: Guard,
    pub verify: bool,
    pub tracking: Tracking,
}

/// Begins a way of tracking, if it is wanted.
type Begin = fn(&Wanted, &Arc<Storage>, &Arc<Sets>) -> Option<Box<dyn Tracker>>;

/// All ways, in the order in which they are called: the verifier reads memory that the guard then keeps others
/// from.
const WAYS: &[Begin] = &[verify::begin, guard::begin, fault::begin, pool::begin, scan::begin];

impl Wanted {
    /// Whether anything must see each declaration.
    pub fn any(&self) -> bool {
        self.verify || self.tracking != Tracking::Declared || self.guard != Guard::Off
    }

    /// Whether regions get a protection key.
    pub fn keys(&self) -> bool {
        self.guard == Guard::Keys
    }
}

/// What tracks the changes of an open store.
pub(crate) struct Tracked(Vec<Box<dyn Tracker>>);

impl Tracked {
    pub fn begin(wanted: &Wanted, storage: &Arc<Storage>, sets: &Arc<Sets>) -> Tracked {
        Tracked(WAYS.iter().filter_map(|begin| begin(wanted, storage, sets)).collect())
    }

    /// Calls one way after the other, until one refuses.
    pub fn each<E>(&self, mut call: impl FnMut(&dyn Tracker) -> Result<(), E>) -> Result<(), E> {
        self.0.iter().try_for_each(|way| call(&**way))
    }

    /// The same, where none can refuse.
    pub fn all(&self, mut call: impl FnMut(&dyn Tracker)) {
        self.0.iter().for_each(|way| call(&**way));
    }

    /// Ends a transaction within what every way does around it.
    pub fn ending(&self, set: &WriteSet<'_>, end: &mut dyn FnMut()) {
        fn within(ways: &[Box<dyn Tracker>], set: &WriteSet<'_>, end: &mut dyn FnMut()) {
            match ways {
                [] => end(),
                [way, others @ ..] => way.ending(set, &mut || within(others, set, end)),
            }
        }
        within(&self.0, set, end);
    }

    /// Undoes declarations within what every way does around it.
    pub fn shortening(&self, shorten: &mut dyn FnMut()) {
        fn within(ways: &[Box<dyn Tracker>], shorten: &mut dyn FnMut()) {
            match ways {
                [] => shorten(),
                [way, others @ ..] => way.shortening(&mut || within(others, shorten)),
            }
        }
        within(&self.0, shorten);
    }

    /// Saves what is declared, as a way wants it done, or as it is.
    pub fn declare(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        (offset, len): (usize, usize),
        save: Save<'_>,
    ) -> Result<(), RangeError> {
        let done = self.0.iter().find_map(|way| way.declares(set, region, (offset, len), save));
        done.unwrap_or_else(|| save(set, region, offset, len))
    }

    pub fn touches(&self, region: &RegionState) -> bool {
        self.0.iter().any(|way| way.touches(region))
    }

    pub fn catches(&self) -> bool {
        self.0.iter().any(|way| way.catches())
    }

    pub fn undeclared(&self) -> Vec<Undeclared> {
        self.0.iter().flat_map(|way| way.undeclared()).collect()
    }

    #[inline]
    pub fn verifies(&self) -> bool {
        self.0.iter().any(|way| way.verifies())
    }
}
