//! Sealed ranges: how undo logs stand in persistent memory.
//!
//! There, what is stored first may arrive last. A number that says how much of a log is valid would have to
//! wait for the bytes that it counts, and the program for the number. A seal behind each range, over the range and
//! over whose it is, says that the range has arrived whole; so one fence is enough before the bytes that the
//! range saves may change. The first range without a seal ends the log.

use crate::format::{ALIGN, RangeHeader, SegmentId, range_bytes};
use crate::record::Range;
use caliburn_os::simulated::instead;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a seal: a native word, the number of the transaction above the CRC-32C.
pub const SEAL: usize = 8;

/// Whose ranges stand in a chunk. What any other left there has no seal of this one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seal {
    turn: u32,
    seed: u32,
}

impl Seal {
    /// Of the chunk of that ordinal in the log that begins with chunk `first`, in transaction `turn` of the
    /// opening `generation`.
    pub fn new(generation: u64, first: u32, ordinal: u32, turn: u32) -> Seal {
        let mut words = [0; 20];
        let generation = instead("seal-of-any-generation", generation, 0);
        let turn = instead("seal-of-any-turn", turn, 0);
        words[..8].copy_from_slice(&generation.to_le_bytes());
        words[8..12].copy_from_slice(&first.to_le_bytes());
        words[12..16].copy_from_slice(&ordinal.to_le_bytes());
        words[16..].copy_from_slice(&turn.to_le_bytes());
        Seal { turn, seed: crc32c::crc32c(&words) }
    }

    /// As a word, for [`Seal::from_word`].
    pub fn word(self) -> u64 {
        u64::from(self.turn) << 32 | u64::from(self.seed)
    }

    /// The same seal again.
    pub fn from_word(word: u64) -> Seal {
        Seal { turn: (word >> 32) as u32, seed: word as u32 }
    }

    /// The word to stand behind a range.
    #[inline]
    pub fn of(self, range: &[u8]) -> u64 {
        u64::from(self.turn) << 32 | u64::from(crc32c::crc32c_append(self.seed, range))
    }

    /// The ranges that arrived, oldest first.
    pub fn ranges(self, bytes: &[u8]) -> impl Iterator<Item = Range<'_>> {
        let mut rest = bytes;
        std::iter::from_fn(move || {
            let (header, data) = RangeHeader::read_from_prefix(rest).ok()?;
            let len = header.len.get() as usize;
            let total = range_bytes(len);
            let seal = rest.get(total..total + SEAL)?;
            if len == 0 || seal != self.of(&rest[..total]).as_bytes() {
                return None;
            }
            rest = &rest[total + SEAL..];
            Some(Range {
                segment: SegmentId(header.segment.get()),
                offset: header.offset.get(),
                bytes: &data[..len],
            })
        })
    }
}

const _: () = assert!(SEAL.is_multiple_of(ALIGN));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::push_range;

    #[test]
    fn the_log_ends_where_a_range_did_not_arrive_or_is_anothers() {
        let seal = Seal::new(7, 1, 0, 3);
        let mut bytes = Vec::new();
        for (i, len) in [8, 1, 100].into_iter().enumerate() {
            let from = bytes.len();
            push_range(&mut bytes, SegmentId(2), i as u64 * 1000, &vec![i as u8 + 1; len]);
            let word = seal.of(&bytes[from..]);
            bytes.extend(word.to_ne_bytes());
        }
        let end = bytes.len();
        bytes.resize(4096, 0);
        let count = |bytes: &[u8]| seal.ranges(bytes).count();
        assert_eq!(count(&bytes), 3);
        let last = seal.ranges(&bytes).last().map(|r| (r.segment.0, r.offset, r.bytes.to_vec()));
        assert_eq!(last, Some((2, 2000, vec![3; 100])));
        for cut in 0..end {
            let mut torn = bytes.clone();
            torn[cut] ^= 0x40;
            assert_eq!(
                count(&torn),
                if cut < 32 {
                    0
                } else if cut < 64 {
                    1
                } else {
                    2
                },
                "byte {cut}"
            );
            assert!(count(&bytes[..cut]) < 3);
        }
        for other in
            [Seal::new(8, 1, 0, 3), Seal::new(7, 0, 0, 3), Seal::new(7, 1, 1, 3), Seal::new(7, 1, 0, 4)]
        {
            assert_eq!(other.ranges(&bytes).count(), 0);
        }
    }
}
