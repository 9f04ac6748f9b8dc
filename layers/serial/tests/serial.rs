//! Transactions on several threads: their histories are those of some order of them, one after the other.

#[path = "../../lock/tests/support/mod.rs"]
#[allow(dead_code)]
mod support;

use caliburn_engine::{Class, Policy, Store};
use caliburn_history::{History, Op, check};
use caliburn_serial::zerocopy::{FromBytes, Immutable, IntoBytes};
use caliburn_serial::{Cells, Error, Ptr, Tx};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use support::Random;

const LISTS: usize = 6;
const THREADS: u64 = 3;

/// A list of numbers: cells that lead from one to the next, the newest first.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Item {
    number: u64,
    next: Ptr<Item>,
}

struct World {
    cells: Cells,
    lists: Vec<Ptr<Ptr<Item>>>,
    next: AtomicU64,
    appended: Mutex<HashSet<u64>>,
}

impl World {
    fn append(&self, tx: &mut Tx<'_>, list: usize) -> Result<Op, Error> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.appended.lock().unwrap().insert(number);
        let next = tx.read(&self.lists[list])?;
        let item = tx.insert(Item { number, next })?;
        *tx.write(&self.lists[list])? = item;
        Ok(Op::Append(list, number))
    }

    /// The numbers of a list, oldest first.
    fn items(&self, list: usize, mut read: impl Reads) -> Result<Vec<u64>, Error> {
        let (mut numbers, mut next) = (Vec::new(), read.first(&self.lists[list])?);
        while !next.is_none() {
            let item = read.item(&next)?;
            numbers.push(item.number);
            next = item.next;
        }
        numbers.reverse();
        Ok(numbers)
    }

    fn acts(&self, tx: &mut Tx<'_>, random: &mut Random, depth: u32) -> Result<Vec<Op>, Error> {
        let mut done = Vec::new();
        for _ in 0..1 + random.below(3) {
            let list = random.below(LISTS as u64) as usize;
            match random.below(if depth < 3 { 8 } else { 6 }) {
                0..4 => done.push(self.append(tx, list)?),
                4..6 => done.push(Op::Read(list, self.items(list, &mut *tx)?)),
                _ => {
                    let child = tx.nest(|child| {
                        let done = self.acts(child, random, depth + 1)?;
                        if random.below(4) == 0 { Err(child.abort("now and then")) } else { Ok(done) }
                    });
                    done.extend(child.into_iter().flatten());
                }
            }
        }
        if random.below(8) == 0 { Err(tx.abort("now and then")) } else { Ok(done) }
    }
}

/// A transaction, or a reader.
trait Reads {
    fn first(&mut self, list: &Ptr<Ptr<Item>>) -> Result<Ptr<Item>, Error>;
    fn item(&mut self, item: &Ptr<Item>) -> Result<Item, Error>;
}

impl Reads for &mut Tx<'_> {
    fn first(&mut self, list: &Ptr<Ptr<Item>>) -> Result<Ptr<Item>, Error> {
        self.read(list)
    }
    fn item(&mut self, item: &Ptr<Item>) -> Result<Item, Error> {
        self.read(item)
    }
}

impl Reads for &mut caliburn_serial::Reader<'_> {
    fn first(&mut self, list: &Ptr<Ptr<Item>>) -> Result<Ptr<Item>, Error> {
        self.read(list)
    }
    fn item(&mut self, item: &Ptr<Item>) -> Result<Item, Error> {
        self.read(item)
    }
}

/// So many transactions on each of some threads, and the number of tries that were in deadlocks.
fn run(policy: Policy, seed: u64, transactions: u64) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::options().create(true).policy(policy).open(dir.path().join("s")).unwrap();
    let cells = Cells::open(&store, "lists").unwrap();
    let make = |tx: &mut Tx<'_>| (0..LISTS).map(|_| tx.insert(Ptr::NONE)).collect::<Result<Vec<_>, Error>>();
    let lists = cells.transact(Class::Process, make).unwrap();
    let world = World { cells, lists, next: AtomicU64::new(1), appended: Mutex::default() };
    let committed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (world, committed) = (&world, &committed);
            scope.spawn(move || {
                let mut random = Random(seed * 100 + thread);
                for _ in 0..transactions {
                    let ops = match random.below(3) {
                        0 => world.cells.read(|reader| {
                            let mut read = Vec::new();
                            for _ in 0..3 {
                                let list = random.below(LISTS as u64) as usize;
                                read.push(Op::Read(list, world.items(list, &mut *reader)?));
                            }
                            Ok(read)
                        }),
                        _ => world.cells.transact(Class::Process, |tx| world.acts(tx, &mut random, 0)),
                    };
                    match ops {
                        Ok(ops) => committed.lock().unwrap().push(ops),
                        Err(Error::Aborted(_)) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    let statistics = world.cells.statistics();
    assert_eq!(statistics.locked, 0);
    let committed = committed.into_inner().unwrap();
    assert_eq!(statistics.committed - 1 + statistics.read, committed.len() as u64);
    let appended = |op: &Op| if let Op::Append(_, number) = op { Some(*number) } else { None };
    let kept: HashSet<u64> = committed.iter().flatten().filter_map(appended).collect();
    let aborted = world.appended.lock().unwrap().difference(&kept).copied().collect();
    let lists: Result<Vec<_>, Error> =
        world.cells.read(|reader| (0..LISTS).map(|list| world.items(list, &mut *reader)).collect());
    assert_eq!(
        check(&History { committed, aborted, ..History::default() }, &lists.unwrap()),
        Ok(()),
        "{policy:?}, seed {seed}"
    );
    statistics.retried
}

#[test]
fn what_is_read_and_changed_by_cells_is_serializable() {
    let rounds = if cfg!(debug_assertions) { 6 } else { 40 };
    let tried_again: u64 =
        (0..rounds).map(|seed| run(if seed % 2 == 0 { Policy::Redo } else { Policy::Undo }, seed, 120)).sum();
    assert!(tried_again > 0, "deadlocks were to be met");
}
