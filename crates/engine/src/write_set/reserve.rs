//! Reserved pages: what keeps transactions off the pages that truncation copies or drops (RVM's reserved bit,
//! section 5.1.2).
//!
//! Truncation must not write a page that an uncommitted transaction has declared. Counting per page would cost
//! the hot path two locked instructions for each range; instead truncation, which is rare, reads all runs:
//!
//! ```text
//!   transaction: publish range - light barrier - any page reserved?  - store
//!   truncation:  reserve pages - heavy barrier - any run with the page? - copy - release
//! ```
//!
//! Invariant: at least one of the two sees the other (`caliburn_os::barrier`). A transaction that waits has not
//! published the range that it waits for, so that a page that every transaction changes can be copied, too.

use super::set::WriteSet;
use crate::storage::region::RegionState;
use caliburn_os::barrier;
use caliburn_os::event::Event;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard};

/// Pages that are reserved at a time.
pub(crate) const RESERVED: usize = 32;

/// The pages that truncation has reserved: nobody declares a range on them meanwhile.
pub(crate) struct Reserve {
    /// How many pages are reserved; [`ALWAYS`] besides where a transaction's own fence must keep the order, and
    /// [`QUIET`].
    pub(super) active: AtomicU32,
    pages: [AtomicUsize; RESERVED],
    pub(super) released: Event,
    /// Of who reserves pages: one at a time.
    one: Mutex<()>,
    /// Runs that were moved to others.
    pub(super) moves: AtomicU64,
    /// Of who wants quiet: one at a time.
    pub(super) quiet: Mutex<()>,
}

/// Pages that are reserved; no more when this is dropped.
pub(crate) struct Reserved<'r> {
    reserve: &'r Reserve,
    _one: MutexGuard<'r, ()>,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.reserve.active.fetch_and(FLAGS, Ordering::Release);
        self.reserve.released.signal();
    }
}

/// Every transaction must come here for each range.
const ALWAYS: u32 = 1 << 31;
/// Somebody wants [`quiet`](super::quiet).
pub(super) const QUIET: u32 = 1 << 30;
const FLAGS: u32 = ALWAYS | QUIET;

impl Default for Reserve {
    fn default() -> Reserve {
        barrier::prepare();
        let always = if barrier::is_asymmetric() { 0 } else { ALWAYS };
        Reserve {
            active: AtomicU32::new(always),
            pages: Default::default(),
            released: Event::default(),
            one: Mutex::default(),
            moves: AtomicU64::new(0),
            quiet: Mutex::default(),
        }
    }
}

impl Reserve {
    /// Reserves pages by their addresses, until what is returned is dropped. Afterwards a transaction either sees
    /// them reserved or is seen to have declared them.
    pub fn reserve(&self, pages: &[usize]) -> Reserved<'_> {
        let one = self.one.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (slot, page) in self.pages.iter().zip(pages) {
            slot.store(*page, Ordering::Relaxed);
        }
        self.active.fetch_or(pages.len() as u32, Ordering::Release);
        barrier::heavy();
        Reserved { reserve: self, _one: one }
    }

    /// Not 0 if pages may be reserved, or quiet be wanted: what each transaction looks at when it has declared a
    /// range.
    pub fn watch(&self) -> &AtomicU32 {
        &self.active
    }

    /// Called by a transaction that has declared a range while pages are reserved, before it stores there:
    /// waits if its pages are among them, with the range taken back meanwhile.
    #[cold]
    pub fn step_aside(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        offset: usize,
        len: usize,
        page: usize,
    ) {
        if planted("reservation-not-respected") {
            return;
        }
        let start = region.base + offset;
        barrier::light();
        while let Some(seen) = self.reserved(start, start + len, page) {
            set.unpublish(len);
            self.released.wait(seen, None);
            if planted("announcement-not-renewed") {
                return;
            }
            set.put(region, offset, len);
            barrier::light();
        }
    }

    /// Called after ranges were published in one run and before they are taken back in another: a reader of the
    /// runs has either seen the first, or is done with the second.
    pub fn let_pass(&self) {
        barrier::light();
        let seen = self.released.count();
        if unless("adopted-while-read", self.active.load(Ordering::Acquire) & !FLAGS != 0) {
            // A wait may end for nothing.
            while self.released.count() == seen {
                self.released.wait(seen, None);
            }
        }
    }

    /// Whether one of these pages is reserved; to be waited for with what is returned.
    fn reserved(&self, start: usize, end: usize, page: usize) -> Option<u32> {
        let seen = self.released.count();
        let active = (self.active.load(Ordering::Acquire) & !FLAGS) as usize;
        let hit = |p: &AtomicUsize| {
            let at = p.load(Ordering::Relaxed);
            at < end && at + page > start
        };
        self.pages[..active.min(RESERVED)].iter().any(hit).then_some(seen)
    }
}
