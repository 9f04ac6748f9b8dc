//! `persistent`: debit-credit and one range of each size in memory that is taken for persistent, `Power` class: cache lines are
//! written back and fenced, on ordinary memory here. The floor does the same by hand, with a checksum in place of a
//! published count, as the engine does.

use crate::Arguments;
use crate::debit_credit::{Layout, Stream};
use crate::floor::{Mapped, WrittenBack};
use crate::report::{self, Line};
use crate::synthetic::drive;
use crate::target::{Failure, Target, Undo, options};
use caliburn::Class;
use serde_json::json;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let layout = Layout::new(arguments.accounts);
    let bytes = (arguments.data_mb.unwrap_or(50) << 20).max(layout.bytes());
    let log = Mapped::new(&dir.path().join("floor.log"), 16 << 20)?;
    let mut floor = WrittenBack::new(Mapped::new(&dir.path().join("floor"), bytes)?, log);
    let mut options = options(arguments.log_mb, arguments.stage_mb);
    options.memory_survives(Class::Power).require(Class::Power);
    let mut undo = Undo::new(&dir.path().join("undo"), &options, bytes, Class::Power)?;
    let lines = |params: serde_json::Value| {
        [(WrittenBack::NAME, "undo"), ("caliburn", "undo")]
            .map(|(system, policy)| Line::new(system, policy, "power", 1, params.clone()))
    };
    let mut streams = [0; 2].map(|_| Stream::new(layout, 0x1234_5678_9ABC_DEF1));
    let mut of_debit_credit = lines(json!({"accounts": arguments.accounts}));
    for round in 0..=arguments.rounds {
        let samples = [
            report::measure(arguments.seconds, 64, || streams[0].step(&mut floor)),
            report::measure(arguments.seconds, 64, || streams[1].step(&mut undo)),
        ];
        for (line, sample) in of_debit_credit.iter_mut().zip(samples).filter(|_| round > 0) {
            line.rounds.push(sample);
        }
    }
    streams[0].check(&floor)?;
    streams[1].check(&undo)?;
    report::print("persistent", arguments.json, &of_debit_credit, 0);
    for &size in &arguments.sizes {
        let mut of_size = lines(json!({"bytes": size, "data_mb": bytes >> 20}));
        for round in 0..=arguments.rounds {
            let samples = [
                drive(&mut floor, size, bytes, arguments.seconds),
                drive(&mut undo, size, bytes, arguments.seconds),
            ];
            for (line, sample) in of_size.iter_mut().zip(samples).filter(|_| round > 0) {
                line.rounds.push(sample);
            }
        }
        report::print("persistent", arguments.json, &of_size, 0);
    }
    Ok(())
}
