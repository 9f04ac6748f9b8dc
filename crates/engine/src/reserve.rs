//! Reserved pages: what keeps transactions off the pages that truncation copies or drops (RVM's reserved bit, section
//! 5.1.2). How the two find each other is told in [`crate::slot`].

use crate::region::RegionState;
use crate::slot::Held;
use caliburn_os::barrier;
use caliburn_os::event::Event;
use caliburn_os::simulated::planted;
use caliburn_os::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Pages that truncation reserves at a time.
pub(crate) const RESERVED: usize = 32;

/// The pages that truncation has reserved (RVM's reserved bit): nobody declares a range on them meanwhile.
#[derive(Default)]
pub(crate) struct Reserve {
    active: AtomicU32,
    pages: [AtomicUsize; RESERVED],
    released: Event,
}

impl Reserve {
    /// Reserves pages by their addresses. Afterwards a transaction either sees them reserved or is seen
    /// to have announced them. Only for the holder of the truncation lock.
    pub fn reserve(&self, pages: &[usize]) {
        for (slot, page) in self.pages.iter().zip(pages) {
            slot.store(*page, Ordering::Relaxed);
        }
        self.active.store(pages.len() as u32, Ordering::Release);
        barrier::heavy();
    }

    /// Lets everybody go on.
    pub fn release(&self) {
        self.active.store(0, Ordering::Release);
        self.released.signal();
    }

    /// Whether a transaction that has just announced a range, and neither read nor stored there, must look whether
    /// its pages are reserved.
    #[inline(always)]
    pub fn active(&self) -> bool {
        barrier::light();
        self.active.load(Ordering::Acquire) != 0 && !planted("reservation-not-respected")
    }

    /// Called by a transaction that has announced `[start, end)`, before it reads or stores there.
    #[inline(always)]
    pub fn pass(&self, start: usize, end: usize, page: usize) {
        if self.active() {
            while let Some(seen) = self.meets(start, end, page) {
                self.released.wait(seen, None);
            }
        }
    }

    /// As [`Reserve::pass`], for a range that was announced by itself: while it waits, the announcement is taken back,
    /// so that a page that every transaction changes can be copied, too.
    #[cold]
    #[inline(never)]
    pub fn pass_over(&self, mut held: Held<'_>, region: &RegionState, start: usize, end: usize, page: usize) {
        while let Some(seen) = self.meets(start, end, page) {
            held.take_back();
            self.released.wait(seen, None);
            if !planted("announcement-not-renewed") {
                held.announce_new(region, start, end);
            }
            barrier::light();
        }
    }

    /// Whether one of these pages is reserved; to be waited for with what is returned.
    fn meets(&self, start: usize, end: usize, page: usize) -> Option<u32> {
        let seen = self.released.count();
        let active = self.active.load(Ordering::Acquire) as usize;
        let hit = |p: &AtomicUsize| {
            let at = p.load(Ordering::Relaxed);
            at < end && at + page > start
        };
        self.pages[..active.min(RESERVED)].iter().any(hit).then_some(seen)
    }
}
