//! Prepared transactions, durable but undecided: their records in the log.
//!
//! ```text
//!   prepare: Prepare record forced ---> undecided ---> committed: Resolve record with the ranges
//!                                        |   ^    \--> aborted:   Forget record
//!                                        v   |
//!                                      crash, recovery
//! ```
//!
//! The log keeps the Prepare record until the decision is durable; when its space is needed, it is written anew at
//! the tail, for which room is always kept. As long as the ranges are declared, no truncation writes them.
//!
//! Invariant: no Prepare record is behind its decision, or recovery would find it undecided.

use super::Redo;
use super::flusher::FlushBuffers;
use crate::policy::parts::{body_of, parts};
use crate::policy::prepared::{self, Entry};
pub(super) use crate::policy::prepared::{list, segments};
use crate::policy::query::Prepared;
use crate::policy::{Claimed, Undecided};
use crate::storage::error::{CommitError, Failure};
use crate::storage::redo_ranges::RedoRanges;
use crate::write_set::WriteSet;
use caliburn_log::format::LOG_BYTES_MAX;
use caliburn_log::format::Lsn;
use caliburn_log::record::{FRAME, Kind, Record, prefix};
use caliburn_os::clock::wall_ns;
use caliburn_os::simulated::planted;
use caliburn_os::sync::MutexGuard;

/// The undecided transactions, and where their records are.
pub(crate) type PreparedTable = prepared::Table<Lsn>;

/// What recovery does with a record of a prepared transaction.
pub(crate) fn recover(table: &mut PreparedTable, record: &Record<'_>) {
    match record.kind {
        Kind::Prepare => {
            let entry = Entry {
                body: record.body().to_vec(),
                time: record.time,
                slot: None,
                deciding: false,
                decided: None,
                place: record.lsn,
            };
            table.insert(record.global_id.to_vec(), entry);
        }
        Kind::Resolve | Kind::Forget if planted("decision-forgotten") => {}
        Kind::Resolve | Kind::Forget => {
            table.remove(record.global_id);
        }
        Kind::Commit | Kind::Group => {}
    }
}

/// First record of an undecided transaction.
pub(crate) fn oldest(table: &PreparedTable) -> Lsn {
    table.values().map(|entry| entry.place).min().unwrap_or(Lsn(u64::MAX))
}

/// Bytes that their records take together.
pub(crate) fn bytes(table: &PreparedTable) -> u64 {
    table.iter().map(|(id, entry)| record_bytes(id, &entry.body)).sum()
}

fn record_bytes(global_id: &[u8], body: &[u8]) -> u64 {
    (FRAME + prefix(Kind::Prepare, 1, global_id).len() + body.len()) as u64
}

/// Every entry with its body, to be written anew; the position is filled in afterwards.
pub(crate) fn entries(table: &mut PreparedTable) -> impl Iterator<Item = (&[u8], &[u8], &mut Lsn)> {
    table.iter_mut().map(|(id, entry)| (&id[..], &entry.body[..], &mut entry.place))
}

/// The record of a decision.
fn decision(committed: Option<&Claimed>) -> (Kind, &[u8]) {
    match committed {
        Some(claimed) => (Kind::Resolve, &claimed.body),
        None => (Kind::Forget, &[]),
    }
}

impl Redo {
    fn lock_prepared(&self) -> MutexGuard<'_, PreparedTable> {
        self.prepared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The table, without those whose decisions have become durable.
    fn lock_undecided(&self) -> MutexGuard<'_, PreparedTable> {
        let mut table = self.lock_prepared();
        let forced = self.log.forced();
        table.retain(|_, entry| entry.decided.is_none_or(|end| end > forced));
        table
    }

    pub(super) fn prepared_bytes(&self) -> u64 {
        bytes(&self.lock_undecided())
    }

    pub(super) fn oldest_prepared(&self) -> Lsn {
        oldest(&self.lock_undecided())
    }

    /// Appends the Prepare record. Durable when all is that was stamped up to now.
    fn append_prepare(
        &self,
        work: &mut FlushBuffers,
        body: &[u8],
        global_id: &[u8],
    ) -> Result<(), CommitError> {
        self.check(global_id)?;
        // What was decided keeps its identifier until that is durable.
        if self.lock_undecided().contains_key(global_id) {
            self.force_decisions()?;
        }
        // Undecided transactions may take a quarter of the log: as much again is kept free to write them
        // anew, and half is left for everybody else.
        let own = record_bytes(global_id, body);
        let capacity = self.log.capacity();
        if self.prepared_bytes() + own > capacity / 4 {
            // What is decided need not count.
            self.force_decisions()?;
        }
        let needed = self.prepared_bytes() + own;
        if needed > capacity / 4 {
            return Err(CommitError::LogTooSmall { needed: needed * 4, capacity });
        }
        self.flush_staged(work, false)?;
        self.wait_log(work.buffer(), 2 * own)?;
        // In the table before it is in the log, so that the head never passes it.
        let entry = Entry {
            body: body.to_vec(),
            time: wall_ns(),
            slot: None,
            deciding: true,
            decided: None,
            place: self.log.tail(),
        };
        self.lock_prepared().insert(global_id.to_vec(), entry);
        let prefix = prefix(Kind::Prepare, 1, global_id);
        self.append_one(work.buffer(), Kind::Prepare, &prefix, body).map(drop).map_err(|failure| {
            self.lock_prepared().remove(global_id);
            failure.into()
        })
    }

    /// Makes decisions durable, if there are any that are not: all of them are in the log. Only for the holder of
    /// the flush lock.
    fn force_decisions(&self) -> Result<(), Failure> {
        match self.lock_undecided().values().any(|entry| entry.decided.is_some()) {
            true => self.log.force().map_err(|e| self.fail(e)),
            false => Ok(()),
        }
    }

    /// Writes old Prepare records anew at the tail, so that the head can pass them. Only for the holder
    /// of the flush lock, who is about to wait for space.
    pub(super) fn relocate_prepared(&self, buffer: &mut Vec<u8>) -> Result<(), Failure> {
        let log = &self.log;
        if !planted("decided-written-anew") {
            self.force_decisions()?;
        }
        let middle = Lsn(log.head().0 + log.used() / 2);
        let due: Vec<(Vec<u8>, Vec<u8>)> = {
            let table = self.lock_undecided();
            table
                .iter()
                .filter(|(_, e)| e.place < middle)
                .map(|(id, e)| (id.clone(), e.body.clone()))
                .collect()
        };
        for (id, body) in due {
            if log.free() < record_bytes(&id, &body) {
                break;
            }
            let lsn = self.append_one(buffer, Kind::Prepare, &prefix(Kind::Prepare, 1, &id), &body)?;
            log.force().map_err(|e| self.fail(e))?;
            if let Some(entry) = self.lock_prepared().get_mut(&id) {
                entry.place = lsn;
            }
        }
        Ok(())
    }
}

impl Undecided for Redo {
    fn list(&self) -> Vec<Prepared> {
        prepared::list(&self.lock_prepared())
    }

    fn list_all(&self) -> Vec<Prepared> {
        prepared::list_all(&self.lock_prepared())
    }

    fn check(&self, global_id: &[u8]) -> Result<(), CommitError> {
        prepared::check(&self.lock_prepared(), global_id)
    }

    /// Forces the Prepare record, together with whatever else is to be forced, then takes the transaction's slot
    /// from it.
    fn prepare(
        &self,
        set: &WriteSet<'_>,
        global_id: &[u8],
        suspend: &mut dyn FnMut() -> usize,
    ) -> Result<(), CommitError> {
        self.overflow_intact()?;
        let body = body_of(&parts(&self.storage.table, &set.disjoint()));
        self.overflow_intact()?;
        let append = || {
            let mut work = self.lock_flush();
            let appended = self.append_prepare(&mut work, &body, global_id);
            let end = self.log.tail();
            self.unlock_flush(work);
            appended.map(|()| end)
        };
        let end = loop {
            match append() {
                // Others may take what it has grown by.
                Err(CommitError::LogTooSmall { needed, .. })
                    if self.may_grow() && needed <= LOG_BYTES_MAX =>
                {
                    self.grow_log(needed)?;
                }
                done => break done?,
            }
        };
        // A round that takes its horizon behind this stamp forces behind the record.
        let stamp = self.stage.lanes().now();
        let done = if planted("prepare-not-forced") { Ok(()) } else { self.wait_forced(stamp, false) };
        let done = done.and_then(|()| self.wait_replica_end(end));
        let mut table = self.lock_prepared();
        if let Err(failure) = done {
            table.remove(global_id);
            return Err(failure.into());
        }
        let entry = table.get_mut(global_id).expect("nobody decides what is being prepared");
        (entry.slot, entry.deciding) = (Some(suspend()), false);
        Ok(())
    }

    fn claim(&self, global_id: &[u8]) -> Result<Claimed, CommitError> {
        prepared::claim(&mut self.lock_prepared(), global_id)
    }

    fn unclaim(&self, global_id: &[u8]) {
        prepared::unclaim(&mut self.lock_prepared(), global_id);
    }

    /// The transaction is off the table when the decision is durable.
    fn decide(&self, global_id: &[u8], committed: Option<&Claimed>) -> Result<(), Failure> {
        let (kind, body) = decision(committed);
        let mut work = self.lock_flush();
        let done = self.append_forced(&mut work, kind, global_id, body);
        let found = committed.filter(|claimed| done.is_ok() && claimed.slot.is_none());
        if let Some(claimed) = found {
            // Recovery found it: its values are in memory where regions were mapped, and nowhere else. From here
            // they keep the head back, and until here the table does.
            let end = self.log.tail();
            let mut unapplied = self.unapplied.write().expect("no panic under this lock");
            unapplied.get_or_insert_with(|| RedoRanges::none(end)).push(claimed.body.clone(), end);
        }
        match &done {
            Ok(_) => drop(self.lock_prepared().remove(global_id)),
            Err(_) => self.unclaim(global_id),
        }
        let end = self.log.tail();
        self.unlock_flush(work);
        if found.is_some() {
            self.wake_truncation();
        }
        done?;
        self.wait_replica_end(end)
    }

    /// The transaction stays on the table until the decision is durable: so the head does not pass its record.
    fn decide_lazily(&self, global_id: &[u8], committed: Option<&Claimed>) -> Result<Option<u64>, Failure> {
        let (kind, body) = decision(committed);
        let mut work = self.lock_flush();
        let flushed = self.flush_staged(&mut work, false);
        let done = flushed.and_then(|_| self.append_when_room(&mut work, kind, global_id, body));
        // A round that takes its horizon behind this stamp forces behind the record.
        let (stamp, end) = (self.stage.lanes().now(), self.log.tail());
        let mut table = self.lock_prepared();
        match &done {
            Ok(_) if planted("decided-off-the-table") => drop(table.remove(global_id)),
            Ok(_) => {
                let entry = table.get_mut(global_id).expect("it was claimed");
                (entry.slot, entry.decided) = (None, Some(end));
            }
            Err(_) => prepared::unclaim(&mut table, global_id),
        }
        drop(table);
        self.unlock_flush(work);
        done?;
        self.staged(false);
        Ok(Some(stamp))
    }

    /// Their records are in the log.
    fn leave(&self) -> Result<Vec<usize>, Failure> {
        Ok(self.lock_prepared().values_mut().filter_map(|entry| entry.slot.take()).collect())
    }
}
