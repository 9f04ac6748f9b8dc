//! Slots: what each uncommitted transaction has announced that it changes (the page vector's uncommitted
//! counts of RVM, section 5.1.2, turned round).
//!
//! Truncation must not write a page that an uncommitted transaction has declared. Counting per page
//! would cost the hot path two atomic read-modify-writes per range; instead each transaction lists its
//! ranges in its own slot with plain stores, and truncation, which is rare, reads all slots:
//!
//! ```text
//!   transaction: announce range - light barrier - any page reserved?  - save old value - store
//!   truncation:  reserve pages  - heavy barrier - any slot has the page? - copy - release
//! ```
//!
//! At least one of the two sees the other (`caliburn_os::barrier`). The announced list is at the same time
//! the set of ranges that the commit will log: disjoint, adjacent ones joined (the intra-transaction
//! optimisation, section 5.2). The first [`ANNOUNCED`] stand in the slot itself, more in a tree.

use crate::guard::Opened;
use crate::options::MEMORY_BUDGET_MIN;
use crate::region::RegionState;
use caliburn_log::format::range_bytes;
use caliburn_log::undo::UndoLog;
use caliburn_os::barrier;
use caliburn_os::ordinal;
use caliburn_os::simulated::planted;
use caliburn_os::sync::Mutex;
use caliburn_os::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::io;
use std::ptr;
use std::sync::{Arc, OnceLock};

/// Ranges that a slot holds without a tree.
pub(crate) const ANNOUNCED: usize = 16;
/// The longest range that is called short.
pub(crate) const SHORT: usize = 2048;

/// The longest range that may be declared without an account: 0 where a slot full of short ones may be too much for a
/// record's body of `body_max` bytes or for the memory budget.
pub(crate) fn short_max(body_max: u64, page: usize) -> usize {
    let body = ANNOUNCED * range_bytes(SHORT);
    let memory = ANNOUNCED * (SHORT + SHORT.next_multiple_of(page) + page);
    if body as u64 <= body_max && memory as u64 <= MEMORY_BUDGET_MIN { SHORT } else { 0 }
}

/// One transaction's announcements and working memory, reused from one transaction to the next.
#[repr(align(128))]
pub(crate) struct Slot {
    spilled: AtomicBool,
    count: AtomicU32,
    /// Odd while a transaction has the slot, and then its number.
    turn: AtomicU64,
    /// Its place among all slots.
    number: usize,
    announced: [Announced; ANNOUNCED],
    /// Where the region begins that is announced as a whole; 0: none.
    region: AtomicUsize,
    spill: Mutex<BTreeMap<usize, Spilled>>,
    tally: Tally,
    work: UnsafeCell<Work>,
}

// SAFETY: `work` is reached only through `Held`, of which there is one per held slot; the region
// pointers are compared or dereferenced only while their regions cannot be unmapped (see `Held::each`).
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

/// `start == end` marks an entry that was joined to another.
#[derive(Default)]
struct Announced {
    start: AtomicUsize,
    end: AtomicUsize,
}

#[derive(Clone, Copy)]
struct Spilled {
    end: usize,
    region: *const RegionState,
}

/// Counters kept by the slot's holder alone: plain loads and stores.
#[derive(Default)]
pub(crate) struct Tally {
    pub aborted: Count,
    pub ranges: Count,
    pub declared_bytes: Count,
    pub joined_ranges: Count,
    pub duplicate_bytes: Count,
    pub body_bytes: Count,
}

/// A counter with one writer at a time.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What only the holder touches.
pub(crate) struct Work {
    regions: [*const RegionState; ANNOUNCED],
    /// Old values: where they belong, and the bytes one after the other.
    pub undo: Vec<Undo>,
    pub saved: Vec<u8>,
    /// The same with the undo policy, where they survive the process.
    pub log: UndoLog,
    saved_last: SavedLast,
    /// Regions that the transaction may store to, where regions are guarded.
    pub opened: Vec<Opened>,
    /// Upper bound of the record's body in bytes; exact unless ranges were joined. This and what follows hold for a
    /// transaction that is `settled`.
    pub body_bytes: u64,
    /// Ranges were joined, or are in the tree.
    pub joined: bool,
    /// The ranges are accounted for: see [`Held::settle`]. Also false where nobody will ask: with the undo policy, and in
    /// the slots of prepared transactions that recovery found.
    pub settled: bool,
    /// Upper bound of the memory for private copies of the pages declared.
    pub page_bytes: u64,
}

/// The range saved last by the transaction with that turn.
#[derive(Clone, Copy, Default)]
struct SavedLast {
    turn: u64,
    start: usize,
    end: usize,
}

/// An old value.
#[derive(Clone, Copy)]
pub(crate) struct Undo {
    pub start: usize,
    pub len: usize,
}

impl Slot {
    fn new(number: usize) -> Slot {
        Slot {
            number,
            spilled: AtomicBool::new(false),
            count: AtomicU32::new(0),
            turn: AtomicU64::new(0),
            announced: Default::default(),
            region: AtomicUsize::new(0),
            spill: Mutex::default(),
            tally: Tally::default(),
            work: UnsafeCell::new(Work {
                regions: [ptr::null(); ANNOUNCED],
                undo: Vec::new(),
                saved: Vec::new(),
                log: UndoLog::default(),
                saved_last: SavedLast::default(),
                opened: Vec::new(),
                body_bytes: 0,
                joined: false,
                settled: false,
                page_bytes: 0,
            }),
        }
    }
}

impl Slot {
    /// Whether the transaction in this slot announced any byte of `[start, end)`.
    pub fn touches(&self, start: usize, end: usize) -> bool {
        let region = self.region.load(Ordering::Acquire);
        if region != 0 && (start..end).contains(&region) {
            return true;
        }
        // The count is read anew at each step: while this looks, a range found at one entry may be joined
        // into one further on. Whoever finds an entry emptied then sees the count that covers its new place.
        let counted = |i: &usize| *i < self.count.load(Ordering::Acquire) as usize;
        let small = (0..ANNOUNCED).take_while(counted).map(|i| &self.announced[i]).any(|a| {
            let (s, e) = (a.start.load(Ordering::Acquire), a.end.load(Ordering::Acquire));
            s < end && e > start
        });
        small || (self.spilled.load(Ordering::Acquire) && self.spill_touches(start, end))
    }

    fn spill_touches(&self, start: usize, end: usize) -> bool {
        let spill = self.spill.lock().expect("no panic under this lock");
        spill.range(..end).next_back().is_some_and(|(_, s)| s.end > start)
    }

    /// The turn of the transaction in this slot, if it is held.
    pub fn holder(&self) -> Option<u64> {
        Some(self.turn.load(Ordering::Acquire)).filter(|turn| turn % 2 == 1)
    }

    /// Transactions that had this slot and committed.
    pub fn committed(&self) -> u64 {
        (self.turn.load(Ordering::Acquire) / 2).saturating_sub(self.tally.aborted.get())
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Nothing is announced any more but the region.
    fn withdraw(&self) {
        self.count.store(0, Ordering::Release);
        if self.spilled.load(Ordering::Relaxed) {
            self.spilled.store(false, Ordering::Release);
            self.spill.lock().expect("no panic under this lock").clear();
        }
    }

    /// Nobody has it any more.
    #[inline(always)]
    fn free(&self) {
        self.turn.store(self.turn.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

/// A slot in the hands of one transaction.
pub(crate) struct Held<'t> {
    slot: &'t Slot,
}

impl<'t> Held<'t> {
    /// Another handle, while this one is borrowed: for what is called out of line. This one need not be in memory then.
    #[inline(always)]
    pub fn again(&mut self) -> Held<'t> {
        Held { slot: self.slot }
    }

    /// Leaves the slot held, to be taken up again by [`Slots::resume`].
    pub fn suspend(self) -> usize {
        self.slot.number
    }

    /// Identifies the transaction among all of this opening of the store.
    pub fn id(&self) -> u64 {
        self.slot.turn.load(Ordering::Relaxed) << 24 | self.slot.number as u64
    }

    #[inline(always)]
    pub fn work(&mut self) -> &mut Work {
        // SAFETY: one `Held` exists per held slot, and it is borrowed mutably here.
        unsafe { &mut *self.slot.work.get() }
    }

    pub fn tally(&self) -> &'t Tally {
        &self.slot.tally
    }

    /// Announces `[start, end)` of `region` if it touches nothing announced before and the slot has room.
    #[inline(always)]
    pub fn announce_new(&mut self, region: &RegionState, start: usize, end: usize) -> bool {
        let slot = self.slot;
        let count = slot.count.load(Ordering::Relaxed) as usize;
        if count == ANNOUNCED {
            return false;
        }
        // An emptied entry, at address 0, meets nothing. Which of two ranges lies higher is anybody's guess, the
        // processor's as well: no branch depends on it.
        let mut met = false;
        for i in 0..count {
            let (s, e) = self.entry(i);
            met |= (start <= e) & (end >= s);
        }
        if met {
            return false;
        }
        slot.announced[count].start.store(start, Ordering::Relaxed);
        slot.announced[count].end.store(end, Ordering::Relaxed);
        self.work().regions[count] = region;
        slot.count.store(count as u32 + 1, Ordering::Release);
        true
    }

    /// Announces a short range as [`Held::announce_new`] does, if there is room for its old value or none is kept. It is
    /// not accounted for, so all that was announced before must have been such, too.
    #[inline(always)]
    pub fn announce_short(&mut self, region: &RegionState, start: usize, len: usize, restore: bool) -> bool {
        let work = self.work();
        let room = !restore || work.saved.capacity() - work.saved.len() >= len;
        room && !work.settled && self.announce_new(region, start, start + len)
    }

    /// Accounts for the short ranges announced so far: for whoever declares others, or wants the old values.
    #[inline]
    pub fn settle(&mut self, page: usize, restore: bool) {
        let settled = std::mem::replace(&mut self.work().settled, true);
        let some = self.slot.count.load(Ordering::Relaxed) > 0;
        if !settled && some && !planted("short-ranges-unsettled") {
            self.account(page, restore);
        }
    }

    #[inline(never)]
    fn account(&mut self, page: usize, restore: bool) {
        let entries = self.slot.count.load(Ordering::Relaxed) as usize;
        for i in 0..entries {
            let (start, end) = self.entry(i);
            let work = self.work();
            work.body_bytes += range_bytes(end - start) as u64;
            work.page_bytes += (end.next_multiple_of(page) - start / page * page) as u64;
            if restore {
                work.undo.push(Undo { start, len: end - start });
            }
        }
    }

    /// Bytes that the ranges take in a record, if all are short ones not accounted for.
    #[inline(always)]
    pub fn short_bytes(&mut self) -> Option<usize> {
        let count = self.slot.count.load(Ordering::Relaxed) as usize;
        if count == 0 || self.work().settled {
            return None;
        }
        Some(
            (0..count.min(ANNOUNCED))
                .map(|i| self.entry(i))
                .map(|(start, end)| range_bytes(end - start))
                .sum(),
        )
    }

    /// Takes back what [`Held::announce_new`] announced last, before anything was read or stored there.
    pub fn take_back(&mut self) {
        self.slot.count.store(self.slot.count.load(Ordering::Relaxed) - 1, Ordering::Release);
    }

    /// Announces all of `region`, where nobody asks for ranges one by one. `first`: no other was announced.
    #[inline(always)]
    pub fn announce_region(&mut self, region: &RegionState, first: bool) {
        if first {
            self.slot.region.store(region.base, Ordering::Release);
        } else {
            self.again().announce_another(region);
        }
    }

    /// Whether the range last given to [`Held::saves`] in this transaction covers `[start, end)`.
    pub fn saved_last(&mut self, start: usize, end: usize) -> bool {
        let turn = self.slot.turn.load(Ordering::Relaxed);
        let last = self.work().saved_last;
        last.turn == turn && last.start <= start && end <= last.end
    }

    /// Remembers a range whose old value was saved, and announces its region.
    pub fn saves(&mut self, region: &RegionState, start: usize, end: usize) {
        let turn = self.slot.turn.load(Ordering::Relaxed);
        self.work().saved_last = SavedLast { turn, start, end };
        let announced = self.slot.region.load(Ordering::Relaxed);
        if announced != region.base {
            self.announce_region(region, announced == 0);
        }
    }

    #[cold]
    #[inline(never)]
    fn announce_another(self, region: &RegionState) {
        let slot = self.slot;
        let count = slot.count.load(Ordering::Relaxed) as usize;
        let (start, end) = (region.base, region.base + region.len());
        let known = slot.region.load(Ordering::Relaxed) == start;
        if known || (0..count).any(|i| self.entry(i) == (start, end)) {
            return;
        }
        if let Some(entry) = slot.announced.get(count) {
            entry.start.store(start, Ordering::Relaxed);
            entry.end.store(end, Ordering::Relaxed);
            slot.count.store(count as u32 + 1, Ordering::Release);
        } else {
            slot.spill.lock().expect("no panic under this lock").insert(start, Spilled { end, region });
            slot.spilled.store(true, Ordering::Release);
        }
    }

    /// Announces `[start, end)` of `region` and lists the parts not announced before. On return
    /// truncation sees the range; the caller then looks for reservations before it stores.
    pub fn announce(&mut self, region: &RegionState, start: usize, end: usize, gap: &mut Vec<Undo>) {
        if !self.slot.spilled.load(Ordering::Relaxed) {
            if self.announce_new(region, start, end) {
                gap.push(Undo { start, len: end - start });
                return;
            }
            self.work().joined = true;
            if self.join(region, start, end, gap) {
                return;
            }
            self.spill();
        }
        self.announce_spilled(region, start, end, gap);
    }

    #[inline(always)]
    fn entry(&self, i: usize) -> (usize, usize) {
        let a = &self.slot.announced[i];
        (a.start.load(Ordering::Relaxed), a.end.load(Ordering::Relaxed))
    }

    /// Joins a range to those in the slot that it overlaps or adjoins. False if there are none and no room.
    fn join(&mut self, region: &RegionState, start: usize, end: usize, gap: &mut Vec<Undo>) -> bool {
        let slot = self.slot;
        let count = slot.count.load(Ordering::Relaxed) as usize;
        let mut met: Vec<(usize, usize, usize)> = (0..count)
            .map(|i| (self.entry(i), i))
            .map(|((s, e), i)| (s, e, i))
            .filter(|&(s, e, _)| start <= e && end >= s && e > s)
            .collect();
        met.retain(|&(_, _, i)| ptr::eq(self.work().regions[i], region));
        if met.is_empty() {
            // Adjoins a range of another region only, or the slot is full: the tree tells them apart.
            return false;
        }
        met.sort_unstable();
        let (low, high) = uncovered(start, end, met.iter().map(|&(s, e, _)| (s, e)), gap);
        // A reader goes through the entries upwards. The last of those met becomes the whole range, then the
        // others are emptied: whoever finds one empty comes to the whole range later.
        let last = met.iter().map(|&(_, _, i)| i).max().expect("some were met");
        slot.announced[last].start.store(low, Ordering::Release);
        let high = if planted("joined-range-cut-off") { met[0].1 } else { high };
        slot.announced[last].end.store(high, Ordering::Release);
        for i in met.iter().map(|&(_, _, i)| i).filter(|i| *i != last) {
            slot.announced[i].end.store(0, Ordering::Release);
            slot.announced[i].start.store(0, Ordering::Release);
        }
        self.slot.tally.joined_ranges.add(met.len() as u64);
        true
    }

    /// Goes over to the tree. The entries in the slot stay announced, and it is full from now on: what stood there
    /// only would not be logged.
    #[cold]
    fn spill(&mut self) {
        let slot = self.slot;
        let mut spill = slot.spill.lock().expect("no panic under this lock");
        for i in 0..slot.count.load(Ordering::Relaxed) as usize {
            let (start, end) = self.entry(i);
            if end > start {
                spill.insert(start, Spilled { end, region: self.work().regions[i] });
            }
        }
        slot.spilled.store(true, Ordering::Release);
        if !planted("spilled-slot-not-full") {
            let count = slot.count.load(Ordering::Relaxed) as usize;
            for entry in &slot.announced[count..] {
                entry.end.store(0, Ordering::Relaxed);
                entry.start.store(0, Ordering::Relaxed);
            }
            slot.count.store(ANNOUNCED as u32, Ordering::Release);
        }
    }

    fn announce_spilled(&mut self, region: &RegionState, start: usize, end: usize, gap: &mut Vec<Undo>) {
        let mut spill = self.slot.spill.lock().expect("no panic under this lock");
        let mut met: Vec<(usize, usize)> = spill
            .range(..=end)
            .rev()
            .map(|(s, spilled)| (*s, *spilled))
            .take_while(|(_, spilled)| spilled.end >= start)
            .filter(|(_, spilled)| ptr::eq(spilled.region, region))
            .map(|(s, spilled)| (s, spilled.end))
            .collect();
        met.reverse();
        let (low, high) = uncovered(start, end, met.iter().copied(), gap);
        for (s, _) in &met {
            spill.remove(s);
        }
        spill.insert(low, Spilled { end: high, region });
        self.slot.tally.joined_ranges.add(met.len() as u64);
    }

    /// Whether all of `[start, end)` is announced already.
    pub fn covers(&self, start: usize, end: usize) -> bool {
        if self.slot.spilled.load(Ordering::Relaxed) {
            let spill = self.slot.spill.lock().expect("no panic under this lock");
            return spill.range(..=start).next_back().is_some_and(|(_, s)| s.end >= end);
        }
        (0..self.slot.count.load(Ordering::Relaxed) as usize)
            .map(|i| self.entry(i))
            .any(|(s, e)| s <= start && end <= e)
    }

    /// The ranges to log, if they all stand in the slot: each with its region.
    #[inline(always)]
    pub fn small(&self) -> Option<impl Iterator<Item = (&RegionState, usize, usize)>> {
        if self.slot.spilled.load(Ordering::Relaxed) {
            return None;
        }
        let count = (self.slot.count.load(Ordering::Relaxed) as usize).min(ANNOUNCED);
        // SAFETY: the slot's work is ours while we hold it, and nothing borrows it mutably meanwhile.
        let regions = unsafe { &(*self.slot.work.get()).regions };
        Some((0..count).filter_map(move |i| {
            let (start, end) = self.entry(i);
            // SAFETY: an announced region is not unmapped (Shared::unmap looks at the slots), so the
            // pointer is good until this slot is released.
            (end > start).then(|| (unsafe { &*regions[i] }, start, end))
        }))
    }

    /// The ranges to log: disjoint, none adjoining another of its region.
    pub fn each(&self, mut visit: impl FnMut(&RegionState, usize, usize)) {
        match self.small() {
            Some(ranges) => ranges.for_each(|(region, start, end)| visit(region, start, end)),
            None => {
                let spill = self.slot.spill.lock().expect("no panic under this lock");
                for (start, spilled) in spill.iter() {
                    // SAFETY: as in `small`.
                    visit(unsafe { &*spilled.region }, *start, spilled.end);
                }
            }
        }
    }

    /// Bytes of whole pages under the announced ranges.
    pub fn page_bytes(&self, page: usize) -> u64 {
        let (mut total, mut last) = (0u64, 0);
        let mut sorted = Vec::new();
        self.each(|_, start, end| sorted.push((start / page, end.div_ceil(page))));
        sorted.sort_unstable();
        for (first, end) in sorted {
            let first = first.max(last);
            if end > first {
                total += ((end - first) * page) as u64;
                last = end;
            }
        }
        total
    }

    /// Lets the transaction store to bytes of a region that it has announced.
    pub fn open(&mut self, region: &Arc<RegionState>, start: usize, len: usize) -> io::Result<()> {
        let opened = &mut self.work().opened;
        let at = opened.iter().position(|opened| opened.is(region)).unwrap_or_else(|| {
            opened.push(Opened::new(region));
            opened.len() - 1
        });
        opened[at].open(region, start, len)
    }

    /// Ends a transaction that kept nothing in the slot but the regions that it announced.
    #[inline(always)]
    pub fn release_light(self) {
        self.slot.region.store(0, Ordering::Release);
        if self.slot.count.load(Ordering::Relaxed) != 0 {
            self.slot.withdraw();
        }
        self.slot.free();
    }

    /// Ends a transaction whose ranges are not accounted for.
    #[inline(always)]
    pub fn release_short(mut self) {
        self.work().saved.clear();
        self.slot.count.store(0, Ordering::Release);
        self.slot.free();
    }

    /// Ends the transaction: nothing is announced any more. All its stores, and its record, come before.
    #[inline]
    pub fn release(mut self) {
        let slot = self.slot;
        let work = self.work();
        work.opened.clear();
        work.undo.clear();
        work.saved.clear();
        if work.saved.capacity() > 1 << 20 || work.undo.capacity() > 1 << 16 {
            (work.saved, work.undo) = (Vec::new(), Vec::new());
        }
        (work.body_bytes, work.page_bytes) = (0, 0);
        (work.joined, work.settled) = (false, false);
        slot.region.store(0, Ordering::Release);
        slot.withdraw();
        slot.free();
    }
}

/// The parts of `[start, end)` that none of `met` (sorted, disjoint, touching it) covers, and the hull.
fn uncovered(
    start: usize,
    end: usize,
    met: impl Iterator<Item = (usize, usize)>,
    gap: &mut Vec<Undo>,
) -> (usize, usize) {
    let (mut low, mut high, mut at) = (start, end, start);
    for (s, e) in met {
        if s > at {
            gap.push(Undo { start: at, len: s.min(end) - at });
        }
        at = at.max(e);
        low = low.min(s);
        high = high.max(e);
    }
    if at < end {
        gap.push(Undo { start: at, len: end - at });
    }
    (low, high)
}

/// All slots of a store. Grows, never shrinks; a slot's address never changes.
pub(crate) struct Slots {
    /// Those of the threads.
    own: Box<[Slot; FIRST_TIER]>,
    tiers: [OnceLock<Box<[Slot]>>; TIERS],
}

const TIERS: usize = 16;
const FIRST_TIER: usize = 64;

impl Default for Slots {
    fn default() -> Slots {
        barrier::prepare();
        let own: Box<[Slot]> = (0..FIRST_TIER).map(Slot::new).collect();
        Slots {
            own: own.try_into().unwrap_or_else(|_| unreachable!("there are as many")),
            tiers: Default::default(),
        }
    }
}

impl Slots {
    /// Takes a slot: the thread's own, if its number has one and it is free.
    #[inline]
    pub fn hold(&self) -> Held<'_> {
        let number = ordinal::current().number();
        if let Some(slot) = self.own.get(number) {
            // Only the thread with this number ever takes the slot, so looking and taking need not be one step.
            let turn = slot.turn.load(Ordering::Acquire);
            if turn.is_multiple_of(2) {
                slot.turn.store(turn + 1, Ordering::Relaxed);
                return Held { slot };
            }
        }
        self.hold_any()
    }

    #[cold]
    fn hold_any(&self) -> Held<'_> {
        for tier in 0..TIERS {
            for slot in self.tier(tier) {
                let turn = slot.turn.load(Ordering::Relaxed);
                let take =
                    |turn| slot.turn.compare_exchange(turn, turn + 1, Ordering::Acquire, Ordering::Relaxed);
                if turn.is_multiple_of(2) && take(turn).is_ok() {
                    return Held { slot };
                }
            }
        }
        panic!("more than {} transactions are open at the same time", FIRST_TIER << (TIERS + 1));
    }

    /// The slot that a prepared transaction left held.
    pub fn resume(&self, number: usize) -> Held<'_> {
        let (_, slot) = self.iter().nth(number).expect("a held slot is there");
        assert!(slot.holder().is_some(), "a prepared transaction's slot is held");
        Held { slot }
    }

    fn tier(&self, tier: usize) -> &[Slot] {
        self.tiers[tier].get_or_init(|| {
            // Tiers double in size: those before this one, and the threads' own, hold 2^(tier + 1) - 1 first tiers.
            let before = FIRST_TIER * ((2 << tier) - 1);
            (0..FIRST_TIER << (tier + 1)).map(|i| Slot::new(before + i)).collect()
        })
    }

    /// Every slot that was ever used, with its number.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let others = self.tiers.iter().map_while(OnceLock::get).flat_map(|tier| tier.iter());
        self.own.iter().chain(others).enumerate()
    }

    /// Identities of the uncommitted transactions that announced any byte of `[start, end)`.
    pub fn touching(&self, start: usize, end: usize) -> Vec<u64> {
        self.iter()
            .filter(|(_, slot)| slot.touches(start, end))
            .filter_map(|(number, slot)| Some(slot.holder()? << 24 | number as u64))
            .collect()
    }

    /// Number of transactions that are open.
    pub fn open(&self) -> usize {
        self.iter().filter(|(_, slot)| slot.holder().is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;

    /// Ranges are joined in all ways while another thread looks: what was announced is seen all the time.
    #[test]
    fn a_reader_never_misses_an_announced_page() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::options().create(true).log_bytes(1 << 20).open(dir.path().join("s")).unwrap();
        let region = store.create_segment("a", 1 << 16).unwrap().map_all().unwrap();
        let (state, page) = (&*region.state, state_page(&region));
        let slots = Slots::default();
        // Odd while the page is announced.
        let (phase, done) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut looked = 0u64;
                while !done.load(Ordering::Relaxed) {
                    let before = phase.load(Ordering::SeqCst);
                    let seen = slots.iter().any(|(_, slot)| slot.touches(page, page + 4096));
                    if before % 2 == 1 && phase.load(Ordering::SeqCst) == before {
                        looked += 1;
                        assert!(seen, "an announced page was missed");
                    }
                }
                assert!(looked > 0);
            });
            for round in 0..400_000usize {
                let mut held = slots.hold();
                let mut gaps = Vec::new();
                // The page's end, then a range on the next page further on, then what joins them; or the
                // other way round.
                let (one, two) = ((page + 4080, page + 4096), (page + 4104, page + 4120));
                let (first, second) = if round % 2 == 0 { (one, two) } else { (two, one) };
                held.announce(state, first.0, first.1, &mut gaps);
                if round % 2 == 0 {
                    phase.fetch_add(1, Ordering::SeqCst);
                    held.announce(state, second.0, second.1, &mut gaps);
                } else {
                    held.announce(state, second.0, second.1, &mut gaps);
                    phase.fetch_add(1, Ordering::SeqCst);
                }
                held.announce(state, page + 4096, page + 4104, &mut gaps);
                phase.fetch_add(1, Ordering::SeqCst);
                held.release();
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    fn state_page(region: &crate::Region) -> usize {
        region.as_ptr().addr() + 8192
    }
}
