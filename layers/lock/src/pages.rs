//! Pages that are locked when they are touched (McNamee, section 7.3.1): a program just loads and stores, and its
//! transactions are serializable. It sees the region in a [view](caliburn_engine::View); the first load from a page
//! locks it for others' stores, the first store for all others. Who knows that many want a part of the same page
//! locks its own part by name of the range, in place of the page.
//!
//! ```
//! # use caliburn_engine::{Class, Policy, Store};
//! # use caliburn_lock::{Detector, PageLocks};
//! # let dir = tempfile::tempdir().unwrap();
//! let mut options = Store::options();
//! let store = options.create(true).policy(Policy::Undo).open(dir.path().join("s"))?;
//! let region = store.create_segment("data", 65_536)?.map_all()?;
//! let detector = Detector::new();
//! let locks = detector.range_locks();
//! let mut pages = PageLocks::new(&store, &region, &detector, &locks)?; // One for each thread.
//! let count = pages.transact(Class::Process, |tx| {
//!     let count: u64 = tx.load(8);
//!     tx.store(8, &(count + 1));
//!     Ok(count + 1)
//! })?;
//! assert_eq!((count, region.load::<u64>(8)), (1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariant: what a transaction has touched is locked until it has committed or is undone, and nothing of it is
//! open to the next one in its view.

use crate::detector::Detector;
use crate::error::LockError;
use crate::mode::Standard;
use crate::owner::Owner;
use crate::ranges::RangeLocks;
use caliburn_engine::{Access, Class, MapError, Mode, Refusal, Region, SegmentId, Store, View, Viewed};
use caliburn_nest::Error;
use caliburn_os::simulated::planted;
use caliburn_os::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A thread's transactions on a region, whose pages they lock as they touch them.
pub struct PageLocks<'r> {
    store: &'r Store,
    view: View<'r>,
    detector: Detector,
    locks: RangeLocks<SegmentId>,
    held: Arc<Held>,
}

/// What the view's thread and the program's share.
struct Held {
    /// Of the transaction that is open, or the next one.
    owner: Mutex<Owner>,
    /// How often a page was waited for, by its first byte.
    waited: Mutex<BTreeMap<u64, u64>>,
}

impl fmt::Debug for PageLocks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PageLocks").field(&self.view).finish()
    }
}

impl<'r> PageLocks<'r> {
    /// Has transactions of one thread see a region in a view of its own. All threads share the locks, and whoever
    /// touches the region otherwise takes them as well: a page's is that of its range of bytes, in the space that
    /// has the segment's number.
    ///
    /// # Errors
    /// As [`Region::view`]: the store has the undo policy, and changes are declared.
    ///
    /// # Panics
    /// If the region is another store's.
    pub fn new(
        store: &'r Store,
        region: &'r Region,
        detector: &Detector,
        locks: &RangeLocks<SegmentId>,
    ) -> Result<PageLocks<'r>, MapError> {
        let (owner, waited) = (Mutex::new(detector.owner()), Mutex::default());
        let held = Arc::new(Held { owner, waited });
        let (detector, locks) = (detector.clone(), locks.clone());
        let (touching, wanted, space) = (held.clone(), locks.clone(), region.segment_id());
        let view = region.view(move |access, bytes| touching.lock(&wanted, space, access, bytes))?;
        Ok(PageLocks { store, view, detector, locks, held })
    }

    /// Runs a transaction, as often as it is the victim of a deadlock, and commits it. What it returns as an error,
    /// and a panic, undo it.
    ///
    /// A victim goes on to the end of `body`, in a copy of what it touches from then on, which nobody else sees:
    /// what it has read then may fit nothing. Where it might not come to an end it asks [`Touching::goes_on`] now
    /// and then.
    ///
    /// # Errors
    /// [`Error::Followed`] with a [`LockError`] when a lock was not to be had for another reason than a deadlock; as
    /// [`Store::begin`], [`commit`](caliburn_engine::Transaction::commit) and `body`.
    pub fn transact<T>(
        &mut self,
        class: Class,
        mut body: impl FnMut(&mut Touching<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            let ending = Ending(self);
            let done = self.attempt(class, &mut body);
            if !done.as_ref().is_err_and(is_deadlock) {
                return done;
            }
            // As old as it was, so that it gets through some time.
            std::mem::forget(ending);
            let mut owner = self.held.owner();
            let victim = std::mem::replace(&mut *owner, self.detector.owner());
            *owner = victim.again();
        }
    }

    fn attempt<T>(
        &self,
        class: Class,
        body: &mut impl FnMut(&mut Touching<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let viewed = self.view.enter(self.store.begin(Mode::Restore)?);
        let mut touching =
            Touching { viewed, locks: &self.locks, held: &self.held, space: self.view.region().segment_id() };
        let value = body(&mut touching);
        let (tx, refused) = touching.viewed.leave();
        if planted("page-locks-ended-early") {
            *self.held.owner() = self.detector.owner();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        if let Some(refused) = refused {
            return Err(Error::Followed(refused));
        }
        let value = value?;
        // It may have been chosen while it waited for nothing.
        self.held.owner().goes_on()?;
        tx.commit(class)?;
        Ok(value)
    }

    /// Pages that transactions of this thread had to wait for, and how often: the first byte of each. Where there
    /// are many, the program may lock ranges instead ([`Touching::lock_range`]).
    pub fn waited(&self) -> Vec<(u64, u64)> {
        let waited = self.held.waited.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        waited.iter().map(|(page, count)| (*page, *count)).collect()
    }
}

/// Ends what a transaction has locked, also in a panic.
struct Ending<'p, 'r>(&'p PageLocks<'r>);

impl Drop for Ending<'_, '_> {
    fn drop(&mut self) {
        *self.0.held.owner() = self.0.detector.owner();
    }
}

impl Held {
    fn owner(&self) -> MutexGuard<'_, Owner> {
        self.owner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Locks what is touched.
    fn lock(
        &self,
        locks: &RangeLocks<SegmentId>,
        space: SegmentId,
        access: Access,
        bytes: Range<u64>,
    ) -> Result<(), Refusal> {
        let (mut owner, mode) = (self.owner(), mode_of(access));
        if !locks.try_lock(&mut owner, &space, bytes.clone(), mode)? {
            let mut waited = self.waited.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            *waited.entry(bytes.start).or_default() += 1;
            drop(waited);
            locks.lock(&mut owner, &space, bytes, mode)?;
        }
        Ok(())
    }
}

fn mode_of(access: Access) -> Standard {
    match access {
        Access::Load => Standard::Shared,
        Access::Store => Standard::Exclusive,
    }
}

fn is_deadlock(error: &Error) -> bool {
    match error {
        Error::Followed(why) => matches!(why.downcast_ref(), Some(LockError::Deadlock(_))),
        _ => false,
    }
}

/// A transaction that locks what it touches.
pub struct Touching<'t> {
    viewed: Viewed<'t>,
    locks: &'t RangeLocks<SegmentId>,
    held: &'t Held,
    space: SegmentId,
}

impl fmt::Debug for Touching<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Touching").field(&self.viewed).finish()
    }
}

impl Touching<'_> {
    /// The first byte of the view: see [`Viewed::as_ptr`].
    pub fn as_ptr(&mut self) -> *mut u8 {
        self.viewed.as_ptr()
    }

    /// Copies a value out.
    ///
    /// # Panics
    /// If the range leaves the view.
    pub fn load<T: FromBytes>(&mut self, offset: usize) -> T {
        self.viewed.load(offset)
    }

    /// Stores a value.
    ///
    /// # Panics
    /// As [`Touching::load`].
    pub fn store<T: IntoBytes + Immutable>(&mut self, offset: usize, value: &T) {
        self.viewed.store(offset, value);
    }

    /// Locks a range in place of its pages, and opens these: others may do the same with other ranges of them. The
    /// transaction touches nothing else of these pages: see [`Viewed::open`].
    ///
    /// # Errors
    /// [`Error::Followed`] with a [`LockError`]; when the range cannot be declared, or opened.
    ///
    /// # Panics
    /// As [`Touching::load`].
    pub fn lock_range(&mut self, access: Access, range: Range<usize>) -> Result<(), Error> {
        let start = self.viewed.region_start();
        let bytes = start + range.start as u64..start + range.end as u64;
        if !planted("page-ranges-not-locked") {
            self.locks.lock(&mut self.held.owner(), &self.space, bytes, mode_of(access))?;
        }
        self.viewed.open(access, range).map_err(Error::Followed)
    }

    /// Whether the transaction can still be committed.
    ///
    /// # Errors
    /// [`Error::Followed`] with why not: it should return that.
    pub fn goes_on(&self) -> Result<(), Error> {
        self.held.owner().goes_on()?;
        self.viewed.goes_on().map_err(|why| Error::Followed(why.into()))
    }
}
