//! Segments.

use crate::error::{Done, Fault, call};
use crate::store::{caliburn_store, open};
use caliburn::{Segment, SegmentError, Store};
use caliburn_c_common::handle::Table;
use caliburn_c_common::text;
use std::ffi::{c_char, c_int, c_void};

/// A segment of an open store.
pub struct caliburn_segment;

static SEGMENTS: Table<Segment> = Table::new(3);

/// The segment of a handle.
pub fn segment(handle: *const caliburn_segment) -> Done<&'static Segment> {
    SEGMENTS.get(handle).ok_or_else(none)
}

fn none() -> Fault {
    Fault::invalid("no such segment: never opened, or released already")
}

fn give(
    store: *mut caliburn_store,
    target: *mut *mut caliburn_segment,
    find: impl FnOnce(&Store) -> Done<Result<Segment, SegmentError>>,
) -> c_int {
    call(|| {
        text::check("segment", target)?;
        let segment = find(&open(store)?.store)??;
        Ok(text::put("segment", target, SEGMENTS.insert(segment))?)
    })
}

/// Creates a segment of len bytes of zeros, rounded up to 64 KiB, in a file of the store. Names are letters,
/// digits, '.', '_' and '-'.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_segment_create(
    store: *mut caliburn_store,
    name: *const c_char,
    len: u64,
    segment: *mut *mut caliburn_segment,
) -> c_int {
    give(store, segment, |store| Ok(store.create_segment(text::name("name", name)?, len)))
}

/// Creates a segment on a given file or block device, whose content is lost.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_segment_create_at(
    store: *mut caliburn_store,
    name: *const c_char,
    len: u64,
    path: *const c_char,
    segment: *mut *mut caliburn_segment,
) -> c_int {
    give(store, segment, |store| {
        Ok(store.create_segment_at(text::name("name", name)?, len, text::path("path", path)?))
    })
}

/// The segment of that name: CALIBURN_NOT_FOUND if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_segment_open(
    store: *mut caliburn_store,
    name: *const c_char,
    segment: *mut *mut caliburn_segment,
) -> c_int {
    give(store, segment, |store| Ok(store.segment(text::name("name", name)?)))
}

/// The segment of that name, made with len bytes if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_segment_open_or_create(
    store: *mut caliburn_store,
    name: *const c_char,
    len: u64,
    segment: *mut *mut caliburn_segment,
) -> c_int {
    give(store, segment, |store| Ok(store.segment_or_create(text::name("name", name)?, len)))
}

/// Takes over a file or block device that is nothing but data, as it is: its whole sectors are the segment.
/// Not with the undo policy. The store should be opened with CALIBURN_DECLARED_ONLY if other programs rely on
/// what is not declared.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_segment_adopt(
    store: *mut caliburn_store,
    path: *const c_char,
    segment: *mut *mut caliburn_segment,
) -> c_int {
    give(store, segment, |store| Ok(store.adopt_segment(text::path("path", path)?)))
}

/// Bytes of data; 0 if there is no such segment.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_segment_len(handle: *const caliburn_segment) -> u64 {
    segment(handle).map_or(0, Segment::len)
}

/// Copies the segment's name, size bytes at most with its zero; returns its length without that.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_segment_name(
    handle: *const caliburn_segment,
    name: *mut c_char,
    size: usize,
) -> usize {
    segment(handle).map_or(0, |segment| text::give(segment.name().as_bytes(), name, size))
}

/// Makes the segment at least len bytes long, durably, whatever is mapped of it; the new bytes are zero.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_segment_grow(handle: *mut caliburn_segment, len: u64) -> c_int {
    call(|| Ok(segment(handle)?.grow(len)?))
}

/// Gives a handle back; the segment stays. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_segment_release(handle: *mut caliburn_segment) {
    SEGMENTS.take(handle);
}

/// Called with the name and length of a segment; what is not 0 ends the walk.
pub type caliburn_segment_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, name: *const c_char, len: u64) -> c_int>;

/// Calls a function with each segment of the store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_segments(
    store: *const caliburn_store,
    visit: caliburn_segment_fn,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let visit = visit.ok_or_else(|| Fault::invalid("visit is a null pointer"))?;
        for segment in open(store)?.store.segments() {
            let name = std::ffi::CString::new(segment.name()).unwrap_or_default();
            // SAFETY: the function is the caller's word (convention 2).
            if unsafe { visit(context, name.as_ptr(), segment.len()) } != 0 {
                break;
            }
        }
        Ok(())
    })
}
