//! What is laid over the segments of a store that is only read: the old values of transactions that were not
//! committed. They are read from the undo logs whenever a region is mapped, a chunk at a time.

use crate::storage::lacking::Lacking;
use caliburn_log::SegmentId;
use caliburn_log::record::Range;
use caliburn_log::uncommitted::{Found, UndoError};
use caliburn_os::medium::Medium;
use std::io;
use std::sync::Arc;

/// The old values in undo logs.
pub(super) struct OldValues {
    found: Found,
    medium: Arc<dyn Medium>,
}

impl OldValues {
    /// Those that were found.
    pub fn of(found: Found, medium: Arc<dyn Medium>) -> Box<OldValues> {
        Box::new(OldValues { found, medium })
    }
}

impl Lacking for OldValues {
    fn is_empty(&self) -> bool {
        self.found.segments.is_empty()
    }

    fn each_of(&self, segment: SegmentId, each: &mut dyn FnMut(Range<'_>)) -> io::Result<()> {
        if !self.found.segments.contains(&segment) {
            return Ok(());
        }
        for log in &self.found.uncommitted {
            let laid = self.found.newest_first(&*self.medium, log, |range| {
                if range.segment == segment {
                    each(range);
                }
                Ok::<(), UndoError>(())
            });
            laid.map_err(io::Error::other)?;
        }
        Ok(())
    }
}
