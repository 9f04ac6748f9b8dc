//! Views: a region as one transaction after the other sees it, page by page (McNamee, section 7.3.1). A view is
//! memory of its own that shows the segment, and that nobody may touch at first. The first load of a transaction
//! from a page, and the first store to it, are caught; a hook is called, with which a layer takes locks; then the
//! page is opened, until the transaction leaves.
//!
//! ```text
//!   load - fault - the view's thread:    the hook - the page can be read - the load goes on
//!   store - fault - the view's thread:   the hook - the page is declared - it can be stored to - the store goes on
//!   leave:                               all that was opened is hidden again
//! ```
//!
//! So programs that never heard of locks are kept apart, each in a view of its own. The engine knows no locks.
//!
//! Invariant: what a view shows of the segment can be read only after the hook has allowed it for the transaction
//! that is in the view, and stored to only where that has declared it.

use crate::api::region::Region;
use crate::api::shared::Shared;
use crate::api::transaction::Transaction;
use crate::storage::error::{MapError, SegmentError};
use crate::storage::region::RegionState;
use caliburn_os::faults::{Catch, Caught, Desk};
use caliburn_os::guard::{self, Named};
use caliburn_os::map::{self, Reservation};
use caliburn_os::rescue::{Part, Stretch};
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::{Mutex, MutexGuard};
use caliburn_os::{mappings, page_size, span};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What a transaction does to memory in a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// It reads.
    Load,
    /// It changes, and may have read.
    Store,
}

/// Why a transaction may not touch memory.
pub type Refusal = Box<dyn Error + Send + Sync>;

/// Called with what is touched for the first time: bytes of the segment, whole pages or all of the region.
type Hook = Box<dyn FnMut(Access, Range<u64>) -> Result<(), Refusal> + Send>;

/// Memory that shows a region to one transaction at a time: [`Region::view`].
pub struct View<'r> {
    region: &'r Region,
    thread: Option<JoinHandle<()>>,
    // Before the memory goes, where another's may come to lie.
    _caught: Caught,
    _named: Named,
    inner: Arc<Inner>,
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("region", self.region).finish_non_exhaustive()
    }
}

struct Inner {
    /// What is shared of the memory, unless it is persistent. Gone before the file and the memory are.
    stretch: Option<Stretch>,
    shared: Arc<Shared>,
    region: Arc<RegionState>,
    memory: Reservation,
    /// Bytes that it shows.
    len: usize,
    desk: &'static Desk,
    state: Mutex<State>,
}

struct State {
    hook: Hook,
    /// The slot of the transaction that is in the view.
    current: Option<usize>,
    /// The pages that are open.
    pages: BTreeMap<usize, Page>,
    /// How all of it is open, from so many pages on.
    whole: Option<Access>,
    /// Why the transaction cannot be committed.
    refused: Option<Refusal>,
    /// Something could not be hidden: no transaction that enters may commit.
    broken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    Open(Access),
    /// The hook has refused it: a copy, which the transaction may change as it likes.
    Copied,
}

impl Region {
    /// Makes a view of the region as it is now: memory that shows it to one transaction at a time, to which `hook`
    /// has to allow what it touches. The hook is called in a thread of the view, and may wait: for others that are
    /// in views of theirs. What it refuses the transaction gets a copy of, so that it goes on, and cannot commit.
    ///
    /// ```
    /// # use caliburn_engine::{Access, Class, Mode, Policy, Store};
    /// # let dir = tempfile::tempdir().unwrap();
    /// let mut options = Store::options();
    /// let store = options.create(true).policy(Policy::Undo).open(dir.path().join("s"))?;
    /// let region = store.create_segment("data", 65_536)?.map_all()?;
    /// let view = region.view(|access, bytes| {
    ///     println!("{access:?} of {bytes:?}");
    ///     Ok(())
    /// })?;
    /// let mut inside = view.enter(store.begin(Mode::Restore)?);
    /// let count: u64 = inside.load(8); // Load of 0..4096
    /// inside.store(8, &(count + 1)); // Store of 0..4096
    /// let (tx, refused) = inside.leave();
    /// assert!(refused.is_none());
    /// tx.commit(Class::Process)?;
    /// assert_eq!(region.load::<u64>(8), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MapError::View`] unless memory is the segment and several transactions can be open: with the undo policy,
    /// where changes are declared. When there is no address space or no thread.
    pub fn view(
        &self,
        hook: impl FnMut(Access, Range<u64>) -> Result<(), Refusal> + Send + 'static,
    ) -> Result<View<'_>, MapError> {
        self.store.storage.own().map_err(SegmentError::Inherited)?;
        let (shared, region) = (self.store.clone(), self.state.clone());
        let (segment, len) = (region.segment.name.clone(), region.len());
        let apart = region.shared.load(std::sync::atomic::Ordering::Relaxed) && !shared.terms.alone;
        if !apart || shared.storage.is_read_only() {
            return Err(MapError::View { segment });
        }
        let refused = |source| MapError::Io { segment: segment.clone(), len: len as u64, source };
        mappings::take().map_err(refused)?;
        let memory = Reservation::new(len.next_multiple_of(page_size()), None).map_err(refused)?;
        memory.base().as_ptr().expose_provenance();
        let state = State {
            hook: Box::new(hook),
            current: None,
            pages: BTreeMap::new(),
            whole: None,
            refused: None,
            broken: false,
        };
        let shown = region.segment.file.medium().map_err(refused)?;
        let plain = !region.synced.load(std::sync::atomic::Ordering::Relaxed);
        let (base, file) =
            (memory.base().as_ptr().addr(), (shown.descriptor(), region.segment.data + region.start));
        // SAFETY: the memory is this view's, and the segment's file is open as long as the region is mapped.
        let new = |owner| unsafe { Stretch::new(base, file, Part::Data, owner) };
        let stretch = shared.storage.owner().filter(|_| plain).map(new);
        drop(shown);
        let (desk, state) = (Desk::new(), Mutex::new(state));
        let inner = Inner { shared, region, stretch, memory, len, desk, state };
        inner.show(0..len).map_err(refused)?;
        let too_many = || io::Error::other("the process has too many regions and views that are caught");
        let known = Caught::new(inner.base(), len, Catch::All, inner.desk);
        let caught = known.ok_or_else(too_many).map_err(refused)?;
        let named = Named::new(inner.base(), len, inner.region.start, &inner.region.segment.name);
        let inner = Arc::new(inner);
        let serving = inner.clone();
        let life = move || serving.desk.serve(|address, stored| serving.serve(address, stored));
        let thread = std::thread::Builder::new().name("caliburn-view".into()).spawn(life);
        let thread = Some(thread.map_err(refused)?);
        Ok(View { region: self, thread, _caught: caught, _named: named, inner })
    }
}

impl<'r> View<'r> {
    /// The region that it shows.
    pub fn region(&self) -> &'r Region {
        self.region
    }

    /// A transaction of the same store enters: until it leaves, what is touched in the view is touched by it.
    ///
    /// # Panics
    /// If another one is in the view, it is one of another store, or it cannot be undone
    /// ([`Mode::NoRestore`](crate::Mode)).
    pub fn enter<'t>(&'t self, tx: Transaction<'t>) -> Viewed<'t>
    where
        'r: 't,
    {
        assert!(tx.is_of(&self.inner.shared), "the transaction is one of another store");
        assert!(tx.restores(), "a transaction in a view may be refused something, and must be undone then");
        guard::come_first();
        let mut state = self.inner.lock();
        assert!(state.current.is_none(), "another transaction is in the view");
        state.current = Some(tx.write_set().number());
        drop(state);
        Viewed { view: &self.inner, tx: Some(tx), parts: Vec::new() }
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        if self.inner.shared.storage.is_inherited() {
            // The thread is the parent's.
            return std::mem::forget(self.thread.take());
        }
        self.inner.desk.close();
        if let Some(thread) = self.thread.take() {
            // A panic there was printed.
            let _ = thread.join();
        }
    }
}

/// A transaction that is in a view. Dropped, it has left, and is aborted.
pub struct Viewed<'t> {
    view: &'t Inner,
    /// None when it has left.
    tx: Option<Transaction<'t>>,
    /// Ranges that may be stored to, and nothing else of their pages.
    parts: Vec<Range<usize>>,
}

impl fmt::Debug for Viewed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Viewed").field(&self.tx).finish()
    }
}

impl<'t> Viewed<'t> {
    /// The first byte of the view. Offsets in it are those in the region.
    ///
    /// Loading and storing through the pointer is for `unsafe` code, which must touch the view only while the
    /// transaction is in it, and from one thread at a time, that does not call a method of it meanwhile.
    pub fn as_ptr(&mut self) -> *mut u8 {
        self.view.memory.base().as_ptr()
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If the range leaves the view.
    pub fn read(&mut self, offset: usize, target: &mut [u8]) {
        let source = self.view.at(offset, target.len());
        // SAFETY: so many bytes are mapped while the view is borrowed; whoever touches them is served.
        unsafe { span::copy(source, target.as_mut_ptr(), target.len()) };
    }

    /// Copies a value out.
    ///
    /// # Panics
    /// As [`Viewed::read`].
    pub fn load<T: FromBytes>(&mut self, offset: usize) -> T {
        let source = self.view.at(offset, size_of::<T>());
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: as in `read`; any bytes make a `T: FromBytes`, and all of them are written.
        unsafe {
            span::copy(source, value.as_mut_ptr().cast(), size_of::<T>());
            value.assume_init()
        }
    }

    /// Where in the segment the view begins.
    pub fn region_start(&self) -> u64 {
        self.view.region.start
    }

    /// Stores bytes, of which nothing must be declared.
    ///
    /// # Panics
    /// As [`Viewed::read`].
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let target = self.view.at(offset, bytes.len());
        self.check_parts(offset..offset + bytes.len());
        // SAFETY: as in `read`.
        unsafe { span::copy(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Stores a value.
    ///
    /// # Panics
    /// As [`Viewed::read`].
    pub fn store<T: IntoBytes + Immutable>(&mut self, offset: usize, value: &T) {
        self.write(offset, value.as_bytes());
    }

    /// What is stored to pages of which only ranges are declared must be in one of these: the rest could not be
    /// undone.
    fn check_parts(&self, range: Range<usize>) {
        let pages = |of: &Range<usize>| of.start / page_size()..of.end.div_ceil(page_size());
        let (stored, inside) =
            (pages(&range), |part: &Range<usize>| part.start <= range.start && range.end <= part.end);
        let meets = |part: &Range<usize>| pages(part).start < stored.end && stored.start < pages(part).end;
        let allowed = !self.parts.iter().any(meets) || self.parts.iter().any(inside);
        assert!(allowed, "bytes {range:?} of the view are in a page of which only other ranges were opened");
    }

    /// Opens the pages of a range without asking the hook, and declares the range, and nothing else of the pages, if
    /// it is to be stored to: for layers that have locked the range by itself, since many want a part of its page.
    /// What is stored to such a page is in such a range: [`Viewed::write`] panics else. Nobody checks loads, nor
    /// what is stored by pointers.
    ///
    /// # Errors
    /// When it cannot be declared, or opened.
    ///
    /// # Panics
    /// As [`Viewed::read`].
    pub fn open(&mut self, access: Access, range: Range<usize>) -> Result<(), Refusal> {
        self.view.at(range.start, range.len());
        self.view.shared.storage.own()?;
        let set = self.tx.as_ref().expect("it is in the view").write_set();
        let mut state = self.view.lock();
        if access == Access::Store {
            self.view.shared.declare(set, &self.view.region, range.start, range.len())?;
        }
        let pages = range.start / page_size()..range.end.div_ceil(page_size());
        let mut part = false;
        for page in pages {
            if state.access(page).is_none_or(|open| open < access) {
                self.view.protect(page..page + 1, Some(access))?;
                state.pages.insert(page, Page::Open(access));
                part |= access == Access::Store;
            } else {
                // More of a page that was opened so.
                part |= self
                    .parts
                    .iter()
                    .any(|other| other.start / page_size() <= page && page * page_size() < other.end);
            }
        }
        if part && access == Access::Store {
            self.parts.push(range);
        }
        Ok(())
    }

    /// Why the transaction cannot be committed, if it cannot: what it has seen since is of no worth.
    ///
    /// # Errors
    /// What the hook has said first.
    pub fn goes_on(&self) -> Result<(), String> {
        self.view.lock().refused.as_ref().map_or(Ok(()), |refused| Err(refused.to_string()))
    }

    /// Hides what was opened. What was refused, if something was: then the transaction must be aborted.
    pub fn leave(mut self) -> (Transaction<'t>, Option<Refusal>) {
        let refused = self.view.leave();
        (self.tx.take().expect("it is in the view"), refused)
    }
}

impl Drop for Viewed<'_> {
    fn drop(&mut self) {
        if self.tx.is_some() && !self.view.shared.storage.is_inherited() {
            self.view.leave();
        }
    }
}

impl State {
    /// How a page is open.
    fn access(&self, page: usize) -> Option<Access> {
        match self.pages.get(&page) {
            Some(Page::Copied) => Some(Access::Store),
            Some(Page::Open(access)) => Some((*access).max(self.whole.unwrap_or(Access::Load))),
            None => self.whole,
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn base(&self) -> usize {
        self.memory.base().as_ptr().addr()
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(fits, "{}", self.region.out_of_bounds(offset, len));
        self.memory.base().as_ptr().wrapping_add(offset)
    }

    /// The part of the view that pages are.
    fn part(&self, pages: &Range<usize>) -> Range<usize> {
        pages.start * page_size()..(pages.end * page_size()).min(self.len)
    }

    /// Has a part show the segment, to nobody yet.
    fn show(&self, part: Range<usize>) -> io::Result<()> {
        let region = &*self.region;
        let sync = region.synced.load(std::sync::atomic::Ordering::Relaxed);
        let (medium, at) =
            (region.segment.file.medium()?, region.segment.data + region.start + part.start as u64);
        // SAFETY: nobody refers to the part; segments never shrink, and the store's lock keeps other programs of
        // ours away from the file.
        let share =
            || unsafe { self.memory.map_shared(part.start, part.len(), medium.descriptor(), at, sync) };
        match &self.stretch {
            Some(stretch) => stretch.share(part.end.next_multiple_of(page_size()), share)?,
            None => share()?,
        }
        self.protect(part.start / page_size()..part.end.div_ceil(page_size()), None)
    }

    /// Lets pages be touched so, or not at all.
    fn protect(&self, pages: Range<usize>, access: Option<Access>) -> io::Result<()> {
        let part = self.part(&pages);
        let start = self.memory.base().as_ptr().wrapping_add(part.start);
        // SAFETY: the pages are mapped, and whoever touches them without being allowed to is served.
        unsafe {
            match access {
                None => map::hide(start, part.len()),
                Some(access) => guard::protect(start, part.len(), access == Access::Store),
            }
        }
    }

    /// Lets an access go on, if a transaction is in the view.
    fn serve(&self, address: usize, stored: bool) -> bool {
        let mut state = self.lock();
        let Some(current) = state.current else { return false };
        let (page, access) =
            ((address - self.base()) / page_size(), if stored { Access::Store } else { Access::Load });
        if let Some(open) = state.access(page).filter(|open| *open >= access) {
            // Another thread has touched it at the same time.
            return self.protect(page..page + 1, Some(open)).is_ok();
        }
        // Pages that are open for themselves take mappings.
        let all = state.pages.len() > mappings::allowed() / 6;
        let pages = if all { 0..self.len.div_ceil(page_size()) } else { page..page + 1 };
        let Err(refused) = self.allow(&mut state, current, pages.clone(), access) else {
            match all {
                true => state.whole = Some(access),
                false => _ = state.pages.insert(page, Page::Open(access)),
            }
            return true;
        };
        tracing::debug!(refused, page, "a page of a view is refused");
        state.refused.get_or_insert(refused);
        self.copy(page).is_ok_and(|()| {
            state.pages.insert(page, Page::Copied);
            true
        })
    }

    /// Asks whether pages may be touched, declares them if they are stored to, and opens them.
    fn allow(
        &self,
        state: &mut State,
        current: usize,
        pages: Range<usize>,
        access: Access,
    ) -> Result<(), Refusal> {
        let part = self.part(&pages);
        let start = self.region.start;
        let asked = if planted("view-stores-asked-as-loads") { Access::Load } else { access };
        let bytes = start + part.start as u64..start + part.end as u64;
        let answer = catch_unwind(AssertUnwindSafe(|| (state.hook)(asked, bytes)));
        answer.unwrap_or_else(|_| Err("the hook has panicked".into()))?;
        if unless("view-stores-undeclared", access == Access::Store) {
            let set = self.shared.sets.slots.resume(current);
            self.shared.declare(&set, &self.region, part.start, part.len())?;
        }
        if pages.len() > 1 {
            // Copies stay what they are: the transaction is lost anyway.
            let copied: Vec<usize> =
                state.pages.iter().filter(|(_, p)| **p == Page::Copied).map(|(n, _)| *n).collect();
            state.pages.retain(|_, page| *page == Page::Copied);
            self.protect(pages, Some(access))?;
            return copied
                .into_iter()
                .try_for_each(|page| Ok(self.protect(page..page + 1, Some(Access::Store))?));
        }
        Ok(self.protect(pages, Some(access))?)
    }

    /// Has a page be a copy, which can be stored to.
    fn copy(&self, page: usize) -> io::Result<()> {
        let (region, part) = (&*self.region, self.part(&(page..page + 1)));
        let (medium, at) =
            (region.segment.file.medium()?, region.segment.data + region.start + part.start as u64);
        // SAFETY: as in `show`.
        unsafe { self.memory.map_private(part.start, part.len(), medium.descriptor(), at, true) }
    }

    /// The transaction leaves: nothing is open any more.
    fn leave(&self) -> Option<Refusal> {
        let mut state = self.lock();
        state.current = None;
        let pages = std::mem::take(&mut state.pages);
        let whole = state.whole.take();
        let hidden = self.hide(pages, whole.is_some());
        let refused = state.refused.take();
        if let Err(error) = hidden {
            // What stays open would be touched by the next one without being asked for.
            tracing::error!(%error, "a view cannot be hidden again");
            state.broken = true;
        }
        match state.broken {
            true => Some("what the view has opened could not be hidden: it is of no use any more".into()),
            false => refused,
        }
    }

    fn hide(&self, pages: BTreeMap<usize, Page>, whole: bool) -> io::Result<()> {
        const MANY: usize = 64;
        for page in pages.iter().filter(|(_, kind)| **kind == Page::Copied).map(|(page, _)| *page) {
            self.show(self.part(&(page..page + 1)))?;
        }
        if planted("view-not-hidden") {
            return Ok(());
        }
        match whole || pages.len() > MANY {
            true => self.protect(0..self.len.div_ceil(page_size()), None),
            false => pages.keys().try_for_each(|page| self.protect(*page..page + 1, None)),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.desk.give_back();
    }
}
