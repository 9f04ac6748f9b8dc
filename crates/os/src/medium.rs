//! The one seam to storage. Every byte that Caliburn reads from or writes to a medium passes through
//! [`Medium`], and every directory operation through [`Media`], so that a simulated implementation can
//! drop, reorder, tear and fail all of them.
//!
//! What the engine assumes of an implementation (docs/durability.md):
//!
//! 1. After `sync` returns, every earlier `write_at` and `set_len` survives a power cut.
//! 2. A write that was not synced may survive wholly, partly (sector by sector) or not at all, in any order.
//! 3. After a failed write or sync nothing is known of unsynced writes; the engine never retries.
//! 4. `Media::replace` is atomic and durable: afterwards the file has the old content or the new one.

use crate::host::{self, Id, Lock, LockError};
use crate::memory::Limits;
pub use crate::persist::{Flush, Memory, Survives, WriteBack};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One file or raw device, addressed by byte offset.
///
/// # Safety
/// The engine maps what `descriptor` gives: it must stay the same file or device as long as the medium
/// lives, be at least as long as `len` says and `set_len` promised, and never shrink.
pub unsafe trait Medium: Send + Sync + fmt::Debug {
    /// Says that so many bytes from `offset` will be read soon: a hint.
    fn will_need(&self, _offset: u64, _len: u64) {}
    /// Fills `buffer` from `offset`; reading past the end is `UnexpectedEof`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Forces everything written so far.
    fn sync(&self) -> io::Result<()>;
    /// Length in bytes; for a device its capacity.
    fn len(&self) -> io::Result<u64>;
    /// Grows to `len` bytes with the space allocated, so that later writes cannot meet a full disk.
    /// A device is left alone, and refused if it is smaller. Never shrinks.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// A descriptor to map. Its page cache must show what `write_at` wrote.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// What is mapped by it, shared.
    fn memory(&self) -> Memory {
        Memory::CACHE
    }
    /// Which file or device it is, whatever its names: where that can be told.
    fn identity(&self) -> Option<(u64, u64)> {
        None
    }
    /// Whether its content goes when the system does, forced or not: a file system in memory.
    fn volatile(&self) -> bool {
        false
    }
    /// Which page cache holds what was written to it: another one after the file system was mounted again, which
    /// may have lost what was not forced. None where that, or [`Medium::written_back`], can't be told.
    fn cache(&self) -> Option<[u64; 3]> {
        None
    }
    /// Has the system remember, as long as it remembers what became of write-backs of this file, that it does:
    /// [`Medium::cache`] is none before this, and when all of the file has gone from memory.
    fn watch(&self) {}
    /// An error if something that was written and not forced was lost on its way to the medium, and nobody was
    /// told so before. Waits for what is on its way, and begins nothing.
    fn written_back(&self) -> io::Result<()> {
        Ok(())
    }
    /// The name that errors carry.
    fn path(&self) -> &Path;
}

/// Where media come from: a directory tree on a machine. What has a body here asks the operating system;
/// a simulated machine replaces all of it.
pub trait Media: Send + Sync + fmt::Debug {
    /// Opens an existing file or device.
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>>;
    /// Creates a file that must not exist. The name is durable after [`Media::sync_directory`].
    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>>;
    /// Replaces the content of `path` atomically and durably.
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// Whether something has that name.
    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    /// Creates a directory, and those above it.
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    /// The names in a directory.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    /// The whole content of a small file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    /// Removes an empty directory.
    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    /// Locks a file, made if it is missing, against other processes: shared with other readers, or alone.
    fn lock(&self, path: &Path, shared: bool) -> Result<Lock, LockError> {
        if shared { Lock::shared(path) } else { Lock::exclusive(path) }
    }

    /// A fresh random identity.
    fn random_id(&self) -> io::Result<Id> {
        host::random_id()
    }

    /// How much memory this process may use.
    fn limits(&self) -> Limits {
        Limits::read()
    }

    /// The identity of this boot: memory with another one did not survive.
    fn boot_id(&self) -> io::Result<Id> {
        host::boot_id()
    }
}

/// Files and block devices of the running system.
#[derive(Debug, Default, Clone, Copy)]
pub struct Files;

/// An open file or block device.
#[derive(Debug)]
pub struct FileMedium {
    file: File,
    path: PathBuf,
    device: bool,
}

impl Media for Files {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        FileMedium::from_file(OpenOptions::new().read(true).write(write).open(path)?, path)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        FileMedium::from_file(OpenOptions::new().read(true).write(true).create_new(true).open(path)?, path)
    }

    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let staged = path.with_extension("new");
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&staged)?;
        file.write_all_at(content, 0)?;
        file.sync_all()?;
        fs::rename(&staged, path)?;
        self.sync_directory(path.parent().unwrap_or(Path::new(".")))
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        File::open(path)?.sync_all()
    }
}

/// Hints of how long what is written to a file will last stay with it in memory (fcntl(2), since Linux 4.13),
/// and go with it, as the record of failed write-backs does.
const F_GET_RW_HINT: libc::c_int = 1024 + 11;
/// See [`F_GET_RW_HINT`].
const F_SET_RW_HINT: libc::c_int = 1024 + 12;
/// RWH_WRITE_LIFE_LONG, which is true of segments.
static WATCHED: u64 = 4;

/// `f_type` of file systems whose files are whole huge pages.
const HUGETLBFS: i64 = 0x9584_58F6;

impl FileMedium {
    fn from_file(file: File, path: &Path) -> io::Result<Arc<dyn Medium>> {
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let text = "neither a regular file nor a block device";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if rustix::fs::fstatfs(&file).is_ok_and(|about| about.f_type == HUGETLBFS) {
            let text = "files on hugetlbfs cannot be written to; tmpfs mounted with -o huge=always has huge pages too";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        Ok(Arc::new(FileMedium { file, path: path.to_owned(), device: kind.is_block_device() }))
    }
}

// SAFETY: the descriptor is that of one open file, which nothing here ever shrinks below what was promised; the
// store's lock keeps other programs of ours away.
unsafe impl Medium for FileMedium {
    fn will_need(&self, offset: u64, len: u64) {
        // A hint that is refused changes nothing.
        let _ = rustix::fs::fadvise(&self.file, offset, NonZeroU64::new(len), rustix::fs::Advice::WillNeed);
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        if self.device {
            Ok(rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?)
        } else {
            Ok(self.file.metadata()?.len())
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let now = self.len()?;
        if len <= now {
            return Ok(());
        }
        if self.device {
            let text = format!("the device holds {now} bytes and {len} are needed");
            return Err(io::Error::new(io::ErrorKind::StorageFull, text));
        }
        use rustix::fs::FallocateFlags;
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), now, len - now) {
            Ok(()) => Ok(()),
            // File systems without allocation get a sparse file; a full disk then shows at truncation.
            Err(rustix::io::Errno::OPNOTSUPP) => self.file.set_len(len),
            Err(errno) => {
                // A failed allocation may have extended the file part of the way.
                let _ = self.file.set_len(now);
                Err(errno.into())
            }
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn memory(&self) -> Memory {
        Memory::of(&self.file)
    }

    fn identity(&self) -> Option<(u64, u64)> {
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        let about = self.file.metadata().ok()?;
        // A device may have several nodes.
        let device = about.file_type().is_block_device();
        Some(if device { (0, about.rdev()) } else { (about.dev(), about.ino()) })
    }

    fn volatile(&self) -> bool {
        /// `f_type` of tmpfs and ramfs.
        const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58F6];
        // The name of a device is in memory, what it holds is not.
        !self.device && rustix::fs::fstatfs(&self.file).is_ok_and(|about| IN_MEMORY.contains(&about.f_type))
    }

    fn cache(&self) -> Option<[u64; 3]> {
        use rustix::fs::{AtFlags, StatxFlags};
        /// `f_type` of file systems that write back through the page cache of the very file that is open: ext4,
        /// XFS, btrfs, F2FS and tmpfs. One that is laid over another answers for itself alone.
        const PLAIN: [i64; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x0102_1994];
        // STATX_MNT_ID_UNIQUE, since Linux 6.8: plain numbers of mounts are used again.
        let mount = StatxFlags::from_bits_retain(0x4000);
        let plain = rustix::fs::fstatfs(&self.file).is_ok_and(|about| PLAIN.contains(&about.f_type));
        let about = rustix::fs::statx(&self.file, c"", AtFlags::EMPTY_PATH, mount | StatxFlags::INO).ok()?;
        let told = StatxFlags::from_bits_retain(about.stx_mask).contains(mount | StatxFlags::INO);
        let device = u64::from(about.stx_dev_major) << 32 | u64::from(about.stx_dev_minor);
        let mut hint = 0u64;
        // SAFETY: the descriptor is that of an open file; the system writes one word.
        let watched = unsafe { libc::fcntl(self.file.as_raw_fd(), F_GET_RW_HINT, &raw mut hint) } == 0;
        let watched = watched && hint == WATCHED;
        (plain && told && watched && !self.device).then_some([device, about.stx_ino, about.stx_mnt_id])
    }

    fn watch(&self) {
        // SAFETY: the descriptor is that of an open file; the system reads one word. Where it refuses, nothing is
        // remembered.
        unsafe { libc::fcntl(self.file.as_raw_fd(), F_SET_RW_HINT, &raw const WATCHED) };
    }

    fn written_back(&self) -> io::Result<()> {
        // SAFETY: the descriptor is that of an open file; nothing else is passed.
        let done =
            unsafe { libc::sync_file_range(self.file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_told_from_another_while_it_is_watched() {
        let dir = tempfile::tempdir().unwrap();
        let made = |name: &str| Files.create(&dir.path().join(name)).unwrap();
        let (one, other) = (made("one"), made("other"));
        assert_eq!(one.cache(), None, "nobody watches it");
        one.watch();
        other.watch();
        one.written_back().unwrap();
        let again = Files.open(&dir.path().join("one"), true).unwrap();
        // Where the file system or the kernel cannot tell, it cannot for either.
        assert_eq!(again.cache(), one.cache());
        assert!(one.cache() != other.cache() || one.cache().is_none());
    }
}
