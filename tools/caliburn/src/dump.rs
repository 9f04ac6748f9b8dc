//! `dump`: a store as it is at one moment, while it is used.

use crate::dumps::{self, SUFFIX, Scratch};
use crate::restore::checked;
use crate::{Outside, progress};
use caliburn::{BackupError, DumpOptions, Dumped, RestoreOptions, Until};
use caliburn_tools::{Failure, size, text};
use clap::Args;
use serde_json::json;
use std::fs::{self, File};
use std::io::{BufWriter, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `dump`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Directory of the store; a program may be using it.
    store: PathBuf,
    /// A new file; a directory, in which the dump gets a name by its place in the log; or `-` for standard output.
    target: PathBuf,
    /// Read at most so many bytes of segments in a second: 50M.
    #[arg(long, value_parser = size::parse)]
    rate: Option<u64>,
    /// How far processors' time goes to others first, such as the program that uses the store: 0 is not at all, 19
    /// as far as there is.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..20))]
    nice: u8,
    /// Only what was written since that dump, in a file: to be restored after it.
    #[arg(long, value_name = "DUMP", conflicts_with = "incremental")]
    since: Option<PathBuf>,
    /// Only what was written since the newest dump in the target directory; all, if there is none that it can be.
    #[arg(long)]
    incremental: bool,
    /// Then restore it into a directory beside the target, check it, and remove it: the dump is good if the exit
    /// code is 0.
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    outside: Outside,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Dumps a store.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let now = rustix::process::getpriority_process(None)?;
    rustix::process::setpriority_process(None, now.max(arguments.nice.into()))?;
    let stream = arguments.target.as_os_str() == "-";
    if stream {
        if arguments.verify {
            return Err(
                "a stream cannot be verified: `caliburn restore - DIRECTORY` does that where it arrives"
                    .into(),
            );
        }
        let base = arguments.since.as_ref().map(|path| base(path)).transpose()?;
        let mut out = BufWriter::with_capacity(1 << 20, stdout().lock());
        let dumped = dump(arguments, base.as_ref(), &mut out)?;
        // Standard output is taken.
        eprintln!("{}", told(&dumped));
        return Ok(ExitCode::SUCCESS);
    }
    let (dumped, path) = to_file(arguments)?;
    if arguments.verify {
        verify(&path, &dumped, arguments.since.as_deref())?;
    }
    match arguments.json {
        true => println!("{}", as_json(&dumped, &path, arguments.verify)),
        false => println!("{}: {}", text::plain(path.display()), told(&dumped)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Dumps to a file, which has its name only when the dump is whole and durable.
fn to_file(arguments: &Arguments) -> Result<(Dumped, PathBuf), Failure> {
    /// How often it is tried again when the log was overwritten before it was read.
    const TRIES: u32 = 3;
    let target = &arguments.target;
    let fail = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    let into = target.is_dir();
    if !into && target.exists() {
        return Err(format!("{}: it exists already; a dump goes over no other file", target.display()).into());
    }
    let above = if into {
        target.as_path()
    } else {
        target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
    };
    let unfinished = above.join(format!(".unfinished-{}.{SUFFIX}", std::process::id()));
    let _removed = Removed(&unfinished);
    let mut base = match (&arguments.since, arguments.incremental) {
        (Some(path), _) => Some(base(path)?),
        (None, true) if into => {
            let store = arguments.outside.options().info(&arguments.store)?.id;
            let of_it = |(_, dumped): (PathBuf, Dumped)| (dumped.store == store).then_some(dumped);
            dumps::all(target)?.into_iter().rev().find_map(of_it)
        }
        (None, true) => return Err("--incremental needs a directory of dumps as its target".into()),
        (None, false) => None,
    };
    for tries in 1.. {
        let file = File::create(&unfinished).map_err(fail(&unfinished))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let dumped = match dump(arguments, base.as_ref(), &mut out) {
            Err(BackupError::Overtaken { .. }) if tries < TRIES => continue,
            Err(error @ BackupError::Base { .. }) if arguments.incremental => {
                eprintln!("{error}: this is one");
                base = None;
                continue;
            }
            other => other?,
        };
        out.flush().and_then(|()| out.get_ref().sync_all()).map_err(fail(&unfinished))?;
        let path = match into {
            true => free(target, &name(&dumped, base.as_ref()), &dumped),
            false => target.clone(),
        };
        fs::rename(&unfinished, &path).map_err(fail(&path))?;
        File::open(above).and_then(|above| above.sync_all()).map_err(fail(above))?;
        return Ok((dumped, path));
    }
    unreachable!("the last try returns")
}

/// The path of a new dump in a directory: over no other one, which may be another store's at the same place in its
/// log.
fn free(target: &Path, name: &str, dumped: &Dumped) -> PathBuf {
    let path = target.join(format!("{name}.{SUFFIX}"));
    match path.exists() {
        true => target.join(format!("{name}-{:020}.{SUFFIX}", dumped.time)),
        false => path,
    }
}

/// What a dump in a directory is called: by its place in the log, and that of its base; without a log by its time.
fn name(dumped: &Dumped, base: Option<&Dumped>) -> String {
    match base {
        Some(base) => format!("{:020}-since-{:020}", dumped.lsn, base.lsn),
        None if dumped.lsn == 0 && dumped.id.is_empty() => format!("{:020}", dumped.time),
        None => format!("{:020}", dumped.lsn),
    }
}

fn base(path: &Path) -> Result<Dumped, Failure> {
    Ok(Dumped::of(path).map_err(|e| format!("{}: {e}", path.display()))?)
}

fn dump(arguments: &Arguments, base: Option<&Dumped>, out: &mut dyn Write) -> Result<Dumped, BackupError> {
    let mut options = arguments.outside.options();
    progress::show(&mut options);
    let mut how = DumpOptions::new();
    if let Some(rate) = arguments.rate {
        how.rate(rate);
    }
    base.iter().for_each(|base| _ = how.since(base));
    options.dump(&arguments.store, &how, out)
}

/// Restores a dump, checks what comes of it, and removes that.
fn verify(path: &Path, dumped: &Dumped, since: Option<&Path>) -> Result<(), Failure> {
    let scratch = Scratch::new(path.parent().unwrap_or(Path::new(".")));
    let fail = |error: Failure| format!("{}: the dump is NOT good: {error}", path.display());
    let mut chain = match since {
        Some(base) => dumps::chosen(base, Until::Latest)?,
        None => dumps::chosen(path, Until::Latest)?,
    };
    if since.is_some() {
        chain.push((path.to_owned(), dumped.clone()));
    }
    let mut file = dumps::open(&chain)?;
    let outside = scratch.path.join("outside");
    fs::create_dir_all(&outside)?;
    let mut how = RestoreOptions::new();
    how.external(&outside);
    let store = scratch.path.join("store");
    let restored = caliburn::Options::new().restore(&mut file, &how, &store).map_err(|e| fail(e.into()))?;
    if restored.lsn != dumped.lsn {
        return Err(fail(format!("it restores to LSN {}", restored.lsn).into()).into());
    }
    checked(&store, Some(&outside)).map_err(fail)?;
    Ok(())
}

struct Removed<'p>(&'p Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0);
    }
}

/// Nanoseconds since 1970, for people.
pub fn at(time: u64) -> String {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(time);
    humantime::format_rfc3339_micros(time).to_string()
}

fn told(dumped: &Dumped) -> String {
    format!(
        "store {} as of {}{}: {} segments, {} of data, {} of log",
        dumped.store,
        if dumped.lsn > 0 { format!("LSN {}, ", dumped.lsn) } else { String::new() },
        at(dumped.time),
        dumped.segments,
        size::show(dumped.data_bytes),
        size::show(dumped.log_bytes)
    )
}

/// What a dump holds, and where it is.
pub fn as_json(dumped: &Dumped, path: &Path, verified: bool) -> serde_json::Value {
    json!({"dump": path.display().to_string(), "store": dumped.store, "id": dumped.id, "base": dumped.base,
        "lsn": dumped.lsn, "time_ns": dumped.time,
        "last_record_ns": (dumped.last > 0).then_some(dumped.last), "segments": dumped.segments,
        "data_bytes": dumped.data_bytes, "log_bytes": dumped.log_bytes,
        "verified": verified})
}
