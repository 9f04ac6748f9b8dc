//! Steps of a task, each a command, and how long each took.

use crate::room;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What has run so far, in order.
static DONE: Mutex<Vec<(String, Duration)>> = Mutex::new(Vec::new());

fn note(what: &str, start: Instant) {
    DONE.lock().unwrap_or_else(PoisonError::into_inner).push((what.to_owned(), start.elapsed()));
}

/// A command line without quotes.
pub fn command(line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

pub fn run(line: &str) -> Result<(), String> {
    succeed(command(line), line)
}

/// Runs a command and says how long it took; fails if the command fails.
pub fn succeed(mut command: Command, what: &str) -> Result<(), String> {
    println!("--- {what}{}", room::said());
    let start = Instant::now();
    let status = command.status().map_err(|e| format!("{what}: {e}"))?;
    println!("--- {:.0} s", start.elapsed().as_secs_f64());
    note(what, start);
    if status.success() { Ok(()) } else { Err(format!("{what}: {status}")) }
}

/// The same, of a command whose output is worth reading only when it fails.
pub fn succeed_quietly(mut command: Command, what: &str) -> Result<(), String> {
    let start = Instant::now();
    let output = command.output().map_err(|e| format!("{what}: {e}"))?;
    println!("--- {what}: {:.0} s", start.elapsed().as_secs_f64());
    note(what, start);
    if output.status.success() {
        return Ok(());
    }
    for part in [&output.stdout, &output.stderr] {
        print!("{}", String::from_utf8_lossy(part));
    }
    Err(format!("{what}: {}", output.status))
}

/// Runs something that is no command as a step.
pub fn timed<T>(what: &str, step: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = step();
    note(what, start);
    done
}

/// Prints the steps that took longest, and all of them together.
pub fn print() {
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let all: Duration = done.iter().map(|(_, took)| *took).sum();
    done.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    println!("--- {} steps, {:.0} s; the longest:", done.len(), all.as_secs_f64());
    for (what, took) in done.iter().filter(|(_, took)| took.as_secs() >= 5) {
        println!("{:7.0} s  {}", took.as_secs_f64(), what.chars().take(100).collect::<String>());
    }
}
