//! The benchmarks' command.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match caliburn_bench::run(&caliburn_bench::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("caliburn-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
