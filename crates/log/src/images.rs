//! The log of before-images: what pages of segments held before a transaction stored to them, durable before they
//! are stored to (McNamee, section 5.2.2).
//!
//! ```text
//!   a page is to be stored to:  append - force - then it is
//!   commit, abort:              the segments are forced - a status page of the next generation - force: empty
//!   recovery:                   images back to the segments - force - as above
//! ```
//!
//! The paper's metadata, which pages the images are of, stands between the images, so that one write and one force
//! bring both; what it calls resetting the metadata is a status page of a new generation.
//!
//! Invariant: a group of batches is forced before the next one is written. So the last one alone may be there in
//! part, and what it has images of was not stored to: its pages are what the heads say that the images were. A batch
//! whose images are not what its head says, and whose pages are not either, was damaged after it was forced.

use crate::format::{
    self, BATCH_MAGIC, BATCH_MAX, BLOCK, BatchHead, Defect, GROUP_MAX, HEAD_HALF, IMAGE, IMAGES_DATA,
    IMAGES_VERSION, ImagePlace, ImagesStatus, SUMS_WAITING, SegmentId, VERSION,
};
use crate::image_status::{self, CLEAN, Sums, bad, put_status};
pub use crate::image_status::{ImagesError, Page};
use crate::media_error::{Forcing, MediaError};
use caliburn_os::host::Id;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::{even_if, planted, unless};
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The file grows by as much as it holds, but by no more, and no less, than this.
const GROWTH: (u64, u64) = if cfg!(caliburn_sim) { (8 << 10, 64 << 10) } else { (1 << 20, 256 << 20) };

/// The versions of heads that are read.
const VERSIONS: &[u32] = &[VERSION, IMAGES_VERSION];

/// Makes the file of a new store, durably, in a generation of the store.
///
/// # Errors
/// When the medium fails.
pub fn create(medium: &dyn Medium, store: Id, store_generation: u64) -> Result<(), MediaError> {
    medium.set_len(IMAGES_DATA).map_err(|e| MediaError::new("allocate before-images", medium, 0, e))?;
    for generation in 0..2u64 {
        let (generation, clean) = (generation.into(), CLEAN.into());
        let store_generation = store_generation.into();
        let status = ImagesStatus { generation, clean, store_generation, ..ImagesStatus::new_zeroed() };
        put_status(medium, &status, &[], store)?;
    }
    medium.sync().map_err(|e| MediaError::new("force before-images", medium, 0, e))
}

/// How [`ImagePlace::page_and_len`] is made.
const LEN_BITS: u32 = 13;

/// The page and the length that a place says, if there is such a page.
fn place(of: &ImagePlace) -> Option<(Page, usize)> {
    let (number, len) = (of.page_and_len.get() >> LEN_BITS, of.page_and_len.get() as usize % (1 << LEN_BITS));
    let page = Page { segment: SegmentId(of.segment.get()), number };
    (1..=IMAGE).contains(&len).then_some((page, len))
}

/// What calls of [`each_image`] are about.
#[derive(Debug)]
pub enum Found<'i> {
    /// A page's image.
    Image(&'i [u8]),
    /// There is no image: so many bytes of the page must have this checksum, or it was stored to, and its image
    /// was lost.
    Torn(usize, u32),
    /// An image whose group lacks a batch: the page must be the same, or it was stored to, and so perhaps were pages
    /// whose images are lost.
    Behind(&'i [u8]),
}

/// Where something is missing for the first time.
#[derive(Clone, Copy)]
struct Lost {
    at: u64,
    ordinal: u32,
    /// A whole batch, and nobody knows of which pages.
    batch: bool,
}

/// Calls `each` with every page that a generation has images of; how many batches there are before something is
/// missing.
///
/// # Errors
/// When the medium fails; when a batch is damaged that was forced; those of `each`, which tells whether the page is
/// as it should be.
pub fn each_image<E: From<ImagesError>>(
    medium: &dyn Medium,
    store: &Id,
    generation: u64,
    mut each: impl FnMut(Page, Found<'_>) -> Result<bool, E>,
) -> Result<u32, E> {
    let len = medium
        .len()
        .map_err(|e| ImagesError::from(MediaError::new("measure before-images", medium, 0, e)))?;
    let of = (store, generation);
    let (mut at, mut ordinal, mut images) = (IMAGES_DATA, 0, Vec::new());
    let mut lost: Option<Lost> = None;
    loop {
        let batch = read_batch(medium, of, (at, len), &mut images)?.filter(|(head, _)| {
            let batch = head.ordinal.get();
            batch == ordinal || batch > ordinal && lost.is_some_and(|lost| lost.batch)
        });
        let Some((head, places)) = batch else {
            let Some(behind) = next_head(medium, of, ordinal, (at, len)).map_err(ImagesError::from)? else {
                break;
            };
            lost = Some(Lost { batch: true, ..lost.unwrap_or(Lost { at, ordinal, batch: true }) });
            at = behind;
            continue;
        };
        let group = head.ordinal.get() - u32::from(head.grouped.get()).min(head.ordinal.get());
        if let Some(lost) = lost.filter(|lost| group > lost.ordinal) {
            if planted("damaged-batch-taken-for-the-end") {
                break;
            }
            let text = format!(
                "a batch of images is damaged: another one, at {at}, was written after it was forced"
            );
            return Err(bad(medium, lost.at, Defect::Value(text)).into());
        }
        for (of, image) in places.iter().zip(images.chunks(IMAGE)) {
            let Some((page, len)) = place(of) else {
                let defect = Defect::Value("an image has no bytes, or more than a page".into());
                return Err(bad(medium, at, defect).into());
            };
            let image = &image[..len];
            let found = match even_if("torn-images-restored", of.crc.get() == checksum(image)) {
                true if lost.is_some_and(|lost| lost.batch) => Found::Behind(image),
                true => Found::Image(image),
                false => {
                    lost.get_or_insert(Lost { at, ordinal: head.ordinal.get(), batch: false });
                    Found::Torn(len, of.crc.get())
                }
            };
            let behind = matches!(found, Found::Behind(_));
            if !even_if("damaged-images-taken-for-torn", each(page, found)?) {
                let (Page { segment, number }, what) =
                    (page, if behind { "a batch before the" } else { "the" });
                let text = format!(
                    "{what} image of page {number} of segment {} is damaged, and that page was stored to",
                    segment.0
                );
                return Err(bad(medium, at, Defect::Value(text)).into());
            }
        }
        if lost.is_some() && planted("group-ends-where-it-is-torn") {
            break;
        }
        (at, ordinal) = (at + batch_bytes(places.len()), head.ordinal.get() + 1);
    }
    Ok(lost.map_or(ordinal, |lost| lost.ordinal))
}

/// Where the next batch begins behind a place at which there is none, if there is one.
fn next_head(
    medium: &dyn Medium,
    (store, generation): (&Id, u64),
    ordinal: u32,
    (at, len): (u64, u64),
) -> Result<Option<u64>, MediaError> {
    let places = (1..=BATCH_MAX as u64 + 1).map(|block| at + block * BLOCK as u64);
    for behind in places.take_while(|behind| behind + BLOCK as u64 <= len) {
        let head = read_head(medium, store, behind)?;
        if head.is_some_and(|(head, _)| head.generation.get() == generation && head.ordinal.get() > ordinal) {
            return Ok(Some(behind));
        }
    }
    Ok(None)
}

/// The checksum of an image.
pub fn checksum(image: &[u8]) -> u32 {
    crc32c::crc32c(image)
}

/// Bytes of a batch with so many images.
fn batch_bytes(count: usize) -> u64 {
    (BLOCK + count * IMAGE) as u64
}

/// The head of a batch and its places, if one begins there: one of its halves is whole.
fn read_head(
    medium: &dyn Medium,
    store: &Id,
    at: u64,
) -> Result<Option<(BatchHead, Vec<ImagePlace>)>, MediaError> {
    let mut block = vec![0; BLOCK];
    medium.read_at(&mut block, at).map_err(|e| MediaError::new("read before-images", medium, at, e))?;
    let halves = block.chunks(HEAD_HALF).take(if planted("one-head-of-images") { 1 } else { 2 });
    let sound = |half: &&[u8]| {
        format::unseal_any(half, BATCH_MAGIC, VERSIONS, "batch of before-images", Some(store)).is_ok()
    };
    let Some(half) = halves.into_iter().find(sound) else { return Ok(None) };
    let (head, rest) = BatchHead::read_from_prefix(half).expect("a half holds a head");
    let count = usize::from(head.count.get());
    if !(1..=BATCH_MAX).contains(&count) {
        return Ok(None);
    }
    let places = <[ImagePlace]>::ref_from_prefix_with_elems(rest, count).expect("a half holds so many").0;
    Ok(Some((head, places.to_vec())))
}

/// The batch of a generation that begins there, if one does: its head and places, and its images, which may be torn,
/// in the buffer.
fn read_batch(
    medium: &dyn Medium,
    (store, generation): (&Id, u64),
    (at, len): (u64, u64),
    images: &mut Vec<u8>,
) -> Result<Option<(BatchHead, Vec<ImagePlace>)>, ImagesError> {
    if at + batch_bytes(1) > len {
        return Ok(None);
    }
    let Some((head, places)) = read_head(medium, store, at)? else { return Ok(None) };
    let other = unless("images-of-another-generation", head.generation.get() != generation);
    if other || at + batch_bytes(places.len()) > len {
        return Ok(None);
    }
    images.resize(places.len() * IMAGE, 0);
    let read = medium.read_at(images, at + BLOCK as u64);
    read.map_err(|e| MediaError::new("read before-images", medium, at, e))?;
    Ok(Some((head, places)))
}

/// The log of before-images of an open store.
#[derive(Debug)]
pub struct ImageLog {
    medium: Arc<dyn Medium>,
    store: Id,
    status: ImagesStatus,
    forcing: Forcing,
    /// Where the next batch comes.
    end: u64,
    /// How many batches there are.
    ordinal: u32,
    /// How many images.
    images: u64,
    /// Bytes of the file.
    held: u64,
    batch: Vec<u8>,
}

impl ImageLog {
    /// Takes the file into use in a generation of the store, when what it held is back in the segments, durably: it
    /// is empty. `move_sums` brings the sums that the status has, which is durable by then, to the sums files, and
    /// forces them. `copied`: the file may have batches of later generations, from after its status was copied.
    ///
    /// # Errors
    /// When the medium fails; those of `move_sums`.
    pub fn open(
        medium: Arc<dyn Medium>,
        store: Id,
        found: ImagesStatus,
        (place, generation): ([u64; 2], u64),
        copied: bool,
        move_sums: impl Fn(&dyn Medium, &ImagesStatus) -> Result<(), MediaError>,
    ) -> Result<ImageLog, MediaError> {
        let held = medium.len().map_err(|e| MediaError::new("measure before-images", &*medium, 0, e))?;
        let (clean, place, store_generation) = (0.into(), place.map(Into::into), generation.into());
        let status = ImagesStatus { clean, place, store_generation, ..found };
        let mut log = ImageLog {
            medium,
            store,
            status,
            forcing: Forcing::default(),
            end: IMAGES_DATA,
            ordinal: 0,
            images: 0,
            held,
            batch: Vec::new(),
        };
        // What was found may be in the page cache alone, and never reach the medium, if forcing it has failed: its
        // twin is written when it is durable.
        let early = planted("sums-moved-before-their-commit");
        if early {
            move_sums(&*log.medium, &found)?;
        }
        if !planted("found-images-status-trusted") {
            image_status::put_again(&*log.medium, &found)?;
            log.force()?;
        }
        if !early && !planted("found-sums-not-moved") {
            move_sums(&*log.medium, &found)?;
        }
        if unless("generations-come-again", copied) {
            // More than there can have been; the page that is written next is the same.
            log.status.generation = (log.status.generation.get() + (1 << 40)).into();
        }
        log.empty(&Sums::new())?;
        Ok(log)
    }

    /// Its medium.
    pub fn medium(&self) -> &dyn Medium {
        &*self.medium
    }

    /// Bytes that its medium has for batches.
    pub fn held(&self) -> u64 {
        self.held - IMAGES_DATA
    }

    /// Bytes that its batches take.
    pub fn used(&self) -> u64 {
        self.end - IMAGES_DATA
    }

    /// Makes room for the images of so many pages. The log is as it was if there is none.
    ///
    /// # Errors
    /// When the medium is full, or fails.
    pub fn make_room(&mut self, pages: u64) -> Result<(), MediaError> {
        let images = self.end + pages * IMAGE as u64 + pages.div_ceil(BATCH_MAX as u64) * BLOCK as u64;
        // For the sums of what they are of, which stand behind them if there are many.
        let needed = match self.images + pages {
            few if few <= SUMS_WAITING as u64 => images,
            many => images + 2 * image_status::copy_bytes(many),
        };
        if needed <= self.held {
            return Ok(());
        }
        let wished = needed + (self.held.clamp(GROWTH.0, GROWTH.1)).next_multiple_of(BLOCK as u64);
        // A device, or a disk that is nearly full, may have what is needed, and not what would be convenient.
        let grown = self.medium.set_len(wished).or_else(|_| self.medium.set_len(needed));
        grown.map_err(|e| MediaError::new("allocate before-images", &*self.medium, needed, e))?;
        self.held =
            self.medium.len().map_err(|e| MediaError::new("measure before-images", &*self.medium, 0, e))?;
        Ok(())
    }

    /// Writes the images of pages, for which there is room, and forces them. `fill` is called with the index of each
    /// page and the place for its image; it returns how many bytes the page has, and their [`checksum`].
    ///
    /// # Errors
    /// When the medium fails: nothing is known of what the log holds then.
    pub fn append(
        &mut self,
        pages: &[Page],
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(usize, u32), MediaError>,
    ) -> Result<(), MediaError> {
        let begun = self.end;
        for (batch, part) in pages.chunks(BATCH_MAX).enumerate() {
            let grouped = batch % GROUP_MAX;
            if batch > 0 && grouped == 0 && !planted("image-groups-forced-together") {
                self.force()?;
            }
            let grouped = if planted("image-groups-not-told") { 0 } else { grouped as u16 };
            self.write((part, grouped), |i, image| fill(batch * BATCH_MAX + i, image))?;
        }
        if !planted("images-not-forced") {
            self.force()?;
        }
        // Only an abort reads them again, and memory is for what programs use (McNamee, section 6.3.2).
        self.medium.forget(begun, self.end - begun);
        Ok(())
    }

    fn write(
        &mut self,
        (pages, grouped): (&[Page], u16),
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(usize, u32), MediaError>,
    ) -> Result<(), MediaError> {
        self.batch.resize(BLOCK + pages.len() * IMAGE, 0);
        let (block, images) = self.batch.split_at_mut(BLOCK);
        let (first, second) = block.split_at_mut(HEAD_HALF);
        first.fill(0);
        let (generation, ordinal) = (self.status.generation, self.ordinal.into());
        let (count, grouped) = ((pages.len() as u16).into(), grouped.into());
        let head = BatchHead { generation, ordinal, count, grouped, ..BatchHead::new_zeroed() };
        let (head_bytes, places) = first.split_at_mut(size_of::<BatchHead>());
        head_bytes.copy_from_slice(head.as_bytes());
        let places = places.chunks_mut(size_of::<ImagePlace>());
        for (i, ((page, image), place)) in pages.iter().zip(images.chunks_mut(IMAGE)).zip(places).enumerate()
        {
            let (len, crc) = fill(i, image)?;
            image[len..].fill(0);
            let crc = crc.into();
            let page_and_len = (page.number << LEN_BITS | len as u64).into();
            let of = ImagePlace { segment: page.segment.0.into(), crc, page_and_len };
            place.copy_from_slice(of.as_bytes());
        }
        format::seal_as(first, BATCH_MAGIC, IMAGES_VERSION, self.store);
        second.copy_from_slice(first);
        let at = self.end;
        self.medium
            .write_at(&self.batch, at)
            .map_err(|e| MediaError::new("write before-images", &*self.medium, at, e))?;
        (self.end, self.ordinal) = (at + self.batch.len() as u64, self.ordinal + 1);
        self.images += pages.len() as u64;
        Ok(())
    }

    fn force(&self) -> Result<(), MediaError> {
        self.forcing.sync(&*self.medium, "force before-images", self.end)
    }

    /// Calls `each` with every image.
    ///
    /// # Errors
    /// When the medium fails, or does not hold what was written; those of `each`.
    pub fn each<E: From<ImagesError>>(
        &self,
        mut each: impl FnMut(Page, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let generation = self.status.generation.get();
        let found = each_image(&*self.medium, &self.store, generation, |page, found| match found {
            Found::Image(image) => each(page, image).map(|()| true),
            Found::Torn(..) | Found::Behind(_) => Ok(false),
        })?;
        if found < self.ordinal {
            let text = format!("there are {found} batches of images, and {} were written", self.ordinal);
            return Err(bad(&*self.medium, self.end, Defect::Value(text)).into());
        }
        Ok(())
    }

    /// Empties it, durably, in one step that brings sums of pages that were committed by then, and that the sums
    /// files do not have: [as many](image_status::has_room) as there is room for.
    ///
    /// # Errors
    /// When the medium fails: it is not known whether it is empty.
    pub fn empty(&mut self, sums: &Sums) -> Result<(), MediaError> {
        self.status.generation = (self.status.generation.get() + 1).into();
        let within = image_status::put_sums(&*self.medium, &mut self.status, sums)?;
        self.put(&within)
    }

    /// Writes a status page of the next generation.
    fn put(&mut self, within: &[u8]) -> Result<(), MediaError> {
        put_status(&*self.medium, &self.status, within, self.store)?;
        if !planted("images-emptied-unforced") {
            self.force()?;
        }
        (self.end, self.ordinal, self.images) = (IMAGES_DATA, 0, 0);
        Ok(())
    }

    /// Empties it in one step that brings more sums than there is room for: of pages that it has images of, behind
    /// them. All other sums are in the sums files. `move_sums` brings these there, and forces them, before another
    /// image comes where they are.
    ///
    /// # Errors
    /// When the medium fails: it is not known whether it is empty; those of `sums` and `move_sums`.
    pub fn empty_with_many(
        &mut self,
        count: u64,
        sums: impl Iterator<Item = Result<(Page, u32), MediaError>>,
        move_sums: impl FnOnce(&dyn Medium, &ImagesStatus) -> Result<(), MediaError>,
    ) -> Result<(), MediaError> {
        self.status.generation = (self.status.generation.get() + 1).into();
        image_status::put_many(&*self.medium, &mut self.status, (self.end, count), sums)?;
        self.put(&[])?;
        move_sums(&*self.medium, &self.status)?;
        self.empty(&Sums::new())
    }

    /// Says durably that the store was closed in good order, in this generation. It is empty.
    ///
    /// # Errors
    /// When the medium fails.
    pub fn close(&mut self, generation: u64) -> Result<(), MediaError> {
        (self.status.clean, self.status.store_generation) = (CLEAN.into(), generation.into());
        self.empty(&Sums::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{IMAGES_MAGIC, STATUS_AT, SUMMED_IMAGES};
    use crate::image_status::read_status;
    use caliburn_os::files::Files;
    use caliburn_os::medium::Media;

    const STORE: Id = [7; 16];

    fn image(number: u64) -> Vec<u8> {
        vec![number as u8; IMAGE]
    }

    const GROUPS: [std::ops::Range<u64>; 2] = [0..3, 10..12];

    /// A log with groups of pages.
    fn filled(dir: &std::path::Path, groups: [std::ops::Range<u64>; 2]) -> Arc<dyn Medium> {
        let medium = Files.create(&dir.join("images")).unwrap();
        create(&*medium, STORE, 0).unwrap();
        let status = read_status(&*medium, &STORE).unwrap();
        let mut log =
            ImageLog::open(medium.clone(), STORE, status, ([0; 2], 0), false, |_, _| Ok(())).unwrap();
        for numbers in groups.into_iter().filter(|group| !group.is_empty()) {
            let pages: Vec<Page> = numbers.map(|number| Page { segment: SegmentId(1), number }).collect();
            log.make_room(pages.len() as u64).unwrap();
            let fill = |i: usize, to: &mut [u8]| {
                to.copy_from_slice(&image(pages[i].number));
                Ok((IMAGE, checksum(to)))
            };
            log.append(&pages, fill).unwrap();
        }
        medium
    }

    /// Offsets of the heads of a group of images.
    fn heads(from: u64, images: usize) -> Vec<u64> {
        let batch = batch_bytes(BATCH_MAX);
        (0..images.div_ceil(BATCH_MAX) as u64).map(|number| IMAGES_DATA + from + number * batch).collect()
    }

    fn group_bytes(images: usize) -> u64 {
        (images.div_ceil(BATCH_MAX) * BLOCK + images * IMAGE) as u64
    }

    fn found(medium: &dyn Medium) -> Vec<u64> {
        let (mut pages, status) = (Vec::new(), read_status(medium, &STORE).unwrap());
        let each = |page: Page, found: Found<'_>| {
            assert!(matches!(found, Found::Image(bytes) if bytes == image(page.number)));
            pages.push(page.number);
            Ok::<bool, ImagesError>(true)
        };
        each_image(medium, &STORE, status.generation.get(), each).unwrap();
        pages
    }

    fn damage(medium: &dyn Medium, places: &[u64]) {
        places.iter().for_each(|place| medium.write_at(&[0xA5], *place).unwrap());
    }

    /// What is found, if each image is as it was, or the page was not stored to.
    fn told(medium: &dyn Medium, stored: bool) -> Result<Vec<u64>, String> {
        let (mut pages, status) = (Vec::new(), read_status(medium, &STORE).unwrap());
        let each = |page: Page, found: Found<'_>| {
            pages.push(page.number);
            Ok::<bool, ImagesError>(matches!(found, Found::Image(_)) || !stored)
        };
        let done = each_image(medium, &STORE, status.generation.get(), each);
        done.map(|_| pages).map_err(|error| error.to_string())
    }

    #[test]
    fn either_half_of_a_head_is_enough() {
        for half in [0, HEAD_HALF as u64] {
            let medium = filled(tempfile::tempdir().unwrap().path(), GROUPS);
            damage(&*medium, &[IMAGES_DATA + group_bytes(3) + half + 16]);
            assert_eq!(found(&*medium), [0, 1, 2, 10, 11], "half at {half}");
        }
    }

    #[test]
    fn what_was_forced_and_is_damaged_is_told() {
        let medium = filled(tempfile::tempdir().unwrap().path(), GROUPS);
        damage(&*medium, &[IMAGES_DATA + 16, IMAGES_DATA + HEAD_HALF as u64 + 16]);
        let error = told(&*medium, false).unwrap_err();
        assert!(error.contains("a batch of images is damaged"), "{error}");

        let medium = filled(tempfile::tempdir().unwrap().path(), GROUPS);
        damage(&*medium, &[IMAGES_DATA + group_bytes(3) + BLOCK as u64 + 100]);
        let error = told(&*medium, true).unwrap_err();
        assert!(error.contains("image of page 10"), "{error}");
        assert_eq!(told(&*medium, false).unwrap(), [0, 1, 2, 10, 11]);
    }

    /// The batches of a group are forced together: any of them may be there.
    #[test]
    fn behind_a_torn_image_the_others_of_its_group_are_found() {
        let count = BATCH_MAX as u64 + 2;
        let medium = filled(tempfile::tempdir().unwrap().path(), [0..count, 0..0]);
        damage(&*medium, &[IMAGES_DATA + BLOCK as u64 + 100]);
        assert_eq!(told(&*medium, false).unwrap(), (0..count).collect::<Vec<_>>());
    }

    /// Written before there were groups.
    #[test]
    fn a_log_of_the_first_version_is_read() {
        let medium = filled(tempfile::tempdir().unwrap().path(), GROUPS);
        let heads = heads(0, 3).into_iter().chain(heads(group_bytes(3), 2)).map(|at| (at, BATCH_MAGIC));
        for (at, magic) in STATUS_AT.map(|at| (at, IMAGES_MAGIC)).into_iter().chain(heads) {
            let mut block = vec![0; BLOCK];
            medium.read_at(&mut block, at).unwrap();
            block.chunks_mut(HEAD_HALF).for_each(|half| format::seal_as(half, magic, VERSION, STORE));
            medium.write_at(&block, at).unwrap();
        }
        assert_eq!(found(&*medium), [0, 1, 2, 10, 11]);
    }

    #[test]
    fn a_newer_version_is_refused() {
        let medium = filled(tempfile::tempdir().unwrap().path(), GROUPS);
        for at in STATUS_AT {
            let mut block = vec![0; BLOCK];
            medium.read_at(&mut block, at).unwrap();
            let halves = block.chunks_mut(HEAD_HALF);
            halves.for_each(|half| format::seal_as(half, IMAGES_MAGIC, SUMMED_IMAGES + 1, STORE));
            medium.write_at(&block, at).unwrap();
        }
        let refused = read_status(&*medium, &STORE).unwrap_err().to_string();
        assert!(refused.contains("format version is 4"), "{refused}");
    }
}
