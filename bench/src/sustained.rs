//! `sustained`: lazy debit-credit commits while the log is truncated all the time, beside the same into a log
//! that nobody truncates meanwhile.

use crate::Arguments;
use crate::debit_credit::{Layout, SEED, Stream};
use crate::report::{self, Line};
use crate::target::{Failure, Redo, Target, options};
use crate::work::{Workload, drive};
use caliburn::{Class, Tuning};
use serde_json::json;
use std::time::{Duration, Instant};

/// Megabytes of the log that is not truncated.
const LARGE: u64 = 1024;
/// Most megabytes of the one that is: the default.
const SMALL: u64 = 64;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let layout = Layout::new(arguments.accounts);
    let small = SMALL.min(arguments.log_mb);
    let open = |name: &str, log_mb, truncate_percent| {
        let mut options = options(log_mb, arguments.stage_mb);
        options.tuning(Tuning { truncate_percent, ..Tuning::default() });
        Redo::new(&dir.path().join(name), &options, layout.bytes(), Class::Process)
    };
    let (mut without, mut with) = (open("without", LARGE, 90)?, open("with", small, 50)?);
    let mut streams = [Stream::new(layout, SEED), Stream::new(layout, SEED)];
    let line = |truncated| {
        let log_mb = if truncated { small } else { LARGE };
        Line::new(Redo::NAME, Redo::POLICY, "process", 1, json!({"truncated": truncated, "log_mb": log_mb}))
    };
    let mut lines = [line(false), line(true)];
    let truncations = |redo: &Redo| {
        let statistics = redo.store().statistics();
        statistics.truncations + statistics.epochs
    };
    // The small log is filled first: from then on it is truncated again and again.
    let start = Instant::now();
    while truncations(&with) == 0 {
        if start.elapsed() > Duration::from_secs(20) {
            return Err("the log was never truncated: a smaller one is wanted".into());
        }
        drive(&mut streams[1], &mut with, 0.05);
    }
    let (mut truncated, mut emptied) = (0, Ok(()));
    report::interleave(arguments.rounds, &mut lines, || {
        // The large log is emptied outside of the time.
        emptied = emptied.clone().and_then(|()| without.store().truncate().map_err(|e| e.to_string()));
        let before = truncations(&without);
        let first = drive(&mut streams[0], &mut without, arguments.seconds);
        truncated += truncations(&without) - before;
        vec![first, drive(&mut streams[1], &mut with, arguments.seconds)]
    });
    emptied?;
    let statistics = with.store().statistics();
    streams[0].check(&without.reopened()?)?;
    streams[1].check(&with.reopened()?)?;
    lines[1].params["truncations"] = json!(statistics.truncations + statistics.epochs);
    if truncated > 0 {
        return Err("the large log was truncated within the time: fewer seconds are wanted".into());
    }
    report::print("sustained", arguments.json, &lines, 0);
    if !arguments.json {
        println!("  {statistics:?}");
    }
    Ok(())
}
