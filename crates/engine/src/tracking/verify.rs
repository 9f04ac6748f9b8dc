//! The verifier: finds stores that no transaction declared, the classic mistake of programs with recoverable
//! memory (RVM, section 6; Vista, section 6). Such bytes would be lost by a crash with the redo policy, and never
//! be undone with the undo policy.
//!
//! It keeps a shadow of every region, what its memory must be but for open transactions, and compares at every
//! commit what was stored to since. For tests and debugging: it doubles the memory.

use super::noted::{Noted, Seen, Taken};
use super::{Save, Tracker, Wanted};
use crate::storage::Storage;
use crate::storage::error::{MapError, RangeError};
use crate::storage::region::RegionState;
use crate::storage::region_table::RegionCursor;
use crate::write_set::{Sets, WriteSet};
use caliburn_log::SegmentId;
use caliburn_os::simulated::unless;
use caliburn_os::sync::{Mutex, MutexGuard};
use caliburn_os::{page_size, span};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

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

/// Compares the regions of a store with shadows of them.
pub(super) struct Verifier {
    storage: Arc<Storage>,
    sets: Arc<Sets>,
    noted: Noted,
    /// By the addresses of the regions.
    shadows: Mutex<Shadows>,
}

type Shadows = BTreeMap<usize, Shadow>;

struct Shadow {
    bytes: Vec<u8>,
    seen: Seen,
    /// Pages that were stored to and not found equal since.
    suspects: BTreeSet<usize>,
}

pub(super) fn begin(wanted: &Wanted, storage: &Arc<Storage>, sets: &Arc<Sets>) -> Option<Box<dyn Tracker>> {
    let (storage, sets) = (storage.clone(), sets.clone());
    let made = || -> Box<dyn Tracker> {
        Box::new(Verifier { storage, sets, noted: Noted::new(), shadows: Mutex::default() })
    };
    wanted.verify.then(made)
}

impl Tracker for Verifier {
    /// Takes the part for what it must be, before anybody can declare bytes there.
    fn mapped(&self, region: &Arc<RegionState>, part: Range<usize>) -> Result<(), MapError> {
        let mut shadows = self.lock();
        let new = || Shadow { bytes: Vec::new(), seen: self.noted.begin(), suspects: BTreeSet::new() };
        let shadow = shadows.entry(region.base).or_insert_with(new);
        shadow.bytes.resize(part.end, 0);
        copy(region, part.start, &mut shadow.bytes[part.start..]);
        self.noted.watch(&mut shadow.seen, region, part);
        Ok(())
    }

    /// # Panics
    /// When something was stored that nobody declared.
    fn committing(&self, _: &WriteSet<'_>, _: Save<'_>) -> Result<(), RangeError> {
        let found = self.undeclared();
        if let Some(first) = found.first() {
            let more = found.len() - 1;
            panic!("{first}{}", if more > 0 { format!("; and {more} more like it") } else { String::new() });
        }
        Ok(())
    }

    /// Takes what the transaction declared for what it must be: it is committed, or undone. Until it has ended
    /// nobody must compare.
    fn ending(&self, set: &WriteSet<'_>, end: &mut dyn FnMut()) {
        let mut shadows = self.lock();
        let mut cursor = RegionCursor::new();
        set.each(|range| {
            // SAFETY: a region with declared bytes stays mapped.
            let found = unsafe { cursor.find(&self.storage.table, range.segment, range.offset) };
            let Some(region) = found else { return };
            if let Some(shadow) = shadows.get_mut(&region.base) {
                let at = (range.offset - region.start) as usize;
                copy(region, at, &mut shadow.bytes[at..at + range.len]);
            }
        });
        end();
    }

    /// Until it is shorter nobody must compare: bytes that were copied before would be declared by nobody.
    fn shortening(&self, shorten: &mut dyn FnMut()) {
        let _shadows = unless("rolled-back-while-compared", true).then(|| self.lock());
        shorten();
    }

    fn unmapped(&self, region: &RegionState, left: bool) {
        if let Some(shadow) = self.lock().remove(&region.base).filter(|_| left) {
            self.noted.leave(&shadow.seen, region);
        }
    }

    fn verifies(&self) -> bool {
        true
    }

    /// Compares the pages of every region that were stored to with its shadow.
    fn undeclared(&self) -> Vec<Undeclared> {
        let mut found: Vec<Undeclared> = Vec::new();
        let (mut buffer, mut declared) = (vec![0; page_size()], vec![false; page_size()]);
        // Mapping locks the list first, and then the shadows.
        let mapped =
            || self.storage.regions.read().expect("no panic under this lock").values().cloned().collect();
        let regions: Vec<_> = mapped();
        let mut shadows = self.lock();
        for region in &regions {
            let Some(Shadow { bytes, seen, suspects }) = shadows.get_mut(&region.base) else { continue };
            if self.noted.take(seen, region, |pages| suspects.extend(pages)) != Taken::All {
                suspects.extend(seen.pages());
            }
            suspects.retain(|page| {
                let part = seen.bytes(&(*page..page + 1));
                let (first, expected) = (part.start, &bytes[part]);
                let there = &mut buffer[..expected.len()];
                copy(region, first, there);
                if there == expected {
                    return false;
                }
                // After the copy: a transaction that declared a byte before it was copied has not ended since, nor
                // been rolled back, which takes the lock.
                let from = region.start + first as u64;
                self.mark_declared(region.id, from, &mut declared[..expected.len()]);
                for at in (0..expected.len()).filter(|at| there[*at] != expected[*at] && !declared[*at]) {
                    let offset = from + at as u64;
                    match found.last_mut() {
                        Some(last)
                            if last.offset + last.len == offset && last.segment == region.segment.name =>
                        {
                            last.len += 1;
                        }
                        _ => found.push(Undeclared { segment: region.segment.name.clone(), offset, len: 1 }),
                    }
                }
                true
            });
        }
        found
    }
}

impl Verifier {
    /// Marks the bytes from `from` on that open transactions have declared.
    fn mark_declared(&self, segment: SegmentId, from: u64, declared: &mut [bool]) {
        declared.fill(false);
        let end = from + declared.len() as u64;
        self.sets.slots.each_declared(|range| {
            if range.segment == segment {
                let first = range.offset.clamp(from, end);
                let last = (range.offset + range.len as u64).clamp(from, end);
                declared[(first - from) as usize..(last - from) as usize].fill(true);
            }
        });
    }

    /// Holds up every commit and abort of the store.
    fn lock(&self) -> MutexGuard<'_, Shadows> {
        self.shadows.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn copy(region: &RegionState, from: usize, target: &mut [u8]) {
    // SAFETY: the shadow is as long as the region was when it was made, and regions never shrink.
    unsafe { span::copy(region.pointer(region.base + from), target.as_mut_ptr(), target.len()) };
}
