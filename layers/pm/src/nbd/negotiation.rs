//! How a client and a server agree on an export.

use super::wire::{
    ABORT, ACK, CAN_FLUSH, CAN_FUA, CAN_MULTI_CONN, CAN_TRIM, CAN_WRITE_ZEROES, EXPORT_NAME,
    ExportInformation, GO, Greeting, HAS_FLAGS, INFO, INFORMATION, INVALID, LIST, MAGIC, NEW_STYLE,
    NO_ZEROES, OF_EXPORT, OF_SIZES, OPTION_MAX, OPTIONS, OptionHeader, OptionReply, READ_ONLY, REPLY_MAGIC,
    REQUEST_MAX, SERVER, SizeInformation, TOO_BIG, UNKNOWN, UNSUPPORTED,
};
use crate::export::Export;
use std::io::{self, Read, Write};
use zerocopy::big_endian::U32;
use zerocopy::{FromZeros, IntoBytes};

/// What an export can do.
pub(super) fn flags(export: &Export) -> u16 {
    let writes = CAN_FLUSH | CAN_FUA | CAN_TRIM | CAN_WRITE_ZEROES;
    HAS_FLAGS | CAN_MULTI_CONN | if export.blocks.is_writable() { writes } else { READ_ONLY }
}

/// Agrees on the export. False if the client wanted nothing, or went. `agreed`: before the client is told so.
pub(super) fn negotiate(
    export: &Export,
    socket: &mut (impl Read + Write),
    agreed: impl FnOnce() -> io::Result<()>,
) -> io::Result<bool> {
    let greeting = Greeting { magic: MAGIC, options: OPTIONS, flags: (NEW_STYLE | NO_ZEROES).into() };
    socket.write_all(greeting.as_bytes())?;
    let mut wanted = U32::ZERO;
    socket.read_exact(wanted.as_mut_bytes())?;
    if wanted.get() & u32::from(NEW_STYLE) == 0 || wanted.get() & !u32::from(NEW_STYLE | NO_ZEROES) != 0 {
        return Err(garbage(format!("a client that wants {:#x} of this protocol", wanted)));
    }
    let zeros = wanted.get() & u32::from(NO_ZEROES) == 0;
    loop {
        let mut header = OptionHeader::new_zeroed();
        socket.read_exact(header.as_mut_bytes())?;
        if header.magic != OPTIONS {
            return Err(garbage(format!("an option that begins with {:?}", header.magic)));
        }
        let (option, len) = (header.option.get(), header.len.get());
        if len > OPTION_MAX {
            skip(socket, u64::from(len))?;
            reply(socket, option, TOO_BIG, b"an option of so many bytes")?;
            continue;
        }
        let mut data = vec![0; len as usize];
        socket.read_exact(&mut data)?;
        match option {
            EXPORT_NAME if is_named(export, &data) => {
                let mut answer = export.blocks.bytes().to_be_bytes().to_vec();
                answer.extend(flags(export).to_be_bytes());
                answer.extend(std::iter::repeat_n(0, if zeros { 124 } else { 0 }));
                agreed()?;
                socket.write_all(&answer)?;
                return Ok(true);
            }
            // To this option there is no answer that says no.
            EXPORT_NAME => return Err(garbage("an export that there is not".into())),
            ABORT => {
                reply(socket, option, ACK, &[])?;
                return Ok(false);
            }
            LIST if data.is_empty() => {
                let name = export.name.as_bytes();
                reply(socket, option, SERVER, &[&(name.len() as u32).to_be_bytes(), name].concat())?;
                reply(socket, option, ACK, &[])?;
            }
            INFO | GO => match asked(&data) {
                None => reply(socket, option, INVALID, b"a name, and kinds of information")?,
                Some(name) if !is_named(export, name) => {
                    reply(socket, option, UNKNOWN, b"no export of that name")?
                }
                Some(_) if option == GO => {
                    agreed()?;
                    inform(export, socket, option)?;
                    return Ok(true);
                }
                Some(_) => inform(export, socket, option)?,
            },
            LIST => reply(socket, option, INVALID, b"nothing behind it")?,
            _ => reply(socket, option, UNSUPPORTED, &[])?,
        }
    }
}

/// Says what the export is.
fn inform(export: &Export, socket: &mut impl Write, option: u32) -> io::Result<()> {
    let information = ExportInformation {
        kind: OF_EXPORT.into(),
        len: export.blocks.bytes().into(),
        flags: flags(export).into(),
    };
    reply(socket, option, INFORMATION, information.as_bytes())?;
    let block = export.blocks.block_bytes() as u32;
    // Parts of blocks are served, too; whole ones are written without being read.
    let sizes = SizeInformation {
        kind: OF_SIZES.into(),
        least: 1.into(),
        preferred: block.into(),
        most: REQUEST_MAX.into(),
    };
    reply(socket, option, INFORMATION, sizes.as_bytes())?;
    reply(socket, option, ACK, &[])
}

/// The name in what a client asks for: its length, itself, how many kinds of information, and these.
fn asked(data: &[u8]) -> Option<&[u8]> {
    let (len, rest) = data.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    let (count, kinds) = rest.split_first_chunk::<2>()?;
    (kinds.len() == 2 * usize::from(u16::from_be_bytes(*count))).then_some(name)
}

fn is_named(export: &Export, name: &[u8]) -> bool {
    name.is_empty() || name == export.name.as_bytes()
}

fn reply(socket: &mut impl Write, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let header = OptionReply {
        magic: REPLY_MAGIC.into(),
        option: option.into(),
        kind: kind.into(),
        len: (data.len() as u32).into(),
    };
    socket.write_all(&[header.as_bytes(), data].concat())
}

/// Reads so many bytes that nobody wants.
pub(super) fn skip(socket: &mut impl Read, len: u64) -> io::Result<()> {
    let skipped = io::copy(&mut socket.take(len), &mut io::sink())?;
    if skipped == len { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn garbage(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
