//! How many blocks a segment has, and where they stand in it.

use crate::error::{Error, Result};
use crate::format::{ENTRIES, LANE, NO_ENTRY, WRITE_BYTES, sealed};
use crate::memory::Memory;

/// Places for blocks beyond those that are in use: of so many blocks one,
const SPARE_PART: u64 = 256;
/// up to so many, and for two of the largest writes at least.
const SPARE_MAX: u64 = 1 << 20;
/// Most lanes.
pub(crate) const LANES_MAX: u32 = 64;

/// Where things are in a segment of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub block_bytes: usize,
    pub lanes: u32,
    pub blocks: u64,
}

impl Geometry {
    /// Of a segment that shows so many bytes.
    pub fn of(block_bytes: u32, lanes: u32, len: u64) -> Result<Geometry> {
        if !block_bytes.is_power_of_two() || !(512..=65_536).contains(&block_bytes) {
            let why = "a block has 512, 1024, ... or 65,536 bytes";
            return Err(Error::invalid("blocks of", block_bytes, why));
        }
        let blocks = len / u64::from(block_bytes);
        if len == 0 || !len.is_multiple_of(u64::from(block_bytes)) {
            return Err(Error::invalid(
                "a length of",
                len,
                format!("it is made of whole blocks of {block_bytes} bytes"),
            ));
        }
        if blocks > 1 << 31 {
            return Err(Error::invalid(
                "a length of",
                len,
                "a segment has at most 2^31 blocks: take larger ones",
            ));
        }
        if !(1..=LANES_MAX).contains(&lanes) {
            return Err(Error::invalid("lanes", lanes, format!("there are 1 to {LANES_MAX}")));
        }
        Ok(Geometry { block_bytes: block_bytes as usize, lanes, blocks })
    }

    /// Places for blocks.
    pub fn places(&self) -> u64 {
        let spare = (self.blocks / SPARE_PART).min(SPARE_MAX);
        self.blocks + spare.max(2 * self.writes() as u64 + 2 * u64::from(self.lanes))
    }

    /// Most blocks that are written at once.
    pub fn writes(&self) -> usize {
        WRITE_BYTES / self.block_bytes
    }

    /// Bytes of lanes and entries.
    pub fn head_bytes(&self) -> u64 {
        u64::from(self.lanes) * LANE as u64 + self.blocks * ENTRIES as u64
    }

    /// Bytes of places.
    pub fn data_bytes(&self) -> u64 {
        self.places() * self.block_bytes as u64
    }

    /// Says of each lane that nothing was begun, and of each block that it was never written.
    pub fn make_head(&self, head: &Memory) {
        for lane in 0..self.lanes {
            (0..2).for_each(|word| head.word(self.lane(lane) + word * 8, sealed(0)));
        }
        let none: Vec<u8> = NO_ENTRY.iter().chain(&[0]).flat_map(|word| word.to_le_bytes()).collect();
        // As many as are written at once.
        let many = none.repeat(2 * 1024);
        let end = self.head_bytes() as usize;
        for at in (self.entries(0)..end).step_by(many.len()) {
            head.write(at, &many[..many.len().min(end - at)]);
        }
    }

    /// Where a lane is in the head.
    pub fn lane(&self, lane: u32) -> usize {
        lane as usize * LANE
    }

    /// Where a block's entries are in the head.
    pub fn entries(&self, block: u64) -> usize {
        self.lanes as usize * LANE + block as usize * ENTRIES
    }

    /// Where a place is in the data.
    pub fn place(&self, place: u32) -> usize {
        place as usize * self.block_bytes
    }
}
