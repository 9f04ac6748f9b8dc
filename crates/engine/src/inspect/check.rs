//! `check`: verifies a whole store without writing to it.
//!
//! 1. catalog, segment headers, sums headers
//! 2. what the policy has besides: see [`redo`](crate::policy::redo) and [`undo`](crate::policy::undo)

use crate::policy::kind::Closed;
use crate::policy::table;
use crate::storage::catalog::Catalog;
use crate::storage::directory;
use crate::storage::error::{OpenError, SegmentError};
use crate::storage::report::Report;
use crate::storage::segment::SegmentState;
use caliburn_os::medium::{Files, Media};
use std::path::Path;
use std::sync::Arc;

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
    if !media.exists(&dir.join(directory::CATALOG)) {
        return Err(OpenError::NotAStore { path: dir.to_owned() });
    }
    let _lock = directory::lock(media, dir, true)?;
    let known = directory::read_catalog(media, dir)
        .and_then(|catalog| table::kind_of(dir, &catalog).map(|kind| (catalog, kind)));
    let (catalog, kind) = match known {
        Ok(known) => known,
        Err(OpenError::Catalog { path, offset, defect }) => {
            report.problem(&path, offset, defect);
            return Ok(report);
        }
        Err(other) => return Err(other),
    };
    let mut segments = Vec::new();
    for entry in &catalog.segments {
        match SegmentState::open(media, dir, &catalog, entry, (kind.sums(), false)) {
            Ok(segment) => segments.push(Arc::new(segment)),
            // Damage only if the log names it, which is found there.
            Err(error) if entry.is_external() => report.notes.push(error.to_string()),
            Err(SegmentError::Bad { path, offset, defect }) => report.problem(&path, offset, defect),
            Err(error) => report.problem(&Catalog::resolve(dir, &entry.path), 0, error),
        }
    }
    report.segments = catalog.segments.len() as u64;
    kind.check(&Closed { media, dir, catalog: &catalog }, &segments, &mut report)?;
    Ok(report)
}
