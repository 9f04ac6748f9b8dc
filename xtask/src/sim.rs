//! The crash tests, which need builds of their own: `--cfg caliburn_sim` has the simulator's hooks and the
//! planted bugs, `--cfg caliburn_shuttle` the deterministic scheduler too.

use crate::succeed;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The two builds, by their target folders.
const SIM: (&str, &str) = ("target/sim", "--cfg caliburn_sim");
const SHUTTLE: (&str, &str) = ("target/shuttle", "--cfg caliburn_sim --cfg caliburn_shuttle");
/// Tests that say that they did not run where there is no etcd.
const ETCD: [&str; 3] =
    ["-p caliburn-dist --test keepers etcd", "-p caliburn-dist --test lost", "-p caliburn-dist --lib log"];
/// Where the planted bugs are listed, each with what catches it.
const LIST: &str = "docs/testing.md";

fn cargo((folder, flags): (&str, &str), line: &str) -> Command {
    let mut command = Command::new("cargo");
    command.args(line.split(' ')).args(["--profile", "sim", "--target-dir", folder]).env("RUSTFLAGS", flags);
    command
}

fn build(kind: (&str, &str)) -> Result<PathBuf, String> {
    succeed(cargo(kind, "build --quiet -p caliburn-sim"), &format!("build with {}", kind.1))?;
    Ok(PathBuf::from(kind.0).join("sim/caliburn-sim"))
}

fn simulate(kind: (&str, &str), line: &str) -> Result<(), String> {
    let mut command = Command::new(build(kind)?);
    command.args(line.split(' '));
    succeed(command, &format!("simulation: {line}"))
}

/// What CI runs of all this.
pub fn test() -> Result<(), String> {
    let mut clippy = cargo(SIM, "clippy --quiet -p caliburn-sim --all-targets");
    clippy.args(["--", "--deny", "warnings"]);
    succeed(clippy, "clippy of the simulator")?;
    succeed(cargo(SIM, "test --quiet -p caliburn-sim"), "tests of the simulator")?;
    for line in [
        "exhaustive --transactions 2 --later 1",
        "torture --images 30000",
        "faults --share 3",
        "creation",
        "names",
        "flips",
        "exhaustive --transactions 3 --undo",
        "torture --images 30000 --undo",
        "faults --undo",
        "creation --undo",
        "exhaustive --transactions 2 --persistent",
        "torture --images 20000 --persistent",
        "faults --persistent",
        "creation --persistent",
        "exhaustive --transactions 2 --later 0 --adopted",
        "torture --images 10000 --adopted",
        "creation --adopted",
        "exhaustive --transactions 3 --shadow",
        "torture --images 30000 --shadow",
        "faults --share 6 --shadow",
        "creation --shadow",
        "exhaustive --transactions 2 --caught",
        "torture --images 5000 --caught",
        "faults --share 16 --workloads 5 --caught",
        "exhaustive --transactions 2 --lazy",
        "torture --images 10000 --lazy",
        "faults --share 16 --workloads 5 --lazy",
        "torture --images 10000 --found",
        "creation --found",
        "faults --share 8 --workloads 5 --found",
        "flips --workloads 400 --shadow",
        "copies",
        "torture --images 10000 --duplex",
        "creation --duplex",
        "heap",
        "heap --undo",
        "heap --persistent",
    ] {
        simulate(SIM, line)?;
    }
    simulate(SHUTTLE, "threads --schedules 4000")?;
    simulate(SHUTTLE, "threads --schedules 2000 --heap")?;
    simulate(SHUTTLE, "threads --schedules 4000 --group")?;
    simulate(SHUTTLE, "threads --schedules 2000 --images")?;
    simulate(SHUTTLE, "threads --schedules 2000 --images --undo")?;
    simulate(SHUTTLE, "threads --schedules 1000 --dumps")?;
    simulate(SHUTTLE, "threads --schedules 2000 --dumps --undo")?;
    simulate(SHUTTLE, "threads --schedules 500 --dumps --persistent")?;
    simulate(SHUTTLE, "threads --schedules 100000 --locks")?;
    simulate(SHUTTLE, "threads --schedules 2000 --replicas")?;
    mutants(None)
}

/// Some of it.
pub fn quick() -> Result<(), String> {
    for line in [
        "exhaustive --transactions 2 --later 1",
        "exhaustive --transactions 2 --undo",
        "torture --images 3000",
    ] {
        simulate(SIM, line)?;
    }
    simulate(SHUTTLE, "threads --schedules 500")
}

/// All of it, at sizes that take hours.
pub fn soak() -> Result<(), String> {
    test()?;
    for line in [
        "exhaustive --transactions 3 --later 1",
        "exhaustive --transactions 3 --persistent",
        "exhaustive --transactions 2 --later 0 --duplex",
        "faults --duplex",
        "copies --workloads 10000 --seed 2",
        "torture --images 1000000 --seed 2",
        "torture --images 1000000 --seed 3 --undo",
        "torture --images 1000000 --seed 4 --persistent",
        "torture --images 300000 --seed 5 --adopted",
        "torture --images 1000000 --seed 6 --shadow",
        "exhaustive --transactions 2 --later 0 --found",
        "torture --images 300000 --seed 7 --found",
        "faults",
        "faults --shadow",
        "faults --found",
        "torture --images 300000 --seed 8 --lazy",
        "faults --caught",
        "faults --lazy",
        "names --walks 10000 --seed 1000",
    ] {
        simulate(SIM, line)?;
    }
    simulate(SHUTTLE, "threads --schedules 200000")?;
    simulate(SHUTTLE, "threads --schedules 100000 --heap")?;
    simulate(SHUTTLE, "threads --schedules 200000 --group")?;
    simulate(SHUTTLE, "threads --schedules 200000 --images")?;
    simulate(SHUTTLE, "threads --schedules 200000 --images --undo")?;
    simulate(SHUTTLE, "threads --schedules 50000 --dumps")?;
    simulate(SHUTTLE, "threads --schedules 100000 --dumps --undo")?;
    simulate(SHUTTLE, "threads --schedules 20000 --dumps --persistent")?;
    simulate(SHUTTLE, "threads --schedules 3000000 --locks")?;
    simulate(SHUTTLE, "threads --schedules 100000 --replicas")?;
    let mut commit = Command::new("cargo");
    commit.args(["test", "--release", "--quiet", "-p", "caliburn-dist"]);
    succeed(commit, "commit protocols, more of them")?;
    let mut clusters = cargo(SIM, "test --quiet -p caliburn-dist --test cluster");
    clusters.env("CALIBURN_SEEDS", "1000000");
    succeed(clusters, "a million clusters")?;
    crate::run("cargo run --release --quiet -- demo --nodes 3 --kills 500")
}

/// Long random workloads until so many crash images were recovered.
pub fn torture(images: &str, seed: &str) -> Result<(), String> {
    simulate(SIM, &format!("torture --images {images} --seed {seed}"))
}

/// Any command of the simulator.
pub fn run(line: &[&str]) -> Result<(), String> {
    let kind = if line.first() == Some(&"threads") { SHUTTLE } else { SIM };
    let mut command = Command::new(build(kind)?);
    command.args(line);
    succeed(command, "simulation")
}

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
fn tests_of(list: &[Planted]) -> BTreeMap<&str, String> {
    let mut all: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for planted in list {
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

/// Plants each bug in turn, or the one named, and demands that what is said to catch it does.
pub fn mutants(only: Option<&str>) -> Result<(), String> {
    let list = list()?;
    let mut listed: Vec<&str> = list.iter().map(|p| &*p.name).collect();
    listed.sort_unstable();
    let planted = planted(&["crates", "layers"])?;
    if planted != listed {
        return Err(format!("the planted bugs are {planted:?}, and {LIST} lists {listed:?}"));
    }
    let (sim, shuttle) = (build(SIM)?, build(SHUTTLE)?);
    // A build that fails would pass for a bug that is caught.
    for (package, targets) in tests_of(&list) {
        let line = format!("test --quiet --no-run -p {package} {targets}");
        succeed(cargo(SIM, &line), &format!("build the tests of {package}"))?;
    }
    let mut escaped = Vec::new();
    let mut chosen: Vec<&Planted> = list.iter().filter(|p| only.is_none_or(|name| p.name == name)).collect();
    if Command::new("etcd").arg("--version").output().is_err() {
        // The tests say that they did not run, which would pass for a bug that escaped.
        let needs = |planted: &&Planted| ETCD.iter().any(|test| planted.caught_by.contains(test));
        chosen.iter().filter(|p| needs(p)).for_each(|p| println!("--- not run for want of etcd: {}", p.name));
        chosen.retain(|planted| !needs(planted));
    }
    println!("--- {} planted bugs", chosen.len());
    for planted in &chosen {
        let start = Instant::now();
        let mut outcome = "ESCAPED";
        // Some tests need two threads to meet, which on a busy machine they may miss. A bug that is caught late is
        // shown as such: its test wants mending.
        for late in ["caught", "caught late", "caught late"] {
            let mut command = match planted.caught_by.split_once(' ') {
                Some(("test", target)) => cargo(SIM, &format!("test --quiet {target}")),
                _ if planted.caught_by.starts_with("threads") => Command::new(&shuttle),
                _ => Command::new(&sim),
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
        println!(
            "{:34} {:60} {outcome}, {:.0} s",
            planted.name,
            planted.caught_by,
            start.elapsed().as_secs_f64()
        );
        if outcome == "ESCAPED" {
            escaped.push(&*planted.name);
        }
    }
    println!("{} of {} caught", chosen.len() - escaped.len(), chosen.len());
    if escaped.is_empty() { Ok(()) } else { Err(format!("not caught: {}", escaped.join(", "))) }
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
