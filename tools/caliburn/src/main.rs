//! The `caliburn` command.

mod archive;
mod certificates;
mod check;
mod compact;
mod configuration;
mod create;
mod demo;
mod dump;
mod dumps;
mod export;
mod info;
mod leaks;
mod links;
mod log;
mod mend;
mod metrics;
mod moving;
mod node;
mod nodes;
mod orders;
mod pm;
mod progress;
mod rdsinit;
mod reckoning;
mod recover;
mod restore;
mod rvmutl;
mod salvage;
mod serve;
mod server_log;
mod show;
mod size;
mod text;
mod top;
mod undecided;
mod words;

use caliburn::Options;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What a subcommand may fail with.
type Failure = Box<dyn std::error::Error>;

/// Recoverable memory: create, inspect, check and demonstrate stores.
#[derive(Parser, Debug)]
#[command(name = "caliburn", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Arguments of the subcommands that deal with one whole store.
#[derive(Args, Debug)]
pub struct OneStore {
    /// Directory of the store.
    store: PathBuf,
    #[command(flatten)]
    outside: Outside,
    /// The store was copied, or restored, while it was in use: go on with what there is.
    #[arg(long)]
    copied: bool,
    /// The system did not go down since the store was in use, and no other state of its file system was mounted:
    /// take what is in memory, where no witness can tell whether it survived.
    #[arg(long)]
    memory_kept: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl OneStore {
    fn options(&self) -> Options {
        let mut options = self.outside.options();
        options.copied(self.copied).memory_kept(self.memory_kept);
        progress::show(&mut options);
        options
    }
}

/// What a store may name outside of its directory.
#[derive(Args, Debug)]
struct Outside {
    /// A file, a device or a directory that the store may name though it is not in its directory: where its log
    /// or segments are. Can be given several times.
    #[arg(long = "outside", value_name = "PATH")]
    paths: Vec<PathBuf>,
}

impl Outside {
    fn options(&self) -> Options {
        let mut options = Options::new();
        self.paths.iter().for_each(|path| _ = options.outside(path));
        options
    }
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Kill a program that counts words in recoverable memory, again and again, and compare every count; with
    /// `--nodes`, kill nodes among which money moves, and members of etcd.
    Demo(demo::Arguments),
    /// Create a store.
    Create(create::Store),
    /// Add a segment to a store.
    AddSegment(create::Segment),
    /// Show what a store consists of.
    Info(OneStore),
    /// Give room that no object uses, and that holds zeros, back to the file system
    Compact(compact::Arguments),
    /// Verify a whole store without writing to it: exit 0 clean, 1 damaged, 2 could not look.
    Check(OneStore),
    /// Print or serve the metrics of stores that programs are using.
    Metrics(metrics::Arguments),
    /// Show a store that a program is using, as it is from second to second.
    Top(top::Arguments),
    /// Give the log another size, log or segments another place.
    Move(moving::Arguments),
    /// Make damaged pages again from dumps, archive and log; or list them.
    Mend(mend::Arguments),
    /// Dump a store, while a program uses it or not: to a file, a directory of dumps, or a stream.
    Dump(dump::Arguments),
    /// Archive the log of a store, while a program uses it, until interrupted.
    Archive(archive::Arguments),
    /// Make a store from a dump, the archive of its log, and what is left of it: as it was at any commit.
    Restore(restore::Arguments),
    /// Show typed objects, without the program that made them.
    Show(show::Arguments),
    /// Write typed objects down as lines of JSON, or CBOR, without the program that made them.
    Export(export::Arguments),
    /// Run a machine's node, with data servers that it supervises; administer one.
    Node(node::Arguments),
    /// List typed objects that no root reaches, or free them: exit 0 none, 1 some, 2 could not look.
    Leaks(leaks::Arguments),
    /// Memory that outlives the system: make a region of it, cut it into segments, serve one as a disk.
    Pm(pm::Arguments),
    /// Search and print the history of modifications that the log holds.
    Log(log::Arguments),
    /// Open a store, which recovers it, bring its segments up to date, and close it.
    Recover(recover::Arguments),
    Rdsinit(rdsinit::Arguments),
    Rvmutl(rvmutl::Arguments),
    #[command(hide = true)]
    DemoWorker(demo::Worker),
    #[command(hide = true)]
    DemoNode(nodes::NodeProcess),
    /// A data server to try `node` with: told by its environment.
    #[command(hide = true)]
    BankServer,
}

/// The command of the line. Called by the name of one of RVM's tools, this is that tool.
fn command() -> Command {
    let words: Vec<OsString> = std::env::args_os().collect();
    let name = words.first().and_then(|word| Path::new(word).file_name()).and_then(|name| name.to_str());
    match name {
        Some("rdsinit") => Command::Rdsinit(rdsinit::Arguments::parse_from(words)),
        Some("rvmutl") => Command::Rvmutl(rvmutl::Arguments::parse_from(words)),
        _ => Arguments::parse_from(words).command,
    }
}

/// How std's panics begin when `println!` and `eprintln!` fail.
const UNWRITTEN: &str = "failed printing to stdout: ";
const UNTOLD: &str = "failed printing to stderr: ";

/// Output that cannot be written ends the command. If the reader has gone, as `head` does, it ends quietly, as by
/// SIGPIPE; on a full disk, say, it ends with an error.
fn end_when_output_fails() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str();
        // There is nowhere to say so.
        if said.is_some_and(|text| text.starts_with(UNTOLD)) {
            std::process::exit(2);
        }
        match said.and_then(|text| text.strip_prefix(UNWRITTEN)) {
            Some(error) if error.starts_with("Broken pipe") => std::process::exit(128 + 13),
            Some(error) => std::process::exit(unwritten(error)),
            None => usual(panic),
        }
    }));
}

/// Says that the output is not whole; the exit code.
fn unwritten(error: impl std::fmt::Display) -> i32 {
    let _ = writeln!(std::io::stderr(), "caliburn: cannot write to standard output: {error}");
    2
}

fn main() -> ExitCode {
    end_when_output_fails();
    let done = match command() {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::DemoWorker(arguments) => demo::work(&arguments),
        Command::DemoNode(arguments) => nodes::work(&arguments),
        Command::Node(arguments) => node::run(&arguments),
        Command::BankServer => node::bank_server(),
        Command::Create(arguments) => create::store(&arguments),
        Command::AddSegment(arguments) => create::segment(&arguments),
        Command::Info(arguments) => info::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Compact(arguments) => compact::run(&arguments),
        Command::Metrics(arguments) => metrics::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Move(arguments) => moving::run(&arguments),
        Command::Mend(arguments) => mend::run(&arguments),
        Command::Dump(arguments) => dump::run(&arguments),
        Command::Archive(arguments) => archive::run(&arguments),
        Command::Restore(arguments) => restore::run(&arguments),
        Command::Show(arguments) => show::run(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        Command::Leaks(arguments) => leaks::run(&arguments),
        Command::Pm(arguments) => pm::run(&arguments),
        Command::Log(arguments) => log::run(&arguments),
        Command::Recover(arguments) => recover::run(&arguments),
        Command::Rdsinit(arguments) => rdsinit::run(&arguments),
        Command::Rvmutl(arguments) => rvmutl::run(&arguments),
    };
    let code = done.unwrap_or_else(|error| {
        eprintln!("caliburn: {}", text::plain(error));
        ExitCode::from(2)
    });
    // What does not end with a line is still in a buffer.
    match std::io::stdout().flush() {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => ExitCode::from(unwritten(error) as u8),
        _ => code,
    }
}
