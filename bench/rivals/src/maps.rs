//! Maps: records of a size under 64-bit keys, read and changed in transactions of one operation each, `Process`
//! class. The work is that of YCSB (Cooper et al., 2010): of A half of the operations update a record, of B one in
//! twenty, of C none; those of F read it first; of D one in twenty inserts a record, and the others read those
//! inserted last; of E one in twenty inserts one, and the others read up to a hundred in the order of keys. Keys are
//! chosen by Zipf's law. Before, all are loaded, sorted, a thousand in a transaction; and in the end a quarter as
//! many are inserted and removed again.

use crate::records::{Database, Session};
use crate::{Arguments, open};
use caliburn::typed::{AsKey, Init};
use caliburn::{Class, Mut, Objects, PBTreeMap, PBox, PHashMap, Policy, Recoverable, Store, Writer};
use caliburn_bench::report::{self, Line, Random, Sample};
use caliburn_bench::target::{Failure, options};
use serde_json::json;
use std::hint::black_box;
use std::time::Instant;

/// A workload: its name, the share of its operations in percent that change something, and how.
#[derive(Clone, Copy)]
struct Work {
    name: &'static str,
    changes: u64,
    how: How,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    Update,
    ReadAndUpdate,
    /// The others read what was inserted last.
    Insert,
    /// The others read neighbours. One changes what is inserted.
    Scan,
}

const fn work(name: &'static str, changes: u64, how: How) -> Work {
    Work { name, changes, how }
}

const WORKLOADS: [Work; 6] = [
    work("A", 50, How::Update),
    work("B", 5, How::Update),
    work("C", 0, How::Update),
    work("D", 5, How::Insert),
    work("E", 5, How::Scan),
    work("F", 50, How::ReadAndUpdate),
];

/// Records as they are asked for: by Zipf's law with 0.99, from 0 on.
struct Keys {
    ranks: Vec<u32>,
    next: usize,
}

/// The key of a record: records that are asked for as often are not neighbours.
fn scatter(number: u64) -> u64 {
    (number ^ number >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Keys {
    fn new(entries: u64) -> Keys {
        let mut sums = Vec::with_capacity(entries as usize);
        let mut sum = 0.0;
        for rank in 1..=entries {
            sum += (rank as f64).powf(-0.99);
            sums.push(sum);
        }
        let mut random = Random(77);
        let mut rank = || {
            let at = (random.bits() >> 11) as f64 / (1u64 << 53) as f64 * sum;
            sums.partition_point(|below| *below < at) as u32
        };
        Keys { ranks: (0..1 << 20).map(|_| rank()).collect(), next: 0 }
    }

    fn next(&mut self) -> u64 {
        self.next = (self.next + 1) % self.ranks.len();
        u64::from(self.ranks[self.next])
    }
}

/// What is measured: a map.
trait Contender {
    /// Updates a record, in a transaction of its own.
    fn update(&mut self, key: u64, first_read: bool) -> Result<(), Failure>;
    /// Reads one.
    fn read(&mut self, key: u64) -> Result<(), Failure>;
    /// Puts a new one in.
    fn insert(&mut self, key: u64) -> Result<(), Failure>;
    /// Takes one out.
    fn remove(&mut self, key: u64) -> Result<(), Failure>;
    /// Puts new ones in, in one transaction.
    fn load(&mut self, keys: &[u64]) -> Result<(), Failure>;
    /// Whether keys have an order.
    fn sorted(&self) -> bool;
    /// Reads at most so many records from a key on, in the order of keys; how many.
    fn scan(&mut self, from: u64, count: u64) -> Result<u64, Failure>;
    /// How often records were updated, by what they say.
    fn updates(&mut self, entries: u64) -> Result<u64, Failure>;
}

/// Runs the operations of a workload on a map with so many records for so many seconds; how many there are then.
fn round(
    map: &mut dyn Contender,
    work: Work,
    keys: &mut Keys,
    (entries, inserted): (u64, &mut u64),
    seconds: f64,
) -> Sample {
    let mut turn = 0;
    report::measure(seconds, 16, || {
        turn += 1;
        let (changes, rank) = (turn * work.changes % 100 < work.changes, keys.next());
        let done = match work.how {
            How::Insert | How::Scan if changes => {
                *inserted += 1;
                map.insert(scatter(entries + *inserted - 1))
            }
            How::Insert => map.read(scatter(entries + *inserted - 1 - rank)),
            // Some of the last have no hundred behind them.
            How::Scan => map.scan(scatter(rank), 1 + turn * 37 % 100).map(|found| assert!(found > 0)),
            how if changes => map.update(scatter(rank), how == How::ReadAndUpdate),
            _ => map.read(scatter(rank)),
        };
        done.expect("the database works");
    })
}

/// A rival's records.
struct Rival<'d> {
    session: Box<dyn Session + Send + 'd>,
    value: Vec<u8>,
}

impl Contender for Rival<'_> {
    fn update(&mut self, key: u64, first_read: bool) -> Result<(), Failure> {
        self.session.begin()?;
        if first_read {
            self.session.get(key, &mut self.value)?;
        }
        let count = u64::from_le_bytes(self.value[..8].try_into()?) + 1;
        self.value[..8].copy_from_slice(&count.to_le_bytes());
        self.session.put(key, &self.value)?;
        self.session.commit()
    }

    fn read(&mut self, key: u64) -> Result<(), Failure> {
        self.session.begin()?;
        if !self.session.get(key, &mut self.value)? {
            return Err(format!("record {key} is not there").into());
        }
        self.session.commit()
    }

    fn insert(&mut self, key: u64) -> Result<(), Failure> {
        self.session.begin()?;
        self.session.put(key, &self.value)?;
        self.session.commit()
    }

    fn remove(&mut self, key: u64) -> Result<(), Failure> {
        self.session.begin()?;
        self.session.remove(key)?;
        self.session.commit()
    }

    fn load(&mut self, keys: &[u64]) -> Result<(), Failure> {
        self.session.begin()?;
        keys.iter().try_for_each(|key| self.session.put(*key, &self.value))?;
        self.session.commit()
    }

    fn sorted(&self) -> bool {
        true
    }

    fn scan(&mut self, from: u64, count: u64) -> Result<u64, Failure> {
        self.session.begin()?;
        let found = self.session.scan(from, count, &mut self.value)?;
        self.session.commit()?;
        Ok(found)
    }

    fn updates(&mut self, entries: u64) -> Result<u64, Failure> {
        let mut sum = 0;
        self.session.begin()?;
        for key in (0..entries).map(scatter) {
            if !self.session.get(key, &mut self.value)? {
                return Err(format!("record {key} is not there").into());
            }
            sum += u64::from_le_bytes(self.value[..8].try_into()?);
        }
        self.session.commit()?;
        Ok(sum)
    }
}

/// A record of Caliburn's.
#[derive(Recoverable, Clone, Copy)]
#[repr(C)]
struct Value<const WORDS: usize>([u64; WORDS]);

/// What both kinds of maps have.
trait Kind<const WORDS: usize>: Recoverable + Default + for<'id> Init<'id, Self> {
    fn get(&self, key: u64) -> Option<&Value<WORDS>>;
    fn put<'id>(map: Mut<'_, 'id, Self>, key: u64, value: Value<WORDS>)
    where
        u64: AsKey<'id, u64>;
    fn count<'id>(map: Mut<'_, 'id, Self>, key: u64);
    fn take(map: Mut<'_, '_, Self>, key: u64);
    /// Values from a key on, if keys have an order.
    fn from(&self, key: u64) -> Option<impl Iterator<Item = &Value<WORDS>>>;
}

macro_rules! kind {
    ($map:ident, $value:ty, $make:expr, |$guard:ident| $inner:expr, |$of:ident, $from:ident| $values:expr) => {
        impl<const WORDS: usize> Kind<WORDS> for $map<u64, $value> {
            fn get(&self, key: u64) -> Option<&Value<WORDS>> {
                $map::get(self, &key).map(|value| -> &Value<WORDS> { value })
            }

            fn put<'id>(mut map: Mut<'_, 'id, Self>, key: u64, value: Value<WORDS>)
            where
                u64: AsKey<'id, u64>,
            {
                let _ = map.insert(key, $make(value));
            }

            fn count<'id>(mut map: Mut<'_, 'id, Self>, key: u64) {
                // The whole record is replaced, as it is in the others.
                let mut $guard = map.get_mut(&key).expect("the record is there");
                let mut value: Mut<'_, 'id, Value<WORDS>> = $inner;
                let mut new = *value;
                new.0[0] += 1;
                value.set(new);
            }

            fn take(mut map: Mut<'_, '_, Self>, key: u64) {
                _ = map.remove(&key);
            }

            fn from(&self, $from: u64) -> Option<impl Iterator<Item = &Value<WORDS>>> {
                let $of = self;
                $values
            }
        }
    };
}

kind!(PHashMap, Value<WORDS>, std::convert::identity, |guard| guard.reborrow(), |_of, _from| None::<
    std::iter::Empty<_>,
>);
kind!(PBTreeMap, Value<WORDS>, std::convert::identity, |guard| guard.reborrow(), |of, from| Some(
    of.range(from..).map(|(_, value)| value)
));
// As programs keep large values: those in a table or a node are moved when others come.
kind!(PHashMap, PBox<Value<WORDS>>, PBox::new, |guard| guard.get_mut(), |_of, _from| None::<
    std::iter::Empty<_>,
>);
kind!(PBTreeMap, PBox<Value<WORDS>>, PBox::new, |guard| guard.get_mut(), |of, from| Some(
    of.range(from..).map(|(_, value)| &**value)
));

struct Ours<'o, M, const WORDS: usize> {
    writer: Writer<'o, M>,
}

impl<M: Kind<WORDS>, const WORDS: usize> Contender for Ours<'_, M, WORDS> {
    fn update(&mut self, key: u64, _: bool) -> Result<(), Failure> {
        Ok(self.writer.update(|map| M::count(map, key))?)
    }

    fn read(&mut self, key: u64) -> Result<(), Failure> {
        let value = self.writer.root().get(key).ok_or_else(|| format!("record {key} is not there"))?;
        black_box(*value);
        Ok(())
    }

    fn insert(&mut self, key: u64) -> Result<(), Failure> {
        Ok(self.writer.update(|map| M::put(map, key, Value([0; WORDS])))?)
    }

    fn remove(&mut self, key: u64) -> Result<(), Failure> {
        Ok(self.writer.update(|map| M::take(map, key))?)
    }

    fn load(&mut self, keys: &[u64]) -> Result<(), Failure> {
        Ok(self.writer.update(|mut map| {
            keys.iter().for_each(|key| M::put(map.reborrow(), *key, Value([0; WORDS])));
        })?)
    }

    fn sorted(&self) -> bool {
        self.writer.root().from(0).is_some()
    }

    fn scan(&mut self, from: u64, count: u64) -> Result<u64, Failure> {
        let values = self.writer.root().from(from).ok_or("its keys have no order")?;
        Ok(values.take(count as usize).fold(0, |found, value| {
            black_box(*value);
            found + 1
        }))
    }

    fn updates(&mut self, entries: u64) -> Result<u64, Failure> {
        let root = self.writer.root();
        (0..entries)
            .map(|key| root.get(scatter(key)).map(|value| value.0[0]).ok_or("a record is gone".into()))
            .sum()
    }
}

/// Measures maps of records of each size.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    for size in &arguments.sizes {
        match size {
            8 => inline::<1>(arguments)?,
            64 => inline::<8>(arguments)?,
            256 => inline::<32>(arguments)?,
            1024 => boxed::<128>(arguments)?,
            4096 => boxed::<512>(arguments)?,
            other => {
                return Err(format!("records of {other} bytes: there are 8, 64, 256, 1024 and 4096").into());
            }
        }
    }
    Ok(())
}

fn inline<const WORDS: usize>(arguments: &Arguments) -> Result<(), Failure> {
    sized::<WORDS, PHashMap<u64, Value<WORDS>>, PBTreeMap<u64, Value<WORDS>>>(arguments)
}

fn boxed<const WORDS: usize>(arguments: &Arguments) -> Result<(), Failure> {
    sized::<WORDS, PHashMap<u64, PBox<Value<WORDS>>>, PBTreeMap<u64, PBox<Value<WORDS>>>>(arguments)
}

fn sized<const WORDS: usize, H, B>(arguments: &Arguments) -> Result<(), Failure>
where
    H: Kind<WORDS>,
    B: Kind<WORDS>,
{
    let (entries, bytes) = (arguments.accounts as u64, WORDS * 8);
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let total = entries as usize * (bytes + 64);
    let names = arguments.names().into_iter().filter(|name| *name != "PMDK");
    let databases: Vec<(&'static str, Box<dyn Database>, String)> = names
        .map(|name| {
            open(name, &dir.path().join(name), false, total).map(|(open, version)| (name, open, version))
        })
        .collect::<Result<_, _>>()?;
    let stores = [("redo", Policy::Redo), ("undo", Policy::Undo)].map(|(name, policy)| {
        let mut options = options(256, 64);
        options.policy(policy).open(dir.path().join(name)).map(|store| (name, store))
    });
    let [redo, undo] = stores;
    let stores: [(&'static str, Store); 2] = [redo?, undo?];
    let hashed: Vec<_> =
        stores.iter().map(|(_, s)| Objects::open(s, "hashed")).collect::<Result<Vec<_>, _>>()?;
    let sorted: Vec<_> =
        stores.iter().map(|(_, s)| Objects::open(s, "sorted")).collect::<Result<Vec<_>, _>>()?;
    let mut contenders: Vec<Named<'_>> = Vec::new();
    for (i, (policy, _)) in stores.iter().enumerate() {
        contenders.push(("PHashMap", policy, String::new(), ours::<H, WORDS>(&hashed[i])));
        contenders.push(("PBTreeMap", policy, String::new(), ours::<B, WORDS>(&sorted[i])));
    }
    for (name, database, version) in &databases {
        let rival = Rival { session: database.session(), value: vec![0; bytes] };
        contenders.push((name, "its own", version.clone(), Box::new(rival)));
    }
    let line = |contender: &Named<'_>, work: &str| {
        let (name, policy, version, _) = contender;
        let params = json!({"ycsb": work, "bytes": bytes, "entries": entries, "version": version});
        Line::new(name, policy, "process", 1, params)
    };
    load(&mut contenders, entries, &line, arguments)?;
    let mut keys = Keys::new(entries);
    let mut inserted = vec![0u64; contenders.len()];
    for work in WORKLOADS {
        let fits = |contender: &Named<'_>| work.how != How::Scan || contender.3.sorted();
        let mut lines: Vec<Line> =
            contenders.iter().filter(|c| fits(c)).map(|c| line(c, work.name)).collect();
        report::interleave(arguments.rounds, &mut lines, || {
            let each = contenders.iter_mut().zip(&mut inserted).filter(|(c, _)| fits(c));
            each.map(|((_, _, _, map), inserted)| {
                round(&mut **map, work, &mut keys, (entries, inserted), arguments.seconds)
            })
            .collect()
        });
        report::print("maps", arguments.json, &lines, 0);
    }
    insert_and_remove(&mut contenders, entries, &line, arguments);
    for (name, _, _, contender) in &mut contenders {
        if contender.updates(entries)? == 0 {
            return Err(format!("{name}: no record says that it was updated").into());
        }
    }
    Ok(())
}

/// A map, its policy, and its version.
type Named<'o> = (&'static str, &'static str, String, Box<dyn Contender + 'o>);

/// Puts all records in, once.
fn load(
    contenders: &mut [Named<'_>],
    entries: u64,
    line: &dyn Fn(&Named<'_>, &str) -> Line,
    arguments: &Arguments,
) -> Result<(), Failure> {
    let mut keys: Vec<u64> = (0..entries).map(scatter).collect();
    keys.sort_unstable();
    let mut lines = Vec::new();
    for contender in contenders {
        let mut line = line(contender, "load");
        let start = Instant::now();
        keys.chunks(1000).try_for_each(|some| contender.3.load(some))?;
        let ns_per_tx = start.elapsed().as_nanos() as f64 / entries as f64;
        line.rounds.push(Sample { ns_per_tx, latencies: Vec::new() });
        lines.push(line);
    }
    report::print("maps", arguments.json, &lines, 0);
    Ok(())
}

/// Puts a quarter as many records in as there are, and takes them out again.
fn insert_and_remove(
    contenders: &mut [Named<'_>],
    entries: u64,
    line: &dyn Fn(&Named<'_>, &str) -> Line,
    arguments: &Arguments,
) {
    let keys = (1 << 40..(1 << 40) + entries / 4).map(scatter);
    let lines = |work| contenders.iter().map(|contender| line(contender, work)).collect::<Vec<_>>();
    let mut all = [lines("insert"), lines("remove")].concat();
    report::interleave(arguments.rounds, &mut all, || {
        let mut times = [Vec::new(), Vec::new()];
        for (_, _, _, map) in contenders.iter_mut() {
            for (removes, samples) in times.iter_mut().enumerate() {
                let mut keys = keys.clone();
                samples.push(report::measure_count(entries / 4, || {
                    let key = keys.next().expect("as many as are counted");
                    let done = if removes == 1 { map.remove(key) } else { map.insert(key) };
                    done.expect("the database works");
                }));
            }
        }
        times.concat()
    });
    let (inserts, removes) = all.split_at(contenders.len());
    report::print("maps", arguments.json, inserts, 0);
    report::print("maps", arguments.json, removes, 0);
}

fn ours<'o, M: Kind<WORDS> + 'o, const WORDS: usize>(objects: &'o Objects<M>) -> Box<dyn Contender + 'o> {
    let mut writer = objects.write();
    writer.set_class(Class::Process);
    Box::new(Ours { writer })
}
