//! A queue of orders in recoverable memory, with modes of its own: those who put something in do not wait for each
//! other, nor for who takes; there is one who takes at a time; who finds it empty keeps others from putting
//! something in until he has ended, or somebody could have put in what he says was not there.
//!
//! | goes with | Put | Take | Drain |
//! |---|---|---|---|
//! | **Put** | yes | yes | no |
//! | **Take** | yes | no | no |
//! | **Drain** | no | no | no |

use caliburn_engine::{Class, Region, Store, Transaction};
use caliburn_lock::{Commute, Detector, Intentions, Latches, Locks, Mode, Owner};
use caliburn_nest::{Error, Tx, transact_following};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// How the queue is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Something is put in.
    Put,
    /// Something is taken.
    Take,
    /// The end was seen.
    Drain,
}

impl Mode for Way {
    const ALL: &'static [Way] = &[Way::Put, Way::Take, Way::Drain];

    fn goes_with(self, other: Way) -> bool {
        matches!((self, other), (Way::Put, Way::Put | Way::Take) | (Way::Take, Way::Put))
    }

    fn and(self, other: Way) -> Way {
        match (self, other) {
            (Way::Put, Way::Put) => Way::Put,
            (Way::Drain, _) | (_, Way::Drain) => Way::Drain,
            _ => Way::Take,
        }
    }
}

/// What is put off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// This is put in.
    Put(u64),
    /// The first is taken.
    Take,
}

/// In a region: the place of the first, how many there are, and so many places in a ring.
pub struct Queue<'t> {
    region: &'t Region,
    places: u64,
    locks: Locks<(), Way>,
    latches: Latches,
    state: Mutex<State>,
}

struct State {
    first: u64,
    /// As they are committed.
    items: VecDeque<u64>,
    /// Puts that are outstanding.
    outstanding: u64,
}

/// What follows a transaction.
pub type Changes<'c, 't> = (Intentions<'c, 't, Queue<'t>>, Owner);

impl<'t> Queue<'t> {
    /// The queue that the region holds.
    pub fn new(detector: &Detector, region: &'t Region, places: u64) -> Queue<'t> {
        let (first, count): (u64, u64) = (region.load(0), region.load(8));
        let items = (first..first + count).map(|at| region.load(Self::place(at, places))).collect();
        let state = Mutex::new(State { first, items, outstanding: 0 });
        Queue { region, places, locks: detector.locks(), latches: Latches::new(1), state }
    }

    fn place(at: u64, places: u64) -> usize {
        16 + (at % places) as usize * 8
    }

    /// What follows a top-level transaction.
    pub fn companion<'c>(&'c self, detector: &Detector) -> Changes<'c, 't> {
        (Intentions::new(self), detector.owner())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Puts something in, when the family commits. False if there is no room, whatever others do that are under
    /// way.
    pub fn put(&self, (changes, owner): &mut Changes<'_, 't>, item: u64) -> Result<bool, Error> {
        self.locks.lock(owner, (), Way::Put)?;
        let mut state = self.state();
        if state.items.len() as u64 + state.outstanding == self.places {
            return Ok(false);
        }
        state.outstanding += 1;
        drop(state);
        changes.put_off(Change::Put(item));
        Ok(true)
    }

    /// Takes the first, which is out when the family commits; none if there is none.
    pub fn take(&self, (changes, owner): &mut Changes<'_, 't>) -> Result<Option<u64>, Error> {
        self.locks.lock(owner, (), Way::Take)?;
        let (mut taken, mut own) = (0, Vec::new());
        changes.each(|change| match change {
            Change::Take => taken += 1,
            Change::Put(item) => own.push(*item),
        });
        let item = |taken: usize| self.state().items.get(taken).copied();
        let mut found = item(taken);
        if found.is_none() {
            // Nobody else has anything outstanding then: what comes next is the family's own.
            self.locks.lock(owner, (), Way::Drain)?;
            let committed = self.state().items.len();
            found = item(taken).or_else(|| own.get(taken - committed).copied());
        }
        if found.is_some() {
            changes.put_off(Change::Take);
        }
        Ok(found)
    }
}

impl<'t> Commute<'t> for Queue<'t> {
    type Change = Change;

    fn latches(&self) -> &Latches {
        &self.latches
    }

    fn apply(&self, _: usize, changes: &[Change], tx: &mut Transaction<'t>) -> Result<(), Error> {
        let state = self.state();
        let (mut first, mut end) = (state.first, state.first + state.items.len() as u64);
        for change in changes {
            match change {
                Change::Take => first += 1,
                Change::Put(item) => {
                    tx.store(self.region, Self::place(end, self.places), item)?;
                    end += 1;
                }
            }
        }
        Ok(tx.store(self.region, 0, &[first, end - first])?)
    }

    fn settle(&self, _: usize, changes: &[Change], commits: bool) {
        let mut state = self.state();
        for change in changes {
            match change {
                Change::Put(item) => {
                    state.outstanding -= 1;
                    if commits {
                        state.items.push_back(*item);
                    }
                }
                Change::Take if commits => {
                    state.items.pop_front();
                    state.first += 1;
                }
                Change::Take => {}
            }
        }
    }
}

fn order<'t>(queue: &Queue<'t>, tx: &mut Tx<'t, Changes<'_, 't>>, number: u64) -> Result<bool, Error> {
    // A child that is undone has put nothing in.
    let undone = tx.nest(|child| {
        queue.put(child.companion(), u64::MAX)?;
        Err::<(), _>(child.abort("a mistake"))
    });
    assert!(matches!(undone, Err(Error::Aborted(_) | Error::Followed(_))));
    if queue.put(tx.companion(), number)? { Ok(true) } else { Err(tx.abort("no room")) }
}

/// Three shops put orders in, two clerks take them, some in families that are undone. How many orders were done,
/// each once and each shop's in its order.
pub fn run(path: &Path) -> Result<u64, Box<dyn std::error::Error>> {
    const SHOPS: u64 = 3;
    const ORDERS: u64 = 400;
    let store = Store::options().create(true).open(path)?;
    let region = store.segment_or_create("orders", 65_536)?.map_all()?;
    let detector = Detector::new();
    let queue = Queue::new(&detector, &region, 64);
    let (done, taken) = (Mutex::new(Vec::<u64>::new()), AtomicU64::new(0));
    let again = |error: Error| match error {
        Error::Aborted(_) | Error::Followed(_) => false,
        other => panic!("{other}"),
    };
    std::thread::scope(|scope| {
        for shop in 0..SHOPS {
            let (store, detector, queue) = (&store, &detector, &queue);
            scope.spawn(move || {
                for number in 0..ORDERS {
                    while !transact_following(store, queue.companion(detector), Class::Process, |tx| {
                        order(queue, tx, shop << 32 | number)
                    })
                    .unwrap_or_else(again)
                    {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for clerk in 0..2u64 {
            let (store, detector, queue, done, taken) = (&store, &detector, &queue, &done, &taken);
            scope.spawn(move || {
                for round in 0.. {
                    let mut two = Vec::new();
                    let work = transact_following(store, queue.companion(detector), Class::Process, |tx| {
                        two.clear();
                        for _ in 0..2 {
                            two.extend(queue.take(tx.companion())?);
                        }
                        if (round + clerk) % 3 == 0 {
                            return Err(tx.abort("the clerk is called away"));
                        }
                        // While they are locked: in the order in which they were taken.
                        done.lock().expect("no clerk panics").extend(&two);
                        Ok(true)
                    });
                    if work.unwrap_or_else(again)
                        && taken.fetch_add(two.len() as u64, Relaxed) + two.len() as u64 == SHOPS * ORDERS
                        || taken.load(Relaxed) == SHOPS * ORDERS
                    {
                        return;
                    }
                }
            });
        }
    });
    let done = done.into_inner()?;
    for shop in 0..SHOPS {
        let numbers = done.iter().filter(|order| **order >> 32 == shop).map(|order| order & 0xFFFF_FFFF);
        assert!(numbers.eq(0..ORDERS), "the orders of shop {shop}, in their order");
    }
    assert_eq!((region.load::<u64>(0), region.load::<u64>(8)), (SHOPS * ORDERS, 0));
    Ok(done.len() as u64)
}

#[allow(dead_code, reason = "its test runs it in a directory of its own")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    println!("{} orders were done", run(&dir.path().join("store"))?);
    Ok(())
}
