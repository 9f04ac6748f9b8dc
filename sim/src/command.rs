//! The simulator's command line: campaigns, schedules, and the replay of what one of them found.

use crate::campaign::{Campaign, Share, Totals};
use caliburn_sim::explore;
use caliburn_sim::life::{Flavour, Start, default_start};
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// With two copies of the log.
    #[arg(long, global = true, conflicts_with_all = ["undo", "persistent", "adopted"])]
    duplex: bool,
    /// With the shadow policy.
    #[arg(long, global = true, conflicts_with_all = ["undo", "persistent", "adopted", "duplex"])]
    shadow: bool,
    /// With the shadow policy, by programs that declare nothing.
    #[arg(long, global = true, conflicts_with_all = ["undo", "persistent", "adopted", "duplex", "shadow"])]
    caught: bool,
    /// The same; what they change waits in memory, as long as there is memory for three pages.
    #[arg(long, global = true, conflicts_with_all = ["undo", "persistent", "adopted", "duplex", "shadow", "caught"])]
    lazy: bool,
    /// The same; a buffer pool shows the segment.
    #[arg(long, global = true, conflicts_with_all = ["undo", "persistent", "adopted", "duplex", "shadow", "caught", "lazy"])]
    pool: bool,
    /// With the redo policy, by programs that declare nothing.
    #[arg(long, global = true, conflicts_with_all = ["pool", "undo", "persistent", "adopted", "duplex", "shadow", "caught", "lazy"])]
    found: bool,
    /// With the redo policy, by transactions that outgrow the log and the memory budget.
    #[arg(long, global = true, conflicts_with_all = ["found", "pool", "undo", "persistent", "adopted", "duplex", "shadow", "caught", "lazy"])]
    large: bool,
    /// The machine is short of memory and descriptors.
    #[arg(long, global = true)]
    short: bool,
}

impl Command {
    fn start(&self) -> Start {
        Start { short: self.short, ..default_start(self.flavour()) }
    }

    fn flavour(&self) -> Flavour {
        match () {
            () if self.undo => Flavour::Undo,
            () if self.persistent => Flavour::Persistent,
            () if self.adopted => Flavour::Adopted,
            () if self.shadow => Flavour::Shadow,
            () if self.caught => Flavour::Caught,
            () if self.lazy => Flavour::Lazy,
            () if self.pool => Flavour::Pool,
            () if self.found => Flavour::Found,
            () if self.large => Flavour::Large,
            () if self.duplex || matches!(self.kind, Kind::Copies { .. }) => Flavour::Duplex,
            () => Flavour::Redo,
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
        #[command(flatten)]
        share: Share,
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
        /// Random workloads, and as many, up to 20, in which what failed is tried again.
        #[arg(long, default_value_t = 20)]
        workloads: u64,
        #[command(flatten)]
        share: Share,
        /// Where the random numbers begin.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Crashes and failures while a store is made.
    Creation,
    /// Stores that are opened, renamed, linked, copied and forked with, on this machine's files.
    Names {
        /// Walks.
        #[arg(long, default_value_t = 100)]
        walks: u64,
        /// Steps of each.
        #[arg(long, default_value_t = 60)]
        steps: u64,
        /// Where the random numbers begin.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
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
    /// One file that is what it was earlier, after a crash.
    Yesterday {
        /// Random workloads, each with 50 older files.
        #[arg(long, default_value_t = 200)]
        workloads: u64,
        /// Where the random numbers begin.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Copies of a log that are lost, lag or lie after a crash.
    Copies {
        /// Random workloads, each with 50 damaged copies.
        #[arg(long, default_value_t = 200)]
        workloads: u64,
        /// Where the random numbers begin.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Regions of persistent memory, their segments and blocks, crashed after everything that is done to them: with
    /// `--persistent` in persistent memory, else in files.
    Pm {
        /// Random workloads.
        #[arg(long, default_value_t = 30)]
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
        /// A writer, two threads that take images, and a truncator, in place of those.
        #[arg(long, conflicts_with_all = ["heap", "group"])]
        images: bool,
        /// Committers, a thread that dumps the store, and a truncator, in place of those.
        #[arg(long, conflicts_with_all = ["heap", "group", "images"])]
        dumps: bool,
        /// Families that lock a few names, in place of those.
        #[arg(long, conflicts_with_all = ["heap", "group", "images", "dumps"])]
        locks: bool,
        /// Committers who wait for a replica of the log, in place of those.
        #[arg(long, conflicts_with_all = ["heap", "group", "images", "dumps", "locks"])]
        replicas: bool,
        /// Where the random numbers begin.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Repeats what a failure printed.
    Replay {
        /// `script | cut | script ...`
        path: String,
        /// Share of the log at which truncation begins.
        #[arg(long, default_value_t = 50)]
        truncate_percent: u8,
    },
}

pub fn main() -> ExitCode {
    let command = Command::parse();
    let flavour = match command.flavour() {
        Flavour::Redo => "",
        Flavour::Undo => " --undo",
        Flavour::Persistent => " --persistent",
        Flavour::Adopted => " --adopted",
        Flavour::Duplex => " --duplex",
        Flavour::Shadow => " --shadow",
        Flavour::Caught => " --caught",
        Flavour::Lazy => " --lazy",
        Flavour::Pool => " --pool",
        Flavour::Found => " --found",
        Flavour::Large => " --large",
    };
    let totals = Totals::of(format!("{flavour}{}", if command.short { " --short" } else { "" }));
    let start = Instant::now();
    if let Kind::Replay { path, truncate_percent } = &command.kind {
        let start = Start { truncate_percent: *truncate_percent, ..command.start() };
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
    if let Kind::Threads { schedules, seed, heap, group, images, dumps, locks, replicas } = command.kind {
        return threads(schedules, seed, [heap, group, images, dumps, locks, replicas], command.flavour());
    }
    if let Kind::Names { walks, steps, seed } = command.kind {
        return names(walks, steps, seed);
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
    match totals.into_failure() {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// One thread, since the working directory is the process's, and it forks.
fn names(walks: u64, steps: u64, seed: u64) -> ExitCode {
    let start = Instant::now();
    for walk in seed..seed + walks {
        let done = tempfile::tempdir().map_err(|e| e.to_string()).and_then(|dir| {
            ["here", "there"]
                .iter()
                .try_for_each(|place| std::fs::create_dir(dir.path().join(place)))
                .and_then(|()| std::env::set_current_dir(dir.path().join("here")))
                .map_err(|e| e.to_string())?;
            caliburn_sim::names::walk(dir.path(), walk, steps)
        });
        if let Err(why) = done {
            println!("{why}");
            return ExitCode::FAILURE;
        }
    }
    println!("{walks} walks of {steps} steps through names, {:.0} s", start.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

#[cfg(caliburn_shuttle)]
fn threads(
    schedules: u64,
    seed: u64,
    [heap, group, images, dumps, locks, replicas]: [bool; 6],
    flavour: Flavour,
) -> ExitCode {
    use caliburn_sim::threads;

    let start = Instant::now();
    let what = match () {
        () if group => {
            threads::group_schedules(schedules, seed);
            "of group commit".to_owned()
        }
        () if heap => {
            threads::heap_schedules(schedules, seed);
            "with a heap".to_owned()
        }
        () if images => {
            caliburn_sim::images::schedules(schedules, seed, flavour);
            "with images".to_owned()
        }
        () if dumps => {
            caliburn_sim::dumps::schedules(schedules, seed, flavour);
            "with dumps".to_owned()
        }
        () if locks => {
            caliburn_sim::locks::schedules(schedules, seed);
            "of locks".to_owned()
        }
        () if replicas => {
            caliburn_sim::replicas::schedules(schedules, seed);
            "with a replica".to_owned()
        }
        () => format!("{} crash images recovered", threads::schedules(schedules, seed)),
    };
    println!("{schedules} schedules, {what}, {:.0} s", start.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

#[cfg(not(caliburn_shuttle))]
fn threads(_schedules: u64, _seed: u64, _kinds: [bool; 6], _flavour: Flavour) -> ExitCode {
    eprintln!("built without --cfg caliburn_shuttle");
    ExitCode::from(2)
}

fn work(command: &Command, thread: u64, totals: &Totals) {
    let campaign = Campaign::new(command.start(), (thread, command.threads), totals);
    match command.kind {
        Kind::Exhaustive { transactions, later, share } => campaign.exhaustive(transactions, later, share),
        Kind::Torture { images, seed } => campaign.torture(images, seed),
        Kind::Faults { workloads, share, seed } => campaign.faults(workloads, share, seed),
        Kind::Creation => campaign.creation(),
        Kind::Heap { workloads, transactions, share, seed } => {
            campaign.heap(workloads, transactions, share, seed);
        }
        Kind::Flips { workloads, seed } => campaign.flips(workloads, seed),
        Kind::Yesterday { workloads, seed } => campaign.yesterday(workloads, seed),
        Kind::Copies { workloads, seed } => campaign.copies(workloads, seed),
        Kind::Pm { workloads, seed } => campaign.pm(workloads, command.persistent, seed),
        Kind::Replay { .. } | Kind::Threads { .. } | Kind::Names { .. } => {}
    }
}
