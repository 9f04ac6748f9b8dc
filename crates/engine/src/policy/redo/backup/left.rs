//! What is left of a store of which something is lost: its log, and commits that its stage has.

use super::BackupError;
use crate::policy::redo::duplex;
use crate::storage::catalog::Catalog;
use crate::storage::copies;
use crate::storage::directory;
use crate::storage::error::OpenError;
use crate::storage::report::OpenReport;
use crate::storage::settings::Settings;
use caliburn_log::format::{Lsn, Status};
use caliburn_log::log;
use caliburn_log::record::Record;
use caliburn_log::scan;
use caliburn_log::staged_tail::StagedTail;
use caliburn_os::host::{Id, Lock};
use caliburn_os::medium::Medium;
use caliburn_os::witness::Look;
use std::path::Path;
use std::sync::Arc;

/// The log of a store that nobody has open.
pub(super) struct Left {
    /// If it can be read.
    pub catalog: Option<Catalog>,
    log: Arc<dyn Medium>,
    status: Status,
    staged: Option<StagedTail>,
    _lock: Lock,
}

impl Left {
    pub fn open(settings: &Settings, dir: &Path, store: &Id) -> Result<Left, BackupError> {
        let media = directory::hold(dir, settings)?;
        let lock = directory::lock(&*media, dir, true)?;
        let catalog = directory::read_catalog(&*media, dir).ok().filter(|catalog| catalog.store == *store);
        let path = match &catalog {
            Some(catalog) => &*catalog.log_path,
            None if media.exists(&dir.join(directory::LOG)) => Path::new(directory::LOG),
            None => Path::new(directory::OTHER_LOG),
        };
        // Whatever became of the catalog.
        let mut copies = copies::read(&*media, dir, store).unwrap_or_default();
        copies.retain(|copy| !copy.lost);
        let log = duplex::show(&*media, dir, store, path, &copies)?.medium;
        let status = log::read_status(&*log, Some(store)).map_err(OpenError::from)?;
        // A stage that is lost, or whose memory was, has nothing to tell.
        let staged = match media.open(&dir.join(directory::STAGE), false) {
            Ok(stage) => {
                StagedTail::read(&*stage, store, &settings.see(&*media, dir, &[Look::at(&*stage)])?).ok()
            }
            Err(_) => None,
        };
        if let Some(dropped) = staged.as_ref().and_then(|staged| staged.dropped) {
            OpenReport::default().note_dropped(&dir.join(directory::STAGE), &dropped);
        }
        Ok(Left { catalog, log, status, staged, _lock: lock })
    }

    /// Calls `each` with the records from a position on, until it has had enough; what is before the head is there
    /// if it was kept for an archive. What is lost behind them, if something is. None is passed over.
    pub fn records(
        &self,
        position: Lsn,
        mut each: impl FnMut(&Record<'_>) -> Result<bool, BackupError>,
    ) -> Result<Option<String>, BackupError> {
        let known = self.staged.as_ref().and_then(StagedTail::live);
        let known = known.map(|live| Lsn(0)..live.end);
        let scanned = scan::scan(&*self.log, &self.status, known, |_| {})?;
        if position > scanned.tail {
            let text =
                format!("the log ends at LSN {}, and the archive has more: it is an older one", scanned.tail);
            return Ok(Some(text));
        }
        let (mut done, capacity) = (Ok(true), self.status.capacity.get());
        let reached = scan::follow(&*self.log, capacity, position..scanned.tail, |record| {
            done = each(record);
            matches!(done, Ok(true))
        })?;
        match done? {
            false => Ok(None),
            true if reached < scanned.tail => {
                Err(BackupError::Hole { from: reached.0, to: self.status.head.get().max(reached.0) })
            }
            true => Ok(scanned.damage.map(|damage| damage.to_string())),
        }
    }

    /// Commits that the log does not have, in their order.
    pub fn staged(&self) -> impl Iterator<Item = &[u8]> {
        self.staged.iter().flat_map(|staged| &staged.records).map(|(_, body)| &body[..])
    }
}
