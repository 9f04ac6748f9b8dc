//! Quiet moments: no transaction has changed anything that it has not committed, nor does any begin to. For
//! policies whose memory is the segment, and whose changes are in no log.
//!
//! ```text
//!   transaction:      publish its first range - light barrier - is quiet wanted?  yes: stand by until it is over
//!                                                                                 no:  store
//!   who wants quiet:  say so - heavy barrier - wait until every run is empty, or its transaction stands by - read
//! ```
//!
//! Invariant: at least one of the two sees the other. A transaction stands by only while it has changed nothing;
//! one that has changed something goes on to its end, however many ranges more it declares.
//!
//! Invariant: what a branch has changed is in its own run or in its parent's. It is counted as moved when it is in
//! the parent's, before it goes from its own: who finds all runs empty, and nothing moved meanwhile, has missed
//! none.

use super::reserve::QUIET;
use super::set::WriteSet;
use super::{Reserve, Sets, Slots};
use caliburn_os::barrier;
use caliburn_os::simulated::{even_if, planted};
use caliburn_os::sync::MutexGuard;
use caliburn_os::sync::atomic::Ordering;
use std::time::Duration;

/// A quiet moment; over when this is dropped.
pub(crate) struct Quiet<'s> {
    reserve: &'s Reserve,
    _one: MutexGuard<'s, ()>,
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.reserve.end_quiet();
    }
}

impl Sets {
    /// Waits for a quiet moment, looking so often at most, for 50 us each time. Transactions that have changed
    /// nothing wait meanwhile.
    pub fn quiet(&self, looks: u32) -> Option<Quiet<'_>> {
        let quiet = Quiet { _one: self.reserve.begin_quiet(), reserve: &self.reserve };
        let moves = || self.reserve.moves.load(Ordering::SeqCst);
        let is_quiet = || {
            let before = moves();
            are_quiet(&self.slots) && moves() == before
        };
        for _ in 0..looks {
            if even_if("dumped-while-it-changes", is_quiet()) {
                return Some(quiet);
            }
            caliburn_os::sync::sleep(Duration::from_micros(50));
        }
        None
    }
}

fn are_quiet(slots: &Slots) -> bool {
    slots.iter().all(|(_, slot)| slot.is_clear() || slot.stands_by.load(Ordering::Acquire))
}

impl WriteSet<'_> {
    /// Whether what is about to be declared is the first that it, and all whose part it is, change.
    pub fn is_untouched(&self) -> bool {
        self.slot.is_clear() && self.ancestors_are_clear()
    }

    /// The same, when a range of `len` bytes has just been declared.
    pub fn has_first_range(&self, len: usize) -> bool {
        let alone = self.position().chunk() == 0 && self.position().bytes == self.stride(len);
        alone && self.ancestors_are_clear()
    }
}

impl Reserve {
    /// What was declared in one run is in another, too, and about to go from the first.
    pub fn moved(&self) {
        self.moves.fetch_add(1, Ordering::SeqCst);
    }

    fn begin_quiet(&self) -> MutexGuard<'_, ()> {
        let one = self.quiet.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.active.fetch_or(QUIET, Ordering::SeqCst);
        barrier::heavy();
        one
    }

    fn end_quiet(&self) {
        self.active.fetch_and(!QUIET, Ordering::Release);
        self.released.signal();
    }

    /// Called by a transaction that has declared its first range, before it stores there: waits while quiet is
    /// wanted.
    #[cold]
    pub fn stand_by(&self, set: &WriteSet<'_>) {
        if planted("quiet-not-kept") {
            return;
        }
        barrier::light();
        if self.active.load(Ordering::Acquire) & QUIET == 0 {
            return;
        }
        let stands_by = &set.slot.stands_by;
        loop {
            barrier::light();
            let seen = self.released.count();
            if self.active.load(Ordering::Acquire) & QUIET == 0 {
                return;
            }
            stands_by.store(true, Ordering::Release);
            self.released.wait(seen, None);
            // Who wants quiet now either sees this, or is seen.
            stands_by.store(false, Ordering::Release);
        }
    }
}
