//! Identity: of this boot, of a new store, and of the process that holds a store open.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

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
            let _ = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock);
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

    /// Takes the lock at once or says who has it.
    pub fn exclusive(path: &Path) -> Result<Lock, LockError> {
        let identity = |m: std::fs::Metadata| (m.dev(), m.ino());
        let file = loop {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
            let file = Lock::take(
                file.map_err(LockError::Io)?,
                rustix::fs::FlockOperation::NonBlockingLockExclusive,
            )?;
            // The file may have been removed between opening and locking it: then the lock is on nothing.
            let ours = file.metadata().map(identity).map_err(LockError::Io)?;
            if std::fs::metadata(path).is_ok_and(|m| identity(m) == ours) {
                break file;
            }
        };
        let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let text = format!("process {} ({})\n", std::process::id(), name.trim());
        // The text is for people; the lock is the kernel's. Failing to write it is no reason to fail.
        let _ = file.set_len(0).and_then(|()| file.write_all_at(text.as_bytes(), 0));
        Ok(Locked::held(file))
    }

    /// Takes the lock shared with other readers, writing nothing.
    pub fn shared(path: &Path) -> Result<Lock, LockError> {
        let file = File::open(path).map_err(LockError::Io)?;
        Lock::take(file, rustix::fs::FlockOperation::NonBlockingLockShared).map(Locked::held)
    }

    fn take(file: File, operation: rustix::fs::FlockOperation) -> Result<File, LockError> {
        match rustix::fs::flock(&file, operation) {
            Ok(()) => Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = vec![0; 256];
                let read = file.read_at(&mut text, 0).unwrap_or(0);
                let holder = String::from_utf8_lossy(&text[..read]).trim().to_owned();
                Err(LockError::Held(if holder.is_empty() { "another process".into() } else { holder }))
            }
            Err(errno) => Err(LockError::Io(errno.into())),
        }
    }
}
