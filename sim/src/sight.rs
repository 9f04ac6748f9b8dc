//! What a simulated machine shows of whether memory survived, and what a store may say of it.

use crate::random::Random;
use caliburn_os::host::{Boot, Clock, Id};

/// What a machine shows: numbers that change, and what it hides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Sight {
    /// It has no boot id, no clock, and does not tell mounts.
    pub hidden: [bool; 3],
    /// Which boot id it shows, where that is not the boot's.
    pub id: u8,
    /// When it was started.
    pub clock: u8,
    /// Where files are mounted.
    pub mounts: u8,
}

impl Sight {
    /// What it shows in a boot.
    pub fn boot(&self, boot: Id) -> Boot {
        let clock = Clock { began: i64::from(self.clock) << 42, running: 1 << 50 };
        let id = if self.id == 0 { boot } else { [self.id; 16] };
        Boot { id: (!self.hidden[0]).then_some(id), clock: (!self.hidden[1]).then_some(clock) }
    }

    /// Where it shows a file whose file system was mounted again so often.
    pub fn mount(&self, again: u64) -> Option<[u64; 2]> {
        (!self.hidden[2]).then_some([0, again << 8 | u64::from(self.mounts)])
    }

    /// Of another boot, by everything that it shows. Where the id is not the boot's, it is another one, too.
    pub fn rebooted(self) -> Sight {
        let id = self.id + u8::from(self.id != 0);
        Sight { id, clock: self.clock + 1, mounts: self.mounts + 1, ..self }
    }

    /// Of the same boot, whatever the seed says. Numbers that were shown never come again.
    pub fn strange(self, seed: u64) -> Sight {
        self.moved(&mut Random::new(seed))
    }

    /// Of another boot, whatever the seed says, but for what every program would take for the same boot.
    pub fn lying(self, seed: u64) -> Sight {
        let mut random = Random::new(seed);
        loop {
            let mut next = self.moved(&mut random);
            next.hidden.iter_mut().for_each(|hidden| *hidden ^= random.chance(1, 4));
            let moved = [self.id != next.id, self.clock != next.clock, self.mounts != next.mounts];
            let told = [0, 1, 2].map(|i| !self.hidden[i] && !next.hidden[i]);
            let [same, other] = [false, true].map(|is| [0, 1, 2].map(|i| told[i] && moved[i] == is));
            let believed = same[0] && !other[1] && !other[2] || !told[0] && same[1] && same[2];
            if believed {
                continue;
            }
            // What was hidden and is shown again is another number.
            for (i, number) in [&mut next.id, &mut next.clock, &mut next.mounts].into_iter().enumerate() {
                *number += u8::from(next.hidden[i] != self.hidden[i]);
            }
            return next;
        }
    }

    fn moved(self, random: &mut Random) -> Sight {
        // Ids that are not the boot's are beyond those of boots.
        let id = if random.chance(1, 2) { self.id } else { self.id.max(100) + 1 };
        let [clock, mounts] = [self.clock, self.mounts].map(|number| number + random.below(2) as u8);
        Sight { id, clock, mounts, ..self }
    }
}

/// Whether what a machine shows after a process was killed is too little to tell that its memory survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// It is enough.
    None,
    /// An opening may go without what was in memory, if it says so.
    Here,
    /// An earlier one, which was cut short, may have done that.
    Before,
}

/// What an opening says of a store with the undo policy that was in use when its memory was lost.
const LOST: &str = "in use when the system went down";
/// What it says of one whose memory was perhaps lost.
const UNTOLD: &str = "whether its memory has survived since cannot be told";
/// What it says when an earlier one may have been told of lost writes.
pub const ASKED: &str = "killed while it asked the system";

/// Whether a store with the undo policy is refused since its memory was lost, perhaps.
pub fn is_lost(why: &str) -> bool {
    why.contains(LOST) || why.contains(UNTOLD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_combination_is_shown_and_none_that_passes_for_the_same_boot() {
        let before = Sight { clock: 1, mounts: 1, ..Sight::default() };
        let words = |next: Sight| {
            let moved = [before.id != next.id, before.clock != next.clock, before.mounts != next.mounts];
            [0, 1, 2].map(|i| {
                if next.hidden[i] {
                    'n'
                } else if moved[i] {
                    'o'
                } else {
                    's'
                }
            })
        };
        let lies: HashSet<_> = (0..2000).map(|seed| words(before.lying(seed))).collect();
        // Of 27 those that memory's survival follows from: the same id with nothing against it, or none and both
        // others.
        assert_eq!(lies.len(), 27 - 4 - 1);
        assert!(!lies.contains(&['s', 's', 's']) && lies.contains(&['o', 's', 's']));
        let strange: HashSet<_> = (0..200).map(|seed| words(before.strange(seed))).collect();
        assert_eq!(strange.len(), 8);
    }
}
