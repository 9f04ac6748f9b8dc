//! Creating, opening and checking stores with the undo policy.
//!
//! ```text
//!   1 old values of every undo log that is not empty go back, newest first
//!   2 what prepared transactions were to change, which the logs say, goes to a file
//!   3 the undo logs are emptied
//!   4 the store is durably marked as in use
//! ```
//!
//! Cut short, recovery begins again with 1, to the same result. A store that was in use when its memory was lost
//! is refused.

use super::Undo;
use super::chunks::UndoChunks;
use super::prepared;
use crate::policy::kind::{Closed, New, Opened, Opening, Policy};
use crate::policy::query::LogInfo;
use crate::policy::read_only;
use crate::storage::Storage;
use crate::storage::catalog::{Catalog, Entry};
use crate::storage::directory::{self, UNDO};
use crate::storage::error::OpenError;
use crate::storage::extents::Extents;
use crate::storage::progress::{Phase, Watch};
use crate::storage::redo_ranges::RedoRanges;
use crate::storage::report::Report;
use crate::storage::segment::SegmentState;
use crate::write_set::{Layout, Sets};
use caliburn_log::Lsn;
use caliburn_log::media_error::MediaError;
use caliburn_log::prepared::Prepared;
use caliburn_log::record::{Ranges, push_range};
use caliburn_log::sealed::SEAL;
use caliburn_log::uncommitted::{self, CLEAN, Found, UndoError};
use caliburn_os::host::Id;
use caliburn_os::medium::{Media, Medium};
use caliburn_os::persist::{Memory, Survives};
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Makes the files of a new store: the undo logs, and the catalog last.
pub(super) fn create(new: New<'_>) -> Result<(), OpenError> {
    create_with(new, 0, Vec::new())
}

/// The same, of a store whose segments are there.
pub(super) fn create_with(new: New<'_>, next: u32, segments: Vec<Entry>) -> Result<(), OpenError> {
    let media = &*new.settings.media;
    let (store, policy) = (new.store, Policy::Undo as u16);
    let catalog = Catalog { store, policy, log_path: PathBuf::new(), copies: Vec::new(), next, segments };
    let done = create_logs(&new).and_then(|()| directory::name_files(media, new.dir, &catalog, false));
    *new.uncatalogued = done.is_ok() || directory::uncatalogued(media, new.dir);
    done
}

fn create_logs(new: &New<'_>) -> Result<(), OpenError> {
    let (media, dir, path) = (&*new.settings.media, new.dir, new.dir.join(UNDO));
    let _ = media.remove(&path);
    let medium = media.create(&path).map_err(OpenError::io("create undo logs", &path))?;
    let reach = new.settings.memory(medium.memory()).survives.into();
    new.settings.require(dir, (path, reach))?;
    let boot = media.boot_id().map_err(OpenError::io("read the boot's identity for", dir))?;
    Ok(uncommitted::create(&*medium, new.store, boot)?)
}

/// Opens a store; its catalog was read.
pub(super) fn open(mut opening: Opening<'_>) -> Result<Opened, OpenError> {
    if opening.settings.replica().is_some() {
        let why = "a store with the undo policy has no log that a replica could keep";
        return Err(OpenError::Policy { path: opening.dir().to_owned(), why });
    }
    let (path, write) = (opening.dir().join(UNDO), opening.write());
    let medium = opening.media().open(&path, write).map_err(OpenError::io("open undo logs", &path))?;
    opening.found.locks.extend(directory::claim(&*medium, write)?);
    let (media, dir, settings) = (opening.media(), opening.dir(), opening.settings);
    let (catalog, segments) = (&opening.found.catalog, &opening.found.segments);
    let boot = media.boot_id().map_err(OpenError::io("read the boot's identity for", dir))?;
    let extents = Extents::of(segments);
    let sound = || -> Result<Found, OpenError> {
        let found = read(&settings.watch, &*medium, &catalog.store, &boot)?;
        found.uncommitted.iter().try_for_each(|log| check_ranges(log, &extents, &*medium))?;
        Ok(found)
    };
    let status = uncommitted::read_status(&*medium, &catalog.store);
    if let Ok(status) = status
        && status.clean != CLEAN
    {
        opening.copied_from(&*medium, status.place)?;
    }
    let (found, mut damage) = match sound() {
        Ok(found) => (Some(found), None),
        Err(error @ (OpenError::Undo(UndoError::Bad { .. }) | OpenError::Stray { .. }))
            if settings.salvage =>
        {
            (None, Some(error))
        }
        Err(error) => return Err(error),
    };
    let mut prepared = match read_prepared(media, dir, &catalog.store, &extents) {
        Ok(prepared) => prepared,
        Err(error @ (OpenError::Undo(UndoError::Prepared { .. }) | OpenError::Stray { .. }))
            if settings.salvage =>
        {
            damage = damage.or(Some(error));
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let logs = (medium.path(), medium.memory());
    let all = segments.iter().map(|segment| (segment.file.path(), segment.file.memory())).chain([logs]);
    let known: Vec<(PathBuf, Memory)> =
        all.map(|(path, memory)| (path.to_owned(), settings.memory(memory))).collect();
    let weights = known.iter().map(|(path, memory)| (path.clone(), memory.survives.into()));
    let reach = settings.reach(dir, weights)?;
    let memory =
        known.into_iter().map(|(_, memory)| memory).reduce(Memory::and).expect("the undo logs' is there");
    let found = match found {
        Some(found) if opening.write() => found,
        // Salvage, or a store that takes no changes.
        found => {
            let lacking = found.as_ref().map(old_values);
            prepared::add_runs(&mut prepared, found.as_ref().map_or(&[], |found| &found.uncommitted));
            let undecided = prepared::list(&prepared::table(&prepared));
            return Ok(read_only::open(opening, reach, lacking, undecided, damage));
        }
    };
    restore(&found, &mut prepared, (&opening, memory), &*medium)?;
    // 4 durably in use
    let place = medium.place().unwrap_or_default();
    let chunks = UndoChunks::open(medium, catalog.store, boot, memory, (&found, place))?;
    let prepared = Mutex::new(prepared::table(&prepared));
    let storage = Arc::new(Storage::new(opening.found, settings, reach));
    let trailer = chunks.persistent().map_or(0, |_| SEAL);
    let sets = Arc::new(Sets::new(Layout { trailer }, opening.tracked));
    let assumed = settings.memory_survives.is_some();
    let policy = Box::new(Undo { storage: storage.clone(), sets: sets.clone(), chunks, prepared, assumed });
    Ok(Opened { storage, sets, policy, damage })
}

fn read(watch: &Watch, medium: &dyn Medium, store: &Id, boot: &Id) -> Result<Found, UndoError> {
    let total = medium.len().map_err(|e| MediaError::new("measure undo logs", medium, 0, e))?;
    watch.reading(Phase::ReadLog, medium, total, |medium| Found::read(medium, store, boot))
}

fn restore(
    found: &Found,
    prepared: &mut Vec<Prepared>,
    (opening, memory): (&Opening<'_>, Memory),
    medium: &dyn Medium,
) -> Result<(), OpenError> {
    let segments = &opening.found.segments;
    if planted("undo-emptied-first") {
        found.empty(medium)?;
    }
    // 1 old values back
    let by_id: BTreeMap<_, _> = segments.iter().map(|segment| (segment.id, segment)).collect();
    for log in &found.uncommitted {
        for range in log.newest_first() {
            prepared::put(by_id[&range.segment], &range)?;
        }
    }
    // What is to be relied on after this boot: what was just restored, and what a process left that relied on
    // less.
    let lasting = found.sealed() || memory.survives > Survives::Process;
    if unless("undo-restored-unforced", lasting) {
        for segment in segments {
            segment.sync()?;
        }
    }
    // 2
    if prepared::add_runs(prepared, &found.uncommitted) && !planted("undecided-not-kept") {
        prepared::write(opening.media(), opening.dir(), opening.found.catalog.store, prepared)?;
    }
    // 3 the logs are empty, and only then; a second try begins with 1
    Ok(found.empty(medium)?)
}

/// Refuses ranges that lie in no segment.
fn check_ranges(
    log: &uncommitted::Uncommitted,
    extents: &Extents,
    medium: &dyn Medium,
) -> Result<(), OpenError> {
    let prepared = log.prepared();
    let new = prepared.iter().flat_map(|prepared| Ranges::of(&prepared.body));
    let stray = log.newest_first().into_iter().chain(new).find(|range| !extents.hold(range));
    let Some(range) = stray else { return Ok(()) };
    let text = format!(
        "an undo log has a range at {} of segment {}, which has no such bytes",
        range.offset, range.segment.0
    );
    Err(OpenError::Stray { what: "undo logs", path: medium.path().to_owned(), offset: log.offset(), text })
}

/// What the file of undecided transactions says, of bytes that there are.
fn read_prepared(
    media: &dyn Media,
    dir: &Path,
    store: &Id,
    extents: &Extents,
) -> Result<Vec<Prepared>, OpenError> {
    let prepared = prepared::read(media, dir, store)?;
    let mut ranges = prepared.iter().flat_map(|prepared| Ranges::of(&prepared.body));
    let Some(range) = ranges.find(|range| !extents.hold(range)) else { return Ok(prepared) };
    let text = format!(
        "an undecided transaction has a range at {} of segment {}, which has no such bytes",
        range.offset, range.segment.0
    );
    let path = dir.join(prepared::PREPARED);
    Err(OpenError::Stray { what: "undecided transactions", path, offset: 0, text })
}

/// What is to be laid over the segments to see the committed state without writing.
fn old_values(found: &Found) -> RedoRanges {
    let mut unapplied = RedoRanges::none(Lsn(0));
    for log in &found.uncommitted {
        let mut body = Vec::new();
        log.newest_first().iter().for_each(|r| push_range(&mut body, r.segment, r.offset, r.bytes));
        unapplied.push(body, Lsn(0));
    }
    unapplied
}

pub(super) fn info(store: &Closed<'_>) -> Result<(Option<LogInfo>, bool), OpenError> {
    let path = store.dir.join(UNDO);
    let medium = store.media.open(&path, false).map_err(OpenError::io("open undo logs", &path))?;
    Ok((None, uncommitted::read_status(&*medium, &store.catalog.store)?.clean.get() == 1))
}

/// Verifies the undo logs; a segment's data has no checksums with this policy.
pub(super) fn check(
    store: &Closed<'_>,
    segments: &[Arc<SegmentState>],
    report: &mut Report,
) -> Result<(), OpenError> {
    let Closed { media, dir, catalog, .. } = *store;
    let path = dir.join(UNDO);
    let medium = media.open(&path, false).map_err(OpenError::io("open undo logs", &path))?;
    let boot = media.boot_id().map_err(OpenError::io("read the boot's identity for", dir))?;
    if store.in_use {
        uncommitted::read_status(&*medium, &catalog.store)?;
        return Ok(());
    }
    let found = match read(store.watch, &*medium, &catalog.store, &boot) {
        Err(UndoError::Bad { path, offset, defect }) => {
            report.problem(&path, offset, defect);
            return Ok(());
        }
        other => other?,
    };
    let extents = Extents::of(segments);
    if found.status.clean != CLEAN {
        store.report_copy(&*medium, found.status.place, report);
    }
    for log in &found.uncommitted {
        if let Err(error) = check_ranges(log, &extents, &*medium) {
            report.problem(medium.path(), log.offset(), error);
        }
    }
    let mut prepared = match read_prepared(&**media, dir, &catalog.store, &extents) {
        Err(OpenError::Undo(UndoError::Prepared { path, offset, defect })) => {
            report.problem(&path, offset, defect);
            Vec::new()
        }
        Err(error @ OpenError::Stray { .. }) => {
            report.problem(&dir.join(prepared::PREPARED), 0, error);
            Vec::new()
        }
        other => other?,
    };
    prepared::add_runs(&mut prepared, &found.uncommitted);
    report.prepared = prepared.len() as u64;
    if !found.uncommitted.is_empty() {
        let text = "transactions of a killed process await being undone";
        report.notes.push(format!("{} {text}", found.uncommitted.len()));
    }
    Ok(())
}
