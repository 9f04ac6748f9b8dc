//! Several committers and a truncator under a deterministic scheduler (shuttle), which chooses at every access
//! to an atomic or a lock who goes on. Each schedule is then crashed at several moments.
//!
//! Each thread changes two places of its own to the number of its commit. After a crash each must show a
//! whole commit, none acknowledged missing, and none without those that had returned before it began.

use crate::disk::{Act, Disk, Loss};
use crate::life::{Flavour, LifeMachine, SEGMENT, STORE, options};
use crate::media::{Entry, Hardware, Machine};
use crate::random::Random;
use caliburn::heap::{Heap, Place};
use caliburn::{Class, Mode, Region, Store};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const THREADS: usize = 3;
const COMMITS: u64 = 5;
/// Bytes of a thread's second place.
const RUN: usize = 1500;

/// What a thread says.
#[derive(Debug, Clone, Copy)]
enum Said {
    Begun(usize, u64),
    Returned(usize, u64, Class),
}

/// The newest commit of each thread.
type Newest = [u64; THREADS];

fn places(thread: usize) -> (usize, usize) {
    (thread * 8, 4096 - 100 + thread * 2048)
}

fn commits(store: &Store, region: &Region, machine: &Machine<Said>, thread: usize) {
    let (first, second) = places(thread);
    for number in 1..=COMMITS {
        if (number + thread as u64).is_multiple_of(3) {
            let mut tx = store.begin(Mode::Restore).expect("sound");
            tx.write(region, second, &[99; RUN]).expect("sound");
            tx.abort();
        }
        machine.mark(Said::Begun(thread, number));
        let mut tx = store.begin(Mode::Restore).expect("sound");
        if number.is_multiple_of(2) {
            let mut branch = tx.branch().expect("sound");
            branch.write(region, second, &[number as u8; RUN]).expect("sound");
            tx.adopt(branch).expect("sound");
        } else {
            let savepoint = tx.savepoint().expect("sound");
            tx.write(region, second, &[98; RUN / 2]).expect("sound");
            tx.rollback_to(&savepoint).expect("sound");
            tx.write(region, second, &[number as u8; RUN]).expect("sound");
        }
        tx.store(region, first, &number).expect("sound");
        let class = if (number + thread as u64).is_multiple_of(2) { Class::Power } else { Class::Process };
        tx.commit(class).expect("sound");
        machine.mark(Said::Returned(thread, number, class));
    }
}

/// What is there, if every thread's places show whole commits.
fn found(disk: Disk, boot: u8, time: u64) -> Result<Newest, String> {
    let machine: Arc<LifeMachine> = Machine::new(disk, [boot; 16], time, Hardware::default(), None);
    machine.run(|| {
        let options = options(&machine, 50, Flavour::Redo);
        let report = options.check(STORE).map_err(|e| e.to_string())?;
        if !report.is_clean() {
            return Err(format!("{:?}", report.problems));
        }
        let store = options.open(STORE).map_err(|e| e.to_string())?;
        let region = store.segment("data").map(|s| s.map_all()).map_err(|e| e.to_string())?;
        let region = region.map_err(|e| e.to_string())?;
        let mut newest = [0; THREADS];
        for (thread, newest) in newest.iter_mut().enumerate() {
            let (first, second) = places(thread);
            *newest = region.load::<u64>(first);
            let mut run = [0; RUN];
            region.read(second, &mut run);
            if run.iter().any(|byte| u64::from(*byte) != *newest) {
                return Err(format!("thread {thread}: commit {newest} is half done"));
            }
        }
        Ok(newest)
    })
}

fn schedule(default_start: &Disk, seed: u64, cuts: &AtomicU64) {
    let machine: Arc<Machine<Said>> = Machine::new(
        default_start.clone(),
        [2; 16],
        1 << 41,
        Hardware { short: seed.is_multiple_of(3), ..Hardware::default() },
        None,
    );
    let seen = machine.run(|| {
        let store = options(&machine, 1 + (seed % 40) as u8, Flavour::Redo).open(STORE).expect("sound");
        let region = store.segment("data").expect("made").map_all().expect("sound");
        shuttle::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (store, region, machine) = (&store, &region, &machine);
                scope.spawn(move || commits(store, region, machine, thread));
            }
            for round in 0..9 {
                match round % 3 {
                    0 => {
                        store.tend_flush(false).expect("sound");
                        store.tend_truncation().expect("sound");
                    }
                    _ => store.truncate().expect("sound"),
                }
            }
        });
        let seen: Vec<u64> = (0..THREADS).map(|t| region.load(places(t).0)).collect();
        let journal = machine.take_journal();
        drop((region, store));
        (seen, journal)
    });
    assert_eq!(seen.0, [COMMITS; THREADS], "the memory does not show the last commits");
    let (journal, time) = (seen.1, machine.time());
    let mut random = Random::new(seed);
    let telling = |i: &usize| {
        matches!(journal[*i], Entry::Mark(Said::Returned(..)) | Entry::Act(Act::Write(..) | Act::Sync(_)))
    };
    let ends: Vec<usize> = (0..journal.len()).filter(telling).collect();
    for i in 0..8 {
        let anywhere = random.below(journal.len() as u64) as usize;
        // Half of the crashes come just after an acknowledgement, a write or a force.
        let end = if i % 2 == 0 { anywhere } else { *random.pick(&ends) };
        let power = random.chance(1, 2);
        let said = walk(default_start, &journal[..=end]);
        let (disk, boot, time) = match power {
            true => (said.disk.after_power_cut(Loss::Some(random.bits())), 9, 1 << 43),
            false => (said.disk, 2, time),
        };
        let floor = if power { said.forced } else { said.returned };
        cuts.fetch_add(1, Ordering::Relaxed);
        let newest =
            found(disk, boot, time).unwrap_or_else(|why| panic!("cut at {end}, power {power}: {why}"));
        for thread in 0..THREADS {
            assert!(
                (floor[thread]..=said.begun[thread]).contains(&newest[thread]),
                "cut at {end}, power {power}: thread {thread} has {}, of {:?} returned and {:?} begun",
                newest[thread],
                floor,
                said.begun
            );
            let before = said.before.get(&(thread, newest[thread])).copied().unwrap_or_default();
            assert!(
                before.iter().zip(newest).all(|(before, newest)| *before <= newest),
                "cut at {end}, power {power}: {newest:?}, but {before:?} had returned before commit {} of thread {thread} began",
                newest[thread]
            );
        }
    }
}

/// The disk at a moment, and what had been said.
#[derive(Default)]
struct Moment {
    disk: Disk,
    begun: Newest,
    returned: Newest,
    forced: Newest,
    /// What had returned when a commit began.
    before: HashMap<(usize, u64), Newest>,
}

fn walk(default_start: &Disk, journal: &[Entry<Said>]) -> Moment {
    let mut moment = Moment { disk: default_start.clone(), ..Moment::default() };
    for entry in journal {
        match entry {
            Entry::Act(act) => moment.disk.apply(act),
            Entry::Mark(Said::Begun(thread, number)) => {
                moment.begun[*thread] = *number;
                moment.before.insert((*thread, *number), moment.returned);
            }
            Entry::Mark(Said::Returned(thread, number, class)) => {
                moment.returned[*thread] = *number;
                if *class == Class::Power {
                    // Whatever had returned when it began precedes it.
                    let before = moment.before[&(*thread, *number)];
                    moment.forced.iter_mut().zip(before).for_each(|(f, b)| *f = (*f).max(b));
                    moment.forced[*thread] = *number;
                }
            }
        }
    }
    moment
}

/// An empty store, made under the scheduler's locks.
pub(crate) fn default_start(flavour: Flavour) -> Disk {
    let made = Arc::new(Mutex::new(Disk::default()));
    let result = made.clone();
    once(move || {
        let machine: Arc<LifeMachine> =
            Machine::new(Disk::default(), [1; 16], 1 << 40, flavour.hardware(), None);
        machine.run(|| {
            let store = options(&machine, 50, flavour).open(STORE).expect("sound");
            store.create_segment("data", SEGMENT).expect("sound");
            store.close().expect("sound");
        });
        *made.lock().expect("one thread") = machine.disk().after_power_cut(Loss::Nothing);
    });
    result.lock().expect("one thread").clone()
}

/// Something in one thread, under the scheduler's locks.
pub(crate) fn once(work: impl Fn() + Send + Sync + 'static) {
    run(RandomScheduler::new_from_seed(0, 1), work);
}

fn run(scheduler: impl Scheduler + 'static, work: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = MaxSteps::FailAfter(5_000_000);
    Runner::new(scheduler, config).run(work);
}

/// Schedules of a kind in a row.
const TURN: u64 = 400;

/// Tries so many schedules, half of them random and half with few preemptions, each with a number.
pub(crate) fn turns(count: u64, seed: u64, work: impl Fn(u64) + Send + Sync + 'static) {
    let work = Arc::new(work);
    // In turns: some mistakes show with the one kind only.
    for batch in 0..count.div_ceil(TURN).max(2) {
        let seed = seed * 1_000_003 + batch / 2;
        let (work, number) = (work.clone(), AtomicU64::new(seed << 32));
        let work = move || work(number.fetch_add(1, Ordering::Relaxed));
        let turn = TURN.min(count) as usize;
        match batch % 2 {
            0 => run(RandomScheduler::new_from_seed(seed, turn), work),
            _ => run(PctScheduler::new_from_seed(seed, 4, turn), work),
        }
    }
}

/// Tries so many schedules of committers and a truncator. The number of crashes.
pub fn schedules(count: u64, seed: u64) -> u64 {
    let default_start = default_start(Flavour::Redo);
    let cuts = Arc::new(AtomicU64::new(0));
    let crashes = cuts.clone();
    turns(count, seed, move |number| schedule(&default_start, number, &cuts));
    crashes.load(Ordering::Relaxed)
}

/// Threads of a group commit.
const GROUP: usize = 4;

/// Group commit with nobody else to wake anybody: all come to an end, and survive a power cut.
fn group_schedule(default_start: &Disk, seed: u64) {
    let machine: Arc<LifeMachine> =
        Machine::new(default_start.clone(), [2; 16], 1 << 41, Hardware::default(), None);
    let commits = |thread: u64| 1 + (seed + thread) % 3 / 2;
    let disk = machine.run(|| {
        let store = options(&machine, 50, Flavour::Redo).open(STORE).expect("sound");
        let region = store.segment("data").expect("made").map_all().expect("sound");
        shuttle::thread::scope(|scope| {
            for thread in 0..GROUP {
                let (store, region) = (&store, &region);
                scope.spawn(move || {
                    for number in 1..=commits(thread as u64) {
                        let mut tx = store.begin(Mode::Restore).expect("sound");
                        tx.store(region, thread * 8, &number).expect("sound");
                        tx.commit(Class::Power).expect("sound");
                    }
                });
            }
        });
        machine.disk().after_power_cut(Loss::All)
    });
    let machine: Arc<LifeMachine> = Machine::new(disk, [3; 16], 1 << 42, Hardware::default(), None);
    machine.run(|| {
        let store = options(&machine, 50, Flavour::Redo).open(STORE).expect("sound");
        let region = store.segment("data").expect("made").map_all().expect("sound");
        for thread in 0..GROUP {
            assert_eq!(
                region.load::<u64>(thread * 8),
                commits(thread as u64),
                "thread {thread}'s last commit"
            );
        }
    });
}

/// Tries so many schedules of threads that force their commits.
pub fn group_schedules(count: u64, seed: u64) {
    let default_start = default_start(Flavour::Redo);
    turns(count, seed, move |number| group_schedule(&default_start, number));
}

/// What the threads of a heap's schedule own: places with lengths, and whether that is committed.
type Owned = Arc<Mutex<BTreeMap<u64, (u64, bool)>>>;

/// Sizes of a heap's objects: two and three to a span, and one of five spans; there are seventeen.
const SIZES: [u64; 3] = [30_000, 20_000, 300_000];

fn own(owned: &Owned, place: u64, len: u64, committed: bool) {
    let mut owned = owned.lock().expect("one at a time");
    let before = owned.range(..place + len).next_back();
    assert!(before.is_none_or(|(at, (len, _))| at + len <= place), "{place} was given out twice");
    owned.insert(place, (len, committed));
}

/// A thread that allocates objects and frees what it finds, its own and others'.
fn objects(heap: &Heap, owned: &Owned, thread: usize, seed: u64) {
    let mut random = Random::new(seed.wrapping_mul(31) + thread as u64);
    for _ in 0..6 {
        let mut tx = heap.begin().expect("sound");
        let (mut taken, mut freed) = (Vec::new(), Vec::new());
        for _ in 0..1 + random.below(2) {
            let found = {
                let mut owned = owned.lock().expect("one at a time");
                let committed = owned.iter().filter(|(_, (_, committed))| *committed);
                let found = committed.map(|(at, (len, _))| (*at, *len)).nth(random.below(3) as usize);
                // Nobody else frees it meanwhile.
                found.filter(|_| random.chance(2, 3)).inspect(|(at, _)| _ = owned.remove(at))
            };
            if let Some((at, len)) = found {
                tx.free(Place(at)).expect("it is there");
                freed.push((at, len));
            } else {
                let len = *random.pick(&SIZES);
                // A full heap is no mistake.
                if let Ok(place) = tx.allocate(len as usize) {
                    own(owned, place.0, len, false);
                    taken.push((place.0, len));
                }
            }
        }
        let abort = random.chance(1, 3);
        if abort {
            taken.iter().for_each(|(at, _)| _ = owned.lock().expect("one at a time").remove(at));
            tx.abort();
            freed.into_iter().for_each(|(at, len)| own(owned, at, len, true));
        } else {
            tx.commit(Class::Process).expect("sound");
            for (at, len) in taken {
                owned.lock().expect("one at a time").insert(at, (len, true));
            }
        }
    }
}

/// A heap in the hands of three threads: no object is given out twice, and in the end, and after the death of
/// the process, there is what was committed.
fn heap_schedule((default_start, objects_there): &(Disk, BTreeMap<u64, (u64, bool)>), seed: u64) {
    let flavour = Flavour::Undo;
    let machine: Arc<LifeMachine> =
        Machine::new(default_start.clone(), [2; 16], 1 << 41, flavour.hardware(), None);
    let owned: Owned = Arc::new(Mutex::new(objects_there.clone()));
    let disk = machine.run(|| {
        let store = options(&machine, 50, flavour).open(STORE).expect("sound");
        let heap = Heap::open(&store, "heap").expect("sound");
        shuttle::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (heap, owned) = (&heap, &owned);
                scope.spawn(move || objects(heap, owned, thread, seed));
            }
        });
        same(&heap, &owned);
        machine.disk()
    });
    let machine: Arc<LifeMachine> = Machine::new(disk, [2; 16], 1 << 42, flavour.hardware(), None);
    machine.run(|| {
        let store = options(&machine, 50, flavour).open(STORE).expect("sound");
        same(&Heap::open(&store, "heap").expect("sound"), &owned);
    });
}

fn same(heap: &Heap, owned: &Owned) {
    heap.check().expect("nothing was overwritten");
    let owned = owned.lock().expect("one at a time");
    let statistics = heap.statistics();
    let objects = statistics.classes.iter().map(|c| c.objects).sum::<u64>() + statistics.large_objects;
    assert_eq!(objects, owned.len() as u64, "{statistics:?}");
    assert!(
        owned
            .iter()
            .all(|(at, (len, _))| heap.usable_len(Place(*at)).is_ok_and(|there| there as u64 >= *len))
    );
}

/// Objects of all sizes, with gaps between them: rows that threads find when they need them.
fn fill(heap: &Heap) -> BTreeMap<u64, (u64, bool)> {
    let mut there = BTreeMap::new();
    let mut tx = heap.begin().expect("sound");
    let mut passing = Vec::new();
    for (i, len) in [0, 1, 0, 2, 1, 0, 2, 0].map(|size| SIZES[size]).into_iter().enumerate() {
        let Ok(place) = tx.allocate(len as usize) else { continue };
        match i % 3 {
            1 => passing.push(place),
            _ => _ = there.insert(place.0, (len, true)),
        }
    }
    tx.commit(Class::Process).expect("sound");
    let mut tx = heap.begin().expect("sound");
    passing.into_iter().for_each(|place| tx.free(place).expect("it is there"));
    tx.commit(Class::Process).expect("sound");
    there
}

/// Tries so many schedules of threads with a heap.
pub fn heap_schedules(count: u64, seed: u64) {
    let made = Arc::new(Mutex::new((Disk::default(), BTreeMap::new())));
    let result = made.clone();
    once(move || {
        let flavour = Flavour::Undo;
        let machine: Arc<LifeMachine> =
            Machine::new(Disk::default(), [1; 16], 1 << 40, flavour.hardware(), None);
        let there = machine.run(|| {
            let store = options(&machine, 50, flavour).open(STORE).expect("sound");
            let heap = Heap::open(&store, "heap").expect("sound");
            let there = fill(&heap);
            drop(heap);
            store.close().expect("sound");
            there
        });
        *made.lock().expect("one thread") = (machine.disk().after_power_cut(Loss::Nothing), there);
    });
    let default_start = result.lock().expect("one thread").clone();
    turns(count, seed, move |number| heap_schedule(&default_start, number));
}
