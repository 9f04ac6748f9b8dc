//! What a stretch of the log says about each segment: the ranges of its committed records, in log order.
//! Recovery lays them over the regions that are mapped; epoch truncation applies them to the segments.

use crate::segment::SegmentState;
use caliburn_log::image::Image;
use caliburn_log::log::MediaError;
use caliburn_log::record::{Kind, Range, Ranges, Record};
use caliburn_log::{Lsn, SegmentId};

/// New bytes of a segment.
#[derive(Debug, Clone, Copy)]
struct Patch {
    offset: u64,
    /// Where in `bytes` they stand.
    at: usize,
    len: u32,
}

/// The patches of a stretch of the log.
#[derive(Debug, Default)]
pub(crate) struct Patches {
    head: Lsn,
    tail: Lsn,
    bytes: Vec<u8>,
    /// Indexed by segment number.
    segments: Vec<Vec<Patch>>,
}

impl Patches {
    /// None yet, of a log whose head is at `head`.
    pub fn new(head: Lsn) -> Patches {
        Patches { head, tail: head, ..Patches::default() }
    }

    /// Those of an image.
    pub fn of(image: Image) -> Patches {
        let mut patches = Patches::new(image.head());
        for record in image.records() {
            patches.note(&record);
        }
        patches.fill(image);
        patches
    }

    /// Notes where a record's ranges stand; the bytes come with [`Patches::fill`].
    pub fn note(&mut self, record: &Record<'_>) {
        if matches!(record.kind, Kind::Commit | Kind::Group | Kind::Resolve) {
            let start = (record.lsn.0 - self.head.0) as usize;
            for range in record.ranges() {
                let at = start + record.offset_of(range.bytes);
                self.patch(range.segment, Patch { offset: range.offset, at, len: range.bytes.len() as u32 });
            }
        }
    }

    #[inline]
    fn patch(&mut self, segment: SegmentId, patch: Patch) {
        let number = segment.0 as usize;
        if self.segments.len() <= number {
            self.segments.resize_with(number + 1, Vec::new);
        }
        self.segments[number].push(patch);
    }

    /// Takes the bytes of the image whose records were noted.
    pub fn fill(&mut self, image: Image) {
        self.tail = image.tail();
        self.bytes = image.into_bytes();
    }

    /// Adds a body that comes after all that is here, in a record that ends at `tail`.
    pub fn push(&mut self, body: &[u8], tail: Lsn) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(body);
        for range in Ranges::of(body) {
            let at = start + (range.bytes.as_ptr().addr() - body.as_ptr().addr());
            self.patch(range.segment, Patch { offset: range.offset, at, len: range.bytes.len() as u32 });
        }
        self.tail = tail;
    }

    pub fn is_empty(&self) -> bool {
        self.segments.iter().all(Vec::is_empty)
    }

    /// Position after the last record.
    pub fn tail(&self) -> Lsn {
        self.tail
    }

    /// The patches of a segment, oldest first.
    pub fn of_segment(&self, segment: SegmentId) -> impl Iterator<Item = Range<'_>> {
        let list = self.segments.get(segment.0 as usize).map_or(&[][..], Vec::as_slice);
        list.iter().map(move |p| Range {
            segment,
            offset: p.offset,
            bytes: &self.bytes[p.at..p.at + p.len as usize],
        })
    }

    /// The segments that have any.
    pub fn segments(&self) -> impl Iterator<Item = SegmentId> {
        self.segments
            .iter()
            .enumerate()
            .filter(|(_, list)| !list.is_empty())
            .map(|(n, _)| SegmentId(n as u32))
    }

    /// Writes the patches of one segment to its medium, page by page, each page once with its newest
    /// bytes, so that nobody who reads the segment meanwhile sees it go back in time. Forces nothing.
    /// Returns the number of pages.
    pub fn apply(&self, segment: &SegmentState, page_size: usize) -> Result<u64, MediaError> {
        let page_bytes = page_size as u64;
        let ranges: Vec<Range<'_>> = self.of_segment(segment.id).collect();
        let mut parts: Vec<(u64, usize)> = Vec::new();
        for (number, range) in ranges.iter().enumerate() {
            let end = range.offset + range.bytes.len() as u64;
            parts.extend((range.offset / page_bytes..end.div_ceil(page_bytes)).map(|page| (page, number)));
        }
        parts.sort_unstable();
        let mut page = vec![0; page_size];
        let mut count = 0;
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
            count += 1;
        }
        Ok(count)
    }
}
