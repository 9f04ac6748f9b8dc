//! `heap`: objects of 64 bytes, allocated and freed in transactions, `Process` class: one pair in a
//! transaction, and 32. The floor is the system's allocator, which survives nothing.

use crate::Arguments;
use crate::report::{self, Line};
use crate::target::{Failure, options};
use caliburn::heap::{Heap, Place};
use caliburn::{Class, Policy};
use serde_json::json;
use std::hint::black_box;

const LEN: usize = 64;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let stores = [("redo", Policy::Redo), ("undo", Policy::Undo)].map(|(name, policy)| {
        options(arguments.log_mb, arguments.stage_mb).policy(policy).open(dir.path().join(name))
    });
    let [redo, undo] = stores;
    let (redo, undo) = (redo?, undo?);
    let heaps = [Heap::open(&redo, "objects")?, Heap::open(&undo, "objects")?];
    for pairs in [1, 32] {
        let line =
            |system, policy| Line::new(system, policy, "process", 1, json!({"bytes": LEN, "pairs": pairs}));
        let mut lines = [line("malloc and free", "none"), line("caliburn", "redo"), line("caliburn", "undo")];
        report::interleave(arguments.rounds, &mut lines, || {
            let malloc = report::measure(arguments.seconds, 64, || {
                for _ in 0..pairs {
                    drop(black_box(Vec::<u8>::with_capacity(black_box(LEN))));
                }
            });
            let pair = |heap: &Heap| {
                let mut tx = heap.begin().expect("the store is sound");
                let mut places = [Place(0); 32];
                for place in &mut places[..pairs] {
                    *place = tx.allocate(LEN).expect("there is room");
                }
                for place in &places[..pairs] {
                    tx.free(*place).expect("it was allocated");
                }
                tx.commit(Class::Process).expect("the store is sound");
            };
            let [a, b] = [0, 1].map(|i| report::measure(arguments.seconds, 64, || pair(&heaps[i])));
            vec![malloc, a, b]
        });
        report::print("heap", arguments.json, &lines, 0);
    }
    Ok(())
}
