//! Ranges to be laid over segments, in order: the committed records of a stretch of the log, or old values from
//! undo logs when a store is opened read-only. Recovery lays them over the regions that are mapped; epoch
//! truncation applies them to the segments.

use crate::storage::segment::SegmentState;
use caliburn_log::format::LOG_DATA;
use caliburn_log::media_error::MediaError;
use caliburn_log::record::{self, Kind, Range, Ranges};
use caliburn_log::{Lsn, SegmentId};
use caliburn_os::map::View;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::{planted, unless};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where a range is among all: greater for a newer one.
type Place = usize;

/// The committed changes of a stretch of the log.
#[derive(Debug)]
pub(crate) struct RedoRanges {
    /// Verified records, one after the other.
    records: View,
    /// Bodies that come after them, and their places.
    later: Vec<(Place, Vec<u8>)>,
    tail: Lsn,
    /// The ranges of each segment, oldest first. Made when it is worth it.
    by_segment: OnceLock<BTreeMap<SegmentId, Vec<Place>>>,
    /// How often all were walked through for one segment's.
    walks: AtomicU32,
}

/// Walks that are cheaper than to sort the ranges by segment.
const WALKS: u32 = 3;

impl RedoRanges {
    /// Those of `[from, tail)`, whose records were verified. They are mapped: whoever keeps them drops them before
    /// the log's head moves beyond `from`, and the place is written to again.
    pub fn of_log(
        medium: &dyn Medium,
        capacity: u64,
        from: Lsn,
        tail: Lsn,
    ) -> Result<RedoRanges, MediaError> {
        let (at, len) = (from.0 % capacity, tail.0 - from.0);
        let file = medium.is_mapped().then(|| medium.descriptor());
        let read = |buffer: &mut [u8], offset| medium.read_at(buffer, offset);
        // SAFETY: a log has the capacity that its status tells, or is refused. Nobody writes there: this process
        // writes only between the log's tail and its head, and the lock on the store keeps others from writing at
        // all.
        let records = unsafe { View::of_ring(file, &read, LOG_DATA, capacity, (at, len)) };
        let records = records.map_err(|e| MediaError::new("map the log", medium, LOG_DATA + at, e))?;
        Ok(RedoRanges { records, ..RedoRanges::none(tail) })
    }

    /// None yet, of a log that ends at `tail`.
    pub fn none(tail: Lsn) -> RedoRanges {
        RedoRanges {
            records: View::default(),
            later: Vec::new(),
            tail,
            by_segment: OnceLock::new(),
            walks: AtomicU32::new(0),
        }
    }

    /// Adds a body that comes after all that is here, in a record that ends at `tail`.
    pub fn push(&mut self, body: Vec<u8>, tail: Lsn) {
        let end = self.later.last().map_or(self.records.len(), |(place, body)| place + body.len());
        self.later.push((end, body));
        self.tail = tail;
        self.by_segment.take();
    }

    pub fn is_empty(&self) -> bool {
        self.bodies().next().is_none()
    }

    /// Position after the last record.
    pub fn tail(&self) -> Lsn {
        self.tail
    }

    /// What is to be applied, oldest first.
    fn bodies(&self) -> impl Iterator<Item = (Place, &[u8])> {
        let mut at = 0;
        let records = std::iter::from_fn(move || {
            let rest = self.records.get(at..).filter(|rest| !rest.is_empty())?;
            let (kind, len, body) = record::peel(rest).expect("every record was verified");
            let place = at + record::body_at(len, body);
            at += len;
            Some((kind, place, body))
        });
        let applies = |(kind, place, body)| {
            let resolve = unless("decision-without-its-ranges", kind == Kind::Resolve);
            (matches!(kind, Kind::Commit | Kind::Group) || resolve).then_some((place, body))
        };
        records.filter_map(applies).chain(self.later.iter().map(|(place, body)| (*place, &body[..])))
    }

    fn by_segment(&self) -> &BTreeMap<SegmentId, Vec<Place>> {
        self.by_segment.get_or_init(|| {
            let mut found: BTreeMap<SegmentId, Vec<Place>> = BTreeMap::new();
            // Mostly one and the same segment again.
            let (mut last, mut places) = (None, Vec::new());
            for (place, range) in self.ranges() {
                if last != Some(range.segment)
                    && let Some(before) = last.replace(range.segment)
                {
                    let next = found.remove(&range.segment).unwrap_or_default();
                    found.insert(before, std::mem::replace(&mut places, next));
                }
                places.push(place);
            }
            found.extend(last.map(|last| (last, places)));
            found
        })
    }

    /// All, oldest first.
    fn ranges(&self) -> impl Iterator<Item = (Place, Range<'_>)> {
        self.bodies().flat_map(|(start, body)| {
            let mut ranges = Ranges::of(body);
            std::iter::from_fn(move || {
                let place = start + body.len() - ranges.left();
                ranges.next().map(|range| (place, range))
            })
        })
    }

    fn range_at(&self, place: Place) -> Range<'_> {
        let from = match place.checked_sub(self.records.len()) {
            None => &self.records[place..],
            Some(_) => {
                let (start, body) = &self.later[self.later.partition_point(|(start, _)| *start <= place) - 1];
                &body[place - start..]
            }
        };
        Ranges::of(from).next().expect("a range was there before")
    }

    /// The segments that are changed.
    pub fn segments(&self) -> impl Iterator<Item = SegmentId> {
        self.by_segment().keys().copied()
    }

    /// Calls `each` with the changes of a segment, oldest first.
    #[inline]
    pub fn each_of(&self, segment: SegmentId, mut each: impl FnMut(Range<'_>)) {
        if self.by_segment.get().is_none() && self.walks.fetch_add(1, Ordering::Relaxed) < WALKS {
            for (_, body) in self.bodies() {
                Ranges::of(body).filter(|range| range.segment == segment).for_each(&mut each);
            }
            return;
        }
        let places = self.by_segment().get(&segment);
        places.into_iter().flatten().for_each(|place| each(self.range_at(*place)));
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
        let mut parts: Vec<(u64, Place)> = Vec::new();
        for place in self.by_segment().get(&segment.id).into_iter().flatten() {
            let range = self.range_at(*place);
            let end = range.offset + range.bytes.len() as u64;
            parts.extend((range.offset / page_bytes..end.div_ceil(page_bytes)).map(|page| (page, *place)));
        }
        if planted("older-bytes-over-newer") {
            parts.sort_unstable_by_key(|(page, place)| (*page, Reverse(*place)));
        } else {
            parts.sort_unstable();
        }
        let mut page = vec![0; page_size];
        for group in parts.chunk_by(|a, b| a.0 == b.0) {
            let start = group[0].0 * page_bytes;
            segment.read(start, &mut page)?;
            for range in group.iter().map(|(_, place)| self.range_at(*place)) {
                let from = range.offset.max(start);
                let to = (range.offset + range.bytes.len() as u64).min(start + page_bytes);
                let source = &range.bytes[(from - range.offset) as usize..(to - range.offset) as usize];
                page[(from - start) as usize..][..source.len()].copy_from_slice(source);
            }
            segment.write(start, &page, self.tail())?;
            written(group[0].0);
        }
        Ok(())
    }
}
