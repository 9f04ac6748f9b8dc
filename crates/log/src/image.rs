//! The live part of a log, read back: verified record by record from the head to the first place that
//! holds no valid record, which is the tail - or damage, if anything beyond it proves that it was forced.

use crate::format::{ALIGN, LOG_DATA, Lsn, Status, Trailer};
use crate::media_error::MediaError;
use crate::record::{Decoded, FRAME, Record, decode};
use caliburn_os::map::Buffer;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::unless;
use std::ops::Range;
use std::path::PathBuf;
use zerocopy::FromBytes;

/// How much is read at a time.
const STEP: u64 = 4 << 20;
/// How much behind the known end of a log.
const PEEK: u64 = 64 << 10;

/// A gap in the part of a log that had been forced.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "log {}, offset {offset}: no valid record at LSN {at}, though the log was forced up to LSN {forced}: \
     records are lost from there on; open read-only for salvage to get what precedes it",
    path.display()
)]
pub struct Damage {
    /// The log.
    pub path: PathBuf,
    /// Where on the medium.
    pub offset: u64,
    /// Where in the log.
    pub at: Lsn,
    /// What proves it: the log was forced up to here at least.
    pub forced: Lsn,
}

/// The bytes from the head to the tail of a log, all of whose records are valid.
#[derive(Debug)]
pub struct Image {
    head: Lsn,
    bytes: Buffer,
    forced: Lsn,
}

impl Image {
    /// Reads `[from, to)` back, into the memory of `spare` if it is enough, and verifies every record. What is
    /// not valid there is damage.
    pub fn read(
        medium: &dyn Medium,
        capacity: u64,
        (from, to): (Lsn, Lsn),
        spare: Buffer,
    ) -> Result<Image, MediaError> {
        let bytes = spare.resized((to.0 - from.0) as usize);
        let mut bytes = bytes.map_err(|e| no_memory(medium, e))?;
        read_ring(medium, capacity, from, &mut bytes)?;
        let image = Image { head: from, bytes, forced: to };
        let end = image.records().last().map_or(from, |record| record.next());
        if end == to {
            return Ok(image);
        }
        let damage = damage_at(medium, capacity, end, to);
        let error = std::io::Error::new(std::io::ErrorKind::InvalidData, damage.to_string());
        Err(MediaError::new("read the log back", medium, damage.offset, error))
    }

    /// Reads from the head of a log until its tail, calling `each` with every valid record. Damage is
    /// returned beside the part that precedes it. `known` is what is to be read of the log, and where it ends,
    /// if a stage of this boot tells; what precedes it was forced. Else the log is read from its head and ends
    /// at the first invalid record, and the rest of the ring is searched for proof of damage.
    pub fn scan(
        medium: &dyn Medium,
        status: &Status,
        known: Option<Range<Lsn>>,
        mut each: impl FnMut(&Record<'_>),
    ) -> Result<(Image, Option<Damage>), MediaError> {
        let (head, capacity) = (Lsn(status.head.get()), status.capacity.get());
        let known = known.filter(|_| unless("frontier-ignored", true));
        let from = known.as_ref().map_or(head, |known| known.start.max(head));
        let room = (head.0 + capacity).saturating_sub(from.0);
        let most = known.as_ref().map_or(room, |known| known.end.0.saturating_sub(from.0).min(room));
        let mut scan = Scan {
            medium,
            status,
            from,
            // Zeroed memory that is never touched costs nothing: the whole ring fits whatever the tail is.
            bytes: Buffer::new(room as usize).map_err(|e| no_memory(medium, e))?,
            have: 0,
            at: 0,
            incarnation: 0,
            forced: Lsn(status.forced.get()).max(from),
        };
        while scan.next(most, STEP, &mut each)? {}
        let (end, tail) = (scan.at, Lsn(from.0 + scan.at));
        let needed = known.as_ref().map_or(Lsn(0), |known| known.end).max(scan.forced);
        let damage = if needed > tail {
            Some(damage_at(medium, capacity, tail, needed))
        } else if status.clean == 1 {
            None
        } else if known.is_some() {
            // What lies here was not committed; but its own words may tell that more was forced than the stage
            // knows of.
            while scan.next(room, PEEK, |_| {})? {}
            None
        } else {
            find_damage(medium, status, &mut scan.bytes, scan.have, end, scan.incarnation)?
        };
        scan.bytes.truncate(end as usize);
        Ok((Image { head: from, bytes: scan.bytes, forced: scan.forced }, damage))
    }

    /// How far the log is known to have been forced: a status page or a record says so.
    pub fn forced(&self) -> Lsn {
        self.forced
    }

    /// The bytes from a position on.
    pub fn since(&self, from: Lsn) -> &[u8] {
        &self.bytes[(from.0.max(self.head.0) - self.head.0) as usize..]
    }

    /// First position.
    pub fn head(&self) -> Lsn {
        self.head
    }

    /// Position after the last record.
    pub fn tail(&self) -> Lsn {
        Lsn(self.head.0 + self.bytes.len() as u64)
    }

    /// The bytes themselves.
    pub fn into_bytes(self) -> Buffer {
        self.bytes
    }

    /// The records, oldest first.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let lsn = Lsn(self.head.0 + at as u64);
            let Decoded::Valid(record) = decode(self.bytes.get(at..)?, lsn, 0, u64::MAX) else { return None };
            at += record.len() as usize;
            Some(record)
        })
    }

    /// The records, newest first, found by their trailers.
    pub fn records_back(&self) -> impl Iterator<Item = Record<'_>> {
        let mut end = self.bytes.len();
        std::iter::from_fn(move || {
            let (_, trailer) = Trailer::ref_from_suffix(&self.bytes[..end]).ok()?;
            let start = end.checked_sub(trailer.units.get() as usize * ALIGN)?;
            let lsn = Lsn(self.head.0 + start as u64);
            let Decoded::Valid(record) = decode(&self.bytes[start..end], lsn, 0, u64::MAX) else {
                return None;
            };
            end = start;
            Some(record)
        })
    }
}

/// A walk through the records of a log.
struct Scan<'m> {
    medium: &'m dyn Medium,
    status: &'m Status,
    /// Where it begins.
    from: Lsn,
    bytes: Buffer,
    /// How much was read.
    have: u64,
    /// Where the next record is, from `from`.
    at: u64,
    /// That of the last record: none that follows has an older one.
    incarnation: u32,
    /// The highest position that anything says was forced.
    forced: Lsn,
}

impl Scan<'_> {
    /// Goes past the next record, if there is a valid one that ends before `most`; what must be read for that
    /// is, in steps.
    fn next(&mut self, most: u64, step: u64, mut each: impl FnMut(&Record<'_>)) -> Result<bool, MediaError> {
        let (capacity, room) = (self.status.capacity.get(), self.bytes.len() as u64);
        let lsn = Lsn(self.from.0 + self.at);
        if unless("opening-forgotten", lsn.0 >= self.status.opened.get()) {
            self.incarnation = self.incarnation.max(self.status.incarnation.get());
        }
        while self.at < most {
            let window = &self.bytes[self.at as usize..self.have as usize];
            match decode(window, lsn, self.incarnation, most - self.at) {
                Decoded::Valid(record) => {
                    each(&record);
                    self.incarnation = record.incarnation;
                    self.forced = self.forced.max(record.forced);
                    self.at += record.len();
                    return Ok(true);
                }
                Decoded::Longer(needed) if self.have < room && self.at + needed <= room => {
                    let more = step.min(most - self.at).max(needed).min(room - self.have);
                    let target = &mut self.bytes[self.have as usize..(self.have + more) as usize];
                    read_ring(self.medium, capacity, Lsn(self.from.0 + self.have), target)?;
                    self.have += more;
                }
                _ => break,
            }
        }
        Ok(false)
    }
}

fn no_memory(medium: &dyn Medium, error: std::io::Error) -> MediaError {
    MediaError::new("get memory for the log of", medium, 0, error)
}

/// Reads part of the ring, in two parts where it wraps.
fn read_ring(medium: &dyn Medium, capacity: u64, lsn: Lsn, target: &mut [u8]) -> Result<(), MediaError> {
    let at = lsn.0 % capacity;
    let (first, second) = {
        let middle = target.len().min((capacity - at) as usize);
        target.split_at_mut(middle)
    };
    for (part, at) in [(first, at), (second, 0)] {
        let offset = LOG_DATA + at;
        medium.read_at(part, offset).map_err(|e| MediaError::new("read the log", medium, offset, e))?;
    }
    Ok(())
}

fn damage_at(medium: &dyn Medium, capacity: u64, tail: Lsn, forced: Lsn) -> Damage {
    Damage { path: medium.path().to_owned(), offset: LOG_DATA + tail.0 % capacity, at: tail, forced }
}

/// Searches the ring behind the end of a scan for a valid record that was written when the log was
/// already forced beyond that end: then what is missing there was lost, not torn.
fn find_damage(
    medium: &dyn Medium,
    status: &Status,
    bytes: &mut [u8],
    mut have: u64,
    end: u64,
    incarnation: u32,
) -> Result<Option<Damage>, MediaError> {
    let (head, capacity) = (status.head.get(), status.capacity.get());
    let tail = Lsn(head + end);
    let mut at = end;
    while at + FRAME as u64 <= capacity {
        let lsn = Lsn(head + at);
        let needed = match decode(&bytes[at as usize..have as usize], lsn, incarnation, capacity - at) {
            Decoded::Valid(record) if unless("damage-taken-for-the-tail", record.forced > tail) => {
                return Ok(Some(damage_at(medium, capacity, tail, record.forced)));
            }
            Decoded::Longer(needed) if at + needed <= capacity => needed,
            _ => {
                at += ALIGN as u64;
                continue;
            }
        };
        let more = needed.max(STEP).min(capacity - have);
        read_ring(medium, capacity, Lsn(head + have), &mut bytes[have as usize..(have + more) as usize])?;
        have += more;
    }
    Ok(None)
}
