//! What dumps and archives consist of, and what a store keeps of them beside its log; and what it tells others.

use super::Preamble;
use caliburn_os::host::Id;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Head of a dump; pieces follow, each with a [`PieceHeader`]. In version [`VERSION`](super::VERSION) it ends
/// before `id`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DumpHeader {
    /// Common beginning, with the identity of the store that was dumped.
    pub preamble: Preamble,
    /// When it was begun, nanoseconds since 1970.
    pub time: U64,
    /// The segments have all changes of the log before this LSN; from here on it is in the dump.
    pub from: U64,
    /// Identity of the dump.
    pub id: Id,
    /// Identity of the dump that this one is to be laid over. Zeros: it is whole.
    pub base: Id,
    /// Where that one ends.
    pub base_lsn: U64,
}

/// Head of a piece of a dump; its bytes follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PieceHeader {
    /// CRC-32C of all that follows up to the end of the piece's bytes.
    pub crc: U32,
    /// A [`crate::dump::Kind`].
    pub kind: U32,
    /// Counts the pieces, from 0.
    pub number: U64,
    /// Bytes that follow.
    pub len: U64,
    /// Of data the segment, else 0.
    pub segment: U32,
    /// Zero.
    pub reserved: U32,
    /// Of data the offset in the segment, of a part of the log its LSN, else 0.
    pub at: U64,
}

/// Bytes of the last piece of a dump.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DumpEnd {
    /// The dump is of the moment when the log ended here.
    pub lsn: U64,
    /// When that was, nanoseconds since 1970.
    pub time: U64,
    /// Time of the last record before it; 0: there is none in the dump.
    pub last: U64,
    /// Bytes of data.
    pub data: U64,
    /// Bytes of log.
    pub log: U64,
    /// Segments.
    pub segments: U64,
}

/// Head of a part of the log in an archive; a catalog follows, and whole records as they stand in the log.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ArchiveHeader {
    /// Common beginning. The checksum is that of this structure.
    pub preamble: Preamble,
    /// LSN of the first record.
    pub from: U64,
    /// LSN behind the last one.
    pub to: U64,
    /// Time of the first record, nanoseconds since 1970.
    pub first: U64,
    /// Time of the last one.
    pub last: U64,
    /// CRC-32C of catalog and records.
    pub sum: U32,
    /// Bytes of the catalog: it has all segments that the records name.
    pub catalog: U32,
}

/// What says how far the log is in its archive: it is kept from there on.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Hold {
    /// Common beginning.
    pub preamble: Preamble,
    /// The oldest record that is kept.
    pub lsn: U64,
    /// When archiving began, nanoseconds since 1970.
    pub since: U64,
    /// When it came to that record.
    pub moved: U64,
}

/// Says in a store of a dump that others can be laid over it: an entry of a [`Marks`].
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DumpMark {
    /// Identity of the dump. Zeros: none.
    pub id: Id,
    /// Where it ends.
    pub lsn: U64,
}

/// Dumps kept in mind.
pub const MARKS: usize = 128;

/// The dumps of a store that others can be laid over, the newest first.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Marks {
    /// Common beginning.
    pub preamble: Preamble,
    /// The dumps.
    pub dumps: [DumpMark; MARKS],
}

/// Head of what a store in use tells other processes; a text of `len` bytes follows.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Board {
    /// Common beginning. The checksum is that of this structure and the text.
    pub preamble: Preamble,
    /// When it was written, nanoseconds since 1970.
    pub time: U64,
    /// Bytes of the text.
    pub len: U64,
    /// The process.
    pub process: U32,
    /// Zero.
    pub reserved: U32,
}

const _: () = {
    assert!(size_of::<Board>() == 56);
    assert!(size_of::<DumpHeader>() == 88);
    assert!(size_of::<Marks>() == 32 + MARKS * 24);
    assert!(size_of::<PieceHeader>() == 40);
    assert!(size_of::<DumpEnd>() == 48);
    assert!(size_of::<ArchiveHeader>() == 72);
    assert!(size_of::<Hold>() == 56);
};
