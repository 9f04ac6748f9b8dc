//! `restart`: a process commits and is killed; how long until another one has opened the database and read a record?

use crate::records::{Keyed, Shape};
use crate::{Arguments, open};
use caliburn_bench::debit_credit::{Layout, SEED, Stream};
use caliburn_bench::report::{median, rounded};
use caliburn_bench::restart::drop_caches;
use caliburn_bench::target::{Failure, Target};
use caliburn_bench::work::Work;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Transactions before the kill.
const TRANSACTIONS: usize = 50_000;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let data_mb = arguments.data_mb.unwrap_or(100);
    let layout = Layout::new((data_mb << 20) / 128);
    let shape: (Shape, usize) = (Layout::record, layout.history());
    if let Some(path) = &arguments.victim {
        return victim(arguments, layout, shape, path);
    }
    for name in arguments.names() {
        let dir = tempfile::tempdir_in(&arguments.dir)?;
        let path = dir.path().join("database");
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..arguments.rounds {
            for (cold, times) in [false, true].into_iter().zip(&mut times) {
                kill_a_victim(name, data_mb, &path)?;
                if cold {
                    drop_caches()?;
                }
                times.push(first_read(name, layout, shape, &path)?);
            }
        }
        for (cache, times) in ["warm", "cold"].into_iter().zip(times) {
            let extreme = |pick: fn(f64, f64) -> f64| times.iter().copied().reduce(pick).unwrap_or(0.0);
            let (least, worst, first_tx_ms) = (extreme(f64::min), extreme(f64::max), median(times.clone()));
            if arguments.json {
                println!(
                    "{}",
                    json!({"workload": "restart", "system": name, "policy": "its own", "data_mb": data_mb, "cache": cache,
                        "log": "full", "exit": "killed", "first_tx_ms": rounded(first_tx_ms, 3),
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

fn first_read(name: &str, layout: Layout, shape: (Shape, usize), path: &Path) -> Result<f64, Failure> {
    let start = Instant::now();
    let (database, _) = open(name, path, false, layout.bytes())?;
    let keyed = Keyed::new(&*database, shape, 0);
    let mut bytes = [0; 8];
    keyed.read(4096, &mut bytes);
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

fn kill_a_victim(name: &str, data_mb: usize, path: &Path) -> Result<(), Failure> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["restart", "--only", name, "--data-mb", &data_mb.to_string(), "--victim"])
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output to read")?).read_line(&mut line)?;
    child.kill()?;
    child.wait()?;
    if line.trim() == "done" { Ok(()) } else { Err(format!("{name}: the victim said {line:?}").into()) }
}

fn victim(arguments: &Arguments, layout: Layout, shape: (Shape, usize), path: &Path) -> Result<(), Failure> {
    let name = arguments.names().into_iter().next().ok_or("no such rival")?;
    let new = !path.exists();
    let (database, _) = open(name, path, false, layout.bytes())?;
    let mut keyed = Keyed::new(&*database, shape, 0);
    if new {
        keyed.fill(layout.history())?;
    }
    let mut stream = Stream::new(layout, SEED);
    for _ in 0..TRANSACTIONS {
        stream.step(&mut keyed);
    }
    println!("done");
    loop {
        std::thread::park();
    }
}
