//! A segment moved to another file or device, while the store is used.
//!
//! ```text
//!   1 nothing of it is mapped, nor will be; nobody has a handle of it; nothing is left to be written to it
//!   2 it is copied, durably
//!   3 the catalog names the copy, durably
//!   4 the copy is the segment; a former file in the store's directory is removed
//! ```
//!
//! A crash before 3 leaves the segment where it was, and a copy that nobody names; one after it, the copy, and the
//! former file.

use crate::api::segment::Segment;
use crate::api::store::Store;
use crate::storage::catalog::Catalog;
use crate::storage::entry_of;
use crate::storage::error::SegmentError;
use crate::storage::segment::{self, LEN_UNIT, SegmentState};
use crate::storage::stamped;
use caliburn_log::media_error::MediaError;
use caliburn_os::medium::Medium;
use caliburn_os::simulated::planted;
use std::io;
use std::path::Path;
use std::sync::Arc;

impl Store {
    /// Moves a segment to another file or block device, outside of the store's directory, or back into it: to no
    /// path. Nothing of it may be mapped, and no [`Segment`] of it be held; others are used meanwhile. A file
    /// outside that it is moved from stays, and is no segment any more.
    ///
    /// # Errors
    /// [`SegmentError::InUse`]; when the file cannot be made, is part of a store, or survives less than commits of
    /// this store do. The segment is where it was then.
    pub fn move_segment(&self, name: &str, to: Option<&Path>) -> Result<Segment, SegmentError> {
        let (shared, storage) = (&self.shared, &self.shared.storage);
        storage.writable()?;
        let path = to.map_or_else(|| Ok(segment::default_path(name)), |to| self.outside(to))?;
        let used = |why| SegmentError::InUse { name: name.to_owned(), why };
        // 1
        let _mapping = storage.lock_mapping();
        let state = self.segment(name)?.state.clone();
        if state.data == 0 {
            return Err(used("its file was taken over as it was: adopt it where it is"));
        }
        let is_mapped =
            || storage.region_from(state.id, 0).is_some_and(|region| region.segment.id == state.id);
        if is_mapped() {
            return Err(used("a part of it is mapped"));
        }
        shared.policy.put_to_rest(std::slice::from_ref(&state)).map_err(SegmentError::Failed)?;
        if state.is_held() {
            return Err(used("a transaction that changes it is undecided"));
        }
        let mut catalog = storage.catalog.lock().expect("no panic under this lock");
        let mut segments = storage.segments.write().expect("no panic under this lock");
        // Ours, and that of the store.
        if Arc::strong_count(&state) > 2 {
            return Err(used("a handle of it is held"));
        }
        let former = Catalog::resolve(&storage.dir, &entry_of(&mut catalog, state.id).path);
        let whole = Catalog::resolve(&storage.dir, &path);
        if former == whole {
            return Err(SegmentError::Exists { name: name.to_owned() });
        }
        // 2
        let media = &*storage.media;
        let fail = |action| {
            let path = whole.clone();
            move |source| SegmentError::Io { action, path, source }
        };
        match (to, &storage.generations) {
            (None, _) => stamped::make_way(storage.opener(), name, &[&whole])?,
            // The former file may be left.
            (Some(_), Some(generations)) => generations.begin_making(name)?,
            (Some(_), None) => {}
        }
        let medium = match media.create(&whole) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => media.open(&whole, true),
            other => other,
        };
        let medium = medium.map_err(fail("create segment"))?;
        // Before anything is written to it, it is nobody else's.
        let claim = medium.claim(false).map_err(fail("lock"))?;
        segment::refuse_foreign(&*medium)?;
        let identity = medium.identity();
        if let Some(twin) = segments.iter().find(|s| identity.is_some() && s.file.identity() == identity) {
            return Err(SegmentError::Exists { name: twin.name.clone() });
        }
        let copied = storage
            .admit(&*medium, shared.policy.survives(&*medium))
            .and_then(|()| Ok(copy(&*state.file.reach("open segment")?, &*medium)?))
            .and_then(|()| Ok(shared.policy.taken(&*medium)?))
            .and_then(|()| {
                let above = whole.parent().unwrap_or(&storage.dir);
                media.sync_directory(above).map_err(fail("force the directory of"))
            });
        if let Err(error) = copied {
            self.leave(&whole, Some(medium));
            return Err(error);
        }
        // 3
        if planted("moved-segment-not-named") {
            entry_of(&mut catalog, state.id).path.clone_from(&path);
        } else {
            storage.change_catalog(&mut catalog, |catalog| entry_of(catalog, state.id).path = path)?;
        }
        // 4
        let former_medium = state.file.reach("open segment");
        let entry = entry_of(&mut catalog, state.id).clone();
        let sums = state.has_sums();
        drop(claim);
        let moved = Arc::new(SegmentState::open(storage.opener(), &catalog, &entry, sums)?);
        segments.iter_mut().filter(|s| s.id == entry.id).for_each(|s| *s = moved.clone());
        drop((segments, catalog, state));
        self.leave(&former, former_medium.ok());
        tracing::info!(segment = name, path = %whole.display(), "a segment was moved");
        Ok(Segment { state: moved, store: shared.clone() })
    }

    /// A file that is no segment any more.
    fn leave(&self, former: &Path, medium: Option<Arc<dyn Medium>>) {
        let media = &*self.shared.storage.media;
        if media.holds(former) {
            let _ = media.remove(former);
        } else if let Some(medium) = medium {
            // A device, or a file that is not ours to remove.
            let _ = medium.write_at(&[0; 4096], 0);
        }
    }
}

/// Copies a segment's file, with its holes.
fn copy(from: &dyn Medium, to: &dyn Medium) -> Result<(), MediaError> {
    let len = from.len().map_err(|e| MediaError::new("measure segment", from, 0, e))?;
    to.set_len(len).map_err(|e| MediaError::new("allocate segment", to, len, e))?;
    let mut bytes = vec![0; LEN_UNIT as usize];
    let mut at = 0;
    while let Some(next) = from.next_data(at).filter(|next| *next < len) {
        at = next - next % LEN_UNIT;
        let part = &mut bytes[..(len - at).min(LEN_UNIT) as usize];
        from.read_at(part, at).map_err(|e| MediaError::new("read segment", from, at, e))?;
        to.write_at(part, at).map_err(|e| MediaError::new("write segment", to, at, e))?;
        at += LEN_UNIT;
    }
    if !planted("moved-segment-not-forced") {
        to.sync().map_err(|e| MediaError::new("force segment", to, 0, e))?;
    }
    Ok(())
}
