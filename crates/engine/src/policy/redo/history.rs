//! The history of modifications that a log holds: RVM's post-mortem tool (section 6), as a library.
//!
//! Reads a store without locking it, also while a program is using it. [`History::live`] reads what truncation has
//! not passed; truncated records stay in the log until they are overwritten, and [`History::all`] finds those too.

use super::backup::archive;
use super::duplex;
use crate::policy::backup::BackupError;
use crate::policy::kind::Policy;
use crate::storage::catalog::Catalog;
use crate::storage::directory;
use crate::storage::error::OpenError;
use crate::storage::settings::Settings;
use caliburn_log::format::Lsn;
use caliburn_log::log;
use caliburn_log::record::{self, Kind, Record};
use caliburn_log::scan::scan;
use caliburn_log::search::scan_ring;
use caliburn_log::staged_tail;
use caliburn_os::files::Files;
use caliburn_os::medium::{Media, Medium};
use caliburn_os::witness::{Look, Seen};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One modification range of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Name of the segment, or its number if the catalog does not know it.
    pub segment: String,
    /// First byte in the segment.
    pub offset: u64,
    /// The new bytes.
    pub bytes: Vec<u8>,
}

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its position, which also identifies the transaction.
    pub lsn: u64,
    /// `commit`, `group`, `prepare`, `resolve` or `forget`.
    pub kind: &'static str,
    /// When it came to the log, nanoseconds since 1970.
    pub time: u64,
    /// Which opening of the store wrote it.
    pub incarnation: u32,
    /// Transactions in it.
    pub transactions: u64,
    /// Identifier of a prepared transaction.
    pub global_id: Vec<u8>,
    /// Bytes in the log.
    pub log_bytes: u64,
    /// What it changes.
    pub changes: Vec<Change>,
}

/// Which records are wanted; all that is set must hold.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// The record at this position.
    pub lsn: Option<u64>,
    /// Records that change this segment.
    pub segment: Option<String>,
    /// Records that change any of these bytes of it.
    pub range: Option<Range<u64>>,
    /// Records of this time, nanoseconds since 1970.
    pub time: Option<Range<u64>>,
    /// Records of the prepared transaction with this identifier.
    pub global_id: Option<Vec<u8>>,
}

impl Filter {
    fn accepts(&self, event: &Event) -> bool {
        let touches = |change: &Change| {
            let end = change.offset.saturating_add(change.bytes.len() as u64);
            self.segment.as_ref().is_none_or(|s| *s == change.segment)
                && self.range.as_ref().is_none_or(|r| change.offset < r.end && end > r.start)
        };
        let by_change = self.segment.is_none() && self.range.is_none();
        self.lsn.is_none_or(|lsn| lsn == event.lsn)
            && self.time.as_ref().is_none_or(|t| t.contains(&event.time))
            && self.global_id.as_ref().is_none_or(|id| *id == event.global_id)
            && (by_change || event.changes.iter().any(touches))
    }
}

/// A log opened for reading its history.
#[derive(Debug)]
pub struct History {
    media: Arc<dyn Media>,
    medium: Arc<dyn Medium>,
    stage: PathBuf,
    catalog: Catalog,
}

impl History {
    /// Opens the log of a store, which may be in use. One outside of the store's directory:
    /// [`Options::history`](crate::Options::history).
    ///
    /// # Errors
    /// When there is no store or its log cannot be read.
    pub fn open(dir: impl AsRef<Path>) -> Result<History, OpenError> {
        History::open_with(&Settings::default(), dir.as_ref())
    }

    pub(crate) fn open_with(settings: &Settings, dir: &Path) -> Result<History, OpenError> {
        let media = directory::hold(dir, settings)?;
        let catalog = directory::read_catalog(&*media, dir)?;
        if catalog.policy != Policy::Redo as u16 {
            let why = "only with the redo policy is there a log whose history can be told";
            return Err(OpenError::Policy { path: dir.to_owned(), why });
        }
        let (medium, _) = duplex::one_of(&*media, dir, &catalog)?;
        Ok(History { media, medium, stage: dir.join(directory::STAGE), catalog })
    }

    /// Where the log ends, if a stage of this boot says so: what stands beyond was not committed there.
    fn end(&self) -> Option<Lsn> {
        let stage = self.media.open(&self.stage, false).ok()?;
        let seen = Seen::of(&*self.media, &[Look::at(&*stage)]).ok()?;
        staged_tail::log_end(&*stage, &self.catalog.store, &seen).ok()?
    }

    /// The live records that a filter accepts, oldest first, or newest first.
    ///
    /// # Errors
    /// When the log cannot be read or is damaged.
    pub fn live(&self, filter: &Filter, newest_first: bool) -> Result<Vec<Event>, OpenError> {
        let status = log::read_status(&*self.medium, Some(&self.catalog.store))?;
        let mut found = Vec::new();
        let known = self.end().map(|end| Lsn(0)..end);
        let scanned = scan(&*self.medium, &status, known, |record| found.extend(self.event(record, filter)))?;
        if newest_first {
            found.reverse();
        }
        match scanned.damage {
            Some(damage) if found.is_empty() => Err(damage.into()),
            _ => Ok(found),
        }
    }

    /// Every valid record that still stands in the ring, truncated ones too, by position.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn all(&self, filter: &Filter) -> Result<Vec<Event>, OpenError> {
        let status = log::read_status(&*self.medium, Some(&self.catalog.store))?;
        let mut found = Vec::new();
        scan_ring(&*self.medium, &status, |record| found.extend(self.event(record, filter)))?;
        found.sort_by_key(|event: &Event| event.lsn);
        found.dedup_by_key(|event| event.lsn);
        Ok(found)
    }

    /// The records in an archive of a log ([`Archiver`](crate::Archiver)) that a filter accepts, oldest first,
    /// each once.
    ///
    /// # Errors
    /// When a part cannot be read or is damaged.
    pub fn archived(path: impl AsRef<Path>, filter: &Filter) -> Result<Vec<Event>, BackupError> {
        let (mut found, mut position) = (Vec::new(), Lsn(0));
        archive::each_part(&Files, path.as_ref(), &mut |part| {
            part.records(|record| {
                if record.lsn >= position {
                    position = record.next();
                    let event = Event::of(record, &part.catalog);
                    found.extend(filter.accepts(&event).then_some(event));
                }
                Ok(true)
            })
        })?;
        Ok(found)
    }

    /// What a record tells, if the filter accepts it.
    fn event(&self, record: &Record<'_>, filter: &Filter) -> Option<Event> {
        let event = Event::of(record, &self.catalog);
        filter.accepts(&event).then_some(event)
    }
}

impl Event {
    /// What a record tells.
    fn of(record: &Record<'_>, catalog: &Catalog) -> Event {
        let change = |range: record::Range<'_>| {
            let entry = catalog.segments.iter().find(|entry| entry.id == range.segment);
            Change {
                segment: entry.map_or_else(|| range.segment.0.to_string(), |entry| entry.name.clone()),
                offset: range.offset,
                bytes: range.bytes.to_vec(),
            }
        };
        Event {
            lsn: record.lsn.0,
            kind: match record.kind {
                Kind::Commit => "commit",
                Kind::Group => "group",
                Kind::Prepare => "prepare",
                Kind::Resolve => "resolve",
                Kind::Forget => "forget",
            },
            time: record.time,
            incarnation: record.incarnation,
            transactions: record.transactions,
            global_id: record.global_id.to_vec(),
            log_bytes: record.len(),
            changes: record.ranges().map(change).collect(),
        }
    }
}
