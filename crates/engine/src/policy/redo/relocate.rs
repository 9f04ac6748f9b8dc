//! The log of another size, or in another place, while the store is open.
//!
//! ```text
//!   1 nothing is appended, truncated or forced any more; all that was appended is forced
//!   2 what is kept of the log is copied to another file, durably
//!   3 the catalog names that file, durably
//!   4 everybody goes on there; the former file is no log any more
//! ```
//!
//! A crash before 3 leaves the former log, and a file that nobody names; one after it, the new one, and the former
//! that nobody names: the next opening removes either, if it is in the store's directory.

use super::Redo;
use crate::storage::catalog::Catalog;
use crate::storage::directory::{self, LOG, OTHER_LOG};
use crate::storage::error::OpenError;
use crate::storage::segment;
use crate::storage::settings::Settings;
use caliburn_log::format::{BLOCK, STATUS_AT};
use caliburn_log::log;
use caliburn_log::record::{BODY_MAX, FRAME};
use caliburn_os::medium::{Media, Medium};
use caliburn_os::simulated::planted;
use caliburn_os::sync::atomic::Ordering;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest body of a record that a log can take: half of it, so that undecided transactions, a quarter at most,
/// and room to write them anew, never stand in its way.
pub(super) fn body_max(capacity: u64) -> u64 {
    (capacity / 2 - FRAME as u64).min(BODY_MAX as u64)
}

/// The file in a store's directory that its log is not in: one that an attempt to relocate it has left.
pub(super) fn remove_left(media: &dyn Media, dir: &Path, catalog: &Catalog) {
    for name in [LOG, OTHER_LOG] {
        let path = dir.join(name);
        if catalog.log_path != Path::new(name) && media.exists(&path) {
            let _ = media.remove(&path);
        }
    }
}

impl Redo {
    /// Gives the log the size and the place that options name. A smaller one only while there are no transactions:
    /// `opening`.
    pub(super) fn relocate(&self, settings: &Settings, opening: bool) -> Result<(), OpenError> {
        let bytes = settings.log_bytes.unwrap_or(self.log.capacity());
        let path = settings.log_path.as_ref();
        let path =
            path.map(|path| std::path::absolute(path).map_err(OpenError::io("resolve", path))).transpose()?;
        let smaller = bytes < self.log.capacity();
        if smaller && !opening {
            let why = "a log is made smaller when the store is opened, with Options::log_bytes: transactions that are open may need what it has".into();
            return Err(OpenError::Option { name: "log_bytes", value: bytes, why });
        }
        let failed = |failure| self.failed(failure);
        if smaller {
            self.truncate_all().map_err(failed)?;
        }
        // 1
        let mut unforced = self.lock_truncation();
        let work = self.lock_flush();
        let done = self.relocate_locked(bytes, path);
        drop(work);
        self.rounds.wake_all();
        done?;
        self.force_segments(&mut unforced).map_err(failed)?;
        drop(unforced);
        // There may be room that is waited for, and larger transactions are possible.
        self.sets.grant(self.room());
        self.space.signal();
        Ok(())
    }

    fn failed(&self, failure: crate::storage::error::Failure) -> OpenError {
        OpenError::Failed { path: self.storage.dir.clone(), failure }
    }

    /// By the holder of the truncation lock and the flush lock.
    fn relocate_locked(&self, bytes: u64, path: Option<PathBuf>) -> Result<(), OpenError> {
        let (storage, log) = (&self.storage, &self.log);
        let mut catalog = storage.catalog.lock().expect("no panic under this lock");
        let elsewhere = path.filter(|path| *path != Catalog::resolve(&storage.dir, &catalog.log_path));
        if bytes == log.capacity() && elsewhere.is_none() {
            return Ok(());
        }
        storage.failure().map_err(|failure| self.failed(failure))?;
        let needed = log.tail().0 - log.kept().0;
        if needed > bytes / 2 || self.prepared_bytes() > bytes / 4 {
            let why = format!(
                "of the present log {needed} bytes are kept, which must be no more than half of it: archive them, or decide transactions that are undecided"
            );
            return Err(OpenError::Option { name: "log_bytes", value: bytes, why });
        }
        log.force().map_err(|error| self.failed(self.fail(error)))?;
        // 2
        let media = &*storage.media;
        let stays_outside = elsewhere.is_none() && catalog.log_path.is_absolute();
        if stays_outside {
            let why = "a log that is not in the store's directory gets another size in another place: name one, with Options::log_path".into();
            return Err(OpenError::Option { name: "log_bytes", value: bytes, why });
        }
        let name = if catalog.log_path == Path::new(LOG) { OTHER_LOG } else { LOG };
        let next = elsewhere.unwrap_or_else(|| PathBuf::from(name));
        directory::refuse_own(media, &next)?;
        let target = self.make_target(&next)?;
        log.copy_to(&*target, bytes)?;
        let above = next.is_absolute().then(|| next.parent()).flatten().unwrap_or(&storage.dir);
        media.sync_directory(above).map_err(OpenError::io("force directory", above))?;
        let claim = next.is_absolute().then(|| directory::claim(&*target, true)).transpose()?.flatten();
        storage.claim(claim);
        // 3
        let former = Catalog::resolve(&storage.dir, &catalog.log_path);
        if planted("moved-log-not-named") {
            catalog.log_path.clone_from(&next);
        } else {
            storage.change_catalog(&mut catalog, |catalog| catalog.log_path.clone_from(&next))?;
        }
        // 4
        let medium = log.medium();
        log.move_to(target, bytes);
        self.body_max.store(body_max(bytes), Ordering::Relaxed);
        if media.holds(&former) {
            let _ = media.remove(&former);
        } else {
            // A device, or a file that is not ours to remove: it holds no log any more.
            let _ =
                STATUS_AT.map(|at| medium.write_at(&[0; BLOCK], at)).into_iter().collect::<io::Result<()>>();
        }
        tracing::info!(bytes, path = %next.display(), "the log has another size or place");
        Ok(())
    }

    /// The file or device to which the log goes: a new one, or one that holds nothing of a store, or a log of this
    /// one that nobody names.
    fn make_target(&self, next: &Path) -> Result<Arc<dyn Medium>, OpenError> {
        let storage = &self.storage;
        let (media, path) = (&*storage.media, Catalog::resolve(&storage.dir, next));
        if !next.is_absolute() {
            let _ = media.remove(&path);
        } else {
            media.list_outside(&path);
        }
        let medium = match media.create(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => media.open(&path, true),
            other => other,
        };
        let medium = medium.map_err(OpenError::io("create log", &path))?;
        if log::read_status(&*medium, Some(&storage.id)).is_err() {
            segment::refuse_foreign(&*medium)?;
        }
        storage.admit(&*medium, directory::forced(medium.volatile()))?;
        Ok(medium)
    }
}
