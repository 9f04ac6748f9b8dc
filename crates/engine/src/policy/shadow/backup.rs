//! Dumps of stores with the shadow policy, and stores made of them: [`segments`].

use super::{Shadow, recovery};
use crate::policy::backup::BackupError;
use crate::policy::backup::dump::{DumpOptions, Dumped};
use crate::policy::backup::restore::{Making, Restored};
use crate::policy::backup::segments;
use crate::storage::catalog::Catalog;
use crate::storage::error::OpenError;
use crate::storage::progress::Watch;
use crate::storage::settings::Settings;
use caliburn_log::image_status::{self, CLEAN};
use std::cell::RefCell;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Dumps a store that nobody has open for writing.
pub(super) fn dump(
    settings: &Settings,
    dir: &Path,
    how: &DumpOptions,
    target: &mut dyn Write,
) -> Result<Dumped, BackupError> {
    segments::dump(settings, dir, how, target, |media, catalog, generations| {
        let path = Catalog::resolve(dir, &catalog.log_path);
        let log = media.open(&path, false).map_err(OpenError::io("open before-images", &path))?;
        let status = image_status::read_status(&*log, &catalog.store).map_err(OpenError::from)?;
        if let Some(generations) = generations {
            generations.check_keeper(image_status::said(&status), |defect| recovery::bad(&*log, defect))?;
        }
        match status.clean.get() {
            CLEAN => Ok(()),
            _ => Err(BackupError::NotClosed { path: dir.to_owned() }),
        }
    })
}

/// How long a dump waits each time for a transaction that is open.
const PATIENCE: Duration = Duration::from_secs(2);

impl Shadow {
    /// Dumps the store that is open, between two transactions.
    pub(super) fn dump_open(
        &self,
        how: &DumpOptions,
        watch: &Watch,
        target: &mut dyn Write,
    ) -> Result<Dumped, BackupError> {
        let wanted = RefCell::new(Some(self.sets.turn.want()));
        segments::dump_open(&self.storage, how, watch, target, || {
            let held = wanted.borrow().as_ref().and_then(|wanted| wanted.take_within(PATIENCE));
            if held.is_some() {
                wanted.take();
            }
            held
        })
    }
}

/// A store that is made of a dump.
pub(super) fn restore(mut making: Making<'_>, first: Catalog) -> Result<Restored, BackupError> {
    let why = "a store with the shadow policy keeps no log of its changes: there is neither an archive nor a later state than the dump's";
    making.note_log()?;
    segments::restore(making, first, why, recovery::create)
}
