//! Room in a region: which units are nobody's.

use crate::base::{Base, Extent, SegmentState};
use crate::error::{Error, Result};
use crate::format::{DATA, EXTENTS, PLAIN};
use std::ops::Range;

/// Stretches of units that are nobody's.
fn free(base: &Base) -> Vec<Range<u32>> {
    let mut taken: Vec<Range<u32>> = base.extents.iter().map(|e| e.start..e.start + e.units).collect();
    taken.sort_unstable_by_key(|range| range.start);
    let (mut at, mut free) = (0, Vec::new());
    for range in taken {
        if at < range.start {
            free.push(at..range.start);
        }
        at = range.end;
    }
    if at < base.units() {
        free.push(at..base.units());
    }
    free
}

/// Bytes that are nobody's.
pub(crate) fn free_bytes(base: &Base) -> u64 {
    free(base).iter().map(|range| u64::from(range.end - range.start) * u64::from(base.unit)).sum()
}

/// Gives so many bytes to a part of a segment: in one piece if there is one, the smallest that is large enough; else
/// in the largest there are.
pub(crate) fn give(base: &mut Base, segment: u64, part: u32, bytes: u64) -> Result<()> {
    let unit = u64::from(base.unit);
    let mut wanted = bytes.div_ceil(unit);
    let mut free = free(base);
    free.sort_unstable_by_key(|range| range.end - range.start);
    let room: u64 = free.iter().map(|range| u64::from(range.end - range.start)).sum();
    if wanted > room {
        return Err(Error::Full { needed: wanted * unit, free: room * unit });
    }
    let whole = free.iter().find(|range| u64::from(range.end - range.start) >= wanted);
    let pieces: Vec<Range<u32>> = match whole {
        Some(range) => vec![range.clone()],
        None => free.into_iter().rev().collect(),
    };
    for range in pieces {
        let units = wanted.min(u64::from(range.end - range.start)) as u32;
        if units == 0 {
            break;
        }
        // What adjoins the segment's last extent is part of that one.
        let last = base.extents.iter_mut().rfind(|e| e.segment == segment && e.part == part);
        match last {
            Some(last) if last.start + last.units == range.start => last.units += units,
            _ => base.extents.push(Extent { segment, part, start: range.start, units }),
        }
        wanted -= u64::from(units);
    }
    if base.extents.len() > EXTENTS {
        return Err(Error::invalid(
            "extents",
            base.extents.len(),
            "the region is too fragmented: dump and restore segments",
        ));
    }
    Ok(())
}

/// Bytes that a segment has for its data.
pub(crate) fn data_bytes(base: &Base, id: u64) -> u64 {
    base.bytes_of(id, DATA).iter().map(|part| part.end - part.start).sum()
}

/// Whether a plain segment has units beyond its end.
pub(crate) fn has_surplus(base: &Base, segment: &SegmentState) -> bool {
    segment.kind == PLAIN && data_bytes(base, segment.id) > segment.len.next_multiple_of(base.unit.into())
}

/// Takes from a plain segment what lies beyond its end.
pub(crate) fn take_back_surplus(base: &mut Base, id: u64) {
    let len = base.find_mut(id).expect("it is claimed, or nobody's").len;
    let mut keep = len.div_ceil(u64::from(base.unit));
    base.extents.retain_mut(|extent| {
        if extent.segment != id || extent.part != DATA {
            return true;
        }
        extent.units = u64::from(extent.units).min(keep) as u32;
        keep -= u64::from(extent.units);
        extent.units > 0
    });
}
