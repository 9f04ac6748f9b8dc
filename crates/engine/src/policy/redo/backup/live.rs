//! The files of a store, read beside the program that has it open.
//!
//! Invariant: what is in a segment's file is in the log before the end that the stage tells, and what is in the
//! log before the head that its status tells is in the segments and their checksums.

use super::BackupError;
use crate::policy::kind::Policy;
use crate::policy::redo::{duplex, recovery};
use crate::storage::catalog::Catalog;
use crate::storage::directory;
use crate::storage::error::OpenError;
use crate::storage::generations::Generations;
use crate::storage::opener::Opener;
use crate::storage::segment::SegmentState;
use crate::storage::segment_file::Descriptors;
use crate::storage::settings::Settings;
use caliburn_log::format::{Lsn, Status};
use caliburn_log::log;
use caliburn_log::media_error::MediaError;
use caliburn_log::record::Record;
use caliburn_log::scan;
use caliburn_log::staged_tail::{self, StagedTail};
use caliburn_os::host::Id;
use caliburn_os::medium::{Media, Medium};
use caliburn_os::simulated::planted;
use caliburn_os::witness::{Look, Seen};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A store that somebody else may have open.
pub(super) struct Live {
    pub media: Arc<dyn Media>,
    pub dir: PathBuf,
    pub store: Id,
    pub log: Arc<dyn Medium>,
    /// Its other copy.
    second: Option<Arc<dyn Medium>>,
    pub capacity: u64,
    stage: Arc<dyn Medium>,
    memory_kept: bool,
    descriptors: Arc<Descriptors>,
}

/// What becomes of commits that a killed process has left in the stage of a store that nobody has open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Staged {
    /// There must be none: the store is to be recovered first.
    Refused,
    /// They are not in the log yet, and come there when it is.
    Later,
}

impl Live {
    pub fn open(settings: &Settings, dir: &Path, staged: Staged) -> Result<Live, BackupError> {
        let media = directory::hold(dir, settings)?;
        let catalog = directory::read_catalog(&*media, dir)?;
        if catalog.policy != Policy::Redo as u16 {
            let why = "a store with the undo policy has no log that could be archived, or that would tell what was changed";
            return Err(OpenError::Policy { path: dir.to_owned(), why }.into());
        }
        let open = |action, path: PathBuf| media.open(&path, false).map_err(OpenError::io(action, &path));
        let (log, second) = duplex::one_of(&*media, dir, &catalog)?;
        let stage = open("open stage", dir.join(directory::STAGE))?;
        let status = log::read_status(&*log, Some(&catalog.store)).map_err(OpenError::from)?;
        let live = Live {
            descriptors: Descriptors::of(&*media),
            dir: dir.to_owned(),
            store: catalog.store,
            capacity: status.capacity.get(),
            media,
            log,
            second,
            stage,
            memory_kept: settings.memory_kept,
        };
        live.refuse_older(&catalog)?;
        if staged == Staged::Refused && !live.is_in_use()? && live.has_staged()? {
            return Err(BackupError::NotClosed { path: dir.to_owned() });
        }
        Ok(live)
    }

    /// Refuses a log that is older than the rest of a store that nobody has open.
    fn refuse_older(&self, catalog: &Catalog) -> Result<(), BackupError> {
        let _lock = match directory::lock(&*self.media, &self.dir, true) {
            Err(OpenError::InUse { .. }) => return Ok(()),
            lock => lock?,
        };
        let Some(generations) = Generations::open(&*self.media, &self.dir, catalog, false)? else {
            return Ok(());
        };
        let said = log::said(&*self.log, &self.status()?);
        Ok(generations.check_keeper(said, |defect| recovery::bad(self.log.path(), defect))?)
    }

    /// Whether a program has it open. Who opens it at this very moment may be told that it is in use.
    fn is_in_use(&self) -> Result<bool, BackupError> {
        match directory::lock(&*self.media, &self.dir, true) {
            Err(OpenError::InUse { .. }) => Ok(true),
            other => Ok(other.map(|_| false)?),
        }
    }

    /// Whether a killed process has left commits in the stage.
    fn has_staged(&self) -> Result<bool, BackupError> {
        let left = StagedTail::read(&*self.stage, &self.store, &self.see()?).map_err(OpenError::from)?;
        Ok(!left.records.is_empty() || left.dropped.is_some_and(|dropped| !dropped.certain))
    }

    /// What can be seen of whether the stage's memory survived: at this moment, as it may just be made.
    fn see(&self) -> Result<Seen, OpenError> {
        let seen = Seen::of(&*self.media, &[Look::at(&*self.stage)]);
        let seen = seen.map_err(OpenError::io("read the boot's identity for", &self.dir))?;
        Ok(seen.vouched(self.memory_kept))
    }

    fn status(&self) -> Result<Status, BackupError> {
        Ok(log::read_status(&*self.log, Some(&self.store)).map_err(OpenError::from)?)
    }

    /// The oldest record that the store needs: all before it is in the segments.
    pub fn head(&self) -> Result<Lsn, BackupError> {
        Ok(Lsn(self.status()?.head.get()))
    }

    /// Where the log ends: all before it was published, and is not taken back while the system runs. Nothing is
    /// locked for that: who opens the store meanwhile only makes the log longer.
    pub fn end(&self) -> Result<Lsn, BackupError> {
        for _ in 0..1000 {
            // As long as the system runs the stage tells, whether the store is open, closed, or was killed.
            let seen = self.see()?;
            let end = staged_tail::log_end(&*self.stage, &self.store, &seen).map_err(OpenError::from)?;
            if let Some(end) = end {
                return Ok(end);
            }
            let status = self.status()?;
            if status.clean == 1 {
                return Ok(Lsn(status.head.get()));
            }
            if !self.is_in_use()? {
                return self.end_of_another_boot(&status);
            }
            caliburn_os::sync::sleep(Duration::from_millis(10));
        }
        Err(BackupError::BeingOpened { path: self.dir.clone() })
    }

    /// Where the log ends that another boot has left, as recovery finds it: what can be read now is on the medium.
    fn end_of_another_boot(&self, status: &Status) -> Result<Lsn, BackupError> {
        let scanned = scan::scan(&*self.log, status, None, |_| {})?;
        match scanned.damage {
            Some(damage) => Err(OpenError::from(damage).into()),
            None => Ok(scanned.tail),
        }
    }

    /// The same, with all before it forced: it is not taken back by a power cut either.
    pub fn forced_end(&self) -> Result<Lsn, BackupError> {
        let end = self.end()?;
        if !planted("dumped-unforced") {
            for copy in [&self.log].into_iter().chain(&self.second) {
                copy.sync().map_err(|e| MediaError::new("force the log", &**copy, 0, e))?;
            }
        }
        Ok(end)
    }

    /// Calls `each` with the records from one position in the log to another, at which records begin, until it has
    /// had enough.
    pub fn records(
        &self,
        from: Lsn,
        to: Lsn,
        mut each: impl FnMut(&Record<'_>) -> Result<bool, BackupError>,
    ) -> Result<(), BackupError> {
        if to.0.saturating_sub(from.0) > self.capacity {
            return Err(BackupError::Overtaken { path: self.log.path().to_owned(), lsn: from.0 });
        }
        let mut done = Ok(true);
        let position = scan::follow(&*self.log, self.capacity, from..to, |record| {
            done = each(record);
            matches!(done, Ok(true))
        })?;
        if !done? || position == to {
            return Ok(());
        }
        let path = self.log.path().to_owned();
        if self.end()?.0 > position.0 + self.capacity || self.head()? > position || self.has_moved()? {
            return Err(BackupError::Overtaken { path, lsn: position.0 });
        }
        let text = format!("no valid record stands at LSN {position}, which was published");
        let error = std::io::Error::new(std::io::ErrorKind::InvalidData, text);
        Err(MediaError::new("read the log", &*self.log, 0, error).into())
    }

    /// Whether its log has another size or place since it was opened here.
    fn has_moved(&self) -> Result<bool, BackupError> {
        let there = duplex::one_of(&*self.media, &self.dir, &self.catalog()?.0).ok();
        // One of the two names in the directory may have come back.
        Ok(there.is_none_or(|(there, _)| {
            there.path() != self.log.path() || there.identity() != self.log.identity()
        }))
    }

    /// The catalog, and the bytes of its file.
    pub fn catalog(&self) -> Result<(Catalog, Vec<u8>), BackupError> {
        let path = self.dir.join(directory::CATALOG);
        let bytes = self.media.read(&path).map_err(OpenError::io("read catalog", &path))?;
        let catalog = Catalog::decode(&bytes).map_err(|(offset, defect)| OpenError::Catalog {
            path,
            offset,
            defect,
        })?;
        Ok((directory::with_copies(&*self.media, &self.dir, catalog)?, bytes))
    }

    /// How its segments are opened: to be read.
    pub fn opener(&self) -> Opener<'_> {
        let (media, descriptors, dir) = (&self.media, &self.descriptors, &*self.dir);
        Opener { media, descriptors, dir, write: false, claim: false, generations: None }
    }

    pub fn segment(
        &self,
        catalog: &Catalog,
        entry: &crate::storage::catalog::Entry,
    ) -> Result<SegmentState, BackupError> {
        Ok(SegmentState::open(self.opener(), catalog, entry, true)?)
    }
}
