//! `check`.

use crate::OneStore;
use caliburn::heap::{Heap, HeapError};
use caliburn::{Problem, Report};
use caliburn_tools::text::plain;
use caliburn_tools::{Failure, size};
use serde_json::json;
use std::process::ExitCode;

/// Verifies a store; damage makes the exit code 1.
pub fn run(arguments: &OneStore) -> Result<ExitCode, Failure> {
    let mut report = arguments.options().check(&arguments.store)?;
    let heaps = if report.is_clean() && report.in_use_by.is_none() {
        check_heaps(arguments, &mut report)?
    } else {
        0
    };
    if arguments.json {
        let problems: Vec<_> = report
            .problems
            .iter()
            .map(|p| json!({"path": p.path.display().to_string(), "offset": p.offset, "problem": p.text}))
            .collect();
        println!(
            "{}",
            json!({"store": arguments.store.display().to_string(), "clean": report.is_clean(), "in_use_by": report.in_use_by, "problems": problems, "notes": report.notes, "heaps": heaps,
                "segments": report.segments, "data_bytes": report.data_bytes, "unverified_bytes": report.unverified_bytes, "records": report.records,
                "transactions": report.transactions, "prepared": report.prepared})
        );
    } else {
        if let Some(holder) = &report.in_use_by {
            println!("note     in use by {}: verified as far as it does not change meanwhile", plain(holder));
        }
        for problem in &report.problems {
            let (path, text) = (plain(problem.path.display()), plain(&problem.text));
            println!("DAMAGED  {path}, offset {}: {text}", problem.offset);
        }
        for note in &report.notes {
            println!("note     {}", plain(note));
        }
        let verdict = if report.is_clean() { "clean" } else { "damaged" };
        println!(
            "{verdict}: {} segments, {heaps} heaps in them, {} of data verified, {} records with {} transactions in the log, {} undecided",
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
fn check_heaps(arguments: &OneStore, report: &mut Report) -> Result<usize, Failure> {
    let store = arguments.options().read_only(true).open(&arguments.store)?;
    let names: Vec<String> = store.segments().iter().map(|segment| segment.name().to_owned()).collect();
    let is_heap = |name: &&String| names.contains(&format!("{name}.heap"));
    let heaps: Vec<&String> = names.iter().filter(is_heap).collect();
    for name in &heaps {
        match Heap::open(&store, name).and_then(|heap| heap.check()) {
            Ok(()) => {}
            Err(HeapError::Damaged { heap, offset, text }) => report.problems.push(Problem {
                path: arguments.store.join(format!("{heap}.heap")),
                offset,
                text: format!("byte of the segment: {text}"),
            }),
            Err(other) => return Err(other.into()),
        }
    }
    Ok(heaps.len())
}
