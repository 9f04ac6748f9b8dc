//! Creating, opening and checking stores with the shadow policy.
//!
//! ```text
//!   1 every image that the log holds is verified, and lies in a segment
//!   2 the images go to their segments, which are forced
//!   3 the status of the log is made durable; the sums that it brings go to the sums files, which are forced
//!   4 the log is emptied, in one step; durably in use
//! ```
//!
//! Cut short, recovery begins again with 1, to the same result.

use super::pages::Pages;
use super::{Images, Shadow, sums};
use crate::policy::kind::{Closed, New, Opened, Opening, Policy};
use crate::policy::log_file;
use crate::policy::query::LogInfo;
use crate::policy::read_only;
use crate::storage::Storage;
use crate::storage::catalog::{Catalog, Entry};
use crate::storage::directory::{self, SHADOW};
use crate::storage::error::OpenError;
use crate::storage::generations;
use crate::storage::lacking::Lacking;
use crate::storage::progress::{Phase, Watch};
use crate::storage::report::{OpenReport, Problem, Report};
use crate::storage::segment::SegmentState;
use crate::write_set::{Layout, Sets};
use caliburn_log::SegmentId;
use caliburn_log::format::{Defect, FIRST_GENERATION, IMAGE, IMAGES_DATA, ImagesStatus};
use caliburn_log::image_status::{self, CLEAN};
use caliburn_log::images::{self, Found, ImageLog, ImagesError, Page};
use caliburn_log::media_error::MediaError;
use caliburn_log::record::Range;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::Mutex;
use caliburn_os::sync::atomic::AtomicU64;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Makes the files of a new store, whose segments may be there: the log, and the catalog last.
pub(super) fn create(new: New<'_>, next: u32, segments: Vec<Entry>) -> Result<(), OpenError> {
    log_file::create(new, (Policy::Shadow, SHADOW), (next, segments), |new, catalog, log, made| {
        let reach = directory::forced(log.volatile());
        new.settings.require(new.dir, (log.path().to_owned(), reach))?;
        images::create(&**log, catalog.store, FIRST_GENERATION)?;
        let elsewhere = made && catalog.log_path.is_absolute();
        directory::name_files(&*new.settings.media, new.dir, catalog, elsewhere)
    })
}

/// Why an image was not put back.
pub(super) enum PutError {
    Images(ImagesError),
    Media(MediaError),
    /// No segment has that page.
    Stray(Page),
}

impl From<ImagesError> for PutError {
    fn from(error: ImagesError) -> PutError {
        PutError::Images(error)
    }
}

impl PutError {
    fn of_opening(self, log: &dyn Medium) -> OpenError {
        match self {
            PutError::Images(ImagesError::Media(error)) | PutError::Media(error) => error.into(),
            PutError::Images(error) => error.into(),
            PutError::Stray(Page { segment, number }) => {
                let text = format!(
                    "it has an image of page {number} of segment {}, which has no such page",
                    segment.0
                );
                OpenError::Stray {
                    what: "before-images",
                    path: log.path().to_owned(),
                    offset: IMAGES_DATA,
                    text,
                }
            }
        }
    }
}

/// As a failure of the log's medium, which does not hold what was written there.
pub(super) fn of_media(error: PutError, log: &ImageLog) -> MediaError {
    match error.of_opening(log.medium()) {
        OpenError::Media(error) => error,
        other => {
            let source = io::Error::new(io::ErrorKind::InvalidData, other.to_string());
            MediaError::new("read before-images", log.medium(), IMAGES_DATA, source)
        }
    }
}

/// Where so many bytes of a page are in its segment, which must have them.
fn offset_of(segment: &SegmentState, page: Page, len: usize) -> Result<u64, PutError> {
    let offset = page.number.checked_mul(IMAGE as u64);
    let has = |at: &u64| at.checked_add(len as u64).is_some_and(|end| end <= segment.len());
    offset.filter(has).ok_or(PutError::Stray(page))
}

/// Writes an image to its segment.
pub(super) fn put_image(segment: &SegmentState, page: Page, image: &[u8]) -> Result<(), PutError> {
    segment.write_part(offset_of(segment, page, image.len())?, image).map_err(PutError::Media)
}

/// The images of a store that is not open, each verified and of a page that there is: `each` is called with them.
fn each_sound(
    (log, status): (&dyn Medium, &ImagesStatus),
    segments: &[Arc<SegmentState>],
    watch: &Watch,
    mut each: impl FnMut(&SegmentState, Page, &[u8]) -> Result<(), PutError>,
) -> Result<(), OpenError> {
    if status.clean.get() == CLEAN {
        return Ok(());
    }
    let total = log.len().map_err(|e| MediaError::new("measure before-images", log, 0, e))?;
    let (store, generation) = (status.preamble.store, status.generation.get());
    let by_id: BTreeMap<SegmentId, &Arc<SegmentState>> = segments.iter().map(|of| (of.id, of)).collect();
    let done = watch.reading(Phase::ReadLog, log, total, |log| {
        images::each_image(log, &store, generation, |page, found| {
            let segment = by_id.get(&page.segment).ok_or(PutError::Stray(page))?;
            match found {
                Found::Image(image) => {
                    offset_of(segment, page, image.len())?;
                    each(segment, page, image).map(|()| true)
                }
                Found::Behind(image) => {
                    let (offset, mut there) = (offset_of(segment, page, image.len())?, vec![0; image.len()]);
                    segment.read(offset, &mut there).map_err(PutError::Media)?;
                    Ok(there == image)
                }
                Found::Torn(len, crc) => {
                    let (offset, mut there) = (offset_of(segment, page, len)?, vec![0; len]);
                    segment.read(offset, &mut there).map_err(PutError::Media)?;
                    Ok(images::checksum(&there) == crc)
                }
            }
        })
    });
    done.map(drop).map_err(|error| error.of_opening(log))
}

/// What is laid over the segments of a store that is only read: the images, read from the log whenever a region is
/// mapped.
struct LoggedImages {
    log: Arc<dyn Medium>,
    status: ImagesStatus,
    /// The segments that they are of.
    segments: BTreeSet<SegmentId>,
    /// For salvage: those that are whole, up to where the log cannot be read.
    damaged: bool,
}

impl Lacking for LoggedImages {
    fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    fn each_of(&self, segment: SegmentId, each: &mut dyn FnMut(Range<'_>)) -> io::Result<()> {
        if !self.segments.contains(&segment) {
            return Ok(());
        }
        let (store, generation) = (self.status.preamble.store, self.status.generation.get());
        let laid = images::each_image(&*self.log, &store, generation, |page, found| {
            // What is torn, or behind that, was compared with its page.
            if let Found::Image(bytes) = found
                && page.segment == segment
            {
                each(Range { segment, offset: page.number * IMAGE as u64, bytes });
            }
            Ok::<bool, ImagesError>(true)
        });
        laid.map(drop).or_else(|error| if self.damaged { Ok(()) } else { Err(io::Error::other(error)) })
    }
}

/// Opens a store; its catalog was read.
pub(super) fn open(mut opening: Opening<'_>) -> Result<Opened, OpenError> {
    let (dir, write, settings) = (opening.dir().to_owned(), opening.write(), opening.settings);
    if settings.replica().is_some() {
        let why = "a store with the shadow policy has no log of changes that a replica could keep";
        return Err(OpenError::Policy { path: dir, why });
    }
    let path = Catalog::resolve(&dir, &opening.found.catalog.log_path);
    if let Some(wanted) = &settings.log_path
        && std::path::absolute(wanted).map_err(OpenError::io("resolve", wanted))? != path
    {
        let why = "its log of before-images stays where it was made: open it without a path of a log, or with that one";
        return Err(OpenError::Policy { path: dir, why });
    }
    let log = opening.media().open(&path, write).map_err(OpenError::io("open before-images", &path))?;
    let claim = directory::claim(&*log, write)?;
    opening.found.log_locks.extend(claim.map(|lock| (path, lock)));
    let (store, segments) = (opening.found.catalog.store, opening.found.segments.clone());
    let status = image_status::read_status(&*log, &store)?;
    opening.check_keeper(image_status::said(&status), |defect| bad(&*log, defect))?;
    let copied = status.clean.get() != CLEAN && opening.copied_from(&*log, status.place)?;
    let damage = opening.found.damage.take();
    let media = segments.iter().map(|segment| (segment.file.path().to_owned(), segment.file.is_volatile()));
    let media = media.chain([(log.path().to_owned(), log.volatile())]);
    let reach = settings.reach(&dir, media.map(|(path, volatile)| (path, directory::forced(volatile))))?;
    let (of, watch) = ((&*log, &status), &settings.watch);
    // 1 verified: what is damaged changes nothing
    if !write {
        let mut found = BTreeSet::new();
        let noted = each_sound(of, &segments, watch, |_, page, _| {
            found.insert(page.segment);
            Ok(())
        });
        let failed = match noted {
            Err(error @ (OpenError::Images(_) | OpenError::Stray { .. })) if settings.salvage => Some(error),
            other => other.map(|()| None)?,
        };
        let lacking = Box::new(LoggedImages { log, status, segments: found, damaged: failed.is_some() });
        return Ok(read_only::open(opening, reach, Some(lacking), Vec::new(), damage.or(failed)));
    }
    match unless("torn-images-copy-taken", copied) {
        true => verify_copy(of, &segments, watch)?,
        false => each_sound(of, &segments, watch, |_, _, _| Ok(()))?,
    }
    // 2 images back
    let mut touched = BTreeSet::new();
    if planted("recovered-images-emptied-first") {
        let at = (log.place().unwrap_or_default(), status.store_generation.get());
        drop(ImageLog::open(log.clone(), store, status, at, false, |_, _| Ok(()))?);
    }
    each_sound(of, &segments, &Watch::default(), |segment, page, image| {
        touched.insert(page.segment);
        put_image(segment, page, image)
    })?;
    // So are those whose sums are about to be written.
    image_status::each_sum(&*log, &status, |page, _| {
        touched.insert(page.segment);
        Ok(())
    })?;
    for segment in segments.iter().filter(|segment| touched.contains(&segment.id)) {
        if !planted("recovered-images-not-forced") {
            segment.end_recovery(true)?;
        }
    }
    // 3 and 4 the log is empty
    let place = log.place().unwrap_or_default();
    let generations = opening.found.generations.as_ref();
    generations::catch_up(generations, status.clean == CLEAN, || image_status::force_status(&*log, &status))?;
    segments.iter().try_for_each(|segment| segment.confirm_found())?;
    let rescues = !log.keeps_room();
    let log = generations::step(generations, |generation| {
        let move_sums = |medium: &dyn Medium, status: &_| sums::move_sums(&segments, medium, status);
        ImageLog::open(log, store, status, (place, generation), copied, move_sums)
    })?;
    let mut storage = Storage::new(opening.found, settings, reach);
    (storage.reads_around, storage.rescues) = (true, rescues);
    let storage = Arc::new(storage);
    let sets = Arc::new(Sets::new(Layout { trailer: 0 }, opening.tracked));
    let images = Mutex::new(Images::new(log));
    let policy = Box::new(Shadow {
        storage: storage.clone(),
        sets: sets.clone(),
        images,
        before: settings.before_images,
        mapped: AtomicU64::new(0),
    });
    Ok(Opened { storage, sets, policy, damage: None, report: OpenReport::default() })
}

fn unlike_image(Page { segment, number }: Page) -> String {
    format!("its image of page {number} of segment {} does not match the checksum of that page", segment.0)
}

/// Refuses a copy whose files are not of one moment, as far as sums tell: its pages, and the images in the log, are
/// those that were summed last.
fn verify_copy(
    (log, status): (&dyn Medium, &ImagesStatus),
    segments: &[Arc<SegmentState>],
    watch: &Watch,
) -> Result<(), OpenError> {
    let stray =
        |what, path: &Path, offset, text| OpenError::Stray { what, path: path.to_owned(), offset, text };
    if let Some(segment) = segments.iter().find(|segment| !segment.has_sums()) {
        let text = "it has no checksums, which would tell whether this copy of a store that was in use is whole: \
                    `caliburn recover --salvage` takes what is there";
        return Err(stray("segment", segment.file.path(), 0, text.into()));
    }
    let waiting = image_status::sums(log, status)?;
    let (mut imaged, mut unlike) = (Pages::default(), None);
    each_sound((log, status), segments, watch, |segment, page, image| {
        imaged.insert(page.segment, page.number..page.number + 1);
        if !sums::is_image_sound(segment, page, &waiting, image)? {
            unlike = Some(page);
        }
        Ok(())
    })?;
    if let Some(page) = unlike {
        return Err(stray("before-images", log.path(), IMAGES_DATA, unlike_image(page)));
    }
    let mut report = Report::default();
    sums::check(segments, (log, status), imaged, &|_| Ok(()), &mut report)?;
    match report.problems.into_iter().next() {
        Some(Problem { path, offset, text }) => Err(stray("segment", &path, offset, text)),
        None => Ok(()),
    }
}

/// As what is wrong with before-images.
pub(super) fn bad(log: &dyn Medium, defect: Defect) -> OpenError {
    ImagesError::Bad { path: log.path().to_owned(), offset: 0, defect }.into()
}

fn open_log(store: &Closed<'_>) -> Result<Arc<dyn Medium>, OpenError> {
    let path = Catalog::resolve(store.dir, &store.catalog.log_path);
    store.media.open(&path, false).map_err(OpenError::io("open before-images", &path))
}

pub(super) fn info(store: &Closed<'_>) -> Result<(Option<LogInfo>, bool), OpenError> {
    let log = open_log(store)?;
    let status = image_status::read_status(&*log, &store.catalog.store)?;
    store.check_keeper(image_status::said(&status), |defect| bad(&*log, defect))?;
    Ok((None, status.clean.get() == CLEAN))
}

/// Verifies the before-images, and the segments' data as far as it has sums.
pub(super) fn check(
    store: &Closed<'_>,
    segments: &[Arc<SegmentState>],
    report: &mut Report,
) -> Result<(), OpenError> {
    let log = open_log(store)?;
    let status = match image_status::read_status(&*log, &store.catalog.store) {
        Err(ImagesError::Bad { path, offset, defect }) => {
            report.problem(&path, offset, defect);
            return Ok(());
        }
        other => other?,
    };
    if store.in_use {
        return Ok(());
    }
    if let Err(error) = store.check_keeper(image_status::said(&status), |defect| bad(&*log, defect)) {
        report.problem(log.path(), 0, error);
    }
    if status.clean.get() != CLEAN {
        store.report_copy(&*log, status.place, report);
    }
    let (mut count, mut imaged, mut unlike) = (0, Pages::default(), Vec::new());
    let waiting = image_status::sums(&*log, &status)?;
    let sound = each_sound((&*log, &status), segments, store.watch, |segment, page, image| {
        count += 1;
        imaged.insert(page.segment, page.number..page.number + 1);
        if !sums::is_image_sound(segment, page, &waiting, image)? {
            unlike.push(page);
        }
        Ok(())
    });
    match sound {
        Err(OpenError::Images(ImagesError::Bad { path, offset, defect })) => {
            report.problem(&path, offset, defect);
            return Ok(());
        }
        Err(error @ OpenError::Stray { .. }) => {
            report.problem(log.path(), IMAGES_DATA, error);
            return Ok(());
        }
        other => other?,
    }
    if count > 0 {
        let text = "page(s) of a transaction that was not committed await being put back";
        report.notes.push(format!("{count} {text}"));
    }
    unlike.into_iter().for_each(|page| report.problem(log.path(), IMAGES_DATA, unlike_image(page)));
    let total = segments.iter().map(|segment| segment.len()).sum();
    let tell = |done| store.watch.tell(Phase::VerifySegments, done, total);
    Ok(sums::check(segments, (&*log, &status), imaged, &tell, report)?)
}
