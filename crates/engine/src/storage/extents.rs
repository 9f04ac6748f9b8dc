//! Which bytes the segments of a store have.

use crate::storage::segment::SegmentState;
use caliburn_log::SegmentId;
use caliburn_log::record::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which bytes the segments have.
pub(crate) struct Extents(BTreeMap<SegmentId, u64>);

impl Extents {
    pub fn of(segments: &[Arc<SegmentState>]) -> Extents {
        Extents(segments.iter().map(|segment| (segment.id, segment.len())).collect())
    }

    /// Whether a range lies in a segment.
    pub fn hold(&self, range: &Range<'_>) -> bool {
        let end = range.offset.checked_add(range.bytes.len() as u64);
        self.0.get(&range.segment).is_some_and(|len| end.is_some_and(|end| end <= *len))
    }
}
