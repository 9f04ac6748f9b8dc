//! A dump of a store: how it is made, what it holds, and its stream.

use super::BackupError;
use crate::storage::progress::{Phase, Watch};
use crate::storage::segment::SegmentState;
use caliburn_log::dump::{Base, Writer};
use caliburn_log::format::{self, Lsn, SUM_UNIT};
use caliburn_os::descriptors;
use caliburn_os::descriptors::open_to_read;
use caliburn_os::medium::Media;
use caliburn_os::simulated::unless;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How a dump is made: [`Store::dump`](crate::Store::dump).
#[derive(Debug, Clone, Default)]
pub struct DumpOptions {
    rate: Option<u64>,
    spool: Option<PathBuf>,
    since: Option<(String, u64)>,
}

impl DumpOptions {
    /// As fast as it goes, with a spool among the system's temporary files.
    pub fn new() -> DumpOptions {
        DumpOptions::default()
    }

    /// Reads at most so many bytes of segments in a second, to leave the disk to others.
    pub fn rate(&mut self, bytes: u64) -> &mut DumpOptions {
        self.rate = Some(bytes.max(1));
        self
    }

    /// Only what was written since an earlier dump of the store, over which this one is laid when it is
    /// [restored](crate::Options::restore): without reading the rest. The store knows which of its dumps that can
    /// be: its last 128. Not with the undo policy, where nobody sees what is written.
    pub fn since(&mut self, base: &Dumped) -> &mut DumpOptions {
        self.since = Some((base.id.clone(), base.lsn));
        self
    }

    /// A directory for a file that has no name, in which what is committed during the dump is kept until the
    /// segments are read.
    pub fn spool_in(&mut self, directory: impl AsRef<Path>) -> &mut DumpOptions {
        self.spool = Some(directory.as_ref().to_owned());
        self
    }

    /// Nothing holds it up.
    pub(crate) fn at_once(&mut self) {
        self.rate = None;
    }

    /// How long so many bytes are to take at least.
    pub(crate) fn due(&self, bytes: u64) -> Option<Duration> {
        self.rate.map(|rate| Duration::from_secs_f64(bytes as f64 / rate as f64))
    }

    /// The dump that this one is to be laid over.
    pub(crate) fn base(&self) -> Result<Option<Base>, BackupError> {
        let Some((id, lsn)) = &self.since else { return Ok(None) };
        let parsed = format::unhex(id).filter(|id| *id != [0; 16]);
        let id = parsed.ok_or_else(|| BackupError::Base { id: id.clone(), lsn: *lsn })?;
        Ok(Some((id, Lsn(*lsn))))
    }
}

/// What a dump holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dumped {
    /// Identity of the store, in hexadecimal.
    pub store: String,
    /// Identity of the dump; empty for one that cannot be the base of another.
    pub id: String,
    /// Identity of the dump that it is laid over; none: it is whole.
    pub base: Option<String>,
    /// The dump is of the moment when the log ended here: it has every commit before, and none after. 0 for a
    /// store without a log.
    pub lsn: u64,
    /// When that was, nanoseconds since 1970.
    pub time: u64,
    /// Time of the last record before it; 0 if the dump has none.
    pub last: u64,
    /// Segments in it.
    pub segments: u64,
    /// Bytes of data.
    pub data_bytes: u64,
    /// Bytes of log, committed while it was made or before that and not truncated.
    pub log_bytes: u64,
    /// How long transactions were held up, where that is needed; not known of a dump that was made before.
    pub held: Duration,
}

impl Dumped {
    /// What a dump in a file holds, by its header and its end: what is between them is not looked at.
    ///
    /// # Errors
    /// When the file cannot be read, or is no whole dump.
    pub fn of(path: impl AsRef<Path>) -> Result<Dumped, BackupError> {
        let path = path.as_ref();
        let mut file = open_to_read(path).map_err(BackupError::io("open", path))?;
        let (head, end) = caliburn_log::dump::ends(&mut file)?;
        Ok(Dumped {
            store: format::hex(&head.store),
            id: head.id.map_or(String::new(), |id| format::hex(&id)),
            base: head.base.map(|(id, _)| format::hex(&id)),
            lsn: end.lsn.get(),
            time: end.time.get(),
            last: end.last.get(),
            segments: end.segments.get(),
            data_bytes: end.data.get(),
            log_bytes: end.log.get(),
            held: Duration::ZERO,
        })
    }
}

/// The stream that is being written.
pub(crate) struct Stream<'a> {
    pub writer: Writer<'a>,
    watch: &'a Watch,
    how: &'a DumpOptions,
    begun: Instant,
    /// Bytes that were read.
    read: u64,
}

impl<'a> Stream<'a> {
    pub fn new(writer: Writer<'a>, how: &'a DumpOptions, watch: &'a Watch) -> Stream<'a> {
        Stream { writer, watch, how, begun: Instant::now(), read: 0 }
    }

    /// Writes what a segment holds, or what of it was written since the log came to an LSN. `each` is called after
    /// each stretch with the units of it that do not match their sums. Of `total` bytes of all segments, those
    /// before this one take `before`.
    pub fn segment(
        &mut self,
        segment: &SegmentState,
        since: Option<Lsn>,
        (before, total): (u64, u64),
        each: &mut dyn FnMut(&[u64]) -> Result<(), BackupError>,
    ) -> Result<(), BackupError> {
        segment.each_stretch(since, |at, data, unlike| {
            let fail = BackupError::io("dump segment", segment.file.path());
            self.watch.tell(Phase::CopySegments, before + at, total).map_err(fail)?;
            if unless("incremental-without-zeros", since.is_some()) {
                // The base may have something else where there are zeros.
                self.writer.data(segment.id, at, data).map_err(written)?;
            } else {
                for (offset, bytes) in without_zeros(at, data) {
                    self.writer.data(segment.id, offset, bytes).map_err(written)?;
                }
            }
            self.read += data.len() as u64;
            if let Some(due) = self.how.due(self.read) {
                std::thread::sleep(due.saturating_sub(self.begun.elapsed()));
            }
            each(unlike)
        })
    }
}

/// A file without a name, in which is kept what cannot be written to the stream yet.
pub(crate) fn spool(media: &dyn Media, how: &DumpOptions) -> Result<File, BackupError> {
    let above = how.spool.clone().unwrap_or_else(std::env::temp_dir);
    let make = || {
        let id = format::hex(&media.random_id()?);
        let path = above.join(format!(".caliburn-{}-{id}", std::process::id()));
        let file = descriptors::above(|| {
            File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)
        })?;
        std::fs::remove_file(&path)?;
        Ok(file)
    };
    make().map_err(BackupError::io("make a spool in", &above))
}

/// The stream failed.
pub(crate) fn written(error: io::Error) -> BackupError {
    BackupError::Stream(error.into())
}

/// The parts of a stretch that are not zeros.
fn without_zeros(at: u64, data: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    const PART: usize = 16 * SUM_UNIT;
    let parts = data.chunks(PART).enumerate().map(|(i, part)| (i, part.iter().any(|byte| *byte != 0)));
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (i, _) in parts.filter(|(_, some)| *some) {
        match runs.last_mut() {
            Some((_, end)) if *end == i => *end += 1,
            _ => runs.push((i, i + 1)),
        }
    }
    runs.into_iter().map(move |(from, to)| {
        let range = from * PART..(to * PART).min(data.len());
        (at + range.start as u64, &data[range])
    })
}
