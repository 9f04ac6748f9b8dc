//! Counters whose changes commute (Camelot, section 4.2; O'Neil's escrow): any number of families add to one and
//! subtract from it at once, within bounds that hold whichever of them commit.
//!
//! A change is put off if there is room for it, whichever of the outstanding ones commit; what it may come to is
//! counted as outstanding. Locks are of the modes of [`Access`].
//!
//! Invariant: the least and the most that a counter can come to, by what is outstanding, are within its bounds.

use crate::commute::{Commute, Intentions, Latches};
use crate::detector::Detector;
use crate::error::LockError;
use crate::mode::Mode;
use crate::owner::Owner;
use crate::table::Locks;
use caliburn_engine::{Region, Transaction};
use caliburn_nest::Error;
use caliburn_os::simulated::unless;
use caliburn_os::sync::{Mutex, MutexGuard};
use std::ops::RangeInclusive;

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
    counters: Box<[Mutex<State>]>,
    latches: Latches,
}

/// What is known of a counter.
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
            Mutex::new(State { value, less: 0, more: 0 })
        };
        let counters = (0..count).map(counter).collect();
        let latches = Latches::new(count);
        Counters { region, offset, bounds, locks: detector.locks(), counters, latches }
    }

    /// What follows a top-level transaction that changes these counters alone.
    pub fn companion<'c>(&'c self, detector: &Detector) -> (Intentions<'c, 't, Self>, Owner) {
        (Intentions::new(self), detector.owner())
    }

    fn own(&self, by: &Intentions<'_, 't, Self>) {
        assert!(std::ptr::eq(self, by.object()), "these are intentions of other counters");
    }

    fn state(&self, counter: usize) -> MutexGuard<'_, State> {
        self.counters[counter].lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The value of a counter as it is committed, whatever is outstanding.
    pub fn committed(&self, counter: usize) -> i64 {
        self.state(counter).value
    }

    /// Adds to a counter, or subtracts from it, when the family commits.
    ///
    /// # Errors
    /// [`EscrowError::Bounds`]: it may come out of its bounds, if others that are outstanding commit or abort.
    /// Nothing is changed then. [`EscrowError::Lock`]: who reads it is in the way, and this is the victim of a
    /// deadlock.
    pub fn change(
        &self,
        by: &mut Intentions<'_, 't, Self>,
        owner: &mut Owner,
        counter: usize,
        amount: i64,
    ) -> Result<(), EscrowError> {
        self.own(by);
        self.locks.lock(owner, counter, Access::Change)?;
        let mut state = self.state(counter);
        let part = if amount < 0 { state.less } else { state.more };
        let worst = i128::from(state.value) + part + i128::from(amount);
        let fits = i64::try_from(worst).is_ok_and(|worst| self.bounds.contains(&worst));
        if unless("bounds-of-what-is-committed", !fits) {
            return Err(EscrowError::Bounds { counter, amount, worst, bounds: self.bounds.clone() });
        }
        state.reserve(amount, 1);
        drop(state);
        by.put_off((counter, amount));
        Ok(())
    }

    /// The value of a counter, with what this family has changed so far; nobody else changes it until the family
    /// has ended.
    ///
    /// # Errors
    /// [`EscrowError::Lock`], as above.
    pub fn read(
        &self,
        by: &mut Intentions<'_, 't, Self>,
        owner: &mut Owner,
        counter: usize,
    ) -> Result<i64, EscrowError> {
        self.own(by);
        self.locks.lock(owner, counter, Access::Read)?;
        let mut value = i128::from(self.state(counter).value);
        by.each(|(of, amount)| value += if *of == counter { i128::from(*amount) } else { 0 });
        Ok(value.try_into().expect("it is within its bounds"))
    }
}

impl State {
    /// The value with changes that are outstanding.
    fn with(&self, changes: &[(usize, i64)]) -> i64 {
        let value =
            i128::from(self.value) + changes.iter().map(|(_, amount)| i128::from(*amount)).sum::<i128>();
        value.try_into().expect("it is within its bounds")
    }

    /// Something is outstanding, or, with -1, is not any more.
    fn reserve(&mut self, amount: i64, sign: i64) {
        let part = if amount < 0 { &mut self.less } else { &mut self.more };
        *part += i128::from(sign) * i128::from(amount);
    }
}

impl<'t> Commute<'t> for Counters<'t> {
    /// A counter, and what is added to it.
    type Change = (usize, i64);

    fn latches(&self) -> &Latches {
        &self.latches
    }

    fn part(&self, (counter, _): &(usize, i64)) -> usize {
        *counter
    }

    fn apply(&self, counter: usize, changes: &[(usize, i64)], tx: &mut Transaction<'t>) -> Result<(), Error> {
        let value = self.state(counter).with(changes);
        Ok(tx.store(self.region, self.offset + counter * 8, &value)?)
    }

    fn settle(&self, counter: usize, changes: &[(usize, i64)], commits: bool) {
        // At once: in between, there would seem to be room.
        let mut state = self.state(counter);
        changes.iter().for_each(|(_, amount)| state.reserve(*amount, -1));
        if commits {
            state.value = state.with(changes);
        }
    }
}
