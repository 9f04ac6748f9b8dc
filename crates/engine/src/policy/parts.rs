//! What a transaction changes, as it stands in memory: in parts that each lie within one region.

use crate::storage::region::RegionState;
use crate::storage::region_table::{RegionCursor, RegionTable};
use crate::write_set::{Position, WriteSet, Written};
use caliburn_log::format::{IMAGE, padded};
use caliburn_log::record::{self, push_range};
use caliburn_os::simulated::planted;
use caliburn_os::span;
use std::ops::Range;

/// Largest single range in a run or a record; longer ones are split.
const PIECE: usize = 1 << 30;

/// The lengths of the ranges that so many bytes are split into.
pub(super) fn pieces(len: usize) -> impl Iterator<Item = usize> {
    (0..len).step_by(PIECE).map(move |at| PIECE.min(len - at))
}

/// A part of what a transaction changes, within one region.
#[derive(Clone, Copy)]
pub(super) struct Part<'t> {
    pub region: &'t RegionState,
    pub offset: usize,
    pub len: usize,
}

impl Part<'_> {
    /// Where it is in its segment.
    pub fn start(&self) -> u64 {
        self.region.start + self.offset as u64
    }

    /// Where it is in its region.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }
}

/// What is to be logged, by regions and in pieces.
pub(super) fn parts<'t>(table: &'t RegionTable, spans: &[Written]) -> Vec<Part<'t>> {
    let (mut parts, mut cursor) = (Vec::with_capacity(spans.len()), RegionCursor::new());
    for span in spans {
        let mut at = span.start;
        while at < span.end {
            // SAFETY: a region with declared bytes stays mapped.
            let region = unsafe { cursor.find(table, span.segment, at) };
            let region = region.expect("declared bytes are mapped");
            let len = (span.end.min(region.end()) - at).min(PIECE as u64);
            parts.push(Part { region, offset: (at - region.start) as usize, len: len as usize });
            at += len;
        }
    }
    parts
}

/// The parts that a transaction has declared, as it has: neither sorted nor joined, so that it takes no memory.
pub(super) fn declared<'t>(table: &'t RegionTable, set: &WriteSet<'_>) -> impl Iterator<Item = Part<'t>> {
    let mut cursor = RegionCursor::new();
    set.ranges_from(Position::default()).map(move |range| {
        // SAFETY: a region with declared bytes stays mapped.
        let region = unsafe { cursor.find(table, range.segment, range.offset) };
        let region = region.expect("declared bytes are mapped");
        Part { region, offset: (range.offset - region.start) as usize, len: range.len }
    })
}

/// The parts of regions that show bytes of a segment, of which a transaction has changed some. A region may end
/// before the last page does.
pub(super) fn shown(table: &RegionTable, Written { segment, start, end }: Written) -> Vec<Part<'_>> {
    let (mut parts, mut cursor, mut at) = (Vec::new(), RegionCursor::new(), start);
    while at < end {
        // SAFETY: as in `parts`.
        let Some(region) = (unsafe { cursor.find(table, segment, at) }) else {
            // Behind a region that ends within a page another one may begin.
            if planted("cut-page-ends-a-run") {
                break;
            }
            at = (at + 1).next_multiple_of(IMAGE as u64);
            continue;
        };
        let len = end.min(region.end()) - at;
        parts.push(Part { region, offset: (at - region.start) as usize, len: len as usize });
        at += len;
    }
    parts
}

/// Bytes of a body that are copied at once.
const COPIED: usize = if cfg!(caliburn_sim) { 4 << 10 } else { 1 << 20 };

/// Calls `write` with a record's body, copied from memory, piece by piece.
pub(super) fn write_body<'t, E>(
    parts: impl Iterator<Item = Part<'t>>,
    mut write: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = Vec::with_capacity(COPIED);
    for part in parts {
        record::put_range_header(&mut buffer, part.region.id, part.start(), part.len);
        let mut done = 0;
        while done < part.len {
            let len = COPIED.saturating_sub(buffer.len()).min(part.len - done);
            let at = buffer.len();
            buffer.resize(at + len, 0);
            // SAFETY: the part lies in a region with declared bytes, which stays mapped.
            unsafe { span::copy(part.region.at(part.offset + done), buffer[at..].as_mut_ptr(), len) };
            done += len;
            if done == part.len {
                buffer.resize(padded(buffer.len()), 0);
            }
            if buffer.len() >= COPIED {
                write(&buffer)?;
                buffer.clear();
            }
        }
    }
    if buffer.is_empty() { Ok(()) } else { write(&buffer) }
}

/// A record's body, copied from memory.
pub(super) fn body_of(parts: &[Part<'_>]) -> Vec<u8> {
    let (mut body, mut buffer) = (Vec::new(), Vec::new());
    for Part { region, offset, len } in parts {
        buffer.resize(*len, 0);
        // SAFETY: the part lies in a region with declared bytes, which stays mapped.
        unsafe { span::copy(region.at(*offset), buffer.as_mut_ptr(), *len) };
        push_range(&mut body, region.id, region.start + *offset as u64, &buffer);
    }
    body
}
