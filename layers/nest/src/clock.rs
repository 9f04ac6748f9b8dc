//! A hybrid clock (Lamport's order, near the wall's time): timestamps for top-level transactions that agree with
//! their serial order, also across machines that tell each other of theirs (Camelot, sections 4.2 and 4.6).
//!
//! ```text
//!   given out:  ... last < next = max(last + 1, the wall's) ...          bound, in the store
//!   next is beyond the bound:  a transaction of its own moves that on, and only then next is given out
//!   opened again:  from the bound on, whatever the wall says
//! ```
//!
//! Invariant: nothing is given out that is not below a bound which survives what the store does, so nothing is
//! given out twice.

use crate::error::Error;
use caliburn_engine::{Class, Mode, Region, Store};
use caliburn_os::clock::wall_ns;
use caliburn_os::simulated::planted;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A moment of a clock: nanoseconds since 1970, about; no two that a clock gives out are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// So far in front of what is given out the bound is set: a clock that is opened after a crash may be so far ahead
/// of the wall's, and while one is used it costs a forced transaction each time.
pub const AHEAD_NS: u64 = 1_000_000_000;

/// Most that a timestamp of somebody else may be in front of the wall's: a machine whose clock is wrong would take
/// all others along.
pub const DRIFT_NS: u64 = 60_000_000_000;

/// Bytes of a region that a clock takes: the bound, and its check.
pub const CLOCK_BYTES: usize = 16;

/// A clock. One for each place in a store, used by any number of threads.
pub struct Clock<'t> {
    store: &'t Store,
    region: &'t Region,
    offset: usize,
    wall: fn() -> u64,
    last: AtomicU64,
    bound: AtomicU64,
    moving: Mutex<()>,
}

impl fmt::Debug for Clock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("last", &self.last).field("bound", &self.bound).finish_non_exhaustive()
    }
}

fn check(bound: u64) -> u64 {
    !bound.rotate_left(17)
}

impl<'t> Clock<'t> {
    /// The clock whose bound is at an offset of a region: [`CLOCK_BYTES`], zeros at first, which nothing else
    /// stores to.
    ///
    /// # Errors
    /// [`Error::Clock`] when something else is there.
    ///
    /// # Panics
    /// When the region ends before.
    pub fn open(store: &'t Store, region: &'t Region, offset: usize) -> Result<Clock<'t>, Error> {
        Clock::with_wall(store, region, offset, wall_ns)
    }

    /// The same, with another wall's clock: for tests.
    #[doc(hidden)]
    pub fn with_wall(
        store: &'t Store,
        region: &'t Region,
        offset: usize,
        wall: fn() -> u64,
    ) -> Result<Clock<'t>, Error> {
        let [bound, sum]: [u64; 2] = region.load(offset);
        if [bound, sum] != [0, 0] && sum != check(bound) {
            return Err(Error::Clock(format!("what is at {offset} is no clock's: {bound}, {sum}").into()));
        }
        let (last, bound) = (AtomicU64::new(bound), AtomicU64::new(bound));
        Ok(Clock { store, region, offset, wall, last, bound, moving: Mutex::new(()) })
    }

    /// A timestamp that is behind all that this clock has given out or heard of, also in the lives before a crash.
    ///
    /// # Errors
    /// When the bound could not be moved on.
    pub fn now(&self) -> Result<Timestamp, Error> {
        let wall = (self.wall)();
        let before =
            self.last.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(wall.max(last + 1)));
        let next = wall.max(before.expect("it is always updated") + 1);
        if next > self.bound.load(Ordering::Acquire) {
            self.move_on(next)?;
        }
        Ok(Timestamp(next))
    }

    /// Hears of a timestamp of another clock: what this one gives out is behind it from then on.
    ///
    /// # Errors
    /// [`Error::Clock`] when it is more than [`DRIFT_NS`] in front of the wall's.
    pub fn observe(&self, other: Timestamp) -> Result<(), Error> {
        let wall = (self.wall)();
        if other.0 > wall.saturating_add(DRIFT_NS) {
            let ahead = other.0 - wall;
            let text =
                format!("{other} is {ahead} ns in front of the wall's clock {wall}: one of them is wrong");
            return Err(Error::Clock(text.into()));
        }
        self.last.fetch_max(other.0, Ordering::AcqRel);
        Ok(())
    }

    #[cold]
    fn move_on(&self, next: u64) -> Result<(), Error> {
        let _moving = self.moving.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if next <= self.bound.load(Ordering::Acquire) {
            return Ok(());
        }
        let bound = next + AHEAD_NS;
        let mut tx = self.store.begin(Mode::Restore)?;
        tx.store(self.region, self.offset, &[bound, check(bound)])?;
        let class = if planted("bound-not-forced") { Class::Process } else { self.store.reach() };
        tx.commit(class)?;
        self.bound.store(bound, Ordering::Release);
        Ok(())
    }
}
