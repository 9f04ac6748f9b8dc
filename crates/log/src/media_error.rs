//! Media that fail: the error, and what a force that failed means for those after it.

use caliburn_os::medium::Medium;
use caliburn_os::simulated::planted;
use caliburn_os::sync::Mutex;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A medium refused or failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{action} {} at offset {offset}: {source}", path.display())]
pub struct MediaError {
    /// What was being done.
    pub action: &'static str,
    /// To which file or device.
    pub path: PathBuf,
    /// Where.
    pub offset: u64,
    /// Why not.
    pub source: Arc<io::Error>,
}

impl MediaError {
    /// Wraps an error of `medium`.
    pub fn new(action: &'static str, medium: &dyn Medium, offset: u64, source: io::Error) -> MediaError {
        MediaError { action, path: medium.path().to_owned(), offset, source: Arc::new(source) }
    }

    /// A failure that met a name rather than what it names.
    pub fn of_name(action: &'static str, path: PathBuf, source: io::Error) -> MediaError {
        MediaError { action, path, offset: 0, source: Arc::new(source) }
    }
}

/// One force of a medium at a time; after one that failed, what the kernel has dropped is unknown, and no
/// later force counts as a success, though the system would report one.
#[derive(Debug, Default)]
pub struct Forcing {
    failed: Mutex<Option<MediaError>>,
}

impl Forcing {
    /// The failure, if there was one.
    pub fn sound(&self) -> Result<(), MediaError> {
        self.failed.lock().expect("no thread panics while it forces").clone().map_or(Ok(()), Err)
    }

    /// Forces everything written to the medium so far.
    pub fn sync(&self, medium: &dyn Medium, action: &'static str, offset: u64) -> Result<(), MediaError> {
        let mut failed = self.failed.lock().expect("no thread panics while it forces");
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        medium.sync().map_err(|e| {
            let error = MediaError::new(action, medium, offset, e);
            if !planted("force-tried-again") {
                *failed = Some(error.clone());
            }
            error
        })
    }
}
