//! Making the log of a new store, in its directory or elsewhere.

use super::kind::{New, Policy};
use crate::storage::catalog::{Catalog, Entry};
use crate::storage::directory;
use crate::storage::error::OpenError;
use crate::storage::segment;
use caliburn_log::format::{BLOCK, FIRST_GENERATION, STATUS_AT};
use caliburn_os::medium::Medium;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Makes the log that the settings name, or one of that name in the directory, has it filled, and leaves nothing
/// behind if that fails. `fill` is told whether it is a new file, and writes the catalog last.
pub(super) fn create(
    new: New<'_>,
    (policy, name): (Policy, &str),
    (next, segments): (u32, Vec<Entry>),
    fill: impl FnOnce(&New<'_>, &Catalog, &Arc<dyn Medium>, bool) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    let (media, settings) = (&*new.settings.media, new.settings);
    let log_path = match &settings.log_path {
        Some(path) => std::path::absolute(path).map_err(OpenError::io("resolve", path))?,
        None => PathBuf::from(name),
    };
    let (store, policy) = (new.store, policy as u16);
    let (copies, count) = (Vec::new(), FIRST_GENERATION);
    let sums = policy == Policy::Shadow as u16;
    let catalog = Catalog { store, policy, log_path, copies, next, count, sums, segments };
    let path = Catalog::resolve(new.dir, &catalog.log_path);
    directory::refuse_own(media, &catalog.log_path)?;
    if !catalog.log_path.is_absolute() {
        let _ = media.remove(&path);
    }
    let (medium, made) = match media.create(&path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (media.open(&path, true), false),
        other => (other, true),
    };
    let medium = medium.map_err(OpenError::io("create log", &path))?;
    segment::refuse_foreign(&*medium)?;
    let elsewhere = catalog.log_path.is_absolute();
    let _claim = elsewhere.then(|| medium.claim(false)).transpose().map_err(OpenError::io("lock", &path))?;
    let done = fill(&new, &catalog, &medium, made);
    *new.uncatalogued = done.is_ok() || directory::uncatalogued(media, new.dir);
    if done.is_err() && *new.uncatalogued {
        // A second attempt must not take what is left for another store's log.
        if made {
            let _ = media.remove(&path);
        } else {
            let _ = STATUS_AT.map(|at| medium.write_at(&[0; BLOCK], at));
        }
    }
    done
}
