//! Workloads as text, so that a failure prints what repeats it.
//!
//! ```text
//!   tx:restore:power:100+20,4090+12   a transaction that changes two ranges, and how it ends
//!   tx:restore:lazy:1+2,save,3+4,back what else it does between them: see [`ACTS`]
//!   flush truncate tend trim force hold         of the store
//!   grow remap reopen                 of the segment, the region, the store
//!   resolve forget                    the oldest undecided transaction is committed, aborted
//! ```

use crate::random::Random;
use std::fmt;
use std::str::FromStr;

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Committed in the `Power` class.
    Power,
    /// Committed in the `Process` class.
    Lazy,
    /// Committed with a ticket.
    Async,
    /// Aborted.
    Abort,
    /// Prepared.
    Prepare,
}

/// One step of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A transaction.
    Transaction {
        /// Keeps old values.
        restore: bool,
        /// How it ends.
        end: End,
        /// What it declares and changes, offset and length, and what it does in between: [`ACTS`].
        ranges: Vec<(usize, usize)>,
    },
    /// `Store::flush`.
    Flush,
    /// `Store::truncate`.
    Truncate,
    /// A round of the background threads.
    Tend,
    /// The same after the flush interval.
    Force,
    /// A round of the truncation thread alone.
    Trim,
    /// From here on no room is made between steps.
    Hold,
    /// The log has one copy from now on.
    Single,
    /// It has two again.
    Double,
    /// The segment and its region grow by 64 KiB.
    Grow,
    /// Another segment is made.
    Make,
    /// The region is unmapped and mapped again.
    Remap,
    /// The store is closed and opened again.
    Reopen,
    /// The oldest undecided transaction is committed.
    Resolve,
    /// The oldest undecided transaction is aborted.
    Forget,
}

impl Step {
    /// Whether a program would try it again, which has changed nothing when it failed.
    pub fn is_tried_again(&self) -> bool {
        matches!(self, Step::Grow | Step::Make)
    }
}

/// A workload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Script(pub Vec<Step>);

const ENDS: [(&str, End); 5] = [
    ("power", End::Power),
    ("lazy", End::Lazy),
    ("async", End::Async),
    ("abort", End::Abort),
    ("prepare", End::Prepare),
];

/// What a transaction does besides: in place of ranges, with no length.
pub const ACTS: [(&str, (usize, usize)); 6] = [
    ("save", SAVE),
    ("back", BACK),
    ("release", RELEASE),
    ("branch", BRANCH),
    ("adopt", ADOPT),
    ("leave", LEAVE),
];
/// Makes a savepoint.
pub const SAVE: (usize, usize) = (1, 0);
/// Rolls back to the newest savepoint.
pub const BACK: (usize, usize) = (2, 0);
/// Forgets the newest savepoint.
pub const RELEASE: (usize, usize) = (3, 0);
/// Begins a branch: what follows is done in it.
pub const BRANCH: (usize, usize) = (4, 0);
/// Ends the branch, which becomes part of what it is a branch of.
pub const ADOPT: (usize, usize) = (5, 0);
/// Ends the branch, which is undone.
pub const LEAVE: (usize, usize) = (6, 0);

const WORDS: [(&str, Step); 14] = [
    ("flush", Step::Flush),
    ("truncate", Step::Truncate),
    ("tend", Step::Tend),
    ("trim", Step::Trim),
    ("hold", Step::Hold),
    ("single", Step::Single),
    ("double", Step::Double),
    ("force", Step::Force),
    ("grow", Step::Grow),
    ("make", Step::Make),
    ("remap", Step::Remap),
    ("reopen", Step::Reopen),
    ("resolve", Step::Resolve),
    ("forget", Step::Forget),
];

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Step::Transaction { restore, end, ranges } = self {
            let end = ENDS.iter().find(|(_, e)| e == end).expect("every end has a name").0;
            write!(f, "tx:{}:{end}:", if *restore { "restore" } else { "norestore" })?;
            for (i, (offset, len)) in ranges.iter().enumerate() {
                f.write_str(if i == 0 { "" } else { "," })?;
                match ACTS.iter().find(|(_, act)| *act == (*offset, *len)) {
                    Some((name, _)) => f.write_str(name)?,
                    None => write!(f, "{offset}+{len}")?,
                }
            }
            return Ok(());
        }
        f.write_str(WORDS.iter().find(|(_, step)| step == self).expect("every step has a name").0)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            write!(f, "{}{step}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Script, String> {
        text.split_whitespace().map(step).collect::<Result<_, _>>().map(Script)
    }
}

fn step(word: &str) -> Result<Step, String> {
    if let Some((_, step)) = WORDS.iter().find(|(name, _)| *name == word) {
        return Ok(step.clone());
    }
    let bad = || format!("{word:?} is no step; a transaction is like tx:restore:power:100+20,4090+12");
    let parts: Vec<&str> = word.split(':').collect();
    let ["tx", mode, end, ranges] = parts[..] else { return Err(bad()) };
    let range = |text: &str| {
        if let Some((_, act)) = ACTS.iter().find(|(name, _)| *name == text) {
            return Some(*act);
        }
        let (offset, len) = text.split_once('+')?;
        Some((offset.parse().ok()?, len.parse().ok()?))
    };
    Ok(Step::Transaction {
        restore: mode == "restore",
        end: ENDS.iter().find(|(name, _)| *name == end).ok_or_else(bad)?.1,
        ranges: ranges.split(',').map(range).collect::<Option<_>>().ok_or_else(bad)?,
    })
}

/// The alphabet of the exhaustive workloads: what each letter does at place `i` of a workload. Transactions
/// of different places meet in pages, and in part in bytes.
pub const ALPHABET: [fn(usize) -> Vec<Step>; 15] = [
    // declare
    |i| vec![tx(true, End::Power, &[(100 + 40 * i, 60)])],
    |i| vec![tx(true, End::Lazy, &[(100 + 40 * i, 60), (4070 + 10 * i, 40)])],
    // overlap
    |i| vec![tx(true, End::Lazy, &[(200 + 8 * i, 30), (210, 50), (190, 24)])],
    // adjacent
    |i| vec![tx(true, End::Power, &[(8192 - 16, 16), (8192, 24 + i), (8192 - 24, 8)])],
    // abort
    |i| vec![tx(true, End::Abort, &[(100 + 40 * i, 200)])],
    // no-restore
    |i| vec![tx(false, End::Lazy, &[(130 + 40 * i, 60)])],
    // lazy, flushed
    |i| vec![tx(true, End::Lazy, &[(120, 9 + i)]), Step::Flush],
    |i| vec![tx(true, End::Async, &[(121 + i, 9)]), Step::Tend],
    // truncated
    |i| vec![tx(true, End::Lazy, &[(140 + i, 3000)]), Step::Truncate],
    // grown
    |i| vec![Step::Grow, tx(true, End::Lazy, &[(65536 - 8, 16 + i)])],
    // unmapped
    |i| vec![tx(true, End::Lazy, &[(300 + 8 * i, 8)]), Step::Remap],
    // prepared
    |i| vec![tx(true, End::Prepare, &[(9000 + 64 * i, 40)])],
    |i| {
        vec![
            tx(true, End::Prepare, &[(9000 + 64 * i, 40)]),
            if i == 1 { Step::Forget } else { Step::Resolve },
        ]
    },
    // rolled back in part, done in branches
    |i| {
        let ranges = [
            (100 + 40 * i, 60),
            SAVE,
            (90, 200),
            BRANCH,
            (100, 30),
            (4080, 40),
            ADOPT,
            BACK,
            BRANCH,
            (110 + 8 * i, 30),
            (4070, 50),
            SAVE,
            (96, 20),
            ADOPT,
            (140, 9),
        ];
        vec![tx(true, if i == 1 { End::Abort } else { End::Lazy }, &ranges)]
    },
    // larger than the stage takes
    |i| vec![tx(true, End::Lazy, &[(200, 4100 + 8 * i)])],
];

/// Workloads for machines that fail: ranges that take many chunks of an undo log, between others of the
/// transaction.
pub const OF_FAULTS: [&str; 2] = [
    "tx:restore:lazy:0+100,100+40000,50000+200 tx:restore:lazy:300+8 tx:restore:power:20000+9000",
    "tx:restore:lazy:0+8,100+30000,8+8,31000+30000,61000+8 tx:restore:lazy:100+30000 tx:restore:abort:40000+8 reopen",
];

/// Workloads whose steps are tried again when they fail.
pub const TRIED_AGAIN: [&str; 2] = [
    "make tx:restore:lazy:0+8 grow tx:restore:lazy:65600+8 reopen make",
    "grow make tx:restore:lazy:100+300 grow",
];

/// Workloads that lead to places where others seldom come.
pub const DIRECTED: [&str; 4] = [
    // The ring wraps over what was truncated a moment ago, before anything is forced again.
    "tx:restore:power:0+9000 tx:restore:power:9000+9000 tx:restore:power:18000+9000 tx:restore:power:27000+9000 \
     tx:restore:power:36000+9000 hold truncate tx:restore:lazy:100+9000 tx:restore:lazy:9100+9000 \
     tx:restore:lazy:18100+9000 tx:restore:lazy:100+8",
    // What the stage holds does not fit the log: recovery has to make room.
    "tx:restore:power:0+9000 tx:restore:power:9000+9000 tx:restore:power:18000+9000 tx:restore:power:27000+9000 \
     tx:restore:power:36000+9000 hold tx:restore:lazy:100+3900 tx:restore:lazy:2000+3900 \
     tx:restore:lazy:3000+3900 tx:restore:lazy:100+3900 tx:restore:lazy:900+3900 tx:restore:lazy:7000+3900 \
     tx:restore:lazy:200+3900 tx:restore:lazy:100+8",
    // What is undecided when the store is closed is committed later, and others change the same bytes then.
    "tx:restore:prepare:9000+64 reopen resolve tx:restore:lazy:9008+16 tx:restore:prepare:9000+40 reopen forget \
     tx:restore:lazy:9010+8",
    "tx:restore:prepare:9000+5000 tx:restore:prepare:20000+40 reopen resolve reopen resolve reopen \
     tx:restore:lazy:9100+16",
];

fn tx(restore: bool, end: End, ranges: &[(usize, usize)]) -> Step {
    Step::Transaction { restore, end, ranges: ranges.to_vec() }
}

impl Script {
    /// The same, by transactions of which the large ones change as much more as outgrows a log.
    pub fn enlarged(mut self) -> Script {
        for step in &mut self.0 {
            let Step::Transaction { ranges, .. } = step else { continue };
            if let Some((offset, len)) = ranges.iter().copied().find(|(_, len)| *len >= 4100) {
                ranges.push((10_000 + offset % 1000, 33_000 + len % 5000 * 3));
            }
        }
        self
    }
}

/// Every workload of `count` letters.
pub fn workloads(count: u32) -> impl Iterator<Item = Script> {
    let letters = ALPHABET.len();
    (0..letters.pow(count)).map(move |mut number| {
        let mut steps = Vec::new();
        for place in 0..count as usize {
            steps.extend(ALPHABET[number % letters](place));
            number /= letters;
        }
        Script(steps)
    })
}

/// A long workload of a seed.
pub fn random(seed: u64, steps: usize) -> Script {
    let mut random = Random::new(seed);
    // Some keep to a few pages, some roam.
    let span = *random.pick(&[600, 5_000, 30_000, 59_000]);
    let lazy = 1 + random.below(6);
    // Some fill the log again and again.
    let large = random.chance(1, 4);
    let mut prepared = 0;
    let steps = (0..steps).map(|_| match random.below(40) {
        0 => Step::Flush,
        1 => Step::Truncate,
        2 | 3 => Step::Tend,
        4 => Step::Trim,
        5 => Step::Force,
        6 if random.chance(1, 3) => Step::Grow,
        6 if random.chance(1, 3) => Step::Make,
        7 => Step::Remap,
        8 if random.chance(1, 2) => Step::Reopen,
        9 | 10 => Step::Resolve,
        11 => Step::Forget,
        12 => {
            prepared += 1;
            tx(true, End::Prepare, &[(60_000 + prepared % 60 * 64, 1 + random.below(60) as usize)])
        }
        13 => tx(true, End::Lazy, &[(random.below(20_000) as usize, 4100 + random.below(3000) as usize)]),
        kind if large && kind.is_multiple_of(2) => {
            let end = if random.chance(lazy, 7) { End::Lazy } else { End::Power };
            let len = 1000 + random.below(9000) as usize;
            tx(true, end, &[(random.below(50_000) as usize, len)])
        }
        kind => {
            let ranges = 1 + if random.chance(1, 20) { random.below(40) } else { random.below(5) };
            let range = |_| {
                let longest = if random.chance(1, 8) { 700 } else { 40 };
                let len = 1 + random.below(longest);
                (random.below(span) as usize, len as usize)
            };
            let mut ranges: Vec<_> = (0..ranges).map(range).collect();
            if random.chance(1, 5) {
                for _ in 0..1 + random.below(6) {
                    ranges.insert(random.below(ranges.len() as u64 + 1) as usize, random.pick(&ACTS).1);
                }
            }
            let end = match kind {
                14 | 15 => End::Abort,
                16 => End::Async,
                _ if random.chance(lazy, 7) => End::Lazy,
                _ => End::Power,
            };
            tx(end == End::Abort || random.chance(3, 4), end, &ranges)
        }
    });
    Script(steps.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_read_as_they_are_printed() {
        for seed in 0..50 {
            let script = random(seed, 100);
            assert_eq!(script.to_string().parse(), Ok(script));
        }
        for script in workloads(2) {
            assert_eq!(script.to_string().parse(), Ok(script));
        }
        assert!("tx:restore:power:1".parse::<Script>().is_err());
    }
}
