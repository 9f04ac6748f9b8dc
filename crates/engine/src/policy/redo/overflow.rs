//! Transactions that outgrow the memory budget: the pages that they declare from then on, and their old bytes, lie
//! in files, to which the system writes them when it is short of memory. No other process sees these files, and no
//! crash leaves them.
//!
//! ```text
//!   private pages                  | within the budget: copies of the segment's pages, or the segment's
//!   declare: move - hold - put     | beyond it: the page goes to a file with what it holds, then it is declared
//!   truncation, memory::drop_batch | the page comes back when its segment has what it holds, and no such
//!                                  | transaction is open
//! ```
//!
//! Invariant: a page is moved while it is reserved and nobody has declared a range on it: nobody stores to it.
//! Invariant: the system may fail to write such a file, and take the memory all the same. The files are asked for
//! that after something was read of them and before it counts, at each commit, before old bytes are put back, and
//! before they are given up. If memory was lost, the store fails, and the log has all that was committed.
//!
//! Invariant: a transaction that has outgrown memory holds the pages of a range before it publishes the range:
//! truncation leaves them alone, and does not read the run, which may be long. Who reads what is declared looks at
//! the runs first, and then at what is held.

use super::Redo;
use super::pages::PageId;
use crate::storage::error::{Failure, RangeError};
use crate::storage::gate;
use crate::storage::region::RegionState;
use crate::write_set::{Chunk, RESERVED, WriteSet};
use caliburn_log::media_error::MediaError;
use caliburn_os::overflow::{self, OverflowFile};
use caliburn_os::simulated::{even_if, planted, unless};
use caliburn_os::sync::Mutex;
use caliburn_os::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

/// What lies in files.
#[derive(Debug, Default)]
pub(super) struct Overflow {
    /// Of each region, by its address.
    files: Mutex<BTreeMap<usize, Moved>>,
    /// Where the chunk lies that was made last.
    chunk: Mutex<Option<Arc<OwnedFd>>>,
    /// All of them, and the regions' files, that are there still. Nothing else is locked meanwhile.
    all: Mutex<Vec<Weak<OwnedFd>>>,
}

/// Why the store fails where the system says so.
const KEEP: &str = "keep memory in files without names in";

/// What was moved of a region.
#[derive(Debug)]
struct Moved {
    file: OverflowFile,
    runs: usize,
    /// Bytes since the file was written behind.
    bytes: u64,
}

/// Runs of pages that are moved singly; beyond them many pages go at once, since each run may be a mapping, of which
/// the system allows 65,530.
const RUNS: usize = 8192;
/// So many times [`RESERVED`] pages.
const WIDE: u64 = 16;

/// What is added to an account of memory when it has outgrown the budget: it is not counted exactly any more.
pub(super) const OUTGROWN: u64 = 1 << 62;

impl Redo {
    /// Whether transactions may outgrow the memory budget: not where something stands in the way of mapping pages
    /// anew.
    pub(super) fn may_overflow(&self) -> bool {
        self.overflows && !self.sets.tracked && !self.storage.images && !self.storage.keys
    }

    /// A transaction outgrows the memory budget.
    pub(super) fn outgrow(&self, set: &WriteSet<'_>) {
        if set.is_known() {
            return;
        }
        let mut pages = self.lock_pages();
        pages.begin_holding(set.number());
        set.each(|range| pages.hold(set.number(), range.segment, range.offset, range.len as u64));
        set.set_known();
    }

    /// A transaction that had outgrown it has ended.
    pub(super) fn has_outgrown_no_more(&self, set: &WriteSet<'_>) {
        // What is remembered keeps a failed store from committing more.
        let _ = self.overflow_intact();
        self.lock_pages().end_holding(set.number());
        self.overflow.chunk.lock().expect("no panic under this lock").take();
        self.wake_truncation();
    }

    /// Makes a file without a name, which is asked from now on.
    fn overflow_file(&self, bytes: u64) -> io::Result<Arc<OwnedFd>> {
        let file = Arc::new(self.storage.media.scratch(&self.storage.dir, bytes)?);
        self.overflow.all.lock().expect("no panic under this lock").push(Arc::downgrade(&file));
        self.storage.gate.fetch_or(gate::OVERFLOWN, Ordering::SeqCst);
        Ok(file)
    }

    /// Whether what was read of files until now is what was stored there. If not, the store fails for good.
    #[cold]
    fn ask_overflow(&self) -> Result<(), Failure> {
        let mut all = self.overflow.all.lock().expect("no panic under this lock");
        all.retain(|file| {
            let Some(file) = file.upgrade() else { return false };
            if let Err(error) = overflow::intact(file.as_fd()) {
                self.lost(&error);
            }
            true
        });
        if all.is_empty() {
            self.storage.gate.fetch_and(!gate::OVERFLOWN, Ordering::SeqCst);
        }
        drop(all);
        self.storage.failure()
    }

    /// As [`Self::ask_overflow`], if there are such files.
    #[inline(always)]
    pub(super) fn overflow_intact(&self) -> Result<(), Failure> {
        match self.storage.gate.load(Ordering::SeqCst) & gate::OVERFLOWN {
            0 => Ok(()),
            _ => self.ask_overflow(),
        }
    }

    /// Such a transaction is about to declare a range: what nobody has declared of its pages is moved, and they are
    /// held.
    pub(super) fn hold(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        offset: usize,
        len: usize,
    ) -> Result<(), RangeError> {
        let page = self.storage.page_size as u64;
        let at = region.start + offset as u64;
        let numbers = at / page..(at + len as u64).div_ceil(page);
        let segment = region.id;
        let is_strange = |pages: &super::Pages| {
            numbers.clone().any(|number| !pages.is_settled(PageId { segment, number }))
        };
        let strange = is_strange(&self.lock_pages());
        // An image tells what differs from the segment by what is private.
        let imaged = || region.imaged.load(Ordering::SeqCst);
        if strange && !region.unread && !imaged() {
            region.moved.store(true, Ordering::SeqCst);
        }
        if strange && region.moved.load(Ordering::SeqCst) && !imaged() {
            self.move_around(region, numbers)
                .map_err(|source| RangeError::Memory { bytes: len as u64, source })?;
        }
        if unless("outgrown-pages-not-held", true) {
            self.lock_pages().hold(set.number(), segment, at, len as u64);
        }
        Ok(())
    }

    /// Moves pages to the region's file, with neighbours.
    fn move_around(&self, region: &RegionState, numbers: Range<u64>) -> io::Result<()> {
        let page = self.storage.page_size;
        let mut files = self.overflow.files.lock().expect("no panic under this lock");
        let moved = match files.entry(region.base) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let file = self.overflow_file(0)?;
                entry.insert(Moved { file: OverflowFile::new(file), runs: 0, bytes: 0 })
            }
        };
        let step = RESERVED as u64;
        let unit = if moved.runs > RUNS { step * WIDE } else { step };
        // Whole pages: behind the end of a segment that is a file of the program's there is nothing to be copied.
        let whole = region.start / page as u64..region.end() / page as u64;
        let (first, end) = (numbers.start / unit * unit, numbers.end.next_multiple_of(unit));
        for from in (first.max(whole.start)..end.min(whole.end)).step_by(RESERVED) {
            let group = from..(from + step).min(end).min(whole.end);
            moved.bytes += (group.end - group.start) * page as u64;
            moved.runs += self.move_group(region, &moved.file, group)?;
        }
        if moved.bytes > self.storage.memory_budget() / 4 {
            moved.file.write_behind().inspect_err(|error| self.lost(error))?;
            moved.bytes = 0;
        }
        Ok(())
    }

    /// Moves those pages of a few neighbours that nobody has declared. Returns how many runs they were.
    fn move_group(&self, region: &RegionState, file: &OverflowFile, group: Range<u64>) -> io::Result<usize> {
        let (page, segment) = (self.storage.page_size, region.id);
        let offset = |number: u64| (number * page as u64 - region.start) as usize;
        let ids: Vec<PageId> = {
            let pages = self.lock_pages();
            let all = group.map(|number| PageId { segment, number });
            all.filter(|id| !pages.is_settled(*id)).collect()
        };
        let addresses: Vec<usize> = ids.iter().map(|id| region.base + offset(id.number)).collect();
        let reserved = self.sets.reserve.reserve(&addresses);
        let (declared, _) = self.declared(&ids);
        let free: Vec<PageId> = ids
            .iter()
            .zip(declared)
            .filter(|(_, declared)| even_if("declared-page-moved", !declared))
            .map(|(id, _)| *id)
            .collect();
        let runs: Vec<&[PageId]> = free.chunk_by(|a, b| a.number + 1 == b.number).collect();
        let moved = runs.iter().try_for_each(|run| {
            // SAFETY: whole pages of a region that stays mapped while its user declares a range. They are reserved
            // and nobody has declared them, so nobody stores there.
            unsafe { file.take(&region.reservation, offset(run[0].number), run.len() * page) }?;
            if !planted("moved-page-not-noted") {
                self.lock_pages().moved(run);
            }
            Ok(())
        });
        drop(reserved);
        moved.map(|()| runs.len())
    }

    /// A chunk for the old bytes of a transaction that has outgrown memory.
    pub(super) fn overflow_chunk(&self, bytes: usize) -> io::Result<Chunk> {
        let bytes = bytes.next_multiple_of(self.storage.page_size);
        let file = self.overflow_file(bytes as u64)?;
        let chunk = Chunk::in_file(file.clone(), bytes)?;
        // That before it is full.
        let full = self.overflow.chunk.lock().expect("no panic under this lock").replace(file);
        if let Some(full) = full {
            overflow::write_behind(full.as_fd()).inspect_err(|error| self.lost(error))?;
        }
        Ok(chunk)
    }

    /// Fails the store, since memory was lost.
    fn lost(&self, error: &io::Error) {
        if !planted("lost-overflow-unheard") {
            let error = io::Error::new(error.kind(), error.to_string());
            self.fail(MediaError::of_name(KEEP, self.storage.dir.clone(), error));
        }
    }

    /// Gives up the files if nothing lies there any more.
    pub(super) fn forget_overflow(&self) {
        let mut files = self.overflow.files.lock().expect("no panic under this lock");
        let _ = self.overflow_intact();
        if self.lock_pages().moved_pages() == 0 {
            files.clear();
        }
    }

    /// A region is mapped no more.
    pub(super) fn forget_overflow_of(&self, region: &RegionState) {
        let mut files = self.overflow.files.lock().expect("no panic under this lock");
        let _ = self.overflow_intact();
        files.remove(&region.base);
    }
}
