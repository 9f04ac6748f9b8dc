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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A moment of a clock: nanoseconds since 1970, about; no two that a clock gives out are equal.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// What a clock has given out or heard of last: in memory, without a bound. It is told the wall's time.
#[derive(Debug, Default)]
pub struct Hybrid(AtomicU64);

/// A timestamp that is too far in front of the wall's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{other} is {} ns in front of the wall's clock {wall}: one of them is wrong", other.0 - wall)]
pub struct Ahead {
    /// The timestamp.
    pub other: Timestamp,
    /// The wall's clock.
    pub wall: u64,
}

impl Hybrid {
    /// The last one.
    pub fn last(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Acquire))
    }

    /// The next one.
    pub fn next(&self, wall: u64) -> Timestamp {
        let before =
            self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(wall.max(last + 1)));
        Timestamp(wall.max(before.expect("it is always updated") + 1))
    }

    /// Hears of another's: what is given out from then on is behind it.
    ///
    /// # Errors
    /// [`Ahead`] when it is more than [`DRIFT_NS`] in front of the wall's, and of all that was heard before.
    pub fn hear(&self, other: Timestamp, wall: u64) -> Result<(), Ahead> {
        self.hear_within(other, wall, DRIFT_NS)
    }

    /// The same, with another limit.
    ///
    /// # Errors
    /// As [`Hybrid::hear`].
    pub fn hear_within(&self, other: Timestamp, wall: u64, drift: u64) -> Result<(), Ahead> {
        // The wall's may have been set back: what this one has given out itself it can hear.
        if other > self.last() && other.0 > wall.saturating_add(drift) {
            return Err(Ahead { other, wall });
        }
        self.0.fetch_max(other.0, Ordering::AcqRel);
        Ok(())
    }

    /// What a store remembers is heard, whatever the wall's clock says.
    pub fn remember(&self, bound: Timestamp) {
        self.0.fetch_max(bound.0, Ordering::AcqRel);
    }
}

/// A clock. One for each place in a store, used by any number of threads.
pub struct Clock<'t> {
    store: &'t Store,
    region: &'t Region,
    offset: usize,
    wall: fn() -> u64,
    hybrid: Arc<Hybrid>,
    bound: AtomicU64,
    moving: Mutex<()>,
}

impl fmt::Debug for Clock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock")
            .field("last", &self.hybrid.last())
            .field("bound", &self.bound)
            .finish_non_exhaustive()
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
        Clock::of(store, region, offset, (Arc::default(), wall_ns))
    }

    /// The same, over what others look at as well, and with whatever wall's clock that goes by.
    ///
    /// # Errors
    /// As [`Clock::open`].
    ///
    /// # Panics
    /// As [`Clock::open`].
    pub fn of(
        store: &'t Store,
        region: &'t Region,
        offset: usize,
        (hybrid, wall): (Arc<Hybrid>, fn() -> u64),
    ) -> Result<Clock<'t>, Error> {
        let [bound, sum]: [u64; 2] = region.load(offset);
        if [bound, sum] != [0, 0] && sum != check(bound) {
            return Err(Error::Clock(format!("what is at {offset} is no clock's: {bound}, {sum}").into()));
        }
        hybrid.remember(Timestamp(bound));
        let bound = AtomicU64::new(bound);
        Ok(Clock { store, region, offset, wall, hybrid, bound, moving: Mutex::new(()) })
    }

    /// A timestamp that is behind all that this clock has given out or heard of, also in the lives before a crash.
    ///
    /// # Errors
    /// When the bound could not be moved on.
    pub fn now(&self) -> Result<Timestamp, Error> {
        let next = self.hybrid.next((self.wall)());
        self.keep(next)?;
        Ok(next)
    }

    /// Makes sure that a timestamp that was heard of is not forgotten in a crash.
    ///
    /// # Errors
    /// When the bound could not be moved on.
    pub fn keep(&self, heard: Timestamp) -> Result<(), Error> {
        if heard.0 > self.bound.load(Ordering::Acquire) { self.move_on(heard.0) } else { Ok(()) }
    }

    /// Hears of a timestamp of another clock: what this one gives out is behind it from then on.
    ///
    /// # Errors
    /// [`Error::Clock`] when it is more than [`DRIFT_NS`] in front of the wall's.
    pub fn observe(&self, other: Timestamp) -> Result<(), Error> {
        let heard = self.hybrid.hear(other, (self.wall)());
        heard.map_err(|ahead| Error::Clock(ahead.to_string().into()))
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
