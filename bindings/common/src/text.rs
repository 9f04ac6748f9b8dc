//! Strings, bytes and results, in and out.

#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "the conventions at the head of the headers are the contract"
)]

use crate::Misuse;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

type Done<T = ()> = Result<T, Misuse>;

/// A string that a C program passed.
pub fn string<'a>(what: &str, text: *const c_char) -> Done<&'a CStr> {
    if text.is_null() {
        return Err(Misuse(format!("{what} is a null pointer")));
    }
    // SAFETY: a string that is not null ends with a zero byte (convention 2).
    Ok(unsafe { CStr::from_ptr(text) })
}

/// The name of a file.
pub fn path<'a>(what: &str, text: *const c_char) -> Done<&'a Path> {
    Ok(Path::new(OsStr::from_bytes(string(what, text)?.to_bytes())))
}

/// The name of something in a store.
pub fn name<'a>(what: &str, text: *const c_char) -> Done<&'a str> {
    let text = string(what, text)?;
    text.to_str().map_err(|_| Misuse(format!("{what} {text:?} is not UTF-8")))
}

/// Bytes that a C program passed.
pub fn bytes<'a>(what: &str, start: *const u8, len: usize) -> Done<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if start.is_null() || len > isize::MAX as usize {
        return Err(Misuse(format!("{what}: {len} bytes at {start:p} cannot be")));
    }
    // SAFETY: so many bytes are there (convention 2).
    Ok(unsafe { std::slice::from_raw_parts(start, len) })
}

/// Stores a result where the C program wants it.
pub fn put<T>(what: &str, target: *mut T, value: T) -> Done {
    check(what, target)?;
    // SAFETY: a pointer that is not null is valid for a value of its type (convention 2).
    unsafe { target.write(value) };
    Ok(())
}

/// Refuses a null pointer for a result, before anything is done for it.
pub fn check<T>(what: &str, target: *mut T) -> Done {
    if target.is_null() {
        return Err(Misuse(format!("{what} is a null pointer: there is no place for the result")));
    }
    Ok(())
}

/// Copies a string of so many bytes at most, its zero included, and says how long it is without that.
pub fn give(text: &[u8], target: *mut c_char, size: usize) -> usize {
    if !target.is_null() && size > 0 {
        let len = text.len().min(size - 1);
        // SAFETY: `size` bytes are there (convention 2), and they are not ours.
        unsafe {
            target.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), len);
            target.add(len).write(0);
        }
    }
    text.len()
}

/// Where a C program wants bytes.
///
/// # Safety
/// So many bytes are there, and nobody else uses them as long as what is returned is used.
pub unsafe fn buffer<'a>(what: &str, start: *mut u8, len: usize) -> Done<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if start.is_null() || len > isize::MAX as usize {
        return Err(Misuse(format!("{what}: {len} bytes at {start:p} cannot be")));
    }
    // SAFETY: the caller's word.
    Ok(unsafe { std::slice::from_raw_parts_mut(start, len) })
}
