//! The images of a heap's objects that somebody reads: taken between transactions, given copies of pages by them.
//!
//! A snapshot puts its image on the list of those that are new; the next transaction takes them over, and lets those
//! go that nobody reads any more. So a transaction knows its images without a lock.

use crate::error::Error;
use caliburn_engine::{Image, Region};
use caliburn_heap::HeapError;
use caliburn_os::simulated::planted;
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The images that transactions give pages to, oldest first. It comes with the turn to write.
#[derive(Default)]
pub(crate) struct Images {
    all: Vec<Arc<Image>>,
    /// Transactions begun.
    transactions: u64,
}

/// What snapshots and transactions tell each other.
pub(crate) struct Exchange {
    /// There are new images, or some that nobody reads any more.
    changed: AtomicBool,
    new: Mutex<Vec<Arc<Image>>>,
    /// The last image taken, and how many transactions had begun. Locked until it is settled, so that who shares it
    /// finds it so.
    last: Mutex<Option<(Weak<Readers>, u64)>>,
    /// Bytes that all images together could keep, and the most that they may.
    bytes: AtomicU64,
    limit: AtomicU64,
}

impl Default for Exchange {
    fn default() -> Exchange {
        Exchange {
            changed: AtomicBool::new(false),
            new: Mutex::default(),
            last: Mutex::default(),
            bytes: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
        }
    }
}

/// Those who read an image; the last of them gives its memory back.
pub(crate) struct Readers {
    image: Arc<Image>,
    exchange: Arc<Exchange>,
}

impl Images {
    /// A transaction begins: the images that it gives pages to.
    #[inline(always)]
    pub fn begin(&mut self, exchange: &Exchange) -> &[Arc<Image>] {
        self.transactions += 1;
        if exchange.changed.load(Ordering::Acquire) {
            self.take_over(exchange);
        }
        &self.all
    }

    #[cold]
    fn take_over(&mut self, exchange: &Exchange) {
        exchange.changed.swap(false, Ordering::AcqRel);
        self.all.append(&mut exchange.new.lock());
        self.all.retain(|image| !image.is_forgotten());
    }
}

impl Exchange {
    /// An image of the region as it is in the caller's turn, which ends as soon as it may: the last image, if no
    /// transaction has begun since, or a new one. None, with the turn ended, while another one is being settled:
    /// writers need not wait for that. [`Exchange::wait`] does.
    pub fn take(
        self: &Arc<Self>,
        region: &Region,
        turn: impl Deref<Target = Images>,
    ) -> Result<Option<Arc<Readers>>, Error> {
        let Some(mut last) = self.last.try_lock() else { return Ok(None) };
        let transactions = turn.transactions;
        let same =
            |(readers, then): &(Weak<Readers>, u64)| readers.upgrade().filter(|_| *then == transactions);
        if let Some(readers) = last.as_ref().and_then(same) {
            return Ok(Some(readers));
        }
        self.reserve(region.len() as u64)?;
        let image = match region.image() {
            Ok(image) => Arc::new(image),
            Err(error) => {
                self.bytes.fetch_sub(region.len() as u64, Ordering::Relaxed);
                return Err(HeapError::from(error).into());
            }
        };
        let readers = Arc::new(Readers { image, exchange: self.clone() });
        // Before the turn ends: the next transaction keeps pages for it.
        self.new.lock().push(readers.image.clone());
        self.changed.store(true, Ordering::Release);
        drop(turn);
        readers.image.settle().map_err(HeapError::from)?;
        *last = Some((Arc::downgrade(&readers), transactions));
        Ok(Some(readers))
    }

    /// Waits until no image is being settled.
    pub fn wait(&self) {
        drop(self.last.lock());
    }

    /// Makes room for an image that may keep so many bytes.
    fn reserve(&self, bytes: u64) -> Result<(), Error> {
        let limit = self.limit.load(Ordering::Relaxed);
        let room = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= limit);
        match self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room) {
            Ok(_) => Ok(()),
            Err(taken) => Err(Error::Snapshots { bytes, taken, limit }),
        }
    }

    /// Lets images together keep at most so many bytes.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }
}

impl Readers {
    /// The image.
    pub fn image(&self) -> &Image {
        &self.image
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        // The length that was reserved: it is a whole number of pages.
        let bytes = self.image.len() as u64;
        // SAFETY: the last of its readers is gone.
        unsafe { self.image.forget() };
        // If no transaction has taken it over, it goes now: there may be none for long.
        if !planted("image-kept-for-nobody") {
            self.exchange.new.lock().retain(|image| !Arc::ptr_eq(image, &self.image));
        }
        self.exchange.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.exchange.changed.store(true, Ordering::Release);
    }
}
