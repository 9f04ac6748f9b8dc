//! Files and block devices of the running system, and a directory that is held by a descriptor.

use crate::descriptors::open_to_read;
use crate::host::{Lock, LockError};
use crate::inode;
use crate::medium::{Media, Medium, Replaced, Rules};
use crate::names::{self, INSIDE, LockFile, access, open_at};
use crate::persist::Memory;
use crate::simulated::{even_if, planted};
use crate::sync::Mutex;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, fstat, statat, unlinkat};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

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

// SAFETY: each file is what the system has under that name; the store's lock keeps other programs of ours away.
unsafe impl Media for Files {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        FileMedium::from_file(names::open_outside(path, write)?, path)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        FileMedium::from_file(names::create_outside(path, Rules::default().mode())?, path)
    }

    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        names::replace(open_to_read(above)?.as_fd(), Path::new(name), content, Rules::default().mode())
    }

    fn held(&self, directory: &Path, rules: &Rules) -> io::Result<Option<Arc<dyn Media>>> {
        Ok(Some(Arc::new(Directory::hold(directory, rules)?)))
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        open_to_read(path)?.sync_all()
    }
}

/// Has a file have room for a part. A signal comes between at most: what was allocated stays.
pub(crate) fn allocate(file: &File, offset: u64, len: u64) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| {
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), offset, len)
    })
}

/// `f_type` of file systems whose files are whole huge pages.
pub(crate) const HUGETLBFS: i64 = 0x9584_58F6;

impl FileMedium {
    pub(crate) fn from_file(file: File, path: &Path) -> io::Result<Arc<dyn Medium>> {
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let text = "neither a regular file nor a device that holds data";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if rustix::fs::fstatfs(&file).is_ok_and(|about| about.f_type == HUGETLBFS) {
            let text = "files on hugetlbfs cannot be written to; tmpfs mounted with -o huge=always has huge pages too";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let (path, device) = (path.to_owned(), kind.is_block_device());
        Ok(Arc::new(FileMedium { file, path, device }))
    }

    /// Whether a file in memory has room for all of it. Elsewhere what is allocated tells less: it counts what the
    /// file system keeps of the file.
    fn has_all(&self, len: u64) -> io::Result<bool> {
        let about = rustix::fs::fstat(&self.file)?;
        Ok(self.volatile() && about.st_blocks as u64 * 512 >= len)
    }

    /// Whether the file system has what the holes of a file of that length need, where it tells: trying would fill
    /// the disk first.
    fn has_room(&self, len: u64) -> io::Result<()> {
        // Elsewhere zeros may take no room.
        if !self.is_plain() {
            return Ok(());
        }
        let holes = len.saturating_sub(rustix::fs::fstat(&self.file)?.st_blocks as u64 * 512);
        let free = || {
            let system = rustix::fs::fstatvfs(&self.file).ok()?;
            // A tmpfs without a limit says that it has no blocks.
            (system.f_blocks > 0).then(|| system.f_bfree.saturating_mul(system.f_frsize))
        };
        let lacks = |free: Option<u64>| free.is_some_and(|free| free < holes);
        if !lacks(free()) {
            return Ok(());
        }
        // What was removed counts as free when the file system has written that down.
        let _ = rustix::fs::syncfs(&self.file);
        let there = free();
        if !lacks(there) {
            return Ok(());
        }
        let text = format!("its holes need {holes} bytes, and the file system has {}", there.unwrap_or(0));
        Err(io::Error::new(io::ErrorKind::StorageFull, text))
    }

    fn is_plain(&self) -> bool {
        rustix::fs::fstatfs(&self.file).is_ok_and(|about| PLAIN.contains(&about.f_type))
    }
}

/// `f_type` of file systems that write back through the page cache of the very file that is open: ext4, XFS, btrfs,
/// F2FS and tmpfs. One that is laid over another answers for itself alone.
const PLAIN: [i64; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x0102_1994];

// SAFETY: the descriptor is that of one open file, which nothing here ever shrinks below what was promised; the
// store's lock keeps other programs of ours away.
unsafe impl Medium for FileMedium {
    fn will_need(&self, offset: u64, len: u64) {
        // A hint that is refused changes nothing.
        let _ = rustix::fs::fadvise(&self.file, offset, NonZeroU64::new(len), rustix::fs::Advice::WillNeed);
    }

    fn forget(&self, offset: u64, len: u64) {
        let _ = rustix::fs::fadvise(&self.file, offset, NonZeroU64::new(len), rustix::fs::Advice::DontNeed);
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
        match allocate(&self.file, now, len - now) {
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

    fn fill_holes(&self) -> io::Result<()> {
        let len = self.len()?;
        if self.device || len == 0 || self.has_all(len)? {
            return Ok(());
        }
        self.has_room(len)?;
        match allocate(&self.file, 0, len) {
            // As with `set_len`.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(next) => Some(next),
            Err(rustix::io::Errno::NXIO) => None,
            Err(_) => Some(offset),
        }
    }

    fn make_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        use rustix::fs::FallocateFlags;
        if self.device {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, offset, len)?)
    }

    fn may_hold(&self, bytes: u64) -> bool {
        /// So much may be wasted.
        const SMALL: u64 = 256 << 20;
        // Elsewhere zeros may take no room.
        let allocated =
            || rustix::fs::fstat(&self.file).map_or(u64::MAX, |about| about.st_blocks as u64 * 512);
        bytes <= SMALL || self.device || !self.is_plain() || bytes / 1000 <= allocated()
    }

    fn scratch(&self, len: u64) -> io::Result<OwnedFd> {
        let above = self.path.parent().filter(|_| !self.device).and_then(|above| open_to_read(above).ok());
        let beside = above.and_then(|above| names::scratch(above.as_fd(), len).ok());
        beside.map_or_else(|| names::scratch_in_memory(len), Ok)
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

    fn place(&self) -> Option<[u64; 2]> {
        use rustix::fs::{AtFlags, StatxFlags};
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let about = rustix::fs::statx(&self.file, c"", AtFlags::EMPTY_PATH, wanted).ok()?;
        // Elsewhere numbers may change from one mount to the next.
        let told =
            !self.device && self.is_plain() && StatxFlags::from_bits_retain(about.stx_mask).contains(wanted);
        let born =
            (about.stx_btime.tv_sec as u64).wrapping_mul(1_000_000_000) + u64::from(about.stx_btime.tv_nsec);
        told.then_some([about.stx_ino, born])
    }

    fn claim(&self, shared: bool) -> io::Result<Option<Lock>> {
        if planted("files-elsewhere-not-locked") {
            return Ok(None);
        }
        Lock::of_file(self.file.try_clone()?, shared).map(Some).map_err(|error| match error {
            LockError::Held(_) => {
                let text = "another store that names this file is open";
                io::Error::new(io::ErrorKind::ResourceBusy, text)
            }
            LockError::Io(error) => error,
        })
    }

    fn keeps_room(&self) -> bool {
        /// `f_type` of ext4 and its forerunners, tmpfs and ramfs. XFS keeps it until extents are shared.
        const IN_PLACE: [i64; 3] = [0xEF53, 0x0102_1994, 0x8584_58F6];
        self.device || rustix::fs::fstatfs(&self.file).is_ok_and(|about| IN_PLACE.contains(&about.f_type))
    }

    fn volatile(&self) -> bool {
        /// `f_type` of tmpfs and ramfs.
        const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58F6];
        // The name of a device is in memory, what it holds is not.
        !self.device && rustix::fs::fstatfs(&self.file).is_ok_and(|about| IN_MEMORY.contains(&about.f_type))
    }

    fn pushed_out(&self, offset: u64, len: u64) -> u64 {
        // cachestat(2), since Linux 6.5. Of five counts the fourth is asked for.
        const CACHESTAT: libc::c_long = 451;
        let (range, mut counts) = ([offset, len], [0u64; 5]);
        // SAFETY: the descriptor is that of an open file; the system reads two words and writes five.
        let done = unsafe {
            libc::syscall(
                CACHESTAT,
                self.file.as_raw_fd(),
                range.as_ptr(),
                counts.as_mut_ptr(),
                0 as libc::c_uint,
            )
        };
        if done == 0 { counts[3] } else { 0 }
    }

    fn read_no_further(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        // What is advised of a descriptor is of it alone.
        let Ok(apart) = open_to_read(format!("/proc/self/fd/{}", self.file.as_raw_fd())) else {
            return self.read_at(buffer, offset);
        };
        let _ = rustix::fs::fadvise(&apart, 0, None, rustix::fs::Advice::Random);
        std::os::unix::fs::FileExt::read_exact_at(&apart, buffer, offset)
    }

    fn cache(&self) -> Option<[u64; 3]> {
        let told = !self.device && self.is_plain() && inode::tells_of_losses();
        if told { inode::cache(&self.file) } else { None }
    }

    fn mount(&self) -> Option<[u64; 2]> {
        if self.device { inode::disk(&self.file) } else { inode::mount(&self.file) }
    }

    fn pinned(&self) -> bool {
        // The inode of a device's name stays whatever becomes of the device.
        !self.device && inode::is_marked(&self.file)
    }

    fn watch(&self) {
        inode::mark(&self.file);
    }

    fn written_back(&self) -> io::Result<()> {
        inode::written_back(self.file.as_fd())
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// A directory that is held by a descriptor. Its names are found from there: neither another working directory nor
/// another name of the directory, nor another directory under its old name, leads elsewhere. What stands in it is
/// never a symbolic link that is followed.
#[derive(Debug)]
struct Directory {
    descriptor: OwnedFd,
    /// As the program named it. Paths that begin so mean what is in the directory.
    path: PathBuf,
    mode: Mode,
    /// What may be opened elsewhere, without links.
    outside: Mutex<Vec<PathBuf>>,
}

impl Rules {
    pub(crate) fn mode(&self) -> Mode {
        Mode::from_raw_mode(self.mode)
    }
}

impl Directory {
    pub fn hold(path: &Path, rules: &Rules) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = open_at(rustix::fs::CWD, path, flags, Mode::empty())?.into();
        let (path, mode) = (path.to_owned(), rules.mode());
        let held = Directory { descriptor, path, mode, outside: Mutex::new(Vec::new()) };
        rules.outside.iter().for_each(|path| held.list_outside(path));
        Ok(held)
    }

    /// Refuses what was not listed: a store that came from elsewhere names what it likes.
    fn refuse_unlisted(&self, path: &Path) -> io::Result<()> {
        let whole = path.canonicalize()?;
        self.refuse_other(&[&whole])
    }

    /// The same of a name: a link is listed itself, or what it leads to is.
    fn refuse_unlisted_name(&self, path: &Path) -> io::Result<()> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        let (whole, named) = (path.canonicalize(), above.canonicalize()?.join(name));
        self.refuse_other(&[&named, whole.as_deref().unwrap_or(&named)])
    }

    fn refuse_other(&self, names: &[&Path]) -> io::Result<()> {
        let listed = self.outside.lock().expect("no panic under this lock");
        let mut all = listed.iter().flat_map(|listed| names.iter().map(move |name| name.starts_with(listed)));
        if even_if("outside-unlisted", all.any(|is| is)) {
            return Ok(());
        }
        let text = "the store names this file, which is not in its directory, and the program did not list it: see \
                    Options::outside";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }

    /// The name in the directory that a path means, `.` for the directory itself; none if it leads elsewhere.
    fn inside<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        if planted("names-by-path") {
            return None;
        }
        let rest = path.strip_prefix(&self.path).ok()?;
        let mut parts = rest.components();
        match (parts.next(), parts.next()) {
            (None, None) => Some(Path::new(".")),
            (Some(Component::Normal(_)), None) => Some(rest),
            _ => None,
        }
    }

    fn open_inside(&self, name: &Path, flags: OFlags) -> io::Result<File> {
        open_at(self.descriptor.as_fd(), name, INSIDE | flags, self.mode)
    }
}

// SAFETY: as for `Files`.
unsafe impl Media for Directory {
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn Medium>> {
        match self.inside(path) {
            Some(name) => FileMedium::from_file(self.open_inside(name, access(write))?, path),
            None => {
                self.refuse_unlisted(path)?;
                Files.open(path, write)
            }
        }
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn Medium>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        match self.inside(path) {
            Some(name) => FileMedium::from_file(self.open_inside(name, flags)?, path),
            None => FileMedium::from_file(names::create_outside(path, self.mode)?, path),
        }
    }

    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<Replaced> {
        match self.inside(path) {
            Some(name) => names::replace(self.descriptor.as_fd(), name, content, self.mode),
            None => Files.replace(path, content),
        }
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        match self.inside(path) {
            Some(name) if name == Path::new(".") => Ok(rustix::fs::fsync(&self.descriptor)?),
            _ => Files.sync_directory(path),
        }
    }

    fn scratch(&self, directory: &Path, len: u64) -> io::Result<OwnedFd> {
        match self.inside(directory) {
            Some(name) if name == Path::new(".") => names::scratch(self.descriptor.as_fd(), len),
            _ => Files.scratch(directory, len),
        }
    }

    fn list_outside(&self, path: &Path) {
        // It may be about to be made.
        let made = |path: PathBuf| {
            let above = path.parent()?.canonicalize().ok()?;
            Some(above.join(path.file_name()?))
        };
        let whole = path.canonicalize().ok().or_else(|| made(std::path::absolute(path).ok()?));
        self.outside.lock().expect("no panic under this lock").extend(whole);
    }

    fn holds(&self, path: &Path) -> bool {
        let Some(above) = path.parent() else { return false };
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        let (Ok(there), Ok(ours)) = (rustix::fs::stat(above), fstat(&self.descriptor)) else { return false };
        (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
    }

    fn exists(&self, path: &Path) -> bool {
        match self.inside(path) {
            Some(name) => statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW).is_ok(),
            None => Files.exists(path),
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        if self.inside(path) != Some(Path::new(".")) {
            return Files.list(path);
        }
        let names = Dir::new(self.open_inside(Path::new("."), OFlags::DIRECTORY)?)?
            .map(|entry| Ok(OsString::from_vec(entry?.file_name().to_bytes().to_vec())));
        let names: io::Result<Vec<OsString>> = names.collect();
        Ok(names?.into_iter().filter(|name| name != "." && name != "..").collect())
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self.inside(path) {
            Some(name) => names::read_all(self.open_inside(name, OFlags::RDONLY)?),
            None => Files.read(path),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match self.inside(path) {
            Some(name) => Ok(unlinkat(&self.descriptor, name, AtFlags::empty())?),
            None => self.refuse_unlisted_name(path).and_then(|()| Files.remove(path)),
        }
    }

    fn lock(&self, path: &Path, shared: bool) -> Result<Lock, LockError> {
        match self.inside(path) {
            Some(name) => {
                let lock = LockFile { directory: self.descriptor.as_fd(), name, mode: self.mode };
                // The directory itself, too: the name of the lock may be removed while it is held.
                Ok(Lock::take(&lock, shared)?
                    .with(self.open_inside(Path::new("."), OFlags::DIRECTORY), shared)?)
            }
            None => Files.lock(path, shared),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A held directory, and the folder that it is in.
    fn held() -> (tempfile::TempDir, PathBuf, Directory) {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("here");
        fs::create_dir(&path).unwrap();
        let directory = Directory::hold(&path, &Rules::default()).unwrap();
        (above, path, directory)
    }

    #[test]
    fn names_are_those_of_the_directory_wherever_it_goes() {
        let (above, path, directory) = held();
        let made = directory.create(&path.join("a")).unwrap();
        made.write_at(b"first", 0).unwrap();
        fs::rename(&path, above.path().join("elsewhere")).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("a"), "another").unwrap();
        assert_eq!(directory.read(&path.join("a")).unwrap(), b"first");
        assert!(matches!(directory.replace(&path.join("a"), b"second").unwrap(), Replaced::Durably));
        directory.sync_directory(&path).unwrap();
        assert_eq!(directory.list(&path).unwrap(), ["a"]);
        assert_eq!(fs::read(path.join("a")).unwrap(), b"another");
        assert_eq!(fs::read(above.path().join("elsewhere/a")).unwrap(), b"second");
        directory.remove(&path.join("a")).unwrap();
        assert!(!directory.exists(&path.join("a")) && path.join("a").exists());
    }

    #[test]
    fn links_in_it_are_not_followed_and_pipes_not_waited_for() {
        let (above, path, directory) = held();
        let target = above.path().join("target");
        fs::write(&target, "mine").unwrap();
        for name in ["catalog", "catalog.new", "lock"] {
            std::os::unix::fs::symlink(&target, path.join(name)).unwrap();
        }
        assert!(directory.open(&path.join("catalog"), true).is_err());
        assert!(directory.read(&path.join("catalog")).is_err());
        assert!(directory.lock(&path.join("lock"), false).is_err());
        assert!(matches!(directory.replace(&path.join("catalog"), b"new").unwrap(), Replaced::Durably));
        assert_eq!(fs::read(&target).unwrap(), b"mine");
        assert_eq!(fs::read(path.join("catalog")).unwrap(), b"new");

        rustix::fs::mkfifoat(rustix::fs::CWD, path.join("pipe"), Mode::RWXU).unwrap();
        assert!(directory.open(&path.join("pipe"), true).is_err());
        assert!(directory.read(&path.join("pipe")).is_err());
    }

    #[test]
    fn files_are_made_for_their_owner_and_a_replaced_one_keeps_its_mode() {
        use std::os::unix::fs::PermissionsExt;
        let (_above, path, directory) = held();
        let mode = |name: &str| fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
        directory.create(&path.join("a")).unwrap();
        assert_eq!(mode("a"), 0o600);
        fs::set_permissions(path.join("a"), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(directory.replace(&path.join("a"), b"").unwrap(), Replaced::Durably));
        assert_eq!(mode("a"), 0o640);
    }

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
