//! What stands in a region, byte by byte (docs/pm.md). Little-endian; everything else in this crate goes by it.
//!
//! ```text
//!   0            COPY          2 * COPY, rounded up to units          len
//!   | base, copy | base, copy  | unit 0 | unit 1 | ...                |
//!
//!   base:     BaseHeader | SegmentRecord ... | ExtentRecord ...
//!   segment:  its extents of part DATA, one after the other
//!   blocks:   part HEAD: lanes, each LANE bytes | entries, two for each block
//!             part DATA: places of block_bytes, one for each block and SPARE more
//! ```

use std::mem::offset_of;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How a base begins.
pub const MAGIC: [u8; 8] = *b"CALIBPM\0";
/// Of this format.
pub const VERSION: u32 = 1;
/// Bytes that each copy of the base may take.
pub const COPY: usize = 256 << 10;
/// Most segments of a region.
pub const SEGMENTS: usize = 512;
/// Most extents of all segments.
pub const EXTENTS: usize = 4096;
/// Bytes of a name.
pub const NAME: usize = 64;

/// Bytes of a unit: from this on,
pub const UNIT_MIN: u32 = 64 << 10;
/// to this.
pub const UNIT_MAX: u32 = 1 << 30;

/// The head of a copy of the base.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BaseHeader {
    pub magic: [u8; 8],
    pub version: U32,
    /// CRC-32C of all bytes of the copy with zeros here.
    pub checksum: U32,
    /// Bytes of the copy.
    pub bytes: U32,
    /// Bytes of a unit: what extents are counted in.
    pub unit: U32,
    /// Greater by one after each change. Of two copies that differ, the greater one counts.
    pub sequence: U64,
    /// Identifies the region.
    pub region: [u8; 16],
    /// Bytes of the region.
    pub len: U64,
    /// Of the next segment: none has the number of another, also of one that is gone.
    pub next_id: U64,
    pub segments: U32,
    pub extents: U32,
    pub reserved: [u8; 56],
}

/// A segment, in the base.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentRecord {
    pub id: U64,
    /// UTF-8, with zeros behind it.
    pub name: [u8; NAME],
    /// [`PLAIN`] or [`BLOCKS`].
    pub kind: U32,
    /// As of chmod(2).
    pub mode: U32,
    pub uid: U32,
    pub gid: U32,
    /// [`PROTECTED`], [`MAKING`], [`WRITING`].
    pub flags: U32,
    /// Bytes of a block, or 0.
    pub block_bytes: U32,
    /// Bytes that its users see.
    pub len: U64,
    /// How many lanes there are, of blocks.
    pub lanes: U32,
    pub reserved: U32,
    /// Where it is mapped, or 0.
    pub address: U64,
    /// When it was made: nanoseconds since 1970.
    pub created: U64,
    /// When it was last attached for writing, or given up after that.
    pub written: U64,
    /// By whom: text, with zeros behind it.
    pub writer: [u8; 40],
    /// In which boot of the system.
    pub boot: [u8; 16],
}

/// Units of a part of a segment, in the base.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExtentRecord {
    pub segment: U64,
    /// [`DATA`] or [`HEAD`].
    pub part: U32,
    /// The first unit.
    pub start: U32,
    pub units: U32,
    pub reserved: U32,
}

/// Bytes, as the program likes.
pub const PLAIN: u32 = 1;
/// Blocks with checksums.
pub const BLOCKS: u32 = 2;

/// Nobody may write to it.
pub const PROTECTED: u32 = 1;
/// It is being made, or was when the system or a process died.
pub const MAKING: u32 = 2;
/// It is attached for writing, or was when the system or a process died.
pub const WRITING: u32 = 4;

/// What users see, or places for blocks.
pub const DATA: u32 = 0;
/// Lanes and entries of blocks.
pub const HEAD: u32 = 1;

/// Bytes of a lane: a [`LaneHeader`], then two lists of blocks, a word each.
pub const LANE: usize = 36 << 10;
/// Where the words of the first list begin; those of the second one are behind it.
pub const LANE_LISTS: usize = 64;
/// Most blocks of a list: a mebibyte of the smallest.
pub const WRITES: usize = 2048;
/// Most bytes that are written at once.
pub const WRITE_BYTES: usize = 1 << 20;

/// A lane: where one writer at a time goes along. Numbers of writes have 52 bits, and above them 12 of a check.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LaneHeader {
    /// The last write that was begun.
    pub begun: U64,
    /// All up to this one last, whatever became of later ones.
    pub ended: U64,
    /// The last two writes of several blocks at once; the one with an even count of those before it is the first.
    pub lists: [ListHeader; 2],
}

/// A list of blocks.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListHeader {
    /// Which write, with its check.
    pub number: U64,
    /// How many words there are (32 bits), and the CRC-32C of `number`, the count and the words (32 bits).
    pub list: U64,
}

/// Of a word in a lane's list: the version, above the block.
pub const LIST_VERSION: u32 = 56;

/// Bytes of a block's two entries: a line.
pub const ENTRIES: usize = 2 * ENTRY;
/// Bytes of an entry: three words, and one that is not used.
pub const ENTRY: usize = 32;

/// The words of an entry.
pub type Words = [u64; 3];

/// Where there is no entry.
pub const NO_ENTRY: Words = [checked(0); 3];

/// Odd; what it is multiplied with changes in a bit, the upper bits of the product change.
pub const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

/// Bits of a word that its check covers.
const CHECKED: u32 = 48;

/// A word of an entry with its check: the upper bits of a product.
#[inline(always)]
pub const fn checked(word: u64) -> u64 {
    let word = word & ((1 << CHECKED) - 1);
    // Not zero, so that zeros are nobody's word.
    word | (!word).wrapping_mul(MIX) >> CHECKED << CHECKED | 1 << 63
}

/// Bits of a number of a write.
pub const NUMBER_BITS: u32 = 52;

/// A number with its check.
#[inline(always)]
pub const fn sealed(number: u64) -> u64 {
    number | (!number).wrapping_mul(MIX) >> NUMBER_BITS << NUMBER_BITS
}

/// The number, if it is one.
pub const fn unsealed(word: u64) -> Option<u64> {
    let number = word & ((1 << NUMBER_BITS) - 1);
    if sealed(number) == word { Some(number) } else { None }
}

const _: () = {
    assert!(sealed(0) != 0);
    assert!(size_of::<BaseHeader>() == 128);
    assert!(size_of::<SegmentRecord>() == 192);
    assert!(size_of::<ExtentRecord>() == 24);
    assert!(offset_of!(SegmentRecord, len) == 96 && offset_of!(SegmentRecord, writer) == 136);
    assert!(size_of::<LaneHeader>() <= LANE_LISTS && LANE_LISTS + 2 * WRITES * 8 <= LANE);
    assert!(offset_of!(LaneHeader, lists) == 16 && size_of::<ListHeader>() == 16);
    assert!(128 + SEGMENTS * 192 + EXTENTS * 24 <= COPY);
};
