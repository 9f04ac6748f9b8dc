//! What development builds (`--cfg caliburn_sim`) add for the crash tests: stores to mapped media are
//! reported to a simulator, and bugs can be planted. In every other build these functions are empty.

#[cfg(not(caliburn_sim))]
mod seam {
    /// `len` bytes at `at`, in memory that survives the process, have just been stored.
    #[inline(always)]
    pub fn stored(_at: *const u8, _len: usize) {}

    /// The lines of these bytes are being written back to memory.
    #[inline(always)]
    pub fn flushed(_at: *const u8, _len: usize) {}

    /// What was being written back is in memory.
    #[inline(always)]
    pub fn fenced() {}

    /// A medium was mapped shared, from an offset.
    #[inline(always)]
    pub fn mapped(_descriptor: std::os::fd::BorrowedFd<'_>, _base: *const u8, _len: usize, _offset: u64) {}

    /// Memory that may have been mapped so is gone; other memory may come to its place.
    #[inline(always)]
    pub fn unmapped(_base: *const u8, _len: usize) {}

    /// Has the thread that calls what this returns reported to the same simulator as this one.
    #[inline(always)]
    pub fn inherited() -> impl FnOnce() + Send + 'static {
        || ()
    }

    /// The time that a simulator says it is, for everything that reads a clock.
    #[inline(always)]
    pub fn clock() -> Option<u64> {
        None
    }

    /// Whether the system could write what it had to of a file that lies in memory.
    #[inline(always)]
    pub fn intact(_file: std::os::fd::BorrowedFd<'_>) -> std::io::Result<()> {
        Ok(())
    }

    /// Whether the bug of that name is to be there.
    #[inline(always)]
    pub fn planted(_bug: &str) -> bool {
        false
    }
}

#[cfg(caliburn_sim)]
mod seam {
    use std::cell::RefCell;
    use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
    use std::sync::{Arc, OnceLock};

    /// What a simulator wants to know of memory.
    pub trait Watcher: Send + Sync {
        /// A medium was mapped shared, from an offset.
        fn mapped(&self, descriptor: RawFd, base: usize, len: usize, offset: u64);
        /// Memory that may have been mapped so is gone.
        fn unmapped(&self, base: usize, len: usize);
        /// Bytes were stored.
        fn stored(&self, at: usize, len: usize);
        /// Lines are being written back.
        fn flushed(&self, at: usize, len: usize);
        /// They are in memory.
        fn fenced(&self);
        /// The time: greater at each call.
        fn clock(&self) -> u64;
        /// Whether a file without a name holds what was stored there, and why not: told once.
        fn intact(&self, descriptor: RawFd) -> std::io::Result<()>;
    }

    thread_local! {
        static WATCHER: RefCell<Option<Arc<dyn Watcher>>> = const { RefCell::new(None) };
    }

    /// Has everything that this thread does reported to `watcher`.
    pub fn watch(watcher: Option<Arc<dyn Watcher>>) {
        WATCHER.set(watcher);
    }

    fn tell(what: impl FnOnce(&dyn Watcher)) {
        // A thread that ends has none any more.
        if let Ok(Some(watcher)) = WATCHER.try_with(|watcher| watcher.borrow().clone()) {
            what(&*watcher);
        }
    }

    /// Has the thread that calls what this returns reported to the same simulator as this one.
    pub fn inherited() -> impl FnOnce() + Send + 'static {
        let watcher = WATCHER.with_borrow(Clone::clone);
        || watch(watcher)
    }

    /// `len` bytes at `at`, in memory that survives the process, have just been stored.
    pub fn stored(at: *const u8, len: usize) {
        tell(|watcher| watcher.stored(at.addr(), len));
    }

    /// The lines of these bytes are being written back to memory.
    pub fn flushed(at: *const u8, len: usize) {
        if !planted("lines-not-flushed") {
            tell(|watcher| watcher.flushed(at.addr(), len));
        }
    }

    /// What was being written back is in memory.
    pub fn fenced() {
        tell(|watcher| watcher.fenced());
    }

    /// A medium was mapped shared, from an offset.
    pub fn mapped(descriptor: BorrowedFd<'_>, base: *const u8, len: usize, offset: u64) {
        tell(|watcher| watcher.mapped(descriptor.as_raw_fd(), base.addr(), len, offset));
    }

    /// Memory that may have been mapped so is gone; other memory may come to its place.
    pub fn unmapped(base: *const u8, len: usize) {
        tell(|watcher| watcher.unmapped(base.addr(), len));
    }

    /// The time that a simulator says it is, for everything that reads a clock.
    pub fn clock() -> Option<u64> {
        WATCHER.with_borrow(Clone::clone).map(|watcher| watcher.clock())
    }

    /// Whether the system could write what it had to of a file that lies in memory.
    pub fn intact(file: BorrowedFd<'_>) -> std::io::Result<()> {
        let watcher = WATCHER.with_borrow(Clone::clone);
        watcher.map_or(Ok(()), |watcher| watcher.intact(file.as_raw_fd()))
    }

    /// Whether the bug of that name is to be there: the one that the environment names.
    pub fn planted(bug: &str) -> bool {
        static PLANTED: OnceLock<Option<String>> = OnceLock::new();
        PLANTED.get_or_init(|| std::env::var("CALIBURN_PLANTED").ok()).as_deref() == Some(bug)
    }
}

pub use seam::*;

/// The condition; false where the bug is planted. So that a condition reads as it is without the bug.
#[inline(always)]
pub fn unless(bug: &str, condition: bool) -> bool {
    condition && !planted(bug)
}

/// The condition; true where the bug is planted.
#[inline(always)]
pub fn even_if(bug: &str, condition: bool) -> bool {
    condition || planted(bug)
}

/// What is right; where the bug is planted, what is wrong.
#[inline(always)]
pub fn instead<T>(bug: &str, right: T, wrong: T) -> T {
    if planted(bug) { wrong } else { right }
}
