//! Planted bugs: mistakes that `--cfg caliburn_sim` builds make when they are told to by name, each with the test
//! that must catch it. Whoever changes that test so that it can no more notices here.

use crate::sim::{SHUTTLE, SIM, build, cargo};
use crate::succeed;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Tests that say that they did not run where there is no etcd.
const ETCD: [&str; 3] =
    ["-p caliburn-dist --test keepers etcd", "-p caliburn-dist --test lost", "-p caliburn-dist --lib log"];
/// Where the planted bugs are listed, each with what catches it.
const LIST: &str = "docs/testing.md";

/// A planted bug and what catches it.
struct Planted {
    name: String,
    caught_by: String,
}

/// The table's rows: `| name | what is wrong | caught by |`.
fn list() -> Result<Vec<Planted>, String> {
    let text = fs::read_to_string(LIST).map_err(|e| format!("{LIST}: {e}"))?;
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _, caught_by] = cells[..] else { return None };
        let (name, caught_by) = (name.strip_prefix('`')?.strip_suffix('`')?, caught_by.trim_matches('`'));
        Some(Planted { name: name.into(), caught_by: caught_by.into() })
    };
    let rows = text.split("## Planted bugs").nth(1).ok_or(format!("{LIST} has no part \"Planted bugs\""))?;
    Ok(rows.lines().take_while(|line| !line.starts_with("## ")).filter_map(row).collect())
}

/// Names of the bugs in the sources.
fn planted(folders: &[&str]) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let mut folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))? {
            let path = entry.map_err(|e| e.to_string())?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).map_err(|e| e.to_string())?;
                for form in ["planted", "unless", "even_if", "instead"] {
                    let call = format!("{form}(\"");
                    let found = text.split(&call).skip(1);
                    names.extend(found.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
                }
            }
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// The tests that catch planted bugs, by their packages: built together they keep all processors busy.
fn tests_of<'p>(list: &[&'p Planted]) -> BTreeMap<&'p str, String> {
    let mut all: BTreeMap<&'p str, BTreeSet<String>> = BTreeMap::new();
    for &planted in list {
        let words: Vec<&str> = planted.caught_by.split(' ').collect();
        match words[..] {
            ["test", "-p", package, "--test", name, ..] => {
                all.entry(package).or_default().insert(format!("--test {name}"));
            }
            ["test", "-p", package, "--lib", ..] => {
                all.entry(package).or_default().insert("--lib".into());
            }
            _ => {}
        }
    }
    let line = |targets: BTreeSet<String>| targets.into_iter().collect::<Vec<_>>().join(" ");
    all.into_iter().map(|(package, targets)| (package, line(targets))).collect()
}

/// Which of the planted bugs.
#[derive(Clone, Copy)]
pub enum Which<'n> {
    /// One in three, others after each commit.
    Third,
    /// The one of this name.
    Named(&'n str),
    All,
}

impl Which<'_> {
    fn chooses(self) -> Result<impl Fn(usize, &Planted) -> bool, String> {
        let third = match self {
            Which::Third => Some(commits()? % 3),
            _ => None,
        };
        Ok(move |number: usize, planted: &Planted| match self {
            Which::Third => third == Some(number % 3),
            Which::Named(name) => planted.name == name,
            Which::All => true,
        })
    }
}

/// How many commits there are.
fn commits() -> Result<usize, String> {
    let count = crate::command("git rev-list --count HEAD").output().map_err(|e| format!("git: {e}"))?;
    String::from_utf8_lossy(&count.stdout).trim().parse().map_err(|e| format!("git rev-list --count: {e}"))
}

/// Plants bugs, as many side by side as there are processors, and demands that what is said to catch each does.
pub fn plant(which: Which<'_>) -> Result<(), String> {
    let list = list()?;
    let mut listed: Vec<&str> = list.iter().map(|p| &*p.name).collect();
    listed.sort_unstable();
    let planted = planted(&["crates", "layers"])?;
    if planted != listed {
        return Err(format!("the planted bugs are {planted:?}, and {LIST} lists {listed:?}"));
    }
    let chooses = which.chooses()?;
    let mut chosen: Vec<&Planted> =
        list.iter().enumerate().filter(|(i, p)| chooses(*i, p)).map(|(_, planted)| planted).collect();
    if let (true, Which::Named(name)) = (chosen.is_empty(), which) {
        return Err(format!("{LIST} lists no planted bug {name:?}"));
    }
    if Command::new("etcd").arg("--version").output().is_err() {
        // The tests say that they did not run, which would pass for a bug that escaped.
        let needs = |planted: &&Planted| ETCD.iter().any(|test| planted.caught_by.contains(test));
        chosen.iter().filter(|p| needs(p)).for_each(|p| println!("--- not run for want of etcd: {}", p.name));
        chosen.retain(|planted| !needs(planted));
    }
    let simulators = (build(SIM)?, build(SHUTTLE)?);
    // A build that fails would pass for a bug that is caught.
    for (package, targets) in tests_of(&chosen) {
        let line = format!("test --quiet --no-run -p {package} {targets}");
        succeed(cargo(SIM, &line), &format!("build the tests of {package}"))?;
    }
    println!("--- {} of {} planted bugs", chosen.len(), list.len());
    let (next, escaped) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let plant_next = || -> Result<(), String> {
        while let Some(planted) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !is_caught(planted, &simulators)? {
                escaped.lock().expect("no panic under this lock").push(&*planted.name);
            }
        }
        Ok(())
    };
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(plant_next)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("workers do not panic"))
    })?;
    let escaped = escaped.into_inner().expect("no panic under this lock");
    println!("{} of {} caught", chosen.len() - escaped.len(), chosen.len());
    if escaped.is_empty() { Ok(()) } else { Err(format!("not caught: {}", escaped.join(", "))) }
}

/// Plants a bug and runs what is to catch it, with the simulators as they were built.
fn is_caught(planted: &Planted, (sim, shuttle): &(PathBuf, PathBuf)) -> Result<bool, String> {
    let start = Instant::now();
    let mut outcome = "ESCAPED";
    // Some tests need two threads to meet, which on a busy machine they may miss. A bug that is caught late is
    // shown as such: its test wants mending.
    for late in ["caught", "caught late", "caught late"] {
        let mut command = match planted.caught_by.split_once(' ') {
            Some(("test", target)) => cargo(SIM, &format!("test --quiet {target}")),
            _ if planted.caught_by.starts_with("threads") => Command::new(shuttle),
            _ => Command::new(sim),
        };
        if !planted.caught_by.starts_with("test ") {
            command.args(planted.caught_by.split(' '));
        }
        command.env("CALIBURN_PLANTED", &planted.name);
        outcome = run_planted(command, late)?;
        if outcome != "ESCAPED" {
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{:34} {:60} {outcome}, {seconds:.0} s", planted.name, planted.caught_by);
    Ok(outcome != "ESCAPED")
}

fn run_planted(mut command: Command, caught: &'static str) -> Result<&'static str, String> {
    // What it starts is of its group, and ends with it.
    command.process_group(0);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).spawn();
    let mut child = child.map_err(|e| format!("{command:?}: {e}"))?;
    let deadline = Instant::now() + Duration::from_secs(240);
    while Instant::now() < deadline {
        if child.try_wait().map_err(|e| e.to_string())?.is_some() {
            let Output { status, .. } = child.wait_with_output().map_err(|e| e.to_string())?;
            return Ok(if status.success() { "ESCAPED" } else { caught });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status();
    let _ = child.kill();
    let _ = child.wait();
    Ok("caught (it hung)")
}
