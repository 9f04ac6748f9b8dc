//! Workloads of one thread, and what is measured of them: each system in turn, again and again.

use crate::Arguments;
use crate::floor::{HandWritten, Mapped, Plain};
use crate::report::{self, Life, Line, Sample};
use crate::target::{Failure, Redo, Target, Undo, options};
use caliburn::Class;
use serde_json::{Value, json};
use std::sync::{Barrier, OnceLock};
use std::time::Instant;

/// Transactions one after the other, and what they must add up to.
pub trait Workload {
    /// Of so many transactions the first is timed by itself.
    const BATCH: u64;
    /// Runs the next transaction.
    fn step<T: Target>(&mut self, target: &mut T);
    /// Whether all of them are there, and nothing else.
    fn check<T: Target>(&self, target: &T) -> Result<(), Failure>;
}

/// Runs transactions for so many seconds.
pub fn drive<W: Workload, T: Target>(work: &mut W, target: &mut T, seconds: f64) -> Sample {
    report::measure(seconds, W::BATCH, || work.step(target))
}

/// The same, when others come next.
pub fn turn<W: Workload, T: Target>(work: &mut W, target: &mut T, seconds: f64) -> Sample {
    let sample = drive(work, target, seconds);
    target.drain();
    sample
}

/// Runs works at the same time, each on its target, the first of every `batch` transactions timed by itself;
/// the time for a transaction of them all, from the start of the first to the end of the last: with more
/// threads than processors some begin when others have nearly done.
pub fn together<W: Workload + Send, T: Target + Send>(
    seconds: f64,
    batch: u64,
    targets: &mut [T],
    works: &mut [W],
) -> Sample {
    let (begin, first) = (&Barrier::new(targets.len()), &OnceLock::new());
    let lives: Vec<Life> = std::thread::scope(|scope| {
        let begun = targets.iter_mut().zip(works).map(|(target, work)| {
            scope.spawn(move || {
                begin.wait();
                let start = *first.get_or_init(Instant::now);
                report::measure_from(start, seconds, batch, || work.step(target))
            })
        });
        let workers: Vec<_> = begun.collect();
        workers.into_iter().map(|worker| worker.join().expect("the workers end")).collect()
    });
    let last = lives.iter().map(|life| life.elapsed).max().unwrap_or_default();
    let count: u64 = lives.iter().map(|life| life.count).sum();
    let latencies = lives.into_iter().flat_map(|life| life.latencies).collect();
    Sample { ns_per_tx: last.as_nanos() as f64 / count as f64, latencies }
}

/// Runs the same work on plain memory, with a hand-written undo log, and with either policy, `Process` class.
pub fn side_by_side<W: Workload>(
    name: &str,
    arguments: &Arguments,
    bytes: usize,
    mut params: Value,
    work: impl Fn() -> W,
) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let mut plain = Plain(Mapped::new(&dir.path().join("plain"), bytes)?);
    let log = Mapped::new(&dir.path().join("floor.log"), 16 << 20)?;
    let mut floor = HandWritten::new(Mapped::new(&dir.path().join("floor"), bytes)?, log);
    let options = options(arguments.log_mb, arguments.stage_mb);
    let mut redo = Redo::new(&dir.path().join("redo"), &options, bytes, Class::Process)?;
    let mut undo = Undo::new(&dir.path().join("undo"), &options, bytes, Class::Process)?;
    let mut works = [work(), work(), work(), work()];
    params["log_mb"] = json!(arguments.log_mb);
    params["stage_mb"] = json!(arguments.stage_mb);
    let line = |system, policy| Line::new(system, policy, "process", 1, params.clone());
    let mut lines = [
        line(Plain::NAME, Plain::POLICY),
        line(HandWritten::NAME, HandWritten::POLICY),
        line(Redo::NAME, Redo::POLICY),
        line(Undo::NAME, Undo::POLICY),
    ];
    report::interleave(arguments.rounds, &mut lines, || {
        vec![
            turn(&mut works[0], &mut plain, arguments.seconds),
            turn(&mut works[1], &mut floor, arguments.seconds),
            turn(&mut works[2], &mut redo, arguments.seconds),
            turn(&mut works[3], &mut undo, arguments.seconds),
        ]
    });
    works[0].check(&plain)?;
    works[1].check(&floor)?;
    let statistics = redo.store().statistics();
    works[2].check(&redo.reopened()?)?;
    works[3].check(&undo.reopened()?)?;
    report::print(name, arguments.json, &lines, 1);
    if !arguments.json {
        println!("  {statistics:?}");
    }
    Ok(())
}
