//! One log record (RVM, Figure 5): a header, modification ranges each with its new bytes, a trailer.
//!
//! ```text
//! | header 32 | prefix by kind | range 16 | bytes | range 16 | bytes | ... | trailer 8 |
//! ```
//!
//! A record is valid if and only if (1) its header's LSN is its position, (2) its incarnation is not
//! smaller than that of the record before it, (3) its length is sensible and the same in the trailer,
//! and (4) its checksum matches.

use crate::format::{ALIGN, Lsn, RangeHeader, RecordHeader, SegmentId, Trailer, padded};
use caliburn_os::simulated::{even_if, unless};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a record before its body.
pub const HEAD: usize = size_of::<RecordHeader>();
/// Bytes of a record around its body.
pub const FRAME: usize = size_of::<RecordHeader>() + size_of::<Trailer>();
/// Longest body: what fits the 32-bit unit count.
pub const BODY_MAX: usize = (u32::MAX as usize) * ALIGN - FRAME;
/// Longest identifier of a prepared transaction, in bytes.
pub const GLOBAL_ID_MAX: usize = 1024;

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// One committed transaction. No prefix.
    Commit = 1,
    /// Several lazy transactions made into one, superseded bytes dropped. Prefix: their number, `u64`.
    Group = 2,
    /// A transaction that is durable but undecided. Prefix: its global identifier.
    Prepare = 3,
    /// A prepared transaction was committed; carries its ranges. Prefix: its global identifier.
    Resolve = 4,
    /// A prepared transaction was aborted. Prefix: its global identifier; no ranges.
    Forget = 5,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        [Kind::Commit, Kind::Group, Kind::Prepare, Kind::Resolve, Kind::Forget]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }

    fn has_global_id(self) -> bool {
        matches!(self, Kind::Prepare | Kind::Resolve | Kind::Forget)
    }
}

/// One modification range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range<'a> {
    /// The segment.
    pub segment: SegmentId,
    /// Offset in the segment's data.
    pub offset: u64,
    /// The new bytes.
    pub bytes: &'a [u8],
}

/// A record as found in the log.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// Its position.
    pub lsn: Lsn,
    /// What it says.
    pub kind: Kind,
    /// When it was put into the log, nanoseconds since 1970.
    pub time: u64,
    /// The opening of the store that wrote it.
    pub incarnation: u32,
    /// The log up to here was forced when it was written.
    pub forced: Lsn,
    /// Transactions in it: 1, or more for a group; 0 for `Forget`.
    pub transactions: u64,
    /// Identifier of a prepared transaction.
    pub global_id: &'a [u8],
    ranges: &'a [u8],
    whole: &'a [u8],
}

impl<'a> Record<'a> {
    /// Bytes from header to trailer.
    pub fn len(&self) -> u64 {
        self.whole.len() as u64
    }

    /// From header to trailer.
    pub fn bytes(&self) -> &'a [u8] {
        self.whole
    }

    /// Position of the next record.
    pub fn next(&self) -> Lsn {
        Lsn(self.lsn.0 + self.len())
    }

    /// The modification ranges, in the order in which they must be applied.
    pub fn ranges(&self) -> Ranges<'a> {
        Ranges { rest: self.ranges }
    }

    /// The ranges as stored, to be put into another record.
    pub fn body(&self) -> &'a [u8] {
        self.ranges
    }
}

/// Iterator over the ranges of a verified body.
#[derive(Debug, Clone)]
pub struct Ranges<'a> {
    rest: &'a [u8],
}

impl<'a> Ranges<'a> {
    /// Ranges of a body whose form was verified, or that this process wrote.
    pub fn of(body: &'a [u8]) -> Ranges<'a> {
        Ranges { rest: body }
    }

    /// Bytes of the body that were not passed yet.
    pub fn left(&self) -> usize {
        self.rest.len()
    }
}

impl<'a> Iterator for Ranges<'a> {
    type Item = Range<'a>;

    #[inline]
    fn next(&mut self) -> Option<Range<'a>> {
        let (header, rest) = RangeHeader::ref_from_prefix(self.rest).ok()?;
        let len = header.len.get() as usize;
        let bytes = rest.get(..len)?;
        self.rest = rest.get(padded(len)..)?;
        Some(Range { segment: SegmentId(header.segment.get()), offset: header.offset.get(), bytes })
    }
}

/// Where and when a record goes: what its header and trailer say of its place.
#[derive(Debug, Clone, Copy)]
pub struct RecordPosition {
    /// Position of the record.
    pub lsn: Lsn,
    /// The log is forced up to here.
    pub forced: Lsn,
    /// Present opening of the store.
    pub incarnation: u32,
    /// Nanoseconds since 1970.
    pub time: u64,
}

/// The bytes that a kind puts before the ranges.
pub fn prefix(kind: Kind, transactions: u64, global_id: &[u8]) -> Vec<u8> {
    match kind {
        Kind::Commit => Vec::new(),
        Kind::Group => transactions.to_le_bytes().to_vec(),
        Kind::Prepare | Kind::Resolve | Kind::Forget => {
            let mut out = (global_id.len() as u64).to_le_bytes().to_vec();
            out.extend_from_slice(global_id);
            out.resize(8 + padded(global_id.len()), 0);
            out
        }
    }
}

/// Header and trailer of a record whose body (prefix and ranges) has the given length and checksum
/// state. The checksum is computed body first, so that a body can be streamed out before its header.
pub struct Frame {
    header: RecordHeader,
    trailer: Trailer,
}

impl Frame {
    /// A frame for a body of `body_len` bytes, a multiple of [`ALIGN`].
    pub fn new(kind: Kind, place: RecordPosition, body_len: usize) -> Frame {
        assert!(
            body_len.is_multiple_of(ALIGN) && body_len <= BODY_MAX,
            "a record's body is bounded and aligned"
        );
        let units = ((body_len + FRAME) / ALIGN) as u32;
        let unforced = (place.lsn.0 - place.forced.0) / ALIGN as u64;
        Frame {
            header: RecordHeader {
                crc: 0.into(),
                kind: kind as u8,
                reserved: [0; 3],
                units: units.into(),
                incarnation: place.incarnation.into(),
                lsn: place.lsn.0.into(),
                time: place.time.into(),
            },
            trailer: Trailer {
                units: units.into(),
                unforced: u32::try_from(unforced).unwrap_or(u32::MAX).into(),
            },
        }
    }

    /// Header and trailer as bytes, given the CRC-32C of the body.
    pub fn finish(mut self, body_crc: u32, body_len: usize) -> ([u8; 32], [u8; 8]) {
        let head = self.header.as_bytes();
        let crc = crc32c::crc32c_combine(crc32c::crc32c(&head[4..]), body_crc, body_len);
        self.header.crc = crc32c::crc32c_append(crc, self.trailer.as_bytes()).into();
        let mut header = [0; 32];
        header.copy_from_slice(self.header.as_bytes());
        let mut trailer = [0; 8];
        trailer.copy_from_slice(self.trailer.as_bytes());
        (header, trailer)
    }
}

/// Appends a whole record to `out`.
pub fn encode(out: &mut Vec<u8>, kind: Kind, place: RecordPosition, prefix: &[u8], ranges: &[u8]) {
    let frame = Frame::new(kind, place, prefix.len() + ranges.len());
    let start = out.len();
    out.extend_from_slice(frame.header.as_bytes());
    out.extend_from_slice(prefix);
    out.extend_from_slice(ranges);
    out.extend_from_slice(frame.trailer.as_bytes());
    let crc = crc32c::crc32c(&out[start + 4..]);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Makes a whole record around `ranges` that stand in `buffer`, with room for the trailer behind them and for the
/// rest before. Returns where the record lies.
pub fn encode_around(
    buffer: &mut [u8],
    ranges: std::ops::Range<usize>,
    kind: Kind,
    place: RecordPosition,
    prefix: &[u8],
) -> std::ops::Range<usize> {
    let frame = Frame::new(kind, place, prefix.len() + ranges.len());
    let (header, trailer) = (frame.header.as_bytes(), frame.trailer.as_bytes());
    let body = ranges.start - prefix.len()..ranges.end;
    let record = body.start - header.len()..body.end + trailer.len();
    buffer[record.start..body.start].copy_from_slice(header);
    buffer[body.start..ranges.start].copy_from_slice(prefix);
    buffer[body.end..record.end].copy_from_slice(trailer);
    let crc = crc32c::crc32c(&buffer[record.start + 4..record.end]);
    buffer[record.start..][..4].copy_from_slice(&crc.to_le_bytes());
    record
}

/// The CRC-32C that [`Frame::finish`] wants of a body, from that of what precedes a part of it: 0 if nothing does.
pub fn append_crc(crc: u32, part: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, part)
}

/// Kind, length and ranges of the first of several records that this process encoded or verified.
#[inline]
pub fn peel(bytes: &[u8]) -> Option<(Kind, usize, &[u8])> {
    let (header, rest) = RecordHeader::ref_from_prefix(bytes).ok()?;
    let len = header.units.get() as usize * ALIGN;
    let kind = Kind::from_byte(header.kind)?;
    let (_, _, ranges) = split_prefix(kind, rest.get(..len.checked_sub(FRAME)?)?)?;
    Some((kind, len, ranges))
}

/// Where the ranges stand in a record of `len` bytes: [`peel`] gives both.
pub fn body_at(len: usize, ranges: &[u8]) -> usize {
    len - size_of::<Trailer>() - ranges.len()
}

/// What [`decode`] made of the bytes at a position.
#[derive(Debug)]
pub enum Decoded<'a> {
    /// A valid record.
    Valid(Record<'a>),
    /// The header is plausible but the record is longer than the bytes at hand: this many are needed.
    Longer(u64),
    /// Not a record of this place.
    Invalid,
}

/// Decodes the record at `lsn` from `bytes`, which begin there. `incarnation` is that of the record
/// before, `longest` the most that a record can take.
pub fn decode(bytes: &[u8], lsn: Lsn, incarnation: u32, longest: u64) -> Decoded<'_> {
    let Ok((header, _)) = RecordHeader::ref_from_prefix(bytes) else { return Decoded::Longer(FRAME as u64) };
    let Some(len) = plausible_len(bytes, lsn, incarnation, longest) else { return Decoded::Invalid };
    let Some(kind) = Kind::from_byte(header.kind) else { return Decoded::Invalid };
    let Some(whole) = bytes.get(..len as usize) else { return Decoded::Longer(len) };
    if unless("record-sum-unchecked", crc32c::crc32c(&whole[4..]) != header.crc.get()) {
        return Decoded::Invalid;
    }
    let (body, trailer) = whole[size_of::<RecordHeader>()..].split_at(len as usize - FRAME);
    let trailer = Trailer::ref_from_bytes(trailer).expect("eight bytes remain");
    let Some((transactions, global_id, ranges)) = split_prefix(kind, body) else { return Decoded::Invalid };
    if trailer.units != header.units || !well_formed(ranges) {
        return Decoded::Invalid;
    }
    Decoded::Valid(Record {
        lsn,
        kind,
        time: header.time.get(),
        incarnation: header.incarnation.get(),
        forced: said_forced(lsn, trailer),
        transactions,
        global_id,
        ranges,
        whole,
    })
}

/// How long the record is that may stand at `lsn`, by its header: see [`decode`].
pub(crate) fn plausible_len(bytes: &[u8], lsn: Lsn, incarnation: u32, longest: u64) -> Option<u64> {
    let (header, _) = RecordHeader::ref_from_prefix(bytes).ok()?;
    let len = u64::from(header.units.get()) * ALIGN as u64;
    let plausible = even_if("position-unchecked", header.lsn == lsn.0)
        && even_if("incarnation-unchecked", header.incarnation.get() >= incarnation)
        && header.reserved == [0; 3]
        && Kind::from_byte(header.kind).is_some()
        && (FRAME as u64..=longest).contains(&len);
    plausible.then_some(len)
}

/// How far the log was forced when the record at `lsn` was written.
pub(crate) fn said_forced(lsn: Lsn, trailer: &Trailer) -> Lsn {
    let unforced = u64::from(trailer.unforced.get()) * ALIGN as u64;
    Lsn(if trailer.unforced == u32::MAX { 0 } else { lsn.0.saturating_sub(unforced) })
}

fn split_prefix(kind: Kind, body: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    if kind == Kind::Commit {
        return Some((1, &[], body));
    }
    let (word, rest) = zerocopy::little_endian::U64::ref_from_prefix(body).ok()?;
    if !kind.has_global_id() {
        return Some((word.get(), &[], rest));
    }
    let len = usize::try_from(word.get()).ok().filter(|len| *len <= GLOBAL_ID_MAX)?;
    let transactions = if kind == Kind::Forget { 0 } else { 1 };
    Some((transactions, rest.get(..len)?, rest.get(padded(len)..)?))
}

/// Whether a body is a sequence of whole ranges.
pub fn well_formed(body: &[u8]) -> bool {
    let mut ranges = Ranges::of(body);
    while ranges.next().is_some() {}
    ranges.rest.is_empty()
}

/// Appends the header of a range to a body, whose bytes and padding are to follow.
pub fn put_range_header(body: &mut Vec<u8>, segment: SegmentId, offset: u64, len: usize) {
    let len = u32::try_from(len).expect("ranges are split below 4 GiB");
    let header = RangeHeader { segment: segment.0.into(), len: len.into(), offset: offset.into() };
    body.extend_from_slice(header.as_bytes());
}

/// Appends a range to a body.
pub fn push_range(body: &mut Vec<u8>, segment: SegmentId, offset: u64, bytes: &[u8]) {
    put_range_header(body, segment, offset, bytes.len());
    body.extend_from_slice(bytes);
    body.resize(padded(body.len()), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(lsn: u64) -> RecordPosition {
        RecordPosition { lsn: Lsn(lsn), forced: Lsn(lsn / 16 * 8), incarnation: 3, time: 77 }
    }

    fn sample() -> Vec<u8> {
        let mut body = Vec::new();
        push_range(&mut body, SegmentId(4), 1 << 40, b"hello");
        push_range(&mut body, SegmentId(0), 8, &[9; 24]);
        let mut out = Vec::new();
        encode(&mut out, Kind::Prepare, place(800), &prefix(Kind::Prepare, 1, b"gid-1"), &body);
        out
    }

    #[test]
    fn a_debit_credit_takes_two_hundred_bytes() {
        let mut body = Vec::new();
        for i in 0..4 {
            push_range(&mut body, SegmentId(1), i * 4096, &[1; 24]);
        }
        let mut out = Vec::new();
        encode(&mut out, Kind::Commit, place(0), &[], &body);
        assert_eq!(out.len(), 200);
    }

    #[test]
    fn any_flipped_bit_makes_it_invalid() {
        let good = sample();
        assert!(matches!(decode(&good, Lsn(800), 3, 1 << 20), Decoded::Valid(_)));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let verdict = decode(&bad, Lsn(800), 0, 1 << 20);
            assert!(!matches!(verdict, Decoded::Valid(_)), "bit {bit} was not noticed");
        }
    }

    #[test]
    fn a_record_of_another_place_or_an_earlier_opening_is_refused() {
        let good = sample();
        assert!(matches!(decode(&good, Lsn(808), 3, 1 << 20), Decoded::Invalid));
        assert!(matches!(decode(&good, Lsn(800), 4, 1 << 20), Decoded::Invalid));
        assert!(
            matches!(decode(&good[..50], Lsn(800), 3, 1 << 20), Decoded::Longer(n) if n == good.len() as u64)
        );
    }

    #[test]
    fn a_streamed_frame_equals_an_encoded_record() {
        let whole = sample();
        let body = &whole[32..whole.len() - 8];
        let (header, trailer) =
            Frame::new(Kind::Prepare, place(800), body.len()).finish(crc32c::crc32c(body), body.len());
        assert_eq!([&header[..], body, &trailer[..]].concat(), whole);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(ranges in prop::collection::vec((0u32..5, any::<u64>(), prop::collection::vec(any::<u8>(), 0..100)), 0..20)) {
            let mut body = Vec::new();
            for (segment, offset, bytes) in &ranges {
                push_range(&mut body, SegmentId(*segment), *offset, bytes);
            }
            let mut out = Vec::new();
            encode(&mut out, Kind::Group, place(64), &prefix(Kind::Group, 9, &[]), &body);
            let Decoded::Valid(record) = decode(&out, Lsn(64), 0, 1 << 20) else { panic!("invalid") };
            prop_assert_eq!((record.transactions, record.time, record.len()), (9, 77, out.len() as u64));
            let found: Vec<_> = record.ranges().map(|r| (r.segment.0, r.offset, r.bytes.to_vec())).collect();
            prop_assert_eq!(found, ranges);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), lsn in any::<u64>()) {
            let _ = decode(&bytes, Lsn(lsn), 0, 1 << 40);
            let _ = well_formed(&bytes);
        }
    }
}
