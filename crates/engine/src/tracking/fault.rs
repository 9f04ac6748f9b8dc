//! Changes that are found by page faults (McNamee, section 5.2; Vista, section 4). Regions are protected. The
//! first store of a transaction to a page is caught, and waits until what the page holds is kept; then the page is
//! opened, until the transaction ends.
//!
//! ```text
//!   store - fault - the thread of the store: save the page and what lies close - open them - the store goes on
//!   set_range:      save the pages - open them
//!   end:            protect again what was opened
//! ```
//!
//! One transaction at a time is open: whoever stores, stores for it. Without one, and in a forked child, the store
//! ends the process, as a wild one. System calls that store to a page which is not open fail with EFAULT: who
//! calls one declares the range before.

use super::opened::Opened;
use super::{Save, Tracker, Tracking, Wanted};
use crate::storage::Storage;
use crate::storage::error::{MapError, RangeError};
use crate::storage::region::RegionState;
use crate::write_set::{Sets, WriteSet};
use caliburn_log::media_error::MediaError;
use caliburn_os::faults::{Catch, Caught, Desk};
use caliburn_os::guard::{self, Named};
use caliburn_os::overflow::OverflowFile;
use caliburn_os::rescue::Part;
use caliburn_os::simulated::planted;
use caliburn_os::sync::atomic::{AtomicUsize, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard};
use caliburn_os::{mappings, page_size, private, span};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Runs of pages that are open, in all regions of the process.
static RUNS: AtomicUsize = AtomicUsize::new(0);

/// Catches the stores to a store's regions.
pub(super) struct Faults {
    storage: Arc<Storage>,
    sets: Arc<Sets>,
    desk: &'static Desk,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The slot of the transaction that is open.
    current: Option<usize>,
    /// By their addresses.
    regions: BTreeMap<usize, Watched>,
    /// How many pages the last fault opened.
    last: usize,
    /// Why the transaction that is open cannot be committed.
    doomed: Option<RangeError>,
}

/// A region whose stores are caught.
struct Watched {
    region: Arc<RegionState>,
    /// Bytes that are protected but for what is open.
    len: usize,
    /// Pages that can be stored to.
    open: Opened,
    /// Pages of which what they held could not be kept.
    lost: Vec<Lost>,
    /// Where they lie, and how many bytes of it the system was not told to write.
    aside: Option<(OverflowFile, usize)>,
    caught: Caught,
    named: Option<Named>,
}

/// Pages that were stored to though what they held could not be kept as it should be.
struct Lost {
    pages: Range<usize>,
    held: Held,
}

/// Where what such pages held is.
enum Held {
    /// In the segment, or in what was committed to it: they lie in a file, and are mapped anew in the end.
    Aside,
    /// In the segment: they are copies, made for the transaction, of a region that is the segment.
    InPlace,
    /// In the segment, which the region shows but for the transaction's copies.
    Shown,
    /// Here.
    Here(Vec<u8>),
}

pub(super) fn begin(wanted: &Wanted, storage: &Arc<Storage>, sets: &Arc<Sets>) -> Option<Box<dyn Tracker>> {
    let made = || -> Box<dyn Tracker> {
        let (storage, sets, state) = (storage.clone(), sets.clone(), Mutex::default());
        Box::new(Faults { storage, sets, desk: Desk::new(), state })
    };
    (wanted.tracking == Tracking::Fault && storage.pool.is_none() && !storage.is_read_only()).then(made)
}

impl Tracker for Faults {
    fn catches(&self) -> bool {
        true
    }

    fn mapped(&self, region: &Arc<RegionState>, part: Range<usize>) -> Result<(), MapError> {
        let mut state = self.lock();
        self.watch(&mut state, region, part.clone()).map_err(|source| {
            if part.start == 0 {
                // There is no such region.
                state.regions.remove(&region.base);
            }
            MapError::Io { segment: region.segment.name.clone(), len: part.len() as u64, source }
        })
    }

    fn begun(&self, set: &WriteSet<'_>) {
        if !planted("replaced-handler-not-noticed") && guard::come_first() {
            tracing::warn!(
                "another handler of SIGSEGV had been put before Caliburn's, and comes after it now"
            );
        }
        let mut state = self.lock();
        (state.current, state.last, state.doomed) = (Some(set.number()), 1, None);
    }

    fn declares(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        (offset, len): (usize, usize),
        save: Save<'_>,
    ) -> Option<Result<(), RangeError>> {
        let mut state = self.lock();
        let page = page_size();
        let pages = offset / page..(offset + len).div_ceil(page);
        let watched =
            state.regions.get_mut(&region.base).expect("a transaction keeps mapped what it declares");
        if !region.passing.load(Ordering::Relaxed) {
            return Some(watched.open(pages, set, save));
        }
        // Also what is open, and its policy keeps in memory alone. Who stores there meanwhile waits for the state.
        let all = watched.bytes(&pages);
        let saved = save(set, &watched.region, all.start, all.len());
        Some(saved.and_then(|()| watched.open(pages, set, &|_, _, _, _| Ok(()))))
    }

    fn committing(&self, _: &WriteSet<'_>, _: Save<'_>) -> Result<(), RangeError> {
        let doomed = self.lock().doomed.take().filter(|_| !planted("lost-transaction-committed"));
        doomed.map_or(Ok(()), Err)
    }

    /// What was opened is protected before the next transaction begins.
    fn ending(&self, _: &WriteSet<'_>, end: &mut dyn FnMut()) {
        {
            let mut state = self.lock();
            state.current = None;
            for watched in state.regions.values_mut() {
                if let Err(source) = watched.close(&self.storage).and_then(|()| watched.protect_again()) {
                    // A store that is not caught would be undone by nobody.
                    let path = watched.region.segment.file.path().to_owned();
                    self.storage.fail(MediaError::of_name("protect the memory of", path, source));
                }
            }
        }
        end();
    }

    fn unmapped(&self, region: &RegionState, left: bool) {
        let watched = self.lock().regions.remove(&region.base);
        RUNS.fetch_sub(watched.as_ref().map_or(0, |watched| watched.open.runs()), Ordering::Relaxed);
        if let Some(watched) = watched.filter(|_| left)
            && let Err(error) = watched.set(0..watched.len.div_ceil(page_size()), true)
        {
            let segment = &region.segment.name;
            tracing::warn!(%error, segment, "a region that was left stays protected");
        }
    }

    fn catch(&self, save: Save<'_>) {
        self.desk.serve(|address, _| self.serve(address, save));
    }

    fn stop(&self) {
        self.desk.close();
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        self.desk.give_back();
    }
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Protects part of a region, to its end, and has its stores caught.
    fn watch(&self, state: &mut State, region: &Arc<RegionState>, part: Range<usize>) -> io::Result<()> {
        if part.start == 0 {
            let too_many = || io::Error::other("the process has too many regions whose stores are caught");
            let caught = Caught::new(region.base, part.end, Catch::Stores, self.desk).ok_or_else(too_many)?;
            let (region, open, lost) = (region.clone(), Opened::default(), Vec::new());
            let base = region.base;
            let watched = Watched { region, len: 0, open, lost, aside: None, caught, named: None };
            state.regions.insert(base, watched);
        }
        // SAFETY: the part was just mapped, and nobody may store to it before it is known.
        unsafe { guard::protect(region.at(part.start), part.len(), false)? };
        if !region.shared.load(Ordering::Relaxed) && !region.unread {
            region.unite(part.clone())?;
        }
        let watched = state.regions.get_mut(&region.base).expect("it was put there when it was mapped");
        watched.caught.extend(part.end);
        watched.len = part.end;
        watched.named = None;
        watched.named = Some(Named::new(region.base, part.end, region.start, &region.segment.name));
        Ok(())
    }

    /// Lets a store to that address go on, if a transaction is open.
    fn serve(&self, address: usize, save: Save<'_>) -> bool {
        let mut state = self.lock();
        let State { current, regions, last, doomed } = &mut *state;
        let Some(current) = *current else {
            return false;
        };
        let Some((base, watched)) = regions.range_mut(..=address).next_back() else { return false };
        if address - base >= watched.bytes_mapped() {
            return false;
        }
        let page = (address - base) / page_size();
        if watched.open.contains(page) {
            // Another thread stored there at the same time, or its policy had it protected for a moment.
            return watched.set(page..page + 1, true).is_ok();
        }
        let set = self.sets.slots.resume(current);
        let grain = watched.grain();
        let run = watched.open.next_run(page, *last);
        let pages = watched.open.around(page, run, grain, watched.pages());
        *last = run;
        // What is too much for several may not be for one.
        let done = watched.open(pages, &set, save).or_else(|_| watched.open(page..page + 1, &set, save));
        let Err(error) = done else { return true };
        tracing::error!(%error, "the transaction that is open cannot be committed");
        doomed.get_or_insert(error);
        watched.lose(page, grain, &self.storage)
    }
}

impl Watched {
    /// A part that is just being mapped is protected before anybody may know of it.
    fn bytes_mapped(&self) -> usize {
        self.len.min(self.region.len())
    }

    fn pages(&self) -> usize {
        self.bytes_mapped().div_ceil(page_size())
    }

    /// Pages that one fault is to open at least, in stretches of as many: the more, the more runs the process has
    /// open, each of which takes two mappings; in the end all of the region. So the program is left a third of
    /// what it may have.
    fn grain(&self) -> usize {
        const STEPS: usize = 8;
        let most = (mappings::allowed() / 6).max(STEPS);
        let over = RUNS.load(Ordering::Relaxed).saturating_sub(most);
        match over / (most / STEPS) {
            0 if over == 0 => 1,
            step if step < STEPS => 16 << step,
            _ => self.pages().max(1),
        }
    }

    /// Saves what pages hold, those that are not open, and opens them.
    fn open(&mut self, pages: Range<usize>, set: &WriteSet<'_>, save: Save<'_>) -> Result<(), RangeError> {
        for gap in self.open.gaps(pages) {
            let part = self.bytes(&gap);
            let early = planted("opened-before-it-is-saved");
            if early {
                self.set(gap.clone(), true).map_err(|source| self.refused(source))?;
            }
            if !planted("found-pages-not-saved") {
                save(set, &self.region, part.start, part.len())?;
            }
            if !early {
                self.set(gap.clone(), true).map_err(|source| self.refused(source))?;
            }
            self.note(gap);
        }
        Ok(())
    }

    fn refused(&self, source: io::Error) -> RangeError {
        RangeError::Guard { segment: self.region.segment.name.clone(), source }
    }

    /// Pages are open.
    fn note(&mut self, pages: Range<usize>) {
        let before = self.open.runs();
        self.open.insert(pages);
        // The difference may be less than nothing, which wraps.
        RUNS.fetch_add(self.open.runs().wrapping_sub(before), Ordering::Relaxed);
    }

    /// Lets pages be stored to, or not.
    fn set(&self, pages: Range<usize>, write: bool) -> io::Result<()> {
        let (start, end) = (pages.start * page_size(), (pages.end * page_size()).min(self.len));
        if start >= end {
            return Ok(());
        }
        // SAFETY: the pages are mapped; they are protected when no transaction is open.
        unsafe { guard::protect(self.region.at(start), end - start, write) }
    }

    fn bytes(&self, pages: &Range<usize>) -> Range<usize> {
        pages.start * page_size()..(pages.end * page_size()).min(self.len)
    }

    /// Which pages are the process's own, as far as that can be told.
    fn copied(&self, pages: &Range<usize>) -> Vec<bool> {
        if self.region.shared.load(Ordering::Relaxed) {
            return vec![false; pages.len()];
        }
        let mut copied = vec![self.region.unread; pages.len()];
        let start = self.region.at(pages.start * page_size());
        match private::copied_pages(start, pages.len(), |run| copied[run].fill(true)) {
            Ok(()) => copied,
            Err(_) => vec![true; pages.len()],
        }
    }

    /// Has pages that show the segment lie in a file, to which they can be stored: however many they become, the
    /// system can take their memory.
    fn set_aside(&mut self, pages: &Range<usize>, storage: &Storage) -> io::Result<()> {
        let (at, len) = (pages.start * page_size(), pages.len() * page_size());
        if self.aside.is_none() {
            let file = storage.media.scratch(&storage.dir, 0)?;
            self.aside = Some((OverflowFile::new(Arc::new(file)), 0));
        }
        let (file, unwritten) = self.aside.as_mut().expect("it was made above");
        // SAFETY: whole pages of a mapped region; as long as they are protected nobody stores to them.
        unsafe { file.take(&self.region.reservation, at, len) }?;
        *unwritten += len;
        if *unwritten as u64 > storage.memory_budget() / 4 {
            // Nothing that is lost of it was to be kept.
            let _ = file.write_behind();
            *unwritten = 0;
        }
        Ok(())
    }

    /// What a page holds could not be kept, and who stores to it waits. A page that shows what was committed is set
    /// aside: the store goes to a copy of it in a file, which goes when the transaction does, as it must. What a
    /// page of the process's own holds is kept here: it is no more than the memory budget. So do those about it, as
    /// far as one fault opens them. Without room for the file the copies are memory. False if that cannot be had
    /// either.
    fn lose(&mut self, page: usize, grain: usize, storage: &Storage) -> bool {
        let stretch = self.open.around(page, 1, grain, self.pages());
        let next = self.open.next(page, self.pages());
        let mut pages = stretch.start.max(self.open.before(page))..stretch.end.min(next);
        let copied = self.copied(&pages);
        let own = copied[page - pages.start];
        let alike = |at: &usize| copied[*at - pages.start] == own;
        let first = (pages.start..=page).rev().take_while(alike).last().unwrap_or(page);
        let end = (page..pages.end).take_while(alike).last().unwrap_or(page) + 1;
        pages = first..end;
        let aside = !own && !planted("lost-pages-in-memory") && self.set_aside(&pages, storage).is_ok();
        let part = self.bytes(&pages);
        let held = if aside {
            Held::Aside
        } else if self.region.shared.load(Ordering::Relaxed) {
            if self.region.map_private(storage, part, None, true).is_err() {
                return false;
            }
            Held::InPlace
        } else if self.region.passing.load(Ordering::Relaxed) {
            if self.set(pages.clone(), true).is_err() {
                return false;
            }
            Held::Shown
        } else {
            let mut held = vec![0; part.len()];
            // SAFETY: the pages are mapped, and as long as they are protected nobody stores to them.
            unsafe { span::copy(self.region.at(part.start), held.as_mut_ptr(), held.len()) };
            if self.set(pages.clone(), true).is_err() {
                return false;
            }
            Held::Here(held)
        };
        self.lost.push(Lost { pages: pages.clone(), held });
        if !planted("lost-page-saved-again") {
            self.note(pages);
        }
        true
    }

    /// The pages that were lost are as they were.
    fn close(&mut self, storage: &Storage) -> io::Result<()> {
        let aside = self.aside.take();
        for Lost { pages, held } in std::mem::take(&mut self.lost) {
            let part = self.bytes(&pages);
            match held {
                // SAFETY: the pages are mapped and open, and who stored to them does so no more.
                Held::Here(held) => unsafe {
                    span::copy(held.as_ptr(), self.region.at(part.start), held.len())
                },
                Held::Aside if !self.region.shared.load(Ordering::Relaxed) => {
                    self.region.map_private(storage, part, None, true)?;
                }
                Held::Shown => self.region.show_segment(part).map_err(io::Error::other)?,
                Held::InPlace | Held::Aside => {
                    let synced = self.region.synced.load(Ordering::Relaxed);
                    self.region.map_shared(storage, part, synced, Part::Data)?;
                }
            }
        }
        drop(aside);
        Ok(())
    }

    /// Protects what is open. Many runs are protected in one: that takes no mappings, but gives some back.
    fn protect_again(&mut self) -> io::Result<()> {
        const MANY: usize = 64;
        let open = self.open.take();
        RUNS.fetch_sub(open.len(), Ordering::Relaxed);
        if planted("not-protected-again") {
            return Ok(());
        }
        match open.len() {
            ..=MANY => open.into_iter().try_for_each(|(start, end)| self.set(start..end, false)),
            _ => self.set(0..self.pages(), false),
        }
    }
}
