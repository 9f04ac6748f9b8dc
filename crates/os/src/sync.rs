//! Locks and atomics: those of the standard library. Builds with `--cfg caliburn_shuttle` have others, which
//! let a deterministic scheduler decide, at every access, which thread goes on.

#[cfg(not(caliburn_shuttle))]
mod chosen {
    pub use std::sync::atomic;
    pub use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    pub use std::thread::{sleep, yield_now};
    pub use std::thread_local;

    /// Whether a scheduler decides who goes on, and time means nothing.
    pub const SCHEDULED: bool = false;

    /// Lets the scheduler choose who goes on.
    #[inline(always)]
    pub fn choice() {}
}

#[cfg(caliburn_shuttle)]
mod chosen {
    pub use shuttle::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    pub use shuttle::thread::yield_now;
    pub use shuttle::thread_local;

    /// Whether a scheduler decides who goes on, and time means nothing.
    pub const SCHEDULED: bool = true;

    /// Lets others go on.
    pub fn sleep(_: std::time::Duration) {
        yield_now();
    }

    static CHOICE: shuttle::sync::atomic::AtomicBool = shuttle::sync::atomic::AtomicBool::new(false);

    /// Lets the scheduler choose who goes on. Unlike [`yield_now`], it says nothing of who should.
    pub fn choice() {
        CHOICE.load(std::sync::atomic::Ordering::SeqCst);
    }

    /// Atomics of the standard library, in place also in mapped memory, with a choice before each access.
    pub mod atomic {
        pub use std::sync::atomic::{Ordering, compiler_fence, fence};

        macro_rules! atomic {
            ($name:ident, $value:ty, $($method:ident)*) => {
                /// As in the standard library.
                #[derive(Debug, Default)]
                #[repr(transparent)]
                pub struct $name(std::sync::atomic::$name);

                #[allow(missing_docs, reason = "as in the standard library")]
                impl $name {
                    pub const fn new(value: $value) -> $name {
                        $name(std::sync::atomic::$name::new(value))
                    }

                    pub fn as_ptr(&self) -> *mut $value {
                        self.0.as_ptr()
                    }

                    pub fn load(&self, order: Ordering) -> $value {
                        super::choice();
                        self.0.load(order)
                    }

                    pub fn store(&self, value: $value, order: Ordering) {
                        super::choice();
                        self.0.store(value, order)
                    }

                    pub fn compare_exchange(
                        &self,
                        current: $value,
                        new: $value,
                        success: Ordering,
                        failure: Ordering,
                    ) -> Result<$value, $value> {
                        super::choice();
                        self.0.compare_exchange(current, new, success, failure)
                    }

                    pub fn compare_exchange_weak(
                        &self,
                        current: $value,
                        new: $value,
                        success: Ordering,
                        failure: Ordering,
                    ) -> Result<$value, $value> {
                        self.compare_exchange(current, new, success, failure)
                    }

                    $(pub fn $method(&self, value: $value, order: Ordering) -> $value {
                        super::choice();
                        self.0.$method(value, order)
                    })*
                }
            };
        }

        atomic!(AtomicBool, bool, swap fetch_or fetch_and);
        atomic!(AtomicU32, u32, swap fetch_add fetch_sub fetch_or fetch_and);
        atomic!(AtomicU8, u8, swap);
        atomic!(AtomicU64, u64, swap fetch_add fetch_sub fetch_max fetch_or fetch_and);
        atomic!(AtomicUsize, usize, swap fetch_add fetch_sub fetch_min);
    }
}

pub use chosen::*;

/// Does two things that wait for media, side by side; one after the other on a simulated machine, which has one
/// thread.
pub fn both<A: Send, B>(first: impl FnOnce() -> A + Send, second: impl FnOnce() -> B) -> (A, B) {
    if cfg!(caliburn_sim) {
        return (first(), second());
    }
    let first = std::sync::Mutex::new(Some(first));
    let act = || {
        let first = first.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        first.map(|first| first())
    };
    std::thread::scope(|scope| {
        let other = std::thread::Builder::new().spawn_scoped(scope, act);
        let second = second();
        let done = other
            .ok()
            .and_then(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        // There was no thread to be had.
        (done.unwrap_or_else(|| act().expect("nobody has done it")), second)
    })
}
