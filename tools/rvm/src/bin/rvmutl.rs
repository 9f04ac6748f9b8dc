//! `rvmutl`: looks after logs of RVM's. Commands come from standard input, one a line, as those of the tool of
//! that name.

use caliburn::{Event, Filter, Guard, History, Options};
use caliburn_rvm::store_of;
use caliburn_rvm_tools::number;
use caliburn_tools::record::as_text;
use caliburn_tools::text::plain;
use caliburn_tools::{Failure, output};
use clap::Parser;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const HELP: &str = "\
  init_log, i LOG SIZE           make a log, or make it anew: what it held for its segments is lost
  open_log, log, o LOG           look at a log, which nobody needs to have closed
  close_log                      look at none
  status, read_status            what the log is, and how full
  recover, truncate              apply the log to its segments, and empty it
  show all                       every record, oldest first
  show head, tail                the first, the last; also as commands of their own
  show next, prev [N]            those after, before the one shown last; also n, pr
  show NUMBER                    the record of that number, as the others show it
  show mods FILE OFFSET [LENGTH] every record that changes bytes of a segment
  help                           this
  quit, q
SIZE: a number as in C, then K, M, S (sectors of 512), P (pages) or B, the default";

/// Look after a log of RVM's: commands are read from standard input.
#[derive(Parser, Debug)]
#[command(name = "rvmutl", version)]
struct Arguments {
    /// The log to be opened first.
    log: Option<PathBuf>,
    /// Makes a log of so many bytes; used for each by itself.
    #[arg(long, hide = true, requires = "log")]
    make: Option<u64>,
}

/// What the commands refer to.
#[derive(Default)]
struct Session {
    log: Option<PathBuf>,
    /// Position of the record shown last.
    shown: Option<u64>,
}

/// A number and its unit.
fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, last)) if last.is_ascii_alphabetic() && !text.to_ascii_lowercase().starts_with("0x") => {
            let unit = match last.to_ascii_lowercase() {
                'k' => 1 << 10,
                'm' => 1 << 20,
                's' => 512,
                'p' => caliburn::Segment::page_size() as u64,
                'b' => 1,
                _ => return Err(format!("{text:?}: a unit is K, M, S, P or B")),
            };
            (&text[..at], unit)
        }
        _ => (text, 1),
    };
    number(digits)?.checked_mul(unit).ok_or_else(|| format!("{text:?} is too large"))
}

/// Reads commands until there are no more.
fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let (Some(log), Some(length)) = (&arguments.log, arguments.make) {
        return match caliburn_rvm::make_log(log, length) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) => Err(format!("{}: {error}", log.display()).into()),
        };
    }
    let mut session = Session::default();
    let mut failed = false;
    if let Some(log) = &arguments.log {
        failed |= tell(session.open(log));
    }
    let mut lines = std::io::stdin().lock().lines();
    loop {
        print!("* ");
        std::io::stdout().flush()?;
        let Some(line) = lines.next() else { break };
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        if matches!(words[..], ["q" | "quit"]) {
            break;
        }
        failed |= tell(session.obey(&words));
    }
    Ok(ExitCode::from(u8::from(failed)))
}

/// Says what went wrong; whether something did.
fn tell(done: Result<(), Failure>) -> bool {
    if let Err(error) = &done {
        eprintln!("?  {}", plain(error));
    }
    done.is_err()
}

impl Session {
    fn obey(&mut self, words: &[&str]) -> Result<(), Failure> {
        match words {
            [] => Ok(()),
            ["help" | "h" | "?"] => {
                println!("{HELP}");
                Ok(())
            }
            ["init_log" | "i", log, length] => self.init(Path::new(log), size(length)?),
            ["open_log" | "log" | "o", log, ..] => self.open(Path::new(log)),
            ["close_log"] => {
                self.log = None;
                Ok(())
            }
            ["status" | "read_status"] | ["show" | "s", "status" | "log_status" | "statistics"] => {
                self.status()
            }
            ["recover" | "truncate", ..] => self.recover(),
            ["show" | "s", "all" | "all_records"] => self.show(|records, _| 0..records.len()),
            ["head" | "earliest"] | ["show" | "s", "head" | "earliest"] => {
                self.show(|records, _| 0..records.len().min(1))
            }
            ["tail"] | ["show" | "s", "tail"] => {
                self.show(|records, _| records.len().saturating_sub(1)..records.len())
            }
            ["next" | "n", rest @ ..] | ["show" | "s", "next", rest @ ..] => {
                let count = count(rest)?;
                self.show(|records, shown| {
                    let from = records.partition_point(|r| shown.is_some_and(|shown| r.lsn <= shown));
                    from..records.len().min(from + count)
                })
            }
            ["prev" | "pr", rest @ ..] | ["show" | "s", "prev" | "previous", rest @ ..] => {
                let count = count(rest)?;
                self.show(|records, shown| {
                    let to = records.partition_point(|r| shown.is_none_or(|shown| r.lsn < shown));
                    to.saturating_sub(count)..to
                })
            }
            ["show" | "s", "mods" | "modifications", file, offset, rest @ ..] => {
                let offset = number(offset)?;
                let len = rest.first().map_or(Ok(1), |text| size(text))?;
                self.modifications(Path::new(file), offset..offset.saturating_add(len.max(1)))
            }
            ["show" | "s", text] => {
                let wanted = number(text)?;
                self.show(|records, _| {
                    let at = records.partition_point(|r| r.lsn < wanted);
                    at..at + usize::from(records.get(at).is_some_and(|r| r.lsn == wanted))
                })
            }
            _ => Err(format!("{:?}: no such command; help lists them", words.join(" ")).into()),
        }
    }

    /// In a process of its own, since RVM has one life in each.
    fn init(&mut self, log: &Path, length: u64) -> Result<(), Failure> {
        if log.exists() {
            let store = store_of(log);
            if !store.join("catalog").exists() {
                return Err(format!(
                    "{} is not a log of this library: remove it, if nothing of it is needed any more",
                    log.display()
                )
                .into());
            }
            // Its segments may be gone; that is what it is made anew for.
            if let Some(holder) = caliburn::info(&store)?.in_use_by {
                return Err(format!("{} is in use by {holder}", log.display()).into());
            }
            std::fs::remove_file(log)?;
        }
        let mut make = Command::new(std::env::current_exe()?);
        make.arg(log).arg("--make").arg(length.to_string());
        if !make.status()?.success() {
            return Err(format!("{} was not made", log.display()).into());
        }
        self.open(log)
    }

    fn open(&mut self, log: &Path) -> Result<(), Failure> {
        caliburn::info(store_of(log))?;
        self.log = Some(std::path::absolute(log)?);
        self.shown = None;
        Ok(())
    }

    fn log(&self) -> Result<&Path, Failure> {
        Ok(self.log.as_deref().ok_or("no log is open: open_log LOG")?)
    }

    fn records(&self) -> Result<Vec<Event>, Failure> {
        Ok(History::open(store_of(self.log()?))?.live(&Filter::default(), false)?)
    }

    fn status(&self) -> Result<(), Failure> {
        let log = self.log()?;
        let store = store_of(log);
        let info = caliburn::info(&store)?;
        let records = self.records()?;
        println!("Status of log:           {}", log.display());
        if let Ok(length) = std::fs::read_to_string(store.join("rvm-length")) {
            println!("  length:                {} bytes", length.trim());
        }
        println!(
            "  in use:                {} bytes",
            records.iter().map(|record| record.log_bytes).sum::<u64>()
        );
        println!("  records:               {}", records.len());
        let transactions: u64 = records.iter().map(|record| record.transactions).sum();
        println!("  transactions:          {transactions}");
        let staged = info.log.map_or(0, |log| log.staged);
        if staged > 0 {
            println!("  in the stage:          {staged} no-flush commit(s), which `recover` applies");
        }
        println!("  empty:                 {}", records.is_empty() && staged == 0);
        if let Some(holder) = info.in_use_by {
            println!("  in use by:             {}", plain(holder));
        }
        for segment in &info.segments {
            println!(
                "  segment {:<3}            {}, {} bytes",
                segment.id,
                plain(segment.path.display()),
                segment.len
            );
        }
        Ok(())
    }

    fn recover(&mut self) -> Result<(), Failure> {
        let mut options = Options::new();
        // The log names its segments wherever they are.
        options.guard(Guard::Off).declared_only(true).outside("/");
        let store = options.open(store_of(self.log()?))?;
        store.truncate()?;
        Ok(store.close()?)
    }

    /// Shows records that are chosen among all, by the position of the one shown last.
    fn show(
        &mut self,
        choose: impl FnOnce(&[Event], Option<u64>) -> std::ops::Range<usize>,
    ) -> Result<(), Failure> {
        let records = self.records()?;
        let chosen = &records[choose(&records, self.shown)];
        if chosen.is_empty() {
            println!("  -- no more records");
        }
        for record in chosen {
            println!("{}", as_text(record, false));
            self.shown = Some(record.lsn);
        }
        Ok(())
    }

    fn modifications(&self, file: &Path, range: std::ops::Range<u64>) -> Result<(), Failure> {
        let store = store_of(self.log()?);
        let path = std::path::absolute(file)?;
        let info = caliburn::info(&store)?;
        let segment = info.segments.iter().find(|segment| segment.path == path);
        let segment = segment.ok_or_else(|| format!("the log knows no segment in {}", path.display()))?;
        let filter = Filter { segment: Some(segment.name.clone()), range: Some(range), ..Filter::default() };
        let found = History::open(&store)?.live(&filter, false)?;
        found.iter().for_each(|record| println!("{}", as_text(record, true)));
        if found.is_empty() {
            println!("  -- no more records");
        }
        Ok(())
    }
}

fn count(words: &[&str]) -> Result<usize, String> {
    words.first().map_or(Ok(1), |text| Ok(number(text)? as usize))
}

fn main() -> ExitCode {
    output::run("rvmutl", || run(&Arguments::parse()))
}
