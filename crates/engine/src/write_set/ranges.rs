//! What a run says: its ranges as they were declared, newest first, disjoint, and with the oldest of their old
//! bytes.

use super::run::{Chunk, HEAD, Layout, Ranges, Saved, filled, get_word, read_header, word_at};
use super::set::{Position, WriteSet, Written};
use caliburn_log::SegmentId;
use caliburn_log::format::range_bytes;
use caliburn_os::simulated::instead;
use caliburn_os::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::marker::PhantomData;

/// Bytes of segments that a walk has come by: their starts, by segment, with their ends.
#[derive(Debug, Default)]
pub(super) struct Covered(BTreeMap<(SegmentId, u64), u64>);

impl Covered {
    /// Adds bytes, and calls `gap` with the parts that were not there before.
    pub fn add(&mut self, segment: SegmentId, start: u64, end: u64, mut gap: impl FnMut(u64, u64)) {
        let (mut low, mut high, mut at) = (start, end, start);
        let met: Vec<(u64, u64)> = self
            .0
            .range((segment, 0)..=(segment, end))
            .rev()
            .map(|((_, s), e)| (*s, *e))
            .take_while(|(_, e)| *e >= start)
            .collect();
        for (s, e) in met.into_iter().rev() {
            if s > at {
                gap(at, s.min(end));
            }
            (at, low, high) = (at.max(e), low.min(s), high.max(e));
            self.0.remove(&(segment, s));
        }
        if at < end {
            gap(at, end);
        }
        self.0.insert((segment, low), high);
    }

    /// Whether all bytes of a range are there.
    pub fn has(&self, range: &Saved) -> bool {
        let before = self.0.range(..=(range.segment, range.offset)).next_back();
        let end = range.offset + range.len as u64;
        before.is_some_and(|((segment, _), until)| *segment == range.segment && *until >= end)
    }
}

/// Most bytes that are compacted: a chunk's word counts 32 bits.
const COMPACTED_MAX: usize = 1 << 30;

/// Joins spans that overlap or adjoin. Returns how many were joined to others, and how many bytes stood twice.
fn join(spans: &mut Vec<Written>) -> (u64, u64) {
    spans.sort_unstable();
    let (mut joined, mut twice) = (0, 0);
    spans.dedup_by(|next, last| {
        let meets = next.segment == last.segment && next.start <= last.end;
        if meets {
            joined += 1;
            twice += last.end.min(next.end) - next.start;
            last.end = instead("joined-range-cut-off", last.end.max(next.end), last.end);
        }
        meets
    });
    (joined, twice)
}

impl WriteSet<'_> {
    pub fn layout(&self) -> Layout {
        self.slot.layout
    }

    /// The run's chunks from a position on, oldest first.
    fn parts(&self, from: Position) -> impl DoubleEndedIterator<Item = Part> + use<> {
        let begin = move |chunk: usize| if chunk == from.chunk { from.bytes } else { 0 };
        let part = |base: *mut u8, room: usize, number: usize| {
            // SAFETY: the chunk is this run's.
            let word = unsafe { get_word(word_at(base, number == 0)) };
            Part { base, room, word, from: begin(number) }
        };
        let slot = self.slot;
        let first = (from.chunk == 0).then(|| part(slot.base(), slot.room.load(Ordering::Relaxed), 0));
        let further = if slot.extended.load(Ordering::Relaxed) {
            let chunks = self.chunks();
            let all = chunks.further.iter().zip(1..).skip(from.chunk.max(1) - 1);
            all.map(|(chunk, number)| part(chunk.base(), chunk.room(), number)).collect()
        } else {
            Vec::new()
        };
        first.into_iter().chain(further)
    }

    /// Calls `visit` with the ranges behind a position, oldest first.
    pub fn each_from(&self, from: Position, mut visit: impl FnMut(Saved)) {
        for part in self.parts(from) {
            part.ranges(self.layout()).for_each(&mut visit);
        }
    }

    /// The ranges behind a position, oldest first.
    pub fn ranges_from(&self, from: Position) -> impl Iterator<Item = Saved> {
        let layout = self.layout();
        self.parts(from).flat_map(move |part| part.ranges(layout))
    }

    /// Calls `visit` with all ranges, oldest first.
    #[inline]
    pub fn each(&self, mut visit: impl FnMut(Saved)) {
        if self.slot.extended.load(Ordering::Relaxed) {
            return self.each_from(Position::default(), visit);
        }
        let (mut at, end, layout) = (self.start().cast_const(), self.end().cast_const(), self.layout());
        while at != end {
            // SAFETY: as in `PlainRanges`.
            let range = unsafe { read_header(at) };
            at = at.wrapping_add(layout.stride(range.len));
            visit(range);
        }
    }

    /// The ranges of the chunk in use, oldest first, where nothing stands between them.
    #[inline(always)]
    pub fn plain_ranges(&self) -> PlainRanges<'_> {
        debug_assert_eq!(self.layout().trailer, 0);
        PlainRanges { at: self.start(), end: self.end(), _of: PhantomData }
    }

    /// Calls `visit` with the ranges behind a position, newest first, and their old bytes.
    pub fn newest_first(&self, from: Position, mut visit: impl FnMut(SegmentId, u64, &[u8])) {
        let mut ranges = Vec::new();
        for part in self.parts(from).rev() {
            debug_assert!(self.keeps_old() || part.bytes() == 0, "no old bytes were kept");
            ranges.extend(part.ranges(self.layout()));
            for range in ranges.drain(..).rev() {
                // SAFETY: the run keeps old bytes, and does not change meanwhile.
                visit(range.segment, range.offset, unsafe { range.bytes() });
            }
        }
    }

    /// The bytes that the transaction changes: sorted, disjoint, none adjoining another (RVM, section 5.2).
    pub fn disjoint(&self) -> Vec<Written> {
        let (spans, joined, twice) = self.joined();
        self.counters().joined_ranges.add(joined);
        self.counters().duplicate_bytes.add(twice);
        spans
    }

    fn joined(&self) -> (Vec<Written>, u64, u64) {
        let mut spans = Vec::new();
        self.each(|range| {
            let (start, end) = (range.offset, range.offset + range.len as u64);
            spans.push(Written { segment: range.segment, start, end });
        });
        let (joined, twice) = join(&mut spans);
        (spans, joined, twice)
    }

    /// Whether the run is twice as long as when this was so last: then it is worth walking through.
    pub fn has_doubled(&self) -> bool {
        let bytes = self.parts(Position::default()).map(|part| part.bytes()).sum();
        let marks = &mut self.scratch().marks;
        let doubled = bytes >= 2 * marks.counted;
        if doubled {
            marks.counted = bytes;
        }
        doubled
    }

    /// What the run amounts to, exactly: the bytes that it changes, as spans.
    pub fn exactly(&self) -> Vec<Written> {
        self.joined().0
    }

    /// The values that the transaction replaces, each byte once.
    pub fn oldest(&self) -> BTreeMap<(SegmentId, u64), Vec<u8>> {
        let (mut covered, mut found) = (Covered::default(), BTreeMap::new());
        self.each(|range| {
            // SAFETY: the run keeps old bytes, and does not change meanwhile.
            let (start, bytes) = (range.offset, unsafe { range.bytes() });
            covered.add(range.segment, start, start + range.len as u64, |low, high| {
                let part = &bytes[(low - start) as usize..(high - start) as usize];
                found.insert((range.segment, low), part.to_vec());
            });
        });
        found
    }

    /// Bytes of the run behind the newest savepoint.
    fn loose(&self) -> usize {
        let from = self.pinned();
        self.parts(from).map(|part| part.bytes()).sum()
    }

    /// Drops ranges behind the newest savepoint that older ones cover, if the run has grown to twice what it
    /// was when that was done last. `chunk` makes one of so many bytes. Returns the chunks that are left over.
    ///
    /// What is kept is there in another chunk before it is given up where it was.
    pub fn compact(&self, least: usize, chunk: impl FnOnce(usize) -> Option<Chunk>) -> Vec<Chunk> {
        let loose = self.loose();
        if loose < 2 * self.scratch().marks.compacted.max(least) {
            return Vec::new();
        }
        let from = instead("compaction-across-a-savepoint", self.pinned(), Position::default());
        let (mut covered, mut kept) = (Covered::default(), Vec::new());
        self.each_from(from, |range| {
            let start = range.offset;
            covered.add(range.segment, start, start + range.len as u64, |low, high| {
                let old = range.old.wrapping_add((low - start) as usize);
                kept.push(Saved { offset: low, len: (high - low) as usize, old, ..range });
            });
        });
        let bytes: usize = kept.iter().map(|range| self.stride(range.len)).sum();
        self.scratch().marks.compacted = bytes;
        if bytes > loose / 4 * 3 || bytes > COMPACTED_MAX {
            return Vec::new();
        }
        let Some(chunk) = chunk(HEAD + bytes.max(least) * 2) else { return Vec::new() };
        // Positions behind the newest savepoint are others from now on.
        *self.scratch().marks.looked() = None;
        let place = self.append_chunk(chunk);
        kept.iter().for_each(|range| self.copy(range));
        self.drop_between(from, place)
    }
}

/// A chunk of a run from a place on.
struct Part {
    base: *mut u8,
    room: usize,
    word: u64,
    from: usize,
}

impl Part {
    fn bytes(&self) -> usize {
        filled(self.word) - self.from
    }

    fn ranges(&self, layout: Layout) -> Ranges {
        // SAFETY: the chunk is that of a run of one's own, which does not change while it is walked through.
        unsafe { Ranges::of(self.base, self.room, self.word, self.from, layout) }
    }
}

/// The ranges of a chunk of one's own, which are whole.
#[derive(Clone)]
pub(crate) struct PlainRanges<'r> {
    at: *const u8,
    end: *const u8,
    _of: PhantomData<&'r ()>,
}

impl Iterator for PlainRanges<'_> {
    type Item = Saved;

    #[inline(always)]
    fn next(&mut self) -> Option<Saved> {
        if self.at == self.end {
            return None;
        }
        // SAFETY: a range that the chunk's word counts begins here: the set makes these, and does not change
        // meanwhile.
        let range = unsafe { read_header(self.at) };
        self.at = self.at.wrapping_add(range_bytes(range.len));
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: SegmentId = SegmentId(3);

    #[test]
    fn what_was_not_covered_is_found_wherever_it_lies() {
        let mut covered = Covered::default();
        let mut add = |segment, start, end| {
            let mut gaps = Vec::new();
            covered.add(segment, start, end, |low, high| gaps.push((low, high)));
            gaps
        };
        assert_eq!(add(S, 10, 20), [(10, 20)]);
        assert_eq!(add(S, 30, 40), [(30, 40)]);
        assert_eq!(add(S, 10, 20), []);
        assert_eq!(add(SegmentId(4), 10, 20), [(10, 20)]);
        assert_eq!(add(S, 5, 50), [(5, 10), (20, 30), (40, 50)]);
        assert_eq!(add(S, 0, 6), [(0, 5)]);
        assert_eq!(add(S, 0, 50), []);
        assert_eq!(add(S, 50, 51), [(50, 51)]);
    }

    #[test]
    fn spans_that_meet_are_joined_and_counted() {
        let span = |segment, start, end| Written { segment: SegmentId(segment), start, end };
        let mut spans =
            vec![span(1, 8, 16), span(1, 0, 8), span(1, 12, 20), span(2, 20, 30), span(1, 40, 41)];
        assert_eq!(join(&mut spans), (2, 4));
        assert_eq!(spans, [span(1, 0, 20), span(1, 40, 41), span(2, 20, 30)]);
    }
}
