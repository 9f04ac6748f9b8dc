//! What is measured off the hot path: how long forces take, and who waits for what, how often and how long.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Upper bounds of a histogram's classes, in microseconds; what takes longer is in one more.
pub(crate) const BOUNDS: [u64; 16] = [
    10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
];

/// How long something took.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDS.len() + 1],
    ns: AtomicU64,
}

impl Histogram {
    pub fn add(&self, time: Duration) {
        let us = time.as_micros() as u64;
        let class = BOUNDS.iter().position(|bound| us <= *bound).unwrap_or(BOUNDS.len());
        self.counts[class].fetch_add(1, Relaxed);
        self.ns.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// How many were in each class, and the sum of all in seconds.
    pub fn read(&self) -> (Vec<u64>, f64) {
        let counts = self.counts.iter().map(|count| count.load(Relaxed)).collect();
        (counts, self.ns.load(Relaxed) as f64 / 1e9)
    }

    /// Runs `act`, and adds how long that took.
    pub fn time<T>(&self, act: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = act();
        self.add(begun.elapsed());
        done
    }
}

/// Threads that wait for something.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    times: AtomicU64,
    ns: AtomicU64,
    now: AtomicU64,
}

impl Waits {
    /// Until it is dropped, the calling thread waits.
    pub fn begin(&self, what: &'static str) -> Waiting<'_> {
        self.times.fetch_add(1, Relaxed);
        self.now.fetch_add(1, Relaxed);
        Waiting { waits: self, what, begun: Instant::now() }
    }

    /// How often somebody waited, for how many seconds in all, and how many threads do now.
    pub fn read(&self) -> (u64, f64, u64) {
        (self.times.load(Relaxed), self.ns.load(Relaxed) as f64 / 1e9, self.now.load(Relaxed))
    }
}

/// A thread that waits.
pub(crate) struct Waiting<'w> {
    waits: &'w Waits,
    what: &'static str,
    begun: Instant,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        /// What is longer is told.
        const LONG: Duration = Duration::from_secs(1);
        let time = self.begun.elapsed();
        self.waits.now.fetch_sub(1, Relaxed);
        self.waits.ns.fetch_add(time.as_nanos() as u64, Relaxed);
        if time > LONG {
            tracing::warn!(what = self.what, seconds = time.as_secs_f64(), "a thread had to wait");
        }
    }
}

/// All that is measured of a store.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Forces of the log for commits.
    pub force: Histogram,
    /// Forces of segments by truncation.
    pub segment_force: Histogram,
    /// Commits that wait for a force.
    pub durable: Waits,
    /// Who wants room in the log.
    pub log_room: Waits,
    /// Who wants room in the stage.
    pub stage_room: Waits,
    /// Transactions that begin while private pages exceed the memory budget.
    pub memory: Waits,
    /// Commits in a class above `Process`.
    pub lasting: AtomicU64,
}
