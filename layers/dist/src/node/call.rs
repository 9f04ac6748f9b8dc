//! A call at work: what an operation of a data server does with its store.

use crate::client::Tx;
use crate::commit::word::{Node, Outcome, Stay};
use crate::family::{Family, Refused};
use crate::id::{News, Path, Tid};
use crate::node::core::{Core, Name};
use crate::node::work::{Work, WorkError};
use crate::scope::{Report, Scope, Untold};
use caliburn_engine::zerocopy::{FromBytes, Immutable, IntoBytes};
use caliburn_engine::{RangeError, Region, SegmentError};
use caliburn_heap::{Heap, HeapError, Place};
use caliburn_lock::{Canceller, LockError, Standard};
use caliburn_nest::Timestamp;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};
use tonic::Status;

pub use caliburn_lock::Standard as Mode;

/// A call that runs, as a nested transaction: it stays if its caller hears that it went well, and its transaction
/// commits. When the operation returns an error or panics, what it has changed is undone.
///
/// Reads and changes lock the bytes that they touch, until the transaction has ended everywhere: what runs through
/// these functions is serializable. Of a call that fails nothing stays, locks included: a program that acts on what
/// its error has told acts on what may have changed since.
pub struct Call<'c, 't> {
    core: &'c Core<'t>,
    /// With its family while it calls others.
    work: Option<Work<'t>>,
    tid: Tid,
    scope: Scope,
    untold: Untold,
    /// Until when it is waited for, and when its family has ended, by the clock of its node.
    expires: Duration,
    family: Duration,
}

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

    /// A heap of the server. What is in an object is read and changed as in a segment: at [`Place`]s of its
    /// [region](Heap::region). Where the first object is, a segment may say.
    ///
    /// # Errors
    /// `NOT_FOUND` when it has none of that name.
    pub fn heap(&self, name: &str) -> Result<&'t Heap, Status> {
        let heap = self.core.heaps.iter().find(|heap| heap.name() == name);
        heap.ok_or_else(|| Status::not_found(format!("this server has no heap {name:?}")))
    }

    /// Allocates `len` bytes in a heap, aligned to 16, and locks them. What they hold is unknown. If the transaction
    /// does not commit, or this call fails, they never were.
    ///
    /// # Errors
    /// As [`Call::lock`]; `RESOURCE_EXHAUSTED` when the heap is full, `INVALID_ARGUMENT` when no heap has so much.
    pub fn allocate(&mut self, heap: &'t Heap, len: usize) -> Result<Place, Status> {
        loop {
            let work = work(&mut self.work);
            let place = work.allocations(heap).allocate(len).map_err(|error| heap_status(&error))?;
            work.wrote = true;
            // Others may look there yet, who have found it before it was freed; another call of the family may even
            // free it.
            let locked = self.lock(heap.region(), extent(heap, place)?, Standard::Exclusive);
            let is_there = heap.usable_len(place).is_ok();
            match locked {
                Ok(()) if is_there => return Ok(place),
                Err(status) if is_there => {
                    let given_back = self::work(&mut self.work).allocations(heap).free(place);
                    return given_back.map_err(|error| heap_status(&error)).and(Err(status));
                }
                Err(status) => return Err(status),
                Ok(()) => {}
            }
        }
    }

    /// Frees an object of a heap, and locks it: nobody else sees that before the transaction has committed.
    ///
    /// # Errors
    /// As [`Call::lock`]; `NOT_FOUND` when there is no such object.
    pub fn free(&mut self, heap: &'t Heap, place: Place) -> Result<(), Status> {
        // Whether it is there is known when it is locked; by then it may be another one.
        let mut object = extent(heap, place)?;
        loop {
            self.lock(heap.region(), object.clone(), Standard::Exclusive)?;
            let now = extent(heap, place)?;
            if std::mem::replace(&mut object, now.clone()) == now {
                break;
            }
        }
        let work = work(&mut self.work);
        work.wrote = true;
        work.allocations(heap).free(place).map_err(|error| heap_status(&error))
    }

    /// Locks bytes of a region (`Camlib_Lock`).
    ///
    /// # Errors
    /// `ABORTED` when the transaction is the victim of a deadlock, or has ended meanwhile; `DEADLINE_EXCEEDED` when
    /// the call was waited for long enough; `OUT_OF_RANGE`.
    pub fn lock(&mut self, region: &'t Region, range: Range<usize>, mode: Mode) -> Result<(), Status> {
        let (space, range) = place(region, range)?;
        let left = self.expires.saturating_sub(self.core.outside.now());
        let owner = &mut work(&mut self.work).owner;
        let locked = self.core.locks.lock_timeout(owner, &space, range, mode, left);
        locked.map_err(|error| self.not_locked(&error))
    }

    fn not_locked(&self, error: &LockError) -> Status {
        match error {
            LockError::Timeout { .. } => Status::deadline_exceeded(error.to_string()),
            LockError::Cancelled if self.core.is_victim(&self.tid) => {
                Status::aborted("it is the victim of a deadlock between nodes; try it again")
            }
            LockError::Cancelled => Status::aborted("the call was given up, or its transaction"),
            error => Status::aborted(error.to_string()),
        }
    }

    /// Locks a number, which means what the program likes (Camelot's 32-bit lock names). After a crash numbers are
    /// not to be had before all is decided that was prepared.
    ///
    /// # Errors
    /// As [`Call::lock`].
    pub fn lock_name(&mut self, name: u64, mode: Mode) -> Result<(), Status> {
        for (name, mode) in [(Name::Any, Standard::IntentExclusive), (Name::Number(name), mode)] {
            let left = self.expires.saturating_sub(self.core.outside.now());
            let owner = &mut work(&mut self.work).owner;
            let locked = self.core.names.lock_timeout(owner, name, mode, left);
            locked.map_err(|error| self.not_locked(&error))?;
        }
        Ok(())
    }

    /// The same, without waiting: whether it was had.
    ///
    /// # Errors
    /// As [`Call::lock`].
    pub fn try_lock_name(&mut self, name: u64, mode: Mode) -> Result<bool, Status> {
        for (name, mode) in [(Name::Any, Standard::IntentExclusive), (Name::Number(name), mode)] {
            let had = self.core.names.try_lock(&mut work(&mut self.work).owner, name, mode);
            if !had.map_err(|error| Status::aborted(error.to_string()))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// In which modes a number is locked, by whoever (`Camlib_LockStatus`).
    pub fn name_status(&self, name: u64) -> Vec<Mode> {
        self.core.names.status(&Name::Number(name)).into_iter().map(|(_, mode)| mode).collect()
    }

    /// Gives a number up before the transaction has ended (`Camlib_Unlock`).
    ///
    /// # Warning
    /// Others see what it has changed, and it may yet abort; or change what it has read.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` when this call does not hold it itself.
    pub fn unlock_name(&mut self, name: u64) -> Result<(), Status> {
        let unlocked = self.core.names.unlock(&mut work(&mut self.work).owner, &Name::Number(name));
        unlocked.map_err(|error| Status::failed_precondition(error.to_string()))
    }

    /// Locks bytes if that needs no waiting (`Camlib_TryLock`): whether it was had.
    ///
    /// # Errors
    /// As [`Call::lock`].
    pub fn try_lock(&mut self, region: &'t Region, range: Range<usize>, mode: Mode) -> Result<bool, Status> {
        let (space, range) = place(region, range)?;
        let had = self.core.locks.try_lock(&mut work(&mut self.work).owner, &space, range, mode);
        had.map_err(|error| Status::aborted(error.to_string()))
    }

    /// Whether it works for nobody any more.
    ///
    /// # Errors
    /// `ABORTED`.
    pub fn goes_on(&self) -> Result<(), Status> {
        self.core.outside.goes_on()?;
        let doomed =
            self.core.state().families.get(&self.tid).is_none_or(|of| of.is_doomed(self.scope.path()));
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
        let work = work(&mut self.work);
        work.wrote = true;
        let written = work.transaction().and_then(|tx| Ok(tx.write(region, offset, bytes)?));
        written.map_err(|error| status(&error))
    }

    /// Says that bytes will be changed in place, by whoever stores through [`Region::as_ptr`]; and locks them.
    ///
    /// # Errors
    /// As [`Call::write`].
    pub fn declare(&mut self, region: &'t Region, range: Range<usize>) -> Result<(), Status> {
        self.lock(region, range.clone(), Standard::Exclusive)?;
        let work = work(&mut self.work);
        work.wrote = true;
        let declared = work.transaction().and_then(|tx| Ok(tx.set_range(region, range)?));
        declared.map_err(|error| status(&error))
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

    /// Runs a nested transaction: what it changes here is undone when the closure returns an error or panics, and
    /// nothing else is.
    ///
    /// # Errors
    /// What the closure returns; `ABORTED` when it works for nobody any more.
    pub fn nest<T>(&mut self, body: impl FnOnce(&mut Self) -> Result<T, Status>) -> Result<T, Status> {
        let mut child = self.begin_nested()?;
        let answer = catch_unwind(AssertUnwindSafe(|| body(&mut child)));
        let ended = self.end_nested(child, matches!(answer, Ok(Ok(_))));
        let value = answer.unwrap_or_else(|panic| resume_unwind(panic))?;
        ended.map(|()| value)
    }

    /// Begins a nested transaction that ends where the program says, and must: until [`Call::end_nested`] this call
    /// does nothing itself, or panics. For other languages; [`Call::nest`] is for Rust.
    ///
    /// # Errors
    /// `ABORTED` when it works for nobody any more.
    #[must_use = "it must be ended: Call::end_nested"]
    pub fn begin_nested(&mut self) -> Result<Call<'c, 't>, Status> {
        let path = self.scope.next_child();
        self.lend();
        match self.family(|family| family.begin(&path).map_err(refused)) {
            Err(status) => {
                self.take(self.core.outside.own);
                Err(status)
            }
            Ok(work) => {
                let (scope, untold) = (Scope::new(path), std::mem::take(&mut self.untold));
                let Call { core, tid, expires, family, .. } = *self;
                Ok(Call { core, work: Some(work), tid, scope, untold, expires, family })
            }
        }
    }

    /// Ends one, the last that was begun: `commits` to this call, or is undone.
    ///
    /// # Errors
    /// `ABORTED` when a node that it has called has crashed, or given up: it is undone.
    pub fn end_nested(&mut self, child: Call<'c, 't>, commits: bool) -> Result<(), Status> {
        let Call { work, scope, untold, .. } = child;
        self.untold = untold;
        let well = commits && scope.lost().is_none();
        let path = scope.path().clone();
        self.family(|family| family.end(&path, work.expect("it is not with its family"), well));
        match well {
            true => self.scope.committed(&mut self.untold, &scope),
            false => self.scope.aborted(&mut self.untold, &scope),
        }
        let outcome = if well { Outcome::Committed } else { Outcome::Aborted };
        self.family(|family| family.hear(&vec![(path, outcome)]));
        self.take(self.core.outside.own);
        match well == commits {
            true => Ok(()),
            false => Err(Status::aborted("a node that was called has crashed, or given up")),
        }
    }

    /// Calls other servers: through the closure's transaction, of which this call is.
    ///
    /// # Errors
    /// What the closure returns.
    pub fn outward<T>(&mut self, body: impl AsyncFnOnce(&Tx) -> Result<T, Status>) -> Result<T, Status> {
        let outside = self.core.outside.clone();
        let now = outside.now();
        let until = [self.expires, self.family].map(|at| Instant::now() + at.saturating_sub(now));
        let untold = std::mem::take(&mut self.untold);
        let mut scope = std::mem::replace(&mut self.scope, Scope::new(Path::default()));
        let path = scope.path().clone();
        scope.hear(outside.time.shows());
        let around = (outside.cluster.clone(), outside.time.hybrid.clone());
        let tx = Tx::of_call(around, self.tid, scope, untold, until);
        self.scope = Scope::new(path);
        self.lend();
        let answer = catch_unwind(AssertUnwindSafe(|| {
            outside.runtime().block_on(async {
                let mut stopped = outside.stopped.subscribe();
                tokio::select! {
                    answer = body(&tx) => answer,
                    _ = stopped.wait_for(|stopped| *stopped) => Err(Status::unavailable("the node stops")),
                }
            })
        }));
        let (scope, untold) = tx.into_parts();
        self.scope = scope;
        self.untold = untold;
        self.take(outside.own);
        answer.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The servers' first transaction: it is never run again, if it commits.
    pub(crate) fn is_first(&mut self) -> Result<(), Status> {
        let (core, work) = (self.core, work(&mut self.work));
        work.wrote = true;
        let done = work.transaction().and_then(|tx| Ok(core.ledger.begin(tx)?));
        done.map_err(|error| status(&error))
    }

    fn family<T>(&self, act: impl FnOnce(&mut Family<Work<'t>>) -> T) -> T {
        let mut state = self.core.state();
        act(state.families.get_mut(&self.tid).expect("a family with a call that runs stays"))
    }

    /// Gives its work to the family, so that what it calls can come back here.
    fn lend(&mut self) {
        let work = self.work.take().expect("it is not with its family");
        self.family(|family| family.lend(self.scope.path(), work));
    }

    /// Takes it back, when what others have told of this node was heard here.
    fn take(&mut self, own: Node) {
        let news = self.untold.of(own);
        let work = self.family(|family| {
            family.hear(&news);
            family.take(self.scope.path())
        });
        self.core.state().cancel(self.tid);
        self.untold.heard(own, &news);
        self.work = Some(work);
    }
}

/// What a call holds, while it calls nobody.
fn work<'a, 't>(work: &'a mut Option<Work<'t>>) -> &'a mut Work<'t> {
    work.as_mut().expect("it is not with its family")
}

fn refused(refused: Refused<WorkError>) -> Status {
    match refused {
        Refused::Orphan => Status::aborted("the call was given up before it began"),
        Refused::TooLate => Status::aborted("the transaction has ended, or commits"),
        Refused::Level(error) => status(&error),
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

/// The bytes of an object, whether it is there or not.
fn extent(heap: &Heap, place: Place) -> Result<Range<usize>, Status> {
    let extent = heap.extent_of(place).map_err(|error| heap_status(&error))?;
    Ok(extent.start as usize..extent.end as usize)
}

fn heap_status(error: &HeapError) -> Status {
    let text = error.to_string();
    match error {
        HeapError::NotAllocated { .. } => Status::not_found(text),
        HeapError::Size { .. } => Status::invalid_argument(text),
        HeapError::Full { .. } | HeapError::TooMany { .. } => Status::resource_exhausted(text),
        HeapError::Segment(SegmentError::Io { .. }) => Status::resource_exhausted(text),
        _ => Status::internal(text),
    }
}

/// A call that came.
pub(crate) struct Coming {
    pub tid: Tid,
    pub path: Path,
    pub news: News,
    /// What other nodes have not heard.
    pub untold: BTreeMap<Node, News>,
    /// Until when it is waited for, by the clock of the node.
    pub expires: Duration,
    /// When its family has ended, if nothing is heard of that.
    pub family: Duration,
    /// The last timestamp that its caller has heard of.
    pub clock: Timestamp,
}

fn begin_call<'t>(
    core: &Core<'t>,
    tid: Tid,
    path: &Path,
    news: &News,
    [expires, family_expires]: [Duration; 2],
) -> Result<(Work<'t>, Stay), Status> {
    if core.outside.now() >= expires {
        return Err(Status::deadline_exceeded("the call came when nobody waited for it any more"));
    }
    let mut state = core.state();
    let now = core.outside.now();
    let over = || Status::aborted("the transaction has ended, or commits");
    if state.is_leaving(&tid) {
        return Err(over());
    }
    let stay = state.host.called(tid, family_expires, now).ok_or_else(over)?;
    let family = core.begin(&mut state, tid).map_err(|error| Status::unavailable(error.to_string()))?;
    family.hear(news);
    let work = family.begin(path).map_err(refused)?;
    state.running.insert((tid, path.clone()), core.detector.canceller(&work.owner));
    if core.outside.is_stopping() {
        state.running.values().for_each(Canceller::cancel);
    }
    state.cancel(tid);
    Ok((work, stay))
}

/// Executes an operation as a call: what it says, and where it has worked.
pub(crate) fn execute<T>(
    core: &Core<'_>,
    coming: Coming,
    operation: impl for<'c, 't> FnOnce(&mut Call<'c, 't>) -> Result<T, Status>,
) -> (Result<T, Status>, Report) {
    let Coming { tid, path, news, untold, expires, family, clock } = coming;
    let (work, stay) = match begin_call(core, tid, &path, &news, [expires, family]) {
        Ok(begun) => begun,
        Err(status) => return (Err(status), Report::default()),
    };
    let (mut scope, untold) = (Scope::new(path.clone()), Untold::from_all(untold));
    scope.hear(clock);
    let mut call = Call { core, work: Some(work), tid, scope, untold, expires, family };
    let answer = catch_unwind(AssertUnwindSafe(|| operation(&mut call)));
    let mut answer = answer.unwrap_or_else(|_| Err(Status::internal("the operation panicked; it is undone")));
    let Call { work, scope, untold, .. } = call;
    if let (Some(node), true) = (scope.lost(), answer.is_ok()) {
        let node = node.0;
        answer = Err(Status::aborted(format!("node {node} has crashed, or given up, since it was called")));
    }
    if let Some(family) = core.state().families.get_mut(&tid) {
        family.end(&path, work.expect("it is not with its family"), answer.is_ok());
    }
    core.call_ended(tid, &path);
    let mut report = scope.into_report(untold);
    let own = core.outside.own;
    report.used.insert(own, stay);
    report.touched.insert(own);
    // Of all whose locks it has had.
    report.clock = report.clock.max(core.outside.time.shows());
    (answer, report)
}
