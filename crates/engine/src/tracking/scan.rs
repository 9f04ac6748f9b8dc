//! Changes that are found by looking. The kernel notes which pages are stored to; beside each region stands an image
//! of what is committed ([`RegionState::image`]), with which they are compared when a transaction ends.
//!
//! ```text
//!   store:    the kernel notes the page
//!   commit:   take the pages noted - declare the bytes that differ from the image - the policy commits
//!   abort:    take the pages noted - put back from the image what differs
//!   end:      what was declared goes into the image
//! ```
//!
//! Invariant: while no transaction is open, a region and its image are equal, and both show what is committed. A
//! page of either is dropped only then, when its segment has the same bytes and no record of it is elsewhere:
//! `drop_batch` of the redo policy.
//!
//! Invariant: a page that was taken is remembered until the transaction ends, since the kernel notes it no more.

use super::noted::{Noted, Seen, Taken};
use super::{Save, Tracker, Tracking, Wanted};
use crate::storage::Storage;
use crate::storage::error::{MapError, RangeError};
use crate::storage::region::RegionState;
use crate::storage::region_table::RegionCursor;
use crate::write_set::{Sets, WriteSet};
use caliburn_os::simulated::planted;
use caliburn_os::span;
use caliburn_os::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// What differs is told in such pieces, so that the bytes between two that are equal are left out.
const LINE: usize = 64;

/// Equal bytes between two changes that are logged with them: a range of a record takes as many.
const NEAR: usize = 32;

/// Looks for the changes of a store's transactions.
pub(super) struct Scan {
    storage: Arc<Storage>,
    noted: Noted,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A transaction is open.
    open: bool,
    /// By their addresses.
    regions: BTreeMap<usize, Watched>,
}

/// A region whose changes are looked for.
struct Watched {
    region: Arc<RegionState>,
    seen: Seen,
    /// Pages taken for the transaction that is open.
    found: Vec<Range<usize>>,
}

pub(super) fn begin(wanted: &Wanted, storage: &Arc<Storage>, _: &Arc<Sets>) -> Option<Box<dyn Tracker>> {
    let made = || -> Box<dyn Tracker> {
        Box::new(Scan { storage: storage.clone(), noted: Noted::new(), state: Mutex::default() })
    };
    (wanted.tracking == Tracking::Scan && !storage.is_read_only()).then(made)
}

impl Tracker for Scan {
    fn mapped(&self, region: &Arc<RegionState>, part: Range<usize>) -> Result<(), MapError> {
        let mut state = self.lock();
        let new = || Watched { region: region.clone(), seen: self.noted.begin(), found: Vec::new() };
        let watched = state.regions.entry(region.base).or_insert_with(new);
        self.noted.watch(&mut watched.seen, region, part);
        Ok(())
    }

    fn begun(&self, _: &WriteSet<'_>) {
        self.lock().open = true;
    }

    fn committing(&self, set: &WriteSet<'_>, save: Save<'_>) -> Result<(), RangeError> {
        let mut state = self.lock();
        state.regions.values_mut().try_for_each(|watched| {
            if watched.look(&self.noted) == Taken::Replaced {
                return Err(RangeError::Replaced { segment: watched.region.segment.name.clone() });
            }
            let mut differing = watched.differing().into_iter();
            differing.try_for_each(|part| save(set, &watched.region, part.start, part.len()))
        })
    }

    fn undoing(&self) {
        for watched in self.lock().regions.values_mut() {
            watched.look(&self.noted);
            let region = &watched.region;
            for part in watched.differing() {
                // SAFETY: both are mapped, and whoever stored to the region does so no more.
                unsafe { span::copy(image(region, part.start), region.at(part.start), part.len()) };
            }
        }
    }

    fn found(&self, told: &mut dyn FnMut(&RegionState, Range<usize>)) {
        for Watched { region, seen, found } in self.lock().regions.values() {
            found.iter().for_each(|pages| told(region, seen.bytes(pages)));
        }
    }

    fn touches(&self, region: &RegionState) -> bool {
        let mut state = self.lock();
        let State { open: true, regions } = &mut *state else { return false };
        let Some(watched) = regions.get_mut(&region.base) else { return false };
        watched.look(&self.noted);
        watched.found.iter().any(|pages| watched.differs(pages)) && !planted("unmapped-with-what-is-found")
    }

    /// What was declared is committed now, or undone: memory has what the image must.
    fn ending(&self, set: &WriteSet<'_>, end: &mut dyn FnMut()) {
        let mut state = self.lock();
        let mut cursor = RegionCursor::new();
        set.each(|range| {
            // SAFETY: a region with declared bytes stays mapped.
            let found = unsafe { cursor.find(&self.storage.table, range.segment, range.offset) };
            let Some(region) = found.filter(|_| !planted("image-not-brought-up")) else { return };
            let at = (range.offset - region.start) as usize;
            // SAFETY: both are mapped, and the range lies in them.
            unsafe { span::copy(region.at(at), image(region, at), range.len) };
        });
        state.open = false;
        state.regions.values_mut().for_each(|watched| watched.found.clear());
        end();
    }

    fn unmapped(&self, region: &RegionState, left: bool) {
        if let Some(watched) = self.lock().regions.remove(&region.base).filter(|_| left) {
            self.noted.leave(&watched.seen, region);
        }
    }
}

impl Scan {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn image(region: &RegionState, offset: usize) -> *mut u8 {
    region.image_at(offset).expect("where changes are looked for, regions have images")
}

impl Watched {
    /// Takes the pages that were stored to since this was done last.
    fn look(&mut self, noted: &Noted) -> Taken {
        let found = &mut self.found;
        if planted("found-is-not-remembered") {
            found.clear();
        }
        let taken = noted.take(&self.seen, &self.region, |run| found.push(run));
        if taken != Taken::All {
            self.found =
                self.seen.pages().map(|page| page..page + 1).filter(|page| self.differs(page)).collect();
        }
        taken
    }

    /// What the image has in place of bytes of the region.
    fn was(&self, part: &Range<usize>) -> &[u8] {
        // SAFETY: the image is mapped, and stored to when a transaction ends, under the lock, by what has no
        // reference to it. Where it shows the segment, that is written to with the bytes that it has.
        unsafe { std::slice::from_raw_parts(image(&self.region, part.start), part.len()) }
    }

    /// Whether pages differ from the image. Others may be storing.
    fn differs(&self, pages: &Range<usize>) -> bool {
        let part = self.seen.bytes(pages);
        // SAFETY: the part is mapped; whoever stores there meanwhile is seen, or is not.
        !unsafe { span::equals(self.region.at(part.start), self.was(&part)) }
    }

    /// The bytes of the pages found that differ from the image. Nobody else stores.
    fn differing(&self) -> Vec<Range<usize>> {
        let mut all = Vec::new();
        for pages in &self.found {
            let bytes = self.seen.bytes(pages);
            // SAFETY: the part is mapped, and no other thread stores while a transaction ends, as the program has
            // promised (`Tracking::Scan`).
            let now = unsafe { std::slice::from_raw_parts(self.region.at(bytes.start), bytes.len()) };
            let mut run: Option<Range<usize>> = None;
            for (line, (now, was)) in now.chunks(LINE).zip(self.was(&bytes).chunks(LINE)).enumerate() {
                let Some(part) = differing(now, was) else { continue };
                let at = bytes.start + line * LINE;
                let part = at + part.start..at + part.end;
                match &mut run {
                    Some(run) if part.start <= run.end + NEAR => run.end = part.end,
                    run => all.extend(run.replace(part)),
                }
            }
            all.extend(run);
        }
        all
    }
}

/// From the first byte that differs to the last.
fn differing(now: &[u8], was: &[u8]) -> Option<Range<usize>> {
    if now == was {
        return None;
    }
    let differs = |(a, b): (&u8, &u8)| a != b;
    let start = now.iter().zip(was).position(differs)?;
    let end = now.iter().zip(was).rposition(differs)?;
    Some(start..end + 1)
}
