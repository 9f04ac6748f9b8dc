//! Return codes, and the message behind the last one.

use caliburn::heap::HeapError;
use caliburn::{
    BeginError, BranchError, CloseError, CommitError, Defect, Failure, ImagesError, Inherited, LogError,
    MapError, MediaError, OpenError, RangeError, SavepointError, SegmentError, StageError, UndoError,
};
use caliburn_c_common::{Misuse, message};
use std::ffi::{CStr, c_char, c_int};
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// It is done.
pub const CALIBURN_OK: c_int = 0;
/// An argument cannot be: a null pointer, a handle that is none or was given back, a value outside its bounds.
pub const CALIBURN_INVALID: c_int = 1;
/// There is nothing of that name, or at that address.
pub const CALIBURN_NOT_FOUND: c_int = 2;
/// There is something of that name, or at that address, already.
pub const CALIBURN_EXISTS: c_int = 3;
/// In use: by another process, or by transactions, regions or heaps that must end first.
pub const CALIBURN_BUSY: c_int = 4;
/// An operation on a file failed; the message says which and why. `errno` holds the cause.
pub const CALIBURN_IO: c_int = 5;
/// The store has failed earlier and takes no more changes; close it, mend the cause, open it again.
pub const CALIBURN_FAILED: c_int = 6;
/// A file is not what it must be: damaged, cut off, or of something else.
pub const CALIBURN_DAMAGED: c_int = 7;
/// A file's format is of a version that this library does not know.
pub const CALIBURN_VERSION: c_int = 8;
/// There is no store in that directory.
pub const CALIBURN_NOT_A_STORE: c_int = 9;
/// The store was opened read-only.
pub const CALIBURN_READ_ONLY: c_int = 10;
/// The bytes lie in no region, or outside of a segment.
pub const CALIBURN_RANGE: c_int = 11;
/// The transaction would not fit the log, or the memory budget.
pub const CALIBURN_TOO_BIG: c_int = 12;
/// There is no memory, address space or disk space.
pub const CALIBURN_NO_SPACE: c_int = 13;
/// The store's media cannot give that failure class.
pub const CALIBURN_CLASS: c_int = 14;
/// The store's recovery policy has no such thing.
pub const CALIBURN_POLICY: c_int = 15;
/// No object is allocated there: freed already, or never from this heap.
pub const CALIBURN_NOT_ALLOCATED: c_int = 16;
/// A defect of Caliburn's, or bytes changed without being declared that the verifier found.
pub const CALIBURN_PANIC: c_int = 17;

/// The function that was told of the progress ended it.
pub const CALIBURN_INTERRUPTED: c_int = 18;

/// The store was opened by the parent process, from which this one was forked. Close it here, and open it when the
/// parent has closed it.
pub const CALIBURN_INHERITED: c_int = 19;

/// What a function came back with.
#[derive(Debug)]
pub struct Fault {
    code: c_int,
    text: String,
    errno: Option<i32>,
}

pub type Done<T = ()> = Result<T, Fault>;

impl Fault {
    pub fn new(code: c_int, text: impl Into<String>) -> Fault {
        Fault { code, text: text.into(), errno: None }
    }

    /// An argument of that name cannot be.
    pub fn invalid(what: &str) -> Fault {
        Fault::new(CALIBURN_INVALID, what)
    }
}

/// Runs a function's body: its code, the message left for [`message`]. No panic leaves.
#[inline]
pub fn call(body: impl FnOnce() -> Done) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CALIBURN_OK,
        Ok(Err(fault)) => leave(fault),
        Err(panic) => leave(Fault::new(CALIBURN_PANIC, message::told(&*panic))),
    }
}

#[cold]
fn leave(fault: Fault) -> c_int {
    message::leave(&fault.text);
    if let Some(errno) = fault.errno {
        // SAFETY: every thread has an errno of its own.
        unsafe { *libc::__errno_location() = errno };
    }
    fault.code
}

/// What the calling thread's last call that failed had to say: what, where and what to do. Valid until its next
/// one fails; empty before the first.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_message() -> *const c_char {
    message::last()
}

/// The name of a return code, such as "CALIBURN_BUSY"; of a number that is none, "not a code of Caliburn's".
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_code_name(code: c_int) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"CALIBURN_OK",
        c"CALIBURN_INVALID",
        c"CALIBURN_NOT_FOUND",
        c"CALIBURN_EXISTS",
        c"CALIBURN_BUSY",
        c"CALIBURN_IO",
        c"CALIBURN_FAILED",
        c"CALIBURN_DAMAGED",
        c"CALIBURN_VERSION",
        c"CALIBURN_NOT_A_STORE",
        c"CALIBURN_READ_ONLY",
        c"CALIBURN_RANGE",
        c"CALIBURN_TOO_BIG",
        c"CALIBURN_NO_SPACE",
        c"CALIBURN_CLASS",
        c"CALIBURN_POLICY",
        c"CALIBURN_NOT_ALLOCATED",
        c"CALIBURN_PANIC",
        c"CALIBURN_INTERRUPTED",
        c"CALIBURN_INHERITED",
    ];
    let name = usize::try_from(code).ok().and_then(|code| NAMES.get(code));
    name.unwrap_or(&c"not a code of Caliburn's").as_ptr()
}

/// The code for an error, and the system's own behind it.
trait Code: std::error::Error {
    fn code(&self) -> c_int;
}

impl<E: Code + 'static> From<E> for Fault {
    fn from(error: E) -> Fault {
        let mut errno = None;
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(error) = cause {
            let shared = error.downcast_ref::<Arc<io::Error>>().map(|error| &**error);
            let of_system = error.downcast_ref::<io::Error>().or(shared);
            errno = of_system.and_then(io::Error::raw_os_error).or(errno);
            cause = error.source();
        }
        Fault { code: error.code(), text: error.to_string(), errno }
    }
}

fn of_io(error: &io::Error) -> c_int {
    match error.kind() {
        ErrorKind::OutOfMemory | ErrorKind::StorageFull => CALIBURN_NO_SPACE,
        _ => CALIBURN_IO,
    }
}

fn of_defect(defect: &Defect) -> c_int {
    if matches!(defect, Defect::Version { .. }) { CALIBURN_VERSION } else { CALIBURN_DAMAGED }
}

impl Code for Misuse {
    fn code(&self) -> c_int {
        CALIBURN_INVALID
    }
}

impl Code for MediaError {
    fn code(&self) -> c_int {
        of_io(&self.source)
    }
}

impl Code for Failure {
    fn code(&self) -> c_int {
        CALIBURN_FAILED
    }
}

impl Code for OpenError {
    fn code(&self) -> c_int {
        match self {
            OpenError::Io { source, .. } => of_io(source),
            OpenError::Media(error) => error.code(),
            OpenError::InUse { .. } => CALIBURN_BUSY,
            OpenError::Interrupted { .. } => CALIBURN_INTERRUPTED,
            OpenError::Policy { .. } | OpenError::OtherPolicy { .. } => CALIBURN_POLICY,
            OpenError::Failed { .. } => CALIBURN_FAILED,
            OpenError::Class { .. } | OpenError::Replica { .. } => CALIBURN_CLASS,
            OpenError::NotAStore { .. } => CALIBURN_NOT_A_STORE,
            OpenError::Exists { .. } => CALIBURN_EXISTS,
            OpenError::Option { .. } => CALIBURN_INVALID,
            OpenError::Catalog { defect, .. } => of_defect(defect),
            OpenError::Log(LogError::Status { defect, .. })
            | OpenError::Undo(UndoError::Bad { defect, .. } | UndoError::Prepared { defect, .. })
            | OpenError::Images(ImagesError::Bad { defect, .. })
            | OpenError::Stage(StageError::Bad { defect, .. }) => of_defect(defect),
            OpenError::Log(LogError::Media(error))
            | OpenError::Undo(UndoError::Media(error))
            | OpenError::Images(ImagesError::Media(error))
            | OpenError::Stage(StageError::Media(error)) => error.code(),
            OpenError::Segment(error) => error.code(),
            OpenError::Damaged(_) | OpenError::Stray { .. } | OpenError::Copied { .. } => CALIBURN_DAMAGED,
        }
    }
}

impl Code for Inherited {
    fn code(&self) -> c_int {
        CALIBURN_INHERITED
    }
}

impl Code for SegmentError {
    fn code(&self) -> c_int {
        match self {
            SegmentError::Inherited(error) => error.code(),
            SegmentError::Exists { .. } => CALIBURN_EXISTS,
            SegmentError::Unknown { .. } => CALIBURN_NOT_FOUND,
            SegmentError::InUse { .. } => CALIBURN_BUSY,
            SegmentError::Name { .. } | SegmentError::Length { .. } => CALIBURN_INVALID,
            SegmentError::Bad { defect, .. } => of_defect(defect),
            SegmentError::Weaker { .. } => CALIBURN_CLASS,
            SegmentError::Undo { .. } => CALIBURN_POLICY,
            SegmentError::Io { source, .. } => of_io(source),
            SegmentError::Media(error) => error.code(),
            SegmentError::Failed(_) => CALIBURN_FAILED,
            SegmentError::ReadOnly => CALIBURN_READ_ONLY,
        }
    }
}

impl Code for MapError {
    fn code(&self) -> c_int {
        match self {
            MapError::Alignment { .. } => CALIBURN_INVALID,
            MapError::OutOfBounds { .. } => CALIBURN_RANGE,
            MapError::Mapped { .. } | MapError::AddressTaken { .. } => CALIBURN_EXISTS,
            MapError::Closed => CALIBURN_INVALID,
            MapError::Unread { .. } | MapError::View { .. } | MapError::Shared { .. } => CALIBURN_POLICY,
            MapError::Reserved { .. } => CALIBURN_NO_SPACE,
            MapError::Uncommitted { .. } => CALIBURN_BUSY,
            MapError::Segment(error) => error.code(),
            MapError::Failed(_) => CALIBURN_FAILED,
            MapError::Io { source, .. } => of_io(source),
        }
    }
}

impl Code for BeginError {
    fn code(&self) -> c_int {
        match self {
            BeginError::Inherited(error) => error.code(),
            BeginError::Failed(_) => CALIBURN_FAILED,
            BeginError::ReadOnly => CALIBURN_READ_ONLY,
            BeginError::Open => CALIBURN_BUSY,
        }
    }
}

impl Code for RangeError {
    fn code(&self) -> c_int {
        match self {
            RangeError::Inherited(error) => error.code(),
            RangeError::OutOfBounds { .. } | RangeError::NotMapped { .. } | RangeError::Replaced { .. } => {
                CALIBURN_RANGE
            }
            RangeError::Guard { source, .. } | RangeError::Steal { source, .. } => of_io(source),
            RangeError::Undo(error) => error.code(),
            RangeError::Memory { source, .. } => of_io(source),
            RangeError::LogTooSmall { .. } | RangeError::MemoryTooSmall { .. } => CALIBURN_TOO_BIG,
        }
    }
}

impl Code for SavepointError {
    fn code(&self) -> c_int {
        if let SavepointError::Inherited(error) = self { error.code() } else { CALIBURN_INVALID }
    }
}

impl Code for BranchError {
    fn code(&self) -> c_int {
        match self {
            BranchError::Inherited(error) => error.code(),
            BranchError::NoOldValues => CALIBURN_INVALID,
            BranchError::Undo(error) => error.code(),
        }
    }
}

impl Code for CommitError {
    fn code(&self) -> c_int {
        match self {
            CommitError::Inherited(error) => error.code(),
            CommitError::Failed(_) => CALIBURN_FAILED,
            CommitError::GlobalId { .. } => CALIBURN_INVALID,
            CommitError::LogTooSmall { .. } | CommitError::Log { .. } => CALIBURN_TOO_BIG,
            CommitError::Class { .. } => CALIBURN_CLASS,
            CommitError::ReadOnly => CALIBURN_READ_ONLY,
            CommitError::NotPrepared(_) => CALIBURN_NOT_FOUND,
            CommitError::NeverUndecided => CALIBURN_POLICY,
            CommitError::Segment(error) => error.code(),
            CommitError::Range(error) => error.code(),
        }
    }
}

impl Code for CloseError {
    fn code(&self) -> c_int {
        match self {
            CloseError::Failed(_) => CALIBURN_FAILED,
            CloseError::Uncommitted(_) | CloseError::Shared => CALIBURN_BUSY,
        }
    }
}

impl Code for HeapError {
    fn code(&self) -> c_int {
        match self {
            HeapError::Segment(error) => error.code(),
            HeapError::Map(error) => error.code(),
            HeapError::Begin(error) => error.code(),
            HeapError::Range(error) => error.code(),
            HeapError::Commit(error) => error.code(),
            HeapError::Savepoint(error) => error.code(),
            HeapError::Damaged { .. } => CALIBURN_DAMAGED,
            HeapError::NotAllocated { .. } => CALIBURN_NOT_ALLOCATED,
            HeapError::Beyond { .. } => CALIBURN_RANGE,
            HeapError::TooMany { .. } | HeapError::Full { .. } => CALIBURN_TOO_BIG,
            HeapError::Size { .. } | HeapError::Root { .. } => CALIBURN_INVALID,
        }
    }
}
