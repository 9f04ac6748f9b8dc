//! `export`: typed objects as text or CBOR, without the program that made them.

use crate::OneStore;
use caliburn::heap::Heap;
use caliburn::typed::{Format, export};
use caliburn_tools::Failure;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write, stderr, stdout};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `export`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    store: OneStore,
    /// Heap of the objects.
    heap: String,
    /// Where to; standard output without it.
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// CBOR (RFC 8742) in place of lines of JSON.
    #[arg(long)]
    cbor: bool,
}

/// Writes objects down. Nothing is changed; what a crash left is recovered in memory.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let store = arguments.store.options().read_only(true).open(&arguments.store.store)?;
    let name = &arguments.heap;
    if store.segment(&format!("{name}.heap")).is_err() {
        return Err(format!("{}: it has no heap {name:?}", arguments.store.store.display()).into());
    }
    let heap = Heap::open(&store, name)?;
    let out: Box<dyn Write> = match &arguments.output {
        Some(path) => {
            let file = File::create_new(path).map_err(|e| format!("{}: {e}", path.display()))?;
            Box::new(file)
        }
        None => Box::new(stdout().lock()),
    };
    let format = if arguments.cbor { Format::Cbor } else { Format::JsonLines };
    let bar = if stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("exporting  {human_pos} values, {per_sec}, {elapsed}")?);
    let count = export(&heap, format, BufWriter::with_capacity(1 << 20, out), |done| {
        if done % 1024 == 0 {
            bar.set_position(done);
        }
        ControlFlow::Continue(())
    })?;
    bar.finish_and_clear();
    if arguments.output.is_some() {
        eprintln!("{count} values exported");
    }
    Ok(ExitCode::SUCCESS)
}
