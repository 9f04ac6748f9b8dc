//! Lanes: where one writer at a time goes along, and the places that are free for it.

use crate::format::{LANE_LISTS, LIST_VERSION, LaneHeader, ListHeader, WRITES, sealed, unsealed};
use crate::memory::Memory;
use caliburn_os::simulated::unless;
use std::mem::offset_of;

/// What a lane's writer has.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// The last write that was begun.
    pub number: u64,
    /// Writes of several blocks at once.
    pub several: u64,
    /// Blocks that were written.
    pub writes: u64,
    /// Places that no block needs, and no crash either.
    pub free: Vec<u32>,
}

/// A block of a list: which version it is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listed {
    pub block: u64,
    pub version: u8,
}

/// A lane's words in the head of the segment, which begin at `at`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneWords<'m> {
    pub head: &'m Memory,
    pub at: usize,
}

impl LaneWords<'_> {
    fn get(self, offset: usize) -> u64 {
        self.head.load(self.at + offset)
    }

    /// The last write that was begun, as far as that has lasted; none if it cannot be told.
    pub fn begun(self) -> Option<u64> {
        unsealed(self.get(offset_of!(LaneHeader, begun)))
    }

    /// All up to this one last; none if it cannot be told.
    pub fn ended(self) -> Option<u64> {
        unsealed(self.get(offset_of!(LaneHeader, ended)))
    }

    #[inline]
    pub fn set_begun(self, number: u64) {
        self.head.word(self.at + offset_of!(LaneHeader, begun), sealed(number));
    }

    #[inline]
    pub fn set_ended(self, number: u64) {
        self.head.word(self.at + offset_of!(LaneHeader, ended), sealed(number));
    }

    /// The writes that the lists are of, as far as that can be told.
    pub fn lists(self) -> impl Iterator<Item = u64> {
        (0..2).filter_map(move |which| unsealed(self.head.load(self.places(which).0)))
    }

    /// Where a list's header and its words are.
    fn places(self, which: usize) -> (usize, usize) {
        let header = offset_of!(LaneHeader, lists) + which * size_of::<ListHeader>();
        (self.at + header, self.at + LANE_LISTS + which * WRITES * 8)
    }

    /// Notes which blocks a write changes, in the first list or the second.
    pub fn list(self, which: usize, number: u64, blocks: &[Listed]) {
        let (header, words) = self.places(which);
        for (i, listed) in blocks.iter().enumerate() {
            self.head.word(words + i * 8, word_of(listed));
        }
        self.head.word(header, sealed(number));
        self.head.word(header + 8, blocks.len() as u64 | u64::from(sum_of(number, blocks)) << 32);
    }

    /// The list of that write, if it is whole.
    pub fn listed(self, number: u64) -> Option<Vec<Listed>> {
        (0..2).find_map(|which| {
            let (header, words) = self.places(which);
            let list = self.head.load(header + 8);
            let (count, sum) = (list as u32 as usize, (list >> 32) as u32);
            if unsealed(self.head.load(header)) != Some(number) || count == 0 || count > WRITES {
                return None;
            }
            let blocks: Vec<Listed> = (0..count).map(|i| of_word(self.head.load(words + i * 8))).collect();
            let torn = unless("list-sum-not-checked", sum_of(number, &blocks) != sum);
            (!torn).then_some(blocks)
        })
    }
}

fn word_of(listed: &Listed) -> u64 {
    listed.block | u64::from(listed.version) << LIST_VERSION
}

fn of_word(word: u64) -> Listed {
    Listed { block: word & ((1 << LIST_VERSION) - 1), version: (word >> LIST_VERSION) as u8 }
}

fn sum_of(number: u64, blocks: &[Listed]) -> u32 {
    let sum =
        crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), &(blocks.len() as u64).to_le_bytes());
    blocks.iter().fold(sum, |sum, listed| crc32c::crc32c_append(sum, &word_of(listed).to_le_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::NUMBER_BITS;
    use crate::geometry::LANES_MAX;

    #[test]
    fn numbers_and_lists_come_back_and_zeros_are_none() {
        assert_eq!(unsealed(0), None);
        for number in [0, 1, (1 << 42) - 1, 1 << 42, (1 << NUMBER_BITS) - 1] {
            assert_eq!(unsealed(sealed(number)), Some(number));
            (0..64)
                .for_each(|bit| assert_eq!(unsealed(sealed(number) ^ 1 << bit), None, "{number}, bit {bit}"));
        }
        // Blocks of the largest segment, in every version and one that is none.
        for (block, version) in
            [0, 1, (1 << 31) - 1].into_iter().flat_map(|block| (0..=u8::MAX).map(move |v| (block, v)))
        {
            let listed = Listed { block, version };
            assert_eq!(of_word(word_of(&listed)), listed);
        }
        // An entry has six bits for its lane.
        const { assert!(LANES_MAX <= 64) };
    }
}
