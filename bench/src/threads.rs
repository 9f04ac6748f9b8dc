//! `threads`: debit-credit in the `Process` class by several threads, each on accounts of its own in one store.

use crate::Arguments;
use crate::debit_credit::{Layout, Stream};
use crate::floor::{HandWritten, Mapped};
use crate::report::{self, Line};
use crate::target::{Failure, Part, Target, drain, options};
use crate::work::{Workload, together};
use caliburn::{Policy, Region, Store};
use serde_json::json;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let threads = arguments.threads.clone().unwrap_or_else(|| vec![1, 2]);
    let most = threads.iter().copied().max().unwrap_or(1);
    let layout = Layout::new(arguments.accounts);
    let part = layout.bytes().next_multiple_of(1 << 20);
    let options = options(arguments.log_mb, arguments.stage_mb);
    let open = |name: &str, policy| -> Result<(Store, Region), Failure> {
        let store = options.clone().policy(policy).open(dir.path().join(name))?;
        let region = store.segment_or_create("data", (part * most) as u64)?.map_all()?;
        Ok((store, region))
    };
    let (redo, undo) = (open("store", Policy::Redo)?, open("undo", Policy::Undo)?);
    let floor = |i: usize| -> Result<HandWritten, Failure> {
        let data = Mapped::new(&dir.path().join(format!("floor{i}")), layout.bytes())?;
        Ok(HandWritten::new(data, Mapped::new(&dir.path().join(format!("log{i}")), 1 << 20)?))
    };
    let mut floors: Vec<HandWritten> = (0..most).map(floor).collect::<Result<_, _>>()?;
    let mut streams: [Vec<Stream>; 3] =
        std::array::from_fn(|_| (0..most).map(|i| Stream::new(layout, 0x1234_5678 + i as u64)).collect());
    let params =
        json!({"accounts": arguments.accounts, "log_mb": arguments.log_mb, "stage_mb": arguments.stage_mb});
    let line = |system, policy, n| Line::new(system, policy, "process", n, params.clone());
    let systems = [(HandWritten::NAME, HandWritten::POLICY), ("caliburn", "redo"), ("caliburn", "undo")];
    let mut lines: Vec<Line> =
        threads.iter().flat_map(|n| systems.map(|(system, policy)| line(system, policy, *n))).collect();
    report::interleave(arguments.rounds, &mut lines, || {
        let mut samples = Vec::new();
        for &n in &threads {
            let mut parts: [Vec<Part<'_>>; 2] = [&redo, &undo]
                .map(|(store, region)| (0..n).map(|i| Part::new(store, region, i * part)).collect());
            let [of_floor, of_redo, of_undo] = &mut streams;
            samples.push(together(arguments.seconds, Stream::BATCH, &mut floors[..n], of_floor));
            samples.push(together(arguments.seconds, Stream::BATCH, &mut parts[0], of_redo));
            drain(&redo.0);
            samples.push(together(arguments.seconds, Stream::BATCH, &mut parts[1], of_undo));
        }
        samples
    });
    // What the stores hold, not what the work left in memory.
    for (store, region) in [redo, undo] {
        drop(region);
        store.close()?;
    }
    let (redo, undo) = (open("store", Policy::Redo)?, open("undo", Policy::Undo)?);
    for i in 0..most {
        streams[0][i].check(&floors[i])?;
        streams[1][i].check(&Part::new(&redo.0, &redo.1, i * part))?;
        streams[2][i].check(&Part::new(&undo.0, &undo.1, i * part))?;
    }
    for lines in lines.chunks(systems.len()) {
        report::print("threads", arguments.json, lines, 0);
    }
    Ok(())
}
