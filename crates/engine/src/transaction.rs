//! Transactions: begin, set_range, stores, commit or abort (RVM, Figure 4b).
//!
//! ```text
//!            set_range, write                     prepare
//!   begin --> UNCOMMITTED -------------------------------> PREPARED --> commit_prepared, abort_prepared
//!                |    \
//!          abort |     \ commit:  1 size the record     2 write it to the stage    3 publish
//!         or drop|      \         4 release the ranges  5 Power: wait for the force
//!                v       v
//!             old values  COMMITTED
//! ```
//!
//! A transaction is spent by `commit` and `abort`: using it afterwards does not compile.

use crate::error::{CommitError, RangeError};
use crate::region::{Region, RegionState};
use crate::slot::{Held, SHORT, Tally, Undo};
use crate::store::{Shared, gate};
use crate::ticket::Ticket;
use caliburn_log::SegmentId;
use caliburn_log::format::range_bytes;
use caliburn_log::record::{FRAME, push_range};
use caliburn_log::stage::Body;
use caliburn_log::undo::Short;
use caliburn_os::persist::Survives;
use caliburn_os::simulated::{self, planted};
use caliburn_os::sync::atomic::Ordering;
use caliburn_os::{ordinal, span};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// Whether a transaction can be aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Old values are kept, so that `abort` can restore them.
    Restore,
    /// No old values are kept: faster, and the program promises to commit.
    NoRestore,
}

/// What a commit survives, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Class {
    /// The process may be killed. No system call. The commit is lazy towards the rest: it survives a
    /// power cut after the flush interval, or the next [`Store::flush`](crate::Store::flush).
    Process,
    /// The kernel may crash. On file and disk media only a force gives that, so it is like `Power`.
    Os,
    /// The power may fail: the commit waits until the log is forced, together with whoever else waits.
    Power,
}

impl From<Survives> for Class {
    fn from(survives: Survives) -> Class {
        match survives {
            Survives::Process => Class::Process,
            Survives::Os => Class::Os,
            Survives::Power => Class::Power,
        }
    }
}

impl From<Class> for Survives {
    fn from(class: Class) -> Survives {
        match class {
            Class::Process => Survives::Process,
            Class::Os => Survives::Os,
            Class::Power => Survives::Power,
        }
    }
}

/// The identity of a transaction within one opening of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u64);

/// Old bytes that a commit replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldValue {
    /// The segment.
    pub segment: SegmentId,
    /// Offset in the segment.
    pub offset: u64,
    /// The bytes that were there before the transaction.
    pub bytes: Vec<u8>,
}

/// Largest single range in a record; longer ones are split.
const PIECE: usize = 1 << 30;

/// A group of changes that happens wholly or not at all. Dropped without commit, it is aborted.
pub struct Transaction<'t> {
    store: &'t Shared,
    held: Option<Held<'t>>,
    mode: Mode,
    /// Where ranges are saved, if they need nothing else.
    light: Option<Short>,
    /// Ranges saved there, by 2^32, and their bytes: counted in the slot when the transaction ends. A store for each
    /// range less: a processor that waits for memory goes on until it has no place for another store.
    saved: u64,
    /// The range saved there last: in which region, from which offset to which.
    last: (*const RegionState, usize, usize),
}

// SAFETY: a transaction is a set of announcements in a slot and borrowed store state, none of it tied to
// the thread that began it.
unsafe impl Send for Transaction<'_> {}
// SAFETY: what needs no exclusive access only reads.
unsafe impl Sync for Transaction<'_> {}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl<'t> Transaction<'t> {
    #[inline]
    pub(crate) fn new(store: &'t Shared, mode: Mode) -> Transaction<'t> {
        let mut held = store.slots.hold();
        let light = if store.light { held.work().log.short() } else { None };
        Transaction { store, held: Some(held), mode, light, saved: 0, last: (ptr::null(), 0, 0) }
    }

    #[inline(always)]
    fn held(&mut self) -> &mut Held<'t> {
        self.held.as_mut().expect("a transaction holds its slot until it is spent")
    }

    fn restores(&self) -> bool {
        self.mode == Mode::Restore
    }

    /// Gives the slot up to whoever ends the transaction.
    #[inline(always)]
    fn take(&mut self) -> Option<Held<'t>> {
        let held = self.held.take()?;
        let tally = held.tally();
        tally.ranges.add(self.saved >> 32);
        tally.declared_bytes.add(u64::from(self.saved as u32));
        Some(held)
    }

    /// Its identity, as [`Query`](crate::Query) reports it.
    pub fn id(&self) -> TransactionId {
        TransactionId(self.held.as_ref().map_or(0, Held::id))
    }

    /// Declares that bytes `range` of `region` are about to be changed. Their old values are saved, in
    /// `Restore` mode; declaring bytes twice is harmless and costs no log space. With the undo policy it may cost
    /// room in the undo log until the transaction ends.
    ///
    /// # Errors
    /// When the range leaves the region, or the transaction becomes too large for the log or the memory
    /// budget. Nothing is declared then, and the transaction goes on.
    ///
    /// # Panics
    /// If the region belongs to another store.
    #[inline(always)]
    pub fn set_range(&mut self, region: &'t Region, range: Range<usize>) -> Result<(), RangeError> {
        assert!(
            ptr::eq(&*region.store, self.store),
            "the region belongs to another store than the transaction"
        );
        let state = &*region.state;
        let len = range.end.wrapping_sub(range.start);
        if range.start > range.end || range.end > state.len() {
            return Err(state.out_of_bounds(range.start, len));
        }
        self.declare(&region.state, state, range.start, len)
    }

    /// Declares `len` bytes at an address, for programs that work with pointers.
    ///
    /// # Errors
    /// As [`Transaction::set_range`]; [`RangeError::NotMapped`] when no region is there.
    ///
    /// # Safety
    /// The region at the address must not be unmapped or dropped before this transaction ends.
    pub unsafe fn set_range_at(&mut self, address: *const u8, len: usize) -> Result<(), RangeError> {
        let address = address.addr();
        let region = self.store.region_at(address).ok_or(RangeError::NotMapped { address, len })?;
        if len > region.len() - (address - region.base) {
            return Err(region.out_of_bounds(address - region.base, len));
        }
        self.declare(&region, &region, address - region.base, len)
    }

    /// Declares and stores `bytes` at `offset`.
    ///
    /// # Errors
    /// As [`Transaction::set_range`].
    #[inline]
    pub fn write(&mut self, region: &'t Region, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        let end =
            offset.checked_add(bytes.len()).ok_or_else(|| region.state.out_of_bounds(offset, bytes.len()))?;
        self.set_range(region, offset..end)?;
        let _permit = self.store.permit();
        // SAFETY: `set_range` found the range within the mapped region, which outlives 't.
        unsafe {
            let target = region.as_ptr().add(offset);
            span::copy(bytes.as_ptr(), target, bytes.len());
            if self.store.undo.is_some() {
                simulated::stored(target, bytes.len());
            }
        }
        Ok(())
    }

    /// Declares and stores a value at `offset`.
    ///
    /// # Errors
    /// As [`Transaction::set_range`].
    #[inline]
    pub fn store<T: IntoBytes + Immutable>(
        &mut self,
        region: &'t Region,
        offset: usize,
        value: &T,
    ) -> Result<(), RangeError> {
        self.write(region, offset, value.as_bytes())
    }

    /// Declares `len` bytes at `offset` of the region, which are there. `state` is the region's.
    #[inline(always)]
    fn declare(
        &mut self,
        region: &Arc<RegionState>,
        state: &RegionState,
        offset: usize,
        len: usize,
    ) -> Result<(), RangeError> {
        if len == 0 {
            return Ok(());
        }
        if !self.save_light(state, offset, len) {
            let start = state.base + offset;
            // Its old value is most of what a commit waits for.
            span::soon(state.pointer(start));
            declare_otherwise(self.store, self.held().again(), region, start, len, self.restores())?;
        }
        Ok(())
    }

    /// Saves a range where it needs nothing but to be saved, and there is room.
    #[inline(always)]
    fn save_light(&mut self, region: &RegionState, offset: usize, len: usize) -> bool {
        let Some(short) = self.light else { return false };
        let ((last, from, to), end) = (self.last, offset + len);
        if !ptr::eq(last, region) {
            self.held().announce_region(region, last.is_null());
            self.last.0 = region;
        } else if from <= offset && end <= to {
            // Bytes that were saved before that are saved again otherwise: the older come back last.
            self.held().tally().duplicate_bytes.add(len as u64);
            count(self.held().tally(), len);
            return true;
        }
        let saved = planted("undo-not-saved")
            // SAFETY: the range lies within the mapped region; the log is this transaction's.
            || unsafe { short.save(region.id, region.start + offset as u64, region.at(offset), len) };
        if planted("undo-committed-early") {
            // SAFETY: as above.
            unsafe { short.commit() };
        }
        if saved {
            (self.last.1, self.last.2) = (offset, end);
            // No overflow: all that is saved there is shorter than a chunk.
            self.saved += 1 << 32 | len as u64;
        } else {
            self.light = None;
        }
        saved
    }

    /// Commits in a failure class. When this returns, the changes survive what the class names.
    ///
    /// # Panics
    /// With [`Options::verify`](crate::Options::verify), when recoverable memory was changed without being declared.
    ///
    /// # Errors
    /// When the store has failed. If it had failed before, the old values are restored; if the force
    /// failed, the changes stay visible and reopening tells whether they are durable.
    /// [`CommitError::Class`] when the store's memory cannot survive that: the transaction is aborted.
    #[inline(always)]
    pub fn commit(mut self, class: Class) -> Result<(), CommitError> {
        let store = self.store;
        let Some(short) = self.light.filter(|_| class <= store.reach) else {
            if class == Class::Process && commit_short(store, self.held().again()) {
                std::mem::forget(self);
                return Ok(());
            }
            return self.moved().commit_slowly(class);
        };
        let held = self.take().expect("not spent");
        std::mem::forget(self);
        // SAFETY: the log is this transaction's.
        unsafe { short.commit() };
        held.release_light();
        Ok(())
    }

    /// The transaction in another place, to be ended out of line: what is not pointed to stays in registers.
    #[inline(always)]
    fn moved(&mut self) -> Transaction<'t> {
        Transaction { held: self.held.take(), ..*self }
    }

    fn commit_slowly(mut self, class: Class) -> Result<(), CommitError> {
        let store = self.store;
        if let Some(undo) = &store.undo {
            store.reaches(class)?;
            store.verify();
            store.commit_undo(undo, self.take().expect("not spent"));
            return Ok(());
        }
        match self.stage(class > Class::Process)? {
            Some(stamp) if class > Class::Process => Ok(store.wait_durable(stamp)?),
            _ => Ok(()),
        }
    }

    /// Commits like [`Transaction::commit`] with `Class::Process`, and asks for the force without waiting
    /// for it: the ticket tells when the commit survives a power cut. One thread can have thousands in
    /// flight.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit_async(self) -> Result<Ticket<'t>, CommitError> {
        let store = self.store;
        store.reaches(Class::Power)?;
        if store.undo.is_some() {
            self.commit(Class::Power)?;
            return Ok(Ticket { store, stamp: None });
        }
        let stamp = self.stage(false)?;
        if stamp.is_some() {
            store.want_force();
        }
        Ok(Ticket { store, stamp })
    }

    /// Commits and hands back the old values that were replaced (RVM, section 8): what a layer needs to
    /// compensate for this transaction later.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    ///
    /// # Panics
    /// In `NoRestore` mode, which keeps no old values.
    pub fn commit_returning_old(mut self, class: Class) -> Result<Vec<OldValue>, CommitError> {
        assert!(self.restores(), "a no-restore transaction has no old values to return");
        let old = self.old_values();
        self.commit(class)?;
        Ok(old)
    }

    fn old_values(&mut self) -> Vec<OldValue> {
        let store = self.store;
        if let Some(undo) = &store.undo {
            return store.old_undo(undo, self.held());
        }
        self.held().settle(store.page_size, true);
        let work = self.held().work();
        let mut at = 0;
        let value = |undo: &Undo| {
            let region = store.region_at(undo.start).expect("an announced range is mapped");
            let bytes = work.saved[at..at + undo.len].to_vec();
            at += undo.len;
            OldValue { segment: region.segment.id, offset: region.offset_of(undo.start), bytes }
        };
        work.undo.iter().map(value).collect()
    }

    /// Undoes everything: the old values are back when this returns. In `NoRestore` mode of a store that lets only
    /// declared bytes reach its segments ([`Options::declared_only`](crate::Options::declared_only)) the memory
    /// stays as it is, and what it holds never becomes durable.
    ///
    /// # Panics
    /// In `NoRestore` mode of another store with the redo policy, which promised never to abort.
    pub fn abort(self) {
        assert!(self.can_abort(), "a no-restore transaction cannot be aborted: it kept no old values");
        drop(self);
    }

    /// As it was begun.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether [`Transaction::abort`] can be called.
    pub fn can_abort(&self) -> bool {
        self.restores() || self.store.undo.is_some() || self.store.declared_only
    }

    /// Puts the record into the stage, or into the log if it is large. Returns the commit's stamp, or
    /// `None` if there was nothing to commit. `forced`: the caller waits for the force.
    #[inline]
    fn stage(mut self, forced: bool) -> Result<Option<u64>, CommitError> {
        let store = self.store;
        if store.watched() {
            store.verify();
        }
        let held = self.held.as_mut().expect("not spent");
        let work = held.work();
        let mut len = work.body_bytes as usize;
        if work.joined || !work.settled || len > PIECE {
            len = 0;
            held.each(|_, start, end| len += pieces(end - start).map(range_bytes).sum::<usize>());
        }
        let held = &*held;
        if len == 0 {
            store.release(self.take().expect("not spent"));
            return Ok(None);
        }
        held.tally().body_bytes.add(len as u64);
        if store.gate.load(Ordering::Relaxed) & gate::FAILED != 0 {
            store.failure()?;
        }
        let live = store.live();
        let stamp = loop {
            if len > live.stage.body_max() {
                break store.append_large(held, len)?;
            }
            let staged = live.stage.append(ordinal::current(), len, forced, |body| fill(held, body));
            match staged {
                Some((stamp, opened)) => {
                    store.staged(opened);
                    break stamp;
                }
                // Dropping `self` on failure restores the old values: nothing was published.
                None => store.wait_stage()?,
            }
        };
        store.release(self.take().expect("not spent"));
        Ok(Some(stamp))
    }

    /// The record's body, copied from memory.
    pub(crate) fn body(held: &Held<'_>) -> Vec<u8> {
        let mut body = Vec::new();
        let mut buffer = Vec::new();
        held.each(|region, start, end| {
            let mut at = start;
            for len in pieces(end - start) {
                buffer.clear();
                save(&mut buffer, region, Undo { start: at, len });
                push_range(&mut body, region.segment.id, region.offset_of(at), &buffer);
                at += len;
            }
        });
        body
    }

    /// Makes the transaction durable but undecided, under an identifier that the program's coordinator
    /// knows: it is listed by [`Store::prepared`](crate::Store::prepared), across crashes too, until
    /// `commit_prepared` or `abort_prepared`. Its ranges stay declared meanwhile.
    ///
    /// # Errors
    /// When the identifier is too long or in use (the transaction is aborted), or the store has failed.
    ///
    /// # Panics
    /// In `NoRestore` mode: an undecided transaction may have to be undone.
    pub fn prepare(mut self, global_id: &[u8]) -> Result<(), CommitError> {
        assert!(self.restores(), "a no-restore transaction cannot be prepared: it kept no old values");
        if self.store.undo.is_some() {
            return Err(CommitError::NoPrepare);
        }
        if self.store.watched() {
            self.store.verify();
        }
        self.store.check_global_id(global_id)?;
        let body = Transaction::body(self.held());
        self.store.prepare(&body, global_id, || self.take().expect("not spent").suspend())
    }
}

/// Counts a range declared.
#[inline(always)]
fn count(tally: &Tally, len: usize) {
    tally.ranges.add(1);
    tally.declared_bytes.add(len as u64);
}

/// Declares a range with the redo policy, or where more is to be done than to save it.
#[inline(never)]
fn declare_otherwise(
    store: &Shared,
    mut held: Held<'_>,
    region: &Arc<RegionState>,
    start: usize,
    len: usize,
    restore: bool,
) -> Result<(), RangeError> {
    if len > store.short_max || !held.announce_short(region, start, len, restore) {
        return declare_slowly(store, held, region, start, len, restore);
    }
    if store.reserve.active() {
        return declare_patiently(store, held, region, start, len, restore);
    }
    keep_short(held, region, start, len, restore);
    Ok(())
}

/// Goes on when the pages of a short range are not reserved any more.
#[cold]
#[inline(never)]
fn declare_patiently(
    store: &Shared,
    mut held: Held<'_>,
    region: &Arc<RegionState>,
    start: usize,
    len: usize,
    restore: bool,
) -> Result<(), RangeError> {
    store.reserve.pass_over(held.again(), region, start, start + len, store.page_size);
    keep_short(held, region, start, len, restore);
    Ok(())
}

/// Keeps the old value of a short range that was announced, and counts the range.
#[inline(always)]
fn keep_short(mut held: Held<'_>, region: &RegionState, start: usize, len: usize, restore: bool) {
    if restore {
        // SAFETY: `Held::announce_short` found the room.
        unsafe { append(&mut held.work().saved, region, Undo { start, len }) };
    }
    count(held.tally(), len);
}

/// Commits short ranges in the `Process` class. False if there are others, or something else must be done.
#[inline(never)]
fn commit_short(store: &Shared, mut held: Held<'_>) -> bool {
    let (Some(live), Some(len)) = (&store.live, held.short_bytes()) else { return false };
    if store.gate.load(Ordering::Relaxed) & gate::FAILED != 0 || len > live.stage.body_max() {
        return false;
    }
    let staged = live.stage.append(ordinal::current(), len, false, |body| fill(&held, body));
    let Some((_, opened)) = staged else { return false };
    store.staged(opened);
    held.tally().body_bytes.add(len as u64);
    held.release_short();
    true
}

/// Declares a range where more than its old values is to be kept.
#[inline(never)]
fn declare_slowly(
    store: &Shared,
    mut held: Held<'_>,
    region: &Arc<RegionState>,
    start: usize,
    len: usize,
    restore: bool,
) -> Result<(), RangeError> {
    if store.watched() {
        // First: what was declared is stored to by an abort. Who declares keeps the region mapped, announced or not.
        let unprotected = held.open(region, start, len);
        unprotected.map_err(|source| RangeError::Guard { segment: region.segment.name.clone(), source })?;
    }
    match &store.undo {
        Some(undo) => store.save_undo(undo, &mut held, region, start, len),
        None => declare_redo(store, &mut held, region, start, len, restore),
    }?;
    count(held.tally(), len);
    Ok(())
}

#[inline(always)]
fn declare_redo(
    store: &Shared,
    held: &mut Held<'_>,
    region: &RegionState,
    start: usize,
    len: usize,
    restore: bool,
) -> Result<(), RangeError> {
    held.settle(store.page_size, restore);
    let end = start + len;
    let pages = (((end - 1) >> store.page_shift) - (start >> store.page_shift) + 1) << store.page_shift;
    let work = held.work();
    let (body_bytes, page_bytes) =
        (work.body_bytes + range_bytes(len) as u64, work.page_bytes + pages as u64);
    let memory = page_bytes + (work.saved.len() + len) as u64;
    if body_bytes > store.body_max || memory > store.memory_budget() {
        make_room(store, held, start, len, pages)?;
        declare_met(store, held, region, start, len, pages, restore);
        return Ok(());
    }
    if !held.announce_new(region, start, end) {
        declare_met(store, held, region, start, len, pages, restore);
        return Ok(());
    }
    if store.reserve.active() {
        store.reserve.pass_over(held.again(), region, start, end, store.page_size);
    }
    let work = held.work();
    (work.body_bytes, work.page_bytes) = (body_bytes, page_bytes);
    if restore {
        let old = Undo { start, len };
        work.undo.push(old);
        save(&mut work.saved, region, old);
    }
    Ok(())
}

/// Declares a range that touches others, or one of very many.
#[cold]
#[inline(never)]
fn declare_met(
    store: &Shared,
    held: &mut Held<'_>,
    region: &RegionState,
    start: usize,
    len: usize,
    pages: usize,
    restore: bool,
) {
    let mut undo = std::mem::take(&mut held.work().undo);
    let from = undo.len();
    held.announce(region, start, start + len, &mut undo);
    store.reserve.pass(start, start + len, store.page_size);
    let tally = held.tally();
    let work = held.work();
    let mut fresh = 0;
    for gap in &undo[from..] {
        fresh += gap.len;
        work.body_bytes += range_bytes(gap.len) as u64;
        if restore {
            save(&mut work.saved, region, *gap);
        }
    }
    work.page_bytes += if fresh > 0 { pages as u64 } else { 0 };
    if !restore {
        undo.truncate(from);
    }
    work.undo = undo;
    tally.duplicate_bytes.add((len - fresh) as u64);
}

/// The running bounds count overlapping ranges and pages twice: counts exactly before refusing.
#[cold]
fn make_room(
    store: &Shared,
    held: &mut Held<'_>,
    start: usize,
    len: usize,
    pages: usize,
) -> Result<(), RangeError> {
    if held.covers(start, start + len) {
        return Ok(());
    }
    let (mut body, page_bytes) = (0, held.page_bytes(store.page_size));
    held.each(|_, start, end| body += pieces(end - start).map(range_bytes).sum::<usize>() as u64);
    let work = held.work();
    (work.body_bytes, work.page_bytes) = (body, page_bytes);
    let needed = body + range_bytes(len) as u64;
    if needed > store.body_max {
        let capacity = store.live().log.capacity();
        let needed = ((needed + FRAME as u64) * 2).next_multiple_of(1 << 20);
        return Err(RangeError::LogTooSmall { needed, capacity });
    }
    let needed = page_bytes + (pages + work.saved.len() + len) as u64;
    let budget = store.memory_budget();
    if needed > budget { Err(RangeError::MemoryTooSmall { needed, budget }) } else { Ok(()) }
}

/// Copies the old bytes of a range to the end of `saved`.
#[inline(always)]
fn save(saved: &mut Vec<u8>, region: &RegionState, gap: Undo) {
    if saved.capacity() - saved.len() < gap.len {
        saved.reserve(gap.len.max(SHORT));
    }
    // SAFETY: there is room now.
    unsafe { append(saved, region, gap) };
}

/// The same, where it was seen that there is room.
///
/// # Safety
/// `saved` must have room for as many bytes.
#[inline(always)]
unsafe fn append(saved: &mut Vec<u8>, region: &RegionState, gap: Undo) {
    let at = saved.len();
    debug_assert!(saved.capacity() - at >= gap.len, "nobody saw whether there is room");
    // SAFETY: `gap` lies within the mapped region; there is room, and all is written before the length says so.
    unsafe {
        span::copy(region.pointer(gap.start), saved.as_mut_ptr().add(at), gap.len);
        saved.set_len(at + gap.len);
    }
}

fn pieces(len: usize) -> impl Iterator<Item = usize> {
    (0..len).step_by(PIECE).map(move |at| PIECE.min(len - at))
}

#[inline(always)]
fn fill(held: &Held<'_>, body: &mut Body) {
    let mut put = |region: &RegionState, start: usize, end: usize| {
        // SAFETY: an announced range lies in a region that stays mapped until the slot is released. Ranges of one record
        // in the stage are far shorter than a piece.
        unsafe { body.range(region.id, region.offset_of(start), region.pointer(start), end - start) }
    };
    match held.small() {
        Some(ranges) => {
            for (region, start, end) in ranges {
                put(region, start, end);
            }
        }
        None => held.each(put),
    }
}

/// Writes old values back into memory.
pub(crate) fn restore(store: &Shared, held: &mut Held<'_>) {
    let _permit = store.permit();
    held.settle(store.page_size, true);
    let work = held.work();
    let mut at = 0;
    let mut region: Option<std::sync::Arc<RegionState>> = None;
    for undo in &work.undo {
        let inside = |r: &RegionState| undo.start >= r.base && undo.start < r.base + r.len();
        if !region.as_deref().is_some_and(inside) {
            region = store.region_at(undo.start);
        }
        let region = region.as_ref().expect("an announced range is mapped");
        // SAFETY: the range was within the region when it was announced, and regions never shrink;
        // `saved` holds as many bytes for it.
        unsafe { span::copy(work.saved.as_ptr().add(at), region.pointer(undo.start), undo.len) };
        at += undo.len;
    }
}

impl Drop for Transaction<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            undo_all(self.store, held, self.mode, self.saved);
        }
    }
}

/// Ends a transaction with nothing changed.
#[cold]
#[inline(never)]
fn undo_all(store: &Shared, mut held: Held<'_>, mode: Mode, saved: u64) {
    held.tally().ranges.add(saved >> 32);
    held.tally().declared_bytes.add(u64::from(saved as u32));
    if let Some(undo) = &store.undo {
        // Old values are there in either mode.
        if !planted("undo-not-restored") {
            store.restore_undo(undo, &mut held);
        }
        held.tally().aborted.add(1);
        store.release(held);
        return;
    }
    let mut changed = false;
    held.each(|_, _, _| changed = true);
    if mode == Mode::NoRestore && changed && !store.declared_only && store.failure().is_ok() {
        // The memory may hold changes that can neither be kept nor undone. The slot stays taken for
        // good, so that no truncation writes those pages from memory; reopening the store clears it.
        tracing::error!(
            "a no-restore transaction was dropped without commit; its pages stay as they are in memory and are lost at the next opening"
        );
        held.suspend();
        return;
    }
    if mode == Mode::Restore && !planted("abort-without-undo") {
        restore(store, &mut held);
    }
    store.note_aborted(&held);
    held.tally().aborted.add(1);
    store.release(held);
}
