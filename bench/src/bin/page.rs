//! Draws the page of a run of `cargo xtask bench`.

use caliburn_bench::page;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Draws a run's results.
#[derive(Parser)]
struct Arguments {
    /// What the run wrote down, a JSON object per line.
    results: PathBuf,
    /// The page.
    #[arg(long)]
    html: PathBuf,
    /// A document with a place for the summary.
    #[arg(long)]
    markdown: PathBuf,
}

fn main() -> ExitCode {
    let Arguments { results, html, markdown } = Arguments::parse();
    match page::make(&results, &html, &markdown) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("page: {error}");
            ExitCode::FAILURE
        }
    }
}
