//! Opening a store: recovery (RVM, section 5.1.2), and creation.
//!
//! ```text
//!   1 lock the directory, read the catalog, open the segments, the log and the stage
//!   2 scan the log from head to tail, or from where a stage of this boot vouches that the segments show it: every
//!     record verified, its ranges noted
//!   3 damage in the forced part, or a stage that is older: refuse, or for salvage go on read-only without it
//!   4 write again and force what may not be durable; begin a new incarnation, durably: what lies beyond
//!     the tail is never taken up
//!   5 append what a stage of this boot holds beyond the log, in commit order
//!   6 empty the stage; serve
//! ```
//!
//! Nothing is written to a segment here: regions are mapped with the noted ranges laid over them, and the
//! truncation thread applies them as an epoch while the program runs. So recovery can be killed anywhere
//! and run again: steps 1 to 3 only read; 4 and 5 append to the log, where records that are repeated
//! change nothing, because the whole suffix is repeated in order.

use crate::api::options::Options;
use crate::api::shared::{Live, Parts};
use crate::policy::redo::prepared::{self, PreparedTable};
use crate::policy::redo::stage::Stage;
use crate::policy::undo;
use crate::storage::catalog::Catalog;
use crate::storage::class::Class;
use crate::storage::error::{OpenError, SegmentError};
use crate::storage::kind::Policy;
use crate::storage::redo_ranges::RedoRanges;
use crate::storage::segment::{self, SegmentState};
use caliburn_log::SegmentId;
use caliburn_log::format::{BLOCK, Defect, LOG_DATA, Lsn, STATUS_AT, Status};
use caliburn_log::image::{Damage, Image};
use caliburn_log::log::{self, Log, MediaError};
use caliburn_log::record::{self, FRAME, Kind, Place, Range, Ranges, Record};
use caliburn_log::staged_tail::{self, StageError, StagedTail};
use caliburn_os::clock::wall_ns;
use caliburn_os::host::{Id, Lock, LockError};
use caliburn_os::medium::{Media, Medium};
use caliburn_os::simulated::planted;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names in a store's directory.
pub(crate) const CATALOG: &str = "catalog";
const LOCK: &str = "lock";
const LOG: &str = "log";
pub(crate) const STAGE: &str = "stage";
pub(crate) const UNDO: &str = "undo";

/// Opens or creates the store as the options say.
pub(crate) fn open(dir: &Path, options: &Options) -> Result<Parts, OpenError> {
    let may_create = (options.create_new || options.create) && !options.read_only;
    let media = &*options.media;
    let there = || media.exists(&dir.join(CATALOG));
    let made_dir = may_create && !media.exists(dir);
    if made_dir {
        let missing: Vec<&Path> = dir.ancestors().take_while(|above| !media.exists(above)).collect();
        media.create_directory(dir).map_err(OpenError::io("create directory", dir))?;
        // The store's own name is forced when it is complete.
        for above in missing.iter().skip(1).filter_map(|made| made.parent()) {
            media.sync_directory(above).map_err(OpenError::io("force directory", above))?;
        }
    } else if !may_create && !there() {
        return Err(OpenError::NotAStore { path: dir.to_owned() });
    }
    if may_create && !there() {
        // Before a lock file is put among files of another kind. Segments of a store that was finished at
        // this very moment are none.
        only_ours(media, dir).or_else(|error| if there() { Ok(()) } else { Err(error) })?;
    }
    // What is there is looked at under the lock: another process may be creating or removing it.
    let lock = lock(media, dir, options.read_only)?;
    let there = there();
    if there && options.create_new {
        return Err(OpenError::Exists { path: dir.to_owned() });
    }
    if !there && may_create {
        create(dir, options, made_dir)?;
    }
    recover(dir, options, lock)
}

fn only_ours(media: &dyn Media, dir: &Path) -> Result<(), OpenError> {
    for name in media.list(dir).map_err(OpenError::io("list directory", dir))? {
        if ![LOCK, LOG, STAGE, UNDO, CATALOG, "catalog.new"].iter().any(|ours| name == *ours) {
            return Err(OpenError::Exists { path: dir.to_owned() });
        }
    }
    Ok(())
}

pub(crate) fn lock(media: &dyn Media, dir: &Path, shared: bool) -> Result<Lock, OpenError> {
    let path = dir.join(LOCK);
    media.lock(&path, shared).map_err(|error| match error {
        LockError::Held(holder) => OpenError::InUse { path: dir.to_owned(), holder },
        LockError::Io(source) => OpenError::Io { action: "lock", path, source },
    })
}

/// Makes a store. The catalog comes last: without it the directory holds no store, and the files of an
/// attempt that failed are made anew.
fn create(dir: &Path, options: &Options, made_dir: bool) -> Result<(), OpenError> {
    let media = &*options.media;
    only_ours(media, dir)?;
    let mut bare = true;
    let done = create_files(dir, options, &mut bare);
    if done.is_err() && bare {
        let _ = media.remove(&dir.join(LOG));
        let _ = media.remove(&dir.join(STAGE));
        let _ = media.remove(&dir.join(UNDO));
        if made_dir {
            let _ = media.remove(&dir.join(LOCK));
            let _ = media.remove_directory(dir);
        }
    }
    done
}

/// Whether the directory durably has no catalog; one may have been left by a `replace` that failed at its end.
/// While there is one, the files that it names must stay.
fn uncatalogued(media: &dyn Media, dir: &Path) -> bool {
    let catalog = dir.join(CATALOG);
    !media.exists(&catalog) || (media.remove(&catalog).is_ok() && media.sync_directory(dir).is_ok())
}

/// `bare` tells, after a failure, whether the directory durably has no catalog.
fn create_files(dir: &Path, options: &Options, bare: &mut bool) -> Result<(), OpenError> {
    let media = &*options.media;
    let mut catalog = Catalog {
        store: media.random_id().map_err(OpenError::io("draw a random identity for", dir))?,
        policy: options.policy,
        log_path: PathBuf::new(),
        next: 0,
        segments: Vec::new(),
    };
    match options.policy {
        Policy::Undo => {
            let done =
                undo::create(options, dir, &catalog).and_then(|()| name_files(dir, options, &catalog, false));
            *bare = done.is_ok() || uncatalogued(media, dir);
            done
        }
        Policy::Redo => {
            catalog.log_path = match &options.log_path {
                Some(path) => std::path::absolute(path).map_err(OpenError::io("resolve", path))?,
                None => PathBuf::from(LOG),
            };
            create_log(dir, options, &catalog, bare)
        }
    }
}

fn create_log(dir: &Path, options: &Options, catalog: &Catalog, bare: &mut bool) -> Result<(), OpenError> {
    let media = &*options.media;
    let path = Catalog::resolve(dir, &catalog.log_path);
    if !catalog.log_path.is_absolute() {
        let _ = media.remove(&path);
    }
    let (medium, made) = match media.create(&path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (media.open(&path, true), false),
        other => (other, true),
    };
    let medium = medium.map_err(OpenError::io("create log", &path))?;
    segment::refuse_foreign(&*medium)?;
    let done = fill_files(dir, options, catalog, &*medium, made);
    *bare = done.is_ok() || uncatalogued(media, dir);
    if done.is_err() && *bare {
        // A second attempt must not take what is left for another store's log.
        if made {
            let _ = media.remove(&path);
        } else {
            let _ = STATUS_AT.map(|at| medium.write_at(&[0; BLOCK], at));
        }
    }
    done
}

fn fill_files(
    dir: &Path,
    options: &Options,
    catalog: &Catalog,
    log_medium: &dyn Medium,
    made: bool,
) -> Result<(), OpenError> {
    let media = &*options.media;
    options.suffices(dir, (log_medium.path().to_owned(), forced(log_medium)))?;
    log::create(log_medium, catalog.store, options.log_bytes)?;
    let _ = media.remove(&dir.join(STAGE));
    let stage_path = dir.join(STAGE);
    let stage = media.create(&stage_path).map_err(OpenError::io("create stage", &stage_path))?;
    stage
        .set_len(options.stage_bytes)
        .map_err(|e| MediaError::new("allocate the stage", &*stage, options.stage_bytes, e))?;
    name_files(dir, options, catalog, made)
}

/// Makes the names durable, and then the catalog. `made`: the log is a new file.
fn name_files(dir: &Path, options: &Options, catalog: &Catalog, made: bool) -> Result<(), OpenError> {
    let media = &*options.media;
    media.sync_directory(dir).map_err(OpenError::io("force directory", dir))?;
    if let (true, Some(above)) = (made && catalog.log_path.is_absolute(), catalog.log_path.parent()) {
        media.sync_directory(above).map_err(OpenError::io("force directory", above))?;
    }
    let catalog_path = dir.join(CATALOG);
    media.replace(&catalog_path, &catalog.encode()).map_err(OpenError::io("write catalog", &catalog_path))?;
    // The directory's own name.
    let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    media.sync_directory(parent).map_err(OpenError::io("force directory", parent))
}

pub(crate) fn read_catalog(media: &dyn Media, dir: &Path) -> Result<Catalog, OpenError> {
    let path = dir.join(CATALOG);
    let bytes = match media.read(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::NotAStore { path: dir.to_owned() });
        }
        other => other.map_err(OpenError::io("read catalog", &path))?,
    };
    Catalog::decode(&bytes).map_err(|(offset, defect)| OpenError::Catalog { path, offset, defect })
}

/// The segments of a store. Not bare ones whose files cannot be opened: they may go when the log has nothing for them.
pub(crate) fn open_segments(
    media: &dyn Media,
    dir: &Path,
    catalog: &Catalog,
    write: bool,
) -> Result<Vec<Arc<SegmentState>>, OpenError> {
    let mut segments = Vec::new();
    for entry in &catalog.segments {
        match SegmentState::open(media, dir, catalog, entry, write) {
            Ok(segment) => segments.push(Arc::new(segment)),
            Err(_) if entry.is_external() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(segments)
}

/// What survives of a medium that was forced.
pub(crate) fn forced(medium: &dyn Medium) -> Class {
    if medium.volatile() { Class::Process } else { Class::Power }
}

fn recover(dir: &Path, options: &Options, lock: Lock) -> Result<Parts, OpenError> {
    let (media, write) = (&*options.media, !options.read_only);
    // 1
    if write && !planted("catalog-name-not-forced") {
        // A replacement that failed at its end shows a catalog that a power cut may take back.
        media.sync_directory(dir).map_err(OpenError::io("force directory", dir))?;
    }
    let catalog = read_catalog(media, dir)?;
    let segments = open_segments(media, dir, &catalog, write)?;
    if catalog.policy == Policy::Undo {
        return undo::open(dir, options, catalog, segments, lock);
    }
    let log_path = Catalog::resolve(dir, &catalog.log_path);
    let medium = media.open(&log_path, write).map_err(OpenError::io("open log", &log_path))?;
    let status = log::read_status(&*medium, Some(&catalog.store))?;
    let boot = media.boot_id().map_err(OpenError::io("read the boot's identity for", dir))?;
    let stage_path = dir.join(STAGE);
    let stage_medium = match media.open(&stage_path, write) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && write => media.create(&stage_path),
        other => other,
    }
    .map_err(OpenError::io("open stage", &stage_path))?;
    // Why a segment that the log names is not there.
    let missing = |id| {
        let entry = catalog.segments.iter().find(|entry| entry.id == id && entry.is_external())?;
        SegmentState::open(media, dir, &catalog, entry, write).err()
    };
    let mut damage = None;
    let mut salvage = |error: OpenError| {
        if !options.salvage {
            return Err(error);
        }
        damage.get_or_insert(error);
        Ok(())
    };
    let mut staged_tail = match StagedTail::read(&*stage_medium, &catalog.store, &boot) {
        Err(error @ StageError::Bad { .. }) => salvage(error.into()).map(|()| StagedTail::default())?,
        other => other?,
    };
    let trusting = write && !options.salvage && segments.len() == catalog.segments.len();
    if !trusting || !checkpoint_holds(&*stage_medium, &status, &staged_tail, &segments)? {
        staged_tail.checkpoint = None;
    }
    // 2, 3
    let mut found = read_log(&*medium, &status, staged_tail.live(), &segments, &missing)?;
    if let Err(error) = staged_tail.not_older_than(found.image.forced()) {
        salvage(error.into())?;
        staged_tail = StagedTail::default();
        found = read_log(&*medium, &status, None, &segments, &missing)?;
    }
    let FoundLog { image, damage: lost, prepared } = found;
    lost.map_or(Ok(()), |lost| salvage(lost.into()))?;
    let unknown = |(_, body): &(u64, Vec<u8>)| first_unknown(Ranges::of(body), &segments).map(|r| r.segment);
    if let Some(id) = staged_tail.records.iter().find_map(unknown) {
        let text = "a staged record names bytes that no segment has".into();
        let bad = StageError::Bad { path: stage_path.clone(), offset: 0, defect: Defect::Value(text) };
        salvage(missing(id).map_or(bad.into(), OpenError::Segment))?;
        staged_tail = StagedTail::default();
    }
    let mut parts = Parts { prepared, damage, ..Parts::new(catalog, segments, lock, media.limits()) };
    let all: Vec<_> = parts.segments.iter().map(|s| s.medium.clone()).chain([medium.clone()]).collect();
    parts.reach(dir, options, all.iter().map(|m| (m.path().to_owned(), forced(&**m))))?;
    if !write {
        parts.unapplied = Some(to_show(image, &staged_tail, &parts));
        return Ok(parts);
    }
    // 4
    let log = Log::open(medium, parts.catalog.store, status, &image)?;
    let mut unapplied = RedoRanges::of(image);
    // 5
    for (stamp, body) in staged_tail.records.iter().skip(usize::from(planted("first-leftover-lost"))) {
        append_leftover(&log, &*stage_medium, &mut parts, &mut unapplied, *stamp, body)?;
    }
    // 6
    serve(options, &mut parts, log, unapplied, &*stage_medium, boot, &staged_tail)?;
    Ok(parts)
}

/// What a store that takes no changes must lay over its segments.
fn to_show(image: Image, staged_tail: &StagedTail, parts: &Parts) -> RedoRanges {
    let mut unapplied = RedoRanges::of(image);
    // With damage in between, what is later than the damage would be out of order.
    for (_, body) in staged_tail.records.iter().filter(|_| parts.damage.is_none()) {
        let tail = unapplied.tail();
        unapplied.push(body.clone(), tail);
    }
    unapplied
}

/// Step 6: the stage is empty, and the log takes records.
fn serve(
    options: &Options,
    parts: &mut Parts,
    log: Log,
    unapplied: RedoRanges,
    stage_medium: &dyn Medium,
    boot: Id,
    left: &StagedTail,
) -> Result<(), OpenError> {
    let checkpoint = left.checkpoint.filter(|checkpoint| checkpoint.before >= log.head());
    let budget = options.tuning.budget(&parts.limits);
    let bytes = options.stage_bytes.min(budget / 8).max(staged_tail::STAGE_BYTES_MIN);
    let (store, tail) = (parts.catalog.store, log.appended());
    let stage = Stage::open(stage_medium, store, boot, bytes, left.last, tail, checkpoint)?;
    // What the segments show is not forced, and their sums may lack it: the head must not pass it without an epoch.
    let unforced = checkpoint.is_some_and(|checkpoint| checkpoint.before > log.head())
        && !planted("shown-taken-for-forced");
    parts.unapplied = (unforced || !unapplied.is_empty()).then_some(unapplied);
    parts.live = Some(Live { stage, log });
    Ok(())
}

/// Whether the segments show what the stage says: they lie in the page caches in which they lay then, and nothing was
/// lost on its way from there. What the system says of that it says once; meanwhile the stage says nothing.
fn checkpoint_holds(
    stage: &dyn Medium,
    status: &Status,
    staged_tail: &StagedTail,
    segments: &[Arc<SegmentState>],
) -> Result<bool, MediaError> {
    let (Some(checkpoint), Some(end)) = (staged_tail.checkpoint, staged_tail.appended) else {
        return Ok(false);
    };
    let inside = (Lsn(status.head.get())..=end).contains(&checkpoint.before);
    if !inside || (segment::caches(segments) != Some(checkpoint.caches) && !planted("caches-not-compared")) {
        return Ok(false);
    }
    // Before the system is asked: who is told may be killed.
    if !planted("answer-not-awaited") {
        staged_tail::forget_checkpoint(stage)?;
    }
    let lost = |segment: &&Arc<SegmentState>| segment.medium.written_back().is_err();
    // All are asked: what is not told now would be told to a later force.
    let lost = segments.iter().filter(lost).count();
    Ok(lost == 0 || planted("write-back-not-asked"))
}

/// What the live log holds.
struct FoundLog {
    image: Image,
    damage: Option<Damage>,
    prepared: PreparedTable,
}

fn read_log(
    medium: &dyn Medium,
    status: &Status,
    known: Option<std::ops::Range<Lsn>>,
    segments: &[Arc<SegmentState>],
    missing: &dyn Fn(SegmentId) -> Option<SegmentError>,
) -> Result<FoundLog, OpenError> {
    let mut prepared = PreparedTable::new();
    let mut stray = None;
    let (image, damage) = Image::scan(medium, status, known, |record| {
        stray = stray.take().or_else(|| stray_range(record, segments));
        prepared::recover(&mut prepared, record);
    })?;
    if let Some((lsn, segment, text)) = stray {
        missing(segment).map_or(Ok(()), |why| Err(OpenError::Segment(why)))?;
        let offset = log_offset(lsn, status.capacity.get());
        return Err(OpenError::Stray { what: "log", path: medium.path().to_owned(), offset, text });
    }
    Ok(FoundLog { image, damage, prepared })
}

fn first_unknown<'a>(mut ranges: Ranges<'a>, segments: &[Arc<SegmentState>]) -> Option<Range<'a>> {
    let known = |r: &Range<'_>| {
        let end = r.offset.checked_add(r.bytes.len() as u64);
        segments.iter().any(|s| s.id == r.segment && end.is_some_and(|end| end <= s.len()))
    };
    ranges.find(|r| !known(r))
}

/// Position and description of a record with a range that lies in no segment.
pub(crate) fn stray_range(
    record: &Record<'_>,
    segments: &[Arc<SegmentState>],
) -> Option<(Lsn, SegmentId, String)> {
    let range = first_unknown(record.ranges(), segments)?;
    let (lsn, offset, segment) = (record.lsn, range.offset, range.segment.0);
    Some((
        lsn,
        range.segment,
        format!(
            "the record at LSN {lsn} has a range at {offset} of segment {segment}, which has no such bytes"
        ),
    ))
}

fn append_leftover(
    log: &Log,
    stage: &dyn Medium,
    parts: &mut Parts,
    unapplied: &mut RedoRanges,
    stamp: u64,
    body: &[u8],
) -> Result<(), OpenError> {
    if log.free() < (body.len() + FRAME) as u64 + prepared::bytes(&parts.prepared) {
        let advance = || match planted("frontier-kept-for-room") {
            true => Ok(()),
            false => staged_tail::advance(stage, stamp, log.appended()),
        };
        // Which a force that fails may tell nobody else.
        staged_tail::forget_checkpoint(stage)?;
        make_room(log, parts, unapplied, advance)?;
    }
    append(log, Kind::Commit, &[], body)?;
    unapplied.push(body.to_vec(), log.appended());
    Ok(())
}

fn append(log: &Log, kind: Kind, prefix: &[u8], body: &[u8]) -> Result<Lsn, MediaError> {
    let place =
        Place { lsn: log.appended(), forced: log.forced(), incarnation: log.incarnation(), time: wall_ns() };
    let mut bytes = Vec::new();
    record::encode(&mut bytes, kind, place, prefix, body);
    log.publish(log.append(&bytes)?);
    Ok(place.lsn)
}

/// The log has no room for what the stage left over: truncate it as an epoch before going on. The stage's
/// frontier is moved by `advance` before the head can pass it.
fn make_room(
    log: &Log,
    parts: &mut Parts,
    unapplied: &mut RedoRanges,
    advance: impl Fn() -> Result<(), MediaError>,
) -> Result<(), OpenError> {
    log.force()?;
    advance()?;
    // Not what was laid over the segments alone: of what they show besides, the sums may be missing.
    let all = RedoRanges::of(Image::read(&**log.medium(), log.capacity(), log.head(), log.forced())?);
    for segment in &parts.segments {
        all.apply(segment, caliburn_os::page_size(), |_| {})?;
        segment.sync()?;
    }
    *unapplied = RedoRanges::none(log.appended());
    log.advance_head(prepared::oldest(&parts.prepared).min(log.appended()))?;
    if log.free() < prepared::bytes(&parts.prepared) {
        let text = "undecided transactions fill the log, which the reserve for them should have prevented";
        let error = io::Error::new(io::ErrorKind::StorageFull, text);
        return Err(MediaError::new("make room in the log", &**log.medium(), 0, error).into());
    }
    // So that the head can pass where they stand.
    for (id, body, lsn) in prepared::entries(&mut parts.prepared) {
        *lsn = append(log, Kind::Prepare, &record::prefix(Kind::Prepare, 1, id), body)?;
    }
    log.force()?;
    advance()?;
    log.advance_head(prepared::oldest(&parts.prepared).min(log.appended()))?;
    Ok(())
}

/// Where a byte of the ring stands on the medium.
pub(crate) fn log_offset(lsn: Lsn, capacity: u64) -> u64 {
    LOG_DATA + lsn.0 % capacity
}
