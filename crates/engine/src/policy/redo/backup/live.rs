//! The files of a store, read beside the program that has it open.
//!
//! Invariant: what is in a segment's file is in the log before the end that the stage tells, and what is in the
//! log before the head that its status tells is in the segments and their checksums.

use super::BackupError;
use crate::policy::kind::Policy;
use crate::storage::catalog::Catalog;
use crate::storage::directory;
use crate::storage::error::OpenError;
use crate::storage::segment::{Opener, SegmentState};
use crate::storage::segment_file::Descriptors;
use crate::storage::settings::Settings;
use caliburn_log::format::{Lsn, Status};
use caliburn_log::log;
use caliburn_log::media_error::MediaError;
use caliburn_log::record::Record;
use caliburn_log::scan;
use caliburn_log::staged_tail::{self, StagedTail};
use caliburn_os::host::{Id, Lock};
use caliburn_os::medium::{Media, Medium};
use caliburn_os::simulated::planted;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A store that somebody else may have open.
pub(super) struct Live {
    pub media: Arc<dyn Media>,
    pub dir: PathBuf,
    pub store: Id,
    pub log: Arc<dyn Medium>,
    pub capacity: u64,
    stage: Arc<dyn Medium>,
    boot: Id,
    descriptors: Arc<Descriptors>,
    /// Nobody has it open, nor can open it: where its log ends.
    closed: Option<(Lock, Lsn)>,
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
            let why = "a store with the undo policy has no log, and can be copied only while it is closed";
            return Err(OpenError::Policy { path: dir.to_owned(), why }.into());
        }
        let closed = match directory::lock(&*media, dir, true) {
            Err(OpenError::InUse { .. }) => None,
            lock => Some(lock?),
        };
        let open = |action, path: PathBuf| media.open(&path, false).map_err(OpenError::io(action, &path));
        let log = open("open log", Catalog::resolve(dir, &catalog.log_path))?;
        let stage = open("open stage", dir.join(directory::STAGE))?;
        let boot = media.boot_id().map_err(OpenError::io("read the boot's identity for", dir))?;
        let status = log::read_status(&*log, Some(&catalog.store)).map_err(OpenError::from)?;
        let closed = match closed {
            Some(lock) if status.clean == 1 => Some((lock, Lsn(status.head.get()))),
            Some(lock) => {
                let end = end_of_left((&*log, &status), (&*stage, &catalog.store, &boot), staged)?;
                let end = end.ok_or_else(|| BackupError::NotClosed { path: dir.to_owned() })?;
                Some((lock, end))
            }
            None => None,
        };
        Ok(Live {
            descriptors: Descriptors::of(&*media),
            dir: dir.to_owned(),
            store: catalog.store,
            capacity: status.capacity.get(),
            media,
            log,
            stage,
            boot,
            closed,
        })
    }

    fn status(&self) -> Result<Status, BackupError> {
        Ok(log::read_status(&*self.log, Some(&self.store)).map_err(OpenError::from)?)
    }

    /// The oldest record that the store needs: all before it is in the segments.
    pub fn head(&self) -> Result<Lsn, BackupError> {
        Ok(Lsn(self.status()?.head.get()))
    }

    /// Where the log ends: all before it was published, and is not taken back while the system runs.
    pub fn end(&self) -> Result<Lsn, BackupError> {
        if let Some((_, end)) = self.closed {
            return Ok(end);
        }
        for _ in 0..1000 {
            let end = staged_tail::log_end(&*self.stage, &self.store, &self.boot).map_err(OpenError::from)?;
            if let Some(end) = end {
                return Ok(end);
            }
            caliburn_os::sync::sleep(Duration::from_millis(10));
        }
        Err(BackupError::BeingOpened { path: self.dir.clone() })
    }

    /// The same, with all before it forced: it is not taken back by a power cut either.
    pub fn forced_end(&self) -> Result<Lsn, BackupError> {
        let end = self.end()?;
        if !planted("dumped-unforced") {
            self.log.sync().map_err(|e| MediaError::new("force the log", &*self.log, 0, e))?;
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
        let mut done = Ok(true);
        let position = scan::follow(&*self.log, self.capacity, from..to, |record| {
            done = each(record);
            matches!(done, Ok(true))
        })?;
        if !done? || position == to {
            return Ok(());
        }
        let path = self.log.path().to_owned();
        if self.end()?.0 > position.0 + self.capacity || self.head()? > position {
            return Err(BackupError::Overtaken { path, lsn: position.0 });
        }
        let text = format!("no valid record stands at LSN {position}, which was published");
        let error = std::io::Error::new(std::io::ErrorKind::InvalidData, text);
        Err(MediaError::new("read the log", &*self.log, 0, error).into())
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
        Ok((catalog, bytes))
    }

    /// How its segments are opened: to be read.
    pub fn opener(&self) -> Opener<'_> {
        let (media, descriptors, dir) = (&self.media, &self.descriptors, &*self.dir);
        Opener { media, descriptors, dir, write: false, claim: false }
    }

    pub fn segment(
        &self,
        catalog: &Catalog,
        entry: &crate::storage::catalog::Entry,
    ) -> Result<SegmentState, BackupError> {
        Ok(SegmentState::open(self.opener(), catalog, entry, true)?)
    }
}

/// Where the log ends of a store that was not closed, or could not be emptied when it was: all before is forced, or
/// is when it is forced now. None if what is staged is refused and there is some.
fn end_of_left(
    (log, status): (&dyn Medium, &Status),
    (stage, store, boot): (&dyn Medium, &Id, &Id),
    staged: Staged,
) -> Result<Option<Lsn>, BackupError> {
    let left = StagedTail::read(stage, store, boot).map_err(OpenError::from)?;
    if staged == Staged::Refused && !left.records.is_empty() {
        return Ok(None);
    }
    // Of another boot, what is not known to be forced may be gone when it is read again.
    let known = left.appended.map(|end| Lsn(0)..end);
    let scanned = scan::scan(log, status, known.clone(), |_| {})?;
    if let Some(damage) = scanned.damage {
        return Err(OpenError::from(damage).into());
    }
    Ok(Some(if known.is_some() { scanned.tail } else { scanned.tail.min(scanned.forced) }))
}
