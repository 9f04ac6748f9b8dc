//! A write set: a transaction's hold on its run.

use super::run::{self, clear_word, filled, get_word, set_word};
use super::slots::{Counters, Scratch, Slot};
use crate::storage::region::RegionState;
use caliburn_log::SegmentId;
use caliburn_log::format::range_bytes;
use caliburn_os::simulated::planted;
use caliburn_os::sync::atomic::{Ordering, compiler_fence};

/// What a store's policy asks of write sets.
#[derive(Debug)]
pub(crate) struct Terms {
    /// Emptying the set commits it, in classes below this one.
    pub clears: u8,
    /// Whether sets keep old bytes, by [`Mode`](crate::Mode).
    pub keeps_old: [bool; 2],
    /// A force can make a commit survive more than it does when it returns.
    pub forces: bool,
    /// Memory is the process's own, not the segment.
    pub private: bool,
    /// Of memory nothing but what was declared reaches the segments.
    pub declared_only: bool,
    /// What is changed can be undone though sets keep no old bytes.
    pub restores: bool,
    /// One transaction at a time is open.
    pub alone: bool,
    /// Segments may be files that are nothing but data.
    pub adopts: bool,
}

/// A place in a run: what was declared up to there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Position {
    /// 0: the first chunk.
    pub(super) chunk: usize,
    pub(super) bytes: usize,
}

impl Position {
    /// Which chunk of the run it is in.
    pub fn chunk(self) -> usize {
        self.chunk
    }
}

/// Bytes of a segment that a transaction changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Written {
    pub segment: SegmentId,
    pub start: u64,
    pub end: u64,
}

/// A transaction's hold on a slot and the run in it. Dropped, it leaves the slot as it is, claimed: it is ended by
/// [`WriteSet::release`].
pub(crate) struct WriteSet<'t> {
    pub(super) slot: &'t Slot,
}

/// The end of a run: all that declaring a range looks at and changes, but for the chunk.
#[derive(Debug)]
pub(super) struct Tail {
    /// The word that counts the ranges of the chunk in use, and where the first of them stands.
    pub word: *mut u8,
    pub ranges: *mut u8,
    /// Bytes of ranges that the chunk may have before the policy must think.
    pub room: usize,
    /// Address and length of the range declared last: again it costs nothing.
    pub last: (usize, usize),
    /// Nothing but [`WriteSet::declare`] was done: the run has one chunk, and [`WriteSet::clear`] ends the
    /// transaction.
    pub plain: bool,
    /// Old bytes are kept.
    pub keeps_old: bool,
}

impl<'t> WriteSet<'t> {
    /// An empty set in a slot that was claimed for it.
    #[inline(always)]
    pub(super) fn begin(slot: &'t Slot, keeps_old: bool) -> WriteSet<'t> {
        let set = WriteSet { slot };
        let tail = set.tail();
        (tail.last.0, tail.keeps_old) = (NONE.0, keeps_old);
        tail.room = set.slot.granted.load(Ordering::Relaxed);
        set
    }

    /// The set that a suspended transaction left in its slot.
    pub(super) fn resume(slot: &'t Slot) -> WriteSet<'t> {
        WriteSet { slot }
    }

    /// The same set, for a call out of line: with a reference to the transaction's own it could not stay in a
    /// register.
    #[inline(always)]
    pub fn passed(&self) -> WriteSet<'t> {
        WriteSet { slot: self.slot }
    }

    /// Gives the slot back. The run is clear.
    #[inline(always)]
    pub fn release(self) {
        self.slot.free();
    }

    /// Leaves what is declared in the slot, for [`Slots::resume`](super::Slots::resume), which wants its number.
    pub fn suspend(self) -> usize {
        self.tail().plain = false;
        self.slot.number()
    }

    /// The number of its slot.
    pub fn number(&self) -> usize {
        self.slot.number()
    }

    /// Identifies the transaction among all of this opening of the store.
    pub fn id(&self) -> u64 {
        self.slot.id()
    }

    #[allow(
        clippy::mut_from_ref,
        reason = "of a transaction's set one method runs at a time, and none keeps this"
    )]
    #[inline(always)]
    pub(super) fn tail(&self) -> &mut Tail {
        // SAFETY: the transaction has the slot, is used by one thread at a time, and no method calls another
        // while it looks at this.
        unsafe { self.slot.tail() }
    }

    /// Whether nothing but [`WriteSet::declare`] was done, so that [`WriteSet::clear`] ends it.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        // SAFETY: as for `tail`; nothing is borrowed.
        unsafe { (*self.slot.tail_at()).plain }
    }

    #[inline(always)]
    pub fn keeps_old(&self) -> bool {
        // SAFETY: it changes when a transaction begins, and threads that share one only read.
        unsafe { (*self.slot.tail_at()).keeps_old }
    }

    pub fn counters(&self) -> &'t Counters {
        &self.slot.counters
    }

    #[allow(clippy::mut_from_ref, reason = "as for `tail`")]
    pub(super) fn scratch(&self) -> &mut Scratch {
        // SAFETY: as for `tail`.
        unsafe { self.slot.scratch() }
    }

    /// What the word of the chunk in use says.
    #[inline(always)]
    pub(super) fn word(&self) -> u64 {
        // SAFETY: as for `tail`; the chunk in use is this run's.
        unsafe { get_word((*self.slot.tail_at()).word) }
    }

    /// Says it.
    #[inline(always)]
    pub(super) fn set_word(&self, word: u64) {
        // SAFETY: as above.
        unsafe { set_word((*self.slot.tail_at()).word, word) };
    }

    /// Whether these bytes lie in the range that was declared last, and are so declared again.
    #[inline(always)]
    pub fn declare_again(&self, region: &RegionState, offset: usize, len: usize) -> bool {
        let (start, last) = (region.at(offset).addr(), self.tail().last);
        let covered = last.0 <= start && start + len <= last.0 + last.1;
        if covered {
            self.slot.counters.declared_again(len);
        }
        covered
    }

    /// Declares `len` bytes, at least one, at `offset` of the region, which are there, if there is room: else
    /// false. Pages may be reserved: the caller looks at [`Reserve::watch`](super::Reserve::watch) afterwards.
    /// Invariant: a range is published whole before any of its bytes is changed.
    #[inline(always)]
    pub fn declare(&self, region: &RegionState, offset: usize, len: usize) -> bool {
        let source = region.at(offset);
        let at = self.tail().word;
        // SAFETY: the chunk in use is this run's.
        let word = unsafe { get_word(at) };
        if filled(word) + range_bytes(len) > self.tail().room {
            return false;
        }
        self.put_from(source, region, offset, len, (at, word));
        true
    }

    /// Whether a range that [`WriteSet::declare`] did not accept is declared all the same, while pages are
    /// reserved.
    pub fn has_declared(&self, region: &RegionState, offset: usize, len: usize) -> bool {
        self.tail().last == (region.base + offset, len)
    }

    /// Writes a range with its old bytes and publishes it. There must be room: see [`WriteSet::free`].
    pub fn put(&self, region: &RegionState, offset: usize, len: usize) {
        debug_assert!(self.stride(len) <= self.free() && len <= u32::MAX as usize);
        self.put_from(region.at(offset), region, offset, len, (self.tail().word, self.word()));
    }

    /// The same, where it is known already what bytes of memory these are, where the word is and what it says.
    #[inline(always)]
    fn put_from(
        &self,
        source: *const u8,
        region: &RegionState,
        offset: usize,
        len: usize,
        (word_at, word): (*mut u8, u64),
    ) {
        if planted("undo-not-saved") {
            return;
        }
        if planted("word-before-its-bytes") {
            self.set_word(word + self.stride(len) as u64);
        }
        let (at, start) = (self.tail().ranges.wrapping_add(filled(word)), region.start + offset as u64);
        // SAFETY: the range lies within the mapped region; the caller knows of the room at the end.
        let total = unsafe { run::place(at, region.id, start, source, len, self.keeps_old()) };
        // SAFETY: the word is that of the chunk in use.
        unsafe { set_word(word_at, word + total as u64) };
        self.tail().last = (source.addr(), len);
        let counters = &self.slot.counters;
        counters.ranges.add(1);
        counters.declared_bytes.add(len as u64);
        // The truncator, when it reserves pages, makes all processors run a barrier: only the compiler must
        // keep the order here.
        compiler_fence(Ordering::SeqCst);
    }

    /// Nothing is declared any more: the last store of a transaction.
    #[inline(always)]
    pub fn clear(&self) {
        let at = self.tail().word;
        // SAFETY: the chunk in use is this run's.
        unsafe { set_word(at, clear_word(get_word(at))) };
    }
}

/// No range: covers nothing.
pub(super) const NONE: (usize, usize) = (usize::MAX, 0);

impl Counters {
    /// A range was declared that was declared before.
    #[inline(always)]
    fn declared_again(&self, len: usize) {
        self.ranges.add(1);
        self.declared_bytes.add(len as u64);
        self.duplicate_bytes.add(len as u64);
    }
}
