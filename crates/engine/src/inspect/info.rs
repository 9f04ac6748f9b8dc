//! `info`: what a store consists of, read from its files without opening it, also while it is in use.

use crate::policy::kind::{Closed, Kind, Policy};
use crate::policy::query::LogInfo;
use crate::policy::table;
use crate::storage::catalog::{Catalog, Entry};
use crate::storage::class::Class;
use crate::storage::directory;
use crate::storage::error::OpenError;
use crate::storage::generations::Generations;
use crate::storage::settings::Settings;
use caliburn_log::format;
use caliburn_os::medium::Media;
use std::path::{Path, PathBuf};

/// What a store consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// Identity of the store, in hexadecimal.
    pub id: String,
    /// Version of its format.
    pub format: u32,
    /// How changes are undone and redone.
    pub policy: Policy,
    /// The most that a commit can survive: see [`Store::reach`](crate::Store::reach).
    pub reach: Class,
    /// Closed in good order.
    pub clean: bool,
    /// Who has it open, if anybody.
    pub in_use_by: Option<String>,
    /// The log; none with the undo policy.
    pub log: Option<LogInfo>,
    /// The segments.
    pub segments: Vec<SegmentInfo>,
}

/// A segment, as the catalog describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Number.
    pub id: u32,
    /// Name.
    pub name: String,
    /// File or device.
    pub path: PathBuf,
    /// Bytes of data.
    pub len: u64,
    /// Address at which the segment loader maps it; 0 if it never did.
    pub address: u64,
}

/// Describes the store in a directory. With what it names outside of its directory, if anything:
/// [`Options::info`](crate::Options::info).
///
/// # Errors
/// When there is none, or its catalog or log status cannot be read.
pub fn info(dir: impl AsRef<Path>) -> Result<Info, OpenError> {
    info_with(&Settings::default(), dir.as_ref())
}

/// [`info()`], of a store that is to be opened so.
pub(crate) fn info_with(settings: &Settings, dir: &Path) -> Result<Info, OpenError> {
    let media = &directory::hold(dir, settings)?;
    let catalog = directory::read_catalog(&**media, dir)?;
    let kind = table::kind_of(dir, &catalog)?;
    let lock = directory::lock(&**media, dir, true);
    let in_use_by = match &lock {
        Err(OpenError::InUse { holder, .. }) => Some(holder.clone()),
        _ => None,
    };
    // A program that has it open changes them.
    let generations = match lock {
        Ok(_) => Generations::open(&**media, dir, &catalog, false)?,
        Err(_) => None,
    };
    let (log, clean) = kind.info(&Closed {
        settings,
        in_use: false,
        watch: &settings.watch,
        media,
        dir,
        catalog: &catalog,
        generations: generations.as_ref(),
    })?;
    drop(lock);
    let segment = |entry: Entry| SegmentInfo {
        id: entry.id.0,
        path: Catalog::resolve(dir, &entry.path),
        name: entry.name,
        len: entry.len,
        address: entry.address,
    };
    Ok(Info {
        id: format::hex(&catalog.store),
        format: catalog.version(),
        policy: kind.policy(),
        reach: reach(&**media, dir, &catalog, kind)?,
        clean,
        in_use_by,
        log,
        segments: catalog.segments.into_iter().map(segment).collect(),
    })
}

/// What survives of the weakest file.
fn reach(media: &dyn Media, dir: &Path, catalog: &Catalog, kind: &dyn Kind) -> Result<Class, OpenError> {
    let of = |path: &Path| -> Result<Class, OpenError> {
        let path = Catalog::resolve(dir, path);
        let medium = media.open(&path, false).map_err(OpenError::io("open", &path))?;
        Ok(kind.survives(&*medium))
    };
    // Of two copies of a log one may be gone.
    let second = catalog.copies.get(1).map(|second| of(&second.path));
    let mut least = of(kind.keeper(catalog)).or_else(|error| second.unwrap_or(Err(error)))?;
    for entry in &catalog.segments {
        match of(&entry.path) {
            // One that was adopted may be gone: it weighs when it is there.
            Err(_) if entry.is_external() => {}
            class => least = least.min(class?),
        }
    }
    Ok(least)
}
