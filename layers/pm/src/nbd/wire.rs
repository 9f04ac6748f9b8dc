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

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [u64; 5] = [0, 1, 1 << 63, u64::MAX - 1, u64::MAX];

    /// As the protocol's text has them: magic, flags, kind, cookie, offset, length.
    fn request(flags: u16, kind: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
        let magic = [0x25, 0x60, 0x95, 0x13];
        let parts: [&[u8]; 6] = [
            &magic,
            &flags.to_be_bytes(),
            &kind.to_be_bytes(),
            &cookie.to_be_bytes(),
            &offset.to_be_bytes(),
            &len.to_be_bytes(),
        ];
        parts.concat()
    }

    fn said(bytes: &[u8], export_len: u64) -> io::Result<Result<Request, Refused>> {
        check(&RequestHeader::read_from_bytes(bytes).unwrap(), export_len)
    }

    #[test]
    fn requests_are_read_at_every_corner() {
        let kinds = [Kind::Read, Kind::Write, Kind::Disconnect, Kind::Flush, Kind::Trim];
        let kinds = kinds.into_iter().zip(0u16..).chain([(Kind::WriteZeroes, 6)]);
        let lens = [0, 1, REQUEST_MAX, REQUEST_MAX + 1, u32::MAX];
        let exports = [0, 1, u64::from(u32::MAX), 1 << 63, u64::MAX];
        for ((kind, number), export) in kinds.flat_map(|kind| exports.map(|export| (kind, export))) {
            let ends = WORDS.into_iter().chain([export.saturating_sub(1), export]);
            for (offset, len) in ends.flat_map(|offset| lens.map(|len| (offset, len))) {
                for (flags, cookie) in [0, FUA, NO_HOLE, 1 << 15, u16::MAX].into_iter().zip(WORDS) {
                    let found = said(&request(flags, number, cookie, offset, len), export);
                    let carries = kind == Kind::Write;
                    if (carries || kind == Kind::Read) && len > REQUEST_MAX {
                        assert!(found.is_err());
                        continue;
                    }
                    let nowhere = matches!(kind, Kind::Flush | Kind::Disconnect);
                    let inside = nowhere || u128::from(offset) + u128::from(len) <= u128::from(export);
                    let may = flags & !FUA == 0 || kind == Kind::WriteZeroes && flags == NO_HOLE;
                    let expected = match (inside, may) {
                        (true, true) => Ok(Request { kind, cookie, offset, len, fua: flags == FUA }),
                        (false, _) if kind != Kind::Read => Err(ENOSPC),
                        _ => Err(EINVAL),
                    };
                    let skip = if carries { len } else { 0 };
                    let expected = expected.map_err(|error| Refused { cookie, error, skip });
                    assert_eq!(found.unwrap(), expected, "{kind:?} {offset} {len} {flags:#x} of {export}");
                }
            }
        }
        for kind in [5, 7, u16::MAX] {
            let refused = Refused { cookie: u64::MAX, error: EINVAL, skip: 0 };
            assert_eq!(said(&request(0, kind, u64::MAX, 0, 1), 1).unwrap(), Err(refused));
        }
        for bit in 0..32 {
            let mut bytes = request(0, 0, 0, 0, 1);
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(said(&bytes, 1).is_err(), "what follows is not known");
        }
    }

    #[test]
    fn answers_are_as_the_protocol_has_them() {
        for (cookie, error) in
            WORDS.into_iter().flat_map(|cookie| [0, EIO, u32::MAX].map(|error| (cookie, error)))
        {
            let expected =
                [&[0x67, 0x44, 0x66, 0x98], &error.to_be_bytes()[..], &cookie.to_be_bytes()].concat();
            assert_eq!(Reply::of(cookie, error).as_bytes(), expected);
        }
    }
}
