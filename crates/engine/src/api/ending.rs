//! How transactions and their parts end: what the policy, the ways of tracking and the write set each have to
//! do, in order.

use crate::api::shared::Shared;
use crate::storage::error::{BranchError, RangeError};
use crate::storage::region::RegionState;
use crate::write_set::{Position, WriteSet};
use caliburn_os::simulated::planted;

impl Shared {
    /// A transaction is about to commit: all that it has changed is declared when this returns.
    pub fn committing(&self, set: &WriteSet<'_>) -> Result<(), RangeError> {
        let save =
            |set: &WriteSet<'_>, region: &RegionState, offset, len| self.save(set, region, offset, len);
        self.tracked.each(|way| way.committing(set, &save))
    }

    /// Ends a transaction, of which nothing is to be undone any more.
    pub fn end(&self, set: WriteSet<'_>) {
        self.tracked.all(|way| way.found(&mut |region, part| self.policy.changed(region, part)));
        self.tracked.ending(&set, &mut || {
            self.policy.clear(&set);
            set.end_branch();
            set.passed().release();
        });
        self.give_turn();
    }

    /// Puts the old values behind a position back into memory.
    fn restore(&self, set: &WriteSet<'_>, from: Position) {
        let _permit = self.storage.permit();
        self.policy.restore(set, from);
    }

    /// Ends a transaction with nothing changed.
    #[cold]
    #[inline(never)]
    pub fn undo_all(&self, set: WriteSet<'_>) {
        if self.storage.is_inherited() {
            set.suspend();
            return;
        }
        if std::thread::panicking() && set.has_branches() {
            // They may still be storing: nobody can tell any more what is to be restored.
            tracing::error!(
                "a transaction was dropped in a panic with open branches: it stays as it is until the store is opened again"
            );
            set.suspend();
            return;
        }
        set.check_branches();
        let restores = set.keeps_old() || self.terms.declared_only || self.terms.restores;
        let cannot = !restores && !set.is_empty();
        if cannot && self.storage.failure().is_ok() {
            // The memory may hold changes that can neither be kept nor undone. The slot stays taken for
            // good, so that no truncation writes those pages from memory; reopening the store clears it.
            tracing::error!(
                "a no-restore transaction was dropped without commit; its pages stay as they are in memory and are lost at the next opening"
            );
            set.suspend();
            self.give_turn();
            return;
        }
        {
            let _permit = self.storage.permit();
            self.tracked.all(|way| way.undoing());
        }
        self.restore(&set, Position::default());
        if set.is_branch() {
            set.counters().branches.add(1);
        } else {
            set.counters().aborted.add(1);
        }
        self.end(set);
    }

    pub fn begin_branch<'t>(&self, set: &WriteSet<'t>, branch: &WriteSet<'t>) -> Result<(), BranchError> {
        set.begin_branch(branch);
        Ok(self.policy.begin_branch(set, branch)?)
    }

    pub fn adopt(&self, set: &WriteSet<'_>, branch: &WriteSet<'_>) -> Result<(), RangeError> {
        assert!(branch.is_branch_of(set), "it is a branch of another transaction");
        self.policy.adopt(set, branch)?;
        self.sets.reserve.moved();
        self.tracked.all(|way| way.adopted(set, branch));
        Ok(())
    }

    /// Forgets a savepoint.
    pub fn release(&self, set: &WriteSet<'_>, serial: u64) {
        set.release_savepoint(serial, |to| self.policy.roll_back(set, to));
    }

    pub fn roll_back(&self, set: &WriteSet<'_>, serial: u64, to: Position) {
        self.restore(set, to);
        if !planted("rolled-back-unshortened") {
            self.tracked.shortening(&mut || self.policy.roll_back(set, to));
        }
        set.rolled_back(serial);
    }
}
