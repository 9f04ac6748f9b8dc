//! `check`.

use crate::{Failure, OneStore, size};
use serde_json::json;
use std::process::ExitCode;

/// Verifies a store; damage makes the exit code 1.
pub fn run(arguments: &OneStore) -> Result<ExitCode, Failure> {
    let report = caliburn::check(&arguments.store)?;
    if arguments.json {
        let problems: Vec<_> = report
            .problems
            .iter()
            .map(|p| json!({"path": p.path.display().to_string(), "offset": p.offset, "problem": p.text}))
            .collect();
        println!(
            "{}",
            json!({"store": arguments.store.display().to_string(), "clean": report.is_clean(), "problems": problems, "notes": report.notes,
                "segments": report.segments, "data_bytes": report.data_bytes, "records": report.records,
                "transactions": report.transactions, "prepared": report.prepared})
        );
    } else {
        for problem in &report.problems {
            println!("DAMAGED  {}, offset {}: {}", problem.path.display(), problem.offset, problem.text);
        }
        for note in &report.notes {
            println!("note     {note}");
        }
        let verdict = if report.is_clean() { "clean" } else { "damaged" };
        println!(
            "{verdict}: {} segments, {} of data, {} records with {} transactions in the log, {} undecided",
            report.segments,
            size::show(report.data_bytes),
            report.records,
            report.transactions,
            report.prepared
        );
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
