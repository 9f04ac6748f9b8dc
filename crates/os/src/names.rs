//! Names in directories: opening, making, replacing, locking what they mean.

use crate::descriptors::above;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, MemfdFlags, Mode, OFlags, fallocate, fchmod, fstat, ftruncate,
    memfd_create, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// For the owner alone.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// How files in a directory are opened: not through links, and without waiting for the other end of a pipe.
pub(crate) const INSIDE: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);

/// How files are opened that the program names.
const OUTSIDE: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK);

/// What became of a replacement that has changed the name.
#[derive(Debug)]
#[must_use]
pub enum Replaced {
    /// The name means the new content, also after a power cut.
    Durably,
    /// It means the new content now; it could not be forced, and a power cut may bring the old one back.
    Perhaps(io::Error),
}

/// Opens a name of a directory, or makes it, for those whom `mode` names.
pub(crate) fn open_at(directory: BorrowedFd<'_>, name: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
    above(|| Ok(File::from(openat(directory, name, flags, mode)?)))
}

/// For reading, or for writing too.
pub(crate) fn access(write: bool) -> OFlags {
    if write { OFlags::RDWR } else { OFlags::RDONLY }
}

/// Opens a file that the program names.
pub(crate) fn open_outside(path: &Path, write: bool) -> io::Result<File> {
    open_at(rustix::fs::CWD, path, OUTSIDE | access(write), Mode::empty())
}

/// Makes a file that the program names.
pub(crate) fn create_outside(path: &Path, mode: Mode) -> io::Result<File> {
    open_at(rustix::fs::CWD, path, OUTSIDE | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)
}

/// Bytes of the largest file that is read whole.
pub const SMALL_FILE: u64 = 64 << 20;

/// The whole of a small regular file.
pub(crate) fn read_all(file: File) -> io::Result<Vec<u8>> {
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if about.len() > SMALL_FILE {
        let text = format!("it has {} bytes, and {SMALL_FILE} at most are read whole", about.len());
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let mut content = Vec::new();
    file.take(about.len()).read_to_end(&mut content)?;
    Ok(content)
}

/// Replaces what a name in a directory means; a new name is for those whom `mode` names.
pub(crate) fn replace(
    directory: BorrowedFd<'_>,
    name: &Path,
    content: &[u8],
    mode: Mode,
) -> io::Result<Replaced> {
    let staged = name.with_extension("new");
    // Left by somebody who was killed in here.
    match unlinkat(directory, &staged, AtFlags::empty()) {
        Err(Errno::NOENT) | Ok(()) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = INSIDE | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = open_at(directory, &staged, flags, mode)?;
    let written = || {
        if let Ok(before) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            fchmod(&file, Mode::from_raw_mode(before.st_mode & 0o777))?;
        }
        file.write_all_at(content, 0)?;
        file.sync_all()?;
        Ok(renameat(directory, &staged, directory, name)?)
    };
    written().inspect_err(|_: &io::Error| {
        // The next replacement removes it, too.
        let _ = unlinkat(directory, &staged, AtFlags::empty());
    })?;
    Ok(match rustix::fs::fsync(directory) {
        Ok(()) => Replaced::Durably,
        Err(errno) => Replaced::Perhaps(errno.into()),
    })
}

/// A file of zeros in memory, without a name.
pub(crate) fn scratch_in_memory(len: u64) -> io::Result<OwnedFd> {
    let file: OwnedFd = above(|| Ok(memfd_create("caliburn", MemfdFlags::CLOEXEC)?))?;
    ftruncate(&file, len)?;
    Ok(file)
}

/// A file of zeros in a directory, without a name and with its space allocated; in memory where the directory has
/// no such files.
pub(crate) fn scratch(directory: BorrowedFd<'_>, len: u64) -> io::Result<OwnedFd> {
    let made = open_at(directory, Path::new("."), OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, PRIVATE);
    let allocate = |file: File| match len {
        // Nothing cannot be allocated.
        0 => Ok(file.into()),
        _ => Ok(fallocate(&file, FallocateFlags::empty(), 0, len).map(|()| file.into())?),
    };
    made.and_then(allocate).or_else(|error| match Errno::from_io_error(&error) {
        Some(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => scratch_in_memory(len),
        _ => Err(error),
    })
}

/// A lock file that is opened anew each time it is asked for, and looked at where it is now.
pub(crate) struct LockFile<'a> {
    pub directory: BorrowedFd<'a>,
    pub name: &'a Path,
    /// The rights of a file that is made.
    pub mode: Mode,
}

impl<'a> LockFile<'a> {
    pub fn outside(path: &'a Path) -> LockFile<'a> {
        LockFile { directory: rustix::fs::CWD, name: path, mode: PRIVATE }
    }

    pub fn open(&self, write: bool) -> io::Result<File> {
        let make = if write { OFlags::CREATE } else { OFlags::empty() };
        let file = open_at(self.directory, self.name, INSIDE | access(write) | make, self.mode)?;
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the lock is not a regular file"));
        }
        Ok(file)
    }

    /// Whether the name means this file now.
    pub fn names(&self, file: &File) -> io::Result<bool> {
        let ours = fstat(file)?;
        let there = statat(self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW);
        Ok(there.is_ok_and(|there| (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)))
    }
}
