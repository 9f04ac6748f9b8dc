//! Identity: of this boot, of a new store, and of the process that holds a store open.

use crate::names::LockFile;
use rustix::fs::FlockOperation;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// A 128-bit identifier: of a boot or of a store.
pub type Id = [u8; 16];

/// The identity of this boot of the kernel: memory that has another one did not survive a reboot.
pub fn boot_id() -> io::Result<Id> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: Vec<u8> = text.bytes().filter_map(|c| (c as char).to_digit(16).map(|d| d as u8)).collect();
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "boot_id is not 32 hexadecimal digits");
    let mut id = [0; 16];
    if digits.len() != 32 {
        return Err(bad());
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Ok(id)
}

/// A fresh random identifier.
pub fn random_id() -> io::Result<Id> {
    let mut id = [0; 16];
    let mut filled = 0;
    while filled < id.len() {
        filled += rustix::rand::getrandom(&mut id[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(id)
}

/// How many descriptors this process may have.
pub fn descriptors() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

/// Kills a child that leads a group of processes, with all that are in it.
pub fn kill_group(leader: u32) {
    let leader = i32::try_from(leader).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(leader) = leader {
        // It fails where there is nobody any more.
        let _ = rustix::process::kill_process_group(leader, rustix::process::Signal::KILL);
    }
}

/// Whether a file could not be opened since too many are.
pub fn are_descriptors_short(error: &io::Error) -> bool {
    matches!(
        rustix::io::Errno::from_io_error(error),
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)
    )
}

/// A lock on a file, with a text that names the holder. The kernel drops it when the process ends, however
/// it ends.
#[derive(Debug)]
pub struct Lock {
    _held: Box<dyn fmt::Debug + Send + Sync>,
}

/// A locked file. Unlocked by word and not only by being closed: a child that was forked at this moment has
/// the file open too, until it executes its own program.
#[derive(Debug)]
struct Locked {
    file: File,
    /// Whose lock it is: a child that was forked and lives on must not give it up.
    process: u32,
}

impl Locked {
    fn held(file: File) -> Lock {
        Lock::of(Locked { file, process: std::process::id() })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // Closing unlocks it, too, when this fails.
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// Why a lock was not had.
#[derive(Debug)]
pub enum LockError {
    /// Somebody else has it; the text that the holder left.
    Held(String),
    /// The file could not be opened or locked.
    Io(io::Error),
}

impl Lock {
    /// A lock that lasts as long as `held`.
    pub fn of(held: impl fmt::Debug + Send + Sync + 'static) -> Lock {
        Lock { _held: Box::new(held) }
    }

    /// Takes the lock at once or says who has it: shared with other readers, writing nothing, or alone.
    pub(crate) fn take(lock: &LockFile<'_>, shared: bool) -> Result<Lock, LockError> {
        if shared {
            let file = lock.open(false).map_err(LockError::Io)?;
            return flock(file, FlockOperation::NonBlockingLockShared).map(Locked::held);
        }
        let file = loop {
            let file = lock.open(true).map_err(LockError::Io)?;
            let file = flock(file, FlockOperation::NonBlockingLockExclusive)?;
            // The file may have been removed between opening and locking it: then the lock is on nothing.
            if lock.names(&file).map_err(LockError::Io)? {
                break file;
            }
        };
        refuse_foreign(&file).map_err(LockError::Io)?;
        let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let text = format!("{HOLDER}{} ({})\n", std::process::id(), name.trim());
        // The text is for people; the lock is the kernel's. Failing to write it is no reason to fail.
        let _ = file.set_len(0).and_then(|()| file.write_all_at(text.as_bytes(), 0));
        Ok(Locked::held(file))
    }
}

impl Lock {
    /// A lock on a file, or a directory, itself.
    pub(crate) fn of_file(file: File, shared: bool) -> Result<Lock, LockError> {
        let alone = FlockOperation::NonBlockingLockExclusive;
        let operation = if shared { FlockOperation::NonBlockingLockShared } else { alone };
        flock(file, operation).map(Locked::held)
    }

    /// This lock and one on a directory, where the file system has locks on directories.
    pub(crate) fn with(self, directory: io::Result<File>, shared: bool) -> Result<Lock, LockError> {
        match Lock::of_file(directory.map_err(LockError::Io)?, shared) {
            Ok(other) => Ok(Lock::of((self, other))),
            Err(LockError::Io(_)) => Ok(self),
            Err(held) => Err(held),
        }
    }
}

/// A lock on a byte of an open file, which need not be in the file: a number that openings of the file agree on.
/// Given up when it is dropped, or the opening ends. Within one opening nothing is locked.
#[derive(Debug)]
pub struct ByteLock {
    file: OwnedFd,
    at: u64,
    /// Bytes; 0 for all from there on.
    len: u64,
}

impl ByteLock {
    /// Takes it at once, shared with others or alone; none if somebody has it. Of a file that is open for reading
    /// only shared locks can be had.
    pub fn try_take(file: BorrowedFd<'_>, at: u64, shared: bool) -> io::Result<Option<ByteLock>> {
        ByteLock::try_bytes(file, (at, 1), if shared { libc::F_RDLCK } else { libc::F_WRLCK })
    }

    /// Takes all bytes from one on at once, alone; none if somebody has one of them.
    pub fn try_take_from(file: BorrowedFd<'_>, at: u64) -> io::Result<Option<ByteLock>> {
        ByteLock::try_bytes(file, (at, 0), libc::F_WRLCK)
    }

    fn try_bytes(
        file: BorrowedFd<'_>,
        (at, len): (u64, u64),
        kind: libc::c_int,
    ) -> io::Result<Option<ByteLock>> {
        let file = file.try_clone_to_owned()?;
        match lock_bytes(&file, (at, len), kind, libc::F_OFD_SETLK) {
            Ok(()) => Ok(Some(ByteLock { file, at, len })),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for it, to have it alone.
    pub fn take(file: BorrowedFd<'_>, at: u64) -> io::Result<ByteLock> {
        let file = file.try_clone_to_owned()?;
        loop {
            match lock_bytes(&file, (at, 1), libc::F_WRLCK, libc::F_OFD_SETLKW) {
                Ok(()) => return Ok(ByteLock { file, at, len: 1 }),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for ByteLock {
    fn drop(&mut self) {
        // It goes with the opening, too.
        let _ = lock_bytes(&self.file, (self.at, self.len), libc::F_UNLCK, libc::F_OFD_SETLK);
    }
}

fn lock_bytes(file: &OwnedFd, (at, len): (u64, u64), kind: libc::c_int, how: libc::c_int) -> io::Result<()> {
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: at as libc::off_t,
        l_len: len as libc::off_t,
        l_pid: 0,
    };
    // SAFETY: a descriptor, and a structure that is only read.
    match unsafe { libc::fcntl(file.as_raw_fd(), how, &lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How the text in a lock begins.
const HOLDER: &str = "process ";

fn flock(file: File, operation: FlockOperation) -> Result<File, LockError> {
    match rustix::fs::flock(&file, operation) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = vec![0; 256];
            let read = file.read_at(&mut text, 0).unwrap_or(0);
            // Somebody else may have written it: no control characters, which a terminal would obey.
            let text = String::from_utf8_lossy(&text[..read]).trim().replace(char::is_control, "?");
            Err(LockError::Held(if text.is_empty() { "another process".into() } else { text }))
        }
        Err(errno) => Err(LockError::Io(errno.into())),
    }
}

/// Refuses to write over what is no lock's text: some user's file of that name.
fn refuse_foreign(file: &File) -> io::Result<()> {
    let mut text = vec![0; HOLDER.len()];
    let read = file.read_at(&mut text, 0)?;
    if read == 0 || text[..read] == HOLDER.as_bytes()[..read] {
        return Ok(());
    }
    let text = "the file holds something else than the text of a lock; move it away if it is not yours";
    Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
}
