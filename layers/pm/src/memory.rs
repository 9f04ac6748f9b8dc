//! The memory of a segment: extents of a medium, mapped one after the other. The only place here where raw memory is
//! met; everything is checked against its length.

use crate::error::{Error, Result, medium_error};
use caliburn_os::map::Reservation;
use caliburn_os::medium::{Flush, Medium, Survives};
use caliburn_os::{page_size, simulated, span, summed};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// How what was stored comes to last as long as the medium lets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Force {
    /// By the fence that every write ends with.
    Fence,
    /// The medium must be forced besides: the page cache is between.
    Sync,
}

/// A medium, and whether a force of it has failed: what it has is not known from then on, for all that is on it.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub medium: Arc<dyn Medium>,
    failed: Arc<OnceLock<Error>>,
}

impl Source {
    pub fn new(medium: Arc<dyn Medium>) -> Source {
        Source { medium, failed: Arc::default() }
    }

    /// The failure, if there was one.
    pub fn sound(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Forces the medium.
    pub fn force(&self) -> Result<()> {
        self.sound()?;
        let failed = |source| {
            let error = medium_error("force", self.medium.path(), source);
            // Of several the first one counts.
            self.failed.get_or_init(|| error).clone()
        };
        self.medium.sync().map_err(failed)
    }
}

/// Mapped extents.
#[derive(Debug)]
pub(crate) struct Memory {
    reservation: Reservation,
    source: Source,
    len: usize,
    flush: Flush,
    force: Force,
    write: bool,
}

/// How a medium is forced.
pub(crate) fn force_of(medium: &dyn Medium) -> Force {
    match medium.memory().survives {
        // A file system in memory has nothing that it could be forced to.
        Survives::Process if !medium.volatile() => Force::Sync,
        _ => Force::Fence,
    }
}

impl Memory {
    /// Maps extents, at an address if one is given.
    pub fn map(source: &Source, extents: &[Range<u64>], address: Option<u64>, write: bool) -> Result<Memory> {
        let medium = &*source.medium;
        let fail = |action, offset| {
            let path = medium.path().to_owned();
            move |source| Error::Medium { action, path, offset: Some(offset), source: Arc::new(source) }
        };
        let grain = medium.grain();
        // The base is shorter than some grains, and nothing else is behind it there.
        let bytes_of = |extent: &Range<u64>| ((extent.end - extent.start) as usize).next_multiple_of(grain);
        let len: usize = extents.iter().map(bytes_of).sum();
        let first = extents.first().map_or(0, |extent| extent.start);
        if let Some(address) = address.filter(|address| !address.is_multiple_of(grain as u64)) {
            let why = format!("{} is mapped at multiples of {grain}", medium.path().display());
            return Err(Error::invalid("the address", format!("{address:#x}"), why));
        }
        let reserved = match address {
            Some(address) => Reservation::new(len, Some(address as usize)),
            None if grain > page_size() => Reservation::aligned(len, grain, first),
            None => Reservation::congruent(len, first),
        };
        let reservation = reserved.map_err(fail("find address space for", first))?;
        let (memory, descriptor) = (medium.memory(), medium.descriptor());
        let mut at = 0;
        for extent in extents {
            let bytes = bytes_of(extent);
            // SAFETY: the reservation is new, and a medium never shrinks below what was promised.
            let mapped = unsafe {
                match write {
                    true => reservation.map_shared(at, bytes, descriptor, extent.start, memory.sync),
                    false => reservation.map_to_read(at, bytes, descriptor, extent.start),
                }
            };
            mapped.map_err(fail("map", extent.start))?;
            simulated::mapped(descriptor, reservation.base().as_ptr().wrapping_add(at), bytes, extent.start);
            at += bytes;
        }
        let force = force_of(medium);
        let (source, flush) = (source.clone(), memory.flush);
        Ok(Memory { reservation, source, len: at, flush, force, write })
    }

    /// Its first byte. What is stored there by others than this type is not written back by it.
    pub fn base(&self) -> *mut u8 {
        self.reservation.base().as_ptr()
    }

    pub fn force_kind(&self) -> Force {
        self.force
    }

    #[inline]
    fn part(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "memory of the segment");
        self.base().wrapping_add(at)
    }

    #[inline]
    fn part_to_write(&self, at: usize, len: usize) -> *mut u8 {
        assert!(self.write, "attached for writing");
        self.part(at, len)
    }

    /// Copies bytes out.
    pub fn read(&self, at: usize, buffer: &mut [u8]) {
        let source = self.part(at, buffer.len());
        // SAFETY: mapped as long as the reservation, within its length; others may store there.
        unsafe { span::copy(source, buffer.as_mut_ptr(), buffer.len()) };
    }

    /// Copies bytes in; the next fence of this thread makes them last.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let target = self.part_to_write(at, bytes.len());
        // SAFETY: mapped for writing as long as the reservation, within its length.
        unsafe { self.flush.copy(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Copies whole lines in, as [`Memory::write`] does, and sums them ([`summed::sum_of`]).
    #[inline]
    pub fn write_summed(&self, at: usize, bytes: &[u8]) -> u32 {
        let target = self.part_to_write(at, bytes.len());
        // SAFETY: mapped for writing as long as the reservation, within its length; aligned as `at` is, else it
        // panics.
        unsafe { summed::store(self.flush, bytes.as_ptr(), target, bytes.len()) }
    }

    /// Copies whole lines out, and sums them.
    #[inline]
    pub fn read_summed(&self, at: usize, buffer: &mut [u8]) -> u32 {
        let source = self.part(at, buffer.len());
        // SAFETY: mapped as long as the reservation, within its length; others may store there, and not to the
        // buffer.
        unsafe { summed::load(source, buffer.as_mut_ptr(), buffer.len()) }
    }

    /// A word.
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8));
        // SAFETY: mapped, aligned, within its length; others may store there.
        unsafe { self.part(at, 8).cast::<u64>().read_volatile() }
    }

    /// Has a line come to the processor.
    #[inline]
    pub fn soon(&self, at: usize) {
        span::soon(self.part(at, 8));
    }

    /// Stores a word, as [`Flush::word`] does.
    #[inline]
    pub fn word(&self, at: usize, value: u64) {
        assert!(at.is_multiple_of(8));
        let target = self.part_to_write(at, 8);
        // SAFETY: mapped for writing, aligned, within its length.
        unsafe { self.flush.word(target.cast(), value) };
    }

    /// Stores words of a line that is in the cache since it was read; the next fence makes them last.
    #[inline]
    pub fn words(&self, at: usize, values: [u64; 3]) {
        assert!(at.is_multiple_of(8));
        let target = self.part_to_write(at, 24).cast::<u64>();
        for (i, value) in values.into_iter().enumerate() {
            // SAFETY: mapped for writing, aligned, within its length; others may read there.
            unsafe { target.add(i).write_volatile(value) };
            simulated::stored(target.wrapping_add(i).cast(), 8);
        }
        self.seen(at, 24);
    }

    /// Writes bytes back that the program itself has stored; the next fence makes them last.
    pub fn stored(&self, at: usize, len: usize) {
        simulated::stored(self.part_to_write(at, len), len);
        self.seen(at, len);
    }

    /// Writes back what is seen there, whoever has stored it; the next fence makes it last.
    pub fn seen(&self, at: usize, len: usize) {
        let target = self.part_to_write(at, len);
        // SAFETY: mapped, within its length.
        unsafe { self.flush.lines(target, len) };
    }

    /// Makes what this thread has written last: as long as the medium, or until the system dies where it must be
    /// forced.
    #[inline]
    pub fn fence(&self) {
        self.flush.fence();
    }

    /// Makes what was written last as long as the medium does.
    pub fn force(&self) -> Result<()> {
        self.fence();
        if self.force == Force::Fence {
            return Ok(());
        }
        self.source.force()
    }

    /// The failure of a force, if there was one: of this memory or of another one of the medium.
    pub fn sound(&self) -> Result<()> {
        self.source.sound()
    }

    /// Fills a part with zeros, a piece at a time; `each` is told how many bytes were filled.
    pub fn zero(&self, part: Range<usize>, mut each: impl FnMut(u64)) {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        for at in part.clone().step_by(ZEROS.len()) {
            let len = ZEROS.len().min(part.end - at);
            self.write(at, &ZEROS[..len]);
            each(len as u64);
        }
    }
}
