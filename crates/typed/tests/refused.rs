//! What safe code must not do: each file in `refused/` is an attempt. A line that must not compile says so by
//! its end, `//~ CODE text`: the compiler's code for the error (`-` if it has none), and a part of what it
//! says. What else the compiler says differs from version to version, and is not compared.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Code and text of errors, by file and line.
type Errors = BTreeMap<(String, u64), Vec<(String, String)>>;

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// What the files say must be refused.
fn expected(files: &[PathBuf]) -> Errors {
    let mut all = Errors::new();
    for file in files {
        let (name, text) = (file.file_name().unwrap().to_str().unwrap(), fs::read_to_string(file).unwrap());
        for (number, line) in text.lines().enumerate() {
            for mark in line.split("//~ ").skip(1) {
                let (code, part) = mark.trim().split_once(' ').expect("a code and a text");
                all.entry((name.to_owned(), number as u64 + 1))
                    .or_default()
                    .push((code.to_owned(), part.to_owned()));
            }
        }
    }
    all
}

/// What the compiler refuses, in a package of its own.
fn found(files: &[PathBuf]) -> Errors {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("refused");
    let _ = fs::remove_dir_all(package.join("src"));
    fs::create_dir_all(package.join("src/bin")).unwrap();
    for file in files {
        fs::copy(file, package.join("src/bin").join(file.file_name().unwrap())).unwrap();
    }
    let caliburn = here.join("../caliburn");
    let manifest = format!(
        "[package]\nname = \"refused\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\ncaliburn = {{ path = {caliburn:?} }}\n"
    );
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    fs::copy(here.join("../../Cargo.lock"), package.join("Cargo.lock")).unwrap();
    let mut check = Command::new(env!("CARGO"));
    check.args(["check", "--bins", "--keep-going", "--message-format=json", "--quiet"]).current_dir(&package);
    let output = check.env("CARGO_TARGET_DIR", package.join("target")).output().unwrap();
    let mut all = Errors::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        let message = &line["message"];
        if line["reason"] != "compiler-message" || message["level"] != "error" {
            continue;
        }
        let span = message["spans"]
            .as_array()
            .and_then(|spans| spans.iter().find(|span| span["is_primary"] == true));
        // The sum at the end has no place.
        let Some(span) = span else { continue };
        let name =
            Path::new(span["file_name"].as_str().unwrap()).file_name().unwrap().to_str().unwrap().to_owned();
        let code = message["code"]["code"].as_str().unwrap_or("-").to_owned();
        let text = message["message"].as_str().unwrap().to_owned();
        let at = (name, span["line_start"].as_u64().unwrap());
        let errors = all.entry(at).or_default();
        if !errors.contains(&(code.clone(), text.clone())) {
            errors.push((code, text));
        }
    }
    assert!(!all.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    all
}

#[test]
fn misuse_does_not_compile() {
    let files = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refused"));
    let (expected, found) = (expected(&files), found(&files));
    let mut wrong = Vec::new();
    // Beside an error that is expected there may be others that come of it, and no errors of another kind.
    for ((file, line), errors) in &found {
        let marked = |code: &str| {
            expected
                .iter()
                .any(|((other, _), marks)| other == file && marks.iter().any(|(known, _)| known == code))
        };
        let others = errors.iter().filter(|(code, _)| !marked(code));
        wrong.extend(others.map(|error| format!("{file}:{line}: not expected: {error:?}")));
    }
    for (at, marks) in &expected {
        let errors = found.get(at).map_or(&[][..], Vec::as_slice);
        let there =
            |(code, part): &(String, String)| errors.iter().any(|(c, text)| c == code && text.contains(part));
        wrong.extend(
            marks.iter().filter(|mark| !there(mark)).map(|mark| format!("{at:?}: accepted: {mark:?}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(files.iter().all(|file| {
        let name = file.file_name().unwrap().to_str().unwrap();
        expected.keys().any(|(known, _)| known == name)
    }));
}
