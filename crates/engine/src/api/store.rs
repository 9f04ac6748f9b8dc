//! Stores: a directory with a log, a stage and segments, opened by one process at a time.
//!
//! Who holds what, in the order in which locks are taken:
//!
//! ```text
//!   mapping lock  >  truncation lock  >  flush lock  >  prepared, pages, aborted, sums, catalog, regions  (each briefly)
//! ```
//!
//! The hot path (begin, set_range, commit in the `Process` class) takes none of them.

use crate::api::options::Options;
use crate::api::recovery;
use crate::api::shared::{Shared, entry_of, gate};
use crate::api::transaction::{Mode, Transaction};
use crate::policy::undo::UndoChunks;
use crate::storage::catalog::Entry;
use crate::storage::class::Class;
use crate::storage::error::{CloseError, CommitError, Failure, OpenError, SegmentError};
use crate::storage::kind::Policy;
use crate::storage::segment::{self, Segment, SegmentState};
use crate::storage::tuning::Tuning;
use caliburn_log::SegmentId;
use caliburn_log::format::SEGMENT_DATA;
use caliburn_log::log::MediaError;
use caliburn_os::simulated::planted;
use caliburn_os::sync::atomic::Ordering;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

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
        let known = catalog.segments.iter().find(|e| e.is_external() && e.path == path).cloned();
        let open = known.as_ref().and_then(|entry| shared.segment_state(entry.id));
        if let Some(state) = open {
            let len = state.external_len()?;
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
        let mut entry = known.unwrap_or_else(|| Entry::external(catalog.next, path));
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
        self.shared.set_tuning(tuning);
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
