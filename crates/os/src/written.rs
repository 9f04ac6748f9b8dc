//! Pages that were stored to, as the kernel notes by itself: userfaultfd's asynchronous write protection, and
//! `PAGEMAP_SCAN` (Linux 6.7). No signal, no thread, no privilege; a first store to a page costs a fault that the
//! kernel answers itself, and a look finds all of them in one pass, and protects them again in the same step.
//!
//! What is found may not have changed: a page that was given back to the system, and read again, counts as stored
//! to. What has changed is found, but for stores of other processes through mappings of their own (a child's), and
//! of devices to memory that was pinned before. In a forked child this does nothing: it would act on its parent's
//! memory.

use crate::descriptors::{above, open_to_read};
use crate::lineage::generation;
use crate::page_size;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `linux/userfaultfd.h`, which older headers have without what came with 6.7.
mod uffd {
    pub const USER_MODE_ONLY: libc::c_int = 1;
    pub const API: u64 = 0xAA;
    pub const WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
    pub const WP_UNPOPULATED: u64 = 1 << 13;
    pub const WP_ASYNC: u64 = 1 << 15;
    pub const MODE_WP: u64 = 1 << 1;
    pub const WRITEPROTECT_WP: u64 = 1;

    #[repr(C)]
    pub struct Api {
        pub api: u64,
        pub features: u64,
        pub ioctls: u64,
    }

    #[repr(C)]
    pub struct Span {
        pub start: u64,
        pub len: u64,
    }

    #[repr(C)]
    pub struct Register {
        pub range: Span,
        pub mode: u64,
        pub ioctls: u64,
    }

    #[repr(C)]
    pub struct WriteProtect {
        pub range: Span,
        pub mode: u64,
    }

    const fn both<T>(number: u64) -> u64 {
        3 << 30 | (size_of::<T>() as u64) << 16 | 0xAA << 8 | number
    }

    pub const IOCTL_API: u64 = both::<Api>(0x3F);
    pub const IOCTL_REGISTER: u64 = both::<Register>(0x00);
    /// Reads only, as the kernel's header has it.
    pub const IOCTL_UNREGISTER: u64 = 2 << 30 | (size_of::<Span>() as u64) << 16 | 0xAA << 8 | 0x01;
    pub const IOCTL_WRITEPROTECT: u64 = both::<WriteProtect>(0x06);
}

/// `linux/fs.h`, likewise.
mod scan {
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    pub struct Region {
        pub start: u64,
        pub end: u64,
        pub categories: u64,
    }

    #[repr(C)]
    #[derive(Default)]
    pub struct Arguments {
        pub size: u64,
        pub flags: u64,
        pub start: u64,
        pub end: u64,
        pub walk_end: u64,
        pub vec: u64,
        pub vec_len: u64,
        pub max_pages: u64,
        pub category_inverted: u64,
        pub category_mask: u64,
        pub category_anyof_mask: u64,
        pub return_mask: u64,
    }

    /// What is found is protected again.
    pub const WP_MATCHING: u64 = 1;
    /// Fails where pages are not watched, instead of leaving them out.
    pub const CHECK_WPASYNC: u64 = 2;
    pub const WRITTEN: u64 = 1 << 1;
    pub const IOCTL: u64 = 3 << 30 | (size_of::<Arguments>() as u64) << 16 | (b'f' as u64) << 8 | 16;
}

/// Runs of pages that one look asks for.
const RUNS: usize = 512;

/// Watches memory of this process for stores.
#[derive(Debug)]
pub struct Written {
    faults: OwnedFd,
    pages: File,
    /// Whose memory it watches.
    generation: u32,
}

/// # Safety
/// As the ioctl's, with `argument` what it takes.
unsafe fn ioctl<T>(fd: &impl AsRawFd, request: u64, argument: &mut T) -> io::Result<usize> {
    // SAFETY: passed on from the caller; the argument lives as long as the call.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, std::ptr::from_mut(argument)) };
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

fn span(start: *const u8, len: usize) -> uffd::Span {
    uffd::Span { start: start.addr() as u64, len: len as u64 }
}

impl Written {
    /// One that watches nothing yet.
    ///
    /// # Errors
    /// Where the kernel can't (before 6.7), or does not let this process (a filter of system calls); says which.
    pub fn new() -> io::Result<Written> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | uffd::USER_MODE_ONLY;
        let faults = above(|| {
            // SAFETY: takes an integer.
            let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
            let fd = libc::c_int::try_from(fd).ok().filter(|fd| *fd >= 0);
            let fd = fd.ok_or_else(io::Error::last_os_error)?;
            // SAFETY: it was just made, and is nobody else's.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        });
        let faults = faults.map_err(|e| said("userfaultfd", &e))?;
        let features = uffd::WP_ASYNC | uffd::WP_UNPOPULATED | uffd::WP_HUGETLBFS_SHMEM;
        let mut api = uffd::Api { api: uffd::API, features, ioctls: 0 };
        // SAFETY: the structure is the one that the request takes.
        unsafe { ioctl(&faults, uffd::IOCTL_API, &mut api) }
            .map_err(|e| said("the kernel has no asynchronous write protection (Linux 6.7)", &e))?;
        let pages = open_to_read("/proc/self/pagemap").map_err(|e| said("/proc/self/pagemap", &e))?;
        let made = Written { faults, pages, generation: generation() };
        // A kernel may have the one and not the other.
        made.take(std::ptr::null(), 0, |_| {}).map_err(|e| said("PAGEMAP_SCAN", &e))?;
        Ok(made)
    }

    /// Refuses in a forked child.
    fn own(&self) -> io::Result<()> {
        let forked = || io::Error::other("a forked child has its parent's watch");
        if generation() == self.generation { Ok(()) } else { Err(forked()) }
    }

    /// Watches pages from now on: none of them counts as stored to.
    ///
    /// # Errors
    /// When they are not mapped, or their kind of memory can't be watched.
    ///
    /// # Safety
    /// The memory is mapped, and until [`Written::leave`] or an unmapping nobody else has userfaultfd act on it.
    pub unsafe fn watch(&self, start: *mut u8, len: usize) -> io::Result<()> {
        self.own()?;
        let mut register = uffd::Register { range: span(start, len), mode: uffd::MODE_WP, ioctls: 0 };
        // SAFETY: the structure is the one that the request takes; what stores to the memory goes on as before.
        unsafe { ioctl(&self.faults, uffd::IOCTL_REGISTER, &mut register)? };
        let mut protect = uffd::WriteProtect { range: span(start, len), mode: uffd::WRITEPROTECT_WP };
        // SAFETY: as above; the kernel lifts the protection of a page itself when that is stored to.
        unsafe { ioctl(&self.faults, uffd::IOCTL_WRITEPROTECT, &mut protect)? };
        Ok(())
    }

    /// Watches pages no more.
    ///
    /// # Errors
    /// When they are not mapped.
    ///
    /// # Safety
    /// They are watched by this: some kernels take others' pages from whoever watches them.
    pub unsafe fn leave(&self, start: *mut u8, len: usize) -> io::Result<()> {
        self.own()?;
        let mut range = span(start, len);
        // SAFETY: the structure is the one that the request takes; it lifts what `watch` has made.
        unsafe { ioctl(&self.faults, uffd::IOCTL_UNREGISTER, &mut range) }.map(drop)
    }

    /// Calls `found` with each run of watched pages that were stored to since they were watched, or taken last:
    /// their numbers from `start` on. A store that is made meanwhile is found now or the next time.
    ///
    /// # Errors
    /// When pages among them are not watched. All from there on, and perhaps some before, have been told as found by
    /// then: what was may not be known any more.
    pub fn take(&self, start: *const u8, len: usize, mut found: impl FnMut(Range<usize>)) -> io::Result<()> {
        self.own()?;
        let (base, page) = (start.addr() as u64, page_size() as u64);
        let end = base + len as u64;
        let mut runs = [scan::Region::default(); RUNS];
        let mut from = base;
        loop {
            let mut arguments = scan::Arguments {
                size: size_of::<scan::Arguments>() as u64,
                flags: scan::WP_MATCHING | scan::CHECK_WPASYNC,
                start: from,
                end,
                vec: runs.as_mut_ptr().addr() as u64,
                vec_len: RUNS as u64,
                category_mask: scan::WRITTEN,
                return_mask: scan::WRITTEN,
                ..scan::Arguments::default()
            };
            runs.as_mut_ptr().expose_provenance();
            // SAFETY: the structure is the one that the request takes, and the kernel writes so many runs at most.
            let count = unsafe { ioctl(&self.pages, scan::IOCTL, &mut arguments) };
            let count =
                count.inspect_err(|_| found(((from - base) / page) as usize..len.div_ceil(page as usize)))?;
            for run in &runs[..count] {
                found(((run.start - base) / page) as usize..((run.end - base) / page) as usize);
            }
            if arguments.walk_end >= end {
                return Ok(());
            }
            if arguments.walk_end <= from {
                // A part of a huge page is not taken.
                found(((from - base) / page) as usize..len.div_ceil(page as usize));
                return Err(io::Error::other(
                    "PAGEMAP_SCAN does not go on: the range ends within a huge page",
                ));
            }
            from = arguments.walk_end;
        }
    }
}

fn said(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Files;
    use crate::map::Reservation;
    use crate::medium::Media;
    use std::io::Read;

    const PAGES: usize = 2_000;

    struct World {
        written: Written,
        map: Reservation,
        _dir: tempfile::TempDir,
    }

    impl World {
        /// Nothing where the kernel can't.
        fn new(shared: bool) -> Option<World> {
            let written = match Written::new() {
                Ok(written) => written,
                Err(error) => {
                    println!("not run: {error}");
                    return None;
                }
            };
            let len = PAGES * page_size();
            let dir = tempfile::tempdir().unwrap();
            let medium = Files.create(&dir.path().join("f")).unwrap();
            medium.set_len(len as u64).unwrap();
            let map = Reservation::new(len, None).unwrap();
            // SAFETY: the map is fresh, and used by this thread alone.
            unsafe {
                match shared {
                    true => map.map_shared(0, len, medium.descriptor(), 0, false).unwrap(),
                    false => map.map_private(0, len, medium.descriptor(), 0, true).unwrap(),
                }
                written.watch(map.base().as_ptr(), len).unwrap();
            }
            Some(World { written, map, _dir: dir })
        }

        fn at(&self, page: usize) -> *mut u8 {
            self.map.base().as_ptr().wrapping_add(page * page_size())
        }

        fn store(&self, page: usize) {
            // SAFETY: the page is mapped, and this thread's.
            unsafe { self.at(page).write_volatile(1) };
        }

        fn load(&self, page: usize) -> u8 {
            // SAFETY: as above.
            unsafe { self.at(page).read_volatile() }
        }

        fn taken(&self) -> Vec<usize> {
            let mut all = Vec::new();
            self.written.take(self.at(0), PAGES * page_size(), |run| all.extend(run)).unwrap();
            all
        }
    }

    #[test]
    fn pages_that_are_stored_to_are_found_once() {
        for shared in [false, true] {
            let Some(world) = World::new(shared) else { return };
            assert_eq!(world.taken(), [0; 0]);
            assert_eq!((world.load(3), world.load(1_999)), (0, 0));
            assert_eq!(world.taken(), [0; 0], "nobody has stored");
            for page in [0, 7, 8, 9, 1_999, 7] {
                world.store(page);
            }
            assert_eq!(world.taken(), [0, 7, 8, 9, 1_999]);
            assert_eq!(world.taken(), [0; 0]);
            world.store(8);
            assert_eq!(world.taken(), [8]);
            // More runs than one look has room for.
            let all: Vec<usize> = (0..PAGES).step_by(2).collect();
            all.iter().for_each(|page| world.store(*page));
            assert_eq!(world.taken(), all);
            (0..PAGES).for_each(|page| world.store(page));
            assert_eq!(world.taken().len(), PAGES);
        }
    }

    #[test]
    fn a_system_call_stores_too() {
        for shared in [false, true] {
            let Some(world) = World::new(shared) else { return };
            // SAFETY: the bytes are mapped, and this thread's.
            let target = unsafe { std::slice::from_raw_parts_mut(world.at(5), 2 * page_size()) };
            File::open("/dev/zero").unwrap().read_exact(target).unwrap();
            assert_eq!(world.taken(), [5, 6]);
        }
    }

    /// What was given back to the system counts as stored to when it is there again, whether it was or not; what is
    /// stored to is found.
    #[test]
    fn what_was_given_back_is_not_lost_sight_of() {
        for shared in [false, true] {
            let Some(world) = World::new(shared) else { return };
            (0..4).for_each(|page| world.store(page));
            world.taken();
            // SAFETY: nobody needs what is there.
            unsafe { libc::madvise(world.at(0).cast(), 4 * page_size(), libc::MADV_DONTNEED) };
            world.store(1);
            assert!(world.taken().contains(&1));
            world.store(1);
            assert_eq!(world.taken(), [1]);
        }
    }

    #[test]
    fn a_fork_hides_nothing() {
        for shared in [false, true] {
            let Some(world) = World::new(shared) else { return };
            world.store(2);
            world.taken();
            // SAFETY: the child does nothing but end.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above.
                unsafe { libc::_exit(0) };
            }
            [2, 3].iter().for_each(|page| world.store(*page));
            assert_eq!(world.taken(), [2, 3]);
            let mut status = 0;
            // SAFETY: the child is this process's.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            world.store(2);
            assert_eq!(world.taken(), [2]);
        }
    }

    #[test]
    fn what_is_not_watched_is_an_error() {
        let Some(world) = World::new(false) else { return };
        // SAFETY: it is what was watched.
        unsafe { world.written.leave(world.at(0), PAGES * page_size()).unwrap() };
        world.store(1);
        let mut told = 0;
        assert!(world.written.take(world.at(0), PAGES * page_size(), |run| told += run.len()).is_err());
        assert_eq!(told, PAGES, "nobody knows which of them were");
    }
}
