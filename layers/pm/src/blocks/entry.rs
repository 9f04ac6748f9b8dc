//! Entries: where a block is, and what it must be.
//!
//! ```text
//!   word 0:  place (32 bits)        | version (6) | lane (6) | several (1) | 0 (3) | check (16)
//!   word 1:  sum (32)               | version (6) | number, upper part (10)        | check (16)
//!   word 2:  number, lower part (42) | version (6)                                 | check (16)
//! ```
//!
//! A word that was never written has a check, too, so that zeros are damage. A block has two entries; a write stores
//! the one that is not the newest, together with the bytes, in another place. A crash leaves each word wholly or not
//! at all: words of different versions are a write that is not there, and a word whose check does not match is
//! damage. The sum covers the bytes, everything in the entry, and which block it is.
//!
//! Invariant: no write has version 0, so that no word of an entry equals a word that was never written. Older
//! programs gave version 0, too, and took such an entry for a write that is not there. It is read like any other:
//! its sum says whether it is one. See [`Entry::is_bare`].

use crate::format::{MIX, NO_ENTRY, Words, checked};
use caliburn_os::simulated::{instead, planted, unless};

/// The place of a block that was cleared: nowhere.
pub(crate) const NOWHERE: u32 = u32::MAX;
/// Bits of a version.
const VERSION_BITS: u32 = 6;
/// Versions, modulo this. Simulated ones come round within a run.
const VERSIONS: u8 = if cfg!(caliburn_sim) { 8 } else { 1 << VERSION_BITS };
/// The version of a block's first write.
pub(crate) const FIRST: u8 = if cfg!(caliburn_sim) { VERSIONS - 2 } else { 1 };
/// Bits of a write's number in the third word.
const LOWER: u32 = 42;

/// An entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub place: u32,
    pub sum: u32,
    pub version: u8,
    /// Written together with other blocks.
    pub several: bool,
    pub lane: u8,
    pub number: u64,
}

/// What stands where an entry may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nothing.
    Empty,
    /// Words of several writes: after a crash, a write that is not there.
    Torn,
    /// An entry.
    There(Entry),
    /// What nobody has written.
    Damaged,
}

impl Slot {
    #[inline]
    pub fn of(words: Words) -> Slot {
        if words.iter().any(|word| unless("entry-not-checked", *word != checked(*word))) {
            return Slot::Damaged;
        }
        if words == NO_ENTRY {
            return Slot::Empty;
        }
        let [place, sum, number] = words;
        let version = |word: u64, at: u32| (word >> at) as u8 & ((1 << VERSION_BITS) - 1);
        let versions = [version(place, 32), version(sum, 32), version(number, LOWER)];
        let torn = versions != [versions[0]; 3];
        let bare = planted("version-zero") && words.contains(&NO_ENTRY[0]);
        if unless("torn-entry-believed", torn) || bare {
            return Slot::Torn;
        }
        Slot::There(Entry {
            place: place as u32,
            sum: sum as u32,
            version: versions[2],
            several: place >> 44 & 1 != 0,
            lane: (place >> 38) as u8 & 63,
            number: number & ((1 << LOWER) - 1) | (sum >> 38 & 0x3FF) << LOWER,
        })
    }

    /// The entry, if there is one.
    #[inline]
    pub fn entry(self) -> Option<Entry> {
        if let Slot::There(entry) = self { Some(entry) } else { None }
    }
}

impl Entry {
    /// As it stands in memory.
    #[inline]
    pub fn words(&self) -> Words {
        let version = u64::from(self.version);
        let place = u64::from(self.place) | version << 32 | u64::from(self.lane) << 38;
        let sum = u64::from(self.sum) | version << 32 | self.number >> LOWER << 38;
        let number = self.number & ((1 << LOWER) - 1) | version << LOWER;
        [place | u64::from(self.several) << 44, sum, number].map(checked)
    }

    /// What its sum must be, for bytes of that block that have this sum.
    #[inline]
    pub fn sum_for(&self, block: u64, bytes: u32) -> u32 {
        let flags = u64::from(self.version) | u64::from(self.several) << 8 | u64::from(self.lane) << 16;
        let all = [u64::from(self.place) | flags << 32, self.number];
        let mix = |mixed: u64, word: u64| {
            let product = (mixed ^ word).wrapping_mul(MIX);
            product ^ product >> 32
        };
        let head = all.into_iter().fold(mix(0, !block), mix) as u32;
        bytes ^ instead("entry-not-in-the-sum", head, 0)
    }

    /// Whether it is the newer one of a block's.
    #[inline]
    pub fn is_newer(&self, than: &Entry) -> bool {
        let ahead = self.version.wrapping_sub(than.version) % VERSIONS;
        (1..VERSIONS / 2).contains(&ahead)
    }

    /// Whether one of its words equals one that was never written. Only older programs wrote such entries, and took
    /// them for nothing: what they name as their place may be another block's.
    #[inline]
    pub fn is_bare(&self) -> bool {
        self.version == 0 && self.words().contains(&NO_ENTRY[0])
    }
}

/// The version after one: never 0.
#[inline]
pub(crate) fn next(version: u8) -> u8 {
    match (version + 1) % VERSIONS {
        0 => instead("version-zero", 1, 0),
        next => next,
    }
}

/// Which of a block's two entries is the newest, and that entry.
#[inline]
pub(crate) fn newest(slots: [Slot; 2]) -> Option<(usize, Entry)> {
    match slots.map(Slot::entry) {
        [None, None] => None,
        [Some(one), None] => Some((0, one)),
        [None, Some(two)] => Some((1, two)),
        [Some(one), Some(two)] if two.is_newer(&one) => Some((1, two)),
        [Some(one), Some(_)] => Some((0, one)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::NUMBER_BITS;

    fn entry(version: u8) -> Entry {
        Entry { place: 7, sum: 0xDEAD_BEEF, version, several: true, lane: 63, number: (1 << NUMBER_BITS) - 1 }
    }

    #[test]
    fn every_corner_of_an_entry_is_read_as_it_was_written() {
        let places = [0, 1, 1 << 31, NOWHERE - 1, NOWHERE];
        let numbers = [1, (1 << LOWER) - 1, 1 << LOWER, (1 << NUMBER_BITS) - 1];
        for version in 0..1 << VERSION_BITS {
            for (place, sum) in places.into_iter().flat_map(|place| [0, 1, u32::MAX].map(|sum| (place, sum)))
            {
                for (lane, number) in (0..64).flat_map(|lane| numbers.map(|number| (lane, number))) {
                    for several in [false, true] {
                        let entry = Entry { place, sum, version, several, lane, number };
                        assert_eq!(Slot::of(entry.words()), Slot::There(entry));
                        // Only of the version that is given no more.
                        assert!(version == 0 || !entry.words().contains(&NO_ENTRY[0]), "{entry:?}");
                        assert_eq!(entry.is_bare(), entry.words().contains(&NO_ENTRY[0]), "{entry:?}");
                    }
                }
            }
        }
        assert_eq!(Slot::of(NO_ENTRY), Slot::Empty);
        assert_eq!(Slot::of([0; 3]), Slot::Damaged);
    }

    #[test]
    fn a_flipped_bit_is_damage_and_a_mixture_of_words_is_no_entry() {
        let (old, new) = (entry(4).words(), Entry { number: 5, ..entry(6) }.words());
        for bit in 0..192 {
            let mut words = old;
            words[bit / 64] ^= 1 << (bit % 64);
            assert_eq!(Slot::of(words), Slot::Damaged, "{bit}");
        }
        for mask in 1..7 {
            let mixed = [0, 1, 2].map(|i| if mask >> i & 1 != 0 { new[i] } else { old[i] });
            assert_eq!(Slot::of(mixed), Slot::Torn);
            let begun = [0, 1, 2].map(|i| if mask >> i & 1 != 0 { new[i] } else { NO_ENTRY[i] });
            assert_eq!(Slot::of(begun), Slot::Torn);
        }
    }

    #[test]
    fn the_next_version_is_newer_also_after_the_last() {
        for version in 0..VERSIONS {
            assert_ne!(next(version), 0);
            let (old, new) = (entry(version), entry(next(version)));
            assert!(new.is_newer(&old) && !old.is_newer(&new) && !old.is_newer(&old));
            assert_eq!(newest([Slot::There(old), Slot::There(new)]), Some((1, new)));
            assert_eq!(newest([Slot::There(new), Slot::There(old)]), Some((0, new)));
        }
        assert_eq!(newest([Slot::Damaged, Slot::There(entry(5))]), Some((1, entry(5))));
    }
}
