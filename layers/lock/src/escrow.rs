//! Counters whose changes commute (Camelot, section 4.2; O'Neil's escrow): any number of families add to one and
//! subtract from it at once, within bounds that hold whichever of them commit.
//!
//! ```text
//!   change:      is there room, if of what is outstanding only what is in the way commits?   then it is put off
//!   child:       commits: its changes are its parent's, still put off;     aborts: they are forgotten
//!   top commits: 1 the counter's latch     2 value + change, in its own transaction
//!                3 it commits              4 the latch is given up, and only then the force is waited for
//! ```
//!
//! Recovery is the engine's, by values: no two change the counter's bytes at once, since each does so under the
//! latch, from one that has committed in front of it. Locks are of the modes of [`Access`].
//!
//! Invariant: the least and the most that a counter can come to, by what is outstanding, are within its bounds.
//! Invariant: latches are taken in the order of the counters' numbers, and held while nothing is waited for but
//! another latch.

use crate::detector::Detector;
use crate::error::LockError;
use crate::mode::Mode;
use crate::owner::Owner;
use crate::table::Locks;
use caliburn_engine::{Region, Transaction};
use caliburn_nest::{Error, Follow};
use caliburn_os::event::Event;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::atomic::{AtomicBool, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard, yield_now};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// How a counter is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Something is added or subtracted; others may do the same.
    Change,
    /// Its value is looked at; nobody else changes it meanwhile.
    Read,
    /// Both.
    ReadAndChange,
}

impl Mode for Access {
    const ALL: &'static [Access] = &[Access::Change, Access::Read, Access::ReadAndChange];

    fn goes_with(self, other: Access) -> bool {
        self == other && self != Access::ReadAndChange
    }

    fn and(self, other: Access) -> Access {
        if self == other { self } else { Access::ReadAndChange }
    }
}

/// Why a counter was not changed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum EscrowError {
    /// It could come to a value out of its bounds, by what is outstanding and this.
    #[error(
        "counter {counter} may not change by {amount}: it may come to {worst}, and must stay within {bounds:?}"
    )]
    Bounds {
        /// Number of the counter.
        counter: usize,
        /// What was to be added.
        amount: i64,
        /// What it may come to.
        worst: i128,
        /// What it must stay within.
        bounds: RangeInclusive<i64>,
    },
    /// Its lock was not had.
    #[error(transparent)]
    Lock(#[from] LockError),
}

impl From<EscrowError> for Error {
    fn from(error: EscrowError) -> Error {
        match error {
            EscrowError::Lock(error) => error.into(),
            bounds @ EscrowError::Bounds { .. } => Error::Followed(Box::new(bounds)),
        }
    }
}

/// Counters in a region: eight bytes each, in a row. While they are in use, nothing else stores there.
pub struct Counters<'t> {
    region: &'t Region,
    offset: usize,
    bounds: RangeInclusive<i64>,
    locks: Locks<usize, Access>,
    counters: Box<[Counter]>,
}

/// What is known of a counter.
struct Counter {
    state: Mutex<State>,
    latch: Latch,
}

struct State {
    /// As it is committed.
    value: i64,
    /// What is outstanding: the sums of what is subtracted, and of what is added.
    less: i128,
    more: i128,
}

impl<'t> Counters<'t> {
    /// Takes so many counters in use, from an offset of the region on, with the values that they have.
    ///
    /// # Panics
    /// When they leave the region, or one is out of bounds.
    pub fn new(
        detector: &Detector,
        region: &'t Region,
        offset: usize,
        count: usize,
        bounds: RangeInclusive<i64>,
    ) -> Counters<'t> {
        let counter = |number: usize| {
            let value: i64 = region.load(offset + number * 8);
            assert!(bounds.contains(&value), "counter {number} is {value}, and not within {bounds:?}");
            Counter { state: Mutex::new(State { value, less: 0, more: 0 }), latch: Latch::default() }
        };
        let counters = (0..count).map(counter).collect();
        Counters { region, offset, bounds, locks: detector.locks(), counters }
    }

    /// A companion for a top-level transaction.
    pub fn intentions<'c>(&'c self, detector: &Detector) -> Intentions<'c, 't> {
        Intentions { counters: self, owner: detector.owner(), level: Arc::default(), latched: Vec::new() }
    }

    fn own(&self, by: &Intentions<'_, 't>) {
        assert!(std::ptr::eq(self, by.counters), "these are intentions of other counters");
    }

    /// The value of a counter as it is committed, whatever is outstanding.
    pub fn committed(&self, counter: usize) -> i64 {
        self.counters[counter].lock().value
    }

    /// Adds to a counter, or subtracts from it, when the family commits.
    ///
    /// # Errors
    /// [`EscrowError::Bounds`]: it may come out of its bounds, if others that are outstanding commit or abort.
    /// Nothing is changed then. [`EscrowError::Lock`]: who reads it is in the way, and this is the victim of a
    /// deadlock.
    pub fn change(
        &self,
        by: &mut Intentions<'_, 't>,
        counter: usize,
        amount: i64,
    ) -> Result<(), EscrowError> {
        self.own(by);
        self.locks.lock(&mut by.owner, counter, Access::Change)?;
        let mut state = self.counters[counter].lock();
        let part = if amount < 0 { state.less } else { state.more };
        let worst = i128::from(state.value) + part + i128::from(amount);
        let fits = i64::try_from(worst).is_ok_and(|worst| self.bounds.contains(&worst));
        if unless("bounds-of-what-is-committed", !fits) {
            return Err(EscrowError::Bounds { counter, amount, worst, bounds: self.bounds.clone() });
        }
        state.reserve(amount, 1);
        drop(state);
        by.level.add(counter, amount);
        Ok(())
    }

    /// The value of a counter, with what this family has changed so far; nobody else changes it until the family
    /// has ended.
    ///
    /// # Errors
    /// [`EscrowError::Lock`], as above.
    pub fn read(&self, by: &mut Intentions<'_, 't>, counter: usize) -> Result<i64, EscrowError> {
        self.own(by);
        self.locks.lock(&mut by.owner, counter, Access::Read)?;
        let value = i128::from(self.counters[counter].lock().value) + by.level.sum(counter);
        Ok(value.try_into().expect("it is within its bounds"))
    }
}

/// Of changes of one counter.
fn sum<'c>(changes: impl Iterator<Item = &'c (usize, i64)>) -> i128 {
    changes.map(|(_, amount)| i128::from(*amount)).sum()
}

impl State {
    /// The value with changes that are outstanding.
    fn with(&self, changes: &[(usize, i64)]) -> i64 {
        let value = i128::from(self.value) + sum(changes.iter());
        value.try_into().expect("it is within its bounds")
    }

    /// Something is outstanding, or, with -1, is not any more.
    fn reserve(&mut self, amount: i64, sign: i64) {
        let part = if amount < 0 { &mut self.less } else { &mut self.more };
        *part += i128::from(sign) * i128::from(amount);
    }
}

impl Counter {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// What a transaction has changed and put off.
#[derive(Default)]
struct Level {
    parent: Option<Arc<Level>>,
    changes: Mutex<Vec<(usize, i64)>>,
}

impl Level {
    fn changes(&self) -> MutexGuard<'_, Vec<(usize, i64)>> {
        self.changes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn add(&self, counter: usize, amount: i64) {
        self.changes().push((counter, amount));
    }

    /// Of it and those above it.
    fn sum(&self, counter: usize) -> i128 {
        let own = sum(self.changes().iter().filter(|(of, _)| *of == counter));
        own + self.parent.as_ref().map_or(0, |parent| parent.sum(counter))
    }
}

/// The companion of a transaction that changes counters: the locks that it holds, and its changes, which are put off
/// until its top commits.
pub struct Intentions<'c, 't> {
    counters: &'c Counters<'t>,
    owner: Owner,
    level: Arc<Level>,
    /// Counters whose latches it has.
    latched: Vec<usize>,
}

impl Intentions<'_, '_> {
    /// Who holds locks for it, for other locks.
    pub fn owner(&mut self) -> &mut Owner {
        &mut self.owner
    }

    /// Nothing of it is outstanding any more.
    fn settle(&mut self, commits: bool) {
        let counters = &self.counters.counters;
        let mut changes = std::mem::take(&mut *self.level.changes());
        changes.sort_unstable();
        for of_one in changes.chunk_by(|a, b| a.0 == b.0) {
            // At once: in between, there would seem to be room.
            let mut state = counters[of_one[0].0].lock();
            of_one.iter().for_each(|(_, amount)| state.reserve(*amount, -1));
            if commits {
                state.value = state.with(of_one);
            }
        }
        self.latched.drain(..).for_each(|counter| counters[counter].latch.give_up());
    }
}

impl<'t> Follow<'t> for Intentions<'_, 't> {
    fn child(&mut self) -> Self {
        let level = Level { parent: Some(self.level.clone()), changes: Mutex::default() };
        Intentions {
            counters: self.counters,
            owner: self.owner.child(),
            level: Arc::new(level),
            latched: Vec::new(),
        }
    }

    fn independent(&mut self) -> Self {
        let owner = self.owner.independent();
        Intentions { counters: self.counters, owner, level: Arc::default(), latched: Vec::new() }
    }

    fn vote(&mut self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.owner.goes_on()?)
    }

    fn commit(self, parent: &mut Self) {
        if !planted("intentions-not-inherited") {
            parent.level.changes().append(&mut self.level.changes());
        }
        self.owner.commit();
    }

    /// Steps 1 and 2.
    fn apply(&mut self, tx: &mut Transaction<'t>) -> Result<(), Error> {
        let counters = self.counters;
        let mut changes = self.level.changes().clone();
        changes.sort_unstable();
        for of_one in changes.chunk_by(|a, b| a.0 == b.0) {
            let counter = of_one[0].0;
            if unless("counters-not-latched", true) {
                counters.counters[counter].latch.take();
            }
            self.latched.push(counter);
            let value = counters.counters[counter].lock().with(of_one);
            tx.store(counters.region, counters.offset + counter * 8, &value)?;
        }
        if planted("counters-not-latched") {
            yield_now();
        }
        Ok(())
    }

    /// Step 4.
    fn committed(&mut self) {
        self.settle(true);
    }

    fn end(self) {
        self.owner.end();
    }

    fn abort(mut self) {
        self.settle(false);
        self.owner.end();
    }
}

/// A lock that is held while a transaction commits, by whoever drives it.
#[derive(Default)]
struct Latch {
    taken: AtomicBool,
    event: Event,
}

impl Latch {
    fn take(&self) {
        loop {
            let seen = self.event.count();
            if !self.taken.swap(true, Ordering::Acquire) {
                return;
            }
            self.event.wait(seen, None);
        }
    }

    fn give_up(&self) {
        self.taken.store(false, Ordering::Release);
        self.event.signal_one();
    }
}
