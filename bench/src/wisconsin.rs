//! `wisconsin`: tests 26 to 32 of the Wisconsin benchmark on 20,000 rows (*Persistent Memory for HP-UX*, section
//! 4.1; DeWitt, *The Wisconsin Benchmark*, 1993): one row inserted, deleted, changed, in a relation without indexes
//! and in one with. Not durable, durable on a disk, durable in memory that is taken for persistent.

use crate::Arguments;
use crate::report::{self, Line, Sample};
use crate::target::{Failure, options};
use caliburn::{Class, Mut, Objects, Options, PBTreeMap, PVec, Policy, Recoverable};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Rows of a relation.
pub const ROWS: u32 = 20_000;
/// `unique1` and `unique2` of the row that is changed, as in the published benchmark.
const CHANGED: u32 = 1491;

/// A row: two keys, eleven numbers that follow from the first, three strings.
#[derive(Recoverable, Debug, Clone, Copy)]
#[repr(C)]
pub struct Row {
    /// A key in no order.
    pub unique1: u32,
    /// The key that the rows are made in the order of.
    pub unique2: u32,
    /// `two` to `oddOnePercent`.
    pub numbers: [u32; 11],
    /// `stringu1`, `stringu2`, `string4`.
    pub strings: [[u8; 52]; 3],
}

impl Row {
    /// The row with these keys.
    pub fn new(unique1: u32, unique2: u32) -> Row {
        let one = unique1 % 100;
        let moduli = [2, 4, 10, 20, 100, 10, 5, 2].map(|modulus| unique1 % modulus);
        let mut numbers = [0; 11];
        numbers[..8].copy_from_slice(&moduli);
        numbers[8..].copy_from_slice(&[unique1, one * 2, one * 2 + 1]);
        Row { unique1, unique2, numbers, strings: [letters(unique1), letters(unique2), four(unique2)] }
    }
}

/// Seven letters for a number, and `x` behind.
fn letters(mut number: u32) -> [u8; 52] {
    let mut text = [b'x'; 52];
    for letter in text[..7].iter_mut().rev() {
        *letter = b'A' + (number % 26) as u8;
        number /= 26;
    }
    text
}

/// Four letters that are one of four.
fn four(number: u32) -> [u8; 52] {
    let mut text = [b'x'; 52];
    text[..4].fill([b'A', b'H', b'O', b'V'][number as usize % 4]);
    text
}

/// All rows; `unique1` in an order that looks like none.
pub fn rows() -> impl Iterator<Item = Row> {
    (0..ROWS).map(|i| Row::new((u64::from(i) * 7919 % u64::from(ROWS)) as u32, i))
}

/// Two relations of the same rows, of which the second has indexes of both keys.
pub trait Relations {
    /// A row more.
    fn insert(&mut self, indexed: bool, row: &Row) -> Result<(), Failure>;
    /// Of the row with this `unique1`.
    fn delete(&mut self, indexed: bool, unique1: u32) -> Result<(), Failure>;
    /// Of the row with the first one.
    fn set_unique2(&mut self, indexed: bool, from: u32, to: u32) -> Result<(), Failure>;
    /// Of the row with the first one, in the relation with indexes.
    fn set_unique1(&mut self, from: u32, to: u32) -> Result<(), Failure>;
    /// What was left to be done behind is done.
    fn drain(&mut self) {}
    /// Closes, opens again where there is something to be opened, and sums up: rows and both keys of each relation.
    fn finish(self: Box<Self>) -> Result<[[u64; 3]; 2], Failure>;
}

/// What is measured, and what the report says of it: system, policy, class.
pub type Contender = ((&'static str, &'static str, &'static str), Box<dyn Relations>);

/// What the relations hold before and after.
fn expected() -> [u64; 3] {
    let sum = |key: fn(&Row) -> u32| rows().map(|row| u64::from(key(&row))).sum();
    [ROWS.into(), sum(|row| row.unique1), sum(|row| row.unique2)]
}

/// Measures groups of them, all by turns, checks them, and prints; the first of a group is its floor.
///
/// # Errors
/// When a system fails, or has not what it should.
pub fn measure(arguments: &Measured, groups: Vec<Vec<Contender>>) -> Result<(), Failure> {
    let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
    let mut contenders: Vec<Contender> = groups.into_iter().flatten().collect();
    let tests = ["26", "27", "28", "29", "30", "31", "32", "26 to 32"];
    let count = contenders.len();
    // By tests, and for each by systems.
    let mut lines: Vec<Line> = tests
        .iter()
        .flat_map(|test| {
            let params = json!({"test": test, "rows": ROWS});
            contenders
                .iter()
                .map(move |((system, policy, class), _)| Line::new(system, policy, class, 1, params.clone()))
        })
        .collect();
    let (mut turn, mut failure) = (0, None);
    report::interleave(arguments.rounds, &mut lines, || {
        let mut samples = vec![Sample::default(); tests.len() * count];
        turn += 1;
        for at in (0..count).map(|i| (i + turn) % count) {
            let (_, relations) = &mut contenders[at];
            match round(&mut **relations, arguments.seconds) {
                Ok(found) => {
                    found.into_iter().enumerate().for_each(|(test, s)| samples[test * count + at] = s)
                }
                Err(error) => failure = Some(error),
            }
        }
        samples
    });
    if let Some(error) = failure {
        return Err(error);
    }
    for mut of_test in lines.chunks(count) {
        for size in &sizes {
            let (group, others) = of_test.split_at(*size);
            report::print("wisconsin", arguments.json, group, 0);
            of_test = others;
        }
    }
    for ((system, _, class), relations) in contenders {
        let found = relations.finish()?;
        if found != [expected(); 2] {
            return Err(format!("{system}, {class}: {found:?} is there, not {:?}", expected()).into());
        }
    }
    Ok(())
}

/// How long, how often, and in what form.
#[derive(Debug)]
pub struct Measured {
    /// Interleaved rounds.
    pub rounds: usize,
    /// Of a system and a round.
    pub seconds: f64,
    /// One JSON object per line.
    pub json: bool,
}

/// All tests one after the other, again and again, and at the end their sum, with their share of what was left to be
/// done behind them. What one changes the next one, or the same one again, changes back.
fn round(relations: &mut dyn Relations, seconds: f64) -> Result<Vec<Sample>, Failure> {
    let mut times: [Vec<u64>; 7] = Default::default();
    let (start, budget) = (Instant::now(), Duration::from_secs_f64(seconds));
    let row = Row::new(ROWS, ROWS);
    while times[0].is_empty() || start.elapsed() < budget {
        let mut time = |test: usize, act: &mut dyn FnMut(&mut dyn Relations) -> Result<(), Failure>| {
            let before = Instant::now();
            act(relations)?;
            times[test - 26].push(before.elapsed().as_nanos() as u64);
            Ok::<(), Failure>(())
        };
        for (indexed, first) in [(false, 26), (true, 29)] {
            time(first, &mut |r| r.insert(indexed, &row))?;
            time(first + 1, &mut |r| r.delete(indexed, ROWS))?;
            time(first + 2, &mut |r| r.set_unique2(indexed, CHANGED, ROWS))?;
            time(first + 2, &mut |r| r.set_unique2(indexed, ROWS, CHANGED))?;
        }
        time(32, &mut |r| r.set_unique1(CHANGED, ROWS))?;
        time(32, &mut |r| r.set_unique1(ROWS, CHANGED))?;
    }
    let end = Instant::now();
    relations.drain();
    let drained = end.elapsed();
    let mean = |times: &[u64]| times.iter().sum::<u64>() as f64 / times.len() as f64;
    let mut samples: Vec<Sample> =
        times.into_iter().map(|times| Sample { ns_per_tx: mean(&times), latencies: times }).collect();
    let behind = drained.as_nanos() as f64 / samples[0].latencies.len() as f64;
    let ns_per_tx = samples.iter().map(|sample| sample.ns_per_tx).sum::<f64>() + behind;
    samples.push(Sample { ns_per_tx, latencies: Vec::new() });
    Ok(samples)
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let memory = tempfile::tempdir_in(memory())?;
    let contenders = own(dir.path(), memory.path())?;
    let Arguments { rounds, seconds, json, .. } = *arguments;
    measure(&Measured { rounds, seconds, json }, vec![contenders])
}

/// Where files lie in memory.
pub fn memory() -> PathBuf {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() }
}

/// Typed objects whose transactions survive the process alone, which is the floor: they can be undone, as those of a
/// database that is not durable. Vectors and trees of the standard library. The same objects in a store on a disk,
/// and in memory that is taken for persistent.
///
/// # Errors
/// When a store cannot be made.
pub fn own(dir: &Path, memory: &Path) -> Result<Vec<Contender>, Failure> {
    let mut on_disk = options(64, 8);
    on_disk.policy(Policy::Redo);
    let mut not_durable = options(64, 8);
    not_durable.policy(Policy::Undo);
    let mut in_memory = options(64, 8);
    in_memory.policy(Policy::Undo).memory_survives(Class::Power).require(Class::Power);
    let process = Stored::new(&memory.join("process"), &not_durable, Class::Process)?;
    let on_disk = Stored::new(&dir.join("redo"), &on_disk, Class::Power)?;
    let in_memory = Stored::new(&memory.join("undo"), &in_memory, Class::Power)?;
    Ok(vec![
        (("caliburn", "undo", "process"), Box::new(process)),
        (("std's collections", "none", "none"), Box::new(Plain::new())),
        (("caliburn on disk", "redo", "power"), Box::new(on_disk)),
        (("caliburn on PM", "undo", "power"), Box::new(in_memory)),
    ])
}

/// Takes a row out of vectors and trees of either kind; the last row comes to its place.
macro_rules! delete_indexed {
    ($rows:expr, $first:expr, $second:expr, $unique1:expr) => {{
        let at = $first.remove(&$unique1).expect(THERE);
        let _ = $second.remove(&$rows[at as usize].unique2);
        let _ = $rows.swap_remove(at as usize);
        if let Some(Row { unique1, unique2, .. }) = $rows.get(at as usize).copied() {
            let _ = $first.insert(unique1, at);
            let _ = $second.insert(unique2, at);
        }
    }};
}

const THERE: &str = "the row is there";

/// Where the row is of which this holds. All rows are looked at: without an index nobody knows that there is one
/// only.
fn find(rows: &[Row], is: impl Fn(&Row) -> bool) -> usize {
    let found = rows.iter().enumerate().filter(|(_, row)| is(row)).last();
    found.expect(THERE).0
}

fn sums(rows: &[Row]) -> [u64; 3] {
    let sum = |key: fn(&Row) -> u32| rows.iter().map(|row| u64::from(key(row))).sum();
    [rows.len() as u64, sum(|row| row.unique1), sum(|row| row.unique2)]
}

/// What survives nothing.
#[derive(Debug)]
struct Plain {
    heap: Vec<Row>,
    rows: Vec<Row>,
    by_unique1: BTreeMap<u32, u32>,
    by_unique2: BTreeMap<u32, u32>,
}

impl Plain {
    fn new() -> Plain {
        let rows: Vec<Row> = rows().collect();
        let index =
            |key: fn(&Row) -> u32| rows.iter().enumerate().map(|(at, row)| (key(row), at as u32)).collect();
        let (by_unique1, by_unique2) = (index(|row| row.unique1), index(|row| row.unique2));
        Plain { heap: rows.clone(), rows, by_unique1, by_unique2 }
    }
}

impl Relations for Plain {
    fn insert(&mut self, indexed: bool, row: &Row) -> Result<(), Failure> {
        if indexed {
            let at = self.rows.len() as u32;
            self.rows.push(*row);
            let _ = self.by_unique1.insert(row.unique1, at);
            let _ = self.by_unique2.insert(row.unique2, at);
        } else {
            self.heap.push(*row);
        }
        Ok(())
    }

    fn delete(&mut self, indexed: bool, unique1: u32) -> Result<(), Failure> {
        if indexed {
            delete_indexed!(self.rows, self.by_unique1, self.by_unique2, unique1);
        } else {
            let at = find(&self.heap, |row| row.unique1 == unique1);
            let _ = self.heap.swap_remove(at);
        }
        Ok(())
    }

    fn set_unique2(&mut self, indexed: bool, from: u32, to: u32) -> Result<(), Failure> {
        if indexed {
            let at = self.by_unique2.remove(&from).expect(THERE);
            self.rows[at as usize].unique2 = to;
            let _ = self.by_unique2.insert(to, at);
        } else {
            let at = find(&self.heap, |row| row.unique2 == from);
            self.heap[at].unique2 = to;
        }
        Ok(())
    }

    fn set_unique1(&mut self, from: u32, to: u32) -> Result<(), Failure> {
        let at = self.by_unique1.remove(&from).expect(THERE);
        self.rows[at as usize].unique1 = to;
        let _ = self.by_unique1.insert(to, at);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<[[u64; 3]; 2], Failure> {
        Ok([sums(&self.heap), sums(&self.rows)])
    }
}

#[derive(Recoverable, Debug, Default)]
#[repr(C)]
struct Root {
    heap: PVec<Row>,
    rows: PVec<Row>,
    by_unique1: PBTreeMap<u32, u32>,
    by_unique2: PBTreeMap<u32, u32>,
}

/// Typed objects in a store; each call is a transaction that is committed when it returns.
struct Stored {
    objects: Objects<Root>,
    dir: PathBuf,
    options: Options,
    class: Class,
}

impl Stored {
    fn new(dir: &Path, options: &Options, class: Class) -> Result<Stored, Failure> {
        let stored = Stored::open(dir, options, class)?;
        stored.change(|mut root| {
            let fields = root.fields();
            let (mut heap, mut indexed) = (fields.heap, fields.rows);
            let (mut by_unique1, mut by_unique2) = (fields.by_unique1, fields.by_unique2);
            heap.reserve(ROWS as usize + 1);
            indexed.reserve(ROWS as usize + 1);
            for (row, at) in rows().zip(0..) {
                heap.push(row);
                indexed.push(row);
                let _ = by_unique1.insert(row.unique1, at);
                let _ = by_unique2.insert(row.unique2, at);
            }
        })?;
        Ok(stored)
    }

    fn open(dir: &Path, options: &Options, class: Class) -> Result<Stored, Failure> {
        let objects = Objects::open(&options.open(dir)?, "relations")?;
        Ok(Stored { objects, dir: dir.to_owned(), options: options.clone(), class })
    }

    fn change(&self, body: impl for<'a, 'id> FnOnce(Mut<'a, 'id, Root>)) -> Result<(), Failure> {
        self.objects.transact_in(self.class, |root| {
            body(root);
            Ok::<(), caliburn::Error>(())
        })?;
        Ok(())
    }
}

impl Relations for Stored {
    fn insert(&mut self, indexed: bool, row: &Row) -> Result<(), Failure> {
        self.change(|mut root| {
            let mut fields = root.fields();
            if indexed {
                let at = fields.rows.len() as u32;
                fields.rows.push(*row);
                let _ = fields.by_unique1.insert(row.unique1, at);
                let _ = fields.by_unique2.insert(row.unique2, at);
            } else {
                fields.heap.push(*row);
            }
        })
    }

    fn delete(&mut self, indexed: bool, unique1: u32) -> Result<(), Failure> {
        self.change(|mut root| {
            let mut fields = root.fields();
            if indexed {
                delete_indexed!(fields.rows, fields.by_unique1, fields.by_unique2, unique1);
            } else {
                let at = find(&fields.heap, |row| row.unique1 == unique1);
                let _ = fields.heap.swap_remove(at);
            }
        })
    }

    fn set_unique2(&mut self, indexed: bool, from: u32, to: u32) -> Result<(), Failure> {
        self.change(|mut root| {
            let mut fields = root.fields();
            if indexed {
                let at = fields.by_unique2.remove(&from).expect(THERE);
                *fields.rows.at(at as usize).fields().unique2 = to;
                let _ = fields.by_unique2.insert(to, at);
            } else {
                let at = find(&fields.heap, |row| row.unique2 == from);
                *fields.heap.at(at).fields().unique2 = to;
            }
        })
    }

    fn set_unique1(&mut self, from: u32, to: u32) -> Result<(), Failure> {
        self.change(|mut root| {
            let mut fields = root.fields();
            let at = fields.by_unique1.remove(&from).expect(THERE);
            *fields.rows.at(at as usize).fields().unique1 = to;
            let _ = fields.by_unique1.insert(to, at);
        })
    }

    fn drain(&mut self) {
        crate::target::drain(self.objects.store());
    }

    fn finish(self: Box<Self>) -> Result<[[u64; 3]; 2], Failure> {
        let Stored { objects, dir, options, class } = *self;
        objects.close()?;
        let Stored { objects, .. } = Stored::open(&dir, &options, class)?;
        let view = objects.read();
        Ok([sums(&view.heap), sums(&view.rows)])
    }
}
