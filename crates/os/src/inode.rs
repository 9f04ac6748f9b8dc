//! What the system tells of an open file's inode: which mount it was opened by, and whether it stayed in memory
//! since it was marked.

use crate::names;
use crate::simulated::unless;
use rustix::fs::{AtFlags, Statx, StatxFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// Hints of how long what is written to a file will last stay with it in memory (fcntl(2), since Linux 4.13),
/// and go with it, as the record of failed write-backs does.
const F_GET_RW_HINT: libc::c_int = 1024 + 11;
/// See [`F_GET_RW_HINT`].
const F_SET_RW_HINT: libc::c_int = 1024 + 12;
/// RWH_WRITE_LIFE_LONG, which is true of segments. Only memory has it: an inode that was read again has none.
static WATCHED: u64 = 4;
/// STATX_MNT_ID_UNIQUE, since Linux 6.8: plain numbers of mounts are used again.
const MOUNT_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
/// The number of a disk, which no other one has until the next boot; since Linux 5.15.
const BLKGETDISKSEQ: libc::Ioctl = 0x8008_1280u32 as libc::Ioctl;

/// Marks it, where the system lets us.
pub(crate) fn mark(file: &File) {
    // SAFETY: the descriptor is that of an open file; the system reads one word. Where it refuses, nothing is
    // remembered.
    unsafe { libc::fcntl(file.as_raw_fd(), F_SET_RW_HINT, &raw const WATCHED) };
}

/// Whether it has the mark.
pub(crate) fn is_marked(file: &File) -> bool {
    let mut hint = 0u64;
    // SAFETY: the descriptor is that of an open file; the system writes one word.
    let told = unsafe { libc::fcntl(file.as_raw_fd(), F_GET_RW_HINT, &raw mut hint) } == 0;
    told && hint == WATCHED
}

/// An error if a write-back of the file has failed, and this is the first report of it. A system that refuses the
/// question reports nothing.
pub(crate) fn written_back(file: BorrowedFd<'_>) -> io::Result<()> {
    ask_losses(file).or_else(|error| if is_refusal(&error) { Ok(()) } else { Err(error) })
}

/// Whether the system refuses the question: a filter of system calls may (EPERM, ENOSYS), and gVisor does not know
/// it. No write-back fails so.
fn is_refusal(error: &io::Error) -> bool {
    let refused = matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM));
    unless("refusal-taken-for-loss", refused)
}

fn ask_losses(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is that of an open file; nothing else is passed.
    let done = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the system answers the question. A file in memory, which has lost nothing, is asked once.
pub(crate) fn tells_of_losses() -> bool {
    static REFUSED: OnceLock<bool> = OnceLock::new();
    let ask = || names::scratch_in_memory(0).is_ok_and(|file| ask_losses(file.as_fd()).is_err());
    !REFUSED.get_or_init(ask)
}

/// Device, number and mount of a marked file.
pub(crate) fn cache(file: &File) -> Option<[u64; 3]> {
    let (about, told) = ask(file, MOUNT_UNIQUE | StatxFlags::INO)?;
    let whole = told.contains(MOUNT_UNIQUE | StatxFlags::INO) && is_marked(file);
    whole.then(|| [device(&about), about.stx_ino, about.stx_mnt_id])
}

/// Device and mount of a file.
pub(crate) fn mount(file: &File) -> Option<[u64; 2]> {
    let (about, told) = ask(file, MOUNT_UNIQUE | StatxFlags::MNT_ID)?;
    match told.contains(MOUNT_UNIQUE) {
        true => Some([device(&about), about.stx_mnt_id]),
        // None of the unique ones.
        false => told.contains(StatxFlags::MNT_ID).then(|| [device(&about), !about.stx_mnt_id]),
    }
}

/// Number of a device, and which disk it is.
pub(crate) fn disk(device: &File) -> Option<[u64; 2]> {
    let mut disk = 0u64;
    // SAFETY: the descriptor is that of an open device; the system writes one word.
    let told = unsafe { libc::ioctl(device.as_raw_fd(), BLKGETDISKSEQ, &raw mut disk) } == 0;
    let number = device.metadata().ok()?.rdev();
    told.then_some([number, disk])
}

fn ask(file: &File, wanted: StatxFlags) -> Option<(Statx, StatxFlags)> {
    let about = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted).ok()?;
    let told = StatxFlags::from_bits_retain(about.stx_mask);
    Some((about, told))
}

fn device(about: &Statx) -> u64 {
    u64::from(about.stx_dev_major) << 32 | u64::from(about.stx_dev_minor)
}
