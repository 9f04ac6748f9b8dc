//! Room given back to the file system: parts of segments that hold zeros become holes. Segments are made with
//! their room allocated, so that no commit meets a full disk later; who gives it up does so knowingly.
//!
//! A hole is put where there are zeros already, while nobody else has the store open: whatever a crash leaves of
//! it, every segment reads as before.

use crate::api::options::Options;
use crate::storage::close_error::CloseError;
use crate::storage::error::OpenError;
use crate::storage::progress::Phase;
use crate::storage::segment::SegmentState;
use caliburn_log::media_error::MediaError;
use caliburn_os::simulated::even_if;
use std::path::Path;

/// What [`Options::compact`] has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compacted {
    /// Bytes of all segments.
    pub len: u64,
    /// Bytes of them that hold zeros and are holes now, or were.
    pub holes: u64,
}

impl Options {
    /// Gives the room of what holds zeros, 64 KiB or more in a row, back to the file system, in the segments of a
    /// store with the redo policy that nobody uses. What heaps do not use becomes zeros by
    /// `Heap::clear_free`. Adopted files stay as they are.
    ///
    /// From then on a full disk is met when segments are written, by truncation, and fails the store until there
    /// is room and it is opened again. Nothing that was committed is lost.
    ///
    /// # Errors
    /// When the store is in use, cannot be opened, or its file system has no holes. [`OpenError::Policy`] where
    /// segments are not mapped privately, as with the undo and the shadow policy: memory is the segments, and a
    /// full disk would kill the program (SIGBUS).
    pub fn compact(&self, path: impl AsRef<Path>) -> Result<Compacted, OpenError> {
        let path = path.as_ref();
        let store = self.clone().background(false).open(path)?;
        if !store.shared.terms.private {
            let why =
                "its memory is its segments: a full disk would kill the program. Dump and restore it instead";
            return Err(OpenError::Policy { path: path.to_owned(), why });
        }
        let segments: Vec<_> = store.segments().into_iter().map(|segment| segment.state).collect();
        // What committed transactions have changed is in the segments.
        let failed = |failure| OpenError::Failed { path: path.to_owned(), failure };
        store.shared.policy.put_to_rest(&segments).map_err(failed)?;
        let mut compacted = Compacted::default();
        let total = segments.iter().map(|segment| segment.len()).sum();
        for segment in segments.iter().filter(|segment| segment.data != 0) {
            let before = compacted.len;
            let tell = |at| self.settings.watch.tell(Phase::CopySegments, before + at, total);
            compacted.holes += make_holes(segment, tell)?;
            compacted.len += segment.len();
        }
        drop(segments);
        match store.close() {
            Err(CloseError::Failed(failure)) => Err(failed(failure)),
            _ => Ok(compacted),
        }
    }
}

fn make_holes(segment: &SegmentState, tell: impl Fn(u64) -> std::io::Result<()>) -> Result<u64, MediaError> {
    const PART: u64 = 64 << 10;
    let medium = segment.file.reach("open segment")?;
    let fail = |at| {
        let medium = medium.clone();
        move |e| MediaError::new("give back room of segment", &*medium, segment.data + at, e)
    };
    let (mut holes, mut part) = (0, vec![0; PART as usize]);
    for at in (0..segment.len()).step_by(PART as usize) {
        tell(at).map_err(fail(at))?;
        let part = &mut part[..(segment.len() - at).min(PART) as usize];
        segment.read(at, part)?;
        if even_if("holes-in-data", part.iter().all(|byte| *byte == 0)) {
            medium.make_hole(segment.data + at, part.len() as u64).map_err(fail(at))?;
            holes += part.len() as u64;
        }
    }
    Ok(holes)
}
