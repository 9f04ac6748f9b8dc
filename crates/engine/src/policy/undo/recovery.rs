//! The undo policy (Vista, sections 3 and 4): the segments are the store. They are mapped shared, in memory that
//! survives what a commit is to survive; before bytes are changed their old values go to the transaction's
//! undo log, in memory of the same kind.
//!
//! ```text
//!   declare:  old bytes to the undo log                     1 copy, no system call
//!   commit:   the log is emptied by one store
//!   abort:    old bytes back, newest first; the log is emptied
//!   opening:  the same for every log that is not empty; then the store is durably marked as in use
//!   closing:  the segments are forced; then the store is durably marked as in order
//! ```
//!
//! No log, no stage, no truncation, no background threads. On files the memory is the page cache: it survives
//! the process. A store that was in use when its memory was lost is refused at opening. On persistent memory the
//! same steps write cache lines back, in the order that `[`super::runs`] gives, and every commit survives what
//! the memory does.

use super::chunks::UndoChunks;
use crate::api::options::Options;
use crate::api::recovery::{self, UNDO};
use crate::api::shared::{Parts, Shared};
use crate::storage::catalog::Catalog;
use crate::storage::error::OpenError;
use crate::storage::redo_ranges::RedoRanges;
use crate::storage::segment::SegmentState;
use caliburn_log::Lsn;
use caliburn_log::record::push_range;
use caliburn_log::uncommitted::{self, Found, UndoError};
use caliburn_os::host::Lock;
use caliburn_os::medium::{Media, Medium};
use caliburn_os::persist::{Memory, Survives};
use caliburn_os::simulated::planted;
use std::path::Path;
use std::sync::Arc;

/// Makes the undo logs of a new store.
pub(crate) fn create(options: &Options, dir: &Path, catalog: &Catalog) -> Result<(), OpenError> {
    let (media, path) = (&*options.media, dir.join(UNDO));
    let _ = media.remove(&path);
    let medium = media.create(&path).map_err(OpenError::io("create undo logs", &path))?;
    let reach = options.memory(&*medium).survives.into();
    options.suffices(dir, (path, reach))?;
    let boot = media.boot_id().map_err(OpenError::io("read the boot's identity for", dir))?;
    Ok(uncommitted::create(&*medium, catalog.store, boot)?)
}

/// Opens a store with the undo policy; its catalog was read.
pub(crate) fn open(
    dir: &Path,
    options: &Options,
    catalog: Catalog,
    segments: Vec<Arc<SegmentState>>,
    lock: Lock,
) -> Result<Parts, OpenError> {
    let (media, write) = (&*options.media, !options.read_only);
    let path = dir.join(UNDO);
    let medium = media.open(&path, write).map_err(OpenError::io("open undo logs", &path))?;
    let boot = media.boot_id().map_err(OpenError::io("read the boot's identity for", dir))?;
    let sound = || -> Result<Found, OpenError> {
        let found = Found::read(&*medium, &catalog.store, &boot)?;
        found.uncommitted.iter().try_for_each(|log| check_ranges(log, &segments, &*medium))?;
        Ok(found)
    };
    let (found, damage) = match sound() {
        Ok(found) => (Some(found), None),
        Err(error @ (OpenError::Undo(UndoError::Bad { .. }) | OpenError::Stray { .. }))
            if options.salvage =>
        {
            (None, Some(error))
        }
        Err(error) => return Err(error),
    };
    let store = catalog.store;
    let mut parts = Parts { damage, ..Parts::new(catalog, segments, lock, media.limits()) };
    let all: Vec<_> = parts.segments.iter().map(|s| s.medium.clone()).chain([medium.clone()]).collect();
    let known: Vec<_> = all.iter().map(|m| (m.path().to_owned(), options.memory(&**m))).collect();
    parts.reach(dir, options, known.iter().map(|(path, m)| (path.clone(), m.survives.into())))?;
    let memory =
        known.into_iter().map(|(_, memory)| memory).reduce(Memory::and).expect("the undo logs' is there");
    let Some(found) = found else { return Ok(parts) };
    if !write {
        parts.unapplied = Some(old_values(&found));
        return Ok(parts);
    }
    if planted("undo-emptied-first") {
        found.empty(&*medium)?;
    }
    // 1 old values back
    for log in &found.uncommitted {
        for range in log.ranges_back() {
            let segment = parts.segments.iter().find(|s| s.id == range.segment).expect("checked above");
            segment.write_part(range.offset, range.bytes)?;
        }
    }
    // What is to be relied on after this boot: what was just restored, and what a process left that relied on less.
    let lasting = found.sealed() || memory.survives > Survives::Process;
    if lasting && !planted("undo-restored-unforced") {
        for segment in &parts.segments {
            segment.sync()?;
        }
    }
    // 2 the logs are empty, and only then; a second try begins with 1
    found.empty(&*medium)?;
    // 3 durably in use
    parts.undo = Some(UndoChunks::open(medium, store, boot, memory, &found)?);
    Ok(parts)
}

/// Refuses ranges that lie in no segment.
pub(crate) fn check_ranges(
    log: &uncommitted::Uncommitted,
    segments: &[Arc<SegmentState>],
    medium: &dyn Medium,
) -> Result<(), OpenError> {
    let known =
        |id, end: Option<u64>| segments.iter().any(|s| s.id == id && end.is_some_and(|e| e <= s.len()));
    let stray =
        log.ranges_back().into_iter().find(|r| !known(r.segment, r.offset.checked_add(r.bytes.len() as u64)));
    let Some(range) = stray else { return Ok(()) };
    let text = format!(
        "an undo log has a range at {} of segment {}, which has no such bytes",
        range.offset, range.segment.0
    );
    Err(OpenError::Stray { what: "undo logs", path: medium.path().to_owned(), offset: log.offset(), text })
}

/// What is to be laid over the segments to see the committed state without writing.
fn old_values(found: &Found) -> RedoRanges {
    let mut unapplied = RedoRanges::none(Lsn(0));
    for log in &found.uncommitted {
        let mut body = Vec::new();
        log.ranges_back().iter().for_each(|r| push_range(&mut body, r.segment, r.offset, r.bytes));
        unapplied.push(body, Lsn(0));
    }
    unapplied
}

impl Shared {
    /// Forces every segment, then says that the store is in order. If a process died with it in use, a force or a
    /// write back may have failed then, and the system shows what the medium lacks: everything is written again.
    pub fn close_undo(&self, undo: &UndoChunks) -> Result<(), crate::Failure> {
        let segments = self.segments.read().expect("no panic under this lock");
        if undo.suspect && !planted("undo-not-rewritten") {
            segments.iter().try_for_each(|segment| segment.rewrite()).map_err(|e| self.fail(e))?;
        }
        if !planted("undo-closed-unforced")
            && let Err(error) = segments.iter().try_for_each(|segment| segment.sync())
        {
            let failure = self.fail(error);
            // Reopened, it would look sound; as it is in persistent memory, where commits were written back.
            if undo.memory().survives == Survives::Process {
                let _ = undo.mark_damaged();
            }
            return Err(failure);
        }
        undo.mark_clean().map_err(|e| self.fail(e))
    }
}

/// Verifies the undo logs of a store; how many transactions are to be undone at its next opening.
pub(crate) fn check(
    media: &dyn Media,
    dir: &Path,
    store: &Catalog,
) -> Result<(Arc<dyn Medium>, Found), OpenError> {
    let path = dir.join(recovery::UNDO);
    let medium = media.open(&path, false).map_err(OpenError::io("open undo logs", &path))?;
    let boot = media.boot_id().map_err(OpenError::io("read the boot's identity for", dir))?;
    let found = Found::read(&*medium, &store.store, &boot)?;
    Ok((medium, found))
}
