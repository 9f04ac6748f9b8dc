//! The fuzzy checkpoint: after the death of a process only the log after it is replayed.
//!
//! Every so often pages are written to their segments and not forced (steps 1 to 5 of
//! [`incremental`](super::incremental)), so that the segments, as the page cache has them, are up to date to some
//! place in the log, which the stage records. While segments are being forced the checkpoint is withdrawn: the
//! kernel reports a lost write-back once, and a process killed just then could have taken the report with it.

use super::Redo;
use super::truncation::Unforced;
use crate::storage::error::{Failure, SegmentError};
use crate::storage::segment;
use caliburn_log::format::Lsn;
use caliburn_log::staged_tail::Checkpoint;
use caliburn_os::simulated::{instead, planted};
use caliburn_os::sync::atomic::Ordering;
use std::collections::BTreeSet;

impl Redo {
    /// Makes a checkpoint of all of the log: nothing was appended for a while.
    pub(super) fn checkpoint_rest(&self) -> Result<(), Failure> {
        self.checkpoint_beyond(&mut self.lock_truncation(), 0)
    }

    /// Makes a checkpoint if more than so many bytes of log came since the last, and somebody could rely on it.
    pub(super) fn checkpoint_beyond(&self, unforced: &mut Unforced, most: u64) -> Result<(), Failure> {
        if self.bytes_since_checkpoint() <= most {
            return Ok(());
        }
        let appended = self.log.tail();
        self.truncation.checkpoint.store(appended.0, Ordering::Relaxed);
        if self.cache_identity().is_some() {
            let mut blocked = BTreeSet::new();
            while self.write_batch(unforced, appended, &|_| true, &mut blocked)?.is_none() {}
            self.set_checkpoint();
        }
        Ok(())
    }

    /// Bytes of log since the last checkpoint at which the next is made.
    pub(super) fn checkpoint_every_bytes(&self) -> u64 {
        self.log.capacity() / 16
    }

    /// Bytes of log since the last checkpoint.
    pub(super) fn bytes_since_checkpoint(&self) -> u64 {
        if self.declared_only {
            return 0;
        }
        self.log.tail().0.saturating_sub(self.truncation.checkpoint.load(Ordering::Relaxed))
    }

    /// Forces a segment outside of truncation.
    pub(super) fn force_aside(
        &self,
        force: impl FnOnce() -> Result<(), SegmentError>,
    ) -> Result<(), SegmentError> {
        let _truncation = self.lock_truncation();
        if !planted("checkpoint-while-growing") {
            self.stage.set_checkpoint(None);
        }
        self.storage.kept()?;
        force()?;
        self.set_checkpoint();
        Ok(())
    }

    /// The first record whose changes the segments may lack; none before the log found at opening is applied.
    pub(super) fn redo_lsn(&self) -> Option<Lsn> {
        if self.is_unapplied() {
            return None;
        }
        // In this order: a transaction that prepares is in the table before its record is marked, and its
        // record is marked before it is forced; one that is decided leaves the table when its changes are
        // marked, and the decision is durable.
        let forced = self.log.forced();
        let oldest = self.lock_pages().oldest();
        let prepared = instead("prepared-passed", self.oldest_prepared(), Lsn(u64::MAX));
        Some(forced.min(oldest).min(prepared))
    }

    /// Records in the stage up to where segments have the changes of the log. In a failed store pages may be off
    /// the queue and not written.
    pub(super) fn set_checkpoint(&self) {
        if self.storage.failure().is_err() {
            return;
        }
        let Some(before) = self.redo_lsn() else { return };
        let before = instead("checkpoint-too-far", before, self.log.forced());
        self.stage.set_checkpoint(self.cache_identity().map(|caches| Checkpoint { before, caches }));
    }

    /// A digest of the page caches that the segments lie in, which are watched from now on.
    pub(super) fn cache_identity(&self) -> Option<u64> {
        let segments = self.storage.segments.read().expect("no panic under this lock");
        segments.iter().filter_map(|segment| segment.file.held()).for_each(|medium| medium.watch());
        segment::cache_identity(&segments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Class, Mode, Store};
    use caliburn_log::staged_tail::StagedTail;
    use caliburn_os::files::Files;
    use caliburn_os::medium::Media;
    use caliburn_os::witness::{Look, Seen};
    use std::any::Any;
    use std::time::Duration;

    fn redo(store: &Store) -> &Redo {
        let policy: &dyn Any = &*store.shared.policy;
        policy.downcast_ref().expect("it is a store with the redo policy")
    }

    /// What a process that finds the store now would be told of what the segments show.
    fn told(store: &Store) -> Option<Checkpoint> {
        let stage = Files.open(&store.path().join("stage"), false).unwrap();
        let seen = Seen::of(&Files, &[Look::at(&*stage)]).unwrap();
        StagedTail::read(&*stage, &store.shared.storage.id, &seen).unwrap().checkpoint
    }

    #[test]
    fn what_was_committed_is_shown_up_to_what_is_still_declared() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Store::options();
        let store =
            options.create(true).log_bytes(1 << 20).background(false).open(dir.path().join("s")).unwrap();
        let segment = store.create_segment("data", 1 << 20).unwrap();
        let region = segment.map_all().unwrap();
        if redo(&store).cache_identity().is_none() {
            eprintln!("not tested: of this file system nothing can be told after a process is gone");
            return;
        }
        let commit = |at: usize| {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.write(&region, at, &[7; 3000]).unwrap();
            tx.commit(Class::Process).unwrap();
        };
        // The log begins at 0, which says that nothing is known.
        commit(8192);
        store.tend_flush(false).unwrap();
        commit(0);
        let mut open = store.begin(Mode::Restore).unwrap();
        open.write(&region, 0, &[8; 8]).unwrap();
        store.tend_flush(false).unwrap();
        let first = redo(&store).log.tail();
        (1..40).for_each(|page| commit(page * 8192));
        store.tend_flush(false).unwrap();
        store.tend_truncation().unwrap();
        let log = &redo(&store).log;
        assert!(log.used() > 100_000 && log.head() < first, "the head has moved");
        let checkpoint = told(&store).expect("more than a sixteenth of the log was not shown");
        assert!(checkpoint.before < first, "a declared page is said to be shown");
        open.abort();
        (40..70).for_each(|page| commit(page * 8192));
        store.tend_flush(false).unwrap();
        store.tend_truncation().unwrap();
        assert_eq!(told(&store).unwrap().before, log.tail());
        assert!(log.head() < first, "the head has moved");
    }

    #[test]
    fn all_is_shown_when_nothing_more_is_committed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::options().create(true).log_bytes(1 << 20).open(dir.path().join("s")).unwrap();
        let segment = store.create_segment("data", 1 << 20).unwrap();
        let region = segment.map_all().unwrap();
        if redo(&store).cache_identity().is_none() {
            eprintln!("not tested: of this file system nothing can be told after a process is gone");
            return;
        }
        let end = std::time::Instant::now() + Duration::from_secs(20);
        // It looks once when it begins, and would see what was committed by then.
        while !redo(&store).truncation.is_asleep() {
            assert!(std::time::Instant::now() < end, "truncation does not sleep");
            std::thread::yield_now();
        }
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&region, 0, &[7; 3000]).unwrap();
        tx.commit(Class::Power).unwrap();
        let log = &redo(&store).log;
        assert!(log.used() < redo(&store).checkpoint_every_bytes(), "it would be shown anyway");
        while told(&store).is_none_or(|checkpoint| checkpoint.before < log.tail()) {
            assert!(std::time::Instant::now() < end, "{:?} is shown of {:?}", told(&store), log.tail());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(log.used() > 0, "the log was truncated, which is not the same");
    }
}
