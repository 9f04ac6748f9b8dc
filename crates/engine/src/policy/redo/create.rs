//! Making the files of a new store: log and stage, and the catalog last.

use super::prepared::{self, PreparedTable};
use super::records;
use crate::policy::kind::{New, Policy};
use crate::policy::log_file;
use crate::storage::catalog::{Catalog, Entry};
use crate::storage::directory::{self, LOG, STAGE};
use crate::storage::error::OpenError;
use crate::storage::settings::LOG_BYTES;
use caliburn_log::format::{FIRST_GENERATION, Lsn};
use caliburn_log::log::{self, Log};
use caliburn_log::media_error::MediaError;
use caliburn_log::record::{self, Kind};
use caliburn_log::scan::Scanned;
use caliburn_os::host::Id;
use caliburn_os::medium::Medium;
use std::io;
use std::sync::Arc;

pub(super) fn create(new: New<'_>) -> Result<(), OpenError> {
    create_with(new, 0, Vec::new(), &mut PreparedTable::new())
}

/// The same, of a store whose segments are there, and that has undecided transactions.
pub(super) fn create_with(
    new: New<'_>,
    next: u32,
    segments: Vec<Entry>,
    undecided: &mut PreparedTable,
) -> Result<(), OpenError> {
    log_file::create(new, (Policy::Redo, LOG), (next, segments), |new, catalog, medium, made| {
        fill(new, catalog, medium, made, undecided)
    })
}

fn fill(
    new: &New<'_>,
    catalog: &Catalog,
    log_medium: &Arc<dyn Medium>,
    made: bool,
    undecided: &mut PreparedTable,
) -> Result<(), OpenError> {
    let (dir, settings, media) = (new.dir, new.settings, &*new.settings.media);
    settings.require(dir, (log_medium.path().to_owned(), directory::forced(log_medium.volatile())))?;
    let bytes = settings.log_bytes.unwrap_or(LOG_BYTES);
    log::create(&**log_medium, catalog.store, bytes, FIRST_GENERATION)?;
    if !undecided.is_empty() {
        put_undecided(log_medium, catalog.store, undecided)?;
    }
    let _ = media.remove(&dir.join(STAGE));
    let stage_path = dir.join(STAGE);
    let stage = media.create(&stage_path).map_err(OpenError::io("create stage", &stage_path))?;
    stage
        .set_len(settings.stage_bytes)
        .map_err(|e| MediaError::new("allocate the stage", &*stage, settings.stage_bytes, e))?;
    directory::name_files(media, dir, catalog, made && catalog.log_path.is_absolute())
}

/// Writes undecided transactions to a new log.
fn put_undecided(
    medium: &Arc<dyn Medium>,
    store: Id,
    undecided: &mut PreparedTable,
) -> Result<(), OpenError> {
    let status = log::read_status(&**medium, Some(&store))?;
    let empty = Scanned { from: Lsn(0), tail: Lsn(0), forced: Lsn(0), damage: None };
    let at = (medium.place().unwrap_or_default(), FIRST_GENERATION);
    let log = Log::open(medium.clone(), store, status, &empty, at)?;
    if prepared::bytes(undecided) > log.capacity() / 4 {
        let text = "undecided transactions take more than a quarter of the log: make a larger one";
        let error = io::Error::new(io::ErrorKind::StorageFull, text);
        return Err(MediaError::new("write", &**medium, 0, error).into());
    }
    for (id, body, lsn) in prepared::entries(undecided) {
        *lsn = records::append(&log, Kind::Prepare, &record::prefix(Kind::Prepare, 1, id), body)?;
    }
    Ok(log.force()?)
}
