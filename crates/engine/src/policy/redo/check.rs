//! Verifying log, stage and sums without writing to them, and telling what the log is.
//!
//! 1. both status pages of the log, the stage
//! 2. every record of the live log, and that nothing forced is missing behind its tail
//! 3. that each range lies within a segment of the catalog
//! 4. the checksum of every 4 KiB of every segment, except where the live log is to write anyway

use super::prepared::{self, PreparedTable};
use super::recovery;
use crate::policy::kind::Closed;
use crate::policy::query::LogInfo;
use crate::storage::catalog::Catalog;
use crate::storage::directory::STAGE;
use crate::storage::error::OpenError;
use crate::storage::redo_ranges::RedoRanges;
use crate::storage::report::Report;
use crate::storage::segment::SegmentState;
use caliburn_log::format::{self, BLOCK, LOG_MAGIC, SEGMENT_DATA, STATUS_AT, SUM_UNIT};
use caliburn_log::image::Image;
use caliburn_log::log;
use caliburn_log::staged_tail::StagedTail;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) fn check(
    store: &Closed<'_>,
    segments: &[Arc<SegmentState>],
    report: &mut Report,
) -> Result<(), OpenError> {
    if let Some(unapplied) = check_log(store, segments, report)? {
        for segment in segments {
            check_sums(segment, &unapplied, report)?;
        }
    }
    Ok(())
}

pub(super) fn info(store: &Closed<'_>) -> Result<(Option<LogInfo>, bool), OpenError> {
    let path = Catalog::resolve(store.dir, &store.catalog.log_path);
    let medium = store.media.open(&path, false).map_err(OpenError::io("open log", &path))?;
    let status = log::read_status(&*medium, Some(&store.catalog.store))?;
    let log = LogInfo {
        path,
        capacity: status.capacity.get(),
        head: status.head.get(),
        forced: status.forced.get(),
        incarnation: status.incarnation.get(),
    };
    Ok((Some(log), status.clean.get() == 1))
}

/// Verifies log and stage; what they would write to the segments, if they are sound.
fn check_log(
    store: &Closed<'_>,
    segments: &[Arc<SegmentState>],
    report: &mut Report,
) -> Result<Option<RedoRanges>, OpenError> {
    let Closed { media, dir, catalog } = *store;
    let path = Catalog::resolve(dir, &catalog.log_path);
    let medium = match media.open(&path, false) {
        Ok(medium) => medium,
        Err(error) => {
            report.problem(&path, 0, format!("cannot be opened: {error}"));
            return Ok(None);
        }
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
    let stage = check_stage(store, report)?;
    let known = stage.as_ref().and_then(|left| left.appended).map(|end| caliburn_log::Lsn(0)..end);
    let mut prepared = PreparedTable::new();
    let mut stray = Vec::new();
    let capacity = status.capacity.get();
    let (image, damage) = Image::scan(&*medium, &status, known, |record| {
        report.records += 1;
        report.transactions += record.transactions;
        if let Some((lsn, _, text)) = recovery::stray_range(record, segments) {
            stray.push((recovery::log_offset(lsn, capacity), text));
        }
        prepared::recover(&mut prepared, record);
    })?;
    if let Some(Err(error)) = stage.map(|left| left.not_older_than(image.forced())) {
        report.stage_problem(&dir.join(STAGE), error);
    }
    let unapplied = RedoRanges::of(image);
    for (offset, text) in stray {
        report.problem(&path, offset, text);
    }
    if let Some(damage) = damage {
        report.problem(&path, damage.offset, &damage);
    }
    report.prepared = prepared.len() as u64;
    Ok(Some(unapplied))
}

/// Verifies the stage; what it holds, if it can be read.
fn check_stage(store: &Closed<'_>, report: &mut Report) -> Result<Option<StagedTail>, OpenError> {
    let Closed { media, dir, catalog } = *store;
    let path = dir.join(STAGE);
    let medium = match media.open(&path, false) {
        Ok(medium) => medium,
        Err(error) => {
            report.notes.push(format!("stage {}: {error}; it is made anew at opening", path.display()));
            return Ok(None);
        }
    };
    let boot = media.boot_id().map_err(OpenError::io("read the boot's identity for", dir))?;
    match StagedTail::read(&*medium, &catalog.store, &boot) {
        Ok(left) => {
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

fn check_sums(segment: &SegmentState, unapplied: &RedoRanges, report: &mut Report) -> Result<(), OpenError> {
    // Truncation writes whole pages of the machine it runs on.
    let page = (caliburn_os::page_size() / SUM_UNIT) as u64;
    let mut excused = BTreeSet::new();
    for range in unapplied.ranges().filter(|r| r.segment == segment.id) {
        let last = (range.offset + range.bytes.len().max(1) as u64 - 1) / SUM_UNIT as u64;
        excused.extend(range.offset / SUM_UNIT as u64 / page..=last / page);
    }
    let damaged = segment.damaged_units(|unit| excused.contains(&(unit / page)))?;
    for run in damaged.chunk_by(|a, b| a + 1 == *b) {
        let offset = SEGMENT_DATA + run[0] * SUM_UNIT as u64;
        let text = format!(
            "{} bytes of segment {:?} from its byte {} do not match their checksums: the file was damaged or changed by another program",
            run.len() * SUM_UNIT,
            segment.name,
            run[0] * SUM_UNIT as u64
        );
        report.problem(segment.medium.path(), offset, text);
    }
    report.data_bytes += segment.len();
    Ok(())
}
