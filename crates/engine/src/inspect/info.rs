//! `info`: what a store consists of, read from its files without opening it, also while it is in use.

use crate::policy::kind::{Closed, Kind, Policy};
use crate::policy::query::LogInfo;
use crate::policy::table;
use crate::storage::catalog::{Catalog, Entry};
use crate::storage::class::Class;
use crate::storage::directory;
use crate::storage::error::OpenError;
use caliburn_log::format::{self, VERSION};
use caliburn_os::medium::{Files, Media};
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

/// Describes the store in a directory.
///
/// # Errors
/// When there is none, or its catalog or log status cannot be read.
pub fn info(dir: impl AsRef<Path>) -> Result<Info, OpenError> {
    let dir = dir.as_ref();
    let catalog = directory::read_catalog(&Files, dir)?;
    let kind = table::kind_of(dir, &catalog)?;
    let (log, clean) = kind.info(&Closed { media: &Files, dir, catalog: &catalog })?;
    let in_use_by = match directory::lock(&Files, dir, true) {
        Err(OpenError::InUse { holder, .. }) => Some(holder),
        _ => None,
    };
    let segment = |entry: Entry| SegmentInfo {
        id: entry.id.0,
        path: Catalog::resolve(dir, &entry.path),
        name: entry.name,
        len: entry.len,
        address: entry.address,
    };
    Ok(Info {
        id: format::hex(&catalog.store),
        format: VERSION,
        policy: kind.policy(),
        reach: reach(dir, &catalog, kind)?,
        clean,
        in_use_by,
        log,
        segments: catalog.segments.into_iter().map(segment).collect(),
    })
}

/// What survives of the weakest file.
fn reach(dir: &Path, catalog: &Catalog, kind: &dyn Kind) -> Result<Class, OpenError> {
    // A file that was adopted may be gone: it weighs when it is there.
    let there = |entry: &&Entry| !entry.is_external() || entry.path.exists();
    let segments = catalog.segments.iter().filter(there).map(|entry| &*entry.path);
    let of = |path: &Path| -> Result<Class, OpenError> {
        let path = Catalog::resolve(dir, path);
        let medium = Files.open(&path, false).map_err(OpenError::io("open", &path))?;
        Ok(kind.survives(&*medium))
    };
    let all = segments.chain([kind.keeper(catalog)]);
    all.map(of).try_fold(Class::Power, |least, class| Ok(least.min(class?)))
}
