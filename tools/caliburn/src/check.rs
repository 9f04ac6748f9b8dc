//! `check`.

use crate::{Failure, OneStore, size};
use caliburn::heap::{Heap, HeapError};
use caliburn::{Problem, Report, Store};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

/// Verifies a store; damage makes the exit code 1.
pub fn run(arguments: &OneStore) -> Result<ExitCode, Failure> {
    let mut report = caliburn::check(&arguments.store)?;
    let heaps = if report.is_clean() { check_heaps(&arguments.store, &mut report)? } else { 0 };
    if arguments.json {
        let problems: Vec<_> = report
            .problems
            .iter()
            .map(|p| json!({"path": p.path.display().to_string(), "offset": p.offset, "problem": p.text}))
            .collect();
        println!(
            "{}",
            json!({"store": arguments.store.display().to_string(), "clean": report.is_clean(), "problems": problems, "notes": report.notes, "heaps": heaps,
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
            "{verdict}: {} segments, {heaps} heaps in them, {} of data, {} records with {} transactions in the log, {} undecided",
            report.segments,
            size::show(report.data_bytes),
            report.records,
            report.transactions,
            report.prepared
        );
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Verifies what the heaps in a sound store know of their objects; how many there are.
fn check_heaps(path: &Path, report: &mut Report) -> Result<usize, Failure> {
    let store = Store::options().read_only(true).open(path)?;
    let names: Vec<String> = store.segments().iter().map(|segment| segment.name().to_owned()).collect();
    let is_heap = |name: &&String| names.contains(&format!("{name}.heap"));
    let heaps: Vec<&String> = names.iter().filter(is_heap).collect();
    for name in &heaps {
        match Heap::open(&store, name).and_then(|heap| heap.check()) {
            Ok(()) => {}
            Err(HeapError::Damaged { heap, offset, text }) => report.problems.push(Problem {
                path: path.join(format!("{heap}.heap")),
                offset,
                text: format!("byte of the segment: {text}"),
            }),
            Err(other) => return Err(other.into()),
        }
    }
    Ok(heaps.len())
}
