//! What the redo policy does with a write set: limits what it may become, and makes a record of it.

use super::Redo;
use super::overflow::OUTGROWN;
use super::relocate;
use super::stage::Body;
use crate::policy::parts::{Part, declared, parts, pieces};
use crate::storage::error::{CommitError, RangeError};
use crate::storage::gate;
use crate::storage::region::RegionState;
use crate::storage::region_table::RegionCursor;
use crate::write_set::{Chunk, HEAD, Position, Saved, WriteSet, Written};
use caliburn_log::SegmentId;
use caliburn_log::format::range_bytes;
use caliburn_log::media_error::MediaError;
use caliburn_os::rescue;
use caliburn_os::simulated::{even_if, planted};
use caliburn_os::span;
use caliburn_os::sync::atomic::Ordering;
use std::io;

/// Bytes of a run's first chunk; few where crashes are simulated, so that runs outgrow it.
const RUN_BYTES: usize = if cfg!(caliburn_shuttle) {
    1 << 10
} else if cfg!(caliburn_sim) {
    2 << 10
} else {
    256 << 10
};
/// Largest further chunk, unless a range needs more.
const CHUNK_BYTES_MAX: usize = 16 << 20;

impl Redo {
    /// Most memory that a range of the smallest size takes: private copies of two pages, and its old bytes.
    fn entry_memory(&self) -> u64 {
        2 * self.storage.page_size as u64 + range_bytes(1) as u64
    }

    /// Bytes of ranges that no transaction can declare too many of: see `Slots::grant`.
    pub(super) fn room(&self) -> usize {
        let memory = self.storage.memory_budget() / self.entry_memory() * range_bytes(1) as u64;
        memory.min(self.body_limit()) as usize
    }

    /// Declares a range that a write set had no room for: makes room, or refuses.
    pub(super) fn declare(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        offset: usize,
        len: usize,
    ) -> Result<(), RangeError> {
        if !set.is_known() {
            let spare = set.compact(RUN_BYTES, |bytes| Chunk::volatile(bytes).ok());
            set.keep_spare(spare);
        }
        let (body, memory) = self.limit(set, region, offset, len)?;
        if memory >= OUTGROWN {
            self.outgrow(set);
        }
        if set.is_known() {
            self.hold(set, region, offset, len)?;
        }
        let (mut at, mut parts, from) = (offset, 0, set.position());
        for piece in pieces(len) {
            let room =
                if set.free() < set.stride(piece) { self.extend(set, set.stride(piece)) } else { Ok(()) };
            if room.is_err() {
                // Nothing is declared.
                set.shorten(from);
                return room;
            }
            set.put(region, at, piece);
            if self.sets.reserve.watch().load(Ordering::Acquire) != 0 {
                self.sets.reserve.step_aside(set, region, at, piece, self.storage.page_size);
            }
            (at, parts) = (at + piece, parts + 1);
        }
        set.declared(region, offset, len, parts);
        set.set_account((body, memory));
        let memory =
            self.storage.memory_budget().saturating_sub(memory) / self.entry_memory() * range_bytes(1) as u64;
        let most = memory.min(self.body_limit().saturating_sub(body)) as usize;
        set.grant(if self.sets.tracked || set.is_known() { 0 } else { most.min(set.free()) });
        Ok(())
    }

    /// What the set amounts to with a range more, if that is not too much.
    fn limit(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        offset: usize,
        len: usize,
    ) -> Result<(u64, u64), RangeError> {
        let page = self.storage.page_size;
        let (start, end) = (region.base + offset, region.base + offset + len);
        let own_body: u64 = pieces(len).map(|piece| range_bytes(piece) as u64).sum();
        let pages = ((end - 1) / page - start / page + 1) * page;
        let own_memory = (pages + if set.keeps_old() { len } else { 0 }) as u64;
        let (body, memory) = set.account(self.entry_memory());
        let (body, memory) = (body + own_body, memory + own_memory);
        let fits = memory <= self.storage.memory_budget() || memory >= OUTGROWN;
        if body <= self.body_limit() && fits {
            return Ok((body, memory));
        }
        // The bounds count overlapping ranges and pages twice: count exactly before refusing. Not each time, if
        // that need not be known.
        if body <= self.body_limit() && self.may_overflow() && !set.has_doubled() {
            return Ok((body, memory + OUTGROWN));
        }
        let mut spans = set.exactly();
        let (segment, at) = (region.id, region.start + offset as u64);
        if spans.iter().any(|s| s.segment == segment && s.start <= at && at + len as u64 <= s.end) {
            let (body, memory) = self.amount(set, &spans);
            return Ok((body, memory));
        }
        spans.push(Written { segment, start: at, end: at + len as u64 });
        spans.sort_unstable();
        self.refuse_beyond(self.amount(set, &spans))
    }

    /// Refuses what would be too much for a record, or for the memory budget unless that may be outgrown.
    fn refuse_beyond(&self, (body, memory): (u64, u64)) -> Result<(u64, u64), RangeError> {
        if body > self.body_limit() {
            let capacity = self.log.capacity();
            return Err(RangeError::LogTooSmall { needed: relocate::bytes_for(body), capacity });
        }
        let (needed, budget) = (memory, self.storage.memory_budget());
        match needed > budget {
            true if self.may_overflow() => Ok((body, memory + OUTGROWN)),
            true => Err(RangeError::MemoryTooSmall { needed, budget }),
            false => Ok((body, memory)),
        }
    }

    /// Bytes of a record with these spans, which are sorted, and of memory for their pages and old values.
    fn amount(&self, set: &WriteSet<'_>, spans: &[Written]) -> (u64, u64) {
        let page = self.storage.page_size as u64;
        let (mut body, mut memory, mut last) = (0, 0, (SegmentId(u32::MAX), 0));
        for span in spans {
            let len = span.end - span.start;
            body += pieces(len as usize).map(|piece| range_bytes(piece) as u64).sum::<u64>();
            memory += if set.keeps_old() { len } else { 0 };
            let (first, end) = (span.start / page, span.end.div_ceil(page));
            let first = if last.0 == span.segment { first.max(last.1) } else { first };
            memory += end.saturating_sub(first) * page;
            last = (span.segment, end.max(first));
        }
        (body, memory)
    }

    /// Copies what a branch has declared to the end of its parent's run.
    pub(super) fn take_over(&self, set: &WriteSet<'_>, branch: &WriteSet<'_>) -> Result<(), RangeError> {
        let mut spans = set.exactly();
        branch.each(|range| {
            let (start, end) = (range.offset, range.offset + range.len as u64);
            spans.push(Written { segment: range.segment, start, end });
        });
        spans.sort_unstable();
        let account = self.refuse_beyond(self.amount(set, &spans))?;
        if account.1 >= OUTGROWN || branch.is_known() {
            self.outgrow(set);
        }
        if set.is_known() && !planted("adopted-pages-not-held") {
            // They are the parent's from now on, whose run nobody reads.
            let mut pages = self.lock_pages();
            branch.each(|range| pages.hold(set.number(), range.segment, range.offset, range.len as u64));
        }
        let (from, mut done) = (set.position(), Ok(()));
        branch.each(|range| {
            if done.is_ok() && set.free() < set.stride(range.len) {
                done = self.extend(set, set.stride(range.len));
            }
            if done.is_ok() && !(planted("adopted-in-part") && set.position() == from) {
                set.copy(&range);
            }
        });
        if done.is_err() {
            set.shorten(from);
        }
        // A truncator that read this run before the copies were there must not find the branch empty afterwards.
        self.sets.reserve.let_pass();
        set.grant(0);
        set.set_account(account);
        done
    }

    fn extend(&self, set: &WriteSet<'_>, needed: usize) -> Result<(), RangeError> {
        let first = set.first_number().is_none();
        if first && set.is_known() {
            // The first one stays for good.
            self.extend_by(set, Chunk::volatile(RUN_BYTES), RUN_BYTES)?;
            return if set.free() < needed { self.extend(set, needed) } else { Ok(()) };
        }
        // What is full of a file is written to it, so that memory is not: in smaller pieces where there is little.
        let behind = if set.is_known() { self.storage.memory_budget() as usize / 8 } else { CHUNK_BYTES_MAX };
        let most = behind.clamp(RUN_BYTES, CHUNK_BYTES_MAX);
        let grown = (RUN_BYTES << (set.position().chunk() + 1).min(16)).min(most);
        let bytes = if first { RUN_BYTES } else { grown }.max(HEAD + needed).next_multiple_of(8);
        let spare = if first { None } else { set.take_spare(needed) };
        let make = || if set.is_known() { self.overflow_chunk(bytes) } else { Chunk::volatile(bytes) };
        self.extend_by(set, spare.map_or_else(make, Ok), bytes)
    }

    fn extend_by(
        &self,
        set: &WriteSet<'_>,
        chunk: io::Result<Chunk>,
        bytes: usize,
    ) -> Result<(), RangeError> {
        set.extend(chunk.map_err(|source| RangeError::Memory { bytes: bytes as u64, source })?);
        Ok(())
    }

    /// Commits what is declared in one chunk, where nothing overlaps, in the `Process` class. False if there is
    /// something else, or something else must be done.
    #[inline(never)]
    pub(super) fn stage_short(&self, set: &WriteSet<'_>) -> bool {
        let len = set.filled();
        if len == 0
            || len > self.stage.body_max()
            || self.storage.gate.load(Ordering::Relaxed) & (gate::FAILED | gate::DETACHED | gate::OVERFLOWN)
                != 0
        {
            return false;
        }
        let staged = self.stage.append(len, |body| self.fill(set, body));
        let Some((_, opened)) = staged else { return false };
        self.staged(opened);
        set.counters().body_bytes.add(len as u64);
        set.clear();
        even_if("detached-acknowledged", !self.storage.rescues || !rescue::any())
    }

    /// Writes a record's body, as long as no range meets another.
    #[inline(always)]
    fn fill(&self, set: &WriteSet<'_>, mut body: Body) -> Option<Body> {
        let (mut cursor, mut met, mut looked) = (RegionCursor::new(), Met::default(), 0);
        let table = &self.storage.table;
        for range in set.plain_ranges() {
            if met.may_meet(&range) && !apart(set, (range.offset, range.len), range.old, &mut looked) {
                return None;
            }
            // SAFETY: a region with declared bytes stays mapped. The body is as long as the run, and so are
            // their ranges.
            unsafe {
                let source = cursor.bytes(table, range.segment, range.offset);
                body.range(range.segment, range.offset, source, range.len);
            }
        }
        Some(body)
    }

    /// Puts the record into the stage, or into the log if it is large. Returns the commit's stamp, or
    /// `None` if there was nothing to commit.
    pub(super) fn stage_or_append(&self, set: &WriteSet<'_>) -> Result<Option<u64>, CommitError> {
        self.overflow_intact()?;
        if set.is_known()
            && let Some(len) = self.too_many(set)
            && (len as u64 <= self.body_max() || self.may_grow() && len as u64 <= self.body_limit())
        {
            set.counters().body_bytes.add(len as u64);
            self.storage.failure()?;
            return self.append_in_log(set, || declared(&self.storage.table, set), len).map(Some);
        }
        let parts = parts(&self.storage.table, &set.disjoint());
        let len: usize = parts.iter().map(|part| range_bytes(part.len)).sum();
        if len == 0 {
            return Ok(None);
        }
        set.counters().body_bytes.add(len as u64);
        if self.storage.gate.load(Ordering::Relaxed) & (gate::FAILED | gate::DETACHED) != 0 {
            self.storage.failure()?;
        }
        loop {
            if len > self.stage.body_max() {
                return self.append_in_log(set, || parts.iter().copied(), len).map(Some);
            }
            let staged = self.stage.append(len, |mut body| {
                for Part { region, offset, len } in &parts {
                    // SAFETY: the part lies in a region with declared bytes, which stays mapped; `len` counted
                    // all parts.
                    unsafe { body.range(region.id, region.start + *offset as u64, region.at(*offset), *len) };
                }
                self.overflow_intact().ok()?;
                Some(body)
            });
            match staged {
                Some((stamp, opened)) => {
                    self.staged(opened);
                    return Ok(Some(stamp));
                }
                // On failure the caller restores the old values: nothing was published.
                None => self.wait_stage()?,
            }
        }
    }

    /// Commits what is too large for the stage.
    fn append_in_log<'t, P: Iterator<Item = Part<'t>>>(
        &self,
        set: &WriteSet<'_>,
        parts: impl Fn() -> P,
        len: usize,
    ) -> Result<u64, CommitError> {
        if len as u64 > self.body_max()
            && let Err(error) = self.grow_log(relocate::bytes_for(len as u64))
        {
            if set.keeps_old() {
                return Err(error);
            }
            // It cannot be undone.
            let source = io::Error::new(io::ErrorKind::StorageFull, error.to_string());
            let cause = MediaError::new("make larger", &*self.log.medium(), 0, source);
            return Err(self.fail(cause).into());
        }
        self.append_large(parts, len)
    }

    /// The bytes of a body with the ranges as they were declared, if to join them would take much of the memory
    /// budget.
    fn too_many(&self, set: &WriteSet<'_>) -> Option<usize> {
        let (mut count, mut len) = (0, 0);
        set.each(|range| (count, len) = (count + 1, len + range_bytes(range.len)));
        let memory = count * (size_of::<Written>() + size_of::<Part<'_>>());
        (memory as u64 > self.storage.memory_budget() / 8 && len > self.stage.body_max()).then_some(len)
    }

    /// Writes the old bytes behind a position back into memory.
    pub(super) fn put_back(&self, set: &WriteSet<'_>, from: Position) {
        if self.overflow_intact().is_err() {
            // What is no more cannot be put back, and nothing is committed any more.
            return;
        }
        let mut cursor = RegionCursor::new();
        set.newest_first(from, |segment, offset, bytes| {
            // SAFETY: a region with declared bytes stays mapped.
            let region = unsafe { cursor.find(&self.storage.table, segment, offset) }
                .expect("declared bytes are mapped");
            // SAFETY: the range was within the region when it was declared, and regions never shrink.
            unsafe { span::copy(bytes.as_ptr(), region.at((offset - region.start) as usize), bytes.len()) };
        });
        let _ = self.overflow_intact();
    }
}

/// The lines of 64 bytes that a record's ranges lie in, folded into a word: what meets nothing there overlaps and
/// adjoins nothing.
#[derive(Default)]
struct Met(u64);

/// How often it is worth looking whether ranges in the same lines overlap.
const LOOKS: u32 = 8;

impl Met {
    /// Adds a range. False if it surely meets none that was added before.
    #[inline(always)]
    fn may_meet(&mut self, range: &Saved) -> bool {
        // The byte behind a range counts, since what adjoins is joined.
        let (first, last) = (range.offset >> 6, (range.offset + range.len as u64) >> 6);
        let mut lines = 1 << (first % 64) | 1 << (last % 64);
        if last - first > 1 {
            lines = (u64::MAX >> 63u64.saturating_sub(last - first)).rotate_left(first as u32 % 64);
        }
        let before = self.0;
        self.0 |= lines;
        before & lines != 0
    }
}

/// Whether a range of the set, whose old bytes are at `old`, overlaps and adjoins none of those before it.
#[cold]
#[inline(never)]
fn apart(set: &WriteSet<'_>, (start, len): (u64, usize), old: *const u8, looked: &mut u32) -> bool {
    let end = start + len as u64;
    *looked += 1;
    let mut before = set.plain_ranges().take_while(|other| other.old != old);
    *looked <= LOOKS && before.all(|other| start > other.offset + other.len as u64 || end < other.offset)
}
