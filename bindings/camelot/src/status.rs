//! How a transaction or a call has ended, as C has it: a number, and words for the last one that went wrong.

use caliburn_dist::client::Error;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

pub const COMMITTED: c_int = 0;
pub const TIMEOUT: c_int = 0x10001;
pub const UNAVAILABLE: c_int = 0x10002;
pub const ABORTED: c_int = 0x10003;
pub const UNKNOWN: c_int = 0x10004;
pub const DENIED: c_int = 0x10005;
pub const WRONG: c_int = 0x10006;
pub const NOT_RUNNING: c_int = 0x10007;

/// In the metadata of an answer: the status that a C server has aborted with, and whether it meant all of the
/// family.
pub const KEY: &str = "camelot-status";

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Remembers what a status was about.
pub fn with_message(status: c_int, message: impl Into<String>) -> c_int {
    let message = CString::new(message.into().replace('\0', " ")).unwrap_or_default();
    MESSAGE.with(|last| *last.borrow_mut() = message);
    status
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn Camlib_Message() -> *const c_char {
    MESSAGE.with(|last| last.borrow().as_ptr())
}

/// What a call's failure is to its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aborts {
    Nothing,
    Innermost,
    All,
}

/// Of a call that has failed.
pub fn of_call(status: &Status) -> (c_int, Aborts) {
    if let Some((code, all)) = told(status.metadata()) {
        let aborts = if all { Aborts::All } else { Aborts::Innermost };
        return (with_message(code, status.message()), aborts);
    }
    let (code, aborts) = match status.code() {
        Code::DeadlineExceeded | Code::Cancelled => (TIMEOUT, Aborts::Innermost),
        Code::Aborted => (ABORTED, Aborts::Innermost),
        Code::PermissionDenied | Code::Unauthenticated => (DENIED, Aborts::Nothing),
        Code::InvalidArgument | Code::Unimplemented | Code::OutOfRange | Code::FailedPrecondition => {
            (WRONG, Aborts::Nothing)
        }
        _ => (UNAVAILABLE, Aborts::Nothing),
    };
    (with_message(code, status.message()), aborts)
}

fn told(metadata: &MetadataMap) -> Option<(c_int, bool)> {
    let (code, all) = metadata.get(KEY)?.to_str().ok()?.split_once(' ')?;
    Some((code.parse().ok().filter(|code| *code > 0)?, all == "all"))
}

/// Of an operation that has aborted.
pub fn to_caller(code: c_int, all: bool) -> Status {
    let mut status = Status::aborted(format!("the server has aborted it, with status {code}"));
    let value = format!("{code} {}", if all { "all" } else { "one" });
    if let Ok(value) = value.parse() {
        status.metadata_mut().insert(KEY, value);
    }
    status
}

/// Of a transaction.
pub fn of_error(error: &Error) -> c_int {
    let code = match error {
        Error::Unknown(..) => UNKNOWN,
        Error::TimeOut(_) => TIMEOUT,
        Error::Name(_) => UNAVAILABLE,
        Error::Call(status) => return of_call(status).0,
        _ => ABORTED,
    };
    with_message(code, error.to_string())
}
