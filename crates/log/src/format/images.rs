//! The log of before-images (the shadow policy): how old pages stand on a medium until what replaced them is forced.
//!
//! ```text
//!  | status A | status B | ...64 KiB | head | page | page | ... | head | page | ... |
//! ```
//!
//! A batch is a head, which says of which pages the images behind it are, and those images. The head stands twice
//! in its block, each half with a checksum of its own: so that a head which is damaged can be told from one that
//! was never written whole. The batches of the present generation stand one behind the other from the beginning; a
//! status page of a new generation empties the log. Batches that one force brings to the medium are a group: of the
//! last group any may be missing, and what any has images of was not stored to.
//!
//! A status page may bring sums: those of pages that were committed before it, and that the sums files do not have
//! yet. They follow the status in its page if they fit; else they stand twice, behind one another, in the room of
//! the page's generation, or behind the images. A status page whose sums are not there does not count: it was not
//! written whole.

use super::{BLOCK, Preamble};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Magic of a status page.
pub const IMAGES_MAGIC: [u8; 8] = *b"CALI-IMS";
/// Magic of a batch's head.
pub const BATCH_MAGIC: [u8; 8] = *b"CALI-IMB";
/// Version of status pages and heads that may tell of groups. In [`VERSION`](super::VERSION) each batch is a group.
pub const IMAGES_VERSION: u32 = 2;
/// Version of a status page that brings sums.
pub const SUMMED_IMAGES: u32 = 3;
/// Offsets of the room for sums of a status page, by the last bit of its generation.
pub const SUMS_ROOM: [u64; 2] = [2 * BLOCK as u64, 9 * BLOCK as u64];
/// Most sums that follow the status in its page; few where crashes are simulated.
pub const SUMS_WITHIN: usize =
    if cfg!(caliburn_sim) { 1 } else { (HEAD_HALF - size_of::<ImagesStatus>()) / size_of::<PageSum>() };
/// Most that stand in the room for them.
pub const SUMS_WAITING: usize = if cfg!(caliburn_sim) { 3 } else { 3 * BLOCK / size_of::<PageSum>() };
/// Most batches of a group; few where crashes are simulated.
pub const GROUP_MAX: usize = if cfg!(caliburn_sim) { 2 } else { 1 << 14 };
/// Offset of the first batch.
pub const IMAGES_DATA: u64 = 64 << 10;
/// Bytes of an image, and of a page of a segment's data: whatever the size of the machine's pages.
pub const IMAGE: usize = BLOCK;
/// Most images of a batch; few where crashes are simulated.
pub const BATCH_MAX: usize =
    if cfg!(caliburn_sim) { 2 } else { (HEAD_HALF - size_of::<BatchHead>()) / size_of::<ImagePlace>() };
/// Bytes of each of the two copies of a head.
pub const HEAD_HALF: usize = BLOCK / 2;

/// Status page of a log of before-images; two of them, written in turn. It stands in both halves of its page:
/// damaged in one, it must not pass for one that was never written whole, which would take back a commit.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ImagesStatus {
    /// Common beginning.
    pub preamble: Preamble,
    /// Counts the writes of status pages. Batches of another generation are none.
    pub generation: U64,
    /// 1 after an orderly close.
    pub clean: U32,
    /// Zero.
    pub reserved: [u8; 4],
    /// As [`Status::place`](super::Status::place).
    pub place: [U64; 2],
    /// As [`Status::store_generation`](super::Status::store_generation).
    pub store_generation: U64,
    /// Where its sums stand; 0: behind it.
    pub sums_at: U64,
    /// How many there are.
    pub sums: U32,
    /// Checksum of those that stand elsewhere.
    pub sums_crc: U32,
}

/// The sum of a page that was committed.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PageSum {
    /// The segment.
    pub segment: U32,
    /// [`unit_sum`](super::unit_sum).
    pub sum: U32,
    /// Number of the page in the segment's data.
    pub page: U64,
}

/// Head of a batch: the beginning of each half of its first block. `count` [`ImagePlace`]s follow, then zeros.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BatchHead {
    /// Common beginning; the checksum covers the half.
    pub preamble: Preamble,
    /// Of the status page that counts while the batch is written.
    pub generation: U64,
    /// How many batches of that generation stand before it.
    pub ordinal: U32,
    /// How many images follow.
    pub count: U16,
    /// How many batches of its group stand before it.
    pub grouped: U16,
}

/// Which page an image is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ImagePlace {
    /// The segment.
    pub segment: U32,
    /// Checksum of the image.
    pub crc: U32,
    /// Number of the page in the segment's data, times 8192, and the bytes of the image that count: fewer than all
    /// where a file that was adopted ends within the page.
    pub page_and_len: U64,
}

const _: () = {
    assert!(size_of::<ImagesStatus>() == 88 && size_of::<PageSum>() == 16);
    // Two copies each.
    assert!(
        SUMS_ROOM[1] - SUMS_ROOM[0] >= 6 * BLOCK as u64 && SUMS_ROOM[1] + 6 * BLOCK as u64 <= IMAGES_DATA
    );
    assert!(size_of::<BatchHead>() == 48 && size_of::<ImagePlace>() == 16);
    assert!(size_of::<BatchHead>() + BATCH_MAX * size_of::<ImagePlace>() <= HEAD_HALF);
};
