//! Dumps a store while it is used: a fuzzy dump, made consistent by the log (Camelot, section 4.3).
//!
//! ```text
//!   1 from := the log's head            what precedes it is in the segments, forced, with its checksums
//!   2 follow the log from there         into a spool, beside step 3: it is overwritten some time
//!   3 read the segments                 as they change; those that are made meanwhile, too
//!   4 end := the log's end, forced      what step 3 has read is in the log before it
//!   5 follow the log up to the end
//!   6 write the catalog, the spool, the end
//! ```
//!
//! A page that was read in step 3 has all changes before `from`, and any of those up to `end`, also in part: it
//! differs from what it was at `from` only in bytes that records between them name. Those records, applied in order,
//! make of it what it was at `end`. A unit that its checksum does not match must be one that such a record names:
//! else it is damaged, and there is no dump.

use super::BackupError;
use super::live::{Live, Staged};
use crate::storage::catalog::Entry;
use crate::storage::progress::{Phase, Watch};
use crate::storage::segment::SegmentState;
use crate::storage::settings::Settings;
use caliburn_log::SegmentId;
use caliburn_log::dump::{PIECE_BYTES_MAX, Writer};
use caliburn_log::format::{self, Lsn, SUM_UNIT};
use caliburn_os::clock::wall_ns;
use caliburn_os::simulated::{instead, unless};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How a dump is made: [`Store::dump`](crate::Store::dump).
#[derive(Debug, Clone, Default)]
pub struct DumpOptions {
    rate: Option<u64>,
    spool: Option<PathBuf>,
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

    /// A directory for a file that has no name, in which what is committed during the dump is kept until the
    /// segments are read.
    pub fn spool_in(&mut self, directory: impl AsRef<Path>) -> &mut DumpOptions {
        self.spool = Some(directory.as_ref().to_owned());
        self
    }
}

/// What a dump holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dumped {
    /// Identity of the store, in hexadecimal.
    pub store: String,
    /// The dump is of the moment when the log ended here: it has every commit before, and none after.
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
}

impl Dumped {
    /// What a dump in a file holds, by its header and its end: what is between them is not looked at.
    ///
    /// # Errors
    /// When the file cannot be read, or is no whole dump.
    pub fn of(path: impl AsRef<Path>) -> Result<Dumped, BackupError> {
        let path = path.as_ref();
        let mut file = File::open(path).map_err(BackupError::io("open", path))?;
        let (header, end) = caliburn_log::dump::ends(&mut file)?;
        Ok(Dumped {
            store: format::hex(&header.preamble.store),
            lsn: end.lsn.get(),
            time: end.time.get(),
            last: end.last.get(),
            segments: end.segments.get(),
            data_bytes: end.data.get(),
            log_bytes: end.log.get(),
        })
    }
}

pub(crate) fn dump(
    settings: &Settings,
    dir: &Path,
    how: &DumpOptions,
    target: &mut dyn Write,
) -> Result<Dumped, BackupError> {
    let live = Live::open(settings, dir, Staged::Refused)?;
    // 1
    let from = live.head()?;
    let mut follower = Follower::new(&live, from, how)?;
    let mut copy = Copy::begin(&live, how, &settings.watch, from, target)?;
    let end = if settings.background {
        beside(&live, &mut follower, || copy.read_all(&mut || Ok(())))?
    } else {
        let early = live.forced_end()?;
        copy.read_all(&mut || follower.follow(live.end()?))?;
        let end = instead("dump-ends-too-soon", live.forced_end()?, early);
        follower.follow(end)?;
        end
    };
    copy.finish(follower, end)
}

/// Steps 2 to 5: follows the log in a thread while `read` reads the segments. Where the log ended then.
fn beside(
    live: &Live,
    follower: &mut Follower<'_>,
    read: impl FnOnce() -> Result<(), BackupError>,
) -> Result<Lsn, BackupError> {
    /// How often it is looked whether the log has grown: it is overwritten after as much as it holds.
    const LOOK: Duration = Duration::from_millis(2);
    const NOT_YET: u64 = u64::MAX;
    const NEVER: u64 = u64::MAX - 1;
    let goal = AtomicU64::new(NOT_YET);
    std::thread::scope(|scope| {
        let following = scope.spawn(|| {
            loop {
                match goal.load(Ordering::Acquire) {
                    NEVER => return Ok(()),
                    NOT_YET => follower.follow(live.end()?)?,
                    end => return follower.follow(Lsn(end)),
                }
                std::thread::park_timeout(LOOK);
            }
        });
        /// Also when it is unwound: nobody waits for an end that never comes.
        struct Over<'a>(&'a AtomicU64, std::thread::Thread);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                _ = self.0.compare_exchange(NOT_YET, NEVER, Ordering::AcqRel, Ordering::Acquire);
                self.1.unpark();
            }
        }
        let over = Over(&goal, following.thread().clone());
        let early = live.forced_end();
        let end = read().and_then(|()| instead("dump-ends-too-soon", live.forced_end(), early));
        goal.store(end.as_ref().map_or(NEVER, |end| end.0), Ordering::Release);
        drop(over);
        let followed = following.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let end = end?;
        followed.map(|()| end)
    })
}

/// Copies the log to where it is not overwritten.
struct Follower<'l> {
    live: &'l Live,
    spool: File,
    position: Lsn,
    /// Time of the last record.
    last: u64,
    /// Units that records name.
    named: BTreeSet<(SegmentId, u64)>,
    buffer: Vec<u8>,
}

impl<'l> Follower<'l> {
    fn new(live: &'l Live, from: Lsn, how: &DumpOptions) -> Result<Follower<'l>, BackupError> {
        let above = how.spool.clone().unwrap_or_else(std::env::temp_dir);
        let spool = unnamed(live, &above).map_err(BackupError::io("make a spool in", above))?;
        Ok(Follower { live, spool, position: from, last: 0, named: BTreeSet::new(), buffer: Vec::new() })
    }

    /// Copies what is there up to `end`.
    fn follow(&mut self, end: Lsn) -> Result<(), BackupError> {
        if end <= self.position {
            return Ok(());
        }
        let Follower { live, spool, position, last, named, buffer } = self;
        let mut flush = |buffer: &mut Vec<u8>| {
            let done = spool.write_all(buffer).map_err(BackupError::io("write to", "the spool"));
            buffer.clear();
            done
        };
        live.records(*position, end, |record| {
            *last = record.time;
            for range in record.ranges() {
                let behind = range.offset + range.bytes.len().max(1) as u64 - 1;
                let units = range.offset / SUM_UNIT as u64..=behind / SUM_UNIT as u64;
                named.extend(units.map(|unit| (range.segment, unit)));
            }
            buffer.extend_from_slice(record.bytes());
            if buffer.len() >= PIECE_BYTES_MAX {
                flush(buffer)?;
            }
            Ok(true)
        })?;
        flush(buffer)?;
        *position = end;
        Ok(())
    }

    /// Whether a record names a unit, or another one of its page: truncation writes pages of the machine's size.
    fn names(&self, segment: SegmentId, unit: u64) -> bool {
        let page = (caliburn_os::page_size() / SUM_UNIT).max(1) as u64;
        let first = unit / page * page;
        self.named.range((segment, first)..(segment, first + page)).next().is_some()
    }
}

/// A file without a name.
fn unnamed(live: &Live, above: &Path) -> io::Result<File> {
    let id = format::hex(&live.media.random_id()?);
    let path = above.join(format!(".caliburn-{}-{id}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// The stream that is being written.
struct Copy<'a> {
    live: &'a Live,
    watch: &'a Watch,
    writer: Writer<'a>,
    pace: Option<Pace>,
    from: Lsn,
    /// The segments that were read, and how much of each.
    read: BTreeMap<SegmentId, u64>,
    /// Units that did not match their sums, and where they stand.
    unlike: Vec<(SegmentId, u64, String, PathBuf, u64)>,
}

impl<'a> Copy<'a> {
    fn begin(
        live: &'a Live,
        how: &DumpOptions,
        watch: &'a Watch,
        from: Lsn,
        target: &'a mut dyn Write,
    ) -> Result<Copy<'a>, BackupError> {
        Ok(Copy {
            live,
            watch,
            writer: Writer::begin(target, live.store, wall_ns(), from).map_err(written)?,
            pace: how.rate.map(Pace::new),
            from,
            read: BTreeMap::new(),
            unlike: Vec::new(),
        })
    }

    /// Step 3. `meanwhile` is called after each part.
    fn read_all(
        &mut self,
        meanwhile: &mut dyn FnMut() -> Result<(), BackupError>,
    ) -> Result<(), BackupError> {
        let mut done = 0;
        loop {
            let (catalog, bytes) = self.live.catalog()?;
            let new: Vec<&Entry> =
                catalog.segments.iter().filter(|e| !self.read.contains_key(&e.id)).collect();
            if new.is_empty() {
                return Ok(());
            }
            self.writer.catalog(&bytes).map_err(written)?;
            let total = done + new.iter().map(|entry| entry.len).sum::<u64>();
            for entry in new {
                self.read_segment(&self.live.segment(&catalog, entry)?, (done, total), meanwhile)?;
                self.read.insert(entry.id, entry.len);
                done += entry.len;
            }
        }
    }

    /// Whether an adopted file was read, all of it: it has more than the log knows of.
    fn has_whole(&self, entry: &Entry) -> bool {
        self.read.get(&entry.id) == Some(&entry.len)
    }

    fn read_segment(
        &mut self,
        segment: &SegmentState,
        (before, total): (u64, u64),
        meanwhile: &mut dyn FnMut() -> Result<(), BackupError>,
    ) -> Result<(), BackupError> {
        let (watch, path) = (self.watch, segment.file.path());
        segment.each_stretch(|at, data, unlike| {
            watch
                .tell(Phase::CopySegments, before + at, total)
                .map_err(BackupError::io("dump segment", path))?;
            for unit in unlike {
                let offset = segment.data + unit * SUM_UNIT as u64;
                self.unlike.push((segment.id, *unit, segment.name.clone(), path.to_owned(), offset));
            }
            for (offset, bytes) in without_zeros(at, data) {
                self.writer.data(segment.id, offset, bytes).map_err(written)?;
            }
            if let Some(pace) = &mut self.pace {
                pace.keep(data.len());
            }
            meanwhile()
        })
    }

    /// Step 6.
    fn finish(mut self, mut follower: Follower<'_>, end: Lsn) -> Result<Dumped, BackupError> {
        let damaged = self.unlike.iter().find(|(segment, unit, ..)| !follower.names(*segment, *unit));
        if let Some((_, _, segment, path, offset)) = damaged.filter(|_| unless("damage-dumped", true)) {
            let (segment, path, offset) = (segment.clone(), path.clone(), *offset);
            return Err(BackupError::Damaged { segment, path, offset });
        }
        let (catalog, bytes) = self.live.catalog()?;
        if let Some(late) = catalog.segments.iter().find(|e| e.is_external() && !self.has_whole(e)) {
            return Err(BackupError::Adopted { name: late.name.clone() });
        }
        self.writer.catalog(&bytes).map_err(written)?;
        let spool = |e| BackupError::io("read", "the spool")(e);
        follower.spool.rewind().map_err(spool)?;
        let mut left = end.0 - self.from.0;
        let mut buffer = vec![0; PIECE_BYTES_MAX];
        while left > 0 {
            let part = &mut buffer[..left.min(PIECE_BYTES_MAX as u64) as usize];
            follower.spool.read_exact(part).map_err(spool)?;
            self.writer.log(Lsn(end.0 - left), part).map_err(written)?;
            left -= part.len() as u64;
        }
        let time = wall_ns();
        let segments = catalog.segments.len() as u64;
        let (data_bytes, log_bytes) = self.writer.end(end, time, follower.last, segments).map_err(written)?;
        Ok(Dumped {
            store: format::hex(&self.live.store),
            lsn: end.0,
            time,
            last: follower.last,
            segments,
            data_bytes,
            log_bytes,
        })
    }
}

fn written(error: io::Error) -> BackupError {
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

/// Holds reading up, so that it takes no more than its share.
struct Pace {
    rate: u64,
    begun: Instant,
    bytes: u64,
}

impl Pace {
    fn new(rate: u64) -> Pace {
        Pace { rate, begun: Instant::now(), bytes: 0 }
    }

    fn keep(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        let due = Duration::from_secs_f64(self.bytes as f64 / self.rate as f64);
        std::thread::sleep(due.saturating_sub(self.begun.elapsed()));
    }
}
