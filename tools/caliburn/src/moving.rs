//! `move`: the log of another size or in another place.

use crate::{Failure, Outside, size};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `move`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Directory of the store, which no program is using: one that does calls `Store::relocate_log`.
    store: PathBuf,
    /// Bytes of the log.
    #[arg(long, value_parser = size::parse, required_unless_present = "log")]
    log_bytes: Option<u64>,
    /// File or block device for the log.
    #[arg(long)]
    log: Option<PathBuf>,
    #[command(flatten)]
    outside: Outside,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Opens the store so that its log is as it is to be.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut options = arguments.outside.options();
    arguments.log_bytes.iter().for_each(|bytes| _ = options.log_bytes(*bytes));
    arguments.log.iter().for_each(|path| _ = options.log_path(path));
    options.open(&arguments.store)?.close()?;
    let info = options.info(&arguments.store)?;
    let Some(log) = info.log else { return Err("a store with the undo policy has no log".into()) };
    match arguments.json {
        true => println!("{}", json!({"log": log.path.display().to_string(), "bytes": log.capacity})),
        false => println!("the log is {} in {}", size::show(log.capacity), log.path.display()),
    }
    Ok(ExitCode::SUCCESS)
}
