//! Generations: which files of a store belong together, so that an older copy of one of them is refused by name.
//!
//! ```text
//!  file                      says                             must be
//!  catalog                   how often it was changed         what the page says, or one more
//!  log, undo, before-images  the generation, in its status    what the page says, or up to two more
//!  segment, sums             when it was last written         its slot at least; a segment no less than its sums
//!  stage                     when it was made                 its slot at least
//! ```
//!
//! "The page" and the slots are those of the file `generations`. A change goes to the file first, durably, and then
//! to the page or the slot: so what this file says never leads, and a crash in between is no older copy. It holds no
//! data: where it lags, nothing is lost, and less is noticed. It lags by two generations if forcing it has failed
//! and the power failed after that.
//!
//! The generation grows at each opening for writing and at each orderly close, never at a commit: copies of one file
//! from within one opening cannot be told apart. A segment is stamped with the first page of it that is written in a
//! generation, and the slot says so when that was forced.

use crate::storage::catalog::Catalog;
use crate::storage::error::{OpenError, SegmentError};
use caliburn_log::SegmentId;
use caliburn_log::format::{
    COUNT_MAX, Defect, FIRST_GENERATION, GENERATION_SLOTS, GENERATIONS_MAGIC, GenerationSlot,
    GenerationsPage, LASTING, NAME_MAX, SEGMENT_STAMP, Said, WITHIN_BOOT,
};
use caliburn_log::media_error::{Forcing, MediaError};
use caliburn_log::status_pages;
use caliburn_os::host::Id;
use caliburn_os::medium::{Media, Medium};
use caliburn_os::simulated::{even_if, planted, unless};
use caliburn_os::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Its name.
pub(crate) const GENERATIONS: &str = "generations";
/// What it is.
const WHAT: &str = "file of generations";
/// The stage's slot.
pub(crate) const STAGE_SLOT: u64 = 0;
/// By how many generations the page may lag.
const LAG: u64 = 2;
/// Bytes by which the file grows.
const STEP: u64 = 4096;

/// The generations of a store.
#[derive(Debug)]
pub(crate) struct Generations {
    medium: Arc<dyn Medium>,
    store: Id,
    page: Mutex<GenerationsPage>,
    /// One of the two pages was torn when they were read.
    torn: bool,
    slots: Mutex<Slots>,
    /// What is written to now is of this generation; 0 while that is not known.
    present: AtomicU64,
    /// The newest file that was seen by then.
    newest: Mutex<(u64, PathBuf)>,
    /// How often the catalog was changed.
    catalog: AtomicU64,
    /// Slots that say what this boot shows can be relied on.
    trusted: AtomicBool,
    /// What they would refuse.
    doubtful: Mutex<Option<(PathBuf, Defect)>>,
    /// Slots that were written and not yet forced.
    unforced: Mutex<bool>,
    forcing: Forcing,
}

/// What each slot says; those behind say nothing.
#[derive(Debug)]
struct Slots {
    least: Vec<(u64, u32)>,
    /// Bytes of the file.
    bytes: u64,
}

fn bad(path: &Path, offset: u64, text: String) -> OpenError {
    OpenError::Stray { what: "generations", path: path.to_owned(), offset, text }
}

fn read_page(medium: &dyn Medium, store: &Id) -> Result<GenerationsPage, OpenError> {
    let bad = |text| bad(medium.path(), 0, text);
    let page = status_pages::read(medium, GENERATIONS_MAGIC, WHAT, Some(store))?;
    let page = page.map_err(|defect| bad(defect.to_string()))?;
    let page = GenerationsPage::read_from_prefix(&page).expect("a block holds a page").0;
    let counts = [page.generation, page.catalog].map(|count| count.get());
    let sound = counts.iter().all(|count| (FIRST_GENERATION..COUNT_MAX).contains(count))
        && page.making_len.get() as usize <= NAME_MAX;
    if sound {
        return Ok(page);
    }
    Err(bad(format!("its page holds impossible values: {counts:?}, and a name of {} bytes", page.making_len)))
}

/// Refuses a catalog that is not of the same time as the page, or a page that is older.
fn agree(page: &GenerationsPage, medium: &Path, dir: &Path, count: u64) -> Result<(), OpenError> {
    let noted = page.catalog.get();
    if unless("older-catalog-taken", count < noted) {
        let (path, defect) = (dir.join("catalog"), Defect::Older { found: count, wanted: noted });
        return Err(OpenError::Catalog { path, offset: 0, defect });
    }
    if count > noted + 1 {
        return Err(bad(medium, 0, Defect::Older { found: noted, wanted: count }.to_string()));
    }
    Ok(())
}

impl Generations {
    /// Makes the file of a new store, durably but for its name.
    pub fn create(media: &dyn Media, dir: &Path, catalog: &Catalog) -> Result<(), OpenError> {
        let path = dir.join(GENERATIONS);
        let _ = media.remove(&path);
        let medium = media.create(&path).map_err(OpenError::io("create", &path))?;
        let fail = |e| MediaError::new("allocate", &*medium, GENERATION_SLOTS, e);
        medium.set_len(GENERATION_SLOTS + STEP).map_err(fail)?;
        let mut page = GenerationsPage {
            generation: FIRST_GENERATION.into(),
            catalog: catalog.count.into(),
            ..GenerationsPage::new_zeroed()
        };
        for count in 0..2u64 {
            page.count = count.into();
            status_pages::put(&*medium, page.as_bytes(), GENERATIONS_MAGIC, catalog.store)?;
        }
        Ok(medium.sync().map_err(|e| MediaError::new("force", &*medium, 0, e))?)
    }

    /// Refuses a catalog that is older than the file says; none is of a store that has no generations.
    pub fn check_catalog(media: &dyn Media, dir: &Path, catalog: &Catalog) -> Result<(), OpenError> {
        if catalog.count == 0 {
            return Ok(());
        }
        let path = dir.join(GENERATIONS);
        let medium = media.open(&path, false).map_err(OpenError::io("open", &path))?;
        agree(&read_page(&*medium, &catalog.store)?, &path, dir, catalog.count)
    }

    /// Those of a store that has them.
    pub fn open(
        media: &dyn Media,
        dir: &Path,
        catalog: &Catalog,
        write: bool,
    ) -> Result<Option<Arc<Generations>>, OpenError> {
        if catalog.count == 0 {
            return Ok(None);
        }
        let path = dir.join(GENERATIONS);
        let medium = media.open(&path, write).map_err(OpenError::io("open", &path))?;
        let page = read_page(&*medium, &catalog.store)?;
        agree(&page, &path, dir, catalog.count)?;
        let torn = status_pages::is_one_torn(&*medium, GENERATIONS_MAGIC, WHAT, &catalog.store);
        let slots = Slots::read(&*medium, catalog)?;
        Ok(Some(Arc::new(Generations {
            medium,
            store: catalog.store,
            present: AtomicU64::new(0),
            newest: Mutex::default(),
            page: Mutex::new(page),
            torn,
            slots: Mutex::new(slots),
            catalog: AtomicU64::new(catalog.count),
            trusted: AtomicBool::new(false),
            doubtful: Mutex::default(),
            unforced: Mutex::new(false),
            forcing: Forcing::default(),
        })))
    }

    pub fn store(&self) -> Id {
        self.store
    }

    /// What is written to now is of this generation.
    #[inline]
    pub fn present(&self) -> u64 {
        self.present.load(Ordering::Acquire)
    }

    fn lock_page(&self) -> MutexGuard<'_, GenerationsPage> {
        self.page.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn lock_slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Refuses a log, undo logs or before-images that say another generation than they must; else what they say is
    /// the present one. `name` names them as what is wrong.
    pub fn check_keeper(&self, said: Said, name: impl FnOnce(Defect) -> OpenError) -> Result<(), OpenError> {
        let noted = self.lock_page().generation.get();
        let found = match said.twin_lost && said.generation + 1 == noted {
            true => noted,
            false => said.generation,
        };
        if unless("older-log-taken", found < noted) {
            return Err(name(Defect::Older { found, wanted: noted }));
        }
        if found > noted + LAG {
            let text = Defect::Older { found: noted, wanted: found }.to_string();
            return Err(bad(self.medium.path(), 0, text));
        }
        self.present.store(found, Ordering::Release);
        let newest = self.newest.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.not_newer(newest.0).map_err(|defect| {
            SegmentError::Bad { path: newest.1.clone(), offset: SEGMENT_STAMP, defect }.into()
        })
    }

    /// Refuses what is newer than the store. A close that was cut short may have gone one ahead.
    fn not_newer(&self, found: u64) -> Result<(), Defect> {
        let most = self.present();
        if found <= most + 1 {
            return Ok(());
        }
        let text = format!(
            "its generation is {found}, and the store's is {most}: it is another store's, or all other files are older copies"
        );
        Err(Defect::Value(text))
    }

    /// What a slot says; 0: nothing.
    pub fn least(&self, slot: u64) -> (u64, u32) {
        self.lock_slots().least.get(slot as usize).copied().unwrap_or_default()
    }

    /// Of which generation a file is on its medium at least, as its slot says.
    pub fn lasting(&self, slot: u64) -> u64 {
        let (least, kind) = self.least(slot);
        if kind == LASTING { least } else { 0 }
    }

    /// Refuses what has a slot and is older than that says, or newer than the store: at once, or when it is known
    /// how old that is.
    pub fn check_slot(&self, slot: u64, found: u64, path: &Path) -> Result<(), Defect> {
        let (wanted, kind) = self.least(slot);
        if unless("older-segment-taken", found < wanted) {
            let defect = Defect::Older { found, wanted };
            if kind == LASTING || slot == STAGE_SLOT || self.trusted.load(Ordering::Acquire) {
                return Err(defect);
            }
            let mut doubtful = self.doubtful.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            doubtful.get_or_insert((path.to_owned(), defect));
        }
        if self.present() > 0 {
            return self.not_newer(found);
        }
        let mut newest = self.newest.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if found > newest.0 {
            *newest = (found, path.to_owned());
        }
        Ok(())
    }

    /// The store was closed in good order, or this is the boot in which it was used: what slots say of this boot
    /// holds.
    pub fn trust(&self) -> Result<(), SegmentError> {
        self.trusted.store(true, Ordering::Release);
        let doubtful = self.doubtful.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let bad = |(path, defect)| Err(SegmentError::Bad { path, offset: SEGMENT_STAMP, defect });
        doubtful.map_or(Ok(()), bad)
    }

    /// Says that what has a slot is of that generation at least: when all that was written to it in that generation
    /// so far is there. `lasting`: after a power cut, too; durably when this is [settled](Generations::settle).
    pub fn confirm(&self, slot: u64, generation: u64, lasting: bool) -> Result<(), MediaError> {
        let mut slots = self.lock_slots();
        let at = GENERATION_SLOTS + slot * size_of::<GenerationSlot>() as u64;
        let (index, end) = (slot as usize, at + size_of::<GenerationSlot>() as u64);
        let fail = |action| move |e| MediaError::new(action, &*self.medium, at, e);
        if end > slots.bytes {
            slots.bytes = end.next_multiple_of(STEP);
            self.medium.set_len(slots.bytes).map_err(fail("allocate"))?;
        }
        let kind = if lasting { LASTING } else { WITHIN_BOOT };
        let said = GenerationSlot::new(slot, generation, kind);
        self.medium.write_at(said.as_bytes(), at).map_err(fail("write"))?;
        if index >= slots.least.len() {
            slots.least.resize(index + 1, (0, 0));
        }
        slots.least[index] = (generation, kind);
        if lasting {
            *self.lock_unforced() = true;
        }
        Ok(())
    }

    fn lock_unforced(&self) -> MutexGuard<'_, bool> {
        self.unforced.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes durable what was confirmed. Before what could bring a segment up to date is given up.
    pub fn settle(&self) -> Result<(), MediaError> {
        let unforced = self.lock_unforced();
        match *unforced && !planted("confirmed-unforced") {
            true => self.force(unforced, GENERATION_SLOTS),
            false => Ok(()),
        }
    }

    fn force(&self, mut unforced: MutexGuard<'_, bool>, at: u64) -> Result<(), MediaError> {
        self.forcing.sync(&*self.medium, "force", at)?;
        *unforced = false;
        Ok(())
    }

    fn put(&self, change: impl FnOnce(&mut GenerationsPage)) -> Result<(), MediaError> {
        let mut page = self.lock_page();
        self.forcing.sound()?;
        let mut next = *page;
        change(&mut next);
        next.count += 1;
        next.catalog = self.catalog.load(Ordering::Acquire).into();
        let at = status_pages::put(&*self.medium, next.as_bytes(), GENERATIONS_MAGIC, self.store)?;
        *page = next;
        self.force(self.lock_unforced(), at)
    }

    /// Which of two pages that were read may not be durable (see [`status_pages`])? A torn one is written next
    /// anyhow. Else it is the newest: it is made durable as it is, or, `replaced`, the next one goes over it.
    fn take_up(&self, replaced: bool) -> Result<(), MediaError> {
        let mut page = self.lock_page();
        if !even_if("torn-page-left", !self.torn) || planted("unforced-page-relied-on") {
            return Ok(());
        }
        if replaced {
            page.count += 1;
            return Ok(());
        }
        let at = status_pages::put(&*self.medium, page.as_bytes(), GENERATIONS_MAGIC, self.store)?;
        self.force(self.lock_unforced(), at)
    }

    /// The next generation, for the file that says whether the store was closed. What was said before is durable.
    fn next(&self) -> Result<u64, MediaError> {
        let present = self.present();
        // A store that is closed in good order has no page that a failed force left in memory alone.
        self.forcing.sound()?;
        self.settle()?;
        let newest = self.newest.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        Ok(present.max(newest) + 1)
    }

    /// That file says it durably.
    fn follow(&self, generation: u64) -> Result<(), MediaError> {
        if !planted("generation-not-followed") {
            self.put(|page| page.generation = generation.into())?;
        }
        self.present.store(generation, Ordering::Release);
        Ok(())
    }

    /// The catalog was changed, durably.
    pub fn catalog_changed(&self, count: u64) -> Result<(), MediaError> {
        self.catalog.store(count, Ordering::Release);
        self.put(|_| {})
    }

    /// Whether files of a segment that the catalog does not name are what an attempt to make it, or to move it, has
    /// left.
    pub fn is_making(&self, name: &str) -> bool {
        let page = self.lock_page();
        page.making_len != 0 && page.making[..page.making_len.get() as usize] == *name.as_bytes()
    }

    /// Says durably that there may be such files from now on.
    pub fn begin_making(&self, name: &str) -> Result<(), SegmentError> {
        if self.is_making(name) {
            return Ok(());
        }
        Ok(self.put(|page| {
            page.making = [0; NAME_MAX + 1];
            page.making[..name.len()].copy_from_slice(name.as_bytes());
            page.making_len = (name.len() as u32).into();
        })?)
    }
}

impl Slots {
    fn read(medium: &dyn Medium, catalog: &Catalog) -> Result<Slots, OpenError> {
        const SLOT: usize = size_of::<GenerationSlot>();
        let bytes = medium.len().map_err(|e| MediaError::new("measure", medium, 0, e))?;
        let there = bytes.saturating_sub(GENERATION_SLOTS) / SLOT as u64;
        let mut slots = vec![0; there.min(u64::from(catalog.next) + 1) as usize * SLOT];
        let read = medium.read_at(&mut slots, GENERATION_SLOTS);
        read.map_err(|e| MediaError::new("read", medium, GENERATION_SLOTS, e))?;
        // One that could not be written whole says nothing.
        let least = slots.chunks_exact(SLOT).zip(0..).map(|(slot, number)| {
            let slot = GenerationSlot::read_from_bytes(slot).expect("the size is right");
            slot.read(number).unwrap_or_default()
        });
        Ok(Slots { least: least.collect(), bytes })
    }
}

/// Begins a new generation, if the store has any: `put` has the file that says whether the store was closed say it,
/// durably (0: none).
pub(crate) fn step<T>(
    generations: Option<&Arc<Generations>>,
    put: impl FnOnce(u64) -> Result<T, MediaError>,
) -> Result<T, MediaError> {
    let Some(generations) = generations else { return put(0) };
    let next = generations.next()?;
    let done = put(next)?;
    generations.follow(next)?;
    Ok(done)
}

/// Has the page say what the file does that says whether the store was closed, durably. A process that was killed
/// may have left that file so in memory alone: `durable` makes it durable first. If the store was closed in good
/// order, and the page says it, the page is left to the next change: its twin lags by one generation then.
pub(crate) fn catch_up(
    generations: Option<&Arc<Generations>>,
    clean: bool,
    durable: impl FnOnce() -> Result<(), MediaError>,
) -> Result<(), MediaError> {
    let Some(generations) = generations else { return Ok(()) };
    let present = generations.present();
    assert!(present >= FIRST_GENERATION, "it was read what that file says");
    let lags = generations.lock_page().generation != present;
    generations.take_up(clean && !lags)?;
    if lags && !planted("generation-caught-up-early") {
        durable()?;
    }
    match lags || generations.torn && !clean {
        true => generations.put(|page| page.generation = present.into()),
        false => Ok(()),
    }
}

/// The slot of a segment.
pub(crate) fn slot_of(id: SegmentId) -> u64 {
    GenerationSlot::of_segment(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use caliburn_log::format::{BLOCK, STATUS_AT};
    use caliburn_os::files::Files;

    #[test]
    fn what_an_opening_writes_first_goes_over_a_torn_page_or_else_over_the_newest() {
        for torn in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (copies, segments) = Default::default();
            let (store, log_path) = ([7; 16], "log".into());
            let (policy, next, count, sums) = (1, 0, 1, false);
            let catalog = Catalog { store, policy, log_path, copies, next, count, sums, segments };
            Generations::create(&Files, dir.path(), &catalog).unwrap();
            let medium = Files.open(&dir.path().join(GENERATIONS), true).unwrap();
            // The newest is the second one.
            if torn {
                medium.write_at(&[1; 64], STATUS_AT[0]).unwrap();
            }
            let generations = Generations::open(&Files, dir.path(), &catalog, true).unwrap().unwrap();
            let said = Said { generation: FIRST_GENERATION, twin_lost: false };
            generations.check_keeper(said, |defect| panic!("{defect}")).unwrap();
            let pages = || {
                STATUS_AT.map(|at| {
                    let mut page = [0; BLOCK];
                    medium.read_at(&mut page, at).unwrap();
                    page
                })
            };
            let before = pages();
            catch_up(Some(&generations), true, || Ok(())).unwrap();
            step(Some(&generations), |_| Ok(())).unwrap();
            let (after, kept) = (pages(), usize::from(torn));
            assert!(after[kept] == before[kept] && after[1 - kept] != before[1 - kept], "torn: {torn}");
            // Then it goes over the other one, which is not needed any more.
            step(Some(&generations), |_| Ok(())).unwrap();
            assert!(pages()[1 - kept] == after[1 - kept] && pages()[kept] != before[kept], "torn: {torn}");
        }
    }

    #[test]
    fn a_page_comes_back_or_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (medium, store) = (Files.create(&dir.path().join("page")).unwrap(), [7; 16]);
        let read = |generation: u64, catalog: u64, name: usize| {
            let mut page = GenerationsPage {
                generation: generation.into(),
                catalog: catalog.into(),
                making_len: (name as u32).into(),
                ..GenerationsPage::new_zeroed()
            };
            page.making.fill(b'z');
            medium.set_len(0).unwrap();
            medium.set_len(GENERATION_SLOTS).unwrap();
            status_pages::put(&*medium, page.as_bytes(), GENERATIONS_MAGIC, store).unwrap();
            let found = read_page(&*medium, &store).ok()?;
            Some((found.generation.get(), found.catalog.get(), found.making_len.get() as usize))
        };
        let counts = [FIRST_GENERATION, 2, COUNT_MAX - 1];
        for (generation, catalog) in counts.into_iter().flat_map(|of| counts.map(|catalog| (of, catalog))) {
            for name in [0, 1, NAME_MAX] {
                assert_eq!(read(generation, catalog, name), Some((generation, catalog, name)));
            }
            assert_eq!(read(generation, catalog, NAME_MAX + 1), None);
        }
        for bad in [0, COUNT_MAX, u64::MAX] {
            assert_eq!((read(bad, 1, 0), read(1, bad, 0)), (None, None));
        }
    }
}
