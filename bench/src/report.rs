//! Medians, latencies, and the two forms of output.

use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What one system did in one round.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Nanoseconds per transaction.
    pub ns_per_tx: f64,
    /// Sampled latencies in nanoseconds, the timer's own 20 to 40 ns included.
    pub latencies: Vec<u64>,
}

/// What a thread did from a common start on.
#[derive(Debug)]
pub struct Life {
    /// Transactions.
    pub count: u64,
    /// From the start to its end.
    pub elapsed: Duration,
    /// As those of a [`Sample`].
    pub latencies: Vec<u64>,
}

/// Runs `transaction` for about `seconds`, timing the first of every `batch` by itself.
pub fn measure(seconds: f64, batch: u64, transaction: impl FnMut()) -> Sample {
    let Life { count, elapsed, latencies } = measure_from(Instant::now(), seconds, batch, transaction);
    Sample { ns_per_tx: elapsed.as_nanos() as f64 / count as f64, latencies }
}

/// Runs `transaction` so many times, timing one in 16 by itself.
pub fn measure_count(count: u64, mut transaction: impl FnMut()) -> Sample {
    let mut latencies = Vec::with_capacity(count.div_ceil(16) as usize);
    let start = Instant::now();
    for i in 0..count {
        if i % 16 == 0 {
            let before = Instant::now();
            transaction();
            latencies.push(before.elapsed().as_nanos() as u64);
        } else {
            transaction();
        }
    }
    Sample { ns_per_tx: start.elapsed().as_nanos() as f64 / count.max(1) as f64, latencies }
}

/// The same until `seconds` after a start, once at least.
pub fn measure_from(start: Instant, seconds: f64, batch: u64, mut transaction: impl FnMut()) -> Life {
    let budget = Duration::from_secs_f64(seconds);
    let mut latencies = Vec::with_capacity(1 << 16);
    let (mut before, mut count) = (Instant::now(), 0u64);
    while count == 0 || before - start < budget {
        transaction();
        latencies.push(before.elapsed().as_nanos() as u64);
        for _ in 1..batch {
            transaction();
        }
        count += batch;
        before = Instant::now();
    }
    Life { count, elapsed: before - start, latencies }
}

/// The middle one, or the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// A value with so many decimals.
pub fn rounded(value: f64, digits: i32) -> f64 {
    (value * 10f64.powi(digits)).round() / 10f64.powi(digits)
}

/// Of sorted latencies the one that such a share does not exceed.
pub fn percentile(latencies: &[u64], share: f64) -> u64 {
    let at = ((latencies.len() as f64 * share) as usize).min(latencies.len().saturating_sub(1));
    latencies.get(at).copied().unwrap_or(0)
}

/// One line of a report: a system's rounds.
#[derive(Debug, Clone)]
pub struct Line {
    /// What was measured.
    pub system: &'static str,
    /// Its recovery policy, or what comes near.
    pub policy: &'static str,
    /// What its commits survive.
    pub class: &'static str,
    /// Threads at work.
    pub threads: usize,
    /// What else tells it from other lines.
    pub params: Value,
    /// Its rounds.
    pub rounds: Vec<Sample>,
}

impl Line {
    /// A line without rounds.
    pub fn new(
        system: &'static str,
        policy: &'static str,
        class: &'static str,
        threads: usize,
        params: Value,
    ) -> Line {
        Line { system, policy, class, threads, params, rounds: Vec::new() }
    }

    /// The median of its rounds.
    pub fn ns_per_tx(&self) -> f64 {
        median(self.rounds.iter().map(|r| r.ns_per_tx).collect())
    }
}

/// Measures each line once a round. The first round warms up and is not kept: pages are touched for the first
/// time.
pub fn interleave(rounds: usize, lines: &mut [Line], mut measure: impl FnMut() -> Vec<Sample>) {
    for round in 0..=rounds {
        let samples = measure();
        assert_eq!(samples.len(), lines.len());
        for (line, sample) in lines.iter_mut().zip(samples).filter(|_| round > 0) {
            line.rounds.push(sample);
        }
    }
}

/// Prints the lines of one setting. `floor` is the index of the line that ratios refer to; the ratio is
/// the median of the rounds' own ratios.
pub fn print(workload: &str, json: bool, lines: &[Line], floor: usize) {
    for line in lines {
        let ratios = line.rounds.iter().zip(&lines[floor].rounds).map(|(a, b)| a.ns_per_tx / b.ns_per_tx);
        let ratio = median(ratios.collect());
        let mut latencies: Vec<u64> = line.rounds.iter().flat_map(|r| r.latencies.iter().copied()).collect();
        latencies.sort_unstable();
        let [p50, p99, p999] = [0.50, 0.99, 0.999].map(|share| percentile(&latencies, share));
        let ns = line.ns_per_tx();
        let extreme =
            |pick: fn(f64, f64) -> f64| line.rounds.iter().map(|r| r.ns_per_tx).reduce(pick).unwrap_or(0.0);
        if json {
            println!(
                "{}",
                json!({"workload": workload, "system": line.system, "policy": line.policy, "class": line.class,
                    "threads": line.threads, "params": line.params, "ns_per_tx": rounded(ns, 1), "min_ns": rounded(extreme(f64::min), 1),
                    "max_ns": rounded(extreme(f64::max), 1), "p50_ns": p50, "p99_ns": p99, "p999_ns": p999, "ratio_to_floor": rounded(ratio, 3)})
            );
        } else {
            println!(
                "{workload:13} {:21} {:4} {:8} {:3} thr  {:>12.1} ns/tx {:>12.0} tx/s  p50 {:>9} ns  p99 {:>9} ns  p99.9 {:>9} ns  {:>6.2}x floor  {}",
                line.system,
                line.policy,
                line.class,
                line.threads,
                ns,
                1e9 / ns,
                p50,
                p99,
                p999,
                ratio,
                line.params
            );
        }
    }
}

/// A small generator of random numbers, the same for every system.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    #[inline]
    /// The next number.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    #[inline]
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (((self.bits() >> 32) * n as u64) >> 32) as usize
    }
}
