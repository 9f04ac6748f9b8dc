//! Benchmarks of Caliburn against their floors: the least that any system with the same promise must do.
//!
//! Everything is measured in interleaved rounds within one run, and reported as medians and as ratios to
//! the floor of the same run; the machine's noise cancels out of the ratios. Every workload checks its own result,
//! in a store that was closed and opened again; `heap` and `calls`, which measure calls, have none.
//!
//! What the rivals are measured with too is public: the work, the floors, the report.

mod arguments;
mod calls;
pub mod camelot;
mod camelot_tables;
mod coda;
mod cold;
pub mod debit_credit;
mod dumps;
mod faults;
pub mod floor;
mod group_commit;
mod heap;
mod latency;
mod limits;
mod locks;
mod nest;
pub mod oo7;
mod order_entry;
pub mod page;
mod pages;
mod persistent;
mod pm;
mod render;
pub mod report;
pub mod restart;
mod snapshots;
mod sustained;
pub mod synthetic;
pub mod target;
mod threads;
mod tpca;
pub mod typed;
pub mod wisconsin;
pub mod work;

pub use arguments::{Arguments, Workload};

/// Measures what the arguments say and prints it.
///
/// # Errors
/// When a store cannot be made, or what a workload left is not what it did.
pub fn run(arguments: &Arguments) -> Result<(), target::Failure> {
    match arguments.workload {
        Workload::Synthetic => synthetic::run(arguments),
        Workload::DebitCredit => debit_credit::run(arguments),
        Workload::OrderEntry => order_entry::run(arguments),
        Workload::GroupCommit => group_commit::run(arguments),
        Workload::Heap => heap::run(arguments),
        Workload::Persistent => persistent::run(arguments),
        Workload::Threads => threads::run(arguments),
        Workload::Calls => calls::run(arguments),
        Workload::Restart => restart::run(arguments),
        Workload::Tpca => tpca::run(arguments),
        Workload::Coda => coda::run(arguments),
        Workload::Latency => latency::run(arguments),
        Workload::Sustained => sustained::run(arguments),
        Workload::Limits => limits::run(arguments),
        Workload::Pages => pages::run(arguments),
        Workload::Faults => faults::run(arguments),
        Workload::Oo7 | Workload::Render => oo7::run(arguments),
        Workload::Typed => typed::run(arguments),
        Workload::Snapshots => snapshots::run(arguments),
        Workload::Dumps => dumps::run(arguments),
        Workload::Camelot => camelot::run(arguments),
        Workload::CamelotTables => camelot_tables::run(arguments),
        Workload::Nest => nest::run(arguments),
        Workload::Pm => pm::run(arguments),
        Workload::Wisconsin => wisconsin::run(arguments),
        Workload::Cold => cold::run(arguments),
        Workload::Locks => locks::run(arguments),
    }
}
