//! Blocks that are damaged, and are written anew. Where such a block was is not known any more, so that its place is
//! nobody's until it is looked for.

use super::entry::{Slot, next};
use super::lane::Lane;
use super::{Blocks, Target};
use caliburn_os::simulated::unless;
use caliburn_os::sync::MutexGuard;

/// How a block is written of which an entry is damaged: over the other one, so that it stays damaged until it is
/// written. What the other entry says may be another block's place by now.
#[cold]
pub(super) fn target(block: u64, entries: [Slot; 2], damaged: [bool; 2]) -> Target {
    let which = usize::from(!damaged[1] && damaged[0]);
    let version = entries[which].entry().map_or(1, |entry| next(entry.version));
    Target { block, which, version, before: None, together: None, damaged }
}

impl Blocks {
    /// Before blocks are written of which one is damaged: one writer at a time mends, until [`Blocks::mended`].
    #[inline]
    pub(super) fn mending(&self, targets: &[Target]) -> Option<MutexGuard<'_, ()>> {
        let mends = targets.iter().any(|target| target.damaged != [false; 2]);
        mends.then(|| self.mending.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// A block that was damaged has been written: the entries that were are cleared, and not before.
    #[cold]
    pub(super) fn clear_damaged(&self, target: &Target) {
        // Where the medium must be forced, the new entry may not last otherwise, and the older one would count.
        if unless("damage-cleared-before-a-force", true) && self.head.force().is_err() {
            return;
        }
        let damaged = (0..2).filter(|which| target.damaged[*which] && *which != target.which);
        damaged.for_each(|which| self.found().clear_entry(target.block, which));
        self.head.fence();
    }

    /// Its writer holds no lane any more.
    #[inline]
    pub(super) fn mended(&self, mending: Option<MutexGuard<'_, ()>>) {
        if mending.is_some() && unless("lost-places-stay-lost", true) {
            self.find_lost();
        }
    }

    /// Finds places that are neither in an entry nor free, and frees them. It takes time as attaching does, and
    /// nobody begins a write meanwhile.
    #[cold]
    fn find_lost(&self) {
        // From when it takes a place until an entry has it, a writer holds a lane. Those that wait for a place need
        // the lanes of others: nobody here may hold some and wait for one.
        let mut lanes: Vec<MutexGuard<'_, Lane>> = loop {
            match self.lanes.iter().map(|lane| lane.try_lock()).collect() {
                Ok(lanes) => break lanes,
                Err(_) => std::thread::yield_now(),
            }
        };
        let mut taken = vec![false; self.geometry.places() as usize];
        let mut take = |place: u32| taken.get_mut(place as usize).into_iter().for_each(|taken| *taken = true);
        for block in 0..self.geometry.blocks {
            self.entries(block).into_iter().filter_map(Slot::entry).for_each(|entry| take(entry.place));
        }
        lanes.iter().for_each(|lane| lane.free.iter().copied().for_each(&mut take));
        if let Some(epoch) = &self.epoch {
            let changed = epoch.changed.lock().expect("no panic under this lock");
            changed.retired.iter().copied().for_each(&mut take);
        }
        let lost = (0..).zip(taken).filter(|(_, taken)| !taken);
        let before = lanes[0].free.len();
        lanes[0].free.extend(lost.map(|(place, _)| place));
        self.leave((lanes[0].free.len() - before) as i64);
    }
}
