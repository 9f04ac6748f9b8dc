//! Processes that are killed: each runs the test `child` of the same file, which says what it has done by lines
//! `ack THREAD NUMBER`.

use caliburn_engine::Policy;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const STORE: &str = "CALIBURN_KILLED_STORE";
const UNDO: &str = "CALIBURN_KILLED_UNDO";

/// In the child: where its store is, and its policy.
pub fn own() -> Option<(PathBuf, Policy)> {
    let policy = if std::env::var_os(UNDO).is_some() { Policy::Undo } else { Policy::Redo };
    Some((std::env::var_os(STORE)?.into(), policy))
}

/// In the child: a thread has committed this.
pub fn acknowledge(thread: usize, number: u64) {
    let line = format!("ack {thread} {number}\n");
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}

/// Lets processes live and kills them, with both policies. After each death `look` is given the store's directory,
/// and says what the last of each thread is: all that was acknowledged, and at most one more.
pub fn all<const THREADS: usize>(mut look: impl FnMut(&Path, Policy) -> [u64; THREADS]) {
    let kills = if cfg!(debug_assertions) { 20 } else { 100 };
    for policy in [Policy::Redo, Policy::Undo] {
        let dir = tempfile::tempdir().unwrap();
        let mut acknowledged = [0; THREADS];
        for round in 0..kills {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "child", "--nocapture"]).env(STORE, dir.path());
            if policy == Policy::Undo {
                command.env(UNDO, "1");
            }
            let mut running = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
            let mut ack = |line: std::io::Result<String>| {
                let line = line.ok()?;
                let (thread, number) = line.strip_prefix("ack ")?.split_once(' ')?;
                acknowledged[thread.parse::<usize>().ok()?] = number.parse().ok()?;
                Some(())
            };
            // Some time after the first is acknowledged.
            lines.by_ref().find_map(&mut ack).unwrap();
            std::thread::sleep(Duration::from_micros(round * 331 % 9000));
            running.kill().unwrap();
            running.wait().unwrap();
            lines.for_each(|line| _ = ack(line));
            let found = look(dir.path(), policy);
            for (found, acknowledged) in found.iter().zip(acknowledged) {
                let possible = acknowledged..=acknowledged + 1;
                assert!(possible.contains(found), "{policy:?}: {found}, acknowledged was {acknowledged}");
            }
            acknowledged = found;
        }
        assert!(acknowledged.iter().sum::<u64>() > kills, "{acknowledged:?} in {kills} lives");
    }
}
