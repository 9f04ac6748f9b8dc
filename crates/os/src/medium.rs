//! The one seam to storage. Every byte that Caliburn reads from or writes to a medium passes through
//! [`Medium`], and every directory operation through [`Media`], so that a simulated implementation can
//! drop, reorder, tear and fail all of them.
//!
//! What the engine assumes of an implementation (docs/durability.md):
//!
//! 1. After `sync` returns, every earlier `write_at` and `set_len` survives a power cut.
//! 2. A write that was not synced may survive wholly, partly (sector by sector) or not at all, in any order.
//! 3. After a failed write or sync nothing is known of unsynced writes; the engine never retries.
//! 4. `Media::replace` is atomic: the file has the old content or the new one, and it is known which, but for one
//!    whose name could not be forced.

use crate::descriptors;
use crate::host::{self, Boot, Id, Lock, LockError};
use crate::memory::Limits;
use crate::names::{self, LockFile};
pub use crate::names::{Replaced, SMALL_FILE};
pub use crate::persist::{Flush, Memory, Survives, WriteBack};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
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
    /// What is there, and forced, will hardly be read soon: memory need not keep it.
    fn forget(&self, _offset: u64, _len: u64) {}
    /// As [`Medium::read_at`], and the system reads no more than that.
    fn read_no_further(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(buffer, offset)
    }
    /// Pages of a part that were pushed out of memory, as far as the system remembers: to read them again counts as
    /// want of memory.
    fn pushed_out(&self, _offset: u64, _len: u64) -> u64 {
        0
    }
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
    /// Has room made for what lies in holes, so that storing there where it is mapped cannot meet a full disk.
    fn fill_holes(&self) -> io::Result<()> {
        Ok(())
    }
    /// A descriptor to map. Its page cache must show what `write_at` wrote.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// What is mapped begins and ends at multiples of so many bytes, of the medium and in memory.
    fn grain(&self) -> usize {
        crate::page_size()
    }
    /// Whether what the descriptor maps is all that is read here.
    fn is_mapped(&self) -> bool {
        true
    }
    /// The first byte from `offset` on that is not in a hole, where that can be told; none if all the rest is one.
    fn next_data(&self, offset: u64) -> Option<u64> {
        Some(offset)
    }
    /// Gives back the room of a part that holds zeros.
    fn make_hole(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Whether so many bytes may really be there: not if the file takes so little of its medium that they would be
    /// holes, but for a thousandth. Then somebody made it to be large. A copy that left out zeros is not meant.
    fn may_hold(&self, _bytes: u64) -> bool {
        true
    }
    /// A file of zeros without a name, beside it if that can be, else in memory: for what is too long to be copied
    /// into memory.
    fn scratch(&self, len: u64) -> io::Result<OwnedFd> {
        names::scratch_in_memory(len)
    }
    /// What is mapped by it, shared.
    fn memory(&self) -> Memory {
        Memory::CACHE
    }
    /// Which file or device it is, whatever its names: where that can be told.
    fn identity(&self) -> Option<(u64, u64)> {
        None
    }
    /// Numbers that a copy of the file does not have, and a snapshot of its file system has: where that can be told.
    fn place(&self) -> Option<[u64; 2]> {
        None
    }
    /// Locks the file itself, by whatever name it was opened: shared with others that only read, or alone. None
    /// where files have one name.
    fn claim(&self, _shared: bool) -> io::Result<Option<Lock>> {
        Ok(None)
    }
    /// Whether its content goes when the system does, forced or not: a file system in memory.
    fn volatile(&self) -> bool {
        false
    }
    /// Whether room that it has is enough for whatever is stored there later: not where the file system writes
    /// elsewhere, or may come to do so ([`rescue`](crate::rescue)).
    fn keeps_room(&self) -> bool {
        true
    }
    /// Which page cache holds what was written to it: another one after the file system was mounted again, which
    /// may have lost what was not forced. None where that, or [`Medium::written_back`], can't be told.
    fn cache(&self) -> Option<[u64; 3]> {
        None
    }
    /// The device of its file system and the mount that it was opened by; of a device, which disk it is. Where that
    /// can be told.
    fn mount(&self) -> Option<[u64; 2]> {
        None
    }
    /// Whether the file was in memory without a break since [`Medium::watch`] marked it: then so was its file
    /// system, and nothing was lost that was stored there, but what [`Medium::written_back`] tells of.
    fn pinned(&self) -> bool {
        false
    }
    /// Has the system remember, as long as it remembers what became of write-backs of this file, that it does:
    /// [`Medium::cache`] is none before this, and when all of the file has gone from memory.
    fn watch(&self) {}
    /// An error if something that was written and not forced was lost on its way to the medium, and nobody was
    /// told so before. Waits for what is on its way, and begins nothing.
    fn written_back(&self) -> io::Result<()> {
        Ok(())
    }
    /// The two media that it is made of and that hold the same.
    fn pair(&self) -> Option<&dyn Pair> {
        None
    }
    /// The name that errors carry.
    fn path(&self) -> &Path;
}

/// Two media that hold the same.
pub trait Pair {
    /// Both, whatever became of them.
    fn copies(&self) -> &[Arc<dyn Medium>; 2];
    /// Both, while both are used.
    fn in_use(&self) -> Option<[&dyn Medium; 2]>;
    /// Goes on without one that has failed, unless the other one has. An error: the media have.
    fn lose(&self, number: usize, error: io::Error) -> io::Result<()>;
    /// A part of one was not what had been written, and is again.
    fn mended(&self, number: usize);
}

/// What holds for the files of a directory that is [held](Media::held).
#[derive(Debug, Clone)]
pub struct Rules {
    /// What it may name outside of itself: files and devices, and directories with all that is in them.
    pub outside: Vec<PathBuf>,
    /// Who may use the files that are made in it, as for chmod(2).
    pub mode: u32,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { outside: Vec::new(), mode: 0o600 }
    }
}

/// Where media come from: a directory tree on a machine. What has a body here asks the operating system;
/// a simulated machine replaces all of it.
///
/// # Safety
/// The engine maps what it opens here, and stores to it from several threads: what two names mean must be two files,
/// `create` must give a file that nobody else has, and while a lock is held nobody else may change the files
/// of that directory.
pub unsafe trait Media: Send + Sync + fmt::Debug {
    /// Opens an existing file or device.
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>>;
    /// Creates a file that must not exist. The name is durable after [`Media::sync_directory`].
    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>>;
    /// Replaces the content of `path` atomically. An error: the name means what it did.
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// The same, with what is in a directory found from the directory itself, whatever becomes of its name and of
    /// the working directory, and links in it not followed. Outside of it nothing is opened but what the rules
    /// list, and what is listed later. None where names can't change.
    fn held(&self, _directory: &Path, _rules: &Rules) -> io::Result<Option<Arc<dyn Media>>> {
        Ok(None)
    }

    /// Lists a file, a device or a directory that the program itself names.
    fn list_outside(&self, _path: &Path) {}

    /// Whether a path leads into the directory that is [held](Media::held).
    fn holds(&self, _path: &Path) -> bool {
        false
    }

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
        descriptors::list(path)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    /// The whole content of a file, which must be [small](SMALL_FILE).
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        names::read_all(names::open_outside(path, false)?)
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
        Lock::take(&LockFile::outside(path), shared)
    }

    /// A file of zeros without a name, which nobody else has and which is gone with its descriptor, with its space
    /// allocated: in the directory, or in memory.
    fn scratch(&self, _directory: &Path, len: u64) -> io::Result<OwnedFd> {
        names::scratch_in_memory(len)
    }

    /// A fresh random identity.
    fn random_id(&self) -> io::Result<Id> {
        host::random_id()
    }

    /// How much memory this process may use.
    fn limits(&self) -> Limits {
        Limits::read()
    }

    /// How many descriptors this process may have.
    fn descriptors(&self) -> u64 {
        host::descriptors()
    }

    /// The identity of this boot, as the system shows it.
    fn boot_id(&self) -> io::Result<Id> {
        host::boot_id()
    }

    /// What the system says of its boot: see [`witness`](crate::witness).
    fn boot(&self) -> io::Result<Boot> {
        Boot::of(self.boot_id())
    }
}
