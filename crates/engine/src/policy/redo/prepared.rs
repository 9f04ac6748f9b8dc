//! Prepared transactions: durable but undecided, for coordinators of distributed commitment (RVM, section 8).
//!
//! ```text
//!   prepare: Prepare record forced ---> undecided ---> commit_prepared: Resolve record with the ranges, forced
//!                                        |   ^    \--> abort_prepared:  Forget record, forced
//!                                        v   |
//!                                      crash, recovery
//! ```
//!
//! While undecided in the process that prepared it, the new values are in memory and the ranges stay
//! declared, so no truncation writes them. After a crash the old values are in memory; deciding to commit
//! brings the new ones. The log keeps the Prepare record; when its space is needed, it is written anew at
//! the tail, for which room is always kept.

use crate::api::shared::Shared;
use crate::api::store::Store;
use crate::policy::redo::flusher::FlushBuffers;
use crate::storage::error::{CommitError, Failure};
use crate::storage::redo_ranges::RedoRanges;
use crate::write_set::Position;
use caliburn_log::SegmentId;
use caliburn_log::format::Lsn;
use caliburn_log::record::{FRAME, GLOBAL_ID_MAX, Kind, Ranges, Record, prefix};
use caliburn_os::clock::wall_ns;
use caliburn_os::simulated::planted;
use caliburn_os::span;
use std::collections::BTreeMap;
use std::ops::Range;

/// The undecided transactions by their global identifiers.
pub(crate) type PreparedTable = BTreeMap<Vec<u8>, Entry>;

/// One undecided transaction.
pub(crate) struct Entry {
    body: Vec<u8>,
    lsn: Lsn,
    time: u64,
    /// Its slot, if this process prepared it.
    slot: Option<usize>,
    /// Somebody is preparing or deciding it.
    deciding: bool,
}

/// An undecided transaction, as [`Store::prepared`] lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The identifier that it was prepared under.
    pub global_id: Vec<u8>,
    /// The bytes it changes: segment and offsets. To be kept from other transactions until it is decided.
    pub ranges: Vec<(SegmentId, Range<u64>)>,
    /// When it was prepared, nanoseconds since 1970.
    pub time: u64,
    /// Whether it was found by recovery: the memory then shows the old values.
    pub recovered: bool,
}

/// What recovery does with a record of a prepared transaction.
pub(crate) fn recover(table: &mut PreparedTable, record: &Record<'_>) {
    match record.kind {
        Kind::Prepare => {
            let entry = Entry {
                body: record.body().to_vec(),
                lsn: record.lsn,
                time: record.time,
                slot: None,
                deciding: false,
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
    table.values().map(|entry| entry.lsn).min().unwrap_or(Lsn(u64::MAX))
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
    table.iter_mut().map(|(id, entry)| (&id[..], &entry.body[..], &mut entry.lsn))
}

impl Shared {
    fn lock_prepared(&self) -> caliburn_os::sync::MutexGuard<'_, PreparedTable> {
        self.prepared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn prepared_bytes(&self) -> u64 {
        bytes(&self.lock_prepared())
    }

    pub(crate) fn oldest_prepared(&self) -> Lsn {
        oldest(&self.lock_prepared())
    }

    pub(crate) fn check_global_id(&self, global_id: &[u8]) -> Result<(), CommitError> {
        let why = match global_id.len() {
            1..=GLOBAL_ID_MAX if !self.lock_prepared().contains_key(global_id) => return Ok(()),
            1..=GLOBAL_ID_MAX => "a prepared transaction with this identifier is undecided",
            _ => "an identifier has 1 to 1024 bytes",
        };
        Err(CommitError::GlobalId { len: global_id.len(), why })
    }

    /// Forces the Prepare record, then takes the transaction's slot from it.
    pub(crate) fn prepare(
        &self,
        body: &[u8],
        global_id: &[u8],
        suspend: impl FnOnce() -> usize,
    ) -> Result<(), CommitError> {
        let mut work = self.lock_flush();
        let done = self.prepare_locked(&mut work, body, global_id, suspend);
        self.unlock_flush(work);
        done
    }

    fn prepare_locked(
        &self,
        work: &mut FlushBuffers,
        body: &[u8],
        global_id: &[u8],
        suspend: impl FnOnce() -> usize,
    ) -> Result<(), CommitError> {
        self.check_global_id(global_id)?;
        // Undecided transactions may take a quarter of the log: as much again is kept free to write them
        // anew, and half is left for everybody else.
        let own = record_bytes(global_id, body);
        let (needed, capacity) = (self.prepared_bytes() + own, self.live().log.capacity());
        if needed > capacity / 4 {
            return Err(CommitError::LogTooSmall { needed: needed * 4, capacity });
        }
        let horizon = self.flush_staged(work, false)?;
        self.wait_log(work.buffer(), 2 * own)?;
        // In the table before it is in the log, so that the head never passes it.
        let lsn = self.live().log.appended();
        let entry = Entry { body: body.to_vec(), lsn, time: wall_ns(), slot: None, deciding: true };
        self.lock_prepared().insert(global_id.to_vec(), entry);
        let prefix = prefix(Kind::Prepare, 1, global_id);
        let done = self
            .append_one(work.buffer(), Kind::Prepare, &prefix, body)
            .and_then(|_| if planted("prepare-not-forced") { Ok(()) } else { self.force_flushed(horizon) });
        let mut table = self.lock_prepared();
        match done {
            Ok(()) => {
                let entry = table.get_mut(global_id).expect("inserted above, under the flush lock");
                (entry.slot, entry.deciding) = (Some(suspend()), false);
                Ok(())
            }
            Err(failure) => {
                table.remove(global_id);
                Err(failure.into())
            }
        }
    }

    /// Writes old Prepare records anew at the tail, so that the head can pass them. Only for the holder
    /// of the flush lock, who is about to wait for space.
    pub(crate) fn relocate_prepared(&self, buffer: &mut Vec<u8>) -> Result<(), Failure> {
        let log = &self.live().log;
        let middle = Lsn(log.head().0 + log.used() / 2);
        let due: Vec<(Vec<u8>, Vec<u8>)> = {
            let table = self.lock_prepared();
            table.iter().filter(|(_, e)| e.lsn < middle).map(|(id, e)| (id.clone(), e.body.clone())).collect()
        };
        for (id, body) in due {
            if log.free() < record_bytes(&id, &body) {
                break;
            }
            let lsn = self.append_one(buffer, Kind::Prepare, &prefix(Kind::Prepare, 1, &id), &body)?;
            log.force().map_err(|e| self.fail(e))?;
            if let Some(entry) = self.lock_prepared().get_mut(&id) {
                entry.lsn = lsn;
            }
        }
        Ok(())
    }

    /// Claims an undecided transaction for the one thread that decides it.
    fn claim_prepared(&self, global_id: &[u8]) -> Result<(Vec<u8>, Option<usize>), CommitError> {
        if self.live.is_none() {
            return Err(CommitError::ReadOnly);
        }
        let mut table = self.lock_prepared();
        let entry = table.get_mut(global_id).filter(|entry| !entry.deciding);
        let entry =
            entry.ok_or_else(|| CommitError::NotPrepared(String::from_utf8_lossy(global_id).into_owned()))?;
        entry.deciding = true;
        Ok((entry.body.clone(), entry.slot))
    }

    /// Writes the decision. The transaction is off the table when it is durable; undecided after a failure.
    fn decide(&self, kind: Kind, global_id: &[u8], body: &[u8]) -> Result<Lsn, Failure> {
        let mut work = self.lock_flush();
        let done = self.append_forced(&mut work, kind, global_id, body);
        let end = self.live().log.appended();
        match &done {
            Ok(_) => drop(self.lock_prepared().remove(global_id)),
            Err(_) => self.unclaim(global_id),
        }
        self.unlock_flush(work);
        done.map(|_| end)
    }

    fn unclaim(&self, global_id: &[u8]) {
        if let Some(entry) = self.lock_prepared().get_mut(global_id) {
            entry.deciding = false;
        }
    }

    fn commit_prepared(&self, global_id: &[u8]) -> Result<(), CommitError> {
        let (body, slot) = self.claim_prepared(global_id)?;
        if let Some(number) = slot {
            self.decide(Kind::Resolve, global_id, &body)?;
            self.end(self.slots.resume(number));
            return Ok(());
        }
        // Found by recovery: bring the new values into the regions that are mapped, under announcements
        // as any transaction; for the rest they are what later mappings must lay over the segments.
        for range in Ranges::of(&body) {
            if let Err(error) = self.segment_of(range.segment) {
                self.unclaim(global_id);
                return Err(error.into());
            }
        }
        let _mapping = self.lock_mapping();
        let set = self.slots.begin(false);
        let mut parts = Vec::new();
        for range in Ranges::of(&body) {
            let mut done = 0;
            while done < range.bytes.len() {
                let offset = range.offset + done as u64;
                let Some(region) = self.region_of(range.segment, offset) else {
                    done += 1;
                    continue;
                };
                let len = (range.bytes.len() - done).min((region.end() - offset) as usize);
                let at = (offset - region.start) as usize;
                let opened = self.open_pages(&set, &region, at, len);
                if let Err(error) = opened.and_then(|()| self.save_redo(&set, &region, at, len)) {
                    // What was declared is not stored to yet.
                    set.counters().aborted.add(1);
                    self.end(set);
                    self.unclaim(global_id);
                    return Err(error.into());
                }
                parts.push((&range.bytes[done..done + len], region.at(at)));
                done += len;
            }
        }
        for (bytes, target) in parts {
            // SAFETY: the part lies in a region, which an announced range keeps mapped.
            unsafe { span::copy(bytes.as_ptr(), target, bytes.len()) };
        }
        let decided = self.decide(Kind::Resolve, global_id, &body);
        if let Ok(end) = decided {
            let mut unapplied = self.unapplied.write().expect("no panic under this lock");
            unapplied.get_or_insert_with(|| RedoRanges::none(end)).push(body, end);
            drop(unapplied);
            self.wake_truncation();
        }
        self.end(set);
        decided?;
        Ok(())
    }

    fn abort_prepared(&self, global_id: &[u8]) -> Result<(), CommitError> {
        let (_, slot) = self.claim_prepared(global_id)?;
        self.decide(Kind::Forget, global_id, &[])?;
        if let Some(number) = slot {
            let set = self.slots.resume(number);
            self.restore(&set, Position::default());
            self.note_aborted(&set, Position::default());
            set.counters().aborted.add(1);
            self.end(set);
        }
        Ok(())
    }
}

impl Store {
    /// The undecided prepared transactions: those of this process and those that recovery found.
    pub fn prepared(&self) -> Vec<Prepared> {
        let table = self.shared.lock_prepared();
        let list = table.iter().filter(|(_, entry)| !entry.deciding).map(|(id, entry)| Prepared {
            global_id: id.clone(),
            ranges: Ranges::of(&entry.body)
                .map(|r| (r.segment, r.offset..r.offset + r.bytes.len() as u64))
                .collect(),
            time: entry.time,
            recovered: entry.slot.is_none(),
        });
        list.collect()
    }

    /// Commits a prepared transaction, in the `Power` class.
    ///
    /// # Errors
    /// [`CommitError::NotPrepared`], or when the store has failed; undecided then.
    pub fn commit_prepared(&self, global_id: &[u8]) -> Result<(), CommitError> {
        self.shared.commit_prepared(global_id)
    }

    /// Aborts a prepared transaction, in the `Power` class: the old values are back.
    ///
    /// # Errors
    /// As [`Store::commit_prepared`].
    pub fn abort_prepared(&self, global_id: &[u8]) -> Result<(), CommitError> {
        self.shared.abort_prepared(global_id)
    }
}
