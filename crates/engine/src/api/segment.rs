//! Segments: named backing storage of recoverable data.

use crate::api::mapping::Placement;
use crate::api::region::Region;
use crate::api::shared::Shared;
use crate::storage::error::{MapError, SegmentError};
use crate::storage::segment::{SegmentState, round_len};
use caliburn_log::SegmentId;
use caliburn_os::page_size;
use std::ops::Range;
use std::sync::Arc;

/// A segment of an open store.
#[derive(Clone)]
pub struct Segment {
    pub(crate) state: Arc<SegmentState>,
    pub(crate) store: Arc<Shared>,
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment").field("name", &self.state.name).field("len", &self.len()).finish()
    }
}

impl Segment {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Its number in the store.
    pub fn id(&self) -> SegmentId {
        self.state.id
    }

    /// Bytes of data.
    pub fn len(&self) -> u64 {
        self.state.len()
    }

    /// Makes the segment at least `len` bytes long, durably, whatever is mapped of it. The new bytes are
    /// zero. [`Region::grow`] extends a mapping over them.
    ///
    /// # Errors
    /// A full disk leaves the segment as it was. A file that was adopted grows by being made longer and adopted
    /// again.
    pub fn grow(&self, len: u64) -> Result<(), SegmentError> {
        if self.state.data == 0 {
            let why = "its file was taken over as it was: make the file longer and adopt it again";
            return Err(SegmentError::Length { name: self.name().to_owned(), len, why });
        }
        let len = round_len(self.name(), len)?;
        self.store.grow_segment(&self.state, len)
    }

    /// Maps bytes `range`, whole pages, copy-on-write, wherever the system likes. Reads nothing: pages
    /// are read when they are touched.
    pub fn map(&self, range: Range<u64>) -> Result<Region, MapError> {
        self.store.map(&self.state, range, Placement::Anywhere)
    }

    /// Maps the whole segment.
    pub fn map_all(&self) -> Result<Region, MapError> {
        self.map(0..self.len())
    }

    /// Maps bytes `range` at exactly `address`, or fails.
    pub fn map_at(&self, range: Range<u64>, address: usize) -> Result<Region, MapError> {
        self.store.map(&self.state, range, Placement::Free(address))
    }

    /// Maps bytes `range` at `address`, in place of memory that the program has there. The address is a whole
    /// page's; [`Region::leave`] gives the memory back.
    ///
    /// # Errors
    /// As [`Segment::map`]; [`MapError::AddressTaken`] when a region is there.
    ///
    /// # Safety
    /// As many bytes at `address`, up to a whole page, must be mapped memory of the caller's that nothing
    /// refers to.
    pub unsafe fn map_over(&self, range: Range<u64>, address: usize) -> Result<Region, MapError> {
        self.store.map(&self.state, range, Placement::Over(address))
    }

    /// Makes memory that the program has at `address` a region for bytes `range`, as it is: nothing is read from
    /// the segment. What transactions declare and store is then the segment's (RVM's `no_copy`). The rest of
    /// what the memory shows never reaches the segment, with
    /// [`Options::declared_only`](crate::Options::declared_only).
    ///
    /// # Errors
    /// As [`Segment::map_over`]; [`MapError::Unread`] without that option.
    ///
    /// # Safety
    /// As for [`Segment::map_over`]; and the memory must be readable and writable.
    pub unsafe fn map_unread(&self, range: Range<u64>, address: usize) -> Result<Region, MapError> {
        if !self.store.terms.declared_only {
            return Err(MapError::Unread { segment: self.name().to_owned() });
        }
        self.store.map(&self.state, range, Placement::Unread(address))
    }

    /// The segment loader (RVM, section 4.1): maps the whole segment at the address it had when it was
    /// first loaded, so that native pointers inside it stay valid.
    ///
    /// # Errors
    /// [`MapError::AddressTaken`] when something else is there in this process; the segment is never moved.
    pub fn load(&self) -> Result<Region, MapError> {
        self.store.load(&self.state)
    }

    /// Smallest unit of mapping: the system's page size in bytes.
    pub fn page_size() -> usize {
        page_size()
    }
}
