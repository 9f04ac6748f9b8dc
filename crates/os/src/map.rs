//! Address space: reserve generously, map pieces of media into the reservation, give pages back.

use crate::lineage;
use crate::page_size;
use crate::simulated::{self, planted, unless};
pub use rustix::mm::Advice;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Bytes of a huge page, or a multiple where they are smaller.
const HUGE: usize = 2 << 20;

/// A stretch of address space that belongs to nobody else. Unmapped, with all that was mapped into it,
/// when dropped.
#[derive(Debug)]
pub struct Reservation {
    base: NonNull<u8>,
    len: usize,
    /// Bytes from the beginning that stay mapped.
    left: AtomicUsize,
    /// Which process has mapped files shared in it; 0 as long as none has.
    sharer: AtomicU32,
}

// SAFETY: a reservation is an address range; the mappings in it are shared memory whose accesses are
// governed by those who hand out pointers to it.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `len` bytes (a multiple of the page size) anywhere, or exactly at `address`. An address
    /// whose range is taken is `AddrInUse`; nothing is moved or replaced.
    pub fn new(len: usize, address: Option<usize>) -> io::Result<Reservation> {
        assert!(len > 0 && len.is_multiple_of(page_size()), "reservations are whole pages");
        let mut flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let hint = match address {
            Some(at) if at == 0 || !at.is_multiple_of(page_size()) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "the address is not page-aligned"));
            }
            Some(at) => {
                flags |= MapFlags::FIXED_NOREPLACE;
                ptr::with_exposed_provenance_mut(at)
            }
            None => ptr::null_mut(),
        };
        // SAFETY: a new anonymous mapping; with FIXED_NOREPLACE it replaces nothing.
        let base = match unsafe { mmap_anonymous(hint, len, ProtFlags::empty(), flags) } {
            Ok(base) => base,
            Err(rustix::io::Errno::EXIST) => return Err(io::ErrorKind::AddrInUse.into()),
            Err(errno) => return Err(errno.into()),
        };
        let base = NonNull::new(base.cast()).expect("mmap never returns page zero");
        let reservation = Reservation { base, len, left: AtomicUsize::new(0), sharer: AtomicU32::new(0) };
        // Kernels before 4.17 take the flag for a hint.
        if address.is_some_and(|at| at != reservation.base.as_ptr().addr()) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(reservation)
    }

    /// Reserves `len` bytes anywhere such that what is mapped from `offset` of a file at the beginning can be
    /// mapped in huge pages, if it is long enough for one.
    pub fn congruent(len: usize, offset: u64) -> io::Result<Reservation> {
        if len < HUGE {
            return Reservation::new(len, None);
        }
        Reservation::aligned(len, HUGE, offset)
    }

    /// Reserves `len` bytes anywhere such that an offset of a file and its place in memory, if the beginning is
    /// mapped from `offset`, are multiples of `grain` (a power of two, a page at least) together.
    pub fn aligned(len: usize, grain: usize, offset: u64) -> io::Result<Reservation> {
        assert!(grain.is_power_of_two() && grain >= page_size());
        let shift = (offset % grain as u64) as usize;
        let wide = std::mem::ManuallyDrop::new(Reservation::new(len + grain, None)?);
        let start = wide.base.as_ptr();
        let before = (shift + grain - start.addr() % grain) % grain;
        // SAFETY: `before` and what is behind `before + len` are parts of the reservation just made, whole
        // pages that nobody uses; the part between them is the one that is kept.
        unsafe {
            if before > 0 {
                munmap(start.cast(), before)?;
            }
            if before < grain {
                munmap(start.add(before + len).cast(), grain - before)?;
            }
            Ok(Reservation {
                base: NonNull::new_unchecked(start.add(before)),
                len,
                left: AtomicUsize::new(0),
                sharer: AtomicU32::new(0),
            })
        }
    }

    /// Takes over memory that the caller has.
    ///
    /// # Safety
    /// The range must be whole pages, mapped, and the caller's to give away; nothing may refer to it.
    pub unsafe fn of(address: usize, len: usize) -> Reservation {
        assert!(len > 0 && len.is_multiple_of(page_size()) && address.is_multiple_of(page_size()));
        let base = NonNull::new(ptr::with_exposed_provenance_mut(address)).expect("page zero is nobody's");
        Reservation { base, len, left: AtomicUsize::new(0), sharer: AtomicU32::new(0) }
    }

    /// Leaves what is mapped in the first `len` bytes to the caller when the reservation is dropped.
    pub fn leave(&self, len: usize) {
        self.left.store(len.next_multiple_of(page_size()), Ordering::Relaxed);
    }

    /// First byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes reserved.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Maps `len` bytes of a file from `offset` at `at` bytes into the reservation, copy-on-write:
    /// stores stay in this process; untouched pages show the file. `write` false maps read-only.
    ///
    /// # Safety
    /// No reference into that part of the reservation may exist; the file must not shrink while mapped.
    pub unsafe fn map_private(
        &self,
        at: usize,
        len: usize,
        fd: BorrowedFd<'_>,
        offset: u64,
        write: bool,
    ) -> io::Result<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.map(at, len, fd, offset, MapFlags::PRIVATE | MapFlags::NORESERVE, write) }
    }

    /// Maps a file shared: stores go to the page cache and survive this process; or, with `sync`, to
    /// persistent memory itself, whose place in the file is durable before the first store.
    ///
    /// # Errors
    /// `Unsupported` where `sync` cannot be had, or nothing be mapped shared.
    ///
    /// # Safety
    /// As for [`Reservation::map_private`].
    pub unsafe fn map_shared(
        &self,
        at: usize,
        len: usize,
        fd: BorrowedFd<'_>,
        offset: u64,
        sync: bool,
    ) -> io::Result<()> {
        let kind = if sync { MapFlags::SHARED_VALIDATE | MapFlags::SYNC } else { MapFlags::SHARED };
        // SAFETY: passed on from the caller.
        let mapped = unsafe { self.map(at, len, fd, offset, kind, true) };
        if mapped.is_ok() {
            self.sharer.store(lineage::generation(), Ordering::Relaxed);
            lineage::share(self.base.as_ptr().addr() + at, len);
        }
        mapped.map_err(|error| {
            if sync && error.raw_os_error() == Some(libc::EOPNOTSUPP) {
                let text = "the file system or its device refuses MAP_SYNC: mount it with -o dax on persistent memory";
                return io::Error::new(io::ErrorKind::Unsupported, text);
            }
            if error.raw_os_error() == Some(libc::ENODEV) {
                let text = "the file system maps no files shared, as some of FUSE and of networks do not: keep the file on another one, such as ext4, XFS, btrfs or tmpfs";
                return io::Error::new(io::ErrorKind::Unsupported, text);
            }
            error
        })
    }

    /// Maps a file shared, for reading: what others store there is seen.
    ///
    /// # Safety
    /// As for [`Reservation::map_private`].
    pub unsafe fn map_to_read(
        &self,
        at: usize,
        len: usize,
        fd: BorrowedFd<'_>,
        offset: u64,
    ) -> io::Result<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.map(at, len, fd, offset, MapFlags::SHARED, false) }
    }

    /// Maps `len` bytes of a file of the engine's own from `offset`, shared and for reading, in memory at once. A
    /// forked child has nothing there: what the file holds then is not what it held before.
    ///
    /// # Safety
    /// As for [`Reservation::map_private`].
    pub unsafe fn map_frame(&self, at: usize, len: usize, fd: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        // SAFETY: passed on from the caller; the advice changes no content.
        unsafe {
            self.map(at, len, fd, offset, MapFlags::SHARED | MapFlags::POPULATE, false)?;
            if planted("pool-frames-inherited") {
                return Ok(());
            }
            Ok(madvise(self.base.as_ptr().add(at).cast(), len, Advice::LinuxDontFork)?)
        }
    }

    /// Takes away what is mapped in a part of the reservation: whoever touches it faults.
    ///
    /// # Safety
    /// No reference into that part may exist.
    pub unsafe fn withdraw(&self, at: usize, len: usize) -> io::Result<()> {
        assert!(
            at.checked_add(len).is_some_and(|end| end <= self.len),
            "withdrawing outside its reservation"
        );
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        self.unshare(at, len);
        // SAFETY: the target lies within this reservation, which is ours to replace; the caller vouches that nobody
        // refers to it.
        unsafe { mmap_anonymous(self.base.as_ptr().add(at).cast(), len, ProtFlags::empty(), flags) }?;
        Ok(())
    }

    /// What is mapped in a part is about to go.
    fn unshare(&self, at: usize, len: usize) {
        if self.sharer.load(Ordering::Relaxed) != 0 {
            lineage::unshare(self.base.as_ptr().addr() + at, len);
        }
    }

    unsafe fn map(
        &self,
        at: usize,
        len: usize,
        fd: BorrowedFd<'_>,
        offset: u64,
        kind: MapFlags,
        write: bool,
    ) -> io::Result<()> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "mapping outside its reservation");
        let protection = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let careful = unless("sync-refused-in-place", true);
        if careful && kind.contains(MapFlags::SYNC) {
            // Elsewhere first: when a file system refuses, the kernel has already let go of what was there, and
            // another thread's memory might come to lie in the middle of the reservation. SAFETY: a new mapping
            // where nothing is, which is gone again before anybody knows of it.
            unsafe {
                munmap(mmap(std::ptr::null_mut(), page_size(), protection, kind, fd, offset)?, page_size())?
            };
        }
        self.unshare(at, len);
        // SAFETY: the target lies within this reservation, which is ours to replace; the caller vouches
        // that nobody refers to it.
        let mapped = unsafe {
            mmap(self.base.as_ptr().add(at).cast(), len, protection, kind | MapFlags::FIXED, fd, offset)
        };
        if careful && mapped.is_err() {
            // If there is a hole now, it is filled at once; if there is none, this does nothing.
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
            // SAFETY: it replaces nothing.
            let _ =
                unsafe { mmap_anonymous(self.base.as_ptr().add(at).cast(), len, ProtFlags::empty(), flags) };
        }
        mapped?;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let (left, sharer) = (*self.left.get_mut(), *self.sharer.get_mut());
        self.unshare(0, self.len);
        // What is shared is the parent's. A child that was made without handlers has nothing there, or memory of its
        // own by now.
        if left < self.len && (sharer == 0 || sharer == lineage::generation()) {
            simulated::unmapped(self.base.as_ptr(), self.len);
            // SAFETY: the range is ours; owners of pointers into it keep the reservation alive.
            let unmapped = unsafe { munmap(self.base.as_ptr().add(left).cast(), self.len - left) };
            unmapped.expect("unmapping one's own reservation");
        }
    }
}

/// Zeroed memory for large, short-lived contents, on huge pages where the system has them, so that filling
/// it does not fault at every 4 KiB.
#[derive(Debug, Default)]
pub struct Buffer {
    memory: Option<Reservation>,
    len: usize,
}

impl Buffer {
    /// `len` bytes of zeros; memory is used only for what is touched.
    pub fn new(len: usize) -> io::Result<Buffer> {
        if len == 0 {
            return Ok(Buffer { memory: None, len });
        }
        let memory = Reservation::new(len.next_multiple_of(page_size()), None)?;
        let base = memory.base().as_ptr().cast();
        // SAFETY: the whole of the new reservation is ours, and nobody refers to it.
        unsafe {
            mprotect(base, memory.len(), MprotectFlags::READ | MprotectFlags::WRITE)?;
            // Without huge pages it works all the same.
            let _ = madvise(base, memory.len(), Advice::LinuxHugepage);
        }
        Ok(Buffer { memory: Some(memory), len })
    }

    /// `len` bytes of zeros in a file of its own, which must have as many: the system writes them there when it is
    /// short of memory.
    pub fn in_file(file: BorrowedFd<'_>, len: usize) -> io::Result<Buffer> {
        let memory = Reservation::new(len.next_multiple_of(page_size()), None)?;
        // SAFETY: the reservation is new, and nobody else knows the file.
        unsafe { memory.map_shared(0, memory.len(), file, 0, false) }?;
        Ok(Buffer { memory: Some(memory), len })
    }

    /// `len` bytes, in the memory of this one if there is enough; what they hold is unknown.
    pub fn resized(mut self, len: usize) -> io::Result<Buffer> {
        if self.memory.as_ref().is_none_or(|memory| memory.len() < len) {
            return Buffer::new(len);
        }
        self.len = len;
        Ok(self)
    }

    /// Lets the system take the memory when it is short. Until then [`Buffer::resized`] costs no page faults,
    /// of which each clears a page.
    pub fn idle(&self) {
        if let Some(memory) = &self.memory {
            // SAFETY: the memory is private and anonymous; what it holds may be lost, and is some bytes still.
            let _ = unsafe { madvise(memory.base().as_ptr().cast(), memory.len(), Advice::LinuxFree) };
        }
    }

    /// Forgets the bytes from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            // SAFETY: `len` bytes are mapped, readable, initialised to zero, and borrowed with `self`.
            Some(memory) => unsafe { std::slice::from_raw_parts(memory.base().as_ptr(), self.len) },
            None => &[],
        }
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &self.memory {
            // SAFETY: as above, and borrowed mutably with `self`.
            Some(memory) => unsafe { std::slice::from_raw_parts_mut(memory.base().as_ptr(), self.len) },
            None => &mut [],
        }
    }
}

/// Fills a buffer with what is there from an offset on.
pub type Read<'f> = &'f dyn Fn(&mut [u8], u64) -> io::Result<()>;

/// Part of a ring that a file holds, in one piece and for reading. It takes no memory but the file's own cache; a
/// copy where pages are no part of the ring.
#[derive(Debug)]
pub enum View {
    /// Mapped: where the part begins in it, and how long it is.
    Mapped(Reservation, usize, usize),
    /// Copied.
    Copied(Buffer),
}

impl Default for View {
    fn default() -> View {
        View::Copied(Buffer::default())
    }
}

impl View {
    /// Shows `len` bytes from `at` of a ring of `capacity` bytes, which begins at `base` of a file: mapped, or
    /// read where there is none to map.
    ///
    /// # Safety
    /// The file must have the whole ring, and as long as the view lives nothing may change in that part of it.
    pub unsafe fn of_ring(
        file: Option<BorrowedFd<'_>>,
        read: Read<'_>,
        base: u64,
        capacity: u64,
        (at, len): (u64, u64),
    ) -> io::Result<View> {
        assert!(at < capacity && len <= capacity, "a part of the ring");
        let page = page_size() as u64;
        let Some(file) =
            file.filter(|_| len > 0 && base.is_multiple_of(page) && capacity.is_multiple_of(page))
        else {
            return View::copied(read, base, capacity, (at, len));
        };
        let first = at / page * page;
        let start = (at - first) as usize;
        let total = (start as u64 + len).next_multiple_of(page);
        let map = Reservation::new(total as usize, None)?;
        let before = total.min(capacity - first);
        for (to, len, offset) in [(0, before, first), (before, total - before, 0)] {
            if len > 0 {
                // SAFETY: the reservation is new; the file is the caller's word.
                unsafe { map.map_private(to as usize, len as usize, file, base + offset, false) }?;
            }
        }
        Ok(View::Mapped(map, start, len as usize))
    }

    fn copied(read: Read<'_>, base: u64, capacity: u64, (at, len): (u64, u64)) -> io::Result<View> {
        let mut buffer = Buffer::new(len as usize)?;
        let mut done = 0;
        while done < len {
            let place = (at + done) % capacity;
            let part = (len - done).min(capacity - place) as usize;
            read(&mut buffer[done as usize..][..part], base + place)?;
            done += part as u64;
        }
        Ok(View::Copied(buffer))
    }
}

impl std::ops::Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            // SAFETY: `start + len` bytes are mapped and readable, and nobody changes them (`View::of_ring`).
            View::Mapped(map, start, len) => unsafe {
                std::slice::from_raw_parts(map.base().as_ptr().add(*start), *len)
            },
            View::Copied(buffer) => buffer,
        }
    }
}

/// Drops the private copies of whole pages: the next access shows the file again.
///
/// # Safety
/// The range must lie in a private file mapping, page-aligned, and hold nothing that differs from the
/// file and is still wanted.
pub unsafe fn discard(start: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: passed on from the caller.
    unsafe { madvise(start.cast(), len, Advice::LinuxDontNeed)? };
    Ok(())
}

/// In which order a file mapping is read: in any; in none, so that touching a page reads that page and no others; or
/// from the first page to the last, so that many are read at once and those behind may go.
///
/// # Safety
/// The range must be whole pages of a mapping that belongs to the caller; the advice must be one of these three.
pub unsafe fn advise(start: *mut u8, len: usize, advice: Advice) -> io::Result<()> {
    debug_assert!(matches!(advice, Advice::Normal | Advice::Random | Advice::Sequential));
    // SAFETY: passed on from the caller; the advice changes no content.
    unsafe { madvise(start.cast(), len, advice)? };
    Ok(())
}

/// Asks for huge pages, where the file system has them and waits to be asked: tmpfs mounted with `huge=advise`.
///
/// # Safety
/// As for [`advise`].
pub unsafe fn advise_huge(start: *mut u8, len: usize) {
    // Without them it works all the same.
    // SAFETY: passed on from the caller; the advice changes no content.
    let _ = unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) };
}

/// Forbids stores to a range; an attempt faults.
///
/// # Safety
/// The range must be whole pages of a mapping that belongs to the caller.
pub unsafe fn protect_read_only(start: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: passed on from the caller.
    unsafe { mprotect(start.cast(), len, MprotectFlags::READ)? };
    Ok(())
}

/// Forbids all accesses to a range; an attempt faults.
///
/// # Safety
/// As for [`protect_read_only`].
pub unsafe fn hide(start: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: passed on from the caller.
    unsafe { mprotect(start.cast(), len, MprotectFlags::empty())? };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Files;
    use crate::medium::Media;

    #[test]
    fn a_taken_address_is_refused_and_left_alone() {
        // Far from where the system puts what the other tests map meanwhile.
        let at = 0x2345_0000_0000;
        let first = Reservation::new(page_size() * 4, Some(at)).unwrap();
        assert_eq!(first.base().as_ptr().addr(), at);
        let error = Reservation::new(page_size(), Some(at + page_size())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert_eq!(Reservation::new(page_size(), Some(at)).unwrap().base().as_ptr().addr(), at);
    }

    #[test]
    fn what_a_file_system_refuses_leaves_the_reservation_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let medium = Files.create(&dir.path().join("f")).unwrap();
        let len = 16 * page_size();
        medium.set_len(len as u64).unwrap();
        let map = Reservation::new(len, None).unwrap();
        // SAFETY: the map is fresh, and used by this thread alone.
        let mapped = unsafe { map.map_shared(0, len, medium.descriptor(), 0, true) };
        if mapped.is_ok() {
            return println!("not run: the file system is on persistent memory");
        }
        // SAFETY: it changes nothing, and fails where nothing is mapped.
        let there = unsafe { libc::msync(map.base().as_ptr().cast(), len, libc::MS_ASYNC) };
        assert_eq!(there, 0, "there is a hole in it, which anybody may get");
    }

    #[test]
    fn a_reservation_for_huge_pages_is_congruent_to_the_file_and_not_longer() {
        for offset in [0, 65536, (7 << 20) + 4096] {
            let map = Reservation::congruent(5 << 20, offset).unwrap();
            assert_eq!(map.base().as_ptr().addr() % HUGE, offset as usize % HUGE);
            assert_eq!(map.len(), 5 << 20);
            // What was cut off is free.
            let behind = map.base().as_ptr().addr() + map.len();
            drop(Reservation::new(page_size(), Some(behind)).unwrap());
        }
        assert_eq!(Reservation::congruent(page_size(), 65536).unwrap().len(), page_size());
    }

    #[test]
    fn a_ring_is_seen_in_one_piece_from_anywhere() {
        let (dir, page) = (tempfile::tempdir().unwrap(), page_size() as u64);
        let (base, capacity) = (16 * page, 4 * page);
        let medium = Files.create(&dir.path().join("f")).unwrap();
        let ring: Vec<u8> = (0..capacity).map(|i| (i % 251) as u8).collect();
        medium.set_len(base + capacity).unwrap();
        medium.write_at(&ring, base).unwrap();
        let read = |buffer: &mut [u8], at| medium.read_at(buffer, at);
        for (at, len) in
            [(0, capacity), (8, capacity), (capacity - 8, 16), (page, page), (page - 8, 8), (24, 0)]
        {
            // SAFETY: the file has the ring, and nobody writes to it.
            let view = unsafe { View::of_ring(Some(medium.descriptor()), &read, base, capacity, (at, len)) }
                .unwrap();
            let expected: Vec<u8> = (at..at + len).map(|i| ring[(i % capacity) as usize]).collect();
            assert!(view[..] == expected, "{len} from {at}");
            let copy = View::copied(&read, base, capacity, (at, len)).unwrap();
            assert!(copy[..] == expected, "{len} from {at}");
        }
    }

    #[test]
    fn private_stores_never_reach_the_file_and_discard_shows_it_again() {
        let dir = tempfile::tempdir().unwrap();
        let medium = Files.create(&dir.path().join("f")).unwrap();
        medium.set_len(page_size() as u64).unwrap();
        medium.write_at(b"old", 0).unwrap();
        let map = Reservation::new(page_size(), None).unwrap();
        let p = map.base().as_ptr();
        // SAFETY: the map is fresh, private, one page, and used by this thread alone.
        unsafe {
            map.map_private(0, page_size(), medium.descriptor(), 0, true).unwrap();
            p.copy_from(b"new".as_ptr(), 3);
            let mut seen = [0; 3];
            medium.read_at(&mut seen, 0).unwrap();
            assert_eq!(&seen, b"old");
            discard(p, page_size()).unwrap();
            assert_eq!(std::slice::from_raw_parts(p, 3), b"old");
        }
    }
}
