//! Reads, writes, flushes, trims: one connection.

use super::negotiation::{negotiate, skip};
use super::socket::{Hurried, Socket};
use super::wire::{EIO, EPERM, Kind, Reply, Request, RequestHeader, check};
use crate::error::{Error, Result};
use crate::export::Export;
use std::io::{self, BufReader, Read, Write};
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// Serves a client until it goes. An error: it did not go as it should. `time`: how long they may take to agree
/// on the export; `agreed`: before the client is told that they have.
pub(super) fn serve(
    export: &Export,
    socket: Socket,
    time: Option<Duration>,
    agreed: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let mut hurried = Hurried::new(socket, time);
    let has_agreed = negotiate(export, &mut hurried, agreed)?;
    let socket = hurried.into_inner()?;
    if has_agreed { transmit(export, socket) } else { Ok(()) }
}

/// The same, when they have agreed on the export.
pub(super) fn transmit(export: &Export, mut socket: Socket) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(64 << 10, socket.try_clone()?);
    // A reply, and behind it the bytes of a read.
    let mut buffer = Vec::new();
    while let Some(header) = next(&mut reader)? {
        const HEAD: usize = size_of::<Reply>();
        let request = match check(&header, export.blocks.bytes())? {
            Ok(request) => request,
            Err(refused) => {
                skip(&mut reader, u64::from(refused.skip))?;
                socket.write_all(Reply::of(refused.cookie, refused.error).as_bytes())?;
                continue;
            }
        };
        if request.kind == Kind::Disconnect {
            break;
        }
        let carried = if matches!(request.kind, Kind::Read | Kind::Write) { request.len as usize } else { 0 };
        if request.kind == Kind::Write {
            // As they come: who says that there will be many need not send them. And a client that vanishes in the
            // middle has written nothing.
            buffer.resize(HEAD, 0);
            let come = (&mut reader).take(carried as u64).read_to_end(&mut buffer)?;
            if come < carried {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        buffer.resize(HEAD + carried, 0);
        let (head, bytes) = buffer.split_at_mut(HEAD);
        let error = act(export, &request, bytes).map_or_else(|error| number_of(&error), |()| 0);
        head.copy_from_slice(Reply::of(request.cookie, error).as_bytes());
        let sent = if request.kind == Kind::Read && error == 0 { HEAD + carried } else { HEAD };
        socket.write_all(&buffer[..sent])?;
        if buffer.capacity() > KEPT {
            buffer = Vec::new();
        }
    }
    Ok(())
}

/// Bytes of memory that a connection keeps between two requests.
const KEPT: usize = 1 << 20;

/// The next request; none if the client is gone between two of them.
fn next(reader: &mut BufReader<Socket>) -> io::Result<Option<RequestHeader>> {
    let mut header = RequestHeader::new_zeroed();
    let first = reader.read(&mut header.as_mut_bytes()[..1])?;
    if first == 0 {
        return Ok(None);
    }
    reader.read_exact(&mut header.as_mut_bytes()[1..])?;
    Ok(Some(header))
}

fn act(export: &Export, request: &Request, bytes: &mut [u8]) -> Result<()> {
    let blocks = &export.blocks;
    match request.kind {
        Kind::Read => return blocks.read_bytes(request.offset, bytes),
        Kind::Write => blocks.write_bytes(request.offset, bytes, export.at_once)?,
        Kind::Trim | Kind::WriteZeroes => blocks.clear_bytes(request.offset, u64::from(request.len))?,
        Kind::Flush => return blocks.flush(),
        Kind::Disconnect => return Ok(()),
    }
    if request.fua { blocks.flush() } else { Ok(()) }
}

/// What a client is told.
fn number_of(error: &Error) -> u32 {
    tracing::warn!(%error, "a request failed");
    if matches!(error, Error::ReadOnly(_)) { EPERM } else { EIO }
}
