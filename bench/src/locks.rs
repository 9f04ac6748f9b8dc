//! `locks`: what locks cost that nobody else wants. Four names of 100,000, at random, are locked and all given up
//! again: with an owner and a table of locks, and with read-write locks in a hash map, that know nothing of
//! transactions, of waiting in turn, or of deadlocks.

use crate::Arguments;
use crate::report::{self, Line, Random, Sample};
use crate::target::Failure;
use caliburn_lock::{Detector, Locks, Standard};
use hashbrown::HashMap;
use parking_lot::RwLock;
use serde_json::json;

const NAMES: usize = 100_000;
const EACH: usize = 4;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let detector = Detector::new();
    let locks: Locks<u64> = detector.locks();
    let map: HashMap<u64, RwLock<()>> = (0..NAMES as u64).map(|name| (name, RwLock::new(()))).collect();
    for (what, mode) in [("exclusive", Standard::Exclusive), ("shared", Standard::Shared)] {
        let line = |system| Line::new(system, "none", "process", 1, json!({"mode": what, "names": NAMES}));
        let mut lines = [line("parking_lot in a hash map"), line("caliburn")];
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        report::interleave(arguments.rounds, &mut lines, || {
            let per_lock = |sample: Sample| Sample { ns_per_tx: sample.ns_per_tx / EACH as f64, ..sample };
            let plain = report::measure(arguments.seconds, 64, || {
                let names: [u64; EACH] = std::array::from_fn(|_| random.below(NAMES) as u64);
                // One after the other: a name may come twice.
                for name in names {
                    let lock = map.get(&name).expect("it is there");
                    match mode {
                        Standard::Shared => drop(lock.read()),
                        _ => drop(lock.write()),
                    }
                }
            });
            let own = report::measure(arguments.seconds, 64, || {
                let mut owner = detector.owner();
                for _ in 0..EACH {
                    let name = random.below(NAMES) as u64;
                    locks.lock(&mut owner, name, mode).expect("nobody is in the way");
                }
                owner.end();
            });
            vec![per_lock(plain), per_lock(own)]
        });
        report::print("locks", arguments.json, &lines, 0);
    }
    Ok(())
}
