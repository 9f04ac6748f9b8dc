//! Verifying log, stage and sums without writing to them, and telling what the log is.
//!
//! 1. both status pages of the log, the stage
//! 2. every record of the live log, and that nothing forced is missing behind its tail
//! 3. that each range lies within a segment of the catalog
//! 4. the checksum of every 4 KiB of every segment, except where the live log is to write anyway; and that none of
//!    them was written when the log was longer than it is

use super::backup::hold;
use super::duplex;
use super::prepared::{self, PreparedTable};
use super::records::{log_offset, stray_range};
use super::recovery;
use crate::policy::kind::Closed;
use crate::policy::query::LogInfo;
use crate::storage::catalog::Catalog;
use crate::storage::directory::STAGE;
use crate::storage::error::OpenError;
use crate::storage::extents::Extents;
use crate::storage::generations::STAGE_SLOT;
use crate::storage::lacking::Lacking;
use crate::storage::opener::Opener;
use crate::storage::progress::{Phase, Watch};
use crate::storage::redo_ranges::RedoRanges;
use crate::storage::report::{Problem, Report};
use crate::storage::segment::SegmentState;
use crate::storage::segment_file::Descriptors;
use caliburn_log::SegmentId;
use caliburn_log::format::{self, BLOCK, LOG_MAGIC, Lsn, SEGMENT_DATA, STATUS_AT, SUM_UNIT};
use caliburn_log::log;
use caliburn_log::scan;
use caliburn_log::staged_tail::{self, StagedTail};
use caliburn_os::observed::Tell;
use caliburn_os::simulated::unless;
use caliburn_os::witness::Look;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

pub(super) fn check(
    store: &Closed<'_>,
    segments: &[Arc<SegmentState>],
    report: &mut Report,
) -> Result<(), OpenError> {
    if store.in_use {
        return check_live(store, report);
    }
    if let Some(unapplied) = check_log(store, segments, report)? {
        check_sums(segments, &unapplied, store.watch, report)?;
    }
    Ok(())
}

/// Refuses segments that are not what their checksums say, but for what the log is to write.
pub(super) fn verify(
    segments: &[Arc<SegmentState>],
    unapplied: &RedoRanges,
    watch: &Watch,
) -> Result<(), OpenError> {
    let mut report = Report::default();
    check_sums(segments, unapplied, watch, &mut report)?;
    match report.problems.into_iter().next() {
        Some(Problem { path, offset, text }) => Err(OpenError::Stray { what: "segment", path, offset, text }),
        None => Ok(()),
    }
}

pub(super) fn info(store: &Closed<'_>) -> Result<(Option<LogInfo>, bool), OpenError> {
    let (medium, _) = duplex::one_of(&**store.media, store.dir, store.catalog)?;
    let path = medium.path().to_owned();
    let status = log::read_status(&*medium, Some(&store.catalog.store))?;
    store.check_keeper(log::said(&*medium, &status), |defect| recovery::bad(&path, defect))?;
    // A stage that cannot be read tells nothing here.
    let stage = store.media.open(&store.dir.join(STAGE), false).ok();
    let (end, staged) = match stage {
        Some(stage) => {
            let (id, seen) = (&store.catalog.store, store.see(&[Look::at(&*stage)])?);
            let end = staged_tail::log_end(&*stage, id, &seen).ok().flatten();
            (end, staged_tail::waiting(&*stage, id, &seen).unwrap_or(0))
        }
        None => (None, 0),
    };
    let log = LogInfo {
        appended: end.map_or(0, |end| end.0).max(status.forced.get()),
        staged,
        path,
        second: store.catalog.copies.get(1).map(|second| Catalog::resolve(store.dir, &second.path)),
        capacity: status.capacity.get(),
        head: status.head.get(),
        forced: status.forced.get(),
        incarnation: status.incarnation.get(),
        archived: hold::read(&**store.media, store.dir, &store.catalog.store, hold::ARCHIVED)?
            .map(Into::into),
    };
    Ok((Some(log), status.clean.get() == 1))
}

/// Verifies what does not change while somebody has the store open: the live log, of which only the head goes on.
fn check_live(store: &Closed<'_>, report: &mut Report) -> Result<(), OpenError> {
    /// The head may pass what is being read, again and again.
    const TRIES: u32 = 20;
    let Closed { media, dir, catalog, .. } = *store;
    let (medium, _) = duplex::one_of(&**media, dir, catalog)?;
    let path = medium.path().to_owned();
    let stage_path = dir.join(STAGE);
    let stage = media.open(&stage_path, false).map_err(OpenError::io("open stage", &stage_path))?;
    for _ in 0..TRIES {
        let status = log::read_status(&*medium, Some(&catalog.store))?;
        let Some(end) = staged_tail::log_end(&*stage, &catalog.store, &store.see(&[Look::at(&*stage)])?)?
        else {
            report.notes.push("the store is just being opened: its log was not verified".into());
            return Ok(());
        };
        (report.records, report.transactions) = (0, 0);
        let capacity = status.capacity.get();
        let scanned = store.watch.reading(Phase::ReadLog, &*medium, capacity, |medium| {
            scan::scan(medium, &status, Some(Lsn(0)..end), |record| {
                report.records += 1;
                report.transactions = report.transactions.saturating_add(record.transactions);
            })
        })?;
        let Some(damage) = scanned.damage else { return Ok(()) };
        if log::read_status(&*medium, Some(&catalog.store))?.head == status.head {
            report.problem(&path, damage.offset, &damage);
            return Ok(());
        }
    }
    report.notes.push("the log was overwritten as fast as it could be read: it was not verified".into());
    Ok(())
}

/// Verifies log and stage; what they would write to the segments, if they are sound.
fn check_log(
    store: &Closed<'_>,
    segments: &[Arc<SegmentState>],
    report: &mut Report,
) -> Result<Option<RedoRanges>, OpenError> {
    let Closed { media, dir, catalog, .. } = *store;
    let path = Catalog::resolve(dir, &catalog.log_path);
    let (medium, (witness, place)) =
        match duplex::show(&**media, dir, &catalog.store, &catalog.log_path, &catalog.copies) {
            Ok(shown) => {
                report.notes.extend(shown.note);
                (shown.medium, shown.witness)
            }
            Err(OpenError::Io { source, .. }) if source.kind() != io::ErrorKind::PermissionDenied => {
                report.problem(&path, 0, format!("cannot be opened: {source}"));
                return Ok(None);
            }
            // Of two copies that are there, neither is one.
            Err(OpenError::Log(error)) => {
                report.problem(&path, 0, error);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
    for at in STATUS_AT {
        let mut page = vec![0; BLOCK];
        let bad = medium.read_at(&mut page, at).is_err()
            || format::unseal(&page, LOG_MAGIC, "log", Some(&catalog.store)).is_err();
        if bad {
            let text = "status page is not valid; its twin serves. A crash while it was written leaves it so";
            report.notes.push(format!("log {}, offset {at}: {text}", path.display()));
        }
    }
    let status = match log::read_status(&*medium, Some(&catalog.store)) {
        Ok(status) => status,
        Err(error) => {
            report.problem(&path, 0, error);
            return Ok(None);
        }
    };
    if let Err(error) =
        store.check_keeper(log::said(&*medium, &status), |defect| recovery::bad(&path, defect))
    {
        report.problem(&path, 0, error);
    }
    let copied = status.clean != 1 && store.report_copy(&*witness, place, report);
    let stage = check_stage(store, copied, report)?;
    let known = stage.as_ref().and_then(|left| left.appended).map(|end| caliburn_log::Lsn(0)..end);
    let mut prepared = PreparedTable::new();
    let mut stray = Vec::new();
    let extents = Extents::of(segments);
    let capacity = status.capacity.get();
    let scanned = store.watch.reading(Phase::ReadLog, &*medium, capacity, |medium| {
        scan::scan(medium, &status, known, |record| {
            report.records += 1;
            report.transactions = report.transactions.saturating_add(record.transactions);
            if let Some((lsn, segment, text)) = stray_range(record, &extents) {
                stray.push((log_offset(lsn, capacity), segment, text));
            }
            prepared::recover(&mut prepared, record);
        })
    })?;
    if let Some(Err(error)) = stage.map(|left| left.not_older_than(scanned.forced)) {
        report.stage_problem(&dir.join(STAGE), error);
    }
    if let Some(damage) = scanned.damage {
        report.problem(&path, damage.offset, &damage);
    }
    report.prepared = prepared.len() as u64;
    if !stray.is_empty() {
        // What may not be looked at may be sound.
        stray.iter().try_for_each(|(_, segment, _)| may_look(store, *segment))?;
        stray.into_iter().for_each(|(offset, _, text)| report.problem(&path, offset, text));
        return Ok(None);
    }
    Ok(Some(RedoRanges::of_log(&*medium, capacity, scanned.from, scanned.tail)?))
}

/// Refuses to judge a segment outside of the directory that nobody has listed, or that is another user's.
fn may_look(store: &Closed<'_>, id: SegmentId) -> Result<(), OpenError> {
    let entry = store.catalog.segments.iter().find(|entry| entry.id == id && entry.is_external());
    let (media, dir, descriptors) = (store.media, store.dir, &Descriptors::of(&**store.media));
    let opener = Opener { media, descriptors, dir, write: false, claim: true, generations: None };
    let open = |entry| SegmentState::open(opener, store.catalog, entry, false);
    match entry.map(open) {
        Some(Err(error)) if error.is_permission() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Verifies the stage; what it holds, if it can be read.
fn check_stage(
    store: &Closed<'_>,
    copied: bool,
    report: &mut Report,
) -> Result<Option<StagedTail>, OpenError> {
    let Closed { media, dir, catalog, .. } = *store;
    let path = dir.join(STAGE);
    let medium = match media.open(&path, false) {
        Ok(medium) => medium,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            report.notes.push(format!("stage {}: {error}; it is made anew at opening", path.display()));
            return Ok(None);
        }
        Err(error) => {
            report.problem(&path, 0, format!("cannot be opened: {error}"));
            return Ok(None);
        }
    };
    let seen = store.see(&[Look::at(&*medium)])?.of_copy(copied);
    match StagedTail::read(&*medium, &catalog.store, &seen) {
        Ok(left) => {
            if let Some(dropped) = &left.dropped {
                report.note_dropped(&path, dropped);
            }
            let agrees = |found| {
                store
                    .generations
                    .map_or(Ok(()), |generations| generations.check_slot(STAGE_SLOT, found, &path))
            };
            if let Err(error) = left.of_generation(agrees) {
                report.stage_problem(&path, error);
            }
            if !left.records.is_empty() {
                report.notes.push(format!(
                    "{} commits of a killed process await recovery in the stage",
                    left.records.len()
                ));
            }
            return Ok(Some(left));
        }
        Err(error) => report.stage_problem(&path, error),
    }
    Ok(None)
}

fn check_sums(
    segments: &[Arc<SegmentState>],
    unapplied: &RedoRanges,
    watch: &Watch,
    report: &mut Report,
) -> Result<(), OpenError> {
    let total = segments.iter().map(|segment| segment.len()).sum();
    let mut before = 0;
    for segment in segments {
        let tell = |done| watch.tell(Phase::VerifySegments, before + done, total);
        check_sums_of(segment, unapplied, &tell, report)?;
        before += segment.len();
    }
    Ok(())
}

fn check_sums_of(
    segment: &SegmentState,
    unapplied: &RedoRanges,
    tell: Tell<'_>,
    report: &mut Report,
) -> Result<(), OpenError> {
    // Truncation writes whole pages of the machine it runs on.
    let page = (caliburn_os::page_size() / SUM_UNIT) as u64;
    let mut excused = BTreeSet::new();
    let noted = unapplied.each_of(segment.id, &mut |range| {
        let last = (range.offset + range.bytes.len().max(1) as u64 - 1) / SUM_UNIT as u64;
        excused.extend(range.offset / SUM_UNIT as u64 / page..=last / page);
    });
    noted.map_err(OpenError::io("read the log for", segment.file.path()))?;
    let ahead = segment.ahead_of(unapplied.tail())?;
    if let Some((unit, lsn)) = ahead.filter(|_| unless("older-log-passed", true)) {
        let text = format!(
            "segment {:?} was written when the log ended at LSN {lsn}, and it ends at {} now: they are of different moments",
            segment.name,
            unapplied.tail()
        );
        report.problem(segment.file.path(), SEGMENT_DATA + unit * SUM_UNIT as u64, text);
    }
    let damaged = segment.damaged_units(|unit| excused.contains(&(unit / page)), tell)?;
    segment.report_damaged(&damaged, report);
    Ok(())
}
