//! `limits`: how what is done many times at once grows with how often it is done. Each thing is done a number of
//! times, and four times as often: linear is four times as long.

use crate::Arguments;
use crate::target::{Failure, options};
use caliburn::{Class, Guard, Mode, Options, Policy, Store};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// What is done so many times, in a store with these options; seconds.
type Deed = fn(&Options, &Path, u64) -> Result<f64, Failure>;

/// What, with which policy, how often at most.
const DEEDS: [(&str, Policy, u64, Deed); 9] = [
    ("transactions open at once", Policy::Redo, 100_000, transactions),
    ("transactions open at once", Policy::Undo, 100_000, transactions),
    ("ranges in one transaction", Policy::Redo, 1_000_000, ranges),
    ("ranges in one transaction", Policy::Undo, 1_000_000, ranges),
    ("segments made", Policy::Redo, 10_000, segments),
    ("segments made", Policy::Undo, 10_000, segments),
    ("segments used in turn", Policy::Redo, 10_000, used),
    ("segments used in turn", Policy::Undo, 10_000, used),
    ("regions", Policy::Redo, 8_000, regions),
];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    // Small where only its working is to be seen.
    let share = if arguments.seconds < 0.5 { 20 } else { 1 };
    for (what, policy, most, deed) in DEEDS {
        let mut with = options(arguments.log_mb.max(64), arguments.stage_mb.max(16));
        with.policy(policy).guard(Guard::Off).reserve_bytes(0);
        let measure = |count| {
            let dir = tempfile::tempdir_in(&arguments.dir)?;
            deed(&with, &dir.path().join("s"), count)
        };
        let count = most / share;
        let (few, many) = (measure(count / 4)?, measure(count)?);
        let name = if policy == Policy::Undo { "undo" } else { "redo" };
        if arguments.json {
            let line = json!({"workload": "limits", "what": what, "policy": name, "count": count,
                "seconds": many, "times_a_quarter": many / few});
            println!("{line}");
        } else {
            println!(
                "limits  {what:26} {name} {count:>9} in {many:>7.3} s, {:>5.1} times a quarter",
                many / few
            );
        }
    }
    Ok(())
}

fn transactions(with: &Options, dir: &Path, count: u64) -> Result<f64, Failure> {
    let store = with.open(dir)?;
    let region = store.create_segment("data", count * 64)?.map_all()?;
    let start = Instant::now();
    let mut open = Vec::new();
    for number in 0..count {
        let mut tx = store.begin(Mode::Restore)?;
        tx.store(&region, number as usize * 64, &(number + 1))?;
        open.push(tx);
    }
    for tx in open {
        tx.commit(Class::Process)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    drop(region);
    store.close()?;
    let store = with.open(dir)?;
    let region = store.segment("data")?.map_all()?;
    let lost = (0..count).find(|number| region.load::<u64>(*number as usize * 64) != number + 1);
    lost.map_or(Ok(seconds), |number| Err(format!("transaction {number} was lost").into()))
}

fn ranges(with: &Options, dir: &Path, count: u64) -> Result<f64, Failure> {
    let store = with.open(dir)?;
    let region = store.create_segment("data", count * 16)?.map_all()?;
    let start = Instant::now();
    let mut tx = store.begin(Mode::Restore)?;
    for number in 0..count {
        tx.store(&region, number as usize * 16, &(number + 1))?;
    }
    tx.commit(Class::Process)?;
    let seconds = start.elapsed().as_secs_f64();
    let lost = (0..count).find(|number| region.load::<u64>(*number as usize * 16) != number + 1);
    lost.map_or(Ok(seconds), |number| Err(format!("range {number} was lost").into()))
}

fn made(with: &Options, dir: &Path, count: u64) -> Result<(), Failure> {
    let store = with.open(dir)?;
    for number in 0..count {
        store.create_segment(&format!("s{number}"), 1)?;
    }
    Ok(store.close()?)
}

fn segments(with: &Options, dir: &Path, count: u64) -> Result<f64, Failure> {
    let start = Instant::now();
    made(with, dir, count)?;
    let seconds = start.elapsed().as_secs_f64();
    let found = Store::open(dir)?.segments().len() as u64;
    if found == count { Ok(seconds) } else { Err(format!("{found} of {count} segments are there").into()) }
}

/// Opens the store, maps each segment, stores to it, and unmaps it; closes the store.
fn used(with: &Options, dir: &Path, count: u64) -> Result<f64, Failure> {
    made(with, dir, count)?;
    let start = Instant::now();
    let store = with.open(dir)?;
    for (number, segment) in store.segments().iter().enumerate() {
        let region = segment.map_all()?;
        let mut tx = store.begin(Mode::Restore)?;
        tx.store(&region, 8, &number)?;
        tx.commit(Class::Process)?;
    }
    store.close()?;
    let seconds = start.elapsed().as_secs_f64();
    let store = with.open(dir)?;
    for (number, segment) in store.segments().iter().enumerate() {
        if segment.map_all()?.load::<usize>(8) != number {
            return Err(format!("what was stored to segment {number} was lost").into());
        }
    }
    Ok(seconds)
}

/// Maps them, and stores to each and its neighbour.
fn regions(with: &Options, dir: &Path, count: u64) -> Result<f64, Failure> {
    let store = with.open(dir)?;
    let page = caliburn::Segment::page_size() as u64;
    let segment = store.create_segment("data", count * 2 * page)?;
    let start = Instant::now();
    let mut mapped = Vec::new();
    for number in 0..count {
        mapped.push(segment.map(number * 2 * page..(number * 2 + 1) * page)?);
    }
    for (number, two) in mapped.windows(2).enumerate() {
        let mut tx = store.begin(Mode::Restore)?;
        two.iter().try_for_each(|region| tx.store(region, 8, &number))?;
        tx.commit(Class::Process)?;
    }
    drop(mapped);
    Ok(start.elapsed().as_secs_f64())
}
