//! A replica of the log under the deterministic scheduler: committers who wait for it, and who do not. When the
//! power fails, what the replica has by then shows whole commits, all that class `Quorum` has promised, none that
//! the machine has lost, and none without those that had returned before it began.

use crate::disk::{Disk, Loss};
use crate::life::{Flavour, LifeMachine, STORE, options};
use crate::media::{Entry, Hardware, Machine, MachineMedia};
use crate::random::Random;
use crate::threads::turns;
use caliburn::{Class, DumpOptions, Mode, Region, Replica, ReplicaError, ReplicaPart, RestoreOptions, Store};
use caliburn_os::medium::Media;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

const THREADS: usize = 3;
const COMMITS: u64 = 4;
const SEGMENT: u64 = 65536;
/// Where its parts are on the machine that takes over.
const ARCHIVE: &str = "/machine/archive";

/// The newest commit of each thread.
type Newest = [u64; THREADS];

#[derive(Debug, Clone, Copy)]
enum Said {
    Begun(usize, u64),
    Returned(usize, u64, Class),
    /// The replica has so many parts.
    Kept(usize),
}

/// What a replica has.
#[derive(Debug, Clone, Default)]
struct Kept {
    parts: Vec<ReplicaPart>,
    reached: u64,
    asked: u64,
}

/// A replica that the machine can't reach at times.
struct Elsewhere {
    kept: Mutex<Kept>,
    machine: Arc<Machine<Said>>,
    seed: u64,
}

impl fmt::Debug for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elsewhere").finish_non_exhaustive()
    }
}

impl Replica for Elsewhere {
    fn begin(&self, _store: [u8; 16], end: u64) -> Result<u64, ReplicaError> {
        let mut kept = self.kept.lock().expect("one at a time");
        if kept.asked == 0 {
            kept.reached = end;
        }
        Ok(kept.reached)
    }

    fn append(&self, part: &ReplicaPart) -> Result<u64, ReplicaError> {
        let mut kept = self.kept.lock().expect("one at a time");
        kept.asked += 1;
        let unavailable = || Err(ReplicaError::Unavailable("nobody answers".into()));
        let luck = Random::new(self.seed.wrapping_mul(1000) + kept.asked).below(6);
        if luck == 0 {
            return unavailable();
        }
        if part.from != kept.reached {
            // The answer to one that came before was lost.
            return Ok(kept.reached);
        }
        kept.reached = part.to;
        kept.parts.push(part.clone());
        self.machine.mark(Said::Kept(kept.parts.len()));
        if luck == 1 { unavailable() } else { Ok(part.to) }
    }
}

/// The places of a thread.
fn places(thread: usize) -> [usize; 2] {
    [thread * 8, SEGMENT as usize - 4096 + thread * 8]
}

fn commits(store: &Store, region: &Region, machine: &Machine<Said>, thread: usize) {
    for number in 1..=COMMITS {
        machine.mark(Said::Begun(thread, number));
        let mut tx = store.begin(Mode::Restore).expect("sound");
        places(thread).iter().for_each(|place| tx.store(region, *place, &number).expect("sound"));
        let class = match (number + thread as u64) % 4 {
            0 => Class::Process,
            1 => Class::Power,
            _ => Class::Quorum,
        };
        if class == Class::Quorum && number == 3 {
            // Undecided in between.
            let id = [thread as u8];
            tx.prepare(&id).expect("sound");
            match thread % 2 {
                0 => store.commit_prepared(&id).expect("sound"),
                _ => store.commit_prepared_ticket(&id).expect("sound").wait().expect("sound"),
            }
        } else {
            tx.commit(class).expect("sound");
        }
        machine.mark(Said::Returned(thread, number, class));
    }
}

/// What a store shows.
fn shown(machine: &Arc<LifeMachine>) -> Newest {
    let options = options(machine, 50, Flavour::Redo);
    let report = options.check(STORE).expect("it is a store");
    assert!(report.is_clean(), "{:?}", report.problems);
    let store = options.open(STORE).expect("sound");
    let region = store.segment("data").expect("made").map_all().expect("sound");
    std::array::from_fn(|thread| {
        let [first, second] = places(thread).map(|place| region.load::<u64>(place));
        assert_eq!(first, second, "thread {thread}: half done");
        first
    })
}

/// On a machine that has nothing but a dump, and what the replica has.
fn taken_over(dump: &[u8], parts: &[ReplicaPart]) -> Newest {
    let machine: Arc<LifeMachine> =
        Machine::new(Disk::default(), [3; 16], 1 << 42, Hardware::default(), None);
    machine.run(|| {
        let media = MachineMedia(machine.clone());
        media.create_directory(Path::new(ARCHIVE)).expect("it can");
        for part in parts {
            drop(media.replace(&Path::new(ARCHIVE).join(&part.name), &part.bytes).expect("it can"));
        }
        let mut how = RestoreOptions::new();
        how.archive(ARCHIVE);
        options(&machine, 50, Flavour::Redo).restore(&mut &dump[..], &how, STORE).expect("it has all");
        shown(&machine)
    })
}

/// A store whose replica begins, and a dump of it.
#[derive(Clone, Default)]
struct Begun {
    disk: Disk,
    dump: Vec<u8>,
    kept: Kept,
}

fn begin() -> Begun {
    let made = Arc::new(Mutex::new(Begun::default()));
    let result = made.clone();
    crate::threads::once(move || {
        let machine: Arc<Machine<Said>> =
            Machine::new(Disk::default(), [1; 16], 1 << 40, Hardware::default(), None);
        let replica = Arc::new(Elsewhere { kept: Mutex::default(), machine: machine.clone(), seed: 0 });
        let mut dump = Vec::new();
        machine.run(|| {
            let store =
                options(&machine, 50, Flavour::Redo).replica(replica.clone()).open(STORE).expect("sound");
            store.create_segment("data", SEGMENT).expect("sound");
            store.dump(&DumpOptions::new(), &mut dump).expect("sound");
            store.close().expect("sound");
        });
        let kept = replica.kept.lock().expect("one thread").clone();
        let disk = machine.disk().after_power_cut(Loss::Nothing);
        *made.lock().expect("one thread") = Begun { disk, dump, kept };
    });
    result.lock().expect("one thread").clone()
}

fn schedule(begun: &Begun, seed: u64) {
    let machine: Arc<Machine<Said>> =
        Machine::new(begun.disk.clone(), [2; 16], 1 << 41, Hardware::default(), None);
    let kept = Kept { asked: 1, ..begun.kept.clone() };
    let replica = Arc::new(Elsewhere { kept: Mutex::new(kept), machine: machine.clone(), seed });
    let journal = machine.run(|| {
        let mut how = options(&machine, 1 + (seed % 40) as u8, Flavour::Redo);
        let store = how.replica(replica.clone()).open(STORE).expect("sound");
        let region = store.segment("data").expect("made").map_all().expect("sound");
        shuttle::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (store, region, machine) = (&store, &region, &machine);
                scope.spawn(move || commits(store, region, machine, thread));
            }
            for round in 0..4 {
                store.tend_flush(round == 2).expect("sound");
                store.tend_truncation().expect("sound");
            }
        });
        store.flush_as(Class::Quorum).expect("sound");
        let journal = machine.take_journal();
        drop((region, store));
        journal
    });
    let parts = replica.kept.lock().expect("one thread").parts.clone();
    let mut random = Random::new(seed);
    let telling: Vec<usize> = (0..journal.len()).filter(|i| matches!(journal[*i], Entry::Mark(_))).collect();
    for cut in 0..3 {
        // The last one comes when all had been said.
        let end = if cut == 2 { journal.len() - 1 } else { *random.pick(&telling) };
        let said = walk(begun, &journal[..=end]);
        let there = taken_over(&begun.dump, &parts[..said.kept]);
        let disk = said.disk.after_power_cut(Loss::Some(random.bits()));
        let here: Arc<LifeMachine> = Machine::new(disk, [9; 16], 1 << 43, Hardware::default(), None);
        let here = here.run(|| shown(&here));
        for thread in 0..THREADS {
            let wanted = said.promised[thread]..=here[thread];
            assert!(
                wanted.contains(&there[thread]),
                "cut at {end}: thread {thread} has {} there, {wanted:?} wanted",
                there[thread]
            );
            let before = said.before[thread][there[thread] as usize];
            assert!(
                before.iter().zip(there).all(|(before, there)| *before <= there),
                "cut at {end}: {there:?}, but {before:?} had returned before commit {} of thread {thread} began",
                there[thread]
            );
        }
        assert!(cut < 2 || there == [COMMITS; THREADS], "{there:?} in the end");
    }
}

/// What had been said at a moment.
struct Moment {
    disk: Disk,
    /// Parts of the replica.
    kept: usize,
    returned: Newest,
    promised: Newest,
    /// What had returned when a commit began.
    before: [[Newest; COMMITS as usize + 1]; THREADS],
}

fn walk(begun: &Begun, journal: &[Entry<Said>]) -> Moment {
    let (disk, kept) = (begun.disk.clone(), begun.kept.parts.len());
    let nothing = Newest::default();
    let before = [[nothing; COMMITS as usize + 1]; THREADS];
    let mut moment = Moment { disk, kept, returned: nothing, promised: nothing, before };
    for entry in journal {
        match entry {
            Entry::Act(act) => moment.disk.apply(act),
            Entry::Mark(Said::Kept(parts)) => moment.kept = *parts,
            Entry::Mark(Said::Begun(thread, number)) => {
                moment.before[*thread][*number as usize] = moment.returned;
            }
            Entry::Mark(Said::Returned(thread, number, class)) => {
                moment.returned[*thread] = *number;
                if *class == Class::Quorum {
                    // Whatever had returned when it began precedes it.
                    let before = moment.before[*thread][*number as usize];
                    moment.promised.iter_mut().zip(before).for_each(|(p, b)| *p = (*p).max(b));
                    moment.promised[*thread] = *number;
                }
            }
        }
    }
    moment
}

/// Tries so many schedules.
pub fn schedules(count: u64, seed: u64) {
    let begun = begin();
    turns(count, seed, move |number| schedule(&begun, number));
}
