//! Regions.

use crate::error::{CALIBURN_BUSY, Done, Fault, call};
use crate::segment::{caliburn_segment, segment};
use caliburn::{Inherited, MapError, Region, Segment};
use caliburn_c_common::handle::Table;
use caliburn_c_common::text;
use std::ffi::{c_int, c_void};
use std::ptr;

/// A mapped region.
pub struct caliburn_region;

static REGIONS: Table<Region> = Table::new(4);

/// The region of a handle.
pub fn region(handle: *const caliburn_region) -> Done<&'static Region> {
    REGIONS.get(handle).ok_or_else(none)
}

fn none() -> Fault {
    Fault::invalid("no such region: never mapped, or unmapped already")
}

fn give(
    handle: *mut caliburn_segment,
    target: *mut *mut caliburn_region,
    map: impl FnOnce(&Segment) -> Result<Region, MapError>,
) -> c_int {
    call(|| {
        text::check("region", target)?;
        let region = map(segment(handle)?)?;
        Ok(text::put("region", target, REGIONS.insert(region))?)
    })
}

/// Maps len bytes of a segment from offset, whole pages, wherever the system likes; len 0 is the rest of the
/// segment.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_map(
    segment: *mut caliburn_segment,
    offset: u64,
    len: u64,
    region: *mut *mut caliburn_region,
) -> c_int {
    give(segment, region, |segment| segment.map(range(segment, offset, len)))
}

fn range(segment: &Segment, offset: u64, len: u64) -> std::ops::Range<u64> {
    offset..if len == 0 { segment.len() } else { offset.saturating_add(len) }
}

/// As caliburn_map(), at exactly that address, which must be free: CALIBURN_EXISTS otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_map_at(
    segment: *mut caliburn_segment,
    offset: u64,
    len: u64,
    address: *mut c_void,
    region: *mut *mut caliburn_region,
) -> c_int {
    if address.is_null() || !address.addr().is_multiple_of(Segment::page_size()) {
        return call(|| Err(Fault::invalid("the address is not a page's")));
    }
    give(segment, region, |segment| segment.map_at(range(segment, offset, len), address.addr()))
}

/// As caliburn_map(), in place of memory that the program has at that address, whole pages of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_map_over(
    segment: *mut caliburn_segment,
    offset: u64,
    len: u64,
    address: *mut c_void,
    region: *mut *mut caliburn_region,
) -> c_int {
    // SAFETY: the memory is the caller's and given up, by what the function says.
    give(segment, region, |s| unsafe { s.map_over(range(s, offset, len), address.expose_provenance()) })
}

/// Makes memory that the program has at that address a region, as it is: nothing is read from the segment. For
/// stores opened with CALIBURN_DECLARED_ONLY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn caliburn_map_unread(
    segment: *mut caliburn_segment,
    offset: u64,
    len: u64,
    address: *mut c_void,
    region: *mut *mut caliburn_region,
) -> c_int {
    // SAFETY: the memory is the caller's, readable and writable, by what the function says.
    give(segment, region, |s| unsafe { s.map_unread(range(s, offset, len), address.expose_provenance()) })
}

/// Maps a whole segment at the address it had when it was first loaded, so that pointers within it stay valid
/// (RVM's segment loader). CALIBURN_EXISTS if something else is there in this process.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_load(segment: *mut caliburn_segment, region: *mut *mut caliburn_region) -> c_int {
    give(segment, region, Segment::load)
}

/// The region's first byte; null if there is no such region. It stays where it is, also when the region grows.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_region_address(handle: *const caliburn_region) -> *mut c_void {
    region(handle).map_or(ptr::null_mut(), |region| region.as_ptr().cast())
}

/// Bytes mapped; 0 if there is no such region.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_region_len(handle: *const caliburn_region) -> usize {
    region(handle).map_or(0, Region::len)
}

/// Where the region begins in its segment; 0 if there is no such region.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_region_offset(handle: *const caliburn_region) -> u64 {
    region(handle).map_or(0, |region| region.range().start)
}

/// Extends the mapping over a segment that has grown, in place, to len bytes.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_region_grow(handle: *mut caliburn_region, len: usize) -> c_int {
    call(|| Ok(region(handle)?.grow(len)?))
}

fn part(region: &Region, offset: usize, len: usize) -> Done<std::ops::Range<usize>> {
    let end = offset.checked_add(len).filter(|end| *end <= region.len());
    Ok(offset..end.ok_or_else(|| Fault::invalid("the bytes are not all in the region"))?)
}

/// Says that len bytes from offset will be touched soon: they are read into memory in the background, until memory
/// is short. A hint.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_region_prefetch(
    handle: *const caliburn_region,
    offset: usize,
    len: usize,
) -> c_int {
    call(|| {
        let region = region(handle)?;
        region.prefetch(part(region, offset, len)?);
        Ok(())
    })
}

/// Says whether len bytes from offset are read from the first to the last, once, from now on: 1, or 0 when that has
/// ended. A hint.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_region_sequential(
    handle: *const caliburn_region,
    offset: usize,
    len: usize,
    sequential: c_int,
) -> c_int {
    call(|| {
        let region = region(handle)?;
        let reading = region.sequential(part(region, offset, len)?);
        if sequential != 0 {
            std::mem::forget(reading);
        }
        Ok(())
    })
}

/// Writes a region's committed changes to its segment and unmaps it. CALIBURN_BUSY while uncommitted
/// transactions have ranges in it; the region is as it was then.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_unmap(handle: *mut caliburn_region) -> c_int {
    call(|| end(handle, |region| region.unmap().map_err(|error| (error.cause, error.region))))
}

/// As caliburn_unmap(), and leaves the memory to the caller, as it is. Redo policy only: with the other one the
/// memory is the segment.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_leave(handle: *mut caliburn_region) -> c_int {
    call(|| {
        if !region(handle)?.can_leave() {
            let text = "with the undo policy the memory is the segment: unmap the region";
            return Err(Fault::new(crate::error::CALIBURN_POLICY, text));
        }
        end(handle, |region| region.leave().map(drop).map_err(|error| (error.cause, error.region)))
    })
}

fn end(handle: *mut caliburn_region, end: impl FnOnce(Region) -> Result<(), (MapError, Region)>) -> Done {
    if region(handle)?.is_inherited() {
        return Err(Inherited.into());
    }
    // Looked at first, since a region that cannot go would come back under another handle.
    let open = region(handle)?.query().uncommitted.len();
    if open > 0 {
        let text = format!("{open} uncommitted transaction(s) have ranges in the region: end them first");
        return Err(Fault::new(CALIBURN_BUSY, text));
    }
    // One of a failed store is let go as it is.
    end(REGIONS.take(handle).ok_or_else(none)?).map_err(|(cause, _)| cause.into())
}
