//! Blocks: a segment that is read and written a block at a time (*Persistent Memory for HP-UX*, section 4). Each has
//! a checksum, made when it is written and looked at when it is read; a write of one or several happens wholly or
//! not at all, with one fence.
//!
//! ```text
//!   write:  lock the block; take a lane, and a free place
//!           bytes -> place   number -> lane   entry -> the older of the block's two entries
//!           fence
//!           the place of what the block was before is free
//! ```
//!
//! Nothing orders these stores among themselves: what a crash leaves of them is told by the entry's sum
//! ([`recovery`]). Several blocks are listed in the lane besides.
//!
//! Invariant: of a block, the newest entry that has lasted, and its bytes, are not touched until a newer one has.

mod entry;
mod epoch;
mod lane;
mod mend;
mod places;
mod ranges;
mod recovery;
mod span;
mod transaction;

use crate::attached::Attached;
use crate::error::{Error, Result};
use crate::format::ENTRY;
use crate::geometry::Geometry;
use crate::memory::{Force, Memory};
use caliburn_os::ordinal;
use caliburn_os::simulated::{instead, planted, unless};
use caliburn_os::sync::{Mutex, MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use entry::{Entry, FIRST, NOWHERE, Slot, newest, next};
use epoch::Epoch;
use lane::{Lane, LaneWords};
use ranges::RangeLocks;
use recovery::{Found, by_block};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
pub use transaction::Transaction;

/// A segment of blocks, attached. Given up when dropped; who wants to know whether what was written last lasts has
/// [`Blocks::flush`] say so before.
#[derive(Debug)]
pub struct Blocks {
    geometry: Geometry,
    head: Memory,
    data: Memory,
    locks: RangeLocks,
    lanes: Box<[Mutex<Lane>]>,
    /// Of each lane, up to which write it is known, whatever happens, that they have ended.
    ended: Box<[AtomicU64]>,
    /// Taken by who wants many places: one that has some and waits for more is enough.
    gathering: Mutex<()>,
    /// Places that damaged blocks have lost since they were looked for. Locked by who mends one: before a lane.
    lost: Mutex<usize>,
    /// Free places that are of no lane. Locked last.
    set_aside: Mutex<Vec<u32>>,
    /// Where the page cache lies between.
    epoch: Option<Epoch>,
    /// Blocks of which an entry is not there, though it cannot be cleared: attached to be read.
    undone: HashMap<u64, Vec<usize>>,
    counts: Counts,
    /// Given up last.
    attached: Attached,
}

#[derive(Debug, Default)]
struct Counts {
    reads: AtomicU64,
    transactions: AtomicU64,
    flushes: AtomicU64,
    damaged: AtomicU64,
    undone: u64,
}

/// What was done with a segment of blocks since it was attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BlockCounts {
    /// Blocks that were read.
    pub reads: u64,
    /// Blocks that were written, or cleared.
    pub writes: u64,
    /// Writes of several blocks at once.
    pub transactions: u64,
    /// Forces.
    pub flushes: u64,
    /// Reads that found a block damaged.
    pub damaged: u64,
    /// Blocks of which the last write was not there when it was attached.
    pub undone: u64,
    /// Places of blocks that are free now; of a file, without those that are when it is flushed.
    pub free: u64,
}

/// Where a block's bytes are now, and their sum.
#[derive(Clone, Copy)]
struct Stored {
    place: u32,
    sum: u32,
}

/// What a write needs to know of a block: which entry it stores, and as which version; and where the block was.
struct Target {
    block: u64,
    which: usize,
    version: u8,
    before: Option<u32>,
    /// Its newest entry, if it was written together with others.
    together: Option<Entry>,
    /// Which of its entries are damaged.
    damaged: [bool; 2],
}

/// Whether an entry is not what was written.
fn is_damaged(entries: &[Slot; 2]) -> bool {
    entries.iter().any(|slot| matches!(slot, Slot::Damaged | Slot::Torn))
}

impl Blocks {
    pub(crate) fn attach(
        attached: Attached,
        geometry: Geometry,
        head: Memory,
        data: Memory,
    ) -> Result<Blocks> {
        let found = Found { geometry, head: &head, data: &data };
        let recovered = found.recover(attached.crashed);
        let mut undone = by_block(&recovered.undone);
        let counts = Counts { undone: undone.len() as u64, ..Counts::default() };
        // Attached to be read, they stay as they are.
        by_block(&recovered.torn)
            .into_iter()
            .for_each(|(block, torn)| undone.entry(block).or_default().extend(torn));
        if attached.write && attached.crashed {
            found.settle(&recovered)?;
        }
        let mut lanes: Vec<Lane> =
            recovered.numbers.iter().map(|number| Lane { number: *number, ..Lane::default() }).collect();
        for (i, place) in recovered.free.into_iter().rev().enumerate() {
            lanes[i % geometry.lanes as usize].free.push(place);
        }
        let room = AtomicI64::new(lanes.iter().map(|lane| lane.free.len() as i64).sum());
        let epoch = (data.force_kind() == Force::Sync).then(|| Epoch { room, ..Epoch::default() });
        let ended = recovered.numbers.into_iter().map(AtomicU64::new).collect();
        let undone = if attached.write { HashMap::new() } else { undone };
        Ok(Blocks {
            geometry,
            locks: RangeLocks::new(),
            lanes: lanes.into_iter().map(Mutex::new).collect(),
            ended,
            gathering: Mutex::new(()),
            lost: Mutex::new(0),
            set_aside: Mutex::default(),
            epoch,
            undone,
            counts,
            head,
            data,
            attached,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.attached.name
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.geometry.block_bytes
    }

    /// How many blocks there are.
    pub fn len(&self) -> u64 {
        self.geometry.blocks
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.geometry.blocks * self.geometry.block_bytes as u64
    }

    /// Whether it is attached for writing.
    pub fn is_writable(&self) -> bool {
        self.attached.write
    }

    /// Most blocks that are written at once: a mebibyte of them.
    pub fn writes_max(&self) -> usize {
        self.geometry.writes()
    }

    /// What was done since it was attached.
    pub fn counts(&self) -> BlockCounts {
        let Counts { reads, transactions, flushes, damaged, undone } = &self.counts;
        let [reads, transactions, flushes, damaged] =
            [reads, transactions, flushes, damaged].map(|count| count.load(Ordering::Relaxed));
        let (mut writes, mut free) = (0, self.set_aside().len() as u64);
        for lane in &self.lanes {
            let lane = lane.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            (writes, free) = (writes + lane.writes, free + lane.free.len() as u64);
        }
        BlockCounts { reads, writes, transactions, flushes, damaged, undone: *undone, free }
    }

    /// Whether there are such blocks.
    ///
    /// # Errors
    /// [`Error::Range`] where there are not.
    pub fn check(&self, blocks: Range<u64>) -> Result<()> {
        if blocks.start <= blocks.end && blocks.end <= self.geometry.blocks {
            return Ok(());
        }
        let (name, len) = (self.attached.name.clone(), self.geometry.blocks);
        Err(Error::Range { what: "blocks", name, start: blocks.start, end: blocks.end, len })
    }

    /// The blocks that so many bytes from `block` on are.
    fn range(&self, block: u64, bytes: usize) -> Result<Range<u64>> {
        if !bytes.is_multiple_of(self.geometry.block_bytes) {
            let why = format!("whole blocks of {} bytes are read and written", self.geometry.block_bytes);
            return Err(Error::invalid("a length of", bytes, why));
        }
        let end = block.saturating_add((bytes / self.geometry.block_bytes) as u64);
        self.check(block..end)?;
        Ok(block..end)
    }

    fn check_write(&self) -> Result<()> {
        if !self.attached.write {
            return Err(Error::ReadOnly(format!("segment {:?}", self.attached.name)));
        }
        self.data.sound()
    }

    fn found(&self) -> Found<'_> {
        Found { geometry: self.geometry, head: &self.head, data: &self.data }
    }

    fn lane_words(&self, lane: usize) -> LaneWords<'_> {
        LaneWords { head: &self.head, at: self.geometry.lane(lane as u32) }
    }

    /// The entries of a block that are there.
    #[inline]
    fn entries(&self, block: u64) -> [Slot; 2] {
        let mut entries = self.found().entries(block);
        if !self.undone.is_empty() {
            for which in self.undone.get(&block).into_iter().flatten() {
                entries[*which] = Slot::Empty;
            }
        }
        entries
    }

    /// Reads blocks, as many as `buffer` holds. Writers of them wait; each is as it was written, whole, or an error.
    ///
    /// # Errors
    /// [`Error::Block`] if one is damaged.
    pub fn read(&self, block: u64, buffer: &mut [u8]) -> Result<()> {
        let range = self.range(block, buffer.len())?;
        let _locks = self.locks.read(&range);
        range
            .zip(buffer.chunks_mut(self.geometry.block_bytes))
            .try_for_each(|(block, part)| self.read_one(block, part))
    }

    fn read_one(&self, block: u64, buffer: &mut [u8]) -> Result<()> {
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        let damaged = || {
            self.counts.damaged.fetch_add(1, Ordering::Relaxed);
            Err(Error::Block { name: self.attached.name.clone(), block })
        };
        let entries = self.entries(block);
        if is_damaged(&entries) {
            // The newest may be the one that is damaged.
            buffer.fill(0);
            return damaged();
        }
        let Some((_, entry)) = newest(entries) else {
            buffer.fill(0);
            return Ok(());
        };
        let mut sum = 0;
        if entry.place == NOWHERE {
            buffer.fill(0);
        } else if u64::from(entry.place) < self.geometry.places() {
            sum = self.data.read_summed(self.geometry.place(entry.place), buffer);
        } else {
            return damaged();
        }
        if unless("block-sum-not-checked", entry.sum_for(block, sum) != entry.sum) {
            buffer.fill(0);
            return damaged();
        }
        Ok(())
    }

    /// Writes blocks, each wholly or not at all. When it returns they last: as long as the medium where memory is
    /// mapped, and as long as the system where it must be flushed.
    pub fn write(&self, block: u64, bytes: &[u8]) -> Result<()> {
        let range = self.range(block, bytes.len())?;
        self.check_write()?;
        range
            .zip(bytes.chunks(self.geometry.block_bytes))
            .try_for_each(|(block, part)| self.write_one(block, Some(part)))
    }

    /// Clears blocks: they are zeros, and take no place.
    pub fn clear(&self, blocks: Range<u64>) -> Result<()> {
        self.check(blocks.clone())?;
        self.check_write()?;
        blocks.into_iter().try_for_each(|block| self.write_one(block, None))
    }

    fn write_one(&self, block: u64, bytes: Option<&[u8]>) -> Result<()> {
        self.write_with(block, || Ok(bytes))
    }

    /// Writes a block as `make` says when nobody else has it.
    fn write_with<'c>(&self, block: u64, make: impl FnOnce() -> Result<Option<&'c [u8]>>) -> Result<()> {
        self.head.soon(self.geometry.entries(block));
        let (_gate, _lock) = self.enter(block)?;
        let bytes = make().inspect_err(|_| self.leave(1))?;
        let target = self.target(block);
        if bytes.is_none() {
            // It takes no place.
            self.leave(1);
            if target.before.is_none() && target.damaged == [false; 2] {
                return Ok(());
            }
        }
        self.settle_others(&target);
        let mending = self.mending(std::slice::from_ref(&target));
        let (number, mut lane) = self.take_lane();
        let stored = match bytes {
            Some(bytes) => self.store(self.take_place(number, &mut lane), bytes),
            None => Stored { place: NOWHERE, sum: 0 },
        };
        lane.number += 1;
        let entry = entry_of(&target, stored, (number, lane.number), false);
        self.begin(number, &lane);
        self.store_entry(&target, &entry);
        if unless("write-without-a-fence", true) {
            self.head.fence();
        }
        self.end(number, &lane);
        self.note_written(&target, &mut lane);
        lane.writes += 1;
        drop(lane);
        self.mended(mending, std::slice::from_ref(&target));
        Ok(())
    }

    /// Keeps everybody from a block; where the medium must be forced, with a place for it, and not twice between two
    /// forces.
    fn enter(&self, block: u64) -> Result<(Option<RwLockReadGuard<'_, ()>>, RwLockWriteGuard<'_, ()>)> {
        loop {
            let Some(epoch) = &self.epoch else { return Ok((None, self.locks.write_one(block))) };
            let gate = epoch.gate.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            let lock = self.locks.write_one(block);
            let room = epoch.room.fetch_sub(1, Ordering::Relaxed) > 0;
            if room && !self.is_unforced(block) {
                return Ok((Some(gate), lock));
            }
            self.leave(1);
            drop((gate, lock));
            self.flush()?;
        }
    }

    /// So many places are not taken after all.
    fn leave(&self, places: i64) {
        self.epoch.iter().for_each(|epoch| _ = epoch.room.fetch_add(places, Ordering::Relaxed));
    }

    /// Says in a lane that a write is under way; those before it have ended.
    #[inline]
    fn begin(&self, number: usize, lane: &Lane) {
        let words = self.lane_words(number);
        words.set_begun(lane.number);
        if self.epoch.is_none() {
            words.set_ended(lane.number - 1);
        }
    }

    /// The write has lasted, and what it said of those before it.
    #[inline]
    fn end(&self, number: usize, lane: &Lane) {
        if self.epoch.is_none() {
            self.ended[number].store(lane.number - 1, Ordering::Release);
        }
    }

    /// Before a block that was written together with others is written again, it must be known that they have ended:
    /// what will not be there any more cannot say so. Nobody holds a lane meanwhile.
    #[inline]
    fn settle_others(&self, target: &Target) {
        if let Some(entry) = target.together
            && self.epoch.is_none()
            && entry.number > self.ended[entry.lane as usize].load(Ordering::Acquire)
        {
            self.settle(entry);
        }
    }

    #[cold]
    fn settle(&self, entry: Entry) {
        let number = entry.lane as usize;
        let _lane = self.lanes[number].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if entry.number > self.ended[number].load(Ordering::Acquire) && !planted("others-not-settled") {
            self.lane_words(number).set_ended(entry.number);
            self.head.fence();
            self.ended[number].store(entry.number, Ordering::Release);
        }
    }

    /// Whether what the medium has of a block is what it was before its last write.
    fn is_unforced(&self, block: u64) -> bool {
        self.epoch.as_ref().is_some_and(|epoch| {
            let changed = epoch.changed.lock().expect("no panic under this lock");
            unless("forced-entry-overwritten", changed.blocks.contains(&block))
        })
    }

    /// What a write of this block stores, and what it leaves behind. The block must be locked.
    #[inline]
    fn target(&self, block: u64) -> Target {
        let entries = self.entries(block);
        let damaged = entries.map(|slot| matches!(slot, Slot::Damaged | Slot::Torn));
        if damaged != [false; 2] {
            return mend::target(block, entries, damaged);
        }
        let Some((which, entry)) = newest(entries) else {
            return Target { block, which: 0, version: FIRST, before: None, together: None, damaged };
        };
        if unless("bare-place-freed", entry.is_bare()) {
            return mend::target_of_bare(block, entries, which);
        }
        Target {
            block,
            which: instead("newest-entry-overwritten", 1 - which, which),
            version: next(entry.version),
            before: Some(entry.place).filter(|place| u64::from(*place) < self.geometry.places()),
            together: Some(entry).filter(|entry| entry.several && (entry.lane as usize) < self.ended.len()),
            damaged,
        }
    }

    /// Stores a block's bytes in a place.
    #[inline]
    fn store(&self, place: u32, bytes: &[u8]) -> Stored {
        let sum = self.data.write_summed(self.geometry.place(place), bytes);
        Stored { place, sum }
    }

    #[inline]
    fn store_entry(&self, target: &Target, entry: &Entry) {
        let at = self.geometry.entries(target.block) + target.which * ENTRY;
        self.head.words(at, entry.words());
    }

    /// A write has lasted, or will when the medium is forced: what the block was before needs its place no more.
    #[inline]
    fn note_written(&self, target: &Target, lane: &mut Lane) {
        if target.damaged != [false; 2] {
            self.clear_damaged(target);
        }
        match &self.epoch {
            Some(epoch) if unless("place-reused-before-it-is-forced", true) => {
                let mut changed = epoch.changed.lock().expect("no panic under this lock");
                changed.blocks.insert(target.block);
                changed.retired.extend(target.before);
            }
            _ => lane.free.extend(target.before),
        }
    }

    /// A lane that nobody is in, and its number.
    #[inline]
    fn take_lane(&self) -> (usize, MutexGuard<'_, Lane>) {
        let first = ordinal::current().number() % self.lanes.len();
        match self.lanes[first].try_lock() {
            Ok(lane) => (first, lane),
            Err(_) => self.take_another_lane(first),
        }
    }

    #[cold]
    fn take_another_lane(&self, first: usize) -> (usize, MutexGuard<'_, Lane>) {
        let all = (0..self.lanes.len()).map(|i| (first + i) % self.lanes.len());
        for number in all {
            if let Ok(lane) = self.lanes[number].try_lock() {
                return (number, lane);
            }
        }
        (first, self.lanes[first].lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Makes all that was written last as long as the medium does. Where memory is mapped, it does already.
    pub fn flush(&self) -> Result<()> {
        self.check_write()?;
        self.counts.flushes.fetch_add(1, Ordering::Relaxed);
        let Some(epoch) = &self.epoch else { return Ok(()) };
        let _gate = epoch.gate.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.force(epoch)
    }

    /// Forces the medium. Nobody writes meanwhile.
    fn force(&self, epoch: &Epoch) -> Result<()> {
        self.data.force()?;
        let mut changed = epoch.changed.lock().expect("no panic under this lock");
        changed.blocks.clear();
        let retired = std::mem::take(&mut changed.retired);
        self.leave(retired.len() as i64);
        for (number, lane) in self.lanes.iter().enumerate() {
            let mut lane = lane.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            self.lane_words(number).set_ended(lane.number);
            lane.free.extend(retired.iter().skip(number).step_by(self.lanes.len()));
        }
        Ok(())
    }

    /// Looks at blocks, as [`Blocks::read`] does, and returns those that are damaged.
    pub fn scrub(&self, blocks: Range<u64>) -> Result<Vec<u64>> {
        self.check(blocks.clone())?;
        let mut buffer = vec![0; self.geometry.block_bytes];
        let mut damaged = Vec::new();
        for block in blocks {
            let _lock = self.locks.read_one(block);
            match self.read_one(block, &mut buffer) {
                Ok(()) => {}
                Err(Error::Block { block, .. }) => damaged.push(block),
                Err(error) => return Err(error),
            }
        }
        Ok(damaged)
    }
}

/// The entry that stands for a block's bytes.
#[inline]
fn entry_of(target: &Target, stored: Stored, (lane, number): (usize, u64), several: bool) -> Entry {
    let Stored { place, sum } = stored;
    let mut entry = Entry { place, sum: 0, version: target.version, several, lane: lane as u8, number };
    entry.sum = entry.sum_for(target.block, sum);
    entry
}

impl Drop for Blocks {
    fn drop(&mut self) {
        // Everything that was written has lasted: nothing need be asked when it is attached again.
        if self.attached.write && !std::thread::panicking() {
            if let Err(error) = self.flush() {
                return tracing::warn!(%error, segment = self.attached.name, "what was written last may be lost");
            }
            for (number, lane) in self.lanes.iter().enumerate() {
                let lane = lane.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                self.lane_words(number).set_ended(lane.number);
            }
            match self.head.force() {
                Ok(()) => self.attached.is_clean(),
                Err(error) => tracing::warn!(%error, segment = self.attached.name, "the last force failed"),
            }
        }
    }
}
