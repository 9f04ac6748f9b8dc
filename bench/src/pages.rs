//! `pages`: what it costs to find changes by page faults and by looking, and to keep what pages held on the
//! medium: a transaction that changes a word in each of many pages, in order, in runs of sixteen, or scattered.
//! The floors: the same stores to a file mapped shared, alone, and with a force of it.

use crate::Arguments;
use crate::floor::Mapped;
use crate::report::{median, rounded};
use crate::target::{Failure, options};
use caliburn::{Class, Guard, Mode, Options, Policy, Region, Store, Tracking};
use serde_json::json;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

const PAGE: usize = 4096;

/// The order in which pages are changed.
const ORDERS: [&str; 3] = ["in order", "runs of 16", "scattered"];

/// Systems: their policy, if they are Caliburn's, how changes are found, and whether they are forced.
const SYSTEMS: [(&str, Option<Policy>, Tracking, bool); 8] = [
    ("mmap", None, Tracking::Declared, false),
    ("caliburn", Some(Policy::Undo), Tracking::Declared, false),
    ("caliburn", Some(Policy::Undo), Tracking::Fault, false),
    ("caliburn", Some(Policy::Redo), Tracking::Declared, false),
    ("caliburn", Some(Policy::Redo), Tracking::Fault, false),
    ("caliburn", Some(Policy::Redo), Tracking::Scan, false),
    ("mmap and fdatasync", None, Tracking::Declared, true),
    ("caliburn", Some(Policy::Shadow), Tracking::Fault, true),
];

/// A system with its memory.
enum Opened {
    Mapped(Mapped, File),
    Store(Store, Region),
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let pages = arguments.data_mb.unwrap_or(64) << 20 >> 12;
    let changed = pages / 4;
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let mut all = Vec::new();
    for (number, (_, policy, tracking, _)) in SYSTEMS.iter().enumerate() {
        all.push(open(&dir.path().join(number.to_string()), *policy, *tracking, pages, arguments)?);
    }
    for order in ORDERS {
        let mut samples = vec![Vec::new(); SYSTEMS.len()];
        for round in 0..=arguments.rounds as u64 {
            for (number, (opened, (_, _, tracking, forced))) in all.iter().zip(SYSTEMS).enumerate() {
                let begun = Instant::now();
                change(opened, (order, pages, changed), round + 1, tracking, forced)?;
                let us = begun.elapsed().as_secs_f64() * 1e6 / changed as f64;
                check(opened, (order, pages, changed), round + 1)?;
                // The first round brings the pages to memory.
                if round > 0 {
                    samples[number].push(us);
                }
            }
        }
        let medians: Vec<f64> = samples.into_iter().map(median).collect();
        for ((system, policy, tracking, forced), us) in SYSTEMS.iter().zip(&medians) {
            let is_floor = |of: &(_, Option<Policy>, _, bool)| of.1.is_none() && of.3 == *forced;
            let floor = medians[SYSTEMS.iter().position(is_floor).expect("both floors are there")];
            let policy = policy.map_or("none", Policy::name);
            let tracking = match tracking {
                Tracking::Fault => "fault",
                Tracking::Scan => "scan",
                _ => "declared",
            };
            let class = if *forced { "power" } else { "process" };
            let ratio = us / floor;
            if arguments.json {
                let params = json!({"order": order, "tracking": tracking, "pages": changed});
                let line = json!({"workload": "pages", "system": system, "policy": policy, "class": class, "threads": 1,
                    "params": params, "us_per_page": rounded(*us, 3), "ratio_to_floor": rounded(ratio, 2)});
                println!("{line}");
            } else {
                println!(
                    "pages  {order:10} {system:18} {policy:6} {tracking:8} {class:7} {us:>8.2} us a page, {ratio:>6.2} of the floor"
                );
            }
        }
    }
    // What the stores hold, not what the work left in memory.
    for (number, (opened, (_, policy, tracking, _))) in all.into_iter().zip(SYSTEMS).enumerate() {
        if let (Opened::Store(store, region), Some(policy)) = (opened, policy) {
            drop(region);
            store.close()?;
            let store = with(policy, tracking, arguments).open(dir.path().join(number.to_string()))?;
            let region = store.segment("data")?.map_all()?;
            let last = (ORDERS[ORDERS.len() - 1], pages, changed);
            check(&Opened::Store(store, region), last, arguments.rounds as u64 + 1)?;
        }
    }
    Ok(())
}

fn with(policy: Policy, tracking: Tracking, arguments: &Arguments) -> Options {
    let mut with = options(arguments.log_mb.max(64), arguments.stage_mb);
    with.policy(policy).tracking(tracking).guard(Guard::Off);
    with
}

fn open(
    dir: &Path,
    policy: Option<Policy>,
    tracking: Tracking,
    pages: usize,
    arguments: &Arguments,
) -> Result<Opened, Failure> {
    let Some(policy) = policy else {
        let memory = Mapped::new(dir, pages * PAGE)?;
        return Ok(Opened::Mapped(memory, File::options().read(true).write(true).open(dir)?));
    };
    let store = with(policy, tracking, arguments).open(dir)?;
    let region = store.create_segment("data", (pages * PAGE) as u64)?.map_all()?;
    Ok(Opened::Store(store, region))
}

/// The number of the page that is changed as the `i`th.
fn page(order: &str, i: usize, pages: usize) -> usize {
    match order {
        "in order" => i,
        "runs of 16" => i / 16 * 7 * 16 % pages + i % 16,
        _ => i * 7919 % pages,
    }
}

fn change(
    opened: &Opened,
    (order, pages, changed): (&str, usize, usize),
    value: u64,
    tracking: Tracking,
    forced: bool,
) -> Result<(), Failure> {
    let store = |base: *mut u8, i: usize| {
        // SAFETY: the page is mapped, and this thread's.
        unsafe { base.wrapping_add(page(order, i, pages) * PAGE + 64).cast::<u64>().write_volatile(value) }
    };
    match opened {
        Opened::Mapped(memory, file) => {
            (0..changed).for_each(|i| store(memory.base(), i));
            if forced {
                file.sync_data()?;
            }
        }
        Opened::Store(of, region) => {
            let mut tx = of.begin(Mode::Restore)?;
            for i in 0..changed {
                if tracking == Tracking::Declared {
                    let at = page(order, i, pages) * PAGE + 64;
                    tx.set_range(region, at..at + 8)?;
                }
                store(region.as_ptr(), i);
            }
            tx.commit(if forced { Class::Power } else { Class::Process })?;
        }
    }
    Ok(())
}

fn check(opened: &Opened, (order, pages, changed): (&str, usize, usize), value: u64) -> Result<(), Failure> {
    let base = match opened {
        Opened::Mapped(memory, _) => memory.base(),
        Opened::Store(_, region) => region.as_ptr(),
    };
    let right = (0..changed).all(|i| {
        // SAFETY: as in `change`.
        let found =
            unsafe { base.wrapping_add(page(order, i, pages) * PAGE + 64).cast::<u64>().read_volatile() };
        found == value
    });
    if right { Ok(()) } else { Err("a page does not hold what was stored".into()) }
}
