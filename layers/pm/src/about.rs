//! What a region and its segments are to be, and are.

use crate::base::{Base, SegmentState};
use crate::format::{DATA, HEAD, PLAIN, PROTECTED, WRITING};
use crate::kind::Kind;
use caliburn_os::host;

/// How a region is made.
#[derive(Debug, Clone, Default)]
pub struct RegionOptions {
    /// Bytes of it; of a device, or a file that is there, all of it if this is none.
    pub len: Option<u64>,
    /// Bytes in which memory is given to segments: a power of two, 64 KiB to 1 GiB, and a multiple of what the
    /// memory can be mapped by. By default 2 MiB, and 64 KiB where the region is smaller than 1 GiB, or that.
    pub unit: Option<u32>,
    /// Makes it where there is one already.
    pub force: bool,
}

/// What a segment is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentKind {
    /// Bytes, copied or mapped.
    Plain,
    /// Blocks with checksums, written one or several at a time, wholly or not at all.
    Blocks {
        /// Bytes of a block: a power of two, 512 to 65,536.
        block_bytes: u32,
    },
}

/// How a segment is made.
#[derive(Debug, Clone)]
pub struct SegmentOptions {
    /// What it is made of.
    pub kind: SegmentKind,
    /// Who may read and write it, as for chmod(2).
    pub mode: u32,
    /// Where it is mapped each time, so that pointers in it hold; of plain segments.
    pub address: Option<u64>,
    /// Writers that go along side by side; of blocks.
    pub lanes: u32,
}

impl Default for SegmentOptions {
    fn default() -> SegmentOptions {
        SegmentOptions { kind: SegmentKind::Plain, mode: 0o600, address: None, lanes: 8 }
    }
}

/// What is known of a segment without attaching it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// Its name.
    pub name: String,
    /// What it is made of.
    pub kind: SegmentKind,
    /// Bytes that its users see.
    pub len: u64,
    /// Bytes of the region that it takes.
    pub taken: u64,
    /// Who may read and write it.
    pub mode: u32,
    /// Whose it is.
    pub uid: u32,
    /// And of which group.
    pub gid: u32,
    /// Whether nobody may write to it.
    pub protected: bool,
    /// Where it is mapped, if that was asked for.
    pub address: Option<u64>,
    /// When it was made: nanoseconds since 1970.
    pub created: u64,
    /// When it was last attached for writing, or given up after that; 0 if never.
    pub written: u64,
    /// By whom.
    pub writer: String,
    /// Whether it is attached for writing, or was when its user died.
    pub writing: bool,
    /// Whether the system was started since.
    pub from_before: bool,
}

/// What a region is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionInfo {
    /// Identifies it.
    pub id: host::Id,
    /// Bytes of it.
    pub len: u64,
    /// Bytes of the medium, to which it can grow.
    pub medium_len: u64,
    /// Bytes in which memory is given to segments.
    pub unit: u32,
    /// Bytes that are nobody's.
    pub free: u64,
    /// What it is on, and survives.
    pub kind: Kind,
    /// Of the two copies of the base segment, why one does not count. The next change makes it again.
    pub damage: [Option<String>; 2],
}

/// Whether a segment was written to in another boot: as the boot ids say, and where there is none, the clock.
fn is_from_before(segment: &SegmentState, boot: host::Id) -> bool {
    if segment.boot != boot || boot != host::Id::default() {
        return segment.boot != boot;
    }
    host::clock().is_some_and(|clock| i64::try_from(segment.written).is_ok_and(|at| at < clock.began))
}

pub(crate) fn info_of(base: &Base, segment: &SegmentState, boot: host::Id) -> SegmentInfo {
    let bytes = |part| base.bytes_of(segment.id, part).iter().map(|part| part.end - part.start).sum::<u64>();
    SegmentInfo {
        name: segment.name.clone(),
        kind: match segment.kind {
            PLAIN => SegmentKind::Plain,
            _ => SegmentKind::Blocks { block_bytes: segment.block_bytes },
        },
        len: segment.len,
        taken: bytes(HEAD) + bytes(DATA),
        mode: segment.mode,
        uid: segment.uid,
        gid: segment.gid,
        protected: segment.flags & PROTECTED != 0,
        address: (segment.address != 0).then_some(segment.address),
        created: segment.created,
        written: segment.written,
        writer: segment.writer.clone(),
        writing: segment.flags & WRITING != 0,
        from_before: segment.written != 0 && is_from_before(segment, boot),
    }
}
