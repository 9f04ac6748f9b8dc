//! Campaigns: what one thread does of a simulator's command, and what all of them have done.

use caliburn::Policy;
use caliburn_sim::explore::{self, Effort, Explorer, Failure};
use caliburn_sim::life::{Flavour, Start};
use caliburn_sim::random::Random;
use caliburn_sim::script::{self, Script, Step};
use caliburn_sim::{copies, creation, damage, heap, pm, restoring, yesterday};
use std::borrow::Cow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What all threads of a campaign have done, and the first failure.
#[derive(Default)]
pub struct Totals {
    pub images: AtomicU64,
    pub lives: AtomicU64,
    pub repeated: AtomicU64,
    pub workloads: AtomicU64,
    pub stuck: AtomicU64,
    pub faults: AtomicU64,
    pub flips: AtomicU64,
    pub noticed: AtomicU64,
    stop: AtomicBool,
    flags: String,
    failure: Mutex<Option<String>>,
    first: Explorer,
}

impl Totals {
    /// None yet, of a command with these flags.
    pub fn of(flags: String) -> Totals {
        Totals { flags, ..Totals::default() }
    }

    /// The first failure.
    pub fn into_failure(self) -> Option<String> {
        self.failure.into_inner().expect("no panic here")
    }

    /// Adds what an explorer did.
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

/// One thread's part of a campaign.
pub struct Campaign<'t> {
    start: Start,
    /// This thread's number, and how many there are.
    part: (u64, u64),
    totals: &'t Totals,
}

/// Which of the short workloads are taken.
#[derive(clap::Args, Debug, Clone, Copy)]
pub struct Share {
    /// Of so many short workloads one is taken.
    #[arg(long, default_value_t = 1)]
    share: usize,
    /// Which one: another number takes others.
    #[arg(long, default_value_t = 0)]
    offset: usize,
}

impl Share {
    fn every(self) -> usize {
        self.share.max(1)
    }

    fn of<T>(self, workloads: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        workloads.skip(self.offset % self.every()).step_by(self.every())
    }
}

/// The seed of a workload.
fn seed_of(seed: u64, number: u64) -> u64 {
    seed.wrapping_mul(1_000_003).wrapping_add(number)
}

impl<'t> Campaign<'t> {
    pub fn new(start: Start, part: (u64, u64), totals: &'t Totals) -> Campaign<'t> {
        Campaign { start, part, totals }
    }

    fn is_mine(&self, number: u64) -> bool {
        number % self.part.1 == self.part.0
    }

    fn is_stopped(&self) -> bool {
        self.totals.stop.load(Ordering::Relaxed)
    }

    /// The numbers that are this thread's, until something goes wrong.
    fn numbers(&self, end: u64) -> impl Iterator<Item = u64> {
        (0..end).filter(|number| self.is_mine(*number)).take_while(|_| !self.is_stopped())
    }

    fn explore(&self, what: &str, start: &Start, script: &Script, effort: Effort, seed: u64) {
        let mut explorer = self.totals.first.sharing();
        if let Err(failure) = explorer.explore(start, &sized(start, script), effort, seed) {
            self.totals.fail(what, &failure);
        }
        self.totals.add(&explorer);
    }

    /// Small workloads and those that lead to places of interest, all of them, or a share of the former and of the
    /// moments of the latter.
    pub fn exhaustive(&self, transactions: u32, later: u64, share: Share) {
        let start = &self.start;
        let found = explore::FOUND.iter().filter(|_| self.part.0 == 0 && start.flavour == Flavour::Redo);
        for path in found.flat_map(|path| explore::nearby(path)) {
            match explore::replay(start, &path, false) {
                Err(why) if why != explore::NOT_REACHED => {
                    self.totals.fail("found before", &Failure { path, why });
                }
                _ => {}
            }
        }
        let effort = Effort { losses: 1, first: 64, later, lives: 2 };
        for count in 0..=transactions {
            for (i, (number, script)) in share.of(script::workloads(count).enumerate()).enumerate() {
                if self.is_stopped() {
                    return;
                }
                if self.is_mine(i as u64) {
                    self.explore("exhaustive", start, &script, effort, number as u64);
                }
            }
        }
        let part = |of: u64| of.div_ceil(share.every() as u64);
        let effort = Effort { losses: 8, first: part(20), later: part(14), lives: 3 };
        for number in self.numbers(script::DIRECTED.len() as u64) {
            let script = script::DIRECTED[number as usize].parse().expect("these scripts are right");
            self.explore("directed", start, &script, effort, number + share.offset as u64);
        }
    }

    /// Long random workloads, until all threads have recovered so many crash images.
    pub fn torture(&self, images: u64, seed: u64) {
        let enough = || self.totals.images.load(Ordering::Relaxed) >= images;
        for number in self.numbers(u64::MAX).take_while(|_| !enough()) {
            let seed = seed_of(seed, number);
            let steps = 20 + Random::new(seed).below(150) as usize;
            let mut start = self.start.clone();
            start.short |= number.is_multiple_of(3);
            start.truncate_percent = [50, 1, 10, 90][number as usize / 3 % 4];
            let short = if start.short && !self.start.short { "--short " } else { "" };
            let flags = format!("{short}--truncate-percent {}", start.truncate_percent);
            let what = format!("torture, seed {seed}, replay with {flags}");
            let effort = Effort { losses: 1, first: 3, later: 1, lives: 3 };
            self.explore(&what, &start, &script::random(seed, steps), effort, seed);
        }
    }

    /// Workloads on machines whose operations fail, each once.
    pub fn faults(&self, workloads: u64, share: Share, seed: u64) {
        let start = &self.start;
        let small = share.of(script::workloads(2));
        let random = (0..workloads).map(|number| script::random(seed_of(seed, number), 30));
        // More than a log of this size takes.
        let logged = start.flavour.policy() == Policy::Redo && start.flavour != Flavour::Large;
        let directed = script::OF_FAULTS.iter().filter(|_| !logged);
        let directed = directed.map(|text| text.parse().expect("these scripts are right"));
        let tried_again = script::TRIED_AGAIN.iter().cycle().take(workloads.min(20) as usize);
        let tried_again = tried_again.map(|text| text.parse().expect("these scripts are right"));
        for (number, script) in small.chain(directed).chain(tried_again).chain(random).enumerate() {
            if self.is_stopped() {
                return;
            }
            if self.is_mine(number as u64) {
                match explore::faults(start, &sized(start, &script), &mut Random::new(seed + number as u64)) {
                    Ok(injected) => drop(self.totals.faults.fetch_add(injected, Ordering::Relaxed)),
                    Err(failure) => self.totals.fail("faults", &failure),
                }
                self.totals.workloads.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Crashes and failures while a store is made.
    pub fn creation(&self) {
        if self.part.0 > 0 {
            return;
        }
        let flavour = self.start.flavour;
        let cases = creation::creation(flavour, &mut Random::new(1))
            .and_then(|made| Ok(made + restoring::restoring(flavour, &mut Random::new(2))?));
        match cases {
            Ok(cases) => drop(self.totals.images.fetch_add(cases, Ordering::Relaxed)),
            Err(failure) => self.totals.fail("creation", &failure),
        }
    }

    /// Workloads with a heap.
    pub fn heap(&self, workloads: u64, transactions: u64, share: u64, seed: u64) {
        for number in self.numbers(workloads) {
            match heap::heap(self.start.flavour, seed_of(seed, number), transactions, share) {
                Ok(images) => drop(self.totals.images.fetch_add(images, Ordering::Relaxed)),
                Err(failure) => self.totals.fail("heap", &failure),
            }
            self.totals.workloads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Copies of a log that are lost, lag or lie.
    pub fn copies(&self, workloads: u64, seed: u64) {
        let effort = Effort { losses: 4, first: 64, later: 2, lives: 2 };
        for number in self.numbers(copies::DIRECTED.len() as u64) {
            let script = copies::DIRECTED[number as usize].parse().expect("these scripts are right");
            self.explore("copies given up and made", &self.start, &script, effort, number);
        }
        for number in self.numbers(workloads) {
            let seed = seed_of(seed, number);
            let script = script::random(seed, 40);
            match copies::copies(&self.start, &script, 50, &mut Random::new(seed)) {
                Ok(damaged) => drop(self.totals.images.fetch_add(damaged, Ordering::Relaxed)),
                Err(failure) => self.totals.fail(&format!("copies, seed {seed}"), &failure),
            }
            self.totals.workloads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Regions of persistent memory.
    pub fn pm(&self, workloads: u64, persistent: bool, seed: u64) {
        for number in self.numbers(workloads) {
            let seed = seed_of(seed, number);
            match pm::pm(seed, persistent, &mut Random::new(seed)) {
                Ok(images) => drop(self.totals.images.fetch_add(images, Ordering::Relaxed)),
                Err(failure) => self.totals.fail("pm", &failure),
            }
            self.totals.workloads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One file that is what it was earlier, in what crashes leave.
    pub fn yesterday(&self, workloads: u64, seed: u64) {
        for number in self.numbers(workloads) {
            let seed = seed_of(seed, number);
            let mut script = script::random(seed, 36);
            // With openings in between.
            [24, 12].into_iter().for_each(|at| script.0.insert(at, Step::Reopen));
            match yesterday::yesterday(&self.start, &script, 50, &mut Random::new(seed)) {
                Ok(older) => {
                    self.totals.noticed.fetch_add(older.noticed, Ordering::Relaxed);
                    self.totals.images.fetch_add(older.noticed + older.harmless, Ordering::Relaxed);
                }
                Err(failure) => self.totals.fail(&format!("yesterday, seed {seed}"), &failure),
            }
            self.totals.workloads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Flipped bits in what crashes leave.
    pub fn flips(&self, workloads: u64, seed: u64) {
        for number in self.numbers(workloads) {
            let seed = seed_of(seed, number);
            let script = script::random(seed, 40);
            match damage::flips(&self.start, &script, 50, &mut Random::new(seed)) {
                Ok(flips) => {
                    self.totals.noticed.fetch_add(flips.noticed, Ordering::Relaxed);
                    self.totals.flips.fetch_add(flips.noticed + flips.harmless, Ordering::Relaxed);
                }
                Err(failure) => self.totals.fail(&format!("flips, seed {seed}"), &failure),
            }
            self.totals.workloads.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A workload as it is for a kind of store.
fn sized<'s>(start: &Start, script: &'s Script) -> Cow<'s, Script> {
    match start.flavour {
        Flavour::Large => Cow::Owned(script.clone().enlarged()),
        _ => Cow::Borrowed(script),
    }
}
