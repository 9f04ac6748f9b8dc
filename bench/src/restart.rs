//! `restart`: a process fills the log with debit-credit transactions and is killed; how long until another
//! one has opened the store and committed its first transaction?

use crate::Arguments;
use crate::debit_credit::{Layout, Stream};
use crate::report::median;
use crate::target::{Failure, Redo, options};
use crate::work::Work;
use caliburn::{Class, Mode, Options, Tuning};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const LOG_MB: u64 = 64;

fn store_options() -> Options {
    let mut options = options(LOG_MB, 32);
    // The victim's log shall be full when it dies.
    options.tuning(Tuning { truncate_percent: 90, merge_lazy: false, ..Tuning::default() });
    options
}

fn layout(data_mb: usize) -> Layout {
    Layout::new((data_mb << 20) / 128 - 20_000)
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let data_mb = arguments.data_mb.unwrap_or(1024);
    if let Some(path) = &arguments.victim {
        return victim(path, data_mb, arguments.accounts);
    }
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let path = dir.path().join("store");
    drop(Redo::new(&path, &store_options(), layout(data_mb).bytes(), Class::Process)?);
    for cache in ["warm", "cold"] {
        for (log, exit) in [("full", "killed"), ("empty", "clean")] {
            let mut times = Vec::new();
            for _ in 0..arguments.rounds {
                if exit == "killed" {
                    kill_a_victim(&path, data_mb, arguments.accounts)?;
                }
                if cache == "cold" {
                    drop_caches()?;
                } else {
                    warm(&path)?;
                }
                times.push(first_transaction(&path)?);
            }
            let (first_tx_ms, worst) = (median(times.clone()), times.iter().copied().fold(0.0, f64::max));
            if arguments.json {
                println!(
                    "{}",
                    json!({"workload": "restart", "system": "caliburn", "policy": "redo", "data_mb": data_mb, "cache": cache,
                    "log": log, "exit": exit, "log_mb": LOG_MB, "accounts": arguments.accounts, "first_tx_ms": first_tx_ms, "worst_ms": worst})
                );
            } else {
                println!(
                    "restart       {data_mb} MB data, {cache} cache, {log} log, {exit} exit: first transaction after {first_tx_ms:.2} ms (worst {worst:.2})"
                );
            }
        }
    }
    Ok(())
}

/// Opens, maps, commits one transaction; then closes in good order, outside the time.
fn first_transaction(path: &Path) -> Result<f64, Failure> {
    let start = Instant::now();
    let store = store_options().open(path)?;
    let region = store.segment("data")?.map_all()?;
    let mut tx = store.begin(Mode::Restore)?;
    tx.store(&region, 4096, &1u64)?;
    tx.commit(Class::Process)?;
    let time = start.elapsed().as_secs_f64() * 1e3;
    let opened = store.query().log_used;
    drop(region);
    store.close()?;
    if opened > LOG_MB << 20 { Err("the log cannot be fuller than full".into()) } else { Ok(time) }
}

/// Starts a process that fills the log, and kills it when it says that it has.
fn kill_a_victim(path: &Path, data_mb: usize, accounts: usize) -> Result<(), Failure> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["restart", "--data-mb", &data_mb.to_string(), "--accounts", &accounts.to_string(), "--victim"])
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output to read")?).read_line(&mut line)?;
    child.kill()?;
    child.wait()?;
    if line.trim() == "full" { Ok(()) } else { Err(format!("the victim said {line:?}").into()) }
}

fn victim(path: &Path, data_mb: usize, accounts: usize) -> Result<(), Failure> {
    let bytes = layout(data_mb).bytes();
    let mut redo = Redo::new(path, &store_options(), bytes, Class::Process)?;
    redo.store().truncate()?;
    // `accounts` of them are in use, spread over the front of the data.
    let mut stream = Stream::new(Layout::new(accounts.min((data_mb << 20) / 128 - 20_000)), 42);
    let goal = (LOG_MB << 20) / 100 * 88;
    while redo.store().query().log_used < goal {
        for _ in 0..5_000 {
            stream.step(&mut redo);
        }
        redo.store().flush()?;
    }
    println!("full");
    loop {
        std::thread::park();
    }
}

/// Reads every file of the store, so that all of it is in the page cache.
fn warm(path: &Path) -> Result<(), Failure> {
    for entry in std::fs::read_dir(path)? {
        std::io::copy(&mut std::fs::File::open(entry?.path())?, &mut std::io::sink())?;
    }
    Ok(())
}

fn drop_caches() -> Result<(), Failure> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3")
        .map_err(|e| format!("dropping the page cache needs root: {e}").into())
}
