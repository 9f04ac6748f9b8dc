//! A store's directory: the names in it, its lock, its catalog, and the segments that the catalog names.

use crate::storage::catalog::Catalog;
use crate::storage::class::Class;
use crate::storage::error::OpenError;
use crate::storage::segment::SegmentState;
use caliburn_os::host::{Lock, LockError};
use caliburn_os::medium::{Media, Medium};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Names in a store's directory.
pub(crate) const CATALOG: &str = "catalog";
pub(crate) const LOCK: &str = "lock";
pub(crate) const LOG: &str = "log";
pub(crate) const STAGE: &str = "stage";
pub(crate) const UNDO: &str = "undo";

/// Refuses a directory with files that are not an unfinished store's.
pub(crate) fn only_ours(media: &dyn Media, dir: &Path) -> Result<(), OpenError> {
    for name in media.list(dir).map_err(OpenError::io("list directory", dir))? {
        if ![LOCK, LOG, STAGE, UNDO, CATALOG, "catalog.new"].iter().any(|ours| name == *ours) {
            return Err(OpenError::Exists { path: dir.to_owned() });
        }
    }
    Ok(())
}

pub(crate) fn lock(media: &dyn Media, dir: &Path, shared: bool) -> Result<Lock, OpenError> {
    let path = dir.join(LOCK);
    media.lock(&path, shared).map_err(|error| match error {
        LockError::Held(holder) => OpenError::InUse { path: dir.to_owned(), holder },
        LockError::Io(source) => OpenError::Io { action: "lock", path, source },
    })
}

/// Whether the directory durably has no catalog; one may have been left by a `replace` that failed at its end.
/// While there is one, the files that it names must stay.
pub(crate) fn uncatalogued(media: &dyn Media, dir: &Path) -> bool {
    let catalog = dir.join(CATALOG);
    !media.exists(&catalog) || (media.remove(&catalog).is_ok() && media.sync_directory(dir).is_ok())
}

/// Makes the names of a new store's files durable, and then the catalog. `made_elsewhere`: the log is a new
/// file outside of the directory.
pub(crate) fn name_files(
    media: &dyn Media,
    dir: &Path,
    catalog: &Catalog,
    made_elsewhere: bool,
) -> Result<(), OpenError> {
    media.sync_directory(dir).map_err(OpenError::io("force directory", dir))?;
    if let (true, Some(above)) = (made_elsewhere, catalog.log_path.parent()) {
        media.sync_directory(above).map_err(OpenError::io("force directory", above))?;
    }
    let catalog_path = dir.join(CATALOG);
    media.replace(&catalog_path, &catalog.encode()).map_err(OpenError::io("write catalog", &catalog_path))?;
    // The directory's own name.
    let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    media.sync_directory(parent).map_err(OpenError::io("force directory", parent))
}

pub(crate) fn read_catalog(media: &dyn Media, dir: &Path) -> Result<Catalog, OpenError> {
    let path = dir.join(CATALOG);
    let bytes = match media.read(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::NotAStore { path: dir.to_owned() });
        }
        other => other.map_err(OpenError::io("read catalog", &path))?,
    };
    Catalog::decode(&bytes).map_err(|(offset, defect)| OpenError::Catalog { path, offset, defect })
}

/// The segments of a store, with checksums if its policy keeps them. Not external ones whose files cannot be
/// opened: they may go when the log has nothing for them.
pub(crate) fn open_segments(
    media: &dyn Media,
    dir: &Path,
    catalog: &Catalog,
    sums: bool,
    write: bool,
) -> Result<Vec<Arc<SegmentState>>, OpenError> {
    let mut segments = Vec::new();
    for entry in &catalog.segments {
        match SegmentState::open(media, dir, catalog, entry, (sums, write)) {
            Ok(segment) => segments.push(Arc::new(segment)),
            Err(_) if entry.is_external() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(segments)
}

/// What survives of a medium that was forced.
pub(crate) fn forced(medium: &dyn Medium) -> Class {
    if medium.volatile() { Class::Process } else { Class::Power }
}
