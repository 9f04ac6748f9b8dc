//! A log read back: verified record by record from the head to the first place that holds no valid record, which is
//! the tail - or damage, if anything beyond it proves that it was forced. No log is in memory whole: a window
//! goes along it.

use crate::format::{LOG_DATA, Lsn, Status};
use crate::media_error::MediaError;
use crate::mend;
use crate::record::Record;
use crate::ring::STEP;
use crate::search;
use crate::window::Window;
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
    let (mut more, mut mended) = (true, None);
    loop {
        while more && window.next(0, len, STEP, &mut |record| more = each(record))?.is_some() {}
        let at = window.position();
        // Perhaps one of two copies lies.
        let lacks = more && at < stretch.end && mended.replace(at) != Some(at);
        let pair = medium.pair().filter(|_| lacks);
        if !pair.is_some_and(|pair| mend::mend_one(pair, capacity, at, stretch.end.0 - at.0)) {
            return Ok(at);
        }
        window.back_to(at);
    }
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

fn damage_at(medium: &dyn Medium, capacity: u64, tail: Lsn, forced: Lsn) -> Damage {
    Damage { path: medium.path().to_owned(), offset: LOG_DATA + tail.0 % capacity, at: tail, forced }
}
