//! What the handles of an open store share.

use crate::api::options::Options;
use crate::api::recovery;
use crate::policy::redo::flusher::Flush;
use crate::policy::redo::pages::Pages;
use crate::policy::redo::prepared::PreparedTable;
use crate::policy::redo::stage::Stage;
use crate::policy::redo::truncation::Truncation;
use crate::policy::undo::UndoChunks;
use crate::storage::catalog::{Catalog, Entry};
use crate::storage::class::Class;
use crate::storage::error::{Failure, OpenError, SegmentError};
use crate::storage::kind::Policy;
use crate::storage::redo_ranges::RedoRanges;
use crate::storage::region::RegionState;
use crate::storage::region_table::RegionTable;
use crate::storage::segment::SegmentState;
use crate::storage::tuning::Tuning;
use crate::tracking::verify::Verifier;
use crate::write_set::{Layout, Position, Reserve, Slots, Terms, WriteSet};
use caliburn_log::log::{Log, MediaError};
use caliburn_log::record::{BODY_MAX, FRAME};
use caliburn_log::sealed::SEAL;
use caliburn_log::{Lsn, SegmentId};
use caliburn_os::event::Event;
use caliburn_os::guard::{Kind, Permit};
use caliburn_os::host::{Id, Lock};
use caliburn_os::medium::Media;
use caliburn_os::medium::Medium;
use caliburn_os::memory::Limits;
use caliburn_os::simulated::planted;
use caliburn_os::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard, RwLock};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Bits of [`Shared::gate`]: why a transaction must not begin without a look.
pub(crate) mod gate {
    pub const FAILED: u32 = 1;
    pub const PRESSED: u32 = 2;
    pub const CLOSED: u32 = 4;
    pub const READ_ONLY: u32 = 8;
    /// Closing has written the last it had to write.
    pub const DONE: u32 = 16;
}

/// What a store opened for writing has.
pub(crate) struct Live {
    pub stage: Stage,
    pub log: Log,
}

/// An open store, shared by its handles, regions and background threads.
pub(crate) struct Shared {
    pub dir: PathBuf,
    pub id: Id,
    pub policy: Policy,
    pub media: Arc<dyn Media>,
    pub page_size: usize,
    pub page_shift: u32,
    pub reserve_bytes: u64,
    /// Longest body of a record that the log can take: half of it, so that undecided transactions, a quarter
    /// at most, and room to write them anew, never stand in its way.
    pub body_max: u64,
    /// With the redo policy, opened for writing.
    pub live: Option<Live>,
    /// With the undo policy, opened for writing.
    pub undo: Option<UndoChunks>,
    /// The most that a commit can survive.
    pub reach: Class,
    /// Somebody said so, who is believed of later segments too.
    pub assumed: bool,
    /// How regions are guarded.
    pub guard: Option<Kind>,
    /// Pages of memory never go to segments.
    pub declared_only: bool,
    pub verifier: Option<Verifier>,
    /// What the policy asks of write sets.
    pub terms: Terms,
    pub gate: AtomicU32,
    pub slots: Slots,
    pub reserve: Reserve,
    pub flush: Flush,
    /// Whether there are threads that flush and truncate.
    pub background: bool,
    /// Signalled when the log's head moved.
    pub space: Event,
    pub truncation: Truncation,
    /// Held by whoever maps, so that no mapping misses what becomes pending meanwhile.
    pub mapping: Mutex<()>,
    pub regions: RwLock<Vec<Arc<RegionState>>>,
    /// The same regions, for those who must not wait.
    pub table: RegionTable,
    pub segments: RwLock<Vec<Arc<SegmentState>>>,
    pub catalog: Mutex<Catalog>,
    pub prepared: Mutex<PreparedTable>,
    /// Committed changes of the log found at opening that the segments may lack.
    pub unapplied: RwLock<Option<RedoRanges>>,
    pub damage: Option<OpenError>,
    pub limits: Limits,
    pages: Mutex<Pages>,
    /// Bytes that aborted transactions touched, not yet noted in `pages`: an abort must not wait for a lock
    /// that is held while a whole batch is marked.
    aborted: Mutex<Vec<(SegmentId, u64, u64)>>,
    failure: OnceLock<Failure>,
    tuning: RwLock<Tuning>,
    budget: AtomicU64,
    /// Given up when the store is closed and no region of it is mapped any more.
    lock: Mutex<Option<Lock>>,
}

/// Parts of a store that opening puts together.
pub(crate) struct Parts {
    pub catalog: Catalog,
    pub segments: Vec<Arc<SegmentState>>,
    pub live: Option<Live>,
    pub undo: Option<UndoChunks>,
    pub unapplied: Option<RedoRanges>,
    pub prepared: PreparedTable,
    pub damage: Option<OpenError>,
    /// The most that a commit can survive.
    pub reach: Class,
    pub lock: Lock,
    pub limits: Limits,
}

impl Parts {
    /// What every opening has.
    pub fn new(catalog: Catalog, segments: Vec<Arc<SegmentState>>, lock: Lock, limits: Limits) -> Parts {
        Parts {
            catalog,
            segments,
            live: None,
            undo: None,
            unapplied: None,
            prepared: PreparedTable::new(),
            damage: None,
            reach: Class::Process,
            lock,
            limits,
        }
    }

    /// Notes what commits survive: as much as the weakest of the store's media. Refused if that is not enough.
    pub fn reach(
        &mut self,
        dir: &Path,
        options: &Options,
        media: impl IntoIterator<Item = (PathBuf, Class)>,
    ) -> Result<(), OpenError> {
        let weakest = media.into_iter().min_by_key(|(_, class)| *class);
        let weakest = weakest.expect("a store has a log or undo logs");
        self.reach = weakest.1;
        options.suffices(dir, weakest)
    }
}

impl Shared {
    pub fn new(dir: &Path, options: &Options, parts: Parts) -> Shared {
        let page_size = caliburn_os::page_size();
        let limits = parts.limits;
        let body_max = parts
            .live
            .as_ref()
            .map_or(0, |live| (live.log.capacity() / 2 - FRAME as u64).min(BODY_MAX as u64));
        let watched = options.guard.kind().is_some() || options.verify;
        let marked = parts.live.as_ref().map_or(Lsn(0), |live| live.log.appended());
        let trailer = parts.undo.as_ref().and_then(UndoChunks::persistent).map_or(0, |_| SEAL);
        let sees_each = watched || trailer > 0;
        let shared = Shared {
            dir: dir.to_owned(),
            id: parts.catalog.store,
            policy: parts.catalog.policy,
            media: options.media.clone(),
            page_size,
            page_shift: page_size.trailing_zeros(),
            reserve_bytes: options.reserve_bytes.min(1 << 46),
            body_max,
            gate: AtomicU32::new(if parts.live.is_some() || parts.undo.is_some() {
                0
            } else {
                gate::READ_ONLY
            }),
            reach: parts.reach,
            assumed: options.memory_survives.is_some(),
            declared_only: options.declared_only && parts.catalog.policy == Policy::Redo,
            guard: options.guard.kind().filter(|_| !options.read_only),
            verifier: (options.verify && !options.read_only).then(Verifier::default),
            terms: Terms {
                clears: if parts.undo.is_some() && !sees_each { parts.reach as u8 + 1 } else { 0 },
                keeps_old: parts.undo.is_some(),
            },
            live: parts.live,
            undo: parts.undo,
            slots: Slots::new(Layout { trailer }),
            reserve: Reserve::default(),
            flush: Flush::default(),
            background: options.background,
            space: Event::default(),
            truncation: Truncation::default(),
            mapping: Mutex::default(),
            regions: RwLock::default(),
            table: RegionTable::default(),
            segments: RwLock::new(parts.segments),
            catalog: Mutex::new(parts.catalog),
            prepared: Mutex::new(parts.prepared),
            unapplied: RwLock::new(parts.unapplied),
            damage: parts.damage,
            pages: Mutex::new(Pages::new(page_size, marked)),
            aborted: Mutex::default(),
            failure: OnceLock::new(),
            budget: AtomicU64::new(options.tuning.budget(&limits)),
            limits,
            tuning: RwLock::new(options.tuning.clone()),
            lock: Mutex::new(Some(parts.lock)),
        };
        shared.set_room();
        shared
    }

    /// How much write sets may take depends on the memory budget.
    fn set_room(&self) {
        let room = match &self.undo {
            _ if self.watched() => 0,
            Some(undo) if undo.persistent().is_some() => 0,
            Some(_) => usize::MAX,
            None if self.live.is_some() => self.redo_room(),
            None => 0,
        };
        self.slots.grant(room);
    }

    /// Stage and log.
    ///
    /// # Panics
    /// On a read-only store, which has no transactions to call this for.
    #[inline(always)]
    pub fn live(&self) -> &Live {
        self.live.as_ref().expect("a read-only store takes no changes")
    }

    pub fn lock_pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The pages that an aborted transaction has copied are private.
    pub fn note_aborted(&self, set: &WriteSet<'_>, from: Position) {
        let mut aborted = self.aborted.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        set.each_from(from, |range| aborted.push((range.segment, range.offset, range.len as u64)));
        let many = aborted.len() >= 4096;
        drop(aborted);
        if many {
            self.note_private(&mut self.lock_pages());
        }
    }

    /// Takes over what aborts have left to be noted.
    pub fn note_private(&self, pages: &mut Pages) {
        let aborted =
            std::mem::take(&mut *self.aborted.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        for (segment, offset, len) in aborted {
            pages.note_private(segment, offset, len);
        }
    }

    /// What the calling thread needs for stores of the engine's own.
    #[inline(always)]
    pub fn permit(&self) -> Option<Permit> {
        if self.guard == Some(Kind::Key) { Some(Permit::new()) } else { None }
    }

    /// Whether transactions must tell of the regions that they change.
    #[inline(always)]
    pub fn watched(&self) -> bool {
        self.guard.is_some() || self.verifier.is_some()
    }

    pub fn tuning(&self) -> Tuning {
        self.tuning.read().expect("no panic under this lock").clone()
    }

    pub fn set_tuning(&self, tuning: Tuning) {
        self.budget.store(tuning.budget(&self.limits), Ordering::Relaxed);
        *self.tuning.write().expect("no panic under this lock") = tuning;
        self.set_room();
    }

    #[inline(always)]
    pub fn memory_budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// Bytes of log in use at which truncation begins.
    pub fn truncation_threshold(&self) -> u64 {
        self.live().log.capacity() / 100
            * u64::from(self.tuning.read().expect("no panic under this lock").truncate_percent)
    }

    /// Bytes of log that the segments do not show at which showing begins.
    pub fn checkpoint_every_bytes(&self) -> u64 {
        self.live().log.capacity() / 16
    }

    /// Fails the store for good and wakes everybody who waits. The first failure is the one reported.
    pub fn fail(&self, cause: MediaError) -> Failure {
        tracing::error!(%cause, "the store has failed");
        let failure = self.failure.get_or_init(|| Failure { cause: Arc::new(cause) }).clone();
        self.gate.fetch_or(gate::FAILED, Ordering::SeqCst);
        self.wake_flush_waiters();
        self.truncation.wake_all();
        failure
    }

    /// The failure, if the store has failed.
    pub fn failure(&self) -> Result<(), Failure> {
        self.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    pub fn writable(&self) -> Result<(), SegmentError> {
        match self.gate.load(Ordering::SeqCst) {
            g if g & (gate::READ_ONLY | gate::CLOSED) != 0 => Err(SegmentError::ReadOnly),
            _ => Ok(self.failure()?),
        }
    }

    /// Gives up the directory if nothing needs it any more.
    pub fn unlock_if_done(&self) {
        let done = self.gate.load(Ordering::SeqCst) & gate::DONE != 0;
        if done && self.regions.read().expect("no panic under this lock").is_empty() {
            self.lock.lock().expect("no panic under this lock").take();
        }
    }

    /// Refuses a medium that would make commits survive less than the store promised when it was opened.
    pub fn suits(&self, medium: &dyn Medium) -> Result<(), SegmentError> {
        let survives = match &self.undo {
            Some(_) if self.assumed => return Ok(()),
            // Lines that this store leaves in the cache survive the process alone.
            Some(undo) if medium.memory().flush > undo.memory().flush => Class::Process,
            Some(_) => medium.memory().survives.into(),
            None => recovery::forced(medium),
        };
        if survives < self.reach {
            let (path, store) = (medium.path().to_owned(), self.reach);
            return Err(SegmentError::Weaker { path, store, segment: survives });
        }
        Ok(())
    }

    pub fn segment_state(&self, id: SegmentId) -> Option<Arc<SegmentState>> {
        self.segments.read().expect("no panic under this lock").iter().find(|s| s.id == id).cloned()
    }

    pub fn grow_segment(&self, state: &SegmentState, len: u64) -> Result<(), SegmentError> {
        self.writable()?;
        if len <= state.len() {
            return Ok(());
        }
        self.force_aside(|| self.grow_file(state, len))
    }

    fn grow_file(&self, state: &SegmentState, len: u64) -> Result<(), SegmentError> {
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
        Ok(())
    }

    /// Changes the catalog on disk, then in memory.
    pub fn change_catalog(
        &self,
        catalog: &mut Catalog,
        change: impl FnOnce(&mut Catalog),
    ) -> Result<(), SegmentError> {
        let mut next = catalog.clone();
        change(&mut next);
        let path = self.dir.join(recovery::CATALOG);
        let fail = |source| SegmentError::Io { action: "replace catalog", path: path.clone(), source };
        self.media.replace(&path, &next.encode()).map_err(fail)?;
        *catalog = next;
        Ok(())
    }
}

pub(crate) fn entry_of(catalog: &mut Catalog, id: SegmentId) -> &mut Entry {
    catalog.segments.iter_mut().find(|e| e.id == id).expect("an open segment is in the catalog")
}
