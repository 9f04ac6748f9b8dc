//! `recover`: what a crash left brought to its place; or what is left of a damaged store saved.

use crate::{OneStore, salvage};
use caliburn_tools::Failure;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Arguments of `recover`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    one: OneStore,
    /// Of a store that is damaged, copy what can be read to a new store, in steps that each say what is lost.
    /// Nothing is changed in the damaged one.
    #[arg(long, value_name = "NEW")]
    salvage: Option<PathBuf>,
}

/// Recovers a store, or saves what is left of it.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let Some(target) = &arguments.salvage {
        return salvage::run(&arguments.one, target);
    }
    let arguments = &arguments.one;
    let start = Instant::now();
    let store = arguments.options().open(&arguments.store)?;
    let opened = start.elapsed();
    let (log_used, undecided) = (store.query().log_used, store.prepared().len());
    let report = store.open_report().clone();
    store.truncate()?;
    store.close()?;
    let (open_ms, all_ms) = (opened.as_secs_f64() * 1e3, start.elapsed().as_secs_f64() * 1e3);
    if arguments.json {
        println!(
            "{}",
            json!({
                "open_ms": open_ms, "total_ms": all_ms, "log_bytes_found": log_used, "undecided": undecided,
                "dropped_commits": report.dropped_commits, "dropped_bytes": report.dropped_bytes,
                "notices": report.notices,
            })
        );
    } else {
        println!(
            "recovered in {open_ms:.1} ms; {log_used} bytes of log brought to the segments in {all_ms:.1} ms"
        );
        report.notices.iter().for_each(|notice| println!("note: {notice}"));
        if undecided > 0 {
            println!("{undecided} prepared transaction(s) are undecided and stay in the log");
        }
    }
    Ok(ExitCode::SUCCESS)
}
