//! A file without a name to which pages of memory go, so that the system can write them there when it is short of
//! memory. Each page has the place in the file that it has in its reservation, so that neighbours are one mapping.

use crate::map::Reservation;
use crate::simulated;
use rustix::io::{Errno, pwrite};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The overflow of one reservation.
#[derive(Debug)]
pub struct OverflowFile(Arc<OwnedFd>);

impl OverflowFile {
    /// Takes an empty file that nobody else has, for one reservation.
    pub fn new(file: Arc<OwnedFd>) -> OverflowFile {
        OverflowFile(file)
    }

    /// See [`write_behind`].
    pub fn write_behind(&self) -> io::Result<()> {
        write_behind(self.0.as_fd())
    }

    /// Forces the file: what its pages hold comes back if the system takes their memory.
    pub fn sync(&self) -> io::Result<()> {
        rustix::fs::fdatasync(&self.0)?;
        simulated::intact(self.0.as_fd())
    }

    /// Has pages of the reservation lie in the file from now on, with what they hold. Where it fails they may be
    /// where they were.
    ///
    /// # Safety
    /// They are whole pages that can be read and stored to, and nobody stores to them meanwhile.
    pub unsafe fn take(&self, reservation: &Reservation, at: usize, len: usize) -> io::Result<()> {
        assert!(at.checked_add(len).is_some_and(|end| end <= reservation.len()), "pages of the reservation");
        let start = reservation.base().as_ptr().wrapping_add(at);
        // Writing gives the file its room: a store to a page that had none would end the process on a full disk.
        // SAFETY: the pages are mapped, and stay as they are: the caller's word.
        let mut rest = unsafe { std::slice::from_raw_parts(start, len) };
        while !rest.is_empty() {
            let place = (at + len - rest.len()) as u64;
            match pwrite(&self.0, rest, place) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // SAFETY: the file holds what the pages hold, is as long by now, and never shrinks.
        unsafe { reservation.map_shared(at, len, self.0.as_fd(), at as u64, false) }?;
        simulated::unmapped(start, len);
        Ok(())
    }
}

/// Has the system write a file that nobody needs forced, and waits for what it was told to write before: so that
/// what is stored to it does not outrun the disk until memory is full of it. Fails as [`intact`] does.
pub fn write_behind(file: BorrowedFd<'_>) -> io::Result<()> {
    sync_range(file, 0, libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE)
}

/// Whether memory that is mapped of a file holds what was stored there: the system may have failed to write a part
/// of it, and have taken the memory all the same. What was read before this succeeds is right. An error is told
/// once. It costs a system call, and waits for nothing.
pub fn intact(file: BorrowedFd<'_>) -> io::Result<()> {
    // Beyond its end there is nothing to be waited for; the error is the whole file's.
    sync_range(file, 1 << 62, libc::SYNC_FILE_RANGE_WAIT_BEFORE)
}

fn sync_range(file: BorrowedFd<'_>, from: i64, how: libc::c_uint) -> io::Result<()> {
    let len = if from == 0 { 0 } else { 1 };
    // SAFETY: a descriptor and numbers.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), from, len, how) } {
        0 => simulated::intact(file),
        _ => match io::Error::last_os_error() {
            // Where there is no such call the system writes when it thinks fit, and says nothing.
            error if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Files;
    use crate::medium::Media;
    use crate::page_size;

    #[test]
    fn pages_keep_what_they_hold_and_their_neighbours_stay() {
        let dir = tempfile::tempdir().unwrap();
        let page = page_size();
        let file = Files.create(&dir.path().join("segment")).unwrap();
        let content: Vec<u8> = (0..4 * page).map(|i| (i / 7) as u8).collect();
        file.write_at(&content, 0).unwrap();
        let memory = Reservation::new(4 * page, None).unwrap();
        // SAFETY: the reservation is new; the file does not shrink.
        unsafe { memory.map_private(0, 4 * page, file.descriptor(), 0, true) }.unwrap();
        let at = |offset: usize| memory.base().as_ptr().wrapping_add(offset);
        // SAFETY: mapped, and nobody else's.
        unsafe { at(page).write(99) };
        let overflow = OverflowFile::new(Arc::new(Files.scratch(dir.path(), 0).unwrap()));
        // SAFETY: nobody stores there.
        unsafe { overflow.take(&memory, page, 2 * page) }.unwrap();
        // SAFETY: mapped, and nobody else's.
        let found = unsafe {
            at(2 * page + 1).write(98);
            std::slice::from_raw_parts(at(0), 4 * page)
        };
        let mut wanted = content.clone();
        (wanted[page], wanted[2 * page + 1]) = (99, 98);
        assert!(found == wanted);
        let mut segment = vec![0; 4 * page];
        file.read_at(&mut segment, 0).unwrap();
        assert!(segment == content, "the segment was stored to");
    }
}
