//! What a stretch of the log says about the segments: the ranges of its committed records, in log order.
//! Recovery lays them over the regions that are mapped; epoch truncation applies them to the segments.

use crate::storage::segment::SegmentState;
use caliburn_log::image::Image;
use caliburn_log::media_error::MediaError;
use caliburn_log::record::{self, Kind, Range, Ranges};
use caliburn_log::{Lsn, SegmentId};
use caliburn_os::map::Buffer;
use caliburn_os::simulated::{planted, unless};

/// The committed changes of a stretch of the log.
#[derive(Debug)]
pub(crate) struct RedoRanges {
    /// Verified records, one after the other.
    records: Buffer,
    /// Bodies that come after them.
    later: Vec<Vec<u8>>,
    tail: Lsn,
}

impl RedoRanges {
    /// Those of an image, whose records were verified or written by this process.
    pub fn of(image: Image) -> RedoRanges {
        RedoRanges { tail: image.tail(), records: image.into_bytes(), later: Vec::new() }
    }

    /// None yet, of a log that ends at `tail`.
    pub fn none(tail: Lsn) -> RedoRanges {
        RedoRanges { records: Buffer::default(), later: Vec::new(), tail }
    }

    /// The memory that its records were in.
    pub fn into_spare(self) -> Buffer {
        self.records
    }

    /// Adds a body that comes after all that is here, in a record that ends at `tail`.
    pub fn push(&mut self, body: Vec<u8>, tail: Lsn) {
        self.later.push(body);
        self.tail = tail;
    }

    pub fn is_empty(&self) -> bool {
        self.bodies().next().is_none()
    }

    /// Position after the last record.
    pub fn tail(&self) -> Lsn {
        self.tail
    }

    fn bodies(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.records[..];
        let records = std::iter::from_fn(move || {
            let (kind, len, body) = record::peel(rest)?;
            rest = &rest[len..];
            Some((kind, body))
        });
        let applies = |(kind, body)| {
            let resolve = unless("decision-without-its-ranges", kind == Kind::Resolve);
            (matches!(kind, Kind::Commit | Kind::Group) || resolve).then_some(body)
        };
        records.filter_map(applies).chain(self.later.iter().map(Vec::as_slice))
    }

    /// The changes of all segments, oldest first.
    pub fn ranges(&self) -> impl Iterator<Item = Range<'_>> {
        self.bodies().flat_map(Ranges::of)
    }

    /// The segments that are changed.
    pub fn segments(&self) -> Vec<SegmentId> {
        let mut found: Vec<SegmentId> = Vec::new();
        let mut last = None;
        for range in self.ranges() {
            if last.replace(range.segment) != Some(range.segment) && !found.contains(&range.segment) {
                found.push(range.segment);
            }
        }
        found
    }

    /// Writes the changes of one segment to its medium, page by page, each page once with its newest
    /// bytes, so that nobody who reads the segment meanwhile sees it go back in time. Forces nothing.
    /// Calls `written` with the number of each page.
    pub fn apply(
        &self,
        segment: &SegmentState,
        page_size: usize,
        mut written: impl FnMut(u64),
    ) -> Result<(), MediaError> {
        let page_bytes = page_size as u64;
        let ranges: Vec<Range<'_>> = self.ranges().filter(|r| r.segment == segment.id).collect();
        let mut parts: Vec<(u64, usize)> = Vec::new();
        for (number, range) in ranges.iter().enumerate() {
            let end = range.offset + range.bytes.len() as u64;
            parts.extend((range.offset / page_bytes..end.div_ceil(page_bytes)).map(|page| (page, number)));
        }
        if planted("older-bytes-over-newer") {
            parts.sort_unstable_by_key(|(page, number)| (*page, usize::MAX - number));
        } else {
            parts.sort_unstable();
        }
        let mut page = vec![0; page_size];
        for group in parts.chunk_by(|a, b| a.0 == b.0) {
            let start = group[0].0 * page_bytes;
            segment.read(start, &mut page)?;
            for range in group.iter().map(|(_, number)| &ranges[*number]) {
                let from = range.offset.max(start);
                let to = (range.offset + range.bytes.len() as u64).min(start + page_bytes);
                let source = &range.bytes[(from - range.offset) as usize..(to - range.offset) as usize];
                page[(from - start) as usize..][..source.len()].copy_from_slice(source);
            }
            segment.write(start, &page)?;
            written(group[0].0);
        }
        Ok(())
    }
}
