//! What a check found.

use caliburn_log::staged_tail::StageError;
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
    /// Records of the live log verified.
    pub records: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Undecided prepared transactions.
    pub prepared: u64,
}

impl Report {
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
