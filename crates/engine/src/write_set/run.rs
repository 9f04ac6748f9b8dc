//! Runs: how declared ranges stand in memory.
//!
//! A run is one chunk or more; a chunk is a head of words, then ranges, each a header as in a log record with
//! the old bytes behind it, padded to eight bytes; a transaction that keeps no old bytes leaves their place as
//! it is. The chunk's word counts the bytes of ranges that are valid:
//!
//! ```text
//!   word:  transaction (32 bits) | bytes of ranges (32 bits)
//! ```
//!
//! Invariant: a range is written whole before the word counts it, and counted before any of its bytes is changed.
//! Invariant: who reads a run of another thread may find ranges that are declared no more, or nonsense behind
//! them, and never misses one that was counted before it began and is declared still. The owner only appends,
//! shortens, and begins anew, so what such a reader sees overwritten was given up meanwhile.

use caliburn_log::SegmentId;
use caliburn_log::format::{self, RangeHeader, UNDO_FIRST, UNDO_FURTHER, UNDO_HEAD, padded};
use caliburn_os::map::Buffer;
use caliburn_os::simulated;
use caliburn_os::span;
use caliburn_os::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Bytes of a chunk's head.
pub(crate) const HEAD: usize = UNDO_HEAD;
/// Bytes of a range's header.
pub(super) const HEADER: usize = size_of::<RangeHeader>();

/// A stretch of memory for ranges.
#[derive(Debug)]
pub(crate) struct Chunk {
    base: *mut u8,
    bytes: usize,
    /// What the policy calls it.
    pub number: u32,
    _memory: Option<Buffer>,
    /// Of its own, as long as it is there.
    file: Option<Arc<OwnedFd>>,
}

// SAFETY: a chunk is memory that nothing else refers to but its run, whose rules hold in every thread.
unsafe impl Send for Chunk {}

impl Chunk {
    /// Of ordinary memory.
    pub fn volatile(bytes: usize) -> io::Result<Chunk> {
        assert!(u32::try_from(bytes).is_ok(), "a chunk's word counts 32 bits");
        let mut memory = Buffer::new(bytes)?;
        Ok(Chunk { base: memory.as_mut_ptr(), bytes, number: 0, _memory: Some(memory), file: None })
    }

    /// Of memory that the system writes to a file, which has as many bytes, when it is short of memory.
    pub fn in_file(file: Arc<OwnedFd>, bytes: usize) -> io::Result<Chunk> {
        assert!(u32::try_from(bytes).is_ok(), "a chunk's word counts 32 bits");
        let mut memory = Buffer::in_file(file.as_fd(), bytes)?;
        Ok(Chunk { base: memory.as_mut_ptr(), bytes, number: 0, _memory: Some(memory), file: Some(file) })
    }

    /// Of memory that outlives the process.
    ///
    /// # Safety
    /// As many bytes at `base`, aligned to eight, must be mapped and this run's own until the chunk is given back.
    pub unsafe fn mapped(base: *mut u8, bytes: usize, number: u32) -> Chunk {
        Chunk { base, bytes, number, _memory: None, file: None }
    }

    /// Whether it lies in a file of its own.
    pub fn is_in_file(&self) -> bool {
        self.file.is_some()
    }

    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// The ranges in it, if it is a further chunk of a run.
    pub fn ranges(&self, layout: Layout) -> impl Iterator<Item = Saved> {
        // SAFETY: the chunk is there as long as `self`, and its ranges do not change unless the caller changes
        // them.
        unsafe { Ranges::of(self.base, self.room(), get_word(word_at(self.base, false)), 0, layout) }
    }

    /// Bytes of ranges that it takes.
    pub fn room(&self) -> usize {
        self.bytes - HEAD
    }
}

/// How much a range takes beside its header.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Layout {
    /// Bytes behind each range: the seal that persistent memory needs.
    pub trailer: usize,
}

impl Layout {
    /// Bytes of a range of `len` bytes.
    #[inline(always)]
    pub fn stride(self, len: usize) -> usize {
        HEADER + padded(len) + self.trailer
    }
}

/// A range in a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Saved {
    pub segment: SegmentId,
    pub offset: u64,
    pub len: usize,
    /// Its old bytes, if the run keeps them.
    pub old: *const u8,
}

impl Saved {
    /// Where its header stands in its run.
    pub fn header(self) -> *mut u8 {
        self.old.cast_mut().wrapping_sub(HEADER)
    }

    /// Its old bytes.
    ///
    /// # Safety
    /// The run must keep old bytes and be the caller's, and nothing may be declared or shortened meanwhile.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: the old bytes stand behind the header, and the owner alone writes there.
        unsafe { std::slice::from_raw_parts(self.old, self.len) }
    }
}

/// Bytes of ranges that a word counts.
#[inline(always)]
pub(super) fn filled(word: u64) -> usize {
    word as u32 as usize
}

/// The bits of the word that count: few transactions have different numbers where crashes are simulated.
const COUNTED: u64 = if cfg!(caliburn_sim) { 3 << 32 | u32::MAX as u64 } else { u64::MAX };

/// What the word of a run's first chunk says when nothing is declared and the next transaction begins. After 2^32
/// transactions their numbers come again, from 0.
#[inline(always)]
pub(crate) fn clear_word(word: u64) -> u64 {
    (word | u64::from(u32::MAX)).wrapping_add(1) & COUNTED
}

/// Stores a word between what was stored before and what is stored after.
///
/// # Safety
/// `at` must be a word of a chunk's head that is alive, and its run the caller's.
#[inline(always)]
pub(crate) unsafe fn set_word(at: *mut u8, value: u64) {
    // SAFETY: the words of a head are aligned, and accessed as atomics alone.
    let word = unsafe { &*at.cast::<AtomicU64>() };
    word.store(value, Ordering::Release);
    // Whatever kills the process, it has done its stores in this order; the compiler must, too.
    compiler_fence(Ordering::SeqCst);
    simulated::stored(at, size_of::<u64>());
}

/// Reads a word of a chunk.
///
/// # Safety
/// `at` must be a word of a chunk's head that is alive.
#[inline(always)]
pub(super) unsafe fn get_word(at: *const u8) -> u64 {
    // SAFETY: as above.
    unsafe { &*at.cast::<AtomicU64>() }.load(Ordering::Acquire)
}

/// Writes a range's header.
///
/// # Safety
/// As many bytes at `at`, aligned to eight, must be of a run of the caller's.
#[inline(always)]
unsafe fn put_header(at: *mut u8, segment: SegmentId, offset: u64, len: usize) {
    // SAFETY: passed on from the caller. Other threads may be reading here: see the module.
    unsafe {
        (*at.cast::<AtomicU32>()).store(segment.0.to_le(), Ordering::Relaxed);
        (*at.add(4).cast::<AtomicU32>()).store((len as u32).to_le(), Ordering::Relaxed);
        (*at.add(8).cast::<AtomicU64>()).store(offset.to_le(), Ordering::Relaxed);
    }
}

/// Writes a range's header, and its old bytes if they are to be kept; the bytes that both take.
///
/// # Safety
/// As [`put_header`] for all of them; `source` must be readable for `len` bytes.
#[inline(always)]
pub(super) unsafe fn place(
    at: *mut u8,
    segment: SegmentId,
    offset: u64,
    source: *const u8,
    len: usize,
    keeps_old: bool,
) -> usize {
    // SAFETY: all of it lies within the bytes that the caller gave.
    unsafe {
        put_header(at, segment, offset, len);
        let total = HEADER + padded(len);
        if !keeps_old {
            return total;
        }
        if !len.is_multiple_of(format::ALIGN) {
            (*at.add(total - format::ALIGN).cast::<AtomicU64>()).store(0, Ordering::Relaxed);
        }
        simulated::stored(at, total);
        span::copy(source, at.add(HEADER), len);
        simulated::stored(at, total);
        total
    }
}

/// Reads a range's header.
///
/// # Safety
/// As many bytes at `at`, aligned to eight, must be of a chunk that is alive.
#[inline(always)]
pub(super) unsafe fn read_header(at: *const u8) -> Saved {
    // SAFETY: passed on from the caller. The owner may be writing here: see the module.
    unsafe {
        let half = |of: usize| u32::from_le((*at.add(of).cast::<AtomicU32>()).load(Ordering::Relaxed));
        let offset = u64::from_le((*at.add(8).cast::<AtomicU64>()).load(Ordering::Relaxed));
        Saved { segment: SegmentId(half(0)), offset, len: half(4) as usize, old: at.wrapping_add(HEADER) }
    }
}

/// The ranges that a chunk's word counts, oldest first.
#[derive(Clone)]
pub(super) struct Ranges {
    base: *const u8,
    at: usize,
    end: usize,
    layout: Layout,
}

impl Ranges {
    /// Those of a chunk from byte `from` on.
    ///
    /// # Safety
    /// `base` must be a chunk that takes `room` bytes and stays alive while they are walked through, and `word`
    /// one that was read there.
    pub unsafe fn of(base: *const u8, room: usize, word: u64, from: usize, layout: Layout) -> Ranges {
        Ranges { base, at: from, end: filled(word).min(room), layout }
    }
}

impl Iterator for Ranges {
    type Item = Saved;

    #[inline(always)]
    fn next(&mut self) -> Option<Saved> {
        if self.at + HEADER > self.end {
            return None;
        }
        let at = self.at;
        // SAFETY: the header lies within what the word counts, and so within the chunk.
        let range = unsafe { read_header(self.base.add(HEAD + at)) };
        let stride = self.layout.stride(range.len);
        if range.len == 0 || stride > self.end - at {
            // Overwritten meanwhile, by the owner: nothing from here on is declared any more.
            self.at = self.end;
            return None;
        }
        self.at += stride;
        Some(range)
    }
}

/// Where the word stands that counts a chunk's ranges: in another place of the first chunk of a run.
#[inline(always)]
pub(super) fn word_at(base: *mut u8, first: bool) -> *mut u8 {
    base.wrapping_add(if first { UNDO_FIRST } else { UNDO_FURTHER })
}
