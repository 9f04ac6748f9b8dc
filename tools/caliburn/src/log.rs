//! `log`: RVM's post-mortem tool (RVM, section 6).

use crate::Outside;
use crate::dumps::{self, Scratch};
use caliburn::heap::Heap;
use caliburn::typed::place;
use caliburn::{
    Changed, DumpOptions, Event, Filter, History, OpenError, Options, RestoreOptions, Store, Until,
};
use caliburn_tools::Failure;
use caliburn_tools::record::{as_text, hex};
use clap::Args;
use serde_json::json;
use std::fs::{self, File};
use std::io::{self, Seek, Write as _};
use std::ops::Range;
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
    range: Option<Range<u64>>,
    /// Only what happened to this typed object: its heap, and the path to it as of `show`. Where it is
    /// now: of a store in use a dump is restored in the directory for temporary files.
    #[arg(long, value_name = "HEAP PATH", num_args = 1.., conflicts_with_all = ["segment", "range"])]
    object: Vec<String>,
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
    /// Print what the range held then: `latest`, `lsn:N` for every commit before LSN N, a time as
    /// 2026-03-01T12:00:00Z, in seconds since 1970, or -N for N seconds ago.
    #[arg(long, value_name = "WHEN", value_parser = crate::restore::parse_until, allow_hyphen_values = true,
        requires = "dumps", conflicts_with_all = ["follow", "old", "all", "reverse"])]
    replay_to: Option<Until>,
    /// Print each change of the range, from what to what: after the last dump that is not later than --since, or
    /// the first one.
    #[arg(long, requires = "dumps", conflicts_with_all = ["follow", "all", "reverse"])]
    old: bool,
    /// A dump, or a directory of dumps, for --replay-to and --old.
    #[arg(long, value_name = "PATH")]
    dumps: Option<PathBuf>,
    #[command(flatten)]
    outside: Outside,
    /// One JSON object per record.
    #[arg(long)]
    json: bool,
}

fn parse_range(text: &str) -> Result<Range<u64>, String> {
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
    let (segment, range) = match arguments.object.split_first() {
        Some((heap, path)) => (Some(heap.clone()), Some(object(arguments, heap, path)?)),
        None => (arguments.segment.clone(), arguments.range.clone()),
    };
    if arguments.replay_to.is_some() || arguments.old {
        return past(arguments, segment.zip(range));
    }
    let filter = Filter {
        lsn: arguments.lsn,
        segment,
        range,
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
            if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
                return ended(Err(error));
            }
            next = event.lsn + event.log_bytes;
        }
        if !arguments.follow {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Where an object is. Of a store in use, in what is restored of a dump of it.
fn object(arguments: &Arguments, heap: &str, path: &[String]) -> Result<Range<u64>, Failure> {
    let find = |store: &Store| Ok(place(&Heap::open(store, heap)?, path)?);
    match arguments.outside.options().read_only(true).open(&arguments.store) {
        Err(OpenError::InUse { .. }) => {}
        store => return find(&store?),
    }
    let scratch = Scratch::new(&std::env::temp_dir());
    let (outside, store) = (scratch.path.join("outside"), scratch.path.join("store"));
    fs::create_dir_all(&outside)?;
    let mut file = File::options().read(true).write(true).create_new(true).open(scratch.path.join("dump"))?;
    arguments.outside.options().dump(&arguments.store, &DumpOptions::new(), &mut file)?;
    file.rewind()?;
    Options::new().restore(&mut file, RestoreOptions::new().external(&outside), &store)?;
    find(&Options::new().outside(&outside).read_only(true).open(&store)?)
}

/// What a range held, or how it changed.
fn past(arguments: &Arguments, place: Option<(String, Range<u64>)>) -> Result<ExitCode, Failure> {
    let missing = "name the segment and the range, or an object, and the dumps";
    let (Some((segment, range)), Some(path)) = (place, &arguments.dumps) else {
        return Err(missing.into());
    };
    let chain = match (arguments.replay_to, arguments.since) {
        (Some(until), _) => dumps::chosen(path, until)?,
        (None, Some(since)) => dumps::chosen(path, Until::Time(since)).or_else(|_| dumps::first(path))?,
        (None, None) => dumps::first(path)?,
    };
    let mut how = RestoreOptions::new();
    how.until(arguments.replay_to.unwrap_or(Until::Latest)).left(&arguments.store);
    arguments.archive.iter().for_each(|archive| _ = how.archive(archive));
    let time = arguments.since.unwrap_or(0)..arguments.until.unwrap_or(u64::MAX);
    let mut out = std::io::stdout().lock();
    let mut written = Ok(());
    let mut tell = |changed: &Changed| {
        if arguments.old && time.contains(&changed.time) && written.is_ok() {
            written = writeln!(out, "{}", change_as(changed, arguments.json));
        }
    };
    let mut source = dumps::open(&chain)?;
    let options = arguments.outside.options();
    let past = options.past(&mut source, &how, &segment, range, &mut tell)?;
    if !arguments.old && arguments.json {
        let bytes = hex(&past.bytes);
        let told = json!({"segment": segment, "offset": past.offset, "len": past.bytes.len(), "lsn": past.lsn,
            "time_ns": past.time, "bytes": bytes});
        written = writeln!(out, "{told}");
    } else if !arguments.old {
        written = writeln!(out, "{segment} as of LSN {}, {}", past.lsn, crate::dump::at(past.time))
            .and_then(|()| write_lines(&mut out, past.offset, &past.bytes));
    }
    ended(written.and_then(|()| out.flush()))
}

/// Whether all that was asked for was printed. A reader that has gone has seen enough.
fn ended(written: io::Result<()>) -> Result<ExitCode, Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}").into())
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Bytes in lines of 16, those that are equal to the line before left out.
fn write_lines(out: &mut dyn io::Write, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let (mut before, mut left_out): (&[u8], bool) = (&[], false);
    for (i, line) in bytes.chunks(16).enumerate() {
        if line == before {
            if !std::mem::replace(&mut left_out, true) {
                writeln!(out, "{:>12}", "*")?;
            }
            continue;
        }
        (before, left_out) = (line, false);
        let shown = |byte: &u8| if (32..127).contains(byte) { char::from(*byte) } else { '.' };
        let text: String = line.iter().map(shown).collect();
        writeln!(out, "{:>12}  {:<32}  {text}", offset + i as u64 * 16, hex(line))?;
    }
    Ok(())
}

fn change_as(changed: &Changed, json: bool) -> String {
    let (old, new) = (hex(&changed.old), hex(&changed.new));
    let id = String::from_utf8_lossy(&changed.global_id).into_owned();
    if json {
        let id = (!id.is_empty()).then_some(id);
        return json!({"lsn": changed.lsn, "time_ns": changed.time, "global_id": id, "offset": changed.offset,
            "old": old, "new": new})
        .to_string();
    }
    let by = if id.is_empty() { String::new() } else { format!("  {id:?}") };
    let (lsn, at) = (changed.lsn, crate::dump::at(changed.time));
    let end = changed.offset + changed.new.len() as u64;
    format!("{lsn:>12}  {at}{by}  {}..{end}\n         from  {old}\n           to  {new}", changed.offset)
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
