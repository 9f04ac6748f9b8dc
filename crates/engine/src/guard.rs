//! The guard (Rio's protection): outside of transactions regions cannot be stored to. A wild store faults at
//! once, with a message that names segment and offset, in place of corrupting what is to survive.
//!
//! A region is opened by the first range that a transaction declares in it, and closed when the last such
//! transaction has ended. With keys that is each thread's own affair.

use crate::error::MapError;
use crate::region::RegionState;
use caliburn_os::guard::{self, Kind, Named, Permit};
use caliburn_os::sync::Mutex;
use std::io;

/// Whether recoverable memory is protected from stores outside of transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Guard {
    /// It is not.
    Off,
    /// By `mprotect`: two system calls for a transaction that nobody runs beside. While one is open, other
    /// threads can store to the regions that it declared ranges in.
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

#[derive(Debug)]
struct GuardState {
    /// Transactions with ranges in the region.
    writers: usize,
    named: Option<Named>,
}

/// A region opened by a transaction; closed when dropped.
#[derive(Debug)]
pub(crate) struct Opened {
    region: *const RegionState,
    _permit: Option<Permit>,
}

impl RegionGuard {
    pub fn new(kind: Kind) -> RegionGuard {
        RegionGuard { kind, state: Mutex::new(GuardState { writers: 0, named: None }) }
    }

    /// Protects bytes `[from, to)` of the region, which were just mapped to its end.
    pub fn protect(&self, region: &RegionState, from: usize, to: usize) -> Result<(), MapError> {
        let mut state = self.state.lock().expect("no panic under this lock");
        let start = region.pointer(region.base + from);
        // SAFETY: the part was just mapped, and nobody may store to it outside of transactions; while one is open,
        // pages stay as they are.
        let done = unsafe {
            match self.kind {
                Kind::Key => guard::carry_key(start, to - from),
                Kind::Pages if state.writers == 0 => guard::protect(start, to - from, false),
                Kind::Pages => Ok(()),
            }
        };
        let fail =
            |source: io::Error| MapError::Io { segment: region.segment.name.clone(), len: to as u64, source };
        done.map_err(fail)?;
        state.named = None;
        state.named = Some(Named::new(region.base, to, region.start, &region.segment.name));
        Ok(())
    }

    fn set(&self, region: &RegionState, write: bool) -> io::Result<()> {
        // SAFETY: the region is mapped up to its length; it is protected when no transaction has ranges in it.
        unsafe { guard::protect(region.pointer(region.base), region.len(), write) }
    }
}

impl Opened {
    /// Lets a transaction store to a region that it announces ranges in, which keeps the region mapped.
    pub fn new(region: &RegionState) -> io::Result<Opened> {
        let mut permit = None;
        if let Some(guard) = &region.guard {
            match guard.kind {
                Kind::Key => permit = Some(Permit::new()),
                Kind::Pages => {
                    let mut state = guard.state.lock().expect("no panic under this lock");
                    if state.writers == 0 {
                        guard.set(region, true)?;
                    }
                    state.writers += 1;
                }
            }
        }
        Ok(Opened { region, _permit: permit })
    }

    pub fn is(&self, region: &RegionState) -> bool {
        std::ptr::eq(self.region, region)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: the region was announced by the transaction that ends only now, and is mapped until then.
        let region = unsafe { &*self.region };
        if let Some(guard) = region.guard.as_ref().filter(|guard| guard.kind == Kind::Pages) {
            let mut state = guard.state.lock().expect("no panic under this lock");
            state.writers -= 1;
            if state.writers == 0
                && let Err(error) = guard.set(region, false)
            {
                tracing::warn!(%error, segment = region.segment.name, "a region could not be protected again");
            }
        }
    }
}
