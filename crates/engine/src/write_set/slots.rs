//! Slots: where write sets are found. A transaction claims one, its thread's own if that is free, without a locked
//! instruction; truncation and unmapping, which are rare, read all of them.

use super::run::{Chunk, HEAD, Layout, Ranges, Saved, filled, get_word, word_at};
use super::savepoint::Marks;
use super::set::{Tail, WriteSet};
use caliburn_log::SegmentId;
use caliburn_os::ordinal;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::Mutex;
use caliburn_os::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

/// One transaction's place: its run, counters and working memory, reused from one transaction to the next.
#[repr(align(128))]
pub(crate) struct Slot {
    /// Odd while a transaction has the slot, and then its number.
    turn: AtomicU64,
    /// The run's first chunk; `stub` before there is one.
    pub(super) first: AtomicUsize,
    /// Bytes of ranges that the first chunk takes.
    pub(super) room: AtomicUsize,
    /// Bytes of ranges that may be declared before the policy must think, in the first chunk and in any.
    pub(super) granted: AtomicUsize,
    pub(super) most: AtomicUsize,
    /// What the policy calls the first chunk; [`NONE`] before there is one.
    pub(super) first_number: AtomicU32,
    /// There are further chunks.
    pub(super) extended: AtomicBool,
    /// Its policy knows what is declared without reading the run.
    pub(super) known: AtomicBool,
    /// Its transaction has declared its first range, and waits before it stores there.
    pub(super) stands_by: AtomicBool,
    /// Its place among all slots.
    number: usize,
    /// Of all slots that are no thread's own: [`Slots::vacant`].
    vacant: Arc<AtomicUsize>,
    pub(super) layout: Layout,
    /// Transactions that are to become part of this one.
    pub(super) branches: AtomicU32,
    pub counters: Counters,
    /// The head of a chunk without room.
    stub: [AtomicU64; HEAD / 8],
    pub(super) chunks: Mutex<Chunks>,
    tail: UnsafeCell<Tail>,
    work: UnsafeCell<Scratch>,
}

// SAFETY: `tail` and `work` are reached through the write set of the transaction that has the slot alone.
unsafe impl Sync for Slot {}
// SAFETY: as above; the address in `first` is that of a chunk in `chunks`, or of this slot, which never moves.
unsafe impl Send for Slot {}

/// The chunks of a slot's run.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    pub first: Option<Chunk>,
    pub further: Vec<Chunk>,
    /// One that a transaction gave up, for the next.
    pub spare: Option<Chunk>,
}

/// What only the transaction that has the slot touches.
#[derive(Default)]
pub(super) struct Scratch {
    /// What ways of tracking keep of the transaction, until it ends:
    /// [`WriteSet::with_kept`](super::WriteSet::with_kept).
    pub kept: Vec<Box<dyn Any + Send>>,
    pub marks: Marks,
    /// What the policy keeps of the chunk in use: [`WriteSet::note`](super::WriteSet::note).
    pub note: Option<u64>,
    /// Whose part it is.
    pub parent: Option<NonNull<Slot>>,
}

/// Counters kept by the slot's transaction alone: plain loads and stores.
#[derive(Default)]
pub(crate) struct Counters {
    pub aborted: Count,
    /// Branches that ended here, which are no transactions of their own.
    pub branches: Count,
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

/// No chunk.
pub(super) const NONE: u32 = u32::MAX;

impl Slot {
    fn new(number: usize, vacant: &Arc<AtomicUsize>, layout: Layout) -> Slot {
        Slot {
            turn: AtomicU64::new(0),
            first: AtomicUsize::new(0),
            room: AtomicUsize::new(0),
            granted: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            first_number: AtomicU32::new(NONE),
            extended: AtomicBool::new(false),
            known: AtomicBool::new(false),
            stands_by: AtomicBool::new(false),
            number,
            vacant: vacant.clone(),
            layout,
            branches: AtomicU32::new(0),
            counters: Counters::default(),
            stub: Default::default(),
            chunks: Mutex::default(),
            tail: UnsafeCell::new(Tail {
                word: ptr::null_mut(),
                ranges: ptr::null_mut(),
                room: 0,
                last: (0, 0),
                plain: true,
                keeps_old: false,
            }),
            work: UnsafeCell::default(),
        }
    }

    /// The base of the run's first chunk.
    #[inline(always)]
    pub(super) fn base(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.first.load(Ordering::Acquire))
    }

    /// Called when the slot is where it stays.
    fn install(&self, most: usize) {
        self.first.store(self.stub.as_ptr().expose_provenance(), Ordering::Release);
        // SAFETY: nobody else knows of the slot yet.
        let tail = unsafe { self.tail() };
        (tail.word, tail.ranges) = (self.base(), self.base().wrapping_add(HEAD));
        self.grant(most);
    }

    fn grant(&self, most: usize) {
        // A run that gets its first chunk meanwhile has the lock.
        let _chunks = self.chunks.lock().expect("no panic under this lock");
        self.most.store(most, Ordering::Relaxed);
        self.regrant();
    }

    /// What of its run only the transaction that has the slot changes.
    #[inline(always)]
    pub(super) fn tail_at(&self) -> *mut Tail {
        self.tail.get()
    }

    pub(super) fn scratch_at(&self) -> *mut Scratch {
        self.work.get()
    }

    pub(super) fn regrant(&self) {
        let most = self.most.load(Ordering::Relaxed);
        self.granted.store(most.min(self.room.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// # Safety
    /// As for [`Slot::scratch`].
    #[allow(clippy::mut_from_ref, reason = "that is the contract")]
    #[inline(always)]
    pub(super) unsafe fn tail(&self) -> &mut Tail {
        // SAFETY: the caller's word.
        unsafe { &mut *self.tail.get() }
    }

    /// # Safety
    /// Only for the write set of the transaction that has the slot, which must not hold another such reference.
    #[allow(clippy::mut_from_ref, reason = "that is the contract")]
    #[inline(always)]
    pub(super) unsafe fn scratch(&self) -> &mut Scratch {
        // SAFETY: the caller's word.
        unsafe { &mut *self.work.get() }
    }

    /// Calls `visit` with every range that the transaction in this slot has declared; perhaps with some that it
    /// has not, if it goes on meanwhile.
    pub fn each_declared(&self, mut visit: impl FnMut(Saved)) {
        if self.holder().is_none() {
            return;
        }
        let base = self.base();
        // SAFETY: the first chunk of a slot stays for good; the word was read in it.
        let ranges = unsafe {
            let word = get_word(word_at(base, true));
            Ranges::of(base, self.room.load(Ordering::Acquire), word, 0, self.layout)
        };
        ranges.for_each(&mut visit);
        // After the first chunk's word: what is moved from there to further chunks is there before it is gone
        // here.
        if unless("further-chunks-unread", self.extended.load(Ordering::Acquire)) {
            let chunks = self.chunks.lock().expect("no panic under this lock");
            for chunk in &chunks.further {
                // SAFETY: a further chunk stays while the lock is held.
                let ranges = unsafe {
                    let word = get_word(word_at(chunk.base(), false));
                    Ranges::of(chunk.base(), chunk.room(), word, 0, self.layout)
                };
                ranges.for_each(&mut visit);
            }
        }
    }

    /// Nobody has it any more.
    #[inline(always)]
    pub(super) fn free(&self) {
        debug_assert!(self.is_clear(), "a transaction left something declared");
        self.turn.store(self.turn.load(Ordering::Relaxed) + 1, Ordering::Release);
        if self.number >= FIRST_TIER {
            self.vacant.fetch_min(self.number, Ordering::Relaxed);
        }
    }

    /// Identifies the transaction that has it among all of this opening of the store.
    pub(super) fn id(&self) -> u64 {
        self.turn.load(Ordering::Relaxed) << 24 | self.number as u64
    }

    /// Its place among all slots.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// The turn of the transaction in this slot, if there is one.
    pub fn holder(&self) -> Option<u64> {
        Some(self.turn.load(Ordering::Acquire)).filter(|turn| turn % 2 == 1)
    }

    /// Transactions that had this slot and committed.
    pub fn committed(&self) -> u64 {
        let others = self.counters.aborted.get() + self.counters.branches.get();
        (self.turn.load(Ordering::Acquire) / 2).saturating_sub(others)
    }

    /// Whether the word of the run's first chunk says that nothing is declared.
    pub(super) fn is_clear(&self) -> bool {
        // SAFETY: the first chunk stays for good.
        filled(unsafe { get_word(word_at(self.base(), true)) }) == 0 && !self.extended.load(Ordering::Relaxed)
    }
}

/// All slots of a store. Grows, never shrinks; a slot's address never changes.
pub(crate) struct Slots {
    /// Those of the threads.
    own: Box<[Slot; FIRST_TIER]>,
    tiers: [OnceLock<Box<[Slot]>>; TIERS],
    /// Those before this number, beyond the threads' own, are mostly in use: where to look for one that is free.
    vacant: Arc<AtomicUsize>,
    layout: Layout,
    /// Bytes of ranges that a transaction may declare before the policy must think: as long as they are not
    /// exceeded, no limit of the store can be. 0: it must see each range.
    most: AtomicUsize,
}

const TIERS: usize = 16;
const FIRST_TIER: usize = 64;

/// Number of a tier's first slot. Tiers double in size: those before this one, and the threads' own, hold
/// 2^(tier + 1) - 1 first tiers.
fn first_of(tier: usize) -> usize {
    FIRST_TIER * ((2 << tier) - 1)
}

impl Slots {
    pub fn new(layout: Layout) -> Slots {
        let vacant = Arc::new(AtomicUsize::new(FIRST_TIER));
        let own: Box<[Slot]> = (0..FIRST_TIER).map(|number| Slot::new(number, &vacant, layout)).collect();
        own.iter().for_each(|slot| slot.install(0));
        Slots {
            own: own.try_into().unwrap_or_else(|_| unreachable!("there are as many")),
            tiers: Default::default(),
            vacant,
            layout,
            most: AtomicUsize::new(0),
        }
    }

    /// Says how much may be declared before the policy must think, from the next transactions on.
    pub fn grant(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
        self.iter().for_each(|(_, slot)| slot.grant(most));
    }

    /// An empty write set in a slot: the thread's own, if its number has one and it is free.
    #[inline]
    pub fn begin(&self, keeps_old: bool) -> WriteSet<'_> {
        let own = ordinal::below(FIRST_TIER).and_then(|number| self.claim_own(number));
        WriteSet::begin(own.unwrap_or_else(|| self.claim_any()), keeps_old)
    }

    #[inline(always)]
    fn claim_own(&self, number: usize) -> Option<&Slot> {
        let slot = self.own.get(number)?;
        // Only the thread with this number ever takes the slot, so looking and taking need not be one step.
        let turn = slot.turn.load(Ordering::Acquire);
        turn.is_multiple_of(2).then(|| {
            slot.turn.store(turn + 1, Ordering::Relaxed);
            slot
        })
    }

    #[cold]
    fn claim_any(&self) -> &Slot {
        // A thread that had no number yet has one now.
        if let Some(slot) = self.claim_own(ordinal::current().number()) {
            return slot;
        }
        let take = |slot: &&Slot| {
            let turn = slot.turn.load(Ordering::Relaxed);
            let exchange =
                |turn| slot.turn.compare_exchange(turn, turn + 1, Ordering::Acquire, Ordering::Relaxed);
            turn.is_multiple_of(2) && exchange(turn).is_ok()
        };
        let from = self.vacant.load(Ordering::Relaxed);
        // One that became free at this moment may lie before.
        let found = self.others(from).find(take).or_else(|| self.others(FIRST_TIER).find(take));
        let made = || (0..TIERS).find_map(|tier| self.tier(tier).iter().find(take));
        let Some(slot) = found.or_else(made) else {
            panic!("more than {} transactions are open at the same time", FIRST_TIER << (TIERS + 1));
        };
        let _ = self.vacant.compare_exchange(from, slot.number + 1, Ordering::Relaxed, Ordering::Relaxed);
        slot
    }

    /// The slots from a number on that were made and are no thread's own.
    fn others(&self, from: usize) -> impl Iterator<Item = &Slot> {
        let made = self.tiers.iter().map_while(OnceLock::get).enumerate();
        made.flat_map(move |(tier, slots)| slots.get(from.saturating_sub(first_of(tier))..).unwrap_or(&[]))
    }

    /// The write set that a prepared transaction left.
    pub fn resume(&self, number: usize) -> WriteSet<'_> {
        let (_, slot) = self.iter().nth(number).expect("a claimed slot is there");
        assert!(slot.holder().is_some(), "a prepared transaction's slot is claimed");
        WriteSet::resume(slot)
    }

    fn tier(&self, tier: usize) -> &[Slot] {
        if self.tiers[tier].get().is_none() {
            let numbers = first_of(tier)..first_of(tier + 1);
            let made: Box<[Slot]> =
                numbers.map(|number| Slot::new(number, &self.vacant, self.layout)).collect();
            made.iter().for_each(|slot| slot.install(self.most.load(Ordering::Relaxed)));
            // Another thread may have been faster.
            let _ = self.tiers[tier].set(made);
            // Nor must it miss what was granted meanwhile.
            let made = self.tiers[tier].get().expect("it was made");
            made.iter().for_each(|slot| slot.grant(self.most.load(Ordering::Relaxed)));
        }
        self.tiers[tier].get().expect("it was made")
    }

    /// Every slot that was ever used, with its number.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let others = self.tiers.iter().map_while(OnceLock::get).flat_map(|tier| tier.iter());
        self.own.iter().chain(others).enumerate()
    }

    /// Calls `visit` with every range that is declared by an open transaction. See [`Slot::each_declared`].
    pub fn each_declared(&self, mut visit: impl FnMut(Saved)) {
        self.iter().for_each(|(_, slot)| slot.each_declared(&mut visit));
    }

    /// The same, but for transactions of which the policy knows it: [`WriteSet::set_known`].
    pub fn each_unknown(&self, mut visit: impl FnMut(Saved)) {
        let unknown = self.iter().filter(|(_, slot)| !slot.known.load(Ordering::Acquire));
        unknown.for_each(|(_, slot)| slot.each_declared(&mut visit));
    }

    /// Identities of the open transactions that declared any byte of a part of a segment.
    pub fn touching(&self, segment: SegmentId, bytes: Range<u64>) -> Vec<u64> {
        let touches = |slot: &Slot| {
            let mut found = false;
            slot.each_declared(|range| {
                let end = range.offset + range.len as u64;
                found |= range.segment == segment && range.offset < bytes.end && end > bytes.start;
            });
            found
        };
        self.iter()
            .filter(|(_, slot)| touches(slot))
            .filter_map(|(number, slot)| Some(slot.holder()? << 24 | number as u64))
            .collect()
    }

    /// In a child that was forked, where there is one thread: open transactions are the parent's. Nothing that is
    /// done with one here is done without a look at whose it is.
    pub fn refuse(&self) {
        if planted("open-transactions-go-on-in-a-child") {
            return;
        }
        for (_, slot) in self.iter() {
            // SAFETY: nobody uses the transaction at this moment, in this process.
            let tail = unsafe { slot.tail() };
            (tail.room, tail.last, tail.plain) = (0, (0, 0), false);
        }
    }

    /// Number of transactions that are open.
    pub fn open(&self) -> usize {
        self.iter().filter(|(_, slot)| slot.holder().is_some()).count()
    }
}
