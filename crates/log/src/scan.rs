//! A log read back: verified record by record from the head to the first place that holds no valid record, which is
//! the tail - or damage, if anything beyond it proves that it was forced. No log is in memory whole: a window
//! goes along it.

use crate::format::{LOG_DATA, Lsn, Status};
use crate::media_error::MediaError;
use crate::record::{Decoded, Record, decode};
use crate::ring::{STEP, read_ring};
use crate::search;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::unless;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

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

/// What a scan found.
#[derive(Debug)]
pub struct Scanned {
    /// Where it began.
    pub from: Lsn,
    /// Position after the last valid record.
    pub tail: Lsn,
    /// How far the log is known to have been forced: a status page or a record says so.
    pub forced: Lsn,
    /// What is missing behind the tail.
    pub damage: Option<Damage>,
}

/// Reads from the head of a log until its tail, calling `each` with every valid record. `known` is what is to be
/// read of the log, and where it ends, if a stage of this boot tells; what precedes it was forced. Else the log is
/// read from its head and ends at the first invalid record, and the rest of the ring is searched for proof of
/// damage.
pub fn scan(
    medium: &dyn Medium,
    status: &Status,
    known: Option<Range<Lsn>>,
    mut each: impl FnMut(&Record<'_>),
) -> Result<Scanned, MediaError> {
    let (head, capacity) = (Lsn(status.head.get()), status.capacity.get());
    let known = known.filter(|_| unless("frontier-ignored", true));
    let from = known.as_ref().map_or(head, |known| known.start.max(head));
    let room = (head.0 + capacity).saturating_sub(from.0);
    let most = known.as_ref().map_or(room, |known| known.end.0.saturating_sub(from.0).min(room));
    let forced = Lsn(status.forced.get()).max(from);
    let mut scan = Scan { status, window: Window::new(medium, capacity, from, room), incarnation: 0, forced };
    while scan.next(most, STEP, &mut each)? {}
    let tail = scan.window.position();
    let needed = known.as_ref().map_or(Lsn(0), |known| known.end).max(scan.forced);
    let damage = |forced| damage_at(medium, capacity, tail, forced);
    let damage = if needed > tail {
        Some(damage(needed))
    } else if status.clean == 1 {
        None
    } else if known.is_some() {
        // What lies here was not committed; but its own words may tell that more was forced than the stage
        // knows of.
        while scan.next(room, PEEK, &mut |_| {})? {}
        None
    } else {
        let behind = tail..Lsn(head.0 + capacity);
        search::forced_behind(medium, capacity, behind, scan.incarnation)?.map(damage)
    };
    Ok(Scanned { from, tail, forced: scan.forced, damage })
}

/// Calls `each` with the records of a stretch of a log until it has had enough. Position behind the last one; the
/// next one is not valid, unless it is the end of the stretch.
pub fn follow(
    medium: &dyn Medium,
    capacity: u64,
    stretch: Range<Lsn>,
    mut each: impl FnMut(&Record<'_>) -> bool,
) -> Result<Lsn, MediaError> {
    let len = stretch.end.0.saturating_sub(stretch.start.0);
    let mut window = Window::new(medium, capacity, stretch.start, len);
    let mut more = true;
    while more && window.next(0, len, STEP, &mut |record| more = each(record))?.is_some() {}
    Ok(window.position())
}

/// Verifies every record of a stretch of a log again. What is not valid there is damage.
pub fn verify(medium: &dyn Medium, capacity: u64, stretch: Range<Lsn>) -> Result<(), MediaError> {
    let end = stretch.end;
    let position = follow(medium, capacity, stretch, |_| true)?;
    if position == end {
        return Ok(());
    }
    let damage = damage_at(medium, capacity, position, end);
    let error = io::Error::new(io::ErrorKind::InvalidData, damage.to_string());
    Err(MediaError::new("read the log back", medium, damage.offset, error))
}

/// A walk through the records of a log.
struct Scan<'m> {
    status: &'m Status,
    window: Window<'m>,
    /// That of the last record: none that follows has an older one.
    incarnation: u32,
    /// The highest position that anything says was forced.
    forced: Lsn,
}

impl Scan<'_> {
    /// Goes past the next record, if there is a valid one that ends before `most`.
    fn next(&mut self, most: u64, step: u64, each: &mut dyn FnMut(&Record<'_>)) -> Result<bool, MediaError> {
        if unless("opening-forgotten", self.window.position().0 >= self.status.opened.get()) {
            self.incarnation = self.incarnation.max(self.status.incarnation.get());
        }
        let passed = self.window.next(self.incarnation, most, step, each)?;
        if let Some((incarnation, forced)) = passed {
            self.incarnation = incarnation;
            self.forced = self.forced.max(forced);
        }
        Ok(passed.is_some())
    }
}

/// A window that goes along a stretch of a log.
struct Window<'m> {
    medium: &'m dyn Medium,
    capacity: u64,
    from: Lsn,
    /// Bytes of the stretch.
    room: u64,
    /// Where the next record is in it.
    at: u64,
    /// How much of it was read.
    read: u64,
    /// The last of what was read.
    bytes: Vec<u8>,
}

impl<'m> Window<'m> {
    fn new(medium: &'m dyn Medium, capacity: u64, from: Lsn, room: u64) -> Window<'m> {
        Window { medium, capacity, from, room, at: 0, read: 0, bytes: Vec::new() }
    }

    /// Where the next record is.
    fn position(&self) -> Lsn {
        Lsn(self.from.0 + self.at)
    }

    /// Goes past the next record, if there is a valid one that ends before `most`; what must be read for that is, in
    /// steps. Its incarnation, and how far it says that the log was forced.
    fn next(
        &mut self,
        incarnation: u32,
        most: u64,
        step: u64,
        each: &mut dyn FnMut(&Record<'_>),
    ) -> Result<Option<(u32, Lsn)>, MediaError> {
        while self.at < most {
            let unseen = &self.bytes[self.bytes.len() - (self.read - self.at) as usize..];
            match decode(unseen, self.position(), incarnation, most - self.at) {
                Decoded::Valid(record) => {
                    each(&record);
                    let told = (record.incarnation, record.forced);
                    self.at += record.len();
                    return Ok(Some(told));
                }
                Decoded::Longer(needed) if self.read < self.room && self.at + needed <= self.room => {
                    if !self.medium.may_hold(needed) {
                        let text = format!("a record of {needed} bytes, nearly all of them holes");
                        let error = io::Error::new(io::ErrorKind::InvalidData, text);
                        let offset = LOG_DATA + self.position().0 % self.capacity;
                        return Err(MediaError::new("read the log", self.medium, offset, error));
                    }
                    self.fill(needed, step.min(most - self.at))?;
                }
                _ => break,
            }
        }
        Ok(None)
    }

    /// Reads on until `needed` bytes are unseen, `step` at a time if there are so many.
    fn fill(&mut self, needed: u64, step: u64) -> Result<(), MediaError> {
        let unseen = self.read - self.at;
        self.bytes.drain(..self.bytes.len() - unseen as usize);
        let more = step.max(needed - unseen).min(self.room - self.read);
        let no_memory = |_| io::Error::from(io::ErrorKind::OutOfMemory);
        let reserved = self.bytes.try_reserve_exact(more as usize).map_err(no_memory);
        reserved.map_err(|e| MediaError::new("get memory for a record of", self.medium, 0, e))?;
        self.bytes.resize((unseen + more) as usize, 0);
        let target = &mut self.bytes[unseen as usize..];
        read_ring(self.medium, self.capacity, Lsn(self.from.0 + self.read), target)?;
        self.read += more;
        Ok(())
    }
}

fn damage_at(medium: &dyn Medium, capacity: u64, tail: Lsn, forced: Lsn) -> Damage {
    Damage { path: medium.path().to_owned(), offset: LOG_DATA + tail.0 % capacity, at: tail, forced }
}
