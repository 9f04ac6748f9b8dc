//! Two media that hold the same (Camelot, section 4.4: a duplexed log), either of which may be lost, lag or lie.
//!
//! ```text
//!   in use     written to both, forced on both, read from the first that can be read
//!              one fails: somewhere else it is noted which is the only one from now on, durably; then it goes on
//!   opened     each gets from the other what it lacks, by whoever has checksums that tell
//! ```
//!
//! Invariant: nothing is acknowledged that one of the media lacks, unless it is noted that it is not one of them any
//! more. So it does not matter which of two that are is there.

use crate::host::Lock;
use crate::medium::{Medium, Pair};
use crate::simulated::planted;
use crate::sync::{Mutex, MutexGuard, both};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// What has happened to one of the media, by its number.
#[derive(Debug)]
pub enum Event {
    /// It has failed. It must be noted durably that the other one is the only one from now on.
    Lost(usize, io::Error),
    /// A part of it was not what had been written, and is again.
    Mended(usize),
}

/// Is told what happens. Of an error the media fail.
pub type Tell = Box<dyn Fn(Event) -> io::Result<()> + Send + Sync>;

/// Whether an error says that a medium is not there any more, or does not work; not that this process can't have it.
pub fn is_gone(error: &io::Error) -> bool {
    let codes = [Errno::NOENT, Errno::NOTDIR, Errno::NXIO, Errno::NODEV, Errno::IO, Errno::NOMEDIUM];
    let is = |code: &Errno| error.raw_os_error() == Some(code.raw_os_error());
    codes.iter().any(is) || error.kind() == io::ErrorKind::NotFound
}

/// Two media that hold the same.
pub struct Duplex {
    copies: [Arc<dyn Medium>; 2],
    /// What is not written any more.
    lost: Mutex<Option<usize>>,
    tell: Tell,
}

impl Duplex {
    /// Of media that hold the same.
    pub fn new(copies: [Arc<dyn Medium>; 2], tell: Tell) -> Duplex {
        Duplex { copies, lost: Mutex::new(None), tell }
    }

    fn lost(&self) -> MutexGuard<'_, Option<usize>> {
        self.lost.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Of what was done to each.
    fn settle(&self, [first, second]: [io::Result<()>; 2]) -> io::Result<()> {
        match (first, second) {
            (Ok(()), Ok(())) => Ok(()),
            (Err(error), Err(_)) => Err(error),
            (Err(error), Ok(())) => self.lose(0, error),
            (Ok(()), Err(error)) => self.lose(1, error),
        }
    }

    /// Does it to each that is used.
    fn each(&self, act: impl Fn(&dyn Medium) -> io::Result<()>) -> io::Result<()> {
        let lost = *self.lost();
        match lost {
            Some(lost) => act(&*self.copies[1 - lost]),
            None => self.settle([act(&*self.copies[0]), act(&*self.copies[1])]),
        }
    }

    /// One that is used.
    fn one(&self) -> &dyn Medium {
        &*self.copies[usize::from(*self.lost() == Some(0))]
    }
}

impl Pair for Duplex {
    fn copies(&self) -> &[Arc<dyn Medium>; 2] {
        &self.copies
    }

    fn in_use(&self) -> Option<[&dyn Medium; 2]> {
        self.lost().is_none().then(|| [&*self.copies[0], &*self.copies[1]])
    }

    /// Nothing that it lacks counts before that is noted.
    fn lose(&self, number: usize, error: io::Error) -> io::Result<()> {
        let mut lost = self.lost();
        match *lost {
            Some(other) if other == number => return Ok(()),
            Some(_) => return Err(error),
            None => {}
        }
        if !planted("lost-copy-not-noted") {
            (self.tell)(Event::Lost(number, error))?;
        }
        *lost = Some(number);
        Ok(())
    }

    fn mended(&self, number: usize) {
        _ = (self.tell)(Event::Mended(number));
    }
}

impl fmt::Debug for Duplex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Duplex").field("copies", &self.copies).finish_non_exhaustive()
    }
}

// SAFETY: the descriptor is that of a medium that keeps the contract and gets all that this one gets; its length
// is no more than that medium's. When it is another one's from then on, what was mapped before stays as it was.
unsafe impl Medium for Duplex {
    fn will_need(&self, offset: u64, len: u64) {
        self.one().will_need(offset, len);
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self.in_use() {
            Some([first, second]) => first.read_at(buffer, offset).or_else(|error| {
                second.read_at(buffer, offset)?;
                // Nobody is to map what cannot be read.
                self.lose(0, error)
            }),
            None => self.one().read_at(buffer, offset),
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.each(|medium| medium.write_at(bytes, offset))
    }

    /// Takes as long as the slower one.
    fn sync(&self) -> io::Result<()> {
        match self.in_use() {
            Some([first, _]) if planted("second-copy-not-forced") => first.sync(),
            Some([first, second]) => {
                let (first, second) = both(|| first.sync(), || second.sync());
                self.settle([first, second])
            }
            None => self.one().sync(),
        }
    }

    fn len(&self) -> io::Result<u64> {
        match self.in_use() {
            Some([first, second]) => Ok(first.len()?.min(second.len()?)),
            None => self.one().len(),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.each(|medium| medium.set_len(len))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.one().descriptor()
    }

    fn is_mapped(&self) -> bool {
        self.one().is_mapped()
    }

    fn scratch(&self, len: u64) -> io::Result<OwnedFd> {
        self.one().scratch(len)
    }

    fn may_hold(&self, bytes: u64) -> bool {
        self.one().may_hold(bytes)
    }

    fn identity(&self) -> Option<(u64, u64)> {
        self.one().identity()
    }

    fn claim(&self, shared: bool) -> io::Result<Option<Lock>> {
        self.one().claim(shared)
    }

    fn volatile(&self) -> bool {
        // If the other one is lost, what is left must survive as much.
        self.copies.iter().any(|medium| medium.volatile())
    }

    fn pair(&self) -> Option<&dyn Pair> {
        Some(self)
    }

    fn path(&self) -> &Path {
        self.one().path()
    }
}
