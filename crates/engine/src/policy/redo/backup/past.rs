//! What bytes of a store were at any moment that its dumps, its archive and its log reach, and how they became
//! what they are: a part of a store restored, into memory.
//!
//! ```text
//!   1 dumps, one laid over the other      the bytes as of the end of the last one
//!   2 the archive's parts from there on   each change, from what to what
//!   3 the store's own log
//! ```
//!
//! Before the end of the dumps only what came of the changes is known: a dump's data are of no single moment.

use super::archive;
use super::live::{Live, Staged};
use crate::policy::backup::BackupError;
use crate::policy::backup::restore::{RestoreOptions, Until};
use crate::policy::kind::Policy;
use crate::policy::redo::prepared::{self, PreparedTable};
use crate::storage::catalog::Catalog;
use crate::storage::error::{OpenError, SegmentError};
use crate::storage::settings::Settings;
use caliburn_log::SegmentId;
use caliburn_log::dump::{Piece, Reader, StreamError};
use caliburn_log::format::{self, Defect, Lsn};
use caliburn_log::record::{Decoded, Kind, Ranges, Record, decode};
use caliburn_os::host::Id;
use caliburn_os::simulated::{instead, unless};
use std::io::Read;
use std::ops::Range;
use std::path::Path;

/// Bytes of a segment as they were.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Past {
    /// The segment.
    pub segment: String,
    /// Of the first byte.
    pub offset: u64,
    /// The bytes; zeros before the segment was made.
    pub bytes: Vec<u8>,
    /// Every change of them before this LSN is in them, and no other.
    pub lsn: u64,
    /// Time of the last record before that which was read, nanoseconds since 1970; else when the dump was made.
    pub time: u64,
}

/// A change of bytes whose past is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changed {
    /// The record that has it.
    pub lsn: u64,
    /// When that came to the log, nanoseconds since 1970.
    pub time: u64,
    /// Identifier of a prepared transaction that was committed by it.
    pub global_id: Vec<u8>,
    /// Of the first byte, in the segment.
    pub offset: u64,
    /// The bytes before.
    pub old: Vec<u8>,
    /// The bytes afterwards.
    pub new: Vec<u8>,
}

/// Which bytes are wanted.
pub(crate) enum Wanted {
    Named(String),
    Known(SegmentId),
}

/// Bytes whose past is followed.
pub(crate) struct Followed {
    segment: Wanted,
    pub start: u64,
    pub bytes: Vec<u8>,
}

impl Followed {
    pub fn new(segment: Wanted, range: Range<u64>) -> Followed {
        Followed { segment, start: range.start, bytes: vec![0; (range.end - range.start) as usize] }
    }

    /// Which of bytes at an offset are followed: where they are among them, and in the followed ones.
    fn common(&self, segment: SegmentId, offset: u64, len: usize) -> Option<(Range<usize>, Range<usize>)> {
        let Wanted::Known(known) = self.segment else { return None };
        let end = offset.saturating_add(len as u64).min(self.start + self.bytes.len() as u64);
        let from = offset.max(self.start);
        let within = |start: u64| (from - start) as usize..(end - start) as usize;
        (known == segment && from < end).then(|| (within(offset), within(self.start)))
    }
}

/// Told of each change of bytes that are followed.
pub(crate) type Tell<'t> = &'t mut dyn FnMut(&Changed);

/// Follows bytes up to the moment that `how` names. Its archive, and the store whose log comes behind it, which
/// may be in use, are what `how` has. Where the log came to, and when.
pub(crate) fn follow(
    settings: &Settings,
    source: &mut dyn Read,
    how: &RestoreOptions,
    wanted: &mut [Followed],
    tell: Tell<'_>,
) -> Result<(Lsn, u64), BackupError> {
    let mut reader = Reader::begin(source)?;
    let head = *reader.head();
    let mut following = Following {
        how,
        store: head.store,
        wanted,
        tell,
        undecided: PreparedTable::new(),
        lsn: head.from,
        time: head.time,
        exact: false,
        over: false,
        hole: None,
    };
    // 1
    if let Some((base, lsn)) = head.base {
        return Err(BackupError::NotItsBase { base: format::hex(&base), lsn: lsn.0 });
    }
    loop {
        following.read_dump(&mut reader)?;
        let ended = (reader.head().id, following.lsn);
        if !reader.next_dump()? {
            break;
        }
        let head = *reader.head();
        let fits = head.store == following.store && head.base.map(|(id, lsn)| (Some(id), lsn)) == Some(ended);
        if !fits {
            let (base, lsn) = head.base.unwrap_or_default();
            return Err(BackupError::NotItsBase { base: format::hex(&base), lsn: lsn.0 });
        }
        (following.lsn, following.undecided) = (head.from, PreparedTable::new());
    }
    following.exact = true;
    // 2
    if let Some(path) = &how.archive {
        following.read_archive(settings, path)?;
    }
    // 3
    if let Some(path) = &how.left {
        following.read_log(settings, path)?;
    }
    following.end()
}

struct Following<'a> {
    how: &'a RestoreOptions,
    store: Id,
    wanted: &'a mut [Followed],
    tell: Tell<'a>,
    undecided: PreparedTable,
    lsn: Lsn,
    time: u64,
    /// The bytes are those of one moment: changes can be told.
    exact: bool,
    over: bool,
    /// What the archive lacks.
    hole: Option<(Lsn, Lsn)>,
}

impl Following<'_> {
    /// Step 1.
    fn read_dump(&mut self, reader: &mut Reader<'_>) -> Result<(), BackupError> {
        let mut rest: Vec<u8> = Vec::new();
        loop {
            let offset = reader.offset();
            let bad = |text: &str| StreamError::Bad { offset, defect: Defect::Value(text.into()) };
            match reader.read()? {
                Piece::Catalog(bytes) => {
                    let catalog =
                        Catalog::decode(bytes).map_err(|(_, defect)| StreamError::Bad { offset, defect })?;
                    self.take_catalog(&catalog)?;
                }
                Piece::Data(id, at, bytes) => {
                    for followed in &mut *self.wanted {
                        if let Some((from, to)) = followed.common(id, at, bytes.len()) {
                            followed.bytes[to].copy_from_slice(&bytes[from]);
                        }
                    }
                }
                Piece::Log(lsn, bytes) => {
                    let begun = Lsn(lsn.0 - rest.len() as u64);
                    rest.extend_from_slice(bytes);
                    let mut at = 0;
                    loop {
                        match decode(&rest[at..], Lsn(begun.0 + at as u64), 0, u64::MAX) {
                            Decoded::Valid(record) => {
                                self.apply(&record)?;
                                at += record.len() as usize;
                            }
                            Decoded::Invalid if at < rest.len() => {
                                return Err(bad("no valid record stands here").into());
                            }
                            _ => break,
                        }
                    }
                    rest.drain(..at);
                }
                Piece::End(end) => {
                    let (lsn, time, last) = (end.lsn.get(), end.time.get(), end.last.get());
                    let later = match self.how.until {
                        Until::Latest => false,
                        Until::Lsn(wanted) => wanted < lsn,
                        Until::Time(wanted) => wanted < if last == 0 { time } else { last },
                    };
                    if later || self.over {
                        return Err(BackupError::Later { lsn, time });
                    }
                    if !rest.is_empty() {
                        return Err(bad("the log's part does not end with a record").into());
                    }
                    self.lsn = Lsn(lsn);
                    self.time = if last == 0 { time } else { last };
                    return Ok(());
                }
            }
        }
    }

    fn take_catalog(&mut self, catalog: &Catalog) -> Result<(), BackupError> {
        if catalog.policy != Policy::Redo as u16 {
            let why = "a store with the undo policy has no log that would tell what was changed";
            return Err(OpenError::Policy { path: "the dump".into(), why }.into());
        }
        for followed in &mut *self.wanted {
            let Wanted::Named(name) = &followed.segment else { continue };
            if let Some(entry) = catalog.segments.iter().find(|entry| entry.name == *name) {
                followed.segment = Wanted::Known(entry.id);
            }
        }
        Ok(())
    }

    /// Applies the next record, if it is not beyond the moment that is wanted. Whether to go on.
    fn apply(&mut self, record: &Record<'_>) -> Result<bool, BackupError> {
        let beyond = match self.how.until {
            Until::Latest => false,
            Until::Lsn(wanted) => instead("followed-too-far", record.lsn.0 >= wanted, record.lsn.0 > wanted),
            Until::Time(wanted) => record.time > wanted,
        };
        self.over |= beyond;
        if self.over {
            return Ok(false);
        }
        if unless("hole-passed-over", record.lsn != self.lsn) {
            return Err(BackupError::Hole { from: self.lsn.0, to: record.lsn.0 });
        }
        prepared::recover(&mut self.undecided, record);
        if matches!(record.kind, Kind::Commit | Kind::Group | Kind::Resolve) {
            self.change(record);
        }
        (self.lsn, self.time) = (record.next(), record.time);
        Ok(true)
    }

    fn change(&mut self, record: &Record<'_>) {
        for range in Ranges::of(record.body()) {
            for followed in &mut *self.wanted {
                let Some((from, to)) = followed.common(range.segment, range.offset, range.bytes.len()) else {
                    continue;
                };
                let (new, old) = (&range.bytes[from], &mut followed.bytes[to.clone()]);
                if self.exact {
                    (self.tell)(&Changed {
                        lsn: record.lsn.0,
                        time: record.time,
                        global_id: record.global_id.to_vec(),
                        offset: followed.start + to.start as u64,
                        old: old.to_vec(),
                        new: new.to_vec(),
                    });
                }
                old.copy_from_slice(new);
            }
        }
    }

    /// Step 2.
    fn read_archive(&mut self, settings: &Settings, path: &Path) -> Result<(), BackupError> {
        let media = &*settings.media;
        for (from, to, path) in archive::parts(media, path)? {
            let position = self.lsn;
            if self.over || to <= position {
                continue;
            }
            if unless("hole-passed-over", from > position) {
                // What is missing may be in the store's own log.
                self.hole = Some((position, from));
                return Ok(());
            }
            // Of a store that is open, whose files are those of its directory.
            media.list_outside(&path);
            archive::read_part(media, (from..to, &path), &mut |part| {
                part.refuse_another(self.store)?;
                self.take_catalog(&part.catalog)?;
                part.records(|record| if record.lsn < position { Ok(true) } else { self.apply(record) })
            })?;
        }
        Ok(())
    }

    /// Step 3.
    fn read_log(&mut self, settings: &Settings, path: &Path) -> Result<(), BackupError> {
        let live = Live::open(settings, path, Staged::Later)?;
        if live.store != self.store {
            let (found, expected) = (format::hex(&live.store), format::hex(&self.store));
            return Err(BackupError::Foreign { path: path.to_owned(), found, expected });
        }
        let end = live.end()?;
        if self.over || end <= self.lsn {
            return Ok(());
        }
        self.take_catalog(&live.catalog()?.0)?;
        let position = self.lsn;
        match live.records(position, end, |record| self.apply(record)) {
            Err(BackupError::Overtaken { lsn, .. }) if lsn == position.0 => {
                Err(BackupError::Hole { from: lsn, to: live.head()?.0.max(lsn) })
            }
            done => done,
        }
    }

    fn end(self) -> Result<(Lsn, u64), BackupError> {
        let is_reached = self.over || self.how.until == Until::Lsn(self.lsn.0);
        if let Some((from, to)) = self.hole.filter(|(from, _)| !is_reached && self.lsn <= *from) {
            return Err(BackupError::Hole { from: from.0, to: to.0 });
        }
        if let Until::Lsn(wanted) = self.how.until
            && wanted > self.lsn.0
            && !self.over
        {
            return Err(BackupError::NotReached { lsn: self.lsn.0, wanted });
        }
        let unknown = self.wanted.iter().find_map(|followed| match &followed.segment {
            Wanted::Named(name) => Some(name.clone()),
            Wanted::Known(_) => None,
        });
        match unknown {
            Some(name) => Err(SegmentError::Unknown { name }.into()),
            None => Ok((self.lsn, self.time)),
        }
    }
}

/// The bytes of one segment at the moment that `how` names.
pub(crate) fn past(
    settings: &Settings,
    source: &mut dyn Read,
    how: &RestoreOptions,
    (segment, range): (&str, Range<u64>),
    tell: Tell<'_>,
) -> Result<Past, BackupError> {
    let mut wanted = [Followed::new(Wanted::Named(segment.to_owned()), range)];
    let (lsn, time) = follow(settings, source, how, &mut wanted, tell)?;
    let [Followed { start, bytes, .. }] = wanted;
    Ok(Past { segment: segment.to_owned(), offset: start, bytes, lsn: lsn.0, time })
}
