//! Stores: a directory with segments and what their policy keeps beside them (log and stage, or undo logs),
//! opened by one process at a time.

use crate::api::open;
use crate::api::options::Options;
use crate::api::segment::Segment;
use crate::api::shared::Shared;
use crate::api::transaction::{Mode, Transaction};
use crate::policy::kind::Policy;
use crate::policy::table;
use crate::storage::catalog::Entry;
use crate::storage::class::Class;
use crate::storage::close_error::CloseError;
use crate::storage::error::{CommitError, Failure, Inherited, OpenError, SegmentError};
use crate::storage::report::OpenReport;
use crate::storage::segment::{self, SegmentState};
use crate::storage::tuning::Tuning;
use crate::storage::{entry_of, gate};
use caliburn_log::SegmentId;
use caliburn_log::format::SEGMENT_DATA;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::{self, planted};
use caliburn_os::sync::atomic::Ordering;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Why a transaction did not begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// The store is the parent process's.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The store has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The store was opened read-only.
    #[error("the store was opened read-only: it takes no changes")]
    ReadOnly,
    /// One transaction at a time is open, and this thread began the one that is, whoever has it now.
    #[error(
        "the store has one transaction at a time, since its changes are told apart by pages, and this thread has begun the one that is open: end that first"
    )]
    Open,
}

/// An open store of recoverable memory: a handle, of which there can be any number. Clones are cheap.
///
/// Dropping the last of them closes the store; [`Store::close`] also reports what went wrong.
#[derive(Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    pub(super) life: Arc<Life>,
}

/// Ends with the last handle, and closes the store then.
pub(super) struct Life {
    shared: Arc<Shared>,
    pub(super) threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.shared.storage.dir).finish()
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
        fn start(
            shared: &Shared,
            name: &str,
            life: impl FnOnce() + Send + 'static,
        ) -> Result<JoinHandle<()>, OpenError> {
            let inherit = simulated::inherited();
            let life = move || {
                inherit();
                life();
            };
            std::thread::Builder::new().name(name.into()).spawn(life).map_err(|error| {
                shared.storage.gate.fetch_or(gate::CLOSED, Ordering::SeqCst);
                shared.policy.wake();
                OpenError::io("start a thread for", &shared.storage.dir)(error)
            })
        }
        let shared = open::open(path, options)?;
        let mut threads = Vec::new();
        let wanted = if options.settings.background { shared.policy.threads() } else { &[] };
        for (number, name) in wanted.iter().enumerate() {
            let life = {
                let shared = shared.clone();
                move || shared.policy.run(number)
            };
            threads.push(start(&shared, name, life)?);
        }
        if shared.tracked.catches() {
            let catching = shared.clone();
            threads.push(start(&shared, "caliburn-faults", move || catching.catch())?);
        }
        if shared.storage.touched.is_wanted() {
            let watching = shared.storage.clone();
            threads.push(start(&shared, "caliburn-order", move || watching.watch_touches())?);
        }
        if options.settings.background && options.observable && !shared.storage.is_read_only() {
            let telling = shared.clone();
            let life = move || telling.run_telling();
            // Without it nothing is lost but a view from outside.
            threads.extend(std::thread::Builder::new().name("caliburn-tell".into()).spawn(life));
        }
        let life = Arc::new(Life { shared: shared.clone(), threads });
        Ok(Store { shared, life })
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
        self.create_segment_on(name, len, &self.outside(path.as_ref())?)
    }

    /// The absolute path of a file that the program names. Those in the store's directory are the store's own.
    pub(super) fn outside(&self, path: &Path) -> Result<PathBuf, SegmentError> {
        let fail = |source| SegmentError::Io { action: "use", path: path.to_owned(), source };
        let whole = std::path::absolute(path).map_err(fail)?;
        if self.shared.storage.media.holds(&whole) {
            let text = "files in the store's directory are the store's own";
            return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
        self.shared.storage.media.list_outside(&whole);
        Ok(whole)
    }

    fn create_segment_on(&self, name: &str, len: u64, path: &Path) -> Result<Segment, SegmentError> {
        let (shared, storage) = (&self.shared, &self.shared.storage);
        storage.writable()?;
        let len = segment::round_len(name, len)?;
        let mut catalog = storage.catalog.lock().expect("no panic under this lock");
        storage.writable()?;
        if catalog.segments.iter().any(|e| e.name == name) {
            return Err(SegmentError::Exists { name: name.to_owned() });
        }
        let id = SegmentId(catalog.next);
        let (name, path) = (name.to_owned(), path.to_owned());
        let entry = Entry { id, name, path, len, address: 0, data: SEGMENT_DATA };
        let sums = table::kind(shared.kind).has_sums(&catalog);
        let outside = entry.path.is_absolute();
        let admit =
            |medium: &dyn Medium| if outside { self.admit_outside(medium) } else { self.admit(medium) };
        let state = Arc::new(SegmentState::create(storage.opener(), &storage.id, &entry, sums, &admit)?);
        shared.policy.taken(&*state.file.reach("open segment")?)?;
        storage.change_catalog(&mut catalog, |catalog| {
            catalog.next += 1;
            catalog.segments.push(entry);
        })?;
        storage.segments.write().expect("no panic under this lock").push(state.clone());
        Ok(Segment { state, store: shared.clone() })
    }

    /// Refuses a medium that would make commits survive less than they do.
    fn admit(&self, medium: &dyn Medium) -> Result<(), SegmentError> {
        self.shared.storage.admit(medium, self.shared.policy.survives(medium))
    }

    /// The same, of a file outside of the directory; and one that is a segment already: under another name it
    /// would be another segment, whose pages go over those of the first.
    fn admit_outside(&self, medium: &dyn Medium) -> Result<(), SegmentError> {
        let identity = medium.identity();
        let mut segments = self.segments().into_iter();
        let twin = segments.find(|s| identity.is_some() && s.state.file.identity() == identity);
        if let Some(twin) = twin {
            return Err(SegmentError::Exists { name: twin.name().to_owned() });
        }
        self.admit(medium)
    }

    /// Takes over a file or block device that is nothing but data, as it is: an external data segment in the
    /// sense of RVM (section 3.1). Its whole sectors are the segment, committed changes reach it by truncation,
    /// and any program can read it. There is no header and no checksum in it; a file that other programs change
    /// while the log holds changes for it is changed back. Adopting it again gives the same segment, as long as
    /// the file is by then.
    ///
    /// With the shadow policy the file is the memory: a commit forces it, and truncation has nothing to do.
    ///
    /// A store opens without such a file as long as its log holds nothing for it.
    ///
    /// # Errors
    /// When the file cannot be opened for reading and writing, is shorter than a sector, is part of a store, is
    /// a segment under another name, or survives less than commits of this store do; with the undo policy, whose
    /// commits do not survive what a file is to.
    pub fn adopt_segment(&self, path: impl AsRef<Path>) -> Result<Segment, SegmentError> {
        let (shared, storage) = (&self.shared, &self.shared.storage);
        storage.writable()?;
        let path = self.outside(path.as_ref())?;
        if !shared.terms.adopts {
            return Err(SegmentError::Undo { path });
        }
        let mut catalog = storage.catalog.lock().expect("no panic under this lock");
        storage.writable()?;
        let known = catalog.segments.iter().find(|e| e.is_external() && e.path == path).cloned();
        let open = known.as_ref().and_then(|entry| storage.segment_state(entry.id));
        if let Some(state) = open {
            let len = state.external_len()?;
            if len > state.len() {
                if !shared.terms.private {
                    state.fill_holes()?;
                }
                // What the catalog says of the file must outlive what the file was told.
                if !planted("adopted-growth-not-forced") {
                    state.sync()?;
                }
                storage.change_catalog(&mut catalog, |catalog| entry_of(catalog, state.id).len = len)?;
                state.len.store(len, Ordering::Release);
            }
            return Ok(Segment { state, store: shared.clone() });
        }
        let mut entry = known.unwrap_or_else(|| Entry::external(catalog.next, path));
        while catalog.segments.iter().any(|e| e.name == entry.name && e.id != entry.id) {
            entry.name.push('_');
        }
        let admit = |medium: &dyn Medium| {
            self.admit_outside(medium)?;
            if shared.terms.private {
                return Ok(());
            }
            let fail =
                |source| SegmentError::Io { action: "allocate", path: medium.path().to_owned(), source };
            medium.fill_holes().map_err(fail)
        };
        let state = Arc::new(SegmentState::adopt(storage, &mut entry, &admit)?);
        storage.change_catalog(&mut catalog, |catalog| {
            catalog.segments.retain(|e| e.id != entry.id);
            catalog.next = catalog.next.max(entry.id.0 + 1);
            catalog.segments.push(entry);
        })?;
        storage.segments.write().expect("no panic under this lock").push(state.clone());
        Ok(Segment { state, store: shared.clone() })
    }

    /// The segment of that name.
    ///
    /// # Errors
    /// [`SegmentError::Unknown`].
    pub fn segment(&self, name: &str) -> Result<Segment, SegmentError> {
        self.shared.storage.own()?;
        let found = self.segments().into_iter().find(|s| s.name() == name);
        found.ok_or_else(|| SegmentError::Unknown { name: name.to_owned() })
    }

    /// The segment of that name, made with `len` bytes if there is none, and made longer if it has fewer.
    ///
    /// # Errors
    /// As [`Store::create_segment`] and [`Segment::grow`].
    pub fn segment_or_create(&self, name: &str, len: u64) -> Result<Segment, SegmentError> {
        match self.segment(name) {
            Err(SegmentError::Unknown { .. }) => self.create_segment(name, len),
            Ok(segment) if segment.len() < len && !self.shared.storage.is_read_only() => {
                segment.grow(len)?;
                Ok(segment)
            }
            other => other,
        }
    }

    /// All segments.
    ///
    /// # Panics
    /// In a process that was forked from the one that has opened the store.
    pub fn segments(&self) -> Vec<Segment> {
        self.shared.storage.must_be_own();
        let states = self.shared.storage.segments.read().expect("no panic under this lock");
        states.iter().map(|state| Segment { state: state.clone(), store: self.shared.clone() }).collect()
    }

    /// Begins a transaction.
    ///
    /// Waits while private pages exceed the memory budget and truncation is giving them back; with the shadow
    /// policy, while another transaction is open.
    ///
    /// # Errors
    /// When the store has failed or was opened read-only; [`BeginError::Open`] where it would wait for
    /// itself: a thread that was handed a transaction which another has begun, and begins one, waits for ever.
    #[inline]
    pub fn begin(&self, mode: Mode) -> Result<Transaction<'_>, BeginError> {
        // Not returned as it comes: what is written to memory by a call could not stay in registers.
        let tx = match self.shared.storage.gate.load(Ordering::Relaxed) {
            gate::OPEN => Transaction::new(&self.shared, mode),
            _ => self.begin_gated(mode)?,
        };
        Ok(tx)
    }

    #[cold]
    fn begin_gated(&self, mode: Mode) -> Result<Transaction<'_>, BeginError> {
        let shared = &self.shared;
        shared.storage.own()?;
        if shared.storage.gate.load(Ordering::SeqCst) & gate::READ_ONLY != 0 {
            return Err(BeginError::ReadOnly);
        }
        shared.storage.failure()?;
        loop {
            // Before the turn: some memory can be given back only while no transaction is open.
            shared.policy.wait_memory();
            if !shared.terms.alone {
                break;
            }
            if !shared.sets.turn.take() {
                return Err(BeginError::Open);
            }
            if shared.storage.gate.load(Ordering::SeqCst) & gate::PRESSED == 0 {
                break;
            }
            // The transaction before this one has taken more.
            shared.give_turn();
        }
        shared.storage.failure().inspect_err(|_| shared.give_turn())?;
        let tx = Transaction::new(shared, mode);
        if shared.terms.alone {
            shared.tracked.all(|way| way.begun(tx.write_set()));
        }
        Ok(tx)
    }

    /// Waits until every commit so far survives a power cut.
    ///
    /// # Errors
    /// When the store has failed, or its memory cannot survive that: see [`Policy::Undo`].
    pub fn flush(&self) -> Result<(), CommitError> {
        self.flush_as(Class::Power)
    }

    /// Waits until every commit so far survives what the class names.
    ///
    /// # Errors
    /// As [`Store::flush`].
    pub fn flush_as(&self, class: Class) -> Result<(), CommitError> {
        self.shared.takes_changes()?;
        self.shared.reaches(class)?;
        if class > Class::Process {
            self.shared.policy.flush()?;
        }
        match class {
            Class::Quorum => Ok(self.shared.policy.replicate()?),
            _ => Ok(()),
        }
    }

    /// Does once what the flusher does again and again, in a store opened without it
    /// ([`Options::background`](crate::Options::background)); `force` says that the flush interval is over.
    ///
    /// # Errors
    /// When the store has failed.
    pub fn tend_flush(&self, force: bool) -> Result<(), CommitError> {
        self.shared.takes_changes()?;
        Ok(self.shared.policy.tend_flush(force)?)
    }

    /// Does once what the truncation thread does again and again, in a store opened without it.
    ///
    /// # Errors
    /// When the store has failed.
    pub fn tend_truncation(&self) -> Result<(), CommitError> {
        self.shared.takes_changes()?;
        Ok(self.shared.policy.tend_truncation()?)
    }

    /// Waits until every committed change is in its segment, and the log empty but for what undecided
    /// prepared transactions need.
    ///
    /// # Errors
    /// When the store has failed.
    pub fn truncate(&self) -> Result<(), CommitError> {
        self.shared.takes_changes()?;
        Ok(self.shared.policy.truncate()?)
    }

    /// Makes the log larger, or moves it to another file or device, while the store is used: commits wait as long
    /// as what is kept of the log is copied. What is asked for as for an opening, by [`Options::log_bytes`] and
    /// [`Options::log_path`]; a log is made smaller by the next opening only. Nothing happens with the undo
    /// policy.
    ///
    /// # Errors
    /// [`OpenError::Option`] when more is kept of the log than half of what is asked for; when the file cannot be
    /// made. The log is where it was then. When the store has failed.
    pub fn relocate_log(&self, options: &Options) -> Result<(), OpenError> {
        options.validate()?;
        self.shared.storage.writable()?;
        self.shared.policy.arrange(&options.settings, false)
    }

    /// Changes what can be changed while the store is open.
    ///
    /// # Errors
    /// [`OpenError::Option`]; nothing was changed then.
    pub fn set_options(&self, tuning: Tuning) -> Result<(), OpenError> {
        tuning.check()?;
        self.shared.storage.own().map_err(SegmentError::Inherited)?;
        self.shared.set_tuning(tuning);
        Ok(())
    }

    /// Whether the store is that of the process from which this one was forked: see [`Inherited`].
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.shared.storage.own().is_err()
    }

    /// The present options.
    ///
    /// # Panics
    /// As [`Store::segments`].
    pub fn tuning(&self) -> Tuning {
        self.shared.storage.must_be_own();
        self.shared.storage.tuning()
    }

    /// How its changes are undone and redone.
    #[inline]
    pub fn policy(&self) -> Policy {
        self.shared.kind
    }

    /// The most that a commit can survive on the media that the store is on. With the undo policy that is what
    /// the memory survives, and more is refused; with the redo policy a power cut, but on a file system in
    /// memory, where forces succeed and mean nothing; the loss of the machine with a [`Replica`](crate::Replica).
    pub fn reach(&self) -> Class {
        self.shared.reach()
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.shared.storage.dir
    }

    /// Why only a part of the store is shown, when it was opened for salvage: what opening would have refused it
    /// for.
    pub fn damage(&self) -> Option<&OpenError> {
        self.shared.damage.as_ref()
    }

    /// What the opening had to say, such as that commits were dropped since their memory was lost.
    pub fn open_report(&self) -> &OpenReport {
        &self.shared.report
    }

    /// Closes the store: flushes, truncates, and says in the log that all is in order. What this process has
    /// prepared and not decided is undecided when the store is opened again, and its old values are back. Regions
    /// that are still mapped stay readable. In a process that was forked from the one that has opened the store it
    /// only lets go of it, which stays open there. While the log is full of what is to be archived
    /// ([`Archiver`](crate::Archiver)) it waits, as committing does.
    ///
    /// # Errors
    /// [`CloseError::Shared`] while other handles hold it (clones, and heaps): the last to be dropped closes it.
    /// When the store has failed, now or before, or transactions were forgotten: it is closed all the same, not
    /// marked clean, and the next opening recovers it.
    pub fn close(self) -> Result<(), CloseError> {
        let Store { shared, life } = self;
        drop(shared);
        Arc::into_inner(life).ok_or(CloseError::Shared)?.shut()
    }
}

impl Life {
    fn shut(&mut self) -> Result<(), CloseError> {
        let shared = self.shared.clone();
        if shared.storage.is_inherited() {
            // The threads are the parent's: what waits for them here would wait for ever.
            std::mem::take(&mut self.threads).into_iter().for_each(std::mem::forget);
            return Ok(());
        }
        if shared.storage.is_closed() {
            return Ok(());
        }
        let done = self.finish(&shared);
        {
            // A thread that changes the catalog or maps a region ends first; one that comes later finds it closed.
            let _mapping = shared.storage.lock_mapping();
            let _catalog = shared.storage.catalog.lock().expect("no panic under this lock");
            shared.storage.gate.fetch_or(gate::CLOSED | gate::DONE, Ordering::SeqCst);
        }
        // Whoever waits for what does not come any more.
        shared.policy.wake();
        shared.storage.end_reading_ahead();
        shared.storage.unlock_if_done();
        done
    }

    /// Brings everything to its place, ends the threads, and says that all is in order.
    fn finish(&mut self, shared: &Shared) -> Result<(), CloseError> {
        if shared.takes_changes().is_err() {
            return Ok(());
        }
        let done = shared.storage.failure().and_then(|()| shared.policy.truncate());
        shared.storage.gate.fetch_or(gate::CLOSED, Ordering::SeqCst);
        shared.policy.wake();
        shared.told.signal();
        shared.storage.end_reading_ahead();
        shared.tracked.all(|way| way.stop());
        for thread in self.threads.drain(..) {
            // A panic there was printed; the store was not marked clean.
            let _ = thread.join();
        }
        if !planted("failed-store-closed-clean") {
            done?;
            shared.storage.failure()?;
        }
        for slot in shared.policy.undecided().leave()? {
            shared.undo_all(shared.sets.slots.resume(slot));
        }
        if !planted("closed-when-detached") {
            shared.storage.failure()?;
        }
        shared.storage.save_last_order();
        match shared.sets.slots.open() {
            0 => Ok(shared.policy.close()?),
            open => Err(CloseError::Uncommitted(open)),
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Err(error) = self.shut() {
            tracing::error!(%error, store = %self.shared.storage.dir.display(), "the store did not close in good order");
        }
    }
}
