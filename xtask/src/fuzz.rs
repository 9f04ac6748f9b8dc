//! Coverage-guided fuzzing (libFuzzer), on the stable toolchain: the compiler's own coverage passes.

use crate::succeed;
use std::process::Command;

const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cdebug-assertions -Coverflow-checks \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";
/// For the reader of logs, on simulated machines; the others take files of the system.
const SIMULATED: &str = "--cfg caliburn_sim";
/// The compiler's own option, which it takes from nobody else.
const SANITIZED: &str = "-Zsanitizer=address";

/// Whether the fuzzers, which are a workspace of their own, are in step with the rest; in seconds.
pub fn lint() -> Result<(), String> {
    for (package, target, flags) in [
        ("caliburn-fuzz", "target/sim", SIMULATED),
        ("caliburn-hostile", "target", ""),
        ("caliburn-protocol", "target", ""),
    ] {
        let mut clippy = Command::new("cargo");
        clippy.args(["clippy", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "-p", package]);
        clippy.args(["--target-dir", target, "--profile", "dev", "--", "--deny", "warnings"]);
        succeed(with_flags(clippy, flags), &format!("clippy of {package}"))?;
    }
    Ok(())
}

/// Fuzzes for so many seconds, from the corpora that are kept: whole stores whose checksums are mended; and for a
/// sixth of that each the reader of logs, with checksums and without, so that what lies behind them is reached, and
/// the NBD server.
pub fn run(seconds: &str) -> Result<(), String> {
    let seconds: u32 = seconds.parse().map_err(|e| format!("{seconds:?}: {e}"))?;
    let log = build("caliburn-fuzz", "log", "target/fuzz", SIMULATED)?;
    for planted in ["", "record-sum-unchecked"] {
        fuzz(&log, "log", &format!("-max_total_time={}", seconds / 6), planted)?;
    }
    let hostile = build("caliburn-hostile", "caliburn-hostile", "target/fuzz-stores", "")?;
    let protocol = build("caliburn-protocol", "caliburn-protocol", "target/fuzz-stores", "")?;
    fuzz(&protocol, "protocol", &format!("-max_total_time={}", seconds / 6), "")?;
    fuzz(&hostile, "hostile", &format!("-max_total_time={seconds}"), "")
}

/// So many tries with whole stores; half as many with the address sanitizer, which takes as long.
pub fn tries(count: &str) -> Result<(), String> {
    let count: u64 = count.parse().map_err(|e| format!("{count:?}: {e}"))?;
    let hostile = build("caliburn-hostile", "caliburn-hostile", "target/fuzz-stores", "")?;
    fuzz(&hostile, "hostile", &format!("-runs={count}"), "")?;
    let protocol = build("caliburn-protocol", "caliburn-protocol", "target/fuzz-stores", "")?;
    fuzz(&protocol, "protocol", &format!("-runs={}", count / 2), "")?;
    let sanitized = build("caliburn-hostile", "caliburn-hostile", "target/fuzz-sanitized", SANITIZED)?;
    fuzz(&sanitized, "hostile", &format!("-runs={}", count / 2), "")
}

/// Flags for the compiler, if there are any: an empty variable would be others than none.
fn with_flags(mut command: Command, flags: &str) -> Command {
    if !flags.is_empty() {
        command.env("RUSTFLAGS", flags);
    }
    command
}

/// Builds a fuzzer; its path.
fn build(package: &str, name: &str, target: &str, flags: &str) -> Result<String, String> {
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "-p", package]);
    // A target, so that build scripts are not instrumented.
    build.args(["--target-dir", target, "--target", &host()?]).env("RUSTFLAGS", format!("{FLAGS} {flags}"));
    if flags == SANITIZED {
        build.env("RUSTC_BOOTSTRAP", "1");
    }
    succeed(build, &format!("build the fuzzer {name} {flags}"))?;
    Ok(format!("{target}/{}/release/{name}", host()?))
}

fn fuzz(fuzzer: &str, corpus: &str, limit: &str, planted: &str) -> Result<(), String> {
    let found = format!("target/fuzz/{corpus}-found");
    std::fs::create_dir_all(&found).map_err(|e| format!("{found}: {e}"))?;
    let mut command = Command::new(fuzzer);
    command.args([&found, &format!("fuzz/corpus/{corpus}"), limit]);
    command.args(["-max_len=4096", "-print_final_stats=1", "-verbosity=0", "-timeout=20", "-detect_leaks=0"]);
    command.args(["-rss_limit_mb=1024", &format!("-artifact_prefix=target/fuzz/{corpus}-")]);
    if corpus == "hostile" {
        command.args(["-max_len=192", "-len_control=0"]);
    }
    command.env("CALIBURN_PLANTED", planted);
    succeed(command, &format!("fuzz {corpus}, {limit}, planted {planted:?}"))
}

fn host() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output().map_err(|e| format!("rustc: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc names no host".into())
}
