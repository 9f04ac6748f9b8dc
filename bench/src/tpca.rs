//! `tpca` (RVM, section 7.1; Table 1, Figures 8 and 9): accounts of 128 bytes and an audit trail of 64-byte
//! records, each about half of recoverable memory, whose ratio to the memory of a control group goes from 12.5
//! to 175 percent. Throughput, and processor time per transaction of all threads.

use crate::Arguments;
use crate::floor::ForcedWrite;
use crate::report::{self, Random, rounded};
use crate::restart::die_with_parent;
use crate::target::{Declare, Failure, Redo, Target, options};
use caliburn::{Class, Tuning};
use caliburn_cgroup::Group;
use clap::ValueEnum;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Bytes of an account, of a record of the audit trail, and of what a transaction changes in an account.
const ACCOUNT: usize = 128;
const TRAIL: usize = 64;
const CHANGED: usize = 24;
const PAGE: usize = 4096;
/// Tellers and the branch, in the first pages.
const TELLERS: usize = 10;
const HEAD: usize = 4096;

/// In which order accounts come.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// One after the other.
    Sequential,
    /// Each with the same chance.
    Random,
    /// 70 % of the transactions on 5 % of the pages, 25 % on other 15 %, the rest on the rest.
    Localized,
}

impl Pattern {
    fn name(self) -> String {
        self.to_possible_value().expect("all have names").get_name().to_owned()
    }
}

/// Where everything is, for so much recoverable memory.
#[derive(Clone, Copy)]
struct Layout {
    accounts: usize,
    trail: usize,
}

impl Layout {
    fn new(bytes: usize) -> Layout {
        let half = (bytes - HEAD) / 2 / PAGE * PAGE;
        Layout { accounts: half / ACCOUNT, trail: half / TRAIL }
    }

    fn bytes(self) -> usize {
        HEAD + self.accounts * ACCOUNT + self.trail * TRAIL
    }

    fn account(self, i: usize) -> usize {
        HEAD + i * ACCOUNT
    }

    fn record(self, i: usize) -> usize {
        HEAD + self.accounts * ACCOUNT + i % self.trail * TRAIL
    }
}

struct Bank {
    layout: Layout,
    pattern: Pattern,
    random: Random,
    count: usize,
    total: i64,
}

impl Bank {
    fn next_account(&mut self) -> usize {
        let accounts = self.layout.accounts;
        match self.pattern {
            Pattern::Sequential => self.count % accounts,
            Pattern::Random => self.random.below(accounts),
            Pattern::Localized => {
                let (hot, warm) = (accounts / 20, accounts / 20 * 3);
                match self.random.below(100) {
                    0..70 => self.random.below(hot),
                    70..95 => hot + self.random.below(warm),
                    _ => hot + warm + self.random.below(accounts - hot - warm),
                }
            }
        }
    }

    fn step(&mut self, target: &mut Redo) {
        let account = self.next_account();
        let amount = (self.random.bits() >> 50) as i64 - 8000;
        let teller = self.random.below(TELLERS);
        let (layout, count) = (self.layout, self.count);
        self.total += amount;
        self.count += 1;
        target.transaction(|tx| {
            for offset in [layout.account(account), (1 + teller) * ACCOUNT, 0] {
                let at = tx.declare(offset, CHANGED).cast::<i64>();
                // SAFETY: declared bytes, aligned to 8, used by this thread alone.
                unsafe {
                    *at += amount;
                    *at.add(1) = amount;
                    *at.add(2) = count as i64;
                }
            }
            let at = tx.declare(layout.record(count), TRAIL).cast::<[i64; 8]>();
            // SAFETY: as above.
            unsafe { *at = [account as i64, teller as i64, amount, count as i64, 0, 0, 0, 0] };
        });
    }

    /// Balances of the accounts, the tellers and the branch must each add up to all amounts.
    fn check(&self, target: &Redo) -> Result<(), Failure> {
        let balance = |offset| {
            let mut bytes = [0; 8];
            target.read(offset, &mut bytes);
            i64::from_ne_bytes(bytes)
        };
        let sums = [
            (0..self.layout.accounts).map(|i| balance(self.layout.account(i))).sum(),
            (1..=TELLERS).map(|i| balance(i * ACCOUNT)).sum(),
            balance(0),
        ];
        if sums == [self.total; 3] {
            Ok(())
        } else {
            Err(format!("balances {sums:?}, expected {}", self.total).into())
        }
    }
}

/// Every pattern and ratio that was asked for, each in a process of its own within the control group.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(group) = &arguments.inside {
        return inside(arguments, group);
    }
    if let Err(why) = Group::new("probe", 1 << 30) {
        eprintln!("tpca: not run: {why}");
        return Ok(());
    }
    let patterns = match arguments.pattern {
        Some(pattern) => vec![pattern],
        None => Pattern::value_variants().to_vec(),
    };
    let ratios = match arguments.rmem_pmem {
        Some(ratio) => vec![ratio],
        None => [12.5, 37.5, 62.5, 87.5, 112.5, 137.5, 175.0].map(|percent| percent / 100.0).to_vec(),
    };
    let class = if arguments.process { "process" } else { "power" };
    for pattern in patterns {
        // Interleaved: each round takes all ratios in turn.
        let mut results: Vec<Vec<Value>> = vec![Vec::new(); ratios.len()];
        for _ in 0..arguments.rounds {
            for (ratio, results) in ratios.iter().zip(&mut results) {
                results.push(in_group(arguments, pattern, *ratio)?);
            }
        }
        for (ratio, results) in ratios.iter().zip(&results) {
            print(arguments, pattern, *ratio, class, results);
        }
    }
    Ok(())
}

fn limit_mb(arguments: &Arguments) -> usize {
    arguments.limit_mb.unwrap_or(96)
}

fn in_group(arguments: &Arguments, pattern: Pattern, ratio: f64) -> Result<Value, Failure> {
    let limit = limit_mb(arguments) << 20;
    let layout = Layout::new((limit as f64 * ratio) as usize);
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let path = dir.path().join("store");
    // Made outside of the group, really written, and then out of memory.
    let mut redo = Redo::new(&path, &options(LOG_MB, STAGE_MB), layout.bytes(), Class::Process)?;
    for offset in (0..layout.bytes()).step_by(PAGE) {
        redo.transaction(|tx| {
            // SAFETY: eight declared bytes, which no balance is in, aligned.
            unsafe { tx.declare(offset + 64, 8).cast::<u64>().write(1) };
        });
    }
    redo.store().truncate()?;
    drop(redo);
    for entry in std::fs::read_dir(&path)? {
        crate::restart::forget(&std::fs::File::open(entry?.path())?)?;
    }
    let group = Group::new("tpca", limit as u64)?;
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["tpca", "--pattern", &pattern.name(), "--rmem-pmem", &ratio.to_string()]);
    child.args(["--seconds", &arguments.seconds.to_string(), "--limit-mb", &limit_mb(arguments).to_string()]);
    child.args(arguments.process.then_some("--process"));
    let output = child.arg("--dir").arg(&path).arg("--inside").arg(&group.path).output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}, {} killed for memory: {text}", output.status, group.oom_kills()).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

const LOG_MB: u64 = 16;
const STAGE_MB: u64 = 8;

/// Within the group: warms up, measures, checks.
fn inside(arguments: &Arguments, group: &Path) -> Result<(), Failure> {
    Group::enter(group)?;
    die_with_parent()?;
    let (pattern, ratio) =
        arguments.pattern.zip(arguments.rmem_pmem).ok_or("pattern and ratio are wanted")?;
    let layout = Layout::new(((limit_mb(arguments) << 20) as f64 * ratio) as usize);
    let class = if arguments.process { Class::Process } else { Class::Power };
    let mut options = options(LOG_MB, STAGE_MB);
    options.tuning(Tuning::default());
    let mut redo = Redo::new(&arguments.dir, &options, layout.bytes(), class)?;
    let mut bank = Bank { layout, pattern, random: Random(0x7CA7_7CA7_7CA7_7CA7), count: 0, total: 0 };
    report::measure(arguments.seconds, 1, || bank.step(&mut redo));
    let (start, before, count) = (Instant::now(), processor(), bank.count);
    let mut sample = report::measure(arguments.seconds, 1, || bank.step(&mut redo));
    let (elapsed, done) = (start.elapsed(), (bank.count - count) as f64);
    let cpu = (processor() - before) / done;
    sample.latencies.sort_unstable();
    let [p50, p99] = [0.5, 0.99].map(|share| report::percentile(&sample.latencies, share));
    let ns = elapsed.as_nanos() as f64 / done;
    // The floor, where the work was done.
    let mut force = ForcedWrite::new(&arguments.dir.with_extension("forced"), 200)?;
    let force = || force.force().expect("the disk works");
    let floor = (class == Class::Power).then(|| report::measure(arguments.seconds, 1, force).ns_per_tx);
    println!("{}", json!({"ns": ns, "cpu": cpu, "p50": p50, "p99": p99, "floor": floor}));
    bank.check(&redo.reopened()?)
}

/// Nanoseconds of processor time that this process has used, in all threads.
fn processor() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 * 1e9 + used.tv_nsec as f64
}

fn print(arguments: &Arguments, pattern: Pattern, ratio: f64, class: &str, results: &[Value]) {
    let all = |name: &str| results.iter().map(|r| r[name].as_f64().unwrap_or(0.0)).collect::<Vec<_>>();
    let (ns, cpu) = (report::median(all("ns")), report::median(all("cpu")));
    let ratios = all("ns").into_iter().zip(all("floor")).map(|(a, b)| a / b);
    let of_floor = (!arguments.process).then(|| rounded(report::median(ratios.collect()), 3));
    let [p50, p99] = ["p50", "p99"].map(|name| report::median(all(name)));
    let extreme = |pick: fn(f64, f64) -> f64| all("ns").into_iter().reduce(pick).unwrap_or(0.0);
    if arguments.json {
        let params = json!({"pattern": pattern.name(), "rmem_pmem": ratio, "limit_mb": limit_mb(arguments), "cpu_ns_per_tx": rounded(cpu, 0)});
        println!(
            "{}",
            json!({"workload": "tpca", "system": "caliburn", "policy": "redo", "class": class, "threads": 1,
                "params": params, "ns_per_tx": rounded(ns, 1), "min_ns": rounded(extreme(f64::min), 1),
                "max_ns": rounded(extreme(f64::max), 1), "p50_ns": p50, "p99_ns": p99, "ratio_to_floor": of_floor})
        );
    } else {
        println!(
            "tpca          {:10} {:>6.1} % of {} MB  {class}  {:>10.0} tx/s  {:>8.1} us of processor per tx  p50 {p50:>9} ns  p99 {p99:>9} ns  {:>5.2}x floor",
            pattern.name(),
            ratio * 100.0,
            limit_mb(arguments),
            1e9 / ns,
            cpu / 1e3,
            of_floor.unwrap_or(f64::NAN),
        );
    }
}
