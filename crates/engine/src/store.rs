//! Stores: a directory with a log, a stage and segments, opened by one process at a time.
//!
//! Who holds what, in the order in which locks are taken:
//!
//! ```text
//!   mapping lock  >  truncation lock  >  flush lock  >  prepared, pages, aborted, sums, catalog, regions  (each briefly)
//! ```
//!
//! The hot path (begin, set_range, commit in the `Process` class) takes none of them.

use crate::catalog::{Catalog, Entry};
use crate::error::{CloseError, CommitError, Failure, OpenError, SegmentError};
use crate::flush::Flush;
use crate::options::{Options, Policy, Tuning};
use crate::pages::Pages;
use crate::patches::Patches;
use crate::policy::undo::UndoChunks;
use crate::prepared::PreparedTable;
use crate::recovery;
use crate::region::RegionState;
use crate::region_table::RegionTable;
use crate::segment::{self, Segment, SegmentState};
use crate::transaction::{Class, Mode, Transaction};
use crate::truncation::Truncation;
use crate::verify::Verifier;
use crate::write_set::{Layout, Position, Reserve, Slots, Terms, WriteSet};
use caliburn_log::format::SEGMENT_DATA;
use caliburn_log::log::{Log, MediaError};
use caliburn_log::record::{BODY_MAX, FRAME};
use caliburn_log::sealed::SEAL;
use caliburn_log::stage::Stage;
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
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

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
    pub pending: RwLock<Option<Patches>>,
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
    pub pending: Option<Patches>,
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
            pending: None,
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
            pending: RwLock::new(parts.pending),
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
    pub fn replay_most(&self) -> u64 {
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

/// Why a transaction did not begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// The store has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The store was opened read-only.
    #[error("the store was opened read-only: it takes no changes")]
    ReadOnly,
}

/// An open store of recoverable memory.
///
/// Dropping it closes it; [`Store::close`] also reports what went wrong.
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.shared.dir).finish()
    }
}

impl Store {
    /// How to create or open a store: `Store::options().create(true).open(path)`.
    pub fn options() -> Options {
        Options::new()
    }

    /// Opens an existing store for writing, recovering what a crash left.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Store, OpenError> {
        Options::new().open(path)
    }

    pub(crate) fn open_with(path: &Path, options: &Options) -> Result<Store, OpenError> {
        let parts = recovery::open(path, options)?;
        let shared = Arc::new(Shared::new(path, options, parts));
        let mut threads = Vec::new();
        if shared.live.is_some() && options.background {
            let start = |name: &str, life: fn(&Shared)| {
                let shared = shared.clone();
                let guarded = move || {
                    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| life(&shared)));
                    if ended.is_err() {
                        // Nobody must wait for a thread that is gone.
                        let error = io::Error::other("a background thread panicked");
                        let log = &shared.live().log;
                        shared.fail(MediaError::new("keep up with", &**log.medium(), 0, error));
                    }
                };
                std::thread::Builder::new().name(name.into()).spawn(guarded)
            };
            let fail = OpenError::io("start a thread for", path);
            match (
                start("caliburn-flush", Shared::run_flusher),
                start("caliburn-trunc", Shared::run_truncation),
            ) {
                (Ok(a), Ok(b)) => threads.extend([a, b]),
                (a, b) => {
                    shared.gate.fetch_or(gate::CLOSED, Ordering::SeqCst);
                    shared.wake_flush_waiters();
                    shared.truncation.wake_all();
                    return Err(fail(a.err().or(b.err()).unwrap_or_else(|| io::ErrorKind::Other.into())));
                }
            }
        }
        Ok(Store { shared, threads })
    }

    /// Creates a segment of `len` bytes of zeros, rounded up to 64 KiB, in a file of the store.
    ///
    /// # Errors
    /// When the name is taken or the disk full; nothing is left behind then.
    pub fn create_segment(&self, name: &str, len: u64) -> Result<Segment, SegmentError> {
        segment::check_name(name)?;
        self.create_segment_on(name, len, &segment::default_path(name))
    }

    /// Creates a segment on a given file or block device. What the device held is lost.
    ///
    /// # Errors
    /// As [`Store::create_segment`]; also when the device is too small or holds another store's data.
    pub fn create_segment_at(
        &self,
        name: &str,
        len: u64,
        path: impl AsRef<Path>,
    ) -> Result<Segment, SegmentError> {
        segment::check_name(name)?;
        let path = path.as_ref();
        let fail = |source| SegmentError::Io { action: "resolve", path: path.to_owned(), source };
        self.create_segment_on(name, len, &std::path::absolute(path).map_err(fail)?)
    }

    fn create_segment_on(&self, name: &str, len: u64, path: &Path) -> Result<Segment, SegmentError> {
        let shared = &self.shared;
        shared.writable()?;
        let len = segment::round_len(name, len)?;
        let mut catalog = shared.catalog.lock().expect("no panic under this lock");
        shared.writable()?;
        if catalog.segments.iter().any(|e| e.name == name) {
            return Err(SegmentError::Exists { name: name.to_owned() });
        }
        let id = SegmentId(catalog.next);
        let (name, path) = (name.to_owned(), path.to_owned());
        let entry = Entry { id, name, path, len, address: 0, data: SEGMENT_DATA };
        let state = Arc::new(SegmentState::create(shared, &entry)?);
        shared.change_catalog(&mut catalog, |catalog| {
            catalog.next += 1;
            catalog.segments.push(entry);
        })?;
        shared.segments.write().expect("no panic under this lock").push(state.clone());
        Ok(Segment { state, store: shared.clone() })
    }

    /// Takes over a file or block device that is nothing but data, as it is: an external data segment in the sense of
    /// RVM (section 3.1). Its whole sectors are the segment, committed changes reach it by truncation, and any
    /// program can read it. There is no header and no checksum in it; a file that other programs change
    /// while the log holds changes for it is changed back. Adopting it again gives the same segment, as long as the
    /// file is by then.
    ///
    /// A store opens without such a file as long as its log holds nothing for it.
    ///
    /// # Errors
    /// When the file cannot be opened for reading and writing, is shorter than a sector, is part of a store, is a segment
    /// under another name, or survives less than commits of this store do; with the undo policy, which has no log to bring it up to date.
    pub fn adopt_segment(&self, path: impl AsRef<Path>) -> Result<Segment, SegmentError> {
        let (shared, path) = (&self.shared, path.as_ref());
        shared.writable()?;
        let fail = |source| SegmentError::Io { action: "resolve", path: path.to_owned(), source };
        let path = std::path::absolute(path).map_err(fail)?;
        if shared.policy == Policy::Undo {
            return Err(SegmentError::Undo { path });
        }
        let mut catalog = shared.catalog.lock().expect("no panic under this lock");
        shared.writable()?;
        let known = catalog.segments.iter().find(|e| e.is_bare() && e.path == path).cloned();
        let open = known.as_ref().and_then(|entry| shared.segment_state(entry.id));
        if let Some(state) = open {
            let len = state.bare_len()?;
            if len > state.len() {
                // What the catalog says of the file must outlive what the file was told.
                if !planted("adopted-growth-not-forced") {
                    state.sync()?;
                }
                shared.change_catalog(&mut catalog, |catalog| entry_of(catalog, state.id).len = len)?;
                state.len.store(len, Ordering::Release);
            }
            return Ok(Segment { state, store: shared.clone() });
        }
        let mut entry = known.unwrap_or_else(|| Entry::bare(catalog.next, path));
        while catalog.segments.iter().any(|e| e.name == entry.name && e.id != entry.id) {
            entry.name.push('_');
        }
        let state = Arc::new(SegmentState::adopt(shared, &mut entry)?);
        // Under another name it would be another segment, whose pages go over those of the first.
        let identity = state.medium.identity();
        let twin =
            self.segments().into_iter().find(|s| identity.is_some() && s.state.medium.identity() == identity);
        if let Some(twin) = twin {
            return Err(SegmentError::Exists { name: twin.name().to_owned() });
        }
        shared.change_catalog(&mut catalog, |catalog| {
            catalog.segments.retain(|e| e.id != entry.id);
            catalog.next = catalog.next.max(entry.id.0 + 1);
            catalog.segments.push(entry);
        })?;
        shared.segments.write().expect("no panic under this lock").push(state.clone());
        Ok(Segment { state, store: shared.clone() })
    }

    /// The segment of that name.
    ///
    /// # Errors
    /// [`SegmentError::Unknown`].
    pub fn segment(&self, name: &str) -> Result<Segment, SegmentError> {
        let found = self.segments().into_iter().find(|s| s.name() == name);
        found.ok_or_else(|| SegmentError::Unknown { name: name.to_owned() })
    }

    /// The segment of that name, made with `len` bytes if there is none.
    ///
    /// # Errors
    /// As [`Store::create_segment`].
    pub fn segment_or_create(&self, name: &str, len: u64) -> Result<Segment, SegmentError> {
        match self.segment(name) {
            Err(SegmentError::Unknown { .. }) => self.create_segment(name, len),
            other => other,
        }
    }

    /// All segments.
    pub fn segments(&self) -> Vec<Segment> {
        let states = self.shared.segments.read().expect("no panic under this lock");
        states.iter().map(|state| Segment { state: state.clone(), store: self.shared.clone() }).collect()
    }

    /// Begins a transaction.
    ///
    /// Waits while private pages exceed the memory budget and truncation is giving them back.
    ///
    /// # Errors
    /// When the store has failed or was opened read-only.
    #[inline]
    pub fn begin(&self, mode: Mode) -> Result<Transaction<'_>, BeginError> {
        if self.shared.gate.load(Ordering::Relaxed) != 0 {
            self.pass_gate()?;
        }
        Ok(Transaction::new(&self.shared, mode))
    }

    #[cold]
    fn pass_gate(&self) -> Result<(), BeginError> {
        let shared = &self.shared;
        if shared.gate.load(Ordering::SeqCst) & gate::READ_ONLY != 0 {
            return Err(BeginError::ReadOnly);
        }
        shared.wait_memory();
        Ok(shared.failure()?)
    }

    /// Waits until every commit so far survives a power cut.
    ///
    /// # Errors
    /// When the store has failed, or its memory cannot survive that: see [`Policy::Undo`].
    pub fn flush(&self) -> Result<(), CommitError> {
        self.takes_changes()?;
        self.shared.reaches(Class::Power)?;
        match &self.shared.undo {
            // Every commit was written back before it returned.
            Some(_) => Ok(self.shared.failure()?),
            None => Ok(self.shared.flush_all()?),
        }
    }

    /// Does once what the flusher does again and again, in a store opened without it
    /// ([`Options::background`](crate::Options::background)); `force` says that the flush interval is over.
    ///
    /// # Errors
    /// When the store has failed.
    pub fn tend_flush(&self, force: bool) -> Result<(), CommitError> {
        self.takes_changes()?;
        if self.shared.undo.is_some() {
            return Ok(());
        }
        Ok(self.shared.tend_flush(force)?)
    }

    /// Does once what the truncation thread does again and again, in a store opened without it.
    ///
    /// # Errors
    /// When the store has failed.
    pub fn tend_truncation(&self) -> Result<(), CommitError> {
        self.takes_changes()?;
        if self.shared.undo.is_some() {
            return Ok(());
        }
        Ok(self.shared.truncate_as_needed()?)
    }

    /// Waits until every committed change is in its segment, and the log empty but for what undecided
    /// prepared transactions need.
    ///
    /// # Errors
    /// When the store has failed.
    pub fn truncate(&self) -> Result<(), CommitError> {
        self.takes_changes()?;
        if self.shared.undo.is_some() {
            return Ok(());
        }
        Ok(self.shared.truncate_all()?)
    }

    fn takes_changes(&self) -> Result<(), CommitError> {
        match self.shared.live.is_some() || self.shared.undo.is_some() {
            true => Ok(()),
            false => Err(CommitError::ReadOnly),
        }
    }

    /// Changes what can be changed while the store is open.
    ///
    /// # Errors
    /// [`OpenError::Option`]; nothing was changed then.
    pub fn set_options(&self, tuning: Tuning) -> Result<(), OpenError> {
        tuning.check()?;
        let budget = tuning.budget(&self.shared.limits);
        self.shared.budget.store(budget, Ordering::Relaxed);
        *self.shared.tuning.write().expect("no panic under this lock") = tuning;
        self.shared.set_room();
        if self.shared.live.is_some() {
            self.shared.nudge_flusher();
            self.shared.wake_truncation();
        }
        Ok(())
    }

    /// The present options.
    pub fn tuning(&self) -> Tuning {
        self.shared.tuning()
    }

    /// How its changes are undone and redone.
    #[inline]
    pub fn policy(&self) -> Policy {
        self.shared.policy
    }

    /// The most that a commit can survive on the media that the store is on. With the undo policy that is what
    /// the memory survives, and more is refused; with the redo policy a power cut, but on a file system in
    /// memory, where forces succeed and mean nothing.
    pub fn reach(&self) -> Class {
        self.shared.reach
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.shared.dir
    }

    /// Why only a part of the store is shown, when it was opened for salvage: what opening would have refused it
    /// for.
    pub fn damage(&self) -> Option<&OpenError> {
        self.shared.damage.as_ref()
    }

    /// Closes the store: flushes, truncates, and says in the log that all is in order. Regions that are
    /// still mapped stay readable.
    ///
    /// # Errors
    /// When the store has failed, now or before, or transactions were forgotten. The store is closed all
    /// the same, not marked clean, and the next opening recovers it.
    pub fn close(mut self) -> Result<(), CloseError> {
        self.shut()
    }

    fn shut(&mut self) -> Result<(), CloseError> {
        let shared = self.shared.clone();
        if shared.gate.load(Ordering::SeqCst) & gate::CLOSED != 0 {
            return Ok(());
        }
        let done = match &shared.undo {
            Some(undo) => shut_undo(&shared, undo),
            None if shared.live.is_some() => self.shut_live(&shared),
            None => Ok(()),
        };
        {
            // Whoever is changing the catalog or mapping a region ends first; whoever comes later finds it closed.
            let _mapping = shared.lock_mapping();
            let _catalog = shared.catalog.lock().expect("no panic under this lock");
            shared.gate.fetch_or(gate::CLOSED | gate::DONE, Ordering::SeqCst);
        }
        shared.unlock_if_done();
        done
    }

    fn shut_live(&mut self, shared: &Shared) -> Result<(), CloseError> {
        let done = shared.failure().and_then(|()| shared.truncate_all());
        shared.gate.fetch_or(gate::CLOSED, Ordering::SeqCst);
        shared.wake_flush_waiters();
        shared.truncation.wake_all();
        for thread in self.threads.drain(..) {
            // A panic there was printed; the store was not marked clean.
            let _ = thread.join();
        }
        if !planted("failed-store-closed-clean") {
            done?;
            shared.failure()?;
        }
        let open = shared.slots.open();
        if open > 0 {
            return Err(CloseError::Uncommitted(open));
        }
        let log = &shared.live().log;
        if log.head() == log.appended() && shared.live().stage.is_empty() {
            log.mark_clean().map_err(|e| shared.fail(e))?;
        }
        Ok(())
    }
}

fn shut_undo(shared: &Shared, undo: &UndoChunks) -> Result<(), CloseError> {
    shared.failure()?;
    match shared.slots.open() {
        0 => Ok(shared.close_undo(undo)?),
        open => Err(CloseError::Uncommitted(open)),
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Err(error) = self.shut() {
            tracing::error!(%error, store = %self.shared.dir.display(), "the store did not close in good order");
        }
    }
}
