//! `archive`: the log of a store, in files elsewhere.

use crate::{Outside, dump::at};
use caliburn::{ArchiveOptions, ArchivePart, BackupError};
use caliburn_tools::{Failure, size};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `archive`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Directory of the store; a program may be using it.
    store: PathBuf,
    /// Directory of the archive, made if it is missing.
    #[arg(long, value_name = "DIRECTORY", required_unless_present_any = ["command", "stop"])]
    to: Option<PathBuf>,
    /// A shell command that stores a part of the log durably, in place of a directory: `%p` is the path of the part,
    /// `%f` the name it is to have. Exit code 0 says that it is stored; else it is tried again.
    #[arg(long, conflicts_with = "to")]
    command: Option<String>,
    /// The command is killed after so many seconds.
    #[arg(long, default_value_t = 60.0, requires = "command")]
    limit: f64,
    /// A part is made when so many bytes of log have come.
    #[arg(long, default_value = "16M", value_parser = size::parse)]
    part_bytes: u64,
    /// A part is made when the oldest commit in it is so many seconds old: what the loss of the machine costs.
    #[arg(long, default_value_t = 10.0)]
    age: f64,
    /// Archive what is there, and end.
    #[arg(long)]
    now: bool,
    /// The log is not kept for its archive any longer: what was archived stays, and to begin again takes another
    /// dump.
    #[arg(long, conflicts_with_all = ["to", "command", "now"])]
    stop: bool,
    #[command(flatten)]
    outside: Outside,
    /// One JSON object for each part.
    #[arg(long)]
    json: bool,
}

/// Archives until it is interrupted: at any moment, nothing is lost by that.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    /// How soon it is tried again after a failure, and how soon it is looked for more to archive.
    const AGAIN: Duration = Duration::from_secs(1);
    const LOOK: Duration = Duration::from_millis(100);
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).map_err(|e| format!("{seconds}: {e}"));
    let mut how = match (&arguments.to, &arguments.command) {
        (Some(to), _) => ArchiveOptions::directory(to),
        (_, Some(command)) => ArchiveOptions::command(command.clone(), seconds(arguments.limit)?),
        // Nothing is archived.
        _ => ArchiveOptions::command("false", AGAIN),
    };
    how.part_bytes(arguments.part_bytes).age(seconds(arguments.age)?);
    let mut archiver = arguments.outside.options().archiver(&arguments.store, &how)?;
    if arguments.stop {
        archiver.stop()?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.now {
        archiver.flush()?.iter().for_each(|part| tell(arguments, part));
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        match archiver.step() {
            Ok(Some(part)) => tell(arguments, &part),
            Ok(None) => std::thread::sleep(LOOK),
            // What may pass.
            Err(
                error @ (BackupError::Command { .. }
                | BackupError::Io { .. }
                | BackupError::BeingOpened { .. }),
            ) => {
                eprintln!("caliburn: {error}");
                std::thread::sleep(AGAIN);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn tell(arguments: &Arguments, part: &ArchivePart) {
    if arguments.json {
        println!("{}", as_json(part));
    } else {
        println!("{}  {} to {}", part.name, at(part.first), at(part.last));
    }
}

/// A part of an archive.
pub fn as_json(part: &ArchivePart) -> serde_json::Value {
    json!({"part": part.name, "from": part.from, "to": part.to, "first_ns": part.first, "last_ns": part.last})
}
