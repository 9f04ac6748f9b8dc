//! Truncation: log space is reclaimed by bringing the segments up to date (RVM, section 5.1.2).
//!
//! * **Incremental**: the oldest pages of the page queue are copied from memory and written to their
//!   segments, and the log's head moves to the first record that the queue still needs. A page that an
//!   uncommitted transaction has declared blocks its place in the queue.
//! * **Epoch**: the records between head and forced end are read back and applied to the segments. It
//!   needs nobody's memory, so nothing blocks it: used when incremental truncation is blocked and space is
//!   short, and for the log that recovery found.
//!
//! ```text
//!   incremental, per batch:          then:
//!   1 reserve pages, barrier         6 force the segments, write and force their sums
//!   2 copy those nobody declared     7 move the head, durably
//!   3 release
//!   4 force the log to now           Invariant: what reaches a segment is in the forced log first.
//!   5 write the copies
//! ```
//!
//! The same thread makes checkpoints ([`checkpoint`](super::checkpoint)) and keeps the memory budget
//! ([`memory`](super::memory)).

use super::Redo;
use super::pages::{Descriptor, PageId};
use crate::storage::error::Failure;
use crate::storage::redo_ranges::RedoRanges;
use crate::storage::region::RegionState;
use crate::storage::segment::SegmentState;
use crate::write_set::RESERVED;
use caliburn_log::format::Lsn;
use caliburn_log::image::Image;
use caliburn_os::event::Event;
use caliburn_os::map::Buffer;
use caliburn_os::simulated::{instead, planted, unless};
use caliburn_os::span;
use caliburn_os::sync::atomic::{AtomicU64, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard, SCHEDULED};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Pages that are copied before the log is forced for them.
const BATCH: usize = 16 * RESERVED;

/// How often it is looked whether those who have declared reserved pages have ended: some microseconds.
const PATIENCE: u32 = if SCHEDULED { 1 } else { 200 };
/// Ranges that may be looked at each time.
const LOOKED_MOST: usize = 1000;

/// State and counters of truncation.
#[derive(Default)]
pub(super) struct Truncation {
    lock: Mutex<Unforced>,
    wake: Event,
    /// End of the log when showing began last.
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
    pub fn wake_all(&self) {
        self.wake.signal();
        self.relief.signal();
    }
}

/// What the holder of the truncation lock keeps.
#[derive(Debug, Default)]
pub(super) struct Unforced {
    /// The segments that were written to and not forced since.
    segments: BTreeMap<u32, Arc<SegmentState>>,
    /// Memory for the next epoch. Made anew each time, clearing its pages took half of an epoch's time.
    spare: Buffer,
    /// Memory for copies of pages, likewise.
    copies: Vec<u8>,
}

impl Unforced {
    fn add(&mut self, segment: Arc<SegmentState>) {
        self.segments.entry(segment.id.0).or_insert(segment);
    }
}

/// A page that is to be copied.
struct Mapped {
    descriptor: Descriptor,
    region: Arc<RegionState>,
}

impl Mapped {
    fn address(&self, size: usize) -> usize {
        self.region.base + (self.descriptor.page.number * size as u64 - self.region.start) as usize
    }

    /// Whether the other one is the next of the same region.
    fn precedes(&self, next: &Mapped) -> bool {
        Arc::ptr_eq(&self.region, &next.region)
            && self.descriptor.page.number + 1 == next.descriptor.page.number
    }
}

/// How far incremental truncation came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All that was asked for.
    Done,
    /// Pages declared by uncommitted transactions, or not mapped, stand in the way.
    Blocked,
    /// The log is so full that it could not be forced: only an epoch helps.
    Starved,
}

/// Which pages incremental truncation takes.
type Filter<'a> = &'a dyn Fn(PageId) -> bool;

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
            let private = self.lock_pages().private() > 0;
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

    /// Does what is due: an epoch of the log found at opening, showing, truncation, giving back memory.
    pub(super) fn truncate_as_needed(&self) -> Result<(), Failure> {
        let log = &self.log;
        let unforced = &mut *self.lock_truncation();
        if self.is_unapplied() {
            self.epoch(unforced)?;
        }
        let starved = || self.flush.starved.load(Ordering::SeqCst) > log.free();
        if log.used() <= self.truncation_threshold() && !starved() {
            self.checkpoint_beyond(unforced, self.checkpoint_every_bytes())?;
        } else {
            // Truncation also checkpoints. Leave the newest quarter, whose pages will change again, unless
            // somebody waits for space.
            let spare = if starved() { 0 } else { log.capacity() / 4 };
            let goal = Lsn(log.tail().0.saturating_sub(spare).max(log.head().0));
            let outcome = self.incremental(unforced, goal, &|_| true)?;
            let critical = log.used() > log.capacity() / 10 * 8 || starved();
            if (outcome != Outcome::Done && critical) || starved() {
                self.epoch(unforced)?;
            }
        }
        self.relieve(unforced)
    }

    /// Brings every committed change so far to its segment.
    pub(super) fn truncate_all(&self) -> Result<(), Failure> {
        self.flush_all()?;
        let unforced = &mut *self.lock_truncation();
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

    /// Incremental truncation of pages of records before `goal`.
    pub(super) fn incremental(
        &self,
        unforced: &mut Unforced,
        goal: Lsn,
        filter: Filter<'_>,
    ) -> Result<Outcome, Failure> {
        if self.declared_only {
            return self.epoch(unforced).map(|()| Outcome::Done);
        }
        let outcome = self.write_pages(unforced, goal, filter)?;
        if !unforced.segments.is_empty() {
            self.truncation.incremental.fetch_add(1, Ordering::Relaxed);
        }
        self.force_segments(unforced)?;
        self.move_head()?;
        Ok(outcome)
    }

    /// Writes pages of records before `goal` until none is left, or only blocked ones.
    pub(super) fn write_pages(
        &self,
        unforced: &mut Unforced,
        goal: Lsn,
        filter: Filter<'_>,
    ) -> Result<Outcome, Failure> {
        let (mut blocked, mut buffer) = (BTreeSet::new(), std::mem::take(&mut unforced.copies));
        loop {
            let batch = self.lock_pages().take(BATCH, goal, |p| filter(p) && !blocked.contains(&p));
            if batch.is_empty() {
                break;
            }
            if !self.write_batch(unforced, batch, &mut buffer, &mut blocked)? {
                return Ok(Outcome::Starved);
            }
        }
        unforced.copies = buffer;
        if blocked.is_empty() {
            return Ok(Outcome::Done);
        }
        self.truncation.pages_blocked.fetch_add(blocked.len() as u64, Ordering::Relaxed);
        Ok(Outcome::Blocked)
    }

    /// Steps 1 to 5 for one batch. False if the log could not be forced for want of space.
    fn write_batch(
        &self,
        unforced: &mut Unforced,
        batch: Vec<Descriptor>,
        buffer: &mut Vec<u8>,
        blocked: &mut BTreeSet<PageId>,
    ) -> Result<bool, Failure> {
        let (mapped, mut kept) = self.find_pages(batch);
        let copied = self.copy_pages(mapped, buffer, &mut kept);
        blocked.extend(kept.iter().map(|d| d.page));

        if unless("page-before-its-record", !copied.is_empty()) && !self.force_to_now()? {
            kept.extend(copied.iter().map(|page| page.descriptor));
            self.lock_pages().put_back(&sorted(kept));
            return Ok(false);
        }
        self.write_copies(unforced, &copied, buffer)?;
        self.truncation.pages_written.fetch_add(copied.len() as u64, Ordering::Relaxed);
        let mut pages = self.lock_pages();
        for page in &copied {
            pages.cleaned(page.descriptor.page);
        }
        if !planted("blocked-page-forgotten") {
            pages.put_back(&sorted(kept));
        }
        Ok(true)
    }

    /// The pages that are mapped, in their order, and the others.
    fn find_pages(&self, batch: Vec<Descriptor>) -> (Vec<Mapped>, Vec<Descriptor>) {
        let mut mapped = Vec::with_capacity(batch.len());
        let mut others = Vec::new();
        for descriptor in batch {
            let offset = descriptor.page.number * self.storage.page_size as u64;
            match self.storage.region_of(descriptor.page.segment, offset) {
                Some(region) => mapped.push(Mapped { descriptor, region }),
                None => others.push(descriptor),
            }
        }
        mapped.sort_by_key(|page| page.descriptor.page);
        (mapped, others)
    }

    /// Steps 1 to 3: copies the pages that nobody has declared, one behind the other. `kept`: the others.
    fn copy_pages(
        &self,
        mapped: Vec<Mapped>,
        buffer: &mut Vec<u8>,
        kept: &mut Vec<Descriptor>,
    ) -> Vec<Mapped> {
        let size = self.storage.page_size;
        let mut copied: Vec<Mapped> = Vec::with_capacity(mapped.len());
        buffer.resize(buffer.len().max(mapped.len() * size), 0);
        let mut mapped = mapped.into_iter().peekable();
        while mapped.peek().is_some() {
            let group: Vec<Mapped> = mapped.by_ref().take(RESERVED).collect();
            let addresses: Vec<usize> = group.iter().map(|page| page.address(size)).collect();
            self.sets.reserve.reserve(&addresses);
            let pages: Vec<PageId> = group.iter().map(|page| page.descriptor.page).collect();
            // Nobody can declare them now: who did before may be about to end.
            let (mut declared, mut looked) = self.declared(&pages);
            for _ in 0..PATIENCE {
                // Not where there is much to look through: it would take longer than who is waited for.
                if !declared.contains(&true) || looked > LOOKED_MOST {
                    break;
                }
                std::hint::spin_loop();
                (declared, looked) = self.declared(&pages);
            }
            for ((page, address), declared) in group.into_iter().zip(addresses).zip(declared) {
                if unless("uncommitted-page-written", declared) {
                    kept.push(page.descriptor);
                    continue;
                }
                let copy = &mut buffer[copied.len() * size..][..size];
                // SAFETY: the page lies in the region, which cannot be unmapped while we hold the truncation
                // lock (Shared::unmap takes it first); `copy` is a page of our own.
                unsafe { span::copy(page.region.pointer(address), copy.as_mut_ptr(), size) };
                copied.push(page);
            }
            self.sets.reserve.release();
        }
        copied
    }

    /// Which of these pages, in their order, have bytes that an open transaction has declared; and how many
    /// ranges were looked at.
    pub(super) fn declared(&self, pages: &[PageId]) -> (Vec<bool>, usize) {
        let (mut declared, mut looked) = (vec![false; pages.len()], 0);
        self.sets.slots.each_declared(|range| {
            looked += 1;
            let page =
                |offset: u64| PageId { segment: range.segment, number: offset >> self.storage.page_shift };
            let last = page(range.offset.saturating_add(range.len as u64 - 1));
            let from = pages.partition_point(|p| *p < page(range.offset));
            pages[from..]
                .iter()
                .zip(&mut declared[from..])
                .take_while(|(p, _)| **p <= last)
                .for_each(|(_, d)| *d = true);
        });
        (declared, looked)
    }

    /// Step 5: writes the copies, neighbours at once.
    fn write_copies(&self, unforced: &mut Unforced, copied: &[Mapped], buffer: &[u8]) -> Result<(), Failure> {
        let size = self.storage.page_size;
        let mut rest = buffer;
        for run in copied.chunk_by(|a, b| a.precedes(b)) {
            let (bytes, after) = rest.split_at(run.len() * size);
            rest = after;
            let (id, region) = (run[0].descriptor.page.segment, &run[0].region);
            let offset = run[0].descriptor.page.number * size as u64;
            // Not what lies beyond the region in its last page, which the segment may have by now.
            let bytes = &bytes[..bytes.len().min((region.end() - offset) as usize)];
            let segment = self.storage.segment_state(id).expect("a mapped segment is open");
            segment.write(offset, bytes).map_err(|e| self.fail(e))?;
            unforced.add(segment);
        }
        Ok(())
    }

    /// Forces every commit so far. False if somebody waits for log space, or we would have to.
    fn force_to_now(&self) -> Result<bool, Failure> {
        let stamp = self.stage.lanes().now();
        loop {
            self.storage.failure()?;
            if self.is_forced(stamp) {
                return Ok(true);
            }
            if self.flush.starved.load(Ordering::SeqCst) != 0 {
                return Ok(false);
            }
            let Some(mut work) = self.try_lock_flush() else {
                caliburn_os::sync::sleep(Duration::from_micros(20));
                continue;
            };
            let done = match self.flush_if_room(&mut work) {
                Ok(Some(horizon)) => self.force_flushed(horizon).map(|()| true),
                Ok(None) => Ok(false),
                Err(failure) => Err(failure),
            };
            self.unlock_flush(work);
            return done;
        }
    }

    /// Step 6.
    pub(super) fn force_segments(&self, unforced: &mut Unforced) -> Result<(), Failure> {
        if planted("head-before-segments") {
            self.move_head()?;
        }
        if unless("shown-while-forcing", !unforced.segments.is_empty()) {
            self.stage.set_checkpoint(None);
        }
        for segment in unforced.segments.values() {
            segment.sync().map_err(|e| self.fail(e))?;
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
        if head > log.head() {
            log.advance_head(head).map_err(|e| self.fail(e))?;
        }
        self.space.signal();
        self.set_checkpoint();
        Ok(())
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
            let spare = std::mem::take(&mut unforced.spare);
            let image = Image::read(&**log.medium(), log.capacity(), (head, end), spare);
            let image = image.map_err(|e| self.fail(e))?;
            let unapplied = RedoRanges::of(image);
            for id in unapplied.segments() {
                let segment =
                    self.storage.segment_state(id).expect("opening and commits admit known segments only");
                let mut numbers = Vec::new();
                unapplied
                    .apply(&segment, self.storage.page_size, |number| numbers.push(number))
                    .map_err(|e| self.fail(e))?;
                self.truncation.pages_written.fetch_add(numbers.len() as u64, Ordering::Relaxed);
                self.note_mapped(&segment, &numbers);
                unforced.add(segment);
            }
            self.truncation.epochs.fetch_add(1, Ordering::Relaxed);
            unforced.spare = unapplied.into_spare();
            unforced.spare.idle();
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

fn sorted(mut descriptors: Vec<Descriptor>) -> Vec<Descriptor> {
    descriptors.sort_by_key(|d| d.lsn);
    descriptors
}
