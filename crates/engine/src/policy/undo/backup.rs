//! Dumps of stores with the undo policy, and stores made of them: [`segments`].

use super::Undo;
use super::recovery::{self, bad};
use crate::policy::backup::BackupError;
use crate::policy::backup::dump::{DumpOptions, Dumped};
use crate::policy::backup::restore::{Making, Restored};
use crate::policy::backup::segments;
use crate::storage::catalog::Catalog;
use crate::storage::directory;
use crate::storage::error::OpenError;
use crate::storage::progress::Watch;
use crate::storage::settings::Settings;
use caliburn_log::uncommitted::{self, CLEAN};
use caliburn_os::simulated::planted;
use std::io::Write;
use std::path::Path;

/// Dumps a store that nobody has open for writing.
pub(super) fn dump(
    settings: &Settings,
    dir: &Path,
    how: &DumpOptions,
    target: &mut dyn Write,
) -> Result<Dumped, BackupError> {
    segments::dump(settings, dir, how, target, |media, catalog, generations| {
        let path = dir.join(directory::UNDO);
        let medium = media.open(&path, false).map_err(OpenError::io("open undo logs", &path))?;
        let status = uncommitted::read_status(&*medium, &catalog.store).map_err(OpenError::from)?;
        if let Some(generations) = generations {
            generations.check_keeper(uncommitted::said(&status), |defect| bad(&*medium, defect))?;
        }
        if status.clean != CLEAN {
            return Err(BackupError::NotClosed { path: dir.to_owned() });
        }
        generations.map_or(Ok(()), |generations| generations.trust()).map_err(OpenError::from)?;
        refuse_undecided(dir, super::prepared::read(media, dir, &catalog.store)?.len())
    })
}

/// A dump has segments, and no place for what is undecided.
fn refuse_undecided(path: &Path, count: usize) -> Result<(), BackupError> {
    if count == 0 || planted("dumped-without-the-undecided") {
        return Ok(());
    }
    Err(BackupError::Undecided { path: path.to_owned(), count })
}

impl Undo {
    /// Dumps the store that is open.
    pub(super) fn dump_open(
        &self,
        how: &DumpOptions,
        watch: &Watch,
        target: &mut dyn Write,
    ) -> Result<Dumped, BackupError> {
        /// A transaction that has changed something may wait for a lock that is held by one which waits for us.
        const LOOKS: u32 = 300;
        refuse_undecided(&self.storage.dir, self.lock_prepared().len())?;
        segments::dump_open(&self.storage, how, watch, target, || self.sets.quiet(LOOKS))
    }
}

/// A store that is made of a dump.
pub(super) fn restore(making: Making<'_>, first: Catalog) -> Result<Restored, BackupError> {
    let why = "a store with the undo policy has no log: there is neither an archive of it nor a later state than the dump's";
    segments::restore(making, first, why, recovery::create_with)
}
