//! A segment of blocks as the one file of a file system in user space, for programs that want a file, and for
//! systems without NBD: `losetup` makes a block device of it.
//!
//! Nothing is kept in the page cache: a write that has returned is in the segment, and lasts as one of
//! [`Blocks::write`](crate::Blocks::write) does; `fsync` is a flush. Each block is written wholly or not at all
//! whose bytes come in one request. The kernel makes one of a write from one buffer of up to a mebibyte, or a page
//! less if the buffer does not begin at a page's start; it cuts a longer one after 256 pages of the buffer, and
//! several buffers (`writev`) between them.

mod mount;

use crate::error::{Error, Result};
use crate::export::Export;
use caliburn_os::descriptors::above;
use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use mount::{Mount, Place};
use rustix::process::{getegid, geteuid};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Threads that serve requests.
const THREADS: usize = 4;
/// Bytes that are written at once at most, as with NBD.
const WRITE_MAX: u32 = 1 << 20;
/// What the kernel was told does not change.
const FOR_EVER: Duration = Duration::from_hours(24);
/// The file.
const FILE: INodeNo = INodeNo(2);
/// As what it is mounted.
const TYPE: &str = "fuse.caliburn";

/// A mounted file system with one file, which is called as the export.
#[derive(Debug)]
pub struct Mounted {
    session: Session<Disk>,
    export: Arc<Export>,
    mount: Mount,
}

/// Unmounts it, from another thread.
#[derive(Debug, Clone)]
pub struct Unmount(Place);

impl Mounted {
    /// Mounts it on a directory. Nobody can look into it before [`Mounted::run`].
    ///
    /// # Errors
    /// Where `/dev/fuse` is missing, or the directory, or it may not be mounted on: only who may mount(2) can. Where
    /// one is mounted that is served; one of a server that was killed is unmounted.
    pub fn new(dir: &Path, export: Export) -> io::Result<Mounted> {
        if [".", ".."].contains(&&export.name[..]) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no file can be called so"));
        }
        let fuse = above(|| File::options().read(true).write(true).open("/dev/fuse"))?;
        let mount = Mount::new(dir, &fuse, export.blocks.is_writable())?;
        let export = Arc::new(export);
        let disk = Disk { export: Arc::clone(&export), mounted: SystemTime::now() };
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        config.clone_fd = true;
        let session = Session::from_fd(disk, fuse.into(), SessionACL::Owner, config)?;
        Ok(Mounted { session, export, mount })
    }

    /// What unmounts it.
    pub fn unmount(&self) -> Unmount {
        Unmount(self.mount.place())
    }

    /// Serves it until it is unmounted, by [`Unmount`] or by `umount`, and gives the export back.
    pub fn run(self) -> io::Result<Export> {
        let Mounted { session, export, mount } = self;
        session.run()?;
        mount.ended();
        Ok(Arc::into_inner(export).expect("the session has let go of it"))
    }
}

impl Unmount {
    /// Unmounts it.
    ///
    /// # Errors
    /// While the file is open, or a loop device made of it; when another file system was mounted over it, or it was
    /// detached and somebody has the file open still.
    pub fn unmount(&self) -> io::Result<()> {
        self.0.unmount()
    }
}

#[derive(Debug)]
struct Disk {
    export: Arc<Export>,
    mounted: SystemTime,
}

impl Disk {
    fn about(&self, inode: INodeNo) -> Option<FileAttr> {
        let blocks = &self.export.blocks;
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o500, 0),
            FILE if blocks.is_writable() => (FileType::RegularFile, 0o600, blocks.bytes()),
            FILE => (FileType::RegularFile, 0o400, blocks.bytes()),
            _ => return None,
        };
        let [atime, mtime, ctime, crtime] = [self.mounted; 4];
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let blksize = blocks.block_bytes() as u32;
        let blocks = size.div_ceil(512);
        Some(FileAttr {
            ino: inode,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            crtime,
            kind,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize,
            flags: 0,
        })
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.export.blocks.write_bytes(offset, bytes, self.export.at_once)
    }

    /// How much of so many bytes from an offset on there is.
    fn within(&self, offset: u64, len: u64) -> u64 {
        len.min(self.export.blocks.bytes().saturating_sub(offset))
    }
}

/// What a program is told.
fn number_of(error: &Error) -> Errno {
    tracing::warn!(%error, "a request failed");
    match error {
        Error::ReadOnly(_) => Errno::EROFS,
        Error::Range { .. } => Errno::EINVAL,
        _ => Errno::EIO,
    }
}

fn empty(reply: ReplyEmpty, done: Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(number_of(&error)),
    }
}

impl Filesystem for Disk {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // A smaller one is as good, but for writes that are to happen at once.
        let _ = config.set_max_write(WRITE_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.about(FILE) {
            Some(about) if parent == INodeNo::ROOT && name == OsStr::new(&self.export.name) => {
                reply.entry(&FOR_EVER, &about, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.about(inode) {
            Some(about) => reply.attr(&FOR_EVER, &about),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Times change nothing, and the length must stay.
    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let stays = size.is_none_or(|size| size == self.export.blocks.bytes());
        match self.about(inode) {
            Some(about) if stays && (mode, uid, gid) == (None, None, None) => reply.attr(&FOR_EVER, &about),
            _ => reply.error(Errno::EPERM),
        }
    }

    // There is one file, and it stays.

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if inode != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (FILE, FileType::RegularFile, &self.export.name),
        ];
        for (next, (inode, kind, name)) in (1..).zip(entries).skip(offset as usize) {
            if reply.add(inode, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if inode != FILE {
            reply.error(Errno::EISDIR);
        } else if flags.0 & libc::O_TRUNC != 0 {
            // It would take the length away that the segment has.
            reply.error(Errno::EPERM);
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; self.within(offset, size.into()) as usize];
        match self.export.blocks.read_bytes(offset, &mut bytes) {
            _ if bytes.is_empty() => reply.data(&[]),
            Ok(()) => reply.data(&bytes),
            Err(error) => reply.error(number_of(&error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let len = self.within(offset, bytes.len() as u64) as usize;
        if len == 0 && !bytes.is_empty() {
            return reply.error(Errno::ENOSPC);
        }
        match self.write(offset, &bytes[..len]) {
            Ok(()) => reply.written(len as u32),
            Err(error) => reply.error(number_of(&error)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let (len, bytes) = (self.export.blocks.len(), self.export.blocks.block_bytes() as u32);
        reply.statfs(len, 0, 0, 1, 0, bytes, 255, bytes);
    }

    /// A file is closed; nothing waits to be written.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let flushed = if self.export.blocks.is_writable() { self.export.blocks.flush() } else { Ok(()) };
        empty(reply, flushed);
    }

    /// Holes are trims; room there is for all blocks.
    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let clears = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0;
        let beyond = offset.checked_add(len).is_none_or(|end| end > self.export.blocks.bytes());
        if mode & !(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE) != 0
        {
            reply.error(Errno::EOPNOTSUPP);
        } else if beyond && mode & libc::FALLOC_FL_KEEP_SIZE == 0 {
            reply.error(Errno::ENOSPC);
        } else if clears && offset < self.export.blocks.bytes() {
            empty(reply, self.export.blocks.clear_bytes(offset, self.within(offset, len)));
        } else {
            reply.ok();
        }
    }
}
