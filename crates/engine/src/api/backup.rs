//! Stores dumped, archived and made again.

use crate::api::options::Options;
use crate::api::store::Store;
use crate::policy::backup::BackupError;
use crate::policy::backup::dump::{DumpOptions, Dumped};
use crate::policy::backup::restore::{Making, RestoreOptions, Restored};
use crate::policy::redo::backup::archive::{ArchiveOptions, Archiver};
use crate::policy::table;
use crate::storage::directory;
use crate::storage::progress::Watch;
use crate::storage::settings::Settings;
use std::io::{Read, Write};
use std::path::Path;

fn dump(
    settings: &Settings,
    dir: &Path,
    how: &DumpOptions,
    target: &mut dyn Write,
) -> Result<Dumped, BackupError> {
    let catalog = directory::read_catalog(&*directory::hold(dir, settings)?, dir)?;
    table::kind_of(dir, &catalog)?.dump(settings, dir, how, target)
}

fn restore(
    settings: &Settings,
    source: &mut dyn Read,
    how: &RestoreOptions,
    dir: &Path,
) -> Result<Restored, BackupError> {
    let (mut making, first) = Making::begin(settings, source, how, dir)?;
    let kind = table::kind_of(dir, &first)?;
    making.sums = kind.sums();
    kind.restore(making, first)
}

impl Store {
    /// Dumps the store to a stream while it is used: every commit so far is in it, and any others up to one
    /// moment, which [`Dumped::lsn`] tells. Nobody waits for it; with the undo policy transactions wait while the
    /// segments are copied to a file ([`Dumped::held`]). With what the store names outside of its directory, or to
    /// be told of progress: [`Options::dump`].
    ///
    /// # Errors
    /// As [`Options::dump`]; when the store has failed.
    pub fn dump(&self, how: &DumpOptions, target: &mut dyn Write) -> Result<Dumped, BackupError> {
        let storage = &self.shared.storage;
        let failed = |failure| BackupError::Failed { path: storage.dir.clone(), failure };
        storage.failure().map_err(failed)?;
        if !storage.is_read_only() {
            self.shared.policy.flush().map_err(failed)?;
        }
        let dumped = match self.shared.policy.dump(how, &Watch::default(), target) {
            Some(dumped) => dumped?,
            None => {
                let mut options = Options::new();
                options.media(storage.media.clone()).background(!self.life.threads.is_empty());
                options.dump(&storage.dir, how, target)?
            }
        };
        storage.failure().map_err(failed)?;
        Ok(dumped)
    }
}

impl Options {
    /// Dumps the store in directory `path` to a stream, while another program, or this one, has it open; nothing
    /// is asked of it. What was committed in class `Process` and is not in the log yet is not in the dump: from
    /// within, [`Store::dump`] sees to that. One that a killed process has left with staged commits is refused
    /// ([`BackupError::NotClosed`]): open it first, which recovers them.
    ///
    /// A store with the undo policy has no log, and can be dumped from outside only while nobody has it open.
    ///
    /// # Errors
    /// When the store cannot be read or is damaged, when the stream fails, or more is committed than can be
    /// followed. What was written to the stream is no dump then.
    pub fn dump(
        &self,
        path: impl AsRef<Path>,
        how: &DumpOptions,
        target: &mut dyn Write,
    ) -> Result<Dumped, BackupError> {
        let options = self.afresh();
        let dumped = dump(&options.settings, path.as_ref(), how, target);
        options.told(path.as_ref(), dumped)
    }

    /// Makes a store in directory `path`, which is empty or missing, from a dump, those that are laid over it, one
    /// behind the other in the same stream, and what it is to be brought up to date from. It is closed when this
    /// returns. Its log is as long as these options say.
    ///
    /// # Errors
    /// When the dump or what else is read is damaged, a part of the log is missing, or the moment that is wanted
    /// is not among them. The directory holds no store then, and can be used again.
    pub fn restore(
        &self,
        dump: &mut dyn Read,
        how: &RestoreOptions,
        path: impl AsRef<Path>,
    ) -> Result<Restored, BackupError> {
        self.validate()?;
        let options = self.afresh();
        let restored = restore(&options.settings, dump, how, path.as_ref());
        options.told(path.as_ref(), restored)
    }

    /// Archives the log of the store in directory `path`, which this program or another one may have open, or goes
    /// on with that.
    ///
    /// # Errors
    /// When the store cannot be read, or the archive has parts of another store's log.
    pub fn archiver(&self, path: impl AsRef<Path>, how: &ArchiveOptions) -> Result<Archiver, BackupError> {
        Archiver::begin(&self.settings, path.as_ref(), how)
    }
}
