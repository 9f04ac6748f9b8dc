//! Coverage-guided fuzzing (libFuzzer), on the stable toolchain: the compiler's own coverage passes.

use crate::succeed;
use std::process::Command;

const FLAGS: &str = "--cfg caliburn_sim --cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// Whether the fuzzers, which are a workspace of their own, are in step with the rest; in seconds.
pub fn lint() -> Result<(), String> {
    let mut clippy = Command::new("cargo");
    clippy.args(["clippy", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "--target-dir", "target/sim"]);
    clippy.args(["--profile", "dev", "--", "--deny", "warnings"]).env("RUSTFLAGS", "--cfg caliburn_sim");
    succeed(clippy, "clippy of the fuzzers")
}

/// Fuzzes each target for so many seconds, from the corpus that is kept; with checksums, and without, so that
/// what lies behind them is reached.
pub fn run(seconds: &str) -> Result<(), String> {
    let seconds: u32 = seconds.parse().map_err(|e| format!("{seconds:?}: {e}"))?;
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--quiet", "--manifest-path", "fuzz/Cargo.toml"]);
    // A target, so that build scripts are not instrumented.
    build.args(["--target-dir", "target/fuzz", "--target", &host()?]).env("RUSTFLAGS", FLAGS);
    succeed(build, "build the fuzzers")?;
    for target in ["log", "store"] {
        for planted in ["", "record-sum-unchecked"] {
            let found = format!("target/fuzz/{target}-found");
            std::fs::create_dir_all(&found).map_err(|e| format!("{found}: {e}"))?;
            let mut fuzzer = Command::new(format!("target/fuzz/{}/release/{target}", host()?));
            fuzzer.args([&found, &format!("fuzz/corpus/{target}")]);
            fuzzer.arg(format!("-max_total_time={seconds}"));
            fuzzer.args([
                "-max_len=4096",
                "-print_final_stats=1",
                "-verbosity=0",
                "-timeout=20",
                "-detect_leaks=0",
            ]);
            fuzzer.arg(format!("-artifact_prefix=target/fuzz/{target}-")).env("CALIBURN_PLANTED", planted);
            succeed(fuzzer, &format!("fuzz {target} for {seconds} s, planted {planted:?}"))?;
        }
    }
    Ok(())
}

fn host() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output().map_err(|e| format!("rustc: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc names no host".into())
}
