//! Regions: parts of segments that are mapped.

use crate::api::shared::Shared;
use crate::storage::ahead::Prefetching;
use crate::storage::error::MapError;
use crate::storage::region::RegionState;
use caliburn_log::SegmentId;
use caliburn_os::span;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::FromBytes;

/// A mapped region: ordinary memory that shows the committed image of part of a segment.
///
/// Reads need nothing but the memory; changes go through a [`Transaction`](crate::Transaction). The safe
/// methods here and there may be used from any number of threads; readers and writers of the same bytes
/// see old or new bytes, in words of eight, unless the program keeps them apart (serializability is the
/// program's or a layer's). Dropping a region unmaps it, after its changes were written to the segment.
pub struct Region {
    pub(crate) state: Arc<RegionState>,
    pub(crate) store: Arc<Shared>,
    pub(crate) mapped: bool,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("segment", &self.state.segment.name)
            .field("range", &(self.state.start..self.state.end()))
            .field("address", &(self.state.base as *const u8))
            .finish()
    }
}

/// A region could not be unmapped; it comes back with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct UnmapError {
    /// The region, still mapped.
    pub region: Region,
    /// Why.
    #[source]
    pub cause: MapError,
}

impl Region {
    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.state.len()
    }

    /// Bytes that it can [grow](Region::grow) to: address space was kept for so many
    /// ([`Options::reserve_bytes`](crate::Options::reserve_bytes)).
    pub fn capacity(&self) -> usize {
        self.state.reservation.len()
    }

    /// Which bytes of the segment are mapped.
    pub fn range(&self) -> Range<u64> {
        self.state.start..self.state.end()
    }

    /// Number of the segment.
    pub fn segment_id(&self) -> SegmentId {
        self.state.segment.id
    }

    /// Name of the segment.
    pub fn segment(&self) -> &str {
        &self.state.segment.name
    }

    /// The first byte. Stays where it is while the region is mapped, also when it grows.
    ///
    /// Storing through the pointer is for `unsafe` code, which must (1) declare the range in a transaction first,
    /// or have one open where changes are found ([`Tracking`](crate::Tracking)), (2) not store after the
    /// transaction ended, and (3) not let stores race with other accesses to the same bytes, `set_range`, `commit`
    /// and `abort` of their transactions included.
    pub fn as_ptr(&self) -> *mut u8 {
        self.state.reservation.base().as_ptr()
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If the range leaves the region.
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        self.check(offset, target.len());
        // SAFETY: checked above; the mapping lives as long as `self`, and `target` is not in it.
        unsafe { span::copy(self.as_ptr().add(offset), target.as_mut_ptr(), target.len()) }
    }

    /// Copies a value out.
    ///
    /// # Panics
    /// If the range leaves the region.
    #[inline]
    pub fn load<T: FromBytes>(&self, offset: usize) -> T {
        self.check(offset, size_of::<T>());
        let mut value = std::mem::MaybeUninit::<T>::uninit();
        // SAFETY: checked above; any bytes make a `T: FromBytes`, and all of them are written.
        unsafe {
            span::copy(self.as_ptr().add(offset), value.as_mut_ptr().cast(), size_of::<T>());
            value.assume_init()
        }
    }

    #[inline(always)]
    fn check(&self, offset: usize, len: usize) {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len());
        assert!(fits, "{}", self.state.out_of_bounds(offset, len));
    }

    /// Says that bytes of the region will be touched soon: a thread reads them into memory, after what was asked for
    /// before. It ends when there is no memory for more, or others are short of it; how fast it may be is
    /// [`Tuning::prefetch_rate`](crate::Tuning). In a store without background threads the system is told, and reads
    /// what it likes.
    ///
    /// ```no_run
    /// # fn f(region: &caliburn_engine::Region) {
    /// let index = region.prefetch(0..64 << 20);
    /// // ... something else ...
    /// println!("{} bytes were read", index.wait().bytes);
    /// # }
    /// ```
    ///
    /// # Panics
    /// If the range leaves the region.
    pub fn prefetch(&self, range: Range<usize>) -> Prefetching {
        self.check(range.start, range.len());
        let start = self.state.start;
        let bytes = start + range.start as u64..start + range.end.max(range.start) as u64;
        self.store.storage.read_ahead(&self.state, vec![bytes])
    }

    /// Says that bytes of the region are read from the first to the last, once: as long as what is returned
    /// lives, the system reads ahead of where the program is, and takes the memory behind it first. That is worth
    /// most where a region is larger than memory, which else is read page by page. The hint is lost where pages
    /// are mapped anew meanwhile, as those are that a transaction steals ([`BeforeImages`](crate::BeforeImages)),
    /// and the first to end of two that overlap ends the other's.
    ///
    /// # Panics
    /// If the range leaves the region.
    pub fn sequential(&self, range: Range<usize>) -> Sequential<'_> {
        self.check(range.start, range.len());
        // What is advised differently from its neighbours stays a mapping of its own, of which a pool has many.
        let range = if self.store.storage.pool.is_some() { range.start..range.start } else { range };
        self.state.advise_sequential(range.clone(), true);
        Sequential { region: &self.state, range }
    }

    /// Extends the mapping over a segment that has grown, in place. `len` is the new length in bytes. A region
    /// that ends within a page, as that of an adopted file may, is unmapped and mapped again instead.
    ///
    /// # Errors
    /// When the segment is shorter, or the address space kept free is used up.
    pub fn grow(&self, len: usize) -> Result<(), MapError> {
        self.store.grow_region(&self.state, len)
    }

    /// Unmaps the region after its committed changes were written to the segment.
    ///
    /// # Errors
    /// While an uncommitted transaction has ranges in it, or when the store has failed: the region
    /// comes back in the error.
    pub fn unmap(mut self) -> Result<(), UnmapError> {
        match self.store.unmap(&self.state, false) {
            Ok(()) => {
                self.mapped = false;
                Ok(())
            }
            Err(cause) => Err(UnmapError { region: self, cause }),
        }
    }

    /// Unmaps the region as [`Region::unmap`] does, and leaves its memory to the caller: private to the process,
    /// writable, with the bytes that it showed; those never stored to follow the segment's file. What was
    /// mapped stays until the caller unmaps it or maps something over it.
    ///
    /// # Errors
    /// As [`Region::unmap`]; [`MapError::Shared`] with the undo policy, where the memory is the segment.
    pub fn leave(mut self) -> Result<*mut u8, UnmapError> {
        if !self.can_leave() {
            let cause = MapError::Shared { segment: self.segment().to_owned() };
            return Err(UnmapError { region: self, cause });
        }
        let done = self.unmap_or_forget(true);
        match done {
            Ok(()) => {
                self.mapped = false;
                Ok(self.as_ptr())
            }
            Err(cause) => Err(UnmapError { region: self, cause }),
        }
    }

    /// Unmaps it, or lets it go without its segment being up to date if the store has failed: the log has what
    /// it lacks.
    fn unmap_or_forget(&self, left: bool) -> Result<(), MapError> {
        self.store.unmap(&self.state, left).or_else(|error| match self.store.storage.failure() {
            Err(_) => self.store.forget_failed(&self.state, left),
            Ok(()) => Err(error),
        })
    }

    /// Whether its store is that of the process from which this one was forked: its memory can only be read here,
    /// or, with the redo policy, is this process's own copy.
    pub fn is_inherited(&self) -> bool {
        self.store.storage.own().is_err()
    }

    /// Whether [`Region::leave`] can be called: the memory is not the segment itself.
    pub fn can_leave(&self) -> bool {
        self.store.terms.private
    }
}

/// Bytes of a region that are read in order, once: see [`Region::sequential`].
#[derive(Debug)]
#[must_use = "it ends when this is dropped"]
pub struct Sequential<'r> {
    region: &'r RegionState,
    range: Range<usize>,
}

impl Drop for Sequential<'_> {
    fn drop(&mut self) {
        self.region.advise_sequential(self.range.clone(), false);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.mapped || self.store.storage.is_inherited() {
            return;
        }
        let done = self.unmap_or_forget(false);
        if let Err(error) = done {
            // Those who still refer to the memory keep it: the mapping stays until the process ends.
            tracing::error!(%error, "a region could not be unmapped and stays");
            std::mem::forget(self.state.clone());
        }
    }
}
