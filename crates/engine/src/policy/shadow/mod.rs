//! The shadow policy (McNamee, chapter 5: UMS): the segments are the store, mapped shared, and the system writes
//! their pages back whenever it likes. Before a page is stored to, what it held is durable in a log of
//! before-images. A transaction is as large as the disk, not the memory; one at a time is open.
//!
//! ```text
//!   declare, or a page that is caught:  images of its pages to the log - force - then they are stored to
//!   where before-images are lazy:       pages that are caught wait in memory (`waiting.rs`)
//!   commit:   1 what waits to the segments, which are forced    2 the log is emptied in one step, forced, with
//!               the sums of what has changed (`sums.rs`)
//!   abort:    1 images back - the segments are forced    2 as above
//!   opening:  the same as abort, for what the log holds
//! ```
//!
//! Steal, force: nothing is ever brought to the segments later, and every commit survives what the media do.
//!
//! Invariant: a byte that a segment durably lacks of the last commit is in an image that the log durably holds.

mod backup;
mod pages;
mod recovery;
mod sums;
mod waiting;

use crate::policy::backup::BackupError;
use crate::policy::backup::dump::{DumpOptions, Dumped};
use crate::policy::backup::restore::{Making, Restored};
use crate::policy::kind::{self, Closed, New, Opened, Opening, Policy};
use crate::policy::query::{LogInfo, Prepared, Query};
use crate::policy::{Claimed, Recovery, Undecided};
use crate::storage::Storage;
use crate::storage::catalog::Catalog;
use crate::storage::class::Class;
use crate::storage::directory;
use crate::storage::error::{CommitError, Failure, OpenError, RangeError};
use crate::storage::generations;
use crate::storage::pool::Pool;
use crate::storage::pressure::Pressure;
use crate::storage::progress::Watch;
use crate::storage::region::RegionState;
use crate::storage::report::Report;
use crate::storage::segment::SegmentState;
use crate::storage::settings::{BeforeImages, Extent, Settings};
use crate::write_set::{Position, Sets, Terms, WriteSet};
use caliburn_log::format::IMAGE;
use caliburn_log::image_status::Sums;
use caliburn_log::images::{ImageLog, Page};
use caliburn_log::media_error::MediaError;
use caliburn_os::medium::Medium;
use caliburn_os::memory;
use caliburn_os::rescue::Part;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::atomic::{AtomicU64, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard};
use pages::Pages;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use waiting::pages_of;

/// What the shadow policy does with stores that are not open.
pub(super) struct Kind;

impl kind::Kind for Kind {
    fn policy(&self) -> Policy {
        Policy::Shadow
    }

    /// The segments are mapped shared, and nobody sees the stores to them: but what has changed is known when a
    /// transaction ends.
    fn sums(&self) -> bool {
        true
    }

    /// Stores of earlier versions have none.
    fn has_sums(&self, catalog: &Catalog) -> bool {
        catalog.sums
    }

    fn create(&self, new: New<'_>) -> Result<(), OpenError> {
        recovery::create(new, 0, Vec::new())
    }

    fn open(&self, opening: Opening<'_>) -> Result<Opened, OpenError> {
        recovery::open(opening)
    }

    fn check(
        &self,
        store: &Closed<'_>,
        segments: &[Arc<SegmentState>],
        report: &mut Report,
    ) -> Result<(), OpenError> {
        recovery::check(store, segments, report)
    }

    fn info(&self, store: &Closed<'_>) -> Result<(Option<LogInfo>, bool), OpenError> {
        recovery::info(store)
    }

    fn dump(
        &self,
        settings: &Settings,
        dir: &Path,
        how: &DumpOptions,
        target: &mut dyn Write,
    ) -> Result<Dumped, BackupError> {
        backup::dump(settings, dir, how, target)
    }

    fn restore(&self, making: Making<'_>, first: Catalog) -> Result<Restored, BackupError> {
        backup::restore(making, first)
    }

    fn keeper<'c>(&self, catalog: &'c Catalog) -> &'c Path {
        &catalog.log_path
    }

    fn survives(&self, medium: &dyn Medium) -> Class {
        directory::forced(medium.volatile())
    }
}

/// An open store with the shadow policy.
pub(crate) struct Shadow {
    storage: Arc<Storage>,
    sets: Arc<Sets>,
    images: Mutex<Images>,
    /// When images of what is caught are kept.
    before: BeforeImages,
    /// Bytes that are mapped.
    mapped: AtomicU64,
}

/// The log of before-images, and what it has images of.
struct Images {
    log: ImageLog,
    pages: Pages,
    /// What is changed in memory alone.
    waiting: Pages,
    /// Of what was committed, which the sums files lack.
    sums: Sums,
    /// Pages that did not match their sums before they were changed.
    doubtful: Pages,
    /// Pages of private regions that are the segment until the transaction ends.
    stolen: Pages,
    /// What the transaction stores to becomes the segment at once.
    eager: bool,
    /// What it has said of itself.
    extent: Option<Extent>,
    pressure: Pressure,
}

impl Recovery for Shadow {
    fn map(&self, region: &RegionState, part: Range<usize>) -> io::Result<()> {
        let len = part.len() as u64;
        region.segment.begin_use()?;
        match self.before {
            // The pool shows it, page by page.
            _ if self.storage.pool.is_some() => region.withdraw(part)?,
            BeforeImages::Eager => region.map_shared(&self.storage, part, false, Part::Page)?,
            _ => {
                region.passing.store(true, Ordering::Relaxed);
                // Where the system counts what may be stored to, a part counts from its first store on, and is not
                // joined with others any more: all of it is to be counted at once.
                let counted =
                    memory::is_counted().then(|| region.map_private(&self.storage, part.clone(), None, true));
                if !matches!(counted, Some(Ok(()))) {
                    region.map_private(&self.storage, part, None, false)?;
                }
            }
        }
        self.mapped.fetch_add(len, Ordering::Relaxed);
        Ok(())
    }

    fn touches(&self, region: &RegionState) -> bool {
        let (images, pages) = (self.lock(), region.pages(IMAGE as u64));
        images.pages.meet(region.id, pages.clone()) || images.waiting.meet(region.id, pages)
    }

    fn unmapped(&self, region: &RegionState, _: bool) {
        self.mapped.fetch_sub(region.len() as u64, Ordering::Relaxed);
    }

    fn put_to_rest(&self, unused: &[Arc<SegmentState>]) -> Result<(), Failure> {
        let forced = unused.iter().try_for_each(|segment| segment.sync());
        forced.map_err(|e| self.storage.fail(e))?;
        unused.iter().for_each(|segment| segment.rest());
        Ok(())
    }

    fn survives(&self, medium: &dyn Medium) -> Class {
        directory::forced(medium.volatile())
    }

    fn terms(&self) -> Terms {
        Terms {
            clears: 0,
            keeps_old: [false; 2],
            forces: false,
            private: false,
            declared_only: false,
            restores: true,
            alone: true,
            adopts: true,
        }
    }

    /// The images of pages that have none yet, to the log. When this returns they may be stored to.
    fn save(
        &self,
        _: &WriteSet<'_>,
        region: &RegionState,
        offset: usize,
        len: usize,
    ) -> Result<(), RangeError> {
        let run = (region.id, pages_of(region, offset..offset + len));
        let mut images = self.lock();
        self.storage.failure().map_err(|failure| MediaError::clone(&failure.cause))?;
        images.scatter(&self.storage, region);
        match self.before {
            BeforeImages::Eager => images.keep(&self.storage, &[run]),
            // Declared ranges are the segment, so that system calls may store there at any time.
            _ if !images.waiting.meet(run.0, run.1.clone()) => images.share(&self.storage, run),
            _ if planted("declared-pages-wait") => Ok(()),
            _ => {
                // All that waits: one force, and no more mappings than there are runs.
                images.steal(&self.storage)?;
                images.share(&self.storage, run)
            }
        }
    }

    fn caught(&self, region: &RegionState, part: Range<usize>) -> Option<Result<(), RangeError>> {
        (self.before != BeforeImages::Eager).then(|| self.wait(region, part))
    }

    fn will_change(&self, extent: Extent) {
        self.lock().extent = Some(extent).filter(|_| !planted("extent-not-heard"));
    }

    fn restore(&self, _: &WriteSet<'_>, _: Position) {
        let mut images = self.lock();
        if planted("images-not-restored") {
            return;
        }
        // First: who loads meanwhile has pages leave their frames, and what was put back must not be written over.
        if !planted("pool-dirty-while-undone") {
            self.of_pool(|pool| pool.drop_dirty());
        }
        if !images.pages.is_empty() {
            // Also in a store that has failed, so that programs see the old values.
            let back = images.put_back(&self.storage);
            self.drop_from_pool(&images);
            if self.storage.failure().is_ok()
                && let Err(error) = back.and_then(|()| images.end(&self.storage, false))
            {
                self.storage.fail(error);
            }
        } else {
            self.drop_from_pool(&images);
        }
        images.settle(&self.storage);
    }

    fn roll_back(&self, _: &WriteSet<'_>, _: Position) {
        unreachable!("{NO_PARTS}")
    }

    fn adopt(&self, _: &WriteSet<'_>, _: &WriteSet<'_>) -> Result<(), RangeError> {
        unreachable!("{NO_PARTS}")
    }

    fn clear(&self, set: &WriteSet<'_>) {
        set.clear_all();
    }

    fn commit(&self, _: &WriteSet<'_>) -> Result<Option<u64>, CommitError> {
        let mut images = self.lock();
        self.storage.failure()?;
        images.write_waiting(&self.storage)?;
        if !images.pages.is_empty() {
            let written = self.storage.pool.as_ref().map_or(Ok(()), |pool| pool.write_back(&self.storage));
            written.and_then(|()| images.end(&self.storage, true)).map_err(|e| self.storage.fail(e))?;
        }
        images.settle(&self.storage);
        Ok(None)
    }

    /// Every commit was forced before it returned.
    fn flush(&self) -> Result<(), Failure> {
        self.storage.failure()
    }

    fn undecided(&self) -> &dyn Undecided {
        self
    }

    fn dump(
        &self,
        how: &DumpOptions,
        watch: &Watch,
        target: &mut dyn Write,
    ) -> Option<Result<Dumped, BackupError>> {
        Some(self.dump_open(how, watch, target))
    }

    fn damaged(&self) -> Option<Result<Vec<(String, u64)>, BackupError>> {
        Some(self.list_damaged())
    }

    fn tuned(&self) {
        self.sets.grant(0);
    }

    fn close(&self) -> Result<(), Failure> {
        let generations = self.storage.generations.as_ref();
        let closed = generations::step(generations, |generation| {
            let mut images = self.lock();
            if !planted("sums-not-moved-at-a-close") {
                images.move_sums(&self.storage)?;
            }
            self.storage.end_use(generation)?;
            images.log.close(generation)
        });
        closed.map_err(|e| self.storage.fail(e))
    }

    fn query(&self, query: &mut Query) {
        let images = self.lock();
        (query.log_bytes, query.log_used) = (images.log.held(), images.log.used());
        query.private_pages = images.waiting.count() * IMAGE as u64 / query.page_bytes;
    }
}

/// Why some methods are never called.
const NO_PARTS: &str = "its sets keep no old values, so there are neither savepoints nor branches";

impl Shadow {
    fn lock(&self) -> MutexGuard<'_, Images> {
        self.images.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Where a pool shows regions: what has images is not what is in its frames, but what is in the segments.
    fn drop_from_pool(&self, images: &Images) {
        self.of_pool(|pool| {
            pool.drop_changed(IMAGE as u64, |segment, pages| images.pages.meet(segment, pages))
        });
    }

    /// Does something to the pool, if there is one. What cannot be taken out of it shows what is not so.
    fn of_pool(&self, what: impl FnOnce(&Pool) -> io::Result<()>) {
        if let Err(source) = self.storage.pool.as_ref().map_or(Ok(()), what) {
            let path = self.storage.dir.clone();
            self.storage.fail(MediaError::of_name("take memory out of the buffer pool of", path, source));
        }
    }
}

impl Images {
    fn new(log: ImageLog) -> Images {
        let (pages, waiting, stolen) = Default::default();
        let (sums, doubtful, pressure) = Default::default();
        Images { log, pages, waiting, sums, doubtful, stolen, eager: false, extent: None, pressure }
    }

    /// Has nothing be read around what is touched of a region that memory is short for.
    fn scatter(&mut self, storage: &Storage, region: &RegionState) {
        if region.may_scatter(storage) && unless("not-scattered", storage.is_short(&mut self.pressure)) {
            region.scatter();
        }
    }

    /// What the log holds, back to the segments: programs see it where they are mapped.
    fn put_back(&mut self, storage: &Storage) -> Result<(), MediaError> {
        let done = self.log.each(|page, image| put(storage, page, image));
        done.map_err(|error| recovery::of_media(error, &self.log))
    }

    /// Ends a transaction: what the segments show is what they hold.
    fn end(&mut self, storage: &Storage, committed: bool) -> Result<(), MediaError> {
        if planted("images-emptied-first") {
            self.log.empty(&self.sums)?;
        }
        // 1 the segments are forced
        for id in self.pages.segments() {
            let segment = storage.segment_state(id).expect("a page of it was kept");
            if !planted("shadow-segments-not-forced") {
                segment.sync()?;
            }
        }
        // 2 nothing is to be undone any more
        storage.settle()?;
        match committed {
            _ if planted("images-not-emptied") => {}
            true => self.empty_committed(storage)?,
            false => self.log.empty(&self.sums)?,
        }
        self.pages.clear();
        self.doubtful.clear();
        Ok(())
    }
}

/// Writes an image to its segment.
fn put(storage: &Storage, page: Page, image: &[u8]) -> Result<(), recovery::PutError> {
    let segment = storage.segment_state(page.segment).ok_or(recovery::PutError::Stray(page))?;
    recovery::put_image(&segment, page, image)
}

impl Undecided for Shadow {
    fn list(&self) -> Vec<Prepared> {
        Vec::new()
    }

    fn list_all(&self) -> Vec<Prepared> {
        Vec::new()
    }

    fn check(&self, _: &[u8]) -> Result<(), CommitError> {
        Err(CommitError::NeverUndecided)
    }

    fn prepare(&self, _: &WriteSet<'_>, _: &[u8], _: &mut dyn FnMut() -> usize) -> Result<(), CommitError> {
        Err(CommitError::NeverUndecided)
    }

    fn claim(&self, global_id: &[u8]) -> Result<Claimed, CommitError> {
        Err(CommitError::NotPrepared(String::from_utf8_lossy(global_id).into_owned()))
    }

    fn unclaim(&self, _: &[u8]) {}

    fn decide(&self, _: &[u8], _: Option<&Claimed>) -> Result<(), Failure> {
        unreachable!("nobody has claimed it")
    }

    fn leave(&self) -> Result<Vec<usize>, Failure> {
        Ok(Vec::new())
    }
}
