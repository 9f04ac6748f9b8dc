//! Mapping and unmapping regions: the part of the store that deals in addresses.

use crate::api::region::Region;
use crate::api::shared::Shared;
use crate::storage::error::{Failure, MapError, SegmentError};
use crate::storage::region::RegionState;
use crate::storage::segment::SegmentState;
use crate::storage::settings::Prefetch;
use crate::storage::{Regions, entry_of, gate, meeting};
use caliburn_log::SegmentId;
use caliburn_log::format::SEGMENT_DATA;
use caliburn_os::host;
use caliburn_os::map::Reservation;
use caliburn_os::mappings;
use caliburn_os::rescue::Stretch;
use caliburn_os::simulated::unless;
use caliburn_os::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Where the segment loader looks for addresses: far from where programs, libraries and stacks are put, and
/// such that huge pages fit.
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
    /// Maps part of a segment, and has read ahead what the options say.
    pub fn map(
        self: &Arc<Self>,
        segment: &Arc<SegmentState>,
        range: Range<u64>,
        at: Placement,
    ) -> Result<Region, MapError> {
        let region = self.register(segment, range, at)?;
        self.read_ahead(&region.state);
        Ok(region)
    }

    /// Maps part of a segment and registers the region.
    fn register(
        self: &Arc<Self>,
        segment: &Arc<SegmentState>,
        range: Range<u64>,
        at: Placement,
    ) -> Result<Region, MapError> {
        self.storage.own().map_err(SegmentError::Inherited)?;
        self.storage.failure()?;
        if self.storage.gate.load(Ordering::SeqCst) & gate::CLOSED != 0 {
            return Err(MapError::Closed);
        }
        let (name, page) = (|| segment.name.clone(), self.storage.page_size as u64);
        let Range { start, end } = range;
        let whole = end.is_multiple_of(page) || end == segment.len();
        if start >= end || !start.is_multiple_of(page) || !whole {
            return Err(MapError::Alignment { segment: name(), start, end, page: self.storage.page_size });
        }
        if end > segment.len() {
            return Err(MapError::OutOfBounds { segment: name(), start, end, len: segment.len() });
        }
        let _mapping = self.storage.lock_mapping();
        if self.storage.gate.load(Ordering::SeqCst) & gate::CLOSED != 0 {
            return Err(MapError::Closed);
        }
        self.hold(segment)?;
        let mut regions = self.storage.regions.write().expect("no panic under this lock");
        if let Some(other) = meeting(&regions, segment.id, start..end) {
            let (mapped_start, mapped_end) = (other.start, other.end());
            return Err(MapError::Mapped { segment: name(), start, end, mapped_start, mapped_end });
        }
        let len = (end - start) as usize;
        let (reservation, image) = match at {
            Placement::Anywhere => self.reserve_space(segment, len, end == segment.len(), (start, None))?,
            Placement::Free(address) => {
                self.reserve_space(segment, len, end == segment.len(), (start, Some(address)))?
            }
            Placement::Over(address) | Placement::Unread(address) => {
                let taken = self.take_space(&regions, segment, address, len)?;
                let refused = |source| MapError::Io { segment: name(), len: len as u64, source };
                let image = self.reserve_image(taken.len()).map_err(refused)?;
                (taken, image)
            }
        };
        let region = Arc::new(RegionState {
            segment: segment.clone(),
            id: segment.id,
            start,
            base: reservation.base().as_ptr().expose_provenance(),
            len: AtomicUsize::new(0),
            stretch: OnceLock::new(),
            reservation,
            image,
            passing: AtomicBool::new(false),
            pieces: AtomicUsize::new(0),
            scattered: AtomicUsize::new(usize::MAX),
            moved: AtomicBool::new(false),
            imaged: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            synced: AtomicBool::new(false),
            unread: matches!(at, Placement::Unread(_)),
        });
        self.map_part(&region, 0, len)?;
        region.reservation.leave(0);
        self.storage.table.put(&region);
        regions.insert((region.id, region.start), region.clone());
        Ok(Region { state: region, store: self.clone(), mapped: true })
    }

    /// Reads ahead what the options say of a region that was just mapped. What it grows by later is new.
    fn read_ahead(&self, region: &Arc<RegionState>) {
        let storage = &self.storage;
        let all = region.start..region.end();
        let parts = match storage.prefetch {
            _ if region.unread || !storage.background => return,
            Prefetch::Asked => return,
            Prefetch::Regions => {
                let regions = storage.regions.read().expect("no panic under this lock");
                let mapped = regions.values().map(|region| region.len() as u64).sum::<u64>();
                drop(regions);
                if mapped > storage.limits.available() {
                    return;
                }
                vec![all]
            }
            Prefetch::Recorded => storage.touched.before(region.id, all),
        };
        if !parts.is_empty() {
            storage.read_ahead(region, parts);
        }
    }

    /// Opens the files of a segment that is to be mapped; if need be those of others are closed, of which nothing is
    /// mapped. The mapping lock is held.
    fn hold(&self, segment: &SegmentState) -> Result<(), MapError> {
        let storage = &self.storage;
        if segment.is_held() {
            return Ok(());
        }
        if !storage.descriptors.has_room() {
            // So many at once that it seldom happens: all that was committed is brought to its place for it.
            self.rest_unused(storage.descriptors.most() / 8)?;
        }
        let held = match segment.hold() {
            Err(error) if host::are_descriptors_short(&error) => {
                self.rest_unused(1)?;
                segment.hold()
            }
            held => held,
        };
        let fail = |source| MapError::Io { segment: segment.name.clone(), len: segment.len(), source };
        held.map_err(fail)
    }

    /// Closes the files of the segments of which nothing is mapped, if they are so many. The mapping lock is held.
    fn rest_unused(&self, least: u64) -> Result<(), Failure> {
        let storage = &self.storage;
        let unused: Vec<Arc<SegmentState>> = {
            let regions = storage.regions.read().expect("no panic under this lock");
            let mapped: BTreeSet<SegmentId> = regions.keys().map(|(segment, _)| *segment).collect();
            let segments = storage.segments.read().expect("no panic under this lock");
            segments.iter().filter(|s| s.is_held() && !mapped.contains(&s.id)).cloned().collect()
        };
        match unused.len() as u64 >= least.max(1) {
            true => self.policy.put_to_rest(&unused),
            false => Ok(()),
        }
    }

    /// Takes memory of the caller's, who vouched for it.
    fn take_space(
        &self,
        regions: &Regions,
        segment: &SegmentState,
        address: usize,
        len: usize,
    ) -> Result<Reservation, MapError> {
        let taken = || MapError::AddressTaken { segment: segment.name.clone(), address, len };
        let len = len.next_multiple_of(self.storage.page_size);
        let end = address
            .checked_add(len)
            .filter(|_| address != 0 && address.is_multiple_of(self.storage.page_size));
        let end = end.ok_or_else(taken)?;
        if regions.values().any(|r| r.base < end && address < r.base + r.reservation.len()) {
            return Err(taken());
        }
        // SAFETY: a program that asks for memory in place of its own gives it up (`Segment::map_over`).
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
    ) -> Result<(Reservation, Option<Reservation>), MapError> {
        let refused = |source| MapError::Io { segment: segment.name.clone(), len: len as u64, source };
        mappings::take().map_err(refused)?;
        let spare = if open_ended {
            (self.storage.reserve_bytes as usize).next_multiple_of(self.storage.page_size)
        } else {
            0
        };
        // Address space may be limited (`ulimit -v`) or, at a given address, partly taken: growth room is
        // a wish, the length a must.
        let mut wishes =
            [len.saturating_add(spare).max(len), len.saturating_add(spare / 64), len].into_iter().peekable();
        loop {
            let wish = wishes.next().expect("the last wish returns").next_multiple_of(self.storage.page_size);
            let reserved = match address {
                Some(_) => Reservation::new(wish, address),
                None => Reservation::congruent(wish, segment.data + start)
                    .or_else(|_| Reservation::new(wish, None)),
            };
            match reserved.and_then(|reserved| Ok((reserved, self.reserve_image(wish)?))) {
                Ok(both) => return Ok(both),
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

    /// Space for the image of a region that has so much, where regions have one.
    fn reserve_image(&self, len: usize) -> io::Result<Option<Reservation>> {
        let wanted = self.storage.images.then(|| mappings::take().and_then(|()| Reservation::new(len, None)));
        wanted.transpose()
    }

    /// Maps bytes `[from, to)` of the region, to its end.
    fn map_part(&self, region: &Arc<RegionState>, from: usize, to: usize) -> Result<(), MapError> {
        let fail =
            |source| MapError::Io { segment: region.segment.name.clone(), len: (to - from) as u64, source };
        // Memory that is not read from the segment is there already.
        let mapped = match region.unread {
            true => region.map_unread(&self.storage, from..to),
            false => self.policy.map(region, from..to),
        };
        mapped.map_err(fail)?;
        self.tracked.each(|way| way.mapped(region, from..to))?;
        // Who declares bytes there finds them.
        self.storage.table.grow(region, to);
        region.len.store(to, Ordering::Release);
        Ok(())
    }

    pub fn grow_region(&self, region: &Arc<RegionState>, len: usize) -> Result<(), MapError> {
        self.storage.own().map_err(SegmentError::Inherited)?;
        let segment = &region.segment;
        let (start, end) = (region.start, region.start.saturating_add(len as u64));
        let name = || segment.name.clone();
        let whole = len.is_multiple_of(self.storage.page_size) || end == segment.len();
        if !whole || !region.len().is_multiple_of(self.storage.page_size) {
            return Err(MapError::Alignment { segment: name(), start, end, page: self.storage.page_size });
        }
        if end > segment.len() {
            return Err(MapError::OutOfBounds { segment: name(), start, end, len: segment.len() });
        }
        let _mapping = self.storage.lock_mapping();
        let regions = self.storage.regions.write().expect("no panic under this lock");
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
        let beyond = regions.range((region.id, region.end())..(region.id, end.max(region.end()))).next();
        if let Some((_, other)) = beyond {
            let (mapped_start, mapped_end) = (other.start, other.end());
            return Err(MapError::Mapped { segment: name(), start, end, mapped_start, mapped_end });
        }
        self.map_part(region, now, len)
    }

    /// The segment loader: see [`crate::Segment::load`].
    pub fn load(self: &Arc<Self>, segment: &Arc<SegmentState>) -> Result<Region, MapError> {
        self.storage.own().map_err(SegmentError::Inherited)?;
        let remembered = {
            let mut catalog = self.storage.catalog.lock().expect("no panic under this lock");
            entry_of(&mut catalog, segment.id).address as usize
        };
        if remembered != 0 {
            return self.map(segment, 0..segment.len(), Placement::Free(remembered));
        }
        self.storage.writable().map_err(MapError::Segment)?;
        let region = self.map_somewhere(segment)?;
        let mut catalog = self.storage.catalog.lock().expect("no panic under this lock");
        self.storage.writable()?;
        let address = region.as_ptr().addr() as u64;
        self.storage
            .change_catalog(&mut catalog, |catalog| entry_of(catalog, segment.id).address = address)?;
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

    /// Brings the segment up to date and takes the region off the books. The memory goes when the last
    /// reference to the state does; or it is `left` to the program: writable, whatever guarded it, and touched
    /// by nobody else any more.
    pub fn unmap(&self, region: &Arc<RegionState>, left: bool) -> Result<(), MapError> {
        self.storage.own().map_err(SegmentError::Inherited)?;
        // What recovery found undecided may be about to be brought to what is mapped.
        let _mapping = unless("unmapped-while-brought", true).then(|| self.storage.lock_mapping());
        self.check_undeclared(region)?;
        let closed = self.storage.gate.load(Ordering::SeqCst) & (gate::CLOSED | gate::READ_ONLY) != 0;
        if unless("unmapped-unwritten", !closed) {
            self.policy.unmapping(region)?;
        }
        self.forget_region(region, left);
        Ok(())
    }

    /// Lets a region of a failed store go, whose segment cannot be brought up to date: the log has what it lacks.
    pub fn forget_failed(&self, region: &Arc<RegionState>, left: bool) -> Result<(), MapError> {
        self.storage.own().map_err(SegmentError::Inherited)?;
        let _mapping = self.storage.lock_mapping();
        self.check_undeclared(region)?;
        self.forget_region(region, left);
        Ok(())
    }

    fn check_undeclared(&self, region: &RegionState) -> Result<(), MapError> {
        let touching = self.sets.slots.touching(region.id, region.start..region.end()).len();
        let found = self.policy.touches(region) || self.tracked.touches(region);
        let transactions = touching.max(usize::from(found));
        if transactions > 0 {
            return Err(MapError::Uncommitted { segment: region.segment.name.clone(), transactions });
        }
        Ok(())
    }

    fn forget_region(&self, region: &Arc<RegionState>, left: bool) {
        self.storage.note_touched(region);
        // Its file may be closed from now on.
        region.stretch.get().into_iter().flatten().for_each(Stretch::end);
        {
            let mut regions = self.storage.regions.write().expect("no panic under this lock");
            self.storage.table.remove(region);
            regions.remove(&(region.id, region.start));
        }
        self.storage.ahead.look_again();
        self.policy.unmapped(region, left);
        self.tracked.all(|way| way.unmapped(region, left));
        if left {
            region.reservation.leave(region.len());
        }
        self.storage.unlock_if_done();
    }
}
