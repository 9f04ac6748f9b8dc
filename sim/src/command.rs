//! `exhaustive`, `torture`, `faults`, `replay`.

use caliburn_sim::explore::{self, Effort, Explorer, Failure};
use caliburn_sim::life::{Flavour, Start, default_start};
use caliburn_sim::random::Random;
use caliburn_sim::script;
use caliburn_sim::{creation, damage, heap};
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

#[derive(Parser)]
#[command(about = "Crash tests of Caliburn on simulated machines")]
struct Command {
    #[command(subcommand)]
    kind: Kind,
    /// Threads, each with machines of its own.
    #[arg(long, default_value_t = 2, global = true)]
    threads: u64,
    /// With the undo policy, in place of redo.
    #[arg(long, global = true)]
    undo: bool,
    /// With the undo policy in persistent memory.
    #[arg(long, global = true, conflicts_with = "undo")]
    persistent: bool,
    /// With a file that was adopted, to which only declared bytes go.
    #[arg(long, global = true, conflicts_with_all = ["undo", "persistent"])]
    adopted: bool,
}

impl Command {
    fn flavour(&self) -> Flavour {
        match (self.undo, self.persistent, self.adopted) {
            (true, ..) => Flavour::Undo,
            (_, true, _) => Flavour::Persistent,
            (.., true) => Flavour::Adopted,
            _ => Flavour::Redo,
        }
    }
}

#[derive(Subcommand)]
enum Kind {
    /// Every workload of up to so many transactions, crashed after everything it does.
    Exhaustive {
        /// Transactions.
        #[arg(long, default_value_t = 2)]
        transactions: u32,
        /// Of 64 moments of lives after the first, how many are cut too.
        #[arg(long, default_value_t = 4)]
        later: u64,
    },
    /// Long random workloads until so many crash images were recovered.
    Torture {
        /// Crash images.
        #[arg(long, default_value_t = 100_000)]
        images: u64,
        /// Where the random numbers begin.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Workloads on machines whose operations fail, each once.
    Faults {
        /// Random workloads.
        #[arg(long, default_value_t = 20)]
        workloads: u64,
        /// Where the random numbers begin.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Crashes and failures while a store is made.
    Creation,
    /// Workloads with a heap, crashed after what they do.
    Heap {
        /// Random workloads.
        #[arg(long, default_value_t = 40)]
        workloads: u64,
        /// Transactions of each.
        #[arg(long, default_value_t = 30)]
        transactions: u64,
        /// Of 64 moments, how many are cut.
        #[arg(long, default_value_t = 8)]
        share: u64,
        /// Where the random numbers begin.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Flipped bits in what crashes leave.
    Flips {
        /// Random workloads, each with 50 flips.
        #[arg(long, default_value_t = 200)]
        workloads: u64,
        /// Where the random numbers begin.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Several threads under a deterministic scheduler; needs `--cfg caliburn_shuttle`.
    Threads {
        /// Schedules.
        #[arg(long, default_value_t = 2000)]
        schedules: u64,
        /// Threads with a heap, in place of committers and a truncator.
        #[arg(long)]
        heap: bool,
        /// Threads that force their commits together, in place of committers and a truncator.
        #[arg(long, conflicts_with = "heap")]
        group: bool,
        /// Where the random numbers begin.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Repeats what a failure printed.
    Replay {
        /// `script | cut | script ...`
        path: String,
        /// The machine is short of memory.
        #[arg(long)]
        short: bool,
        /// Share of the log at which truncation begins.
        #[arg(long, default_value_t = 50)]
        truncate_percent: u8,
    },
}

#[derive(Default)]
struct Totals {
    images: AtomicU64,
    lives: AtomicU64,
    repeated: AtomicU64,
    workloads: AtomicU64,
    stuck: AtomicU64,
    faults: AtomicU64,
    flips: AtomicU64,
    noticed: AtomicU64,
    stop: AtomicBool,
    flags: &'static str,
    failure: Mutex<Option<String>>,
    first: Explorer,
}

impl Totals {
    fn add(&self, explorer: &Explorer) {
        self.images.fetch_add(explorer.images, Ordering::Relaxed);
        self.lives.fetch_add(explorer.lives, Ordering::Relaxed);
        self.repeated.fetch_add(explorer.repeated, Ordering::Relaxed);
        self.stuck.fetch_add(explorer.stuck, Ordering::Relaxed);
        self.workloads.fetch_add(1, Ordering::Relaxed);
    }

    fn fail(&self, what: &str, failure: &Failure) {
        let failure = format!("{what}{}: {failure}", self.flags);
        self.failure.lock().expect("no panic here").get_or_insert(failure);
        self.stop.store(true, Ordering::Relaxed);
    }
}

pub fn main() -> ExitCode {
    let command = Command::parse();
    let flags = match command.flavour() {
        Flavour::Redo => "",
        Flavour::Undo => " --undo",
        Flavour::Persistent => " --persistent",
        Flavour::Adopted => " --adopted",
    };
    let totals = Totals { flags, ..Totals::default() };
    let start = Instant::now();
    if let Kind::Replay { path, short, truncate_percent } = &command.kind {
        let start =
            Start { short: *short, truncate_percent: *truncate_percent, ..default_start(command.flavour()) };
        return match explore::replay(&start, path, true) {
            Ok(()) => {
                println!("nothing is wrong");
                ExitCode::SUCCESS
            }
            Err(why) => {
                println!("{why}");
                ExitCode::FAILURE
            }
        };
    }
    if let Kind::Threads { schedules, seed, heap, group } = command.kind {
        return threads(schedules, seed, heap, group);
    }
    // What goes wrong is reported with the script that led to it.
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        for thread in 0..command.threads {
            let (totals, command) = (&totals, &command);
            scope.spawn(move || work(command, thread, totals));
        }
    });
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    println!(
        "{} workloads, {} crash images recovered and compared, {} equal ones skipped, {} stuck, {} faults, {} flips ({} noticed), {:.0} s",
        count(&totals.workloads),
        count(&totals.images),
        count(&totals.repeated),
        count(&totals.stuck),
        count(&totals.faults),
        count(&totals.flips),
        count(&totals.noticed),
        start.elapsed().as_secs_f64()
    );
    match totals.failure.into_inner().expect("no panic here") {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(caliburn_shuttle)]
fn threads(schedules: u64, seed: u64, heap: bool, group: bool) -> ExitCode {
    let start = Instant::now();
    if group {
        caliburn_sim::threads::group_schedules(schedules, seed);
        println!("{schedules} schedules of group commit, {:.0} s", start.elapsed().as_secs_f64());
        return ExitCode::SUCCESS;
    }
    if heap {
        caliburn_sim::threads::heap_schedules(schedules, seed);
        println!("{schedules} schedules with a heap, {:.0} s", start.elapsed().as_secs_f64());
        return ExitCode::SUCCESS;
    }
    let cuts = caliburn_sim::threads::schedules(schedules, seed);
    println!("{schedules} schedules, {cuts} crash images recovered, {:.0} s", start.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

#[cfg(not(caliburn_shuttle))]
fn threads(_schedules: u64, _seed: u64, _heap: bool, _group: bool) -> ExitCode {
    eprintln!("built without --cfg caliburn_shuttle");
    ExitCode::from(2)
}

fn work(command: &Command, thread: u64, totals: &Totals) {
    let start = default_start(command.flavour());
    let mine = |number: u64| number % command.threads == thread;
    let stopped = || totals.stop.load(Ordering::Relaxed);
    match command.kind {
        Kind::Exhaustive { transactions, later } => {
            exhaustive(&start, transactions, later, (thread, command.threads), totals);
        }
        Kind::Torture { images, seed } => {
            for number in (0..).filter(|n| mine(*n)) {
                if stopped() || totals.images.load(Ordering::Relaxed) >= images {
                    return;
                }
                let seed = seed.wrapping_mul(1_000_003).wrapping_add(number);
                let steps = 20 + Random::new(seed).below(150) as usize;
                let script = script::random(seed, steps);
                let mut start = start.clone();
                start.short = number.is_multiple_of(3);
                start.truncate_percent = [50, 1, 10, 90][number as usize / 3 % 4];
                let effort = Effort { losses: 1, first: 3, later: 1, lives: 3 };
                let mut explorer = totals.first.sharing();
                if let Err(failure) = explorer.explore(&start, &script, effort, seed) {
                    let short = if start.short { "--short " } else { "" };
                    let flags = format!("{short}--truncate-percent {}", start.truncate_percent);
                    totals.fail(&format!("torture, seed {seed}, replay with {flags}"), &failure);
                }
                totals.add(&explorer);
            }
        }
        Kind::Faults { workloads, seed } => {
            let small = script::workloads(2);
            let random = (0..workloads).map(|n| script::random(seed.wrapping_mul(1_000_003) + n, 30));
            // More than a log of this size takes.
            let directed = script::OF_FAULTS
                .iter()
                .filter(|_| !matches!(start.flavour, Flavour::Redo | Flavour::Adopted));
            let directed = directed.map(|text| text.parse().expect("these scripts are right"));
            for (number, script) in small.chain(directed).chain(random).enumerate() {
                if stopped() {
                    return;
                }
                if mine(number as u64) {
                    match explore::faults(&start, &script, &mut Random::new(seed + number as u64)) {
                        Ok(injected) => drop(totals.faults.fetch_add(injected, Ordering::Relaxed)),
                        Err(failure) => totals.fail("faults", &failure),
                    }
                    totals.workloads.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        Kind::Creation if thread > 0 => {}
        Kind::Creation => match creation::creation(command.flavour(), &mut Random::new(1)) {
            Ok(cases) => drop(totals.images.fetch_add(cases, Ordering::Relaxed)),
            Err(failure) => totals.fail("creation", &failure),
        },
        Kind::Heap { workloads, transactions, share, seed } => {
            for number in (0..workloads).filter(|n| mine(*n) && !stopped()) {
                let seed = seed.wrapping_mul(1_000_003).wrapping_add(number);
                match heap::heap(command.flavour(), seed, transactions, share) {
                    Ok(images) => drop(totals.images.fetch_add(images, Ordering::Relaxed)),
                    Err(failure) => totals.fail("heap", &failure),
                }
                totals.workloads.fetch_add(1, Ordering::Relaxed);
            }
        }
        Kind::Flips { workloads, seed } => {
            for number in (0..workloads).filter(|n| mine(*n) && !stopped()) {
                let seed = seed.wrapping_mul(1_000_003).wrapping_add(number);
                let script = script::random(seed, 40);
                match damage::flips(&start, &script, 50, &mut Random::new(seed)) {
                    Ok(flips) => {
                        totals.noticed.fetch_add(flips.noticed, Ordering::Relaxed);
                        totals.flips.fetch_add(flips.noticed + flips.harmless, Ordering::Relaxed);
                    }
                    Err(failure) => totals.fail(&format!("flips, seed {seed}"), &failure),
                }
                totals.workloads.fetch_add(1, Ordering::Relaxed);
            }
        }
        Kind::Replay { .. } | Kind::Threads { .. } => {}
    }
}

/// Every small workload, and those that lead to places of interest; this thread's `part` of them.
fn exhaustive(start: &Start, transactions: u32, later: u64, part: (u64, u64), totals: &Totals) {
    let mine = |number: u64| number % part.1 == part.0;
    let stopped = || totals.stop.load(Ordering::Relaxed);
    let effort = Effort { losses: 1, first: 64, later, lives: 2 };
    for path in explore::FOUND.iter().filter(|_| part.0 == 0 && start.flavour == Flavour::Redo) {
        if let Err(why) = explore::replay(start, path, false) {
            totals.fail("found before", &Failure { path: (*path).into(), why });
        }
    }
    for count in 0..=transactions {
        for (number, script) in script::workloads(count).enumerate() {
            if stopped() {
                return;
            }
            if mine(number as u64) {
                let mut explorer = totals.first.sharing();
                if let Err(failure) = explorer.explore(start, &script, effort, number as u64) {
                    totals.fail("exhaustive", &failure);
                }
                totals.add(&explorer);
            }
        }
    }
    for (number, script) in script::DIRECTED.iter().enumerate().filter(|(n, _)| mine(*n as u64)) {
        let effort = Effort { losses: 8, first: 20, later: 14, lives: 3 };
        let script = script.parse().expect("these scripts are right");
        let mut explorer = totals.first.sharing();
        if let Err(failure) = explorer.explore(start, &script, effort, number as u64) {
            totals.fail("directed", &failure);
        }
        totals.add(&explorer);
    }
}
