//! Return codes: 0, or a number of `errno`; and the message behind the last one.

use caliburn_c_common::{Misuse, message};
use caliburn_pm::Error;
use std::ffi::{c_char, c_int};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a function came back with.
pub struct Fault {
    code: c_int,
    text: String,
}

pub type Done<T = ()> = Result<T, Fault>;

/// A handle that is none, or was given back.
pub fn none(what: &str) -> Fault {
    Misuse(format!("no such {what}: never opened, or given back already")).into()
}

impl From<Misuse> for Fault {
    fn from(Misuse(text): Misuse) -> Fault {
        Fault { code: libc::EINVAL, text }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        let code = match &error {
            Error::Medium { source, .. } => source.raw_os_error().unwrap_or(match source.kind() {
                ErrorKind::InvalidInput => libc::EINVAL,
                ErrorKind::StorageFull => libc::ENOSPC,
                ErrorKind::AddrInUse => libc::EADDRINUSE,
                ErrorKind::Unsupported => libc::EOPNOTSUPP,
                _ => libc::EIO,
            }),
            Error::NotARegion { .. } => libc::EMEDIUMTYPE,
            Error::Damaged { .. } => libc::EUCLEAN,
            Error::Invalid { .. } => libc::EINVAL,
            Error::NoSegment(_) => libc::ENOENT,
            Error::Exists(_) => libc::EEXIST,
            Error::Busy { .. } | Error::Shrink { .. } => libc::EBUSY,
            Error::Full { .. } => libc::ENOSPC,
            Error::Permission { .. } => libc::EACCES,
            Error::ReadOnly(_) => libc::EROFS,
            Error::Range { .. } => libc::ERANGE,
            Error::Block { .. } => libc::EBADMSG,
            _ => libc::EIO,
        };
        Fault { code, text: error.to_string() }
    }
}

/// Runs a function's body: its code, the message left for [`pm_message`]. No panic leaves.
pub fn call(body: impl FnOnce() -> Done) -> c_int {
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(fault)) => fault,
        Err(panic) => Fault { code: libc::ENOTRECOVERABLE, text: message::told(&*panic) },
    };
    message::leave(&fault.text);
    fault.code
}

/// What the calling thread's last call that failed had to say: what, where and what to do. Valid until its next one
/// fails; empty before the first.
#[unsafe(no_mangle)]
pub extern "C" fn pm_message() -> *const c_char {
    message::last()
}
