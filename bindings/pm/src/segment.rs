//! Segments of bytes, attached.

use crate::error::{Done, call, none};
use crate::region::{self, pm_region};
use caliburn_c_common::{handle::Table, text};
use caliburn_pm::Segment;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// An attached segment of bytes.
pub struct pm_segment;

static SEGMENTS: Table<Segment> = Table::new(2);

fn attached(handle: *const pm_segment) -> Done<&'static Segment> {
    SEGMENTS.get(handle).ok_or_else(|| none("segment"))
}

/// Attaches a segment of bytes: by many to be read, or by one to be written, EBUSY otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn pm_attach(
    region: *mut pm_region,
    name: *const c_char,
    write: c_int,
    segment: *mut *mut pm_segment,
) -> c_int {
    call(|| {
        text::check("segment", segment)?;
        let found = region::open(region)?.attach(text::name("name", name)?, write != 0)?;
        Ok(text::put("segment", segment, SEGMENTS.insert(found))?)
    })
}

/// Gives a segment up. Where it was mapped is nothing any more.
#[unsafe(no_mangle)]
pub extern "C" fn pm_detach(segment: *mut pm_segment) -> c_int {
    call(|| SEGMENTS.take(segment).map(drop).ok_or_else(|| none("segment")))
}

/// Where a segment is mapped; null if there is no such segment. One that is attached to be read must not be stored
/// to. What a program stores there lasts when pm_written() and pm_flush() were called.
#[unsafe(no_mangle)]
pub extern "C" fn pm_address(segment: *const pm_segment) -> *mut c_void {
    attached(segment).map_or(ptr::null_mut(), |segment| segment.as_ptr().cast())
}

/// Bytes of a segment; 0 if there is no such segment.
#[unsafe(no_mangle)]
pub extern "C" fn pm_length(segment: *const pm_segment) -> u64 {
    attached(segment).map_or(0, Segment::len)
}

/// Copies bytes out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pm_read(
    segment: *const pm_segment,
    at: u64,
    buffer: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: the caller has so many bytes there (convention 2), which nobody else uses meanwhile.
    call(|| Ok(attached(segment)?.read(at, unsafe { text::buffer("buffer", buffer.cast(), len) }?)?))
}

/// Copies bytes in. What was there may be seen in part if the process dies meanwhile, or others read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pm_write(
    segment: *mut pm_segment,
    at: u64,
    bytes: *const c_void,
    len: usize,
) -> c_int {
    call(|| Ok(attached(segment)?.write(at, text::bytes("bytes", bytes.cast(), len)?)?))
}

/// Says that the program itself has stored so many bytes where the segment is mapped.
#[unsafe(no_mangle)]
pub extern "C" fn pm_written(segment: *mut pm_segment, at: u64, len: usize) -> c_int {
    call(|| Ok(attached(segment)?.written(at, len)?))
}

/// Makes what was written last as long as the medium does.
#[unsafe(no_mangle)]
pub extern "C" fn pm_flush(segment: *mut pm_segment) -> c_int {
    call(|| Ok(attached(segment)?.flush()?))
}
