//! The asymmetric barrier between a transaction that declares a range (often) and truncation that
//! reserves pages (seldom).
//!
//! Each side stores its own flag and then loads the other's; at least one must see the other. That
//! needs a store-load barrier on both sides, about 6 ns on the hot one. `membarrier(2)` lets the cold
//! side run a barrier on every thread of the process, so that the hot side needs none but the compiler's.

use crate::simulated;
use crate::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use std::sync::OnceLock;

const MEMBARRIER_CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

static ASYMMETRIC: AtomicBool = AtomicBool::new(false);

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers the process for the cheap barrier where the kernel has it. Call before the first pair.
pub fn prepare() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        ASYMMETRIC.store(membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED), Ordering::SeqCst);
    });
}

/// Whether the hot side needs no barrier but the compiler's.
pub fn is_asymmetric() -> bool {
    ASYMMETRIC.load(Ordering::Relaxed)
}

/// The hot side: between the store of one's own flag and the load of the other's.
#[inline(always)]
pub fn light() {
    if ASYMMETRIC.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The cold side: likewise, a few microseconds.
pub fn heavy() {
    fence(Ordering::SeqCst);
    if simulated::clock().is_some() {
        return;
    }
    if ASYMMETRIC.load(Ordering::Relaxed) {
        let done = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        assert!(done, "membarrier was registered and must not fail: {}", std::io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// Dekker's pattern: it must never happen that both sides miss each other.
    #[test]
    fn the_two_sides_never_miss_each_other() {
        prepare();
        for _ in 0..2_000 {
            let (hot, cold) = (AtomicU32::new(0), AtomicU32::new(0));
            let (hot_saw, cold_saw) = std::thread::scope(|scope| {
                let a = scope.spawn(|| {
                    hot.store(1, Ordering::Relaxed);
                    light();
                    cold.load(Ordering::Relaxed)
                });
                cold.store(1, Ordering::Relaxed);
                heavy();
                let cold_saw = hot.load(Ordering::Relaxed);
                (a.join().unwrap(), cold_saw)
            });
            assert!(hot_saw == 1 || cold_saw == 1);
        }
    }
}
