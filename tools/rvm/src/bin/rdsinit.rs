//! `rdsinit`: makes a file a segment with a heap of RVM's.

use caliburn_rvm::Heap;
use caliburn_rvm_tools::number;
use caliburn_tools::{Failure, output};
use clap::Parser;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Make a file a segment with a heap of RVM's. Numbers as in C: 4096, 0x1000.
#[derive(Parser, Debug)]
#[command(name = "rdsinit", version)]
struct Arguments {
    /// Asks nothing; all operands must be there.
    #[arg(short = 'f')]
    quiet: bool,
    /// The log.
    log: PathBuf,
    /// The file, which is made anew.
    data: PathBuf,
    /// Bytes of the file, address of the heap, bytes of the heap, bytes of the static region, number of free
    /// lists, bytes of a chunk (40 at least).
    #[arg(value_parser = number, value_names = ["DATALEN", "SADDR", "HLEN", "SLEN", "NLISTS", "CHUNK"], num_args = 0..=6)]
    numbers: Vec<u64>,
}

const ASKED: [(&str, &str); 6] = [
    ("length of the data segment", "0x100000"),
    ("starting address of the heap", "0x50000000"),
    ("length of the heap", "0xc0000"),
    ("length of the static region", "0x20000"),
    ("number of free lists", "80"),
    ("chunk size", "64"),
];

/// Makes the file and the heap in it.
fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut numbers = arguments.numbers.clone();
    if arguments.quiet && numbers.len() != ASKED.len() {
        return Err(format!(
            "-f takes {} numbers behind the names, and {} are here",
            ASKED.len(),
            numbers.len()
        )
        .into());
    }
    for (what, usual) in &ASKED[numbers.len()..] {
        print!("Enter the {what} [{usual}]: ");
        std::io::stdout().flush()?;
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        numbers.push(number(if line.trim().is_empty() { usual } else { line.trim() })?);
    }
    let &[length, start, heap_length, static_length, lists, chunk] = &numbers[..] else {
        return Err("too many numbers".into());
    };
    let heap = Heap { length, start, heap_length, static_length, lists, chunk };
    match caliburn_rvm::zap(&arguments.log, &arguments.data, &heap) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("rdsinit: {}: {error}", arguments.data.display());
            Ok(ExitCode::from(1))
        }
    }
}

fn main() -> ExitCode {
    output::run("rdsinit", || run(&Arguments::parse()))
}
