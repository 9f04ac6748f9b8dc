//! Stamps that order commits.
//!
//! A commit's place in the log is its stamp. If commit A returned before commit B began, in whatever
//! threads, A's stamp must be smaller. A shared counter gives that at the price of one cache line that
//! every committer fights over; the time-stamp counter gives it for about 10 ns and no sharing, where
//! the kernel itself trusts the counter as its clock source (it has then checked that no core's counter
//! is behind another's). Stamps mean nothing after a reboot. A counter that goes back below the last stamp
//! known to a caller (a machine that was suspended) is noticed and replaced; one that goes back less than
//! that, within the time since the last flush, is not.

use crate::simulated;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A source of stamps, shared by all threads of a store.
#[derive(Debug)]
pub struct Clock {
    hardware: AtomicBool,
    counter: AtomicU64,
}

/// Far beyond any stamp that hardware gave before it was found to have gone back: a month of ticks.
const LEAP: u64 = 1 << 52;

impl Clock {
    /// A clock whose stamps are all greater than `floor`, a stamp of the same boot.
    pub fn after(floor: u64) -> Clock {
        // Beyond that recovery takes no stamp for one; a counter of our own begins at 1.
        let hardware = hardware_usable() && (floor + 1..1 << 60).contains(&hardware_now());
        Clock { hardware: AtomicBool::new(hardware), counter: AtomicU64::new(floor + 1) }
    }

    /// Whether stamps come from the hardware and so advance by themselves, faster than commits can.
    pub fn advances(&self) -> bool {
        self.hardware.load(Ordering::Relaxed)
    }

    /// The next stamp. Greater than every stamp whose taking happened before this call; stamps taken at
    /// the same moment by two threads may be equal, and then belong to commits that no one could order.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        if self.advances() { hardware_now() } else { self.counter.fetch_add(1, Ordering::SeqCst) + 1 }
    }

    /// The next stamp, which must be greater than `floor`, a stamp taken earlier. If it is not, the
    /// machine's counter has gone back, as it may when a machine was suspended: from then on a counter of
    /// our own, far ahead of all earlier stamps, takes its place.
    #[inline(always)]
    pub fn now_after(&self, floor: u64) -> u64 {
        let stamp = self.now();
        if stamp > floor { stamp } else { self.leap(floor) }
    }

    #[cold]
    fn leap(&self, floor: u64) -> u64 {
        // First the counter, then the flag: the count begins beyond all earlier stamps.
        let lead = if self.advances() { LEAP } else { 1 };
        self.counter.fetch_max(floor + lead, Ordering::SeqCst);
        self.hardware.store(false, Ordering::SeqCst);
        self.now()
    }
}

/// Nanoseconds since 1970, for people. Never 0, which formats have for none, also where the clock is before that.
pub fn wall_ns() -> u64 {
    let real = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| (d.as_nanos() as u64).max(1));
    simulated::clock().unwrap_or_else(real)
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn hardware_now() -> u64 {
    use crate::sync::atomic::compiler_fence;
    if let Some(time) = simulated::clock() {
        return time;
    }
    // `rdtscp` waits until every earlier instruction has executed, so a lock taken before the call is
    // held when the counter is read; the compiler fences say the same to the compiler.
    compiler_fence(Ordering::SeqCst);
    let mut core = 0;
    // SAFETY: `hardware_usable` found the invariant counter before any call that trusts the result;
    // the instruction exists on every x86-64 machine that has one.
    let stamp = unsafe { std::arch::x86_64::__rdtscp(&mut core) };
    compiler_fence(Ordering::SeqCst);
    stamp
}

#[cfg(not(target_arch = "x86_64"))]
fn hardware_now() -> u64 {
    0
}

/// Whether the kernel keeps time by the processor's counter. `Clock::after` short-circuits on this.
fn hardware_usable() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    if simulated::clock().is_some() {
        return true;
    }
    cfg!(target_arch = "x86_64")
        && crate::descriptors::read_text(SOURCE).is_ok_and(|name| name.trim() == "tsc")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// The property that commit order rests on: stamps taken under a lock ascend in lock order,
    /// across threads.
    #[test]
    fn stamps_ascend_across_threads() {
        for clock in [Clock::after(0), Clock { hardware: AtomicBool::new(false), counter: AtomicU64::new(0) }]
        {
            let last = Mutex::new(0);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..100_000 {
                            let mut last = last.lock().unwrap();
                            let stamp = clock.now();
                            assert!(stamp > *last, "{stamp} after {last}");
                            *last = stamp;
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn a_counter_that_went_back_is_replaced() {
        let clock = Clock::after(0);
        let floor = clock.now() + LEAP / 2;
        let stamp = clock.now_after(floor);
        assert!(stamp > floor && !clock.advances());
        assert!(clock.now() > stamp);
    }

    #[test]
    fn a_floor_ahead_of_the_counter_is_respected() {
        assert!(Clock::after(u64::MAX / 2).now() > u64::MAX / 2);
    }
}
