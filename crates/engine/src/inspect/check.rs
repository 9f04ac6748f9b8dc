//! `check`: verifies a whole store without writing to it.
//!
//! 1. catalog, segment headers, sums headers
//! 2. what the policy has besides: see [`redo`](crate::policy::redo) and [`undo`](crate::policy::undo)

use crate::policy::kind::Closed;
use crate::policy::table;
use crate::storage::catalog::Catalog;
use crate::storage::directory;
use crate::storage::error::{OpenError, SegmentError};
use crate::storage::generations::Generations;
use crate::storage::opener::Opener;
use crate::storage::report::Report;
use crate::storage::segment::SegmentState;
use crate::storage::segment_file::Descriptors;
use crate::storage::settings::Settings;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Verifies the store in a directory. One that is in use is verified as far as it does not change meanwhile:
/// [`Report::in_use_by`]. With what it names outside of its directory, if anything:
/// [`Options::check`](crate::Options::check).
///
/// # Errors
/// When it cannot be looked at: not a store, a file that cannot be read. Damage is in the report.
pub fn check(dir: impl AsRef<Path>) -> Result<Report, OpenError> {
    check_with(&Settings::default(), dir.as_ref())
}

/// [`check()`], of a store that is to be opened so.
pub(crate) fn check_with(settings: &Settings, dir: &Path) -> Result<Report, OpenError> {
    let mut report = Report::default();
    let media = &directory::hold(dir, settings)?;
    if !media.exists(&dir.join(directory::CATALOG)) {
        return Err(OpenError::NotAStore { path: dir.to_owned() });
    }
    let lock = match directory::lock(&**media, dir, true) {
        Err(OpenError::InUse { holder, .. }) => {
            report.in_use_by = Some(holder);
            None
        }
        lock => Some(lock?),
    };
    let known = directory::read_catalog(&**media, dir)
        .and_then(|catalog| table::kind_of(dir, &catalog).map(|kind| (catalog, kind)));
    let (catalog, kind) = match known {
        Ok(known) => known,
        Err(OpenError::Catalog { path, offset, defect }) => {
            report.problem(&path, offset, defect);
            return Ok(report);
        }
        Err(OpenError::Stray { path, offset, text, .. }) => {
            report.problem(&path, offset, text);
            return Ok(report);
        }
        Err(other) => return Err(other),
    };
    // Hard links give the same files to another directory, with a lock of its own.
    let keeper = media.open(&Catalog::resolve(dir, kind.keeper(&catalog)), false);
    let claim = keeper.and_then(|keeper| keeper.claim(true));
    if lock.is_some() && claim.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy) {
        report.in_use_by = Some("a program that has its files in another directory".into());
    }
    // A program that has it open changes them.
    let generations = match Generations::open(&**media, dir, &catalog, false) {
        _ if report.in_use_by.is_some() => None,
        Err(OpenError::Stray { path, offset, text, .. }) => {
            report.problem(&path, offset, text);
            None
        }
        found => found?,
    };
    let (descriptors, generations) = (&Descriptors::of(&**media), generations.as_ref());
    let opener = Opener { media, descriptors, dir, write: false, claim: true, generations };
    let mut segments = Vec::new();
    for entry in &catalog.segments {
        // Whoever has the store has locked what is elsewhere, or is about to.
        if lock.is_none() && entry.path.is_absolute() {
            let path = entry.path.display();
            report.notes.push(format!("segment {:?} was not verified: {path} is in use", entry.name));
            continue;
        }
        match SegmentState::open(opener, &catalog, entry, kind.has_sums(&catalog)) {
            Ok(segment) => segments.push(Arc::new(segment)),
            // Damage only if the log names it, which is found there.
            Err(error) if entry.is_external() => report.notes.push(error.to_string()),
            Err(SegmentError::Bad { path, offset, defect }) => report.problem(&path, offset, defect),
            Err(error @ SegmentError::Io { .. }) if error.is_permission() => return Err(error.into()),
            Err(error) => report.problem(&Catalog::resolve(dir, &entry.path), 0, error),
        }
    }
    report.segments = catalog.segments.len() as u64;
    note_unverified(&segments, &mut report);
    let in_use = report.in_use_by.is_some();
    let (watch, catalog) = (&settings.watch, &catalog);
    let store = Closed { settings, in_use, watch, media, dir, catalog, generations };
    kind.check(&store, &segments, &mut report)?;
    // Until here.
    drop((lock, claim));
    Ok(report)
}

/// Says of which segments nothing tells whether they hold what was written to them.
fn note_unverified(segments: &[Arc<SegmentState>], report: &mut Report) {
    let unsummed: Vec<_> = segments.iter().filter(|segment| !segment.has_sums()).collect();
    let Some(first) = unsummed.first() else { return };
    report.unverified_bytes = unsummed.iter().map(|segment| segment.len()).sum();
    let (bytes, name) = (report.unverified_bytes, &first.name);
    let which = match unsummed.len() {
        1 => format!("segment {name:?}"),
        more => format!("{more} segments, {name:?} the first of them"),
    };
    report
        .notes
        .push(format!("the content of {which} ({bytes} bytes) was not verified: it has no checksums"));
}
