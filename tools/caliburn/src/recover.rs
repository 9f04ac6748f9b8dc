//! `recover`.

use crate::{Failure, OneStore};
use serde_json::json;
use std::process::ExitCode;
use std::time::Instant;

/// Recovers a store.
pub fn run(arguments: &OneStore) -> Result<ExitCode, Failure> {
    let start = Instant::now();
    let store = arguments.options().open(&arguments.store)?;
    let opened = start.elapsed();
    let (log_used, undecided) = (store.query().log_used, store.prepared().len());
    store.truncate()?;
    store.close()?;
    let (open_ms, all_ms) = (opened.as_secs_f64() * 1e3, start.elapsed().as_secs_f64() * 1e3);
    if arguments.json {
        println!(
            "{}",
            json!({"open_ms": open_ms, "total_ms": all_ms, "log_bytes_found": log_used, "undecided": undecided})
        );
    } else {
        println!(
            "recovered in {open_ms:.1} ms; {log_used} bytes of log brought to the segments in {all_ms:.1} ms"
        );
        if undecided > 0 {
            println!("{undecided} prepared transaction(s) are undecided and stay in the log");
        }
    }
    Ok(ExitCode::SUCCESS)
}
