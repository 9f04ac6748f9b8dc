//! The verifier: finds stores that no transaction declared, the classic mistake of programs with recoverable
//! memory (RVM, section 6; Vista, section 6). Such bytes would be lost by a crash with the redo policy, and never
//! be undone with the undo policy.
//!
//! It keeps a shadow of every region, what its memory must be but for open transactions, and compares at every
//! commit. For tests and debugging: it doubles the memory, and a commit reads every region.

use crate::api::shared::Shared;
use crate::api::store::Store;
use crate::storage::region::RegionState;
use crate::storage::region_table::RegionCursor;
use crate::write_set::WriteSet;
use caliburn_os::span;
use caliburn_os::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fmt;

/// Bytes of recoverable memory that were changed without being declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undeclared {
    /// Name of the segment.
    pub segment: String,
    /// First byte in the segment.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl fmt::Display for Undeclared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Undeclared { segment, offset, len } = self;
        write!(
            f,
            "{len} byte(s) at {offset} of segment {segment:?} were changed without being declared (set_range)"
        )
    }
}

/// The shadows of the regions that are mapped, by their addresses.
#[derive(Debug, Default)]
pub(crate) struct Verifier {
    shadows: Mutex<Shadows>,
}

pub(crate) type Shadows = BTreeMap<usize, Vec<u8>>;

/// How much is compared at a time.
const STEP: usize = 64 << 10;

impl Verifier {
    /// Holds up every commit and abort of the store.
    pub fn lock(&self) -> MutexGuard<'_, Shadows> {
        self.shadows.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes bytes `[from, to)` of a region, to its end, for what they must be. They are mapped.
    pub fn shadow(&self, region: &RegionState, from: usize, to: usize) {
        let mut shadows = self.lock();
        let shadow = shadows.entry(region.base).or_default();
        shadow.resize(to, 0);
        copy(region, from, &mut shadow[from..]);
    }

    /// Forgets a region.
    pub fn forget(&self, region: &RegionState) {
        self.lock().remove(&region.base);
    }

    /// Compares every region with its shadow.
    pub fn compare(&self, store: &Shared) -> Vec<Undeclared> {
        let mut found: Vec<Undeclared> = Vec::new();
        let mut buffer = vec![0; STEP];
        // Whoever maps has the list locked when it takes the shadows.
        let regions = store.regions.read().expect("no panic under this lock").clone();
        let shadows = self.lock();
        for region in &regions {
            let Some(shadow) = shadows.get(&region.base) else { continue };
            for (i, expected) in shadow.chunks(STEP).enumerate() {
                let there = &mut buffer[..expected.len()];
                copy(region, i * STEP, there);
                if there == expected {
                    continue;
                }
                for at in (0..expected.len()).filter(|at| there[*at] != expected[*at]) {
                    let offset = region.start + (i * STEP + at) as u64;
                    // Whoever declared it before it was copied has not ended since: that takes the lock.
                    if !store.slots.touching(region.id, offset..offset + 1).is_empty() {
                        continue;
                    }
                    match found.last_mut() {
                        Some(last)
                            if last.offset + last.len == offset && last.segment == region.segment.name =>
                        {
                            last.len += 1;
                        }
                        _ => found.push(Undeclared { segment: region.segment.name.clone(), offset, len: 1 }),
                    }
                }
            }
        }
        found
    }
}

fn copy(region: &RegionState, from: usize, target: &mut [u8]) {
    // SAFETY: the shadow is as long as the region was when it was made, and regions never shrink.
    unsafe { span::copy(region.pointer(region.base + from), target.as_mut_ptr(), target.len()) };
}

impl Store {
    /// What was stored to the mapped regions without being declared by a transaction that is open or has
    /// committed. Always empty without [`Options::verify`](crate::Options::verify), with which every commit
    /// looks for itself.
    pub fn undeclared(&self) -> Vec<Undeclared> {
        let verifier = self.shared.verifier.as_ref();
        verifier.map_or_else(Vec::new, |verifier| verifier.compare(&self.shared))
    }

    /// Whether it was opened with [`Options::verify`](crate::Options::verify).
    #[inline]
    pub fn verifies(&self) -> bool {
        self.shared.verifier.is_some()
    }
}

impl Shared {
    /// Takes what a transaction declared for what it must be: it is committed, or undone. It must end before the lock
    /// is given up.
    pub fn accept(&self, shadows: &mut Shadows, set: &WriteSet<'_>) {
        let mut cursor = RegionCursor::new();
        set.each(|range| {
            // SAFETY: a region with declared bytes stays mapped.
            let Some(region) = (unsafe { cursor.find(&self.table, range.segment, range.offset) }) else {
                return;
            };
            if let Some(shadow) = shadows.get_mut(&region.base) {
                let at = (range.offset - region.start) as usize;
                copy(region, at, &mut shadow[at..at + range.len]);
            }
        });
    }

    /// Looks for stores that nobody declared.
    ///
    /// # Panics
    /// When there are any.
    #[cold]
    pub fn verify(&self) {
        let Some(verifier) = &self.verifier else { return };
        let found = verifier.compare(self);
        if let Some(first) = found.first() {
            let more = found.len() - 1;
            panic!("{first}{}", if more > 0 { format!("; and {more} more like it") } else { String::new() });
        }
    }
}
