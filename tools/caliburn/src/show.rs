//! `show`: typed objects, by the layouts that their store records.

use crate::OneStore;
use caliburn::Error;
use caliburn::heap::Heap;
use caliburn::typed::{Extent, Shown, show};
use caliburn_tools::Failure;
use caliburn_tools::text::plain;
use clap::Args;
use serde_json::{Map, Value, json};
use std::process::ExitCode;

/// Arguments of `show`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    store: OneStore,
    /// Heap of the objects; without one, the heaps that there are.
    heap: Option<String>,
    /// What to show: names of fields, numbers of elements, keys of maps, from the root on.
    path: Vec<String>,
    /// Values shown of each collection.
    #[arg(long, default_value_t = 20)]
    items: u64,
    /// Values in values that are shown.
    #[arg(long, default_value_t = 12)]
    depth: u32,
    /// Show the layouts of the types, as they are recorded.
    #[arg(long)]
    types: bool,
}

/// Shows objects, or which there are. Nothing is written; what a crash left is recovered in memory.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let store = arguments.store.options().read_only(true).open(&arguments.store.store)?;
    let Some(name) = &arguments.heap else {
        let names: Vec<String> = store.segments().iter().map(|segment| segment.name().to_owned()).collect();
        let heaps = names.iter().filter(|name| names.contains(&format!("{name}.heap")));
        let mut found = Vec::new();
        for name in heaps {
            found.push((name, caliburn::typed::recorded_root(&Heap::open(&store, name)?)));
        }
        if arguments.store.json {
            let list: Vec<Value> =
                found.iter().map(|(name, root)| json!({"heap": name, "root": root})).collect();
            println!("{}", json!({ "heaps": list }));
        } else {
            for (name, root) in found {
                println!("{name:<20} {}", plain(root.unwrap_or_else(|| "not typed".to_owned())));
            }
        }
        return Ok(ExitCode::SUCCESS);
    };
    if store.segment(&format!("{name}.heap")).is_err() {
        return Err(format!("{}: it has no heap {name:?}", arguments.store.store.display()).into());
    }
    let heap = Heap::open(&store, name)?;
    if arguments.types {
        let text = caliburn::typed::recorded_types(&heap)?;
        match arguments.store.json {
            true => println!("{}", json!({ "types": text })),
            false => text.lines().for_each(|line| println!("{}", plain(line))),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let extent = Extent { items: arguments.items, depth: arguments.depth };
    let shown = match show(&heap, &arguments.path, extent) {
        Err(error @ Error::NotThere { .. }) => {
            eprintln!("caliburn: {}", plain(error));
            return Ok(ExitCode::FAILURE);
        }
        shown => shown?,
    };
    match arguments.store.json {
        true => println!("{}", value(&shown)),
        false => println!("{shown}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// As JSON: a map is a list of pairs unless its keys are texts; what is left out is said by `"..."`.
fn value(shown: &Shown) -> Value {
    let and_more = |mut list: Vec<Value>, more: u64| {
        if more > 0 {
            list.push(json!({ "...": more }));
        }
        Value::Array(list)
    };
    match shown {
        Shown::Nothing => Value::Null,
        Shown::Bool(value) => json!(value),
        // As a number if JSON has it.
        Shown::Number(digits) => serde_json::from_str(digits).unwrap_or_else(|_| json!(digits)),
        Shown::Text(text) => json!(text),
        Shown::Deeper => json!("..."),
        Shown::List(items, more) => and_more(items.iter().map(value).collect(), *more),
        Shown::Map(entries, 0) if entries.iter().all(|(key, _)| matches!(key, Shown::Text(_))) => {
            let pair = |(key, of): &(Shown, Shown)| match key {
                Shown::Text(key) => (key.clone(), value(of)),
                _ => unreachable!("all keys are texts"),
            };
            Value::Object(entries.iter().map(pair).collect::<Map<_, _>>())
        }
        Shown::Map(entries, more) => {
            and_more(entries.iter().map(|(key, of)| json!([value(key), value(of)])).collect(), *more)
        }
        Shown::Struct(name, fields) if fields.is_empty() => json!(name),
        Shown::Struct(_, fields) => {
            Value::Object(fields.iter().map(|(name, of)| (name.clone(), value(of))).collect::<Map<_, _>>())
        }
    }
}
