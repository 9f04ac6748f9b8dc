//! How changes are undone and redone: a folder for each policy, and a line in `KINDS` of `table.rs`.
//!
//! A policy knows storage and write sets, and nothing above; no policy knows another, nor how changes are tracked.
//! Nothing outside of this folder asks which policy a store has.

pub(crate) mod backup;
pub(crate) mod kind;
mod log_file;
mod parts;
mod prepared;
pub(crate) mod query;
pub(crate) mod read_only;
pub(crate) mod redo;
pub(crate) mod shadow;
pub(crate) mod table;
pub(crate) mod undo;

use crate::storage::class::Class;
use crate::storage::error::{CommitError, Failure, OpenError, RangeError, SegmentError};
use crate::storage::progress::Watch;
use crate::storage::region::RegionState;
use crate::storage::segment::SegmentState;
use crate::storage::settings::{Extent, Settings};
use crate::write_set::{Position, Terms, WriteSet};
use backup::dump::{DumpOptions, Dumped};
use backup::restore::RestoreOptions;
use backup::{BackupError, Mended};
use caliburn_log::media_error::MediaError;
use caliburn_os::medium::Medium;
use query::{Prepared, Query, Statistics};
use std::any::Any;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// A recovery policy at work in an open store: all that a store asks of it.
///
/// What has a body here is for policies that need nothing of the kind.
pub(crate) trait Recovery: Any + Send + Sync {
    // Memory.

    /// Maps part of a region, to its end, as transactions are to see it. The part was never mapped.
    fn map(&self, region: &RegionState, part: Range<usize>) -> io::Result<()>;
    /// Whether a transaction that is open has changed something of a region, beyond what its write set says.
    fn touches(&self, _region: &RegionState) -> bool {
        false
    }
    /// Part of a region was stored to, declared or not, by a transaction that ends.
    fn changed(&self, _region: &RegionState, _part: Range<usize>) {}
    /// A region is about to be unmapped: its segment is up to date when this returns.
    fn unmapping(&self, _region: &RegionState) -> Result<(), Failure> {
        Ok(())
    }
    /// A region is off the books. `left`: its memory is the program's when this returns.
    fn unmapped(&self, _region: &RegionState, _left: bool) {}
    /// Runs `grow`, which makes a segment longer and forces it.
    fn growing(&self, grow: &mut dyn FnMut() -> Result<(), SegmentError>) -> Result<(), SegmentError> {
        grow()
    }
    /// Closes the files of segments of which nothing is mapped, nor will be until this returns, when nothing is
    /// left to be written to them or forced. They stay open where that can't be had.
    fn put_to_rest(&self, unused: &[Arc<SegmentState>]) -> Result<(), Failure>;
    /// What commits to a segment on this medium survive.
    fn survives(&self, medium: &dyn Medium) -> Class;
    /// A segment is about to be named that is on this medium.
    fn taken(&self, _medium: &dyn Medium) -> Result<(), MediaError> {
        Ok(())
    }

    // Write sets.

    /// What it asks of write sets; asked once.
    fn terms(&self) -> Terms;
    /// Declares a range for which a write set had no room, or that must be seen: makes room, or refuses.
    fn save(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        offset: usize,
        len: usize,
    ) -> Result<(), RangeError>;
    /// A program stores to part of a region that it has not declared, where such stores are caught. None: it is
    /// saved as if it were declared. In a region that the policy calls passing, what is declared later is saved
    /// again.
    fn caught(&self, _region: &RegionState, _part: Range<usize>) -> Option<Result<(), RangeError>> {
        None
    }
    /// The transaction that is open says how much it will change.
    fn will_change(&self, _extent: Extent) {}
    /// Puts the old bytes behind a position back into memory, as far as they are kept.
    fn restore(&self, set: &WriteSet<'_>, from: Position);
    /// Shortens a set to a position behind which the old bytes are back.
    fn roll_back(&self, set: &WriteSet<'_>, to: Position);
    /// A set is about to become a branch of another.
    fn begin_branch(&self, _parent: &WriteSet<'_>, _branch: &WriteSet<'_>) -> Result<(), MediaError> {
        Ok(())
    }
    /// Takes over what a branch has declared, at the end of the parent's run.
    fn adopt(&self, parent: &WriteSet<'_>, branch: &WriteSet<'_>) -> Result<(), RangeError>;
    /// Clears a set of which nothing is to be undone any more.
    fn clear(&self, set: &WriteSet<'_>);

    // Commit.

    /// Commits and clears a set in which nothing but plain declarations was done, in class `Process`, if that
    /// needs nothing else.
    fn commit_short(&self, _set: &WriteSet<'_>) -> bool {
        false
    }
    /// Commits what is declared, in class `Process` at least; the set is cleared afterwards. Returns a stamp if
    /// a force makes it survive more.
    fn commit(&self, set: &WriteSet<'_>) -> Result<Option<u64>, CommitError>;
    /// Whether a commit stamped so survives what the class names: a power cut, or the loss of the machine.
    fn is_durable(&self, _stamp: u64, _class: Class) -> bool {
        true
    }
    /// Waits until it does.
    fn wait_durable(&self, _stamp: u64, _class: Class) -> Result<(), Failure> {
        Ok(())
    }
    /// Whether it does, or the store has failed; if neither, the waker is called when that may have changed.
    fn poll_durable(&self, _stamp: u64, _class: Class, _waker: &Waker) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }
    /// Somebody was given a stamp and will wait for it later.
    fn want_force(&self) {}
    /// Waits until every commit so far survives what the store does.
    fn flush(&self) -> Result<(), Failure>;
    /// Waits until the log's replica has all that is forced.
    fn replicate(&self) -> Result<(), Failure> {
        Ok(())
    }
    /// Brings every committed change to its segment. Where it is there already, only a failure is to be told.
    fn truncate(&self) -> Result<(), Failure> {
        self.flush()
    }
    /// Its undecided transactions.
    fn undecided(&self) -> &dyn Undecided;

    // Life.

    /// Names of the threads that it wants.
    fn threads(&self) -> &'static [&'static str] {
        &[]
    }
    /// The life of one of them, until the store is closed or fails.
    fn run(&self, _thread: usize) {}
    /// What those threads do again and again, once: for stores opened without them.
    fn tend_flush(&self, _force: bool) -> Result<(), Failure> {
        self.flush()
    }
    fn tend_truncation(&self) -> Result<(), Failure> {
        self.flush()
    }
    /// Holds a transaction up while memory is short.
    fn wait_memory(&self) {}
    /// Dumps the open store to a stream, where that cannot be done from outside.
    fn dump(
        &self,
        _how: &DumpOptions,
        _watch: &Watch,
        _target: &mut dyn Write,
    ) -> Option<Result<Dumped, BackupError>> {
        None
    }
    /// Does what options ask that the store is not: when it has just been opened, or later.
    fn arrange(&self, _settings: &Settings, _opening: bool) -> Result<(), OpenError> {
        Ok(())
    }
    /// Where segments do not match their checksums, while the store is in use. None: there are no checksums.
    fn damaged(&self) -> Option<Result<Vec<(String, u64)>, BackupError>> {
        None
    }
    /// Makes again what they do not match, from dumps, archive and log.
    fn mend(
        &self,
        _settings: &Settings,
        _dumps: &mut dyn Read,
        _how: &RestoreOptions,
    ) -> Option<Result<Vec<Mended>, BackupError>> {
        None
    }
    /// Says how much write sets may take, by the present tuning.
    fn tuned(&self) {}
    /// Wakes everybody who waits for the policy, to look again: the tuning was changed, or the store is being
    /// closed.
    fn wake(&self) {}
    /// Says durably that all is in order; no thread runs any more, and no transaction is open.
    fn close(&self) -> Result<(), Failure>;

    // Looking.

    fn query(&self, _query: &mut Query) {}
    fn count(&self, _statistics: &mut Statistics) {}
    /// Pages of a region with committed changes that its segment lacks.
    fn dirty_pages(&self, _region: &RegionState) -> u64 {
        0
    }
}

/// An undecided transaction that one thread decides.
pub(crate) struct Claimed {
    /// The new values, as ranges of a record.
    pub body: Vec<u8>,
    /// The slot of its write set, if this process prepared it.
    pub slot: Option<usize>,
}

/// Why what recovery found was not taken up.
pub(crate) enum TakeUpError {
    /// The write set is to be undone: all is as it was.
    Undo(CommitError),
    /// The write set is the undecided transaction now.
    Keep(Failure),
}

/// Transactions that are durable and not decided: what a coordinator of distributed commitment needs.
pub(crate) trait Undecided {
    fn list(&self) -> Vec<Prepared>;
    /// The same, and those that somebody is preparing or deciding.
    fn list_all(&self) -> Vec<Prepared>;
    /// Refuses an identifier that cannot be used.
    fn check(&self, global_id: &[u8]) -> Result<(), CommitError>;
    /// Makes a write set durable and undecided; `suspend` leaves it in its slot, whose number it returns.
    fn prepare(
        &self,
        set: &WriteSet<'_>,
        global_id: &[u8],
        suspend: &mut dyn FnMut() -> usize,
    ) -> Result<(), CommitError>;
    /// Claims an undecided transaction for the one thread that decides it.
    fn claim(&self, global_id: &[u8]) -> Result<Claimed, CommitError>;
    /// Gives it back, undecided.
    fn unclaim(&self, global_id: &[u8]);
    /// A write set holds what recovery found, declared and stored where it is mapped: brings the rest, and makes
    /// it a transaction that this process has prepared, where that helps.
    fn take_up(&self, _global_id: &[u8], _claimed: &Claimed, _set: &WriteSet<'_>) -> Result<(), TakeUpError> {
        Ok(())
    }
    /// Makes the decision to commit durable, if there are new values, else that to abort: now, or at the latest
    /// when its write set is cleared. After a failure it is undecided.
    fn decide(&self, global_id: &[u8], committed: Option<&Claimed>) -> Result<(), Failure>;
    /// The same of one that this process has prepared, in class `Process`: durable with what is stamped so, or now.
    fn decide_lazily(&self, global_id: &[u8], committed: Option<&Claimed>) -> Result<Option<u64>, Failure> {
        self.decide(global_id, committed).map(|()| None)
    }
    /// A decided one has ended: its write set is clear.
    fn ended(&self, _global_id: &[u8]) {}
    /// The store is being closed: what this process has prepared becomes as recovery would find it, durably.
    /// Returns the slots, whose old values are to go back.
    fn leave(&self) -> Result<Vec<usize>, Failure>;
}
