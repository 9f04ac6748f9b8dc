//! `move`: the log of another size, log and segments in other places.

use crate::Outside;
use caliburn_tools::{Failure, size};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `move`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Directory of the store, which no program is using: one that does calls `Store::relocate_log` or
    /// `Store::move_segment`.
    store: PathBuf,
    /// Bytes of the log.
    #[arg(long, value_parser = size::parse, required_unless_present_any = ["log", "segment", "duplex_log", "simplex_log"])]
    log_bytes: Option<u64>,
    /// A segment that goes to --to; without that, back to the store's directory.
    #[arg(long, value_name = "NAME")]
    segment: Option<String>,
    /// File or block device for the segment.
    #[arg(long, value_name = "PATH", requires = "segment")]
    to: Option<PathBuf>,
    /// File or block device for the log; STORE/log brings it back to the store's directory.
    #[arg(long)]
    log: Option<PathBuf>,
    /// A second file or block device for the log, or one in place of a copy that was lost: either may be lost.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["log", "log_bytes"])]
    duplex_log: Option<PathBuf>,
    /// The log has one copy again.
    #[arg(long, conflicts_with_all = ["log", "log_bytes", "duplex_log"])]
    simplex_log: bool,
    #[command(flatten)]
    outside: Outside,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Opens the store so that its log is as it is to be, and moves a segment.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut options = arguments.outside.options();
    arguments.log_bytes.iter().for_each(|bytes| _ = options.log_bytes(*bytes));
    arguments.log.iter().for_each(|path| _ = options.log_path(path));
    arguments.duplex_log.iter().for_each(|path| _ = options.duplex_log(path));
    if arguments.simplex_log {
        options.simplex_log();
    }
    arguments.to.iter().for_each(|path| _ = options.outside(path));
    let store = options.open(&arguments.store)?;
    if let Some(name) = &arguments.segment {
        drop(store.move_segment(name, arguments.to.as_deref())?);
    }
    store.close()?;
    let info = options.info(&arguments.store)?;
    if let Some(name) = &arguments.segment
        && let Some(segment) = info.segments.iter().find(|segment| segment.name == *name)
    {
        match arguments.json {
            true => println!("{}", json!({"segment": name, "path": segment.path.display().to_string()})),
            false => println!("segment {name} is in {}", segment.path.display()),
        }
    }
    let Some(log) = info.log else { return Ok(ExitCode::SUCCESS) };
    match arguments.json {
        true => println!(
            "{}",
            json!({"log": log.path.display().to_string(), "second": log.second.map(|path| path.display().to_string()), "bytes": log.capacity})
        ),
        false => {
            let second = log.second.map_or(String::new(), |path| format!(" and in {}", path.display()));
            println!("the log is {} in {}{second}", size::show(log.capacity), log.path.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}
