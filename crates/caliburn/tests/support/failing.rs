//! Files of the running system of which one fails.

use caliburn::medium::{Files, Media, Medium, Replaced};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Files of which one fails.
#[derive(Debug, Clone)]
pub struct Failing(pub Arc<Faults>);

#[derive(Debug)]
pub struct Faults {
    path: PathBuf,
    /// Writes and forces that succeed.
    pub left: AtomicU64,
    /// What cannot be read until it is written, as sectors of 512 bytes.
    pub unreadable: Mutex<BTreeSet<u64>>,
}

#[derive(Debug)]
struct FailingMedium(Arc<dyn Medium>, Failing);

impl Failing {
    pub fn of(path: &Path) -> Failing {
        let (path, left, unreadable) = (path.to_owned(), AtomicU64::new(u64::MAX), Mutex::default());
        Failing(Arc::new(Faults { path, left, unreadable }))
    }

    fn sectors(offset: u64, len: usize) -> std::ops::RangeInclusive<u64> {
        offset / 512..=(offset + len as u64 - 1) / 512
    }

    fn wrap(&self, medium: Arc<dyn Medium>) -> Arc<dyn Medium> {
        Arc::new(FailingMedium(medium, self.clone()))
    }

    fn act(&self, path: &Path) -> io::Result<()> {
        if path != self.0.path {
            return Ok(());
        }
        let left =
            self.0.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(1)));
        if left == Ok(0) { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }
}

// SAFETY: all of it is passed on to files of the running system.
unsafe impl Media for Failing {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        Ok(self.wrap(Files.open(path, write)?))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        Ok(self.wrap(Files.create(path)?))
    }
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        Files.replace(path, content)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        Files.sync_directory(path)
    }
}

// SAFETY: everything mapped is passed on from a file's medium.
unsafe impl Medium for FailingMedium {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bad = self.1.0.unreadable.lock().unwrap();
        if !buffer.is_empty()
            && self.0.path() == self.1.0.path
            && bad.range(Failing::sectors(offset, buffer.len())).next().is_some()
        {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.0.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.1.act(self.0.path())?;
        if self.0.path() == self.1.0.path {
            // A sector that is written in part stays bad.
            let (from, to) = (offset.div_ceil(512), (offset + bytes.len() as u64) / 512);
            self.1.0.unreadable.lock().unwrap().retain(|sector| !(from..to).contains(sector));
        }
        self.0.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.1.act(self.0.path())?;
        self.0.sync()
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }
    fn place(&self) -> Option<[u64; 2]> {
        self.0.place()
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
}
