//! `nest`: what a nested transaction costs (Camelot, Table 6-2: 8 ms). A top-level transaction with 64 calls of a
//! closure, 64 ranges of eight bytes, 64 children with one each, empty, committed, or aborted; of each the time
//! for one of the 64, less the top's own. Then a top-level transaction of one range: committed; prepared, and
//! committed after that, as a coordinator does it.

use crate::Arguments;
use crate::report::{self, Line, Random, Sample};
use crate::target::{Failure, options};
use caliburn::{Class, Policy, Region, Store};
use caliburn_nest::{Error, Tx, prepare, transact};
use serde_json::json;
use std::hint::black_box;

const BYTES: usize = 1 << 20;
const COUNT: usize = 64;

type Act = for<'t> fn(&mut Tx<'t>, &'t Region, usize) -> Result<(), Error>;

#[inline(never)]
fn call<T>(tx: &mut Tx<'_>, closure: impl FnOnce(&mut Tx<'_>) -> T) -> T {
    black_box(closure(black_box(tx)))
}

const ACTS: [(&str, Act); 6] = [
    ("a closure that is called", |tx, _, _| call(tx, |_| Ok(()))),
    ("a range", |tx, region, at| tx.store(region, at, &7u64)),
    ("a child without anything", |tx, _, _| tx.nest(|_| Ok(()))),
    ("a child with a range", |tx, region, at| tx.nest(|child| child.store(region, at, &7u64))),
    ("a child with a range, aborted", |tx, region, at| {
        _ = tx.nest(|child| {
            child.store(region, at, &7u64)?;
            Err::<(), _>(child.abort(""))
        });
        Ok(())
    }),
    ("a child of a child with a range", |tx, region, at| {
        tx.nest(|child| child.nest(|inner| inner.store(region, at, &7u64)))
    }),
];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    for (policy, name) in [(Policy::Redo, "redo"), (Policy::Undo, "undo")] {
        let dir = tempfile::tempdir_in(&arguments.dir)?;
        let mut with = options(arguments.log_mb, arguments.stage_mb);
        let store: Store = with.policy(policy).open(dir.path().join("s"))?;
        let region = store.create_segment("data", BYTES as u64)?.map_all()?;
        let line = |what| Line::new("caliburn", name, "process", 1, json!({"what": what, "bytes": 8}));
        let mut lines = ACTS.map(|(what, _)| line(what));
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        report::interleave(arguments.rounds, &mut lines, || {
            let mut time = |count: usize, act: Act| {
                report::measure(arguments.seconds / 2.0, 16, || {
                    transact(&store, Class::Process, |tx| {
                        (0..count).try_for_each(|_| act(tx, &region, random.below(BYTES / 8) * 8))
                    })
                    .expect("the store is sound");
                })
            };
            let per_act = |(_, act): (_, Act)| {
                let (all, top) = (time(COUNT + 1, act), time(1, act));
                let ns_per_tx = (all.ns_per_tx - top.ns_per_tx) / COUNT as f64;
                Sample { ns_per_tx, latencies: Vec::new() }
            };
            ACTS.map(per_act).into()
        });
        report::print("nest", arguments.json, &lines, 1);
        let mut lines = [line("a top with a range"), line("the same, prepared and committed")];
        let mut number = 0u64;
        report::interleave(arguments.rounds, &mut lines, || {
            let committed = report::measure(arguments.seconds / 2.0, 16, || {
                let at = random.below(BYTES / 8) * 8;
                transact(&store, Class::Process, |tx| tx.store(&region, at, &7u64))
                    .expect("the store is sound");
            });
            let prepared = report::measure(arguments.seconds / 2.0, 16, || {
                number += 1;
                let at = random.below(BYTES / 8) * 8;
                prepare(&store, (), &number.to_le_bytes(), |tx| tx.store(&region, at, &7u64))
                    .and_then(|(_, prepared)| prepared.commit())
                    .expect("the store is sound");
            });
            vec![committed, prepared]
        });
        report::print("nest", arguments.json, &lines, 1);
    }
    Ok(())
}
