//! Dumps under the deterministic scheduler: committers, a thread that dumps the store, a truncator. What is made
//! of a dump shows whole commits, all that had returned before it was begun, and none without those that had
//! returned before it began.

use crate::disk::Disk;
use crate::life::{Flavour, LifeMachine, SEGMENT, STORE, options};
use crate::media::{Hardware, Machine};
use crate::threads::{default_start, turns};
use caliburn::{BackupError, Class, DumpOptions, Dumped, Mode, Region, RestoreOptions, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const THREADS: usize = 3;
const COMMITS: u64 = 4;
const PAGE: usize = 4096;

/// The newest commit of each thread.
type Newest = [u64; THREADS];

/// What the threads say, without the scheduler's leave.
#[derive(Default)]
struct Said {
    returned: [AtomicU64; THREADS],
    /// What had returned when a commit began.
    before: [[std::sync::Mutex<Newest>; COMMITS as usize + 1]; THREADS],
}

impl Said {
    fn returned(&self) -> Newest {
        self.returned.each_ref().map(|number| number.load(SeqCst))
    }
}

/// The places of a thread: in pages that all share, and are written to segments apart.
fn places(thread: usize) -> [usize; 3] {
    [thread * 8, PAGE + thread * 8, SEGMENT as usize - PAGE + thread * 8]
}

fn commits(store: &Store, region: &Region, said: &Said, thread: usize) {
    for number in 1..=COMMITS {
        *said.before[thread][number as usize].lock().expect("no panic under this lock") = said.returned();
        let mut tx = store.begin(Mode::Restore).expect("sound");
        let [first, second, third] = places(thread);
        if number.is_multiple_of(2) {
            // What is changed first is changed in a branch, and goes to another run.
            let mut branch = tx.branch().expect("sound");
            let mut inner = branch.branch().expect("sound");
            inner.store(region, first, &number).expect("sound");
            branch.adopt(inner).expect("sound");
            branch.store(region, second, &number).expect("sound");
            tx.adopt(branch).expect("sound");
            tx.store(region, third, &number).expect("sound");
        } else {
            tx.store(region, first, &number).expect("sound");
            tx.store(region, second, &99u64).expect("sound");
            tx.store(region, second, &number).expect("sound");
            tx.store(region, third, &number).expect("sound");
        }
        if number == 3 && thread == 1 {
            tx.abort();
            continue;
        }
        tx.commit(Class::Process).expect("sound");
        said.returned[thread].store(number, SeqCst);
    }
}

/// The dumps that were made, each with what had returned before.
type Made = Vec<(Newest, Dumped, Vec<u8>)>;

fn dump(store: &Store, said: &Said) -> Made {
    let mut made: Made = Vec::new();
    for round in 0..3 {
        let (before, mut bytes, mut how) = (said.returned(), Vec::new(), DumpOptions::new());
        if let Some((_, base, _)) = made.last().filter(|(_, base, _)| !base.id.is_empty() && round > 0) {
            how.since(base);
        }
        match store.dump(&how, &mut bytes) {
            Ok(dumped) => made.push((before, dumped, bytes)),
            // Others had no time to come to an end, or committed more than could be read.
            Err(BackupError::NotQuiet { .. } | BackupError::Overtaken { .. }) => {}
            Err(error) => panic!("dump {round}: {error}"),
        }
    }
    made
}

/// What a store shows that was made of dumps.
fn shown(chain: &[u8], flavour: Flavour) -> Newest {
    let machine: Arc<LifeMachine> = Machine::new(Disk::default(), [3; 16], 1 << 42, flavour.hardware(), None);
    machine.run(|| {
        let options = options(&machine, 50, flavour);
        options.restore(&mut &chain[..], &RestoreOptions::new(), STORE).expect("a dump is good");
        let report = options.check(STORE).expect("it is a store");
        assert!(report.is_clean(), "{:?}", report.problems);
        let store = options.open(STORE).expect("sound");
        let region = store.segment("data").expect("made").map_all().expect("sound");
        std::array::from_fn(|thread| {
            let values = places(thread).map(|place| region.load::<u64>(place));
            assert!(values.iter().all(|value| *value == values[0]), "thread {thread}: half done: {values:?}");
            values[0]
        })
    })
}

fn schedule(default_start: &Disk, seed: u64, flavour: Flavour) {
    let hardware = Hardware { short: seed.is_multiple_of(3), ..flavour.hardware() };
    let machine: Arc<LifeMachine> = Machine::new(default_start.clone(), [2; 16], 1 << 41, hardware, None);
    let (made, said) = machine.run(|| {
        let store = options(&machine, 1 + (seed % 40) as u8, flavour).open(STORE).expect("sound");
        let region = store.segment("data").expect("made").map_all().expect("sound");
        let said = Said::default();
        let made = shuttle::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (store, region, said) = (&store, &region, &said);
                scope.spawn(move || commits(store, region, said, thread));
            }
            let dumping = scope.spawn(|| dump(&store, &said));
            for round in 0..6 {
                match round % 2 {
                    0 => {
                        store.tend_flush(false).expect("sound");
                        store.tend_truncation().expect("sound");
                    }
                    _ => store.truncate().expect("sound"),
                }
            }
            dumping.join().expect("it does not panic")
        });
        (made, said)
    });
    let mut chain = Vec::new();
    for (number, (before, dumped, bytes)) in made.iter().enumerate() {
        if dumped.base.is_none() {
            chain.clear();
        }
        chain.extend_from_slice(bytes);
        let newest = shown(&chain, flavour);
        assert!(
            before.iter().zip(newest).all(|(before, newest)| *before <= newest),
            "dump {number} shows {newest:?}, and {before:?} had returned"
        );
        for thread in (0..THREADS).filter(|thread| newest[*thread] > 0) {
            let before = *said.before[thread][newest[thread] as usize].lock().expect("no panic here");
            assert!(
                before.iter().zip(newest).all(|(before, newest)| *before <= newest),
                "dump {number} shows {newest:?}, and {before:?} had returned before that of thread {thread}"
            );
        }
    }
}

/// Tries so many schedules.
pub fn schedules(count: u64, seed: u64, flavour: Flavour) {
    let default_start = default_start(flavour);
    turns(count, seed, move |number| schedule(&default_start, number, flavour));
}
