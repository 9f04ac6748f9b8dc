//! Makes a store again from a dump, the archive of its log, and what is left of the store itself.
//!
//! ```text
//!   1 the dump's segments, then its log    the store as of the end of the dump
//!   2 those that are laid over it, likewise
//!   3 the archive's parts from there on    up to the moment that is wanted
//!   4 what is left of the store            its log, and commits that did not get that far
//!   5 a new log
//! ```
//!
//! Its positions in the log begin anew. Undecided transactions stay undecided.

use super::BackupError;
use super::archive;
use super::left::Left;
use crate::policy::backup::restore::{Making, Next, Restored, Until};
use crate::policy::kind::New;
use crate::policy::redo::create;
use crate::policy::redo::prepared::{self, PreparedTable};
use crate::storage::catalog::Catalog;
use crate::storage::extents::Extents;
use crate::storage::redo_ranges::RedoRanges;
use caliburn_log::dump::StreamError;
use caliburn_log::format::{Defect, DumpEnd, Lsn};
use caliburn_log::record::{Decoded, Kind, Ranges, Record, decode};
use caliburn_os::simulated::{instead, unless};
use std::path::Path;

pub(crate) fn restore(mut making: Making<'_>, first: Catalog) -> Result<Restored, BackupError> {
    making.note_log()?;
    making.take_catalog(first)?;
    let mut replay = Replay {
        extents: Extents::of(&making.segments),
        making,
        unapplied: RedoRanges::none(Lsn(0)),
        unapplied_bytes: 0,
        undecided: PreparedTable::new(),
        over: false,
    };
    // 1
    replay.read_dump()?;
    // 2
    while replay.making.next_dump()? {
        replay.apply_all()?;
        replay.begin_next();
        replay.read_dump()?;
    }
    let (archive, left) = (replay.making.how.archive.clone(), replay.making.how.left.clone());
    // 3
    if let Some(path) = archive {
        replay.read_archive(&path)?;
    }
    // 4
    if let Some(path) = left {
        replay.read_left(&path)?;
    }
    // 5
    replay.finish()
}

/// The log, laid over the segments of a store that is being made.
struct Replay<'a> {
    making: Making<'a>,
    extents: Extents,
    unapplied: RedoRanges,
    unapplied_bytes: usize,
    undecided: PreparedTable,
    /// The moment that is wanted has come.
    over: bool,
}

impl Replay<'_> {
    /// The store is as of where the dump begins that is about to be read.
    fn begin_next(&mut self) {
        self.making.restored.lsn = self.making.reader.head().from.0;
        // Its part of the log has all that are undecided.
        self.undecided = PreparedTable::new();
    }

    /// Step 1.
    fn read_dump(&mut self) -> Result<(), BackupError> {
        let mut rest: Vec<u8> = Vec::new();
        let end = loop {
            match self.making.read()? {
                Next::Catalog => self.extents = Extents::of(&self.making.segments),
                Next::Log(lsn, bytes) => {
                    let begun = Lsn(lsn.0 - rest.len() as u64);
                    rest.extend_from_slice(&bytes);
                    let used = self.apply_records(begun, &rest)?;
                    rest.drain(..used);
                }
                Next::End(end) => break end,
            }
        };
        if !rest.is_empty() {
            let defect = Defect::Value("the log's part does not end with a record".into());
            return Err(StreamError::Bad { offset: self.making.reader.offset(), defect }.into());
        }
        self.ended(&end)
    }

    /// All of a dump was read.
    fn ended(&mut self, end: &DumpEnd) -> Result<(), BackupError> {
        let (lsn, time) = (end.lsn.get(), end.time.get());
        let later = match self.making.how.until {
            Until::Latest => false,
            Until::Lsn(wanted) => wanted < lsn,
            // Of what was truncated before nothing is known but that it is not later.
            Until::Time(wanted) => wanted < if end.last.get() == 0 { time } else { end.last.get() },
        };
        if later || self.over {
            return Err(BackupError::Later { lsn, time });
        }
        self.making.restored.lsn = lsn;
        if end.last.get() == 0 {
            self.making.restored.time = time;
        }
        Ok(())
    }

    /// Applies the whole records at the beginning of bytes of the log. How many bytes they take.
    fn apply_records(&mut self, from: Lsn, bytes: &[u8]) -> Result<usize, BackupError> {
        let mut at = 0;
        while at < bytes.len() {
            let (rest, lsn) = (&bytes[at..], Lsn(from.0 + at as u64));
            match decode(rest, lsn, 0, u64::MAX) {
                Decoded::Valid(record) => {
                    self.apply(&record)?;
                    at += record.len() as usize;
                }
                Decoded::Longer(_) => break,
                Decoded::Invalid => {
                    let text = format!("no valid record stands at LSN {lsn}");
                    return Err(StreamError::Bad { offset: 0, defect: Defect::Value(text) }.into());
                }
            }
        }
        Ok(at)
    }

    /// Applies the next record, if it is not beyond the moment that is wanted. Whether to go on.
    fn apply(&mut self, record: &Record<'_>) -> Result<bool, BackupError> {
        /// Bodies are applied together, each page once.
        const TOGETHER: usize = 64 << 20;
        let beyond = match self.making.how.until {
            Until::Latest => false,
            Until::Lsn(wanted) => instead("restored-too-far", record.lsn.0 >= wanted, record.lsn.0 > wanted),
            Until::Time(wanted) => record.time > wanted,
        };
        self.over |= beyond;
        if self.over {
            return Ok(false);
        }
        if unless("hole-passed-over", record.lsn.0 != self.making.restored.lsn) {
            return Err(BackupError::Hole { from: self.making.restored.lsn, to: record.lsn.0 });
        }
        if let Some(range) = record.ranges().find(|range| !self.extents.hold(range)) {
            return Err(BackupError::Stray { lsn: record.lsn.0, segment: range.segment.0 });
        }
        prepared::recover(&mut self.undecided, record);
        if matches!(record.kind, Kind::Commit | Kind::Group | Kind::Resolve) {
            self.push(record.body());
            self.making.restored.transactions += record.transactions;
            if self.unapplied_bytes > TOGETHER {
                self.apply_all()?;
            }
        }
        (self.making.restored.lsn, self.making.restored.time) = (record.next().0, record.time);
        Ok(true)
    }

    /// A body behind the others. In the log that the store will have, none of it comes.
    fn push(&mut self, body: &[u8]) {
        self.unapplied_bytes += body.len();
        self.unapplied.push(body.to_vec(), Lsn(0));
    }

    fn apply_all(&mut self) -> Result<(), BackupError> {
        for segment in &self.making.segments {
            self.unapplied.apply(segment, caliburn_os::page_size(), |_| {})?;
        }
        self.unapplied = RedoRanges::none(Lsn(0));
        self.unapplied_bytes = 0;
        Ok(())
    }

    /// Step 3.
    fn read_archive(&mut self, path: &Path) -> Result<(), BackupError> {
        let media = &*self.making.settings.media;
        for (from, to, path) in archive::parts(media, path)? {
            let position = self.making.restored.lsn;
            if self.over {
                return Ok(());
            }
            if to.0 <= position || self.is_reached() {
                continue;
            }
            if unless("hole-passed-over", from.0 > position) {
                return Err(BackupError::Hole { from: position, to: from.0 });
            }
            archive::read_part(media, (from..to, &path), &mut |part| {
                part.refuse_another(self.making.from)?;
                self.take_catalog(&part.catalog)?;
                part.records(|record| if record.lsn.0 < position { Ok(true) } else { self.apply(record) })
            })?;
        }
        Ok(())
    }

    fn take_catalog(&mut self, catalog: &Catalog) -> Result<(), BackupError> {
        self.making.take_catalog(catalog.clone())?;
        self.extents = Extents::of(&self.making.segments);
        Ok(())
    }

    /// Whether no later record is wanted.
    fn is_reached(&self) -> bool {
        matches!(self.making.how.until, Until::Lsn(wanted) if wanted <= self.making.restored.lsn)
    }

    /// Step 4.
    fn read_left(&mut self, path: &Path) -> Result<(), BackupError> {
        if self.over || self.is_reached() {
            return Ok(());
        }
        let before = self.making.restored.transactions;
        let left = Left::open(self.making.settings, path, &self.making.from)?;
        if let Some(catalog) = &left.catalog {
            self.take_catalog(catalog)?;
        }
        let lost = left.records(Lsn(self.making.restored.lsn), |record| self.apply(record))?;
        if lost.is_none() && !self.over && self.making.how.until == Until::Latest {
            for body in left.staged() {
                if let Some(range) = Ranges::of(body).find(|range| !self.extents.hold(range)) {
                    return Err(BackupError::Stray {
                        lsn: self.making.restored.lsn,
                        segment: range.segment.0,
                    });
                }
                self.push(body);
                self.making.restored.transactions += 1;
            }
        }
        self.making.restored.left = self.making.restored.transactions - before;
        self.making.restored.lost = lost;
        Ok(())
    }

    /// Step 5.
    fn finish(mut self) -> Result<Restored, BackupError> {
        let restored = &self.making.restored;
        if let Until::Lsn(wanted) = self.making.how.until
            && wanted > restored.lsn
            && !self.over
        {
            return Err(BackupError::NotReached { lsn: restored.lsn, wanted });
        }
        self.apply_all()?;
        self.making.restored.undecided = self.undecided.len() as u64;
        let mut undecided = self.undecided;
        let create = |new: New<'_>, catalog: Catalog| {
            create::create_with(new, catalog.next, catalog.segments, &mut undecided)
        };
        self.making.finish(create)
    }
}
