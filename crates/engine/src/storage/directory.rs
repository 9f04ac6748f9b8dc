//! A store's directory: the names in it, its lock, its catalog, and the segments that the catalog names.

use crate::storage::catalog::Catalog;
use crate::storage::class::Class;
use crate::storage::copies;
use crate::storage::error::OpenError;
use crate::storage::generations::{GENERATIONS, Generations};
use crate::storage::opener::Opener;
use crate::storage::segment::SegmentState;
use crate::storage::settings::{Copies, Settings};
use caliburn_os::host::{Lock, LockError};
use caliburn_os::medium::{Media, Medium, Replaced};
use caliburn_os::simulated::{even_if, planted};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Names in a store's directory.
pub(crate) const CATALOG: &str = "catalog";
pub(crate) const LOCK: &str = "lock";
pub(crate) const LOG: &str = "log";
/// The log, after it was relocated within the directory once, or three times.
pub(crate) const OTHER_LOG: &str = "log.2";
pub(crate) const STAGE: &str = "stage";
pub(crate) const UNDO: &str = "undo";
/// The log of before-images.
pub(crate) const SHADOW: &str = "shadow";
/// In which order a program touched what was mapped.
pub(crate) const ORDER: &str = "order";
/// While a store is being made: without it no file is taken for what an unfinished attempt has left.
const MAKING: &str = "making";
/// What it holds.
const MAKING_TEXT: &[u8] = b"A Caliburn store is being made in this directory.\n";

/// The media of the settings, with the files of the directory found from the directory itself, wherever it goes
/// from here, and whatever takes its name.
pub(crate) fn hold(dir: &Path, settings: &Settings) -> Result<Arc<dyn Media>, OpenError> {
    let held = settings.media.held(dir, &settings.rules).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            OpenError::NotAStore { path: dir.to_owned() }
        }
        _ => OpenError::io("open directory", dir)(error),
    })?;
    let media = held.unwrap_or_else(|| settings.media.clone());
    settings.log_path.iter().for_each(|path| media.list_outside(path));
    if let Copies::Two(path) = &settings.copies {
        media.list_outside(path);
    }
    Ok(media)
}

/// Refuses a directory with files that are not an unfinished store's.
pub(crate) fn only_ours(media: &dyn Media, dir: &Path) -> Result<(), OpenError> {
    let names = media.list(dir).map_err(OpenError::io("list directory", dir))?;
    let begun = even_if("foreign-files-taken", is_making(media, dir)?);
    let ours = |name: &OsString| {
        let left = begun
            && [LOG, STAGE, UNDO, SHADOW, GENERATIONS, CATALOG, "catalog.new"]
                .iter()
                .any(|ours| name == ours);
        left || name == LOCK || name == MAKING
    };
    if names.iter().all(ours) { Ok(()) } else { Err(OpenError::Exists { path: dir.to_owned() }) }
}

/// Whether somebody has begun to make a store here. A crash may have left parts of the file that says so, and
/// zeros.
fn is_making(media: &dyn Media, dir: &Path) -> Result<bool, OpenError> {
    let path = dir.join(MAKING);
    if !media.exists(&path) {
        return Ok(false);
    }
    let text = media.read(&path).map_err(OpenError::io("read", &path))?;
    let ours = text.iter().zip(MAKING_TEXT).all(|(byte, ours)| *byte == 0 || byte == ours);
    if ours && text.len() <= MAKING_TEXT.len() {
        return Ok(true);
    }
    Err(OpenError::Exists { path: dir.to_owned() })
}

/// Says durably that a store is being made, before there is anything of it.
pub(crate) fn begin_making(media: &dyn Media, dir: &Path) -> Result<(), OpenError> {
    let path = dir.join(MAKING);
    if !media.exists(&path) {
        let fail = |error| OpenError::io("make", &path)(error);
        let medium = media.create(&path).map_err(fail)?;
        medium.write_at(MAKING_TEXT, 0).map_err(fail)?;
    }
    media.sync_directory(dir).map_err(OpenError::io("force directory", dir))
}

/// Nothing is being made any more: the store is complete, or what there was of it is gone. If this fails, opening
/// does it again.
pub(crate) fn end_making(media: &dyn Media, dir: &Path) {
    let path = dir.join(MAKING);
    // A user's file of that name stays.
    if is_making(media, dir).unwrap_or(false) && media.sync_directory(dir).is_ok() {
        let _ = media.remove(&path);
    }
}

/// Refuses a log of a new store that is said to be elsewhere and lies in its directory, whose files are its own.
pub(crate) fn refuse_own(media: &dyn Media, log_path: &Path) -> Result<(), OpenError> {
    if log_path.is_absolute() && media.holds(log_path) {
        let text = "files in the store's directory are the store's own; its log there needs no path";
        return Err(OpenError::io("use", log_path)(io::Error::new(io::ErrorKind::InvalidInput, text)));
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

/// Locks the log or the undo logs themselves: they may have a name in another directory, too.
pub(crate) fn claim(medium: &dyn Medium, write: bool) -> Result<Option<Lock>, OpenError> {
    if planted("hard-links-not-noticed") {
        return Ok(None);
    }
    medium.claim(!write).map_err(OpenError::io("lock", medium.path()))
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
    Generations::create(media, dir, catalog)?;
    media.sync_directory(dir).map_err(OpenError::io("force directory", dir))?;
    if let (true, Some(above)) = (made_elsewhere, catalog.log_path.parent()) {
        media.sync_directory(above).map_err(OpenError::io("force directory", above))?;
    }
    let catalog_path = dir.join(CATALOG);
    let replaced = media
        .replace(&catalog_path, &catalog.encode())
        .map_err(OpenError::io("write catalog", &catalog_path))?;
    if let Replaced::Perhaps(error) = replaced {
        return Err(OpenError::io("force the name of", &catalog_path)(error));
    }
    // The directory's own name.
    let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    media.sync_directory(parent).map_err(OpenError::io("force directory", parent))
}

/// The catalog, which must be of the same time as what the store says of its [generations](super::generations).
pub(crate) fn read_catalog(media: &dyn Media, dir: &Path) -> Result<Catalog, OpenError> {
    find_catalog(media, dir).and_then(|(catalog, older)| older.map_or(Ok(catalog), Err))
}

/// The catalog, and why it is not to be relied on, if so.
pub(crate) fn find_catalog(media: &dyn Media, dir: &Path) -> Result<(Catalog, Option<OpenError>), OpenError> {
    /// The process that has the store open may be changing both.
    const TRIES: u32 = 20;
    let mut found = None;
    for _ in 0..TRIES {
        let catalog = read_catalog_alone(media, dir)?;
        match Generations::check_catalog(media, dir, &catalog) {
            Ok(()) => return Ok((catalog, None)),
            Err(error) => found = Some((catalog, Some(error))),
        }
    }
    Ok(found.expect("it was tried"))
}

fn read_catalog_alone(media: &dyn Media, dir: &Path) -> Result<Catalog, OpenError> {
    let path = dir.join(CATALOG);
    let bytes = match media.read(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::NotAStore { path: dir.to_owned() });
        }
        other => other.map_err(OpenError::io("read catalog", &path))?,
    };
    let catalog =
        Catalog::decode(&bytes).map_err(|(offset, defect)| OpenError::Catalog { path, offset, defect });
    with_copies(media, dir, catalog?)
}

/// What it says, and where the log is instead, if it has, or had, two media.
pub(crate) fn with_copies(media: &dyn Media, dir: &Path, mut catalog: Catalog) -> Result<Catalog, OpenError> {
    catalog.copies = copies::read(media, dir, &catalog.store)?;
    catalog.copies.retain(|copy| !copy.lost);
    if let Some(first) = catalog.copies.first() {
        catalog.log_path.clone_from(&first.path);
    }
    Ok(catalog)
}

/// The segments of a store, with checksums if its policy keeps them. Not external ones whose files cannot be
/// opened: they may go when the log has nothing for them.
pub(crate) fn open_segments(
    opener: Opener<'_>,
    catalog: &Catalog,
    sums: bool,
) -> Result<Vec<Arc<SegmentState>>, OpenError> {
    let mut segments = Vec::new();
    for entry in &catalog.segments {
        match SegmentState::open(opener, catalog, entry, sums) {
            Ok(segment) => segments.push(Arc::new(segment)),
            Err(_) if entry.is_external() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(segments)
}

/// What survives of a medium that was forced.
pub(crate) fn forced(volatile: bool) -> Class {
    if volatile { Class::Process } else { Class::Power }
}
