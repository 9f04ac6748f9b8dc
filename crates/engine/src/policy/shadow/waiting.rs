//! Pages that a transaction has changed in memory alone (RPVM's lazy before-images; McNamee, sections 6.1.2 and
//! 7.3.2). Where stores are caught, a region is mapped privately: the segment itself is the before-image, as
//! long as nobody writes to it. When memory gets short, and at the latest when the transaction commits, the flush
//! order is kept by hand: images first.
//!
//! ```text
//!   a page is caught:    private; it waits                              no input or output
//!   memory gets short:   1 images of all that wait, in one group - force
//!   (steal)              2 run by run: protect - write to the segment - map it as the segment - open
//!   commit:              1 images of what has changed - force  2 write to the segments - force  3 log emptied
//!   abort:               private copies dropped
//! ```
//!
//! A page that was stolen is the segment from then on, as every page is where before-images are eager: the system
//! writes it back and takes its memory whenever it likes. When the transaction has ended, its region is private
//! again.
//!
//! Invariant: a page waits, or its image is in the forced log, or it was not stored to.

use super::pages::{Pages, Run};
use super::sums::Known;
use super::{Images, Shadow};
use crate::policy::parts::{Part, shown};
use crate::storage::Storage;
use crate::storage::error::RangeError;
use crate::storage::region::RegionState;
use crate::storage::settings::{BeforeImages, Extent};
use crate::write_set::Written;
use caliburn_log::format::IMAGE;
use caliburn_log::images::{Page, checksum};
use caliburn_log::media_error::MediaError;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::atomic::Ordering;
use caliburn_os::{page_size, private};
use std::io;
use std::ops::Range;

/// What of the memory budget may wait where memory cannot hold all that is mapped besides: enough for transactions
/// that are small.
const SMALL: u64 = 16;

/// Runs that are mapped again one by one.
const MANY: usize = 64;

/// Runs of a region that are mapped again one by one until all of it is.
const PIECES: usize = 512;

/// The pages of a part of a region: whole ones of memory, as far as the region goes.
pub(super) fn pages_of(region: &RegionState, part: Range<usize>) -> Range<u64> {
    let page = page_size();
    let end = part.end.next_multiple_of(page).min(region.len());
    let start = region.start + (part.start / page * page) as u64;
    start / IMAGE as u64..(region.start + end as u64).div_ceil(IMAGE as u64)
}

/// The parts of regions that show a run of pages.
fn parts<'s>(storage: &'s Storage, (segment, pages): &Run) -> Vec<Part<'s>> {
    let (start, end) = (pages.start * IMAGE as u64, pages.end * IMAGE as u64);
    shown(&storage.table, Written { segment: *segment, start, end })
}

impl Shadow {
    /// A store to a part of a private region was caught: its pages wait from now on.
    pub(super) fn wait(&self, region: &RegionState, part: Range<usize>) -> Result<(), RangeError> {
        let pages = pages_of(region, part);
        let mut images = self.lock();
        self.storage.failure().map_err(|failure| MediaError::clone(&failure.cause))?;
        images.scatter(&self.storage, region);
        let more = pages.end - pages.start;
        let adapts = self.before == BeforeImages::Adaptive;
        let most = self.most_waiting(images.extent);
        images.eager |= match images.extent {
            Some(Extent::Many) => true,
            Some(Extent::Few) => false,
            None => adapts && self.storage.is_short(&mut images.pressure),
        };
        if images.eager || images.waiting.count() + more > most {
            images.steal(&self.storage)?;
            // A transaction that is so large has more to come: what it waited with would push out what it reads.
            images.eager |= adapts;
        }
        if images.eager || more > most {
            return images.share(&self.storage, (region.id, pages));
        }
        images.waiting.insert(region.id, pages);
        Ok(())
    }

    /// How many pages may wait.
    fn most_waiting(&self, extent: Option<Extent>) -> u64 {
        let budget = self.storage.memory_budget();
        let fits = self.mapped.load(Ordering::Relaxed) + budget <= self.storage.limits.bytes();
        let bytes = match self.before {
            BeforeImages::Adaptive if !fits && extent != Some(Extent::Few) => budget / SMALL,
            _ => budget,
        };
        bytes / IMAGE as u64
    }
}

impl Images {
    /// Images of pages that have none, to the log, in one group. When this returns they may be changed in their
    /// segments, which hold until then what they held before the transaction.
    pub(super) fn keep(&mut self, storage: &Storage, runs: &[Run]) -> Result<(), RangeError> {
        let missing: Vec<Page> =
            runs.iter().flat_map(|(id, run)| self.pages.missing(*id, run.clone())).collect();
        if missing.is_empty() || planted("images-not-kept") {
            return Ok(());
        }
        self.log.make_room(missing.len() as u64)?;
        let (mut known, sums, doubtful) = (Known::default(), &self.sums, &mut self.doubtful);
        let done = self.log.append(&missing, |i, image| {
            let Page { segment: id, number } = missing[i];
            let segment = storage.segment_state(id).expect("a region of it is mapped");
            let at = number * IMAGE as u64;
            // The last page of a file that was adopted may be cut off.
            let len = IMAGE.min((segment.len() - at) as usize);
            segment.read(at, &mut image[..len])?;
            let crc = checksum(&image[..len]);
            if unless(
                "damage-taken-along",
                !known.is_sound(&segment, &missing[i..], sums, (&image[..len], crc))?,
            ) {
                let offset = segment.data + at;
                tracing::error!(segment = segment.name, offset, "a transaction changes a damaged page");
                doubtful.insert(id, number..number + 1);
            }
            Ok((len, crc))
        });
        done.inspect_err(|error| drop(storage.fail(error.clone())))?;
        runs.iter().for_each(|(id, run)| self.pages.insert(*id, run.clone()));
        Ok(())
    }

    /// Makes all that waits the segment: the system may write it back from now on. What cannot be written keeps
    /// waiting.
    pub(super) fn steal(&mut self, storage: &Storage) -> Result<(), RangeError> {
        let runs = self.waiting.runs();
        // 1 what they held
        if !planted("stolen-without-images") {
            self.keep(storage, &runs)?;
        }
        // 2 what they hold
        for run in runs {
            // Whatever becomes of it: some of it may be the segment.
            self.stolen.insert(run.0, run.1.clone());
            for part in parts(storage, &run) {
                self.steal_part(storage, &part)?;
            }
            self.waiting.remove(run.0, run.1);
        }
        Ok(())
    }

    /// Makes pages the segment that have not been stored to: before-images are eager.
    pub(super) fn share(&mut self, storage: &Storage, run: Run) -> Result<(), RangeError> {
        self.keep(storage, std::slice::from_ref(&run))?;
        self.stolen.insert(run.0, run.1.clone());
        parts(storage, &run).iter().try_for_each(|part| become_segment(storage, part))
    }

    fn steal_part(&mut self, storage: &Storage, part: &Part<'_>) -> Result<(), RangeError> {
        let (region, range) = (part.region, part.range());
        // Who stores there meanwhile is caught, and waits until the page is open again.
        if !planted("stolen-while-stored-to") {
            region.protect(range.clone(), false).map_err(|source| refused(region, source))?;
        }
        let open_again = || {
            if let Err(source) = region.protect(range.clone(), true) {
                let path = region.segment.file.path().to_owned();
                storage.fail(MediaError::of_name("open again the memory of", path, source));
            }
        };
        if let Err(error) = region.write_segment(range.clone()) {
            open_again();
            return Err(MediaError::clone(&storage.fail(error).cause).into());
        }
        become_segment(storage, part).inspect_err(|_| open_again())
    }

    /// Those that wait and were stored to.
    fn changed(&self, storage: &Storage) -> Vec<Run> {
        let mut changed = Pages::default();
        for run in self.waiting.runs() {
            for part in parts(storage, &run) {
                let (region, page) = (part.region, page_size());
                let told = private::copied_pages(region.at(part.offset), part.len.div_ceil(page), |run| {
                    let stored = part.offset + run.start * page..part.offset + run.end * page;
                    changed.insert(region.id, pages_of(region, stored));
                });
                if told.is_err() {
                    changed.insert(run.0, run.1.clone());
                }
            }
        }
        changed.runs()
    }

    /// Brings what has changed to the segments, unforced; its images are forced before.
    pub(super) fn write_waiting(&mut self, storage: &Storage) -> Result<(), RangeError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let changed = self.changed(storage);
        self.keep(storage, &changed)?;
        for part in changed.iter().flat_map(|run| parts(storage, run)) {
            if !planted("waiting-pages-not-written") {
                let written = part.region.write_segment(part.range());
                written.map_err(|e| MediaError::clone(&storage.fail(e).cause))?;
            }
        }
        Ok(())
    }

    /// A transaction has ended: memory shows what the segments hold, privately.
    pub(super) fn settle(&mut self, storage: &Storage) {
        (self.eager, self.extent) = (false, None);
        for run in std::mem::take(&mut self.waiting).runs() {
            for Part { region, offset, len } in parts(storage, &run) {
                note(storage, region, offset..offset + len);
                if !planted("waiting-pages-stay")
                    && let Err(error) = region.show_segment(offset..offset + len)
                {
                    storage.fail(error);
                }
            }
        }
        let stolen = std::mem::take(&mut self.stolen).runs();
        // Many runs are mapped again with all of their regions: that takes no mappings.
        let whole = stolen.len() > MANY;
        let mut last = None;
        for part in stolen.iter().flat_map(|run| parts(storage, run)) {
            let region = part.region;
            note(storage, region, part.range());
            if whole && last.replace((region.id, region.start)) == Some((region.id, region.start)) {
                continue;
            }
            // So it is now and then in any case: where the program has advised it otherwise, pieces are not joined.
            let whole = whole || region.pieces.fetch_add(1, Ordering::Relaxed) > PIECES;
            let range = if whole { 0..region.len() } else { part.range() };
            if whole {
                storage.note_touched(region);
                region.pieces.store(0, Ordering::Relaxed);
            }
            if !planted("stolen-pages-stay-shared")
                && let Err(source) = region.unshare(storage, range)
            {
                let path = region.segment.file.path().to_owned();
                storage.fail(MediaError::of_name("map again a region of", path, source));
            }
        }
    }
}

/// What is mapped anew, or given back, does not look as if it had been touched.
fn note(storage: &Storage, region: &RegionState, part: Range<usize>) {
    storage.note_bytes(region.id, region.start + part.start as u64..region.start + part.end as u64);
}

/// Maps a part as the segment, which has what it holds.
fn become_segment(storage: &Storage, part: &Part<'_>) -> Result<(), RangeError> {
    let (region, range) = (part.region, part.range());
    region.share(storage, range.clone()).map_err(|source| {
        // Whether the old mapping is there still is not known.
        if let Err(source) = region.map_private(storage, range, None, false) {
            let path = region.segment.file.path().to_owned();
            storage.fail(MediaError::of_name("map again a region of", path, source));
        }
        refused(region, source)
    })
}

fn refused(region: &RegionState, source: io::Error) -> RangeError {
    RangeError::Steal { segment: region.segment.name.clone(), source }
}
