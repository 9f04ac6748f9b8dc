//! Stores dumped, archived and made again.

use crate::api::options::Options;
use crate::api::store::Store;
use crate::inspect::check::check_with;
use crate::policy::backup::dump::{DumpOptions, Dumped};
use crate::policy::backup::restore::{Making, RestoreOptions, Restored};
use crate::policy::backup::{BackupError, Mended};
use crate::policy::redo::backup::archive::{ArchiveOptions, Archiver};
use crate::policy::redo::backup::past::{self, Changed, Past};
use crate::policy::table;
use crate::storage::attempt;
use crate::storage::directory;
use crate::storage::error::OpenError;
use crate::storage::progress::Watch;
use crate::storage::report::Problem;
use crate::storage::settings::Settings;
use std::io::{Read, Write};
use std::ops::Range;
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
    let restored = kind.restore(making, first)?;
    if how.checked {
        check(settings, how, dir)?;
    }
    Ok(restored)
}

/// Checks a store that was restored. From then on it is one like any other.
fn check(settings: &Settings, how: &RestoreOptions, dir: &Path) -> Result<(), BackupError> {
    let mut settings = settings.clone();
    settings.rules.outside.extend(how.external.clone());
    let report = check_with(&settings, dir)?;
    if let Some(Problem { path, offset, text }) = report.problems.into_iter().next() {
        return Err(BackupError::Unsound { path, offset, text });
    }
    let media = directory::hold(dir, &settings)?;
    match directory::lock(&*media, dir, false) {
        Ok(_lock) => Ok(attempt::end(&*media, dir)?),
        // An opening for writing has done it.
        Err(OpenError::InUse { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
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
        storage.own().map_err(|inherited| OpenError::Segment(inherited.into()))?;
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

impl Store {
    /// Compares all segments with their checksums, while the store is used: the segments and offsets of the pages,
    /// of 4 KiB, that are damaged. With the undo policy there are no checksums, and nothing is found.
    ///
    /// # Errors
    /// When a segment cannot be read, or the store has failed.
    pub fn scrub(&self) -> Result<Vec<(String, u64)>, BackupError> {
        let storage = &self.shared.storage;
        storage.own().map_err(|inherited| OpenError::Segment(inherited.into()))?;
        self.shared.policy.damaged().unwrap_or(Ok(Vec::new()))
    }

    /// Makes damaged pages again, while the store is used, from a dump, those that are laid over it behind it in
    /// the same stream, the archive that `how` names, and the log. Each page that is written is what its checksum
    /// says. What became of each page that was damaged.
    ///
    /// A page that a transaction has changed after it was damaged has a checksum of the damage, and is not found.
    ///
    /// # Errors
    /// When a segment, the dump or the archive cannot be read, or a part of the log is missing; when the store has
    /// failed. With the undo policy: [`OpenError::Policy`].
    pub fn mend(&self, dumps: &mut dyn Read, how: &RestoreOptions) -> Result<Vec<Mended>, BackupError> {
        let storage = &self.shared.storage;
        storage.own().map_err(|inherited| OpenError::Segment(inherited.into()))?;
        let mut settings = Settings { media: storage.media.clone(), ..Settings::default() };
        settings.background = !self.life.threads.is_empty();
        self.shared.policy.mend(&settings, dumps, how).unwrap_or_else(|| {
            let why = "a store with the undo policy has no checksums and no log";
            Err(OpenError::Policy { path: storage.dir.clone(), why }.into())
        })
    }
}

impl Options {
    /// What bytes of a segment were at the moment that `how` names, from a dump, those that are laid over it
    /// behind it in the same stream, the archive, and the log of the store that is [`left`](RestoreOptions::left),
    /// which may be in use. `tell` is told of each change of them after the end of the dumps, in their order: from
    /// what, to what.
    ///
    /// # Errors
    /// As [`Options::restore`]; [`SegmentError::Unknown`](crate::SegmentError::Unknown).
    pub fn past(
        &self,
        dumps: &mut dyn Read,
        how: &RestoreOptions,
        segment: &str,
        range: Range<u64>,
        tell: &mut dyn FnMut(&Changed),
    ) -> Result<Past, BackupError> {
        past::past(&self.settings, dumps, how, (segment, range), tell)
    }

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
    /// # Errors When the dump or what else is read is damaged, a part of the log is missing, or the moment that is
    /// wanted is not among them; when the store is not sound that was made ([`RestoreOptions::checked`]). The
    /// directory can be restored to again then, and also when the program was killed meanwhile: what the attempt
    /// made is removed, and nothing else.
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
