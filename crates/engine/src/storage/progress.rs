//! How far opening or checking a store is, told to the program, which may end it.

use caliburn_os::medium::Medium;
use caliburn_os::observed::Observed;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How far opening or checking a store is: see [`Options::progress`](crate::Options::progress).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// Bytes that were read of what this phase reads.
    pub done: u64,
    /// Bytes that it reads at most: it may be over before.
    pub total: u64,
}

/// What takes long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// The log is read, and behind its end it is searched for what was lost; or the undo logs are.
    ReadLog,
    /// Segments are compared with their checksums.
    VerifySegments,
    /// Segments are read for a dump.
    CopySegments,
}

/// Says whether to go on.
pub(crate) type Callback = Arc<dyn Fn(&Progress) -> ControlFlow<()> + Send + Sync>;

/// Who is told, and whether they had enough.
#[derive(Clone, Default)]
pub(crate) struct Watch {
    callback: Option<Callback>,
    stopped: Arc<AtomicBool>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("callback", &self.callback.is_some()).finish()
    }
}

impl Watch {
    pub fn new(callback: Callback) -> Watch {
        Watch { callback: Some(callback), ..Watch::default() }
    }

    /// The same, for another opening.
    pub fn afresh(&self) -> Watch {
        Watch { callback: self.callback.clone(), ..Watch::default() }
    }

    /// Whether the program has ended it.
    pub fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Tells the program. What is going on ends with the error, if there is one.
    pub fn tell(&self, phase: Phase, done: u64, total: u64) -> io::Result<()> {
        let Some(callback) = &self.callback else { return Ok(()) };
        let progress = Progress { phase, done: done.min(total), total };
        if !self.stopped() && callback(&progress).is_continue() {
            return Ok(());
        }
        self.stopped.store(true, Ordering::Relaxed);
        Err(io::Error::other("interrupted by the program"))
    }

    /// Calls `act` with a medium, of which it reads `total` bytes at most, and tells of it.
    pub fn reading<T>(
        &self,
        phase: Phase,
        medium: &dyn Medium,
        total: u64,
        act: impl FnOnce(&dyn Medium) -> T,
    ) -> T {
        act(&Observed::new(medium, &|done| self.tell(phase, done, total)))
    }
}
