//! Undo logs: old values of uncommitted transactions, in memory that survives what the transactions are to
//! survive (Vista, section 3.1). Each transaction has a log of its own, so threads do not meet.
//!
//! ```text
//!  | status A | status B | ...64 KiB | chunk 0 | chunk 1 | ... |     chunk: | words | range | range | ... |
//!
//!  before a store:  copy the old bytes behind the last range - publish their number
//!  commit:          publish that there are none, under the next transaction's number: one store
//!  abort, recovery: copy the old bytes back, newest first - publish that there are none
//! ```
//!
//! A log that outgrows its first chunk takes further ones, which name it and its transaction: the commit's one
//! store disowns them too. They go back to the pool afterwards.
//!
//! In persistent memory a range is sealed instead of counted, and lines of the cache are written back:
//!
//! ```text
//!  before a store:  copy the old bytes and their seal - write back, fence
//!  commit:          write back what was declared, fence - one store, write back, fence
//! ```
//!
//! Invariant: a range is published whole before any byte that it covers is changed, and the changes of a
//! transaction are all stored before its commit is.
//! Invariant: recovery is done again from the beginning if it is cut short: a log is emptied after its old
//! values are back.

use crate::format::{
    self, RangeHeader, SegmentId, UNDO_COUNT, UNDO_DATA, UNDO_FIRST, UNDO_FURTHER, UNDO_HEAD, UNDO_MAGIC,
    UNDO_OWNER, UndoStatus, range_bytes,
};
use crate::log::{Forcing, MediaError};
use crate::record::Ranges;
use crate::sealed::{SEAL, Seal};
use crate::twin;
use crate::uncommitted::{CLEAN, DAMAGED, Found};
use caliburn_os::host::Id;
use caliburn_os::map::Reservation;
use caliburn_os::medium::Medium;
use caliburn_os::persist::{Flush, Memory, Survives};
use caliburn_os::simulated::{self, planted};
use caliburn_os::span;
use caliburn_os::sync::Mutex;
use caliburn_os::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// Bytes of a chunk; few where crashes are simulated, so that logs outgrow them.
pub const CHUNK_BYTES: usize = if cfg!(caliburn_sim) { 8 << 10 } else { 256 << 10 };
/// Chunks by which the file grows.
const STEP: usize = 4;
/// Address space for the logs of a store, as much as can be had.
const RESERVED: [usize; 3] = [64 << 30, 1 << 30, 64 << 20];

/// The undo logs of an open store.
#[derive(Debug)]
pub struct UndoLogs {
    medium: Arc<dyn Medium>,
    store: Id,
    map: Reservation,
    pool: Mutex<Pool>,
    status: Mutex<UndoStatus>,
    forcing: Forcing,
    memory: Memory,
    /// Of seals: that of the status page which says that the store is in use.
    generation: u64,
    /// The store was in use by a process that died: what a force of its segments once lost would not be noticed.
    pub suspect: bool,
}

#[derive(Debug, Default)]
struct Pool {
    /// Chunks in use since the store was opened; the file may be longer.
    made: usize,
    free: Vec<u32>,
}

/// A slot's undo log: reused from one transaction to the next.
#[derive(Debug)]
pub struct UndoLog {
    /// Where the hot path goes on.
    short: Option<Short>,
    /// The chunk in use; null before the first.
    chunk: *mut u8,
    /// Offset of its word that counts its ranges.
    word: usize,
    first: u32,
    further: Vec<u32>,
    /// In persistent memory: of the ranges in the present chunk.
    seal: Seal,
    /// There, what the transaction is to write back: addresses and lengths.
    declared: Vec<(*const u8, usize)>,
}

/// The only chunk of a log that is not persistent. It stays so until the log is extended or dropped.
#[derive(Debug, Clone, Copy)]
pub struct Short(NonNull<u8>);

impl Default for UndoLog {
    fn default() -> UndoLog {
        UndoLog {
            short: None,
            chunk: ptr::null_mut(),
            word: UNDO_FIRST,
            first: 0,
            further: Vec::new(),
            seal: Seal::default(),
            declared: Vec::new(),
        }
    }
}

// SAFETY: a log points into the mapping of the store's undo logs, which is shared memory; it is used by whoever
// holds its slot.
unsafe impl Send for UndoLog {}

impl UndoLogs {
    /// Takes the file into use: to be called when what was uncommitted is undone. Durably in use when this
    /// returns, so that no later loss of memory passes for an orderly end.
    pub fn open(
        medium: Arc<dyn Medium>,
        store: Id,
        boot: Id,
        memory: Memory,
        found: &Found,
    ) -> Result<UndoLogs, MediaError> {
        // Address space may be limited (`ulimit -v`).
        let mut wishes = RESERVED.iter().map(|wish| Reservation::new(*wish, None));
        let map = wishes.find(Result::is_ok).unwrap_or_else(|| Err(io::ErrorKind::OutOfMemory.into()));
        let map = map.map_err(|e| MediaError::new("reserve memory for undo logs", &*medium, 0, e))?;
        let sealed = memory.survives > Survives::Process;
        let status = UndoStatus {
            boot,
            chunk_bytes: (CHUNK_BYTES as u32).into(),
            clean: 0.into(),
            sealed: u32::from(sealed).into(),
            generation: found.status.generation + 1,
            ..found.status
        };
        let logs = UndoLogs {
            medium,
            store,
            map,
            pool: Mutex::default(),
            status: Mutex::new(found.status),
            forcing: Forcing::default(),
            memory,
            generation: status.generation.get(),
            suspect: found.status.clean.get() == 0 && !found.sealed(),
        };
        // What the chunks held is back where it belongs, durably so if they outlive this boot.
        logs.count(0)?;
        // The page that counts may not be durable, if a force of it failed (see `Log::open`).
        twin::put(&*logs.medium, found.status.as_bytes(), UNDO_MAGIC, store)?;
        logs.sync()?;
        logs.put(status)?;
        Ok(logs)
    }

    /// What the logs are in.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// How stores reach persistent memory, if the logs are in such.
    #[inline(always)]
    fn persistent(&self) -> Option<Flush> {
        (self.memory.survives > Survives::Process).then_some(self.memory.flush)
    }

    fn put(&self, status: UndoStatus) -> Result<(), MediaError> {
        twin::put(&*self.medium, status.as_bytes(), UNDO_MAGIC, self.store)?;
        *self.status.lock().expect("no panic under this lock") = status;
        if planted("undo-use-not-forced") {
            return Ok(());
        }
        self.sync()
    }

    fn sync(&self) -> Result<(), MediaError> {
        self.forcing.sync(&*self.medium, "force undo logs", 0)
    }

    /// Says that the store is in order: nothing is uncommitted, every segment was forced.
    pub fn mark_clean(&self) -> Result<(), MediaError> {
        self.mark(CLEAN)
    }

    /// Says that a segment could not be forced: what it holds is unknown, and stays so.
    pub fn mark_damaged(&self) -> Result<(), MediaError> {
        self.mark(DAMAGED)
    }

    fn mark(&self, clean: u32) -> Result<(), MediaError> {
        self.forcing.sound()?;
        let mut status = *self.status.lock().expect("no panic under this lock");
        status.generation += 1;
        status.clean = clean.into();
        self.put(status)
    }

    fn map_chunks(&self, from: usize, to: usize) -> Result<(), MediaError> {
        if from == to {
            return Ok(());
        }
        let (at, len) = (UNDO_DATA as usize + from * CHUNK_BYTES, (to - from) * CHUNK_BYTES);
        let fail = |e| MediaError::new("map undo logs", &*self.medium, at as u64, e);
        // SAFETY: this part of the reservation was never mapped; the file is as long, and belongs to this
        // store, whose lock this process holds.
        unsafe { self.map.map_shared(at, len, self.medium.descriptor(), at as u64, self.memory.sync) }
            .map_err(fail)?;
        simulated::mapped(self.medium.descriptor(), self.chunk(from as u32), len, at as u64);
        Ok(())
    }

    fn chunk(&self, number: u32) -> *mut u8 {
        let at = UNDO_DATA as usize + number as usize * CHUNK_BYTES;
        assert!(at + CHUNK_BYTES <= self.map.len());
        // SAFETY: the chunk lies within the reservation.
        unsafe { self.map.base().as_ptr().add(at) }
    }

    /// Takes a chunk from the pool, or makes more of them, with their space allocated.
    fn take(&self) -> Result<u32, MediaError> {
        let mut pool = self.pool.lock().expect("no panic under this lock");
        if pool.free.is_empty() {
            let made = pool.made + STEP;
            let end = UNDO_DATA + (made * CHUNK_BYTES) as u64;
            let fail = |e| MediaError::new("allocate undo logs", &*self.medium, end, e);
            if end > self.map.len() as u64 {
                return Err(fail(io::ErrorKind::StorageFull.into()));
            }
            self.medium.set_len(end).map_err(fail)?;
            for number in pool.made..made {
                self.medium.write_at(&[0; 24], UNDO_DATA + (number * CHUNK_BYTES) as u64).map_err(fail)?;
            }
            // After a growth that failed the file may look longer than it durably is.
            self.medium.write_at(&[0; 8], end - 8).map_err(fail)?;
            self.map_chunks(pool.made, made)?;
            // In persistent memory the chunks outlive a power cut, and must be there before they are counted.
            let persistent = self.persistent().is_some();
            if persistent && !planted("undo-growth-not-forced") {
                self.sync()?;
            }
            if !planted("undo-count-forgotten") {
                self.count(made)?;
            }
            if persistent && !planted("undo-count-not-forced") {
                self.sync()?;
            }
            let fresh = pool.made as u32..made as u32;
            pool.free.extend(fresh.rev());
            pool.made = made;
        }
        Ok(pool.free.pop().expect("there are some now"))
    }

    /// Says how many chunks recovery is to look at, before any of the new ones is used.
    fn count(&self, made: usize) -> Result<(), MediaError> {
        let fail = |e| MediaError::new("write undo logs", &*self.medium, UNDO_COUNT, e);
        self.medium.write_at(&(made as u64).to_ne_bytes(), UNDO_COUNT).map_err(fail)
    }

    /// Of what the log is about to write.
    fn seal(&self, log: &UndoLog) -> Seal {
        Seal::new(self.generation, log.first, log.further.len() as u32, log.turn(self))
    }

    fn give_back(&self, log: &mut UndoLog) {
        for number in &log.further {
            // The transaction's number comes again after 2^32 others.
            // SAFETY: the chunk is ours until it is in the pool.
            unsafe { set(self.chunk(*number), UNDO_OWNER, 0) };
        }
        self.pool.lock().expect("no panic under this lock").free.append(&mut log.further);
    }
}

/// Stores a word of a chunk that recovery reads, between what was stored before and what is stored after.
///
/// # Safety
/// `chunk` must be a mapped chunk of this log's.
#[inline(always)]
unsafe fn set(chunk: *mut u8, at: usize, value: u64) {
    // SAFETY: a chunk's words are aligned, and the caller's.
    let word = unsafe { &*chunk.add(at).cast::<AtomicU64>() };
    word.store(value, Ordering::Release);
    // Whatever kills the process, it has done its stores in this order; the compiler must, too.
    compiler_fence(Ordering::SeqCst);
    simulated::stored(word.as_ptr().cast_const().cast(), size_of::<u64>());
}

/// Reads such a word.
///
/// # Safety
/// As for [`set`].
#[inline(always)]
unsafe fn get(chunk: *mut u8, at: usize) -> u64 {
    // SAFETY: a chunk's words are aligned, and the caller's.
    unsafe { &*chunk.add(at).cast::<AtomicU64>() }.load(Ordering::Relaxed)
}

/// The bytes of ranges that a word counts.
#[inline(always)]
fn filled(word: u64) -> usize {
    word as u32 as usize
}

impl UndoLog {
    /// The word that counts what is in the present chunk. There is nothing else to know of a transaction: the more
    /// that is stored for each, the fewer of them does a processor overlap.
    ///
    /// # Safety
    /// There must be a chunk.
    #[inline(always)]
    unsafe fn count(&self) -> u64 {
        // SAFETY: the chunk is ours.
        unsafe { get(self.chunk, self.word) }
    }

    /// The number of the transaction.
    fn turn(&self, logs: &UndoLogs) -> u32 {
        if self.chunk.is_null() {
            return 0;
        }
        // SAFETY: the first chunk is ours.
        let count = unsafe { get(logs.chunk(self.first), UNDO_FIRST) };
        (count >> 32) as u32
    }

    /// Saves `len` bytes at `source`, which are at `offset` of the segment, before they are changed.
    ///
    /// # Safety
    /// `source` must be readable for `len` bytes; `logs` must be those of this log's first call.
    #[inline(always)]
    pub unsafe fn save(
        &mut self,
        logs: &UndoLogs,
        segment: SegmentId,
        offset: u64,
        source: *const u8,
        len: usize,
    ) -> Result<(), MediaError> {
        // SAFETY: the chunk is ours; the source is the caller's word.
        if self.short.is_some_and(|short| unsafe { short.save(segment, offset, source, len) }) {
            return Ok(());
        }
        // SAFETY: passed on from the caller.
        unsafe { self.save_slowly(logs, segment, offset, source, len) }
    }

    #[cold]
    #[inline(never)]
    unsafe fn save_slowly(
        &mut self,
        logs: &UndoLogs,
        segment: SegmentId,
        offset: u64,
        source: *const u8,
        len: usize,
    ) -> Result<(), MediaError> {
        if self.chunk.is_null() {
            self.extend(logs)?;
        }
        // SAFETY: there is a chunk.
        let (chunks, count) = (self.further.len(), unsafe { self.count() });
        // SAFETY: passed on from the caller.
        let saved = unsafe { self.save_parts(logs, segment, offset, source, len) };
        match logs.persistent() {
            _ if saved.is_err() => {
                // Nothing was saved: what another transaction may do with these bytes is not to be undone.
                self.shrink(logs, chunks, count);
            }
            Some(flush) => {
                self.declared.push((source, len));
                if !planted("undo-saved-unfenced") {
                    flush.fence();
                }
            }
            None => {}
        }
        saved
    }

    /// Goes back to so many further chunks, and to what was counted in the last of them.
    fn shrink(&mut self, logs: &UndoLogs, chunks: usize, count: u64) {
        let mut surplus: Vec<u32> = self.further.drain(chunks..).collect();
        // The newest first: recovery wants the chunks before it whole. Nobody else may have one whose owner it still sees.
        let persistent = logs.persistent().filter(|_| !planted("undo-owner-not-flushed"));
        for number in surplus.iter().rev() {
            // SAFETY: the chunk is ours until it is in the pool.
            unsafe { set(logs.chunk(*number), UNDO_OWNER, 0) };
            // SAFETY: the head is the chunk's.
            persistent.inspect(|flush| unsafe { flush.lines(logs.chunk(*number), UNDO_HEAD) });
            persistent.inspect(|flush| flush.fence());
        }
        logs.pool.lock().expect("no panic under this lock").free.append(&mut surplus);
        self.resume(logs);
        // SAFETY: the chunk is ours.
        unsafe { set(self.chunk, self.word, count) };
        let Some(flush) = logs.persistent() else { return };
        let end = UNDO_HEAD + filled(count);
        if end + size_of::<RangeHeader>() <= CHUNK_BYTES {
            // SAFETY: the place for a header is in the chunk, which is ours; a log ends at one of no bytes.
            unsafe { set(self.chunk, end, 0) };
            // SAFETY: the same bytes.
            unsafe { flush.lines(self.chunk.add(end), 8) };
        }
        flush.fence();
    }

    /// Goes on in the last chunk that it has, in the transaction whose turn it is.
    fn resume(&mut self, logs: &UndoLogs) {
        (self.chunk, self.word) = match self.further.last() {
            Some(last) => (logs.chunk(*last), UNDO_FURTHER),
            None => (logs.chunk(self.first), UNDO_FIRST),
        };
        let persistent = logs.persistent().is_some();
        self.short = NonNull::new(self.chunk).map(Short).filter(|_| !persistent && self.further.is_empty());
        if persistent {
            self.seal = logs.seal(self);
        }
    }

    /// Saves a range in as many parts as it takes.
    unsafe fn save_parts(
        &mut self,
        logs: &UndoLogs,
        segment: SegmentId,
        mut offset: u64,
        mut source: *const u8,
        mut len: usize,
    ) -> Result<(), MediaError> {
        let persistent = logs.persistent();
        let frame = size_of::<RangeHeader>() + if persistent.is_some() { SEAL } else { 0 };
        while len > 0 {
            // SAFETY: there is a chunk.
            let count = unsafe { self.count() };
            let room = (CHUNK_BYTES - UNDO_HEAD).saturating_sub(filled(count) + frame);
            let part = len.min(room / format::ALIGN * format::ALIGN);
            if part == 0 {
                self.extend(logs)?;
                continue;
            }
            // SAFETY: the part fits the chunk and is readable.
            unsafe {
                match persistent {
                    Some(flush) => {
                        let at = self.chunk.add(UNDO_HEAD + filled(count));
                        let total = place_sealed(at, self.seal, segment, offset, source, part);
                        flush.lines(at, total);
                        set(self.chunk, self.word, count + total as u64);
                    }
                    None => put((self.chunk, self.word), count, segment, offset, source, part),
                }
                source = source.add(part);
            }
            (offset, len) = (offset + part as u64, len - part);
        }
        Ok(())
    }

    /// Goes on in another chunk.
    fn extend(&mut self, logs: &UndoLogs) -> Result<(), MediaError> {
        let number = logs.take()?;
        let chunk = logs.chunk(number);
        let persistent = logs.persistent().filter(|_| !planted("undo-chunk-unfenced"));
        // A chunk says nothing before all that came before it is there.
        persistent.inspect(|flush| flush.fence());
        if self.chunk.is_null() {
            self.first = number;
            // SAFETY: the chunk is ours; what it says of an earlier transaction is over.
            unsafe { set(chunk, UNDO_FIRST, 0) };
        } else {
            let owner = u64::from(self.first + 1) << 32 | u64::from(self.turn(logs));
            self.further.push(number);
            // SAFETY: the chunk is ours. First it says that it holds nothing, then whose it is.
            unsafe {
                if planted("undo-chunk-not-emptied") {
                    set(chunk, UNDO_OWNER, owner);
                }
                set(chunk, UNDO_FURTHER, (self.further.len() as u64) << 32);
                set(chunk, UNDO_OWNER, owner);
            }
        }
        // SAFETY: the head is the chunk's.
        persistent.inspect(|flush| unsafe { flush.lines(chunk, UNDO_HEAD) });
        self.resume(logs);
        Ok(())
    }

    /// Whether there is nothing to undo.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        // SAFETY: there is a chunk. A further one is not there before the first is full.
        self.chunk.is_null() || (self.further.is_empty() && filled(unsafe { self.count() }) == 0)
    }

    /// Commits: nothing is to be undone any more, once all of the transaction's stores are done.
    pub fn commit(&mut self, logs: &UndoLogs) {
        match self.short {
            // SAFETY: the chunk is ours.
            Some(short) => unsafe { short.commit() },
            None => self.commit_slowly(logs),
        }
    }

    /// Where the next transaction's ranges are saved, if it needs nothing but [`Short::save`] and [`Short::commit`] as long
    /// as there is room.
    #[inline(always)]
    pub fn short(&self) -> Option<Short> {
        self.short
    }

    /// Commits a long log, or one in persistent memory: when what was declared is there, and returns when the commit
    /// is.
    #[cold]
    #[inline(never)]
    fn commit_slowly(&mut self, logs: &UndoLogs) {
        if self.is_empty() {
            return;
        }
        let persistent = logs.persistent();
        for (start, len) in self.declared.drain(..).filter(|_| !planted("undo-values-not-flushed")) {
            // SAFETY: it was declared: the region stays mapped until the transaction ends.
            persistent.inspect(|flush| unsafe { flush.lines(start, len) });
        }
        self.declared.shrink_to(1 << 16);
        persistent.filter(|_| !planted("undo-values-unfenced")).inspect(|flush| flush.fence());
        let first = logs.chunk(self.first);
        // SAFETY: the first chunk is ours.
        unsafe { set(first, UNDO_FIRST, next(get(first, UNDO_FIRST))) };
        // SAFETY: the first chunk is ours.
        persistent.inspect(|flush| unsafe { flush.lines(first, UNDO_HEAD) });
        persistent.filter(|_| !planted("undo-commit-unfenced")).inspect(|flush| flush.fence());
        if !self.further.is_empty() {
            logs.give_back(self);
        }
        self.resume(logs);
    }

    /// The old values, newest first, from where they stand: segment, offset, and the bytes.
    pub fn each_back(&self, logs: &UndoLogs, mut visit: impl FnMut(SegmentId, u64, &[u8])) {
        if self.is_empty() {
            return;
        }
        let chunks: Vec<u32> = std::iter::once(self.first).chain(self.further.iter().copied()).collect();
        for (i, number) in chunks.iter().enumerate().rev() {
            let chunk = logs.chunk(*number);
            // SAFETY: the chunk is ours, and what its word counts was written.
            let bytes = unsafe {
                let count = get(chunk, if i == 0 { UNDO_FIRST } else { UNDO_FURTHER });
                std::slice::from_raw_parts(chunk.add(UNDO_HEAD), filled(count))
            };
            let ranges: Vec<_> = if logs.persistent().is_some() {
                Seal::new(logs.generation, self.first, i as u32, self.turn(logs)).ranges(bytes).collect()
            } else {
                Ranges::of(bytes).collect()
            };
            ranges.iter().rev().for_each(|range| visit(range.segment, range.offset, range.bytes));
        }
    }
}

impl Short {
    /// Saves `len` bytes at `source`, which are at `offset` of the segment, before they are changed. False if there is no
    /// room.
    ///
    /// # Safety
    /// The log must be the caller's, and this its short form; `source` must be readable for `len` bytes.
    #[inline(always)]
    pub unsafe fn save(self, segment: SegmentId, offset: u64, source: *const u8, len: usize) -> bool {
        let chunk = self.0.as_ptr();
        // SAFETY: the chunk is the caller's, and so is the source.
        unsafe {
            let count = get(chunk, UNDO_FIRST);
            if UNDO_HEAD + filled(count) + range_bytes(len) > CHUNK_BYTES {
                return false;
            }
            put((chunk, UNDO_FIRST), count, segment, offset, source, len);
        }
        true
    }

    /// Commits: nothing is to be undone any more, once all of the transaction's stores are done.
    ///
    /// # Safety
    /// As for [`Short::save`].
    #[inline(always)]
    pub unsafe fn commit(self) {
        let chunk = self.0.as_ptr();
        // SAFETY: the chunk is the caller's.
        unsafe {
            let count = get(chunk, UNDO_FIRST);
            if filled(count) > 0 {
                set(chunk, UNDO_FIRST, next(count));
            }
        }
    }
}

/// A range's head, as two words.
#[inline(always)]
fn header(segment: SegmentId, offset: u64, len: usize) -> [U64; 2] {
    [(u64::from(segment.0) | (len as u64) << 32).into(), offset.into()]
}

/// Writes a range; returns its bytes.
///
/// # Safety
/// As many bytes at `at` must be this log's own; `source` must be readable for `len` bytes.
#[inline(always)]
unsafe fn place(at: *mut u8, segment: SegmentId, offset: u64, source: *const u8, len: usize) -> usize {
    let total = range_bytes(len);
    // SAFETY: all of it lies within the bytes that the caller gave.
    unsafe {
        at.cast::<[U64; 2]>().write_unaligned(header(segment, offset, len));
        if !len.is_multiple_of(format::ALIGN) {
            at.add(total - format::ALIGN).cast::<u64>().write_unaligned(0);
        }
        simulated::stored(at, total);
        span::copy(source, at.add(size_of::<RangeHeader>()), len);
        simulated::stored(at, total);
    }
    total
}

/// Writes a range and its seal; returns their bytes. They are valid when they were written back and a fence came after.
///
/// # Safety
/// As for [`place`], with room for the seal.
unsafe fn place_sealed(
    at: *mut u8,
    seal: Seal,
    segment: SegmentId,
    offset: u64,
    source: *const u8,
    len: usize,
) -> usize {
    // SAFETY: passed on from the caller; what was just written may be read, and nobody else stores there.
    unsafe {
        let total = place(at, segment, offset, source, len);
        let seal = seal.of(std::slice::from_raw_parts(at, total));
        at.add(total).cast::<u64>().write_unaligned(seal);
        simulated::stored(at.add(total), SEAL);
        total + SEAL
    }
}

/// Writes a range behind those that the chunk's word counts, then counts it.
///
/// # Safety
/// The range must fit the chunk, which must be a log's own; `count` must be what its word says; `source` must be
/// readable for `len` bytes.
#[inline(always)]
unsafe fn put(
    (chunk, word): (*mut u8, usize),
    count: u64,
    segment: SegmentId,
    offset: u64,
    source: *const u8,
    len: usize,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        if planted("undo-published-early") {
            set(chunk, word, count + range_bytes(len) as u64);
        }
        let total = place(chunk.add(UNDO_HEAD + filled(count)), segment, offset, source, len);
        set(chunk, word, count + total as u64);
    }
}

/// What the first word says when the next transaction begins.
#[inline(always)]
fn next(count: u64) -> u64 {
    // After 2^32 of them they begin anew.
    ((count >> 32) + 1) << 32
}
