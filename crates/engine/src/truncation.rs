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
//! The same thread keeps private pages within the memory budget: a page whose segment has the same bytes
//! is given back to the system.

use crate::error::Failure;
use crate::pages::{Descriptor, PageId};
use crate::patches::Patches;
use crate::region::RegionState;
use crate::segment::SegmentState;
use crate::slot::RESERVED;
use crate::store::{Shared, gate};
use caliburn_log::format::Lsn;
use caliburn_log::image::Image;
use caliburn_os::event::Event;
use caliburn_os::simulated::planted;
use caliburn_os::sync::atomic::{AtomicU64, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard};
use caliburn_os::{map, span};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// State and counters of truncation.
#[derive(Default)]
pub(crate) struct Truncation {
    lock: Mutex<()>,
    wake: Event,
    /// Signalled when private pages were given back.
    relief: Event,
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

/// How far incremental truncation came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// All that was asked for.
    Done,
    /// Pages declared by uncommitted transactions, or not mapped, stand in the way.
    Blocked,
    /// The log is so full that it could not be forced: only an epoch helps.
    Starved,
}

/// Which pages incremental truncation takes.
type Filter<'a> = &'a dyn Fn(PageId) -> bool;

impl Shared {
    pub(crate) fn lock_truncation(&self) -> MutexGuard<'_, ()> {
        self.truncation.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn wake_truncation(&self) {
        self.truncation.wake.signal();
    }

    /// The background thread's life.
    pub(crate) fn run_truncation(&self) {
        loop {
            let seen = self.truncation.wake.count();
            if self.gate.load(Ordering::SeqCst) & (gate::FAILED | gate::CLOSED) != 0 {
                return;
            }
            // A failure is remembered by the store and ends the loop.
            let _ = self.truncate_as_needed();
            let limit = (self.lock_pages().private() > 0).then_some(Duration::from_millis(500));
            self.truncation.wake.wait(seen, limit);
        }
    }

    pub(crate) fn truncate_as_needed(&self) -> Result<(), Failure> {
        let log = &self.live().log;
        let guard = self.lock_truncation();
        if self.pending.read().expect("no panic under this lock").is_some() {
            self.epoch(&guard)?;
        }
        let starved = || self.flush.starved.load(Ordering::SeqCst) > log.free();
        if log.used() > self.truncation_threshold() || starved() {
            // Leave the newest quarter, whose pages will change again, unless somebody waits for space.
            let spare = if starved() { 0 } else { log.capacity() / 4 };
            let goal = Lsn(log.appended().0.saturating_sub(spare).max(log.head().0));
            let outcome = self.incremental(&guard, goal, &|_| true)?;
            let critical = log.used() > log.capacity() / 10 * 8 || starved();
            if (outcome != Outcome::Done && critical) || starved() {
                self.epoch(&guard)?;
            }
        }
        self.relieve(&guard)
    }

    /// Brings every committed change so far to its segment.
    pub(crate) fn truncate_all(&self) -> Result<(), Failure> {
        self.flush_all()?;
        let guard = self.lock_truncation();
        if self.pending.read().expect("no panic under this lock").is_some() {
            self.epoch(&guard)?;
        }
        let goal = self.live().log.forced();
        if self.incremental(&guard, goal, &|_| true)? != Outcome::Done {
            self.epoch(&guard)?;
        }
        Ok(())
    }

    /// Brings a region's committed changes to its segment, so that it can be mapped anew.
    pub(crate) fn write_region(&self, region: &RegionState) -> Result<(), Failure> {
        self.flush_all()?;
        let guard = self.lock_truncation();
        let page = self.page_size as u64;
        let (segment, numbers) = (region.segment.id, region.pages(page));
        let inside = |p: PageId| p.segment == segment && numbers.contains(&p.number);
        let blocked = self.incremental(&guard, Lsn(u64::MAX), &inside)? != Outcome::Done;
        // What recovery laid over the region must not be laid over a later mapping again.
        if blocked || self.pending.read().expect("no panic under this lock").is_some() {
            self.epoch(&guard)?;
        }
        Ok(())
    }

    /// Writes pages of records before `goal` until none is left, or only blocked ones.
    fn incremental(
        &self,
        guard: &MutexGuard<'_, ()>,
        goal: Lsn,
        filter: Filter<'_>,
    ) -> Result<Outcome, Failure> {
        if self.declared_only {
            return self.epoch(guard).map(|()| Outcome::Done);
        }
        let mut blocked = BTreeSet::new();
        let mut touched = BTreeMap::new();
        let mut outcome = Outcome::Done;
        loop {
            let batch = self.lock_pages().take(RESERVED, goal, |p| filter(p) && !blocked.contains(&p));
            if batch.is_empty() {
                break;
            }
            if !self.write_batch(guard, batch, &mut blocked, &mut touched)? {
                outcome = Outcome::Starved;
                break;
            }
        }
        if !touched.is_empty() {
            self.truncation.incremental.fetch_add(1, Ordering::Relaxed);
        }
        if planted("head-before-segments") {
            self.move_head()?;
        }
        for segment in touched.values() {
            segment.sync().map_err(|e| self.fail(e))?;
        }
        self.move_head()?;
        if outcome == Outcome::Done && !blocked.is_empty() {
            self.truncation.pages_blocked.fetch_add(blocked.len() as u64, Ordering::Relaxed);
            outcome = Outcome::Blocked;
        }
        Ok(outcome)
    }

    /// Steps 1 to 5 for one batch. False if the log could not be forced for want of space.
    fn write_batch(
        &self,
        _guard: &MutexGuard<'_, ()>,
        batch: Vec<Descriptor>,
        blocked: &mut BTreeSet<PageId>,
        touched: &mut BTreeMap<u32, Arc<SegmentState>>,
    ) -> Result<bool, Failure> {
        let page = self.page_size;
        let mut mapped: Vec<(Descriptor, Arc<RegionState>, usize)> = Vec::with_capacity(batch.len());
        let mut kept = Vec::new();
        for descriptor in batch {
            let offset = descriptor.page.number * page as u64;
            match self.region_of(descriptor.page.segment, offset) {
                Some(region) => {
                    let address = region.base + (offset - region.start) as usize;
                    mapped.push((descriptor, region, address));
                }
                None => kept.push(descriptor),
            }
        }
        mapped.sort_by_key(|(d, ..)| d.page);

        let mut copies = vec![0u8; mapped.len() * page];
        let addresses: Vec<usize> = mapped.iter().map(|(.., address)| *address).collect();
        let mut copied = Vec::with_capacity(mapped.len());
        self.reserve.reserve(&addresses);
        for ((descriptor, region, address), copy) in mapped.iter().zip(copies.chunks_exact_mut(page)) {
            let declared = self.slots.iter().any(|(_, slot)| slot.touches(*address, address + page));
            if declared && !planted("uncommitted-page-written") {
                kept.push(*descriptor);
            } else {
                // SAFETY: the page lies in the region, which cannot be unmapped while we hold the truncation
                // lock (Shared::unmap takes it first); `copy` is a page of our own.
                unsafe { span::copy(region.pointer(*address), copy.as_mut_ptr(), page) };
                copied.push((*descriptor, region, &*copy));
            }
        }
        self.reserve.release();
        blocked.extend(kept.iter().map(|d| d.page));

        if !copied.is_empty() && !planted("page-before-its-record") && !self.force_to_now()? {
            kept.extend(copied.iter().map(|(d, ..)| *d));
            self.lock_pages().put_back(&sorted(kept));
            return Ok(false);
        }
        for (descriptor, region, copy) in &copied {
            let id = descriptor.page.segment;
            let segment = self.segment_state(id).expect("a mapped segment is open");
            // Not what lies beyond the region in its last page, which the segment may have by now.
            let bytes = &copy[..page.min((region.end() - descriptor.page.number * page as u64) as usize)];
            segment.write(descriptor.page.number * page as u64, bytes).map_err(|e| self.fail(e))?;
            touched.entry(id.0).or_insert(segment);
        }
        self.truncation.pages_written.fetch_add(copied.len() as u64, Ordering::Relaxed);
        let mut pages = self.lock_pages();
        for (descriptor, ..) in &copied {
            pages.cleaned(descriptor.page);
        }
        if !planted("blocked-page-forgotten") {
            pages.put_back(&sorted(kept));
        }
        Ok(true)
    }

    /// Forces every commit so far. False if somebody waits for log space, or we would have to.
    fn force_to_now(&self) -> Result<bool, Failure> {
        let stamp = self.live().stage.now();
        loop {
            self.failure()?;
            if self.is_durable(stamp) {
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

    /// Step 7. The head stops at the first record that the page queue or a prepared transaction needs.
    fn move_head(&self) -> Result<(), Failure> {
        let log = &self.live().log;
        if self.pending.read().expect("no panic under this lock").is_some() {
            return Ok(());
        }
        let prepared = if planted("prepared-passed") { Lsn(u64::MAX) } else { self.oldest_prepared() };
        let oldest = self.lock_pages().oldest().min(prepared);
        let head = oldest.min(log.forced());
        if head > log.head() {
            log.advance_head(head).map_err(|e| self.fail(e))?;
        }
        self.space.signal();
        Ok(())
    }

    /// Epoch truncation: applies all of the forced log. The shared path of recovery and truncation.
    fn epoch(&self, _guard: &MutexGuard<'_, ()>) -> Result<(), Failure> {
        let log = &self.live().log;
        // First the queue, then the end of the epoch: all that was queued lies before it.
        let taken = self.lock_pages().take_all();
        if !planted("epoch-of-unforced-log") {
            log.force().map_err(|e| self.fail(e))?;
        }
        let end = if planted("epoch-of-unforced-log") { log.appended() } else { log.forced() };
        let head = log.head();
        if head < end {
            let image = Image::read(&**log.medium(), log.capacity(), head, end).map_err(|e| self.fail(e))?;
            let patches = Patches::of(image);
            for id in patches.segments() {
                let segment = self.segment_state(id).expect("opening and commits admit known segments only");
                let mut numbers = Vec::new();
                patches
                    .apply(&segment, self.page_size, |number| numbers.push(number))
                    .map_err(|e| self.fail(e))?;
                segment.sync().map_err(|e| self.fail(e))?;
                self.truncation.pages_written.fetch_add(numbers.len() as u64, Ordering::Relaxed);
                self.note_mapped(&segment, &numbers);
            }
            self.truncation.epochs.fetch_add(1, Ordering::Relaxed);
        }
        {
            let mut pages = self.lock_pages();
            taken.into_iter().for_each(|page| pages.cleaned(page));
        }
        self.pending.write().expect("no panic under this lock").take_if(|p| p.tail() <= end);
        self.move_head()
    }

    /// Pages that an epoch has written and that are mapped are private: their changes, or what recovery
    /// laid over them, are in memory.
    fn note_mapped(&self, segment: &SegmentState, numbers: &[u64]) {
        let page = self.page_size as u64;
        for number in numbers {
            if self.region_of(segment.id, number * page).is_some() {
                self.lock_pages().note_private(segment.id, number * page, page);
            }
        }
    }

    /// Called with the number of private pages whenever it may have grown.
    pub(crate) fn regard_memory(&self, private: u64) {
        let bytes = private * self.page_size as u64;
        let budget = self.memory_budget();
        if bytes > budget {
            self.gate.fetch_or(gate::PRESSED, Ordering::SeqCst);
        }
        if bytes > budget / 4 * 3 {
            self.wake_truncation();
        }
    }

    /// Waits while truncation gives pages back.
    pub(crate) fn wait_memory(&self) {
        loop {
            let seen = self.truncation.relief.count();
            let gate = self.gate.load(Ordering::SeqCst);
            if gate & gate::PRESSED == 0 || gate & (gate::FAILED | gate::CLOSED) != 0 {
                return;
            }
            if self.alone() {
                // A failure is remembered by the store.
                let _ = self.truncate_as_needed();
                continue;
            }
            self.wake_truncation();
            self.truncation.relief.wait(seen, Some(Duration::from_millis(100)));
        }
    }

    /// Gives private pages back until half of the budget is free, or all if the system is short.
    fn relieve(&self, guard: &MutexGuard<'_, ()>) -> Result<(), Failure> {
        let page = self.page_size as u64;
        let budget = self.memory_budget();
        let private = {
            let mut pages = self.lock_pages();
            self.note_private(&mut pages);
            pages.private() * page
        };
        let pressed = self.gate.load(Ordering::SeqCst) & gate::PRESSED != 0;
        let short = private > 0 && self.limits.short();
        if private > budget / 4 * 3 || pressed || short {
            let target = if short { 0 } else { budget / 2 };
            self.drop_clean(target)?;
            if self.lock_pages().private() * page > target {
                let goal = self.live().log.appended();
                if self.incremental(guard, goal, &|_| true)? == Outcome::Starved {
                    self.epoch(guard)?;
                }
                self.drop_clean(target)?;
            }
            // Either there is room again, or what is left belongs to transactions that must end first.
            self.gate.fetch_and(!gate::PRESSED, Ordering::SeqCst);
        }
        self.truncation.relief.signal();
        Ok(())
    }

    /// Drops clean private pages until at most `target` bytes are private, or a whole batch resists.
    fn drop_clean(&self, target: u64) -> Result<(), Failure> {
        let page = self.page_size;
        loop {
            let mut pages = self.lock_pages();
            if pages.private() * page as u64 <= target {
                return Ok(());
            }
            let batch = pages.take_clean(RESERVED);
            drop(pages);
            if batch.is_empty() || self.drop_batch(&batch)? == 0 {
                return Ok(());
            }
        }
    }

    /// Gives back those pages of a batch that equal their segment and that nobody has declared.
    fn drop_batch(&self, batch: &[PageId]) -> Result<usize, Failure> {
        let page = self.page_size;
        let mut mapped: Vec<(PageId, Arc<RegionState>, usize, Vec<u8>)> = Vec::with_capacity(batch.len());
        let (mut gone, mut kept) = (Vec::new(), Vec::new());
        for id in batch {
            let offset = id.number * page as u64;
            let Some(region) = self.region_of(id.segment, offset) else {
                gone.push(*id);
                continue;
            };
            if region.unread {
                // Nothing shows the segment again.
                kept.push(*id);
                continue;
            }
            let mut content = vec![0; page.min(region.len() - (offset - region.start) as usize)];
            region.segment.read(offset, &mut content).map_err(|e| self.fail(e))?;
            let address = region.base + (offset - region.start) as usize;
            mapped.push((*id, region, address, content));
        }
        let addresses: Vec<usize> = mapped.iter().map(|(_, _, address, _)| *address).collect();
        self.reserve.reserve(&addresses);
        for (id, region, address, content) in &mapped {
            let declared = self.slots.iter().any(|(_, slot)| slot.touches(*address, address + page));
            let at = region.pointer(*address);
            // SAFETY: the page lies in a mapped region (as in `write_batch`). It equals its segment, nobody
            // has declared a range on it and nobody can while it is reserved: dropping the copy loses nothing.
            let dropped = !declared
                && unsafe {
                    (span::equals(at, content) || planted("page-dropped-unread"))
                        && map::discard(at, page).is_ok()
                };
            if dropped { gone.push(*id) } else { kept.push(*id) }
        }
        self.reserve.release();
        let mut pages = self.lock_pages();
        for id in &gone {
            pages.dropped(*id);
        }
        for id in &kept {
            pages.cleaned(*id);
        }
        self.truncation.pages_dropped.fetch_add(gone.len() as u64, Ordering::Relaxed);
        Ok(gone.len())
    }
}

fn sorted(mut descriptors: Vec<Descriptor>) -> Vec<Descriptor> {
    descriptors.sort_by_key(|d| d.lsn);
    descriptors
}
