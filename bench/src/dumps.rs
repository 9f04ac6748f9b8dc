//! `dumps`: what a dump costs those who commit meanwhile. Transactions that change a word at random in 256 MiB,
//! alone and beside a thread that dumps the store from outside, again and again, to nowhere: as fast as it goes,
//! and at 100 MiB/s. And how long dumps take: a whole one, one of what was written since, and, with the undo
//! policy, how long transactions are held up.

use crate::Arguments;
use crate::report::{self, Line, Random, Sample};
use crate::target::{Failure, options};
use caliburn::{BackupError, Class, DumpOptions, Mode, Options, Region, Store};
use rustix::process::setpriority_process;
use serde_json::json;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BYTES: usize = 256 << 20;

/// What `measure` gives while the store is dumped, and how many dumps were made.
fn beside<T>(path: &Path, rate: Option<u64>, measure: impl FnOnce() -> T) -> Result<(T, u64), Failure> {
    let (stop, dumps) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let dumping = scope.spawn(|| {
            // As the command does. On Linux this is the thread's own.
            setpriority_process(None, 10).expect("nobody is kept from being polite");
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
    if dumps == 0 {
        return Err("no dump was made".into());
    }
    durations(arguments, &store, &region, dir.path())
}

/// How long dumps take, each round once.
fn durations(arguments: &Arguments, store: &Store, region: &Region, dir: &Path) -> Result<(), Failure> {
    let mut undo = options(arguments.log_mb, arguments.stage_mb);
    let undo = undo.policy(caliburn::Policy::Undo).open(dir.join("undo"))?;
    let same = undo.create_segment("data", BYTES as u64)?.map_all()?;
    for at in (0..BYTES).step_by(1 << 20) {
        let mut tx = undo.begin(Mode::Restore)?;
        tx.write(&same, at, &vec![7; 1 << 20])?;
        tx.commit(Class::Process)?;
    }
    let sample = |time: Duration| Sample { ns_per_tx: time.as_nanos() as f64, latencies: Vec::new() };
    let line =
        |policy, what| Line::new("caliburn", policy, "process", 1, json!({"what": what, "mb": BYTES >> 20}));
    let mut lines = [
        line("redo", "a whole dump"),
        line("redo", "a dump of 1 % of the pages"),
        line("undo", "a whole dump"),
        line("undo", "transactions held up"),
    ];
    let mut random = Random(12);
    report::interleave(arguments.rounds, &mut lines, || {
        // What is written to segments later is in the next dump again.
        store.truncate().expect("the store is sound");
        let begun = Instant::now();
        let whole = store.dump(&DumpOptions::new(), &mut io::sink()).expect("a dump can be made");
        let first = begun.elapsed();
        for _ in 0..BYTES / 4096 / 100 {
            change(store, region, random.below(BYTES / 8) * 8, Class::Process);
        }
        store.truncate().expect("the store is sound");
        let begun = Instant::now();
        let since =
            store.dump(DumpOptions::new().since(&whole), &mut io::sink()).expect("a dump can be made");
        let second = begun.elapsed();
        assert!(since.data_bytes < whole.data_bytes / 10, "{since:?}");
        let begun = Instant::now();
        let dumped = undo.dump(&DumpOptions::new(), &mut io::sink()).expect("a dump can be made");
        [first, second, begun.elapsed(), dumped.held].map(sample).into()
    });
    report::print("dumps", arguments.json, &lines, 0);
    Ok(())
}
