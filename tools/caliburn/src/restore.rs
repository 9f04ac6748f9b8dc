//! `restore`: a store from a dump, the archive of its log, and what is left of it.

use crate::dump::at;
use crate::{archive, dump, dumps, progress};
use caliburn::{Options, RestoreOptions, Until, archive_parts};
use caliburn_tools::{Failure, size, text};
use clap::Args;
use serde_json::json;
use std::io::{Read, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Arguments of `restore`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A dump; a directory of dumps, of which the newest is taken that is not too late, after those that it is
    /// laid over; or `-` for standard input: a whole dump, and those that are laid over it behind it, in their
    /// order.
    dump: PathBuf,
    /// Directory of the new store: empty or missing.
    #[arg(required_unless_present = "list")]
    store: Option<PathBuf>,
    /// Directory with the archive of the log.
    #[arg(long)]
    archive: Option<PathBuf>,
    /// Directory of the store itself, if its log is left: what came after the last part of the archive.
    #[arg(long)]
    left: Option<PathBuf>,
    /// Up to when: `latest`, `lsn:N` for what stands before LSN N, a time as 2026-03-01T12:00:00Z, in seconds
    /// since 1970, or -N for N seconds ago.
    #[arg(long, default_value = "latest", value_parser = parse_until, allow_hyphen_values = true)]
    to: Until,
    /// Directory for the files of segments that the store had adopted from elsewhere.
    #[arg(long)]
    external: Option<PathBuf>,
    /// Bytes of the new store's log.
    #[arg(long, default_value = "64M", value_parser = size::parse)]
    log_bytes: u64,
    /// Make nothing: list the dumps and the archive, what can be reached, and what is missing.
    #[arg(long)]
    list: bool,
    /// Do not check the new store.
    #[arg(long)]
    unchecked: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A moment.
pub fn parse_until(text: &str) -> Result<Until, String> {
    if text == "latest" {
        return Ok(Until::Latest);
    }
    if let Some(lsn) = text.strip_prefix("lsn:") {
        return lsn.parse().map(Until::Lsn).map_err(|e| format!("{lsn:?}: {e}"));
    }
    if let Ok(seconds) = text.parse::<f64>() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        let time = if text.starts_with('-') { now + seconds } else { seconds };
        let time = Duration::try_from_secs_f64(time).map_err(|e| format!("{text}: {e}"))?;
        return Ok(Until::Time(time.as_nanos() as u64));
    }
    let time = humantime::parse_rfc3339_weak(text).map_err(|e| {
        format!("{e}; use latest, lsn:N, a time as 2026-03-01T12:00:00Z, seconds since 1970, or -N")
    })?;
    let time = time.duration_since(UNIX_EPOCH).map_err(|_| "a time before 1970")?;
    Ok(Until::Time(time.as_nanos() as u64))
}

/// Restores a store, or lists what could be.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.list {
        return list(arguments);
    }
    let store = arguments.store.as_ref().ok_or("name the directory of the new store")?;
    let mut how = RestoreOptions::new();
    how.until(arguments.to).checked(!arguments.unchecked);
    arguments.archive.iter().for_each(|path| _ = how.archive(path));
    arguments.left.iter().for_each(|path| _ = how.left(path));
    arguments.external.iter().for_each(|path| _ = how.external(path));
    let mut source: Box<dyn Read> = match arguments.dump.as_os_str() == "-" {
        true => Box::new(stdin().lock()),
        false => dumps::open(&dumps::chosen(&arguments.dump, arguments.to)?)?,
    };
    let mut options = Options::new();
    options.log_bytes(arguments.log_bytes);
    progress::show(&mut options);
    let restored = options.restore(&mut source, &how, store)?;
    if arguments.json {
        println!(
            "{}",
            json!({"store": store.display().to_string(), "from": restored.from, "lsn": restored.lsn,
                "time_ns": restored.time, "transactions": restored.transactions, "left": restored.left,
                "undecided": restored.undecided, "lost": restored.lost, "segments": restored.segments,
                "checked": !arguments.unchecked})
        );
    } else {
        println!(
            "{}: {} segments of store {} as of LSN {}, {}; {} transactions after the segments were dumped",
            text::plain(store.display()),
            restored.segments,
            restored.from,
            restored.lsn,
            at(restored.time),
            restored.transactions
        );
        if restored.undecided > 0 {
            println!("{} prepared transaction(s) are undecided", restored.undecided);
        }
        if let Some(lost) = &restored.lost {
            println!("LOST     what came later: {}", text::plain(lost));
        }
        println!("its log begins anew: make a new dump, and archive to another directory");
    }
    Ok(if restored.lost.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Checks a store that was made.
pub fn checked(store: &Path, outside: Option<&Path>) -> Result<(), Failure> {
    let mut options = Options::new();
    outside.iter().for_each(|path| _ = options.outside(path));
    progress::show(&mut options);
    let report = options.check(store)?;
    match report.problems.first() {
        None => Ok(()),
        Some(problem) => {
            Err(format!("{}, offset {}: {}", problem.path.display(), problem.offset, problem.text).into())
        }
    }
}

/// Lists what can be reached: from each dump on, as far as the archive goes.
fn list(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let all = dumps::all(&arguments.dump)?;
    let parts = arguments.archive.as_ref().map_or(Ok(Vec::new()), archive_parts)?;
    let mut holes = Vec::new();
    let mut end = parts.first().map_or(0, |part| part.from);
    for part in &parts {
        if part.from > end {
            holes.push((end, part.from));
        }
        end = end.max(part.to);
    }
    if arguments.json {
        let dumps: Vec<_> = all.iter().map(|(path, dumped)| dump::as_json(dumped, path, false)).collect();
        let parts: Vec<_> = parts.iter().map(archive::as_json).collect();
        println!("{}", json!({"dumps": dumps, "archive": parts, "holes": holes}));
        return Ok(ExitCode::SUCCESS);
    }
    for (path, dumped) in &all {
        let kind = if dumped.base.is_some() { "  over  " } else { "dump    " };
        println!("{kind} LSN {:>14}  {}  {}", dumped.lsn, at(dumped.time), text::plain(path.display()));
        // From its end on, as long as one part comes behind the other.
        let (mut reached, mut time) = (dumped.lsn, None);
        for part in &parts {
            if part.from <= reached && part.to > reached {
                (reached, time) = (part.to, Some(part.last));
            }
        }
        if let Some(time) = time {
            println!("  up to  LSN {reached:>14}  {}  with the archive", at(time));
        }
    }
    for (from, to) in &holes {
        println!("MISSING  LSN {from} to {to}: no dump before it can be brought further");
    }
    Ok(ExitCode::SUCCESS)
}
