//! What a check found.

use caliburn_log::staged_tail::{Dropped, StageError};
use std::path::{Path, PathBuf};

/// Something wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file or device.
    pub path: PathBuf,
    /// Where in it, bytes.
    pub offset: u64,
    /// What.
    pub text: String,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Damage. Empty for a sound store.
    pub problems: Vec<Problem>,
    /// Who has the store open, if anybody. What changes meanwhile was not verified: with the redo policy the stage
    /// and the segments' data, with the undo policy the undo logs.
    pub in_use_by: Option<String>,
    /// Worth knowing, not damage.
    pub notes: Vec<String>,
    /// Segments looked at.
    pub segments: u64,
    /// Bytes of segment data verified.
    pub data_bytes: u64,
    /// Bytes of segment data that have no checksums: nothing tells whether they are what was written. A note names
    /// a segment.
    pub unverified_bytes: u64,
    /// Records of the live log verified.
    pub records: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Undecided prepared transactions.
    pub prepared: u64,
}

/// What an opening has to say besides that it succeeded ([`Store::open_report`](crate::Store::open_report)).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenReport {
    /// Commits of class `Process` that a killed process had left in the stage and that were dropped: the memory that
    /// held them did not survive, or perhaps did not. Counted in what was there, which may have been torn.
    pub dropped_commits: u64,
    /// Bytes of them.
    pub dropped_bytes: u64,
    /// What is worth a look: what was dropped and why, and what could not be told.
    pub notices: Vec<String>,
}

impl OpenReport {
    pub(crate) fn note_dropped(&mut self, stage: &Path, dropped: &Dropped) {
        let (commits, bytes) = (dropped.commits, dropped.bytes);
        let text = format!("{}: this opening goes without them", dropped_text(stage, dropped));
        match dropped.certain {
            true => tracing::info!(commits, bytes, "{text}"),
            false => tracing::warn!(commits, bytes, "{text}"),
        }
        (self.dropped_commits, self.dropped_bytes) = (commits, bytes);
        self.notices.push(text);
    }

    pub(crate) fn note_asked(&mut self, path: &Path) {
        let text = format!(
            "{}: an earlier opening was killed while it asked the system whether writes were lost. If some were, only \
             that opening was told: look for errors of the device in the system's log",
            path.display()
        );
        tracing::warn!("{text}");
        self.notices.push(text);
    }
}

/// What a stage seems to hold that is not taken up.
fn dropped_text(stage: &Path, dropped: &Dropped) -> String {
    let Dropped { commits, bytes, certain, why } = dropped;
    let known = match certain {
        true => "lost the memory that held them",
        false => "may have lost the memory that held them",
    };
    format!(
        "stage {}: {commits} commits ({bytes} bytes) of class Process await recovery, and the store {known} ({why})",
        stage.display()
    )
}

impl Report {
    pub(crate) fn note_dropped(&mut self, stage: &Path, dropped: &Dropped) {
        let text = dropped_text(stage, dropped);
        self.notes.push(format!(
            "{text}. Opening drops them; if the system did not go down, and no other state of the file system was \
             mounted, open with Options::memory_kept, or `caliburn recover --memory-kept`, which keeps them"
        ));
    }

    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    pub(crate) fn problem(&mut self, path: &Path, offset: u64, text: impl ToString) {
        self.problems.push(Problem { path: path.to_owned(), offset, text: text.to_string() });
    }

    pub(crate) fn stage_problem(&mut self, path: &Path, error: StageError) {
        match error {
            StageError::Bad { path, offset, defect } => self.problem(&path, offset, defect),
            StageError::Media(_) => self.problem(path, 0, error),
        }
    }
}
