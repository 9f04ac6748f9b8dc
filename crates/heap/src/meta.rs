//! The heap's own data, in a segment apart from the objects: a header, the roots, and for each span a row of
//! words.
//!
//! ```text
//!   0        header: magic, version, check
//!   4096     roots: 256 times name (48 bytes), place, check
//!   32768    rows:  88 words for each span of 64 KiB:
//!              word 0       what the span is
//!              word 1..     48 objects each: 1 is allocated
//! ```
//!
//! A word carries 48 bits and a check of 16, computed from the bits and from where the word stands. A word of
//! zeros is valid and says nothing, so that a segment that has grown needs no initialising.

/// Magic of the header.
pub const MAGIC: u64 = u64::from_le_bytes(*b"CALI-HEA");
/// Version of this layout.
pub const VERSION: u64 = 1;
/// Where the roots are.
pub const ROOTS: u64 = 4096;
/// Number of roots.
pub const ROOT_COUNT: usize = 256;
/// Longest name of a root in bytes.
pub const NAME_MAX: usize = 48;
/// Bytes of a root.
pub const ROOT_BYTES: u64 = 64;
/// Where the rows are.
pub const ROWS: u64 = 32768;
/// Words of a row.
pub const ROW_WORDS: u64 = 88;
/// Objects that a word tells of.
pub const PER_WORD: u32 = 48;

const _: () = assert!(ROOTS + ROOT_COUNT as u64 * ROOT_BYTES <= ROWS);
const _: () = assert!(4096_u64.div_ceil(PER_WORD as u64) < ROW_WORDS);

/// Where a word of a span's row stands in the segment.
pub fn word_at(span: u32, word: u32) -> u64 {
    ROWS + (u64::from(span) * ROW_WORDS + u64::from(word)) * 8
}

/// Bytes of the segment for so many spans.
pub fn bytes_for(spans: u32) -> u64 {
    word_at(spans, 0)
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// Mixes values into one.
pub fn check_of(values: impl IntoIterator<Item = u64>) -> u64 {
    values.into_iter().fold(MAGIC, |check, value| mix(check ^ value))
}

/// The word for 48 bits, at an offset of the segment.
pub fn seal(bits: u64, offset: u64) -> u64 {
    debug_assert!(bits >> 48 == 0);
    if bits == 0 { 0 } else { bits | check_of([bits, offset]) << 48 }
}

/// The bits of a word; nothing if it was overwritten.
pub fn unseal(word: u64, offset: u64) -> Option<u64> {
    let bits = word & ((1 << 48) - 1);
    (seal(bits, offset) == word).then_some(bits)
}

/// What a span is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing, or what follows a large object's first span.
    Free,
    /// Objects of a class.
    Small(u8),
    /// The first of so many spans of one object.
    Large(u32),
}

impl Kind {
    /// As 48 bits.
    pub fn encode(self) -> u64 {
        match self {
            Kind::Free => 0,
            Kind::Small(class) => 1 | u64::from(class) << 8,
            Kind::Large(spans) => 2 | u64::from(spans) << 8,
        }
    }

    /// What was encoded; free for anything else.
    #[inline]
    pub fn of(bits: u64) -> Kind {
        match bits & 0xFF {
            1 => Kind::Small((bits >> 8) as u8),
            2 => Kind::Large((bits >> 8) as u32),
            _ => Kind::Free,
        }
    }

    /// Nothing if no kind has these bits.
    pub fn decode(bits: u64) -> Option<Kind> {
        let rest = bits >> 8;
        match bits & 0xFF {
            0 if rest == 0 => Some(Kind::Free),
            1 if rest < crate::class::CLASSES as u64 => Some(Kind::Small(rest as u8)),
            2 => u32::try_from(rest).ok().filter(|spans| *spans > 0).map(Kind::Large),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_kinds_come_back_at_every_corner() {
        let kinds = (0..=u8::MAX).map(Kind::Small);
        for kind in kinds.chain([1, 2, 255, 256, u32::MAX].map(Kind::Large)).chain([Kind::Free]) {
            assert_eq!(Kind::of(kind.encode()), kind);
            let known = !matches!(kind, Kind::Small(class) if usize::from(class) >= crate::class::CLASSES);
            assert_eq!(Kind::decode(kind.encode()), known.then_some(kind));
            for offset in [word_at(0, 0), word_at(0, 87), word_at(u32::MAX, 0), word_at(u32::MAX, 87)] {
                assert_eq!(unseal(seal(kind.encode(), offset), offset), Some(kind.encode()));
            }
        }
        // Each object, all of them, and none. Only none is zeros.
        for bits in (0..48).map(|bit| 1 << bit).chain([0, (1 << 48) - 1, (1 << 48) - 2]) {
            for offset in (0..ROW_WORDS as u32).map(|word| word_at(3, word)) {
                let word = seal(bits, offset);
                assert_eq!((unseal(word, offset), word == 0), (Some(bits), bits == 0));
            }
        }
    }

    #[test]
    fn a_word_that_was_overwritten_is_noticed() {
        let (offset, word) = (word_at(7, 3), seal(0b1011, word_at(7, 3)));
        assert_eq!(unseal(word, offset), Some(0b1011));
        assert_eq!(unseal(0, offset), Some(0));
        assert_eq!(unseal(word, offset + 8), None);
        for bit in 0..64 {
            assert_eq!(unseal(word ^ 1 << bit, offset), None, "bit {bit}");
        }
        for kind in [Kind::Free, Kind::Small(39), Kind::Large(70_000)] {
            assert_eq!(Kind::decode(kind.encode()), Some(kind));
        }
        assert_eq!(Kind::decode(Kind::Small(40).encode()), None);
    }
}
