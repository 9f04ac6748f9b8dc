//! The `caliburn` command.

mod archive;
mod check;
mod compact;
mod create;
mod demo;
mod dump;
mod dumps;
mod export;
mod info;
mod leaks;
mod log;
mod mend;
mod metrics;
mod moving;
mod progress;
mod recover;
mod restore;
mod salvage;
mod show;
mod words;

use caliburn::Options;
use caliburn_tools::{Failure, output};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

const OTHERS: &str = "\
Other commands: caliburn-node (nodes and data servers), caliburn-pm (memory that outlives the system),
caliburn-top (a store in use, from second to second), rvmutl and rdsinit (logs of RVM's)";

/// Recoverable memory: create, inspect, check and demonstrate stores.
#[derive(Parser, Debug)]
#[command(name = "caliburn", version, propagate_version = true, after_help = OTHERS)]
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

/// Whatever follows the name of a subcommand that is a command of its own now.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct Elsewhere {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _rest: Vec<OsString>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Kill a program that counts words in recoverable memory, again and again, and compare every count.
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
    /// List typed objects that no root reaches, or free them: exit 0 none, 1 some, 2 could not look.
    Leaks(leaks::Arguments),
    /// Search and print the history of modifications that the log holds.
    Log(log::Arguments),
    /// Open a store, which recovers it, bring its segments up to date, and close it.
    Recover(recover::Arguments),
    #[command(hide = true)]
    DemoWorker(demo::Worker),
    #[command(hide = true)]
    Node(Elsewhere),
    #[command(hide = true)]
    Pm(Elsewhere),
    #[command(hide = true)]
    Top(Elsewhere),
    #[command(hide = true)]
    Rvmutl(Elsewhere),
    #[command(hide = true)]
    Rdsinit(Elsewhere),
}

fn main() -> ExitCode {
    output::run("caliburn", || match Arguments::parse().command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::DemoWorker(arguments) => demo::work(&arguments),
        Command::Create(arguments) => create::store(&arguments),
        Command::AddSegment(arguments) => create::segment(&arguments),
        Command::Info(arguments) => info::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Compact(arguments) => compact::run(&arguments),
        Command::Metrics(arguments) => metrics::run(&arguments),
        Command::Move(arguments) => moving::run(&arguments),
        Command::Mend(arguments) => mend::run(&arguments),
        Command::Dump(arguments) => dump::run(&arguments),
        Command::Archive(arguments) => archive::run(&arguments),
        Command::Restore(arguments) => restore::run(&arguments),
        Command::Show(arguments) => show::run(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        Command::Leaks(arguments) => leaks::run(&arguments),
        Command::Log(arguments) => log::run(&arguments),
        Command::Recover(arguments) => recover::run(&arguments),
        Command::Node(_) => elsewhere("node", "caliburn-node", "caliburn-node"),
        Command::Pm(_) => elsewhere("pm", "caliburn-pm", "caliburn-pm-command"),
        Command::Top(_) => elsewhere("top", "caliburn-top", "caliburn-top"),
        Command::Rvmutl(_) => elsewhere("rvmutl", "rvmutl", "caliburn-rvm-tools"),
        Command::Rdsinit(_) => elsewhere("rdsinit", "rdsinit", "caliburn-rvm-tools"),
    })
}

/// Says where a subcommand is that this command once had.
fn elsewhere(name: &str, command: &str, package: &str) -> Result<ExitCode, Failure> {
    Err(format!(
        "`caliburn {name}` is the command `{command}` now: install it with `cargo install {package}`, or run it in a clone with `cargo run --release -p {package}`"
    )
    .into())
}
