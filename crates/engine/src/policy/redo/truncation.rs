//! Truncation: log space is reclaimed by bringing the segments up to date (RVM, section 5.1.2).
//!
//! * **Incremental** ([`incremental`](super::incremental)): the oldest pages of the page queue are copied from
//!   memory and written to their segments, and the log's head moves to the first record that the queue still needs.
//! * **Epoch**: the records between head and forced end are read back and applied to the segments. It
//!   needs nobody's memory, so nothing blocks it: used when incremental truncation is blocked and space is
//!   short, and for the log that recovery found.
//!
//! The same thread makes checkpoints ([`checkpoint`](super::checkpoint)) and keeps the memory budget
//! ([`memory`](super::memory)).

use super::Redo;
use super::backup::hold;
use super::incremental::Outcome;
use super::pages::PageId;
use crate::storage::error::Failure;
use crate::storage::redo_ranges::RedoRanges;
use crate::storage::region::RegionState;
use crate::storage::segment::SegmentState;
use caliburn_log::format::Lsn;
use caliburn_log::media_error::MediaError;
use caliburn_log::scan;
use caliburn_os::event::Event;
use caliburn_os::map::Buffer;
use caliburn_os::simulated::{instead, planted, unless};
use caliburn_os::sync::atomic::{AtomicU64, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// State and counters of truncation.
#[derive(Default)]
pub(super) struct Truncation {
    lock: Mutex<Unforced>,
    wake: Event,
    /// End of the log when the last checkpoint began.
    pub(super) checkpoint: AtomicU64,
    /// Signalled when private pages were given back.
    pub(super) relief: Event,
    pub incremental: AtomicU64,
    pub epochs: AtomicU64,
    pub pages_written: AtomicU64,
    pub pages_dropped: AtomicU64,
    pub pages_blocked: AtomicU64,
}

impl Truncation {
    /// Whether its thread has found nothing to do.
    #[cfg(test)]
    pub fn is_asleep(&self) -> bool {
        self.wake.is_waited_for()
    }

    pub fn wake_all(&self) {
        self.wake.signal();
        self.relief.signal();
    }
}

/// What the holder of the truncation lock keeps.
#[derive(Debug, Default)]
pub(super) struct Unforced {
    /// The segments that were written to and not forced since.
    pub(super) segments: BTreeMap<u32, Arc<SegmentState>>,
    /// Memory for copies of pages. Made anew each time, clearing it would take longer than the copies.
    pub(super) copies: Buffer,
}

impl Redo {
    pub(super) fn lock_truncation(&self) -> MutexGuard<'_, Unforced> {
        self.truncation.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn wake_truncation(&self) {
        self.truncation.wake.signal();
    }

    /// Bytes of log in use at which truncation begins.
    pub(super) fn truncation_threshold(&self) -> u64 {
        self.log.capacity() / 100 * u64::from(self.storage.tuning().truncate_percent)
    }

    /// The background thread's life. What recovery has left to it waits, so that the program gets going first.
    pub(super) fn run_truncation(&self) {
        // Wake-ups before this thread started count.
        let (mut seen, mut appended) = (0, self.log.tail());
        loop {
            let unapplied = self.is_unapplied();
            let private = {
                let pages = self.lock_pages();
                pages.private() > 0 || pages.may_return()
            };
            let limit = Duration::from_millis(if self.bytes_since_checkpoint() > 0 && !unapplied {
                100
            } else {
                500
            });
            self.truncation.wake.wait(seen, (unapplied || private).then_some(limit));
            seen = self.truncation.wake.count();
            if self.storage.is_over() {
                return;
            }
            let before = std::mem::replace(&mut appended, self.log.tail());
            // A failure is remembered by the store and ends the loop.
            let idle = before == appended && !unapplied;
            let done = if idle { self.checkpoint_rest() } else { Ok(()) };
            let _ = done.and_then(|()| self.truncate_as_needed());
        }
    }

    /// Does what is due: an epoch of the log found at opening, a checkpoint, truncation, giving back memory.
    pub(super) fn truncate_as_needed(&self) -> Result<(), Failure> {
        let log = &self.log;
        let unforced = &mut *self.lock_truncation();
        if self.is_unapplied() {
            self.epoch(unforced)?;
        }
        if log.used() <= self.truncation_threshold() && !self.is_starved() {
            self.checkpoint_beyond(unforced, self.checkpoint_every_bytes())?;
        } else {
            // Truncation also checkpoints. Leave the newest half, whose pages will change again, unless somebody
            // waits for space.
            let spare =
                if self.is_starved() { 0 } else { self.truncation_threshold().min(log.capacity() / 2) / 2 };
            let goal = Lsn(log.tail().0.saturating_sub(spare).max(log.head().0));
            let outcome = self.incremental(unforced, goal, &|_| true)?;
            let critical = log.used() > log.capacity() / 10 * 8;
            if (outcome != Outcome::Done && critical) || self.is_starved() {
                self.epoch(unforced)?;
            }
        }
        self.relieve(unforced)
    }

    /// Brings every committed change so far to its segment.
    pub(super) fn truncate_all(&self) -> Result<(), Failure> {
        self.flush_all()?;
        let unforced = &mut *self.lock_truncation();
        self.truncate_flushed(unforced)?;
        self.return_moved()
    }

    /// See [`Recovery::put_to_rest`]. Under the lock nothing is written to segments after the truncation.
    pub(super) fn put_all_to_rest(&self, unused: &[Arc<SegmentState>]) -> Result<(), Failure> {
        self.flush_all()?;
        let unforced = &mut *self.lock_truncation();
        // What is undecided may have to be written any time.
        if self.prepared_bytes() == 0 {
            self.truncate_flushed(unforced)?;
            unused.iter().for_each(|segment| segment.rest());
        }
        Ok(())
    }

    fn truncate_flushed(&self, unforced: &mut Unforced) -> Result<(), Failure> {
        if self.is_unapplied() {
            self.epoch(unforced)?;
        }
        let goal = self.log.forced();
        if self.incremental(unforced, goal, &|_| true)? != Outcome::Done {
            self.epoch(unforced)?;
        }
        Ok(())
    }

    /// Brings a region's committed changes to its segment, so that it can be mapped anew.
    pub(super) fn write_region(&self, region: &RegionState) -> Result<(), Failure> {
        self.flush_all()?;
        let unforced = &mut *self.lock_truncation();
        let page = self.storage.page_size as u64;
        let (segment, numbers) = (region.segment.id, region.pages(page));
        let inside = |p: PageId| p.segment == segment && numbers.contains(&p.number);
        let blocked = self.incremental(unforced, Lsn(u64::MAX), &inside)? != Outcome::Done;
        // What recovery laid over the region must not be laid over a later mapping again.
        if blocked || self.is_unapplied() {
            self.epoch(unforced)?;
        }
        Ok(())
    }

    /// Step 6.
    pub(super) fn force_segments(&self, unforced: &mut Unforced) -> Result<(), Failure> {
        if planted("head-before-segments") {
            self.move_head()?;
        }
        if unless("checkpoint-while-forcing", !unforced.segments.is_empty()) {
            self.stage.set_checkpoint(None);
        }
        self.storage.kept()?;
        for segment in unforced.segments.values() {
            let forced = self.storage.meter.segment_force.time(|| segment.sync());
            forced.map_err(|e| self.fail(e))?;
        }
        unforced.segments.clear();
        Ok(())
    }

    /// Step 7. The head stops at the first record that the page queue or a prepared transaction needs.
    pub(super) fn move_head(&self) -> Result<(), Failure> {
        if !planted("failure-passed-by") {
            // Pages may have been taken off the queue and not written.
            self.storage.failure()?;
        }
        let log = &self.log;
        let Some(head) = self.redo_lsn() else { return Ok(()) };
        // After the head is known, and before the space is let go: see `hold`.
        let held = self.held();
        if head > log.head() {
            self.storage.settle().map_err(|e| self.fail(e))?;
            log.advance_head(head).map_err(|e| self.fail(e))?;
        }
        log.let_go(instead("hold-not-respected", held, Lsn(u64::MAX)));
        self.space.signal();
        self.set_checkpoint();
        Ok(())
    }

    /// From where on the log is kept until it is archived, and its replica has it. If that cannot be told now,
    /// nothing is let go.
    fn held(&self) -> Lsn {
        let (storage, kept) = (&self.storage, self.log.kept());
        let held = |name| {
            let held = hold::read(&*storage.media, &storage.dir, &storage.id, name)?;
            Ok::<Lsn, MediaError>(held.map_or(Lsn(u64::MAX), |held| held.keeps(kept)))
        };
        let replica = match &self.replication {
            Some(_) if planted("replica-not-kept-for") => Ok(Lsn(u64::MAX)),
            Some(replication) => self.kept_for_replica(replication),
            None => held(hold::REPLICATED),
        };
        match replica.and_then(|replica| Ok(replica.min(held(hold::ARCHIVED)?))) {
            Ok(held) => held,
            Err(error) => {
                tracing::warn!(%error, "how far the log is archived or replicated cannot be told: all of it is kept");
                Lsn(0)
            }
        }
    }

    /// Epoch truncation: applies all of the forced log. The shared path of recovery and truncation.
    pub(super) fn epoch(&self, unforced: &mut Unforced) -> Result<(), Failure> {
        let log = &self.log;
        // First the queue, then the end of the epoch: all that was queued lies before it.
        let taken = self.lock_pages().take_all();
        if !planted("epoch-of-unforced-log") {
            log.force().map_err(|e| self.fail(e))?;
        }
        let end = instead("epoch-of-unforced-log", log.forced(), log.tail());
        let head = log.head();
        if head < end {
            scan::verify(&*log.medium(), log.capacity(), head..end).map_err(|e| self.fail(e))?;
            let unapplied = RedoRanges::of_log(&*log.medium(), log.capacity(), head, end);
            let unapplied = unapplied.map_err(|e| self.fail(e))?;
            for id in unapplied.segments() {
                let segment =
                    self.storage.segment_state(id).expect("opening and commits admit known segments only");
                let mut numbers = Vec::new();
                unapplied
                    .apply(&segment, self.storage.page_size, |number| numbers.push(number))
                    .map_err(|e| self.fail(e))?;
                self.truncation.pages_written.fetch_add(numbers.len() as u64, Ordering::Relaxed);
                self.note_mapped(&segment, &numbers);
                unforced.segments.entry(id.0).or_insert(segment);
            }
            self.truncation.epochs.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(from = head.0, to = end.0, "an epoch of the log was applied");
        }
        {
            let mut pages = self.lock_pages();
            taken.into_iter().for_each(|page| pages.cleaned(page));
        }
        self.force_segments(unforced)?;
        self.unapplied.write().expect("no panic under this lock").take_if(|p| p.tail() <= end);
        self.move_head()
    }

    /// Pages that an epoch has written and that are mapped are private: their changes, or what recovery
    /// laid over them, are in memory.
    pub(super) fn note_mapped(&self, segment: &SegmentState, numbers: &[u64]) {
        let page = self.storage.page_size as u64;
        for number in numbers {
            if self.storage.region_of(segment.id, number * page).is_some() {
                self.lock_pages().note_private(segment.id, number * page, page);
            }
        }
    }
}
