//! `group-commit`: debit-credit in the `Power` class by several threads, each on tables of its own in one
//! database.

use crate::records::{Database, Keyed, Shape};
use crate::{Arguments, open};
use caliburn::{Class, Region, Store};
use caliburn_bench::debit_credit::{Layout, Stream};
use caliburn_bench::floor::ForcedWrite;
use caliburn_bench::report::{self, Line};
use caliburn_bench::target::{Failure, Part, options};
use caliburn_bench::work::{Workload, together};
use serde_json::json;

/// Accounts of each thread.
const ACCOUNTS: usize = 10_000;

pub fn run(arguments: &Arguments, layout: Layout) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let most = arguments.threads.iter().copied().max().unwrap_or(1);
    // Few accounts for each: it is about commits.
    let layout = if arguments.accounts > ACCOUNTS { Layout::new(ACCOUNTS) } else { layout };
    let part = layout.bytes().next_multiple_of(1 << 20);
    let shape: (Shape, usize) = (Layout::record, layout.history());
    let store = options(256, 64).open(dir.path().join("store"))?;
    let region = store.segment_or_create("data", (part * most) as u64)?.map_all()?;
    let mut force = ForcedWrite::new(&dir.path().join("forced"), 200)?;
    let mut rivals = Vec::new();
    for name in arguments.names() {
        let (database, version) = open(name, &dir.path().join(name), true, part * most)?;
        for i in 0..most {
            Keyed::new(&*database, shape, (i * part) as u64).fill(layout.history())?;
        }
        rivals.push((name, database, version));
    }
    let line = |system, n| Line::new(system, "redo", "power", n, json!({}));
    let mut lines = vec![Line::new("bare forced write", "none", "power", 1, json!({}))];
    for &n in &arguments.threads {
        lines.push(line("caliburn", n));
        for (name, _, version) in &rivals {
            let params = json!({"version": version});
            lines.push(Line::new(name, "its own", "power", n, params));
        }
    }
    let mut streams: Vec<Vec<Stream>> =
        (0..=rivals.len()).map(|_| (0..most).map(|i| Stream::new(layout, 77 + i as u64)).collect()).collect();
    report::interleave(arguments.rounds, &mut lines, || {
        let mut samples =
            vec![report::measure(arguments.seconds, 1, || force.force().expect("the disk works"))];
        for &n in &arguments.threads {
            let mut parts: Vec<_> = (0..n).map(|i| of_store(&store, &region, i * part)).collect();
            samples.push(together(arguments.seconds, 1, &mut parts, &mut streams[0]));
            for ((_, database, _), streams) in rivals.iter().zip(&mut streams[1..]) {
                let mut parts = of_rival(&**database, shape, n, part);
                samples.push(together(arguments.seconds, 1, &mut parts, streams));
            }
        }
        samples
    });
    // What the store holds, not what the work left in memory.
    drop(region);
    store.close()?;
    let store = options(256, 64).open(dir.path().join("store"))?;
    let region = store.segment("data")?.map_all()?;
    for i in 0..most {
        streams[0][i].check(&of_store(&store, &region, i * part))?;
        for ((_, database, _), streams) in rivals.iter().zip(&streams[1..]) {
            streams[i].check(&Keyed::new(&**database, shape, (i * part) as u64))?;
        }
    }
    report::print("group-commit", arguments.json, &lines, 0);
    Ok(())
}

fn of_store<'s>(store: &'s Store, region: &'s Region, from: usize) -> Part<'s> {
    Part::of_class(store, region, from, Class::Power)
}

fn of_rival(database: &dyn Database, shape: (Shape, usize), n: usize, part: usize) -> Vec<Keyed<'_>> {
    (0..n).map(|i| Keyed::new(database, shape, (i * part) as u64)).collect()
}
