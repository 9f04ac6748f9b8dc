//! Descriptors, and which numbers they get.
//!
//! A program may close its standard streams, as daemons do. The kernel then gives 0 to 2 to what is opened next, and
//! whatever the program, or a library in it, prints goes into that file. No descriptor of ours is below [`FIRST`].
//!
//! To move a descriptor that got a low number is not enough: until it has moved, another thread can print into the
//! file. So the numbers that are free are taken first, by `/dev/null`, and they stay taken:
//!
//! * A number that is never given back cannot be closed here at the moment when the program puts a file of its own
//!   there by `dup2`.
//! * What other libraries open on our behalf (an event loop, a resolver) is protected too, and so are the commands
//!   that we start: they inherit `/dev/null`, and not numbers that are free.
//! * The price: after a program has closed 0 to 2 and called us, its next `open` returns 3 or more. It uses `dup2`
//!   to put something there. The runtimes of Rust and of set-user-ID programs do the same at their start.
//! * What is left: a number that one thread closes while another, of ours, is within [`above`] belongs to a file for
//!   the moment until it is moved. A program that closes its streams does so before it has threads that print.
//!
//! All descriptors are opened through [`above`], or after [`occupy`] where something else opens them; `cargo xtask
//! tidy` finds those that are not.

use crate::simulated::{instead, planted};
use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec, fcntl_getfd};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::path::Path;

/// The lowest number of a descriptor of ours.
pub const FIRST: RawFd = 3;

/// Has `/dev/null` at each of the numbers 0 to 2 that is free. What fails is left to the opening that follows.
pub fn occupy() {
    let is_free = |number| {
        // SAFETY: it is only asked whether the number is in use; nothing is kept.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl_getfd(descriptor) == Err(Errno::BADF)
    };
    if planted("standard-numbers-left-free") || !(0..FIRST).any(is_free) {
        return;
    }
    while let Ok(taken) = nothing() {
        if taken.as_raw_fd() >= FIRST {
            return;
        }
        // The number stays taken until the program closes it.
        let _ = taken.into_raw_fd();
    }
}

/// What reads as empty and forgets what is written; where there is no `/dev/null`, what can be neither read nor
/// written. Commands that are started inherit it.
fn nothing() -> rustix::io::Result<OwnedFd> {
    if let Ok(null) = open("/dev/null", OFlags::RDWR | OFlags::NONBLOCK, Mode::empty()) {
        let about = fstat(&null)?;
        let device = FileType::from_raw_mode(about.st_mode) == FileType::CharacterDevice;
        if device && (major(about.st_rdev), minor(about.st_rdev)) == (1, 3) {
            return Ok(null);
        }
    }
    open("/", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// Opens something, with a number of [`FIRST`] at least.
///
/// # Errors
/// Those of `open`; that there are too many descriptors.
pub fn above<F: AsFd + From<OwnedFd>>(open: impl FnOnce() -> io::Result<F>) -> io::Result<F> {
    occupy();
    let opened = open()?;
    // Another thread of the program may have closed the number since it was taken.
    if opened.as_fd().as_raw_fd() < FIRST && !planted("standard-numbers-left-free") {
        raised(&opened)
    } else {
        Ok(opened)
    }
}

/// The same opening under a number that is not low.
fn raised<F: AsFd + From<OwnedFd>>(low: &F) -> io::Result<F> {
    Ok(F::from(fcntl_dupfd_cloexec(low, instead("moved-to-a-low-number", FIRST, 0))?))
}

/// Opens a file for reading.
///
/// # Errors
/// As [`File::open`].
pub fn open_to_read(path: impl AsRef<Path>) -> io::Result<File> {
    above(|| File::open(path))
}

/// Lists a directory.
///
/// # Errors
/// As [`fs::read_dir`].
pub fn list(path: impl AsRef<Path>) -> io::Result<fs::ReadDir> {
    occupy();
    fs::read_dir(path)
}

/// Reads a whole file.
///
/// # Errors
/// As [`fs::read`].
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_to_read(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a whole file of text.
///
/// # Errors
/// As [`fs::read_to_string`].
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = String::new();
    open_to_read(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Makes a file that holds these bytes.
///
/// # Errors
/// As [`fs::write`].
pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    above(|| File::create(path))?.write_all(bytes.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    /// Runs a check in a process that has closed 0 to 2; by which number it failed.
    fn without_standard_streams(check: fn() -> u8) -> u8 {
        // SAFETY: the child makes system calls and ends; nothing in it waits for another thread.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                (0..FIRST).for_each(|number| _ = libc::close(number));
                libc::_exit(i32::from(check()));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert!(libc::WIFEXITED(status));
            libc::WEXITSTATUS(status) as u8
        }
    }

    fn is_null(number: RawFd) -> bool {
        // SAFETY: only asked about.
        let about = fstat(unsafe { BorrowedFd::borrow_raw(number) });
        about.is_ok_and(|about| (major(about.st_rdev), minor(about.st_rdev)) == (1, 3))
    }

    #[test]
    fn what_is_opened_where_standard_streams_are_closed_has_another_number() {
        let failed = without_standard_streams(|| {
            let Ok(file) = open_to_read("/proc/self/stat") else { return 1 };
            if file.as_raw_fd() < FIRST || !(0..FIRST).all(is_null) {
                return 2;
            }
            // Closed later, by one that has a file open by then: only the free number is taken.
            // SAFETY: the number is this process's own, and nobody has it.
            unsafe { libc::close(1) };
            let Ok(other) = open_to_read("/proc/self/stat") else { return 3 };
            u8::from(other.as_raw_fd() < FIRST || !is_null(1)) * 4
        });
        assert_eq!(failed, 0);
    }

    #[test]
    fn what_has_a_low_number_all_the_same_is_moved_and_not_inherited_by_commands() {
        let failed = without_standard_streams(|| {
            // SAFETY: a name that ends with a zero byte, and the descriptor that comes of it: nobody else's.
            let low = unsafe { File::from_raw_fd(libc::open(c"/proc/self/stat".as_ptr(), libc::O_RDONLY)) };
            if low.as_raw_fd() != 0 {
                return 1;
            }
            let Ok(high) = raised(&low) else { return 2 };
            drop(low);
            let flags = fcntl_getfd(&high).map(|flags| flags.contains(rustix::io::FdFlags::CLOEXEC));
            u8::from(high.as_raw_fd() < FIRST || flags != Ok(true) || is_null(0)) * 3
        });
        assert_eq!(failed, 0);
    }
}
