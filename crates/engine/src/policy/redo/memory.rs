//! The memory budget: private pages are given back to the system, and transactions wait while there are too many.
//!
//! A page whose segment has the same bytes, and that nobody has declared, can be dropped: the next access shows
//! the segment again.

use super::Redo;
use super::incremental::Outcome;
use super::pages::PageId;
use super::truncation::Unforced;
use crate::storage::error::Failure;
use crate::storage::gate;
use crate::storage::region::RegionState;
use crate::write_set::RESERVED;
use caliburn_os::simulated::even_if;
use caliburn_os::span;
use caliburn_os::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

impl Redo {
    /// Called with the number of private pages whenever it may have grown.
    pub(super) fn check_budget(&self, private: u64) {
        let bytes = private * self.storage.page_size as u64;
        let budget = self.storage.memory_budget();
        if bytes > budget {
            self.storage.gate.fetch_or(gate::PRESSED, Ordering::SeqCst);
        }
        if bytes > budget / 4 * 3 {
            self.wake_truncation();
        }
    }

    /// Waits while truncation gives pages back.
    pub(super) fn wait_relief(&self) {
        let mut waiting = None;
        loop {
            let seen = self.truncation.relief.count();
            let gate = self.storage.gate.load(Ordering::SeqCst);
            if gate & gate::PRESSED == 0 || gate & (gate::FAILED | gate::CLOSED) != 0 {
                return;
            }
            waiting.get_or_insert_with(|| self.storage.meter.memory.begin("private pages to be given back"));
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
    pub(super) fn relieve(&self, unforced: &mut Unforced) -> Result<(), Failure> {
        let page = self.storage.page_size as u64;
        let budget = self.storage.memory_budget();
        let (private, returning) = {
            let mut pages = self.lock_pages();
            self.note_private(&mut pages);
            (pages.private() * page, pages.may_return())
        };
        let pressed = self.storage.gate.load(Ordering::SeqCst) & gate::PRESSED != 0;
        let short = private > 0 && self.storage.limits.short();
        if returning {
            self.force_segments(unforced)?;
            self.move_head()?;
            let goal = self.log.tail();
            self.incremental(unforced, goal, &|_| true)?;
            self.return_moved()?;
        }
        if private > budget / 4 * 3 || pressed || short {
            let target = if short { 0 } else { budget / 2 };
            // What is given back must not be lost on its way to the medium.
            self.force_segments(unforced)?;
            self.move_head()?;
            self.drop_clean(target)?;
            if self.lock_pages().private() * page > target {
                let goal = self.log.tail();
                if self.incremental(unforced, goal, &|_| true)? == Outcome::Starved {
                    self.epoch(unforced)?;
                }
                self.drop_clean(target)?;
            }
            // Either there is room again, or what is left belongs to transactions that must end first.
            self.storage.gate.fetch_and(!gate::PRESSED, Ordering::SeqCst);
        }
        self.truncation.relief.signal();
        Ok(())
    }

    /// Has pages that lie in files come back, if no transaction may want them there. Of those that somebody has
    /// declared, once.
    pub(super) fn return_moved(&self) -> Result<(), Failure> {
        let mut left = self.lock_pages().moved_pages();
        while left > 0 {
            let batch = self.lock_pages().take_moved(RESERVED);
            if batch.is_empty() {
                break;
            }
            left = left.saturating_sub(batch.len() as u64);
            self.drop_batch(&batch)?;
        }
        Ok(())
    }

    /// Drops clean private pages until at most `target` bytes are private, or a whole batch resists.
    pub(super) fn drop_clean(&self, target: u64) -> Result<(), Failure> {
        let page = self.storage.page_size as u64;
        loop {
            let mut pages = self.lock_pages();
            if pages.private() * page <= target {
                return Ok(());
            }
            let batch = pages.take_clean(RESERVED);
            drop(pages);
            if batch.is_empty() || self.drop_batch(&batch)? == 0 {
                return Ok(());
            }
        }
    }

    /// Moves what is staged to the log, unless that is full, or others keep us from it for long. Whether all that
    /// was committed before is there, and its pages marked.
    fn flush_for_dropping(&self) -> Result<bool, Failure> {
        const TRIES: u32 = 50;
        for _ in 0..TRIES {
            if self.cannot_force() {
                break;
            }
            let Some(mut work) = self.try_lock_flush() else {
                caliburn_os::sync::sleep(Duration::from_micros(20));
                continue;
            };
            let done = self.flush_if_room(&mut work);
            self.unlock_flush(work);
            return Ok(done?.is_some());
        }
        Ok(false)
    }

    /// Gives back those pages of a batch that equal their segment and that nobody has declared.
    pub(super) fn drop_batch(&self, batch: &[PageId]) -> Result<usize, Failure> {
        let page = self.storage.page_size;
        let mut mapped: Vec<(PageId, Arc<RegionState>, usize, Vec<u8>)> = Vec::with_capacity(batch.len());
        let (mut gone, mut kept) = (Vec::new(), Vec::new());
        for id in batch {
            let offset = id.number * page as u64;
            let Some(region) = self.storage.region_of(id.segment, offset) else {
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
        // What is stored and not declared yet must not go, nor come while it is looked at.
        let turn = self.storage.images.then(|| self.sets.turn.want());
        let held = turn.as_ref().map(|turn| turn.take_within(Duration::from_millis(100)));
        if matches!(held, Some(None)) {
            kept.extend(mapped.drain(..).map(|(id, ..)| id));
        }
        mapped.sort_by_key(|(id, ..)| *id);
        let addresses: Vec<usize> = mapped.iter().map(|(_, _, address, _)| *address).collect();
        // Most of what is staged goes before anybody has to wait.
        self.flush_for_dropping()?;
        let reserved = self.sets.reserve.reserve(&addresses);
        let flushed = self.flush_for_dropping()?;
        let (declared, _) = self.declared(&mapped.iter().map(|(id, ..)| *id).collect::<Vec<_>>());
        // A page that equals its segment may do so by chance, while records of it are on their way there.
        let (behind, moved): (Vec<bool>, Vec<bool>) = {
            let pages = self.lock_pages();
            mapped.iter().map(|(id, ..)| (!flushed || pages.is_dirty(*id), pages.is_moved(*id))).unzip()
        };
        for ((((id, region, address, content), declared), behind), moved) in
            mapped.iter().zip(declared).zip(behind).zip(moved)
        {
            let at = region.pointer(*address);
            let offset = *address - region.base;
            // SAFETY: the page lies in a mapped region (as in `copy_undeclared`). It equals its segment, no record
            // of it is elsewhere, nobody has declared a range on it and nobody can while it is reserved, nor store
            // undeclared while no transaction is open: dropping the copy loses nothing.
            let dropped = !declared
                && !behind
                && unsafe {
                    even_if("page-dropped-unread", span::equals(at, content))
                        && region.image_at(offset).is_none_or(|image| span::equals(image, content))
                        && match moved {
                            true => {
                                region.map_private(&self.storage, offset..offset + page, None, true).is_ok()
                            }
                            false => region.discard(offset, page).is_ok(),
                        }
                };
            if dropped {
                self.storage.note_bytes(id.segment, id.number * page as u64..(id.number + 1) * page as u64);
                gone.push(*id);
            } else {
                kept.push(*id);
            }
        }
        drop(reserved);
        let mut pages = self.lock_pages();
        for id in &gone {
            pages.dropped(*id);
        }
        let any_moved = pages.moved_pages() > 0;
        for id in &kept {
            pages.cleaned(*id);
        }
        drop(pages);
        if !any_moved {
            self.forget_overflow();
        }
        self.truncation.pages_dropped.fetch_add(gone.len() as u64, Ordering::Relaxed);
        Ok(gone.len())
    }
}
