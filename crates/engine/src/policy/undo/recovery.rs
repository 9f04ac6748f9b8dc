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
use super::kept::Files;
use super::old_values::OldValues;
use super::prepared;
use crate::policy::kind::{Closed, New, Opened, Opening, Policy};
use crate::policy::query::LogInfo;
use crate::policy::read_only;
use crate::storage::Storage;
use crate::storage::catalog::{Catalog, Entry};
use crate::storage::directory::{self, UNDO};
use crate::storage::error::{OpenError, SegmentError};
use crate::storage::extents::Extents;
use crate::storage::generations;
use crate::storage::lacking::Lacking;
use crate::storage::progress::{Phase, Watch};
use crate::storage::report::{OpenReport, Report};
use crate::storage::segment::SegmentState;
use crate::write_set::{Layout, Sets};
use caliburn_log::SegmentId;
use caliburn_log::format::{Defect, FIRST_GENERATION};
use caliburn_log::media_error::MediaError;
use caliburn_log::prepared::{MARK, NEW, Prepared};
use caliburn_log::record::{Range, Ranges};
use caliburn_log::sealed::SEAL;
use caliburn_log::uncommitted::{self, CLEAN, Found, UndoError};
use caliburn_os::host::Id;
use caliburn_os::medium::{Media, Medium};
use caliburn_os::persist::{Memory, Survives};
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::Mutex;
use caliburn_os::witness::{Look, Seen};
use std::collections::{BTreeMap, BTreeSet};
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
    let (log_path, copies, count) = (PathBuf::new(), Vec::new(), FIRST_GENERATION);
    let catalog = Catalog { store, policy, log_path, copies, next, count, sums: false, segments };
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
    let seen = new.settings.see(media, dir, &[Look::at(&*medium)])?;
    Ok(uncommitted::create(&*medium, new.store, &seen.now, FIRST_GENERATION)?)
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
    if write {
        medium.fill_holes().map_err(OpenError::io("allocate undo logs", &path))?;
    }
    let mut copied = false;
    match uncommitted::read_status(&*medium, &opening.found.catalog.store) {
        Ok(status) => {
            opening.check_keeper(uncommitted::said(&status), |defect| bad(&*medium, defect))?;
            if status.clean != CLEAN {
                opening.copied_from(&*medium, status.place)?;
                copied = opening.is_copy(&*medium, status.place);
            }
        }
        // Said below.
        Err(UndoError::Bad { .. }) if opening.settings.salvage => {}
        Err(_) if planted("unread-status-passed-over") => {}
        Err(error) => return Err(error.into()),
    }
    let mut damage = opening.found.damage.take();
    let (media, dir, settings) = (opening.media(), opening.dir(), opening.settings);
    let (catalog, segments) = (&opening.found.catalog, &opening.found.segments);
    let generations = opening.found.generations.clone();
    let extents = Extents::of(segments);
    let files = Files::of(&medium, segments);
    let seen = settings.see(media, dir, &files.looks()?)?;
    let known = seen.of_copy(copied);
    let mut report = OpenReport::default();
    if write {
        files.ask(catalog.store, &known, &mut report)?;
    }
    let sound = || -> Result<Found, OpenError> {
        let mut stray = None;
        let found = read(&settings.watch, &*medium, (&catalog.store, &known), &extents, &mut |_, error| {
            stray.get_or_insert(error);
        })?;
        generations.as_ref().map_or(Ok(()), |generations| generations.trust())?;
        stray.map_or(Ok(found), Err)
    };
    let found = match sound() {
        Ok(found) => Some(found),
        Err(
            error @ (OpenError::Undo(UndoError::Bad { .. })
            | OpenError::Stray { .. }
            | OpenError::Segment(SegmentError::Bad { .. })),
        ) if settings.salvage => {
            damage = damage.or(Some(error));
            // Their old values are laid over what may be halves of transactions.
            Found::read_anyway(&*medium, &catalog.store).ok().filter(|_| !planted("salvaged-without-logs"))
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
            if let Some(found) = &found {
                let added = prepared::add_runs(&mut prepared, found, &*medium);
                added.or_else(|error| if opening.settings.salvage { Ok(false) } else { Err(error) })?;
            }
            let lacking = found.map(|found| OldValues::of(found, medium) as Box<dyn Lacking>);
            let undecided = prepared::list(&prepared::table(prepared));
            return Ok(read_only::open(opening, reach, lacking, undecided, damage));
        }
    };
    restore(&found, &mut prepared, (&opening, memory), &*medium)?;
    // 4 durably in use
    let place = medium.place().unwrap_or_default();
    let now = (&seen.now, files.watch()?);
    let clean = found.status.clean == CLEAN;
    generations::catch_up(generations.as_ref(), clean, || {
        uncommitted::force_status(&*medium, &found.status)
    })?;
    segments.iter().try_for_each(|segment| segment.confirm_found())?;
    let store = catalog.store;
    let rescues = !medium.keeps_room() && memory.survives == Survives::Process;
    let mut chunks = generations::step(generations.as_ref(), |generation| {
        UndoChunks::open(medium, store, now, memory, &found, (place, generation))
    })?;
    let prepared = Mutex::new(prepared::table(prepared));
    let mut storage = Storage::new(opening.found, settings, reach);
    storage.rescues = rescues;
    let storage = Arc::new(storage);
    chunks.rescue(&storage);
    let trailer = chunks.persistent().map_or(0, |_| SEAL);
    let sets = Arc::new(Sets::new(Layout { trailer }, opening.tracked));
    let assumed = settings.memory_survives.is_some();
    let policy = Box::new(Undo { storage: storage.clone(), sets: sets.clone(), chunks, prepared, assumed });
    Ok(Opened { storage, sets, policy, damage, report })
}

/// As what is wrong with undo logs.
pub(super) fn bad(medium: &dyn Medium, defect: Defect) -> OpenError {
    UndoError::Bad { path: medium.path().to_owned(), offset: 0, defect }.into()
}

/// Reads the undo logs; `stray` is called with each range that lies in no segment.
fn read(
    watch: &Watch,
    medium: &dyn Medium,
    (store, seen): (&Id, &Seen),
    extents: &Extents,
    stray: &mut dyn FnMut(u64, OpenError),
) -> Result<Found, UndoError> {
    let total = medium.len().map_err(|e| MediaError::new("measure undo logs", medium, 0, e))?;
    watch.reading(Phase::ReadLog, medium, total, |medium| {
        Found::read(medium, store, seen, &mut |log, range| {
            let of = SegmentId(if range.segment == MARK { 0 } else { range.segment.0 & !NEW });
            if range.segment != MARK && !extents.hold(&Range { segment: of, ..*range }) {
                stray(log, stray_range(medium, log, of, range.offset));
            }
        })
    })
}

fn stray_range(medium: &dyn Medium, log: u64, segment: SegmentId, offset: u64) -> OpenError {
    let text =
        format!("an undo log has a range at {offset} of segment {}, which has no such bytes", segment.0);
    OpenError::Stray { what: "undo logs", path: medium.path().to_owned(), offset: log, text }
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
    let mut touched = BTreeSet::new();
    for log in &found.uncommitted {
        found.newest_first(medium, log, |range| {
            let segment = by_id.get(&range.segment);
            let segment =
                segment.ok_or_else(|| stray_range(medium, log.offset(), range.segment, range.offset))?;
            touched.insert(range.segment);
            Ok::<(), OpenError>(prepared::put(segment, &range)?)
        })?;
    }
    // What is to be relied on after this boot: what was just restored, and what a process left that relied on
    // less.
    let lasting = found.sealed() || memory.survives > Survives::Process;
    if unless("undo-restored-unforced", lasting) {
        for segment in segments {
            if touched.contains(&segment.id) { segment.end_recovery(true)? } else { segment.sync()? }
        }
        opening.found.generations.as_ref().map_or(Ok(()), |generations| generations.settle())?;
    } else {
        let mut touched = segments.iter().filter(|segment| touched.contains(&segment.id));
        touched.try_for_each(|segment| segment.end_recovery(false))?;
    }
    // 2
    if prepared::add_runs(prepared, found, medium)? && !planted("undecided-not-kept") {
        prepared::write(opening.media(), opening.dir(), opening.found.catalog.store, prepared)?;
    }
    // 3 the logs are empty, and only then; a second try begins with 1
    Ok(found.empty(medium)?)
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

pub(super) fn info(store: &Closed<'_>) -> Result<(Option<LogInfo>, bool), OpenError> {
    let path = store.dir.join(UNDO);
    let medium = store.media.open(&path, false).map_err(OpenError::io("open undo logs", &path))?;
    let status = uncommitted::read_status(&*medium, &store.catalog.store)?;
    store.check_keeper(uncommitted::said(&status), |defect| bad(&*medium, defect))?;
    Ok((None, status.clean.get() == 1))
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
    if store.in_use {
        uncommitted::read_status(&*medium, &catalog.store)?;
        return Ok(());
    }
    let copied = match uncommitted::read_status(&*medium, &catalog.store) {
        Ok(status) if status.clean != CLEAN => store.report_copy(&*medium, status.place, report),
        _ => false,
    };
    let seen = store.see(&Files::of(&medium, segments).looks()?)?.of_copy(copied);
    let extents = Extents::of(segments);
    let mut stray: Vec<(u64, OpenError)> = Vec::new();
    let found = read(store.watch, &*medium, (&catalog.store, &seen), &extents, &mut |log, error| {
        // One of each log.
        if stray.last().is_none_or(|(before, _)| *before != log) {
            stray.push((log, error));
        }
    });
    let found = match found {
        Err(UndoError::Bad { path, offset, defect }) => {
            report.problem(&path, offset, defect);
            return Ok(());
        }
        other => other?,
    };
    if let Some(Err(SegmentError::Bad { path, offset, defect })) = store.generations.map(|of| of.trust()) {
        report.problem(&path, offset, defect);
    }
    if let Err(error) = store.check_keeper(uncommitted::said(&found.status), |defect| bad(&*medium, defect)) {
        report.problem(&path, 0, error);
    }
    stray.into_iter().for_each(|(log, error)| report.problem(medium.path(), log, error));
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
    prepared::add_runs(&mut prepared, &found, &*medium)?;
    report.prepared = prepared.len() as u64;
    if !found.uncommitted.is_empty() {
        let text = "transactions of a killed process await being undone";
        report.notes.push(format!("{} {text}", found.uncommitted.len()));
    }
    Ok(())
}
