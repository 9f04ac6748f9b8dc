//! The stage: where a commit is safe from the death of the process.
//!
//! Memory mapped shared from a file keeps its stores when the process is killed, so a record that was
//! written and published there is committed in the `Process` class, without a system call. The flusher
//! moves records from the stage to the log.
//!
//! ```text
//!  | header, frontier | chunk 0 | chunk 1 | ... |        chunk: | published | record | record | ... |
//!
//!  committer:  enter lane - stamp - write record - publish - leave      (each thread its own lane)
//!  flusher:    horizon H: a stamp such that every record stamped before H is published
//!              collect records before H, in stamp order - write them to the log
//!              frontier := (H, end of the log) - free what held nothing else
//! ```
//!
//! **The frontier** says at the same moment which records have left the stage and how far the log counts.
//! It is kept twice and switched by one store, so that a record is never in both or in neither: were
//! some found in both, recovery would append old values behind newer ones, and a power cut in the midst
//! of that would leave the two mixed.
//!
//! Invariant: a record is published only when it is whole; a committer killed before that leaves nothing,
//! and other lanes do not depend on it. Invariant: the records stamped before the frontier are in the log, and
//! the others are not.
//! Invariant: a stage whose memory did not certainly survive is not taken up; what was forced is in the log.

use super::lanes::{LaneState, Lanes};
use crate::storage::Storage;
use caliburn_log::format::{
    self, BLOCK, CHUNK_HEAD, Lsn, RangeHeader, STAGE_BOOT, STAGE_CACHES, STAGE_CHECKPOINT, STAGE_CURRENT,
    STAGE_FRONTIERS, STAGE_MAGIC, STAGE_MAKING, SegmentId, StageHeader, StagedHeader,
};
use caliburn_log::media_error::MediaError;
use caliburn_log::staged_tail::{self, CHUNKS, Checkpoint, Staged, staged_at};
use caliburn_os::event::Event;
use caliburn_os::host::Id;
use caliburn_os::map::Reservation;
use caliburn_os::medium::Medium;
use caliburn_os::rescue::{Part, Stretch};
use caliburn_os::simulated::{self, even_if, planted};
use caliburn_os::span;
use caliburn_os::sync::Mutex;
use caliburn_os::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use caliburn_os::witness::Witnesses;
use std::io;
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

/// The stage of an open store.
#[derive(Debug)]
pub struct Stage {
    /// What is said of the map, and its file. Gone before it.
    rescued: Option<(Stretch, Arc<dyn Medium>)>,
    map: Reservation,
    chunk_bytes: usize,
    lanes: Lanes,
    chunks: Box<[Chunk]>,
    free: Mutex<Vec<u32>>,
    freed: Event,
}

/// What the flusher knows of a chunk: how far it was collected, and how far that is in the log. Both
/// belong to the holder of the flush lock.
#[derive(Debug, Default)]
struct Chunk {
    collected: AtomicU64,
    consumed: AtomicU64,
    retired: AtomicBool,
}

/// The body of a record that is being written into the stage.
pub(super) struct Body {
    at: *mut u8,
    end: *mut u8,
}

impl Body {
    /// Appends a range with `len` bytes copied from `source`.
    ///
    /// # Safety
    /// `source` must be readable for `len` bytes; other threads may be storing there. What is appended
    /// altogether must not be longer than the body was said to be.
    #[inline(always)]
    pub unsafe fn range(&mut self, segment: SegmentId, offset: u64, source: *const u8, len: usize) {
        let total = format::range_bytes(len);
        debug_assert!(total <= self.end.addr() - self.at.addr());
        let header =
            RangeHeader { segment: segment.0.into(), len: (len as u32).into(), offset: offset.into() };
        // SAFETY: the bytes up to `end` belong to this commit (Stage::append); `source` is the caller's word.
        unsafe {
            self.at.cast::<RangeHeader>().write_unaligned(header);
            if !len.is_multiple_of(format::ALIGN) {
                self.at.add(total - format::ALIGN).cast::<u64>().write_unaligned(0);
            }
            simulated::stored(self.at, total);
            span::copy(source, self.at.add(size_of::<RangeHeader>()), len);
            simulated::stored(self.at, total);
            self.at = self.at.add(total);
        }
    }
}

/// Makes the file of a stage long enough for `bytes`; returns the lengths of a chunk and of the file. Where the
/// disk is full, or a quota, one that is there and smaller serves as well.
fn allocate(medium: &dyn Medium, bytes: u64, page: usize) -> io::Result<(usize, usize)> {
    let head = BLOCK.max(page);
    let total = |chunk_bytes: usize| head + CHUNKS * chunk_bytes;
    let wanted = (bytes as usize / CHUNKS).next_multiple_of(page.max(4096));
    let Err(error) = medium.set_len(total(wanted) as u64) else { return Ok((wanted, total(wanted))) };
    let there = (medium.len()? as usize).saturating_sub(head) / CHUNKS / page.max(4096) * page.max(4096);
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&error.kind());
    if !full || there == 0 || there >= wanted {
        return Err(error);
    }
    medium.set_len(total(there) as u64)?;
    tracing::warn!(%error, "the stage is {} bytes long and stays so", total(there));
    Ok((there, total(there)))
}

impl Stage {
    /// Takes a medium for a new, empty stage of `bytes`, forgetting what it held: to be called when the
    /// leftovers are in the log, which ends at `appended`. `floor` is a stamp that all new ones must exceed. What
    /// was known of the segments it goes on saying if `checkpoint` says so.
    pub fn open(
        medium: &dyn Medium,
        store: Id,
        now: &Witnesses,
        bytes: u64,
        floor: u64,
        appended: Lsn,
        checkpoint: Option<Checkpoint>,
    ) -> Result<Stage, MediaError> {
        let fail = |action| move |e| MediaError::new(action, medium, 0, e);
        let page = caliburn_os::page_size();
        // Killed anywhere in here, the stage counts as empty.
        let (chunk_bytes, total) = allocate(medium, bytes, page).map_err(fail("allocate the stage"))?;
        let making = STAGE_MAKING.to_ne_bytes();
        medium.write_at(&making, STAGE_CURRENT as u64).map_err(fail("write the stage"))?;
        let boot = format::boot_field(now);
        let header = StageHeader {
            boot,
            chunk_bytes: (chunk_bytes as u64).into(),
            chunks: (CHUNKS as u64).into(),
            ..StageHeader::new_zeroed()
        };
        let mut block = header.as_bytes().to_vec();
        format::seal(&mut block, STAGE_MAGIC, store);
        for chunk in 0..CHUNKS {
            let at = (BLOCK + chunk * chunk_bytes) as u64;
            medium.write_at(&[0; 8], at).map_err(fail("write the stage"))?;
        }
        if !planted("checkpoint-kept") {
            let words = checkpoint
                .map_or([0; 2], |checkpoint| [checkpoint.before.0, checkpoint.caches])
                .map(u64::to_ne_bytes);
            medium.write_at(&words.concat(), STAGE_CHECKPOINT as u64).map_err(fail("write the stage"))?;
        }
        medium.write_at(&boot, STAGE_BOOT as u64).map_err(fail("write the stage"))?;
        medium.write_at(&block, 0).map_err(fail("write the stage"))?;
        staged_tail::note(medium, now).map_err(fail("write the stage"))?;
        medium.watch();

        let map = Reservation::new(total, None).map_err(fail("reserve memory for the stage"))?;
        // SAFETY: the reservation is new, nobody refers into it; the file was just made long enough and
        // belongs to this store, whose lock this process holds.
        unsafe { map.map_shared(0, total, medium.descriptor(), 0, false) }.map_err(fail("map the stage"))?;
        simulated::mapped(medium.descriptor(), map.base().as_ptr(), total, 0);
        let stage = Stage {
            rescued: None,
            map,
            chunk_bytes,
            lanes: Lanes::after(floor),
            chunks: (0..CHUNKS).map(|_| Chunk::default()).collect(),
            free: Mutex::new((0..CHUNKS as u32).rev().collect()),
            freed: Event::default(),
        };
        stage.advance(Some(stage.lanes.begin()), appended);
        Ok(stage)
    }

    /// What becomes of it when its file has no room (see [`rescue`](caliburn_os::rescue)); `medium` is that file.
    pub fn rescue(&mut self, medium: &Arc<dyn Medium>, storage: &Storage) {
        let base = self.map.base().as_ptr().addr();
        if let Some(owner) = storage.owner() {
            // SAFETY: the map is this one's, and the medium is kept.
            let stretch = unsafe { Stretch::new(base, (medium.descriptor(), 0), Part::Log, owner) };
            stretch.share(self.map.len(), || Ok(())).expect("nothing of this store was stored to yet");
            self.rescued = Some((stretch, medium.clone()));
        }
    }

    /// Longest body that the stage takes; a longer commit goes to the log directly.
    pub fn body_max(&self) -> usize {
        self.chunk_bytes - CHUNK_HEAD - size_of::<StagedHeader>()
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Bytes of all chunks.
    pub fn bytes(&self) -> u64 {
        (CHUNKS * self.chunk_bytes) as u64
    }

    /// Who commits, and in which order.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// A word of the header.
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < BLOCK);
        // SAFETY: the first block of the map is the header, alive as long as `self`; the offset is aligned.
        unsafe { &*self.map.base().as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Moves the frontier, at once for both: the log counts up to `appended`, and records stamped before
    /// `handed_over` are in it. Only for the holder of the flush lock, after the records were written to the log
    /// and before anybody takes them for part of it.
    pub fn advance(&self, handed_over: Option<u64>, appended: Lsn) {
        let current = self.word(STAGE_CURRENT).load(Ordering::Relaxed);
        let next = u64::from(current == 0);
        let (now, target) = (STAGE_FRONTIERS[1 - next as usize], STAGE_FRONTIERS[next as usize]);
        if planted("frontier-in-place") {
            set(self.word(now), handed_over.unwrap_or_else(|| self.word(now).load(Ordering::Relaxed)));
            set(self.word(now + 8), appended.0);
            return;
        }
        set(self.word(target), handed_over.unwrap_or_else(|| self.word(now).load(Ordering::Relaxed)));
        set(self.word(target + 8), appended.0);
        set(self.word(STAGE_CURRENT), next);
    }

    /// Says what the segments show from now on, or that it is not known. Only for the truncator.
    pub fn set_checkpoint(&self, checkpoint: Option<Checkpoint>) {
        set(self.word(STAGE_CHECKPOINT), 0);
        if let Some(checkpoint) = checkpoint {
            set(self.word(STAGE_CACHES), checkpoint.caches);
            set(self.word(STAGE_CHECKPOINT), checkpoint.before.0);
        }
    }

    #[inline(always)]
    fn chunk(&self, chunk: u32) -> *mut u8 {
        assert!((chunk as usize) < CHUNKS);
        // SAFETY: chunks lie one after the other behind the header, within the map.
        unsafe { self.map.base().as_ptr().add(BLOCK + chunk as usize * self.chunk_bytes) }
    }

    #[inline(always)]
    fn published(&self, chunk: u32) -> &AtomicU64 {
        // SAFETY: a chunk begins with its count, aligned, alive as long as `self`.
        unsafe { &*self.chunk(chunk).cast::<AtomicU64>() }
    }

    /// Commits one record of `len` body bytes, which `fill` must write in full and give back. Returns the
    /// stamp, and whether this commit opened a new chunk; `None` when no chunk is free (see [`Stage::freed`]),
    /// or `fill` gave up: nothing was committed then.
    #[inline]
    pub fn append(&self, len: usize, fill: impl FnOnce(Body) -> Option<Body>) -> Option<(u64, bool)> {
        debug_assert!(len <= self.body_max() && len.is_multiple_of(format::ALIGN));
        let (lane, number) = self.lanes.enter();
        // SAFETY: `enter` made `turn` odd for us; nobody else touches `work` until `leave` makes it even.
        let work = unsafe { lane.state() };
        let needed = size_of::<StagedHeader>() + len;
        let mut opened = false;
        if work.chunk.is_none() || CHUNK_HEAD + work.filled + needed > self.chunk_bytes {
            if !self.rotate(work) {
                lane.leave();
                return None;
            }
            opened = true;
        }
        let chunk = work.chunk.expect("rotate left a chunk");
        let stamp = self.lanes.stamp(number, work);
        let published = self.published(chunk);
        if planted("published-before-written") {
            set(published, (work.filled + needed) as u64);
        }
        // SAFETY: the chunk belongs to this lane until it is retired and freed; `filled + needed` fits.
        unsafe {
            let at = self.chunk(chunk).add(CHUNK_HEAD + work.filled);
            let header = StagedHeader { stamp: stamp.into(), len: (len as u64).into() };
            at.cast::<StagedHeader>().write_unaligned(header);
            simulated::stored(at, size_of::<StagedHeader>());
            let at = at.add(size_of::<StagedHeader>());
            let Some(body) = fill(Body { at, end: at.add(len) }) else {
                lane.leave();
                return None;
            };
            assert_eq!(body.at, body.end, "a commit writes what it announced");
        }
        work.filled += needed;
        // Publishing: whatever kills this process after the next store, the record is there.
        set(published, work.filled as u64);
        lane.leave();
        Some((stamp, opened))
    }

    #[cold]
    fn rotate(&self, work: &mut LaneState) -> bool {
        let Some(next) = self.free.lock().expect("no panic under this lock").pop() else { return false };
        if let Some(full) = work.chunk.replace(next) {
            self.chunks[full as usize].retired.store(true, Ordering::Release);
        }
        work.filled = 0;
        true
    }

    /// Whether every published record was collected.
    pub fn is_empty(&self) -> bool {
        self.chunks.iter().enumerate().all(|(number, chunk)| {
            chunk.consumed.load(Ordering::Acquire) == self.published(number as u32).load(Ordering::Acquire)
        })
    }

    /// Chunks that are full and not freed yet.
    pub fn full_chunks(&self) -> usize {
        self.chunks.iter().filter(|chunk| chunk.retired.load(Ordering::Acquire)).count()
    }

    /// Chunks that nobody uses.
    pub fn free_chunks(&self) -> usize {
        self.free.lock().expect("no panic under this lock").len()
    }

    /// What to wait on when no chunk is free: signalled at each fold.
    pub fn freed(&self) -> &Event {
        &self.freed
    }

    /// The records stamped before `horizon` that were not handed over yet, in stamp order. Only for the
    /// holder of the flush lock: what is returned stays in place until [`Stage::free_collected`], and is returned
    /// again if that is not called.
    pub fn collect<'a>(&'a self, horizon: u64, found: &mut Vec<Staged<'a>>) {
        for (number, chunk) in self.chunks.iter().enumerate() {
            let published = self.published(number as u32).load(Ordering::Acquire) as usize;
            let consumed = chunk.consumed.load(Ordering::Relaxed) as usize;
            // SAFETY: published bytes are not written again before the chunk is freed, which only the
            // holder of the flush lock does, in `fold`.
            let bytes = unsafe {
                std::slice::from_raw_parts(self.chunk(number as u32).add(CHUNK_HEAD).cast_const(), published)
            };
            let mut at = consumed;
            while at < published {
                let (staged, next) = staged_at(bytes, at).expect("this process wrote the record whole");
                if staged.stamp >= horizon {
                    break;
                }
                found.push(staged);
                at = next;
            }
            chunk.collected.store(at as u64, Ordering::Relaxed);
        }
        found.sort_by_key(|staged| staged.stamp);
    }

    /// Frees the chunks of which everything was collected. Only for the holder of the flush lock, after
    /// [`Stage::collect`], when the frontier has passed what was collected.
    pub fn free_collected(&self) {
        let mut freed = false;
        for (number, chunk) in self.chunks.iter().enumerate() {
            let published = self.published(number as u32);
            let collected = chunk.collected.load(Ordering::Relaxed);
            chunk.consumed.store(collected, Ordering::Release);
            // First whether the lane has left the chunk: only then is the count final.
            let retired = chunk.retired.load(Ordering::Acquire);
            let all = even_if("chunk-freed-too-soon", collected == published.load(Ordering::Acquire));
            if retired && all {
                set(published, 0);
                chunk.collected.store(0, Ordering::Relaxed);
                chunk.consumed.store(0, Ordering::Relaxed);
                chunk.retired.store(false, Ordering::Relaxed);
                self.free.lock().expect("no panic under this lock").push(number as u32);
                freed = true;
            }
        }
        if freed {
            self.freed.signal();
        }
    }
}

/// Stores a word that recovery reads, after everything that was stored before it.
#[inline(always)]
fn set(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
    simulated::stored(word.as_ptr().cast_const().cast(), size_of::<u64>());
}

#[cfg(test)]
mod tests {
    use super::*;
    use caliburn_log::staged_tail::{STAGE_BYTES_MIN, StagedTail};
    use caliburn_os::files::Files;
    use caliburn_os::medium::Media;
    use caliburn_os::witness::Seen;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::sync::Arc;

    const STORE: Id = [7; 16];
    const NOW: Witnesses = Witnesses { boot: Some([1; 16]), others: None };
    const SEEN: Seen = Seen { now: NOW, pinned: false, lost: false, vouched: false, copy: false };

    fn medium(dir: &tempfile::TempDir) -> Arc<dyn Medium> {
        Files.create(&dir.path().join("stage")).unwrap()
    }

    fn put(stage: &Stage, value: u64) -> Option<u64> {
        let bytes = value.to_ne_bytes();
        let fill = |mut body: Body| {
            // SAFETY: `bytes` lives through the call, and the body has room for them.
            unsafe { body.range(SegmentId(1), value * 8, bytes.as_ptr(), 8) };
            Some(body)
        };
        stage.append(24, fill).map(|(stamp, _)| stamp)
    }

    fn values(found: &[(u64, Vec<u8>)]) -> Vec<u64> {
        found.iter().map(|(_, body)| u64::from_ne_bytes(body[16..24].try_into().unwrap())).collect()
    }

    #[test]
    fn what_was_published_and_not_folded_is_left_over_in_commit_order() {
        let dir = tempfile::tempdir().unwrap();
        let medium = medium(&dir);
        let stage = Stage::open(&*medium, STORE, &NOW, STAGE_BYTES_MIN, 0, Lsn(0), None).unwrap();
        let put_by_another =
            |value| std::thread::scope(|scope| scope.spawn(|| put(&stage, value)).join().unwrap());
        for value in 0..10 {
            put(&stage, value).unwrap();
        }
        let horizon = stage.lanes().horizon();
        stage.collect(horizon, &mut Vec::new());
        stage.advance(Some(horizon), Lsn(640));
        stage.free_collected();
        // The second lane ends the bias of the first, again and again.
        for value in 10..100 {
            if value % 30 < 28 { put(&stage, value) } else { put_by_another(value) }.unwrap();
        }
        drop(stage);
        let left = StagedTail::read(&*medium, &STORE, &SEEN).unwrap();
        assert_eq!(left.appended, Some(Lsn(640)));
        let found = left.records;
        assert_eq!(values(&found), (10..100).collect::<Vec<_>>());
        // The file stayed in memory; in another boot it would not have.
        let other = Seen { now: Witnesses { boot: Some([2; 16]), ..NOW }, ..SEEN };
        let left = StagedTail::read(&*medium, &STORE, &other).unwrap();
        assert!(left.records.is_empty() && left.appended.is_none(), "another boot's stage was read");
        let dropped = left.dropped.unwrap();
        assert_eq!((dropped.commits, dropped.bytes, dropped.certain), (90, 90 * 40, true));
        let error = StagedTail::read(&*medium, &[8; 16], &SEEN).unwrap_err().to_string();
        assert!(error.contains("another store"), "{error}");
    }

    #[test]
    fn a_commit_after_that_of_another_lane_is_stamped_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let stage = Stage::open(&*medium(&dir), STORE, &NOW, STAGE_BYTES_MIN, 0, Lsn(0), None).unwrap();
        for round in 0..20 {
            // Enough of them for the bias.
            (0..2 * u64::from(super::super::lanes::BIAS_AFTER))
                .for_each(|value| _ = put(&stage, value).unwrap());
            let other = std::thread::scope(|scope| scope.spawn(|| put(&stage, 1)).join().unwrap()).unwrap();
            let own = put(&stage, 2).unwrap();
            assert!(own > other, "round {round}: {own} after {other}");
            // The bias can be had again.
            stage.lanes().horizon();
        }
    }

    #[test]
    fn a_chunk_is_freed_when_all_of_it_was_collected_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let stage = Stage::open(&*medium(&dir), STORE, &NOW, STAGE_BYTES_MIN, 0, Lsn(0), None).unwrap();
        (0..50).for_each(|value| _ = put(&stage, value).unwrap());
        let horizon = stage.lanes().horizon();
        stage.collect(horizon, &mut Vec::new());
        // The chunk is left before the flusher comes back, with records that it has not seen.
        let mut value = 50;
        while stage.full_chunks() == 0 {
            put(&stage, value).unwrap();
            value += 1;
        }
        stage.advance(Some(horizon), Lsn(640));
        stage.free_collected();
        let mut found = Vec::new();
        stage.collect(stage.lanes().horizon(), &mut found);
        let found: Vec<_> = found.iter().map(|staged| (staged.stamp, staged.body.to_vec())).collect();
        assert_eq!(values(&found), (50..value).collect::<Vec<_>>());
    }

    proptest! {
        /// Whatever two lanes append and the flusher takes away, what is left over is what was not taken, in
        /// the order in which it was appended.
        #[test]
        fn what_is_left_over_is_what_was_not_folded(steps in vec((0..10u8, 1..60u64), 1..60)) {
            let dir = tempfile::tempdir().unwrap();
            let medium = medium(&dir);
            let stage = Stage::open(&*medium, STORE, &NOW, STAGE_BYTES_MIN, 0, Lsn(0), None).unwrap();
            let (mut waiting, mut next) = (Vec::new(), 0);
            for (what, count) in steps {
                let mut put_some = || for _ in 0..count {
                    if put(&stage, next).is_some() {
                        waiting.push(next);
                        next += 1;
                    }
                };
                match what {
                    0..=4 => put_some(),
                    5..=7 => std::thread::scope(|scope| scope.spawn(put_some).join().unwrap()),
                    _ => {
                        let (horizon, mut found) = (stage.lanes().horizon(), Vec::new());
                        stage.collect(horizon, &mut found);
                        let found: Vec<_> = found.iter().map(|s| (s.stamp, s.body.to_vec())).collect();
                        prop_assert_eq!(&values(&found), &waiting);
                        // Nine: the process would die between collecting and folding.
                        if what == 8 {
                            waiting.clear();
                            stage.advance(Some(horizon), Lsn(next * 64));
                            stage.free_collected();
                        }
                    }
                }
            }
            drop(stage);
            let left = StagedTail::read(&*medium, &STORE, &SEEN).unwrap();
            prop_assert_eq!(values(&left.records), waiting);
        }
    }

    #[test]
    fn a_committer_that_dies_before_publishing_hides_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let medium = medium(&dir);
        let stage = Stage::open(&*medium, STORE, &NOW, STAGE_BYTES_MIN, 0, Lsn(0), None).unwrap();
        put(&stage, 1).unwrap();
        let die = || stage.append(24, |_| panic!("killed between stamp and publish"));
        let dead = std::thread::scope(|scope| scope.spawn(die).join());
        assert!(dead.is_err());
        put(&stage, 2).unwrap();
        assert_eq!(values(&StagedTail::read(&*medium, &STORE, &SEEN).unwrap().records), [1, 2]);
    }

    #[test]
    fn a_full_stage_says_so_and_goes_on_after_a_fold() {
        let dir = tempfile::tempdir().unwrap();
        let stage = Stage::open(&*medium(&dir), STORE, &NOW, STAGE_BYTES_MIN, 0, Lsn(0), None).unwrap();
        let mut count = 0;
        while put(&stage, count).is_some() {
            count += 1;
        }
        assert!(count as usize * 40 > CHUNKS * stage.chunk_bytes() / 16 * 15, "only {count} records fitted");
        for _ in 0..3 {
            let (horizon, mut found) = (stage.lanes().horizon(), Vec::new());
            stage.collect(horizon, &mut found);
            assert!(!found.is_empty() && found.is_sorted_by_key(|s| s.stamp));
            drop(found);
            stage.free_collected();
            while put(&stage, count).is_some() {
                count += 1;
            }
        }
    }

    #[test]
    fn the_horizon_misses_no_commit_that_returned() {
        let dir = tempfile::tempdir().unwrap();
        let stage = &Stage::open(&*medium(&dir), STORE, &NOW, 4 << 20, 0, Lsn(0), None).unwrap();
        // Committers that force and that do not, in turns.
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let done = &done;
                scope.spawn(move || {
                    let mut value = 0;
                    while !done.load(Ordering::Relaxed) {
                        if put(stage, value).is_some() { value += 1 } else { std::thread::yield_now() }
                    }
                });
            }
            let mut last = 0;
            let late = (0..250).find_map(|_| {
                let (horizon, mut found) = (stage.lanes().horizon(), Vec::new());
                stage.collect(horizon, &mut found);
                let late = found.iter().any(|staged| !(last..horizon).contains(&staged.stamp));
                last = horizon;
                stage.free_collected();
                late.then_some(horizon)
            });
            done.store(true, Ordering::Relaxed);
            assert_eq!(late, None, "a record stamped before the last horizon appeared after it");
        });
    }
}
