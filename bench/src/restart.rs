//! `restart`: a process fills the log with debit-credit transactions and is killed; how long until another
//! one has opened the store and committed its first transaction?

use crate::Arguments;
use crate::debit_credit::{Layout, Stream};
use crate::report::{median, rounded};
use crate::target::{Failure, Redo, options};
use crate::work::Workload;
use caliburn::{Class, Mode, Options, Tuning};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::json;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(path) = &arguments.victim {
        return victim(path, arguments);
    }
    let sizes = arguments.data_mb.map_or_else(|| vec![100, 1024], |size| vec![size]);
    sizes.into_iter().try_for_each(|data_mb| of_size(arguments, data_mb))
}

/// How a program ended.
#[derive(Clone, Copy, PartialEq)]
enum Exit {
    /// Killed while it was committing as fast as it could, or a moment after.
    Killed,
    /// Killed when it had been idle for a while.
    KilledIdle,
    /// As after a reboot: nobody tells what the segments show of the log.
    Reboot,
    /// In good order.
    Clean,
}

impl Exit {
    fn name(self) -> &'static str {
        match self {
            Exit::Killed => "killed",
            Exit::KilledIdle => "killed when idle",
            Exit::Reboot => "rebooted",
            Exit::Clean => "clean",
        }
    }
}

/// What a store went through before it is opened.
#[derive(Clone, Copy)]
struct Past {
    cold: bool,
    full: bool,
    exit: Exit,
}

fn of_size(arguments: &Arguments, data_mb: usize) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let path = dir.path().join("store");
    drop(Redo::new(&path, &store_options(), layout(data_mb).bytes(), Class::Process)?);
    // Closing in good order empties the log.
    let ends = [
        (true, Exit::Killed),
        (true, Exit::KilledIdle),
        (true, Exit::Reboot),
        (false, Exit::Killed),
        (false, Exit::Clean),
    ];
    let pasts: Vec<Past> =
        caches().iter().flat_map(|&cold| ends.map(|(full, exit)| Past { cold, full, exit })).collect();
    let mut times = vec![Vec::new(); pasts.len()];
    for _ in 0..arguments.rounds {
        for (past, times) in pasts.iter().zip(&mut times) {
            live(&path, data_mb, arguments.accounts, *past)?;
            if past.cold {
                drop_caches()?;
            } else {
                warm(&path)?;
            }
            times.push(first_transaction(&path, *past)?);
        }
    }
    for (past, times) in pasts.iter().zip(times) {
        print(arguments, data_mb, *past, &times);
    }
    Ok(())
}

fn print(arguments: &Arguments, data_mb: usize, past: Past, times: &[f64]) {
    let extreme = |pick: fn(f64, f64) -> f64| times.iter().copied().reduce(pick).unwrap_or(0.0);
    let (first_tx_ms, least, worst) = (median(times.to_vec()), extreme(f64::min), extreme(f64::max));
    let cache = if past.cold { "cold" } else { "warm" };
    let log = if past.full { "full" } else { "empty" };
    let exit = past.exit.name();
    if arguments.json {
        println!(
            "{}",
            json!({"workload": "restart", "system": "caliburn", "policy": "redo", "data_mb": data_mb, "cache": cache,
                "log": log, "exit": exit, "log_mb": LOG_MB, "accounts": arguments.accounts,
                "first_tx_ms": rounded(first_tx_ms, 3), "min_ms": rounded(least, 3), "max_ms": rounded(worst, 3)})
        );
    } else {
        println!(
            "restart       {data_mb:>5} MB data, {cache} cache, {log:5} log, {exit:16}: first transaction after {first_tx_ms:>7.2} ms ({least:.2} to {worst:.2})"
        );
    }
}

/// Opens, maps, commits one transaction; then closes in good order, outside the time.
fn first_transaction(path: &Path, past: Past) -> Result<f64, Failure> {
    let start = Instant::now();
    let store = store_options().open(path)?;
    let region = store.segment("data")?.map_all()?;
    let mut tx = store.begin(Mode::Restore)?;
    tx.store(&region, 4096, &1u64)?;
    tx.commit(Class::Process)?;
    let time = start.elapsed().as_secs_f64() * 1e3;
    let used = store.query().log_used;
    drop(region);
    store.close()?;
    let right = if past.full { used > GOAL / 4 * 3 } else { used < LOG_MB << 14 };
    if right { Ok(time) } else { Err(format!("{used} bytes of the log were in use").into()) }
}

/// How long a program is idle before it is killed.
const IDLE: Duration = Duration::from_millis(300);

/// Bytes of the log that make it full.
const GOAL: u64 = (LOG_MB << 20) / 100 * 88;

/// Has another process use the store and end as it shall.
fn live(path: &Path, data_mb: usize, accounts: usize, past: Past) -> Result<(), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["restart", "--data-mb", &data_mb.to_string(), "--accounts", &accounts.to_string()]);
    command.args(past.full.then_some("--fill")).args((past.exit == Exit::Clean).then_some("--close"));
    let mut child = command.arg("--victim").arg(path).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output to read")?).read_line(&mut line)?;
    if past.exit == Exit::KilledIdle {
        std::thread::sleep(IDLE);
    }
    if past.exit != Exit::Clean {
        child.kill()?;
    }
    let ended = child.wait()?;
    if past.exit == Exit::Reboot {
        std::fs::remove_file(path.join("stage"))?;
    }
    if line.trim() == "done" && ended.success() == (past.exit == Exit::Clean) {
        Ok(())
    } else {
        Err(format!("the victim said {line:?} and ended with {ended}").into())
    }
}

fn victim(path: &Path, arguments: &Arguments) -> Result<(), Failure> {
    die_with_parent()?;
    let layout = layout(arguments.data_mb.ok_or("a size is wanted")?);
    let mut redo = Redo::new(path, &store_options(), layout.bytes(), Class::Process)?;
    // `accounts` of them are in use, spread over the front of the data.
    let mut stream = Stream::new(Layout::new(arguments.accounts), 42);
    if arguments.fill {
        redo.store().truncate()?;
        while redo.store().query().log_used < GOAL {
            for _ in 0..5_000 {
                stream.step(&mut redo);
            }
            redo.store().flush()?;
        }
    } else {
        for _ in 0..5_000 {
            stream.step(&mut redo);
        }
        redo.store().truncate()?;
    }
    if arguments.close {
        redo.close()?;
        println!("done");
        return Ok(());
    }
    println!("done");
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

/// Has a file be on its medium alone.
pub fn forget(file: &File) -> Result<(), Failure> {
    file.sync_all()?;
    Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// A victim that nobody is left to kill dies all the same.
///
/// # Errors
/// When the system does not know of that.
pub fn die_with_parent() -> Result<(), Failure> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Whether the page cache is to be cold: both, where it can be emptied.
pub fn caches() -> &'static [bool] {
    if std::fs::OpenOptions::new().write(true).open(DROP_CACHES).is_ok() {
        return &[false, true];
    }
    eprintln!("restart: cold caches: not run: emptying the page cache needs root");
    &[false]
}

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Empties the page cache.
///
/// # Errors
/// Without the right to.
pub fn drop_caches() -> Result<(), Failure> {
    rustix::fs::sync();
    std::fs::write(DROP_CACHES, "3").map_err(|e| format!("dropping the page cache needs root: {e}").into())
}
