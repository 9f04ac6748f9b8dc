//! The guard (Rio's protection): outside of transactions regions cannot be stored to. A wild store faults at
//! once, with a message that names segment and offset, in place of corrupting what is to survive.
//!
//! A page is opened by the first range that a transaction declares in it, and closed when the last such
//! transaction has ended. With keys, a region is, and that is each thread's own affair.

use super::{Tracker, Wanted};
use crate::storage::Storage;
use crate::storage::error::{MapError, RangeError};
use crate::storage::region::RegionState;
use crate::write_set::{Sets, WriteSet};
use caliburn_os::guard::{self, Kind, Named, Permit};
use caliburn_os::page_size;
use caliburn_os::simulated::planted;
use caliburn_os::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Whether recoverable memory is protected from stores outside of transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Guard {
    /// It is not.
    Off,
    /// By `mprotect`: two system calls for each stretch of pages that a transaction declares. While it is open,
    /// other threads can store to these pages.
    Pages,
    /// By a memory protection key, where the processor has them: about 20 ns for a transaction. A transaction's
    /// stores must come from the thread that declared the ranges. Threads that were started before the first store
    /// with such a guard was opened cannot even read its regions.
    Keys,
}

impl Default for Guard {
    /// [`Guard::Pages`] in debug builds, else [`Guard::Off`].
    fn default() -> Guard {
        if cfg!(debug_assertions) && !cfg!(caliburn_sim) { Guard::Pages } else { Guard::Off }
    }
}

impl Guard {
    pub(crate) fn kind(self) -> Option<Kind> {
        match self {
            Guard::Off => None,
            Guard::Pages => Some(Kind::Pages),
            Guard::Keys => Some(Kind::Key),
        }
    }
}

/// Guards the regions of a store.
#[derive(Debug)]
pub(super) struct Guards {
    kind: Kind,
    /// By the addresses of the regions.
    regions: Mutex<BTreeMap<usize, Arc<RegionGuard>>>,
}

pub(super) fn begin(wanted: &Wanted, _: &Arc<Storage>, _: &Arc<Sets>) -> Option<Box<dyn Tracker>> {
    let kind = wanted.guard.kind()?;
    Some(Box::new(Guards { kind, regions: Mutex::default() }))
}

/// What guards one region.
#[derive(Debug)]
struct RegionGuard {
    region: Arc<RegionState>,
    kind: Kind,
    state: Mutex<GuardState>,
}

#[derive(Debug, Default)]
struct GuardState {
    /// Bytes that are guarded: all that is mapped, and what is about to be.
    len: usize,
    /// Pages that can be stored to, and by how many transactions.
    open: BTreeMap<usize, usize>,
    /// Transactions for which all can.
    whole: usize,
    named: Option<Named>,
}

/// Stretches of pages that a transaction opens one by one; beyond it opens the region, since each takes an
/// entry of the system's list of mappings.
const STRETCHES: usize = 64;

/// What a transaction opened of a region; closed when dropped.
#[derive(Debug)]
struct Opened {
    guard: Arc<RegionGuard>,
    pages: Vec<Range<usize>>,
    whole: bool,
    permit: Option<Permit>,
}

/// What a transaction opened of all regions.
type AllOpened = Vec<Opened>;

impl Guards {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<RegionGuard>>> {
        self.regions.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Tracker for Guards {
    fn mapped(&self, region: &Arc<RegionState>, part: Range<usize>) -> Result<(), MapError> {
        let make = || {
            let state = Mutex::default();
            Arc::new(RegionGuard { region: region.clone(), kind: self.kind, state })
        };
        let guard = self.lock().entry(region.base).or_insert_with(make).clone();
        guard.protect(part.clone()).map_err(|source| {
            if part.start == 0 {
                // There is no such region.
                self.lock().remove(&region.base);
            }
            MapError::Io { segment: region.segment.name.clone(), len: part.len() as u64, source }
        })
    }

    /// First of all: what was declared is stored to by an abort.
    fn declaring(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        offset: usize,
        len: usize,
    ) -> Result<(), RangeError> {
        let done = set.with_kept(|opened: &mut AllOpened| {
            let at = opened.iter().position(|opened| std::ptr::eq(&*opened.guard.region, region));
            let at = at.unwrap_or_else(|| {
                let guards = self.lock();
                let guard = guards.get(&region.base).expect("a transaction keeps mapped what it declares");
                opened.push(Opened::new(guard.clone()));
                opened.len() - 1
            });
            opened[at].open(offset, len)
        });
        done.map_err(|source| RangeError::Guard { segment: region.segment.name.clone(), source })
    }

    /// What a branch was let store to, an abort stores to again.
    fn adopted(&self, set: &WriteSet<'_>, branch: &WriteSet<'_>) {
        if planted("guard-not-taken-over") {
            return;
        }
        let opened = branch.with_kept(std::mem::take::<AllOpened>);
        // A permit is a thread's, and stays with it when another takes over the transaction.
        let opened = opened.into_iter().filter(|opened| opened.permit.is_none());
        set.with_kept(|own: &mut AllOpened| own.extend(opened));
    }

    fn unmapped(&self, region: &RegionState, left: bool) {
        let guard = self.lock().remove(&region.base);
        if let Some(guard) = guard.filter(|_| left) {
            guard.lift();
        }
    }
}

impl RegionGuard {
    fn lock(&self) -> MutexGuard<'_, GuardState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Protects part of the region, to its end, which was just mapped.
    fn protect(&self, part: Range<usize>) -> io::Result<()> {
        let mut state = self.lock();
        let (region, len) = (&*self.region, part.len());
        let start = region.at(part.start);
        // SAFETY: the part was just mapped, and nobody may store to it before it was declared; while a
        // transaction has opened the region, it stays open.
        unsafe {
            match self.kind {
                Kind::Key => guard::carry_key(start, len),
                Kind::Pages if state.whole == 0 => guard::protect(start, len, false),
                Kind::Pages => Ok(()),
            }?;
        }
        state.named = None;
        state.named = Some(Named::new(region.base, part.end, region.start, &region.segment.name));
        // Under the lock, so that opening or closing all of the region includes this part.
        state.len = part.end;
        Ok(())
    }

    /// Gives up what protects a region that nobody has declared anything in any more.
    fn lift(&self) {
        let mut state = self.lock();
        state.named = None;
        let start = self.region.at(0);
        // SAFETY: the pages are mapped, and are to be the program's.
        let done = unsafe {
            match self.kind {
                Kind::Key => guard::drop_key(start, state.len),
                Kind::Pages => guard::protect(start, state.len, true),
            }
        };
        if let Err(error) = done {
            let segment = &self.region.segment.name;
            tracing::warn!(%error, segment, "a region that was left stays protected");
        }
        // What a transaction still has open of it is not to be closed.
        state.len = 0;
    }

    /// Lets pages be stored to, or not.
    fn set(&self, state: &GuardState, pages: Range<usize>, write: bool) -> io::Result<()> {
        let page = page_size();
        let (start, end) = (pages.start * page, (pages.end * page).min(state.len));
        if start >= end {
            return Ok(());
        }
        // SAFETY: the pages are mapped; they are protected when no transaction has declared bytes in them.
        unsafe { guard::protect(self.region.at(start), end - start, write) }
    }
}

impl Opened {
    /// Lets a transaction store to a region that it declares ranges in, which keeps the region mapped.
    fn new(guard: Arc<RegionGuard>) -> Opened {
        let key = guard.kind == Kind::Key;
        Opened { guard, pages: Vec::new(), whole: false, permit: key.then(Permit::new) }
    }

    /// Lets it store to bytes of the region.
    fn open(&mut self, offset: usize, len: usize) -> io::Result<()> {
        let guard = &*self.guard;
        if guard.kind != Kind::Pages {
            return Ok(());
        }
        let page = page_size();
        let pages = offset / page..(offset + len).div_ceil(page);
        let inside = |open: &Range<usize>| open.start <= pages.start && pages.end <= open.end;
        if self.whole || self.pages.iter().any(inside) {
            return Ok(());
        }
        let mut state = guard.lock();
        if self.pages.len() == STRETCHES {
            guard.set(&state, 0..state.len.div_ceil(page), true)?;
            (self.whole, state.whole) = (true, state.whole + 1);
            return Ok(());
        }
        guard.set(&state, pages.clone(), true)?;
        pages.clone().for_each(|page| *state.open.entry(page).or_default() += 1);
        self.pages.push(pages);
        Ok(())
    }

    fn close(&self, state: &mut GuardState) -> io::Result<()> {
        for page in self.pages.iter().cloned().flatten() {
            let count = state.open.get_mut(&page).expect("counted when it was opened");
            *count -= 1;
            if *count == 0 {
                state.open.remove(&page);
            }
        }
        state.whole -= usize::from(self.whole);
        if state.whole > 0 {
            return Ok(());
        }
        // What lies between the pages that others have open.
        let all = 0..state.len.div_ceil(page_size());
        let stretches = if self.whole { std::slice::from_ref(&all) } else { &self.pages };
        for stretch in stretches {
            let mut from = stretch.start;
            for open in state.open.range(stretch.clone()).map(|(page, _)| *page).chain([stretch.end]) {
                if from < open {
                    self.guard.set(state, from..open, false)?;
                }
                from = open + 1;
            }
        }
        Ok(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.guard.kind == Kind::Pages
            && let Err(error) = self.close(&mut self.guard.lock())
        {
            let segment = &self.guard.region.segment.name;
            tracing::warn!(%error, segment, "a region could not be protected again");
        }
    }
}
