//! `dumps`: what a dump costs those who commit meanwhile. Transactions that change a word at random in 256 MiB,
//! alone and beside a thread that dumps the store from outside, again and again, to nowhere: as fast as it goes,
//! and at
//! 100 MiB/s.

use crate::Arguments;
use crate::report::{self, Line, Random};
use crate::target::{Failure, options};
use caliburn::{BackupError, Class, DumpOptions, Mode, Options, Region, Store};
use serde_json::json;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BYTES: usize = 256 << 20;

/// What `measure` gives while the store is dumped, and how many dumps were made.
fn beside<T>(path: &Path, rate: Option<u64>, measure: impl FnOnce() -> T) -> Result<(T, u64), Failure> {
    let (stop, dumps) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let dumping = scope.spawn(|| {
            let mut how = DumpOptions::new();
            rate.iter().for_each(|rate| _ = how.rate(*rate));
            let options = Options::new();
            while !stop.load(Ordering::Relaxed) {
                match options.dump(path, &how, &mut io::sink()) {
                    // A log that is so small is overwritten sooner than it is read.
                    Err(BackupError::Overtaken { .. }) => {}
                    done => {
                        done?;
                        dumps.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            Ok::<(), BackupError>(())
        });
        let measured = measure();
        stop.store(true, Ordering::Relaxed);
        dumping.join().expect("no panic")?;
        Ok((measured, dumps.load(Ordering::Relaxed)))
    })
}

fn change(store: &Store, region: &Region, at: usize, class: Class) {
    let mut tx = store.begin(Mode::Restore).expect("the store is sound");
    let value: u64 = region.load(at);
    tx.store(region, at, &(value + 1)).expect("there is room");
    tx.commit(class).expect("the store is sound");
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let path = dir.path().join("dumps");
    let store = options(arguments.log_mb, arguments.stage_mb).open(&path)?;
    let region = store.create_segment("data", BYTES as u64)?.map_all()?;
    for at in (0..BYTES).step_by(1 << 20) {
        let mut tx = store.begin(Mode::NoRestore)?;
        tx.write(&region, at, &vec![7; 1 << 20])?;
        tx.commit(Class::Process)?;
    }
    store.truncate()?;
    let mut random = Random(11);
    let mut dumps = 0;
    for (name, class) in [("process", Class::Process), ("power", Class::Power)] {
        let line = |what| Line::new("caliburn", "redo", name, 1, json!({"what": what, "mb": BYTES >> 20}));
        let mut lines = [line("alone"), line("beside dumps"), line("beside dumps at 100 MiB/s")];
        report::interleave(arguments.rounds, &mut lines, || {
            let mut one = || change(&store, &region, random.below(BYTES / 8) * 8, class);
            let mut samples = vec![report::measure(arguments.seconds, 64, &mut one)];
            for rate in [None, Some(100 << 20)] {
                let measured = beside(&path, rate, || report::measure(arguments.seconds, 64, &mut one));
                let (sample, made) = measured.expect("a dump can be made");
                dumps += made;
                samples.push(sample);
            }
            samples
        });
        report::print("dumps", arguments.json, &lines, 0);
    }
    if dumps > 0 { Ok(()) } else { Err("no dump was made".into()) }
}
