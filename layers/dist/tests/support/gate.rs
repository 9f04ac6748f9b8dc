//! A disk whose forces wait at a gate.

use caliburn_engine::medium::{Files, Media, Medium, Replaced};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

#[derive(Debug, Default)]
struct State {
    shut: bool,
    /// How many wait.
    waiting: usize,
}

#[derive(Debug, Default, Clone)]
pub struct Gate(Arc<(Mutex<State>, Condvar)>);

impl Gate {
    pub fn shut(&self) {
        self.0.0.lock().unwrap().shut = true;
    }

    pub fn open(&self) {
        self.0.0.lock().unwrap().shut = false;
        self.0.1.notify_all();
    }

    /// Until a force waits.
    pub fn is_waited_at(&self) {
        let state = self.0.0.lock().unwrap();
        let limit = Duration::from_secs(20);
        let (_state, waited) = self.0.1.wait_timeout_while(state, limit, |state| state.waiting == 0).unwrap();
        assert!(!waited.timed_out(), "nobody forces");
    }

    fn pass(&self) {
        let mut state = self.0.0.lock().unwrap();
        state.waiting += 1;
        self.0.1.notify_all();
        state = self.0.1.wait_while(state, |state| state.shut).unwrap();
        state.waiting -= 1;
    }
}

#[derive(Debug)]
struct Gated(Arc<dyn Medium>, Gate);

// SAFETY: all of it is passed on to files of the running system.
unsafe impl Media for Gate {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        Ok(Arc::new(Gated(Files.open(path, write)?, self.clone())))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        Ok(Arc::new(Gated(Files.create(path)?, self.clone())))
    }
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        Files.replace(path, content)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        Files.sync_directory(path)
    }
}

// SAFETY: everything mapped is passed on from a file's medium.
unsafe impl Medium for Gated {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.1.pass();
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
    fn path(&self) -> &Path {
        self.0.path()
    }
}
