//! Identity: of this boot, of a new store, and of the process that holds a store open.

use crate::descriptors;
use crate::holder::{self, HOLDER};
use crate::lineage::generation;
use crate::names::LockFile;
use crate::simulated::even_if;
use rustix::fs::FlockOperation;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// A 128-bit identifier: of a boot or of a store.
pub type Id = [u8; 16];

/// Where the kernel shows the boot id.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Steps of the wall clock that are smaller, such as a leap second, are no other boot: nanoseconds.
const STEP: u64 = 2_000_000_000;

/// The clocks of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// When it was started, by the wall clock as it is set now: nanoseconds since 1970.
    pub began: i64,
    /// How long it runs, suspended or not: nanoseconds.
    pub running: u64,
}

impl Clock {
    /// Whether this is the clock of the boot in which `then` was read. A boot that came later began at least
    /// `then.running` later, by a clock that is right.
    pub fn goes_on_from(&self, then: &Clock) -> bool {
        let apart = self.began.abs_diff(then.began);
        self.running >= then.running && apart < STEP.min(then.running / 2).max(1)
    }
}

/// What the system says of its boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot {
    /// Its identity; none where the system shows none.
    pub id: Option<Id>,
    /// Its clocks.
    pub clock: Option<Clock>,
}

impl Boot {
    /// With this identity, by the clocks of the running system.
    pub fn of(id: io::Result<Id>) -> io::Result<Boot> {
        use io::ErrorKind::{InvalidData, NotADirectory, NotFound, PermissionDenied};
        let id = match id {
            Ok(id) => Some(id).filter(|id| *id != [0; 16]),
            // An empty /proc, none at all, or a kernel that has no such file.
            Err(error)
                if matches!(error.kind(), NotFound | NotADirectory | PermissionDenied | InvalidData) =>
            {
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Boot { id, clock: clock() })
    }
}

/// The identity of this boot of the kernel, as it is shown: one of several [witnesses](crate::witness).
pub fn boot_id() -> io::Result<Id> {
    let text = descriptors::read_text(BOOT_ID)?;
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

/// When the system was started, and how long it runs.
pub fn clock() -> Option<Clock> {
    let running = read_clock(libc::CLOCK_BOOTTIME)?;
    let wall = read_clock(libc::CLOCK_REALTIME)?;
    Some(Clock { began: wall.checked_sub(running)?, running: u64::try_from(running).ok()? })
}

/// Nanoseconds.
fn read_clock(which: libc::clockid_t) -> Option<i64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the system writes one structure, which lives until the call returns.
    let done = unsafe { libc::clock_gettime(which, &raw mut time) };
    let told = done == 0;
    told.then(|| time.tv_sec.checked_mul(1_000_000_000)?.checked_add(time.tv_nsec))?
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
    generation: u32,
}

impl Locked {
    fn held(file: File) -> Lock {
        Lock::of(Locked { file, generation: generation() })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Closed by a child, it stays locked: the opening is the parent's.
        if even_if("parents-lock-given-up", self.generation == generation()) {
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
        let text = holder::text();
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
    generation: u32,
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
            Ok(()) => Ok(Some(ByteLock { file, at, len, generation: generation() })),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for it, to have it alone.
    pub fn take(file: BorrowedFd<'_>, at: u64) -> io::Result<ByteLock> {
        let file = file.try_clone_to_owned()?;
        loop {
            match lock_bytes(&file, (at, 1), libc::F_WRLCK, libc::F_OFD_SETLKW) {
                Ok(()) => return Ok(ByteLock { file, at, len: 1, generation: generation() }),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for ByteLock {
    fn drop(&mut self) {
        if even_if("parents-lock-given-up", self.generation == generation()) {
            // It goes with the opening, too.
            let _ = lock_bytes(&self.file, (self.at, self.len), libc::F_UNLCK, libc::F_OFD_SETLK);
        }
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

fn flock(file: File, operation: FlockOperation) -> Result<File, LockError> {
    match rustix::fs::flock(&file, operation) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = vec![0; 256];
            let read = file.read_at(&mut text, 0).unwrap_or(0);
            Err(LockError::Held(holder::known(&String::from_utf8_lossy(&text[..read]))))
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

#[cfg(test)]
mod tests {
    use super::*;

    const THEN: Clock = Clock { began: 1_700_000_000_000_000_000, running: 60_000_000_000 };

    #[test]
    fn a_clock_goes_on_unless_the_system_was_started_again() {
        let at = |began: i64, running: u64| Clock { began: THEN.began + began, running };
        let second = 1_000_000_000;
        for (now, same) in [
            (THEN, true),
            (at(0, THEN.running - 1), false),
            (at(second, THEN.running + 9), true),
            (at(-second, u64::MAX), true),
            (at(3 * second, THEN.running + 9), false),
            (at(-3 * second, THEN.running + 9), false),
            (Clock { began: i64::MIN, running: u64::MAX }, false),
        ] {
            assert_eq!(now.goes_on_from(&THEN), same, "{now:?}");
        }
        // Noted so soon after the start that a reboot may begin a moment later.
        let soon = Clock { running: 1_000_000, ..THEN };
        let rebooted = Clock { began: soon.began + 1_000_001, running: 5 * second as u64 };
        assert!(!rebooted.goes_on_from(&soon) && soon.goes_on_from(&soon));
    }

    #[test]
    fn a_forked_child_gives_up_nothing_of_its_parents() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = Lock::take(&LockFile::outside(&path), false).unwrap();
        // SAFETY: the child drops the lock, which frees memory, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(lock);
            // SAFETY: nothing runs after it.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the system writes one word.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(matches!(Lock::take(&LockFile::outside(&path), false), Err(LockError::Held(_))));
        drop(lock);
        assert!(Lock::take(&LockFile::outside(&path), false).is_ok());
    }

    #[test]
    fn what_says_that_there_is_no_boot_id_is_no_failure() {
        use io::ErrorKind::{InvalidData, NotFound, Other, PermissionDenied};
        for kind in [NotFound, PermissionDenied, InvalidData] {
            assert_eq!(Boot::of(Err(kind.into())).unwrap().id, None);
        }
        assert!(Boot::of(Err(Other.into())).is_err());
        assert_eq!(Boot::of(Ok([0; 16])).unwrap().id, None);
        assert_eq!(Boot::of(Ok([5; 16])).unwrap().id, Some([5; 16]));
    }
}
