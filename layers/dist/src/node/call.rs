//! A call at work: what an operation of a data server does with its store.

use crate::family::Refused;
use crate::id::{News, Path, Tid};
use crate::node::core::Core;
use crate::node::work::{Work, WorkError, begin};
use crate::scope::Report;
use caliburn_engine::zerocopy::{FromBytes, Immutable, IntoBytes};
use caliburn_engine::{BeginError, RangeError, Region};
use caliburn_lock::{LockError, Standard};
use std::ops::Range;
use std::time::Duration;
use tonic::Status;

pub use caliburn_lock::Standard as Mode;

/// A call that runs, as a nested transaction: it stays if its caller hears that it went well, and its transaction
/// commits. When the operation returns an error or panics, what it has changed is undone.
///
/// Reads and changes lock the bytes that they touch, until the transaction has ended everywhere: what runs through
/// these functions is serializable.
pub struct Call<'c, 't> {
    core: &'c Core<'t>,
    work: Work<'t>,
    tid: Tid,
    path: Path,
    /// By the clock of its node.
    expires: Duration,
}

/// So long it waits for a lock before it looks whether it waits for nothing.
const LOOK: Duration = Duration::from_millis(50);

impl<'c, 't> Call<'c, 't> {
    /// Its transaction (Camelot's `THIS_TID`).
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// A segment of the server.
    ///
    /// # Errors
    /// `NOT_FOUND` when it has none of that name.
    pub fn region(&self, name: &str) -> Result<&'t Region, Status> {
        let region = self.core.regions.get(name).copied();
        region.ok_or_else(|| Status::not_found(format!("this server has no segment {name:?}")))
    }

    /// Locks bytes of a region (`Camlib_Lock`).
    ///
    /// # Errors
    /// `ABORTED` when the transaction is the victim of a deadlock, or has ended meanwhile; `DEADLINE_EXCEEDED` when
    /// the call was waited for long enough; `OUT_OF_RANGE`.
    pub fn lock(&mut self, region: &'t Region, range: Range<usize>, mode: Mode) -> Result<(), Status> {
        let (space, range) = place(region, range)?;
        loop {
            let left = self.expires.saturating_sub(self.core.outside.now());
            if left.is_zero() {
                return Err(Status::deadline_exceeded("a lock was waited for as long as the call may take"));
            }
            let (owner, time) = (&mut self.work.owner, left.min(LOOK));
            match self.core.locks.lock_timeout(owner, &space, range.clone(), mode, time) {
                Ok(()) => return Ok(()),
                Err(LockError::Timeout { .. }) => self.goes_on()?,
                Err(error) => return Err(Status::aborted(error.to_string())),
            }
        }
    }

    /// The same, without waiting (`Camlib_TryLock`): whether it was had.
    ///
    /// # Errors
    /// As [`Call::lock`].
    pub fn try_lock(&mut self, region: &'t Region, range: Range<usize>, mode: Mode) -> Result<bool, Status> {
        let (space, range) = place(region, range)?;
        let had = self.core.locks.try_lock(&mut self.work.owner, &space, range, mode);
        had.map_err(|error| Status::aborted(error.to_string()))
    }

    /// Whether it works for nobody any more.
    ///
    /// # Errors
    /// `ABORTED`.
    pub fn goes_on(&self) -> Result<(), Status> {
        self.core.outside.goes_on()?;
        let doomed = self.core.state().families.get(&self.tid).is_none_or(|of| of.is_doomed(&self.path));
        if doomed { Err(Status::aborted("the call was given up, or its transaction")) } else { Ok(()) }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// As [`Call::lock`].
    pub fn load<T: FromBytes>(&mut self, region: &'t Region, offset: usize) -> Result<T, Status> {
        self.lock(region, offset..offset.saturating_add(size_of::<T>()), Standard::Shared)?;
        Ok(region.load(offset))
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// As [`Call::lock`].
    pub fn read(&mut self, region: &'t Region, range: Range<usize>) -> Result<Vec<u8>, Status> {
        self.lock(region, range.clone(), Standard::Shared)?;
        let mut bytes = vec![0; range.len()];
        region.read(range.start, &mut bytes);
        Ok(bytes)
    }

    /// Changes bytes (`MODIFY`).
    ///
    /// # Errors
    /// As [`Call::lock`]; `RESOURCE_EXHAUSTED` when the transaction becomes too large.
    pub fn write(&mut self, region: &'t Region, offset: usize, bytes: &[u8]) -> Result<(), Status> {
        self.lock(region, offset..offset.saturating_add(bytes.len()), Standard::Exclusive)?;
        self.work.wrote = true;
        let written = self.work.transaction().and_then(|tx| Ok(tx.write(region, offset, bytes)?));
        written.map_err(|error| status(&error))
    }

    /// Changes a value.
    ///
    /// # Errors
    /// As [`Call::write`].
    pub fn store<T: IntoBytes + Immutable>(
        &mut self,
        region: &'t Region,
        offset: usize,
        value: &T,
    ) -> Result<(), Status> {
        self.write(region, offset, value.as_bytes())
    }
}

/// Bytes of a region, as locks name them: recovery finds them by their place in the segment.
fn place(region: &Region, range: Range<usize>) -> Result<(u32, Range<u64>), Status> {
    if range.start > range.end || range.end > region.len() {
        let len = region.len();
        return Err(Status::out_of_range(format!(
            "{range:?} is not within {:?}, {len} bytes",
            region.segment()
        )));
    }
    let start = region.range().start;
    Ok((region.segment_id().0, start + range.start as u64..start + range.end as u64))
}

fn status(error: &WorkError) -> Status {
    match error {
        WorkError::Range(RangeError::LogTooSmall { .. } | RangeError::MemoryTooSmall { .. }) => {
            Status::resource_exhausted(error.to_string())
        }
        WorkError::Prepared => Status::aborted(error.to_string()),
        _ => Status::internal(error.to_string()),
    }
}

/// A call that came.
pub(crate) struct Coming {
    pub tid: Tid,
    pub path: Path,
    pub news: News,
    /// By the clock of the node.
    pub expires: Duration,
}

/// Executes an operation as a call: what it says, and where it has worked.
pub(crate) fn execute<T>(
    core: &Core<'_>,
    coming: Coming,
    operation: impl for<'c, 't> FnOnce(&mut Call<'c, 't>) -> Result<T, Status>,
) -> Result<(T, Report), Status> {
    let Coming { tid, path, news, expires } = coming;
    if core.outside.now() >= expires {
        return Err(Status::deadline_exceeded("the call came when nobody waited for it any more"));
    }
    let (work, stay) = {
        let mut state = core.state();
        let now = core.outside.now();
        let stay = state.host.called(tid, expires, now);
        let stay = stay.ok_or_else(|| Status::aborted("the transaction has ended, or commits"))?;
        let family = match state.families.entry(tid) {
            std::collections::hash_map::Entry::Occupied(family) => family.into_mut(),
            std::collections::hash_map::Entry::Vacant(none) => {
                let top = begin(core.store, core.detector.owner());
                let top = top.map_err(|error: BeginError| Status::unavailable(error.to_string()))?;
                none.insert(crate::family::Family::new(top))
            }
        };
        family.hear(&news);
        let work = family.begin(&path).map_err(|refused| match refused {
            Refused::Orphan => Status::aborted("the call was given up before it began"),
            Refused::TooLate => Status::aborted("the transaction has ended, or commits"),
            Refused::Level(error) => status(&error),
        })?;
        (work, stay)
    };
    let mut call = Call { core, work, tid, path, expires };
    let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| operation(&mut call)));
    let answer = answer.unwrap_or_else(|_| Err(Status::internal("the operation panicked; it is undone")));
    let Call { work, path, .. } = call;
    if let Some(family) = core.state().families.get_mut(&tid) {
        family.end(&path, work, answer.is_ok());
    }
    core.call_ended(tid);
    let own = core.outside.own;
    let report = Report { used: [(own, stay)].into(), touched: [own].into(), ..Report::default() };
    Ok((answer?, report))
}
