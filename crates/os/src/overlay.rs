//! A medium that is not written to: what is written is laid over it in memory.

use crate::medium::Medium;
use crate::sync::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Bytes that can be read, or not.
const SECTOR: u64 = 512;

/// Parts by where they begin, none of which overlaps another, and the length of the longest.
#[derive(Debug, Default)]
struct Written {
    parts: BTreeMap<u64, Vec<u8>>,
    longest: u64,
}

impl Written {
    /// Lays what there is over the bytes at a place; how many of these it is.
    fn lay_over(&self, buffer: &mut [u8], offset: u64) -> usize {
        let end = offset + buffer.len() as u64;
        let mut laid = 0;
        for (at, bytes) in self.parts.range(offset.saturating_sub(self.longest)..end) {
            let (from, to) = ((*at).max(offset), (*at + bytes.len() as u64).min(end));
            if from < to {
                let part = &bytes[(from - at) as usize..(to - at) as usize];
                buffer[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
                laid += part.len();
            }
        }
        laid
    }
}

/// A medium that is not written to: what is written is laid over it in memory.
#[derive(Debug)]
pub struct Overlay {
    medium: Arc<dyn Medium>,
    written: Mutex<Written>,
}

impl Overlay {
    /// Nothing is.
    pub fn new(medium: Arc<dyn Medium>) -> Overlay {
        Overlay { medium, written: Mutex::default() }
    }
}

// SAFETY: the descriptor is that of a medium that keeps the contract, and its length is this one's.
unsafe impl Medium for Overlay {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let written = self.written.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if self.medium.read_at(buffer, offset).is_ok() {
            written.lay_over(buffer, offset);
            return Ok(());
        }
        // What cannot be read may be what was written.
        let (mut at, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let len = rest.len().min((SECTOR - at % SECTOR) as usize);
            let (part, behind) = rest.split_at_mut(len);
            let read = self.medium.read_at(part, at);
            if written.lay_over(part, at) < len {
                read?;
            }
            (at, rest) = (at + len as u64, behind);
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        written.longest = written.longest.max(bytes.len() as u64);
        written.parts.insert(offset, bytes.to_vec());
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.medium.len()
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.medium.descriptor()
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn scratch(&self, len: u64) -> io::Result<OwnedFd> {
        self.medium.scratch(len)
    }

    fn may_hold(&self, bytes: u64) -> bool {
        self.medium.may_hold(bytes)
    }

    fn place(&self) -> Option<[u64; 2]> {
        self.medium.place()
    }

    fn volatile(&self) -> bool {
        self.medium.volatile()
    }

    fn path(&self) -> &Path {
        self.medium.path()
    }
}
