//! `demo`: words of real files are counted in recoverable memory, one transaction per file, by a process
//! that is killed at random moments and started again. Nothing acknowledged may be lost, nothing may be
//! counted twice or in part; at the end every count is compared with a plain count of the same files.
//!
//! ```text
//!   supervisor --starts--> worker: open the store, recover, "ready", then per file: count, commit, "done n"
//!       |                    ^ |
//!       +-- SIGKILL at random, also during recovery; the next worker must begin at or after the last "done"
//! ```
//!
//! The files are counted over and over, a round being one pass over all of them, until the kills are done.

use crate::words::{self, Table};
use caliburn::{Class, Store};
use caliburn_tools::random::Random;
use caliburn_tools::{Failure, size};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Directory whose text files are counted.
    #[arg(long, default_value = ".")]
    input: PathBuf,
    /// Directory for the store; made anew. Default: a temporary one, removed at the end.
    #[arg(long)]
    store: Option<PathBuf>,
    /// The demonstration across nodes, which is `caliburn-node demo` now.
    #[arg(long, hide = true)]
    nodes: Option<u64>,
    /// How many times the worker is killed.
    #[arg(long, default_value_t = 10)]
    kills: u32,
    /// Seed of the random moments. Default: drawn from the time.
    #[arg(long)]
    seed: Option<u64>,
    /// What each commit must survive.
    #[arg(long, value_enum, default_value = "process")]
    class: ClassName,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of the hidden worker.
#[derive(Args, Debug)]
pub struct Worker {
    store: PathBuf,
    /// File that lists the input files.
    list: PathBuf,
    #[arg(value_enum)]
    class: ClassName,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq)]
enum ClassName {
    /// The process may be killed.
    Process,
    /// The power may fail: each commit is forced to disk.
    Power,
}

const STOP: &str = "stop";

/// The worker: counts files until it is told to stop at the end of a round.
pub fn work(arguments: &Worker) -> Result<ExitCode, Failure> {
    let class = if arguments.class == ClassName::Power { Class::Power } else { Class::Process };
    let list = std::fs::read_to_string(&arguments.list)?;
    let (bytes, files) = list.split_once('\n').ok_or("the list of files is empty")?;
    let files: Vec<&str> = files.lines().collect();
    let start = Instant::now();
    let store = Store::open(&arguments.store)?;
    let table = Table::open(&store, bytes.parse()?)?;
    println!("ready {} {}", table.files(), start.elapsed().as_micros());
    let stop = arguments.list.with_file_name(STOP);
    loop {
        let next = table.files();
        let at = next as usize % files.len();
        // At least one round, or there would be nothing to compare.
        if at == 0 && next > 0 && stop.exists() {
            break;
        }
        let text =
            words::read_text(Path::new(files[at])).ok_or_else(|| format!("{} has changed", files[at]))?;
        table.add(&store, &text, class)?;
        println!("done {}", next + 1);
    }
    drop(table);
    store.close()?;
    println!("end");
    Ok(ExitCode::SUCCESS)
}

/// What the supervisor sees of a worker.
enum Line {
    Ready { files: u64, micros: u64 },
    Done(u64),
    End,
}

struct Running {
    child: Child,
    lines: Receiver<Line>,
}

impl Running {
    fn start(store: &Path, list: &Path, class: ClassName) -> Result<Running, Failure> {
        let class = if class == ClassName::Power { "power" } else { "process" };
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("demo-worker")
            .arg(store)
            .arg(list)
            .arg(class)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or("the worker has no output")?;
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let mut words = line.split(' ');
                let kind = words.next();
                let mut number = || words.next().and_then(|n| n.parse().ok()).unwrap_or(0);
                let line = match kind {
                    Some("ready") => Line::Ready { files: number(), micros: number() },
                    Some("done") => Line::Done(number()),
                    _ => Line::End,
                };
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Running { child, lines })
    }
}

/// What came of the whole run.
#[derive(Default)]
struct Outcome {
    kills: u32,
    kills_in_recovery: u32,
    acknowledged: u64,
    commits: u64,
    recovery_micros: Vec<u64>,
    elapsed: Duration,
    problems: Vec<String>,
}

/// The supervisor.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let seed =
        arguments.seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64));
    if arguments.nodes.is_some() {
        return crate::elsewhere("demo --nodes", "caliburn-node demo", "caliburn-node");
    }
    let (dir, temporary) = match &arguments.store {
        Some(path) => (path.clone(), false),
        None => (std::env::temp_dir().join(format!("caliburn-demo-{}.store", std::process::id())), true),
    };
    let files = words::text_files(&arguments.input)?;
    if files.is_empty() {
        return Err(format!("there are no text files under {}", arguments.input.display()).into());
    }
    let texts = files.iter().filter_map(|f| words::read_text(f));
    let (mut bytes, mut plain, mut total) = (0u64, HashMap::<String, u64>::new(), 0u64);
    for text in texts {
        bytes += text.len() as u64;
        for word in words::words(&text) {
            *plain.entry(word).or_default() += 1;
            total += 1;
        }
    }
    if dir.exists() {
        remove_store(&dir)?;
    }
    let work = dir.with_extension("work");
    std::fs::create_dir_all(&work)?;
    let _ = std::fs::remove_file(work.join(STOP));
    let list = work.join("files");
    let mut file = std::fs::File::create(&list)?;
    writeln!(file, "{bytes}")?;
    for path in &files {
        writeln!(file, "{}", path.display())?;
    }
    drop(file);
    let store = Store::options().create_new(true).open(&dir)?;
    drop(Table::open(&store, bytes)?);
    store.close()?;

    let mut outcome = supervise(arguments, &dir, &list, &work.join(STOP), seed)?;
    let rounds = compare(&dir, &plain, files.len() as u64, bytes, &mut outcome)?;
    let good = outcome.problems.is_empty();
    report(arguments, &outcome, seed, rounds, files.len(), bytes, plain.len(), total);
    std::fs::remove_dir_all(&work)?;
    if temporary && good {
        std::fs::remove_dir_all(&dir)?;
    } else if !good {
        eprintln!("the store is kept in {}", dir.display());
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Removes a store of an earlier demonstration, and nothing else.
fn remove_store(dir: &Path) -> Result<(), Failure> {
    let empty = std::fs::read_dir(dir)?.next().is_none();
    if !empty && !dir.join("table.segment").exists() {
        return Err(
            format!("{} is not a store of the demonstration; name another directory", dir.display()).into()
        );
    }
    Ok(std::fs::remove_dir_all(dir)?)
}

fn supervise(
    arguments: &Arguments,
    dir: &Path,
    list: &Path,
    stop: &Path,
    seed: u64,
) -> Result<Outcome, Failure> {
    let mut random = Random(seed);
    let mut outcome = Outcome::default();
    let bar = if arguments.json || !std::io::stderr().is_terminal() {
        ProgressBar::hidden()
    } else {
        ProgressBar::new(arguments.kills.into())
    };
    bar.set_style(ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} kills  {msg}")?);
    let start = Instant::now();
    loop {
        let last = outcome.kills == arguments.kills;
        if last {
            std::fs::write(stop, "")?;
        }
        let mut running = Running::start(dir, list, arguments.class)?;
        // Some die within their first milliseconds, in the middle of recovery; the others while they count.
        let life = Duration::from_micros(if random.below(3) == 0 {
            random.below(12_000)
        } else {
            12_000 + random.below(80_000)
        });
        let deadline = if last { None } else { Some(Instant::now() + life) };
        let ended = watch(&running, deadline, &mut outcome);
        if !ended {
            running.child.kill()?;
            outcome.kills += 1;
            bar.inc(1);
        }
        let status = running.child.wait()?;
        // What it had said before it died counts as acknowledged.
        watch(&running, None, &mut outcome);
        let rate = outcome.commits as f64 / start.elapsed().as_secs_f64();
        let recovery = outcome.recovery_micros.last().map_or(0.0, |us| *us as f64 / 1e3);
        bar.set_message(format!("{rate:.0} commits/s, last recovery {recovery:.1} ms"));
        if ended {
            if !status.success() {
                outcome.problems.push(format!("a worker that was not killed ended with {status}"));
            }
            outcome.elapsed = start.elapsed();
            bar.finish_and_clear();
            return Ok(outcome);
        }
    }
}

/// Reads what a worker says until the deadline, or until it says no more. True if it came to its end.
fn watch(running: &Running, deadline: Option<Instant>, outcome: &mut Outcome) -> bool {
    let mut ready = false;
    loop {
        let line = match deadline {
            None => running.lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => running.lines.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match line {
            Ok(Line::Ready { files, micros }) => {
                ready = true;
                outcome.recovery_micros.push(micros);
                if files < outcome.acknowledged {
                    let lost = outcome.acknowledged - files;
                    outcome.problems.push(format!("{lost} acknowledged transactions were lost"));
                }
            }
            Ok(Line::Done(files)) => {
                outcome.acknowledged = files;
                outcome.commits += 1;
            }
            Ok(Line::End) => {}
            Err(RecvTimeoutError::Timeout) => {
                outcome.kills_in_recovery += u32::from(!ready);
                return false;
            }
            Err(RecvTimeoutError::Disconnected) => return true,
        }
    }
}

/// Compares every count with the plain count. Returns the number of rounds.
fn compare(
    dir: &Path,
    plain: &HashMap<String, u64>,
    files: u64,
    bytes: u64,
    outcome: &mut Outcome,
) -> Result<u64, Failure> {
    let check = caliburn::check(dir)?;
    outcome.problems.extend(
        check.problems.iter().map(|p| format!("{}, offset {}: {}", p.path.display(), p.offset, p.text)),
    );
    let store = Store::open(dir)?;
    let table = Table::open(&store, bytes)?;
    if !table.files().is_multiple_of(files) || table.files() < outcome.acknowledged {
        outcome.problems.push(format!(
            "{} files were counted, {} acknowledged",
            table.files(),
            outcome.acknowledged
        ));
    }
    let rounds = table.files() / files;
    let counts = table.counts();
    for (word, count) in plain {
        let found = counts.get(word).copied().unwrap_or(0);
        if found != count * rounds {
            outcome.problems.push(format!("{word:?} was counted {found} times, expected {}", count * rounds));
        }
    }
    for word in counts.keys().filter(|w| !plain.contains_key(*w)) {
        outcome.problems.push(format!("{word:?} was counted and is in no file"));
    }
    drop(table);
    store.close()?;
    Ok(rounds)
}

#[expect(clippy::too_many_arguments, reason = "all that the summary shows")]
fn report(
    arguments: &Arguments,
    outcome: &Outcome,
    seed: u64,
    rounds: u64,
    files: usize,
    bytes: u64,
    words: usize,
    total: u64,
) {
    let mut recoveries: Vec<f64> = outcome.recovery_micros.iter().map(|us| *us as f64 / 1e3).collect();
    recoveries.sort_by(f64::total_cmp);
    let median = recoveries.get(recoveries.len() / 2).copied().unwrap_or(0.0);
    let worst = recoveries.last().copied().unwrap_or(0.0);
    let rate = outcome.commits as f64 / outcome.elapsed.as_secs_f64();
    let class = if arguments.class == ClassName::Power { "power" } else { "process" };
    if arguments.json {
        println!(
            "{}",
            json!({"exact": outcome.problems.is_empty(), "problems": outcome.problems, "class": class, "seed": seed, "files": files,
                "input_bytes": bytes, "distinct_words": words, "words": total, "rounds": rounds, "kills": outcome.kills,
                "kills_in_recovery": outcome.kills_in_recovery, "commits": outcome.commits, "commits_per_second": rate,
                "open_ms_median": median, "open_ms_worst": worst, "seconds": outcome.elapsed.as_secs_f64()})
        );
        return;
    }
    println!(
        "Counted the words of {files} text files ({}) in recoverable memory, {rounds} times over,",
        size::show(bytes)
    );
    println!(
        "one transaction per file: {} commits, {rate:.0} a second, each to survive a {}.",
        outcome.commits,
        if class == "power" { "power cut" } else { "killed process" }
    );
    println!(
        "The program was killed {} times ({} of them before it had recovered) and was back after",
        outcome.kills, outcome.kills_in_recovery
    );
    println!("{median:.1} ms (median; worst {worst:.1} ms). Seed {seed}.");
    if outcome.problems.is_empty() {
        println!(
            "All {words} counts equal a plain count of the files: nothing was lost, nothing counted twice."
        );
    } else {
        println!("NOT EXACT:");
        outcome.problems.iter().take(20).for_each(|p| println!("  {p}"));
        if outcome.problems.len() > 20 {
            println!("  and {} more", outcome.problems.len() - 20);
        }
    }
}
