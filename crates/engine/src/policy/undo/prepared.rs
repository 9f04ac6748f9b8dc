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
//! where it stays until it is decided:
//!
//! ```text
//!   committed:  declare, store - the file says so ---> committed - the run of that is emptied - the file forgets it
//!   aborted:    the file forgets it
//!   recovery:   what the file says was committed goes to the segments once more - the file forgets it
//! ```
//!
//! Invariant: at every moment the run or the file says that a transaction is undecided; both only before the old
//! values are back.
//! Invariant: the file says that one is committed only while nobody else can change its bytes: deciding it has not
//! returned, or the store is being opened. What the file says then is newer than every run.

use super::Undo;
use crate::policy::parts::{body_of, parts};
pub(super) use crate::policy::prepared::list;
use crate::policy::prepared::{self, Entry};
use crate::policy::query;
use crate::policy::{Claimed, Undecided};
use crate::storage::error::{CommitError, Failure, OpenError, RangeError};
use crate::storage::segment::SegmentState;
use crate::write_set::{Position, WriteSet};
use caliburn_log::media_error::MediaError;
use caliburn_log::prepared::{Prepared, decode, encode};
use caliburn_log::record::{Range, Ranges};
use caliburn_log::uncommitted::{Uncommitted, UndoError};
use caliburn_os::clock::wall_ns;
use caliburn_os::host::Id;
use caliburn_os::medium::{Media, Replaced};
use caliburn_os::persist::Survives;
use caliburn_os::simulated::{planted, unless};
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
    /// It was committed, and the file says so.
    Committed,
    /// It was aborted, and the file does not name it any more.
    Forgotten,
}

/// The undecided transactions, and where they are.
pub(super) type PreparedTable = prepared::Table<Place>;

/// Reads what the file says. None was written before there was something undecided.
pub(super) fn read(media: &dyn Media, dir: &Path, store: &Id) -> Result<Vec<Prepared>, OpenError> {
    let path = dir.join(PREPARED);
    match media.read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => {
            let bytes = other.map_err(OpenError::io("read undecided transactions", &path))?;
            let bad = |(offset, defect)| UndoError::Prepared { path, offset, defect };
            Ok(decode(&bytes, store).map_err(bad)?)
        }
    }
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
pub(super) fn add_runs(prepared: &mut Vec<Prepared>, runs: &[Uncommitted]) -> bool {
    let mut found = false;
    for run in runs.iter().filter_map(Uncommitted::prepared) {
        // Of a recovery that was cut short.
        prepared.retain(|other| other.global_id != run.global_id);
        prepared.push(run);
        found = true;
    }
    found
}

/// The table of what an opening has found, without what is committed.
pub(super) fn table(found: &[Prepared]) -> PreparedTable {
    let undecided = found.iter().filter(|prepared| !prepared.committed);
    let entry = |prepared: &Prepared| Entry {
        body: prepared.body.clone(),
        time: prepared.time,
        slot: None,
        deciding: false,
        place: Place::File,
    };
    undecided.map(|prepared| (prepared.global_id.clone(), entry(prepared))).collect()
}

/// Brings to the segments what is said to be committed, and has it forgotten when it is there. The table of the
/// rest.
pub(super) fn lay_committed(
    mut found: Vec<Prepared>,
    segments: &[Arc<SegmentState>],
    lasting: bool,
    write: impl FnOnce(&[Prepared]) -> Result<(), MediaError>,
) -> Result<PreparedTable, MediaError> {
    let by_id: BTreeMap<_, _> = segments.iter().map(|segment| (segment.id, segment)).collect();
    let all = found.len();
    for committed in found.iter().filter(|prepared| prepared.committed && !planted("committed-not-laid")) {
        for range in Ranges::of(&committed.body) {
            put(by_id[&range.segment], &range)?;
        }
    }
    found.retain(|prepared| !prepared.committed);
    if found.len() < all {
        if unless("committed-laid-unforced", lasting) {
            segments.iter().try_for_each(|segment| segment.sync())?;
        }
        write(&found)?;
    }
    Ok(table(&found))
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
        let mut kept = Vec::new();
        for (id, entry) in table {
            let committed = match entry.place {
                Place::Run(_) | Place::Forgotten => continue,
                Place::File => false,
                Place::Committed => true,
            };
            let (global_id, body) = (id.clone(), entry.body.clone());
            kept.push(Prepared { global_id, time: entry.time, committed, body });
        }
        write(&*self.storage.media, &self.storage.dir, self.chunks.store(), &kept)
            .map_err(|e| self.storage.fail(e))
    }

    /// Brings new values to their segments, whether they are mapped or not.
    fn lay(&self, body: &[u8]) -> Result<(), Failure> {
        let mut done = Ok(());
        for range in Ranges::of(body) {
            let segment = self.storage.segment_state(range.segment).expect("it was looked for before");
            done = done.and_then(|()| put(&segment, &range));
            if self.chunks.memory().survives > Survives::Process {
                done = done.and_then(|()| segment.sync());
            }
        }
        done.map_err(|e| self.storage.fail(e))
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
            let entry = Entry { body: body.clone(), time, slot: None, deciding: true, place };
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
        Ok(())
    }

    fn claim(&self, global_id: &[u8]) -> Result<Claimed, CommitError> {
        prepared::claim(&mut self.lock_prepared(), global_id)
    }

    fn unclaim(&self, global_id: &[u8]) {
        prepared::unclaim(&mut self.lock_prepared(), global_id);
    }

    fn decide(&self, global_id: &[u8], committed: Option<&Claimed>) -> Result<(), Failure> {
        let mut table = self.lock_prepared();
        let entry = table.get_mut(global_id).expect("it was claimed");
        if let Err(failure) = self.storage.failure() {
            entry.deciding = false;
            return Err(failure);
        }
        match (entry.place, committed) {
            // Emptying the run is the commit.
            (Place::Run(_), Some(_)) => return Ok(()),
            (Place::Run(from), None) => {
                let set = self.sets.slots.resume(entry.slot.expect("this process prepared it"));
                self.chunks.shorten(&set, from);
                return Ok(());
            }
            (_, Some(_)) if planted("commit-not-in-the-file") => {}
            (_, Some(_)) => entry.place = Place::Committed,
            (_, None) => entry.place = Place::Forgotten,
        }
        if let Err(failure) = self.write_file(&table) {
            let entry = table.get_mut(global_id).expect("it was there");
            (entry.place, entry.deciding) = (Place::File, false);
            return Err(failure);
        }
        drop(table);
        committed.map_or(Ok(()), |claimed| self.lay(&claimed.body))
    }

    /// The run is empty: from here on others may change the same bytes.
    fn ended(&self, global_id: &[u8]) {
        let mut table = self.lock_prepared();
        let Some(entry) = table.remove(global_id) else { return };
        if matches!(entry.place, Place::Committed) && !planted("committed-not-forgotten") {
            // If this fails, so has the store: nobody changes anything before it is opened again.
            let _ = self.write_file(&table);
        }
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
