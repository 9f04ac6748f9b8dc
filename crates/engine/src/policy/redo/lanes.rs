//! Who commits to the stage, and in which order: each committer is in a lane while it writes a record, and
//! stamps it.
//!
//! **Stamps without a locked instruction.** Reading the time-stamp counter in order costs 28 ns and, like any
//! serialising instruction, keeps the processor from overlapping cache misses of successive commits. So
//! a lane can hold the *bias*: while it does, its stamps are its last one plus one. That is right as long
//! as (1) a biased stamp is never greater than the clock, which advances faster than commits, so a
//! later commit by the clock has a later stamp, and (2) a committer in another lane ends the bias before it
//! stamps, so that the former holder goes by the clock again.
//!
//! ```text
//!            takes it, barrier, waits for all lanes, stamps by the clock
//!     FREE ------------------------------------------------------------> lane number
//!       ^                                                                    |
//!       | flusher, after its horizon                another lane commits, or | the flusher wants a horizon
//!       +----------------------------- SHARED <------------------------------+
//! ```

use caliburn_os::clock::Clock;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::SCHEDULED;
use caliburn_os::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
use caliburn_os::{barrier, ordinal};
use std::cell::UnsafeCell;

/// Number of lanes.
const LANES: usize = 24;
/// Lanes that belong each to the thread with that ordinal; the others are shared by all other threads.
const OWNED: usize = 16;
/// Nobody has the bias.
const FREE: u32 = u32::MAX;
/// Nobody may have the bias: everybody stamps by the clock.
const SHARED: u32 = u32::MAX - 1;
/// Commits of a lane after which it asks for a bias that is free.
pub(super) const BIAS_AFTER: u32 = if SCHEDULED { 1 } else { 8 };

/// The lanes of a stage, and the clock that they stamp by.
#[derive(Debug)]
pub(super) struct Lanes {
    clock: Clock,
    bias: AtomicU32,
    /// No stamp may be smaller any more.
    last_horizon: AtomicU64,
    lanes: Box<[Lane; LANES]>,
    /// The flusher, when it looks at the lanes, runs a barrier on all processors.
    asymmetric: bool,
}

/// A committer's place. `turn` is odd while a thread is in it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Lane {
    turn: AtomicU64,
    work: UnsafeCell<LaneState>,
}

#[derive(Debug, Default)]
pub(super) struct LaneState {
    /// The chunk that the stage gave it, and how much of it is filled.
    pub chunk: Option<u32>,
    pub filled: usize,
    last: u64,
    unbiased: u32,
}

// SAFETY: `work` is only touched by the thread that made `turn` odd: the owner of the lane, or the one that won
// it (see `Lanes::enter`).
unsafe impl Sync for Lane {}

impl Lane {
    /// What it holds.
    ///
    /// # Safety
    /// Only for the thread that is in the lane, which must have no other reference to it.
    #[allow(clippy::mut_from_ref, reason = "that is the contract")]
    #[inline(always)]
    pub unsafe fn state(&self) -> &mut LaneState {
        // SAFETY: the caller's word.
        unsafe { &mut *self.work.get() }
    }

    /// Leaves it, when the record is published or given up.
    #[inline(always)]
    pub fn leave(&self) {
        self.turn.store(self.turn.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

impl Lanes {
    /// Lanes whose stamps exceed `floor`. Nobody stamps before [`Lanes::begin`].
    pub fn after(floor: u64) -> Lanes {
        barrier::prepare();
        Lanes {
            clock: Clock::after(floor),
            bias: AtomicU32::new(SHARED),
            last_horizon: AtomicU64::new(floor),
            lanes: Box::new(std::array::from_fn(|_| Lane::default())),
            asymmetric: barrier::is_asymmetric(),
        }
    }

    /// The first horizon.
    pub fn begin(&self) -> u64 {
        self.bias.store(self.bias_rest(), Ordering::SeqCst);
        let now = self.clock.now();
        self.last_horizon.store(now, Ordering::Relaxed);
        now
    }

    /// A stamp of now.
    pub fn now(&self) -> u64 {
        self.clock.now_after(self.last_horizon.load(Ordering::Relaxed))
    }

    /// What the bias is when nobody has it: never to be had on a clock that counts commits.
    fn bias_rest(&self) -> u32 {
        if self.clock.advances() { FREE } else { SHARED }
    }

    /// Enters the thread's own lane, or one of those for threads without.
    #[inline(always)]
    pub fn enter(&self) -> (&Lane, u32) {
        let Some(number) = ordinal::below(OWNED) else { return self.enter_shared() };
        let lane = &self.lanes[number];
        lane.turn.store(lane.turn.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.light();
        (lane, number as u32)
    }

    /// The committer's side of the barrier that the flusher's horizon runs on all processors.
    #[inline(always)]
    fn light(&self) {
        if self.asymmetric { compiler_fence(Ordering::SeqCst) } else { fence(Ordering::SeqCst) }
    }

    #[cold]
    fn enter_shared(&self) -> (&Lane, u32) {
        let number = ordinal::current().number();
        if number < OWNED {
            // It has one from now on.
            return self.enter();
        }
        for attempt in 0usize.. {
            let number = OWNED + number.wrapping_add(attempt) % (LANES - OWNED);
            let lane = &self.lanes[number];
            let turn = lane.turn.load(Ordering::Relaxed);
            let free = turn.is_multiple_of(2);
            if free && lane.turn.compare_exchange(turn, turn + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                fence(Ordering::SeqCst);
                return (lane, number as u32);
            }
            if attempt % (LANES - OWNED) == LANES - OWNED - 1 {
                caliburn_os::sync::yield_now();
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// The stamp of a commit by the thread in lane `number`.
    #[inline(always)]
    pub fn stamp(&self, number: u32, work: &mut LaneState) -> u64 {
        work.last = if self.bias.load(Ordering::Relaxed) == number {
            work.last + 1
        } else {
            self.stamp_by_clock(number, work)
        };
        work.last
    }

    #[cold]
    fn stamp_by_clock(&self, number: u32, work: &mut LaneState) -> u64 {
        work.unbiased += 1;
        let bias = self.bias.load(Ordering::SeqCst);
        if bias == FREE && self.clock.advances() {
            let wanted = work.unbiased >= BIAS_AFTER;
            if wanted && self.bias.compare_exchange(FREE, number, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            {
                work.unbiased = 0;
                // Committers that entered before the barrier and stamp by the clock are waited for; those
                // who enter later see the bias and end it.
                barrier::heavy();
                self.wait_lanes(Some(number));
            }
        } else if unless("bias-not-ended", bias != SHARED && bias != FREE) {
            // The holder's later commits see this, if they are later than this one in any order.
            self.bias.swap(SHARED, Ordering::SeqCst);
        }
        let stamp = self.clock.now_after(self.last_horizon.load(Ordering::Relaxed).max(work.last));
        if !self.clock.advances() {
            // The hardware has gone back and a counter took its place: nobody may count beside it.
            self.bias.swap(SHARED, Ordering::SeqCst);
        }
        stamp
    }

    /// Waits until every lane that is entered has been left once.
    fn wait_lanes(&self, except: Option<u32>) {
        for (number, lane) in self.lanes.iter().enumerate() {
            if except == Some(number as u32) {
                continue;
            }
            let turn = lane.turn.load(Ordering::SeqCst);
            let mut spins = 0u32;
            // Nobody waits for anything in a lane, but for lanes entered before the bias was taken.
            while turn % 2 == 1 && lane.turn.load(Ordering::SeqCst) == turn {
                spins += 1;
                if spins > 200 || SCHEDULED { caliburn_os::sync::yield_now() } else { std::hint::spin_loop() }
            }
        }
    }

    /// A stamp H such that every record stamped before H is published when this returns, and every later
    /// one is stamped after H. Only for the holder of the flush lock.
    pub fn horizon(&self) -> u64 {
        // From here on nobody stamps behind the clock, but for those in a lane; they are waited for.
        self.bias.swap(SHARED, Ordering::SeqCst);
        let horizon = self.clock.now_after(self.last_horizon.load(Ordering::Relaxed));
        self.last_horizon.store(horizon, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        barrier::heavy();
        if !planted("horizon-does-not-wait") {
            self.wait_lanes(None);
        }
        self.bias.store(self.bias_rest(), Ordering::SeqCst);
        horizon
    }
}
