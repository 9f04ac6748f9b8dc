//! Reader-writer locks over ranges of blocks. A lock stands for all blocks whose number ends in the same bits, so
//! that they take no more memory for more blocks; who wants several takes them in order.

use caliburn_os::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::Range;

/// How many locks there are.
const LOCKS: usize = 1024;

/// Locks over blocks.
#[derive(Debug)]
pub(crate) struct RangeLocks(Box<[RwLock<()>]>);

impl RangeLocks {
    pub fn new() -> RangeLocks {
        RangeLocks((0..LOCKS).map(|_| RwLock::new(())).collect())
    }

    fn at(block: u64) -> usize {
        block as usize % LOCKS
    }

    /// Which locks a range needs, in order.
    fn of(range: &Range<u64>) -> Vec<usize> {
        let blocks = range.start..range.end.min(range.start + LOCKS as u64);
        let mut locks: Vec<usize> = blocks.map(Self::at).collect();
        locks.sort_unstable();
        locks
    }

    /// Keeps writers from a block.
    #[inline]
    pub fn read_one(&self, block: u64) -> RwLockReadGuard<'_, ()> {
        self.0[Self::at(block)].read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Keeps everybody from a block.
    #[inline]
    pub fn write_one(&self, block: u64) -> RwLockWriteGuard<'_, ()> {
        self.0[Self::at(block)].write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Keeps writers from a range.
    pub fn read(&self, range: &Range<u64>) -> Vec<RwLockReadGuard<'_, ()>> {
        let lock = |at: usize| self.0[at].read().unwrap_or_else(|poisoned| poisoned.into_inner());
        Self::of(range).into_iter().map(lock).collect()
    }

    /// Keeps everybody from these blocks.
    pub fn write(&self, blocks: impl Iterator<Item = u64>) -> Vec<RwLockWriteGuard<'_, ()>> {
        let mut locks: Vec<usize> = blocks.map(Self::at).collect();
        locks.sort_unstable();
        locks.dedup();
        let lock = |at: usize| self.0[at].write().unwrap_or_else(|poisoned| poisoned.into_inner());
        locks.into_iter().map(lock).collect()
    }
}
