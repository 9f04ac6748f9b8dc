//! `info`: what a store consists of, read from its files without opening it, also while it is in use.

use crate::api::recovery;
use crate::storage::catalog::{Catalog, Entry};
use crate::storage::class::Class;
use crate::storage::error::OpenError;
use crate::storage::kind::Policy;
use caliburn_log::format::{self, VERSION};
use caliburn_log::log;
use caliburn_log::uncommitted;
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

/// A store's log, as its status page describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogInfo {
    /// File or device.
    pub path: PathBuf,
    /// Bytes of the ring.
    pub capacity: u64,
    /// Oldest record needed.
    pub head: u64,
    /// The log was forced up to here when the status was last written.
    pub forced: u64,
    /// Openings for writing so far.
    pub incarnation: u32,
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
    let catalog = recovery::read_catalog(&Files, dir)?;
    let (log, clean) = match catalog.policy {
        Policy::Redo => log_info(dir, &catalog).map(|(log, clean)| (Some(log), clean))?,
        Policy::Undo => {
            let path = dir.join(recovery::UNDO);
            let medium = Files.open(&path, false).map_err(OpenError::io("open undo logs", &path))?;
            (None, uncommitted::read_status(&*medium, &catalog.store)?.clean.get() == 1)
        }
    };
    let in_use_by = match recovery::lock(&Files, dir, true) {
        Err(OpenError::InUse { holder, .. }) => Some(holder),
        _ => None,
    };
    let segment = |entry: crate::storage::catalog::Entry| SegmentInfo {
        id: entry.id.0,
        path: Catalog::resolve(dir, &entry.path),
        name: entry.name,
        len: entry.len,
        address: entry.address,
    };
    Ok(Info {
        id: format::hex(&catalog.store),
        format: VERSION,
        policy: catalog.policy,
        reach: reach(dir, &catalog)?,
        clean,
        in_use_by,
        log,
        segments: catalog.segments.into_iter().map(segment).collect(),
    })
}

/// What survives of the weakest file.
fn reach(dir: &Path, catalog: &Catalog) -> Result<Class, OpenError> {
    let log = if catalog.policy == Policy::Undo { Path::new(recovery::UNDO) } else { &catalog.log_path };
    // A file that was adopted may be gone: it weighs when it is there.
    let there = |entry: &&Entry| !entry.is_external() || entry.path.exists();
    let paths = catalog.segments.iter().filter(there).map(|entry| &*entry.path).chain([log]);
    let of = |path: &Path| -> Result<Class, OpenError> {
        let path = Catalog::resolve(dir, path);
        let medium = Files.open(&path, false).map_err(OpenError::io("open", &path))?;
        Ok(match catalog.policy {
            Policy::Redo => recovery::forced(&*medium),
            Policy::Undo => medium.memory().survives.into(),
        })
    };
    paths.map(of).try_fold(Class::Power, |least, class| Ok(least.min(class?)))
}

fn log_info(dir: &Path, catalog: &Catalog) -> Result<(LogInfo, bool), OpenError> {
    let path = Catalog::resolve(dir, &catalog.log_path);
    let medium = Files.open(&path, false).map_err(OpenError::io("open log", &path))?;
    let status = log::read_status(&*medium, Some(&catalog.store))?;
    let log = LogInfo {
        path,
        capacity: status.capacity.get(),
        head: status.head.get(),
        forced: status.forced.get(),
        incarnation: status.incarnation.get(),
    };
    Ok((log, status.clean.get() == 1))
}
