//! Dumps of stores whose memory is their segments, and stores made of them.
//!
//! There is no log that would make a copy consistent which was made while transactions change the store. So none
//! does while it is made: those that have changed something come to their end, those that are about to change
//! something wait. They wait as long as the segments are copied to a file beside; the stream is made of that
//! afterwards.

use super::BackupError;
use super::dump::{DumpOptions, Dumped, Stream, spool, written};
use super::restore::{Making, Next, Restored, Until};
use crate::policy::kind::New;
use crate::storage::Storage;
use crate::storage::catalog::{Catalog, Entry};
use crate::storage::directory;
use crate::storage::error::OpenError;
use crate::storage::generations::Generations;
use crate::storage::opener::Opener;
use crate::storage::progress::{Phase, Watch};
use crate::storage::segment::SegmentState;
use crate::storage::segment_file::Descriptors;
use crate::storage::settings::Settings;
use caliburn_log::dump::{Head, StreamError, Writer};
use caliburn_log::format::{self, Defect, Lsn};
use caliburn_os::clock::wall_ns;
use caliburn_os::medium::Media;
use std::io::{BufWriter, Read, Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Dumps a store that nobody has open for writing. `ready` refuses one whose segments are not all of it.
pub(in crate::policy) fn dump(
    settings: &Settings,
    dir: &Path,
    how: &DumpOptions,
    target: &mut dyn Write,
    ready: impl FnOnce(&dyn Media, &Catalog, Option<&Arc<Generations>>) -> Result<(), BackupError>,
) -> Result<Dumped, BackupError> {
    let media = directory::hold(dir, settings)?;
    let _lock = directory::lock(&*media, dir, true).map_err(|error| match error {
        OpenError::InUse { path, .. } => BackupError::UsedElsewhere { path },
        other => other.into(),
    })?;
    let catalog = directory::read_catalog(&*media, dir)?;
    let descriptors = Descriptors::of(&*media);
    let generations = Generations::open(&*media, dir, &catalog, false)?;
    ready(&*media, &catalog, generations.as_ref())?;
    let opener = Opener {
        media: &media,
        descriptors: &descriptors,
        dir,
        write: false,
        claim: false,
        generations: generations.as_ref(),
    };
    let open = |entry| Ok(Arc::new(SegmentState::open(opener, &catalog, entry, false)?));
    let segments = catalog.segments.iter().map(open).collect::<Result<Vec<_>, BackupError>>()?;
    write((&catalog, &segments), how, &settings.watch, target)
}

fn write(
    (catalog, segments): (&Catalog, &[Arc<SegmentState>]),
    how: &DumpOptions,
    watch: &Watch,
    target: &mut dyn Write,
) -> Result<Dumped, BackupError> {
    if let Some((id, lsn)) = how.base()? {
        return Err(BackupError::Base { id: format::hex(&id), lsn: lsn.0 });
    }
    let head = Head { store: catalog.store, time: wall_ns(), from: Lsn(0), id: None, base: None };
    let writer = Writer::begin(target, &head).map_err(written)?;
    let mut stream = Stream::new(writer, how, watch);
    stream.writer.catalog(&catalog.encode()).map_err(written)?;
    let (mut done, total) = (0, segments.iter().map(|segment| segment.len()).sum());
    for segment in segments {
        stream.segment(segment, None, (done, total), &mut |_| Ok(()))?;
        done += segment.len();
    }
    let (time, count) = (wall_ns(), segments.len() as u64);
    let (data_bytes, _) = stream.writer.end(Lsn(0), time, 0, count).map_err(written)?;
    Ok(Dumped {
        store: format::hex(&catalog.store),
        id: String::new(),
        base: None,
        lsn: 0,
        time,
        last: 0,
        segments: count,
        data_bytes,
        log_bytes: 0,
        held: Duration::ZERO,
    })
}

/// Dumps a store that is open. `quiet` waits a little for a moment at which no transaction has changed anything; as
/// long as what it gives is kept, none does.
pub(in crate::policy) fn dump_open<Q>(
    storage: &Storage,
    how: &DumpOptions,
    watch: &Watch,
    target: &mut dyn Write,
    quiet: impl Fn() -> Option<Q>,
) -> Result<Dumped, BackupError> {
    let media = &*storage.media;
    let spool = spool(media, how)?;
    let mut out = BufWriter::with_capacity(1 << 20, spool);
    let mut dumped = write_quietly(storage, how, &mut out, quiet)?;
    let fail = |e| BackupError::io("write to", "the spool")(e);
    out.flush().map_err(fail)?;
    let mut spool = out.into_inner().map_err(|e| fail(e.into_error()))?;
    // Transactions go on.
    let begun = Instant::now();
    let total = spool.stream_position().map_err(fail)?;
    spool.rewind().map_err(fail)?;
    let (mut done, mut bytes) = (0, vec![0; 1 << 20]);
    while done < total {
        let told = watch.tell(Phase::CopySegments, done, total);
        told.map_err(BackupError::io("dump store", &storage.dir))?;
        let part = &mut bytes[..(total - done).min(1 << 20) as usize];
        spool.read_exact(part).map_err(fail)?;
        target.write_all(part).map_err(written)?;
        done += part.len() as u64;
        if let Some(due) = how.due(done) {
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
    target.flush().map_err(written)?;
    dumped.time = wall_ns().min(dumped.time);
    Ok(dumped)
}

/// The stream, while no transaction changes anything. Nothing of the program's is called meanwhile: it could
/// wait for a transaction.
fn write_quietly<Q>(
    storage: &Storage,
    how: &DumpOptions,
    out: &mut dyn Write,
    quiet: impl Fn() -> Option<Q>,
) -> Result<Dumped, BackupError> {
    const TRIES: u32 = 40;
    let mut how = how.clone();
    how.at_once();
    let first = Instant::now();
    let mut held = Duration::ZERO;
    for tries in 0..TRIES {
        let begun = Instant::now();
        let quiet = quiet();
        if quiet.is_none() {
            held += begun.elapsed();
            caliburn_os::sync::sleep(Duration::from_millis(u64::from(tries)));
            continue;
        }
        // No segment is made, nor becomes longer. Not before: a transaction that makes one goes on to its end.
        let catalog = storage.catalog.lock().expect("no panic under this lock");
        let segments = storage.segments.read().expect("no panic under this lock").clone();
        let mut dumped = write((&catalog, &segments), &how, &Watch::default(), out)?;
        drop(quiet);
        dumped.held = held + begun.elapsed();
        return Ok(dumped);
    }
    Err(BackupError::NotQuiet { path: storage.dir.clone(), waited: first.elapsed() })
}

/// A store that is made of a dump. `why` it has nothing but what a dump holds.
pub(in crate::policy) fn restore(
    mut making: Making<'_>,
    first: Catalog,
    why: &'static str,
    create: impl FnOnce(New<'_>, u32, Vec<Entry>) -> Result<(), OpenError>,
) -> Result<Restored, BackupError> {
    let no_log = |dir: &Path| BackupError::from(OpenError::Policy { path: dir.to_owned(), why });
    if let Some(path) = making.how.archive.as_ref().or(making.how.left.as_ref()) {
        return Err(no_log(path));
    }
    making.take_catalog(first)?;
    let end = loop {
        let offset = making.reader.offset();
        match making.read()? {
            Next::Catalog => {}
            Next::Log(..) => {
                let defect = Defect::Value("there is a log in it, of a store that has none".into());
                return Err(StreamError::Bad { offset, defect }.into());
            }
            Next::End(end) => break end,
        }
    };
    let (lsn, time) = (end.lsn.get(), end.time.get());
    match making.how.until {
        Until::Latest => {}
        Until::Time(wanted) if wanted >= time => {}
        Until::Time(_) => return Err(BackupError::Later { lsn, time }),
        Until::Lsn(wanted) => return Err(BackupError::NotReached { lsn, wanted }),
    }
    making.next_dump()?;
    making.restored.time = time;
    making.finish(|new, catalog| create(new, catalog.next, catalog.segments))
}
