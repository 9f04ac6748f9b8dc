//! How a command ends: with what it says, with an error, or because nobody can be told.

use crate::{Failure, text};
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// How std's panics begin when `println!` and `eprintln!` fail.
const UNWRITTEN: &str = "failed printing to stdout: ";
const UNTOLD: &str = "failed printing to stderr: ";

/// Output that cannot be written ends the command. If the reader has gone, as `head` does, it ends quietly, as by
/// SIGPIPE; on a full disk, say, it ends with an error.
fn end_when_output_fails(name: &'static str) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str();
        // There is nowhere to say so.
        if said.is_some_and(|text| text.starts_with(UNTOLD)) {
            std::process::exit(2);
        }
        match said.and_then(|text| text.strip_prefix(UNWRITTEN)) {
            Some(error) if error.starts_with("Broken pipe") => std::process::exit(128 + 13),
            Some(error) => std::process::exit(unwritten(name, error)),
            None => usual(panic),
        }
    }));
}

/// Says that the output is not whole; the exit code.
fn unwritten(name: &str, error: impl std::fmt::Display) -> i32 {
    let _ = writeln!(std::io::stderr(), "{name}: cannot write to standard output: {error}");
    2
}

/// Runs a command of this name.
pub fn run(name: &'static str, command: impl FnOnce() -> Result<ExitCode, Failure>) -> ExitCode {
    end_when_output_fails(name);
    let code = command().unwrap_or_else(|error| {
        eprintln!("{name}: {}", text::plain(error));
        ExitCode::from(2)
    });
    // What does not end with a line is still in a buffer.
    match std::io::stdout().flush() {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => ExitCode::from(unwritten(name, error) as u8),
        _ => code,
    }
}
