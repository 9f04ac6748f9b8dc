//! What a transaction asks of its store's policy, where declaring and committing in one step are not all: the one place
//! that tells the policies apart.

use crate::api::shared::Shared;
use crate::storage::class::Class;
use crate::storage::error::{BranchError, CommitError, RangeError};
use crate::storage::region::RegionState;
use crate::write_set::{Position, WriteSet};
use caliburn_os::simulated::planted;

/// Declares a range where more is to be done than to save it.
#[cold]
#[inline(never)]
pub(crate) fn declare_cold(
    store: &Shared,
    set: &WriteSet<'_>,
    region: &RegionState,
    offset: usize,
    len: usize,
) -> Result<(), RangeError> {
    if set.has_declared(region, offset, len) {
        store.reserve.step_aside(set, region, offset, len, store.page_size);
        return Ok(());
    }
    store.open_pages(set, region, offset, len)?;
    match &store.undo {
        Some(undo) => undo.save(set, region, offset, len, store.slots.sees_each()),
        None => store.save_redo(set, region, offset, len),
    }
}

impl Shared {
    /// Ends a transaction, of which nothing is to be undone any more.
    pub(crate) fn end(&self, set: WriteSet<'_>) {
        // Until it has ended, the verifier must not compare.
        let mut shadows = self.verifier.as_ref().map(|verifier| verifier.lock());
        if let Some(shadows) = &mut shadows {
            self.accept(shadows, &set);
        }
        match &self.undo {
            Some(undo) => undo.empty(&set, &self.table),
            None => self.clear_redo(&set),
        }
        set.end_branch();
        set.release();
    }

    /// Puts the old values behind a position back into memory.
    pub(crate) fn restore(&self, set: &WriteSet<'_>, from: Position) {
        let _permit = self.permit();
        match &self.undo {
            Some(undo) => undo.restore(set, &self.table, from, |segment, offset, bytes| {
                // Unmapped meanwhile, which whoever declared by address had promised not to do.
                let state = self.segment_state(segment).expect("a declared range is in a segment");
                drop(state.write_part(offset, bytes).map_err(|e| self.fail(e)));
            }),
            None => self.restore_redo(set, from),
        }
    }

    pub(crate) fn begin_branch<'t>(
        &self,
        set: &WriteSet<'t>,
        branch: &WriteSet<'t>,
    ) -> Result<(), BranchError> {
        set.begin_branch(branch);
        match &self.undo {
            Some(undo) => Ok(undo.begin_branch(set, branch)?),
            None => Ok(()),
        }
    }

    pub(crate) fn adopt(&self, set: &WriteSet<'_>, branch: &WriteSet<'_>) -> Result<(), RangeError> {
        assert!(branch.is_branch_of(set), "it is a branch of another transaction");
        match &self.undo {
            Some(undo) => undo.adopt(set, branch)?,
            None => self.adopt_redo(set, branch)?,
        }
        if !planted("guard-not-taken-over") {
            set.take_opened(branch);
        }
        Ok(())
    }

    pub(crate) fn roll_back(&self, set: &WriteSet<'_>, serial: u64, to: Position) {
        self.restore(set, to);
        if self.undo.is_none() {
            self.note_aborted(set, to);
        }
        match &self.undo {
            _ if planted("rolled-back-unshortened") => {}
            Some(undo) => undo.roll_back(set, to),
            None => set.shorten(to),
        }
        set.rolled_back(serial);
    }

    /// Whether a commit can survive what it is to survive.
    #[inline]
    pub(crate) fn reaches(&self, wanted: Class) -> Result<(), CommitError> {
        match wanted > self.reach {
            true => Err(CommitError::Class { wanted, reach: self.reach }),
            false => Ok(()),
        }
    }
}

/// Ends a transaction with nothing changed.
#[cold]
#[inline(never)]
pub(crate) fn undo_all(store: &Shared, set: WriteSet<'_>) {
    if std::thread::panicking() && set.has_branches() {
        // They may still be storing: nobody can tell any more what is to be restored.
        tracing::error!(
            "a transaction was dropped in a panic with open branches: it stays as it is until the store is opened again"
        );
        set.suspend();
        return;
    }
    set.check_branches();
    if !set.keeps_old() && !set.is_empty() && !store.declared_only && store.failure().is_ok() {
        // The memory may hold changes that can neither be kept nor undone. The slot stays taken for
        // good, so that no truncation writes those pages from memory; reopening the store clears it.
        tracing::error!(
            "a no-restore transaction was dropped without commit; its pages stay as they are in memory and are lost at the next opening"
        );
        set.suspend();
        return;
    }
    let skip = (store.undo.is_some() && planted("undo-not-restored"))
        || (store.undo.is_none() && planted("abort-without-undo"));
    if set.keeps_old() && !skip {
        store.restore(&set, Position::default());
    }
    if store.undo.is_none() {
        store.note_aborted(&set, Position::default());
    }
    if set.is_branch() {
        set.counters().branches.add(1);
    } else {
        set.counters().aborted.add(1);
    }
    store.end(set);
}
