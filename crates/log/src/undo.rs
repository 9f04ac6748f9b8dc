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
//! Invariant: a range is published whole before any byte that it covers is changed, and the changes of a
//! transaction are all stored before its commit is.
//! Invariant: recovery is done again from the beginning if it is cut short: a log is emptied after its old
//! values are back.

use crate::format::{
    self, Defect, RangeHeader, SegmentId, UNDO_COUNT, UNDO_DATA, UNDO_HEAD, UNDO_MAGIC, UndoStatus,
    range_bytes,
};
use crate::log::{Forcing, MediaError};
use crate::record::{Range, Ranges, well_formed};
use crate::twin;
use caliburn_os::host::Id;
use caliburn_os::map::Reservation;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::{self, planted};
use caliburn_os::span;
use caliburn_os::sync::Mutex;
use caliburn_os::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Bytes of a chunk; few where crashes are simulated, so that logs outgrow them.
pub const CHUNK_BYTES: usize = if cfg!(caliburn_sim) { 8 << 10 } else { 256 << 10 };
/// Chunks by which the file grows.
const STEP: usize = 4;
/// Address space for the logs of a store, as much as can be had.
const RESERVED: [usize; 3] = [64 << 30, 1 << 30, 64 << 20];
/// Values of [`UndoStatus::clean`].
const CLEAN: u32 = 1;
const DAMAGED: u32 = 2;
/// Offsets of a chunk's words, see [`UNDO_HEAD`].
const FIRST: usize = 0;
const OWNER: usize = 8;
const FURTHER: usize = 16;

/// Why undo logs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The file is not what it must be.
    #[error("undo logs {}, offset {offset}: {defect}", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        defect: Defect,
    },
}

/// The log of one transaction that was not committed.
#[derive(Debug)]
pub struct Uncommitted {
    /// Where its first chunk is in the file.
    offset: u64,
    /// The ranges of each of its chunks, oldest first.
    chunks: Vec<Vec<u8>>,
}

impl Uncommitted {
    /// Where in the file it begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its old values, newest first: the order in which they are to be put back.
    pub fn ranges_back(&self) -> Vec<Range<'_>> {
        let mut ranges: Vec<_> = self.chunks.iter().flat_map(|chunk| Ranges::of(chunk)).collect();
        if !planted("undo-restored-forwards") {
            ranges.reverse();
        }
        ranges
    }
}

/// What the undo logs of a store held when it was opened.
#[derive(Debug)]
pub struct Found {
    status: UndoStatus,
    /// Logs of transactions that were not committed.
    pub uncommitted: Vec<Uncommitted>,
}

fn bad(medium: &dyn Medium, offset: u64, text: &str) -> UndoError {
    UndoError::Bad { path: medium.path().to_owned(), offset, defect: Defect::Value(text.into()) }
}

/// Makes the file of a new store, durably.
pub fn create(medium: &dyn Medium, store: Id, boot: Id) -> Result<(), MediaError> {
    medium.set_len(UNDO_DATA).map_err(|e| MediaError::new("allocate undo logs", medium, UNDO_DATA, e))?;
    let mut status = UndoStatus {
        boot,
        chunk_bytes: (CHUNK_BYTES as u32).into(),
        clean: 1.into(),
        ..UndoStatus::new_zeroed()
    };
    for generation in 0..2u64 {
        status.generation = generation.into();
        twin::put(medium, status.as_bytes(), UNDO_MAGIC, store)?;
    }
    medium.sync().map_err(|e| MediaError::new("force undo logs", medium, 0, e))
}

/// Reads the status of undo logs.
pub fn read_status(medium: &dyn Medium, store: &Id) -> Result<UndoStatus, UndoError> {
    let page = twin::read(medium, UNDO_MAGIC, "file of undo logs", Some(store))?;
    let page = page.map_err(|defect| UndoError::Bad { path: medium.path().to_owned(), offset: 0, defect })?;
    Ok(UndoStatus::read_from_prefix(&page).expect("a page holds a status").0)
}

impl Found {
    /// Reads the undo logs of a store; what is uncommitted, if the memory is that of this boot or outlived others.
    /// A store that was in use when its memory was lost is refused: its segments may hold anything.
    pub fn read(medium: &dyn Medium, store: &Id, boot: &Id) -> Result<Found, UndoError> {
        let mut found = Found { status: read_status(medium, store)?, uncommitted: Vec::new() };
        let len = medium.len().map_err(|e| MediaError::new("measure undo logs", medium, 0, e))?;
        if len < UNDO_DATA {
            return Err(bad(medium, len, "the file ends before its first chunk: it was cut off"));
        }
        match found.status.clean.get() {
            CLEAN => return Ok(found),
            DAMAGED => {
                let text = "a segment could not be forced when the store was closed: what it holds is unknown. Go back to \
                            a copy, or open read-only for salvage";
                return Err(bad(medium, 0, text));
            }
            _ => {}
        }
        if found.status.boot != *boot && !planted("undo-of-another-boot") {
            let text = "the store was in use when the system went down, and its memory did not outlive that: what its \
                        segments hold now is neither old nor new. Go back to a copy, or open read-only for salvage";
            return Err(bad(medium, 0, text));
        }
        let chunk_bytes = found.status.chunk_bytes.get() as usize;
        if chunk_bytes <= UNDO_HEAD {
            return Err(bad(medium, 0, "its chunks have no bytes"));
        }
        found.uncommitted = read_logs(medium, chunk_bytes)?;
        Ok(found)
    }

    /// Empties the logs after their old values were put back.
    pub fn empty(&self, medium: &dyn Medium) -> Result<(), MediaError> {
        for log in &self.uncommitted {
            let fail = |e| MediaError::new("empty undo log", medium, log.offset, e);
            medium.write_at(&[0; 8], log.offset).map_err(fail)?;
        }
        Ok(())
    }
}

/// A chunk of which a word says that it is in use.
struct Used {
    offset: u64,
    words: [u64; 3],
    ranges: Vec<u8>,
}

fn read_logs(medium: &dyn Medium, chunk_bytes: usize) -> Result<Vec<Uncommitted>, UndoError> {
    let len = medium.len().map_err(|e| MediaError::new("measure undo logs", medium, 0, e))?;
    let mut made = [0; 8];
    medium
        .read_at(&mut made, UNDO_COUNT)
        .map_err(|e| MediaError::new("read undo logs", medium, UNDO_COUNT, e))?;
    let made = u64::from_ne_bytes(made);
    // Longer it may be: whoever made more of them was killed before it could say so.
    if (len - UNDO_DATA) / (chunk_bytes as u64) < made {
        return Err(bad(medium, len, &format!("the file must hold {made} chunks: it was cut off")));
    }
    let mut chunks = BTreeMap::new();
    for number in 0..made {
        if let Some(used) = read_chunk(medium, UNDO_DATA + number * chunk_bytes as u64, chunk_bytes)? {
            chunks.insert(number, used);
        }
    }
    let low = |word: u64| word & u64::from(u32::MAX);
    let mut found = Vec::new();
    for (number, first) in chunks.iter().filter(|(_, c)| low(c.words[0]) > 0) {
        let owner = (number + 1) << 32 | first.words[0] >> 32;
        let mut further: Vec<&Used> = chunks.values().filter(|c| c.words[1] == owner).collect();
        further.sort_by_key(|c| c.words[2] >> 32);
        // One that was taken and never written to says nothing.
        further.retain(|c| low(c.words[2]) > 0);
        if further.iter().enumerate().any(|(i, c)| c.words[2] >> 32 != i as u64 + 1) {
            return Err(bad(medium, first.offset, "an undo log lacks one of its chunks"));
        }
        let take = |chunk: &Used, len: u64| {
            let ranges = chunk.ranges.get(..len as usize).filter(|ranges| well_formed(ranges));
            ranges.map(<[u8]>::to_vec).ok_or_else(|| bad(medium, chunk.offset, "an undo log is malformed"))
        };
        let mut all = vec![take(first, low(first.words[0]))?];
        for chunk in further {
            all.push(take(chunk, low(chunk.words[2]))?);
        }
        found.push(Uncommitted { offset: first.offset, chunks: all });
    }
    Ok(found)
}

fn read_chunk(medium: &dyn Medium, offset: u64, chunk_bytes: usize) -> Result<Option<Used>, UndoError> {
    let read = |offset, bytes: &mut [u8]| {
        medium.read_at(bytes, offset).map_err(|e| MediaError::new("read undo log", medium, offset, e))
    };
    let mut head = [0; 24];
    read(offset, &mut head)?;
    let words = [FIRST, OWNER, FURTHER]
        .map(|at| u64::from_ne_bytes(head[at..at + 8].try_into().expect("eight bytes")));
    let valid = (words[0] as u32).max(if words[1] != 0 { words[2] as u32 } else { 0 }) as usize;
    if valid > chunk_bytes - UNDO_HEAD {
        return Err(bad(medium, offset, "a chunk claims more bytes than it has"));
    }
    if valid == 0 {
        return Ok(None);
    }
    let mut ranges = vec![0; valid];
    read(offset + UNDO_HEAD as u64, &mut ranges)?;
    Ok(Some(Used { offset, words, ranges }))
}

/// The undo logs of an open store.
#[derive(Debug)]
pub struct UndoLogs {
    medium: Arc<dyn Medium>,
    store: Id,
    map: Reservation,
    pool: Mutex<Pool>,
    status: Mutex<UndoStatus>,
    forcing: Forcing,
    /// The store was in use by a process that died: what a force of its segments once lost would not be noticed.
    pub suspect: bool,
}

#[derive(Debug)]
struct Pool {
    /// Chunks that exist.
    made: usize,
    free: Vec<u32>,
}

/// A slot's undo log: reused from one transaction to the next.
#[derive(Debug)]
pub struct UndoLog {
    /// The chunk in use, and how many bytes of ranges it has; null before the first.
    chunk: *mut u8,
    filled: usize,
    /// What the published word says beside the number of bytes.
    tag: u64,
    word: usize,
    /// Number of the transaction.
    turn: u32,
    first: u32,
    further: Vec<u32>,
}

impl Default for UndoLog {
    fn default() -> UndoLog {
        UndoLog {
            chunk: ptr::null_mut(),
            filled: CHUNK_BYTES,
            tag: 0,
            word: FIRST,
            turn: 0,
            first: 0,
            further: Vec::new(),
        }
    }
}

// SAFETY: a log points into the mapping of the store's undo logs, which is shared memory; it is used by whoever
// holds its slot.
unsafe impl Send for UndoLog {}

impl UndoLogs {
    /// Takes the file into use: to be called when what was uncommitted is undone. Durably in use when this
    /// returns, so that no later loss of memory passes for an orderly end.
    pub fn open(medium: Arc<dyn Medium>, store: Id, boot: Id, found: &Found) -> Result<UndoLogs, MediaError> {
        let len = medium.len().map_err(|e| MediaError::new("measure undo logs", &*medium, 0, e))?;
        let page = caliburn_os::page_size();
        let made = (len - UNDO_DATA) as usize / CHUNK_BYTES;
        // Address space may be limited (`ulimit -v`).
        let mut wishes = RESERVED.iter().map(|wish| {
            let total = (wish.max(&(made * CHUNK_BYTES)) + UNDO_DATA as usize).next_multiple_of(page);
            Reservation::new(total, None)
        });
        let map = wishes.find(Result::is_ok).unwrap_or_else(|| Err(io::ErrorKind::OutOfMemory.into()));
        let map = map.map_err(|e| MediaError::new("reserve memory for undo logs", &*medium, 0, e))?;
        let mut status =
            UndoStatus { boot, chunk_bytes: (CHUNK_BYTES as u32).into(), clean: 0.into(), ..found.status };
        let logs = UndoLogs {
            medium,
            store,
            map,
            pool: Mutex::new(Pool { made, free: (0..made as u32).rev().collect() }),
            status: Mutex::new(found.status),
            forcing: Forcing::default(),
            suspect: found.status.clean.get() == 0,
        };
        for number in 0..made {
            let at = UNDO_DATA + (number * CHUNK_BYTES) as u64;
            let fail = |e| MediaError::new("clear undo log", &*logs.medium, at, e);
            // None that was left disowned may be claimed by a transaction of the same number.
            logs.medium.write_at(&[0; 24], at).map_err(fail)?;
        }
        logs.map_chunks(0, made)?;
        logs.count(made)?;
        // The page that counts may not be durable, if a force of it failed (see `Log::open`).
        twin::put(&*logs.medium, found.status.as_bytes(), UNDO_MAGIC, store)?;
        logs.sync()?;
        status.generation += 1;
        logs.put(status)?;
        Ok(logs)
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
        unsafe { self.map.map_shared(at, len, self.medium.descriptor(), at as u64) }.map_err(fail)?;
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
            self.map_chunks(pool.made, made)?;
            if !planted("undo-count-forgotten") {
                self.count(made)?;
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

    fn give_back(&self, log: &mut UndoLog) {
        for number in &log.further {
            // The transaction's number comes again after 2^32 others.
            // SAFETY: the chunk is ours until it is in the pool.
            unsafe { set(self.chunk(*number), OWNER, 0) };
        }
        self.pool.lock().expect("no panic under this lock").free.append(&mut log.further);
        (log.chunk, log.word) = (self.chunk(log.first), FIRST);
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

impl UndoLog {
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
        if UNDO_HEAD + self.filled + range_bytes(len) <= CHUNK_BYTES {
            // SAFETY: the range fits the chunk; the source is the caller's word.
            unsafe { self.put(segment, offset, source, len) };
            return Ok(());
        }
        let (chunks, filled) = (self.further.len(), self.filled);
        // SAFETY: passed on from the caller.
        let saved = unsafe { self.save_long(logs, segment, offset, source, len) };
        if saved.is_err() {
            // Nothing was saved: what another transaction may do with these bytes is not to be undone.
            self.shrink(logs, chunks, filled);
        }
        saved
    }

    /// Goes back to so many further chunks, the last of them filled so far.
    #[cold]
    fn shrink(&mut self, logs: &UndoLogs, chunks: usize, filled: usize) {
        if self.chunk.is_null() {
            return;
        }
        let mut surplus: Vec<u32> = self.further.drain(chunks..).collect();
        // The newest first: recovery wants the chunks before it whole.
        for number in surplus.iter().rev() {
            // SAFETY: the chunk is ours until it is in the pool.
            unsafe { set(logs.chunk(*number), OWNER, 0) };
        }
        logs.pool.lock().expect("no panic under this lock").free.append(&mut surplus);
        (self.chunk, self.word, self.tag) = match self.further.last() {
            Some(last) => (logs.chunk(*last), FURTHER, (self.further.len() as u64) << 32),
            None => (logs.chunk(self.first), FIRST, u64::from(self.turn) << 32),
        };
        // A log without a first chunk counted as full.
        self.filled = if filled > CHUNK_BYTES - UNDO_HEAD { 0 } else { filled };
        // SAFETY: the chunk is ours.
        unsafe { set(self.chunk, self.word, self.tag | self.filled as u64) };
    }

    /// # Safety
    /// The range must fit the chunk.
    #[inline(always)]
    unsafe fn put(&mut self, segment: SegmentId, offset: u64, source: *const u8, len: usize) {
        let total = range_bytes(len);
        let header =
            RangeHeader { segment: segment.0.into(), len: (len as u32).into(), offset: offset.into() };
        let early = planted("undo-published-early");
        // SAFETY: `total` bytes behind what is filled belong to this log; the source is the caller's word.
        unsafe {
            if early {
                set(self.chunk, self.word, self.tag | (self.filled + total) as u64);
            }
            let at = self.chunk.add(UNDO_HEAD + self.filled);
            at.cast::<RangeHeader>().write_unaligned(header);
            if !len.is_multiple_of(format::ALIGN) {
                at.add(total - format::ALIGN).cast::<u64>().write_unaligned(0);
            }
            simulated::stored(at, total);
            span::copy(source, at.add(size_of::<RangeHeader>()), len);
            simulated::stored(at, total);
            self.filled += total;
            set(self.chunk, self.word, self.tag | self.filled as u64);
        }
    }

    #[cold]
    #[inline(never)]
    unsafe fn save_long(
        &mut self,
        logs: &UndoLogs,
        segment: SegmentId,
        mut offset: u64,
        mut source: *const u8,
        mut len: usize,
    ) -> Result<(), MediaError> {
        while len > 0 {
            let room = (CHUNK_BYTES - UNDO_HEAD).saturating_sub(self.filled + size_of::<RangeHeader>());
            let part = len.min(room / format::ALIGN * format::ALIGN);
            if self.chunk.is_null() || part == 0 {
                self.extend(logs)?;
                continue;
            }
            // SAFETY: the part fits the chunk and is readable.
            unsafe {
                self.put(segment, offset, source, part);
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
        if self.chunk.is_null() {
            self.first = number;
        } else {
            self.further.push(number);
            self.word = FURTHER;
            self.tag = (self.further.len() as u64) << 32;
            let owner = u64::from(self.first + 1) << 32 | u64::from(self.turn);
            // SAFETY: the chunk is ours. First it says that it holds nothing, then whose it is.
            unsafe {
                if !planted("undo-chunk-not-emptied") {
                    set(chunk, FURTHER, self.tag);
                }
                set(chunk, OWNER, owner);
            }
        }
        (self.chunk, self.filled) = (chunk, 0);
        Ok(())
    }

    /// Whether there is nothing to undo.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.chunk.is_null() || (self.filled == 0 && self.further.is_empty())
    }

    /// Commits: nothing is to be undone any more, once all of the transaction's stores are done.
    #[inline(always)]
    pub fn commit(&mut self, logs: &UndoLogs) {
        if self.is_empty() {
            return;
        }
        let long = !self.further.is_empty();
        self.turn = self.turn.wrapping_add(1);
        let first = if long { logs.chunk(self.first) } else { self.chunk };
        self.tag = u64::from(self.turn) << 32;
        self.filled = 0;
        // SAFETY: the first chunk is ours.
        unsafe { set(first, FIRST, self.tag) };
        if long {
            logs.give_back(self);
        }
    }

    /// The old values, newest first, from where they stand: segment, offset, and the bytes.
    pub fn each_back(&self, logs: &UndoLogs, mut visit: impl FnMut(SegmentId, u64, &[u8])) {
        if self.is_empty() {
            return;
        }
        let chunks: Vec<u32> = std::iter::once(self.first).chain(self.further.iter().copied()).collect();
        for (i, number) in chunks.iter().enumerate().rev() {
            let chunk = logs.chunk(*number);
            let word = if i == 0 { FIRST } else { FURTHER };
            // SAFETY: the chunk is ours, and what is published in it was written.
            let bytes = unsafe {
                let filled = (*chunk.add(word).cast::<AtomicU64>()).load(Ordering::Relaxed) as u32;
                std::slice::from_raw_parts(chunk.add(UNDO_HEAD), filled as usize)
            };
            let ranges: Vec<_> = Ranges::of(bytes).collect();
            ranges.iter().rev().for_each(|range| visit(range.segment, range.offset, range.bytes));
        }
    }
}
