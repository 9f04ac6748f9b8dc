//! `synthetic` (Vista, Figure 5a): each transaction changes one range of a given size at a random place.

use crate::Arguments;
use crate::floor::{HandWritten, Mapped, Plain};
use crate::report::{self, Line, Random};
use crate::target::{Declare, Failure, Redo, Target, Undo, options};
use caliburn::Class;
use serde_json::json;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let bytes = arguments.data_mb.unwrap_or(50) << 20;
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    for &size in &arguments.sizes {
        let mut plain = Plain(Mapped::new(&dir.path().join("plain"), bytes)?);
        let log = Mapped::new(&dir.path().join("floor.log"), 16 << 20)?;
        let mut floor = HandWritten::new(Mapped::new(&dir.path().join("floor"), bytes)?, log);
        let path = dir.path().join(format!("store-{size}"));
        let mut redo =
            Redo::new(&path, &options(arguments.log_mb, arguments.stage_mb), bytes, Class::Process)?;
        let undo_path = dir.path().join(format!("undo-{size}"));
        let mut undo =
            Undo::new(&undo_path, &options(arguments.log_mb, arguments.stage_mb), bytes, Class::Process)?;
        let params = json!({"bytes": size, "data_mb": bytes >> 20, "log_mb": arguments.log_mb, "stage_mb": arguments.stage_mb});
        let line = |system, policy| Line::new(system, policy, "process", 1, params.clone());
        let mut lines = [
            line(Plain::NAME, Plain::POLICY),
            line(HandWritten::NAME, HandWritten::POLICY),
            line(Redo::NAME, Redo::POLICY),
            line(Undo::NAME, Undo::POLICY),
        ];
        for round in 0..=arguments.rounds {
            let samples = [
                drive(&mut plain, size, bytes, arguments.seconds),
                drive(&mut floor, size, bytes, arguments.seconds),
                drive(&mut redo, size, bytes, arguments.seconds),
                drive(&mut undo, size, bytes, arguments.seconds),
            ];
            // The first round warms up: pages are touched for the first time.
            for (line, sample) in lines.iter_mut().zip(samples).filter(|_| round > 0) {
                line.rounds.push(sample);
            }
        }
        report::print("synthetic", arguments.json, &lines, 1);
        drop((redo, undo));
        std::fs::remove_dir_all(path)?;
        std::fs::remove_dir_all(undo_path)?;
    }
    Ok(())
}

pub fn drive<T: Target>(target: &mut T, size: usize, bytes: usize, seconds: f64) -> report::Sample {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let places = bytes / size;
    let mut value = 0u8;
    report::measure(seconds, 64, || {
        let offset = random.below(places) * size;
        value = value.wrapping_add(1);
        target.transaction(|tx| {
            let at = tx.declare(offset, size);
            // SAFETY: the range was declared, which checked its bounds; this thread alone uses it.
            unsafe { at.write_bytes(value, size) };
        });
    })
}
