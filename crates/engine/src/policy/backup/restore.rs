//! The store that is made of a dump: its directory and its segments, whatever its policy is.
//!
//! ```text
//!   1 a directory that says what it is     without a catalog it is no store: a crash leaves nothing else
//!   2 the segments that the dump's catalogs name, and their data
//!   3 what the policy has besides          a log; behind the seam
//!   4 segments forced, the policy's files, the catalog last
//! ```
//!
//! It gets an identity of its own: what is committed in it is another history than that of the store it was made
//! from.

use super::BackupError;
use crate::policy::kind::New;
use crate::storage::attempt::{self, Attempt};
use crate::storage::catalog::{Catalog, Entry};
use crate::storage::class::Class;
use crate::storage::directory;
use crate::storage::error::OpenError;
use crate::storage::opener::Opener;
use crate::storage::segment::{self, SegmentState};
use crate::storage::segment_file::Descriptors;
use crate::storage::settings::Settings;
use caliburn_log::SegmentId;
use caliburn_log::dump::{Piece, Reader, StreamError};
use caliburn_log::format::{self, Defect, Lsn};
use caliburn_os::host::{Id, Lock};
use caliburn_os::medium::Media;
use caliburn_os::simulated::{planted, unless};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Up to which moment a store is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Until {
    /// All that there is.
    #[default]
    Latest,
    /// Every commit whose record stands before this LSN, and no other.
    Lsn(u64),
    /// Every commit whose record came to the log at this time or before, nanoseconds since 1970: the first later
    /// one ends it.
    Time(u64),
}

/// What a store is restored from, besides a dump, and up to when: [`Options::restore`](crate::Options::restore).
#[derive(Debug, Clone, Default)]
pub struct RestoreOptions {
    pub(crate) archive: Option<PathBuf>,
    pub(crate) left: Option<PathBuf>,
    pub(crate) until: Until,
    pub(crate) external: Option<PathBuf>,
    pub(crate) checked: bool,
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

    /// The directory of the store itself, of which the log is left, and perhaps the stage: what was committed
    /// after the last part that was archived.
    pub fn left(&mut self, path: impl AsRef<Path>) -> &mut RestoreOptions {
        self.left = Some(path.as_ref().to_owned());
        self
    }

    /// The directory in which files are made that the store had adopted.
    pub fn external(&mut self, path: impl AsRef<Path>) -> &mut RestoreOptions {
        self.external = Some(path.as_ref().to_owned());
        self
    }

    /// Whether the store is checked when it is complete. Cut short in its check, it can be restored again as if it
    /// were cut short before. Default: no.
    pub fn checked(&mut self, yes: bool) -> &mut RestoreOptions {
        self.checked = yes;
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
    /// Time of the last of them, nanoseconds since 1970, as far as its record was read; else when the dump was
    /// made.
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

/// What comes next in a dump.
pub(crate) enum Next {
    /// A catalog: there may be segments that were not there.
    Catalog,
    /// Bytes of the log.
    Log(Lsn, Vec<u8>),
    /// All was read.
    End(format::DumpEnd),
}

/// A store that is being made.
pub(crate) struct Making<'a> {
    pub how: &'a RestoreOptions,
    pub settings: &'a Settings,
    pub reader: Reader<'a>,
    pub media: Arc<dyn Media>,
    pub store: Id,
    /// The store that was dumped.
    pub from: Id,
    pub segments: Vec<Arc<SegmentState>>,
    pub restored: Restored,
    /// Whether segments have checksums.
    pub sums: bool,
    /// The policy that the catalogs name.
    policy: u16,
    dir: PathBuf,
    descriptors: Arc<Descriptors>,
    /// The last one of the dump, with the paths that hold here.
    catalog: Option<Catalog>,
    /// All data of the dump were read.
    is_dumped: bool,
    /// What another one removes.
    attempt: Attempt,
    /// Bytes of data that are not forced.
    unforced: usize,
    _lock: Lock,
}

impl<'a> Making<'a> {
    /// Steps 1, and the first catalog of 2, which names the policy.
    pub fn begin(
        settings: &'a Settings,
        source: &'a mut dyn Read,
        how: &'a RestoreOptions,
        dir: &Path,
    ) -> Result<(Making<'a>, Catalog), BackupError> {
        settings.media.create_directory(dir).map_err(OpenError::io("create directory", dir))?;
        let media = directory::hold(dir, settings)?;
        let lock = directory::lock(&*media, dir, false)?;
        let store = media.random_id().map_err(OpenError::io("draw a random identity for", dir))?;
        how.external.iter().for_each(|above| media.list_outside(above));
        let attempt = Attempt::begin(&*media, dir, store)?;
        let mut reader = Reader::begin(source)?;
        let head = *reader.head();
        if let Some((base, lsn)) = head.base {
            return Err(BackupError::NotItsBase { base: format::hex(&base), lsn: lsn.0 });
        }
        let Piece::Catalog(bytes) = reader.read()? else {
            let defect = Defect::Value("it does not begin with a catalog".into());
            return Err(StreamError::Bad { offset: 0, defect }.into());
        };
        let catalog = Catalog::decode(bytes).map_err(|(_, defect)| StreamError::Bad { offset: 0, defect })?;
        let making = Making {
            how,
            settings,
            reader,
            descriptors: Descriptors::of(&*media),
            media,
            store,
            from: head.store,
            segments: Vec::new(),
            restored: Restored {
                from: format::hex(&head.store),
                lsn: head.from.0,
                time: head.time,
                transactions: 0,
                left: 0,
                undecided: 0,
                lost: None,
                segments: 0,
            },
            sums: false,
            policy: catalog.policy,
            dir: dir.to_owned(),
            catalog: None,
            is_dumped: false,
            attempt,
            unforced: 0,
            _lock: lock,
        };
        Ok((making, catalog))
    }

    /// Step 2: goes on reading the dump, up to what is the policy's to deal with.
    pub fn read(&mut self) -> Result<Next, BackupError> {
        loop {
            let offset = self.reader.offset();
            let bad = |text: String| StreamError::Bad { offset, defect: Defect::Value(text) };
            match self.reader.read()? {
                Piece::Catalog(bytes) => {
                    let catalog =
                        Catalog::decode(bytes).map_err(|(_, defect)| StreamError::Bad { offset, defect })?;
                    self.take_catalog(catalog)?;
                    return Ok(Next::Catalog);
                }
                Piece::Data(id, at, bytes) => {
                    let bytes = bytes.to_vec();
                    self.write(id, at, &bytes)?.map_err(bad)?;
                }
                Piece::Log(lsn, bytes) => {
                    self.is_dumped = true;
                    return Ok(Next::Log(lsn, bytes.to_vec()));
                }
                Piece::End(end) => {
                    self.is_dumped = true;
                    return Ok(Next::End(end));
                }
            }
        }
    }

    /// The header of the dump that is laid over what was read, if there is one.
    pub fn next_dump(&mut self) -> Result<bool, BackupError> {
        let before = *self.reader.head();
        if !self.reader.next_dump()? {
            return Ok(false);
        }
        let head = *self.reader.head();
        let wanted = before.id.map(|id| (id, Lsn(self.restored.lsn)));
        if head.base.is_none() || head.base != wanted || head.store != self.from {
            let (base, lsn) = head.base.unwrap_or_default();
            return Err(BackupError::NotItsBase { base: format::hex(&base), lsn: lsn.0 });
        }
        self.is_dumped = false;
        Ok(true)
    }

    fn write(&mut self, id: SegmentId, at: u64, bytes: &[u8]) -> Result<Result<(), String>, BackupError> {
        /// So much is written before it is forced, and the sums with it.
        const FORCED_EVERY: usize = 1 << 30;
        const UNIT: usize = format::SUM_UNIT;
        let end = at.checked_add(bytes.len() as u64);
        let found = self.segments.iter().find(|segment| segment.id == id);
        let Some(segment) = found.filter(|segment| end.is_some_and(|end| end <= segment.len())) else {
            return Ok(Err(format!("data at {at} of segment {}, which has no such bytes", id.0)));
        };
        if !at.is_multiple_of(UNIT as u64) || !bytes.len().is_multiple_of(UNIT) && segment.data != 0 {
            return Ok(Err("data that are not whole units".into()));
        }
        // In the log that it will have, nothing of this comes.
        segment.write(at, bytes, Lsn(0))?;
        self.unforced += bytes.len();
        if self.unforced > FORCED_EVERY {
            self.segments.iter().try_for_each(|segment| segment.sync())?;
            self.unforced = 0;
        }
        Ok(Ok(()))
    }

    /// Says that a file outside of the directory is about to be made. A file that is there
    /// already belongs to the user.
    fn note_outside(&mut self, path: &Path) -> Result<(), OpenError> {
        self.media.list_outside(path);
        if unless("outside-taken-for-ours", self.media.exists(path)) {
            return Err(OpenError::io("create", path)(io::ErrorKind::AlreadyExists.into()));
        }
        self.attempt.outside.push(path.to_owned());
        self.attempt.note(&*self.media, &self.dir)
    }

    /// Says that the log is about to be made, if the settings have it outside of the directory.
    pub fn note_log(&mut self) -> Result<(), BackupError> {
        let Some(log) = &self.settings.log_path else { return Ok(()) };
        let log = std::path::absolute(log).map_err(BackupError::io("resolve", log))?;
        // What is there, a device or a file, stays there.
        if self.media.exists(&log) { Ok(()) } else { Ok(self.note_outside(&log)?) }
    }

    /// Says which segments in the directory are about to be made.
    fn note_segments(&mut self, catalog: &Catalog) -> Result<(), OpenError> {
        let is_new = |entry: &&Entry| self.segments.iter().all(|segment| segment.id != entry.id);
        let made = catalog.segments.iter().filter(|entry| !entry.is_external()).filter(is_new);
        let names: Vec<String> = made.map(|entry| entry.name.clone()).collect();
        if names.is_empty() {
            return Ok(());
        }
        self.attempt.segments.extend(names);
        self.attempt.note(&*self.media, &self.dir)
    }

    /// Makes the segments that are new in a catalog, and those longer that are.
    pub fn take_catalog(&mut self, mut catalog: Catalog) -> Result<(), BackupError> {
        if catalog.store != self.from || catalog.policy != self.policy {
            let text = "a catalog of another store, or of one with another policy".to_owned();
            return Err(StreamError::Bad { offset: 0, defect: Defect::Value(text) }.into());
        }
        catalog.store = self.store;
        self.note_segments(&catalog)?;
        for entry in &mut catalog.segments {
            entry.path = self.place(entry)?;
            let known = self.segments.iter().find(|segment| segment.id == entry.id);
            // What such a file had, or has behind its former end, is in no log.
            let late = self.is_dumped && known.is_none_or(|segment| segment.len() < entry.len);
            if entry.is_external() && late {
                return Err(BackupError::Adopted { name: entry.name.clone() });
            }
            match known {
                Some(segment) if segment.len() < entry.len => {
                    segment.extend(entry.len)?;
                    segment.len.store(entry.len, Ordering::Release);
                }
                // A catalog that is older says what was.
                Some(segment) => entry.len = segment.len(),
                None => {
                    let segment = self.make_segment(entry)?;
                    self.segments.push(Arc::new(segment));
                }
            }
        }
        // An older one, of what is left of the store, has nothing that is not known.
        if self.catalog.as_ref().is_none_or(|known| known.next <= catalog.next) {
            self.catalog = Some(catalog);
        }
        Ok(())
    }

    /// Where a segment's file is here.
    fn place(&self, entry: &Entry) -> Result<PathBuf, BackupError> {
        if !entry.is_external() {
            return Ok(segment::default_path(&entry.name));
        }
        let (name, path) = (entry.name.clone(), entry.path.clone());
        let above = self.how.external.as_ref().ok_or(BackupError::External { name, path })?;
        let above = std::path::absolute(above).map_err(BackupError::io("resolve", above))?;
        Ok(above.join(&entry.name))
    }

    fn make_segment(&mut self, entry: &Entry) -> Result<SegmentState, BackupError> {
        if entry.is_external() {
            self.note_outside(&entry.path)?;
        }
        let opener = Opener {
            media: &self.media,
            descriptors: &self.descriptors,
            dir: &self.dir,
            write: true,
            claim: true,
            generations: None,
        };
        if entry.is_external() {
            return Ok(SegmentState::make_external(opener, entry)?);
        }
        Ok(SegmentState::create(opener, &self.store, entry, self.sums, &|_| Ok(()))?)
    }

    /// Step 4. `create` makes the policy's files, and names the store.
    pub fn finish(
        mut self,
        create: impl FnOnce(New<'_>, Catalog) -> Result<(), OpenError>,
    ) -> Result<Restored, BackupError> {
        for segment in &self.segments {
            if !planted("restored-unforced") {
                segment.sync()?;
            }
        }
        let catalog = self.catalog.take().ok_or(StreamError::CutOff { offset: 0 })?;
        self.restored.segments = catalog.segments.len() as u64;
        let mut settings = self.settings.clone();
        settings.media = self.media.clone();
        settings.require = Class::Process;
        let (dir, settings, store) = (&*self.dir, &settings, self.store);
        create(New { dir, settings, store, uncatalogued: &mut true }, catalog)?;
        if !self.how.checked {
            attempt::end(&*self.media, &self.dir)?;
        }
        Ok(self.restored)
    }
}
