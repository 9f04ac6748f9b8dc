//! Touches of regions that a buffer pool shows (McNamee, section 6.1.1): a page that is in no frame is brought, and
//! before the first store of a transaction to one its image is kept.
//!
//! ```text
//!   load, or store - fault - the thread of whoever touches it: have the pool show the page - the access goes on
//!   store - fault:           save the page and what lies close - open the page - the store goes on
//! ```
//!
//! A page that was stored to may leave its frame and come back: it is caught again then, and saved already.
//!
//! One transaction at a time is open: whoever stores, stores for it. Loads are served at any time.

use super::opened::Opened;
use super::{Save, Tracker, Wanted};
use crate::storage::Storage;
use crate::storage::error::{MapError, RangeError};
use crate::storage::pool::{Pool, Shown};
use crate::storage::region::RegionState;
use crate::write_set::{Sets, WriteSet};
use caliburn_log::media_error::MediaError;
use caliburn_os::faults::{Catch, Caught, Desk};
use caliburn_os::guard::{self, Named};
use caliburn_os::page_size;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Catches the accesses to a store's regions.
struct Touches {
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
    /// How many pages the last fault saved.
    last: usize,
    /// Why the transaction that is open cannot be committed.
    doomed: Option<RangeError>,
    /// The store is closed: the system shows all of every region, and nobody is served.
    closed: bool,
}

/// A region whose accesses are caught.
struct Watched {
    region: Arc<RegionState>,
    /// Pages that are saved: those of memory, which the pool's consist of.
    saved: Opened,
    caught: Caught,
    named: Option<Named>,
}

pub(super) fn begin(_: &Wanted, storage: &Arc<Storage>, sets: &Arc<Sets>) -> Option<Box<dyn Tracker>> {
    let made = || -> Box<dyn Tracker> {
        let (storage, sets, state) = (storage.clone(), sets.clone(), Mutex::default());
        Box::new(Touches { storage, sets, desk: Desk::new(), state })
    };
    storage.pool.is_some().then(made)
}

impl Tracker for Touches {
    fn catches(&self) -> bool {
        true
    }

    fn mapped(&self, region: &Arc<RegionState>, part: Range<usize>) -> Result<(), MapError> {
        guard::come_first();
        let mut state = self.lock();
        if state.closed {
            let (segment, len) = (region.segment.name.clone(), part.len() as u64);
            let shown = region.map_private(&self.storage, part, None, false);
            return shown.map_err(|source| MapError::Io { segment, len, source });
        }
        if part.start == 0 {
            let Some(caught) = Caught::new(region.base, part.end, Catch::All, self.desk) else {
                let source = io::Error::other("the process has too many regions whose stores are caught");
                let segment = region.segment.name.clone();
                return Err(MapError::Io { segment, len: part.len() as u64, source });
            };
            let (region, saved, base) = (region.clone(), Opened::default(), region.base);
            state.regions.insert(base, Watched { region, saved, caught, named: None });
        }
        let watched = state.regions.get_mut(&region.base).expect("it was put there when it was mapped");
        watched.caught.extend(part.end);
        watched.named = None;
        watched.named = Some(Named::new(region.base, part.end, region.start, &region.segment.name));
        Ok(())
    }

    fn begun(&self, set: &WriteSet<'_>) {
        guard::come_first();
        let mut state = self.lock();
        (state.current, state.last, state.doomed) = (Some(set.number()), 1, None);
    }

    /// Whole pages of the pool, so that no store there waits for the medium.
    fn declares(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        (offset, len): (usize, usize),
        save: Save<'_>,
    ) -> Option<Result<(), RangeError>> {
        let mut state = self.lock();
        let (page, whole) = (page_size(), self.pool().page_bytes());
        let watched =
            state.regions.get_mut(&region.base).expect("a transaction keeps mapped what it declares");
        let end = (offset + len).next_multiple_of(whole).min(region.len());
        let pages = offset / whole * whole / page..end.div_ceil(page);
        Some(watched.save(pages, set, save))
    }

    fn committing(&self, _: &WriteSet<'_>, _: Save<'_>) -> Result<(), RangeError> {
        let doomed = self.lock().doomed.take().filter(|_| !planted("pool-lost-transaction-committed"));
        doomed.map_or(Ok(()), Err)
    }

    /// The policy has had the pool close what was opened.
    fn ending(&self, _: &WriteSet<'_>, end: &mut dyn FnMut()) {
        {
            let mut state = self.lock();
            state.current = None;
            state.regions.values_mut().for_each(|watched| drop(watched.saved.take()));
            // What was opened at the very end is not caught from now on, nor has it an image.
            if let Err(source) = self.pool().drop_dirty() {
                let path = self.storage.dir.clone();
                self.storage.fail(MediaError::of_name("take memory out of the buffer pool of", path, source));
            }
        }
        end();
    }

    fn unmapped(&self, region: &RegionState, _: bool) {
        let mut state = self.lock();
        state.regions.remove(&region.base);
        if let Err(error) = self.pool().forget(region) {
            let segment = &region.segment.name;
            tracing::warn!(%error, segment, "memory of a region that was unmapped stays in a buffer pool");
        }
    }

    fn catch(&self, save: Save<'_>) {
        self.desk.serve(|address, stored| self.serve(address, stored, save));
    }

    /// The system shows what nobody serves any more.
    fn stop(&self) {
        let mut state = self.lock();
        let mut all = true;
        for Watched { region, .. } in state.regions.values() {
            let shown = self.pool().forget(region).and_then(|()| match planted("pool-closed-unshown") {
                false => region.map_private(&self.storage, 0..region.len(), None, false),
                true => Ok(()),
            });
            if let Err(error) = shown {
                let segment = &region.segment.name;
                tracing::warn!(%error, segment, "memory of a region cannot be read after its store was closed");
                all = false;
            }
        }
        state.closed = true;
        // Who is waiting loads what is there now.
        match all && !planted("pool-closed-unshown") {
            true => self.desk.close_shown(),
            false => self.desk.close(),
        }
    }
}

impl Drop for Touches {
    fn drop(&mut self) {
        self.desk.give_back();
    }
}

impl Touches {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn pool(&self) -> &Pool {
        self.storage.pool.as_ref().expect("nothing is caught without one")
    }

    /// Lets an access to that address go on.
    fn serve(&self, address: usize, stored: bool, save: Save<'_>) -> bool {
        let (mut state, storage, pool) = (self.lock(), &*self.storage, self.pool());
        if state.closed {
            // The desk has the answer.
            return false;
        }
        let State { current, regions, last, doomed, .. } = &mut *state;
        let Some((base, watched)) = regions.range_mut(..=address).next_back() else { return false };
        let (region, offset) = (watched.region.clone(), address - base);
        if offset >= region.len() {
            return false;
        }
        match pool.show(storage, &region, offset) {
            // Who stores there comes again; another thread may have had it shown to those who load.
            Ok(Shown::Lost) => return true,
            Ok(shown) if shown == Shown::Now || unless("pool-loads-taken-for-stores", !stored) => {
                return true;
            }
            Ok(_) => {}
            Err(error) => {
                let segment = &region.segment.name;
                tracing::error!(%error, segment, offset, "a buffer pool cannot show a page");
                return false;
            }
        }
        let Some(current) = *current else { return false };
        let set = self.sets.slots.resume(current);
        let (page, grain) = (offset / page_size(), pool.page_bytes() / page_size());
        let own = page / grain * grain..((page / grain + 1) * grain).min(watched.pages());
        // All of it is saved where it was stored to before it left its frame.
        let pages = match watched.saved.gaps(own.clone()).is_empty() {
            true => own.clone(),
            false => {
                *last = watched.saved.next_run(page, *last);
                watched.saved.around(page, *last, grain, watched.pages())
            }
        };
        // What is too much for several may not be for one.
        let saved = watched.save(pages, &set, save).or_else(|_| watched.save(own, &set, save));
        let refused = |source| RangeError::Guard { segment: region.segment.name.clone(), source };
        let done = saved.and_then(|()| pool.open(storage, &region, offset).map_err(refused));
        let Err(error) = done else { return true };
        tracing::error!(%error, "the transaction that is open cannot be committed");
        doomed.get_or_insert(error);
        pool.lose(storage, &region, offset).is_ok()
    }
}

impl Watched {
    fn pages(&self) -> usize {
        self.region.len().div_ceil(page_size())
    }

    /// Saves what pages hold, those that are not saved.
    fn save(&mut self, pages: Range<usize>, set: &WriteSet<'_>, save: Save<'_>) -> Result<(), RangeError> {
        for gap in self.saved.gaps(pages) {
            let (start, end) = (gap.start * page_size(), (gap.end * page_size()).min(self.region.len()));
            if !planted("pool-pages-not-saved") {
                save(set, &self.region, start, end - start)?;
            }
            self.saved.insert(gap);
        }
        Ok(())
    }
}
