//! How changes are found, and what watches over them besides: a file or folder for each way, and a line in
//! [`WAYS`].
//!
//! Every way sees every transaction: [`Tracked`] calls one after the other.

pub(crate) mod guard;
pub(crate) mod verify;

use crate::storage::Storage;
use crate::storage::error::{MapError, RangeError};
use crate::storage::region::RegionState;
use crate::write_set::{Sets, WriteSet};
use guard::Guard;
use std::ops::Range;
use std::sync::Arc;
use verify::Undeclared;

/// A way of tracking at work in an open store. It knows storage and write sets, and no policy.
pub(crate) trait Tracking: Send + Sync {
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

    /// A transaction is about to commit. Whatever a way has found by itself must be declared now.
    fn committing(&self, _set: &WriteSet<'_>) {}

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

    /// Whether [`Tracking::undeclared`] finds such stores.
    fn verifies(&self) -> bool {
        false
    }
}

/// What a program asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    pub guard: Guard,
    pub verify: bool,
}

/// Begins a way of tracking, if it is wanted.
type Begin = fn(&Wanted, &Arc<Storage>, &Arc<Sets>) -> Option<Box<dyn Tracking>>;

/// All ways, in the order in which they are called: the verifier reads memory that the guard then keeps others
/// from.
const WAYS: &[Begin] = &[verify::begin, guard::begin];

impl Wanted {
    /// Whether anything must see each declaration.
    pub fn any(&self) -> bool {
        self.verify || self.guard != Guard::Off
    }

    /// Whether regions get a protection key.
    pub fn keys(&self) -> bool {
        self.guard == Guard::Keys
    }
}

/// What tracks the changes of an open store.
pub(crate) struct Tracked(Vec<Box<dyn Tracking>>);

impl Tracked {
    pub fn begin(wanted: &Wanted, storage: &Arc<Storage>, sets: &Arc<Sets>) -> Tracked {
        Tracked(WAYS.iter().filter_map(|begin| begin(wanted, storage, sets)).collect())
    }

    /// Calls one way after the other, until one refuses.
    pub fn each<E>(&self, mut call: impl FnMut(&dyn Tracking) -> Result<(), E>) -> Result<(), E> {
        self.0.iter().try_for_each(|way| call(&**way))
    }

    /// The same, where none can refuse.
    pub fn all(&self, mut call: impl FnMut(&dyn Tracking)) {
        self.0.iter().for_each(|way| call(&**way));
    }

    /// Ends a transaction within what every way does around it.
    pub fn ending(&self, set: &WriteSet<'_>, end: &mut dyn FnMut()) {
        fn within(ways: &[Box<dyn Tracking>], set: &WriteSet<'_>, end: &mut dyn FnMut()) {
            match ways {
                [] => end(),
                [way, others @ ..] => way.ending(set, &mut || within(others, set, end)),
            }
        }
        within(&self.0, set, end);
    }

    /// Undoes declarations within what every way does around it.
    pub fn shortening(&self, shorten: &mut dyn FnMut()) {
        fn within(ways: &[Box<dyn Tracking>], shorten: &mut dyn FnMut()) {
            match ways {
                [] => shorten(),
                [way, others @ ..] => way.shortening(&mut || within(others, shorten)),
            }
        }
        within(&self.0, shorten);
    }

    pub fn undeclared(&self) -> Vec<Undeclared> {
        self.0.iter().flat_map(|way| way.undeclared()).collect()
    }

    #[inline]
    pub fn verifies(&self) -> bool {
        self.0.iter().any(|way| way.verifies())
    }
}
