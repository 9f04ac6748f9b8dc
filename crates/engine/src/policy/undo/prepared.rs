//! Prepared transactions with the undo policy: what makes them undecided is in memory that survives what the store
//! does, so that neither preparing nor deciding forces anything (Vista, section 6).
//!
//! ```text
//!   prepare:    the new values behind the old ones in the run, and last a mark with the identifier ---> undecided
//!   committed:  the run is emptied: one store
//!   aborted:    the run is cut back to the old values; they go back; the run is emptied
//! ```
//!
//! Recovery, and closing, put the old values back. Before they empty the run they write what it says to a file,
//! where it stays until it is decided. To commit it then is to prepare it again, and to commit that:
//!
//! ```text
//!   committed:  declare, store - the new values and the mark to the run - the file forgets it - the run is emptied
//!   aborted:    the file forgets it
//! ```
//!
//! Invariant: at every moment until it is decided, the run or the file says that a transaction is undecided; both
//! with the same values.

use super::Undo;
use crate::policy::parts::{body_of, parts};
pub(super) use crate::policy::prepared::list;
use crate::policy::prepared::{self, Entry};
use crate::policy::query;
use crate::policy::{Claimed, TakeUpError, Undecided};
use crate::storage::error::{CommitError, Failure, OpenError, RangeError};
use crate::storage::segment::SegmentState;
use crate::write_set::{Position, WriteSet};
use caliburn_log::SegmentId;
use caliburn_log::media_error::MediaError;
use caliburn_log::prepared::{Prepared, decode, encode};
use caliburn_log::record::{Range, Ranges};
use caliburn_log::uncommitted::{Found, UndoError};
use caliburn_os::clock::wall_ns;
use caliburn_os::host::Id;
use caliburn_os::medium::{Media, Medium, Replaced};
use caliburn_os::persist::Survives;
use caliburn_os::simulated::planted;
use caliburn_os::sync::MutexGuard;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The file in the store's directory.
pub(super) const PREPARED: &str = "prepared";

/// What says that a transaction is undecided.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// The run in its slot; where its old values end.
    Run(Position),
    /// The file.
    File,
    /// Nothing any more: it is aborted.
    Forgotten,
}

/// The undecided transactions, and where they are.
pub(super) type PreparedTable = prepared::Table<Place>;

/// Reads what the file says. None was written before there was something undecided.
pub(super) fn read(media: &dyn Media, dir: &Path, store: &Id) -> Result<Vec<Prepared>, OpenError> {
    let path = dir.join(PREPARED);
    let medium = match media.open(&path, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(OpenError::io("open undecided transactions", &path))?,
    };
    let bytes = read_whole(&*medium).map_err(OpenError::io("read undecided transactions", &path))?;
    let bad = |(offset, defect)| UndoError::Prepared { path, offset, defect };
    Ok(decode(&bytes, store).map_err(bad)?)
}

/// All of a file, which is as long as what is undecided.
fn read_whole(medium: &dyn Medium) -> io::Result<Vec<u8>> {
    let len = medium.len()?;
    if !medium.may_hold(len) {
        let text = format!("a file of {len} bytes, nearly all of them holes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let mut bytes = Vec::new();
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    bytes.try_reserve_exact(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    bytes.resize(len, 0);
    medium.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Makes the file say this, durably.
pub(super) fn write(
    media: &dyn Media,
    dir: &Path,
    store: Id,
    prepared: &[Prepared],
) -> Result<(), MediaError> {
    let path = dir.join(PREPARED);
    let fail = |e| MediaError::of_name("write undecided transactions", path.clone(), e);
    match media.replace(&path, &encode(store, prepared)).map_err(fail)? {
        Replaced::Durably => Ok(()),
        Replaced::Perhaps(error) => Err(fail(error)),
    }
}

/// Adds what undo logs say; whether they say something.
pub(super) fn add_runs(
    prepared: &mut Vec<Prepared>,
    found: &Found,
    medium: &dyn Medium,
) -> Result<bool, UndoError> {
    let mut any = false;
    for log in &found.uncommitted {
        if let Some(run) = found.prepared(medium, log)? {
            // Of a recovery that was cut short.
            prepared.retain(|other| other.global_id != run.global_id);
            prepared.push(run);
            any = true;
        }
    }
    Ok(any)
}

/// The table of what an opening has found.
pub(super) fn table(found: Vec<Prepared>) -> PreparedTable {
    let entry =
        |body, time| Entry { body, time, slot: None, deciding: false, decided: None, place: Place::File };
    found.into_iter().map(|found| (found.global_id, entry(found.body, found.time))).collect()
}

/// Writes a range to its segment, which is as ready as it was when this returns.
pub(super) fn put(segment: &SegmentState, range: &Range<'_>) -> Result<(), MediaError> {
    let stays = segment.is_held() || segment.file.has_room();
    segment.write_part(range.offset, range.bytes)?;
    if !stays {
        segment.sync()?;
        segment.rest();
    }
    Ok(())
}

impl Undo {
    pub(super) fn lock_prepared(&self) -> MutexGuard<'_, PreparedTable> {
        self.prepared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write_file(&self, table: &PreparedTable) -> Result<(), Failure> {
        let in_file = table.iter().filter(|(_, entry)| matches!(entry.place, Place::File));
        let kept: Vec<Prepared> = in_file
            .map(|(id, entry)| Prepared { global_id: id.clone(), time: entry.time, body: entry.body.clone() })
            .collect();
        write(&*self.storage.media, &self.storage.dir, self.chunks.store(), &kept)
            .map_err(|e| self.storage.fail(e))
    }

    /// Saves the old values of a transaction that recovery found where no region maps them, and brings the new ones,
    /// durably if that is what commits are. Regions are neither mapped nor unmapped meanwhile.
    fn bring_unmapped(&self, set: &WriteSet<'_>, body: &[u8]) -> Result<(), CommitError> {
        let mut touched: BTreeMap<SegmentId, Arc<SegmentState>> = BTreeMap::new();
        for range in Ranges::of(body) {
            let segment = self.storage.segment_of(range.segment)?;
            let (mut at, end) = (range.offset, range.offset + range.bytes.len() as u64);
            while at < end {
                let region = self.storage.region_from(range.segment, at).filter(|region| region.start < end);
                let until = region.as_ref().map_or(end, |region| region.start.max(at));
                if at < until {
                    let new = &range.bytes[(at - range.offset) as usize..(until - range.offset) as usize];
                    let mut old = vec![0; new.len()];
                    let failed = |e| CommitError::from(self.storage.fail(e));
                    segment.read(at, &mut old).map_err(failed)?;
                    if !planted("unmapped-not-saved") {
                        self.chunks.save_bytes(set, range.segment, at, &old).map_err(RangeError::from)?;
                    }
                    if !planted("decided-when-detached") {
                        self.storage.kept()?;
                    }
                    put(&segment, &Range { segment: range.segment, offset: at, bytes: new })
                        .map_err(failed)?;
                    touched.insert(range.segment, segment.clone());
                }
                at = region.map_or(end, |region| region.end().min(end));
            }
        }
        if self.chunks.memory().survives > Survives::Process {
            let forced = touched.values().try_for_each(|segment| segment.sync());
            forced.map_err(|e| self.storage.fail(e))?;
        }
        Ok(())
    }
}

impl Undecided for Undo {
    fn list(&self) -> Vec<query::Prepared> {
        prepared::list(&self.lock_prepared())
    }

    fn list_all(&self) -> Vec<query::Prepared> {
        prepared::list_all(&self.lock_prepared())
    }

    fn check(&self, global_id: &[u8]) -> Result<(), CommitError> {
        prepared::check(&self.lock_prepared(), global_id)
    }

    fn prepare(
        &self,
        set: &WriteSet<'_>,
        global_id: &[u8],
        suspend: &mut dyn FnMut() -> usize,
    ) -> Result<(), CommitError> {
        self.storage.failure()?;
        let body = body_of(&parts(&self.storage.table, &set.disjoint()));
        let (time, place) = (wall_ns(), Place::Run(set.position()));
        {
            let mut table = self.lock_prepared();
            prepared::check(&table, global_id)?;
            let entry = Entry { body: body.clone(), time, slot: None, deciding: true, decided: None, place };
            table.insert(global_id.to_vec(), entry);
        }
        let done = self.chunks.put_new(set, &body, time, global_id);
        let mut table = self.lock_prepared();
        if let Err(error) = done {
            table.remove(global_id);
            return Err(RangeError::from(error).into());
        }
        let entry = table.get_mut(global_id).expect("inserted above");
        (entry.slot, entry.deciding) = (Some(suspend()), false);
        drop(table);
        Ok(self.storage.kept()?)
    }

    fn claim(&self, global_id: &[u8]) -> Result<Claimed, CommitError> {
        prepared::claim(&mut self.lock_prepared(), global_id)
    }

    fn unclaim(&self, global_id: &[u8]) {
        prepared::unclaim(&mut self.lock_prepared(), global_id);
    }

    fn take_up(&self, global_id: &[u8], claimed: &Claimed, set: &WriteSet<'_>) -> Result<(), TakeUpError> {
        self.storage.failure().map_err(|failure| TakeUpError::Undo(failure.into()))?;
        self.bring_unmapped(set, &claimed.body).map_err(TakeUpError::Undo)?;
        let from = set.position();
        let mut table = self.lock_prepared();
        let time = table.get(global_id).expect("it was claimed").time;
        let mark = || {
            let marked = self.chunks.put_new(set, &claimed.body, time, global_id);
            marked.map_err(|error| TakeUpError::Undo(RangeError::from(error).into()))
        };
        let late = planted("forgotten-before-it-is-marked");
        if !late {
            mark()?;
        }
        if !planted("decided-when-detached") {
            self.storage.kept().map_err(|failure| TakeUpError::Undo(failure.into()))?;
        }
        let entry = table.get_mut(global_id).expect("it was claimed");
        (entry.place, entry.slot) = (Place::Run(from), Some(set.number()));
        let forgotten = if planted("found-not-forgotten") { Ok(()) } else { self.write_file(&table) };
        if let Err(failure) = forgotten {
            // The file may name it still, or not: the run does.
            table.get_mut(global_id).expect("it was claimed").deciding = false;
            return Err(TakeUpError::Keep(failure));
        }
        if late { mark() } else { Ok(()) }
    }

    fn decide(&self, global_id: &[u8], committed: Option<&Claimed>) -> Result<(), Failure> {
        let mut table = self.lock_prepared();
        let entry = table.get_mut(global_id).expect("it was claimed");
        match (entry.place, committed) {
            // Emptying the run is the commit, as it is of others that were begun before the store failed.
            (_, Some(_)) => Ok(()),
            (Place::Run(from), None) => {
                let set = self.sets.slots.resume(entry.slot.expect("this process prepared it"));
                self.chunks.shorten(&set, from);
                Ok(())
            }
            (Place::File | Place::Forgotten, None) => {
                entry.place = Place::Forgotten;
                self.write_file(&table).inspect_err(|_| {
                    let entry = table.get_mut(global_id).expect("it was there");
                    (entry.place, entry.deciding) = (Place::File, false);
                })
            }
        }
    }

    /// Until here nobody else prepares under its name.
    fn ended(&self, global_id: &[u8]) {
        self.lock_prepared().remove(global_id);
    }

    fn leave(&self) -> Result<Vec<usize>, Failure> {
        let mut table = self.lock_prepared();
        let mut runs = Vec::new();
        for entry in table.values_mut() {
            if let (Place::Run(from), Some(slot)) = (entry.place, entry.slot) {
                runs.push((slot, from));
                (entry.place, entry.slot) = (Place::File, None);
            }
        }
        if !runs.is_empty() && !planted("undecided-not-left") {
            self.write_file(&table)?;
        }
        for (slot, from) in &runs {
            self.chunks.shorten(&self.sets.slots.resume(*slot), *from);
        }
        Ok(runs.into_iter().map(|(slot, _)| slot).collect())
    }
}
