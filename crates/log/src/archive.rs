//! A part of the log in an archive: a header, a catalog, and whole records as they stand in the log.

use crate::format::{self, ARCHIVE_MAGIC, ArchiveHeader, Defect, LSN_MAX, Lsn};
use crate::record::{Decoded, Record, decode};
use caliburn_os::host::Id;
use caliburn_os::simulated::unless;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Bytes of the header.
pub const HEADER: usize = size_of::<ArchiveHeader>();

/// Ends the name of a part's file.
pub const SUFFIX: &str = "log";

/// The name of a part's file, which tells what is in it.
pub fn name(from: Lsn, to: Lsn) -> String {
    format!("{:020}-{:020}.{SUFFIX}", from.0, to.0)
}

/// Records that follow each other.
#[derive(Debug, Default)]
pub struct Part {
    records: Vec<u8>,
    from: Lsn,
    first: u64,
    last: u64,
}

impl Part {
    /// None yet; the first one stands at `from`.
    pub fn new(from: Lsn) -> Part {
        Part { from, ..Part::default() }
    }

    /// Adds the next one.
    pub fn push(&mut self, record: &Record<'_>) {
        debug_assert_eq!(record.lsn, self.to());
        if self.records.is_empty() {
            self.first = record.time;
        }
        self.last = record.time;
        self.records.extend_from_slice(record.bytes());
    }

    /// Bytes of records.
    pub fn len(&self) -> u64 {
        self.records.len() as u64
    }

    /// Position behind the last one.
    pub fn to(&self) -> Lsn {
        Lsn(self.from.0 + self.len())
    }

    /// Times of the first and the last one.
    pub fn times(&self) -> (u64, u64) {
        (self.first, self.last)
    }

    /// As it is to be stored, with the store's catalog, which was read when the last record was there.
    pub fn encode(&self, store: Id, catalog: &[u8]) -> Vec<u8> {
        let header = ArchiveHeader {
            from: self.from.0.into(),
            to: self.to().0.into(),
            first: self.first.into(),
            last: self.last.into(),
            sum: crc32c::crc32c_append(crc32c::crc32c(catalog), &self.records).into(),
            catalog: u32::try_from(catalog.len()).expect("a catalog is a small file").into(),
            ..ArchiveHeader::new_zeroed()
        };
        let mut bytes = header.as_bytes().to_vec();
        format::seal(&mut bytes, ARCHIVE_MAGIC, store);
        bytes.extend_from_slice(catalog);
        bytes.extend_from_slice(&self.records);
        bytes
    }
}

/// The header of a part, whatever store it is of.
pub fn header(bytes: &[u8]) -> Result<ArchiveHeader, Defect> {
    let head = bytes.get(..HEADER).ok_or_else(|| Defect::Value("it is shorter than its header".into()))?;
    format::unseal(head, ARCHIVE_MAGIC, "part of an archive", None)?;
    let header = ArchiveHeader::read_from_bytes(head).expect("the size is right");
    if header.from.get() > header.to.get() || header.to.get() > LSN_MAX {
        return Err(Defect::Value("it names impossible positions".into()));
    }
    Ok(header)
}

/// What a part consists of.
pub struct Parts<'a> {
    /// What is said of it.
    pub header: ArchiveHeader,
    /// The catalog, as its file had it.
    pub catalog: &'a [u8],
    /// Whole records.
    pub records: &'a [u8],
}

/// The catalog and the records of a part. A defect has its offset in the part.
pub fn split(bytes: &[u8]) -> Result<Parts<'_>, (u64, Defect)> {
    let header = header(bytes).map_err(|defect| (0, defect))?;
    let body = &bytes[HEADER..];
    let len = u64::from(header.catalog.get()) + (header.to.get() - header.from.get());
    if body.len() as u64 != len {
        let text = format!("{} bytes follow its header, and {len} should: it was cut off", body.len());
        return Err((bytes.len() as u64, Defect::Value(text)));
    }
    if unless("part-sum-unchecked", crc32c::crc32c(body) != header.sum.get()) {
        return Err((HEADER as u64, Defect::Checksum));
    }
    let (catalog, records) = body.split_at(header.catalog.get() as usize);
    Ok(Parts { header, catalog, records })
}

/// Calls `each` with records that stand one behind the other from a position on, until it has had enough. Where
/// one is not valid, else where it ended.
pub fn read<E>(
    records: &[u8],
    from: Lsn,
    mut each: impl FnMut(&Record<'_>) -> Result<bool, E>,
) -> Result<Result<usize, usize>, E> {
    let mut at = 0;
    while at < records.len() {
        let rest = &records[at..];
        let Decoded::Valid(record) = decode(rest, Lsn(from.0 + at as u64), 0, rest.len() as u64) else {
            return Ok(Err(at));
        };
        at += record.len() as usize;
        if !each(&record)? {
            break;
        }
    }
    Ok(Ok(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{self, Kind, RecordPosition};

    fn sample() -> Vec<u8> {
        let mut part = Part::new(Lsn(640));
        for time in [5, 9] {
            let position = RecordPosition { lsn: part.to(), forced: Lsn(0), incarnation: 2, time };
            let mut bytes = Vec::new();
            record::encode(&mut bytes, Kind::Commit, position, &[], &[]);
            let Decoded::Valid(record) = decode(&bytes, part.to(), 0, 1000) else { panic!("invalid") };
            part.push(&record);
        }
        part.encode([7; 16], b"a catalog")
    }

    fn times(bytes: &[u8]) -> Result<Vec<u64>, (u64, Defect)> {
        let Parts { header, catalog, records } = split(bytes)?;
        assert_eq!(catalog, b"a catalog");
        let mut found = Vec::new();
        let done = read(records, Lsn(header.from.get()), |record| {
            found.push(record.time);
            Ok::<bool, ()>(true)
        });
        assert_eq!(done, Ok(Ok(records.len())));
        Ok(found)
    }

    #[test]
    fn what_was_stored_is_read() {
        let bytes = sample();
        let header = header(&bytes).unwrap();
        assert_eq!(
            (header.from.get(), header.to.get(), header.first.get(), header.last.get()),
            (640, 720, 5, 9)
        );
        assert_eq!(times(&bytes).unwrap(), [5, 9]);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let good = sample();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(times(&bad).is_err() || header(&bad).unwrap().preamble.store != [7; 16], "bit {bit}");
        }
        for len in 0..good.len() {
            assert!(times(&good[..len]).is_err(), "{len}");
        }
    }
}
