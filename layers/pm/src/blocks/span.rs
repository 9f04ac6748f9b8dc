//! Bytes that need not be whole blocks, as other systems read and write disks.

use super::Blocks;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;

/// Part of a block: which, which bytes of it, and where they are in what is read or written.
struct Piece {
    block: u64,
    inside: Range<usize>,
    from: usize,
}

impl Blocks {
    /// The parts of blocks that bytes from an offset on are.
    fn pieces(&self, offset: u64, len: u64) -> Result<impl Iterator<Item = Piece> + use<>> {
        let size = self.geometry.block_bytes as u64;
        let end = offset.checked_add(len).filter(|end| *end <= self.bytes());
        let end = end.ok_or_else(|| Error::Range {
            what: "bytes",
            name: self.attached.name.clone(),
            start: offset,
            end: offset.saturating_add(len),
            len: self.bytes(),
        })?;
        Ok((offset / size..end.div_ceil(size)).filter(move |_| len > 0).map(move |block| {
            let (first, last) = (offset.max(block * size), end.min((block + 1) * size));
            let inside = (first - block * size) as usize..(last - block * size) as usize;
            Piece { block, inside, from: (first - offset) as usize }
        }))
    }

    /// Reads bytes, a block at a time.
    ///
    /// # Errors
    /// As [`Blocks::read`].
    pub fn read_bytes(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut whole = Vec::new();
        for Piece { block, inside, from } in self.pieces(offset, buffer.len() as u64)? {
            let part = &mut buffer[from..from + inside.len()];
            let _lock = self.locks.read_one(block);
            if part.len() == self.geometry.block_bytes {
                self.read_one(block, part)?;
            } else {
                whole.resize(self.geometry.block_bytes, 0);
                self.read_one(block, &mut whole)?;
                part.copy_from_slice(&whole[inside]);
            }
        }
        Ok(())
    }

    /// Writes bytes, each block wholly or not at all; `at_once`, where they are whole blocks, up to a mebibyte: all
    /// of them. What a block holds beside them stays.
    ///
    /// # Errors
    /// As [`Blocks::write`]; [`Error::Block`] where a part of a damaged block was to be written.
    pub fn write_bytes(&self, offset: u64, bytes: &[u8], at_once: bool) -> Result<()> {
        self.check_write()?;
        let pieces = self.pieces(offset, bytes.len() as u64)?;
        let size = self.geometry.block_bytes;
        if at_once
            && offset.is_multiple_of(size as u64)
            && bytes.len().is_multiple_of(size)
            && bytes.len() <= self.writes_max() * size
        {
            let writes: BTreeMap<u64, &[u8]> =
                pieces.map(|p| (p.block, &bytes[p.from..p.from + size])).collect();
            return self.commit(&writes);
        }
        pieces
            .into_iter()
            .try_for_each(|piece| self.write_piece(&piece, &bytes[piece.from..][..piece.inside.len()]))
    }

    fn write_piece(&self, piece: &Piece, bytes: &[u8]) -> Result<()> {
        if bytes.len() == self.geometry.block_bytes {
            return self.write_one(piece.block, Some(bytes));
        }
        let mut whole = vec![0; self.geometry.block_bytes];
        self.write_with(piece.block, || {
            self.read_one(piece.block, &mut whole)?;
            whole[piece.inside.clone()].copy_from_slice(bytes);
            Ok(Some(&whole[..]))
        })
    }

    /// Clears bytes: whole blocks take no place then.
    pub fn clear_bytes(&self, offset: u64, len: u64) -> Result<()> {
        self.check_write()?;
        let zeros = vec![0; self.geometry.block_bytes];
        self.pieces(offset, len)?.try_for_each(|piece| match piece.inside.len() {
            all if all == self.geometry.block_bytes => self.write_one(piece.block, None),
            part => self.write_piece(&piece, &zeros[..part]),
        })
    }
}
