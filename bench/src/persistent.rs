//! `persistent`: debit-credit and one range of each size in memory that is taken for persistent, `Power` class:
//! cache lines are written back and fenced, on ordinary memory here. The floor does the same by hand, with a
//! checksum in place of a published count, as the engine does.

use crate::Arguments;
use crate::debit_credit::{Layout, SEED, Stream};
use crate::floor::{Mapped, WrittenBack};
use crate::report::{self, Line};
use crate::synthetic::Ranges;
use crate::target::{Failure, Target, Undo, options};
use crate::work::{Workload, drive};
use caliburn::Class;
use serde_json::{Value, json};

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let layout = Layout::new(arguments.accounts);
    let bytes = arguments.data_mb.unwrap_or(50) << 20;
    let of_debit_credit = json!({"accounts": arguments.accounts});
    both(arguments, of_debit_credit, layout.bytes(), || Stream::new(layout, SEED))?;
    arguments.sizes.iter().try_for_each(|&size| {
        let of_size = json!({"bytes": size, "data_mb": bytes >> 20});
        both(arguments, of_size, bytes, || Ranges::new(size, bytes))
    })
}

/// The same work on both.
fn both<W: Workload>(
    arguments: &Arguments,
    params: Value,
    bytes: usize,
    work: impl Fn() -> W,
) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let log = Mapped::new(&dir.path().join("floor.log"), 16 << 20)?;
    let mut floor = WrittenBack::new(Mapped::new(&dir.path().join("floor"), bytes)?, log);
    let mut options = options(arguments.log_mb, arguments.stage_mb);
    options.memory_survives(Class::Power).require(Class::Power);
    let mut undo = Undo::new(&dir.path().join("undo"), &options, bytes, Class::Power)?;
    let mut lines = [(WrittenBack::NAME, WrittenBack::POLICY), (Undo::NAME, Undo::POLICY)]
        .map(|(system, policy)| Line::new(system, policy, "power", 1, params.clone()));
    let mut works = [work(), work()];
    report::interleave(arguments.rounds, &mut lines, || {
        vec![
            drive(&mut works[0], &mut floor, arguments.seconds),
            drive(&mut works[1], &mut undo, arguments.seconds),
        ]
    });
    works[0].check(&floor)?;
    works[1].check(&undo.reopened()?)?;
    report::print("persistent", arguments.json, &lines, 0);
    Ok(())
}
