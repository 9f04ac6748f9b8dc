//! `info`.

use crate::OneStore;
use crate::dump::at;
use caliburn::{Class, Info, Policy, Prepared};
use caliburn_tools::text::plain;
use caliburn_tools::{Failure, size};
use serde_json::json;
use std::process::ExitCode;

/// Prints what a store consists of.
pub fn run(arguments: &OneStore) -> Result<ExitCode, Failure> {
    let info = arguments.options().info(&arguments.store)?;
    let in_doubt = in_doubt(arguments, &info);
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
            json!({"path": log.path.display().to_string(), "second": log.second.as_ref().map(|path| path.display().to_string()), "bytes": log.capacity, "head": log.head, "forced": log.forced, "appended": log.appended, "staged": log.staged,
                "openings": log.incarnation, "archived": log.archived.map(|archived| json!({"lsn": archived.lsn,
                    "since_ns": archived.since, "moved_ns": archived.moved}))})
        });
        println!(
            "{}",
            json!({"store": arguments.store.display().to_string(), "id": info.id, "format": info.format,
                "policy": info.policy.name(), "survives": survives(info.reach), "clean": info.clean, "in_use_by": info.in_use_by,
                "log": log, "segments": segments, "advice": advice(&info),
                "in_doubt": in_doubt.as_ref().ok().map(|list| list.iter().map(in_doubt_json).collect::<Vec<_>>())})
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
    match &in_doubt {
        Ok(list) => list.iter().for_each(|prepared| {
            let id = String::from_utf8_lossy(&prepared.global_id);
            println!("in doubt {:?}, prepared {}", id, at(prepared.time));
        }),
        Err(why) => println!("in doubt not known: {}", plain(why)),
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
        if log.staged > 0 {
            println!("         {} commit(s) wait in the stage", log.staged);
        }
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

/// The prepared transactions that nothing has decided; or why they are not known.
fn in_doubt(arguments: &OneStore, info: &Info) -> Result<Vec<Prepared>, String> {
    if info.in_use_by.is_some() {
        return Err("the program that uses the store has them".to_owned());
    }
    let store = arguments.options().read_only(true).open(&arguments.store).map_err(|e| e.to_string())?;
    Ok(store.prepared())
}

fn in_doubt_json(prepared: &Prepared) -> serde_json::Value {
    json!({"global_id": String::from_utf8_lossy(&prepared.global_id), "time_ns": prepared.time})
}

/// What is to be known of a store's health, and what to do.
fn advice(info: &Info) -> Vec<String> {
    let mut lines = Vec::new();
    let undo = info.policy == Policy::Undo;
    match (&info.in_use_by, info.clean) {
        (Some(_), _) => lines.push("`caliburn-top` shows what it does, `caliburn dump` backs it up".to_owned()),
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
