//! From the stage to the log: the flusher, and commits too large for the stage.
//!
//! The holder of the flush lock moves staged records to the log, in stamp order. A thread that waits for
//! `Power` takes the lock if it is free and leads a round of group commit ([`group`](super::group), which has
//! step 7). The background flusher does the same for lazy commits at the end of their interval, or when the
//! stage fills, and merges them on the way.
//!
//! ```text
//!   1 horizon H                       every commit that returned before now is stamped before H
//!   2 collect records stamped < H     in stamp order
//!   3 encode, merge if all are lazy
//!   4 wait for log space, write
//!   5 move the stage's frontier to H  now they are in the log, and no longer in the stage
//!   6 publish, mark pages             truncation knows what the records changed
//!   7 force the log, durable := H     survives a power cut
//! ```

use super::Redo;
use super::cohort::Cohort;
use super::pages::Pages;
use crate::policy::parts::{Part, write_body};
use crate::storage::error::{CommitError, Failure};
use caliburn_log::format::Lsn;
use caliburn_log::media_error::MediaError;
use caliburn_log::merge::Merger;
use caliburn_log::record::{self, FRAME, Frame, Kind, Ranges, RecordPosition};
use caliburn_log::staged_tail::{CHUNKS, Staged};
use caliburn_os::barrier;
use caliburn_os::clock::wall_ns;
use caliburn_os::event::Event;
use caliburn_os::simulated::{instead, planted, unless};
use caliburn_os::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard, SCHEDULED};
use std::sync::TryLockError;
use std::time::{Duration, Instant};

/// What flushing needs besides the stage and the log.
#[derive(Default)]
pub(super) struct Flush {
    lock: Mutex<FlushBuffers>,
    /// Wakes the background flusher.
    nudge: Event,
    /// The background flusher sleeps until something is staged.
    idle: AtomicBool,
    /// What the background flusher was asked for: [`SPACE`] in the stage, a [`FORCE`].
    wanted: AtomicU32,
    /// Bytes of log that somebody holding the flush lock waits for.
    pub starved: AtomicU64,
    /// Bytes of log that truncation keeps free while it copies pages, since it must force the log for them then.
    pub kept_free: AtomicU64,
    pub forces: AtomicU64,
    pub flushes: AtomicU64,
    pub records: AtomicU64,
    pub merged_transactions: AtomicU64,
    pub merged_bytes: AtomicU64,
    pub log_bytes: AtomicU64,
}

/// The stage is filling: move records to the log.
const SPACE: u32 = 1;
/// Somebody holds a ticket: force the log.
const FORCE: u32 = 2;

/// Bytes that the smallest record takes in the stage.
const RECORD_MIN: usize = 40;

/// Buffers of the flush lock's holder.
#[derive(Default)]
pub(super) struct FlushBuffers {
    merger: Merger,
    buffer: Vec<u8>,
    pub cohort: Cohort,
}

impl FlushBuffers {
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }
}

impl Redo {
    pub(super) fn lock_flush(&self) -> MutexGuard<'_, FlushBuffers> {
        self.flush.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn try_lock_flush(&self) -> Option<MutexGuard<'_, FlushBuffers>> {
        match self.flush.lock.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Lets the flush lock go and wakes those who wait for it or for what was done under it.
    pub(super) fn unlock_flush(&self, work: MutexGuard<'_, FlushBuffers>) {
        drop(work);
        self.rounds.wake_threads();
    }

    /// Steps 1 to 6. Returns the horizon: everything stamped before it is in the log.
    pub(super) fn flush_staged(&self, work: &mut FlushBuffers, merge: bool) -> Result<u64, Failure> {
        let horizon = self.stage.lanes().horizon();
        let mut found = Vec::new();
        self.stage.collect(horizon, &mut found);
        self.flush_found(work, &found, horizon, merge)
    }

    /// The same for truncation, which must not wait for log space, since it is the one to make it: `None`
    /// if what is staged might not fit.
    pub(super) fn flush_if_room(&self, work: &mut FlushBuffers) -> Result<Option<u64>, Failure> {
        let horizon = self.stage.lanes().horizon();
        let mut found = Vec::new();
        self.stage.collect(horizon, &mut found);
        let bytes: usize = found.iter().map(|s| s.body.len() + FRAME).sum();
        if self.log.free() < bytes as u64 + self.prepared_bytes() {
            return Ok(None);
        }
        self.flush_found(work, &found, horizon, false).map(Some)
    }

    fn flush_found(
        &self,
        work: &mut FlushBuffers,
        found: &[Staged<'_>],
        horizon: u64,
        merge: bool,
    ) -> Result<u64, Failure> {
        self.kept()?;
        let mut rest = found;
        while !rest.is_empty() {
            // A merged record must fit the free part of the log whole.
            let most = self.log.capacity() / 4;
            let mut bytes = 0;
            let piece = rest.iter().take_while(|s| {
                bytes += (s.body.len() + FRAME) as u64;
                bytes <= most
            });
            let mut count = piece.count().max(1);
            // The frontier passes all records of one stamp together.
            count += rest[count..].iter().take_while(|s| s.stamp == rest[count - 1].stamp).count();
            let (batch, later) = rest.split_at(count);
            let handed_over = later.first().map_or(horizon, |s| s.stamp);
            self.append_batch(work, batch.iter().map(|s| s.body), merge && batch.len() > 1, handed_over)?;
            rest = later;
        }
        self.stage.free_collected();
        self.flush.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(horizon)
    }

    fn append_batch<'b>(
        &self,
        work: &mut FlushBuffers,
        bodies: impl ExactSizeIterator<Item = &'b [u8]> + DoubleEndedIterator + Clone,
        merge: bool,
        handed_over: u64,
    ) -> Result<(), Failure> {
        let FlushBuffers { merger, buffer, .. } = work;
        let count = bodies.len() as u64;
        // Room first: waiting for it may append records, and each record names its place.
        if merge {
            let merged = merger.merge(bodies);
            self.wait_log(buffer, merged.record_bytes())?;
            self.flush.merged_transactions.fetch_add(count, Ordering::Relaxed);
            self.flush.merged_bytes.fetch_add(merged.dropped + (count - 1) * FRAME as u64, Ordering::Relaxed);
            let record = merged.encode(count, self.place());
            return self.append_encoded(record, 1, Some(handed_over));
        }
        let bytes: usize = bodies.clone().map(|body| body.len() + FRAME).sum();
        self.wait_log(buffer, bytes as u64)?;
        buffer.clear();
        let first = self.place();
        for body in bodies {
            let place = RecordPosition { lsn: Lsn(first.lsn.0 + buffer.len() as u64), ..first };
            record::encode(buffer, Kind::Commit, place, &[], body);
        }
        self.append_encoded(buffer, count, Some(handed_over))
    }

    /// The place of the next record. Only for the holder of the flush lock.
    fn place(&self) -> RecordPosition {
        let log = &self.log;
        RecordPosition {
            lsn: log.tail(),
            forced: log.forced(),
            incarnation: log.incarnation(),
            time: wall_ns(),
        }
    }

    /// Steps 4 to 6, for records encoded for the end of the log, where there is room for them. `handed_over`: what
    /// was staged before that stamp is among them, or earlier in the log.
    fn append_encoded(&self, records: &[u8], count: u64, handed_over: Option<u64>) -> Result<(), Failure> {
        let log = &self.log;
        let mut lsn = log.tail();
        if planted("frontier-before-the-log") {
            self.stage.advance(handed_over, Lsn(lsn.0 + records.len() as u64));
        }
        let end = log.append(records).map_err(|e| self.fail(e))?;
        self.stage.advance(handed_over, end);
        // The frontier may have moved in memory alone: the log must not go on further.
        self.kept()?;
        log.publish(end);
        self.flush.records.fetch_add(count, Ordering::Relaxed);
        self.flush.log_bytes.fetch_add(records.len() as u64, Ordering::Relaxed);
        let mut pages = self.lock_pages();
        let private = pages.private();
        let mut bytes = records;
        while let Some((kind, len, body)) = record::peel(bytes) {
            let skipped = instead("resolved-pages-unmarked", Kind::Prepare, Kind::Resolve);
            for range in Ranges::of(body).take_while(|_| kind != Kind::Prepare && kind != skipped) {
                pages.mark(range.segment, range.offset, range.bytes.len() as u64, lsn);
            }
            bytes = &bytes[len..];
            lsn.0 += len as u64;
        }
        self.after_append(pages, private, lsn);
        Ok(())
    }

    /// All records before `end` were appended and marked, when so many pages were private: truncation may have
    /// to do something. It looks after private pages again and again, but sleeps while there are none.
    fn after_append(&self, mut pages: MutexGuard<'_, Pages>, before: u64, end: Lsn) {
        pages.marked_to(end);
        self.note_private(&mut pages);
        let private = pages.private();
        drop(pages);
        self.check_budget(private);
        let first = unless("truncation-not-woken", before == 0 && private > 0);
        let much = self.log.used() > self.truncation_threshold()
            || self.bytes_since_checkpoint() > self.checkpoint_every_bytes();
        if first || much {
            self.wake_truncation();
        }
    }

    /// Waits until `bytes` can be appended. Truncation makes the room; only a failure ends the wait.
    /// Only for the holder of the flush lock.
    pub(super) fn wait_log(&self, buffer: &mut Vec<u8>, bytes: u64) -> Result<(), Failure> {
        let needed = bytes + self.prepared_bytes();
        let room = || self.log.free() >= needed + self.flush.kept_free.load(Ordering::SeqCst);
        let mut waiting = None;
        loop {
            // Before the look at what is free: it may move in between.
            let head = self.log.head();
            if room() {
                break;
            }
            let seen = self.space.count();
            if self.log.free() < needed {
                self.flush.starved.store(needed, Ordering::SeqCst);
                self.relocate_prepared(buffer)?;
            }
            if room() {
                break;
            }
            self.storage.failure()?;
            waiting.get_or_insert_with(|| self.storage.meter.log_room.begin("room in the log"));
            if self.alone() {
                // It never waits for the flush lock, which we hold.
                self.truncate_as_needed()?;
                if self.log.kept() < self.log.head() {
                    // Another thread, or process, archives it; to the replica nobody else sends.
                    self.send_for_room()?;
                    caliburn_os::sync::sleep(Duration::from_millis(10));
                    continue;
                }
                if self.log.head() == head && self.log.free() < needed {
                    let error = std::io::Error::other("the log is full and nothing makes room");
                    return Err(self.fail(MediaError::new("append to", &*self.log.medium(), 0, error)));
                }
                continue;
            }
            self.wake_truncation();
            self.space.wait(seen, Some(Duration::from_millis(100)));
        }
        self.flush.starved.store(0, Ordering::SeqCst);
        Ok(())
    }

    /// Whether somebody holding the flush lock waits for more log space than there is.
    pub(super) fn is_starved(&self) -> bool {
        self.flush.starved.load(Ordering::SeqCst) > self.log.free()
    }

    /// A commit was staged: the flusher must know, for the bound on its laziness and for the stage's space.
    #[inline(always)]
    pub(super) fn staged(&self, opened: bool) {
        barrier::light();
        if self.flush.idle.load(Ordering::Relaxed) {
            self.nudge_flusher();
        } else if opened {
            self.throttle_on_stage();
        }
    }

    /// A chunk was opened. The flusher is woken when half of those allowed are full, and waited for when
    /// all are: fewer than there are, if the pages that their records may have touched, one for every
    /// [`RECORD_MIN`] bytes, would take more than half of the memory budget.
    #[cold]
    fn throttle_on_stage(&self) {
        let stage = &self.stage;
        let pages = (stage.chunk_bytes() / RECORD_MIN * self.storage.page_size) as u64;
        let allowed = (self.storage.memory_budget() / 2 / pages).clamp(2, CHUNKS as u64) as usize;
        if stage.full_chunks() >= allowed / 2 || stage.free_chunks() <= CHUNKS / 2 {
            self.want(SPACE);
        }
        while allowed < CHUNKS && stage.full_chunks() > allowed && self.storage.failure().is_ok() {
            let seen = stage.freed().count();
            self.want(SPACE);
            if self.alone() {
                let _ = self.flush_lazily();
            } else if stage.full_chunks() > allowed {
                let _waiting = self.storage.meter.stage_room.begin("room in the stage");
                stage.freed().wait(seen, Some(Duration::from_millis(10)));
            }
        }
    }

    fn want(&self, what: u32) {
        if self.flush.wanted.fetch_or(what, Ordering::SeqCst) & what == 0 {
            self.nudge_flusher();
        }
    }

    #[cold]
    pub(super) fn nudge_flusher(&self) {
        self.flush.idle.store(false, Ordering::SeqCst);
        self.flush.nudge.signal();
    }

    /// Whether there are no threads that flush and truncate: a committer that needs it does it.
    pub(super) fn alone(&self) -> bool {
        !self.background && !SCHEDULED
    }

    /// A ticket was given out.
    pub(super) fn ask_for_force(&self) {
        self.want(FORCE);
    }

    /// Waits for room in the stage.
    #[cold]
    pub(super) fn wait_stage(&self) -> Result<(), Failure> {
        let seen = self.stage.freed().count();
        self.storage.failure()?;
        self.want(SPACE);
        if self.alone() {
            return self.flush_lazily();
        }
        if self.stage.free_chunks() == 0 {
            let _waiting = self.storage.meter.stage_room.begin("room in the stage");
            self.stage.freed().wait(seen, Some(Duration::from_millis(100)));
        }
        Ok(())
    }

    /// The background flusher's life.
    pub(super) fn run_flusher(&self) {
        let mut deadline = None;
        loop {
            let seen = self.flush.nudge.count();
            if self.storage.is_over() {
                return;
            }
            let interval = self.storage.tuning().flush_interval;
            let wanted = self.flush.wanted.swap(0, Ordering::SeqCst);
            let due = deadline.is_some_and(|at| at <= Instant::now());
            // Failures below are remembered by the store; those who wait are told.
            if wanted & FORCE != 0 || due {
                let _ = self.flush_all();
                deadline = None;
                continue;
            }
            if wanted & SPACE != 0 {
                let _ = self.flush_lazily();
                deadline = deadline.or_else(|| Instant::now().checked_add(interval));
                continue;
            }
            match deadline {
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    self.flush.nudge.wait(seen, Some(left.max(Duration::from_micros(50))));
                }
                None if interval == Duration::MAX => self.flush.nudge.wait(seen, None),
                None => {
                    // Sleep without a timer; the first commit staged from now on wakes us and starts the
                    // interval. What was staged before is seen by the horizon taken after the barrier.
                    self.flush.idle.store(true, Ordering::SeqCst);
                    barrier::heavy();
                    let log = &self.log;
                    if !self.stage.is_empty() || log.forced() < log.tail() {
                        self.flush.idle.store(false, Ordering::SeqCst);
                    } else if self.flush.idle.load(Ordering::SeqCst)
                        && self.flush.wanted.load(Ordering::SeqCst) == 0
                    {
                        self.flush.nudge.wait(seen, None);
                        self.flush.idle.store(false, Ordering::SeqCst);
                    }
                    deadline = Instant::now().checked_add(interval);
                }
            }
        }
    }

    /// Moves what is staged to the log, without forcing it.
    fn flush_lazily(&self) -> Result<(), Failure> {
        let mut work = self.lock_flush();
        let done = self.flush_staged(&mut work, self.storage.tuning().merge_lazy);
        self.unlock_flush(work);
        done.map(drop)
    }

    /// One round of the background flusher.
    pub(super) fn tend_stage(&self, force: bool) -> Result<(), Failure> {
        let wanted = self.flush.wanted.swap(0, Ordering::SeqCst);
        if force || wanted & FORCE != 0 { self.flush_all() } else { self.flush_lazily() }
    }

    /// Wakes everybody who waits for a flush, a force or log space, after a failure or at closing.
    pub(super) fn wake_flush_waiters(&self) {
        self.rounds.wake_all();
        self.flush.nudge.signal();
        self.space.signal();
        self.stage.freed().signal();
    }

    /// Commits a record that is too large for the stage, with a body of `len` bytes: straight into the log, body
    /// first, header last, so that it is valid only when it is whole. Returns its stamp.
    #[cold]
    pub(super) fn append_large<'t, P: Iterator<Item = Part<'t>>>(
        &self,
        parts: impl Fn() -> P,
        len: usize,
    ) -> Result<u64, CommitError> {
        let mut work = self.lock_flush();
        let done = self.flush_staged(&mut work, false).and_then(|_| {
            self.wait_log(&mut work.buffer, (len + FRAME) as u64)?;
            let place = self.place();
            let at = |offset: usize| Lsn(place.lsn.0 + offset as u64);
            let end = at(len + FRAME);
            let (mut crc, mut done) = (0, record::HEAD);
            write_body(parts(), |bytes| {
                self.log.write(at(done), bytes).map_err(|e| self.fail(e))?;
                let before = instead("sum-of-the-last-piece", crc, 0);
                (crc, done) = (record::append_crc(before, bytes), done + bytes.len());
                Ok::<(), Failure>(())
            })?;
            debug_assert_eq!(done, record::HEAD + len);
            self.overflow_intact()?;
            let (header, trailer) = Frame::new(Kind::Commit, place, len).finish(crc, len);
            for (offset, bytes) in [(done, &trailer[..]), (0, &header[..])] {
                self.log.write(at(offset), bytes).map_err(|e| self.fail(e))?;
            }
            if !planted("large-commit-beyond-the-frontier") {
                self.stage.advance(None, end);
            }
            self.kept()?;
            self.log.publish(end);
            self.flush.records.fetch_add(1, Ordering::Relaxed);
            self.flush.log_bytes.fetch_add((len + FRAME) as u64, Ordering::Relaxed);
            let mut pages = self.lock_pages();
            let private = pages.private();
            for part in parts() {
                pages.mark(part.region.id, part.start(), part.len as u64, place.lsn);
            }
            self.after_append(pages, private, end);
            Ok(self.stage.lanes().now())
        });
        self.unlock_flush(work);
        let stamp = done?;
        self.staged(false);
        Ok(stamp)
    }

    /// Appends one record of a prepared transaction and forces the log. Returns its position.
    pub(super) fn append_forced(
        &self,
        work: &mut FlushBuffers,
        kind: Kind,
        global_id: &[u8],
        body: &[u8],
    ) -> Result<Lsn, Failure> {
        let horizon = self.flush_staged(work, false)?;
        let lsn = self.append_when_room(work, kind, global_id, body)?;
        self.force_flushed(horizon)?;
        Ok(lsn)
    }

    /// Appends one record, as soon as there is room.
    pub(super) fn append_when_room(
        &self,
        work: &mut FlushBuffers,
        kind: Kind,
        global_id: &[u8],
        body: &[u8],
    ) -> Result<Lsn, Failure> {
        let prefix = record::prefix(kind, 1, global_id);
        self.wait_log(&mut work.buffer, (prefix.len() + body.len() + FRAME) as u64)?;
        self.append_one(&mut work.buffer, kind, &prefix, body)
    }

    /// Appends one record without waiting for room: the caller knows that there is some.
    pub(super) fn append_one(
        &self,
        buffer: &mut Vec<u8>,
        kind: Kind,
        prefix: &[u8],
        body: &[u8],
    ) -> Result<Lsn, Failure> {
        let place = self.place();
        buffer.clear();
        record::encode(buffer, kind, place, prefix, body);
        self.append_encoded(buffer, 1, None)?;
        Ok(place.lsn)
    }
}
