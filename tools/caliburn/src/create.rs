//! `create` and `add-segment`.

use crate::Outside;
use caliburn::{OpenError, Store as Opened};
use caliburn_tools::{Failure, size};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `create`.
#[derive(Args, Debug)]
pub struct Store {
    /// Directory of the new store.
    store: PathBuf,
    /// Bytes of the log, which bound the size of a transaction.
    #[arg(long, default_value = "64M", value_parser = size::parse)]
    log_bytes: u64,
    /// File or block device for the log, in place of a file in the store.
    #[arg(long)]
    log: Option<PathBuf>,
    /// A second file or block device for the log: either may be lost.
    #[arg(long, value_name = "PATH", conflicts_with = "policy")]
    duplex_log: Option<PathBuf>,
    /// How changes are undone and redone: `undo` keeps old values until the commit, needs no log, and survives
    /// what the memory of its files does: the death of a process, or more if it is persistent; `shadow` has what
    /// pages held on the medium before they are stored to, so that a transaction is as large as the disk.
    #[arg(long, value_enum, default_value_t = Policy::Redo)]
    policy: Policy,
    /// What commits must be able to survive; refused where they are not.
    #[arg(long, value_enum, default_value_t = Class::Process)]
    require: Class,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The recovery policies by name.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
enum Policy {
    Redo,
    Undo,
    Shadow,
}

/// What commits can survive, by name.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
enum Class {
    /// The death of the process.
    Process,
    /// A crash of the system.
    Os,
    /// A power cut.
    Power,
}

/// Arguments of `add-segment`.
#[derive(Args, Debug)]
pub struct Segment {
    /// Directory of the store.
    store: PathBuf,
    /// Name of the new segment.
    name: String,
    /// Its bytes of data; rounded up to 64 KiB.
    #[arg(value_parser = size::parse)]
    bytes: u64,
    /// File or block device for it, in place of a file in the store. What a device held is lost.
    #[arg(long)]
    path: Option<PathBuf>,
    #[command(flatten)]
    outside: Outside,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Creates a store.
pub fn store(arguments: &Store) -> Result<ExitCode, Failure> {
    let mut options = Opened::options();
    options.create_new(true).log_bytes(arguments.log_bytes);
    if let Some(path) = &arguments.log {
        options.log_path(path);
    }
    if let Some(path) = &arguments.duplex_log {
        options.duplex_log(path);
    }
    options.policy(match arguments.policy {
        Policy::Redo => caliburn::Policy::Redo,
        Policy::Undo => caliburn::Policy::Undo,
        Policy::Shadow => caliburn::Policy::Shadow,
    });
    if arguments.policy == Policy::Undo && arguments.log.is_some() {
        let why = "a store with the undo policy has no log that could be elsewhere (--log)";
        return Err(OpenError::Policy { path: arguments.store.clone(), why }.into());
    }
    options.require(match arguments.require {
        Class::Process => caliburn::Class::Process,
        Class::Os => caliburn::Class::Os,
        Class::Power => caliburn::Class::Power,
    });
    options.open(&arguments.store)?.close()?;
    let path = arguments.store.display().to_string();
    if arguments.policy != Policy::Redo {
        let name = if arguments.policy == Policy::Undo { "undo" } else { "shadow" };
        let text = format!("created store {path} with the {name} policy");
        println!(
            "{}",
            if arguments.json { json!({"store": path, "policy": name}).to_string() } else { text }
        );
    } else if arguments.json {
        println!("{}", json!({"store": path, "log_bytes": arguments.log_bytes}));
    } else {
        println!("created store {path} with a log of {}", size::show(arguments.log_bytes));
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds a segment.
pub fn segment(arguments: &Segment) -> Result<ExitCode, Failure> {
    let store = arguments.outside.options().open(&arguments.store)?;
    let segment = match &arguments.path {
        Some(path) => store.create_segment_at(&arguments.name, arguments.bytes, path)?,
        None => store.create_segment(&arguments.name, arguments.bytes)?,
    };
    let len = segment.len();
    store.close()?;
    if arguments.json {
        println!("{}", json!({"segment": arguments.name, "bytes": len}));
    } else {
        println!("created segment {} of {}", arguments.name, size::show(len));
    }
    Ok(ExitCode::SUCCESS)
}
