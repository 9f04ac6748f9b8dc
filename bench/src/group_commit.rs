//! `group-commit` (Vista, Figure 6): debit-credit commits in the `Power` class by several threads, each on
//! accounts of its own, and by one thread with many commits in flight.

use crate::Arguments;
use crate::floor::ForcedWrite;
use crate::report::{self, Line, Random, Sample};
use crate::target::{Failure, options};
use caliburn::{Class, Mode, Region, Store, Transaction};
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PART: usize = 1 << 20;
const IN_FLIGHT: usize = 256;

/// Four ranges of 24 bytes within a thread's own part; the first word of the part counts.
fn change<'t>(tx: &mut Transaction<'t>, region: &'t Region, part: usize, random: &mut Random) {
    let base = part * PART;
    let count: u64 = region.load(base);
    for (i, offset) in
        [0, 4096, 8192 + random.below(1000) * 128, 262_144 + random.below(2000) * 24].into_iter().enumerate()
    {
        let value = [count + 1, i as u64, count];
        tx.store(region, base + offset, &value).expect("within the part");
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let threads = arguments.threads.clone().unwrap_or_else(|| vec![1, 8, 32]);
    let most = threads.iter().copied().max().unwrap_or(1);
    let options = options(arguments.log_mb, arguments.stage_mb);
    let store = options.open(dir.path().join("store"))?;
    let region = store.segment_or_create("data", ((most + 1) * PART) as u64)?.map_all()?;
    let mut force = ForcedWrite::new(&dir.path().join("forced"), 200)?;
    let line = |system, policy, threads, params| Line::new(system, policy, "power", threads, params);
    let mut lines = vec![line("bare forced write", "none", 1, json!({}))];
    lines.extend(threads.iter().map(|n| line("caliburn", "redo", *n, json!({}))));
    lines.push(line("caliburn", "redo", 1, json!({"in_flight": IN_FLIGHT})));
    let mut expected = vec![0; most + 1];
    report::interleave(arguments.rounds, &mut lines, || {
        let mut samples =
            vec![report::measure(arguments.seconds, 1, || force.force().expect("the disk works"))];
        for &threads in &threads {
            samples.push(threaded(&store, &region, threads, arguments.seconds, &mut expected));
        }
        samples.push(in_flight(&store, &region, most, arguments.seconds, &mut expected));
        samples
    });
    // What the store holds, not what the work left in memory.
    drop(region);
    store.close()?;
    let store = options.open(dir.path().join("store"))?;
    let region = store.segment("data")?.map_all()?;
    let found: Vec<u64> = (0..=most).map(|part| region.load(part * PART)).collect();
    if found != expected {
        return Err(format!("counts {found:?}, expected {expected:?}").into());
    }
    report::print("group-commit", arguments.json, &lines, 0);
    Ok(())
}

fn threaded(store: &Store, region: &Region, threads: usize, seconds: f64, expected: &mut [u64]) -> Sample {
    let (stop, barrier) = (AtomicBool::new(false), Barrier::new(threads + 1));
    let total = AtomicU64::new(0);
    let mut latencies = Vec::new();
    let elapsed = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|part| {
                let (stop, barrier, total) = (&stop, &barrier, &total);
                scope.spawn(move || {
                    let mut random = Random(77 + part as u64);
                    let (mut count, mut latencies) = (0, Vec::new());
                    barrier.wait();
                    while !stop.load(Ordering::Relaxed) {
                        let start = Instant::now();
                        let mut tx = store.begin(Mode::Restore).expect("the store is sound");
                        change(&mut tx, region, part, &mut random);
                        tx.commit(Class::Power).expect("the store is sound");
                        latencies.push(start.elapsed().as_nanos() as u64);
                        count += 1;
                    }
                    total.fetch_add(count, Ordering::Relaxed);
                    (count, latencies)
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        for (worker, expected) in workers.into_iter().zip(expected) {
            let (count, mut some) = worker.join().expect("no thread panics");
            *expected += count;
            latencies.append(&mut some);
        }
        start.elapsed()
    });
    Sample { ns_per_tx: elapsed.as_nanos() as f64 / total.load(Ordering::Relaxed) as f64, latencies }
}

fn in_flight(store: &Store, region: &Region, part: usize, seconds: f64, expected: &mut [u64]) -> Sample {
    let mut random = Random(99);
    let mut flying = VecDeque::with_capacity(IN_FLIGHT);
    let mut latencies = Vec::new();
    let (start, mut count) = (Instant::now(), 0u64);
    while start.elapsed().as_secs_f64() < seconds {
        for _ in 0..64 {
            if flying.len() == IN_FLIGHT {
                let (began, ticket): (Instant, caliburn::Ticket) = flying.pop_front().expect("full");
                ticket.wait().expect("the store is sound");
                latencies.push(began.elapsed().as_nanos() as u64);
            }
            let mut tx = store.begin(Mode::Restore).expect("the store is sound");
            change(&mut tx, region, part, &mut random);
            flying.push_back((Instant::now(), tx.commit_async().expect("the store is sound")));
            count += 1;
        }
    }
    for (_, ticket) in flying {
        ticket.wait().expect("the store is sound");
    }
    expected[part] += count;
    Sample { ns_per_tx: start.elapsed().as_nanos() as f64 / count as f64, latencies }
}
