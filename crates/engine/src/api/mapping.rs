//! Mapping and unmapping regions: the part of the store that deals in addresses.

use crate::api::shared::{Shared, entry_of, gate};
use crate::storage::error::{MapError, SegmentError};
use crate::storage::region::{Region, RegionState};
use crate::storage::segment::SegmentState;
use crate::tracking::guard::RegionGuard;
use caliburn_log::SegmentId;
use caliburn_log::format::SEGMENT_DATA;
use caliburn_os::host;
use caliburn_os::map::Reservation;
use caliburn_os::simulated::{self, planted};
use caliburn_os::span;
use caliburn_os::sync::MutexGuard;
use caliburn_os::sync::atomic::{AtomicUsize, Ordering};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Where the segment loader looks for addresses: far from where programs, libraries and stacks are put, and such that
/// huge pages fit.
const LOADER_BASE: usize = 0x1000_0000_0000 + SEGMENT_DATA as usize;
/// Distance between the loader's places.
const LOADER_STEP: usize = 64 << 30;
/// Number of its places.
const LOADER_PLACES: usize = 1024;

/// Where a region is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Placement {
    /// Wherever the system likes.
    Anywhere,
    /// At an address that is free.
    Free(usize),
    /// In place of memory that the program has there.
    Over(usize),
    /// In memory that the program has there, which keeps its content.
    Unread(usize),
}

impl Shared {
    pub fn lock_mapping(&self) -> MutexGuard<'_, ()> {
        self.mapping.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Maps part of a segment and registers the region.
    pub fn map(
        self: &Arc<Self>,
        segment: &Arc<SegmentState>,
        range: Range<u64>,
        at: Placement,
    ) -> Result<Region, MapError> {
        self.failure()?;
        if self.gate.load(Ordering::SeqCst) & gate::CLOSED != 0 {
            return Err(MapError::Closed);
        }
        let (name, page) = (|| segment.name.clone(), self.page_size as u64);
        let Range { start, end } = range;
        let whole = end.is_multiple_of(page) || end == segment.len();
        if start >= end || !start.is_multiple_of(page) || !whole {
            return Err(MapError::Alignment { segment: name(), start, end, page: self.page_size });
        }
        if end > segment.len() {
            return Err(MapError::OutOfBounds { segment: name(), start, end, len: segment.len() });
        }
        let _mapping = self.lock_mapping();
        if self.gate.load(Ordering::SeqCst) & gate::CLOSED != 0 {
            return Err(MapError::Closed);
        }
        let mut regions = self.regions.write().expect("no panic under this lock");
        if let Some(other) =
            regions.iter().find(|r| r.segment.id == segment.id && r.start < end && r.end() > start)
        {
            let (mapped_start, mapped_end) = (other.start, other.end());
            return Err(MapError::Mapped { segment: name(), start, end, mapped_start, mapped_end });
        }
        let len = (end - start) as usize;
        let reservation = match at {
            Placement::Anywhere => self.reserve_space(segment, len, end == segment.len(), (start, None))?,
            Placement::Free(address) => {
                self.reserve_space(segment, len, end == segment.len(), (start, Some(address)))?
            }
            Placement::Over(address) | Placement::Unread(address) => {
                self.take_space(&regions, segment, address, len)?
            }
        };
        let region = Arc::new(RegionState {
            segment: segment.clone(),
            id: segment.id,
            start,
            base: reservation.base().as_ptr().expose_provenance(),
            len: AtomicUsize::new(0),
            reservation,
            unread: matches!(at, Placement::Unread(_)),
            guard: self.guard.map(RegionGuard::new),
        });
        self.map_part(&region, 0, len)?;
        region.reservation.leave(0);
        self.table.put(&region);
        regions.push(region.clone());
        Ok(Region { state: region, store: self.clone(), mapped: true })
    }

    /// Takes memory of the caller's, who vouched for it.
    fn take_space(
        &self,
        regions: &[Arc<RegionState>],
        segment: &SegmentState,
        address: usize,
        len: usize,
    ) -> Result<Reservation, MapError> {
        let taken = || MapError::AddressTaken { segment: segment.name.clone(), address, len };
        let len = len.next_multiple_of(self.page_size);
        let end = address.checked_add(len).filter(|_| address != 0 && address.is_multiple_of(self.page_size));
        let end = end.ok_or_else(taken)?;
        if regions.iter().any(|r| r.base < end && address < r.base + r.reservation.len()) {
            return Err(taken());
        }
        // SAFETY: whoever asks for memory in place of its own gives it up (`Segment::map_over`).
        let reservation = unsafe { Reservation::of(address, len) };
        // Until it is mapped it stays the caller's.
        reservation.leave(len);
        Ok(reservation)
    }

    fn reserve_space(
        &self,
        segment: &SegmentState,
        len: usize,
        open_ended: bool,
        (start, address): (u64, Option<usize>),
    ) -> Result<Reservation, MapError> {
        let spare =
            if open_ended { (self.reserve_bytes as usize).next_multiple_of(self.page_size) } else { 0 };
        // Address space may be limited (`ulimit -v`) or, at a given address, partly taken: growth room is
        // a wish, the length a must.
        let mut wishes =
            [len.saturating_add(spare).max(len), len.saturating_add(spare / 64), len].into_iter().peekable();
        loop {
            let wish = wishes.next().expect("the last wish returns").next_multiple_of(self.page_size);
            let reserved = match address {
                Some(_) => Reservation::new(wish, address),
                None => Reservation::congruent(wish, segment.data + start)
                    .or_else(|_| Reservation::new(wish, None)),
            };
            match reserved {
                Ok(reservation) => return Ok(reservation),
                Err(_) if wishes.peek().is_some() => {}
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                    let address = address.unwrap_or(0);
                    return Err(MapError::AddressTaken { segment: segment.name.clone(), address, len });
                }
                Err(source) => {
                    return Err(MapError::Io { segment: segment.name.clone(), len: len as u64, source });
                }
            }
        }
    }

    /// Maps bytes `[from, to)` of the region and lays over them what the log has beyond the segment.
    fn map_part(&self, region: &RegionState, from: usize, to: usize) -> Result<(), MapError> {
        let write = self.live.is_some();
        let fail =
            |source| MapError::Io { segment: region.segment.name.clone(), len: (to - from) as u64, source };
        let offset = region.segment.data + region.start + from as u64;
        let (medium, map) = (&region.segment.medium, &region.reservation);
        let unapplied = self.unapplied.read().expect("no panic under this lock");
        let unapplied = unapplied.as_ref().filter(|p| !p.is_empty() && !planted("pending-not-laid-over"));
        let unapplied = unapplied.filter(|_| !region.unread);
        // SAFETY (both calls): this part of the reservation was never mapped, so nobody refers to it; segments never
        // shrink, and the store's lock keeps other programs of ours away from the file.
        if region.unread {
            // It is what it is, until the program declares and stores.
        } else if let Some(undo) = &self.undo {
            let sync = undo.memory().sync;
            // SAFETY: see above.
            unsafe { map.map_shared(from, to - from, medium.descriptor(), offset, sync) }.map_err(fail)?;
            let start = region.pointer(region.base + from);
            if medium.volatile() {
                // Of a file system on a device each fault would read two megabytes.
                // SAFETY: the part was just mapped and is whole pages.
                unsafe { caliburn_os::map::advise_huge(start, to - from) };
            }
            simulated::mapped(medium.descriptor(), start, to - from, offset);
        } else {
            let write = write || unapplied.is_some();
            // SAFETY: see above.
            unsafe { map.map_private(from, to - from, medium.descriptor(), offset, write) }.map_err(fail)?;
        }
        if to as u64 > self.limits.bytes() / 2 {
            // Reading ahead would push out pages that are in use; a device may read megabytes at a touch.
            let start = region.pointer(region.base + from);
            // SAFETY: the part was mapped above and is whole pages.
            unsafe { caliburn_os::map::advise_random(start, to - from) }.map_err(fail)?;
        }
        if let Some(unapplied) = unapplied {
            let (low, high) = (region.start + from as u64, region.start + to as u64);
            for range in unapplied.ranges().filter(|r| r.segment == region.id) {
                let start = range.offset.max(low);
                let end = (range.offset + range.bytes.len() as u64).min(high);
                if start < end {
                    let source = &range.bytes[(start - range.offset) as usize..(end - range.offset) as usize];
                    let target = region.pointer(region.base + (start - region.start) as usize);
                    // SAFETY: `[start, end)` lies in the part mapped above, which nobody else knows yet.
                    unsafe { span::copy(source.as_ptr(), target, source.len()) };
                }
            }
            if !write {
                let start = region.pointer(region.base + from);
                // SAFETY: the part was mapped above and is whole pages.
                unsafe { caliburn_os::map::protect_read_only(start, to - from) }.map_err(fail)?;
            }
        }
        if let Some(verifier) = &self.verifier {
            // Before anybody can declare bytes there.
            verifier.shadow(region, from, to);
        }
        // Who declares bytes there finds them.
        self.table.grow(region, to);
        match &region.guard {
            Some(guard) => guard.protect(region, from, to),
            None => {
                region.len.store(to, Ordering::Release);
                Ok(())
            }
        }
    }

    pub fn grow_region(&self, region: &RegionState, len: usize) -> Result<(), MapError> {
        let segment = &region.segment;
        let (start, end) = (region.start, region.start.saturating_add(len as u64));
        let name = || segment.name.clone();
        let whole = len.is_multiple_of(self.page_size) || end == segment.len();
        if !whole || !region.len().is_multiple_of(self.page_size) {
            return Err(MapError::Alignment { segment: name(), start, end, page: self.page_size });
        }
        if end > segment.len() {
            return Err(MapError::OutOfBounds { segment: name(), start, end, len: segment.len() });
        }
        let _mapping = self.lock_mapping();
        let regions = self.regions.write().expect("no panic under this lock");
        let now = region.len();
        if len <= now {
            return Ok(());
        }
        if len > region.reservation.len() {
            return Err(MapError::Reserved {
                segment: name(),
                reserved: region.reservation.len(),
                wanted: len as u64,
            });
        }
        if let Some(other) =
            regions.iter().find(|r| r.segment.id == segment.id && r.start >= region.end() && r.start < end)
        {
            let (mapped_start, mapped_end) = (other.start, other.end());
            return Err(MapError::Mapped { segment: name(), start, end, mapped_start, mapped_end });
        }
        self.map_part(region, now, len)
    }

    /// The segment loader: see [`crate::Segment::load`].
    pub fn load(self: &Arc<Self>, segment: &Arc<SegmentState>) -> Result<Region, MapError> {
        let remembered = {
            let mut catalog = self.catalog.lock().expect("no panic under this lock");
            entry_of(&mut catalog, segment.id).address as usize
        };
        if remembered != 0 {
            return self.map(segment, 0..segment.len(), Placement::Free(remembered));
        }
        self.writable().map_err(MapError::Segment)?;
        let region = self.map_somewhere(segment)?;
        let mut catalog = self.catalog.lock().expect("no panic under this lock");
        self.writable()?;
        let address = region.as_ptr().addr() as u64;
        self.change_catalog(&mut catalog, |catalog| entry_of(catalog, segment.id).address = address)?;
        Ok(region)
    }

    /// Maps at one of the loader's places, or where the system likes if its address space has none.
    fn map_somewhere(self: &Arc<Self>, segment: &Arc<SegmentState>) -> Result<Region, MapError> {
        let fail = |source| MapError::Io { segment: segment.name.clone(), len: segment.len(), source };
        let random =
            u32::from_le_bytes(host::random_id().map_err(fail)?[..4].try_into().expect("four bytes"));
        for attempt in 0..16 {
            let place = (random as usize + attempt * 61) % LOADER_PLACES;
            match self.map(segment, 0..segment.len(), Placement::Free(LOADER_BASE + place * LOADER_STEP)) {
                Err(MapError::AddressTaken { .. } | MapError::Io { .. }) => {}
                other => return other,
            }
        }
        self.map(segment, 0..segment.len(), Placement::Anywhere)
    }

    /// Writes the region's changes to the segment and takes the region off the books. The memory goes
    /// when the last reference to the state does.
    pub fn unmap(&self, region: &Arc<RegionState>) -> Result<(), MapError> {
        self.undeclared(region)?;
        let closed = self.gate.load(Ordering::SeqCst) & (gate::CLOSED | gate::READ_ONLY) != 0;
        if !closed && self.undo.is_none() && !planted("unmapped-unwritten") {
            self.write_region(region)?;
        }
        self.forget_region(region, closed);
        Ok(())
    }

    /// Lets a region of a failed store go, whose segment cannot be brought up to date: the log has what it lacks.
    pub fn forget_failed(&self, region: &Arc<RegionState>) -> Result<(), MapError> {
        self.undeclared(region)?;
        self.forget_region(region, true);
        Ok(())
    }

    fn undeclared(&self, region: &RegionState) -> Result<(), MapError> {
        let transactions = self.slots.touching(region.id, region.start..region.end()).len();
        if transactions > 0 {
            return Err(MapError::Uncommitted { segment: region.segment.name.clone(), transactions });
        }
        Ok(())
    }

    fn forget_region(&self, region: &Arc<RegionState>, closed: bool) {
        {
            let mut regions = self.regions.write().expect("no panic under this lock");
            self.table.remove(region);
            regions.retain(|r| !Arc::ptr_eq(r, region));
        }
        if let Some(verifier) = &self.verifier {
            verifier.forget(region);
        }
        if closed {
            self.unlock_if_done();
        } else {
            let mut pages = self.lock_pages();
            pages.dropped_all(region.segment.id, region.pages(self.page_size as u64));
        }
    }

    /// Leaves the memory of a region, which is off the books, to the program: writable, whatever guarded it, and
    /// touched by nobody else any more.
    pub fn detach(&self, region: &RegionState) {
        // Whoever truncates may have found the region before it was taken off.
        drop(self.lock_truncation());
        if let Some(guard) = &region.guard {
            guard.lift(region);
        }
        region.reservation.leave(region.len());
    }

    /// The region that maps a byte of a segment.
    pub fn region_of(&self, segment: SegmentId, offset: u64) -> Option<Arc<RegionState>> {
        let regions = self.regions.read().expect("no panic under this lock");
        regions.iter().find(|r| r.segment.id == segment && r.start <= offset && offset < r.end()).cloned()
    }

    /// The segment of a record, which must be one of the store's.
    pub fn segment_of(&self, id: SegmentId) -> Result<Arc<SegmentState>, SegmentError> {
        self.segment_state(id).ok_or_else(|| SegmentError::Unknown { name: format!("number {}", id.0) })
    }
}
