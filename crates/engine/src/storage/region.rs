//! What the engine keeps of a mapped region: a page-aligned part of a segment.
//!
//! ```text
//!   reservation:  | mapped: len bytes of the segment | kept free for growth |
//! ```
//!
//! Mapped privately, a page that nobody has stored to shows the page cache of the segment's file and can be
//! evicted; a page that was stored to is a private copy. Mapped shared, it is the segment.
//!
//! Where changes are found by comparing, a private region has an image beside it, a mapping of the same bytes to
//! which nobody but the engine stores: what memory held before the transaction that is open.

use crate::storage::Storage;
use crate::storage::error::RangeError;
use crate::storage::lacking::{Lacking, Laid};
use crate::storage::segment::SegmentState;
use caliburn_log::SegmentId;
use caliburn_log::media_error::MediaError;
use caliburn_os::guard;
use caliburn_os::map::{self, Reservation};
use caliburn_os::rescue::{Part, Stretch};
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use caliburn_os::{page_size, private, simulated, span};
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Bytes that are copied at once between a region and its segment.
const COPIED: usize = 256 << 10;

/// What the engine keeps of a mapped region.
#[derive(Debug)]
pub(crate) struct RegionState {
    /// What is shared of it. Gone before the file and the memory are.
    pub stretch: OnceLock<Option<Stretch>>,
    pub segment: Arc<SegmentState>,
    /// The segment's number, at hand for the hot path.
    pub id: SegmentId,
    /// First byte's offset in the segment.
    pub start: u64,
    pub base: usize,
    pub len: AtomicUsize,
    pub reservation: Reservation,
    /// As long as the reservation.
    pub image: Option<Reservation>,
    /// What is private of it goes with the transaction that stored there; then it shows the segment.
    pub passing: AtomicBool,
    /// How many runs of it were mapped again, one by one.
    pub pieces: AtomicUsize,
    /// From where on it is advised not to be read ahead.
    pub scattered: AtomicUsize,
    /// It is the segment, not a copy; as persistent memory.
    pub shared: AtomicBool,
    pub synced: AtomicBool,
    /// Pages of it were moved to a file; an image was made of it.
    pub moved: AtomicBool,
    pub imaged: AtomicBool,
    /// Its memory was not read from the segment, and does not show it when private copies are dropped.
    pub unread: bool,
}

impl RegionState {
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    pub fn end(&self) -> u64 {
        self.start + self.len() as u64
    }

    /// Numbers of its pages in the segment; the last may be cut off by the end of an external segment.
    pub fn pages(&self, page_size: u64) -> Range<u64> {
        self.start / page_size..self.end().div_ceil(page_size)
    }

    /// A pointer to an address within the region, with the mapping's provenance.
    #[inline(always)]
    pub fn pointer(&self, address: usize) -> *mut u8 {
        debug_assert!(address >= self.base && address <= self.base + self.reservation.len());
        self.at(address - self.base)
    }

    /// A pointer to an offset within the region.
    #[inline(always)]
    pub fn at(&self, offset: usize) -> *mut u8 {
        at(&self.reservation, offset)
    }

    /// Maps part of the region copy-on-write, which was never mapped before, and lays over it what the segment
    /// lacks; its image as well. It can be stored to if `write`.
    pub fn map_private(
        &self,
        storage: &Storage,
        part: Range<usize>,
        lacking: Option<&dyn Lacking>,
        write: bool,
    ) -> io::Result<()> {
        // The image first: where the region comes over memory of the program's, that is gone then.
        if let Some(image) = &self.image {
            let lacking = lacking.filter(|_| !planted("nothing-laid-over-images"));
            self.map_copy(image, storage, part.clone(), lacking, true)?;
        }
        self.map_copy(&self.reservation, storage, part, lacking, write)
    }

    /// Makes an image of a part that was not mapped from the segment.
    pub fn map_unread(&self, storage: &Storage, part: Range<usize>) -> io::Result<()> {
        let Some(image) = &self.image else { return Ok(()) };
        self.map_copy(image, storage, part.clone(), None, true)?;
        // SAFETY: both are mapped, and nobody knows of the part yet.
        unsafe { span::copy(self.at(part.start), at(image, part.start), part.len()) };
        Ok(())
    }

    fn map_copy(
        &self,
        into: &Reservation,
        storage: &Storage,
        part: Range<usize>,
        lacking: Option<&dyn Lacking>,
        write: bool,
    ) -> io::Result<()> {
        let lacking = lacking.filter(|lacking| unless("pending-not-laid-over", !lacking.is_empty()));
        let (medium, from) =
            (self.segment.file.medium()?, self.segment.data + self.start + part.start as u64);
        let (start, len) = (at(into, part.start), part.len());
        let writable = write || lacking.is_some();
        // SAFETY: this part of the reservation was never mapped, so nobody refers to it; segments never shrink,
        // and the store's lock keeps other programs of ours away from the file.
        unsafe { into.map_private(part.start, len, medium.descriptor(), from, writable) }?;
        simulated::unmapped(start, len);
        self.advise(storage, into, part.clone())?;
        let Some(lacking) = lacking else { return Ok(()) };
        let laid = Laid { segment: self.id, start: self.start, memory: into, part };
        match write {
            true => laid.lay_over(lacking)?,
            false => laid.lay_over_to_read(lacking, storage)?,
        }
        if !write {
            // SAFETY: the part was mapped above and is whole pages.
            unsafe { map::protect_read_only(start, len) }?;
        }
        Ok(())
    }

    /// Maps part of the region so that it is the segment, which was never mapped before. `sync`: as persistent
    /// memory. `detached`: what goes with a page that its file has no room for.
    pub fn map_shared(
        &self,
        storage: &Storage,
        part: Range<usize>,
        sync: bool,
        detached: Part,
    ) -> io::Result<()> {
        self.map_segment(storage, part, sync, detached)?;
        self.shared.store(true, Ordering::Relaxed);
        self.synced.store(sync, Ordering::Relaxed);
        Ok(())
    }

    /// Part of a region that is mapped privately becomes the segment, and is open. What the copies hold is lost.
    pub fn share(&self, storage: &Storage, part: Range<usize>) -> io::Result<()> {
        self.map_segment(storage, part, false, Part::Page)
    }

    /// Takes away what is mapped in a part: whoever touches it from now on is served by a buffer pool.
    pub fn withdraw(&self, part: Range<usize>) -> io::Result<()> {
        let len = part.len().next_multiple_of(page_size());
        // SAFETY: there are no references into regions. Without a pool the touch ends the process.
        unsafe { self.reservation.withdraw(part.start, len) }
    }

    /// Lets part of it be stored to, or has who stores there caught.
    pub fn protect(&self, part: Range<usize>, write: bool) -> io::Result<()> {
        // SAFETY: the part is mapped. A store that is not caught ends the process, as it should.
        unsafe { guard::protect(self.at(part.start), part.len(), write) }
    }

    /// Copies part of it to its segment, unforced. Who stores there meanwhile does not know which of the bytes come
    /// along.
    pub fn write_segment(&self, part: Range<usize>) -> Result<(), MediaError> {
        let mut buffer = vec![0; part.len().min(COPIED)];
        for from in part.clone().step_by(COPIED) {
            let bytes = &mut buffer[..COPIED.min(part.end - from)];
            // SAFETY: the part is mapped, and regions never shrink.
            unsafe { span::copy(self.at(from), bytes.as_mut_ptr(), bytes.len()) };
            self.segment.write_part(self.start + from as u64, bytes)?;
        }
        Ok(())
    }

    /// Has memory show the segment, whatever a part that is mapped privately holds. Nobody stores there.
    pub fn show_segment(&self, part: Range<usize>) -> Result<(), MediaError> {
        // SAFETY: the pages are mapped privately, and nobody stores to them.
        if unsafe { self.discard(part.start, part.len()) }.is_ok() {
            return Ok(());
        }
        // Locked memory stays.
        let fail =
            |source| MediaError::of_name("open the memory of", self.segment.file.path().to_owned(), source);
        self.protect(part.clone(), true).map_err(fail)?;
        let mut buffer = vec![0; part.len().min(COPIED)];
        for from in part.clone().step_by(COPIED) {
            let bytes = &mut buffer[..COPIED.min(part.end - from)];
            self.segment.read(self.start + from as u64, bytes)?;
            // SAFETY: the part is mapped and open, and nobody stores to it.
            unsafe { span::copy(bytes.as_ptr(), self.at(from), bytes.len()) };
        }
        self.protect(part, false).map_err(fail)
    }

    /// A part is private again, and protected. What was advised or locked there is so no more.
    pub fn unshare(&self, storage: &Storage, part: Range<usize>) -> io::Result<()> {
        let whole = part.start == 0 && part.end == self.len();
        self.map_private(storage, part.clone(), None, false)?;
        // A smaller part is joined with what it lies in.
        if whole { self.unite(part) } else { Ok(()) }
    }

    /// Has a part that is mapped privately and protected be one mapping again whenever all of it is protected alike:
    /// the kernel joins only what it has made of one that it had copied a page of.
    pub fn unite(&self, part: Range<usize>) -> io::Result<()> {
        let page = part.start..(part.start + page_size()).min(part.end);
        let mut copied = false;
        let told = private::copied_pages(self.at(page.start), 1, |_| copied = true);
        if told.is_err() || copied || planted("mappings-not-united") {
            return Ok(());
        }
        if self.protect(page.clone(), true).is_err() {
            return Ok(());
        }
        // SAFETY: the page is mapped privately, and open for this moment; no byte changes. A page that cannot be
        // read stays the file's.
        unsafe { private::own_all(self.at(page.start), page.len()) };
        self.protect(page.clone(), false)?;
        // SAFETY: it holds what it showed, and is protected. Locked memory stays, which does no harm.
        let _ = unsafe { map::discard(self.at(page.start), page.len()) };
        Ok(())
    }

    fn map_segment(
        &self,
        storage: &Storage,
        part: Range<usize>,
        sync: bool,
        detached: Part,
    ) -> io::Result<()> {
        let (medium, at) = (self.segment.file.medium()?, self.segment.data + self.start + part.start as u64);
        let (start, len) = (self.at(part.start), part.len());
        // SAFETY: as in `map_copy`; what was mapped there goes in the same step.
        let share = || unsafe { self.reservation.map_shared(part.start, len, medium.descriptor(), at, sync) };
        match sync {
            true => share()?,
            false => {
                let of = (medium.descriptor(), self.segment.data + self.start);
                // SAFETY: the region is its own, and its segment's file is open as long as it is mapped.
                let new = |owner| unsafe { Stretch::new(self.base, of, detached, owner) };
                let stretch = self.stretch.get_or_init(|| storage.owner().map(new));
                let end = part.end.next_multiple_of(page_size());
                stretch.as_ref().map_or_else(&share, |stretch| stretch.share(end, share))?;
            }
        }
        if medium.volatile() {
            // Huge pages only on a file system in memory: on a device each fault would read two megabytes.
            // SAFETY: the part was just mapped and is whole pages.
            unsafe { map::advise_huge(start, len) };
        }
        simulated::mapped(medium.descriptor(), start, len, at);
        self.advise(storage, &self.reservation, part)
    }

    /// Of more than memory, reading ahead would push out pages that are in use; a device may read megabytes at a
    /// touch. What is mapped again is advised as what it lies in.
    fn advise(&self, storage: &Storage, into: &Reservation, part: Range<usize>) -> io::Result<()> {
        if part.end as u64 > storage.limits.bytes() && !storage.reads_around {
            self.scattered.fetch_min(part.start, Ordering::Relaxed);
        }
        let from = self.scattered.load(Ordering::Relaxed).max(part.start);
        if from >= part.end {
            return Ok(());
        }
        // SAFETY: the part was mapped by the caller and is whole pages.
        unsafe { map::advise(at(into, from), part.end - from, map::Advice::Random) }
    }

    /// Whether reading around what is touched may push out what is in use, and nothing was advised yet.
    pub fn may_scatter(&self, storage: &Storage) -> bool {
        let shown = storage.pool.is_none();
        shown
            && self.len() as u64 > storage.limits.bytes()
            && self.scattered.load(Ordering::Relaxed) == usize::MAX
    }

    /// From now on touching a page reads that page and no others.
    pub fn scatter(&self) {
        self.scattered.store(0, Ordering::Relaxed);
        // SAFETY: whole pages of the region, which is mapped.
        let _ = unsafe { map::advise(self.at(0), self.len(), map::Advice::Random) };
    }

    /// Advises that part of it is read in order, or no more so. A hint: what it covers is whole pages.
    pub fn advise_sequential(&self, part: Range<usize>, now: bool) {
        if part.is_empty() {
            return;
        }
        let page = page_size();
        let (start, end) = (part.start / page * page, part.end.next_multiple_of(page));
        let scattered = self.scattered.load(Ordering::Relaxed).clamp(start, end);
        let advise = |part: Range<usize>, advice| {
            if !part.is_empty() {
                // SAFETY: whole pages of the region, which is mapped.
                let _ = unsafe { map::advise(self.at(part.start), part.len(), advice) };
            }
        };
        if now {
            return advise(start..end, map::Advice::Sequential);
        }
        advise(start..scattered, map::Advice::Normal);
        advise(scattered..end, map::Advice::Random);
    }

    /// Drops the private copies of pages, which their segment has.
    ///
    /// # Safety
    /// The pages are mapped privately, and nobody misses what they hold, nor stores to them meanwhile.
    pub unsafe fn discard(&self, offset: usize, len: usize) -> io::Result<()> {
        // SAFETY: the caller's word; nobody stores to an image but the engine, when a transaction ends.
        unsafe {
            map::discard(self.at(offset), len)?;
            let image = self.image.as_ref().filter(|_| !planted("image-not-given-back"));
            image.map_or(Ok(()), |image| map::discard(at(image, offset), len))
        }
    }

    /// A pointer to an offset within the image, if there is one.
    pub fn image_at(&self, offset: usize) -> Option<*mut u8> {
        self.image.as_ref().map(|image| at(image, offset))
    }

    #[cold]
    pub fn out_of_bounds(&self, at: usize, len: usize) -> RangeError {
        RangeError::OutOfBounds {
            segment: self.segment.name.clone(),
            start: self.start.saturating_add(at as u64),
            len: len as u64,
            region_start: self.start,
            region_end: self.end(),
        }
    }
}

#[inline(always)]
fn at(reservation: &Reservation, offset: usize) -> *mut u8 {
    reservation.base().as_ptr().wrapping_add(offset)
}
