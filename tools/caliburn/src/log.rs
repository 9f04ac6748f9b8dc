//! `log`: RVM's post-mortem tool (RVM, section 6).

use crate::{Failure, Outside};
use caliburn::{Event, Filter, History};
use clap::Args;
use serde_json::json;
use std::fmt::Write;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Arguments of `log`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Directory of the store; it may be in use.
    store: PathBuf,
    /// Only the record at this LSN.
    #[arg(long)]
    lsn: Option<u64>,
    /// Only records that change this segment.
    #[arg(long)]
    segment: Option<String>,
    /// Only records that change any byte of this range of it, as START..END.
    #[arg(long, value_parser = parse_range, requires = "segment")]
    range: Option<std::ops::Range<u64>>,
    /// Only records at or after this time: seconds since 1970, or -N for N seconds ago.
    #[arg(long, value_parser = parse_time, allow_hyphen_values = true)]
    since: Option<u64>,
    /// Only records before this time, likewise.
    #[arg(long, value_parser = parse_time, allow_hyphen_values = true)]
    until: Option<u64>,
    /// Only records of the prepared transaction with this global identifier.
    #[arg(long)]
    global_id: Option<String>,
    /// Newest first.
    #[arg(long)]
    reverse: bool,
    /// Also records that were truncated but not overwritten yet.
    #[arg(long, conflicts_with = "follow")]
    all: bool,
    /// Also what this archive of the log has.
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "follow")]
    archive: Option<PathBuf>,
    /// Go on printing records as they come, until interrupted.
    #[arg(long, conflicts_with = "reverse")]
    follow: bool,
    /// Print the new bytes too.
    #[arg(long)]
    bytes: bool,
    #[command(flatten)]
    outside: Outside,
    /// One JSON object per record.
    #[arg(long)]
    json: bool,
}

fn parse_range(text: &str) -> Result<std::ops::Range<u64>, String> {
    let (start, end) = text.split_once("..").ok_or("use START..END")?;
    let number = |part: &str| part.parse::<u64>().map_err(|e| format!("{part:?}: {e}"));
    let range = number(start)?..number(end)?;
    if range.is_empty() { Err("the range is empty".into()) } else { Ok(range) }
}

fn parse_time(text: &str) -> Result<u64, String> {
    let seconds: f64 = text.parse().map_err(|e| format!("{text:?}: {e}"))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
    let at = if text.starts_with('-') { now + seconds } else { seconds };
    Ok((at.max(0.0) * 1e9) as u64)
}

/// Prints the records that are wanted.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let filter = Filter {
        lsn: arguments.lsn,
        segment: arguments.segment.clone(),
        range: arguments.range.clone(),
        time: (arguments.since.is_some() || arguments.until.is_some())
            .then(|| arguments.since.unwrap_or(0)..arguments.until.unwrap_or(u64::MAX)),
        global_id: arguments.global_id.as_ref().map(|id| id.clone().into_bytes()),
    };
    let history = arguments.outside.options().history(&arguments.store)?;
    let mut out = std::io::stdout().lock();
    let mut next = 0;
    loop {
        let mut events =
            if arguments.all { history.all(&filter)? } else { history.live(&filter, arguments.reverse)? };
        if arguments.all && arguments.reverse {
            events.reverse();
        }
        if let Some(archive) = &arguments.archive {
            events.extend(History::archived(archive, &filter)?);
            events.sort_by_key(|event| event.lsn);
            events.dedup_by_key(|event| event.lsn);
            if arguments.reverse {
                events.reverse();
            }
        }
        let seen = next;
        for event in events.iter().filter(|e| !arguments.follow || e.lsn >= seen) {
            let text = if arguments.json {
                as_json(event, arguments.bytes)
            } else {
                as_text(event, arguments.bytes)
            };
            if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
                // Whoever read our output has seen enough.
                return Ok(ExitCode::SUCCESS);
            }
            next = event.lsn + event.log_bytes;
        }
        if !arguments.follow {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn as_json(event: &Event, bytes: bool) -> String {
    let changes: Vec<_> = event
        .changes
        .iter()
        .map(|c| {
            let mut change = json!({"segment": c.segment, "offset": c.offset, "len": c.bytes.len()});
            if bytes {
                change["bytes"] = json!(hex(&c.bytes));
            }
            change
        })
        .collect();
    let global_id =
        (!event.global_id.is_empty()).then(|| String::from_utf8_lossy(&event.global_id).into_owned());
    json!({"lsn": event.lsn, "kind": event.kind, "time_ns": event.time, "opening": event.incarnation, "transactions": event.transactions,
        "global_id": global_id, "log_bytes": event.log_bytes, "changes": changes})
    .to_string()
}

/// A record in words.
pub fn as_text(event: &Event, bytes: bool) -> String {
    let mut out = format!(
        "{:>12}  {}.{:06}  {:<7}",
        event.lsn,
        event.time / 1_000_000_000,
        event.time / 1000 % 1_000_000,
        event.kind
    );
    if event.transactions > 1 {
        let _ = write!(out, "  {} transactions", event.transactions);
    }
    if !event.global_id.is_empty() {
        let _ = write!(out, "  {:?}", String::from_utf8_lossy(&event.global_id));
    }
    let total: usize = event.changes.iter().map(|c| c.bytes.len()).sum();
    let _ = write!(out, "  {} ranges, {total} bytes, {} in the log", event.changes.len(), event.log_bytes);
    for change in &event.changes {
        let _ = write!(
            out,
            "\n              {} {}..{}",
            change.segment,
            change.offset,
            change.offset + change.bytes.len() as u64
        );
        if bytes {
            let _ = write!(out, "  {}", hex(&change.bytes));
        }
    }
    out
}
