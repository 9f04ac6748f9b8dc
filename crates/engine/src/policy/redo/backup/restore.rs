//! Makes a store again from a dump, the archive of its log, and what is left of the store itself.
//!
//! ```text
//!   1 a directory that says what it is     without a catalog it is no store: a crash leaves nothing else
//!   2 the dump's segments, then its log    the store as of the end of the dump
//!   3 the archive's parts from there on    up to the moment that is wanted
//!   4 what is left of the store            its log, and commits that did not get that far
//!   5 segments forced, a new log, the catalog last
//! ```
//!
//! It gets an identity of its own: what is committed in it is another history than that of the store it was made
//! from, and its positions in the log begin anew. Undecided transactions stay undecided.

use super::BackupError;
use super::archive;
use super::left::Left;
use crate::policy::kind::{New, Policy};
use crate::policy::redo::create;
use crate::policy::redo::prepared::{self, PreparedTable};
use crate::storage::catalog::{Catalog, Entry};
use crate::storage::class::Class;
use crate::storage::directory;
use crate::storage::error::OpenError;
use crate::storage::redo_ranges::RedoRanges;
use crate::storage::segment::{Extents, Opener, SegmentState};
use crate::storage::segment_file::Descriptors;
use crate::storage::settings::Settings;
use caliburn_log::dump::{Piece, Reader, StreamError};
use caliburn_log::format::{self, Defect, Lsn};
use caliburn_log::record::{Decoded, Kind, Ranges, Record, decode};
use caliburn_os::host::Id;
use caliburn_os::medium::Media;
use caliburn_os::simulated::{instead, planted, unless};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Up to which moment a store is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Until {
    /// All that there is.
    #[default]
    Latest,
    /// Every commit whose record stands before this LSN, and no other.
    Lsn(u64),
    /// Every commit whose record came to the log at this time or before, nanoseconds since 1970: the first later one
    /// ends it.
    Time(u64),
}

/// What a store is restored from, besides a dump, and up to when: [`Options::restore`](crate::Options::restore).
#[derive(Debug, Clone, Default)]
pub struct RestoreOptions {
    archive: Option<PathBuf>,
    left: Option<PathBuf>,
    external: Option<PathBuf>,
    until: Until,
}

impl RestoreOptions {
    /// The dump alone.
    pub fn new() -> RestoreOptions {
        RestoreOptions::default()
    }

    /// The directory with the parts of the log that were archived.
    pub fn archive(&mut self, path: impl AsRef<Path>) -> &mut RestoreOptions {
        self.archive = Some(path.as_ref().to_owned());
        self
    }

    /// The directory of the store itself, of which the log is left, and perhaps the stage: what was committed after
    /// the last part that was archived.
    pub fn left(&mut self, path: impl AsRef<Path>) -> &mut RestoreOptions {
        self.left = Some(path.as_ref().to_owned());
        self
    }

    /// The directory in which files are made that the store had adopted.
    pub fn external(&mut self, path: impl AsRef<Path>) -> &mut RestoreOptions {
        self.external = Some(path.as_ref().to_owned());
        self
    }

    /// Up to which moment. Default: all that there is.
    pub fn until(&mut self, until: Until) -> &mut RestoreOptions {
        self.until = until;
        self
    }
}

/// A store that was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// Identity of the store that was dumped, in hexadecimal.
    pub from: String,
    /// It has every commit before this LSN of that store, and no other.
    pub lsn: u64,
    /// Time of the last of them, nanoseconds since 1970, as far as its record was read; else when the dump was made.
    pub time: u64,
    /// Transactions that were applied to what the dump had of the segments.
    pub transactions: u64,
    /// Of them, those that were neither in the dump nor in the archive.
    pub left: u64,
    /// Undecided prepared transactions.
    pub undecided: u64,
    /// What is damaged in what is left of the store: what came after it is lost.
    pub lost: Option<String>,
    /// Segments.
    pub segments: u64,
}

pub(crate) fn restore(
    settings: &Settings,
    source: &mut dyn Read,
    how: &RestoreOptions,
    dir: &Path,
) -> Result<Restored, BackupError> {
    // 1
    settings.media.create_directory(dir).map_err(OpenError::io("create directory", dir))?;
    let media = directory::hold(dir, settings)?;
    let _lock = directory::lock(&*media, dir, false)?;
    directory::begin_restoring(&*media, dir)?;
    let mut reader = Reader::begin(source)?;
    let store = media.random_id().map_err(OpenError::io("draw a random identity for", dir))?;
    let mut restore = Restore {
        how,
        media: &media,
        descriptors: Descriptors::of(&*media),
        dir,
        store,
        from: reader.store(),
        catalog: None,
        segments: Vec::new(),
        extents: Extents::of(&[]),
        unapplied: RedoRanges::none(Lsn(0)),
        unapplied_bytes: 0,
        undecided: PreparedTable::new(),
        restored: Restored {
            from: format::hex(&reader.store()),
            lsn: reader.from().0,
            time: reader.time(),
            transactions: 0,
            left: 0,
            undecided: 0,
            lost: None,
            segments: 0,
        },
        over: false,
        is_dumped: false,
        outside: Vec::new(),
    };
    // 2
    restore.read_dump(&mut reader)?;
    // 3
    if let Some(path) = &how.archive {
        restore.read_archive(&*settings.media, path)?;
    }
    // 4
    if let Some(path) = &how.left {
        restore.read_left(settings, path)?;
    }
    // 5
    restore.finish(settings)
}

/// A store that is being made.
struct Restore<'a> {
    how: &'a RestoreOptions,
    media: &'a Arc<dyn Media>,
    descriptors: Arc<Descriptors>,
    dir: &'a Path,
    store: Id,
    /// The store that was dumped.
    from: Id,
    /// The last one of the dump, with the paths that hold here.
    catalog: Option<Catalog>,
    segments: Vec<Arc<SegmentState>>,
    extents: Extents,
    unapplied: RedoRanges,
    unapplied_bytes: usize,
    undecided: PreparedTable,
    restored: Restored,
    /// The moment that is wanted has come.
    over: bool,
    /// All data of the dump were read.
    is_dumped: bool,
    /// Files that were made outside of the directory.
    outside: Vec<PathBuf>,
}

impl Restore<'_> {
    /// Step 2.
    fn read_dump(&mut self, reader: &mut Reader<'_>) -> Result<(), BackupError> {
        /// So much is written before it is forced, and the sums with it.
        const FORCED_EVERY: usize = 1 << 30;
        let mut rest: Vec<u8> = Vec::new();
        let mut unforced = 0;
        loop {
            let offset = reader.offset();
            let bad = |text: String| StreamError::Bad { offset, defect: Defect::Value(text) };
            match reader.read()? {
                Piece::Catalog(bytes) => {
                    let catalog =
                        Catalog::decode(bytes).map_err(|(_, defect)| StreamError::Bad { offset, defect })?;
                    self.take_catalog(catalog)?;
                }
                Piece::Data(id, at, bytes) => {
                    let segment = self.segments.iter().find(|segment| segment.id == id);
                    let end = at.checked_add(bytes.len() as u64);
                    let segment =
                        segment.filter(|segment| end.is_some_and(|end| end <= segment.len())).ok_or_else(
                            || bad(format!("data at {at} of segment {}, which has no such bytes", id.0)),
                        )?;
                    let whole = at.is_multiple_of(format::SUM_UNIT as u64)
                        && (bytes.len().is_multiple_of(format::SUM_UNIT) || segment.data == 0);
                    if !whole {
                        return Err(bad("data that are not whole units".into()).into());
                    }
                    segment.write(at, bytes)?;
                    unforced += bytes.len();
                    if unforced > FORCED_EVERY {
                        self.segments.iter().try_for_each(|segment| segment.sync())?;
                        unforced = 0;
                    }
                }
                Piece::Log(lsn, bytes) => {
                    self.is_dumped = true;
                    let begun = Lsn(lsn.0 - rest.len() as u64);
                    rest.extend_from_slice(bytes);
                    let used = self.apply_records(begun, &rest)?;
                    rest.drain(..used);
                }
                Piece::End(end) => {
                    self.is_dumped = true;
                    if !rest.is_empty() {
                        return Err(bad("the log's part does not end with a record".into()).into());
                    }
                    let (lsn, time) = (end.lsn.get(), end.time.get());
                    let later = match self.how.until {
                        Until::Latest => false,
                        Until::Lsn(wanted) => wanted < lsn,
                        // Of what was truncated before nothing is known but that it is not later.
                        Until::Time(wanted) => {
                            wanted < if end.last.get() == 0 { time } else { end.last.get() }
                        }
                    };
                    if later || self.over {
                        return Err(BackupError::Later { lsn, time });
                    }
                    self.restored.lsn = lsn;
                    if end.last.get() == 0 {
                        self.restored.time = time;
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Makes the segments that are new in a catalog, and those longer that are.
    fn take_catalog(&mut self, mut catalog: Catalog) -> Result<(), BackupError> {
        if catalog.store != self.from || catalog.policy != Policy::Redo as u16 {
            let text = "a catalog of another store, or of one with another policy".to_owned();
            return Err(StreamError::Bad { offset: 0, defect: Defect::Value(text) }.into());
        }
        catalog.store = self.store;
        for entry in &mut catalog.segments {
            entry.path = self.place(entry)?;
            let known = self.segments.iter().find(|segment| segment.id == entry.id);
            // What such a file had, or has behind its former end, is in no log.
            let late = known.map_or(self.is_dumped, |segment| segment.len() != entry.len);
            if entry.is_external() && late {
                return Err(BackupError::Adopted { name: entry.name.clone() });
            }
            match known {
                Some(segment) if segment.len() < entry.len => {
                    segment.extend(entry.len)?;
                    segment.len.store(entry.len, std::sync::atomic::Ordering::Release);
                }
                Some(_) => {}
                None => {
                    let segment = self.make_segment(entry)?;
                    self.segments.push(Arc::new(segment));
                }
            }
        }
        self.extents = Extents::of(&self.segments);
        self.catalog = Some(catalog);
        Ok(())
    }

    /// Where a segment's file is here.
    fn place(&self, entry: &Entry) -> Result<PathBuf, BackupError> {
        if !entry.is_external() {
            return Ok(crate::storage::segment::default_path(&entry.name));
        }
        let (name, path) = (entry.name.clone(), entry.path.clone());
        let above = self.how.external.as_ref().ok_or(BackupError::External { name, path })?;
        let above = std::path::absolute(above).map_err(BackupError::io("resolve", above))?;
        Ok(above.join(&entry.name))
    }

    fn make_segment(&mut self, entry: &Entry) -> Result<SegmentState, BackupError> {
        let opener = Opener {
            media: self.media,
            descriptors: &self.descriptors,
            dir: self.dir,
            write: true,
            claim: true,
        };
        if entry.is_external() {
            self.media.list_outside(&entry.path);
            self.outside.push(entry.path.clone());
            directory::note_restored_outside(&**self.media, self.dir, &self.outside)?;
            return Ok(SegmentState::make_external(opener, entry)?);
        }
        Ok(SegmentState::create(opener, &self.store, entry, true, &|_| Ok(()))?)
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
        let beyond = match self.how.until {
            Until::Latest => false,
            Until::Lsn(wanted) => instead("restored-too-far", record.lsn.0 >= wanted, record.lsn.0 > wanted),
            Until::Time(wanted) => record.time > wanted,
        };
        self.over |= beyond;
        if self.over {
            return Ok(false);
        }
        if unless("hole-passed-over", record.lsn.0 != self.restored.lsn) {
            return Err(BackupError::Hole { from: self.restored.lsn, to: record.lsn.0 });
        }
        if let Some(range) = record.ranges().find(|range| !self.extents.hold(range)) {
            return Err(BackupError::Stray { lsn: record.lsn.0, segment: range.segment.0 });
        }
        prepared::recover(&mut self.undecided, record);
        if matches!(record.kind, Kind::Commit | Kind::Group | Kind::Resolve) {
            self.push(record.body(), record.next());
            self.restored.transactions += record.transactions;
            if self.unapplied_bytes > TOGETHER {
                self.apply_all()?;
            }
        }
        (self.restored.lsn, self.restored.time) = (record.next().0, record.time);
        Ok(true)
    }

    fn push(&mut self, body: &[u8], tail: Lsn) {
        self.unapplied_bytes += body.len();
        self.unapplied.push(body.to_vec(), tail);
    }

    fn apply_all(&mut self) -> Result<(), BackupError> {
        for segment in &self.segments {
            self.unapplied.apply(segment, caliburn_os::page_size(), |_| {})?;
        }
        self.unapplied = RedoRanges::none(Lsn(self.restored.lsn));
        self.unapplied_bytes = 0;
        Ok(())
    }

    /// Step 3.
    fn read_archive(&mut self, media: &dyn Media, path: &Path) -> Result<(), BackupError> {
        for (from, to, path) in archive::parts(media, path)? {
            let position = self.restored.lsn;
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
                part.refuse_another(self.from)?;
                self.take_catalog(part.catalog.clone())?;
                part.records(|record| if record.lsn.0 < position { Ok(true) } else { self.apply(record) })
            })?;
        }
        Ok(())
    }

    /// Whether no later record is wanted.
    fn is_reached(&self) -> bool {
        matches!(self.how.until, Until::Lsn(wanted) if wanted <= self.restored.lsn)
    }

    /// Step 4.
    fn read_left(&mut self, settings: &Settings, path: &Path) -> Result<(), BackupError> {
        if self.over || self.is_reached() {
            return Ok(());
        }
        let before = self.restored.transactions;
        let left = Left::open(settings, path, &self.from)?;
        if let Some(catalog) = &left.catalog {
            self.take_catalog(catalog.clone())?;
        }
        let lost = left.records(Lsn(self.restored.lsn), |record| self.apply(record))?;
        if lost.is_none() && !self.over && self.how.until == Until::Latest {
            for body in left.staged() {
                if let Some(range) = Ranges::of(body).find(|range| !self.extents.hold(range)) {
                    return Err(BackupError::Stray { lsn: self.restored.lsn, segment: range.segment.0 });
                }
                self.push(body, Lsn(self.restored.lsn));
                self.restored.transactions += 1;
            }
        }
        self.restored.left = self.restored.transactions - before;
        self.restored.lost = lost;
        Ok(())
    }

    /// Step 5.
    fn finish(mut self, settings: &Settings) -> Result<Restored, BackupError> {
        if let Until::Lsn(wanted) = self.how.until
            && wanted > self.restored.lsn
            && !self.over
        {
            return Err(BackupError::NotReached { lsn: self.restored.lsn, wanted });
        }
        self.apply_all()?;
        for segment in &self.segments {
            if !planted("restored-unforced") {
                segment.sync()?;
            }
        }
        let catalog = self.catalog.take().ok_or(StreamError::CutOff { offset: 0 })?;
        let mut settings = settings.clone();
        settings.media = self.media.clone();
        settings.require = Class::Process;
        let new = New { dir: self.dir, settings: &settings, store: self.store, uncatalogued: &mut true };
        create::create_with(new, catalog.next, catalog.segments, &mut self.undecided)?;
        directory::end_restoring(&**self.media, self.dir);
        self.restored.undecided = self.undecided.len() as u64;
        self.restored.segments = self.segments.len() as u64;
        Ok(self.restored)
    }
}
