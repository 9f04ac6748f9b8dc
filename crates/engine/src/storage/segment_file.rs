//! A file of a segment. It is open while the segment is used. Otherwise it is open as long as the files of all
//! segments take no more descriptors than they should, so that a store may have more segments than a process may
//! have open files.
//!
//! What was written and not forced may be lost on its way to the medium, which the system tells those who have the
//! file open then. So it is closed only when all of it is forced, and until it is forced again nothing is written
//! but through a descriptor that stays.

use caliburn_log::media_error::MediaError;
use caliburn_os::medium::{Media, Medium, Memory};
use caliburn_os::simulated::planted;
use caliburn_os::sync::RwLock;
use caliburn_os::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How many descriptors the files of a store's segments take, and should take at most.
#[derive(Debug)]
pub(crate) struct Descriptors {
    taken: AtomicU64,
    most: u64,
}

impl Descriptors {
    /// A quarter of what the process may have: the rest is the program's, and that of what is open for a moment.
    pub fn of(media: &dyn Media) -> Arc<Descriptors> {
        Arc::new(Descriptors { taken: AtomicU64::new(0), most: media.descriptors() / 4 })
    }

    pub fn most(&self) -> u64 {
        self.most
    }

    /// Whether another file should stay open.
    pub fn has_room(&self) -> bool {
        self.taken.load(Ordering::Relaxed) < self.most
    }
}

/// A file of a segment.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    media: Arc<dyn Media>,
    descriptors: Arc<Descriptors>,
    path: PathBuf,
    write: bool,
    identity: Option<(u64, u64)>,
    memory: Memory,
    volatile: bool,
    held: RwLock<Option<Arc<dyn Medium>>>,
}

impl SegmentFile {
    /// Of a file that was opened, and stays open if there is room for it.
    pub fn new(
        media: &Arc<dyn Media>,
        descriptors: &Arc<Descriptors>,
        medium: &Arc<dyn Medium>,
        write: bool,
    ) -> SegmentFile {
        let file = SegmentFile {
            media: media.clone(),
            descriptors: descriptors.clone(),
            path: medium.path().to_owned(),
            write,
            identity: medium.identity(),
            memory: medium.memory(),
            volatile: medium.volatile(),
            held: RwLock::new(None),
        };
        if descriptors.has_room() {
            file.keep(medium);
        }
        file
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether another file should stay open.
    pub fn has_room(&self) -> bool {
        self.descriptors.has_room()
    }

    /// Which file it is: where that can be told.
    pub fn identity(&self) -> Option<(u64, u64)> {
        self.identity
    }

    /// What is mapped by it, shared.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// Whether it is on a file system in memory.
    pub fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// The file, if it stays open.
    pub fn held(&self) -> Option<Arc<dyn Medium>> {
        self.held.read().expect("no panic under this lock").clone()
    }

    /// The file; if it does not stay open, for a moment.
    pub fn medium(&self) -> io::Result<Arc<dyn Medium>> {
        self.held().map_or_else(|| self.open(), Ok)
    }

    /// The same, where a failure is one of the medium.
    pub fn reach(&self, action: &'static str) -> Result<Arc<dyn Medium>, MediaError> {
        self.medium().map_err(|error| MediaError::of_name(action, self.path.clone(), error))
    }

    /// Opens it until further notice.
    pub fn hold(&self) -> io::Result<Arc<dyn Medium>> {
        if let Some(medium) = self.held() {
            return Ok(medium);
        }
        Ok(self.keep(&self.open()?))
    }

    fn keep(&self, medium: &Arc<dyn Medium>) -> Arc<dyn Medium> {
        let mut held = self.held.write().expect("no panic under this lock");
        if held.is_none() {
            self.descriptors.taken.fetch_add(1, Ordering::Relaxed);
        }
        held.get_or_insert_with(|| medium.clone()).clone()
    }

    /// Closes it: all that was written to it is forced.
    pub fn rest(&self) {
        if self.held.write().expect("no panic under this lock").take().is_some() {
            self.descriptors.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn open(&self) -> io::Result<Arc<dyn Medium>> {
        let medium = self.media.open(&self.path, self.write)?;
        if medium.identity() != self.identity && !planted("another-file-opened-again") {
            let text = "another file has taken its name since the store was opened";
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        Ok(medium)
    }
}

impl Drop for SegmentFile {
    fn drop(&mut self) {
        self.rest();
    }
}
