//! Write sets out of line: how runs grow, shrink, are granted room, and become part of others.

use super::run::{self, Chunk, HEAD, Saved, clear_word, filled, get_word, set_word, word_at};
use super::savepoint::Granting;
use super::set::{NONE, Position, WriteSet};
use super::slots::{self, Chunks};
use crate::storage::region::RegionState;
use caliburn_log::format::range_bytes;
use caliburn_os::sync::MutexGuard;
use caliburn_os::sync::atomic::Ordering;
use std::any::Any;

impl<'t> WriteSet<'t> {
    fn is_first(&self) -> bool {
        self.tail().word == self.slot.base()
    }

    /// Whether nothing is declared.
    pub fn is_empty(&self) -> bool {
        self.is_first() && filled(self.word()) == 0
    }

    /// Bytes that a range of `len` bytes takes.
    pub fn stride(&self, len: usize) -> usize {
        self.slot.layout.stride(len)
    }

    /// Bytes that are free in the chunk in use.
    pub fn free(&self) -> usize {
        let room = match self.position().chunk {
            0 => self.slot.room.load(Ordering::Relaxed),
            n => self.chunks().further[n - 1].room(),
        };
        room - filled(self.word())
    }

    pub(super) fn chunks(&self) -> MutexGuard<'t, Chunks> {
        self.slot.chunks.lock().expect("no panic under this lock")
    }

    /// Lets so many bytes be declared before the policy must think again.
    pub fn grant(&self, left: usize) {
        let room = filled(self.word()) + left;
        let tail = self.tail();
        (tail.room, tail.plain) = (room, false);
        let granting = &mut self.scratch().marks.granting;
        (granting.asked, granting.granted) = (true, left);
    }

    /// What its ranges may amount to at most, for a policy that has limits: bytes of a record, and of memory.
    /// `entry` is the most memory that a range of the smallest size takes.
    pub fn account(&self, entry: u64) -> (u64, u64) {
        let Granting { asked, granted, account: (body, memory) } = self.scratch().marks.granting;
        let mut used = 0;
        if asked {
            used = (granted - self.left()) as u64;
        } else {
            self.each(|range| used += range_bytes(range.len) as u64);
        }
        let account = (body + used, memory + used.div_ceil(range_bytes(1) as u64) * entry);
        self.scratch().marks.granting = Granting { asked: true, granted: 0, account };
        self.tail().room = 0;
        account
    }

    /// What is left of the room.
    pub(super) fn left(&self) -> usize {
        self.tail().room.saturating_sub(filled(self.word()))
    }

    /// Says what they amount to.
    pub fn set_account(&self, account: (u64, u64)) {
        self.scratch().marks.granting.account = account;
    }

    /// Goes on in another chunk, whose words other than the one that counts its ranges the policy has written.
    pub fn extend(&self, chunk: Chunk) {
        let base = chunk.base();
        self.scratch().note = None;
        let mut chunks = self.chunks();
        let first = self.first_number().is_none();
        let tail = self.tail();
        (tail.word, tail.ranges) = (word_at(base, first), base.wrapping_add(HEAD));
        (tail.room, tail.plain) = (0, false);
        if first {
            self.slot.room.store(chunk.room(), Ordering::Relaxed);
            self.slot.regrant();
            self.set_word(0);
            self.slot.first.store(base.expose_provenance(), Ordering::Release);
            self.slot.first_number.store(chunk.number, Ordering::Relaxed);
            chunks.first = Some(chunk);
        } else {
            self.set_word((chunks.further.len() as u64 + 1) << 32);
            chunks.further.push(chunk);
            self.slot.extended.store(true, Ordering::Release);
        }
    }

    /// Puts a chunk at the end of the run, even if the chunks before are full of what is about to be given up.
    /// Returns its index.
    pub(super) fn append_chunk(&self, chunk: Chunk) -> usize {
        self.extend(chunk);
        self.position().chunk
    }

    /// Gives up what is between a position and a further chunk. Returns the chunks that held nothing else.
    pub(super) fn drop_between(&self, from: Position, place: usize) -> Vec<Chunk> {
        let mut chunks = self.chunks();
        let dropped: Vec<Chunk> = chunks.further.drain(from.chunk..place - 1).collect();
        // The chunk that is in front of the last from now on.
        let (base, first) = match from.chunk {
            0 => (self.slot.base(), true),
            n => (chunks.further[n - 1].base(), false),
        };
        let at = word_at(base, first);
        // SAFETY: the chunk is this run's.
        unsafe {
            let surplus = filled(get_word(at)) - from.bytes;
            set_word(at, get_word(at) - surplus as u64);
        }
        self.set_word((chunks.further.len() as u64) << 32 | self.word() & u64::from(u32::MAX));
        dropped
    }

    /// A chunk that an earlier transaction gave up, if it takes so much.
    pub fn take_spare(&self, bytes: usize) -> Option<Chunk> {
        self.chunks().spare.take_if(|chunk| chunk.room() >= bytes)
    }

    /// What the policy calls the run's first chunk, if there is one.
    pub fn first_number(&self) -> Option<u32> {
        Some(self.slot.first_number.load(Ordering::Relaxed)).filter(|number| *number != slots::NONE)
    }

    /// A word that the policy keeps of the chunk in use in this transaction, made by `make` when it is asked
    /// for first.
    pub fn note(&self, make: impl FnOnce(&WriteSet<'t>) -> u64) -> u64 {
        let known = self.scratch().note;
        known.unwrap_or_else(|| {
            let made = make(self);
            self.scratch().note = Some(made);
            made
        })
    }

    /// The run's first chunk.
    pub fn first_chunk(&self) -> *mut u8 {
        self.slot.base()
    }

    /// Where the first range of the chunk in use stands.
    #[inline(always)]
    pub(super) fn start(&self) -> *mut u8 {
        self.tail().ranges
    }

    /// Bytes of ranges in the chunk in use.
    #[inline(always)]
    pub fn filled(&self) -> usize {
        filled(self.word())
    }

    /// Where the next range goes.
    #[inline(always)]
    pub fn end(&self) -> *mut u8 {
        self.tail().ranges.wrapping_add(filled(self.word()))
    }

    /// The number of the transaction in this run.
    pub fn turn(&self) -> u32 {
        // SAFETY: the first chunk stays for good.
        (unsafe { get_word(word_at(self.slot.base(), true)) } >> 32) as u32
    }

    /// Writes a range at the end, for which there is room, and does not publish it. The bytes that it takes.
    ///
    /// # Safety
    /// As many bytes at the region's offset must be mapped.
    pub unsafe fn place(&self, region: &RegionState, offset: usize, len: usize) -> usize {
        let (source, start) = (region.at(offset), region.start + offset as u64);
        // SAFETY: passed on from the caller; the room is this run's.
        unsafe { run::place(self.end(), region.id, start, source, len, self.keeps_old()) }
    }

    /// Publishes so many bytes that the policy wrote at the end by itself.
    pub fn push(&self, bytes: usize) {
        self.set_word(self.word() + bytes as u64);
        self.tail().last = NONE;
    }

    /// A range was declared in several parts, or by [`WriteSet::push`]; `parts` were counted.
    pub fn declared(&self, region: &RegionState, offset: usize, len: usize, parts: u64) {
        self.tail().last = (region.base + offset, len);
        let ranges = &self.slot.counters.ranges;
        ranges.add(1u64.wrapping_sub(parts));
        if parts == 0 {
            self.slot.counters.declared_bytes.add(len as u64);
        }
    }

    /// Takes a range over from another set, whose bytes it is declared for by now: header and old bytes. There
    /// must be room.
    pub fn copy(&self, range: &Saved) {
        let total = self.place_copy(range);
        self.push(total);
    }

    /// The same, not published yet. The bytes that it takes.
    pub fn place_copy(&self, range: &Saved) -> usize {
        debug_assert!(self.stride(range.len) <= self.free());
        // SAFETY: there is room; the old bytes are the other set's, which its owner gives up afterwards.
        unsafe { run::place(self.end(), range.segment, range.offset, range.old, range.len, self.keeps_old()) }
    }

    /// Makes another, empty set part of this one, until it is cleared.
    pub fn begin_branch(&self, branch: &WriteSet<'t>) {
        self.slot.branches.fetch_add(1, Ordering::AcqRel);
        (self.tail().plain, branch.tail().plain) = (false, false);
        branch.scratch().parent = Some(self.slot.into());
    }

    /// Whether this set is part of another.
    pub fn is_branch(&self) -> bool {
        // SAFETY: as for `keeps_old`.
        unsafe { (*self.slot.scratch_at()).parent.is_some() }
    }

    /// The policy knows what is declared here, and what will be, until the set is cleared: nobody reads the run for
    /// that any more, which may be long.
    pub fn set_known(&self) {
        self.tail().plain = false;
        self.slot.known.store(true, Ordering::Release);
    }

    /// Whether the policy knows it.
    pub fn is_known(&self) -> bool {
        self.slot.known.load(Ordering::Relaxed)
    }

    /// Whether those whose part it is have declared nothing.
    pub(super) fn ancestors_are_clear(&self) -> bool {
        let mut slot = self.slot;
        // SAFETY: a slot stays as long as its store; whose part its transaction is changes only when it has no
        // branches any more.
        while let Some(parent) = unsafe { (*slot.scratch_at()).parent.map(|parent| parent.as_ref()) } {
            if !parent.is_clear() {
                return false;
            }
            slot = parent;
        }
        true
    }

    /// Whether this set is part of that one.
    pub fn is_branch_of(&self, parent: &WriteSet<'_>) -> bool {
        // SAFETY: as for `keeps_old`.
        unsafe { (*self.slot.scratch_at()).parent == Some(parent.slot.into()) }
    }

    /// A branch has ended.
    pub fn end_branch(&self) {
        if let Some(parent) = self.scratch().parent.take() {
            // SAFETY: slots stay as long as their store.
            unsafe { parent.as_ref() }.branches.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether branches of it are open.
    pub fn has_branches(&self) -> bool {
        self.slot.branches.load(Ordering::Acquire) > 0
    }

    /// # Panics
    /// When there are open branches.
    pub fn check_branches(&self) {
        let open = self.slot.branches.load(Ordering::Acquire);
        assert!(open == 0, "{open} branch(es) of the transaction are open: adopt or drop them first");
    }

    /// Where the run ends.
    pub fn position(&self) -> Position {
        let chunk = if self.is_first() { 0 } else { (self.word() >> 32) as usize };
        Position { chunk, bytes: filled(self.word()) }
    }

    /// Goes on in the run's last chunk.
    fn to_end(&self) {
        self.scratch().note = None;
        let (base, first) = match self.chunks().further.last() {
            Some(chunk) => (chunk.base(), false),
            None => (self.slot.base(), true),
        };
        let tail = self.tail();
        (tail.word, tail.ranges) = (word_at(base, first), base.wrapping_add(HEAD));
        (tail.room, tail.last) = (0, NONE);
    }

    /// Shortens the run to an earlier position.
    pub fn shorten(&self, to: Position) {
        self.leave_chunks(to, drop);
        self.cut(to);
    }

    /// Gives up the chunks behind a position: `give_back` is called with the newest first.
    pub fn leave_chunks(&self, to: Position, mut give_back: impl FnMut(Chunk)) {
        let mut chunks = self.chunks();
        while chunks.further.len() > to.chunk {
            give_back(chunks.further.pop().expect("there is one more"));
        }
        self.slot.extended.store(!chunks.further.is_empty(), Ordering::Release);
        drop(chunks);
        self.to_end();
    }

    /// Shortens the run within its last chunk.
    pub fn cut(&self, to: Position) {
        self.tail().last = NONE;
        let word = self.word();
        self.set_word(word - (filled(word) - to.bytes) as u64);
    }

    /// Takes back what was declared last, in the chunk in use, with nothing read or stored there.
    pub fn unpublish(&self, len: usize) {
        self.tail().last = NONE;
        self.set_word(self.word() - self.stride(len) as u64);
        let counters = &self.slot.counters;
        counters.ranges.add(1u64.wrapping_neg());
        counters.declared_bytes.add((len as u64).wrapping_neg());
    }

    /// Clears a run of any length, for what nothing is to be undone any more. Returns its further chunks.
    pub fn clear_all(&self) -> Vec<Chunk> {
        let word = word_at(self.slot.base(), true);
        // SAFETY: the first chunk stays for good, and the run is this transaction's.
        unsafe {
            let now = get_word(word);
            // Else the number stays: in persistent memory a new one would have to be written back.
            if filled(now) > 0 {
                set_word(word, clear_word(now));
            }
        }
        let work = self.scratch();
        work.kept.clear();
        work.marks.clear();
        work.note = None;
        self.tail().plain = true;
        self.slot.known.store(false, Ordering::Release);
        if !self.slot.extended.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let further = {
            let mut chunks = self.chunks();
            self.slot.extended.store(false, Ordering::Release);
            std::mem::take(&mut chunks.further)
        };
        self.to_end();
        further
    }

    /// Keeps the largest of these chunks for later transactions, unless that is very large or lies in a file.
    pub fn keep_spare(&self, given_back: Vec<Chunk>) {
        let fits = |chunk: &Chunk| chunk.room() <= SPARE_MAX && !chunk.is_in_file();
        let fitting = given_back.into_iter().filter(fits);
        let Some(largest) = fitting.max_by_key(Chunk::room) else { return };
        let mut chunks = self.chunks();
        if chunks.spare.as_ref().is_none_or(|kept| kept.room() < largest.room()) {
            chunks.spare = Some(largest);
        }
    }

    /// What one way of tracking keeps of the transaction, made when it is asked for first and dropped when the
    /// transaction ends.
    /// `act` must not ask this set for it again.
    pub fn with_kept<T: Any + Send + Default, R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        self.tail().plain = false;
        // Taken out meanwhile, so that there is one reference to it, whatever is called.
        let mut all = std::mem::take(&mut self.scratch().kept);
        let at = all.iter().position(|kept| kept.is::<T>()).unwrap_or_else(|| {
            all.push(Box::<T>::default());
            all.len() - 1
        });
        let result = act(all[at].downcast_mut().expect("it was found by its type"));
        self.scratch().kept = all;
        result
    }
}

/// Largest chunk that is kept for the next transaction.
const SPARE_MAX: usize = 4 << 20;
