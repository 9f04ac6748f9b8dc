//! The order in which a program touched what was mapped, as it was seen when the store was open before: a hint for
//! reading ahead. Nothing depends on it; one that is damaged, or another store's, is as none.
//!
//! ```text
//!  | header | run | run | ... |
//! ```

use super::Preamble;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Magic of the file.
pub const ORDER_MAGIC: [u8; 8] = *b"CALI-ORD";
/// Bytes of a unit: what the kernel maps at a touch, if the file's pages are in memory.
pub const ORDER_UNIT: u64 = 64 << 10;
/// Most runs of the file.
pub const ORDER_MAX: usize = 1 << 20;

/// Beginning of the file. The checksum covers all of it.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OrderHeader {
    /// Common beginning.
    pub preamble: Preamble,
    /// Runs that follow.
    pub count: U32,
    /// Zero.
    pub reserved: U32,
}

/// Units of a segment, touched one after the other or at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OrderRun {
    /// The segment.
    pub segment: U32,
    /// How many.
    pub count: U32,
    /// Number of the first: [`ORDER_UNIT`] bytes each, from the beginning of the segment's data.
    pub first: U64,
}

const _: () = assert!(size_of::<OrderHeader>() == 40 && size_of::<OrderRun>() == 16);
