//! Whether the memory of a store with the undo policy survived: what can be seen of its files, and what the system
//! is asked about them.

use crate::storage::error::OpenError;
use crate::storage::report::OpenReport;
use crate::storage::segment::SegmentState;
use caliburn_log::media_error::MediaError;
use caliburn_log::uncommitted::{self, CLEAN, DAMAGED, UndoError};
use caliburn_os::host::Id;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::planted;
use caliburn_os::witness::{Look, Mounts, Seen, Verdict, judge};
use std::sync::Arc;

/// The files that a store's memory is in: the undo logs, then the segments.
/// One is open at a time, since there may be more of them than descriptors.
pub(super) struct Files {
    logs: Arc<dyn Medium>,
    segments: Vec<Arc<SegmentState>>,
}

impl Files {
    pub fn of(logs: &Arc<dyn Medium>, segments: &[Arc<SegmentState>]) -> Files {
        Files { logs: logs.clone(), segments: segments.to_vec() }
    }

    fn each<T>(&self, mut act: impl FnMut(&dyn Medium) -> T) -> Result<Vec<T>, MediaError> {
        let mut all = vec![act(&*self.logs)];
        for segment in &self.segments {
            all.push(act(&*segment.file.reach("open segment")?));
        }
        Ok(all)
    }

    pub fn looks(&self) -> Result<Vec<Look>, MediaError> {
        self.each(Look::at)
    }

    /// Marks them, so that the next opening knows whether they stayed in memory. To be called when what was
    /// uncommitted is undone.
    pub fn watch(&self) -> Result<Mounts, MediaError> {
        let marked = self.each(|file| {
            file.watch();
            file.mount()
        });
        Ok(marked?.into_iter().collect())
    }

    /// Asks the system whether something that was stored to a file was lost on its way to the medium, and so perhaps
    /// gone from memory; if so, the store is durably marked as damaged. Of a store that was closed, or whose memory
    /// did not survive, nothing is asked: the system says it once.
    pub fn ask(&self, store: Id, seen: &Seen, report: &mut OpenReport) -> Result<(), OpenError> {
        let logs = &*self.logs;
        let status = match uncommitted::read_status(logs, &store) {
            // Whoever reads the logs says so.
            Err(UndoError::Bad { .. }) => return Ok(()),
            other => other?,
        };
        let asked = uncommitted::was_asked(logs)?;
        if asked && status.clean == CLEAN {
            uncommitted::note_asking(logs, false)?;
        }
        let in_use = ![CLEAN, DAMAGED].contains(&status.clean.get()) && status.sealed != 1;
        let survived = judge(&uncommitted::noted(&status), seen) == Verdict::Survived;
        if !in_use || !survived || planted("undo-losses-not-asked") {
            return Ok(());
        }
        if asked {
            report.note_asked(logs.path());
        }
        uncommitted::note_asking(logs, true)?;
        let (lost, unreachable) = self.lost();
        if lost {
            uncommitted::mark_damaged(logs, store, &status)?;
        }
        match unreachable {
            Some(error) => Err(error.into()),
            // Each opening passes the note on until the store was closed: one that is killed may have told nobody.
            _ if lost || asked => Ok(()),
            _ => Ok(uncommitted::note_asking(logs, false)?),
        }
    }

    /// Whether the system reports a loss of any file, and why one could not be asked. All are asked that can be:
    /// what is not told now would be told to a later force.
    fn lost(&self) -> (bool, Option<MediaError>) {
        let (mut lost, mut unreachable) = (self.logs.written_back().is_err(), None);
        for segment in &self.segments {
            match segment.file.reach("open segment") {
                Ok(file) => lost |= file.written_back().is_err(),
                Err(error) => unreachable = Some(error),
            }
        }
        (lost, unreachable)
    }
}
