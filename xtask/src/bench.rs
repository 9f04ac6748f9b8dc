//! Benchmarks: everything at its size, with the page; and everything small, so that none rots.

use crate::steps::timed;
use crate::{command, run, succeed};
use std::fs;
use std::process::{Command, Stdio};

const OWN: &str = "target/release/caliburn-bench";
const RIVALS: &str = "bench/rivals/target/release/caliburn-rivals";
const DIR: &str = "target/bench";
const RESULTS: &str = "target/bench/results.jsonl";
const PAGE: &str = "docs/benchmarks.html";
const DOCUMENT: &str = "docs/performance.md";
/// Longest that a command may take: a rival may hang.
const LIMIT: &str = "20m";

/// What is measured, and with what: the papers' figures in their order.
const ALL: [(&str, &str); 16] = [
    (
        RIVALS,
        "synthetic --only LMDB,libmdbx,PMDK --sizes 8,64,256,1024,4096,65536,1048576 --rounds 5 --seconds 0.2",
    ),
    (RIVALS, "debit-credit --rounds 9 --seconds 0.2"),
    (OWN, "order-entry --rounds 9 --seconds 0.2"),
    (RIVALS, "debit-credit-power --rounds 7 --seconds 0.3"),
    (RIVALS, "group-commit --threads 1,8,32 --rounds 5 --seconds 0.3"),
    (OWN, "group-commit --rounds 7 --seconds 0.3"),
    (OWN, "tpca --rounds 3 --seconds 1.5"),
    (OWN, "coda --rounds 5 --seconds 0.5"),
    (OWN, "restart --data-mb 100 --rounds 5"),
    (OWN, "restart --data-mb 1024 --rounds 5"),
    (OWN, "restart --data-mb 4096 --rounds 3"),
    (RIVALS, "restart --data-mb 100 --rounds 3"),
    (OWN, "threads --threads 1,2,4,8,16,32 --rounds 5 --seconds 0.2"),
    (OWN, "latency --rounds 5 --seconds 0.5"),
    (OWN, "sustained --rounds 7 --seconds 0.3"),
    (OWN, "persistent --sizes 8,256,4096 --rounds 5 --seconds 0.1"),
];

/// Runs everything, or only the commands that name a workload again; writes what they said, draws the page.
pub fn measure_all(only: Option<&str>) -> Result<(), String> {
    if let Some(only) = only.filter(|only| !ALL.iter().any(|(_, line)| names(line, only))) {
        let mut known: Vec<&str> = ALL.iter().filter_map(|(_, line)| line.split(' ').next()).collect();
        known.dedup();
        return Err(format!("no workload is called {only}; there are {}", known.join(", ")));
    }
    run("cargo build --release --quiet -p caliburn-bench")?;
    if ALL.iter().any(|(program, line)| *program == RIVALS && only.is_none_or(|only| names(line, only))) {
        rivals()?;
    }
    fs::create_dir_all(DIR).map_err(|e| format!("{DIR}: {e}"))?;
    // What commands left that were broken off.
    let left = fs::read_dir(DIR).map_err(|e| format!("{DIR}: {e}"))?.filter_map(Result::ok);
    left.filter(|entry| entry.path().is_dir()).for_each(|entry| _ = fs::remove_dir_all(entry.path()));
    let kept = match (only, fs::read_to_string(RESULTS)) {
        (Some(only), Err(_)) => return measure_alone(only),
        (Some(_), Ok(kept)) => kept,
        (None, _) => String::new(),
    };
    let mut results = kept.lines().next().map_or_else(circumstances, str::to_owned) + "\n";
    for (program, line) in ALL {
        let again = only.is_none_or(|only| names(line, only));
        results += &if again { measure(program, line)? } else { said(&kept, program, line) };
        if only.is_none() {
            // A run that is broken off leaves what it has.
            fs::write(RESULTS, &results).map_err(|e| format!("{RESULTS}: {e}"))?;
        }
    }
    fs::write(RESULTS, &results).map_err(|e| format!("{RESULTS}: {e}"))?;
    page()
}

/// Runs the commands that name a workload, where there are no results of the others to draw a page with.
fn measure_alone(only: &str) -> Result<(), String> {
    for (program, line) in ALL.iter().filter(|(_, line)| names(line, only)) {
        measure(program, line)?;
    }
    println!("--- {RESULTS} is not there: `cargo xtask bench` measures everything and draws the page");
    Ok(())
}

/// Draws the page anew from what the last run wrote.
pub fn page() -> Result<(), String> {
    run("cargo build --release --quiet -p caliburn-bench")?;
    run(&format!("target/release/page {RESULTS} --html {PAGE} --markdown {DOCUMENT}"))
}

fn rivals() -> Result<(), String> {
    let mut build = command("cargo build --release --quiet --manifest-path bench/rivals/Cargo.toml");
    // A workspace of its own, whoever builds it.
    build.env("CARGO_TARGET_DIR", "bench/rivals/target");
    succeed(build, "build the rivals").map_err(|e| {
        format!("{e}; they need the packages liblmdb-dev librocksdb-dev libdb5.3-dev libpmemobj-dev libsqlite3-dev libclang-dev")
    })
}

/// Whether a command begins with these words.
fn names(line: &str, words: &str) -> bool {
    format!("{line} ").starts_with(&format!("{words} "))
}

/// What a command said before, with the line before it.
fn said(kept: &str, program: &str, line: &str) -> String {
    let of = format!("{{\"command\":\"{}\"", spoken(program, line));
    let mut lines = kept.lines().skip_while(|l| !l.starts_with(&of));
    let head = lines.next().map(|head| format!("{head}\n")).unwrap_or_default();
    lines.take_while(|l| !l.starts_with("{\"command\"")).fold(head, |text, line| text + line + "\n")
}

/// A command as one types it.
fn spoken(program: &str, line: &str) -> String {
    format!("{} {line}", program.rsplit('/').next().unwrap_or(program))
}

fn revision() -> String {
    format!("revision {}", told("git describe --always --dirty"))
}

/// What a command prints, fit for a string of JSON.
fn told(line: &str) -> String {
    let output = command(line).output();
    output
        .map(|o| String::from_utf8_lossy(&o.stdout).trim().replace(['"', '\\', '\n'], " "))
        .unwrap_or_default()
}

/// One command's lines, with a line before them that names it.
fn measure(program: &str, line: &str) -> Result<String, String> {
    let name = program.rsplit('/').next().unwrap_or(program);
    let mut command = Command::new("timeout");
    command
        .args([LIMIT, program])
        .args(line.split(' '))
        .args(["--json", "--dir", DIR])
        .stderr(Stdio::inherit());
    println!("--- {name} {line}");
    let output = timed(&format!("{name} {line}"), || command.output());
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{name} {line}: {}", output.status));
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    print!("{lines}");
    Ok(format!("{{\"command\":\"{}\",\"revision\":\"{}\"}}\n{lines}", spoken(program, line), revision()))
}

/// Where and when, as a line of JSON.
fn circumstances() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("", |(_, name)| name);
    let fields = [
        ("date", told("date -u +%Y-%m-%d")),
        ("revision", revision()),
        ("compiler", told("rustc --version")),
        ("kernel", told("uname -sr")),
        ("processors", told("nproc")),
        ("processor", model.to_owned()),
        ("disk", told("stat -f -c %T .")),
    ];
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":\"{value}\"")).collect();
    format!("{{\"run\":{{{}}}}}", fields.join(","))
}

/// Every workload, small; their own checks count, the figures don't.
pub fn smoke(with_rivals: bool) -> Result<(), String> {
    let dir = "target/bench-smoke";
    fs::create_dir_all(dir).map_err(|e| format!("{dir}: {e}"))?;
    let small = format!("--json --rounds 1 --seconds 0.05 --dir {dir}");
    for workload in [
        "synthetic --sizes 8,4096",
        "debit-credit",
        "order-entry",
        "threads --threads 1,2,8",
        "heap",
        "calls",
        "typed --accounts 20000",
        "snapshots",
        "dumps",
        "nest",
        "camelot",
        "camelot-tables",
        "locks",
        "persistent --sizes 8,4096",
        "pm --data-mb 8",
        "wisconsin",
        "cold --data-mb 8",
        "group-commit --threads 1,8",
        "restart --data-mb 64 --accounts 10000",
        "tpca --pattern localized --rmem-pmem 0.125 --limit-mb 64",
        "tpca --pattern random --rmem-pmem 1.75 --limit-mb 64 --process",
        "coda",
        "latency --rates 1000,20000",
        "sustained",
        "limits",
        "pages --data-mb 8",
        "faults",
        "oo7 --data-mb 8 --limit-mb 48 --system mmap,eager,lazy,adaptive,declared,scan --traversal t1,t2c,t3b,t5,s,q1,q3,q7",
        "oo7 --data-mb 24 --limit-mb 32 --competition 20 --traversal t2b",
        "oo7 --data-mb 8 --limit-mb 48 --pool-mb 4 --system mmap,pool,pool8k,pool-fifo,pool-second,locked --traversal t1,t2b",
        "render --data-mb 8 --limit-mb 48 --pool-mb 4 --system mmap,adaptive,pool,locked",
    ] {
        run(&format!("{OWN} {workload} {small} --log-mb 16 --stage-mb 4"))?;
    }
    if !with_rivals {
        return Ok(());
    }
    rivals()?;
    run("cargo fmt --manifest-path bench/rivals/Cargo.toml --check")?;
    for workload in [
        "debit-credit --accounts 1000",
        "debit-credit-power --accounts 1000",
        "synthetic --sizes 4096 --data-mb 4",
        "group-commit --threads 1,4 --accounts 1000",
        "restart --data-mb 4 --only LMDB,PMDK",
        "maps --accounts 1000 --sizes 64",
        "nest",
        "wisconsin",
        "camelot",
        "oo7 --data-mb 8 --only LMDB,SQLite",
    ] {
        run(&format!("{RIVALS} {workload} {small}"))?;
    }
    Ok(())
}
