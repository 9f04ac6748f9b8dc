//! Ranges to be laid over segments, in order: the committed records of a stretch of the log. Recovery lays them over
//! the regions that are mapped; epoch truncation applies them to the segments.

use crate::storage::lacking::Lacking;
use crate::storage::segment::SegmentState;
use caliburn_log::format::LOG_DATA;
use caliburn_log::media_error::MediaError;
use caliburn_log::record::{self, Kind, Range, Ranges};
use caliburn_log::{Lsn, SegmentId};
use caliburn_os::map::View;
use caliburn_os::medium::Medium;
use caliburn_os::memory::Limits;
use caliburn_os::simulated::{planted, unless};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
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
    /// The ranges of each segment, oldest first. Made when it is worth it; none if there are [`too_many`].
    by_segment: OnceLock<Option<BTreeMap<SegmentId, Vec<Place>>>>,
    /// How often all were walked through for one segment's.
    walks: AtomicU32,
}

/// Walks that are cheaper than to sort the ranges by segment.
const WALKS: u32 = 3;

/// Places that always fit in memory.
const FEW: usize = if cfg!(caliburn_sim) { 4 } else { 1 << 20 };

/// Whether so many places, of 8 to 16 bytes, are more than may be in memory. Then the log is walked through several
/// times, each time for the next pages.
fn too_many(places: usize) -> bool {
    static KEPT: OnceLock<usize> = OnceLock::new();
    let kept = || if cfg!(caliburn_sim) { FEW } else { FEW.max((Limits::read().bytes() / 1024) as usize) };
    places > FEW && places > *KEPT.get_or_init(kept)
}

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

    fn by_segment(&self) -> Option<&BTreeMap<SegmentId, Vec<Place>>> {
        let find = || {
            let mut found: BTreeMap<SegmentId, Vec<Place>> = BTreeMap::new();
            // Mostly one and the same segment again.
            let (mut last, mut places) = (None, Vec::new());
            for (n, (place, range)) in self.ranges().enumerate() {
                if too_many(n + 1) {
                    return None;
                }
                if last != Some(range.segment)
                    && let Some(before) = last.replace(range.segment)
                {
                    let next = found.remove(&range.segment).unwrap_or_default();
                    found.insert(before, std::mem::replace(&mut places, next));
                }
                places.push(place);
            }
            found.extend(last.map(|last| (last, places)));
            Some(found)
        };
        self.by_segment.get_or_init(find).as_ref()
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

    /// The ranges of one segment, oldest first.
    fn each_place<'s>(&'s self, segment: SegmentId, mut each: impl FnMut(Place, Range<'s>)) {
        match self.by_segment() {
            Some(all) => {
                let places = all.get(&segment).into_iter().flatten();
                places.for_each(|place| each(*place, self.range_at(*place)));
            }
            None => {
                let all = self.ranges().filter(|(_, range)| range.segment == segment);
                all.for_each(|(place, range)| each(place, range));
            }
        }
    }

    /// The segments that are changed.
    pub fn segments(&self) -> BTreeSet<SegmentId> {
        match self.by_segment() {
            Some(all) => all.keys().copied().collect(),
            None => self.ranges().map(|(_, range)| range.segment).collect(),
        }
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
        let mut bytes = vec![0; page_size];
        let mut write = |page: u64, lay: &mut dyn FnMut(&mut [u8])| {
            segment.read(page * page_bytes, &mut bytes)?;
            lay(&mut bytes);
            segment.write(page * page_bytes, &bytes, self.tail())?;
            written(page);
            Ok(())
        };
        let mut next = Some(0);
        while let Some(from) = next {
            let band;
            (band, next) = self.band(segment.id, page_bytes, from);
            match band {
                Band::Parts(parts) => {
                    for group in parts.chunk_by(|a, b| a.0 == b.0) {
                        let page = group[0].0;
                        write(page, &mut |bytes| {
                            group
                                .iter()
                                .for_each(|part| lay(&self.range_at(part.1), bytes, page * page_bytes))
                        })?;
                    }
                }
                Band::Crowded(page) => write(page, &mut |bytes| {
                    self.each_place(segment.id, |_, range| lay(&range, bytes, page * page_bytes))
                })?,
            }
        }
        Ok(())
    }

    /// Finds the changes of pages from `from` on, not [`too_many`], and the page at which the next band begins.
    fn band(&self, segment: SegmentId, page_bytes: u64, from: u64) -> (Band, Option<u64>) {
        let (mut parts, mut end, mut crowded): (Vec<(u64, Place)>, _, _) = (Vec::new(), u64::MAX, None);
        self.each_place(segment, |place, range| {
            let after = (range.offset + range.bytes.len() as u64).div_ceil(page_bytes);
            let first = (range.offset / page_bytes).max(from);
            if crowded.is_some_and(|page| first < after.min(page)) {
                end = crowded.take().unwrap_or(end);
            }
            if crowded.is_none() {
                parts.extend((first..after.min(end)).map(|page| (page, place)));
            }
            while too_many(parts.len()) {
                // The upper half waits for the next walk.
                let half = parts.len() / 2;
                let middle = parts.select_nth_unstable(half).1.0;
                let first = parts[..half].iter().map(|part| part.0).min().expect("half of them");
                if end == first + 1 {
                    crowded = Some(first);
                    parts.clear();
                } else {
                    end = middle.max(first + 1);
                    parts.retain(|part| part.0 < end);
                }
            }
        });
        if planted("older-bytes-over-newer") {
            parts.sort_unstable_by_key(|(page, place)| (*page, Reverse(*place)));
        } else {
            parts.sort_unstable();
        }
        let band = crowded.map_or(Band::Parts(parts), Band::Crowded);
        (band, (end != u64::MAX && !planted("first-band-only")).then_some(end))
    }
}

/// Changes of pages that follow each other.
enum Band {
    /// Their pages, and the places of the ranges, sorted.
    Parts(Vec<(u64, Place)>),
    /// One page that has more of them than are kept.
    Crowded(u64),
}

/// Lays what of a range lies in a page over it; `start` is the page's offset in its segment.
fn lay(range: &Range<'_>, page: &mut [u8], start: u64) {
    let from = range.offset.max(start);
    let to = (range.offset + range.bytes.len() as u64).min(start + page.len() as u64);
    if from < to {
        let source = &range.bytes[(from - range.offset) as usize..(to - range.offset) as usize];
        page[(from - start) as usize..][..source.len()].copy_from_slice(source);
    }
}

impl Lacking for RedoRanges {
    fn is_empty(&self) -> bool {
        self.bodies().next().is_none()
    }

    fn each_of(&self, segment: SegmentId, each: &mut dyn FnMut(Range<'_>)) -> io::Result<()> {
        if self.by_segment.get().is_none() && self.walks.fetch_add(1, Ordering::Relaxed) < WALKS {
            for (_, body) in self.bodies() {
                Ranges::of(body).filter(|range| range.segment == segment).for_each(&mut *each);
            }
            return Ok(());
        }
        self.each_place(segment, |_, range| each(range));
        Ok(())
    }
}
