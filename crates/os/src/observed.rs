//! A medium whose reads are told to somebody, who may end them.

use crate::medium::Medium;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Is told how many bytes were read; after an error nothing more is.
pub type Tell<'m> = &'m (dyn Fn(u64) -> io::Result<()> + Sync);

/// How much is read before it is told.
const STEP: u64 = 1 << 20;

/// A medium whose reads are told to somebody, who may end them.
pub struct Observed<'m> {
    medium: &'m dyn Medium,
    tell: Tell<'m>,
    read: AtomicU64,
}

impl<'m> Observed<'m> {
    /// Nothing of it was read yet.
    pub fn new(medium: &'m dyn Medium, tell: Tell<'m>) -> Observed<'m> {
        Observed { medium, tell, read: AtomicU64::new(0) }
    }
}

impl fmt::Debug for Observed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.medium.fmt(f)
    }
}

// SAFETY: everything is passed on to a medium that keeps the contract.
unsafe impl Medium for Observed<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let len = buffer.len() as u64;
        let before = self.read.fetch_add(len, Ordering::Relaxed);
        if before == 0 || before / STEP != (before + len) / STEP {
            (self.tell)(before)?;
        }
        self.medium.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.medium.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.medium.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.medium.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.medium.set_len(len)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.medium.descriptor()
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        self.medium.next_data(offset)
    }

    fn make_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.medium.make_hole(offset, len)
    }

    fn scratch(&self, len: u64) -> io::Result<OwnedFd> {
        self.medium.scratch(len)
    }

    fn may_hold(&self, bytes: u64) -> bool {
        self.medium.may_hold(bytes)
    }

    fn path(&self) -> &Path {
        self.medium.path()
    }
}
