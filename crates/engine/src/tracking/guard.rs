//! The guard (Rio's protection): outside of transactions regions cannot be stored to. A wild store faults at
//! once, with a message that names segment and offset, in place of corrupting what is to survive.
//!
//! A page is opened by the first range that a transaction declares in it, and closed when the last such transaction
//! has ended. With keys, a region is, and that is each thread's own affair.

use crate::api::shared::Shared;
use crate::storage::error::{MapError, RangeError};
use crate::storage::region::RegionState;
use crate::write_set::WriteSet;
use caliburn_os::guard::{self, Kind, Named, Permit};
use caliburn_os::page_size;
use caliburn_os::sync::atomic::Ordering;
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
    /// By `mprotect`: two system calls for each stretch of pages that a transaction declares. While it is open, other
    /// threads can store to these pages.
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

/// What guards one region.
#[derive(Debug)]
pub(crate) struct RegionGuard {
    kind: Kind,
    state: Mutex<GuardState>,
}

#[derive(Debug, Default)]
struct GuardState {
    /// Pages that can be stored to, and by how many transactions.
    open: BTreeMap<usize, usize>,
    /// Transactions for which all can.
    whole: usize,
    named: Option<Named>,
}

/// Stretches of pages that a transaction opens one by one; beyond it opens the region, since each takes an entry of
/// the system's list of mappings.
const STRETCHES: usize = 64;

/// What a transaction opened of a region; closed when dropped.
#[derive(Debug)]
pub(crate) struct Opened {
    region: Arc<RegionState>,
    pages: Vec<Range<usize>>,
    whole: bool,
    permit: Option<Permit>,
}

impl RegionGuard {
    pub fn new(kind: Kind) -> RegionGuard {
        RegionGuard { kind, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, GuardState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Protects bytes `[from, to)` of the region, which were just mapped to its end, and makes them part of it.
    pub fn protect(&self, region: &RegionState, from: usize, to: usize) -> Result<(), MapError> {
        let mut state = self.lock();
        let start = region.pointer(region.base + from);
        // SAFETY: the part was just mapped, and nobody may store to it before it was declared; while a transaction has
        // opened the region, it stays open.
        let done = unsafe {
            match self.kind {
                Kind::Key => guard::carry_key(start, to - from),
                Kind::Pages if state.whole == 0 => guard::protect(start, to - from, false),
                Kind::Pages => Ok(()),
            }
        };
        let fail =
            |source: io::Error| MapError::Io { segment: region.segment.name.clone(), len: to as u64, source };
        done.map_err(fail)?;
        state.named = None;
        state.named = Some(Named::new(region.base, to, region.start, &region.segment.name));
        // Under the lock, so that whoever opens or closes all of the region means this part, too.
        region.len.store(to, Ordering::Release);
        Ok(())
    }

    /// Gives up what protects a region that nobody has declared anything in any more.
    pub fn lift(&self, region: &RegionState) {
        let mut state = self.lock();
        state.named = None;
        // SAFETY: the pages are mapped, and are to be the program's.
        let done = unsafe {
            match self.kind {
                Kind::Key => guard::drop_key(region.pointer(region.base), region.len()),
                Kind::Pages => guard::protect(region.pointer(region.base), region.len(), true),
            }
        };
        if let Err(error) = done {
            tracing::warn!(%error, segment = region.segment.name, "a region that was left stays protected");
        }
    }
}

impl Shared {
    /// Lets a transaction store to bytes that it is about to declare. First of all: what was declared is stored to by an
    /// abort. Who declares keeps the region mapped.
    pub fn open_pages(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        offset: usize,
        len: usize,
    ) -> Result<(), RangeError> {
        if self.guard.is_none() {
            return Ok(());
        }
        let regions = self.regions.read().expect("no panic under this lock");
        let held =
            regions.iter().find(|r| std::ptr::eq(&***r, region)).expect("whoever declares keeps it mapped");
        let done = set.open(held, region.base + offset, len);
        done.map_err(|source| RangeError::Guard { segment: region.segment.name.clone(), source })
    }
}

fn set(region: &RegionState, pages: Range<usize>, write: bool) -> io::Result<()> {
    let page = page_size();
    let (start, end) = (pages.start * page, (pages.end * page).min(region.len()));
    if start >= end {
        return Ok(());
    }
    // SAFETY: the pages are mapped; they are protected when no transaction has declared bytes in them.
    unsafe { guard::protect(region.pointer(region.base + start), end - start, write) }
}

impl Opened {
    /// Lets a transaction store to a region that it announces ranges in, which keeps the region mapped.
    pub fn new(region: &Arc<RegionState>) -> Opened {
        let key = region.guard.as_ref().is_some_and(|guard| guard.kind == Kind::Key);
        Opened { region: region.clone(), pages: Vec::new(), whole: false, permit: key.then(Permit::new) }
    }

    /// Whether it lets one thread store, whoever else has the transaction.
    pub fn is_of_a_thread(&self) -> bool {
        self.permit.is_some()
    }

    pub fn is(&self, region: &RegionState) -> bool {
        std::ptr::eq(&*self.region, region)
    }

    /// Lets it store to bytes of the region that it has declared.
    pub fn open(&mut self, region: &RegionState, start: usize, len: usize) -> io::Result<()> {
        let Some(guard) = region.guard.as_ref().filter(|guard| guard.kind == Kind::Pages) else {
            return Ok(());
        };
        let page = page_size();
        let pages = (start - region.base) / page..(start - region.base + len).div_ceil(page);
        let inside = |open: &Range<usize>| open.start <= pages.start && pages.end <= open.end;
        if self.whole || self.pages.iter().any(inside) {
            return Ok(());
        }
        let mut state = guard.lock();
        if self.pages.len() == STRETCHES {
            set(region, 0..region.len().div_ceil(page), true)?;
            (self.whole, state.whole) = (true, state.whole + 1);
            return Ok(());
        }
        set(region, pages.clone(), true)?;
        pages.clone().for_each(|page| *state.open.entry(page).or_default() += 1);
        self.pages.push(pages);
        Ok(())
    }

    fn close(&self, region: &RegionState, state: &mut GuardState) -> io::Result<()> {
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
        let all = 0..region.len().div_ceil(page_size());
        let stretches = if self.whole { std::slice::from_ref(&all) } else { &self.pages };
        for stretch in stretches {
            let mut from = stretch.start;
            for open in state.open.range(stretch.clone()).map(|(page, _)| *page).chain([stretch.end]) {
                if from < open {
                    set(region, from..open, false)?;
                }
                from = open + 1;
            }
        }
        Ok(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let region = &*self.region;
        if let Some(guard) = region.guard.as_ref().filter(|guard| guard.kind == Kind::Pages)
            && let Err(error) = self.close(region, &mut guard.lock())
        {
            tracing::warn!(%error, segment = region.segment.name, "a region could not be protected again");
        }
    }
}
