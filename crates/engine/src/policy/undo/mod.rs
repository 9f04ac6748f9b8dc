//! The undo policy (Vista, sections 3 and 4): the segments are the store. They are mapped shared, in memory that
//! survives what a commit is to survive; before bytes are changed their old values go to the transaction's
//! undo log, in memory of the same kind.
//!
//! ```text
//!   declare:  old bytes to the undo log                     1 copy, no system call
//!   commit:   the log is emptied by one store
//!   prepare:  the new bytes go to the log as well, and last a mark
//!   abort:    old bytes back, newest first; the log is emptied
//!   opening:  the same for every log that is not empty; then the store is durably marked as in use
//!   closing:  the segments are forced; then the store is durably marked as in order
//! ```
//!
//! No log, no stage, no truncation, no background threads. On files the memory is the page cache: it survives
//! the process. On persistent memory the same steps write cache lines back, in the order that [`runs`] gives, and
//! every commit survives what the memory does.

mod backup;
mod chunks;
mod kept;
mod old_values;
mod prepared;
mod recovery;
mod runs;

use crate::policy::backup::BackupError;
use crate::policy::backup::dump::{DumpOptions, Dumped};
use crate::policy::backup::restore::{Making, Restored};
use crate::policy::kind::{self, Closed, New, Opened, Opening, Policy};
use crate::policy::query::LogInfo;
use crate::policy::{Recovery, Undecided};
use crate::storage::Storage;
use crate::storage::catalog::Catalog;
use crate::storage::class::Class;
use crate::storage::directory::UNDO;
use crate::storage::error::{CommitError, Failure, OpenError, RangeError};
use crate::storage::generations;
use crate::storage::progress::Watch;
use crate::storage::region::RegionState;
use crate::storage::report::Report;
use crate::storage::segment::SegmentState;
use crate::storage::settings::Settings;
use crate::write_set::{Position, Sets, Terms, WriteSet};
use caliburn_log::media_error::MediaError;
use caliburn_os::medium::Medium;
use caliburn_os::persist::Survives;
use caliburn_os::rescue::{self, Part};
use caliburn_os::simulated::{even_if, planted, unless};
use caliburn_os::sync::Mutex;
use chunks::UndoChunks;
use prepared::PreparedTable;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// What the undo policy does with stores that are not open.
pub(super) struct Kind;

impl kind::Kind for Kind {
    fn policy(&self) -> Policy {
        Policy::Undo
    }

    /// The segments are mapped shared: nobody sees the stores to them.
    fn sums(&self) -> bool {
        false
    }

    fn create(&self, new: New<'_>) -> Result<(), OpenError> {
        recovery::create(new)
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
        recovery::check(store, segments, report)
    }

    fn info(&self, store: &Closed<'_>) -> Result<(Option<LogInfo>, bool), OpenError> {
        recovery::info(store)
    }

    fn dump(
        &self,
        settings: &Settings,
        dir: &Path,
        how: &DumpOptions,
        target: &mut dyn Write,
    ) -> Result<Dumped, BackupError> {
        backup::dump(settings, dir, how, target)
    }

    fn restore(&self, making: Making<'_>, first: Catalog) -> Result<Restored, BackupError> {
        backup::restore(making, first)
    }

    fn keeper<'c>(&self, _: &'c Catalog) -> &'c Path {
        Path::new(UNDO)
    }

    fn survives(&self, medium: &dyn Medium) -> Class {
        medium.memory().survives.into()
    }
}

/// An open store with the undo policy.
pub(crate) struct Undo {
    storage: Arc<Storage>,
    sets: Arc<Sets>,
    chunks: UndoChunks,
    prepared: Mutex<PreparedTable>,
    /// `Options::memory_survives` was given: it is trusted for segments created later as well.
    assumed: bool,
}

impl Recovery for Undo {
    fn map(&self, region: &RegionState, part: Range<usize>) -> io::Result<()> {
        self.stamp(&region.segment)?;
        region.map_shared(&self.storage, part, self.chunks.memory().sync, Part::Data)
    }

    fn put_to_rest(&self, unused: &[Arc<SegmentState>]) -> Result<(), Failure> {
        self.force(unused)?;
        unused.iter().for_each(|segment| segment.rest());
        Ok(())
    }

    fn survives(&self, medium: &dyn Medium) -> Class {
        if self.assumed {
            return self.storage.reach;
        }
        // Lines that this store leaves in the cache survive the process alone.
        match medium.memory().flush > self.chunks.memory().flush {
            true => Class::Process,
            false => medium.memory().survives.into(),
        }
    }

    fn taken(&self, medium: &dyn Medium) -> Result<(), MediaError> {
        self.chunks.note_mount(medium)
    }

    fn terms(&self) -> Terms {
        let plain = self.chunks.persistent().is_none() && !self.sets.tracked;
        Terms {
            clears: if plain && !self.storage.rescues { self.storage.reach as u8 + 1 } else { 0 },
            keeps_old: [true; 2],
            forces: false,
            private: false,
            declared_only: false,
            restores: false,
            alone: false,
            adopts: false,
        }
    }

    fn save(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        offset: usize,
        len: usize,
    ) -> Result<(), RangeError> {
        self.chunks.save(set, region, offset, len)?;
        let sees_each = self.sets.tracked || self.chunks.persistent().is_some();
        set.grant(if sees_each { 0 } else { set.free() });
        Ok(())
    }

    fn restore(&self, set: &WriteSet<'_>, from: Position) {
        if planted("undo-not-restored") {
            return;
        }
        self.chunks.restore(set, &self.storage.table, from, |segment, offset, bytes| {
            // Unmapped meanwhile, which the program had promised not to do when it declared by address.
            let state = self.storage.segment_state(segment).expect("a declared range is in a segment");
            drop(state.write_part(offset, bytes).map_err(|e| self.storage.fail(e)));
        });
    }

    fn roll_back(&self, set: &WriteSet<'_>, to: Position) {
        self.chunks.roll_back(set, to);
    }

    fn begin_branch(&self, parent: &WriteSet<'_>, branch: &WriteSet<'_>) -> Result<(), MediaError> {
        self.chunks.begin_branch(parent, branch)
    }

    fn adopt(&self, parent: &WriteSet<'_>, branch: &WriteSet<'_>) -> Result<(), RangeError> {
        Ok(self.chunks.adopt(parent, branch)?)
    }

    fn clear(&self, set: &WriteSet<'_>) {
        self.chunks.empty(set, &self.storage.table);
    }

    /// Where memory may be detached: then it is refused.
    fn commit_short(&self, set: &WriteSet<'_>) -> bool {
        self.storage.rescues && !self.sets.tracked && {
            set.clear();
            even_if("detached-acknowledged", !rescue::any())
        }
    }

    /// The commit is made when the set is cleared.
    fn commit(&self, _: &WriteSet<'_>) -> Result<Option<u64>, CommitError> {
        self.storage.kept()?;
        Ok(None)
    }

    fn undecided(&self) -> &dyn Undecided {
        self
    }

    /// Every commit was written back before it returned.
    fn flush(&self) -> Result<(), Failure> {
        self.storage.failure()
    }

    fn dump(
        &self,
        how: &DumpOptions,
        watch: &Watch,
        target: &mut dyn Write,
    ) -> Option<Result<Dumped, BackupError>> {
        Some(self.dump_open(how, watch, target))
    }

    fn tuned(&self) {
        self.sets.grant(if self.chunks.persistent().is_some() { 0 } else { usize::MAX });
    }

    /// Forces every segment, then says that the store is in order. If a process died with it in use, a force or a
    /// write back may have failed then, and the system shows what the medium lacks: everything is written again.
    fn close(&self) -> Result<(), Failure> {
        let undo = &self.chunks;
        let segments = self.storage.segments.read().expect("no panic under this lock");
        for segment in segments.iter() {
            // Open until it is forced: a file that goes from memory takes along what became of it.
            let _open = segment.file.reach("open segment").map_err(|e| self.storage.fail(e))?;
            if unless("undo-not-rewritten", undo.suspect) {
                segment.rewrite().map_err(|e| self.storage.fail(e))?;
            }
            if !planted("undo-closed-unforced") {
                self.force(std::slice::from_ref(segment))?;
            }
        }
        drop(segments);
        // A store that is in order has no use for its runs.
        if !planted("closed-when-detached") {
            self.storage.kept()?;
        }
        let generations = self.storage.generations.as_ref();
        let closed = generations::step(generations, |generation| {
            self.storage.end_use(generation)?;
            undo.mark_clean(generation)
        });
        closed.map_err(|e| self.storage.fail(e))
    }
}

impl Undo {
    /// What is stored to a segment from now on is of this generation. In the page cache, file and slot have the same
    /// fate.
    fn stamp(&self, segment: &SegmentState) -> io::Result<()> {
        if !segment.begin_use()? {
            return Ok(());
        }
        let lasting = self.chunks.memory().survives > Survives::Process;
        let done = match lasting {
            true => segment.sync().and_then(|()| self.storage.settle()),
            false => segment.confirm(false),
        };
        done.map_err(|error| io::Error::other(error.to_string()))
    }

    /// Forces segments. If a force fails, the system may show what the medium lacks: not if a write before it does.
    fn force(&self, segments: &[Arc<SegmentState>]) -> Result<(), Failure> {
        segments.iter().try_for_each(|segment| segment.sync()).map_err(|error| {
            let failure = self.storage.fail(error);
            // Reopened, it would look sound; as it is in persistent memory, where commits were written back.
            let lost = even_if("unforced-taken-for-lost", segments.iter().any(|segment| segment.has_lost()));
            if lost && self.chunks.memory().survives == Survives::Process {
                let _ = self.chunks.mark_damaged();
            }
            failure
        })
    }
}
