//! `restart`: a process commits and is killed; how long until another one has opened the database and read a
//! record?

use crate::records::{Keyed, Shape};
use crate::{Arguments, open};
use caliburn_bench::debit_credit::{Layout, SEED, Stream};
use caliburn_bench::report::{median, rounded};
use caliburn_bench::restart::{caches, die_with_parent, drop_caches};
use caliburn_bench::target::{Failure, Target};
use caliburn_bench::work::Workload;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Transactions before the kill.
const TRANSACTIONS: usize = 10_000;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let data_mb = arguments.data_mb.unwrap_or(100);
    let layout = Layout::new((data_mb << 20) / 128);
    let shape: (Shape, usize) = (Layout::record, layout.history());
    if let Some(path) = &arguments.victim {
        return victim(arguments, layout, shape, path);
    }
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let mut times: Vec<_> =
        arguments.names().into_iter().map(|name| (name, [Vec::new(), Vec::new()], 0)).collect();
    for _ in 0..arguments.rounds {
        for (name, times, total) in &mut times {
            let path = dir.path().join(&**name);
            for (&cold, times) in caches().iter().zip(times) {
                *total += kill_a_victim(name, data_mb, &path)?;
                if cold {
                    drop_caches()?;
                }
                times.push(first_read(name, layout, shape, &path, *total)?);
            }
        }
    }
    for (name, times, _) in times {
        for (cache, times) in ["warm", "cold"].into_iter().zip(times).filter(|(_, times)| !times.is_empty()) {
            let extreme = |pick: fn(f64, f64) -> f64| times.iter().copied().reduce(pick).unwrap_or(0.0);
            let (least, worst, first_tx_ms) = (extreme(f64::min), extreme(f64::max), median(times.clone()));
            if arguments.json {
                println!(
                    "{}",
                    json!({"workload": "restart", "system": name, "policy": "its own", "data_mb": data_mb, "cache": cache,
                        "exit": "killed", "first_tx_ms": rounded(first_tx_ms, 3),
                        "min_ms": rounded(least, 3), "max_ms": rounded(worst, 3)})
                );
            } else {
                println!(
                    "restart       {name:12} {data_mb:>5} MB data, {cache} cache, killed: first read after {first_tx_ms:>8.2} ms"
                );
            }
        }
    }
    Ok(())
}

/// Whether commits are to be forced: redb has no others that survive a killed process.
fn forced(name: &str) -> bool {
    name == "redb"
}

/// The time until a record is read; then, outside of the time, the balances must be those of all victims'
/// transactions.
fn first_read(
    name: &str,
    layout: Layout,
    shape: (Shape, usize),
    path: &Path,
    expected: i64,
) -> Result<f64, Failure> {
    let start = Instant::now();
    let (database, _) = open(name, path, forced(name), layout.bytes())?;
    let keyed = Keyed::new(&*database, shape, 0);
    let mut bytes = [0; 8];
    keyed.read(4096, &mut bytes);
    let time = start.elapsed().as_secs_f64() * 1e3;
    let found = [1, 2].map(|table| layout.balance(&keyed, table));
    if found == [expected; 2] {
        Ok(time)
    } else {
        Err(format!("{name}: balances {found:?}, expected {expected}").into())
    }
}

/// Has another process use the database and kills it; what its transactions added up to.
fn kill_a_victim(name: &str, data_mb: usize, path: &Path) -> Result<i64, Failure> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["restart", "--only", name, "--data-mb", &data_mb.to_string(), "--victim"])
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output to read")?).read_line(&mut line)?;
    child.kill()?;
    child.wait()?;
    let total = line.strip_prefix("done ").and_then(|total| total.trim().parse().ok());
    total.ok_or_else(|| format!("{name}: the victim said {line:?}").into())
}

fn victim(arguments: &Arguments, layout: Layout, shape: (Shape, usize), path: &Path) -> Result<(), Failure> {
    die_with_parent()?;
    let name = arguments.names().into_iter().next().ok_or("no such rival")?;
    let new = !path.exists();
    let (database, _) = open(name, path, forced(name), layout.bytes())?;
    let mut keyed = Keyed::new(&*database, shape, 0);
    if new {
        keyed.fill(layout.history())?;
    }
    let mut stream = Stream::new(layout, SEED);
    for _ in 0..TRANSACTIONS {
        stream.step(&mut keyed);
    }
    println!("done {}", stream.total);
    loop {
        std::thread::park();
    }
}
