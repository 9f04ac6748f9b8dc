//! The command line.

use crate::tpca::Pattern;
use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// Measures a workload.
#[derive(Parser, Debug)]
#[command(name = "caliburn-bench", version)]
pub struct Arguments {
    /// What to measure.
    pub workload: Workload,
    /// One JSON object per line and result.
    #[arg(long)]
    pub json: bool,
    /// Folder for stores; should be on the kind of disk that matters to you.
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Interleaved rounds; medians are reported.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Seconds per system and round.
    #[arg(long, default_value_t = 0.5)]
    pub seconds: f64,
    /// Accounts of debit-credit.
    #[arg(long, default_value_t = 100_000)]
    pub accounts: usize,
    /// Range sizes of synthetic, in bytes.
    #[arg(long, value_delimiter = ',', default_value = "8,64,256,1024,4096,65536,1048576")]
    pub sizes: Vec<usize>,
    /// Megabytes of data of synthetic (50 unless told), pages (64), oo7 (24, 72, 120 and 192) and restart (100 and
    /// 1024).
    #[arg(long)]
    pub data_mb: Option<usize>,
    /// Threads of group-commit (1,8,32 unless told) and of threads (1,2).
    #[arg(long, value_delimiter = ',')]
    pub threads: Option<Vec<usize>>,
    /// Megabytes of log, of synthetic and debit-credit.
    #[arg(long, default_value_t = 256)]
    pub log_mb: u64,
    /// Megabytes of stage, of synthetic and debit-credit.
    #[arg(long, default_value_t = 64)]
    pub stage_mb: u64,
    /// Order of tpca's accounts; all three unless told.
    #[arg(long)]
    pub pattern: Option<Pattern>,
    /// Recoverable memory of tpca over the group's memory, such as 0.125 or 1.75; seven ratios unless told.
    #[arg(long)]
    pub rmem_pmem: Option<f64>,
    /// Megabytes of memory of the control group of tpca (96 unless told) and oo7 (128).
    #[arg(long)]
    pub limit_mb: Option<usize>,
    /// What holds oo7's database; four of them unless told.
    #[arg(long, value_delimiter = ',')]
    pub system: Vec<crate::oo7::System>,
    /// Megabytes of oo7's buffer pools (96 unless told).
    #[arg(long)]
    pub pool_mb: Option<usize>,
    /// What oo7 does; t1 and t2b unless told.
    #[arg(long, value_delimiter = ',')]
    pub traversal: Vec<crate::oo7::Traversal>,
    /// Percent of oo7's memory that another process holds.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub competition: Vec<usize>,
    /// Megabytes of a file that another process, in a group of its own beside, keeps touching.
    #[arg(long)]
    pub neighbour_mb: Option<usize>,
    /// Where the picture of render is to be (a temporary file unless told).
    #[arg(long)]
    pub picture: Option<PathBuf>,
    /// Used by oo7 for those processes: megabytes.
    #[arg(long, hide = true)]
    pub compete: Option<usize>,
    /// Of a file, not of memory of its own.
    #[arg(long, hide = true)]
    pub of_file: bool,
    /// Commits of tpca in the `Process` class rather than in `Power`.
    #[arg(long)]
    pub process: bool,
    /// Transactions per second that latency asks for.
    #[arg(long, value_delimiter = ',')]
    pub rates: Option<Vec<u64>>,
    /// Used by tpca for the process in the group.
    #[arg(long, hide = true)]
    pub inside: Option<PathBuf>,
    /// Used by restart for the process that it kills.
    #[arg(long, hide = true)]
    pub victim: Option<PathBuf>,
    /// Used by restart: that process fills the log.
    #[arg(long, hide = true)]
    pub fill: bool,
    /// Used by restart: that process closes the store.
    #[arg(long, hide = true)]
    pub close: bool,
}

/// What can be measured.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
pub enum Workload {
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
    /// What is done many times at once: transactions, ranges, segments, regions.
    Limits,
    /// Changes that are found by page faults, and before-images.
    Pages,
    /// The pieces that stores which are caught are made of (McNamee, Table 7.1).
    Faults,
    /// Traversals of a database of objects that may be larger than memory (McNamee, chapter 6).
    Oo7,
    /// One frame of a scene that may be larger than memory (McNamee, section 6.2.2).
    Render,
    /// Typed objects: debit-credit through guards, and maps, `Process` class
    Typed,
    /// Snapshots of typed objects: taking one, changing what it has not kept yet, and what it has
    Snapshots,
    /// What dumps cost those who commit meanwhile
    Dumps,
    /// Transactions over data servers on one to three nodes.
    Camelot,
    /// Camelot's Tables 6-1, 6-2 and 6-5, and Graph 6-1, redrawn.
    CamelotTables,
    /// Nested transactions: children empty, with a range, aborted.
    Nest,
    /// Locks that nobody else wants, beside read-write locks in a hash map.
    Locks,
    /// Blocks with checksums in memory that is taken for persistent, beside stores past the caches and a fence.
    Pm,
    /// Tests 26 to 32 of the Wisconsin benchmark: not durable, durable on a disk, durable in such memory.
    Wisconsin,
    /// 100 MB mapped and read, from a disk and from such memory, cold (PM, Table 1).
    Cold,
    /// From opening a killed store to its first transaction.
    Restart,
    /// TPC-A with data from 12.5 % to 175 % of memory (RVM, Table 1), within a control group.
    Tpca,
    /// Log bytes saved by the two optimisations for traces like those of Coda (RVM, Table 2).
    Coda,
    /// Debit-credit at fixed rates, timed from when each transaction was due.
    Latency,
    /// Lazy commits with truncation running all the time, and without.
    Sustained,
}
