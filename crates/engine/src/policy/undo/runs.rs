//! What the undo policy does with a write set: its run lies in memory that survives (Vista, section 3.1).
//!
//! ```text
//!  declare:         copy the old bytes behind the last range - publish: the word counts them
//!  prepare:         copy the new bytes, and a mark, behind the last range - publish each
//!  commit:          publish that there are none, under the next transaction's number: one store
//!  abort, recovery: copy the old bytes back, newest first - publish that there are none
//! ```
//!
//! In persistent memory a range is sealed besides, and lines of the cache are written back:
//!
//! ```text
//!  declare:         copy the old bytes and their seal - write back, fence
//!  commit:          write back what was declared, fence - one store, write back, fence
//! ```
//!
//! Invariant: a range is published whole before any byte that it covers is changed, and the changes of a
//! transaction are all stored before its commit is.
//! Invariant: no range is sealed as one of a transaction that has the number of a later one: before a run's numbers
//! come again, what it has sealed is erased ([`UndoChunks::begin_numbers_again`]).
//! Invariant: recovery is done again from the beginning if it is cut short: a run is emptied after its old
//! values are back.

use super::chunks::UndoChunks;
use crate::storage::error::RangeError;
use crate::storage::region::RegionState;
use crate::storage::region_table::{RegionCursor, RegionTable};
use crate::write_set::{HEAD, Position, Saved, WriteSet, set_word};
use caliburn_log::SegmentId;
use caliburn_log::format::{self, RangeHeader, UNDO_FURTHER, UNDO_OWNER};
use caliburn_log::media_error::MediaError;
use caliburn_log::prepared::{MARK, NEW, is_new};
use caliburn_log::record::{Range, Ranges};
use caliburn_log::sealed::{SEAL, Seal};
use caliburn_os::persist::Flush;
use caliburn_os::simulated::{self, planted, unless};
use caliburn_os::span;

impl UndoChunks {
    /// Saves the old bytes of a range that is about to be changed.
    pub fn save(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        offset: usize,
        len: usize,
    ) -> Result<(), RangeError> {
        if planted("undo-not-saved") {
            return Ok(());
        }
        let from = set.position();
        let saved = self.save_parts(set, region, offset, len);
        match (saved, self.persistent()) {
            (Err(error), _) => {
                // Nothing was saved: what another transaction may do with these bytes is not to be undone.
                self.shorten(set, from);
                return Err(error.into());
            }
            (Ok(parts), Some(flush)) => {
                if !planted("undo-saved-unfenced") {
                    flush.fence();
                }
                set.declared(region, offset, len, parts);
            }
            (Ok(parts), None) => set.declared(region, offset, len, parts),
        }
        Ok(())
    }

    /// Saves a range in as many parts as it takes. How many of them were counted.
    fn save_parts(
        &self,
        set: &WriteSet<'_>,
        region: &RegionState,
        mut offset: usize,
        mut len: usize,
    ) -> Result<u64, MediaError> {
        let mut counted = 0;
        while len > 0 {
            let part = len.min(self.room(set));
            if part == 0 {
                self.extend(set)?;
                continue;
            }
            match self.persistent() {
                Some(flush) => self.put_sealed(set, flush, region, offset, part),
                None => {
                    set.put(region, offset, part);
                    counted += 1;
                }
            }
            (offset, len) = (offset + part, len - part);
        }
        Ok(counted)
    }

    /// Puts new values, the ranges of a body, behind the old ones, and last a mark: with it the transaction is
    /// undecided, and it is there when this returns.
    pub fn put_new(
        &self,
        set: &WriteSet<'_>,
        body: &[u8],
        time: u64,
        global_id: &[u8],
    ) -> Result<(), MediaError> {
        let from = set.position();
        let mut values = Ranges::of(body);
        let new = |range: Range<'_>| SegmentId(range.segment.0 | NEW);
        let marked = planted("marked-before-its-values").then(|| self.put_mark(set, time, global_id));
        let mut done = marked.unwrap_or(Ok(())).and_then(|()| {
            values.try_for_each(|range| self.put_bytes(set, new(range), range.offset, range.bytes))
        });
        if done.is_ok() {
            done = self.put_mark(set, time, global_id);
        }
        match (&done, self.persistent()) {
            (Err(_), _) => self.shorten(set, from),
            (Ok(()), Some(flush)) if !planted("mark-unfenced") => flush.fence(),
            _ => {}
        }
        done
    }

    /// Saves old bytes that are in no region.
    pub fn save_bytes(
        &self,
        set: &WriteSet<'_>,
        segment: SegmentId,
        offset: u64,
        old: &[u8],
    ) -> Result<(), MediaError> {
        let from = set.position();
        let done = self.put_bytes(set, segment, offset, old);
        match (&done, self.persistent()) {
            (Err(_), _) => self.shorten(set, from),
            (Ok(()), Some(flush)) => flush.fence(),
            _ => {}
        }
        done
    }

    fn put_mark(&self, set: &WriteSet<'_>, time: u64, global_id: &[u8]) -> Result<(), MediaError> {
        if set.free() < set.stride(global_id.len()) {
            self.extend(set)?;
        }
        self.put_bytes(set, MARK, time, global_id)
    }

    /// Puts bytes that are in no region, in as many ranges as it takes.
    fn put_bytes(
        &self,
        set: &WriteSet<'_>,
        segment: SegmentId,
        mut offset: u64,
        mut bytes: &[u8],
    ) -> Result<(), MediaError> {
        while !bytes.is_empty() {
            let len = bytes.len().min(self.room(set));
            if len == 0 {
                self.extend(set)?;
                continue;
            }
            self.put_copy(set, &Saved { segment, offset, len, old: bytes.as_ptr() });
            (offset, bytes) = (offset + len as u64, &bytes[len..]);
        }
        Ok(())
    }

    /// The longest range that fits in what is left of the chunk in use.
    fn room(&self, set: &WriteSet<'_>) -> usize {
        set.free().saturating_sub(set.stride(0)) / format::ALIGN * format::ALIGN
    }

    /// Puts a range of another set, or one that is in none; there must be room.
    fn put_copy(&self, set: &WriteSet<'_>, range: &Saved) {
        match self.persistent() {
            Some(flush) => self.seal_end(set, flush, |set| set.place_copy(range)),
            None => set.copy(range),
        }
    }

    /// Of what the run is about to hold in the chunk in use.
    fn seal(&self, set: &WriteSet<'_>) -> Seal {
        Seal::from_word(set.note(|set| {
            let (first, ordinal) = (set.first_number().expect("there is a chunk"), set.position().chunk());
            Seal::new(self.generation(), first, ordinal as u32, set.turn()).word()
        }))
    }

    /// Writes a range and its seal, and has them written back. They are valid after a fence.
    fn put_sealed(&self, set: &WriteSet<'_>, flush: Flush, region: &RegionState, offset: usize, len: usize) {
        // SAFETY: the range lies within the mapped region.
        self.seal_end(set, flush, |set| unsafe { set.place(region, offset, len) });
    }

    /// Writes a range at the run's end, as `place` does, and its seal, and has them written back.
    fn seal_end(&self, set: &WriteSet<'_>, flush: Flush, place: impl FnOnce(&WriteSet<'_>) -> usize) {
        let (seal, at) = (self.seal(set), set.end());
        // SAFETY: there is room for the range and its seal at the run's end. What was just written may be read,
        // and nobody else stores there.
        unsafe {
            let total = place(set);
            let seal = seal.of(std::slice::from_raw_parts(at, total));
            at.add(total).cast::<u64>().write_unaligned(seal);
            simulated::stored(at.add(total), SEAL);
            flush.lines(at, total + SEAL);
            set.push(total + SEAL);
        }
    }

    /// Goes on in another chunk.
    fn extend(&self, set: &WriteSet<'_>) -> Result<(), MediaError> {
        let chunk = self.take()?;
        let base = chunk.base();
        let persistent = self.persistent().filter(|_| unless("undo-chunk-unfenced", true));
        // A chunk says nothing before all that came before it is there.
        persistent.inspect(|flush| flush.fence());
        let owner = set.first_number().map(|first| u64::from(first + 1) << 32 | u64::from(set.turn()));
        // SAFETY: the chunk is ours. First it says that it holds nothing, then whose it is.
        unsafe {
            if let Some(owner) = owner.filter(|_| planted("undo-chunk-not-emptied")) {
                set_word(base.add(UNDO_OWNER), owner);
            }
            set.extend(chunk);
            if let Some(owner) = owner {
                set_word(base.add(UNDO_OWNER), owner);
            }
            // The head is the chunk's.
            persistent.inspect(|flush| flush.lines(base, HEAD));
        }
        Ok(())
    }

    /// Shortens a run to a position, when the old bytes behind it are back, or were not touched. The newest
    /// chunks go first: recovery wants those before it whole.
    pub fn shorten(&self, set: &WriteSet<'_>, to: Position) {
        let Some(flush) = self.persistent() else {
            set.leave_chunks(to, |chunk| self.give_back(chunk));
            return set.cut(to);
        };
        set.leave_chunks(to, |chunk| {
            // Before anybody has it again, who may be this transaction.
            self.unseal(flush, chunk.ranges(set.layout()));
            self.give_back(chunk);
        });
        self.unseal(flush, set.ranges_from(to));
        set.cut(to);
    }

    /// Shortens a run to a position behind which the old bytes are back. They are there before what says so goes.
    pub fn roll_back(&self, set: &WriteSet<'_>, to: Position) {
        if !planted("rolled-back-unfenced") {
            self.persistent().inspect(|flush| flush.fence());
        }
        self.shorten(set, to);
    }

    /// Begins a branch: its run says whose part it is, so that recovery restores what it saved first.
    pub fn begin_branch(&self, parent: &WriteSet<'_>, branch: &WriteSet<'_>) -> Result<(), MediaError> {
        for set in [parent, branch] {
            if set.first_number().is_none() {
                self.extend(set)?;
            }
        }
        let first = parent.first_number().expect("it was made");
        let owner = u64::from(first + 1) << 32 | u64::from(parent.turn());
        if !planted("branch-without-its-parent") {
            self.set_owner(branch, owner);
        }
        Ok(())
    }

    /// Says whose part a branch is, or that it is nobody's any more.
    fn set_owner(&self, branch: &WriteSet<'_>, owner: u64) {
        let base = branch.first_chunk();
        // SAFETY: the head is that of the run's first chunk. It must not pass for a further chunk of the owner's.
        unsafe {
            set_word(base.add(UNDO_FURTHER), 0);
            set_word(base.add(UNDO_OWNER), owner);
        }
        if let Some(flush) = self.persistent() {
            // SAFETY: as above.
            unsafe { flush.lines(base, HEAD) };
            flush.fence();
        }
    }

    /// Copies what a branch has saved to the end of its parent's run.
    pub fn adopt(&self, set: &WriteSet<'_>, branch: &WriteSet<'_>) -> Result<(), MediaError> {
        let from = set.position();
        let mut done = Ok(());
        branch.each(|range| {
            if done.is_ok() && set.free() < set.stride(range.len) {
                done = self.extend(set);
            }
            if done.is_ok() {
                self.put_copy(set, &range);
            }
        });
        // In persistent memory they are there before the branch is emptied, which has a fence of its own.
        if done.is_err() {
            self.shorten(set, from);
        }
        set.grant(0);
        done
    }

    /// Takes the seals off ranges: what stands in their place later is followed by none of them.
    fn unseal(&self, flush: Flush, ranges: impl Iterator<Item = Saved>) {
        if planted("rolled-back-ranges-sealed") {
            return;
        }
        for range in ranges {
            // SAFETY: the header is that of this run; a range of no bytes ends it.
            unsafe {
                set_word(range.header(), 0);
                flush.lines(range.header(), size_of::<RangeHeader>());
            }
        }
        flush.fence();
    }

    /// Empties a run, when nothing of it is to be undone any more: what was declared is there before, and this is
    /// when it returns.
    pub fn empty(&self, set: &WriteSet<'_>, table: &RegionTable) {
        self.clear(set, table);
        if set.is_branch() {
            self.set_owner(set, 0);
        }
    }

    fn clear(&self, set: &WriteSet<'_>, table: &RegionTable) {
        let Some(flush) = self.persistent() else {
            return self.give_back_disowned(set.clear_all());
        };
        if set.is_empty() {
            drop(set.clear_all());
            return;
        }
        if !planted("undo-values-not-flushed") {
            let mut cursor = RegionCursor::new();
            set.each(|range| {
                if !is_new(range.segment) {
                    write_back(flush, table, &mut cursor, range);
                }
            });
        }
        if !planted("undo-values-unfenced") {
            flush.fence();
        }
        let first = set.first_chunk();
        let further = set.clear_all();
        // SAFETY: the head is the first chunk's.
        unsafe { flush.lines(first, HEAD) };
        if !planted("undo-commit-unfenced") {
            flush.fence();
        }
        self.give_back_disowned(further);
        if unless("seals-of-equal-numbers", set.turn() == 0) {
            self.begin_numbers_again(flush, first);
        }
    }

    /// Copies the old bytes behind a position back, newest first. `elsewhere` is called for those that are not
    /// mapped.
    pub fn restore(
        &self,
        set: &WriteSet<'_>,
        table: &RegionTable,
        from: Position,
        mut elsewhere: impl FnMut(caliburn_log::SegmentId, u64, &[u8]),
    ) {
        let mut cursor = RegionCursor::new();
        set.newest_first(from, |segment, offset, bytes| {
            // SAFETY: a region with declared bytes stays mapped.
            let Some(region) = (unsafe { cursor.find(table, segment, offset) }) else {
                return elsewhere(segment, offset, bytes);
            };
            let target = region.at((offset - region.start) as usize);
            // SAFETY: the range was within the region when it was declared, and regions never shrink.
            unsafe { span::copy(bytes.as_ptr(), target, bytes.len()) };
            simulated::stored(target, bytes.len());
            if let Some(flush) = self.persistent() {
                // SAFETY: the bytes just stored.
                unsafe { flush.lines(target, bytes.len()) };
            }
        });
    }
}

fn write_back(flush: Flush, table: &RegionTable, cursor: &mut RegionCursor<'_>, range: Saved) {
    // SAFETY: a region with declared bytes stays mapped until the transaction ends.
    let region = unsafe { cursor.find(table, range.segment, range.offset) };
    // What is in no region was forced by who wrote it: see `prepared`.
    let Some(region) = region else { return };
    // SAFETY: the range lies within the region.
    unsafe { flush.lines(region.at((range.offset - region.start) as usize), range.len) };
}
