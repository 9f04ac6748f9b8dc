//! The hot paths, so many times: what `cargo xtask instructions` counts the instructions of.

use caliburn::heap::Heap;
use caliburn::{Class, Options, Policy};
use caliburn_bench::debit_credit::{Layout, SEED, Stream};
use caliburn_bench::floor::{HandWritten, Mapped, Plain};
use caliburn_bench::synthetic::Ranges;
use caliburn_bench::target::{Failure, Redo, Target, Undo, options};
use caliburn_bench::typed::Typed;
use caliburn_bench::work::Workload;
use clap::Parser;
use std::path::Path;

/// Runs a hot path.
#[derive(Parser)]
struct Arguments {
    /// `plain`, `floor` (the hand-written undo log), `redo`, `undo`, `persistent`, `heap`,
    /// `typed-redo` or `typed-undo`.
    kind: String,
    /// Bytes of the one range; 0: debit-credit.
    bytes: usize,
    /// Transactions.
    count: u64,
}

const DATA: usize = 4 << 20;

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let dir = tempfile::tempdir()?;
    let mut options = options(512, 128);
    // No other thread's instructions.
    options.background(false);
    let at = |name| dir.path().join(name);
    match arguments.kind.as_str() {
        "plain" => work(&mut Plain(Mapped::new(&at("plain"), DATA)?), &arguments),
        "floor" => {
            let log = Mapped::new(&at("log"), 1 << 20)?;
            work(&mut HandWritten::new(Mapped::new(&at("data"), DATA)?, log), &arguments)
        }
        "redo" => work(&mut Redo::new(&at("redo"), &options, DATA, Class::Process)?, &arguments),
        "undo" => work(&mut Undo::new(&at("undo"), &options, DATA, Class::Process)?, &arguments),
        "persistent" => {
            options.memory_survives(Class::Power);
            work(&mut Undo::new(&at("persistent"), &options, DATA, Class::Power)?, &arguments)
        }
        "heap" => heap(&at("heap"), &arguments, options.policy(Policy::Undo)),
        "typed-redo" => typed(&at("typed"), &arguments, options.policy(Policy::Redo)),
        "typed-undo" => typed(&at("typed"), &arguments, options.policy(Policy::Undo)),
        other => Err(format!("no hot path is called {other}").into()),
    }
}

fn work<T: Target>(target: &mut T, arguments: &Arguments) -> Result<(), Failure> {
    if arguments.bytes == 0 {
        return steps(target, Stream::new(Layout::new(10_000), SEED), arguments.count);
    }
    steps(target, Ranges::new(arguments.bytes, DATA), arguments.count)
}

fn steps<W: Workload, T: Target>(target: &mut T, mut work: W, count: u64) -> Result<(), Failure> {
    // Every page is touched once before.
    (0..count).for_each(|_| work.step(target));
    hot_path(count, || work.step(target));
    work.check(target)
}

/// What is counted.
#[inline(never)]
fn hot_path(count: u64, mut transaction: impl FnMut()) {
    for _ in 0..count {
        transaction();
    }
}

/// Debit-credit through guards.
fn typed(path: &Path, arguments: &Arguments, options: &Options) -> Result<(), Failure> {
    let mut typed = Typed::new(&options.open(path)?, 10_000)?;
    typed.work(|step| {
        (0..arguments.count).for_each(|_| step());
        hot_path(arguments.count, step);
    });
    typed.check()
}

/// Objects allocated and freed.
fn heap(path: &Path, arguments: &Arguments, options: &Options) -> Result<(), Failure> {
    let store = options.open(path)?;
    let heap = Heap::open(&store, "objects")?;
    let pair = || -> Result<(), Failure> {
        let mut tx = heap.begin()?;
        let object = tx.allocate(arguments.bytes)?;
        tx.free(object)?;
        Ok(tx.commit(Class::Process)?)
    };
    let mut done = Ok(());
    hot_path(arguments.count, || {
        if let Err(error) = pair() {
            done = Err(error);
        }
    });
    done
}
