//! What a crash has left of blocks that were being written.
//!
//! A write is there if its entry is, and the bytes that the entry's sum covers; one of several blocks if all of them
//! are. Where memory lasts by a fence, a lane's writes before its last one have lasted: of them nothing is asked.
//! Where the medium must be forced, those before the last force. Nothing is asked if the last writer gave the
//! segment up.
//!
//! ```text
//!   1 read all entries; of each lane the greatest number
//!   2 writes that may be there in part:
//!       one block      its bytes match?  it stays : its older entry counts
//!       several        the list is there, and all match?  they stay : none does
//!   3 what was seen is forced: who wrote it may have died before it was
//!   4 entries of writes that are not there are cleared, and words of which there is no entry, and that is forced
//!   5 places that no newest entry names are free
//! ```
//!
//! Invariant: before another write of a block that was written with others, these are known to have ended (`ended`
//! of their lane). So where a write may not have ended, all its entries are still there, if ever they were.
//!
//! Of a lane's last write (in a file: of those since the last force) it cannot be told whether it had ended when the
//! crash came. If it was damaged by the crash, rather than by its absence, it is undone all the same.
//!
//! Invariant: no number is given out twice of which anything is left.

use super::entry::{Entry, NOWHERE, Slot, newest};
use super::lane::LaneWords;
use crate::error::Result;
use crate::format::{ENTRY, NO_ENTRY, Words};
use crate::geometry::Geometry;
use crate::memory::{Force, Memory};
use caliburn_os::simulated::{planted, unless};
use std::collections::{BTreeMap, HashMap};

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// Of each lane, the last write that was begun.
    pub numbers: Vec<u64>,
    /// Places that are free.
    pub free: Vec<u32>,
    /// Blocks and which of their entries is not there.
    pub undone: Vec<(u64, usize)>,
    /// Those that have words there, and no entry.
    pub torn: Vec<(u64, usize)>,
    /// Where the bytes are of writes that may not have lasted, and are there.
    pub there: Vec<u32>,
}

/// A segment of blocks, as far as recovery needs it.
pub(crate) struct Found<'m> {
    pub geometry: Geometry,
    pub head: &'m Memory,
    pub data: &'m Memory,
}

/// Writes by lane and number, and the blocks in whose entries they stand.
type Writes = BTreeMap<(u8, u64), Vec<(u64, usize, Entry)>>;

impl Found<'_> {
    #[inline]
    pub fn entries(&self, block: u64) -> [Slot; 2] {
        [Slot::of(self.words(block, 0)), Slot::of(self.words(block, 1))]
    }

    #[inline]
    fn words(&self, block: u64, which: usize) -> Words {
        let at = self.geometry.entries(block) + which * ENTRY;
        [self.head.load(at), self.head.load(at + 8), self.head.load(at + 16)]
    }

    pub fn lane(&self, lane: u32) -> LaneWords<'_> {
        LaneWords { head: self.head, at: self.geometry.lane(lane) }
    }

    /// Steps 3 and 4.
    pub fn settle(&self, recovered: &Recovered) -> Result<()> {
        if unless("seen-and-not-forced", true) {
            let places = self.geometry.places();
            for place in recovered.there.iter().filter(|place| u64::from(**place) < places) {
                self.data.seen(self.geometry.place(*place), self.geometry.block_bytes);
            }
            // Also entries that are not there: who cleared them may have died before that had lasted.
            self.head.seen(0, self.geometry.head_bytes() as usize);
            self.head.force()?;
        }
        for (block, which) in recovered.undone.iter().chain(&recovered.torn) {
            self.clear_entry(*block, *which);
        }
        self.head.force()?;
        for (lane, number) in recovered.numbers.iter().enumerate() {
            self.lane(lane as u32).set_begun(*number);
            self.lane(lane as u32).set_ended(*number);
        }
        self.head.force()
    }

    /// Clears an entry; a fence must follow.
    pub fn clear_entry(&self, block: u64, which: usize) {
        self.head.words(self.geometry.entries(block) + which * ENTRY, NO_ENTRY);
    }

    /// Whether a block's bytes are what an entry says.
    fn matches(&self, block: u64, entry: &Entry, buffer: &mut [u8]) -> bool {
        if entry.place == NOWHERE {
            return entry.sum_for(block, 0) == entry.sum;
        }
        if u64::from(entry.place) >= self.geometry.places() {
            return false;
        }
        let sum = self.data.read_summed(self.geometry.place(entry.place), buffer);
        entry.sum_for(block, sum) == entry.sum
    }

    /// Steps 1, 2 and 5. Changes nothing. `crashed`: the last writer did not give the segment up.
    pub fn recover(&self, crashed: bool) -> Recovered {
        let lanes = self.geometry.lanes;
        let (mut numbers, ended) =
            (Vec::new(), (0..lanes).map(|lane| self.ended(lane)).collect::<Vec<u64>>());
        for lane in 0..lanes {
            let words = self.lane(lane);
            let others = words.ended().into_iter().chain(words.lists());
            let others = others.filter(|_| unless("number-given-out-again", true));
            numbers.push(words.begun().into_iter().chain(others).max().unwrap_or(0));
        }
        let all = || (0..self.geometry.blocks).map(|block| (block, self.entries(block)));
        let mut buffer = vec![0; self.geometry.block_bytes];
        for (block, entry) in all().flat_map(|(block, of)| of.map(|slot| (block, slot.entry()))) {
            // What an older program left in part may look like an entry of another lane.
            let entry = entry.filter(|entry| !entry.is_bare() || self.matches(block, entry, &mut buffer));
            if let Some(entry) = entry
                && let Some(number) = numbers.get_mut(entry.lane as usize)
            {
                *number = entry.number.max(*number);
            }
        }
        let may_lack = |entry: &Entry| {
            let Some(number) = numbers.get(entry.lane as usize) else { return false };
            let open = self.data.force_kind() == Force::Sync || entry.number >= *number;
            crashed && open && entry.number > ended[entry.lane as usize]
        };
        let (mut writes, mut torn) = (Writes::new(), Vec::new());
        for (block, entries) in all() {
            for (which, entry) in entries.into_iter().enumerate() {
                if crashed && entry == Slot::Torn {
                    torn.push((block, which));
                }
                if let Some(entry) = entry.entry().filter(|entry| may_lack(entry)) {
                    writes.entry((entry.lane, entry.number)).or_default().push((block, which, entry));
                }
            }
        }
        let (mut undone, mut there) = (Vec::new(), Vec::new());
        for ((lane, number), blocks) in &writes {
            if unless("recovery-left-out", !self.is_there(*lane, *number, blocks, &mut buffer)) {
                undone.extend(blocks.iter().map(|(block, which, _)| (*block, *which)));
            } else {
                there.extend(blocks.iter().map(|(.., entry)| entry.place));
            }
        }
        let free = self.free(&undone);
        Recovered { numbers, free, undone, torn, there }
    }

    /// All writes of a lane up to this one have lasted.
    fn ended(&self, lane: u32) -> u64 {
        let words = self.lane(lane);
        match (words.ended(), words.begun()) {
            (Some(ended), _) => ended,
            // A word that was damaged. Where memory lasts by a fence the other one says as much.
            (None, Some(begun)) if self.data.force_kind() == Force::Fence => begun.saturating_sub(1),
            // Nothing is undone, and what does not match is told of.
            (None, _) => u64::MAX,
        }
    }

    /// Whether a write that may be there in part is there.
    fn is_there(&self, lane: u8, number: u64, blocks: &[(u64, usize, Entry)], buffer: &mut [u8]) -> bool {
        if !blocks.iter().any(|(.., entry)| entry.several) {
            return blocks.iter().all(|(block, _, entry)| self.matches(*block, entry, buffer));
        }
        let list = self.lane(u32::from(lane)).listed(number);
        let Some(list) = list else { return planted("list-not-needed") };
        let by_block: HashMap<u64, &Entry> = blocks.iter().map(|(block, _, entry)| (*block, entry)).collect();
        list.iter().all(|listed| match by_block.get(&listed.block) {
            Some(entry) => entry.version == listed.version && self.matches(listed.block, entry, buffer),
            None => planted("part-of-several-kept"),
        })
    }

    /// Places that no block needs.
    pub fn free(&self, undone: &[(u64, usize)]) -> Vec<u32> {
        let undone = by_block(undone);
        let places = self.geometry.places();
        let mut used = vec![0u64; places.div_ceil(64) as usize];
        for block in 0..self.geometry.blocks {
            let mut entries = self.entries(block);
            for which in undone.get(&block).into_iter().flatten() {
                entries[*which] = Slot::Empty;
            }
            // Of a damaged block both, since which is the newest cannot be told.
            let damaged = entries.iter().any(|slot| matches!(slot, Slot::Damaged | Slot::Torn));
            let both = entries.iter().filter_map(|slot| slot.entry()).filter(|_| damaged);
            for entry in newest(entries).map(|(_, entry)| entry).into_iter().chain(both) {
                if u64::from(entry.place) < places {
                    used[entry.place as usize / 64] |= 1 << (entry.place % 64);
                }
            }
        }
        let is_free = |place: &u32| used[*place as usize / 64] >> (place % 64) & 1 == 0;
        (0..places as u32).filter(is_free).collect()
    }
}

/// Which entries of which blocks.
pub(crate) fn by_block(entries: &[(u64, usize)]) -> HashMap<u64, Vec<usize>> {
    let mut by_block: HashMap<u64, Vec<usize>> = HashMap::new();
    entries.iter().for_each(|(block, which)| by_block.entry(*block).or_default().push(*which));
    by_block
}
