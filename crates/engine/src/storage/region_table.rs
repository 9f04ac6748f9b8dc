//! Which region is where, for those who must not wait: looked up by address or by place in a segment, without a
//! lock and without counting a reference.
//!
//! The caller that looks up an address or a place has declared it, or vouches that its region stays mapped; so
//! what is found can be used. Entries of other regions may come and go while they are looked at: each has a
//! version, odd while it changes.
//!
//! Invariant: the entry of a mapped region never changes but for its length, which is there before the region
//! says so: what is declared in a region is found.

use crate::storage::region::RegionState;
use caliburn_log::SegmentId;
use caliburn_os::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock};

/// The mapped regions. Changed under the lock of the list of regions.
#[derive(Default)]
pub(crate) struct RegionTable {
    few: [Entry; FEW],
    more: [OnceLock<Box<[Entry]>>; TIERS],
    /// Entries that were ever used.
    used: AtomicUsize,
    by_base: Order,
    by_place: Order,
    numbers: Mutex<Numbers>,
}

/// Entries that are used, in an order, for those who look among many. What it says is a hint: while it changes, one
/// may be missed.
#[derive(Default)]
struct Order {
    /// The one in use is the first that was not outgrown; each has room for twice as many as that before.
    tiers: [OnceLock<Box<[AtomicU32]>>; TIERS],
    tier: AtomicUsize,
    len: AtomicUsize,
}

/// Which entry a region has, by its address, and which have none.
#[derive(Default)]
struct Numbers {
    of: BTreeMap<usize, usize>,
    /// The first are looked at first.
    vacant: BTreeSet<usize>,
}

const FEW: usize = 8;
const TIERS: usize = 24;

#[derive(Default)]
struct Entry {
    version: AtomicU64,
    segment: AtomicU64,
    start: AtomicU64,
    base: AtomicUsize,
    /// 0: there is no region.
    len: AtomicUsize,
    region: AtomicUsize,
}

/// What an entry says.
struct Placed {
    segment: u64,
    start: u64,
    base: usize,
    len: usize,
    region: usize,
}

impl Entry {
    #[inline(always)]
    fn read(&self) -> Option<Placed> {
        let version = self.version.load(Ordering::Acquire);
        let place = Placed {
            segment: self.segment.load(Ordering::Relaxed),
            start: self.start.load(Ordering::Relaxed),
            base: self.base.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            region: self.region.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        (version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version).then_some(place)
    }

    fn write(&self, place: Placed) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.segment.store(place.segment, Ordering::Relaxed);
        self.start.store(place.start, Ordering::Relaxed);
        self.base.store(place.base, Ordering::Relaxed);
        self.len.store(place.len, Ordering::Relaxed);
        self.region.store(place.region, Ordering::Relaxed);
        self.version.store(version + 2, Ordering::Release);
    }
}

impl Order {
    fn tier(&self, number: usize) -> &[AtomicU32] {
        let make = || (0..FEW << number).map(|_| AtomicU32::default()).collect();
        self.tiers[number].get_or_init(make)
    }

    fn get(&self, at: usize) -> Option<u32> {
        let tier = self.tier(self.tier.load(Ordering::Acquire));
        tier.get(at).map(|number| number.load(Ordering::Acquire))
    }

    /// How many come before the first that does not.
    fn partition(&self, before: impl Fn(u32) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len.load(Ordering::Acquire));
        while low < high {
            let middle = low.midpoint(high);
            if self.get(middle).is_some_and(&before) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn insert(&self, at: usize, number: u32) {
        let len = self.len.load(Ordering::Relaxed);
        let last = self.tier.load(Ordering::Relaxed);
        if len == self.tier(last).len() {
            for (to, from) in self.tier(last + 1).iter().zip(self.tier(last)) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            self.tier.store(last + 1, Ordering::Release);
        }
        let tier = self.tier(self.tier.load(Ordering::Relaxed));
        for place in (at..len).rev() {
            tier[place + 1].store(tier[place].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        tier[at].store(number, Ordering::Release);
        self.len.store(len + 1, Ordering::Release);
    }

    fn remove(&self, number: u32) {
        let len = self.len.load(Ordering::Relaxed);
        let tier = self.tier(self.tier.load(Ordering::Relaxed));
        let at = tier[..len].iter().position(|other| other.load(Ordering::Relaxed) == number);
        let at = at.expect("a region that is noted is in every order");
        for place in at + 1..len {
            tier[place - 1].store(tier[place].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.len.store(len - 1, Ordering::Release);
    }
}

impl RegionTable {
    fn entry(&self, number: usize) -> &Entry {
        if let Some(entry) = self.few.get(number) {
            return entry;
        }
        // Tiers double in size: those before hold FEW, and 2^tier - 1 times as many.
        let tier = (number / FEW).ilog2() as usize;
        let first = FEW << tier;
        let make = || (0..first).map(|_| Entry::default()).collect();
        &self.more[tier].get_or_init(make)[number - first]
    }

    /// The region that `holds`; in the order, nothing that begins beyond it does.
    #[inline(always)]
    fn find(
        &self,
        holds: impl Fn(&Placed) -> bool,
        order: &Order,
        beyond: impl Fn(&Placed) -> bool,
    ) -> Option<usize> {
        let used = self.used.load(Ordering::Acquire);
        let found = self.few[..used.min(FEW)].iter().find_map(|entry| entry.read().filter(&holds));
        let found = if found.is_none() && used > FEW { self.find_more(holds, order, beyond) } else { found };
        found.map(|place| place.region)
    }

    #[cold]
    fn find_more(
        &self,
        holds: impl Fn(&Placed) -> bool,
        order: &Order,
        beyond: impl Fn(&Placed) -> bool,
    ) -> Option<Placed> {
        let read = |number: u32| self.entry(number as usize).read();
        let before = order.partition(|number| read(number).is_some_and(|place| !beyond(&place)));
        let hint = before.checked_sub(1).and_then(|last| order.get(last)).and_then(read);
        let each = || (FEW..self.used.load(Ordering::Acquire)).filter_map(|number| read(number as u32));
        hint.filter(&holds).or_else(|| each().find(&holds))
    }

    /// Nobody waits for it: the table is changed under another lock.
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().expect("no panic under this lock")
    }

    /// Says how long a region is about to be, if it is noted.
    pub fn grow(&self, region: &RegionState, len: usize) {
        let number = self.numbers().of.get(&ptr::from_ref(region).addr()).copied();
        if let Some(number) = number {
            self.entry(number).len.store(len, Ordering::Release);
        }
    }

    /// Notes a region that was mapped.
    pub fn put(&self, region: &RegionState) {
        let address = ptr::from_ref(region).expose_provenance();
        let used = self.used.load(Ordering::Relaxed);
        let number = {
            let mut numbers = self.numbers();
            let number = numbers.vacant.pop_first().unwrap_or(used);
            numbers.of.insert(address, number);
            number
        };
        self.entry(number).write(Placed {
            segment: region.id.0.into(),
            start: region.start,
            base: region.base,
            len: region.len(),
            region: address,
        });
        if number == used {
            self.used.store(used + 1, Ordering::Release);
        }
        let read = |number: u32| self.entry(number as usize).read();
        let place = (u64::from(region.id.0), region.start);
        let before = |number| read(number).is_some_and(|other| other.base < region.base);
        self.by_base.insert(self.by_base.partition(before), number as u32);
        let before = |number| read(number).is_some_and(|other| (other.segment, other.start) < place);
        self.by_place.insert(self.by_place.partition(before), number as u32);
    }

    /// Forgets a region.
    pub fn remove(&self, region: &RegionState) {
        let address = ptr::from_ref(region).addr();
        let number = self.numbers().of.remove(&address);
        if let Some(number) = number {
            self.by_base.remove(number as u32);
            self.by_place.remove(number as u32);
            self.entry(number).write(Placed { segment: 0, start: 0, base: 0, len: 0, region: 0 });
            self.numbers().vacant.insert(number);
        }
    }

    /// The region that holds an address.
    ///
    /// # Safety
    /// If there is one, it must stay mapped as long as what is returned is used.
    pub unsafe fn at<'r>(&self, address: usize) -> Option<&'r RegionState> {
        let holds = |place: &Placed| address.wrapping_sub(place.base) < place.len;
        let beyond = |place: &Placed| place.base > address;
        let found = self.find(holds, &self.by_base, beyond);
        // SAFETY: an entry has the address of a region that is alive; this one stays so by the caller's word.
        found.map(|region| unsafe { &*ptr::with_exposed_provenance(region) })
    }

    /// The region that maps a byte of a segment.
    ///
    /// # Safety
    /// As for [`RegionTable::at`].
    #[inline(always)]
    pub unsafe fn of<'r>(&self, segment: SegmentId, offset: u64) -> Option<&'r RegionState> {
        let holds = |place: &Placed| {
            place.segment == u64::from(segment.0) && offset.wrapping_sub(place.start) < place.len as u64
        };
        let beyond = |place: &Placed| (place.segment, place.start) > (u64::from(segment.0), offset);
        let found = self.find(holds, &self.by_place, beyond);
        // SAFETY: as in `at`.
        found.map(|region| unsafe { &*ptr::with_exposed_provenance(region) })
    }
}

/// The region looked at last, for a walk over declared ranges.
#[derive(Clone, Copy)]
pub(crate) struct RegionCursor<'r> {
    region: Option<&'r RegionState>,
    base: *mut u8,
    start: u64,
    len: u64,
    segment: SegmentId,
}

impl<'r> RegionCursor<'r> {
    #[inline(always)]
    pub fn new() -> RegionCursor<'r> {
        RegionCursor { region: None, base: ptr::null_mut(), start: 0, len: 0, segment: SegmentId(0) }
    }

    /// The region that maps a byte of a segment.
    ///
    /// # Safety
    /// Every region that is asked for must stay mapped as long as the cursor, or what it returned, is used.
    #[inline(always)]
    pub unsafe fn find(
        &mut self,
        table: &RegionTable,
        segment: SegmentId,
        offset: u64,
    ) -> Option<&'r RegionState> {
        if !self.holds(segment, offset) {
            // SAFETY: passed on from the caller.
            let region = unsafe { table.of(segment, offset) }?;
            self.go_to(region);
        }
        self.region
    }

    /// The memory of a byte of a segment, which must be declared.
    ///
    /// # Safety
    /// As for [`RegionCursor::find`].
    #[inline(always)]
    pub unsafe fn bytes(&mut self, table: &RegionTable, segment: SegmentId, offset: u64) -> *mut u8 {
        if !self.holds(segment, offset) {
            // SAFETY: passed on from the caller.
            let region = unsafe { table.of(segment, offset) };
            self.go_to(region.expect("declared bytes are mapped"));
        }
        self.base.wrapping_add((offset - self.start) as usize)
    }

    #[inline(always)]
    fn holds(&self, segment: SegmentId, offset: u64) -> bool {
        segment == self.segment && offset.wrapping_sub(self.start) < self.len
    }

    #[inline(always)]
    fn go_to(&mut self, region: &'r RegionState) {
        *self = RegionCursor {
            region: Some(region),
            base: region.at(0),
            start: region.start,
            len: region.len() as u64,
            segment: region.id,
        };
    }
}
