//! `leaks`: typed objects that no root reaches.

use crate::OneStore;
use caliburn::heap::Heap;
use caliburn::typed::{reclaim, unreached};
use caliburn_tools::Failure;
use clap::Args;
use serde_json::json;
use std::process::ExitCode;

/// Arguments of `leaks`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    store: OneStore,
    /// Heap of the objects.
    heap: String,
    /// Free them.
    #[arg(long)]
    free: bool,
}

/// Lists what no root reaches: exit 0 nothing, or freed, 1 something. Without `--free` nothing is written.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let store = arguments.store.options().read_only(!arguments.free).open(&arguments.store.store)?;
    let name = &arguments.heap;
    if store.segment(&format!("{name}.heap")).is_err() {
        return Err(format!("{}: it has no heap {name:?}", arguments.store.store.display()).into());
    }
    let heap = Heap::open(&store, name)?;
    let found = if arguments.free { reclaim(&heap)? } else { unreached(&heap)? };
    let (objects, bytes, counts) = (found.objects.len(), found.bytes(), found.counts.len());
    if arguments.store.json {
        let list: Vec<_> =
            found.objects.iter().map(|(place, len)| json!({"place": place.0, "bytes": len})).collect();
        let freed = arguments.free;
        println!("{}", json!({"objects": list, "bytes": bytes, "counts": counts, "freed": freed}));
    } else {
        for (place, len) in &found.objects {
            println!("{:>14} {len:>10} bytes", place.0);
        }
        let what = if arguments.free { "freed" } else { "unreached" };
        println!("{objects} objects, {bytes} bytes {what}; {counts} objects count owners that are not there");
    }
    drop(heap);
    store.close()?;
    Ok(if found.is_empty() || arguments.free { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
