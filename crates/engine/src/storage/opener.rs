//! How the files of a store's segments are opened.

use crate::storage::catalog::Entry;
use crate::storage::error::SegmentError;
use crate::storage::generations::{self, Generations};
use crate::storage::segment_file::{Descriptors, SegmentFile};
use crate::storage::sums::Sums;
use caliburn_log::SegmentId;
use caliburn_log::format::SUMS_STAMP;
use caliburn_os::host::Id;
use caliburn_os::medium::{Media, Medium};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How the segments of a store are opened.
#[derive(Clone, Copy)]
pub(crate) struct Opener<'a> {
    pub media: &'a Arc<dyn Media>,
    pub descriptors: &'a Arc<Descriptors>,
    pub dir: &'a Path,
    pub write: bool,
    /// Files outside of the directory are locked: not by those who read beside the store's owner.
    pub claim: bool,
    /// What they must agree with. None while another process may be changing them, and in a store that has none.
    pub generations: Option<&'a Arc<Generations>>,
}

impl Opener<'_> {
    pub(super) fn file(&self, medium: &Arc<dyn Medium>) -> SegmentFile {
        SegmentFile::new(self.media, self.descriptors, medium, self.write)
    }

    pub(super) fn open_sums(&self, store: &Id, entry: &Entry) -> Result<Sums, SegmentError> {
        let path = sums_path(self.dir, &entry.name);
        let medium = self.media.open(&path, self.write).map_err(io_error("open sums", &path))?;
        let verified = Sums::verify(&*medium, store, entry.id, entry.len).map_err(|error| match error {
            Ok(defect) => SegmentError::Bad { path: path.clone(), offset: 0, defect },
            Err(media) => media.into(),
        });
        let (mut verified, slot) = (verified?, generations::slot_of(entry.id));
        if let Some(generations) = self.generations {
            let bad = |defect| SegmentError::Bad { path: path.clone(), offset: SUMS_STAMP, defect };
            generations.check_slot(slot, verified.stamps.there, &path).map_err(bad)?;
        }
        verified.stamps.durable = self.lasting(entry.id);
        Ok(Sums::of(self.file(&medium), verified))
    }

    /// Of which generation a segment and its sums are on their media at least.
    pub(super) fn lasting(&self, id: SegmentId) -> u64 {
        self.generations.map_or(0, |of| of.lasting(generations::slot_of(id)))
    }
}

pub(super) fn sums_path(store: &Path, name: &str) -> PathBuf {
    store.join(format!("{name}.sums"))
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SegmentError {
    let path = path.to_owned();
    move |source| SegmentError::Io { action, path, source }
}
