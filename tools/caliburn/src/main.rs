//! The `caliburn` command.

mod check;
mod create;
mod demo;
mod info;
mod log;
mod recover;
mod size;
mod words;

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
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
struct OneStore {
    /// Directory of the store.
    store: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
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
    /// Verify a whole store without writing to it: exit 0 clean, 1 damaged, 2 could not look.
    Check(OneStore),
    /// Search and print the history of modifications that the log holds.
    Log(log::Arguments),
    /// Open a store, which recovers it, bring its segments up to date, and close it.
    Recover(OneStore),
    #[command(hide = true)]
    DemoWorker(demo::Worker),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::DemoWorker(arguments) => demo::work(&arguments),
        Command::Create(arguments) => create::store(&arguments),
        Command::AddSegment(arguments) => create::segment(&arguments),
        Command::Info(arguments) => info::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Log(arguments) => log::run(&arguments),
        Command::Recover(arguments) => recover::run(&arguments),
    };
    done.unwrap_or_else(|error| {
        eprintln!("caliburn: {error}");
        ExitCode::from(2)
    })
}
