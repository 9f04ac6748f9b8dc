//! The log of another size, or in another place, while the store is open.
//!
//! ```text
//!     an empty log in another file, which is claimed, and nobody else's
//!   1 nothing is appended, truncated or forced any more; all that was appended is forced
//!   2 what is kept of the log is copied there, durably
//!   3 the catalog names that file, durably
//!   4 everybody goes on there; the former file is no log any more
//! ```
//!
//! A crash before 3 leaves the former log, and a file that nobody names; one after it, the new one, and the former
//! that nobody names: the next opening removes either, if it is in the store's directory.

use super::Redo;
use super::flusher::FlushBuffers;
use super::truncation::Unforced;
use crate::storage::catalog::Catalog;
use crate::storage::directory::{self, LOG, OTHER_LOG};
use crate::storage::error::{CommitError, OpenError, SegmentError};
use crate::storage::segment;
use crate::storage::settings::Settings;
use caliburn_log::format::{BLOCK, LOG_BYTES_MAX, STATUS_AT};
use caliburn_log::log;
use caliburn_log::media_error::MediaError;
use caliburn_log::record::{BODY_MAX, FRAME};
use caliburn_os::host::{Id, Lock};
use caliburn_os::medium::{Media, Medium};
use caliburn_os::simulated::planted;
use caliburn_os::sync::MutexGuard;
use caliburn_os::sync::atomic::Ordering;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Longest body of a record that a log can take: half of it, so that undecided transactions, a quarter at most,
/// and room to write them anew, never stand in its way.
pub(super) fn body_max(capacity: u64) -> u64 {
    (capacity / 2 - FRAME as u64).min(BODY_MAX as u64)
}

/// A log that grows for a transaction becomes a multiple of so many bytes long.
const GROWTH: u64 = if cfg!(caliburn_sim) { BLOCK as u64 } else { 1 << 20 };

/// Bytes of a log that takes records with such a body.
pub(super) fn bytes_for(body: u64) -> u64 {
    ((body + FRAME as u64) * 2).next_multiple_of(GROWTH)
}

/// The file in a store's directory that its log is not in: one that an attempt to relocate it has left. Where the
/// log is outside of the directory, either may be that very file, under another name.
pub(super) fn remove_left(media: &dyn Media, dir: &Path, catalog: &Catalog) {
    for name in [LOG, OTHER_LOG] {
        let path = dir.join(name);
        let named = catalog.copies.iter().map(|copy| &copy.path).chain([&catalog.log_path]);
        let in_store = !catalog.log_path.is_absolute();
        if in_store && named.clone().all(|path| path != Path::new(name)) && media.exists(&path) {
            let _ = media.remove(&path);
        }
    }
}

/// Removes what an attempt to move the log into the store's directory has left. A file that holds anything else
/// stays, and is refused.
fn remove_attempt(media: &dyn Media, path: &Path, store: &Id) -> Result<(), OpenError> {
    if !media.exists(path) {
        return Ok(());
    }
    let medium = media.open(path, false).map_err(OpenError::io("open", path))?;
    let mut page = vec![0; medium.len().map_or(0, |len| len.min(BLOCK as u64)) as usize];
    medium.read_at(&mut page, 0).map_err(OpenError::io("read", path))?;
    if !log::was_of(&*medium, store) && page.iter().any(|byte| *byte != 0) {
        let text = "it is no log of this store, which needs the name for its log; move it away";
        return Err(OpenError::io("replace", path)(io::Error::new(io::ErrorKind::AlreadyExists, text)));
    }
    media.remove(path).map_err(OpenError::io("remove", path))
}

/// Notes something of a path.
type Note<'n> = &'n dyn Fn(&Path) -> Result<(), MediaError>;

/// What an empty log is made for.
#[derive(Clone, Copy)]
pub(super) enum Making<'n> {
    /// The log goes there.
    Move,
    /// It is to have a copy there.
    Copy {
        /// What is there may be a copy of it that was lost, or was not finished.
        again: bool,
        /// Notes durably that it may be, from now on.
        note: Option<Note<'n>>,
    },
}

/// The file or device to which the log goes.
pub(super) struct Target {
    pub medium: Arc<dyn Medium>,
    pub claim: Option<Lock>,
    /// As the catalog names it.
    pub path: PathBuf,
    pub bytes: u64,
    /// The file was not there before.
    made: bool,
}

impl Target {
    /// It comes to nothing.
    pub fn forget(&self, media: &dyn Media, dir: &Path) {
        if self.made {
            let _ = media.remove(&Catalog::resolve(dir, &self.path));
        } else {
            let _ = STATUS_AT.map(|at| self.medium.write_at(&[0; BLOCK], at));
        }
    }
}

impl Redo {
    /// Longest body that a record may have, which is that of the log that there may be at its commit.
    pub(super) fn body_limit(&self) -> u64 {
        if self.may_grow() { body_max(LOG_BYTES_MAX) } else { self.body_max() }
    }

    /// Whether the log can be made larger for what a transaction changes.
    pub(super) fn may_grow(&self) -> bool {
        self.may_grow.load(Ordering::Relaxed)
    }

    /// Notes whether the log can be made larger where it is.
    pub(super) fn note_growth(&self) {
        let in_store = !self.storage.catalog.lock().expect("no panic under this lock").log_path.is_absolute();
        self.may_grow.store(self.large && in_store && !self.is_duplex(), Ordering::Relaxed);
        self.sets.grant(self.room());
    }

    /// Makes the log as large as a transaction needs it.
    pub(super) fn grow_log(&self, needed: u64) -> Result<(), CommitError> {
        let _one = self.relocating.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let capacity = self.log.capacity();
        if !self.may_grow() || self.is_duplex() {
            let why = "it has two copies, or lies outside of the store, or must not".into();
            let source = Box::new(OpenError::Option { name: "log_bytes", value: needed, why });
            return Err(CommitError::Log { needed, source });
        }
        if needed <= capacity {
            // Another transaction has made it larger meanwhile.
            return Ok(());
        }
        // What is kept may take no more than half of it, and undecided transactions no more than a quarter.
        let kept = self.log.tail().0 - self.log.kept().0 + self.prepared_bytes();
        let bytes = if kept > needed / 4 { needed.max(capacity * 2) } else { needed };
        let bytes = bytes.next_multiple_of(GROWTH).min(LOG_BYTES_MAX);
        self.relocate_to(None, bytes).map_err(|error| match error {
            OpenError::Failed { failure, .. } => failure.into(),
            error => CommitError::Log { needed, source: Box::new(error) },
        })
    }

    /// Gives the log the size and the place that options name. A smaller one only while there are no transactions:
    /// `opening`. An opening that cannot give it the size for what is kept of the log goes on without.
    pub(super) fn relocate(&self, settings: &Settings, opening: bool) -> Result<(), OpenError> {
        let _one = self.relocating.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let bytes = settings.log_bytes.unwrap_or(self.log.capacity());
        let path = self.elsewhere(settings)?;
        if bytes == self.log.capacity() && path.is_none() {
            return Ok(());
        }
        if self.is_duplex() {
            if opening {
                tracing::warn!("a log with two copies keeps its size and place");
                return Ok(());
            }
            let why = "a log with two copies keeps its size and place: give it one first, with Options::simplex_log".into();
            return Err(OpenError::Option { name: "log_bytes", value: bytes, why });
        }
        let smaller = bytes < self.log.capacity();
        if smaller && !opening {
            let why = "a log is made smaller when the store is opened, with Options::log_bytes: transactions that are open may need what it has".into();
            return Err(OpenError::Option { name: "log_bytes", value: bytes, why });
        }
        let failed = |failure| self.failed(failure);
        if smaller {
            self.truncate_all().map_err(failed)?;
        }
        if let Err(why) = self.fits(bytes) {
            if opening {
                tracing::warn!(bytes, why, "the log keeps its size");
                return Ok(());
            }
            return Err(OpenError::Option { name: "log_bytes", value: bytes, why });
        }
        self.relocate_to(path, bytes)
    }

    /// Gives the log a size, and another place if one is named. For who has the lock `relocating`.
    fn relocate_to(&self, path: Option<PathBuf>, bytes: u64) -> Result<(), OpenError> {
        let failed = |failure| self.failed(failure);
        // All of it is written before anybody waits.
        let target = self.make_target(path, bytes, Making::Move)?;
        // 1
        let Some((mut unforced, work)) = self.lock_both() else {
            target.forget(&*self.storage.media, &self.storage.dir);
            let why = "commits wait for room in the log: archive what is kept, or end what keeps it from being truncated, then try again".into();
            return Err(OpenError::Option { name: "log_bytes", value: bytes, why });
        };
        let done = self.move_log(&target);
        drop(work);
        self.rounds.wake_all();
        if let Err(error) = done {
            // Of a store that has failed nobody knows which of them the catalog names.
            if self.storage.failure().is_ok() {
                target.forget(&*self.storage.media, &self.storage.dir);
            }
            return Err(error);
        }
        let path = Catalog::resolve(&self.storage.dir, &target.path);
        self.storage.claim_log(target.claim.map(|claim| (path, claim)));
        self.force_segments(&mut unforced).map_err(failed)?;
        drop(unforced);
        // There may be room that is waited for, and larger transactions are possible.
        self.note_growth();
        self.space.signal();
        Ok(())
    }

    /// Where the log is to go, if that is not where it is, under whatever name.
    fn elsewhere(&self, settings: &Settings) -> Result<Option<PathBuf>, OpenError> {
        let Some(path) = &settings.log_path else { return Ok(None) };
        let path = std::path::absolute(path).map_err(OpenError::io("resolve", path))?;
        let media = &*self.storage.media;
        let there = media.exists(&path).then(|| media.open(&path, false).ok()).flatten();
        let same = there.is_some_and(|medium| self.has_log(&*medium));
        if media.holds(&path) && path.file_name().is_some_and(|name| name == LOG) {
            // Back to the store's directory, unless it is there, under either of its names.
            let in_store =
                !self.storage.catalog.lock().expect("no panic under this lock").log_path.is_absolute();
            return Ok((!same && !in_store).then(|| PathBuf::from(LOG)));
        }
        Ok((!same).then_some(path))
    }

    /// Whether a medium is one that has the log now, under whatever name.
    fn has_log(&self, medium: &dyn Medium) -> bool {
        let log = self.log.medium();
        let identity = medium.identity();
        let is = |one: &dyn Medium| {
            one.path() == medium.path() || identity.is_some() && identity == one.identity()
        };
        match log.pair().and_then(|pair| pair.in_use()) {
            Some(both) => both.into_iter().any(is),
            None => is(&*log),
        }
    }

    /// Why what is kept does not fit a log of that size.
    fn fits(&self, bytes: u64) -> Result<(), String> {
        let needed = self.log.tail().0 - self.log.kept().0;
        if needed > bytes / 2 || self.prepared_bytes() > bytes / 4 {
            return Err(format!(
                "of the present log {needed} bytes are kept, which must be no more than half of it: archive them, or decide transactions that are undecided"
            ));
        }
        Ok(())
    }

    /// The truncation lock and the flush lock. Who has the latter may wait for truncation to make room, and for an
    /// archiver: it is let through, and not waited for for ever.
    pub(super) fn lock_both(&self) -> Option<(MutexGuard<'_, Unforced>, MutexGuard<'_, FlushBuffers>)> {
        const TRIES: u32 = 1000;
        for _ in 0..TRIES {
            let unforced = self.lock_truncation();
            for _ in 0..100 {
                if self.is_starved() {
                    break;
                }
                if let Some(work) = self.try_lock_flush() {
                    return Some((unforced, work));
                }
                caliburn_os::sync::sleep(Duration::from_micros(20));
            }
            drop(unforced);
            caliburn_os::sync::sleep(Duration::from_millis(2));
        }
        None
    }

    pub(super) fn failed(&self, failure: crate::storage::error::Failure) -> OpenError {
        OpenError::Failed { path: self.storage.dir.clone(), failure }
    }

    /// Steps 2 to 4, by the holder of the truncation lock and the flush lock.
    fn move_log(&self, target: &Target) -> Result<(), OpenError> {
        let (storage, log) = (&self.storage, &self.log);
        let Target { medium, path, bytes, .. } = target;
        let bytes = *bytes;
        let mut catalog = storage.catalog.lock().expect("no panic under this lock");
        storage.failure().map_err(|failure| self.failed(failure))?;
        if let Err(why) = self.fits(bytes) {
            return Err(OpenError::Option { name: "log_bytes", value: bytes, why });
        }
        log.force().map_err(|error| self.failed(self.fail(error)))?;
        // 2
        let media = &*storage.media;
        log.copy_to(&**medium, bytes, medium.place().unwrap_or_default())?;
        // 3
        let former = Catalog::resolve(&storage.dir, &catalog.log_path);
        if planted("moved-log-not-named") {
            catalog.log_path.clone_from(path);
        } else {
            storage.change_catalog(&mut catalog, |catalog| catalog.log_path.clone_from(path))?;
        }
        // 4
        let before = log.medium();
        log.move_to(medium.clone(), bytes);
        self.body_max.store(body_max(bytes), Ordering::Relaxed);
        if media.holds(&former) {
            let _ = media.remove(&former);
        } else {
            // A device, or a file that is not ours to remove: it holds no log any more.
            let wiped = STATUS_AT.map(|at| before.write_at(&[0; BLOCK], at));
            let _ = wiped.into_iter().collect::<io::Result<()>>().and_then(|()| before.sync());
        }
        tracing::info!(bytes, path = %path.display(), "the log has another size or place");
        Ok(())
    }

    /// A new file, or one, or a device, that holds nothing of a store, with an empty log in it; claimed.
    pub(super) fn make_target(
        &self,
        elsewhere: Option<PathBuf>,
        bytes: u64,
        making: Making<'_>,
    ) -> Result<Target, OpenError> {
        let storage = &self.storage;
        let media = &*storage.media;
        let present = storage.catalog.lock().expect("no panic under this lock").log_path.clone();
        if elsewhere.is_none() && present.is_absolute() {
            let why = "a log that is not in the store's directory gets another size in another place: name one, with Options::log_path".into();
            return Err(OpenError::Option { name: "log_bytes", value: bytes, why });
        }
        let name = if present == Path::new(LOG) { OTHER_LOG } else { LOG };
        let next = elsewhere.unwrap_or_else(|| PathBuf::from(name));
        directory::refuse_own(media, &next)?;
        let path = Catalog::resolve(&storage.dir, &next);
        if !next.is_absolute() {
            remove_attempt(media, &path, &storage.id)?;
        } else if let Making::Move = making {
            media.list_outside(&path);
        }
        let (medium, made) = match media.create(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (media.open(&path, true), false),
            other => (other, true),
        };
        let medium = medium.map_err(OpenError::io("create log", &path))?;
        if !made && self.has_log(&*medium) {
            let text = "the log is there already, under another name";
            return Err(OpenError::io("use", &path)(io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
        if let Making::Copy { again: true, .. } = making {
            storage.drop_claim(&path);
        }
        let filled = self.claim_and_fill(&medium, bytes, making, &next);
        let above = next.is_absolute().then(|| next.parent()).flatten().unwrap_or(&storage.dir);
        let filled = filled.and_then(|claim| {
            media.sync_directory(above).map_err(OpenError::io("force directory", above))?;
            Ok(claim)
        });
        if filled.is_err() && made {
            let _ = media.remove(&path);
        }
        Ok(Target { claim: filled?, medium, path: next, bytes, made })
    }

    /// What was a copy of the log may be something else by now.
    fn refuse_used(medium: &dyn Medium) -> Result<(), OpenError> {
        let mut page = [0; BLOCK];
        let read = medium.read_at(&mut page, 0);
        if read.is_ok() && page.iter().any(|byte| *byte != 0) {
            let text = "it was a copy of the log, and holds something else now; clear its first 4096 bytes to use it anew";
            let error = io::Error::new(io::ErrorKind::InvalidData, text);
            return Err(OpenError::io("use", medium.path())(error));
        }
        Ok(())
    }

    /// Before anything is written to it, it is nobody else's: no log, no segment, of this store or of others.
    fn claim_and_fill(
        &self,
        medium: &Arc<dyn Medium>,
        bytes: u64,
        making: Making<'_>,
        named: &Path,
    ) -> Result<Option<Lock>, OpenError> {
        let storage = &self.storage;
        let claim = directory::claim(&**medium, true)?;
        let own = matches!(making, Making::Copy { again: true, .. }) && log::was_of(&**medium, &storage.id);
        if !own {
            segment::refuse_foreign(&**medium)?;
        }
        if let (false, Making::Copy { again: true, .. }) = (own, making) {
            Self::refuse_used(&**medium)?;
        }
        let identity = medium.identity();
        let segments = storage.segments.read().expect("no panic under this lock");
        if let Some(twin) = segments.iter().find(|s| identity.is_some() && s.file.identity() == identity) {
            return Err(SegmentError::Exists { name: twin.name.clone() }.into());
        }
        drop(segments);
        storage.admit(&**medium, directory::forced(medium.volatile()))?;
        if let Making::Copy { note: Some(note), .. } = making {
            note(named)?;
        }
        log::create(&**medium, storage.id, bytes, 0)?;
        Ok(claim)
    }
}
