//! Prepared transactions: durable but undecided, for coordinators of distributed commitment (RVM, section 8).
//!
//! ```text
//!   prepare --> undecided --> commit_prepared
//!                |    ^   \--> abort_prepared
//!                v    |
//!           crash, recovery
//! ```
//!
//! While undecided in the process that prepared it, the new values are in memory and the ranges stay declared.
//! After a crash, or a close, the old values are in memory; deciding to commit brings the new ones. What makes
//! both durable is the policy's.

use crate::api::shared::Shared;
use crate::api::store::Store;
use crate::api::ticket::Ticket;
use crate::policy::query::Prepared;
use crate::policy::{Claimed, TakeUpError, Undecided};
use crate::storage::class::Class;
use crate::storage::error::{CommitError, RangeError};
use crate::write_set::WriteSet;
use caliburn_log::record::Ranges;
use caliburn_os::{simulated, span};

impl Store {
    /// The undecided prepared transactions: those of this process and those that recovery found.
    ///
    /// # Panics
    /// As [`Store::segments`].
    pub fn prepared(&self) -> Vec<Prepared> {
        self.shared.storage.must_be_own();
        self.shared.policy.undecided().list()
    }

    /// The same, and those that another thread is preparing or deciding: for layers that keep something of their
    /// own until a transaction is decided, and must not take one that is not for one that is.
    ///
    /// # Panics
    /// As [`Store::segments`].
    pub fn prepared_or_deciding(&self) -> Vec<Prepared> {
        self.shared.storage.must_be_own();
        self.shared.policy.undecided().list_all()
    }

    /// Commits a prepared transaction, in the `Power` class; with the undo policy in the class that the store
    /// [reaches](Store::reach), and without a force if this process has prepared it.
    ///
    /// # Errors
    /// [`CommitError::NotPrepared`], or when the store has failed; undecided then.
    pub fn commit_prepared(&self, global_id: &[u8]) -> Result<(), CommitError> {
        self.decide(global_id, true, false).map(drop)
    }

    /// Commits a prepared transaction as [`Transaction::commit_ticket`](crate::Transaction::commit_ticket) does: in
    /// class `Process`, visibly at once. When the ticket says so it survives what the store
    /// [reaches](Store::reach); until then a crash may leave it undecided. Nobody is asked for the force: the next
    /// one does it, of whatever commit, or the end of the flush interval. What recovery has found is committed
    /// durably, as by [`Store::commit_prepared`].
    ///
    /// # Errors
    /// As [`Store::commit_prepared`].
    pub fn commit_prepared_ticket(&self, global_id: &[u8]) -> Result<Ticket, CommitError> {
        self.decide(global_id, true, true)
    }

    /// Aborts one, likewise: the old values are back, and a crash before the next force leaves it undecided.
    ///
    /// # Errors
    /// As [`Store::commit_prepared`].
    pub fn abort_prepared_ticket(&self, global_id: &[u8]) -> Result<Ticket, CommitError> {
        self.decide(global_id, false, true)
    }

    /// Aborts a prepared transaction, in the same class: the old values are back.
    ///
    /// # Errors
    /// As [`Store::commit_prepared`].
    pub fn abort_prepared(&self, global_id: &[u8]) -> Result<(), CommitError> {
        self.decide(global_id, false, false).map(drop)
    }

    fn decide(&self, global_id: &[u8], commit: bool, lazily: bool) -> Result<Ticket, CommitError> {
        self.shared.storage.own()?;
        let (shared, undecided) = (&*self.shared, self.shared.policy.undecided());
        let claimed = undecided.claim(global_id)?;
        let new = commit.then_some(&claimed);
        let mut stamp = None;
        match claimed.slot {
            None if commit => shared.bring(undecided, global_id, &claimed)?,
            Some(_) if lazily => stamp = undecided.decide_lazily(global_id, new)?,
            _ => undecided.decide(global_id, new)?,
        }
        if let Some(set) = claimed.slot.map(|number| shared.sets.slots.resume(number)) {
            match commit {
                true => shared.end(set),
                false => shared.undo_all(set),
            }
        }
        undecided.ended(global_id);
        shared.storage.kept()?;
        Ok(Ticket { store: shared.handle(), stamp, class: self.reach().max(Class::Power) })
    }
}

impl Shared {
    /// Commits what recovery found: brings the new values into the regions that are mapped, declared as by any
    /// transaction. For the rest the policy brings them to the segments, or lays them over later mappings.
    fn bring(
        &self,
        undecided: &dyn Undecided,
        global_id: &[u8],
        claimed: &Claimed,
    ) -> Result<(), CommitError> {
        let unclaim = |error: CommitError| {
            undecided.unclaim(global_id);
            error
        };
        for range in Ranges::of(&claimed.body) {
            self.storage.segment_of(range.segment).map_err(|error| unclaim(error.into()))?;
        }
        if self.terms.alone && !self.sets.turn.take() {
            let why = "this thread has begun a transaction that is open: it must end first";
            return Err(unclaim(CommitError::GlobalId { len: global_id.len(), why }));
        }
        let _mapping = self.storage.lock_mapping();
        let set = self.sets.slots.begin(self.terms.keeps_old[0]);
        if let Err(error) = self.declare_and_store(&set, &claimed.body) {
            // What was declared is not stored to yet.
            set.counters().aborted.add(1);
            self.end(set);
            return Err(unclaim(error.into()));
        }
        match undecided.take_up(global_id, claimed, &set) {
            Ok(()) => {}
            Err(TakeUpError::Undo(error)) => {
                self.undo_all(set);
                return Err(unclaim(error));
            }
            Err(TakeUpError::Keep(failure)) => {
                set.suspend();
                self.give_turn();
                return Err(failure.into());
            }
        }
        match undecided.decide(global_id, Some(claimed)) {
            Ok(()) => self.end(set),
            Err(failure) => {
                self.undo_all(set);
                return Err(failure.into());
            }
        }
        Ok(())
    }

    /// Stores new values where they are mapped, when all of them are declared.
    fn declare_and_store(&self, set: &WriteSet<'_>, body: &[u8]) -> Result<(), RangeError> {
        let mut parts = Vec::new();
        for range in Ranges::of(body) {
            let (mut offset, end) = (range.offset, range.offset + range.bytes.len() as u64);
            while let Some(region) = self.storage.region_from(range.segment, offset)
                && region.start < end
            {
                let part = offset.max(region.start)..end.min(region.end());
                let (at, len) = ((part.start - region.start) as usize, (part.end - part.start) as usize);
                self.declare_cold(set, &region, at, len)?;
                let from = (part.start - range.offset) as usize;
                parts.push((&range.bytes[from..from + len], region.at(at)));
                offset = part.end;
                if offset == end {
                    break;
                }
            }
        }
        let _permit = self.storage.permit();
        for (bytes, target) in parts {
            // SAFETY: the part lies in a region, which a declared range keeps mapped.
            unsafe { span::copy(bytes.as_ptr(), target, bytes.len()) };
            simulated::stored(target, bytes.len());
        }
        Ok(())
    }
}
