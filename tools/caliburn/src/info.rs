//! `info`.

use crate::dump::at;
use crate::text::plain;
use crate::{Failure, OneStore, size};
use caliburn::{Class, Info, Policy};
use serde_json::json;
use std::process::ExitCode;

/// Prints what a store consists of.
pub fn run(arguments: &OneStore) -> Result<ExitCode, Failure> {
    let info = arguments.options().info(&arguments.store)?;
    if arguments.json {
        let segments: Vec<_> = info
            .segments
            .iter()
            .map(|s| {
                json!({"id": s.id, "name": s.name, "path": s.path.display().to_string(), "bytes": s.len,
                "address": (s.address != 0).then(|| format!("{:#x}", s.address))})
            })
            .collect();
        let log = info.log.as_ref().map(|log| {
            json!({"path": log.path.display().to_string(), "second": log.second.as_ref().map(|path| path.display().to_string()), "bytes": log.capacity, "head": log.head, "forced": log.forced, "appended": log.appended,
                "openings": log.incarnation, "archived": log.archived.map(|archived| json!({"lsn": archived.lsn,
                    "since_ns": archived.since, "moved_ns": archived.moved}))})
        });
        println!(
            "{}",
            json!({"store": arguments.store.display().to_string(), "id": info.id, "format": info.format,
                "policy": info.policy.name(), "survives": survives(info.reach), "clean": info.clean, "in_use_by": info.in_use_by,
                "log": log, "segments": segments, "advice": advice(&info)})
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!("store    {} (format {}, id {})", arguments.store.display(), info.format, info.id);
    match &info.in_use_by {
        Some(holder) => println!("state    in use by {}", plain(holder)),
        None if info.clean => println!("state    closed in good order"),
        None => println!("state    not closed in good order: the next opening recovers it"),
    }
    println!("policy   {}; commits survive {}", info.policy.name(), survives(info.reach));
    for line in advice(&info) {
        println!("         {line}");
    }
    if let Some(log) = &info.log {
        println!(
            "log      {}, {}, {} openings so far",
            plain(log.path.display()),
            size::show(log.capacity),
            log.incarnation
        );
        if let Some(second) = &log.second {
            println!("         and its second copy in {}", plain(second.display()));
        }
        println!(
            "         records needed from LSN {}, forced at least to {}, written at least to {}",
            log.head, log.forced, log.appended
        );
        if let Some(archived) = log.archived {
            let behind = log.appended.saturating_sub(archived.lsn);
            println!(
                "archive  kept since {} until it is archived; that is so up to LSN {}, since {}: {} to go",
                at(archived.since),
                archived.lsn,
                at(archived.moved),
                size::show(behind)
            );
            if behind > log.capacity / 4 * 3 {
                println!(
                    "         the log is nearly full of that: see to `caliburn archive`, or commits will wait"
                );
            }
        }
    }
    for s in &info.segments {
        print!("segment  {:<20} {:>10}  {}", s.name, size::show(s.len), plain(s.path.display()));
        println!("{}", if s.address == 0 { String::new() } else { format!("  loaded at {:#x}", s.address) });
    }
    Ok(ExitCode::SUCCESS)
}

/// What is to be known of a store's health, and what to do.
fn advice(info: &Info) -> Vec<String> {
    let mut lines = Vec::new();
    let undo = info.policy == Policy::Undo;
    match (&info.in_use_by, info.clean) {
        (Some(_), _) => lines.push("`caliburn top` shows what it does, `caliburn dump` backs it up".to_owned()),
        (None, true) => lines.push("nothing is to be done; `caliburn check` verifies all of it".to_owned()),
        (None, false) if undo && info.reach == Class::Process => lines.push(
            "if the system went down since, it is lost: restore the last dump; else open it, or `caliburn recover`"
                .to_owned(),
        ),
        (None, false) => lines.push(
            "the program was killed, or the power failed: nothing that was acknowledged is lost; open it, or `caliburn recover`"
                .to_owned(),
        ),
    }
    if info.reach == Class::Process && !undo {
        lines.push("it is on a file system in memory: a power cut takes all of it".to_owned());
    }
    if undo && info.reach == Class::Process {
        lines.push(
            "its memory are files: a power cut while it is in use takes all of it; dump it now and then"
                .to_owned(),
        );
    }
    if let Some(log) = &info.log {
        let used = log.appended.saturating_sub(log.head);
        if used > log.capacity / 10 * 9 {
            lines.push("the log is nearly full: a transaction that is open long, or undecided, keeps it from being truncated; or it is too small (`caliburn move --log-bytes`)".to_owned());
        }
        if log.archived.is_none() {
            lines.push("its log is not archived: after the loss of the disk there are its dumps (`caliburn archive`)".to_owned());
        }
    }
    lines
}

fn survives(class: Class) -> &'static str {
    match class {
        Class::Power => "a power cut",
        Class::Os => "a warm start",
        _ => "a killed process",
    }
}
