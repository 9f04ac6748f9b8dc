//! `check`: verifies a whole store without writing to it.
//!
//! 1. catalog, segment headers, sums headers, both status pages, the stage
//! 2. every record of the live log, and that nothing forced is missing behind its tail
//! 3. that each range lies within a segment of the catalog
//! 4. the checksum of every 4 KiB of every segment, except where the live log is to write anyway

use crate::api::recovery;
use crate::policy::redo::prepared::{self, PreparedTable};
use crate::policy::undo;
use crate::storage::catalog::Catalog;
use crate::storage::error::{OpenError, SegmentError};
use crate::storage::kind::Policy;
use crate::storage::redo_ranges::RedoRanges;
use crate::storage::segment::SegmentState;
use caliburn_log::format::{self, BLOCK, LOG_MAGIC, SEGMENT_DATA, STATUS_AT, SUM_UNIT};
use caliburn_log::image::Image;
use caliburn_log::log;
use caliburn_log::staged_tail::{StageError, StagedTail};
use caliburn_log::uncommitted::UndoError;
use caliburn_os::medium::{Files, Media};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Something wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file or device.
    pub path: PathBuf,
    /// Where in it, bytes.
    pub offset: u64,
    /// What.
    pub text: String,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Damage. Empty for a sound store.
    pub problems: Vec<Problem>,
    /// Worth knowing, not damage.
    pub notes: Vec<String>,
    /// Segments looked at.
    pub segments: u64,
    /// Bytes of segment data verified.
    pub data_bytes: u64,
    /// Records of the live log verified.
    pub records: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Undecided prepared transactions.
    pub prepared: u64,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    fn problem(&mut self, path: &Path, offset: u64, text: impl ToString) {
        self.problems.push(Problem { path: path.to_owned(), offset, text: text.to_string() });
    }

    fn stage_problem(&mut self, path: &Path, error: StageError) {
        match error {
            StageError::Bad { path, offset, defect } => self.problem(&path, offset, defect),
            StageError::Media(_) => self.problem(path, 0, error),
        }
    }
}

/// Verifies the store in a directory, which nobody may have open for writing.
///
/// # Errors
/// When it cannot be looked at: not a store, in use, a file that cannot be read. Damage is in the report.
pub fn check(dir: impl AsRef<Path>) -> Result<Report, OpenError> {
    check_on(&Files, dir.as_ref())
}

/// [`check()`], with files from elsewhere.
pub(crate) fn check_on(media: &dyn Media, dir: &Path) -> Result<Report, OpenError> {
    let mut report = Report::default();
    if !media.exists(&dir.join(recovery::CATALOG)) {
        return Err(OpenError::NotAStore { path: dir.to_owned() });
    }
    let _lock = recovery::lock(media, dir, true)?;
    let catalog = match recovery::read_catalog(media, dir) {
        Ok(catalog) => catalog,
        Err(OpenError::Catalog { path, offset, defect }) => {
            report.problem(&path, offset, defect);
            return Ok(report);
        }
        Err(other) => return Err(other),
    };
    let mut segments = Vec::new();
    for entry in &catalog.segments {
        match SegmentState::open(media, dir, &catalog, entry, false) {
            Ok(segment) => segments.push(Arc::new(segment)),
            // Damage only if the log names it, which is found there.
            Err(error) if entry.is_external() => report.notes.push(error.to_string()),
            Err(SegmentError::Bad { path, offset, defect }) => report.problem(&path, offset, defect),
            Err(error) => report.problem(&Catalog::resolve(dir, &entry.path), 0, error),
        }
    }
    report.segments = catalog.segments.len() as u64;
    if catalog.policy == Policy::Undo {
        check_undo(media, dir, &catalog, &segments, &mut report)?;
        return Ok(report);
    }
    if let Some(unapplied) = check_log(media, dir, &catalog, &segments, &mut report)? {
        for segment in &segments {
            check_sums(segment, &unapplied, &mut report)?;
        }
    }
    Ok(report)
}

/// Verifies the undo logs; a segment's data has no checksums with this policy.
fn check_undo(
    media: &dyn Media,
    dir: &Path,
    catalog: &Catalog,
    segments: &[Arc<SegmentState>],
    report: &mut Report,
) -> Result<(), OpenError> {
    let (medium, found) = match undo::check(media, dir, catalog) {
        Err(OpenError::Undo(UndoError::Bad { path, offset, defect })) => {
            report.problem(&path, offset, defect);
            return Ok(());
        }
        other => other?,
    };
    for log in &found.uncommitted {
        if let Err(error) = undo::check_ranges(log, segments, &*medium) {
            report.problem(medium.path(), log.offset(), error);
        }
    }
    if !found.uncommitted.is_empty() {
        let text = "transactions of a killed process await being undone";
        report.notes.push(format!("{} {text}", found.uncommitted.len()));
    }
    Ok(())
}

/// Verifies log and stage; what they would write to the segments, if they are sound.
fn check_log(
    media: &dyn Media,
    dir: &Path,
    catalog: &Catalog,
    segments: &[Arc<SegmentState>],
    report: &mut Report,
) -> Result<Option<RedoRanges>, OpenError> {
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
    let stage = check_stage(media, dir, catalog, report)?;
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
        report.stage_problem(&dir.join(recovery::STAGE), error);
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
fn check_stage(
    media: &dyn Media,
    dir: &Path,
    catalog: &Catalog,
    report: &mut Report,
) -> Result<Option<StagedTail>, OpenError> {
    let path = dir.join(recovery::STAGE);
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
