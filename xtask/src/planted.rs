//! Planted bugs: mistakes that `--cfg caliburn_sim` builds make when they are told to by name, each with the test
//! that must catch it. Whoever changes that test so that it can no more notices here.

use crate::sim::{SHUTTLE, SIM, build, cargo};
use crate::{steps, succeed};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Tests that say that they did not run where there is no etcd.
const ETCD: [&str; 5] = [
    "-p caliburn-dist --test keepers etcd",
    "-p caliburn-dist --test lost",
    "-p caliburn-dist --lib log",
    "-p caliburn-node --test etcd",
    "-p caliburn-dist --test restored",
];
/// The package whose tests catch most bugs, and build soon. Bugs that tests of another one catch are chosen
/// together.
const LARGEST: &str = "caliburn";
const ESCAPED: &str = "ESCAPED";
/// What takes longer with a bug hangs.
const LONGEST: Duration = Duration::from_secs(600);
/// Longer than any test takes that finds nothing.
const LONGEST_UNPLANTED: Duration = Duration::from_secs(3600);
/// Where the planted bugs are listed, each with what catches it.
const LIST: &str = "docs/testing.md";

/// A planted bug and what catches it.
struct Planted {
    name: String,
    caught_by: String,
}

impl Planted {
    /// The package whose test catches it, if it is no simulation.
    fn package(&self) -> Option<&str> {
        self.caught_by.strip_prefix("test -p ")?.split(' ').next()
    }
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
fn planted(folders: &[&str]) -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    let mut folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))? {
            let path = entry.map_err(|e| e.to_string())?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).map_err(|e| e.to_string())?;
                names.extend(planted_in(&text));
            }
        }
    }
    Ok(names)
}

/// Names of the bugs in one source: the first argument of the functions that ask for a planted bug.
fn planted_in(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for call in ["planted(", "unless(", "even_if(", "instead("] {
        let found = text.split(call).skip(1);
        // A long call has its arguments on the next line.
        let literal = found.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
        names.extend(literal.map(str::to_owned));
    }
    names
}

/// Checks that the sources and the table in `docs/testing.md` name the same bugs.
pub fn check_list() -> Result<(), String> {
    let planted = planted(&["crates", "layers"])?;
    let listed: BTreeSet<String> = list()?.into_iter().map(|row| row.name).collect();
    let only =
        |these: &BTreeSet<String>, those| these.difference(those).cloned().collect::<Vec<_>>().join(", ");
    match (only(&planted, &listed), only(&listed, &planted)) {
        (planted, listed) if planted.is_empty() && listed.is_empty() => Ok(()),
        (planted, listed) => Err(format!(
            "the sources alone name the planted bugs [{planted}], and {LIST} alone names [{listed}]"
        )),
    }
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
    /// One in seven: other ones for each commit.
    Part,
    /// The one of this name.
    Named(&'n str),
    All,
}

impl Which<'_> {
    fn chooses(self, planted: &Planted, commit: Option<&str>) -> bool {
        match (self, commit) {
            (Which::Part, Some(commit)) => {
                let mut hasher = DefaultHasher::new();
                // What is built for one bug serves for others.
                (commit, planted.package().filter(|package| *package != LARGEST).unwrap_or(&planted.name))
                    .hash(&mut hasher);
                hasher.finish().is_multiple_of(7)
            }
            (Which::Named(name), _) => planted.name == name,
            // Who does not know which commit it is plants all.
            (Which::All | Which::Part, _) => true,
        }
    }
}

/// A number that differs from commit to commit: which share of some tests is run.
pub fn turn() -> u64 {
    let mut hasher = DefaultHasher::new();
    commit().hash(&mut hasher);
    hasher.finish() % 1_000_000
}

/// The commit that is checked out, if that can be told.
fn commit() -> Option<String> {
    let told = crate::command("git rev-parse HEAD").output().ok().filter(|told| told.status.success())?;
    String::from_utf8(told.stdout).ok()
}

/// Plants bugs, as many side by side as there are processors, and demands that what is said to catch each does.
pub fn plant(which: Which<'_>) -> Result<(), String> {
    check_list()?;
    let list = list()?;
    let commit = commit();
    let mut chosen: Vec<&Planted> =
        list.iter().filter(|planted| which.chooses(planted, commit.as_deref())).collect();
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
    if !matches!(which, Which::Part) {
        sound(&chosen, &simulators)?;
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
    steps::timed(&format!("plant {} bugs", chosen.len()), || {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(plant_next)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("workers do not panic"))
        })
    })?;
    let escaped = escaped.into_inner().expect("no panic under this lock");
    println!("{} of {} caught", chosen.len() - escaped.len(), chosen.len());
    if escaped.is_empty() { Ok(()) } else { Err(format!("not caught: {}", escaped.join(", "))) }
}

/// What catches bugs finds none where none is planted: else it would catch whatever is.
fn sound(chosen: &[&Planted], simulators: &(PathBuf, PathBuf)) -> Result<(), String> {
    let tests: BTreeSet<&str> = chosen.iter().map(|planted| &*planted.caught_by).collect();
    for test in tests {
        let outcome = run_planted(catcher(test, simulators, "none"), LONGEST_UNPLANTED, "caught")?;
        if outcome != ESCAPED {
            return Err(format!("{test}: {outcome}, and no bug was planted"));
        }
    }
    Ok(())
}

/// What is to catch a bug, which is planted.
fn catcher(caught_by: &str, (sim, shuttle): &(PathBuf, PathBuf), name: &str) -> Command {
    let mut command = match caught_by.split_once(' ') {
        Some(("test", target)) => cargo(SIM, &format!("test --quiet {target}")),
        _ if caught_by.starts_with("threads") => Command::new(shuttle),
        _ => Command::new(sim),
    };
    if !caught_by.starts_with("test ") {
        command.args(caught_by.split(' '));
    }
    command.env("CALIBURN_PLANTED", name);
    command
}

/// Plants a bug and runs what is to catch it, with the simulators as they were built.
fn is_caught(planted: &Planted, simulators: &(PathBuf, PathBuf)) -> Result<bool, String> {
    let start = Instant::now();
    let mut outcome = ESCAPED;
    // Some tests need two threads to meet, which on a busy machine they may miss. A bug that is caught late is
    // shown as such: its test wants mending.
    for late in ["caught", "caught late", "caught late"] {
        outcome = run_planted(catcher(&planted.caught_by, simulators, &planted.name), LONGEST, late)?;
        if outcome != ESCAPED {
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{:34} {:60} {outcome}, {seconds:.0} s", planted.name, planted.caught_by);
    Ok(outcome != ESCAPED)
}

fn run_planted(
    mut command: Command,
    longest: Duration,
    caught: &'static str,
) -> Result<&'static str, String> {
    // What it starts is of its group, and ends with it.
    command.process_group(0);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).spawn();
    let mut child = child.map_err(|e| format!("{command:?}: {e}"))?;
    let deadline = Instant::now() + longest;
    while Instant::now() < deadline {
        if child.try_wait().map_err(|e| e.to_string())?.is_some() {
            let Output { status, .. } = child.wait_with_output().map_err(|e| e.to_string())?;
            return Ok(if status.success() { ESCAPED } else { caught });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status();
    let _ = child.kill();
    let _ = child.wait();
    Ok("caught (it hung)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_however_a_call_is_wrapped() {
        let text = "if unless(\"a\", x) && instead(\n    \"b\",\n y) { even_if(true, \"c\") }";
        assert_eq!(planted_in(text), ["a", "b"]);
    }
}
