//! The redo policy (RVM): segments are mapped copy-on-write, new values go to a log, and from there to the
//! segments.
//!
//! ```text
//!   write set --commit--> stage --flusher--> log --truncation--> segments, sums
//! ```
//!
//! Locks, in the order in which they are taken; the hot path (begin, set_range, commit in class `Process`)
//! takes none:
//!
//! ```text
//!   mapping > truncation > flush > prepared, pages, aborted, sums, catalog, regions (each briefly)
//! ```

pub(crate) mod backup;
mod check;
mod checkpoint;
mod cohort;
mod commit;
mod create;
mod duplex;
mod flusher;
mod group;
pub(crate) mod history;
mod holders;
mod incremental;
mod lanes;
mod memory;
mod overflow;
mod pages;
mod prepared;
mod records;
mod recovery;
mod relocate;
mod replication;
mod stage;
mod truncation;

use crate::policy::backup::dump::{DumpOptions, Dumped};
use crate::policy::backup::restore::{Making, RestoreOptions, Restored};
use crate::policy::backup::{BackupError, Mended};
use crate::policy::kind::{self, Closed, New, Opened, Opening, Policy};
use crate::policy::query::{LogInfo, Query, Statistics};
use crate::policy::{Recovery, Undecided};
use crate::storage::catalog::Catalog;
use crate::storage::class::Class;
use crate::storage::error::{CommitError, Failure, OpenError, RangeError, SegmentError};
use crate::storage::generations;
use crate::storage::lacking::Lacking;
use crate::storage::redo_ranges::RedoRanges;
use crate::storage::region::RegionState;
use crate::storage::report::Report;
use crate::storage::segment::SegmentState;
use crate::storage::settings::Settings;
use crate::storage::{Storage, directory};
use crate::write_set::{Position, Sets, Terms, WriteSet};
use caliburn_log::SegmentId;
use caliburn_log::log::Log;
use caliburn_log::media_error::MediaError;
use caliburn_os::event::Event;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::unless;
use caliburn_os::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard, RwLock};
use flusher::Flush;
use group::Rounds;
use overflow::Overflow;
use pages::Pages;
use prepared::PreparedTable;
use replication::Replication;
use stage::Stage;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::task::{Poll, Waker};
use truncation::Truncation;

/// What the redo policy does with stores that are not open.
pub(super) struct Kind;

impl kind::Kind for Kind {
    fn policy(&self) -> Policy {
        Policy::Redo
    }

    fn sums(&self) -> bool {
        true
    }

    fn is_private(&self) -> bool {
        true
    }

    fn create(&self, new: New<'_>) -> Result<(), OpenError> {
        create::create(new)
    }

    fn open(&self, opening: Opening<'_>) -> Result<Opened, OpenError> {
        recovery::open(opening)
    }

    fn check(
        &self,
        store: &Closed<'_>,
        segments: &[Arc<SegmentState>],
        report: &mut Report,
    ) -> Result<(), OpenError> {
        check::check(store, segments, report)
    }

    fn info(&self, store: &Closed<'_>) -> Result<(Option<LogInfo>, bool), OpenError> {
        check::info(store)
    }

    fn dump(
        &self,
        settings: &Settings,
        dir: &Path,
        how: &DumpOptions,
        target: &mut dyn Write,
    ) -> Result<Dumped, BackupError> {
        backup::dump::dump(settings, dir, how, target)
    }

    fn restore(&self, making: Making<'_>, first: Catalog) -> Result<Restored, BackupError> {
        backup::restore::restore(making, first)
    }

    fn keeper<'c>(&self, catalog: &'c Catalog) -> &'c Path {
        &catalog.log_path
    }

    fn survives(&self, medium: &dyn Medium) -> Class {
        directory::forced(medium.volatile())
    }
}

/// An open store with the redo policy.
pub(crate) struct Redo {
    storage: Arc<Storage>,
    sets: Arc<Sets>,
    stage: Stage,
    log: Log,
    /// Another machine has the log.
    replication: Option<Replication>,
    /// Of the present log: see [`relocate::body_max`].
    body_max: AtomicU64,
    /// It may be made larger.
    may_grow: AtomicBool,
    /// Pages of memory never go to segments.
    declared_only: bool,
    /// The log may grow for a transaction.
    large: bool,
    /// Transactions may outgrow the memory budget.
    overflows: bool,
    /// Whether there are threads that flush and truncate.
    background: bool,
    flush: Flush,
    rounds: Rounds,
    /// Of who gives the log another size or place: before all other locks.
    relocating: Mutex<()>,
    /// Signalled when there may be more room in the log.
    space: Event,
    truncation: Truncation,
    prepared: Mutex<PreparedTable>,
    /// Committed changes of the log found at opening that the segments may lack.
    unapplied: RwLock<Option<RedoRanges>>,
    pages: Mutex<Pages>,
    overflow: Overflow,
    /// Bytes that aborted transactions touched, not yet noted in `pages`: an abort must not wait for a lock
    /// that is held while a whole batch is marked.
    aborted: Mutex<Vec<(SegmentId, u64, u64)>>,
}

impl Redo {
    fn body_max(&self) -> u64 {
        self.body_max.load(Ordering::Relaxed)
    }

    fn lock_pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The pages that an aborted transaction has copied are private.
    fn note_aborted(&self, set: &WriteSet<'_>, from: Position) {
        let mut aborted = self.aborted.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        set.each_from(from, |range| aborted.push((range.segment, range.offset, range.len as u64)));
        let many = aborted.len() >= 4096;
        drop(aborted);
        if many {
            self.note_private(&mut self.lock_pages());
        }
    }

    /// Takes over what aborts have left to be noted.
    fn note_private(&self, pages: &mut Pages) {
        let aborted =
            std::mem::take(&mut *self.aborted.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        for (segment, offset, len) in aborted {
            pages.note_private(segment, offset, len);
        }
    }

    /// Fails the store for good and wakes everybody who waits.
    fn fail(&self, cause: MediaError) -> Failure {
        let failure = self.storage.fail(cause);
        self.wake_all();
        failure
    }

    /// Refuses in a store that has failed, and after the stage was [detached](caliburn_os::rescue).
    fn kept(&self) -> Result<(), Failure> {
        self.storage.failure().inspect_err(|_| self.wake_all())
    }

    fn wake_all(&self) {
        self.wake_flush_waiters();
        self.truncation.wake_all();
        self.replication.iter().for_each(Replication::wake_all);
    }

    fn is_unapplied(&self) -> bool {
        self.unapplied.read().expect("no panic under this lock").is_some()
    }
}

/// The background threads.
const THREADS: [&str; 3] = ["caliburn-flush", "caliburn-trunc", "caliburn-send"];

impl Recovery for Redo {
    fn map(&self, region: &RegionState, part: Range<usize>) -> io::Result<()> {
        let unapplied = self.unapplied.read().expect("no panic under this lock");
        let lacking = unapplied.as_ref().map(|ranges| ranges as &dyn Lacking);
        region.map_private(&self.storage, part, lacking, true)
    }

    fn unmapping(&self, region: &RegionState) -> Result<(), Failure> {
        self.write_region(region)
    }

    fn put_to_rest(&self, unused: &[Arc<SegmentState>]) -> Result<(), Failure> {
        self.put_all_to_rest(unused)
    }

    fn unmapped(&self, region: &RegionState, left: bool) {
        if left {
            // The truncator may have found the region before it was taken off.
            drop(self.lock_truncation());
        }
        let page = self.storage.page_size as u64;
        self.lock_pages().dropped_all(region.segment.id, region.pages(page));
        self.forget_overflow_of(region);
    }

    fn changed(&self, region: &RegionState, part: Range<usize>) {
        let offset = region.start + part.start as u64;
        let private = {
            let mut pages = self.lock_pages();
            pages.note_private(region.segment.id, offset, part.len() as u64);
            pages.private()
        };
        self.check_budget(private);
    }

    fn growing(&self, grow: &mut dyn FnMut() -> Result<(), SegmentError>) -> Result<(), SegmentError> {
        self.force_aside(grow)
    }

    fn survives(&self, medium: &dyn Medium) -> Class {
        directory::forced(medium.volatile())
    }

    fn terms(&self) -> Terms {
        let declared_only = self.declared_only;
        Terms {
            clears: 0,
            keeps_old: [false, true],
            forces: true,
            private: true,
            declared_only,
            restores: false,
            alone: false,
            adopts: true,
        }
    }

    fn save(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        offset: usize,
        len: usize,
    ) -> Result<(), RangeError> {
        self.declare(set, region, offset, len)
    }

    fn restore(&self, set: &WriteSet<'_>, from: Position) {
        if unless("abort-without-undo", set.keeps_old()) {
            self.put_back(set, from);
        }
        self.note_aborted(set, from);
    }

    fn roll_back(&self, set: &WriteSet<'_>, to: Position) {
        let mut given_back = Vec::new();
        set.leave_chunks(to, |chunk| given_back.push(chunk));
        set.keep_spare(given_back);
        set.cut(to);
    }

    fn adopt(&self, parent: &WriteSet<'_>, branch: &WriteSet<'_>) -> Result<(), RangeError> {
        self.take_over(parent, branch)
    }

    fn clear(&self, set: &WriteSet<'_>) {
        let outgrown = set.is_known();
        let given_back = set.clear_all();
        set.keep_spare(given_back);
        if outgrown {
            self.has_outgrown_no_more(set);
        }
    }

    fn commit_short(&self, set: &WriteSet<'_>) -> bool {
        self.stage_short(set)
    }

    fn commit(&self, set: &WriteSet<'_>) -> Result<Option<u64>, CommitError> {
        self.stage_or_append(set)
    }

    fn is_durable(&self, stamp: u64, class: Class) -> bool {
        match &self.replication {
            Some(replication) if class == Class::Quorum => replication.has(stamp),
            _ => self.is_forced(stamp),
        }
    }

    fn wait_durable(&self, stamp: u64, class: Class) -> Result<(), Failure> {
        self.wait_forced(stamp, false)?;
        if class == Class::Quorum { self.wait_replica_stamp(stamp) } else { Ok(()) }
    }

    fn poll_durable(&self, stamp: u64, class: Class, waker: &Waker) -> Poll<Result<(), Failure>> {
        self.poll(class, stamp, waker)
    }

    fn want_force(&self) {
        self.ask_for_force();
    }

    fn flush(&self) -> Result<(), Failure> {
        self.flush_all()
    }

    fn replicate(&self) -> Result<(), Failure> {
        self.wait_replica_end(self.log.forced())
    }

    fn truncate(&self) -> Result<(), Failure> {
        self.truncate_all()
    }

    fn undecided(&self) -> &dyn Undecided {
        self
    }

    fn threads(&self) -> &'static [&'static str] {
        &THREADS[..if self.replication.is_some() { 3 } else { 2 }]
    }

    fn run(&self, thread: usize) {
        let life = || match thread {
            0 => self.run_flusher(),
            1 => self.run_truncation(),
            _ => self.run_replication(),
        };
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(life)).is_err() {
            // Nobody must wait for a thread that is gone.
            let error = io::Error::other("a background thread panicked");
            self.fail(MediaError::new("keep up with", &*self.log.medium(), 0, error));
        }
    }

    fn tend_flush(&self, force: bool) -> Result<(), Failure> {
        self.tend_stage(force)
    }

    fn tend_truncation(&self) -> Result<(), Failure> {
        self.truncate_as_needed()
    }

    fn wait_memory(&self) {
        self.wait_relief();
    }

    fn arrange(&self, settings: &Settings, opening: bool) -> Result<(), OpenError> {
        // A log with two copies stays where it is: one that is to have one copy may go.
        self.simplex(settings)?;
        let done = self.relocate(settings, opening).and_then(|()| self.duplex(settings, opening));
        self.note_growth();
        done
    }

    fn damaged(&self) -> Option<Result<Vec<(String, u64)>, BackupError>> {
        Some(self.list_damaged())
    }

    fn mend(
        &self,
        settings: &Settings,
        dumps: &mut dyn Read,
        how: &RestoreOptions,
    ) -> Option<Result<Vec<Mended>, BackupError>> {
        Some(self.mend_units(settings, dumps, how))
    }

    fn tuned(&self) {
        self.sets.grant(self.room());
    }

    fn wake(&self) {
        self.wake_all();
    }

    fn close(&self) -> Result<(), Failure> {
        self.leave_replica()?;
        if self.log.head() == self.log.tail() && self.stage.is_empty() {
            let generations = self.storage.generations.as_ref();
            let closed = generations::step(generations, |generation| {
                self.storage.end_use(generation)?;
                self.log.mark_clean(generation)
            });
            closed.map_err(|e| self.fail(e))?;
        }
        Ok(())
    }

    fn query(&self, query: &mut Query) {
        let mut pages = self.lock_pages();
        self.note_private(&mut pages);
        (query.dirty_pages, query.private_pages) = (pages.dirty(), pages.private());
        query.overflow_bytes = pages.moved_pages() * self.storage.page_size as u64;
        drop(pages);
        let log = &self.log;
        (query.log_bytes, query.log_used) = (log.capacity(), log.used());
        let medium = log.medium();
        let in_use = medium.pair().map(|pair| pair.in_use().map_or(1, |both| both.len()));
        query.log_copies = in_use.unwrap_or(1) as u64;
        query.log_kept = log.head().0.saturating_sub(log.kept().0);
        query.log_unforced = log.tail().0.saturating_sub(log.forced().0);
        let reached = self.replication.as_ref().map(Replication::reached);
        query.log_unreplicated = reached.map_or(0, |reached| log.forced().0.saturating_sub(reached.0));
    }

    fn count(&self, s: &mut Statistics) {
        let (flush, truncation) = (&self.flush, &self.truncation);
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        s.merged_transactions = get(&flush.merged_transactions);
        s.merged_bytes = get(&flush.merged_bytes);
        s.records = get(&flush.records);
        s.log_bytes = get(&flush.log_bytes);
        s.flushes = get(&flush.flushes);
        s.forces = get(&flush.forces);
        if let Some(replication) = &self.replication {
            (s.replicated_parts, s.replicated_bytes) = (get(&replication.parts), get(&replication.bytes));
        }
        s.truncations = get(&truncation.incremental);
        s.epochs = get(&truncation.epochs);
        s.pages_written = get(&truncation.pages_written);
        s.pages_dropped = get(&truncation.pages_dropped);
        s.pages_blocked = get(&truncation.pages_blocked);
    }

    fn dirty_pages(&self, region: &RegionState) -> u64 {
        let page = self.storage.page_size as u64;
        self.lock_pages().dirty_in(region.segment.id, region.pages(page))
    }
}
