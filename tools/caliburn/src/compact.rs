//! `compact`: room that is not used, given back to the file system.

use crate::OneStore;
use caliburn::heap::Heap;
use caliburn_tools::{Failure, size};
use clap::Args;
use serde_json::json;
use std::process::ExitCode;

/// Arguments of `compact`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    store: OneStore,
}

/// Makes zeros of what heaps do not use, and holes of zeros.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let path = &arguments.store.store;
    let store = arguments.store.options().open(path)?;
    let names: Vec<String> = store.segments().iter().map(|segment| segment.name().to_owned()).collect();
    let mut cleared = 0;
    for name in names.iter().filter(|name| names.contains(&format!("{name}.heap"))) {
        cleared += Heap::open(&store, name)?.clear_free()?;
    }
    store.close()?;
    let compacted = arguments.store.options().compact(path)?;
    let (len, holes) = (compacted.len, compacted.holes);
    match arguments.store.json {
        true => println!("{}", json!({"bytes": len, "holes": holes, "cleared": cleared})),
        false => println!("of {} in segments {} take no room now", size::show(len), size::show(holes)),
    }
    Ok(ExitCode::SUCCESS)
}
