//! What a user would pick instead, doing the same work on the same data in the same durability class, beside
//! Caliburn and the floors, in interleaved rounds of one run. Settings are at the head of each rival's file.
//!
//! A rival that has records and no memory keeps a record of the work under its offset: it is read, changed and
//! stored.

mod distributed;
mod fjall;
mod foreign;
mod maps;
mod mdbx;
mod nested;
mod oo7;
mod records;
mod redb;
mod restart;
mod threads;
mod wisconsin;

use caliburn::Class;
use caliburn_bench::debit_credit::{Layout, SEED, Stream};
use caliburn_bench::floor::{ForcedWrite, HandWritten, Mapped, Plain, WriteAhead};
use caliburn_bench::report::{self, Line};
use caliburn_bench::synthetic::Ranges;
use caliburn_bench::target::{Failure, Redo, Target, Undo, options};
use caliburn_bench::work::Workload;
use clap::{Parser, ValueEnum};
use records::{Database, Keyed, Shape};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Measures Caliburn and its rivals.
#[derive(Parser, Debug)]
#[command(name = "caliburn-rivals", version)]
struct Arguments {
    /// What to measure.
    workload: Choice,
    /// One JSON object per line and result.
    #[arg(long)]
    json: bool,
    /// Folder for stores; should be on the kind of disk that matters to you.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Interleaved rounds; medians are reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds per system and round.
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Accounts of debit-credit.
    #[arg(long, default_value_t = 100_000)]
    accounts: usize,
    /// Range sizes of synthetic, in bytes.
    #[arg(long, value_delimiter = ',', default_value = "8,256,4096")]
    sizes: Vec<usize>,
    /// Megabytes of data of synthetic (50 unless told), restart (100) and oo7.
    #[arg(long)]
    data_mb: Option<usize>,
    /// Threads of group-commit.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32")]
    threads: Vec<usize>,
    /// Only these rivals, such as LMDB.
    #[arg(long, value_delimiter = ',')]
    only: Option<Vec<String>>,
    /// Folder in memory that is taken for persistent, of wisconsin; one of shared memory unless told.
    #[arg(long)]
    memory: Option<PathBuf>,
    /// Used by restart for the process that it kills.
    #[arg(long, hide = true)]
    victim: Option<PathBuf>,
    /// Used by oo7 for the processes that it measures: their group.
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
    /// The same: whether the traversal is the one that changes something.
    #[arg(long, hide = true)]
    changes: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
enum Choice {
    /// Debit-credit, `Process` class.
    DebitCredit,
    /// Debit-credit, `Power` class.
    DebitCreditPower,
    /// One range of each size at random places, `Process` class.
    Synthetic,
    /// Debit-credit by several threads, `Power` class.
    GroupCommit,
    /// From opening a killed store to the first read.
    Restart,
    /// Records under keys, loaded, inserted, removed, and used as YCSB's workloads A to F do; `Process` class.
    Maps,
    /// Transactions over several servers, `Power` class.
    Camelot,
    /// Tests 26 to 32 of the Wisconsin benchmark with SQLite, in memory and in the `Power` class.
    Wisconsin,
    /// OO7's traversals T1 and T2b on objects under their offsets, in 128 MB; `Power` class.
    Oo7,
    /// Children of a transaction, savepoints, nested transactions; `Process` class.
    Nest,
}

/// The rivals' names.
const NAMES: [&str; 8] = ["LMDB", "libmdbx", "SQLite", "RocksDB", "Berkeley DB", "PMDK", "redb", "fjall"];

/// A database of that rival in a directory, and the rival's version.
fn open(name: &str, dir: &Path, forced: bool, bytes: usize) -> Result<(Box<dyn Database>, String), Failure> {
    std::fs::create_dir_all(dir)?;
    Ok(match name {
        "libmdbx" => (mdbx::open(dir, forced, bytes)?, mdbx::version()),
        "redb" => (redb::open(dir, forced, bytes)?, "4.6".into()),
        "fjall" => (fjall::open(dir, forced, bytes)?, "3.1".into()),
        _ => {
            let found = foreign::all().into_iter().find(|rival| rival.name() == name);
            let rival = found.ok_or_else(|| format!("no rival is called {name}: {NAMES:?}"))?;
            (rival.open(dir, forced, bytes)?, rival.version())
        }
    })
}

impl Arguments {
    fn names(&self) -> Vec<&'static str> {
        let wanted = |name: &&str| self.only.as_ref().is_none_or(|only| only.iter().any(|o| o == name));
        NAMES.into_iter().filter(wanted).collect()
    }
}

/// One that is measured: runs its work for so many seconds, and checks it in the end.
trait Contender {
    fn round(&mut self, seconds: f64) -> report::Sample;
    /// When it is over: closed and opened again, if it can be.
    fn check(self: Box<Self>) -> Result<(), Failure>;
}

struct Running<W, T> {
    work: W,
    target: T,
    /// Of so many transactions the first is timed by itself.
    batch: u64,
}

impl<W: Workload, T: Target> Contender for Running<W, T> {
    fn round(&mut self, seconds: f64) -> report::Sample {
        let sample = report::measure(seconds, self.batch, || self.work.step(&mut self.target));
        self.target.drain();
        sample
    }

    fn check(self: Box<Self>) -> Result<(), Failure> {
        self.work.check(&self.target.reopened()?)
    }
}

struct Forced(ForcedWrite);

impl Contender for Forced {
    fn round(&mut self, seconds: f64) -> report::Sample {
        report::measure(seconds, 1, || self.0.force().expect("the disk works"))
    }

    fn check(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}

/// The same work on everything. The floor is the first.
#[allow(clippy::too_many_arguments)]
fn side_by_side<W: Workload>(
    workload: &str,
    arguments: &Arguments,
    (bytes, filled): (usize, usize),
    shape: (Shape, usize),
    forced: bool,
    params: &Value,
    work: impl Fn() -> W,
) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let at = |name: &str| dir.path().join(name);
    let (class, survives) = if forced { ("power", Class::Power) } else { ("process", Class::Process) };
    let batch = if forced { 1 } else { W::BATCH };
    let line = |system, policy| Line::new(system, policy, class, 1, params.clone());
    let mapped = |name: &str| Mapped::new(&at(name), bytes);
    let mut options = options(256, 64);
    options.create(true);
    let databases: Vec<_> = arguments
        .names()
        .into_iter()
        .map(|name| open(name, &at(name), forced, bytes).map(|(database, version)| (name, database, version)))
        .collect::<Result<_, _>>()?;
    let mut lines = Vec::new();
    let mut contenders: Vec<Box<dyn Contender + '_>> = Vec::new();
    if forced {
        lines.push(line("bare forced write", "none"));
        contenders.push(Box::new(Forced(ForcedWrite::new(&at("forced"), 200)?)));
    } else {
        lines.push(line(HandWritten::NAME, HandWritten::POLICY));
        let target = HandWritten::new(mapped("floor")?, Mapped::new(&at("floor.log"), 16 << 20)?);
        contenders.push(Box::new(Running { work: work(), target, batch }));
        lines.push(line(Plain::NAME, Plain::POLICY));
        contenders.push(Box::new(Running { work: work(), target: Plain(mapped("plain")?), batch }));
        lines.push(line(Undo::NAME, Undo::POLICY));
        let target = Undo::new(&at("undo"), &options, bytes, survives)?;
        contenders.push(Box::new(Running { work: work(), target, batch }));
    }
    lines.push(line(Redo::NAME, Redo::POLICY));
    let target = Redo::new(&at("redo"), &options, bytes, survives)?;
    contenders.push(Box::new(Running { work: work(), target, batch }));
    lines.push(line(WriteAhead::NAME, WriteAhead::POLICY));
    let target = WriteAhead::new(mapped("ahead")?, &at("ahead.log"), forced)?;
    contenders.push(Box::new(Running { work: work(), target, batch }));
    for (name, database, version) in &databases {
        let mut target = Keyed::new(&**database, shape, 0);
        target.fill(filled).map_err(|e| format!("{name}: {e}"))?;
        let mut line = line(name, "its own");
        line.params["version"] = json!(version);
        lines.push(line);
        contenders.push(Box::new(Running { work: work(), target, batch }));
    }
    let (count, mut first) = (contenders.len(), 0);
    report::interleave(arguments.rounds, &mut lines, || {
        // What one leaves to be done behind its back falls to another one in every round.
        first += 1;
        let mut samples = vec![report::Sample::default(); count];
        for i in (0..count).map(|i| (first + i) % count) {
            samples[i] = contenders[i].round(arguments.seconds);
        }
        samples
    });
    contenders.into_iter().try_for_each(|contender| contender.check())?;
    report::print(workload, arguments.json, &lines, 0);
    Ok(())
}

/// What PMDK is told at its start: that memory is to be taken for persistent, and stores to it survive. Without
/// that, it calls `msync`.
const PMDK: [&str; 2] = ["PMEM_IS_PMEM_FORCE", "PMEM_NO_FLUSH"];

/// PMDK's surroundings are those of the class.
fn again_for_pmdk(arguments: &Arguments) -> Result<Option<ExitCode>, Failure> {
    let forced = matches!(arguments.workload, Choice::DebitCreditPower | Choice::GroupCommit | Choice::Oo7);
    if PMDK.iter().all(|name| std::env::var_os(name).is_none() == forced) {
        return Ok(None);
    }
    let mut again = Command::new(std::env::current_exe()?);
    again.args(std::env::args_os().skip(1));
    PMDK.iter().for_each(|name| {
        if forced {
            again.env_remove(name)
        } else {
            again.env(name, "1")
        };
    });
    let status = again.status()?;
    Ok(Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let Some(done) = again_for_pmdk(arguments)? {
        return Ok(done);
    }
    let layout = Layout::new(arguments.accounts);
    let tables: (Shape, usize) = (Layout::record, layout.history());
    let params = json!({"accounts": arguments.accounts});
    let sizes = (layout.bytes(), layout.history());
    let stream = || Stream::new(layout, SEED);
    match arguments.workload {
        Choice::DebitCredit => {
            side_by_side("debit-credit", arguments, sizes, tables, false, &params, stream)?;
        }
        Choice::DebitCreditPower => {
            side_by_side("debit-credit", arguments, sizes, tables, true, &params, stream)?;
        }
        Choice::Synthetic => {
            let bytes = arguments.data_mb.unwrap_or(50) << 20;
            for &size in &arguments.sizes {
                let whole: (Shape, usize) = (|size, offset, _| (offset / size * size, size), size);
                let params = json!({"bytes": size, "data_mb": bytes >> 20});
                let filled = bytes / size * size;
                let work = || Ranges::new(size, bytes);
                side_by_side("synthetic", arguments, (bytes, filled), whole, false, &params, work)?;
            }
        }
        Choice::GroupCommit => threads::run(arguments, layout)?,
        Choice::Restart => restart::run(arguments)?,
        Choice::Maps => maps::run(arguments)?,
        Choice::Wisconsin => wisconsin::run(arguments)?,
        Choice::Oo7 => oo7::run(arguments)?,
        Choice::Nest => nested::run(arguments)?,
        Choice::Camelot => distributed::run(arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    run(&Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("caliburn-rivals: {error}");
        ExitCode::FAILURE
    })
}
