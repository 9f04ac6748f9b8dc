//! Recovery of a store with the redo policy (RVM, section 5.1.2). The directory is locked, the catalog is read,
//! and the segments are open.
//!
//! ```text
//!   1 open_files         the log and the stage
//!   2 read_stage         what a process of this boot left there; whether its checkpoint holds
//!   3 scan_log           every record from there to the tail verified, its ranges noted; damage in the forced part,
//!                        or a stage that is older than the log: refuse, or for salvage go on read-only without it
//!   4 begin_incarnation  what may not be durable written again and forced; then, durably, a new incarnation: what
//!                        lies beyond the tail is never taken up
//!   5 append_staged      what the stage holds beyond the log goes there, in commit order
//!   6 serve              the stage is empty, and takes records
//! ```
//!
//! Segments are not written to here: regions are mapped with the noted ranges laid over them, and the truncation
//! thread applies them as an epoch while the program runs. The exception: if the log has no room for what the
//! stage holds, or names more segments than may be open at once, step 5 applies the forced log first; and step 6
//! applies one that is longer than the memory budget. So recovery
//! can be killed anywhere and run again: steps 1 to 3 change nothing but the stage, which is made if it is
//! missing, and its checkpoint is withdrawn; 4 and 5 append to the log, where records that are repeated change
//! nothing, because the whole suffix is repeated in order.

use super::Redo;
use super::backup::hold::{self, Held};
use super::backup::marks;
use super::check;
use super::duplex::{self, OpenedLog};
use super::flusher::Flush;
use super::group::Rounds;
use super::overflow::Overflow;
use super::pages::Pages;
use super::prepared::{self, PreparedTable};
use super::records::{append, log_offset, stray_range};
use super::relocate;
use super::replication::Replication;
use super::stage::Stage;
use super::truncation::Truncation;
use crate::policy::kind::{Opened, Opening};
use crate::policy::read_only;
use crate::storage::Storage;
use crate::storage::class::Class;
use crate::storage::copies::{self, LogCopy};
use crate::storage::directory::{STAGE, forced};
use crate::storage::error::{OpenError, SegmentError};
use crate::storage::extents::Extents;
use crate::storage::generations::{self, STAGE_SLOT};
use crate::storage::lacking::Lacking;
use crate::storage::progress::Phase;
use crate::storage::redo_ranges::RedoRanges;
use crate::storage::report::OpenReport;
use crate::storage::segment::{self, SegmentState};
use crate::write_set::{Layout, Sets};
use caliburn_log::SegmentId;
use caliburn_log::format::{Defect, Lsn, Status};
use caliburn_log::log::{self, Log, LogError};
use caliburn_log::media_error::MediaError;
use caliburn_log::record::{self, FRAME, Kind, Ranges};
use caliburn_log::scan::{self, Scanned};
use caliburn_log::staged_tail::{self, Asked, StageError, StagedTail};
use caliburn_os::event::Event;
use caliburn_os::host::Id;
use caliburn_os::medium::{Media, Medium};
use caliburn_os::simulated::{even_if, instead, planted, unless};
use caliburn_os::sync::atomic::{AtomicBool, AtomicU64};
use caliburn_os::sync::{Mutex, RwLock};
use caliburn_os::witness::{Look, Seen};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

pub(super) fn open(opening: Opening<'_>) -> Result<Opened, OpenError> {
    let mut recovery = timed("open_files", || Recovery::open_files(opening))?;
    let staged_tail = timed("read_stage", || recovery.read_stage())?;
    let (scanned, staged_tail) = timed("scan_log", || recovery.scan_log(staged_tail))?;
    let reach = recovery.reach()?;
    if !recovery.opening.write() {
        return recovery.show(&scanned, &staged_tail, reach);
    }
    if recovery.copied {
        let watch = &recovery.opening.settings.watch;
        timed("verify_copy", || check::verify(recovery.segments(), &recovery.noted(&scanned)?, watch))?;
    }
    let (log, mut unapplied) = timed("begin_incarnation", || recovery.begin_incarnation(&scanned))?;
    timed("begin_replica", || recovery.begin_replica(&log))?;
    timed("append_staged", || recovery.append_staged(&log, &mut unapplied, &staged_tail))?;
    recovery.hold_named(&log, &mut unapplied, &staged_tail)?;
    tracing::info!(
        head = log.head().0,
        tail = log.tail().0,
        staged = staged_tail.records.len(),
        undecided = recovery.prepared.len(),
        "recovered"
    );
    recovery.serve(log, unapplied, &staged_tail, reach)
}

/// A step of recovery, which tells how long it takes.
fn timed<T>(step: &'static str, act: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = act();
    tracing::debug!(step, us = begun.elapsed().as_micros() as u64, "recovery");
    done
}

/// A store that is being recovered.
struct Recovery<'o> {
    opening: Opening<'o>,
    log: Arc<dyn Medium>,
    status: Status,
    /// It was in use elsewhere.
    copied: bool,
    /// What the list of the log's copies must say before anything is appended.
    named: Option<Vec<LogCopy>>,
    stage: Arc<dyn Medium>,
    seen: Seen,
    /// An earlier opening may have been told of lost writes alone.
    asked: Asked,
    report: OpenReport,
    prepared: PreparedTable,
    /// Another machine has the log.
    replication: Option<Replication>,
    /// What salvage goes on without.
    damage: Option<OpenError>,
}

impl<'o> Recovery<'o> {
    /// Step 1.
    fn open_files(mut opening: Opening<'o>) -> Result<Recovery<'o>, OpenError> {
        let write = opening.write();
        let OpenedLog { medium: log, status, claims, copied, named } = duplex::open(&opening)?;
        opening.check_keeper(log::said(&*log, &status), |defect| bad(log.path(), defect))?;
        let damage = opening.found.damage.take();
        let (media, dir) = (opening.media(), opening.dir());
        if write {
            relocate::remove_left(media, dir, &opening.found.catalog);
        }
        let stage_path = dir.join(STAGE);
        let stage = match media.open(&stage_path, write) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && write => media.create(&stage_path),
            other => other,
        };
        let stage = stage.map_err(OpenError::io("open stage", &stage_path))?;
        if write {
            stage.fill_holes().map_err(OpenError::io("allocate stage", &stage_path))?;
        }
        // What is noted at the end is about the copy.
        let seen = opening.settings.see(media, dir, &[Look::at(&*stage)])?;
        opening.found.log_locks = claims;
        let prepared = PreparedTable::new();
        Ok(Recovery {
            opening,
            log,
            status,
            copied,
            named,
            stage,
            seen,
            asked: Asked::Settled,
            report: OpenReport::default(),
            prepared,
            replication: None,
            damage,
        })
    }

    fn store(&self) -> Id {
        self.opening.found.catalog.store
    }

    fn segments(&self) -> &[Arc<SegmentState>] {
        &self.opening.found.segments
    }

    /// Refuses the store, or goes on without what is damaged.
    fn salvage(&mut self, error: OpenError) -> Result<(), OpenError> {
        if !self.opening.settings.salvage {
            return Err(error);
        }
        self.damage.get_or_insert(error);
        Ok(())
    }

    /// Why an external segment that the log names is not there, if one is meant.
    fn missing(&self, id: SegmentId) -> Option<SegmentError> {
        let (opening, catalog) = (&self.opening, &self.opening.found.catalog);
        let entry = catalog.segments.iter().find(|entry| entry.id == id && entry.is_external())?;
        SegmentState::open(opening.opener(), catalog, entry, false).err()
    }

    /// Step 2.
    fn read_stage(&mut self) -> Result<StagedTail, OpenError> {
        let mut staged_tail = self.tail_of_stage()?;
        self.pass_on(&staged_tail)?;
        if self.opening.write() && staged_tail.appended.is_some() && !self.stage_arrived(&staged_tail)? {
            staged_tail = self.tail_of_stage()?;
        }
        if let Some(dropped) = staged_tail.dropped.as_ref().filter(|_| !planted("drop-not-told")) {
            self.report.note_dropped(self.stage.path(), dropped);
        }
        let (generations, path) = (self.opening.found.generations.clone(), self.stage.path());
        let agrees = |found| generations.map_or(Ok(()), |noted| noted.check_slot(STAGE_SLOT, found, path));
        if let Err(error) = staged_tail.of_generation(agrees) {
            self.salvage(error.into())?;
            staged_tail = StagedTail::default();
        }
        let all = self.segments().len() == self.opening.found.catalog.segments.len();
        let trusting = all && self.opening.write() && !self.opening.settings.salvage && !self.copied;
        if !trusting || !self.checkpoint_holds(&staged_tail)? {
            staged_tail.checkpoint = None;
        }
        Ok(staged_tail)
    }

    fn tail_of_stage(&mut self) -> Result<StagedTail, OpenError> {
        let copied = self.copied || self.opening.is_copy(&*self.log, self.status.place);
        match StagedTail::read(&*self.stage, &self.store(), &self.seen.of_copy(copied)) {
            Err(error @ StageError::Bad { .. }) => {
                self.salvage(error.into())?;
                Ok(StagedTail::default())
            }
            other => Ok(other?),
        }
    }

    fn was_closed(&self, staged_tail: &StagedTail) -> bool {
        self.status.clean == 1 && staged_tail.records.is_empty()
    }

    /// Says what an earlier opening may have been told alone, unless the store was closed since: its owner had been
    /// told then.
    fn pass_on(&mut self, staged_tail: &StagedTail) -> Result<(), MediaError> {
        let was_closed = self.was_closed(staged_tail);
        self.asked = if was_closed { Asked::Settled } else { staged_tail.asked };
        if self.asked == Asked::Perhaps {
            self.report.note_asked(self.stage.path());
        } else if was_closed && staged_tail.asked != Asked::Settled && self.opening.write() {
            staged_tail::note_asking(&*self.stage, Asked::Settled)?;
        }
        Ok(())
    }

    /// Whether the system lost no write to the stage that recovery reads. What it lost may be gone from memory. A
    /// store that was closed has nothing in its stage.
    fn stage_arrived(&mut self, staged_tail: &StagedTail) -> Result<bool, MediaError> {
        if self.was_closed(staged_tail) {
            return Ok(true);
        }
        let arrived = staged_tail::arrived(&*self.stage, self.asked)?;
        self.seen.lost = unless("stage-not-asked", !arrived);
        Ok(!self.seen.lost)
    }

    /// Whether the segments show what the stage says: they lie in the page caches in which they lay then, and
    /// nothing was lost on its way from there. What the system says of that it says once; meanwhile the stage
    /// says nothing.
    fn checkpoint_holds(&self, staged_tail: &StagedTail) -> Result<bool, MediaError> {
        let (Some(checkpoint), Some(end)) = (staged_tail.checkpoint, staged_tail.appended) else {
            return Ok(false);
        };
        let inside = (Lsn(self.status.head.get())..=end).contains(&checkpoint.before);
        let same = || segment::cache_identity(self.segments()) == Some(checkpoint.caches);
        if !inside || !even_if("caches-not-compared", same()) {
            return Ok(false);
        }
        // The kernel reports a lost write-back once: the checkpoint is withdrawn first, since we may be killed
        // after hearing of one.
        if !planted("answer-not-awaited") {
            staged_tail::forget_checkpoint(&*self.stage)?;
        }
        // All are asked: what is not told now would be told to a later force.
        let media = self.segments().iter().filter_map(|segment| segment.file.held());
        let lost = media.filter(|medium| medium.written_back().is_err()).count();
        Ok(even_if("write-back-not-asked", lost == 0))
    }

    /// Step 3. What is left of the stage belongs to the log.
    fn scan_log(&mut self, mut staged_tail: StagedTail) -> Result<(Scanned, StagedTail), OpenError> {
        let mut scanned = self.scan(staged_tail.live())?;
        if let Err(error) = staged_tail.not_older_than(scanned.forced) {
            self.salvage(error.into())?;
            staged_tail = StagedTail::default();
            scanned = self.scan(None)?;
        }
        if let Some(lost) = scanned.damage.take() {
            self.salvage(lost.into())?;
        }
        let extents = Extents::of(self.segments());
        let unknown =
            |body: &[u8]| Ranges::of(body).find(|range| !extents.hold(range)).map(|range| range.segment);
        if let Some(id) = staged_tail.records.iter().find_map(|(_, body)| unknown(body)) {
            let text = "a staged record names bytes that no segment has".into();
            let path = self.stage.path().to_owned();
            let bad = StageError::Bad { path, offset: 0, defect: Defect::Value(text) };
            let error = self.missing(id).map_or(bad.into(), OpenError::Segment);
            self.salvage(error)?;
            staged_tail = StagedTail::default();
        }
        Ok((scanned, staged_tail))
    }

    fn scan(&mut self, known: Option<std::ops::Range<Lsn>>) -> Result<Scanned, OpenError> {
        let mut prepared = PreparedTable::new();
        let mut stray = None;
        let extents = Extents::of(self.segments());
        let (watch, total) = (&self.opening.settings.watch, self.status.capacity.get());
        let mut scanned = watch.reading(Phase::ReadLog, &*self.log, total, |log| {
            scan::scan(log, &self.status, known.clone(), |record| {
                stray = stray.take().or_else(|| stray_range(record, &extents));
                prepared::recover(&mut prepared, record);
            })
        })?;
        if let Some((lsn, segment, text)) = stray {
            self.missing(segment).map_or(Ok(()), |why| Err(OpenError::Segment(why)))?;
            let (path, offset) = (self.log.path().to_owned(), log_offset(lsn, self.status.capacity.get()));
            return Err(OpenError::Stray { what: "log", path, offset, text });
        }
        self.prepared = prepared;
        if scanned.damage.is_none()
            && let Some([_, second]) = self.log.pair().and_then(|pair| pair.in_use())
        {
            // What both lack only the second may tell of.
            let scanned_too = scan::scan(second, &self.status, known, |_| {});
            scanned.damage = scanned_too.ok().and_then(|scanned| scanned.damage);
        }
        Ok(scanned)
    }

    /// What a commit can survive, refused if it is less than was required.
    fn reach(&self) -> Result<Class, OpenError> {
        let log = [(self.log.path().to_owned(), forced(self.log.volatile()))];
        let segments = self.segments().iter().map(|segment| &segment.file);
        let known = segments.map(|file| (file.path().to_owned(), forced(file.is_volatile()))).chain(log);
        self.opening.settings.reach(self.opening.dir(), known)
    }

    /// Instead of steps 4 to 6, in a store that takes no changes: what is noted is laid over the segments.
    fn show(self, scanned: &Scanned, staged_tail: &StagedTail, reach: Class) -> Result<Opened, OpenError> {
        let mut lacking = self.noted(scanned)?;
        // With damage in between, what is later than the damage would be out of order.
        for (_, body) in staged_tail.records.iter().filter(|_| self.damage.is_none()) {
            let tail = lacking.tail();
            lacking.push(body.clone(), tail);
        }
        let undecided = prepared::list(&self.prepared);
        let opened = read_only::open(self.opening, reach, Some(Box::new(lacking)), undecided, self.damage);
        Ok(Opened { report: self.report, ..opened })
    }

    /// Step 4.
    fn begin_incarnation(&self, scanned: &Scanned) -> Result<(Log, RedoRanges), OpenError> {
        // A copy of the log that is not there leaves the list before there is anything that it lacks.
        let lost_since = self.log.pair().is_some_and(|pair| pair.in_use().is_none());
        let named = self.named.as_ref().filter(|_| !lost_since);
        if let Some(named) = named.filter(|_| unless("missing-copy-not-noted", true)) {
            let (media, dir, store) = self.of_store();
            copies::write(media, dir, store, named)?;
        }
        let place = self.log.place().unwrap_or_default();
        let generations = self.opening.found.generations.as_ref();
        generations::catch_up(generations, self.status.clean == 1, || {
            log::force_status(&*self.log, &self.status)
        })?;
        self.segments().iter().try_for_each(|segment| segment.confirm_found())?;
        let log = generations::step(generations, |generation| {
            Log::open(self.log.clone(), self.store(), self.status, scanned, (place, generation))
        })?;
        let there = Lsn(log.tail().0.saturating_sub(log.capacity()));
        // Of an archive that has not begun, nothing before the head is wanted.
        let begun = self.held()?.into_iter().filter(Held::has_begun);
        if let Some(held) = begun.map(|held| held.keeps(there)).min() {
            log.keep_from(held);
        }
        Ok((log, self.noted(scanned)?))
    }

    /// Of step 4: the replica goes on where the log does.
    fn begin_replica(&mut self, log: &Log) -> Result<(), OpenError> {
        let replica = self.opening.settings.replica();
        let begin = |replica| Replication::begin(replica, self.of_store(), log);
        self.replication = replica.map(begin).transpose()?;
        Ok(())
    }

    /// Where the store's small files are.
    fn of_store(&self) -> (&dyn Media, &Path, Id) {
        (self.opening.media(), self.opening.dir(), self.store())
    }

    /// What the segments may lack of the log.
    fn noted(&self, scanned: &Scanned) -> Result<RedoRanges, MediaError> {
        let capacity = self.status.capacity.get();
        RedoRanges::of_log(&*self.log, capacity, scanned.from, scanned.tail)
    }

    /// Step 5.
    fn append_staged(
        &mut self,
        log: &Log,
        unapplied: &mut RedoRanges,
        staged_tail: &StagedTail,
    ) -> Result<(), OpenError> {
        let records = staged_tail.records.iter();
        for (stamp, body) in records.skip(instead("first-staged-lost", 0, 1)) {
            let needed = (body.len() + FRAME) as u64 + prepared::bytes(&self.prepared);
            if log.free() < needed {
                self.make_room(log, unapplied, Some(*stamp))?;
                Self::refuse_full(log, needed)?;
            }
            append(log, Kind::Commit, &[], body)?;
            unapplied.push(body.to_vec(), log.tail());
        }
        Ok(())
    }

    /// The log has no room for what the stage left over, or names very many segments: truncates it as an epoch
    /// before going on. The frontier of a stage that is believed is moved to `stamp` before the head can pass it.
    fn make_room(
        &mut self,
        log: &Log,
        unapplied: &mut RedoRanges,
        stamp: Option<u64>,
    ) -> Result<(), OpenError> {
        let advance = || match stamp {
            Some(stamp) if !planted("frontier-kept-for-room") => {
                staged_tail::advance(&*self.stage, stamp, log.tail())
            }
            _ => Ok(()),
        };
        // A force that fails below may tell nobody else that a write-back was lost.
        if stamp.is_some() {
            staged_tail::forget_checkpoint(&*self.stage)?;
        }
        log.force()?;
        advance()?;
        // Not what was laid over the segments alone: of what they show besides, the sums may be missing.
        let span = (log.head(), log.forced());
        scan::verify(&*log.medium(), log.capacity(), span.0..span.1)?;
        let all = RedoRanges::of_log(&*log.medium(), log.capacity(), span.0, span.1)?;
        for segment in self.segments() {
            let held = segment.is_held();
            all.apply(segment, caliburn_os::page_size(), |_| {})?;
            segment.sync()?;
            if !held {
                segment.rest();
            }
        }
        drop(all);
        *unapplied = RedoRanges::none(log.tail());
        if let Some(replication) = &self.replication {
            replication.catch_up(log, self.of_store())?;
        }
        self.advance_head(log)?;
        Self::refuse_full(log, prepared::bytes(&self.prepared))?;
        // So that the head can pass where they stand.
        for (id, body, lsn) in prepared::entries(&mut self.prepared) {
            *lsn = append(log, Kind::Prepare, &record::prefix(Kind::Prepare, 1, id), body)?;
        }
        log.force()?;
        advance()?;
        Ok(self.advance_head(log)?)
    }

    /// Lets go what no undecided transaction and no archive needs.
    fn advance_head(&self, log: &Log) -> Result<(), MediaError> {
        if let Some(generations) = &self.opening.found.generations {
            generations.settle()?;
        }
        log.advance_head(prepared::oldest(&self.prepared).min(log.tail()))?;
        log.let_go(self.held()?.iter().map(|held| held.keeps(log.kept())).min().unwrap_or(log.tail()));
        Ok(())
    }

    /// Up to where the log is archived, and in its replica, if it is to be.
    fn held(&self) -> Result<Vec<Held>, MediaError> {
        let (opening, store) = (&self.opening, self.store());
        let read = |name| hold::read(opening.media(), opening.dir(), &store, name);
        let replicated = read(hold::REPLICATED)?.filter(|_| !planted("replica-forgotten-without"));
        Ok(read(hold::ARCHIVED)?.into_iter().chain(replicated).collect())
    }

    /// Refuses to go on if so many bytes cannot be appended.
    fn refuse_full(log: &Log, needed: u64) -> Result<(), OpenError> {
        if log.free() >= needed {
            return Ok(());
        }
        let text = match log.kept() < log.head() {
            true => {
                "what its archive has not got fills the log: archive it (`caliburn archive --now`), then open the store; or what its replica lacks (Options::replica), with which it is to be opened"
            }
            false => "undecided transactions fill the log, which the reserve for them should have prevented",
        };
        let error = io::Error::new(io::ErrorKind::StorageFull, text);
        Err(MediaError::new("make room in the log", &*log.medium(), 0, error).into())
    }

    /// The files of segments to which the log is to be applied stay open, so that truncation meets no shortage of
    /// descriptors. If they are too many for that, the log is applied now.
    fn hold_named(
        &mut self,
        log: &Log,
        unapplied: &mut RedoRanges,
        staged_tail: &StagedTail,
    ) -> Result<(), OpenError> {
        if self.segments().iter().all(|segment| segment.is_held()) {
            return Ok(());
        }
        let named: BTreeSet<SegmentId> =
            unapplied.segments().into_iter().chain(prepared::segments(&self.prepared)).collect();
        let resting = self.segments().iter().filter(|segment| !segment.is_held());
        for segment in resting.filter(|segment| named.contains(&segment.id)) {
            if !self.opening.found.descriptors.has_room() {
                let beyond = staged_tail.appended.map(|_| staged_tail.last + 1);
                return self.make_room(log, unapplied, beyond);
            }
            segment.hold().map_err(OpenError::io("open segment", segment.file.path()))?;
        }
        Ok(())
    }

    /// Step 6.
    fn serve(
        self,
        log: Log,
        unapplied: RedoRanges,
        staged_tail: &StagedTail,
        reach: Class,
    ) -> Result<Opened, OpenError> {
        let Opening { settings, found, tracked } = self.opening;
        let checkpoint = staged_tail.checkpoint.filter(|checkpoint| checkpoint.before >= log.head());
        let mut storage = Storage::new(found, settings, reach);
        storage.rescues = !self.stage.keeps_room();
        let storage = Arc::new(storage);
        let bytes = settings.stage_bytes.min(storage.memory_budget() / 8).max(staged_tail::STAGE_BYTES_MIN);
        let (last, tail) = (staged_tail.last, log.tail());
        marks::forget_beyond(&*storage.media, &storage.dir, &storage.id, tail)?;
        let generation = storage.generations.as_ref().map_or(0, |generations| generations.present());
        if !planted("stage-not-stamped") {
            staged_tail::set_generation(&*self.stage, generation)?;
        }
        let mut stage = Stage::open(&*self.stage, storage.id, &self.seen.now, bytes, last, tail, checkpoint)?;
        stage.rescue(&self.stage, &storage);
        // Of what this opening was told the next one need not be told: it is in the log, or gone from the stage.
        if self.seen.lost && self.asked != Asked::Perhaps {
            staged_tail::note_asking(&*self.stage, Asked::Settled)?;
        }
        // It means something within this boot only.
        if let Some(generations) = &storage.generations {
            generations.confirm(STAGE_SLOT, generation, false)?;
        }
        // What the segments show is not forced, and their sums may lack it: the head must not pass it without
        // an epoch.
        let unforced = checkpoint.is_some_and(|checkpoint| checkpoint.before > log.head());
        let unforced = unless("checkpoint-taken-for-forced", unforced);
        let unapplied = (unforced || !unapplied.is_empty()).then_some(unapplied);
        let sets = Arc::new(Sets::new(Layout { trailer: 0 }, tracked));
        let policy = Redo {
            body_max: AtomicU64::new(relocate::body_max(log.capacity())),
            may_grow: AtomicBool::new(false),
            declared_only: settings.declared_only,
            large: settings.large,
            overflows: settings.overflow,
            background: settings.background,
            flush: Flush::default(),
            rounds: Rounds::default(),
            relocating: Mutex::default(),
            space: Event::default(),
            truncation: Truncation::default(),
            prepared: Mutex::new(self.prepared),
            unapplied: RwLock::new(unapplied),
            pages: Mutex::new(Pages::new(storage.page_size, tail)),
            overflow: Overflow::default(),
            aborted: Mutex::default(),
            storage: storage.clone(),
            sets: sets.clone(),
            stage,
            log,
            replication: self.replication,
        };
        if policy.log.used() > storage.memory_budget() && policy.is_unapplied() {
            // Laid over regions it would take more memory than there is to be.
            let failed = |failure| OpenError::Failed { path: storage.dir.clone(), failure };
            policy.truncate_as_needed().map_err(failed)?;
        }
        let (damage, report) = (self.damage, self.report);
        Ok(Opened { storage, sets, policy: Box::new(policy), damage, report })
    }
}

/// As what is wrong with a log.
pub(super) fn bad(log: &Path, defect: Defect) -> OpenError {
    LogError::Status { path: log.to_owned(), defect }.into()
}
