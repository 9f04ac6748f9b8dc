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
use super::{Images, Shadow};
use crate::policy::parts::copy;
use crate::storage::Storage;
use crate::storage::error::RangeError;
use crate::storage::region::RegionState;
use crate::storage::settings::BeforeImages;
use caliburn_log::format::IMAGE;
use caliburn_log::images::Page;
use caliburn_log::media_error::MediaError;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::{page_size, private};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pages that may wait while memory is short: what brings one force a few of them.
const FEW: u64 = 256;

/// How long what was found out about memory counts.
const FRESH: Duration = Duration::from_millis(5);

/// Bytes that are copied at once on the way to a segment.
const COPIED: usize = 256 << 10;

/// Whether memory is short, as it was seen last.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    seen: Option<Instant>,
    short: bool,
}

impl Pressure {
    /// How many pages may wait.
    pub fn most(&mut self, storage: &Storage, kind: BeforeImages) -> u64 {
        let most = if cfg!(caliburn_sim) { 2 } else { storage.memory_budget() / IMAGE as u64 };
        if kind != BeforeImages::Adaptive {
            return most;
        }
        if self.seen.is_none_or(|seen| seen.elapsed() > FRESH) {
            *self = Pressure { seen: Some(Instant::now()), short: storage.limits.short() };
        }
        if self.short { most.min(FEW) } else { most }
    }
}

/// The pages of a part of a region.
pub(super) fn pages_of(region: &RegionState, offset: usize, len: usize) -> Range<u64> {
    let start = region.start + offset as u64;
    start / IMAGE as u64..(start + len as u64).div_ceil(IMAGE as u64)
}

/// The parts of regions that show a run of pages.
fn parts(storage: &Storage, (segment, pages): &Run) -> Vec<(Arc<RegionState>, Range<usize>)> {
    let (mut at, end) = (pages.start * IMAGE as u64, pages.end * IMAGE as u64);
    let mut parts = Vec::new();
    while at < end {
        // A file that was adopted may end within its last page.
        let Some(region) = storage.region_of(*segment, at) else { break };
        let until = end.min(region.end());
        parts.push((region.clone(), (at - region.start) as usize..(until - region.start) as usize));
        at = until;
    }
    parts
}

impl Shadow {
    /// A store to a part of a private region was caught: its pages wait from now on.
    pub(super) fn wait(&self, region: &RegionState, offset: usize, len: usize) -> Result<(), RangeError> {
        let pages = pages_of(region, offset, len);
        let mut images = self.lock();
        self.storage.failure().map_err(|failure| MediaError::clone(&failure.cause))?;
        let (most, more) = (images.pressure.most(&self.storage, self.before), pages.end - pages.start);
        if images.waiting.count() + more > most {
            let all = images.waiting.runs();
            images.steal(&self.storage, &all)?;
        }
        images.waiting.insert(region.id, pages.clone());
        if more > most.max(FEW) {
            // So many at once, since mappings run out.
            images.steal(&self.storage, &[(region.id, pages)])?;
        }
        Ok(())
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
        let done = self.log.append(&missing, |i, image| {
            let Page { segment, number } = missing[i];
            let segment = storage.segment_state(segment).expect("a region of it is mapped");
            let at = number * IMAGE as u64;
            // The last page of a file that was adopted may be cut off.
            let len = IMAGE.min((segment.len() - at) as usize);
            segment.read(at, &mut image[..len]).map(|()| len)
        });
        done.inspect_err(|error| drop(storage.fail(error.clone())))?;
        runs.iter().for_each(|(id, run)| self.pages.insert(*id, run.clone()));
        Ok(())
    }

    /// Makes pages that wait the segment: the system may write them back from now on. Those whose images are
    /// kept and that cannot be written keep waiting.
    pub(super) fn steal(&mut self, storage: &Storage, runs: &[Run]) -> Result<(), RangeError> {
        // 1 what they held
        if !planted("stolen-without-images") {
            self.keep(storage, runs)?;
        }
        // 2 what they hold
        for run in runs {
            for (region, part) in parts(storage, run) {
                let refused = |source| RangeError::Guard { segment: region.segment.name.clone(), source };
                if !planted("stolen-while-stored-to") {
                    // Who stores there meanwhile is caught, and waits until the page is open again.
                    region.protect(part.clone(), false).map_err(refused)?;
                }
                let written = write(&region, part.clone()).map_err(|e| storage.fail(e).cause);
                let done = written.map_err(|e| RangeError::Undo(MediaError::clone(&e))).and_then(|()| {
                    self.shared.insert((region.id, region.start));
                    region.share(storage, part.clone()).map_err(refused)
                });
                if let Err(error) = done {
                    region.protect(part, true).map_err(refused)?;
                    return Err(error);
                }
            }
            self.waiting.remove(run.0, run.1.clone());
        }
        Ok(())
    }

    /// Those that wait and were stored to.
    fn changed(&self, storage: &Storage) -> Vec<Run> {
        let mut changed = Pages::default();
        for run in self.waiting.runs() {
            for (region, part) in parts(storage, &run) {
                let (first, page) = (region.start + part.start as u64, page_size());
                let told = private::copied_pages(region.at(part.start), part.len().div_ceil(page), |run| {
                    let start = first + (run.start * page) as u64;
                    let end = (first + (run.end * page) as u64).min(region.end());
                    changed.insert(region.id, start / IMAGE as u64..end.div_ceil(IMAGE as u64));
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
        for run in &changed {
            for (region, part) in parts(storage, run) {
                if !planted("waiting-pages-not-written") {
                    write(&region, part).map_err(|e| MediaError::clone(&storage.fail(e).cause))?;
                }
            }
        }
        Ok(())
    }

    /// A transaction has ended: memory shows what the segments hold, privately.
    pub(super) fn settle(&mut self, storage: &Storage) {
        for run in std::mem::take(&mut self.waiting).runs() {
            if planted("waiting-pages-stay") {
                continue;
            }
            for (region, part) in parts(storage, &run) {
                if self.shared.contains(&(region.id, region.start)) {
                    continue;
                }
                if let Err(error) = region.show_segment(part) {
                    storage.fail(error);
                }
            }
        }
        for (segment, start) in std::mem::take(&mut self.shared) {
            let region = storage.region_of(segment, start).expect("it stays mapped while it is changed");
            if unless("stolen-pages-stay-shared", true)
                && let Err(source) = region.unshare(storage)
            {
                let path = region.segment.file.path().to_owned();
                storage.fail(MediaError::of_name("map again a region of", path, source));
            }
        }
    }
}

/// Copies part of a region to its segment.
fn write(region: &RegionState, part: Range<usize>) -> Result<(), MediaError> {
    let mut buffer = vec![0; part.len().min(COPIED)];
    for from in part.clone().step_by(COPIED) {
        let bytes = &mut buffer[..COPIED.min(part.end - from)];
        copy(region, from, bytes);
        region.segment.write_part(region.start + from as u64, bytes)?;
    }
    Ok(())
}
