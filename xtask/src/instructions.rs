//! Counts the instructions of the hot paths, which do not depend on how busy the machine is, and compares them
//! with `bench/instructions.txt`.

use crate::run;
use std::fmt::Write as _;
use std::process::Command;

const KEPT: &str = "bench/instructions.txt";
const HEAD: &str = "\
# Instructions per transaction, counted by callgrind (`cargo xtask instructions`): kind, bytes of its one range (0: debit-credit).
# More or less by so many percent fails; `CALIBURN_BLESS=1 cargo xtask instructions` writes down what is found.
";
/// Other compilers and processors count a little differently.
const TOLERANCE: f64 = 5.0;
/// Transactions of a run; as many come before, uncounted.
const COUNT: u64 = 10_000;

const PATHS: [(&str, &[u32]); 8] = [
    // What the work takes by itself, and with an undo log written by hand.
    ("plain", &[8, 0]),
    ("floor", &[8, 0]),
    ("redo", &[8, 64, 256, 4096, 0]),
    ("undo", &[8, 64, 256, 4096, 0]),
    ("persistent", &[8, 0]),
    ("heap", &[64]),
    // Debit-credit through guards.
    ("typed-redo", &[0]),
    ("typed-undo", &[0]),
];

/// Counts and compares.
pub fn watch() -> Result<(), String> {
    run("cargo build --release --quiet -p caliburn-bench")?;
    let bless = std::env::var_os("CALIBURN_BLESS").is_some();
    let kept = std::fs::read_to_string(KEPT).unwrap_or_default();
    let (mut found, mut wrong) = (String::from(HEAD), String::new());
    println!("--- instructions of the hot paths");
    for (kind, bytes) in PATHS.iter().flat_map(|(kind, sizes)| sizes.iter().map(move |bytes| (kind, bytes))) {
        let name = format!("{kind} {bytes}");
        let each = count(kind, *bytes)? as f64 / COUNT as f64;
        let _ = writeln!(found, "{name} {each:.1}");
        let was = kept.lines().find_map(|line| line.strip_prefix(&name)?.trim().parse::<f64>().ok());
        let off = was.map(|was| (each / was - 1.0) * 100.0);
        println!("{name:16} {each:>8.1} {}", off.map_or(String::new(), |off| format!("{off:+.1} %")));
        if off.is_none_or(|off| off.abs() > TOLERANCE) {
            let _ = write!(
                wrong,
                "\n{name}: {each:.1}, was {}",
                was.map_or("not there".into(), |was| was.to_string())
            );
        }
    }
    if bless {
        return std::fs::write(KEPT, found).map_err(|e| format!("{KEPT}: {e}"));
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("{KEPT} says something else:{wrong}")) }
}

/// Instructions that the hot path of a run takes.
fn count(kind: &str, bytes: u32) -> Result<u64, String> {
    let out = format!("target/callgrind-{kind}-{bytes}");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet", "--collect-atstart=no", "--toggle-collect=*hot_path*"]);
    command.args([&format!("--callgrind-out-file={out}")]);
    command.args(["target/release/hot", kind, &bytes.to_string(), &COUNT.to_string()]);
    let done = command.output().map_err(|e| format!("valgrind: {e}"))?;
    if !done.status.success() {
        return Err(format!("hot {kind} {bytes}: {}", String::from_utf8_lossy(&done.stderr)));
    }
    let profile = std::fs::read_to_string(&out).map_err(|e| format!("{out}: {e}"))?;
    let _ = std::fs::remove_file(&out);
    let total =
        profile.lines().find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
    total.and_then(|total| total.trim().parse().ok()).ok_or_else(|| format!("{out} has no total"))
}
