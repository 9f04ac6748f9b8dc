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
//! differs from what it was at `from` only in bytes that records between them name. Those records, applied in
//! order, make of it what it was at `end`. A unit that its checksum does not match must be one that such a record
//! names: else it is damaged, and there is no dump.

use super::BackupError;
use super::live::{Live, Staged};
use super::marks;
use crate::policy::backup::dump::{DumpOptions, Dumped, Stream, spool, written};
use crate::storage::catalog::{Catalog, Entry};
use crate::storage::segment::SegmentState;
use crate::storage::settings::Settings;
use caliburn_log::SegmentId;
use caliburn_log::dump::{Base, Head, PIECE_BYTES_MAX, Writer};
use caliburn_log::format::{self, Lsn, SUM_UNIT};
use caliburn_os::clock::wall_ns;
use caliburn_os::host::Id;
use caliburn_os::simulated::{instead, planted, unless};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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
    let early = if planted("dump-ends-too-soon") { Some(live.forced_end()?) } else { None };
    let mut copy = Copy::begin(&live, how, settings, from, target)?;
    let end = if settings.background {
        beside(&live, &mut follower, || copy.read_all(&mut || Ok(())), early)?
    } else {
        copy.read_all(&mut || follower.follow(live.end()?))?;
        let end = early.map_or_else(|| live.forced_end(), Ok)?;
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
    early: Option<Lsn>,
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
        let end = read().and_then(|()| early.map_or_else(|| live.forced_end(), Ok));
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
        let spool = spool(&*live.media, how)?;
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

/// The dump that is being made.
struct Copy<'a> {
    live: &'a Live,
    stream: Stream<'a>,
    from: Lsn,
    id: Id,
    base: Option<Base>,
    /// The segments that were read, and how much of each.
    read: BTreeMap<SegmentId, u64>,
    /// Units that did not match their sums.
    unlike: Vec<(SegmentId, u64)>,
}

impl<'a> Copy<'a> {
    fn begin(
        live: &'a Live,
        how: &'a DumpOptions,
        settings: &'a Settings,
        from: Lsn,
        target: &'a mut dyn Write,
    ) -> Result<Copy<'a>, BackupError> {
        let base = how.base()?;
        let end = live.end()?;
        let is_base = |base: &Base| base.1 <= end && marks::has(&*live.media, &live.dir, &live.store, *base);
        if let Some(base) = base.filter(|base| !is_base(base)) {
            return Err(BackupError::Base { id: format::hex(&base.0), lsn: base.1.0 });
        }
        let id =
            live.media.random_id().map_err(BackupError::io("draw an identity for a dump of", &live.dir))?;
        let head = Head { store: live.store, time: wall_ns(), from, id: Some(id), base };
        let writer = Writer::begin(target, &head).map_err(written)?;
        let stream = Stream::new(writer, how, &settings.watch);
        Ok(Copy { live, stream, from, id, base, read: BTreeMap::new(), unlike: Vec::new() })
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
            self.stream.writer.catalog(&bytes).map_err(written)?;
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
        part: (u64, u64),
        meanwhile: &mut dyn FnMut() -> Result<(), BackupError>,
    ) -> Result<(), BackupError> {
        let since = self.base.map(|(_, lsn)| instead("incremental-lacks-pages", lsn, Lsn(lsn.0 + 4096)));
        self.stream.segment(segment, since, part, &mut |unlike| {
            self.unlike.extend(unlike.iter().map(|unit| (segment.id, *unit)));
            meanwhile()
        })
    }

    /// Step 6.
    fn finish(mut self, mut follower: Follower<'_>, end: Lsn) -> Result<Dumped, BackupError> {
        let (catalog, bytes) = self.live.catalog()?;
        let damaged = self.unlike.iter().find(|(segment, unit)| !follower.names(*segment, *unit));
        if let Some((id, unit)) = damaged.filter(|_| unless("damage-dumped", true)) {
            let entry = catalog.segments.iter().find(|entry| entry.id == *id).expect("it was read");
            let (segment, path) = (entry.name.clone(), Catalog::resolve(&self.live.dir, &entry.path));
            return Err(BackupError::Damaged { segment, path, offset: entry.data + unit * SUM_UNIT as u64 });
        }
        if let Some(late) = catalog.segments.iter().find(|e| e.is_external() && !self.has_whole(e)) {
            return Err(BackupError::Adopted { name: late.name.clone() });
        }
        self.stream.writer.catalog(&bytes).map_err(written)?;
        let spool = |e| BackupError::io("read", "the spool")(e);
        follower.spool.rewind().map_err(spool)?;
        let mut left = end.0 - self.from.0;
        let mut buffer = vec![0; PIECE_BYTES_MAX];
        while left > 0 {
            let part = &mut buffer[..left.min(PIECE_BYTES_MAX as u64) as usize];
            follower.spool.read_exact(part).map_err(spool)?;
            self.stream.writer.log(Lsn(end.0 - left), part).map_err(written)?;
            left -= part.len() as u64;
        }
        // Before the dump is whole: a mark of one that is not is never asked for.
        if let Err(error) = marks::add(&*self.live.media, &self.live.dir, self.live.store, (self.id, end)) {
            tracing::warn!(%error, "no dump can be laid over this one");
        }
        let time = wall_ns();
        let segments = catalog.segments.len() as u64;
        let ended = self.stream.writer.end(end, time, follower.last, segments);
        let (data_bytes, log_bytes) = ended.map_err(written)?;
        Ok(Dumped {
            store: format::hex(&self.live.store),
            id: format::hex(&self.id),
            base: self.base.map(|(id, _)| format::hex(&id)),
            lsn: end.0,
            time,
            last: follower.last,
            segments,
            data_bytes,
            log_bytes,
            held: Duration::ZERO,
        })
    }
}
