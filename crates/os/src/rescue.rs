//! Shared file mappings whose file system runs out of room. A store to a punched hole needs room. So does a store
//! to each page that a copy-on-write file system (btrfs, ZFS, XFS with shared extents) has written back. The kernel
//! answers with SIGBUS.
//!
//! The handler detaches the memory from the file: it becomes private, shows what the file holds, and the store goes
//! on. What the file holds is what it would hold if the process had been killed at that store.
//!
//! ```text
//!   SIGBUS:   set the owner's bit
//!             protect its data       a thread that stores there waits (SIGSEGV)
//!             detach its logs        each is one mapping, so a log is detached as a whole
//!             detach its data        the threads that wait store to private memory
//!   [`Part::Page`]: set the bit, detach the page alone
//!   commit:   end it in the log, then look at [`any`]: the log may have been detached before
//! ```
//!
//! Invariant: nothing is stored to data that is the file's after a log is private: its old bytes would be missing.
//! Nothing is stored to a log that is the file's after data is private: a commit would end there that lacks it.

use crate::lineage::{self, Mark};
use crate::page_size;
use crate::simulated::{instead, planted, unless};
use rustix::mm::{
    MapFlags, MprotectFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, mremap_fixed,
};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
    fence,
};

/// What is detached with a page of a stretch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Part {
    /// Nothing else: what is private of the stretch besides must stay.
    Page = 1,
    /// All that its owner has, before the logs.
    Data = 2,
    /// All that its owner has, last.
    Log = 3,
}

/// Whether anything of this process was ever detached, before what this thread has stored.
#[inline(always)]
pub fn any() -> bool {
    // Where a load may come before an earlier store.
    if cfg!(not(target_arch = "x86_64")) {
        fence(Ordering::SeqCst);
    }
    compiler_fence(Ordering::SeqCst);
    ANY.load(Ordering::Relaxed)
}

static ANY: AtomicBool = AtomicBool::new(false);

/// Stretches in a process. If there were ever more, memory is not rescued, and SIGBUS ends the process.
const KNOWN: usize = 1024;
static FULL: AtomicBool = AtomicBool::new(false);

struct Known {
    base: AtomicUsize,
    len: AtomicUsize,
    /// How long it ever was.
    whole: AtomicUsize,
    /// Of its first byte in the file.
    offset: AtomicU64,
    file: AtomicI32,
    part: AtomicU8,
    detached: AtomicBool,
    /// The owner's word, and the bit in it.
    word: AtomicPtr<AtomicU32>,
    bit: AtomicU32,
    /// The process that has shared it.
    generation: AtomicU32,
}

static LIST: [Known; KNOWN] = [const {
    Known {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        whole: AtomicUsize::new(0),
        offset: AtomicU64::new(0),
        file: AtomicI32::new(-1),
        part: AtomicU8::new(0),
        detached: AtomicBool::new(false),
        word: AtomicPtr::new(ptr::null_mut()),
        bit: AtomicU32::new(0),
        generation: AtomicU32::new(0),
    }
}; KNOWN];

/// Pages that can be detached by themselves in a process.
const PAGES_MAX: usize = 1 << 16;
/// Those that were: each at the first free place from the one that its address gives.
static PAGES: [AtomicUsize; PAGES_MAX] = [const { AtomicUsize::new(NEVER) }; PAGES_MAX];
/// Values of a place without a page: a search ends at the first, and passes the second.
const NEVER: usize = 0;
const FREED: usize = 1;

/// Where a page is, or may be put.
fn place_of(page: usize) -> (bool, Option<&'static AtomicUsize>) {
    let mut free = None;
    for at in 0..PAGES_MAX {
        let place = &PAGES[(page / page_size() + at) % PAGES_MAX];
        match place.load(Ordering::Relaxed) {
            there if there == page => return (true, Some(place)),
            NEVER => return (false, free.or(Some(place))),
            FREED => free = free.or(Some(place)),
            _ => {}
        }
    }
    (false, free)
}

/// Nothing is being detached while it lives.
pub(crate) fn steady() -> impl Drop {
    Held::take()
}

/// How often something was detached.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The lock on the lists. A handler takes it: nothing that may fault is done under it.
struct Held;

/// The process that holds it: a child inherits no holder.
static HOLDER: AtomicU32 = AtomicU32::new(0);

impl Held {
    fn take() -> Held {
        let own = lineage::generation();
        loop {
            let holder = HOLDER.load(Ordering::Acquire);
            if holder != own
                && HOLDER.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Held;
            }
            // SAFETY: it has no preconditions, and is allowed in a handler.
            unsafe { libc::sched_yield() };
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HOLDER.store(0, Ordering::Release);
    }
}

/// While it lives, a store to that memory which its file has no room for detaches it.
#[derive(Debug)]
pub struct Stretch(Option<usize>);

/// What is said of memory that was detached.
pub const NO_ROOM: &str = "its file system had no room for a page that was stored to: the file has what was \
                           committed before; make room, and open the store again";

impl Stretch {
    /// Nothing yet of what will be mapped from `base` on; there it shows `file` from `offset` on. `bit` is set in
    /// the owner's mark before anything of it is detached. The process hears of it
    /// ([`hear_of_lost_memory`](crate::guard::hear_of_lost_memory)).
    ///
    /// # Safety
    /// What is [shared](Stretch::share) must be whole pages of the caller's own. They and the descriptor must stay
    /// as long as this lives, and so must the mark.
    pub unsafe fn new(
        base: usize,
        (file, offset): (BorrowedFd<'_>, u64),
        part: Part,
        (mark, bit): (&Mark, u32),
    ) -> Stretch {
        let _held = Held::take();
        let free = LIST.iter().position(|known| known.base.load(Ordering::Relaxed) == 0);
        if let Some(known) = free.map(|number| &LIST[number]) {
            known.len.store(0, Ordering::Relaxed);
            known.offset.store(offset, Ordering::Relaxed);
            known.file.store(file.as_raw_fd(), Ordering::Relaxed);
            known.part.store(part as u8, Ordering::Relaxed);
            known.detached.store(false, Ordering::Relaxed);
            known.generation.store(lineage::generation(), Ordering::Relaxed);
            known.word.store(ptr::from_ref(mark.word()).cast_mut(), Ordering::Relaxed);
            known.bit.store(bit, Ordering::Relaxed);
            known.base.store(base, Ordering::Release);
        } else {
            // All that an owner has is detached, or nothing.
            FULL.store(true, Ordering::Relaxed);
        }
        Stretch(free)
    }

    /// Calls `share`, which maps a part of it shared. The part ends at byte `end` of the stretch.
    ///
    /// # Errors
    /// What that returns; or something of the owner was detached before: nothing of it may be shared any more.
    pub fn share(&self, end: usize, share: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let Some(known) = self.0.map(|number| &LIST[number]) else { return share() };
        let _held = Held::take();
        // SAFETY: the word of a mark, which is never unmapped.
        let word = unsafe { &*known.word.load(Ordering::Relaxed) };
        let detached = word.load(Ordering::SeqCst) & known.bit.load(Ordering::Relaxed) != 0;
        if unless("shared-when-detached", detached) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, NO_ROOM));
        }
        share()?;
        known.len.fetch_max(end, Ordering::Relaxed);
        known.whole.fetch_max(end, Ordering::Relaxed);
        Ok(())
    }
}

impl Stretch {
    /// Nothing of it is detached from now on.
    pub fn end(&self) {
        let Some(known) = self.0.map(|number| &LIST[number]) else { return };
        let _held = Held::take();
        known.len.store(0, Ordering::Relaxed);
    }
}

impl Drop for Stretch {
    fn drop(&mut self) {
        let Some(known) = self.0.map(|number| &LIST[number]) else { return };
        let _held = Held::take();
        known.len.store(known.whole.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        if known.part.load(Ordering::Relaxed) == Part::Page as u8 {
            let inside = |page: usize| page > FREED && known.has(page);
            PAGES.iter().filter(|page| inside(page.load(Ordering::Relaxed))).for_each(|page| {
                page.store(FREED, Ordering::Relaxed);
            });
        }
        known.base.store(0, Ordering::Relaxed);
    }
}

impl Known {
    fn has(&self, address: usize) -> bool {
        let (base, len) = (self.base.load(Ordering::Acquire), self.len.load(Ordering::Relaxed));
        base != 0 && address >= base && address - base < len
    }

    /// Whether the file has the byte at an address: it was not cut off, and its medium can read it.
    fn can_read(&self, address: usize) -> bool {
        let offset =
            self.offset.load(Ordering::Relaxed) + (address - self.base.load(Ordering::Relaxed)) as u64;
        let mut byte = 0u8;
        // SAFETY: one byte, of our own; the descriptor is open as long as the stretch is listed.
        let read = unsafe {
            libc::pread(self.file.load(Ordering::Relaxed), (&raw mut byte).cast(), 1, offset as libc::off_t)
        };
        read == 1
    }

    /// Nobody stores to it.
    fn protect(&self) -> bool {
        let (base, len) = (self.base.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        // SAFETY: the caller of `new` vouches for the range. Threads that store there wait until it is private.
        let done = unsafe { mprotect(ptr::with_exposed_provenance_mut(base), len, MprotectFlags::READ) };
        done.is_ok()
    }

    fn detach_all(&self) -> bool {
        let (base, len) = (self.base.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        self.detached.store(true, Ordering::Relaxed);
        len == 0 || self.detach(base, len)
    }

    /// Maps `len` bytes from `at` privately.
    fn detach(&self, at: usize, len: usize) -> bool {
        let (start, file) = (self.base.load(Ordering::Relaxed), self.file.load(Ordering::Relaxed));
        let offset = self.offset.load(Ordering::Relaxed) + (at - start) as u64;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: whoever listed the stretch vouches for the range and the descriptor. It shows the same bytes as
        // before, which the file's page cache has.
        let mapped = unsafe {
            let file = BorrowedFd::borrow_raw(file);
            mmap(
                ptr::with_exposed_provenance_mut(at),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                file,
                offset,
            )
        };
        mapped.is_ok()
    }

    /// Puts memory with what the file has in the place of a page that is private, and that nobody could touch.
    fn replace(&self, page: usize) -> bool {
        let (start, file, len) =
            (self.base.load(Ordering::Relaxed), self.file.load(Ordering::Relaxed), page_size());
        let offset = self.offset.load(Ordering::Relaxed) + (page - start) as u64;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping of a page, which is filled, and moved to where whoever listed the stretch vouches
        // that it may lie.
        unsafe {
            let Ok(new) = mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)
            else {
                return false;
            };
            // What is behind the file's end is zeros.
            let read = libc::pread(file, new, len, offset as libc::off_t);
            let place = ptr::with_exposed_provenance_mut(page);
            let moved = || mremap_fixed(new, len, len, MremapFlags::MAYMOVE, place).is_ok();
            read > 0 && moved()
        }
    }
}

thread_local! {
    /// The page that this thread was last let go on with: private by then.
    static LET: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

/// In a handler: memory at an address could not be had from its file. Whether the access can be made now.
/// `hear_of_protection` has [`waited`] called.
pub(crate) fn detached(address: usize, hear_of_protection: fn() -> bool) -> bool {
    // SAFETY: the calling thread's own.
    let errno = unsafe { *libc::__errno_location() };
    let done = detach(address, hear_of_protection);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    done
}

fn detach(address: usize, hear_of_protection: fn() -> bool) -> bool {
    let _held = Held::take();
    let own = lineage::generation();
    let ours = |known: &&Known| known.generation.load(Ordering::Relaxed) == own;
    let Some(known) = LIST.iter().filter(ours).find(|known| known.has(address)) else { return false };
    if FULL.load(Ordering::Relaxed) || !known.can_read(address) {
        return false;
    }
    let word = known.word.load(Ordering::Relaxed);
    ANY.store(true, Ordering::SeqCst);
    // SAFETY: the word of a mark, which is never unmapped.
    unsafe { &*word }.fetch_or(known.bit.load(Ordering::Relaxed), Ordering::SeqCst);
    let page = address / page_size() * page_size();
    let let_now = (page, instead("let-for-ever", COUNT.load(Ordering::Relaxed), 0));
    let again = LET.replace(let_now) == let_now;
    let by_page = known.part.load(Ordering::Relaxed) == Part::Page as u8;
    let (was, place) = if by_page { place_of(page) } else { (false, None) };
    if known.detached.load(Ordering::Relaxed) || was {
        // Another thread was first; or this is such a hole that not even a private page can be had of it.
        return !again || known.replace(page);
    }
    if by_page {
        let Some(free) = place else { return false };
        free.store(page, Ordering::Relaxed);
        return known.detach(page, page_size());
    }
    let all = |part: Part, step: fn(&Known) -> bool| {
        let of_owner = LIST.iter().filter(|known| {
            known.base.load(Ordering::Acquire) != 0
                && known.word.load(Ordering::Relaxed) == word
                && known.part.load(Ordering::Relaxed) == part as u8
        });
        of_owner.filter(ours).all(step)
    };
    COUNT.fetch_add(1, Ordering::Relaxed);
    hear_of_protection()
        && (planted("data-not-protected") || all(Part::Data, Known::protect))
        && all(Part::Log, Known::detach_all)
        && {
            if planted("data-not-protected") {
                // The others meet it.
                (0..10_000).for_each(|_| std::thread::yield_now());
            }
            all(Part::Data, Known::detach_all)
        }
}

/// In a handler, for a store that a protection forbids: waits while data is being detached. Whether that was it.
pub(crate) fn waited(address: usize) -> bool {
    if !any() {
        return false;
    }
    let _held = Held::take();
    let own = lineage::generation();
    let ours = |known: &&Known| known.generation.load(Ordering::Relaxed) == own;
    let page = address / page_size() * page_size();
    let known = LIST.iter().filter(ours).find(|known| known.has(address));
    // Once: a page may be protected for other reasons.
    let let_now = (page, instead("let-for-ever", COUNT.load(Ordering::Relaxed), 0));
    known.is_some_and(|known| known.detached.load(Ordering::Relaxed)) && LET.replace(let_now) != let_now
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Reservation;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const PAGES: usize = 4;
    const BIT: u32 = 128;

    struct Shared {
        stretch: Stretch,
        map: Reservation,
        file: File,
    }

    /// A file of some pages, all of which hold a byte, mapped from the second on.
    fn shared(mark: &Mark, part: Part) -> Shared {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![1; (PAGES + 1) * page_size()], 0).unwrap();
        let (len, offset) = (PAGES * page_size(), page_size() as u64);
        let map = Reservation::new(len, None).unwrap();
        // SAFETY: the memory is new; memory and file live as long as the stretch.
        let stretch =
            unsafe { Stretch::new(map.base().as_ptr().addr(), (file.as_fd(), offset), part, (mark, BIT)) };
        // SAFETY: the file is as long.
        let share = || unsafe { map.map_shared(0, len, file.as_fd(), offset, false) };
        stretch.share(len, share).unwrap();
        Shared { stretch, map, file }
    }

    impl Shared {
        fn at(&self, page: usize) -> *mut u8 {
            self.map.base().as_ptr().wrapping_add(page * page_size())
        }

        fn load(&self, page: usize) -> u8 {
            // SAFETY: the page is mapped, for this thread alone.
            unsafe { self.at(page).read_volatile() }
        }

        /// Stores to a page; whether memory has it, and the file.
        fn stores(&self, page: usize, byte: u8) -> (bool, bool) {
            // SAFETY: as above.
            unsafe { self.at(page).write_volatile(byte) };
            let mut there = [0];
            self.file.read_exact_at(&mut there, ((page + 1) * page_size()) as u64).unwrap();
            (self.load(page) == byte, there[0] == byte)
        }
    }

    #[test]
    fn all_that_an_owner_has_is_detached_and_nothing_else() {
        let [mark, other] = [Mark::new().unwrap(), Mark::new().unwrap()];
        let ours = [Part::Data, Part::Log, Part::Data].map(|part| shared(&mark, part));
        let others = [Part::Data, Part::Page].map(|part| shared(&other, part));
        assert!(ours.iter().chain(&others).all(|one| one.stores(1, 2) == (true, true)));

        assert!(detached(ours[0].at(1).addr() + 5, || true));
        assert!(any() && mark.word().load(Ordering::SeqCst) & BIT != 0);
        assert_eq!(other.word().load(Ordering::SeqCst) & BIT, 0);
        for one in &ours {
            assert_eq!(one.load(1), 2);
            assert!((0..PAGES).all(|page| one.stores(page, 3) == (true, false)));
            assert!(one.stretch.share(PAGES * page_size(), || Ok(())).is_err());
        }
        assert!(others.iter().all(|one| one.stores(1, 4) == (true, true)));
    }

    #[test]
    fn a_page_is_detached_by_itself_and_once() {
        let mark = Mark::new().unwrap();
        let one = shared(&mark, Part::Page);
        assert!(detached(one.at(2).addr(), || true));
        assert_eq!([1, 2, 3].map(|page| one.stores(page, 7).1), [true, false, true]);
        // Another thread met it before.
        let late = one.at(2).addr();
        std::thread::scope(|scope| assert!(scope.spawn(|| detached(late, || true)).join().unwrap()));
        assert_eq!(one.load(2), 7);
        // This one meets it again: not even a private page can be had of such a hole.
        assert!(detached(late, || true) && one.stores(2, 8) == (true, false));
    }

    #[test]
    fn what_was_cut_off_is_lost() {
        let mark = Mark::new().unwrap();
        let one = shared(&mark, Part::Data);
        one.file.set_len(page_size() as u64).unwrap();
        assert!(!detached(one.at(0).addr(), || true));
        assert_eq!(mark.word().load(Ordering::SeqCst) & BIT, 0);
    }
}
