//! Locks of ranges: of the bytes of a region, or of whatever is numbered. Two that have a number in common do not
//! go together, unless both are shared.
//!
//! ```text
//!   a space:   | all of it                                                            |   2^64
//!              | 2^30                  | 2^30                  | ...                  |
//!              | 2^20 | 2^20 | ...     |                                              |
//!                ... 2^12, 2^6, 2^3, 1
//! ```
//!
//! A range is locked as the fewest blocks that it is made of, each in the range's mode; the blocks that these lie
//! in, the largest first, in the mode that tells of the intention (Gray, Lorie, Putzolu, Traiger 1976).
//!
//! Invariant: of two ranges that have a number in common, one has a block that is the other's block, or lies in
//! it: there the mode of one meets the mode or the intention of the other.

use crate::error::LockError;
use crate::mode::Standard;
use crate::owner::Owner;
use crate::table::{Locks, Name};
use caliburn_os::simulated::planted;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Binary logarithms of the blocks' lengths. A range of eight bytes that is aligned takes six locks; one of any
/// length some 2,700 at most, and one more for each 2^30.
const SHIFTS: [u32; 7] = [64, 30, 20, 12, 6, 3, 0];

/// Locks of ranges in spaces that are named by values of a type, such as numbers of segments: made by
/// [`Detector::range_locks`](crate::Detector::range_locks). Handles of it are cheap to clone.
#[derive(Clone)]
pub struct RangeLocks<K: Name + Clone>(Locks<Block<K>>);

/// A part of a space.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Block<K> {
    space: K,
    shift: u32,
    number: u64,
}

impl<K> Block<K> {
    fn range(&self) -> Range<u128> {
        let (start, len) = (u128::from(self.number) << self.shift, 1 << self.shift);
        start..start + len
    }
}

/// How deadlocks and timeouts name it.
impl<K: fmt::Debug> fmt::Debug for Block<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shift {
            64 => write!(f, "all of {:?}", self.space),
            _ => write!(f, "{:?} of {:?}", self.range(), self.space),
        }
    }
}

impl<K: Name + Clone> RangeLocks<K> {
    pub(crate) fn new(locks: Locks<Block<K>>) -> RangeLocks<K> {
        RangeLocks(locks)
    }

    /// Locks a range of a space, and waits until that can be; nothing for an empty one. To `u64::MAX` is to the
    /// end.
    ///
    /// # Errors
    /// As [`Locks::lock`]; what of the range was locked by then stays so, as all locks do, until the family ends.
    ///
    /// # Panics
    /// If the mode is neither `Shared` nor `Exclusive`, or the range ends before it begins.
    pub fn lock(
        &self,
        owner: &mut Owner,
        space: &K,
        range: Range<u64>,
        mode: Standard,
    ) -> Result<(), LockError> {
        self.each(space, range, mode, |block, mode| self.0.lock(owner, block, mode).map(|()| true)).map(drop)
    }

    /// The same, without waiting: whether it was had. If not, what of it was locked by then stays so.
    ///
    /// # Errors
    /// As [`RangeLocks::lock`].
    ///
    /// # Panics
    /// As [`RangeLocks::lock`].
    pub fn try_lock(
        &self,
        owner: &mut Owner,
        space: &K,
        range: Range<u64>,
        mode: Standard,
    ) -> Result<bool, LockError> {
        self.each(space, range, mode, |block, mode| self.0.try_lock(owner, block, mode))
    }

    /// The same, waiting no longer than a time.
    ///
    /// # Errors
    /// [`LockError::Timeout`], with who was in the way; as [`RangeLocks::lock`].
    ///
    /// # Panics
    /// As [`RangeLocks::lock`].
    pub fn lock_timeout(
        &self,
        owner: &mut Owner,
        space: &K,
        range: Range<u64>,
        mode: Standard,
        time: Duration,
    ) -> Result<(), LockError> {
        let begun = Instant::now();
        let lock = |block, mode| {
            let left = time.saturating_sub(begun.elapsed());
            self.0.lock_timeout(owner, block, mode, left).map(|()| true)
        };
        self.each(space, range, mode, lock).map(drop)
    }

    /// How many locks are held or waited for: of blocks, not of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `lock` with the blocks of a range and those that they lie in, the largest first, until it says that
    /// one was not had.
    fn each(
        &self,
        space: &K,
        range: Range<u64>,
        mode: Standard,
        mut lock: impl FnMut(Block<K>, Standard) -> Result<bool, LockError>,
    ) -> Result<bool, LockError> {
        let intention = match mode {
            Standard::Shared => Standard::IntentShared,
            Standard::Exclusive => Standard::IntentExclusive,
            _ => panic!("a range is locked Shared or Exclusive, not {mode:?}"),
        };
        assert!(
            range.start <= range.end,
            "the range ends at {}, before it begins at {}",
            range.end,
            range.start
        );
        if range.is_empty() {
            return Ok(true);
        }
        let end = if range.end == u64::MAX { 1 << 64 } else { u128::from(range.end) };
        let range = u128::from(range.start)..end;
        // Blocks still to be locked, the next one last.
        let mut open = vec![(0, 0u64)];
        while let Some((level, number)) = open.pop() {
            let block = Block { space: space.clone(), shift: SHIFTS[level], number };
            let part = block.range();
            let whole = range.start <= part.start && part.end <= range.end;
            let skipped = !whole && planted("intentions-skipped") && level > 1;
            if !skipped && !lock(block, if whole { mode } else { intention })? {
                return Ok(false);
            }
            if !whole {
                let shift = SHIFTS[level + 1];
                let first = range.start.max(part.start) >> shift;
                let last = (range.end.min(part.end) - 1) >> shift;
                open.extend((first..=last).rev().map(|number| (level + 1, number as u64)));
            }
        }
        Ok(true)
    }
}
