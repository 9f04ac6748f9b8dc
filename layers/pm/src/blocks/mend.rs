//! Blocks that are damaged, and are written anew. Where such a block was is not known any more, so that its place is
//! nobody's until it is looked for.

use super::entry::{FIRST, Slot, newest, next};
use super::lane::Lane;
use super::{Blocks, Target};
use crate::error::Result;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::MutexGuard;
use std::collections::HashSet;
use std::ops::Range;

/// Held by the one who mends: how many places were lost since they were looked for.
pub(super) type Mending<'b> = MutexGuard<'b, usize>;

/// How a block is written of which an entry is damaged: over the other one, so that it stays damaged until it is
/// written. What the other entry says may be another block's place by now.
#[cold]
pub(super) fn target(block: u64, entries: [Slot; 2], damaged: [bool; 2]) -> Target {
    let which = usize::from(!damaged[1] && damaged[0]);
    let version = entries[which].entry().map_or(FIRST, |entry| next(entry.version));
    Target { block, which, version, before: None, together: None, damaged }
}

/// How a block is written whose newest entry is one that older programs took for nothing ([`Entry::is_bare`]): as if
/// that one were damaged, since its place may have been given to another block.
///
/// [`Entry::is_bare`]: super::Entry::is_bare
#[cold]
pub(super) fn target_of_bare(block: u64, entries: [Slot; 2], newest: usize) -> Target {
    let mut damaged = [false; 2];
    damaged[newest] = true;
    target(block, entries, damaged)
}

impl Blocks {
    /// Blocks whose newest entry is one that older programs wrote, and cannot read (docs/pm.md). Here they are read
    /// as they were written, or are damaged if an older program has used their place since. Writing such a block
    /// gives it an entry that every program reads.
    pub fn unread_by_older(&self, blocks: Range<u64>) -> Result<Vec<u64>> {
        self.check(blocks.clone())?;
        let is_bare = |block: &u64| {
            let _lock = self.locks.read_one(*block);
            newest(self.entries(*block))
                .is_some_and(|(_, entry)| unless("bare-entry-not-told", entry.is_bare()))
        };
        Ok(blocks.filter(is_bare).collect())
    }

    /// Before blocks are written of which one is damaged: one writer at a time mends, until [`Blocks::mended`].
    #[inline]
    pub(super) fn mending(&self, targets: &[Target]) -> Option<Mending<'_>> {
        if targets.iter().all(|target| target.damaged == [false; 2]) {
            return None;
        }
        let mut lost = self.lost.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if targets.len() > 1 && *lost > 0 {
            self.find_lost(&mut lost);
        }
        Some(lost)
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

    /// Blocks have been written of which so many were damaged. The writer holds no lane any more.
    #[inline]
    pub(super) fn mended(&self, mending: Option<Mending<'_>>, targets: &[Target]) {
        let Some(mut lost) = mending else { return };
        *lost += targets.iter().filter(|target| target.damaged != [false; 2]).count();
        // Besides them there is room for two transactions and two blocks a lane: half of one may be missing.
        if targets.len() > 1 || *lost >= self.geometry.writes() / 2 {
            self.find_lost(&mut lost);
        }
    }

    /// Finds places that no block needs and that are not free, and frees them. It takes time as attaching does, and
    /// nobody begins a write meanwhile.
    #[cold]
    fn find_lost(&self, lost: &mut usize) {
        if planted("lost-places-stay-lost") {
            return;
        }
        // From when it takes a place until an entry has it, a writer holds a lane. One that waits for a place finds
        // those of the lanes that are held here already where they are set aside.
        let lanes: Vec<MutexGuard<'_, Lane>> = self
            .lanes
            .iter()
            .map(|lane| {
                let mut lane = lane.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                self.set_aside().append(&mut lane.free);
                lane
            })
            .collect();
        let mut known: HashSet<u32> = self.set_aside().iter().copied().collect();
        if let Some(epoch) = &self.epoch {
            known.extend(&epoch.changed.lock().expect("no panic under this lock").retired);
        }
        let mut found = self.found().free(&[]);
        found.retain(|place| !known.contains(place));
        self.leave(found.len() as i64);
        self.set_aside().append(&mut found);
        *lost = 0;
        drop(lanes);
    }
}
