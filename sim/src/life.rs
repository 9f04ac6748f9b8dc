//! One life of a store on a simulated machine: opened, compared with the model, put through a script.

use crate::content::Content;
use crate::disk::{Disk, Loss};
pub use crate::flavour::Flavour;
use crate::media::{Entry, Fault, Hardware, Machine, MachineMedia, just_store};
use crate::model::{Bounds, Changes, History, Mark, State};
use crate::random::Random;
use crate::script::{ADOPT, BACK, BRANCH, End, LEAVE, RELEASE, SAVE, Script, Step};
use crate::sight::ASKED;
pub use crate::sight::{Doubt, Sight, is_lost};
use crate::undecided::{self, Undecided};
use caliburn::{
    Branch, Class, Extent, Mode, Options, Policy, Region, Savepoint, Segment, SegmentError, Store, Tracking,
    Transaction, Tuning,
};
use caliburn_os::host::Id;
use caliburn_os::medium::Media;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

/// Where the store is on its machine.
pub const STORE: &str = "/machine/store";
/// Where a file is that it adopted.
pub const ADOPTED: &str = "/machine/data";
/// Where the second copy of its log is.
pub const SECOND: &str = "/machine/other/log";
/// Bytes of the segment when it is new.
pub const SEGMENT: u64 = 65536;

/// The machine of a life.
pub type LifeMachine = Machine<Mark>;

/// Where a life begins.
#[derive(Debug, Clone)]
pub struct Start {
    /// The disk that the last life left.
    pub disk: Disk,
    /// The boot it begins in.
    pub boot: Id,
    /// What time it is.
    pub time: u64,
    /// What may be found.
    pub bounds: Bounds,
    /// The states so far.
    pub history: History,
    /// Whether all of the disk is durable, as after a power cut.
    pub durable: bool,
    /// Whether the machine is short of memory and descriptors.
    pub short: bool,
    /// Share of the log at which truncation begins, in percent.
    pub truncate_percent: u8,
    /// What kind of store it is.
    pub flavour: Flavour,
    /// What the machine shows.
    pub sight: Sight,
    /// Whether that may not be what the store has noted.
    pub strange: bool,
    /// Whether that is too little.
    pub doubt: Doubt,
}

/// What is said of a file whose generation is less than it must be.
const OLDER: &str = "it is an older copy";
/// What an opening says of a store with the undo policy whose segments could not be forced when it was closed.
pub const UNFORCED: &str = "could not be forced when the store was closed";

/// How a life went.
#[derive(Debug)]
pub struct Outcome {
    /// What was found at its beginning, if it came so far.
    pub found: Option<usize>,
    /// All states, the new ones too.
    pub history: History,
    /// Everything that happened in it.
    pub journal: Vec<Entry<Mark>>,
    /// What time it was in the end.
    pub time: u64,
    /// Why it ended early, if the machine failed.
    pub failed: Option<String>,
}

/// An open store and what its memory must show.
struct Life {
    machine: Arc<LifeMachine>,
    store: Option<Store>,
    region: Option<Region>,
    history: History,
    live: Content,
    undecided: VecDeque<Undecided>,
    number: u64,
    /// Steps so far.
    steps: u64,
    hold: bool,
    truncate_percent: u8,
    flavour: Flavour,
}

/// What a transaction, or a branch of it, has done so far: its changes, and the savepoints with how many there
/// were.
#[derive(Default)]
struct Level {
    changes: Changes,
    savepoints: Vec<(Savepoint, usize)>,
}

/// What ends a life early.
#[derive(Debug)]
pub enum Ended {
    /// The machine failed, and the store said so.
    Failed(String),
    /// The store did something wrong.
    Wrong(String),
}

type Step0 = Result<(), Ended>;

fn wrong<T>(text: impl Into<String>) -> Result<T, Ended> {
    Err(Ended::Wrong(text.into()))
}

/// Options for a store that does everything in the calling thread.
pub fn options<M: std::fmt::Debug + Send + 'static>(
    machine: &Arc<Machine<M>>,
    truncate_percent: u8,
    flavour: Flavour,
) -> Options {
    let mut options = Store::options();
    let memory_budget = Some(flavour.memory_budget());
    let tuning = Tuning { memory_budget, truncate_percent, ..Tuning::default() };
    options.create(true).log_bytes(64 << 10).stage_bytes(128 << 10).reserve_bytes(1 << 20);
    options.background(false).tuning(tuning).media(Arc::new(MachineMedia(machine.clone())));
    flavour.choose(&mut options);
    if flavour == Flavour::Duplex {
        options.duplex_log(SECOND);
    }
    options
}

/// Bytes that belong to range `range` of the transaction of that number.
fn pattern(number: u64, range: usize, len: usize) -> Arc<[u8]> {
    let mut random = Random::new(number << 8 | range as u64);
    (0..len).map(|_| 1 + random.below(255) as u8).collect()
}

/// Lives a life on a machine: opening, script, and closing if `close`. Stops at the first wrong thing.
pub fn live(
    start: &Start,
    script: &Script,
    close: bool,
    machine: &Arc<LifeMachine>,
) -> Result<Outcome, String> {
    machine.run(|| {
        let mut life = match Life::begin(start, machine) {
            Ok((life, found)) => (life, found),
            Err(Ended::Failed(why)) if machine.failed() || start.may_be_lost(&why) => {
                let (history, mut journal, time) =
                    (start.history.clone(), machine.take_journal(), machine.time());
                let given_up = |entry: &Entry<Mark>| matches!(entry, Entry::Mark(Mark::GivenUp));
                journal.truncate(journal.iter().position(given_up).unwrap_or(journal.len()));
                return Ok(Outcome { found: None, history, journal, time, failed: Some(why) });
            }
            Err(Ended::Failed(why)) => return Err(format!("not opened: {why}")),
            Err(Ended::Wrong(why)) => return Err(why),
        };
        let done = life.0.work(script, close);
        let failed = match done {
            Ok(()) => None,
            Err(Ended::Failed(why)) if machine.failed() => {
                life.0.stays_failed()?;
                Some(why)
            }
            Err(Ended::Failed(why) | Ended::Wrong(why)) => return Err(why),
        };
        let found = Some(life.1);
        // What the end writes is not part of the life.
        let (journal, time) = (machine.take_journal(), machine.time());
        Ok(Outcome { found, history: life.0.end(), journal, time, failed })
    })
}

impl Start {
    /// Whether a store may be refused for that reason: memory that was lost, of a store that was not closed.
    fn may_be_lost(&self, why: &str) -> bool {
        let open = self.flavour == Flavour::Undo && !self.bounds.closed;
        // What was lost may be the segment's stamp: a check finds that, and does not ask what was lost.
        let stamp = why.contains(OLDER) && why.contains(".segment") && self.disk.has_lost();
        open && (self.durable && is_lost(why) || why.contains(UNFORCED) || stamp)
    }
}

/// The machine of a life that begins thus.
pub fn machine(start: &Start, fault: Option<Fault>) -> Arc<LifeMachine> {
    let hardware = Hardware { short: start.short, sight: start.sight, ..start.flavour.hardware() };
    Machine::new(start.disk.clone(), start.boot, start.time, hardware, fault)
}

impl Life {
    fn begin(start: &Start, machine: &Arc<LifeMachine>) -> Result<(Life, usize), Ended> {
        let mut options = options(machine, start.truncate_percent, start.flavour);
        let failed = |what: &str, error: &dyn std::fmt::Display| Ended::Failed(format!("{what}: {error}"));
        let mut report = options.check(STORE).map_err(|e| failed("check", &e))?;
        // The way out: this machine's operator knows what became of memory.
        let refused = report.problems.iter().any(|problem| is_lost(&problem.text));
        if refused && start.doubt != Doubt::None && !start.durable {
            report = options.memory_kept(true).check(STORE).map_err(|e| failed("check", &e))?;
        }
        if !report.is_clean() {
            let text = format!("check found damage: {:?}", report.problems);
            return if machine.failed() || start.may_be_lost(&text) {
                Err(Ended::Failed(text))
            } else {
                wrong(text)
            };
        }
        machine.mark(Mark::Reopening);
        let store = options.open(STORE).map_err(|e| failed("open", &e))?;
        let segment = segment(&store, start.flavour).map_err(|e| failed("segment", &e))?;
        let len = segment.len();
        if !(start.bounds.len.0..=start.bounds.len.1).contains(&len) {
            return wrong(format!("the segment is {len} bytes long and not {:?}", start.bounds.len));
        }
        let region = segment.map_all().map_err(|e| failed("map", &e))?;
        if start.flavour.policy() == Policy::Shadow {
            let damaged = store.scrub().map_err(|e| failed("scrub", &e))?;
            if !damaged.is_empty() {
                return wrong(format!("recovery left damage: {damaged:?}"));
            }
        }
        let prepared = store.prepared();
        let ids = prepared.iter().map(|p| &p.global_id[..]);
        let Bounds { process, highest, power, exact, .. } = start.bounds;
        // What was in memory alone may be gone, if this opening or an earlier one says so.
        let said = store.open_report();
        let goes_without = match start.doubt {
            Doubt::None => false,
            Doubt::Here => said.dropped_commits > 0,
            Doubt::Before => true,
        };
        let process = if goes_without { power } else { process };
        // Nor does the stage say then where the log ends. A record beyond its frontier is there or not, as after a
        // power cut: its commit was not acknowledged, and nobody was shown the store without it, since the opening
        // that found that was killed before it could return. Had it begun its incarnation, the record would not
        // count any more, whatever the stage says.
        let exact = exact.filter(|_| start.doubt == Doubt::None);
        let (process, highest) = exact.map_or((process, highest), |exact| (exact, exact));
        let asked = said.notices.iter().any(|notice| notice.contains(ASKED));
        let Some(found) = start.history.find(process, highest, bytes(&region), &ids) else {
            if asked && start.flavour == Flavour::Undo {
                // A program that is told so does not close the store as if it were in good order.
                machine.mark(Mark::GivenUp);
                return Err(Ended::Failed(format!(
                    "{UNFORCED}, perhaps: an opening was killed as it was told"
                )));
            }
            let newest = start.history.get(highest);
            let at = newest.memory.differs(bytes(&region));
            return wrong(format!(
                "the memory is that of no commit from {process} to {highest}; it differs from the newest at {at:?}; undecided: {:?}, there: {:?}",
                ids.collect::<Vec<_>>(),
                newest.prepared.keys().collect::<Vec<_>>()
            ));
        };
        machine.mark(Mark::Opened(found));
        let history = start.history.until(power.min(found), found);
        let state = history.get(found).clone();
        let undecided = state.prepared.iter().map(|(id, changes)| Undecided {
            id: id.clone(),
            changes: changes.clone(),
            recovered: true,
        });
        let life = Life {
            machine: machine.clone(),
            store: Some(store),
            region: Some(region),
            live: state.memory.clone(),
            undecided: undecided.collect(),
            truncate_percent: start.truncate_percent,
            flavour: start.flavour,
            steps: 0,
            hold: false,
            number: found as u64 * 7919 + machine.operations(),
            history,
        };
        Ok((life, found))
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("open until the end")
    }

    fn region(&self) -> &Region {
        self.region.as_ref().expect("mapped until the end")
    }

    fn work(&mut self, script: &Script, close: bool) -> Step0 {
        for (i, step) in script.0.iter().enumerate() {
            if !self.hold {
                self.make_room()?;
            }
            match self.step(step) {
                // A program that hears of a full disk makes room, and tries again.
                Err(Ended::Failed(_)) if step.is_tried_again() && !self.store().query().failed => {
                    self.step(step)?;
                }
                done => done?,
            }
            // Old values that are on the medium alone, or in memory that was lost, are not to be had any more.
            let lost = self.flavour.steals() || self.machine.lost_memory();
            if lost && self.store().query().failed {
                return Err(Ended::Failed(format!("the store failed in step {i}")));
            }
            if let Some(at) = self.live.differs(bytes(self.region())) {
                return wrong(format!("after step {i}, {step}, the memory is not as it was left, at {at}"));
            }
        }
        if close {
            self.close()?;
        }
        Ok(())
    }

    /// A commit that has returned; with the undo policy none is ever forced, in persistent memory every one.
    fn forced(&self, state: usize) {
        let forced = self.flavour != Flavour::Undo;
        self.machine.mark(if forced { Mark::Forced(state) } else { Mark::Committed(state) });
    }

    /// Without threads nobody else does, so nobody must have to wait for it.
    fn make_room(&mut self) -> Step0 {
        if self.flavour.policy() != Policy::Redo {
            return Ok(());
        }
        let free = |life: &Life| {
            let query = life.store().query();
            query.log_bytes - query.log_used
        };
        if free(self) < 44 << 10 {
            self.store().tend_flush(false).map_err(failure)?;
        }
        if free(self) < 18 << 10 {
            self.store().tend_truncation().map_err(failure)?;
        }
        if free(self) < 18 << 10 {
            self.store().truncate().map_err(failure)?;
            self.machine.mark(Mark::Forced(self.history.newest().0));
        }
        // Nor is the stage emptied.
        self.steps += 1;
        if self.steps.is_multiple_of(5) {
            self.store().tend_flush(false).map_err(failure)?;
        }
        Ok(())
    }

    fn tend(&self, force: bool) -> Step0 {
        self.store().tend_flush(force).map_err(failure)?;
        self.store().tend_truncation().map_err(failure)
    }

    fn step(&mut self, step: &Step) -> Step0 {
        let newest = self.history.newest().0;
        match step {
            Step::Transaction { restore, end, ranges } => self.transaction(*restore, *end, ranges)?,
            Step::Flush if self.flavour == Flavour::Undo => {
                if self.store().flush().is_ok() {
                    return wrong("a flush succeeded that cannot be had");
                }
            }
            Step::Flush => {
                self.store().flush().map_err(failure)?;
                self.machine.mark(Mark::Forced(newest));
            }
            Step::Truncate => {
                self.store().truncate().map_err(failure)?;
                self.forced(newest);
            }
            Step::Tend => self.tend(false)?,
            Step::Trim => self.store().tend_truncation().map_err(failure)?,
            Step::Force => {
                self.tend(true)?;
                self.forced(newest);
            }
            // Its file is as long as others make it.
            Step::Grow if self.flavour == Flavour::Adopted => {}
            Step::Grow => {
                let len = self.region().len() as u64 + SEGMENT;
                self.machine.mark(Mark::GrowthBegun(len));
                self.store().segment("data").and_then(|s| s.grow(len)).map_err(failure)?;
                self.machine.mark(Mark::Grown(len));
                self.region().grow(len as usize).map_err(failure)?;
            }
            Step::Make if self.store().segment("more").is_ok() => {}
            Step::Make => drop(self.store().create_segment("more", SEGMENT).map_err(failure)?),
            Step::Hold => self.hold = true,
            Step::Single | Step::Double => {
                let mut wanted = Options::new();
                let wanted = match step {
                    Step::Single => wanted.simplex_log(),
                    _ => wanted.duplex_log(SECOND),
                };
                self.store().relocate_log(wanted).map_err(failure)?;
            }
            Step::Remap => self.remap()?,
            Step::Reopen => {
                self.close()?;
                self.machine.mark(Mark::Reopening);
                self.store = Some(
                    options(&self.machine, self.truncate_percent, self.flavour)
                        .open(STORE)
                        .map_err(failure)?,
                );
                self.region =
                    Some(segment(self.store(), self.flavour).map_err(failure)?.map_all().map_err(failure)?);
                self.undecided.iter_mut().for_each(|u| u.recovered = true);
                self.live = self.history.newest().1.memory.clone();
            }
            Step::Resolve | Step::Forget => self.decide(*step == Step::Resolve)?,
        }
        Ok(())
    }

    fn transaction(&mut self, restore: bool, end: End, ranges: &[(usize, usize)]) -> Step0 {
        self.number += 1;
        let number = self.number;
        let store = self.store.as_ref().expect("open until the end");
        let region = self.region.as_ref().expect("mapped until the end");
        let mode = if restore { Mode::Restore } else { Mode::NoRestore };
        let mut tx = store.begin(mode).map_err(failure)?;
        if !restore {
            // Images are eager then, where they are lazy else.
            tx.will_change(Extent::Many);
        }
        // Old values could not be saved: what that was for is not done, and the transaction goes on.
        let goes_on = || self.flavour != Flavour::Redo && self.machine.failed() && !store.query().failed;
        let parts = restore && self.flavour.has_parts();
        let how = (parts, self.flavour.tracking() != Tracking::Declared);
        let changes = act(region, &goes_on, &mut tx, how, number, ranges)?;
        if end == End::Abort {
            tx.abort();
            return Ok(());
        }
        let (_, before) = self.history.newest();
        // Forced ones are not to be had with the undo policy.
        let end = match (self.flavour, end) {
            (Flavour::Undo, End::Power | End::Async) => End::Lazy,
            (flavour, End::Prepare) if !flavour.has_parts() => End::Power,
            _ => end,
        };
        if end == End::Prepare {
            let id = number.to_be_bytes().to_vec();
            let mut state = (**before).clone();
            state.prepared.insert(id.clone(), changes.clone());
            let state = self.history.push(state);
            self.machine.mark(Mark::Begun(state));
            tx.prepare(&id).map_err(failure)?;
            self.machine.mark(self.decided(state));
            self.apply_live(&changes);
            self.undecided.push_back(Undecided { id, changes, recovered: false });
            return Ok(());
        }
        let state = self.history.push(before.with(&changes));
        self.machine.mark(Mark::Begun(state));
        match end {
            End::Power => tx.commit(Class::Power).map_err(failure)?,
            End::Async => _ = tx.commit_async().map_err(failure)?,
            _ => tx.commit(Class::Process).map_err(failure)?,
        }
        // Who has changed nothing waits for nothing.
        let forced = end == End::Power && !changes.is_empty() || self.flavour.forces_all();
        self.machine.mark(if forced { Mark::Forced(state) } else { Mark::Committed(state) });
        self.apply_live(&changes);
        Ok(())
    }

    fn apply_live(&mut self, changes: &Changes) {
        changes.iter().for_each(|(offset, bytes)| self.live.write(*offset as u64, bytes));
    }

    /// What preparing and deciding survive.
    fn decided(&self, state: usize) -> Mark {
        if self.flavour == Flavour::Undo { Mark::Committed(state) } else { Mark::Forced(state) }
    }

    /// Whether a transaction of this process is undecided: its memory cannot be unmapped.
    fn in_process(&self) -> bool {
        self.undecided.iter().any(|u| !u.recovered && !u.changes.is_empty())
    }

    fn remap(&mut self) -> Step0 {
        let region = self.region.take().expect("mapped until the end");
        match region.unmap() {
            Ok(()) if self.in_process() => {
                return wrong("a region with an undecided transaction was unmapped");
            }
            Ok(()) => {
                let segment = segment(self.store(), self.flavour).map_err(failure)?;
                // For whose files those of the first are closed, where descriptors are short.
                if let Ok(more) = self.store().segment("more") {
                    drop(more.map_all().map_err(failure)?);
                }
                self.region = Some(segment.map_all().map_err(failure)?);
            }
            Err(error) => {
                let refused = error.to_string();
                self.region = Some(error.region);
                if !self.in_process() {
                    return Err(Ended::Failed(refused));
                }
            }
        }
        Ok(())
    }

    fn decide(&mut self, commit: bool) -> Step0 {
        let Some(Undecided { id, changes, recovered }) = self.undecided.pop_front() else { return Ok(()) };
        let (_, before) = self.history.newest();
        let mut state = if commit { before.with(&changes) } else { (**before).clone() };
        state.prepared.remove(&id);
        let state = self.history.push(state);
        self.machine.mark(Mark::Begun(state));
        // What recovery has found may be decided while nothing of it is mapped.
        let unmapped = recovered && !self.in_process() && id.last().is_some_and(|byte| byte % 2 == 0);
        if unmapped && let Some(Err(error)) = self.region.take().map(Region::unmap) {
            return Err(failure(error));
        }
        let lazily = !recovered && undecided::is_decided_lazily(&id);
        let done = undecided::decide(self.store(), &id, commit, lazily);
        if unmapped {
            let segment = segment(self.store(), self.flavour).map_err(failure)?;
            self.region = Some(segment.map_all().map_err(failure)?);
        }
        if let Err(error) = done {
            self.undecided.push_front(Undecided { id, changes, recovered });
            return Err(failure(error));
        }
        self.machine.mark(if lazily { Mark::Committed(state) } else { self.decided(state) });
        if commit {
            self.apply_live(&changes);
        } else if !recovered {
            let before: Changes = changes
                .iter()
                .map(|(offset, bytes)| {
                    let mut old = vec![0; bytes.len()];
                    self.history.get(state).memory.clone_range(*offset as u64, &mut old);
                    (*offset, old.into())
                })
                .collect();
            self.apply_live(&before);
        }
        Ok(())
    }

    fn close(&mut self) -> Step0 {
        let newest = self.history.newest().0;
        self.region = None;
        self.store.take().expect("open until the end").close().map_err(failure)?;
        self.machine.mark(Mark::Closed(newest));
        Ok(())
    }

    /// A store that failed never reports a success again.
    fn stays_failed(&mut self) -> Result<(), String> {
        let Some(store) = self.store.take() else { return Ok(()) };
        if store.query().failed {
            if store.begin(Mode::Restore).is_ok() {
                return Err("a failed store began a transaction".into());
            }
            if store.flush().is_ok() || store.truncate().is_ok() {
                return Err("a failed store reported success".into());
            }
            if store.close().is_ok() {
                return Err("a failed store closed in good order".into());
            }
        }
        Ok(())
    }

    /// Drops everything.
    fn end(mut self) -> History {
        if let Some(store) = &self.store {
            for undecided in self.undecided.iter().filter(|u| !u.recovered) {
                let _ = store.abort_prepared(&undecided.id);
            }
        }
        self.region = None;
        self.store = None;
        self.history
    }
}

/// The store's segment.
fn segment(store: &Store, flavour: Flavour) -> Result<Segment, SegmentError> {
    if flavour == Flavour::Adopted { store.adopt_segment(ADOPTED) } else { store.segment("data") }
}

fn failure(error: impl std::fmt::Display) -> Ended {
    Ended::Failed(error.to_string())
}

fn bytes(region: &Region) -> &[u8] {
    // SAFETY: the region is mapped while it is borrowed, and only this thread stores to it, not meanwhile.
    unsafe { std::slice::from_raw_parts(region.as_ptr(), region.len()) }
}

/// A store with an empty segment, closed in good order, on a machine that was then switched off.
pub fn default_start(flavour: Flavour) -> Start {
    let machine: Arc<LifeMachine> = Machine::new(Disk::default(), [1; 16], 1 << 40, flavour.hardware(), None);
    machine.run(|| {
        let store = options(&machine, 50, flavour).open(STORE).expect("a sound machine makes a store");
        if flavour == Flavour::Adopted {
            let file = MachineMedia(machine.clone())
                .create(Path::new(ADOPTED))
                .expect("a sound machine makes a file");
            file.set_len(SEGMENT).expect("a sound machine has room");
            store.adopt_segment(ADOPTED).expect("a sound machine has the file");
        } else {
            store.create_segment("data", SEGMENT).expect("a sound machine makes a segment");
        }
        store.close().expect("a sound machine closes a store");
    });
    Start {
        disk: machine.disk().after_power_cut(Loss::Nothing),
        boot: [2; 16],
        durable: true,
        short: false,
        truncate_percent: 50,
        flavour,
        time: 1 << 41,
        sight: Sight { clock: 1, mounts: 1, ..Sight::default() },
        strange: false,
        doubt: Doubt::None,
        bounds: Bounds::exactly(0, SEGMENT),
        history: History::new(State::default()),
    }
}

/// Declares and changes what a transaction does, with its savepoints and branches if it can have `parts`; or only
/// changes it, if that is `caught`. What is changed in the end.
fn act<'s>(
    region: &'s Region,
    goes_on: &dyn Fn() -> bool,
    tx: &mut Transaction<'s>,
    (parts, caught): (bool, bool),
    number: u64,
    ranges: &[(usize, usize)],
) -> Result<Changes, Ended> {
    let inside = ranges.iter().filter(|(offset, bytes)| *bytes == 0 || offset + bytes <= region.len());
    let mut levels = vec![Level::default()];
    let mut branches: Vec<Branch<'_>> = Vec::new();
    for (i, (offset, bytes)) in inside.enumerate() {
        let (level, alone) =
            (levels.last_mut().expect("the transaction's own is there"), branches.is_empty());
        let part = branches.last_mut().map_or(&mut *tx, |branch| &mut **branch);
        match (*offset, *bytes) {
            _ if *bytes == 0 && !parts => {}
            SAVE => level.savepoints.push((part.savepoint().map_err(failure)?, level.changes.len())),
            BACK => {
                if let Some((savepoint, changes)) = level.savepoints.last() {
                    part.rollback_to(savepoint).map_err(failure)?;
                    level.changes.truncate(*changes);
                }
            }
            RELEASE => {
                if let Some((savepoint, _)) = level.savepoints.pop() {
                    part.release(&savepoint).map_err(failure)?;
                }
            }
            BRANCH => match part.branch() {
                Ok(branch) => {
                    branches.push(branch);
                    levels.push(Level::default());
                }
                Err(_) if goes_on() => {}
                Err(error) => return Err(failure(error)),
            },
            ADOPT | LEAVE if alone => {}
            ADOPT => {
                let (branch, done) = (branches.pop().expect("not empty"), levels.pop().expect("as many"));
                let part = branches.last_mut().map_or(&mut *tx, |branch| &mut **branch);
                match part.adopt(branch) {
                    Ok(()) => levels.last_mut().expect("its own").changes.extend(done.changes),
                    Err(_) if goes_on() => {}
                    Err(error) => return Err(failure(error)),
                }
            }
            LEAVE => {
                branches.pop();
                levels.pop();
            }
            (offset, len) => {
                let bytes = pattern(number, i, len);
                if caught {
                    just_store(region, offset, &bytes);
                    level.changes.push((offset, bytes));
                    continue;
                }
                match part.write(region, offset, &bytes) {
                    Ok(()) => level.changes.push((offset, bytes)),
                    Err(_) if goes_on() => {}
                    Err(error) => return Err(failure(error)),
                }
            }
        }
    }
    while let Some(branch) = branches.pop() {
        drop(branch);
    }
    Ok(levels.swap_remove(0).changes)
}
