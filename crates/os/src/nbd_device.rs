//! A socket as a block device: the kernel's end of the network block device (`drivers/block/nbd.c`). It sends
//! requests on the socket; whoever has the other end answers them.

use crate::descriptors;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// `linux/nbd.h`: `_IO(0xab, n)`.
const SET_SOCK: libc::c_ulong = 0xab00;
const SET_BLKSIZE: libc::c_ulong = 0xab01;
const DO_IT: libc::c_ulong = 0xab03;
const CLEAR_SOCK: libc::c_ulong = 0xab04;
const SET_SIZE_BLOCKS: libc::c_ulong = 0xab07;
const DISCONNECT: libc::c_ulong = 0xab08;
const SET_FLAGS: libc::c_ulong = 0xab0a;

/// A device, `/dev/nbd0` or another, that this process has set up.
#[derive(Debug)]
pub struct NbdDevice(File);

impl NbdDevice {
    /// Opens a device that nobody else uses.
    pub fn open(path: &Path) -> io::Result<NbdDevice> {
        let file = descriptors::above(|| OpenOptions::new().read(true).write(true).open(path))?;
        let device = NbdDevice(file);
        // Of a process that died; refused with `EBUSY` where one lives.
        device.tell(CLEAR_SOCK, 0)?;
        Ok(device)
    }

    /// Says how large it is, in blocks of at most a page, and what the other end can do (flags of the protocol).
    pub fn describe(&self, block_bytes: u32, blocks: u64, flags: u16) -> io::Result<()> {
        self.tell(SET_BLKSIZE, libc::c_ulong::from(block_bytes))?;
        self.tell(SET_SIZE_BLOCKS, blocks)?;
        self.tell(SET_FLAGS, libc::c_ulong::from(flags))
    }

    /// Adds a socket on which requests are sent. It may be closed here afterwards.
    pub fn add(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.tell(SET_SOCK, socket.as_raw_fd() as libc::c_ulong)
    }

    /// Is the device until it is disconnected, or a socket ends.
    pub fn run(&self) -> io::Result<()> {
        let done = self.tell(DO_IT, 0);
        let cleared = self.tell(CLEAR_SOCK, 0);
        match done {
            // So it says when it was disconnected while requests were under way.
            Err(error) if error.raw_os_error() == Some(libc::ETIMEDOUT) => cleared,
            done => done,
        }
    }

    /// Whether [`NbdDevice::run`] has come so far that whoever opens the device sees its length.
    pub fn is_running(&self) -> io::Result<bool> {
        let device = self.0.metadata()?.rdev();
        let of_kernel = format!("/sys/dev/block/{}:{}/size", libc::major(device), libc::minor(device));
        Ok(descriptors::read_text(of_kernel)?.trim() != "0")
    }

    /// Ends what [`NbdDevice::run`] does, in another thread.
    pub fn disconnect(&self) -> io::Result<()> {
        self.tell(DISCONNECT, 0)
    }

    fn tell(&self, what: libc::c_ulong, value: libc::c_ulong) -> io::Result<()> {
        // SAFETY: these calls take a number, and no memory.
        match unsafe { libc::ioctl(self.0.as_fd().as_raw_fd(), what, value) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}
