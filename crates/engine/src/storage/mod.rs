//! What every policy stands on: the catalog, segments and the checksums beside them, mapped regions, errors.

pub(crate) mod ahead;
pub(crate) mod attempt;
pub(crate) mod catalog;
pub(crate) mod class;
pub(crate) mod close_error;
pub(crate) mod copies;
pub(crate) mod directory;
pub(crate) mod error;
pub(crate) mod extents;
pub(crate) mod generations;
pub(crate) mod inherited;
pub(crate) mod lacking;
pub(crate) mod meter;
pub(crate) mod opener;
pub(crate) mod pool;
pub(crate) mod pressure;
pub(crate) mod progress;
pub(crate) mod redo_ranges;
pub(crate) mod region;
pub(crate) mod region_table;
pub(crate) mod replica;
pub(crate) mod report;
pub(crate) mod segment;
pub(crate) mod segment_file;
pub(crate) mod settings;
pub(crate) mod stamped;
mod stretches;
pub(crate) mod sums;
mod touched;
pub(crate) mod tuning;

use ahead::Ahead;
use caliburn_log::SegmentId;
use caliburn_log::media_error::MediaError;
use caliburn_os::guard::{self, Permit};
use caliburn_os::host::{Id, Lock};
use caliburn_os::lineage::Mark;
use caliburn_os::medium::{Media, Medium, Replaced, SMALL_FILE};
use caliburn_os::memory::Limits;
use caliburn_os::rescue;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::atomic::{AtomicU64, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard, RwLock};
use catalog::{Catalog, Entry};
use class::Class;
use error::{Failure, Inherited, OpenError, SegmentError};
use generations::Generations;
use meter::Meter;
use opener::Opener;
use pool::Pool;
use region::RegionState;
use region_table::RegionTable;
use segment::SegmentState;
use segment_file::Descriptors;
use settings::{Prefetch, Settings};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use touched::Touched;
use tuning::Tuning;

/// Bits of [`Storage::gate`]: why a transaction must not begin without a look.
pub(crate) mod gate {
    pub const FAILED: u32 = 1;
    pub const PRESSED: u32 = 2;
    pub const CLOSED: u32 = 4;
    pub const READ_ONLY: u32 = 8;
    /// Closing has written the last it had to write.
    pub const DONE: u32 = 16;
    /// One transaction at a time is open.
    pub const ALONE: u32 = 32;
    /// Memory lies in files that must be asked whether they hold it.
    pub const OVERFLOWN: u32 = 64;
    /// Shared memory was [detached](caliburn_os::rescue) from its files.
    pub const DETACHED: u32 = 128;
    /// Nothing of these, in the process that has opened the store; a child that was forked finds 0.
    pub const OPEN: u32 = caliburn_os::lineage::OURS;
}

/// The files and mapped memory of an open store, and whether they can be relied on.
pub(crate) struct Storage {
    pub dir: PathBuf,
    pub id: Id,
    pub media: Arc<dyn Media>,
    pub page_size: usize,
    pub page_shift: u32,
    pub reserve_bytes: u64,
    /// The most that a commit can survive on this machine.
    pub reach: Class,
    /// Another machine has the log.
    pub replicated: bool,
    /// Regions have a protection key: the engine's own stores need a permit.
    pub keys: bool,
    /// Regions have an image beside them: see [`RegionState::image`](region::RegionState).
    pub images: bool,
    /// Whether there are threads in the background.
    pub background: bool,
    pub prefetch: Prefetch,
    /// Regions larger than memory are read around what is touched until memory is short, and not from the first.
    pub reads_around: bool,
    /// What shows regions, where the system does not.
    pub pool: Option<Pool>,
    pub ahead: Ahead,
    pub touched: Touched,
    /// Bytes that were laid over regions which are only read.
    pub laid_over: AtomicU64,
    pub gate: Mark,
    /// Shared memory may have to be [detached](rescue): the file system of the store keeps no room.
    pub rescues: bool,
    pub limits: Limits,
    pub meter: Meter,
    /// Held while a region is mapped, so that no mapping misses what is to be laid over it meanwhile; and while one
    /// is unmapped. Before the lock on truncation.
    mapping: Mutex<()>,
    pub regions: RwLock<Regions>,
    /// The same regions, for those who must not wait.
    pub table: RegionTable,
    pub segments: RwLock<Vec<Arc<SegmentState>>>,
    pub descriptors: Arc<Descriptors>,
    pub catalog: Mutex<Catalog>,
    /// None in a store that has none, and in one that is only read.
    pub generations: Option<Arc<Generations>>,
    failure: OnceLock<Failure>,
    tuning: RwLock<Tuning>,
    budget: AtomicU64,
    /// On the directory, and on a log outside of it: given up when the store is closed and no region of it is
    /// mapped any more.
    locks: Mutex<Vec<Lock>>,
    /// On the present log, likewise.
    log_locks: Mutex<Vec<(PathBuf, Lock)>>,
}

/// What opening has found of a store before its policy has.
pub(crate) struct Found {
    pub dir: PathBuf,
    pub catalog: Catalog,
    pub segments: Vec<Arc<SegmentState>>,
    pub descriptors: Arc<Descriptors>,
    pub locks: Vec<Lock>,
    /// On the log.
    pub log_locks: Vec<(PathBuf, Lock)>,
    /// See [`Storage::keys`].
    pub keys: bool,
    /// See [`Storage::images`].
    pub images: bool,
    /// See [`Storage::pool`].
    pub pool: Option<Pool>,
    /// None in a store that has none.
    pub generations: Option<Arc<Generations>>,
    /// What salvage does without.
    pub damage: Option<OpenError>,
}

/// Bytes that private pages of regions may take: their images take as many.
fn budget(tuning: &Tuning, limits: &Limits, images: bool) -> u64 {
    let bytes = tuning.budget(limits);
    if images { bytes / 2 } else { bytes }
}

impl Storage {
    pub fn new(found: Found, settings: &Settings, reach: Class) -> Storage {
        let page_size = caliburn_os::page_size();
        let limits = settings.media.limits();
        let recorded = (settings.prefetch, !settings.read_only && settings.background);
        let gate = Mark::new().expect("there is memory for a page");
        gate.fetch_or(if settings.read_only { gate::READ_ONLY } else { 0 }, Ordering::SeqCst);
        let touched = Touched::open(&*settings.media, &found.dir, &found.catalog.store, recorded);
        Storage {
            dir: found.dir,
            id: found.catalog.store,
            media: settings.media.clone(),
            page_size,
            page_shift: page_size.trailing_zeros(),
            reserve_bytes: settings.reserve_bytes.min(1 << 46),
            reach,
            replicated: settings.replica().is_some(),
            keys: found.keys,
            images: found.images,
            background: settings.background,
            prefetch: settings.prefetch,
            reads_around: false,
            pool: found.pool,
            ahead: Ahead::default(),
            touched,
            laid_over: AtomicU64::new(0),
            gate,
            rescues: false,
            meter: Meter::default(),
            mapping: Mutex::default(),
            regions: RwLock::default(),
            table: RegionTable::default(),
            segments: RwLock::new(found.segments),
            descriptors: found.descriptors,
            catalog: Mutex::new(found.catalog),
            generations: found.generations.filter(|_| !settings.read_only),
            failure: OnceLock::new(),
            budget: AtomicU64::new(budget(&settings.tuning, &limits, found.images)),
            limits,
            tuning: RwLock::new(settings.tuning.clone()),
            locks: Mutex::new(found.locks),
            log_locks: Mutex::new(found.log_locks),
        }
    }

    /// What the calling thread needs for stores of the engine's own.
    #[inline(always)]
    pub fn permit(&self) -> Option<Permit> {
        if self.keys { Some(Permit::new()) } else { None }
    }

    pub fn tuning(&self) -> Tuning {
        self.tuning.read().expect("no panic under this lock").clone()
    }

    pub fn set_tuning(&self, tuning: Tuning) {
        self.budget.store(budget(&tuning, &self.limits, self.images), Ordering::Relaxed);
        *self.tuning.write().expect("no panic under this lock") = tuning;
    }

    /// Bytes of private pages that may be kept.
    #[inline(always)]
    pub fn memory_budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// Fails the store for good. The first failure is the one reported. Those who wait are not woken.
    pub fn fail(&self, cause: MediaError) -> Failure {
        tracing::error!(%cause, "the store has failed");
        let failure = self.failure.get_or_init(|| Failure { cause: Arc::new(cause) }).clone();
        self.gate.fetch_or(gate::FAILED, Ordering::SeqCst);
        self.ahead.look_again();
        failure
    }

    /// The failure, if the store has failed.
    pub fn failure(&self) -> Result<(), Failure> {
        if let Err(inherited) = self.own() {
            let source = io::Error::other(inherited);
            return Err(Failure {
                cause: Arc::new(MediaError::of_name("use in a forked process", self.dir.clone(), source)),
            });
        }
        if let Some(failure) = self.failure.get() {
            return Err(failure.clone());
        }
        if self.gate.load(Ordering::Relaxed) & gate::DETACHED != 0 {
            let source = io::Error::new(io::ErrorKind::StorageFull, rescue::NO_ROOM);
            return Err(self.fail(MediaError::of_name(
                "store to mapped memory of",
                self.dir.clone(),
                source,
            )));
        }
        Ok(())
    }

    /// Whether what was stored before this call went to the files.
    pub fn kept(&self) -> Result<(), Failure> {
        if unless("detached-acknowledged", self.rescues && rescue::any()) { self.failure() } else { Ok(()) }
    }

    /// What says that shared memory was [detached](rescue), and the bit; nothing where that can't be.
    pub fn owner(&self) -> Option<(&Mark, u32)> {
        if self.rescues {
            guard::hear_of_lost_memory();
        }
        self.rescues.then_some((&self.gate, gate::DETACHED))
    }

    /// Whether the store has failed or is closed: nobody tends it any more.
    pub fn is_over(&self) -> bool {
        self.gate.load(Ordering::SeqCst) & (gate::FAILED | gate::CLOSED) != 0
    }

    /// Refuses in a process that was forked from the one that has opened it. Before any lock: it may be one that a
    /// thread of the parent held, which is not there to give it back.
    #[inline]
    pub fn own(&self) -> Result<(), Inherited> {
        if self.gate.is_ours() || planted("fork-not-noticed") { Ok(()) } else { Err(Inherited) }
    }

    /// The same, for what cannot fail.
    ///
    /// # Panics
    /// In such a process.
    pub fn must_be_own(&self) {
        self.own().unwrap_or_else(|inherited| panic!("{inherited}"));
    }

    /// Whether a process that was forked has this store from its parent, to whom it belongs: what is dropped here
    /// leaves the store as it is.
    #[cold]
    pub fn is_inherited(&self) -> bool {
        unless("fork-not-noticed", !self.gate.is_ours())
    }

    pub fn is_read_only(&self) -> bool {
        self.gate.load(Ordering::SeqCst) & gate::READ_ONLY != 0
    }

    pub fn is_closed(&self) -> bool {
        self.gate.load(Ordering::SeqCst) & gate::CLOSED != 0
    }

    /// Whether closing has written the last it had to write.
    pub fn is_done(&self) -> bool {
        self.gate.load(Ordering::SeqCst) & gate::DONE != 0
    }

    pub fn writable(&self) -> Result<(), SegmentError> {
        self.own()?;
        match self.gate.load(Ordering::SeqCst) {
            g if g & (gate::READ_ONLY | gate::CLOSED) != 0 => Err(SegmentError::ReadOnly),
            _ => Ok(self.failure()?),
        }
    }

    /// Gives up the directory if nothing needs it any more.
    pub fn unlock_if_done(&self) {
        let done = self.gate.load(Ordering::SeqCst) & gate::DONE != 0;
        if done && self.regions.read().expect("no panic under this lock").is_empty() {
            for segment in &*self.segments.read().expect("no panic under this lock") {
                segment.claim.lock().expect("no panic under this lock").take();
            }
            self.locks.lock().expect("no panic under this lock").clear();
            self.claim_log(None);
        }
    }

    /// Keeps a lock on the log in place of that on the former one, until the store is closed.
    pub fn claim_log(&self, lock: Option<(PathBuf, Lock)>) {
        *self.log_locks.lock().expect("no panic under this lock") = lock.into_iter().collect();
    }

    /// Keeps a lock on another copy of the log, too.
    pub fn claim_copy(&self, lock: Option<(PathBuf, Lock)>) {
        self.log_locks.lock().expect("no panic under this lock").extend(lock);
    }

    /// Lets go the lock on one that has not got the log any more.
    pub fn drop_claim(&self, path: &Path) {
        self.log_locks.lock().expect("no panic under this lock").retain(|(of, _)| of != path);
    }

    /// How its segments are opened.
    pub fn opener(&self) -> Opener<'_> {
        let write = self.gate.load(Ordering::SeqCst) & gate::READ_ONLY == 0;
        let (media, descriptors, generations) = (&self.media, &self.descriptors, self.generations.as_ref());
        Opener { media, descriptors, dir: &self.dir, write, claim: true, generations }
    }

    pub fn lock_mapping(&self) -> MutexGuard<'_, ()> {
        self.mapping.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn segment_state(&self, id: SegmentId) -> Option<Arc<SegmentState>> {
        self.segments.read().expect("no panic under this lock").iter().find(|s| s.id == id).cloned()
    }

    /// The segment of a record, which must be one of the store's.
    pub fn segment_of(&self, id: SegmentId) -> Result<Arc<SegmentState>, SegmentError> {
        self.segment_state(id).ok_or_else(|| SegmentError::Unknown { name: format!("number {}", id.0) })
    }

    /// The region that maps a byte of a segment.
    pub fn region_of(&self, segment: SegmentId, offset: u64) -> Option<Arc<RegionState>> {
        let regions = self.regions.read().expect("no panic under this lock");
        meeting(&regions, segment, offset..offset + 1).cloned()
    }

    /// The region that maps a byte of a segment, or the first one behind it.
    pub fn region_from(&self, segment: SegmentId, offset: u64) -> Option<Arc<RegionState>> {
        let regions = self.regions.read().expect("no panic under this lock");
        let behind =
            || regions.range((segment, offset)..=(segment, u64::MAX)).next().map(|(_, region)| region);
        meeting(&regions, segment, offset..offset + 1).or_else(behind).cloned()
    }

    /// Makes a segment's file longer, durably, then says so.
    pub fn grow_file(&self, state: &SegmentState, len: u64) -> Result<(), SegmentError> {
        let mut catalog = self.catalog.lock().expect("no panic under this lock");
        self.writable()?;
        if len <= state.len() {
            return Ok(());
        }
        let early = planted("catalog-before-growth");
        if !early {
            state.extend(len)?;
        }
        self.change_catalog(&mut catalog, |catalog| {
            entry_of(catalog, state.id).len = len;
        })?;
        if early {
            state.extend(len)?;
        }
        state.len.store(len, Ordering::Release);
        tracing::info!(segment = state.name, len, "a segment grew");
        Ok(())
    }

    /// Changes the catalog on disk, then in memory. If it could not be made durable the store fails, since a power
    /// cut might bring the old one back: files that either names must stay.
    pub fn change_catalog(
        &self,
        catalog: &mut Catalog,
        change: impl FnOnce(&mut Catalog),
    ) -> Result<(), SegmentError> {
        let mut next = catalog.clone();
        change(&mut next);
        next.count += u64::from(self.generations.is_some());
        let (path, count) = (self.dir.join(directory::CATALOG), next.count);
        let fail = |source| SegmentError::Io { action: "replace catalog", path: path.clone(), source };
        let content = next.encode();
        if content.len() as u64 > SMALL_FILE {
            let text = "the store has as many segments as a catalog can name";
            return Err(fail(io::Error::new(io::ErrorKind::FileTooLarge, text)));
        }
        let replaced = self.media.replace(&path, &content).map_err(fail)?;
        if !planted("catalog-taken-for-unchanged") || matches!(replaced, Replaced::Durably) {
            *catalog = next;
        }
        match replaced {
            Replaced::Durably => match &self.generations {
                Some(noted) => Ok(noted.catalog_changed(count).map_err(|e| self.fail(e))?),
                None => Ok(()),
            },
            Replaced::Perhaps(e) if planted("catalog-taken-for-unchanged") => Err(fail(e)),
            Replaced::Perhaps(e) => Err(self.fail(MediaError::of_name("force the name of", path, e)).into()),
        }
    }

    /// The segments that were written to since the store was opened say that it is closed.
    pub fn end_use(&self, closing: u64) -> Result<(), MediaError> {
        let segments = self.segments.read().expect("no panic under this lock");
        if !planted("segments-not-stamped-at-a-close") {
            segments.iter().try_for_each(|segment| segment.end_use(closing))?;
        }
        self.settle()
    }

    /// Makes durable what was confirmed of segments that were forced, before what could bring them up to date is
    /// given up.
    pub fn settle(&self) -> Result<(), MediaError> {
        self.generations.as_ref().map_or(Ok(()), |generations| generations.settle())
    }

    /// Refuses a medium that would make commits survive less than the store promised when it was opened.
    pub fn admit(&self, medium: &dyn Medium, survives: Class) -> Result<(), SegmentError> {
        if survives < self.reach {
            let (path, store) = (medium.path().to_owned(), self.reach);
            return Err(SegmentError::Weaker { path, store, segment: survives });
        }
        Ok(())
    }
}

/// The mapped regions, by segment and first byte.
pub(crate) type Regions = BTreeMap<(SegmentId, u64), Arc<RegionState>>;

/// The region that has the last byte that any has of part of a segment.
pub(crate) fn meeting(regions: &Regions, segment: SegmentId, part: Range<u64>) -> Option<&Arc<RegionState>> {
    let (_, last) = regions.range((segment, 0)..(segment, part.end)).next_back()?;
    (last.end() > part.start).then_some(last)
}

pub(crate) fn entry_of(catalog: &mut Catalog, id: SegmentId) -> &mut Entry {
    catalog.segments.iter_mut().find(|e| e.id == id).expect("an open segment is in the catalog")
}
