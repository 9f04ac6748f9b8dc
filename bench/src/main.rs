//! Benchmarks of Caliburn against their floors: the least that any system with the same promise must do.
//!
//! Everything is measured in interleaved rounds within one run, and reported as medians and as ratios to
//! the floor of the same run; the machine's noise cancels out of the ratios.

mod calls;
mod debit_credit;
mod floor;
mod group_commit;
mod heap;
mod order_entry;
mod persistent;
mod report;
mod restart;
mod synthetic;
mod target;
mod threads;
mod work;

use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures a workload.
#[derive(Parser, Debug)]
#[command(name = "caliburn-bench", version)]
struct Arguments {
    /// What to measure.
    workload: Workload,
    /// One JSON object per line and result.
    #[arg(long)]
    json: bool,
    /// Folder for stores; should be on the kind of disk that matters to you.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Interleaved rounds; medians are reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds per system and round.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Accounts of debit-credit.
    #[arg(long, default_value_t = 100_000)]
    accounts: usize,
    /// Range sizes of synthetic, in bytes.
    #[arg(long, value_delimiter = ',', default_value = "8,64,256,1024,4096,65536,1048576")]
    sizes: Vec<usize>,
    /// Megabytes of data of synthetic and restart.
    #[arg(long)]
    data_mb: Option<usize>,
    /// Threads of group-commit (1,8,32 unless told) and of threads (1,2).
    #[arg(long, value_delimiter = ',')]
    threads: Option<Vec<usize>>,
    /// Megabytes of log, of synthetic and debit-credit.
    #[arg(long, default_value_t = 256)]
    log_mb: u64,
    /// Megabytes of stage, of synthetic and debit-credit.
    #[arg(long, default_value_t = 64)]
    stage_mb: u64,
    /// Used by restart for the process that it kills.
    #[arg(long, hide = true)]
    victim: Option<PathBuf>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
enum Workload {
    /// One range of each size at random places (Vista, Figure 5a), `Process` class.
    Synthetic,
    /// Account, teller, branch and history (Vista, Figure 5b), `Process` and `Power` class.
    DebitCredit,
    /// New orders, payments and deliveries (Vista, Figure 5c), `Process` class.
    OrderEntry,
    /// `Power` commits by several threads, and by one with many in flight (Vista, Figure 6).
    GroupCommit,
    /// Objects allocated and freed in transactions, `Process` class.
    Heap,
    /// Debit-credit and synthetic in memory taken for persistent, `Power` class.
    Persistent,
    /// Debit-credit by several threads, `Process` class.
    Threads,
    /// What the C interface costs over Rust's, `Process` class.
    Calls,
    /// From opening a killed store to its first transaction.
    Restart,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.workload {
        Workload::Synthetic => synthetic::run(&arguments),
        Workload::DebitCredit => debit_credit::run(&arguments),
        Workload::OrderEntry => order_entry::run(&arguments),
        Workload::Persistent => persistent::run(&arguments),
        Workload::Threads => threads::run(&arguments),
        Workload::GroupCommit => group_commit::run(&arguments),
        Workload::Calls => calls::run(&arguments),
        Workload::Heap => heap::run(&arguments),
        Workload::Restart => restart::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("caliburn-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
