//! Images: regions as they were at one moment, for as long as somebody reads them, while transactions go on.
//!
//! An image is a private mapping of the region's part of the segment. A page of it shows what the region showed at
//! the moment as long as the region's own page does; before that one is changed, the image is given a copy:
//!
//! ```text
//!   OURS: as the file   --- keep: before the page changes --->   COPYING   --->   KEPT
//!                       --- settle: the region's page seems a copy itself --->   COPYING   --->   COPIED
//!   COPIED              --- keep --->   KEPT
//! ```
//!
//! What is KEPT here was announced by those who change the region, and so is in every image that was there then.
//! COPIED tells nothing of other images: the system may take more pages for copies than are.
//!
//! Invariant: a page of the region that is not a copy of the process's own shows its segment's file, and nobody
//! stores to that page of the file anything else than what the region shows. (With the redo policy truncation writes
//! there what the region has, and private copies are dropped only when the file has it; with the undo policy the
//! region is the file, and transactions are all who store to it.) So an image, which shows the file, shows the
//! region.
//! Invariant: after it is settled, an image's bytes do not change.

use crate::api::region::Region;
use crate::api::shared::Shared;
use crate::storage::error::{MapError, SegmentError};
use crate::storage::region::RegionState;
use caliburn_os::map::{self, Reservation};
use caliburn_os::simulated::{instead, planted, unless};
use caliburn_os::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use caliburn_os::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use caliburn_os::{mappings, private, span, sync};
use std::fmt;
use std::io;
use std::sync::Arc;

const OURS: u8 = 0;
const COPYING: u8 = 1;
const KEPT: u8 = 2;
const COPIED: u8 = 3;

/// What a region held at the moment when [`Region::image`] was called. It is good for as long as the region is
/// mapped and the store is open, which is for its owner to see to; its memory goes with it.
///
/// **Who changes the region** calls [`keep`](Image::keep) for each range, after declaring and before changing it, as
/// long as the image may be read: layers do that whose transactions all pass through one place. **Who makes it**
/// calls [`settle`](Image::settle) before anybody reads it.
pub struct Image {
    memory: Reservation,
    page_shift: u32,
    /// For each page.
    states: Box<[AtomicU8]>,
    /// Nobody reads it before, nothing is stored to it after.
    settled: AtomicBool,
    /// Pages that are being stored to before it is settled.
    storing: AtomicU64,
    forgotten: AtomicBool,
    kept: AtomicU64,
    region: Arc<RegionState>,
    store: Arc<Shared>,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("segment", &self.region.segment.name)
            .field("len", &self.len())
            .field("kept", &self.kept_bytes())
            .finish_non_exhaustive()
    }
}

impl Region {
    /// An image of the region. No transaction that has declared ranges of it may be open; whoever begins one from
    /// now on calls [`Image::keep`]. Takes microseconds, whatever the region's length: one mapping.
    ///
    /// # Errors
    /// When the system refuses the mapping; [`MapError::Unread`] for memory that does not show its segment.
    pub fn image(&self) -> Result<Image, MapError> {
        self.store.storage.own().map_err(SegmentError::Inherited)?;
        let (state, len) = (&self.state, self.len());
        let fail = |source| MapError::Io { segment: state.segment.name.clone(), len: len as u64, source };
        if state.unread {
            return Err(MapError::Unread { segment: state.segment.name.clone() });
        }
        // Who moves pages says so and then looks here, or is seen.
        state.imaged.store(true, SeqCst);
        if state.moved.load(SeqCst) {
            state.imaged.store(false, SeqCst);
            let text = "pages of it lie in files since a transaction has outgrown memory (Options::overflow): there are no images any more until it is mapped anew";
            return Err(fail(io::Error::new(io::ErrorKind::Unsupported, text)));
        }
        let page = self.store.storage.page_size;
        mappings::take().map_err(fail)?;
        let memory = Reservation::new(len.next_multiple_of(page), None).map_err(fail)?;
        let medium = state.segment.file.medium().map_err(fail)?;
        let at = state.segment.data + state.start;
        // SAFETY: the reservation is new, so nobody refers to it; segments never shrink, and the store's lock keeps
        // other programs of ours away from the file.
        unsafe { memory.map_private(0, len, medium.descriptor(), at, true) }.map_err(fail)?;
        memory.base().as_ptr().expose_provenance();
        Ok(Image {
            states: states(len.div_ceil(page)),
            page_shift: page.ilog2(),
            memory,
            settled: AtomicBool::new(false),
            storing: AtomicU64::new(0),
            forgotten: AtomicBool::new(false),
            kept: AtomicU64::new(0),
            region: state.clone(),
            store: self.store.clone(),
        })
    }
}

/// So many states, `OURS`, in memory that is used when it is touched.
fn states(pages: usize) -> Box<[AtomicU8]> {
    let zeros = Box::into_raw(vec![OURS; pages].into_boxed_slice());
    // SAFETY: an atomic byte has the layout of a byte, and any value.
    unsafe { Box::from_raw(zeros as *mut [AtomicU8]) }
}

impl Image {
    /// Bytes of the region that it shows.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// The first byte. What is there may be read once the image is [settled](Image::settle), and does not change
    /// until it is [forgotten](Image::forget) or dropped, if every change of the region is announced to
    /// [`keep`](Image::keep). Nothing may be stored there.
    pub fn as_ptr(&self) -> *const u8 {
        self.memory.base().as_ptr()
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If the range leaves the image.
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        let fits = offset.checked_add(target.len()).is_some_and(|end| end <= self.len());
        assert!(fits, "{} bytes at {offset} of an image of {}", target.len(), self.len());
        // SAFETY: checked above; the mapping lives as long as `self`, and `target` is not in it.
        unsafe { span::copy(self.as_ptr().add(offset), target.as_mut_ptr(), target.len()) }
    }

    /// Bytes that it has copies of; the rest it shares with the segment's file.
    pub fn kept_bytes(&self) -> u64 {
        self.kept.load(Relaxed) << self.page_shift
    }

    /// Whether these bytes may change without being kept any more.
    #[inline(always)]
    pub fn has_kept(&self, offset: usize, len: usize) -> bool {
        let last = offset.saturating_add(len.saturating_sub(1)) >> self.page_shift;
        let first = offset >> self.page_shift;
        first == last && self.states.get(first).is_none_or(|state| state.load(Acquire) == KEPT)
    }

    /// Keeps what the pages of a range of the region hold, which is about to change. The range is declared, and
    /// unchanged since the image was made, or was kept before.
    #[cold]
    pub fn keep(&self, offset: usize, len: usize) {
        if planted("image-page-not-kept") || self.is_forgotten() {
            return;
        }
        let end = offset.saturating_add(len).min(self.states.len() << self.page_shift);
        if offset < end {
            let pages = offset >> self.page_shift..=(end - 1) >> self.page_shift;
            for page in pages.take_while(|_| !self.is_forgotten()) {
                self.keep_page(page, KEPT);
            }
            // Or what was copied since would stay until the next transaction.
            if self.is_forgotten() {
                self.give_back();
            }
        }
    }

    fn keep_page(&self, page: usize, becomes: u8) {
        let state = &self.states[page];
        match state.compare_exchange(OURS, COPYING, Acquire, Acquire) {
            Err(KEPT) => return,
            Err(_) => {
                // The other one copies a page, which takes no longer than a page fault.
                while state.load(Acquire) == COPYING {
                    sync::yield_now();
                }
                if becomes == KEPT {
                    state.store(KEPT, Release);
                }
                return;
            }
            Ok(_) => {}
        }
        // Settled meanwhile or not, is for both sides to see: one of them waits.
        self.storing.fetch_add(1, SeqCst);
        if self.settled.load(SeqCst) {
            self.storing.fetch_sub(1, SeqCst);
            // The region's page is the file's: else it would have been kept when the image was settled.
            // SAFETY: the page is of the image, whose memory is private and writable.
            unsafe { private::own(self.page(page)) };
        } else {
            let len = (1usize << self.page_shift).min(self.region.len() - (page << self.page_shift));
            // SAFETY: the page is in both mappings. Nobody stores to the region's before it is kept, and nobody
            // reads the image's before it is settled.
            unsafe { span::copy(self.region.at(page << self.page_shift), self.page(page), len) };
            self.storing.fetch_sub(1, SeqCst);
        }
        self.kept.fetch_add(1, Relaxed);
        state.store(becomes, Release);
    }

    fn page(&self, page: usize) -> *mut u8 {
        self.memory.base().as_ptr().wrapping_add(page << self.page_shift)
    }

    /// Copies what the region shows and its segment lacks, while transactions go on. Afterwards the image can be
    /// read. Takes about a microsecond for each page that was changed and not yet truncated, none with the undo
    /// policy.
    ///
    /// # Errors
    /// When the system does not tell which pages those are.
    pub fn settle(&self) -> Result<(), MapError> {
        self.store.storage.own().map_err(SegmentError::Inherited)?;
        // Memory that is the segment has no copies.
        let pages = if self.store.terms.private { self.states.len() } else { 0 };
        let told = private::copied_pages(self.region.at(0), pages, |run| {
            if unless("image-copies-not-kept", true) {
                // SAFETY: pages of the image, whose memory is private and writable.
                unsafe { private::own_all(self.page(run.start), run.len() << self.page_shift) };
                run.for_each(|page| self.keep_page(page, instead("copied-taken-for-kept", COPIED, KEPT)));
            }
        });
        let (segment, len) = (|| self.region.segment.name.clone(), self.len() as u64);
        told.map_err(|source| MapError::Io { segment: segment(), len, source })?;
        self.settled.store(true, SeqCst);
        while self.storing.load(SeqCst) > 0 {
            sync::yield_now();
        }
        Ok(())
    }

    /// Gives the memory back: nobody reads the image any more. Who keeps pages for it at the moment goes on.
    ///
    /// # Safety
    /// Nothing refers to its bytes.
    pub unsafe fn forget(&self) {
        self.forgotten.store(true, SeqCst);
        self.give_back();
    }

    /// Of an image that is forgotten, or was while the caller kept pages for it.
    fn give_back(&self) {
        // SAFETY: nothing refers to its bytes; the pages show the file again. Where memory is locked this fails, and
        // the memory goes with the mapping.
        _ = unsafe { map::discard(self.memory.base().as_ptr(), self.memory.len()) };
        self.kept.store(0, Relaxed);
    }

    /// Whether it was.
    pub fn is_forgotten(&self) -> bool {
        self.forgotten.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, Policy, Store};

    fn opened(policy: Policy, dir: &tempfile::TempDir, len: u64) -> (Store, Region) {
        let mut options = Store::options();
        let options = options.create(true).policy(policy).guard(crate::Guard::Off);
        let store = options.open(dir.path().join("s")).unwrap();
        let region = store.create_segment("data", len).unwrap().map_all().unwrap();
        (store, region)
    }

    /// What a layer does before it changes a range.
    fn announce(images: &[&Image], offset: usize, len: usize) {
        if !images[images.len() - 1].has_kept(offset, len) {
            images.iter().for_each(|image| image.keep(offset, len));
        }
    }

    /// On some file systems pages that were only read seem copies. The newest image keeps such a page when it is
    /// settled, and an older one must be given it all the same.
    #[test]
    fn a_page_that_seems_a_copy_is_kept_for_older_images_too() {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = opened(Policy::Redo, &dir, 1 << 20);
        let change = |value: u8, announced: &[&Image]| {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.set_range(&region, 5000..5001).unwrap();
            announce(announced, 5000, 1);
            tx.write(&region, 5000, &[value]).unwrap();
            tx.commit(crate::Class::Process).unwrap();
            store.truncate().unwrap();
        };
        let older = region.image().unwrap();
        older.settle().unwrap();
        // SAFETY: nobody else uses the region, and the byte stays what it is.
        unsafe { region.as_ptr().add(5000).write_volatile(0) };
        let newer = region.image().unwrap();
        newer.settle().unwrap();
        assert_eq!(newer.kept_bytes(), store.query().page_bytes, "it does not seem a copy");
        change(7, &[&older, &newer]);
        let mut seen = [[1u8]; 2];
        older.read(5000, &mut seen[0]);
        newer.read(5000, &mut seen[1]);
        assert_eq!(seen, [[0], [0]]);
    }

    #[test]
    fn what_is_kept_while_an_image_is_forgotten_is_given_back() {
        for policy in [Policy::Redo, Policy::Undo] {
            let dir = tempfile::tempdir().unwrap();
            let (_store, region) = opened(policy, &dir, 8 << 20);
            for round in 0..40u32 {
                let image = region.image().unwrap();
                image.settle().unwrap();
                std::thread::scope(|scope| {
                    scope.spawn(|| image.keep(0, 8 << 20));
                    (0..round * 500).for_each(|_| std::hint::spin_loop());
                    // SAFETY: nobody refers to its bytes.
                    unsafe { image.forget() };
                });
                assert_eq!(image.kept_bytes(), 0, "{policy:?}, round {round}");
            }
        }
    }

    #[test]
    fn an_image_whose_memory_is_locked_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let (_store, region) = opened(Policy::Undo, &dir, 1 << 20);
        let image = region.image().unwrap();
        image.settle().unwrap();
        // SAFETY: the memory is the image's.
        let locked = unsafe { rustix::mm::mlock(image.as_ptr().cast_mut().cast(), 4096) };
        locked.expect("a page can be locked");
        // SAFETY: nobody refers to its bytes.
        unsafe { image.forget() };
    }
}
