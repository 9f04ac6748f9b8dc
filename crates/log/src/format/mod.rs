//! Every byte that Caliburn puts on a medium, once: docs/format.md is the same table in prose.
//!
//! All integers are little-endian. Every structure carries a magic or kind, a version, and a CRC-32C over
//! everything but the checksum itself. Addresses of memory are never stored in the log; the catalog
//! stores the address that the segment loader promised, and nothing else does.

mod backup;
mod generations;
mod images;
mod order;
mod witnesses;

pub use backup::*;
use caliburn_os::host::Id;
pub use generations::*;
pub use images::*;
pub use order::*;
use std::fmt;
pub use witnesses::*;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of all formats below, but for those that have one of their own. A store with another one is refused.
pub const VERSION: u32 = 1;
/// Version of a sums file that says of each unit when it was written; the other one is [`VERSION`].
pub const STAMPED_SUMS: u32 = 2;
/// Version of a dump that can be the base of another one; the other one is [`VERSION`].
pub const DUMP_VERSION: u32 = 2;

/// Position in the endless log: a byte count that never goes back. Its place on the medium is
/// `LOG_DATA + lsn % capacity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// Number of a segment within its store; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Everything in the log starts on a multiple of this many bytes.
pub const ALIGN: usize = 8;
/// Size of a block that is written whole: status pages and headers.
pub const BLOCK: usize = 4096;
/// Where the ring begins on the log's medium; the status pages stand before it.
pub const LOG_DATA: u64 = 64 * 1024;
/// Offsets of the twin status pages.
pub const STATUS_AT: [u64; 2] = [0, BLOCK as u64];
/// Smallest ring.
pub const LOG_BYTES_MIN: u64 = 64 * 1024;
/// Largest ring.
pub const LOG_BYTES_MAX: u64 = 1 << 40;
/// No log becomes so long.
pub const LSN_MAX: u64 = 1 << 62;
/// No stamp of a commit becomes so great, and no generation of a status page.
pub const COUNT_MAX: u64 = 1 << 62;
/// Offset of a segment's first data byte on its medium; the header stands before it.
pub const SEGMENT_DATA: u64 = 64 * 1024;
/// Bytes of segment data under one checksum.
pub const SUM_UNIT: usize = 4096;
/// Offset of the first checksum in a sums file.
pub const SUMS_DATA: u64 = BLOCK as u64;

/// Magic of a log's status page.
pub const LOG_MAGIC: [u8; 8] = *b"CALI-LOG";
/// Magic of a segment's header.
pub const SEGMENT_MAGIC: [u8; 8] = *b"CALI-SEG";
/// Magic of a sums file.
pub const SUMS_MAGIC: [u8; 8] = *b"CALI-SUM";
/// Magic of a catalog.
pub const CATALOG_MAGIC: [u8; 8] = *b"CALI-CAT";
/// Magic of a file of undo logs.
pub const UNDO_MAGIC: [u8; 8] = *b"CALI-UND";
/// Of the file of undecided transactions, beside undo logs.
pub const PREPARED_MAGIC: [u8; 8] = *b"CALI-PRE";
/// Magic of a stage.
pub const STAGE_MAGIC: [u8; 8] = *b"CALI-STG";
/// Magic of a dump.
pub const DUMP_MAGIC: [u8; 8] = *b"CALI-DMP";
/// Magic of a part of the log in an archive.
pub const ARCHIVE_MAGIC: [u8; 8] = *b"CALI-ARC";
/// Magic of what a store in use tells other processes.
pub const BOARD_MAGIC: [u8; 8] = *b"CALI-BRD";
/// Magic of what says which dumps others can be laid over.
pub const MARKS_MAGIC: [u8; 8] = *b"CALI-MRK";
/// Magic of what says how far the log is in its archive.
pub const HOLD_MAGIC: [u8; 8] = *b"CALI-HLD";
/// Magic of what says which media have the log.
pub const COPIES_MAGIC: [u8; 8] = *b"CALI-DUP";

/// What every block begins with.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Preamble {
    /// Which structure this is.
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: U32,
    /// CRC-32C of the whole structure with this field zero.
    pub crc: U32,
    /// The store that it belongs to.
    pub store: Id,
}

/// Head of what says which media have the log; that many [`CopyEntry`] follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CopiesHeader {
    /// Common beginning. The checksum covers the whole file.
    pub preamble: Preamble,
    /// How many.
    pub count: U32,
}

/// One of them; its path follows.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CopyEntry {
    /// Numbers that a copy of the file does not have. Zeros: not known.
    pub place: [U64; 2],
    /// Bytes of the path.
    pub path: U32,
    /// 1: it was lost, and is not one of them any more.
    pub lost: U32,
}

/// A log's status page; two of them, written in turn. The one with the greater generation counts.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Status {
    /// Common beginning.
    pub preamble: Preamble,
    /// Counts the writes of status pages.
    pub generation: U64,
    /// Bytes of the ring.
    pub capacity: U64,
    /// Oldest record still needed.
    pub head: U64,
    /// At least this much of the log had been forced when this page was written.
    pub forced: U64,
    /// Counts the openings for writing: records of an earlier one, beyond a torn tail, are never taken up.
    pub incarnation: U32,
    /// 1 after an orderly close, when the log is empty.
    pub clean: U32,
    /// The tail when this incarnation began: records from here on are of this incarnation.
    pub opened: U64,
    /// This file when it began: inode and birth, in nanoseconds since 1970. Zeros: unknown.
    pub place: [U64; 2],
    /// The store's generation when this was written; 0 if it has none.
    pub store_generation: U64,
}

/// Head of a log record. Range headers with their bytes follow, then a [`Trailer`].
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RecordHeader {
    /// CRC-32C of the record from `kind` to the end of the trailer.
    pub crc: U32,
    /// A [`crate::record::Kind`].
    pub kind: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Length of the record from header to trailer, in units of [`ALIGN`] bytes.
    pub units: U32,
    /// [`Status::incarnation`] at the time of writing.
    pub incarnation: U32,
    /// Where this record is: a record of an earlier lap is never mistaken for a new one.
    pub lsn: U64,
    /// Nanoseconds since 1970 when the record was put into the log.
    pub time: U64,
}

/// Head of a modification range in a record; its bytes follow, padded with zeros to [`ALIGN`].
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RangeHeader {
    /// The segment.
    pub segment: U32,
    /// Bytes.
    pub len: U32,
    /// Offset in the segment's data.
    pub offset: U64,
}

/// End of a record, for reading backwards.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Trailer {
    /// As in the header.
    pub units: U32,
    /// How far before this record's LSN the log was certainly forced when this record was written, in
    /// units of [`ALIGN`]. A gap in front of that point is damage, not a torn tail.
    pub unforced: U32,
}

/// Head of a segment's medium. Never changes after creation.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SegmentHeader {
    /// Common beginning.
    pub preamble: Preamble,
    /// Number in the store.
    pub id: U32,
    /// Zero.
    pub reserved: U32,
    /// Offset of the first data byte.
    pub data: U64,
}

/// Head of a sums file. An entry per [`SUM_UNIT`] bytes of the segment follows at [`SUMS_DATA`]: a little-endian
/// `u32`, 0 for a unit never written (all zeros), else its CRC-32C (1 where that is 0); in version
/// [`STAMPED_SUMS`] a [`StampedSum`].
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SumsHeader {
    /// Common beginning.
    pub preamble: Preamble,
    /// Number of the segment.
    pub id: U32,
    /// [`SUM_UNIT`].
    pub unit: U32,
}

/// Entry of a sums file of version [`STAMPED_SUMS`].
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StampedSum {
    /// As in the first version.
    pub sum: U32,
    /// CRC-32C of `sum` and `before`; 0 in an entry of zeros.
    pub check: U32,
    /// The unit has no changes of the log from this LSN on.
    pub before: U64,
}

impl StampedSum {
    /// What is said of a unit.
    pub fn new(sum: u32, before: Lsn) -> StampedSum {
        let mut entry = StampedSum { sum: sum.into(), check: 0.into(), before: before.0.into() };
        entry.check = entry.computed().into();
        entry
    }

    fn computed(&self) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(self.sum.as_bytes()), self.before.as_bytes())
    }

    /// Whether it is one that was written, or that of a unit that never was.
    pub fn is_sound(&self) -> bool {
        self.as_bytes() == [0; size_of::<StampedSum>()] || self.check == self.computed()
    }
}

/// Head of the catalog file. In version [`COUNTED_CATALOG`] a u64 follows, how often the catalog was changed; then
/// the path of the log, and `count` [`CatalogEntry`]s, each with its name and path.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CatalogHeader {
    /// Common beginning; the checksum covers the whole file.
    pub preamble: Preamble,
    /// Bytes of the file.
    pub len: U64,
    /// Segments.
    pub count: U32,
    /// Number for the next segment.
    pub next: U32,
    /// Bytes of the path of the log, which follows this header. Relative to the store; none with the undo policy.
    pub log_path: U16,
    /// The recovery policy: 0 redo, 1 undo.
    pub policy: U16,
    /// With the shadow policy 1 if segments have sums beside them; else 0.
    pub sums: U32,
}

/// One segment in the catalog.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CatalogEntry {
    /// Number.
    pub id: U32,
    /// Bytes of the name, which follows this structure.
    pub name: U16,
    /// Bytes of the path, which follows the name. Relative to the store.
    pub path: U16,
    /// Bytes of data.
    pub len: U64,
    /// Address at which the segment loader maps the segment; 0 if it never did.
    pub address: U64,
    /// Where its data begin in the file: [`SEGMENT_DATA`], behind a header; or 0, in a file that is nothing but
    /// data.
    pub data: U64,
}

/// Head of the file of undecided transactions, which stands beside undo logs; `count` [`PreparedEntry`]s follow,
/// each with its identifier, padded to eight bytes, and its body.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PreparedHeader {
    /// Common beginning; the checksum covers the whole file.
    pub preamble: Preamble,
    /// Bytes of the file.
    pub len: U64,
    /// Transactions.
    pub count: U64,
}

/// One undecided transaction.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PreparedEntry {
    /// When it was prepared, nanoseconds since 1970.
    pub time: U64,
    /// Bytes of the body: the new values, as ranges of a record.
    pub body: U64,
    /// Bytes of the identifier.
    pub id: U16,
    /// Zero.
    pub reserved: [u8; 6],
}

/// Status page of a store's undo logs; two of them, written in turn. Chunks follow at [`UNDO_DATA`].
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UndoStatus {
    /// Common beginning.
    pub preamble: Preamble,
    /// Counts the writes of status pages.
    pub generation: U64,
    /// The boot whose processes use the store, or used it last.
    pub boot: Id,
    /// Bytes of a chunk.
    pub chunk_bytes: U32,
    /// 1 after an orderly close: nothing is uncommitted, and every segment is forced.
    pub clean: U32,
    /// 1: the memory is persistent and ranges are sealed.
    pub sealed: U32,
    /// Zero.
    pub reserved: [u8; 4],
    /// As [`Status::place`].
    pub place: [U64; 2],
    /// As [`Status::store_generation`].
    pub store_generation: U64,
    /// Zero.
    pub unused: [u8; 32],
    /// What was noted with the boot.
    pub witnesses: WitnessRecord,
}

/// Offset of the number of chunks, a native word: the file may be longer, not shorter.
pub const UNDO_COUNT: u64 = 8192;
/// Offset of a native word: 1 while an opening asks whether writes were lost. Found so, whoever asked was killed,
/// and may have been told. It stays so until the store was closed in good order.
pub const UNDO_ASKED: u64 = UNDO_COUNT + 8;
/// Offset of the first chunk of undo logs.
pub const UNDO_DATA: u64 = 64 << 10;
/// Bytes of a chunk's head; ranges follow. Native words of eight bytes:
///
/// * 0, of a log's first chunk: 32 bits of the number of its transaction, 32 bits of how many bytes of ranges
///   are valid. Storing it with no bytes commits.
/// * 8, of a further chunk: the number of the first one plus 1 in the upper 32 bits, and the number of the
///   transaction that it is of.
/// * 16, of a further chunk: its ordinal in that log, from 1, and how many bytes of ranges are valid, 32 bits
///   each.
///
/// Sealed ranges are counted by nobody: the lower 32 bits of the first and the third word are 0, and behind each
/// range stands its seal.
pub const UNDO_HEAD: usize = 64;
/// Offsets of these words.
pub const UNDO_FIRST: usize = 0;
/// See [`UNDO_HEAD`].
pub const UNDO_OWNER: usize = 8;
/// See [`UNDO_HEAD`].
pub const UNDO_FURTHER: usize = 16;

/// Head of the stage. Lives in memory that survives the process, not a reboot; chunks follow at
/// [`BLOCK`]. Integers that change while the store is open are native atomics beyond this structure.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StageHeader {
    /// Common beginning.
    pub preamble: Preamble,
    /// The boot whose processes wrote this stage.
    pub boot: Id,
    /// Bytes of a chunk.
    pub chunk_bytes: U64,
    /// Number of chunks.
    pub chunks: U64,
}

/// Offset of a native atomic that says which of the stage's two frontiers counts, 0 or 1; or [`STAGE_MAKING`].
pub const STAGE_CURRENT: usize = 256;
/// Offsets of the two frontiers, two native words each: records stamped before the first are in the log,
/// which ends at the second.
pub const STAGE_FRONTIERS: [usize; 2] = [264, 280];
/// Offsets of two native words: the segments, as this boot's programs see them, show all of the log before the
/// position in the first one (0: nothing is known), as long as they lie in the page caches of which the second
/// is a digest.
pub const STAGE_CHECKPOINT: usize = 296;
/// See [`STAGE_CHECKPOINT`].
pub const STAGE_CACHES: usize = 304;
/// Offset of a native word, as [`UNDO_ASKED`]; 2 if the system has reported a loss, and the opening that heard it
/// has not ended yet.
pub const STAGE_ASKED: usize = 312;
/// Offset of a second copy of the boot's identity, in another sector: whatever a power cut leaves of a header, it
/// takes both copies to say that the stage is of another boot.
pub const STAGE_BOOT: usize = 2048;
/// Offset of a native word: the store's generation in which the stage was made; 0 if it has none.
pub const STAGE_GENERATION: usize = 128;
/// The stage is being made: nothing is staged, whatever the header and the chunks hold.
pub const STAGE_MAKING: u64 = 2;
/// Bytes of a chunk's head: the count of published bytes (a native atomic) and nothing else.
pub const CHUNK_HEAD: usize = 64;

/// Head of a record in the stage; the same ranges follow as in the log.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StagedHeader {
    /// The commit's place in time.
    pub stamp: U64,
    /// Bytes of the ranges that follow.
    pub len: U64,
}

const _: () = {
    assert!(size_of::<Preamble>() == 32);
    assert!(size_of::<Status>() == 104);
    assert!(size_of::<RecordHeader>() == 32 && size_of::<RecordHeader>().is_multiple_of(ALIGN));
    assert!(size_of::<RangeHeader>() == 16 && size_of::<RangeHeader>().is_multiple_of(ALIGN));
    assert!(size_of::<Trailer>() == 8);
    assert!(size_of::<SegmentHeader>() == 48);
    assert!(size_of::<SumsHeader>() == 40);
    assert!(size_of::<StampedSum>() == 16 && BLOCK.is_multiple_of(size_of::<StampedSum>()));
    assert!(size_of::<CatalogHeader>() == 56);
    assert!(size_of::<CatalogEntry>() == 32);
    assert!(size_of::<UndoStatus>() == 192 && UNDO_DATA >= 2 * BLOCK as u64);
    assert!(std::mem::offset_of!(UndoStatus, witnesses) == UNDO_WITNESSES);
    assert!(size_of::<StageHeader>() == STAGE_WITNESSES[0] && STAGE_CURRENT >= STAGE_WITNESSES[0] + 64);
    assert!(size_of::<StagedHeader>() == 16);
};

/// `len` rounded up to [`ALIGN`].
#[inline(always)]
pub const fn padded(len: usize) -> usize {
    (len + ALIGN - 1) & !(ALIGN - 1)
}

/// Bytes that a range of `len` bytes takes in a record.
#[inline(always)]
pub const fn range_bytes(len: usize) -> usize {
    size_of::<RangeHeader>() + padded(len)
}

/// What is wrong with a block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// Not the structure that was looked for.
    #[error("it does not begin with {expected:?}: not a Caliburn {what}, or overwritten")]
    Magic {
        /// The magic expected.
        expected: String,
        /// The structure expected.
        what: &'static str,
    },
    /// Written by another version.
    #[error("its format version is {found}, which this program does not know: use the program that wrote it")]
    Version {
        /// The version found.
        found: u32,
    },
    /// The checksum does not match.
    #[error("its checksum does not match: the medium was damaged or overwritten")]
    Checksum,
    /// It belongs to another store.
    #[error("it belongs to another store ({found}), not to this one ({expected})")]
    Foreign {
        /// Identity found.
        found: String,
        /// Identity expected.
        expected: String,
    },
    /// It is not of the same time as the store's other files.
    #[error(
        "it is an older copy: its generation is {found}, and the store's other files say {wanted}. Put the present file back, or go back to a whole copy of the store"
    )]
    Older {
        /// What it says.
        found: u64,
        /// What it must say at least.
        wanted: u64,
    },
    /// A value is out of its bounds.
    #[error("{0}")]
    Value(String),
}

/// An identity in hexadecimal.
pub fn hex(id: &Id) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What [`hex`] has written.
pub fn unhex(text: &str) -> Option<Id> {
    let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
    bytes?.try_into().ok()
}

/// Fills in a preamble and the checksum over `bytes`, which begin with it.
pub fn seal(bytes: &mut [u8], magic: [u8; 8], store: Id) {
    seal_as(bytes, magic, VERSION, store);
}

/// The same, of a structure with a version of its own.
pub fn seal_as(bytes: &mut [u8], magic: [u8; 8], version: u32, store: Id) {
    let preamble = Preamble { magic, version: version.into(), crc: 0.into(), store };
    bytes[..size_of::<Preamble>()].copy_from_slice(preamble.as_bytes());
    let crc = crc32c::crc32c(bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
}

/// Verifies what [`seal`] wrote. `store` is compared if known.
pub fn unseal(
    bytes: &[u8],
    magic: [u8; 8],
    what: &'static str,
    store: Option<&Id>,
) -> Result<Preamble, Defect> {
    unseal_any(bytes, magic, &[VERSION], what, store)
}

/// Verifies what [`seal_as`] wrote in one of these versions.
pub fn unseal_any(
    bytes: &[u8],
    magic: [u8; 8],
    versions: &[u32],
    what: &'static str,
    store: Option<&Id>,
) -> Result<Preamble, Defect> {
    let bad_magic = || Defect::Magic { expected: String::from_utf8_lossy(&magic).into_owned(), what };
    let (preamble, _) = Preamble::read_from_prefix(bytes).map_err(|_| bad_magic())?;
    if preamble.magic != magic {
        return Err(bad_magic());
    }
    if !versions.contains(&preamble.version.get()) {
        return Err(Defect::Version { found: preamble.version.get() });
    }
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &[0; 4]);
    if crc32c::crc32c_append(crc, &bytes[16..]) != preamble.crc.get() {
        return Err(Defect::Checksum);
    }
    match store {
        Some(store) if *store != preamble.store => {
            Err(Defect::Foreign { found: hex(&preamble.store), expected: hex(store) })
        }
        _ => Ok(preamble),
    }
}

/// The sum of one unit of data in a sums file.
pub fn unit_sum(unit: &[u8]) -> u32 {
    crc32c::crc32c(unit).max(1)
}
