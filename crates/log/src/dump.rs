//! A dump as a stream: what a store held when its log ended at one LSN.
//!
//! ```text
//! | header | catalog | data ... | catalog | log ... | end |
//! ```
//!
//! The data were read while they changed: what the log's part holds is to be laid over them, in its order. The
//! second catalog is that of the moment; segments that are new in it, or longer, are zeros there but for the log's
//! part.
//!
//! A dump may be laid over an earlier one, its base: its data are the units of segments that were written since
//! that one ended, and perhaps some others.
//!
//! Each piece has a number and a checksum, and the last one says that it is: a stream that was cut off, or lacks a
//! piece, is noticed.

use crate::format::{
    self, DUMP_MAGIC, DUMP_VERSION, Defect, DumpEnd, DumpHeader, LSN_MAX, Lsn, PieceHeader, Preamble,
    SegmentId, VERSION,
};
use caliburn_os::host::Id;
use caliburn_os::simulated::unless;
use std::io::{self, Read, Seek, SeekFrom, Write};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Most bytes of a piece, but for a catalog.
pub const PIECE_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a catalog.
const CATALOG_BYTES_MAX: u64 = 64 << 20;

/// What a piece holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The catalog of the store, as its file has it.
    Catalog = 1,
    /// Bytes of a segment. What no piece holds is zeros.
    Data = 2,
    /// Bytes of the log, of whole records when all such pieces are put together.
    Log = 3,
    /// A [`DumpEnd`]: there is no more.
    End = 4,
}

/// Why a stream is no dump, or not a whole one.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// It could not be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It ends too soon.
    #[error("the dump ends at offset {offset}, before its last piece: it was cut off")]
    CutOff {
        /// Where in the stream.
        offset: u64,
    },
    /// It is not a dump, or was damaged.
    #[error("the dump is damaged at offset {offset}: {defect}")]
    Bad {
        /// Where in the stream.
        offset: u64,
        /// What is wrong.
        defect: Defect,
    },
}

/// A dump that others are laid over: its identity, and where it ends.
pub type Base = (Id, Lsn);

/// What a dump's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The store that was dumped.
    pub store: Id,
    /// When it was begun, nanoseconds since 1970.
    pub time: u64,
    /// The segments had all changes of the log before this LSN.
    pub from: Lsn,
    /// Identity of the dump: none in those of the first version.
    pub id: Option<Id>,
    /// The dump that it is to be laid over, and where that one ends; none: it is whole.
    pub base: Option<Base>,
}

impl Head {
    fn encode(&self) -> Vec<u8> {
        let (base, base_lsn) = self.base.unwrap_or(([0; 16], Lsn(0)));
        let header = DumpHeader {
            time: self.time.into(),
            from: self.from.0.into(),
            id: self.id.unwrap_or_default(),
            base,
            base_lsn: base_lsn.0.into(),
            ..DumpHeader::new_zeroed()
        };
        let mut bytes = header.as_bytes().to_vec();
        format::seal_as(&mut bytes, DUMP_MAGIC, DUMP_VERSION, self.store);
        bytes
    }

    /// Reads one, of any version; what it takes.
    fn read(source: &mut dyn Read) -> Result<(Head, usize), StreamError> {
        /// The first version's.
        const SHORT: usize = size_of::<DumpHeader>() - 40;
        const WHOLE: usize = size_of::<DumpHeader>();
        let mut bytes = [0; WHOLE];
        fill(source, &mut bytes[..SHORT], 0)?;
        let (preamble, _) = Preamble::read_from_prefix(&bytes).expect("a header is longer");
        let len = if preamble.version == VERSION { SHORT } else { WHOLE };
        if preamble.magic == DUMP_MAGIC && preamble.version == DUMP_VERSION {
            fill(source, &mut bytes[SHORT..], SHORT as u64)?;
        }
        format::unseal_any(&bytes[..len], DUMP_MAGIC, &[VERSION, DUMP_VERSION], "dump", None)
            .map_err(|defect| StreamError::Bad { offset: 0, defect })?;
        let header = DumpHeader::read_from_bytes(&bytes).expect("the size is right");
        let some = |id: Id| (id != [0; 16]).then_some(id);
        let head = Head {
            store: header.preamble.store,
            time: header.time.get(),
            from: Lsn(header.from.get()),
            id: some(header.id),
            base: some(header.base).map(|base| (base, Lsn(header.base_lsn.get()))),
        };
        Ok((head, len))
    }
}

/// Fills bytes from a stream, of which `before` were read.
fn fill(source: &mut dyn Read, bytes: &mut [u8], before: u64) -> Result<(), StreamError> {
    let mut filled = 0;
    while filled < bytes.len() {
        match source.read(&mut bytes[filled..]) {
            Ok(0) => return Err(StreamError::CutOff { offset: before + filled as u64 }),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes a dump.
pub struct Writer<'w> {
    target: &'w mut dyn Write,
    number: u64,
    data: u64,
    log: u64,
}

impl<'w> Writer<'w> {
    /// Begins with the header.
    pub fn begin(target: &'w mut dyn Write, head: &Head) -> io::Result<Writer<'w>> {
        target.write_all(&head.encode())?;
        Ok(Writer { target, number: 0, data: 0, log: 0 })
    }

    fn put(&mut self, kind: Kind, segment: u32, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut header = PieceHeader {
            kind: (kind as u32).into(),
            number: self.number.into(),
            len: (bytes.len() as u64).into(),
            segment: segment.into(),
            at: at.into(),
            ..PieceHeader::new_zeroed()
        };
        header.crc = crc32c::crc32c_append(crc32c::crc32c(&header.as_bytes()[4..]), bytes).into();
        self.target.write_all(header.as_bytes())?;
        self.target.write_all(bytes)?;
        self.number += 1;
        Ok(())
    }

    /// The catalog, as its file has it.
    pub fn catalog(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.put(Kind::Catalog, 0, 0, bytes)
    }

    /// Bytes of a segment, [`PIECE_BYTES_MAX`] at most.
    pub fn data(&mut self, segment: SegmentId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.data += bytes.len() as u64;
        self.put(Kind::Data, segment.0, offset, bytes)
    }

    /// Bytes of the log, [`PIECE_BYTES_MAX`] at most.
    pub fn log(&mut self, lsn: Lsn, bytes: &[u8]) -> io::Result<()> {
        self.log += bytes.len() as u64;
        self.put(Kind::Log, 0, lsn.0, bytes)
    }

    /// Says that this was all. The bytes of data and of log in it.
    pub fn end(mut self, lsn: Lsn, time: u64, last: u64, segments: u64) -> io::Result<(u64, u64)> {
        let (data, log) = (self.data, self.log);
        let end = DumpEnd {
            lsn: lsn.0.into(),
            time: time.into(),
            last: last.into(),
            data: data.into(),
            log: log.into(),
            segments: segments.into(),
        };
        self.put(Kind::End, 0, 0, end.as_bytes())?;
        self.target.flush()?;
        Ok((data, log))
    }
}

/// A piece that was read and verified.
#[derive(Debug)]
pub enum Piece<'a> {
    /// The catalog, as its file has it.
    Catalog(&'a [u8]),
    /// Bytes of a segment.
    Data(SegmentId, u64, &'a [u8]),
    /// Bytes of the log.
    Log(Lsn, &'a [u8]),
    /// The last one.
    End(DumpEnd),
}

/// Reads a dump.
pub struct Reader<'r> {
    source: &'r mut dyn Read,
    head: Head,
    offset: u64,
    number: u64,
    log: Option<Lsn>,
    bytes: Vec<u8>,
}

impl<'r> Reader<'r> {
    /// Reads the header.
    pub fn begin(source: &'r mut dyn Read) -> Result<Reader<'r>, StreamError> {
        let (head, len) = Head::read(source)?;
        Ok(Reader { source, head, offset: len as u64, number: 0, log: None, bytes: Vec::new() })
    }

    /// Reads the header of the dump that comes behind one of which all was read, if there is one.
    pub fn next_dump(&mut self) -> Result<bool, StreamError> {
        let mut first = [0];
        loop {
            match self.source.read(&mut first) {
                Ok(0) => return Ok(false),
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let (head, len) = Head::read(&mut first.as_slice().chain(&mut *self.source))?;
        (self.head, self.offset, self.number, self.log) = (head, len as u64, 0, None);
        Ok(true)
    }

    /// What the header says.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Where in the dump the next piece begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), StreamError> {
        fill(self.source, bytes, self.offset)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// The next piece. After the last one there is none to be asked for.
    pub fn read(&mut self) -> Result<Piece<'_>, StreamError> {
        let start = self.offset;
        let bad = |text: &str| StreamError::Bad { offset: start, defect: Defect::Value(text.into()) };
        let mut head = [0; size_of::<PieceHeader>()];
        self.fill(&mut head)?;
        let header = PieceHeader::read_from_bytes(&head).expect("the size is right");
        let (kind, len) = (header.kind.get(), header.len.get());
        let most = if kind == Kind::Catalog as u32 { CATALOG_BYTES_MAX } else { PIECE_BYTES_MAX as u64 };
        if len > most {
            return Err(bad("a piece is said to be longer than any is"));
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.resize(len as usize, 0);
        self.fill(&mut bytes)?;
        self.bytes = bytes;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&head[4..]), &self.bytes);
        if unless("piece-sum-unchecked", sum != header.crc.get()) {
            return Err(StreamError::Bad { offset: start, defect: Defect::Checksum });
        }
        if unless("piece-missing", header.number.get() != self.number) {
            return Err(bad("a piece is missing, or stands elsewhere"));
        }
        self.number += 1;
        let at = header.at.get();
        match kind {
            1 => Ok(Piece::Catalog(&self.bytes)),
            2 => Ok(Piece::Data(SegmentId(header.segment.get()), at, &self.bytes)),
            3 if at.saturating_add(len) > LSN_MAX => Err(bad("a part of the log stands where no log is")),
            3 => {
                if self.log.unwrap_or(self.head.from).0 != at {
                    return Err(bad("a part of the log is missing"));
                }
                self.log = Some(Lsn(at + len));
                Ok(Piece::Log(Lsn(at), &self.bytes))
            }
            4 => {
                let end = DumpEnd::read_from_bytes(&self.bytes);
                let end = end.map_err(|_| bad("its last piece has another size"))?;
                if self.log.unwrap_or(self.head.from).0 != end.lsn.get() {
                    return Err(bad("the end of the log's part is missing"));
                }
                Ok(Piece::End(end))
            }
            _ => Err(bad("a piece of an unknown kind: use the program that wrote it")),
        }
    }
}

/// The header and the last piece of a dump in a file, whatever is between them.
pub fn ends(source: &mut (impl Read + Seek)) -> Result<(Head, DumpEnd), StreamError> {
    const LAST: usize = size_of::<PieceHeader>() + size_of::<DumpEnd>();
    let (header, _) = Head::read(source)?;
    let len = source.seek(SeekFrom::End(0))?;
    let cut = StreamError::CutOff { offset: len };
    let Some(offset) = len.checked_sub(LAST as u64) else { return Err(cut) };
    source.seek(SeekFrom::Start(offset))?;
    let mut bytes = [0; LAST];
    source.read_exact(&mut bytes)?;
    let (head, end) = bytes.split_at(size_of::<PieceHeader>());
    let head = PieceHeader::read_from_bytes(head).expect("the size is right");
    let whole = head.kind == Kind::End as u32 && head.crc == crc32c::crc32c(&bytes[4..]);
    if whole { Ok((header, DumpEnd::read_from_bytes(end).expect("the size is right"))) } else { Err(cut) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Head =
        Head { store: [7; 16], time: 99, from: Lsn(64), id: Some([8; 16]), base: Some(([9; 16], Lsn(48))) };

    fn sample() -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = Writer::begin(&mut out, &HEAD).unwrap();
        writer.catalog(b"one segment").unwrap();
        writer.data(SegmentId(3), 4096, &[5; 300]).unwrap();
        writer.catalog(b"two segments").unwrap();
        writer.log(Lsn(64), &[6; 40]).unwrap();
        writer.log(Lsn(104), &[7; 16]).unwrap();
        writer.end(Lsn(120), 100, 98, 2).unwrap();
        out
    }

    fn pieces(mut bytes: &[u8]) -> Result<Vec<String>, StreamError> {
        let mut reader = Reader::begin(&mut bytes)?;
        let mut found = Vec::new();
        loop {
            let piece = reader.read()?;
            found.push(format!("{piece:?}"));
            if matches!(piece, Piece::End(_)) {
                return Ok(found);
            }
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let found = pieces(&sample()).unwrap();
        assert_eq!(found.len(), 6);
        assert!(found[1].starts_with("Data(SegmentId(3), 4096, [5, 5"), "{}", found[1]);
    }

    #[test]
    fn one_dump_is_read_behind_the_other() {
        let bytes = [sample(), sample()].concat();
        let mut source = &bytes[..];
        let mut reader = Reader::begin(&mut source).unwrap();
        for last in [false, true] {
            while !matches!(reader.read().unwrap(), Piece::End(_)) {}
            assert_eq!(reader.next_dump().unwrap(), !last);
        }
        let mut source = &bytes[..bytes.len() / 2 + 40];
        let mut reader = Reader::begin(&mut source).unwrap();
        while !matches!(reader.read().unwrap(), Piece::End(_)) {}
        assert!(matches!(reader.next_dump(), Err(StreamError::CutOff { .. })));
    }

    #[test]
    fn its_ends_are_found_in_a_file() {
        let mut good = sample();
        let (header, end) = ends(&mut io::Cursor::new(&good)).unwrap();
        assert_eq!((header, end.lsn.get(), end.last.get()), (HEAD, 120, 98));
        good.pop();
        assert!(matches!(ends(&mut io::Cursor::new(&good)), Err(StreamError::CutOff { .. })));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let good = sample();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(pieces(&bad).is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            let error = pieces(&good[..len]).unwrap_err();
            assert!(
                matches!(error, StreamError::CutOff { offset } if offset == len as u64),
                "{len}: {error}"
            );
        }
    }

    #[test]
    fn a_piece_that_is_left_out_is_noticed() {
        let good = sample();
        let piece = |from: usize| {
            let header = PieceHeader::read_from_bytes(&good[from..from + 40]).unwrap();
            from..from + 40 + header.len.get() as usize
        };
        let mut at = size_of::<DumpHeader>();
        while at < good.len() {
            let part = piece(at);
            let without = [&good[..part.start], &good[part.end..]].concat();
            assert!(pieces(&without).is_err(), "without {part:?}");
            at = part.end;
        }
    }
}
