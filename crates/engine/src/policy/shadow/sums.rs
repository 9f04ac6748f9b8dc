//! The sums of pages that transactions change.
//!
//! ```text
//!   before a page is changed:  what it holds is compared with its sum
//!   commit:                    segments forced - sums of what has changed, with the status of the log - force
//!   when many wait:            they go to the sums files, which are forced
//! ```
//!
//! A page with an image in the log is not compared: whatever becomes of it, what goes back is of the old sum.
//!
//! Invariant: a page that did not match its sum when it was changed keeps that sum. So what was made of damage looks
//! damaged, until the store is restored.

use super::pages::{Pages, Run};
use super::recovery::PutError;
use super::{Images, Shadow};
use crate::policy::backup::BackupError;
use crate::storage::Storage;
use crate::storage::report::Report;
use crate::storage::segment::SegmentState;
use crate::storage::sums::Sum;
use caliburn_log::SegmentId;
use caliburn_log::format::{IMAGE, ImagesStatus, SUM_UNIT};
use caliburn_log::image_status::{self, Sums};
use caliburn_log::images::{self, Page};
use caliburn_log::media_error::MediaError;
use caliburn_os::medium::Medium;
use caliburn_os::observed::Tell;
use caliburn_os::simulated::{even_if, planted, unless};
use std::sync::Arc;

/// A page has one sum.
const _: () = assert!(IMAGE == SUM_UNIT);
/// Pages that are read at once.
const BATCH: u64 = 64;

/// What sums files say of neighbours, of which one after the other is looked at.
#[derive(Default)]
pub(super) struct Known {
    first: Option<Page>,
    sums: Vec<Sum>,
}

impl Known {
    /// Whether the first of some pages may be what was committed last; `waiting` are sums that its file lacks.
    pub fn is_sound(
        &mut self,
        segment: &SegmentState,
        pages: &[Page],
        waiting: &Sums,
        (image, crc): (&[u8], u32),
    ) -> Result<bool, MediaError> {
        let page = pages[0];
        if !segment.has_sums() {
            return Ok(true);
        }
        if let Some(sum) = waiting.get(&page) {
            return Ok(*sum == crc.max(1));
        }
        let place = self.first.filter(|first| first.segment == page.segment);
        let place = place.and_then(|first| page.number.checked_sub(first.number));
        let sum = place.and_then(|place| self.sums.get(place as usize).copied());
        let sum = match sum {
            Some(sum) => sum,
            None => {
                let next = |pages: &[Page]| {
                    pages[0].segment == pages[1].segment && pages[0].number + 1 == pages[1].number
                };
                let run = 1 + pages.windows(2).take(BATCH as usize - 1).take_while(|two| next(two)).count();
                (self.first, self.sums) = (Some(page), segment.sums_of(page.number, run as u64)?);
                self.sums[0]
            }
        };
        Ok(sum.is_of(image, crc))
    }
}

/// Whether an image in the log may be what was committed last.
pub(super) fn is_image_sound(
    segment: &SegmentState,
    page: Page,
    waiting: &Sums,
    image: &[u8],
) -> Result<bool, PutError> {
    let summed = (image, images::checksum(image));
    let sound = Known::default().is_sound(segment, &[page], waiting, summed).map_err(PutError::Media)?;
    Ok(even_if("images-not-compared", sound))
}

/// The sums of runs of pages, as the segments show them.
fn summed<'s>(
    storage: &'s Storage,
    runs: &'s [Run],
) -> impl Iterator<Item = Result<(Page, u32), MediaError>> + 's {
    let (mut bytes, mut last) = (vec![0; IMAGE], None::<Arc<SegmentState>>);
    let pages = runs.iter().flat_map(|(id, run)| run.clone().map(|number| Page { segment: *id, number }));
    pages.map(move |page| {
        let of = match last.take().filter(|last| last.id == page.segment) {
            Some(last) => last,
            None => storage.segment_state(page.segment).expect("a page of it was kept"),
        };
        of.read(page.number * IMAGE as u64, &mut bytes)?;
        last = Some(of);
        Ok((page, images::checksum(&bytes).max(1)))
    })
}

/// Brings the sums that a status page has to the sums files.
pub(super) fn move_sums(
    segments: &[Arc<SegmentState>],
    medium: &dyn Medium,
    status: &ImagesStatus,
) -> Result<(), MediaError> {
    let (mut of, mut moved): (Option<&Arc<SegmentState>>, Vec<&Arc<SegmentState>>) = Default::default();
    image_status::each_sum(medium, status, |page, sum| {
        if of.is_none_or(|of| of.id != page.segment) {
            of = segments.iter().find(|segment| segment.id == page.segment);
            moved.extend(of);
        }
        match of.filter(|of| page.number < of.len().div_ceil(IMAGE as u64)) {
            Some(segment) => segment.note_sum(page.number, sum),
            None => Ok(()),
        }
    })?;
    moved.iter().try_for_each(|segment| segment.write_sums())
}

impl Images {
    /// Empties the log when a transaction has committed: the segments hold what it has changed, durably.
    pub(super) fn empty_committed(&mut self, storage: &Storage) -> Result<(), MediaError> {
        let mut changed = Pages::default();
        for (id, run) in self.pages.runs() {
            if storage.segment_state(id).is_some_and(|segment| segment.has_sums()) {
                changed.insert(id, run);
            }
        }
        for (id, run) in self.doubtful.runs() {
            changed.remove(id, run);
        }
        if planted("committed-pages-not-summed") {
            changed.clear();
        }
        let (count, runs) = (changed.count(), changed.runs());
        if !image_status::has_room(self.sums.len() as u64 + count) {
            self.move_sums(storage)?;
        }
        let mut sums = summed(storage, &runs);
        if image_status::has_room(count) {
            sums.try_for_each(|sum| sum.map(|(page, sum)| _ = self.sums.insert(page, sum)))?;
            return self.log.empty(&self.sums);
        }
        let segments = storage.segments.read().expect("no panic under this lock").clone();
        self.log.empty_with_many(count, sums, |medium, status| move_sums(&segments, medium, status))
    }

    /// Brings the sums that wait to the sums files.
    pub(super) fn move_sums(&mut self, storage: &Storage) -> Result<(), MediaError> {
        let mut last: Option<Arc<SegmentState>> = None;
        for (page, sum) in &self.sums {
            if last.as_ref().is_none_or(|of| of.id != page.segment) {
                last.take().map_or(Ok(()), |segment| segment.write_sums())?;
                last = storage.segment_state(page.segment);
            }
            last.as_ref().map_or(Ok(()), |segment| segment.note_sum(page.number, *sum))?;
        }
        last.map_or(Ok(()), |segment| segment.write_sums())?;
        self.sums.clear();
        Ok(())
    }
}

impl Shadow {
    /// Where segments do not match their sums.
    pub(super) fn list_damaged(&self) -> Result<Vec<(String, u64)>, BackupError> {
        let segments = self.storage.segments.read().expect("no panic under this lock").clone();
        let mut found = Vec::new();
        for segment in segments {
            // Transactions go on: only what looks damaged is looked at again when nothing is written.
            for number in segment.damaged_units(|_| false, &|_| Ok(()))? {
                let (images, page) = (self.lock(), Page { segment: segment.id, number });
                let changing = images.pages.meet(page.segment, number..number + 1);
                if !changing && !is_sound(&segment, page, images.sums.get(&page).copied())? {
                    found.push((segment.name.clone(), number * IMAGE as u64));
                }
            }
        }
        Ok(found)
    }
}

/// Whether a page matches the sum that waits, or that of its file.
fn is_sound(segment: &SegmentState, page: Page, waiting: Option<u32>) -> Result<bool, MediaError> {
    let Some(sum) = waiting else { return Ok(segment.unlike(page.number)?.is_none()) };
    let mut bytes = vec![0; IMAGE];
    segment.read(page.number * IMAGE as u64, &mut bytes)?;
    Ok(images::checksum(&bytes).max(1) == sum)
}

/// Compares segments with their sums, those that the log has among them, but for pages that have images.
pub(super) fn check(
    segments: &[Arc<SegmentState>],
    (log, status): (&dyn Medium, &ImagesStatus),
    images: Pages,
    tell: Tell<'_>,
    report: &mut Report,
) -> Result<(), MediaError> {
    let (mut excused, mut unlike) = (images, Vec::<Page>::new());
    let by_id = |id: SegmentId| segments.iter().find(|segment| segment.id == id);
    image_status::each_sum(log, status, |page, sum| {
        let run = page.number..page.number.saturating_add(1);
        let Some(segment) = by_id(page.segment).filter(|of| page.number < of.len() / IMAGE as u64) else {
            report.problem(
                log.path(),
                0,
                format!(
                    "it has a sum of page {} of segment {}, which has no such page",
                    page.number, page.segment.0
                ),
            );
            return Ok(());
        };
        if !excused.meet(page.segment, run.clone()) {
            if !is_sound(segment, page, Some(sum))? {
                unlike.push(page);
            }
            if unless("waiting-sums-not-looked-at", true) {
                excused.insert(page.segment, run);
            }
        }
        Ok(())
    })?;
    let mut before = 0;
    for segment in segments.iter().filter(|segment| segment.has_sums()) {
        let excuse = |unit| excused.meet(segment.id, unit..unit + 1);
        let mut damaged = segment.damaged_units(excuse, &|done| tell(before + done))?;
        damaged.extend(unlike.iter().filter(|page| page.segment == segment.id).map(|page| page.number));
        damaged.sort_unstable();
        segment.report_damaged(&damaged, report);
        before += segment.len();
    }
    Ok(())
}
