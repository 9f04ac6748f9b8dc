//! Style that no other tool checks: sizes of files and functions, names to avoid, unfinished work, and
//! where `unsafe` may stand.

use crate::floors;
use std::fs;
use std::path::{Path, PathBuf};

/// Longest file and function, in lines.
const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 90;
/// Files that are longer, each for a reason.
const LONGER: [(&str, usize, &str); 2] = [
    ("sim/src/life.rs", 715, "one life of one machine"),
    ("layers/dist/tests/commit.rs", 650, "one model of two protocols"),
];
/// Widest line of a comment that is no table.
const COMMENT_COLUMNS: usize = 117;
/// Files that meet raw memory or the operating system. `unsafe` anywhere else is a mistake.
const UNSAFE_MAY: [&str; 48] = [
    "crates/os/src/",
    "crates/engine/src/api/image.rs",
    "crates/engine/src/api/mapping.rs",
    "crates/engine/src/api/prepared.rs",
    "crates/engine/src/api/region.rs",
    "crates/engine/src/api/transaction.rs",
    "crates/engine/src/api/view.rs",
    "crates/engine/src/policy/parts.rs",
    "crates/engine/src/policy/redo/commit.rs",
    "crates/engine/src/policy/redo/lanes.rs",
    "crates/engine/src/policy/redo/memory.rs",
    "crates/engine/src/policy/redo/overflow.rs",
    "crates/engine/src/policy/redo/stage.rs",
    "crates/engine/src/policy/redo/incremental.rs",
    "crates/engine/src/policy/undo/chunks.rs",
    "crates/engine/src/policy/undo/runs.rs",
    "crates/engine/src/storage/lacking.rs",
    "crates/engine/src/storage/pool/mod.rs",
    "crates/engine/src/storage/redo_ranges.rs",
    "crates/engine/src/storage/region.rs",
    "crates/engine/src/storage/region_table.rs",
    "crates/engine/src/tracking/fault.rs",
    "crates/engine/src/tracking/noted.rs",
    "crates/engine/src/tracking/scan.rs",
    "crates/engine/src/tracking/guard.rs",
    "crates/engine/src/tracking/verify.rs",
    "crates/engine/src/write_set/growth.rs",
    "crates/engine/src/write_set/ranges.rs",
    "crates/engine/src/write_set/run.rs",
    "crates/engine/src/write_set/set.rs",
    "crates/engine/src/write_set/slots.rs",
    "crates/caliburn/src/lib.rs",
    "crates/caliburn/tests/",
    "crates/derive/src/",
    "crates/heap/tests/heap.rs",
    "crates/typed/src/",
    "crates/typed/tests/",
    "layers/lock/tests/pages.rs",
    "layers/pm/src/memory.rs",
    "layers/pm/tests/",
    "bench/src/",
    "bench/examples/",
    "bench/rivals/",
    "bindings/",
    "sim/src/life.rs",
    "sim/src/names.rs",
    "sim/src/bin/guest/",
    "sim/src/media.rs",
];
/// Ways to a new descriptor. In libraries it comes of `descriptors::above` or of a function beside it, on this line
/// or one before, or follows `descriptors::occupy`: in a program that has closed its standard streams it would have
/// one of their numbers.
const OPENS: [&str; 21] = [
    "File::open(",
    "File::create",
    "fs::read(",
    "fs::read_to_string(",
    "fs::read_dir(",
    "fs::write(",
    "fs::copy(",
    "fs::remove_dir_all(",
    "OpenOptions::new(",
    "File::options(",
    " pidfd_open(",
    " openat(",
    "memfd_create(",
    "SYS_userfaultfd",
    "eventfd(",
    "TcpListener::bind(",
    "UnixListener::bind(",
    "UnixDatagram::",
    "Stream::connect(",
    "Stream::pair(",
    "Command::new(",
];
/// Lines between `above` or `occupy` and what opens.
const OPENS_WITHIN: usize = 5;
/// What is no library, or only for tests; and the place that the rule is about.
const OPENS_MAY: [&str; 5] = [
    "crates/os/src/descriptors.rs",
    "crates/cgroup/",
    "bindings/camelot/src/bin/",
    "layers/dist/src/link.rs",
    "layers/dist/src/keep/members.rs",
];
const BAD_NAMES: [&str; 4] = ["utils", "common", "helpers", "misc"];

/// Checks every Rust file of the workspace.
pub fn run() -> Result<(), String> {
    let mut problems = Vec::new();
    let mut files = Vec::new();
    for root in ["crates", "layers", "bindings", "tools", "bench", "sim", "xtask"] {
        collect(Path::new(root), &mut files)?;
    }
    if files.len() < 30 {
        return Err(format!("tidy sees only {} files: run it from the workspace's root", files.len()));
    }
    for path in &files {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        check(&path.to_string_lossy(), &text, &mut problems);
    }
    floors::check(&files, &mut problems)?;
    if problems.is_empty() { Ok(()) } else { Err(format!("tidy:\n  {}", problems.join("\n  "))) }
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    for entry in fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))? {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.is_dir() {
            // What was built is not ours.
            if !path.ends_with("target") {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn check(path: &str, text: &str, problems: &mut Vec<String>) {
    let mut problem = |line: usize, what: &str| problems.push(format!("{path}:{line}: {what}"));
    let longest = LONGER.iter().find(|(file, ..)| *file == path).map_or(FILE_LINES, |(_, lines, _)| *lines);
    if text.lines().count() > longest {
        problem(FILE_LINES, "the file is longer than a reader can hold");
    }
    let stem = Path::new(path).file_stem().unwrap_or_default().to_string_lossy();
    if BAD_NAMES.contains(&&*stem) {
        problem(1, "name the noun that is in the file");
    }
    // Spelled in two parts, so that this file does not accuse itself.
    let unfinished = [["TO", "DO"], ["FIX", "ME"], ["todo", "!("], ["unimpl", "emented!("], ["#[ign", "ore"]]
        .map(|p| p.concat());
    let may = UNSAFE_MAY.iter().any(|prefix| path.starts_with(prefix));
    let unsafe_word = ["unsafe", " {"].concat();
    let mut function = None;
    let library = ["crates/", "layers/", "bindings/"].iter().any(|root| path.starts_with(root))
        && path.contains("/src/")
        && !OPENS_MAY.iter().any(|prefix| path.starts_with(prefix));
    let (mut tests, mut above) = (false, 0);
    for (i, line) in text.lines().enumerate() {
        let number = i + 1;
        if line.ends_with(' ') || line.contains('\t') {
            problem(number, "spaces at the end, or a tab");
        }
        let comment = line.trim_start().starts_with("//");
        if comment
            && line.chars().count() > COMMENT_COLUMNS
            && !line.contains("// |")
            && !line.contains("//! |")
        {
            problem(number, "the comment is too wide");
        }
        tests |= line == "#[cfg(test)]";
        if ["above(", "occupy("].iter().any(|word| line.contains(word)) {
            above = number;
        }
        let opens = library && !tests && !comment && OPENS.iter().any(|word| line.contains(word));
        if opens && (above == 0 || number - above > OPENS_WITHIN) {
            problem(number, "the descriptor may have the number of a standard stream: descriptors::above");
        }
        if unfinished.iter().any(|word| line.contains(word.as_str())) {
            problem(number, "unfinished work or a test that is not run");
        }
        if !may && line.contains(&unsafe_word) {
            problem(number, "raw memory is met elsewhere");
        }
        let indent = line.len() - line.trim_start().len();
        let words = line.trim_start();
        let begins = ["fn ", "pub fn ", "pub(crate) fn ", "unsafe fn ", "pub unsafe fn "]
            .iter()
            .any(|w| words.starts_with(w));
        if begins && !line.trim_end().ends_with(';') {
            function = Some((number, indent));
        }
        if let Some((start, depth)) = function
            && line.trim_end() == format!("{:depth$}}}", "")
        {
            if number - start > FUNCTION_LINES {
                problem(start, "the function is too long");
            }
            function = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> usize {
        let mut found = Vec::new();
        check(path, text, &mut found);
        found.len()
    }

    #[test]
    fn each_rule_can_fail() {
        assert_eq!(problems("crates/x/src/noun.rs", "fn f() {\n}\n"), 0);
        assert_eq!(problems("crates/x/src/utils.rs", ""), 1);
        assert_eq!(problems("a.rs", &format!("// {}{}\n", "TO", "DO")), 1);
        assert_eq!(problems("a.rs", "let x = 1; \n"), 1);
        assert_eq!(problems("a.rs", &format!("// {}\n", "x".repeat(120))), 1);
        assert_eq!(problems("a.rs", "x\n".repeat(601).as_str()), 1);
        assert_eq!(problems("a.rs", &format!("fn f() {{\n{}}}\n", "    x;\n".repeat(95))), 1);
        assert_eq!(problems("a.rs", &format!("{} {{ x }}\n", "unsafe")), 1);
        let (opens, moved) = ("let file = File::open(path)?;\n", "let file = above(|| File::open(path))?;\n");
        assert_eq!(problems("crates/x/src/noun.rs", opens), 1);
        assert_eq!(problems("crates/x/src/noun.rs", moved), 0);
        assert_eq!(
            problems("crates/x/src/noun.rs", &format!("{moved}{}{opens}", "let x = 1;\n".repeat(9))),
            1
        );
        assert_eq!(problems("crates/x/src/noun.rs", &format!("#[cfg(test)]\n{opens}")), 0);
    }
}
