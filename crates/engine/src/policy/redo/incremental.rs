//! Incremental truncation: pages are copied from memory and written to their segments (RVM, section 5.1.2 and
//! Figure 7).
//!
//! ```text
//!   for each batch:
//!   1 reserve pages, barrier         Those declared in step 2 are tried once more after step 4, and the log is
//!   2 copy those nobody declared     forced for them again: their transactions may have waited for the flusher.
//!   3 release                        While pages are copied the flusher leaves room in the log for step 4.
//!   4 force the log to now
//!   5 write the copies               Invariant: what reaches a segment is in the forced log first.
//!   6 force the segments, write and force their sums
//!   7 move the head, durably
//! ```
//!
//! A page that an uncommitted transaction has declared blocks its place in the queue. Checkpoints do steps 1 to 5.

use super::Redo;
use super::pages::{Descriptor, PageId};
use super::truncation::Unforced;
use crate::storage::error::Failure;
use crate::storage::region::RegionState;
use crate::write_set::RESERVED;
use caliburn_log::format::Lsn;
use caliburn_log::media_error::MediaError;
use caliburn_os::map::Buffer;
use caliburn_os::simulated::{instead, planted, unless};
use caliburn_os::span;
use caliburn_os::sync::SCHEDULED;
use caliburn_os::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of pages that are copied before the log is forced for them.
const COPIES_BYTES_MOST: u64 = 64 << 20;
/// How often it is looked whether those who have declared reserved pages have ended: some microseconds.
const PATIENCE: u32 = if SCHEDULED { 1 } else { 200 };
/// Ranges that may be looked at each time.
const LOOKED_MOST: usize = 1000;

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

/// While pages are copied the flusher leaves room in the log for the force that must follow.
struct KeptFree<'a>(&'a Redo);

impl KeptFree<'_> {
    fn of(redo: &Redo) -> KeptFree<'_> {
        // A thread of the program's that truncates would wait for itself.
        if !redo.alone() {
            let staged = redo.stage.bytes().clamp(redo.log.capacity() / 4, redo.log.capacity() / 2);
            redo.keep_free(staged.min(redo.log.free()));
        }
        KeptFree(redo)
    }
}

impl Drop for KeptFree<'_> {
    fn drop(&mut self) {
        self.0.keep_free(0);
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
    /// Incremental truncation of pages of records before `goal`. Each batch frees its part of the log, which is
    /// being filled again meanwhile.
    pub(super) fn incremental(
        &self,
        unforced: &mut Unforced,
        goal: Lsn,
        filter: Filter<'_>,
    ) -> Result<Outcome, Failure> {
        if self.declared_only {
            return self.epoch(unforced).map(|()| Outcome::Done);
        }
        let (mut blocked, mut written, mut moved) = (BTreeSet::new(), false, false);
        let outcome = loop {
            let end = self.write_batch(unforced, goal, filter, &mut blocked)?;
            written |= !unforced.segments.is_empty();
            if end.is_none() || !moved {
                self.force_segments(unforced)?;
                self.move_head()?;
                moved = true;
            }
            if let Some(outcome) = end {
                break outcome;
            }
        };
        self.truncation.incremental.fetch_add(u64::from(written), Ordering::Relaxed);
        tracing::debug!(head = self.log.head().0, used = self.log.used(), "truncated");
        Ok(outcome)
    }

    /// Steps 1 to 5 for one batch of pages of records before `goal`, but for those that are known to be blocked.
    /// `None` if there may be more.
    pub(super) fn write_batch(
        &self,
        unforced: &mut Unforced,
        goal: Lsn,
        filter: Filter<'_>,
        blocked: &mut BTreeSet<PageId>,
    ) -> Result<Option<Outcome>, Failure> {
        if self.cannot_force() {
            return Ok(Some(Outcome::Starved));
        }
        let most = self.memory_for_copies(&mut unforced.copies)?;
        let batch = self.lock_pages().take(most, goal, |p| filter(p) && !blocked.contains(&p));
        if batch.is_empty() {
            return Ok(Some(if blocked.is_empty() { Outcome::Done } else { Outcome::Blocked }));
        }
        let (mapped, mut kept) = self.find_pages(batch);
        let mut copied = Vec::with_capacity(mapped.len());
        let mut declared = {
            let _kept = KeptFree::of(self);
            self.copy_undeclared(mapped, &mut unforced.copies, &mut copied)
        };
        let starved = !self.force_for(&copied)?;
        if starved {
            declared.append(&mut copied);
        } else if !declared.is_empty() && !copied.is_empty() {
            // Their transactions may have waited for the flusher, and have gone on since.
            let certain = copied.len();
            declared = self.copy_undeclared(declared, &mut unforced.copies, &mut copied);
            let late = instead("late-pages-unforced", certain, copied.len());
            if !self.force_for(&copied[late..])? {
                declared.extend(copied.drain(certain..));
            }
        }
        kept.extend(declared.iter().map(|page| page.descriptor));

        self.overflow_intact()?;
        self.write_copies(unforced, &copied)?;
        self.truncation.pages_written.fetch_add(copied.len() as u64, Ordering::Relaxed);
        let mut pages = self.lock_pages();
        for page in &copied {
            pages.cleaned(page.descriptor.page);
        }
        blocked.extend(kept.iter().map(|d| d.page));
        let count = kept.len() as u64;
        if !planted("blocked-page-forgotten") {
            pages.put_back(&sorted(kept));
        }
        if starved {
            return Ok(Some(Outcome::Starved));
        }
        self.truncation.pages_blocked.fetch_add(count, Ordering::Relaxed);
        Ok(None)
    }

    /// Step 4 for pages that were copied. False if the log has no room.
    fn force_for(&self, copied: &[Mapped]) -> Result<bool, Failure> {
        Ok(!unless("page-before-its-record", !copied.is_empty()) || self.force_to_now()?)
    }

    /// Has memory for the copies of a batch, and says for how many pages. The more, the fewer forces: while each
    /// is under way the log fills.
    fn memory_for_copies(&self, copies: &mut Buffer) -> Result<usize, Failure> {
        let page = self.storage.page_size;
        let bytes = (COPIES_BYTES_MOST.min(self.storage.memory_budget() / 8) as usize).max(RESERVED * page);
        let memory = std::mem::take(copies).resized(bytes).or_else(|_| Buffer::new(RESERVED * page));
        *copies = memory
            .map_err(|e| self.fail(MediaError::new("get memory to truncate", &*self.log.medium(), 0, e)))?;
        Ok(copies.len() / page)
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

    /// Steps 1 to 3: copies pages, after those that are copied already. Returns those that an open transaction has
    /// declared.
    fn copy_undeclared(
        &self,
        pages: Vec<Mapped>,
        copies: &mut [u8],
        copied: &mut Vec<Mapped>,
    ) -> Vec<Mapped> {
        let size = self.storage.page_size;
        let mut kept = Vec::new();
        let mut pages = pages.into_iter().peekable();
        while pages.peek().is_some() {
            if self.cannot_force() {
                kept.extend(pages);
                break;
            }
            let group: Vec<Mapped> = pages.by_ref().take(RESERVED).collect();
            let addresses: Vec<usize> = group.iter().map(|page| page.address(size)).collect();
            let reserved = self.sets.reserve.reserve(&addresses);
            let ids: Vec<PageId> = group.iter().map(|page| page.descriptor.page).collect();
            // Nobody can declare them now: who did before may be about to end.
            let (mut declared, mut looked) = self.declared(&ids);
            if looked > LOOKED_MOST {
                // All this takes long.
                self.keep_free(0);
            }
            for _ in 0..PATIENCE {
                // Not where there is much to look through: it would take longer than who is waited for.
                if !declared.contains(&true) || looked > LOOKED_MOST {
                    break;
                }
                std::hint::spin_loop();
                (declared, looked) = self.declared(&ids);
            }
            for ((page, address), declared) in group.into_iter().zip(addresses).zip(declared) {
                if unless("uncommitted-page-written", declared) {
                    kept.push(page);
                    continue;
                }
                let copy = &mut copies[copied.len() * size..][..size];
                // SAFETY: the page lies in the region, which cannot be unmapped while we hold the truncation
                // lock (Shared::unmap takes it first); `copy` is a page of our own.
                unsafe { span::copy(page.region.pointer(address), copy.as_mut_ptr(), size) };
                copied.push(page);
            }
            drop(reserved);
        }
        kept
    }

    /// Which of these pages, in their order, have bytes that an open transaction has declared; and how many
    /// ranges were looked at.
    pub(super) fn declared(&self, pages: &[PageId]) -> (Vec<bool>, usize) {
        let (mut declared, mut looked) = (vec![false; pages.len()], 0);
        self.sets.slots.each_unknown(|range| {
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
        let held = self.lock_pages();
        pages.iter().zip(&mut declared).for_each(|(page, declared)| *declared |= held.is_held(*page));
        drop(held);
        (declared, looked)
    }

    /// Step 5: writes the copies, neighbours at once.
    fn write_copies(&self, unforced: &mut Unforced, copied: &[Mapped]) -> Result<(), Failure> {
        let size = self.storage.page_size;
        let mut rest = &unforced.copies[..];
        for run in copied.chunk_by(|a, b| a.precedes(b)) {
            let (bytes, after) = rest.split_at(run.len() * size);
            rest = after;
            let (id, region) = (run[0].descriptor.page.segment, &run[0].region);
            let offset = run[0].descriptor.page.number * size as u64;
            // Not what lies beyond the region in its last page, which the segment may have by now.
            let bytes = &bytes[..bytes.len().min((region.end() - offset) as usize)];
            let segment = self.storage.segment_state(id).expect("a mapped segment is open");
            segment.write(offset, bytes, self.log.tail()).map_err(|e| self.fail(e))?;
            unforced.segments.entry(id.0).or_insert(segment);
        }
        unforced.copies.idle();
        Ok(())
    }

    /// Whether a force to now would have to wait for log space that only this thread can make.
    pub(super) fn cannot_force(&self) -> bool {
        self.is_starved() || (self.alone() && self.flush.starved.load(Ordering::SeqCst) != 0)
    }

    /// Has the flusher leave so much of the log free.
    fn keep_free(&self, bytes: u64) {
        self.flush.kept_free.store(bytes, Ordering::SeqCst);
        if bytes == 0 {
            self.space.signal();
        }
    }

    /// Forces every commit so far. False if there is no room in the log for that.
    fn force_to_now(&self) -> Result<bool, Failure> {
        let stamp = self.stage.lanes().now();
        let mut asked = false;
        loop {
            self.storage.failure()?;
            if self.is_forced(stamp) {
                return Ok(true);
            }
            if self.cannot_force() {
                return Ok(false);
            }
            let Some(mut work) = self.try_lock_flush() else {
                // A flusher that is busy takes the lock again before we get it.
                if !asked {
                    self.ask_for_force();
                    asked = true;
                }
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
}

fn sorted(mut descriptors: Vec<Descriptor>) -> Vec<Descriptor> {
    descriptors.sort_by_key(|d| d.lsn);
    descriptors
}
