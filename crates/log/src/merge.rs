//! The inter-transaction optimisation (RVM, section 5.2): a batch of lazy commits becomes one record in
//! which bytes that a later commit of the batch overwrote are left out.
//!
//! The batch is walked from the newest range to the oldest with a bitmap of the bytes already covered. A
//! range all of whose bytes are covered is dropped; of any other what is covered at its ends. The rest is laid down
//! from the end of the buffer to its beginning, so that in the record the older precede the newer and
//! applying them in order gives the newest bytes. The record is all or nothing: half of a merged batch
//! would show half-done transactions.

use crate::format::{RangeHeader, SegmentId, padded, range_bytes};
use crate::pagemap::PageMap;
use crate::record::{self, FRAME, Kind, Ranges, RecordPosition};
use caliburn_os::simulated::instead;
use caliburn_os::span;
use std::ops::Range;
use zerocopy::IntoBytes;

const PAGE: u64 = 4096;
/// Bytes of the prefix of a merged record.
const PREFIX: usize = size_of::<u64>();
/// Ranges whose bits are asked for before the first of them is looked at.
const AHEAD: usize = 64;
type Bits = [u64; PAGE as usize / 64];

/// Merges batches; keeps its buffers from one to the next.
#[derive(Debug, Default)]
pub struct Merger {
    /// Index into `bits` plus one, of pages touched by the present batch.
    pages: PageMap<u32>,
    bits: Vec<Bits>,
    touched: Vec<(SegmentId, u64)>,
    out: Vec<u8>,
}

/// A merged batch, in the merger's memory.
#[derive(Debug)]
pub struct Merged<'a> {
    out: &'a mut [u8],
    at: usize,
    /// Log bytes that were dropped: range headers and superseded data.
    pub dropped: u64,
}

impl<'a> Merged<'a> {
    /// The ranges that remain.
    pub fn body(&self) -> &[u8] {
        &self.out[self.at..self.out.len() - FRAME]
    }

    /// Bytes of their record.
    pub fn record_bytes(&self) -> u64 {
        (FRAME + PREFIX + self.body().len()) as u64
    }

    /// Makes the record, of so many transactions.
    pub fn encode(self, transactions: u64, place: RecordPosition) -> &'a [u8] {
        let prefix = record::prefix(Kind::Group, transactions, &[]);
        debug_assert_eq!(prefix.len(), PREFIX);
        let ranges = self.at..self.at + self.body().len();
        let record = record::encode_around(self.out, ranges, Kind::Group, place, &prefix);
        &self.out[record]
    }
}

impl Merger {
    /// Merges `bodies`, oldest first.
    pub fn merge<'b>(&mut self, bodies: impl DoubleEndedIterator<Item = &'b [u8]> + Clone) -> Merged<'_> {
        let total: usize = bodies.clone().map(<[u8]>::len).sum();
        let room = PREFIX + FRAME + total + FRAME;
        if self.out.len() < room {
            self.out = vec![0; room];
        }
        let mut at = self.out.len() - FRAME;
        let mut order = Vec::new();
        let mut bodies = bodies.rev().skip(instead("newest-not-merged", 0, 1)).peekable();
        while let Some(body) = bodies.next() {
            let newest = order.len();
            order.extend(Ranges::of(body));
            order[newest..].reverse();
            if order.len() < AHEAD && bodies.peek().is_some() {
                continue;
            }
            // Their bits come from memory, most of them: all at once rather than one after the other.
            order.iter().for_each(|range| self.touch(range));
            for range in order.drain(..) {
                let fresh = self.cover(range.segment, range.offset, range.bytes.len() as u64);
                if fresh.start < fresh.end {
                    let bytes = &range.bytes[fresh.start as usize..fresh.end as usize];
                    at -= range_bytes(bytes.len());
                    put(&mut self.out[at..], range.segment, range.offset + fresh.start, bytes);
                }
            }
        }
        for (segment, page) in self.touched.drain(..) {
            *self.pages.entry(segment, page) = 0;
        }
        self.bits.clear();
        let kept = self.out.len() - FRAME - at;
        Merged { out: &mut self.out, at, dropped: (total - kept) as u64 }
    }

    /// Asks for the bits of a range's first bytes.
    #[inline]
    fn touch(&mut self, range: &record::Range<'_>) {
        let bits = self.bits_of(range.segment, range.offset / PAGE);
        span::soon((&raw const bits[range.offset as usize % PAGE as usize / 64]).cast());
    }

    /// The bits of a page.
    #[inline]
    fn bits_of(&mut self, segment: SegmentId, page: u64) -> &mut Bits {
        let slot = self.pages.entry(segment, page);
        if *slot == 0 {
            self.bits.push([0; PAGE as usize / 64]);
            self.touched.push((segment, page));
            *slot = self.bits.len() as u32;
        }
        &mut self.bits[*slot as usize - 1]
    }

    /// Covers a range. Returns which of its bytes, counted from its first, were not covered before, with those
    /// between them.
    #[inline]
    fn cover(&mut self, segment: SegmentId, offset: u64, len: u64) -> Range<u64> {
        let mut fresh = len..0;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let stop = end.min((at / PAGE + 1) * PAGE);
            let bits = self.bits_of(segment, at / PAGE);
            let part = cover_bits(bits, (at % PAGE) as usize, (stop - at) as usize);
            if part.start < part.end {
                fresh = fresh.start.min(at - offset + part.start as u64)..at - offset + part.end as u64;
            }
            at = stop;
        }
        fresh
    }
}

/// The same within a page.
#[inline]
fn cover_bits(bits: &mut Bits, from: usize, len: usize) -> Range<usize> {
    let mut fresh = len..0;
    let (mut at, end) = (from, from + len);
    while at < end {
        let stop = end.min((at / 64 + 1) * 64);
        let mask = (u64::MAX >> (64 - (stop - at))) << (at % 64);
        let word = &mut bits[at / 64];
        let new = mask & !*word;
        if new != 0 {
            let base = at / 64 * 64;
            fresh.start = fresh.start.min(base + new.trailing_zeros() as usize - from);
            fresh.end = base + 64 - new.leading_zeros() as usize - from;
        }
        *word |= mask;
        at = stop;
    }
    fresh
}

fn put(out: &mut [u8], segment: SegmentId, offset: u64, bytes: &[u8]) {
    const HEAD: usize = size_of::<RangeHeader>();
    let header =
        RangeHeader { segment: segment.0.into(), len: (bytes.len() as u32).into(), offset: offset.into() };
    out[..HEAD].copy_from_slice(header.as_bytes());
    out[HEAD..HEAD + bytes.len()].copy_from_slice(bytes);
    out[HEAD + bytes.len()..HEAD + padded(bytes.len())].fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::push_range;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn apply(memory: &mut BTreeMap<u64, u8>, body: &[u8]) {
        for range in Ranges::of(body) {
            for (i, byte) in range.bytes.iter().enumerate() {
                memory.insert(range.offset + i as u64, *byte);
            }
        }
    }

    #[test]
    fn a_superseded_range_is_dropped_and_counted() {
        let (mut old, mut new) = (Vec::new(), Vec::new());
        push_range(&mut old, SegmentId(0), 100, &[1; 24]);
        push_range(&mut new, SegmentId(0), 96, &[2; 32]);
        let mut merger = Merger::default();
        let merged = merger.merge([&old[..], &new[..]].into_iter());
        assert_eq!((merged.body(), merged.dropped), (&new[..], old.len() as u64));
        // The next batch starts with nothing covered.
        assert_eq!(merger.merge([&old[..]].into_iter()).dropped, 0);
    }

    #[test]
    fn a_range_loses_the_ends_that_newer_ones_cover() {
        let mut bodies = [const { Vec::new() }; 3];
        push_range(&mut bodies[0], SegmentId(0), 4000, &[1; 200]);
        push_range(&mut bodies[1], SegmentId(0), 4090, &[2; 300]);
        push_range(&mut bodies[2], SegmentId(0), 3900, &[3; 104]);
        let mut merger = Merger::default();
        let merged = merger.merge(bodies.iter().map(|body| &body[..]));
        let ranges: Vec<_> = Ranges::of(merged.body()).map(|r| (r.offset, r.bytes.len())).collect();
        assert_eq!(ranges, [(4004, 86), (4090, 300), (3900, 104)]);
    }

    proptest! {
        #[test]
        fn merging_changes_nothing_but_the_length(batch in prop::collection::vec(
            prop::collection::vec((8190u64..8230, prop::collection::vec(any::<u8>(), 0..20)), 0..4), 0..12)) {
            let bodies: Vec<Vec<u8>> = batch.iter().map(|ranges| {
                let mut body = Vec::new();
                for (offset, bytes) in ranges {
                    push_range(&mut body, SegmentId(1), *offset, bytes);
                }
                body
            }).collect();
            let mut plain = BTreeMap::new();
            bodies.iter().for_each(|body| apply(&mut plain, body));
            let mut merger = Merger::default();
            let merged = merger.merge(bodies.iter().map(|b| &b[..]));
            let mut found = BTreeMap::new();
            apply(&mut found, merged.body());
            prop_assert_eq!(found, plain);
            let total: usize = bodies.iter().map(Vec::len).sum();
            prop_assert_eq!(total as u64, merged.body().len() as u64 + merged.dropped);
        }
    }
}
