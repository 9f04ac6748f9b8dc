//! The `caliburn-pm` command: memory that outlives the system.

mod pm;
mod serve;

use caliburn_tools::output;
use clap::Parser;
use std::process::ExitCode;

/// Memory that outlives the system: make a region of it, cut it into segments, serve one as a disk.
#[derive(Parser, Debug)]
#[command(name = "caliburn-pm", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    act: pm::Act,
}

fn main() -> ExitCode {
    output::run("caliburn-pm", || pm::run(&Arguments::parse().act))
}
