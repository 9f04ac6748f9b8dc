//! `latency`: debit-credit at a fixed rate, however long each takes: a transaction's time counts from when it
//! was due, so that a pause is counted with everybody who had to wait for its end (no coordinated omission).

use crate::Arguments;
use crate::debit_credit::{Layout, SEED, Stream};
use crate::report::rounded;
use crate::target::{Caliburn, Failure, Redo, Target, Undo, options};
use crate::work::Workload;
use caliburn::Class;
use hdrhistogram::Histogram;
use serde_json::json;
use std::time::{Duration, Instant};

/// Transactions per second that are asked for, unless told.
const PROCESS: [u64; 2] = [100_000, 500_000];
const POWER: [u64; 2] = [1_000, 4_000];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let rates = |usual: [u64; 2]| arguments.rates.clone().unwrap_or_else(|| usual.to_vec());
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let layout = Layout::new(arguments.accounts);
    let options = options(arguments.log_mb, arguments.stage_mb);
    let path = |name: &str| dir.path().join(name);
    let undo = Undo::new(&path("undo"), &options, layout.bytes(), Class::Process)?;
    of_target(arguments, layout, undo, "process", &rates(PROCESS))?;
    let redo = Redo::new(&path("redo"), &options, layout.bytes(), Class::Process)?;
    of_target(arguments, layout, redo, "process", &rates(PROCESS))?;
    let power = Redo::new(&path("power"), &options, layout.bytes(), Class::Power)?;
    of_target(arguments, layout, power, "power", &rates(POWER))
}

fn of_target<const UNDO: bool>(
    arguments: &Arguments,
    layout: Layout,
    mut target: Caliburn<UNDO>,
    class: &str,
    rates: &[u64],
) -> Result<(), Failure> {
    let mut stream = Stream::new(layout, SEED);
    // Pages are touched for the first time, processors wake up.
    let warm = Instant::now();
    while warm.elapsed().as_secs_f64() < arguments.seconds.min(0.5) {
        stream.step(&mut target);
    }
    for &rate in rates {
        let mut times = Histogram::<u64>::new(3)?;
        let seconds = arguments.seconds * arguments.rounds as f64;
        let (start, count) = (Instant::now(), (rate as f64 * seconds) as u64);
        for i in 0..count {
            let due = start + Duration::from_nanos((u128::from(i) * 1_000_000_000 / u128::from(rate)) as u64);
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            stream.step(&mut target);
            times.record(due.elapsed().as_nanos() as u64)?;
        }
        print::<Caliburn<UNDO>>(arguments, class, rate, &times, start.elapsed());
    }
    stream.check(&target.reopened()?)
}

fn print<T: Target>(
    arguments: &Arguments,
    class: &str,
    rate: u64,
    times: &Histogram<u64>,
    elapsed: Duration,
) {
    // Of what fewer than ten transactions exceed nothing can be said.
    let known = |share: f64| times.len() as f64 * (1.0 - share) >= 10.0;
    let at = |share| known(share).then(|| times.value_at_quantile(share));
    let shown = |share| at(share).map_or("-".to_owned(), |ns| ns.to_string());
    // Nobody can keep up with a rate beyond his own.
    let kept = times.len() as f64 / elapsed.as_secs_f64() > rate as f64 * 0.995;
    if arguments.json {
        println!(
            "{}",
            json!({"workload": "latency", "system": T::NAME, "policy": T::POLICY, "class": class, "threads": 1,
                "params": {"rate": rate, "kept_up": kept}, "ns_per_tx": rounded(times.mean(), 1), "p50_ns": at(0.5),
                "p99_ns": at(0.99), "p999_ns": at(0.999), "p9999_ns": at(0.9999), "max_ns": times.max()})
        );
    } else {
        println!(
            "latency       {:9} {:4} {class:8} {rate:>8} tx/s{}  p50 {:>9} ns  p99 {:>9} ns  p99.9 {:>9} ns  p99.99 {:>9} ns  worst {:>10} ns",
            T::NAME,
            T::POLICY,
            if kept { "" } else { ", not kept up with" },
            shown(0.5),
            shown(0.99),
            shown(0.999),
            shown(0.9999),
            times.max()
        );
    }
}
