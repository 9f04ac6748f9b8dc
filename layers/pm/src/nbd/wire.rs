//! What is said, byte by byte: big-endian, and checked where it is read.

use std::io;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a server says first.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Greeting {
    pub magic: [u8; 8],
    pub options: [u8; 8],
    pub flags: U16,
}

/// The only greeting that this server knows: the fixed new style; no zeros behind an export.
pub(super) const NEW_STYLE: u16 = 1;
pub(super) const NO_ZEROES: u16 = 2;
pub(super) const MAGIC: [u8; 8] = *b"NBDMAGIC";
pub(super) const OPTIONS: [u8; 8] = *b"IHAVEOPT";

/// An option that a client asks for; so many bytes follow.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct OptionHeader {
    pub magic: [u8; 8],
    pub option: U32,
    pub len: U32,
}

pub(super) const EXPORT_NAME: u32 = 1;
pub(super) const ABORT: u32 = 2;
pub(super) const LIST: u32 = 3;
pub(super) const INFO: u32 = 6;
pub(super) const GO: u32 = 7;
/// Most bytes of an option.
pub(super) const OPTION_MAX: u32 = 64 << 10;

/// The answer to an option; so many bytes follow.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct OptionReply {
    pub magic: U64,
    pub option: U32,
    pub kind: U32,
    pub len: U32,
}

pub(super) const REPLY_MAGIC: u64 = 0x0003_E889_0455_65A9;
pub(super) const ACK: u32 = 1;
pub(super) const SERVER: u32 = 2;
pub(super) const INFORMATION: u32 = 3;
pub(super) const UNSUPPORTED: u32 = 1 << 31 | 1;
pub(super) const INVALID: u32 = 1 << 31 | 3;
pub(super) const UNKNOWN: u32 = 1 << 31 | 6;
pub(super) const TOO_BIG: u32 = 1 << 31 | 9;

/// What an export is, as a kind of information.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct ExportInformation {
    pub kind: U16,
    pub len: U64,
    pub flags: U16,
}

/// How long requests may be.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct SizeInformation {
    pub kind: U16,
    pub least: U32,
    pub preferred: U32,
    pub most: U32,
}

pub(super) const OF_EXPORT: u16 = 0;
pub(super) const OF_SIZES: u16 = 3;

/// What an export can do.
pub(super) const HAS_FLAGS: u16 = 1;
pub(super) const READ_ONLY: u16 = 2;
pub(super) const CAN_FLUSH: u16 = 4;
pub(super) const CAN_FUA: u16 = 8;
pub(super) const CAN_TRIM: u16 = 32;
pub(super) const CAN_WRITE_ZEROES: u16 = 64;
pub(super) const CAN_MULTI_CONN: u16 = 256;

/// A request; the bytes of a write follow.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RequestHeader {
    pub magic: U32,
    pub flags: U16,
    pub kind: U16,
    pub cookie: U64,
    pub offset: U64,
    pub len: U32,
}

pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Most bytes that are read or written by a request.
pub(super) const REQUEST_MAX: u32 = 32 << 20;

/// What a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    WriteZeroes,
}

/// A request that can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub kind: Kind,
    pub cookie: u64,
    pub offset: u64,
    pub len: u32,
    /// It must last before it is answered.
    pub fua: bool,
}

/// What is wrong with a request: the client is told, and goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused {
    pub cookie: u64,
    pub error: u32,
    /// So many bytes follow that nobody wants.
    pub skip: u32,
}

pub(super) const EPERM: u32 = 1;
pub(super) const EIO: u32 = 5;
pub(super) const EINVAL: u32 = 22;
pub(super) const ENOSPC: u32 = 28;

const FUA: u16 = 1;
/// Zeros need not leave a hole.
const NO_HOLE: u16 = 2;
/// Zeros are wanted only if they are made faster than they are written.
const FAST_ZERO: u16 = 16;

/// Checks a request, for an export of so many bytes. An error: what follows is not known, so the connection ends.
pub(super) fn check(header: &RequestHeader, export_len: u64) -> io::Result<Result<Request, Refused>> {
    let garbage = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    if header.magic.get() != REQUEST_MAGIC {
        return Err(garbage(format!("a request that begins with {:#x}", header.magic)));
    }
    let (cookie, offset, len, flags) =
        (header.cookie.get(), header.offset.get(), header.len.get(), header.flags.get());
    let (kind, may) = match header.kind.get() {
        0 => (Kind::Read, FUA),
        1 => (Kind::Write, FUA),
        2 => (Kind::Disconnect, FUA),
        3 => (Kind::Flush, FUA),
        4 => (Kind::Trim, FUA),
        6 => (Kind::WriteZeroes, FUA | NO_HOLE | FAST_ZERO),
        _ => return Ok(Err(Refused { cookie, error: EINVAL, skip: 0 })),
    };
    let carries = kind == Kind::Write;
    if (carries || kind == Kind::Read) && len > REQUEST_MAX {
        return Err(garbage(format!("a request of {len} bytes, and at most {REQUEST_MAX} were offered")));
    }
    let skip = if carries { len } else { 0 };
    let inside = offset.checked_add(u64::from(len)).is_some_and(|end| end <= export_len);
    let sized = matches!(kind, Kind::Flush | Kind::Disconnect) || inside;
    if flags & !may != 0 || !sized {
        let error = if !sized && kind != Kind::Read { ENOSPC } else { EINVAL };
        return Ok(Err(Refused { cookie, error, skip }));
    }
    Ok(Ok(Request { kind, cookie, offset, len, fua: flags & FUA != 0 }))
}

/// The answer to a request; the bytes of a read follow.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Reply {
    pub magic: U32,
    pub error: U32,
    pub cookie: U64,
}

impl Reply {
    pub fn of(cookie: u64, error: u32) -> Reply {
        Reply { magic: 0x6744_6698.into(), error: error.into(), cookie: cookie.into() }
    }
}

const _: () = {
    assert!(size_of::<Greeting>() == 18 && size_of::<OptionHeader>() == 16 && size_of::<OptionReply>() == 20);
    assert!(size_of::<ExportInformation>() == 12 && size_of::<SizeInformation>() == 14);
    assert!(size_of::<RequestHeader>() == 28 && size_of::<Reply>() == 16);
};
