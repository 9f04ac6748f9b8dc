//! Recoverable objects: a segment, whose address the program is told; and locks.

use crate::program::give_up;
use crate::stack::{Level, innermost};
use crate::status::{ABORTED, COMMITTED, of_call, with_message};
use caliburn_dist::node::call::{Call, Mode};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use tonic::Status;

/// The segment that they are in.
pub const SEGMENT: &str = "camelot";

/// The program's pointers to the objects, and how many bytes those have.
static POINTERS: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// How many bytes the program's objects have.
pub fn bytes() -> usize {
    BYTES.load(Ordering::Acquire)
}

/// Called before `main`: the objects have so many bytes, and this is to point to them.
#[unsafe(no_mangle)]
extern "C" fn camelot_objects_at(pointer: *mut *mut c_void, bytes: usize) {
    let before = BYTES.swap(bytes.max(1), Ordering::AcqRel);
    if before != 0 && before != bytes.max(1) {
        give_up("recoverable objects are declared once in a program");
    }
    POINTERS.lock().unwrap_or_else(PoisonError::into_inner).push(pointer as usize);
}

/// The program is told where they are, before anything of it runs that could use them.
pub fn tell(at: *mut u8) {
    for pointer in POINTERS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // SAFETY: it is a static of the program's, which nobody reads before.
        unsafe { (pointer as *mut *mut c_void).write(at.cast()) };
    }
}

/// With the operation that this thread is in.
fn in_operation(act: impl FnOnce(&mut Call<'static, 'static>) -> Result<(), Status>) -> c_int {
    let done = innermost(|level| match level.and_then(Level::call) {
        Some(call) => act(call),
        None => Err(Status::failed_precondition(
            "recoverable objects are changed, and locked, by a server's operations",
        )),
    });
    match done {
        Ok(()) => COMMITTED,
        Err(status) => match of_call(&status).0 {
            COMMITTED => ABORTED,
            code => code,
        },
    }
}

/// Where an object is in the segment.
fn place(call: &Call<'_, '_>, object: *mut c_void, bytes: usize) -> Result<Range<usize>, Status> {
    let region = call.region(SEGMENT)?;
    let start = (object as usize).wrapping_sub(region.as_ptr() as usize);
    match start.checked_add(bytes) {
        Some(end) if end <= region.len() => Ok(start..end),
        _ => give_up("MODIFY of what is not a recoverable object: is REC missing?"),
    }
}

/// See `MODIFY`.
///
/// # Safety
/// `value` has so many bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn camelot_modify(object: *mut c_void, value: *const c_void, bytes: usize) -> c_int {
    in_operation(|call| {
        let range = place(call, object, bytes)?;
        // SAFETY: as the caller says.
        let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), bytes) };
        let region = call.region(SEGMENT)?;
        call.write(region, range.start, value)
    })
}

/// See `Camlib_LogOldValue`.
#[unsafe(no_mangle)]
extern "C" fn camelot_declare(object: *mut c_void, bytes: usize) -> c_int {
    in_operation(|call| {
        let range = place(call, object, bytes)?;
        let region = call.region(SEGMENT)?;
        call.declare(region, range)
    })
}

fn mode(mode: c_int) -> Mode {
    match mode {
        1 => Mode::Shared,
        2 => Mode::Exclusive,
        _ => give_up("a lock's mode is LOCK_MODE_READ or LOCK_MODE_WRITE"),
    }
}

/// See `Camlib_Lock`.
#[unsafe(no_mangle)]
extern "C" fn camelot_lock(name: u64, as_mode: c_int) -> c_int {
    in_operation(|call| call.lock_name(name, mode(as_mode)))
}

/// See the header.
#[unsafe(no_mangle)]
extern "C" fn Camlib_TryLock(name: u64, as_mode: c_int) -> c_int {
    let mut had = false;
    let done = in_operation(|call| {
        had = call.try_lock_name(name, mode(as_mode))?;
        Ok(())
    });
    c_int::from(had && done == COMMITTED)
}

/// See the header.
#[unsafe(no_mangle)]
extern "C" fn Camlib_LockStatus(name: u64) -> c_int {
    let mut strongest = 0;
    let _ = in_operation(|call| {
        let modes = call.name_status(name).into_iter();
        strongest = modes.map(|mode| if mode == Mode::Exclusive { 2 } else { 1 }).max().unwrap_or(0);
        Ok(())
    });
    strongest
}

/// See the header.
#[unsafe(no_mangle)]
extern "C" fn Camlib_Unlock(name: u64) {
    let done = in_operation(|call| call.unlock_name(name));
    if done != COMMITTED {
        with_message(done, "a lock was given up that is not held");
    }
}
