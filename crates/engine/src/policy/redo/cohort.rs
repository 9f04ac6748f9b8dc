//! Group commit's question: force at once for those who are here, or wait for the others?
//!
//! ```text
//!   together   | gather all | force for all | wake all, gather all | force ...      n per gathering and force
//!   apart      | force for half | force for the other half | force ...              n/2 per force
//!                  the other half wakes, commits and comes
//! ```
//!
//! Together is better while gathering takes less than forcing: few threads, slow disk. Neither is known
//! beforehand, so both are tried: phases of some rounds, in the manner that gave more commits per second
//! when it was last tried, now and then in the other.

use caliburn_os::sync::{SCHEDULED, yield_now};
use std::time::{Duration, Instant};

/// Rounds in one manner, so that it settles.
const PHASE: u32 = 32;
/// Every so many phases the other manner is tried.
const TRIAL: u32 = 64;
/// No force is so slow that it is worth more waiting.
const WAIT_MAX: Duration = Duration::from_micros(500);

/// The threads that come to have their commits forced, as the flush lock's holder knows them.
pub(crate) struct Cohort {
    /// Arrivals before the last horizon.
    served: u64,
    /// How many commit at present: those covered by the last force, and those who came during it.
    size: u64,
    force_time: Duration,
    apart: bool,
    phases: u32,
    rounds: u32,
    covered: u64,
    since: Option<Instant>,
    /// Commits per second when last together, and when last apart.
    rates: [f64; 2],
}

impl Default for Cohort {
    fn default() -> Cohort {
        Cohort {
            served: 0,
            size: 0,
            force_time: Duration::ZERO,
            apart: false,
            phases: 0,
            rounds: 0,
            covered: 0,
            since: None,
            // What was not tried yet is best.
            rates: [f64::INFINITY; 2],
        }
    }
}

impl Cohort {
    /// Before the horizon: waits for the others, for half a force at most, if that is the manner of this phase.
    pub fn gather(&self, arrivals: impl Fn() -> u64) {
        if self.size <= 1 || self.apart || SCHEDULED {
            return;
        }
        let (start, limit) = (Instant::now(), (self.force_time / 2).min(WAIT_MAX));
        while arrivals() - self.served < self.size && start.elapsed() < limit {
            yield_now();
        }
    }

    /// Just before the horizon, when `arrivals` had come.
    pub fn closed(&mut self, arrivals: u64) {
        self.covered += arrivals - self.served;
        self.size = arrivals - self.served;
        self.served = arrivals;
    }

    /// The force took `time`; meanwhile others came.
    pub fn forced(&mut self, time: Duration, arrivals: u64) {
        self.force_time = time;
        self.size += arrivals - self.served;
        if self.size <= 1 {
            // There is nothing to choose, and a pause would count for the phase.
            (self.since, self.rounds, self.covered) = (None, 0, 0);
            return;
        }
        self.rounds += 1;
        if self.rounds < PHASE {
            return;
        }
        let now = Instant::now();
        if let Some(since) = self.since {
            self.rates[usize::from(self.apart)] = self.covered as f64 / (now - since).as_secs_f64();
        }
        let better = self.rates[1] > self.rates[0];
        self.phases += 1;
        self.apart = better != self.phases.is_multiple_of(TRIAL);
        (self.since, self.rounds, self.covered) = (Some(now), 0, 0);
    }
}
