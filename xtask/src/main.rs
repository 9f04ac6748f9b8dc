//! Development tasks: `cargo xtask test --install` is what CI runs.

mod bench;
mod c;
mod floors;
mod fuzz;
mod install;
mod instructions;
mod manual;
mod others;
mod planted;
mod programs;
mod room;
mod runtimes;
mod rvm;
mod setup;
mod sim;
mod steps;
mod tidy;
mod vm;
mod writes;

use setup::Part;
use std::process::{Command, ExitCode};
use steps::{command, run, succeed, succeed_quietly};

const HELP: &str = "\
usage: cargo xtask TASK

  test --quick     the short round, some minutes: formatting, style, the short tests of the crates that programs with one
                   store build on; no root, no packages
  test             everything: formatting, lints, tests, documentation tests, demonstrations, small benchmarks; says what
                   it cannot run for want of packages
  test --install   the same; installs those packages first (as root, on Debian)
  soak    the crash tests at sizes that take hours
  tidy    only the style rules that no other tool checks
  torture --images N --seed S   long random workloads on simulated machines, crashed everywhere
  simulate ...   any command of the simulator; --help lists them
  mutants [NAME | --part]   plants the bugs of docs/testing.md, which must be caught: all, one, or those that CI plants
  fuzz SECONDS     coverage-guided fuzzing of whole stores with mended checksums, and of the log's reader
  tries N          as many tries with whole stores, and half as many with the address sanitizer
  c                the tests of the C interface, in C and C++, also under valgrind and the sanitizers
  bench            every workload and every rival: docs/benchmarks.html and the figures of docs/performance.md
  bench page       that page again, from what the last run wrote down
  bench COMMAND    the same with the commands that begin so measured again, such as `threads`
  instructions     counts the instructions of the hot paths and compares them with bench/instructions.txt
  install PREFIX   the C libraries, headers, man pages
  others N         programs of others on a disk of blocks, PostgreSQL with N kills of the disk
  vm N [WORD]      panics, resets and power cuts of virtual machines, N in all kinds (whose name holds a word)
  kills N          kills N processes on each of four file systems";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["test"] => test(false),
        ["test", "--install"] => test(true),
        ["test", "--quick"] => quick(),
        ["soak"] => sim::soak()
            .and_then(|()| kills("2000"))
            .and_then(|()| vm::run("100", ""))
            .and_then(|()| fuzz::tries("1000000")),
        ["tidy"] => tidy::run().and_then(|()| planted::check_list()),
        ["torture", "--images", images, "--seed", seed] => sim::torture(images, seed),
        ["torture", "--images", images] => sim::torture(images, "1"),
        ["simulate", ref rest @ ..] => sim::run(rest),
        ["mutants"] => planted::plant(planted::Which::All),
        ["mutants", "--part"] => planted::plant(planted::Which::Part),
        ["mutants", name] => planted::plant(planted::Which::Named(name)),
        ["fuzz", seconds] => fuzz::run(seconds),
        ["tries", count] => fuzz::tries(count),
        ["c"] => c::test(),
        ["bench"] => bench::measure_all(None),
        ["bench", "page"] => bench::page(),
        ["bench", workload] => bench::measure_all(Some(workload)),
        ["instructions"] => instructions::watch(),
        ["install", prefix] => install::run_in(prefix),
        ["vm", rounds] => vm::run(rounds, ""),
        ["vm", rounds, kind] => vm::run(rounds, kind),
        ["kills", n] => kills(n),
        ["others", kills] => others::run_all(kills),
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    };
    if matches!(arguments.first().map(String::as_str), Some("test" | "soak")) {
        steps::print();
    }
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What holds without anything being built.
fn style() -> Result<(), String> {
    run("cargo fmt --all --check")?;
    run("cargo fmt --manifest-path fuzz/Cargo.toml --check")?;
    tidy::run()?;
    planted::check_list()
}

/// What holds without a test being run.
fn lint() -> Result<(), String> {
    style()?;
    run("cargo clippy --workspace --all-targets --quiet -- --deny warnings")
}

/// What of typed objects needs no mapped memory, under the interpreter that knows undefined behaviour when it sees
/// it. It comes with nightly toolchains only.
fn miri(install: bool) -> Result<(), String> {
    const NIGHTLY: &str = "rustup component add miri rust-src --toolchain nightly";
    let there = |line: &str| command(line).output().is_ok_and(|output| output.status.success());
    if !(there("cargo +nightly miri --version") || install && there(NIGHTLY)) {
        println!("--- not run for want of Miri: unit tests of crates/typed\n    {NIGHTLY}");
        return Ok(());
    }
    let line = "cargo +nightly miri test --quiet --target-dir target/miri -p caliburn-typed --lib";
    let mut tests = command(line);
    // The record of types is compared with what this machine's standard library feeds a hash function.
    tests.env("MIRIFLAGS", "-Zmiri-disable-isolation");
    succeed_quietly(tests, line)
}

fn quick() -> Result<(), String> {
    style()?;
    programs::run(programs::Which::Quick, 12)?;
    println!(
        "--- left out: clippy, the layers, bindings and commands, documentation, simulations (`cargo xtask simulate`), and \
         the tests {}",
        programs::LONG.join(", ")
    );
    Ok(())
}

fn test(install: bool) -> Result<(), String> {
    let missing = if install { setup::Missing::mend() } else { setup::Missing::look() };
    if let Some(said) = missing.said() {
        println!("--- {said}");
    }
    lint()?;
    fuzz::lint()?;
    // More processes are killed below.
    programs::run(programs::Which::All, 12)?;
    if missing.allows(Part::C) {
        c::test()?;
    }
    run("cargo doc --workspace --no-deps --quiet")?;
    miri(install)?;
    room::make(&["target/debug", "target/c", "target/doc", "target/miri"]);
    kills("260")?;
    sim::test()?;
    room::make(&["target/sim", "target/shuttle"]);
    fuzz::run("60")?;
    other_architecture()?;
    room::make(&["target/fuzz", "target/fuzz-stores", "target/other"]);
    if missing.allows(Part::Machines) {
        steps::timed("virtual machines", || vm::run("9", ""))?;
    }
    room::make(&["target/guest", "target/vm"]);
    run("cargo build --release --workspace --quiet")?;
    for class in ["process", "power"] {
        run(&format!("cargo run --release --quiet -- demo --kills 8 --class {class}"))?;
    }
    if missing.allows(Part::Nodes) {
        run("cargo run --release --quiet -p caliburn-node -- demo --kills 25")?;
    }
    run("cargo build --release --quiet -p caliburn --example catalogue")?;
    run("tests/drill.sh")?;
    bench::smoke(missing.allows(Part::Rivals))?;
    if missing.allows(Part::Instructions) {
        instructions::watch()?;
    }
    if let Some(said) = missing.said() {
        println!("--- {said}");
    }
    Ok(())
}

/// What is written for another architecture must at least compile; nothing is linked.
fn other_architecture() -> Result<(), String> {
    let target = "aarch64-unknown-linux-gnu";
    let folder = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    let folder = folder.map_err(|e| format!("rustc: {e}"))?.stdout;
    if !std::path::Path::new(String::from_utf8_lossy(&folder).trim()).exists() {
        println!("--- not run: rustup target add {target}");
        return Ok(());
    }
    run(&format!("cargo build --quiet -p caliburn --lib --target {target} --target-dir target/other"))
}

fn kills(n: &str) -> Result<(), String> {
    let n: u32 = n.parse().map_err(|e| format!("{n:?}: {e}"))?;
    let line = "cargo test --release -p caliburn --test kill";
    let mut command = command(line);
    command.env("CALIBURN_KILLS", n.to_string());
    succeed(command, &format!("{line}, {n} kills on each of four file systems"))
}
