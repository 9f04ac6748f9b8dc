//! The workspace's tests: built together, then as many test programs side by side as there are processors. Many of
//! them wait for disks, signals and children, so one after the other leaves half of the machine idle.

use crate::steps::{command, succeed, timed};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// One program with tests.
struct Program {
    name: String,
    /// The target's name alone.
    target: String,
    path: PathBuf,
    /// Of the package: tests look for files beside it.
    folder: PathBuf,
}

/// How one program ended.
struct Ended {
    seconds: f64,
    name: String,
    /// What it printed, if it failed.
    failure: Option<String>,
    passed: usize,
    failed: usize,
}

/// Which of the tests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those of the workspace, and the examples in its documentation.
    All,
    /// Those of the crates in [`QUICK`] that take seconds.
    Quick,
}

/// The crates that programs with one store build on, and the command.
const QUICK: &str = "-p caliburn-os -p caliburn-log -p caliburn-engine -p caliburn-heap -p caliburn-typed -p caliburn \
                     -p caliburn-tools -p caliburn-command";
/// Test programs of these crates that take longer than some seconds.
pub const LONG: &[&str] = &[
    "ahead",
    "archive",
    "backup",
    "backup_cuts",
    "calls",
    "decided_lazily",
    "faults",
    "few_descriptors",
    "kill",
    "model",
    "outgrow",
    "pool",
    "power_cut",
    "refused",
    "relocate",
    "replica",
    "small_memory",
];

/// Runs tests. `kills` is how many processes each test of kills kills.
pub fn run(which: Which, kills: u32) -> Result<(), String> {
    let mut programs = timed("build the tests", || build(which))?;
    if which == Which::Quick {
        programs.retain(|program| !LONG.contains(&&*program.target));
    }
    let mut ended = timed("tests", || run_side_by_side(&programs, kills))?;
    ended.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    println!("--- {} test programs; the longest:", ended.len());
    for program in ended.iter().take(12) {
        println!("{:7.0} s  {}", program.seconds, program.name);
    }
    let sum = |count: fn(&Ended) -> usize| ended.iter().map(count).sum::<usize>();
    println!("{} passed, {} failed", sum(|program| program.passed), sum(|program| program.failed));
    let wrong: Vec<&str> = ended.iter().filter(|p| p.failure.is_some()).map(|p| &*p.name).collect();
    if !wrong.is_empty() {
        return Err(format!("failed: {}", wrong.join(", ")));
    }
    if which == Which::Quick {
        return Ok(());
    }
    let documentation = "cargo test --workspace --doc --quiet";
    succeed(command(documentation), documentation)
}

fn build(which: Which) -> Result<Vec<Program>, String> {
    println!("--- build the tests");
    let of = if which == Which::All { "--workspace" } else { QUICK };
    let line = format!("cargo test {of} --no-run --quiet --message-format=json-render-diagnostics");
    let mut cargo = command(&line);
    let built = cargo.stderr(Stdio::inherit()).output().map_err(|e| format!("cargo: {e}"))?;
    if !built.status.success() {
        return Err(format!("build the tests: {}", built.status));
    }
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&built.stdout).lines() {
        let told: serde_json::Value =
            serde_json::from_str(line).map_err(|e| format!("cargo said {line:?}: {e}"))?;
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let (Some(path), true) = (text(&told["executable"]), told["profile"]["test"] == true) else {
            continue;
        };
        let manifest = PathBuf::from(text(&told["manifest_path"]).ok_or("cargo names no manifest")?);
        let folder = manifest.parent().ok_or("a manifest has no folder")?.to_owned();
        let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let kind = text(&told["target"]["kind"][0]).unwrap_or_default();
        let target = text(&told["target"]["name"]).unwrap_or_default();
        let name = format!("{package}, {kind} {target}");
        programs.push(Program { name, target, path: path.into(), folder });
    }
    if programs.is_empty() { Err("cargo built no tests".into()) } else { Ok(programs) }
}

fn run_side_by_side(programs: &[Program], kills: u32) -> Result<Vec<Ended>, String> {
    let (next, ended) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> Result<(), String> {
        while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let done = run_one(program, kills)?;
            if let Some(said) = &done.failure {
                println!("--- {} failed:\n{said}", program.name);
            }
            ended.lock().expect("no panic under this lock").push(done);
        }
        Ok(())
    };
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("workers do not panic"))
    })?;
    Ok(ended.into_inner().expect("no panic under this lock"))
}

fn run_one(program: &Program, kills: u32) -> Result<Ended, String> {
    let start = Instant::now();
    let mut test = Command::new(&program.path);
    test.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    test.env("CALIBURN_KILLS", kills.to_string()).stdin(Stdio::null());
    let output = test.output().map_err(|e| format!("{}: {e}", program.path.display()))?;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (passed, failed) = counted(&said);
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    let failure = (!output.status.success()).then(|| format!("{said}\n{}", output.status));
    let seconds = start.elapsed().as_secs_f64();
    Ok(Ended { seconds, name: program.name.clone(), failure, passed, failed })
}

/// Passed and failed tests, as the program's last line counts them: `test result: ok. 3 passed; 0 failed; ...`.
fn counted(said: &str) -> (usize, usize) {
    let count = |word: &str| {
        let line = said.lines().rfind(|line| line.starts_with("test result: "))?;
        line.split([';', '.']).find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
    };
    (count("passed").unwrap_or(0), count("failed").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(path: &str, name: &str) -> Program {
        Program { name: name.into(), target: name.into(), path: path.into(), folder: "/".into() }
    }

    #[test]
    fn a_program_that_fails_is_told() {
        let ended = run_side_by_side(&[program("/bin/true", "a"), program("/bin/false", "b")], 1).unwrap();
        let failed: Vec<&str> = ended.iter().filter(|p| p.failure.is_some()).map(|p| &*p.name).collect();
        assert_eq!(failed, ["b"]);
        assert!(run_side_by_side(&[program("/nowhere", "c")], 1).is_err());
    }

    #[test]
    fn tests_are_counted() {
        let said = "running 3 tests\n\ntest result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured\n";
        assert_eq!(counted(said), (2, 1));
        assert_eq!(counted("no tests at all"), (0, 0));
    }
}
