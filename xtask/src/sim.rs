//! The crash tests, which need builds of their own: `--cfg caliburn_sim` has the simulator's hooks and the
//! planted bugs, `--cfg caliburn_shuttle` the deterministic scheduler too.

use crate::{planted, succeed};
use std::path::PathBuf;
use std::process::Command;

/// The two builds, by their target folders.
pub const SIM: (&str, &str) = ("target/sim", "--cfg caliburn_sim");
pub const SHUTTLE: (&str, &str) = ("target/shuttle", "--cfg caliburn_sim --cfg caliburn_shuttle");

pub fn cargo((folder, flags): (&str, &str), line: &str) -> Command {
    let mut command = Command::new("cargo");
    command.args(line.split(' ')).args(["--profile", "sim", "--target-dir", folder]).env("RUSTFLAGS", flags);
    command
}

pub fn build(kind: (&str, &str)) -> Result<PathBuf, String> {
    succeed(cargo(kind, "build --quiet -p caliburn-sim"), &format!("build with {}", kind.1))?;
    Ok(PathBuf::from(kind.0).join("sim/caliburn-sim"))
}

fn simulate(kind: (&str, &str), line: &str) -> Result<(), String> {
    let mut command = Command::new(build(kind)?);
    command.args(line.split(' '));
    succeed(command, &format!("simulation: {line}"))
}

/// What CI runs of all this. Of what takes long it takes a share, another one for each commit.
pub fn test() -> Result<(), String> {
    let mut clippy = cargo(SIM, "clippy --quiet -p caliburn-sim --all-targets");
    clippy.args(["--", "--deny", "warnings"]);
    succeed(clippy, "clippy of the simulator")?;
    succeed(cargo(SIM, "test --quiet -p caliburn-sim"), "tests of the simulator")?;
    for line in [
        "exhaustive --transactions 2 --later 0 --share 2",
        "torture --images 30000",
        "faults --share 96 --workloads 3",
        "creation",
        "names --walks 40",
        "flips",
        "exhaustive --transactions 2 --undo",
        "torture --images 30000 --undo",
        "faults --share 4 --undo",
        "creation --undo",
        "exhaustive --transactions 2 --share 2 --persistent",
        "torture --images 20000 --persistent",
        "faults --share 12 --persistent",
        "creation --persistent",
        "exhaustive --transactions 2 --later 0 --share 3 --adopted",
        "torture --images 10000 --adopted",
        "creation --adopted",
        "exhaustive --transactions 2 --shadow",
        "torture --images 30000 --shadow",
        "faults --share 64 --workloads 3 --shadow",
        "creation --shadow",
        "exhaustive --transactions 2 --caught",
        "torture --images 5000 --caught",
        "faults --share 96 --workloads 3 --caught",
        "exhaustive --transactions 2 --lazy",
        "torture --images 10000 --lazy",
        "faults --share 96 --workloads 3 --lazy",
        "exhaustive --transactions 1 --share 2 --pool",
        "torture --images 3000 --pool",
        "faults --share 1000 --workloads 1 --pool",
        "torture --images 5000 --large",
        "faults --share 400 --workloads 1 --large",
        "torture --images 10000 --found",
        "creation --found",
        "faults --share 96 --workloads 3 --found",
        "flips --workloads 400 --shadow",
        "copies",
        "yesterday --workloads 50",
        "yesterday --workloads 50 --undo",
        "yesterday --workloads 50 --shadow",
        "yesterday --workloads 20 --persistent",
        "torture --images 10000 --duplex",
        "creation --duplex",
        "heap",
        "heap --undo",
        "heap --persistent",
        "pm --workloads 16",
        "pm --workloads 8 --persistent",
    ] {
        let share =
            if line.contains("--share") { format!(" --offset {}", planted::turn()) } else { String::new() };
        simulate(SIM, &format!("{line}{share}"))?;
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
    planted::plant(planted::Which::Part)
}

/// All of it, at sizes that take hours.
pub fn soak() -> Result<(), String> {
    test()?;
    planted::plant(planted::Which::All)?;
    for line in [
        "exhaustive --transactions 3 --later 1",
        "exhaustive --transactions 3 --undo",
        "exhaustive --transactions 3 --persistent",
        "exhaustive --transactions 3 --shadow",
        "exhaustive --transactions 2 --later 0 --adopted",
        "exhaustive --transactions 2 --pool",
        "faults --undo",
        "faults --persistent",
        "exhaustive --transactions 2 --later 0 --duplex",
        "faults --duplex",
        "copies --workloads 10000 --seed 2",
        "yesterday --workloads 10000 --seed 1000",
        "yesterday --workloads 10000 --seed 1000 --undo",
        "yesterday --workloads 10000 --seed 1000 --shadow",
        "yesterday --workloads 5000 --seed 1000 --persistent",
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
        "torture --images 100000 --seed 9 --pool",
        "torture --images 100000 --seed 10 --large",
        "faults --large",
        "faults --share 16 --pool",
        "names --walks 10000 --seed 1000",
        "pm --workloads 2000 --seed 2",
        "pm --workloads 2000 --seed 3 --persistent",
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
    clusters.args(["--config", "profile.sim.package.caliburn-dist.opt-level=3"]);
    clusters.env("CALIBURN_SEEDS", "1000000");
    succeed(clusters, "a million clusters")?;
    crate::run("cargo run --release --quiet -p caliburn-node -- demo --kills 500")
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
