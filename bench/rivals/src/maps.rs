//! Maps: records of a size under 64-bit keys, read and updated in transactions of one operation each, `Process`
//! class. The work is that of YCSB (Cooper et al., 2010): of A half of the operations update a record, of B one in
//! twenty, of C none; those of F read it first; of D one in twenty inserts a record, and the others read those
//! inserted last. Keys are chosen by Zipf's law.

use crate::records::{Database, Session};
use crate::{Arguments, open};
use caliburn::typed::{AsKey, Init};
use caliburn::{Class, Mut, Objects, PBTreeMap, PBox, PHashMap, Policy, Recoverable, Store, Writer};
use caliburn_bench::report::{self, Line, Random, Sample};
use caliburn_bench::target::{Failure, options};
use serde_json::json;
use std::hint::black_box;

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
}

const fn work(name: &'static str, changes: u64, how: How) -> Work {
    Work { name, changes, how }
}

const WORKLOADS: [Work; 5] = [
    work("A", 50, How::Update),
    work("B", 5, How::Update),
    work("C", 0, How::Update),
    work("D", 5, How::Insert),
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
            How::Insert if changes => {
                *inserted += 1;
                map.insert(scatter(entries + *inserted - 1))
            }
            How::Insert => map.read(scatter(entries + *inserted - 1 - rank)),
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
}

macro_rules! kind {
    ($map:ident, $value:ty, $make:expr, |$guard:ident| $inner:expr) => {
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
        }
    };
}

kind!(PHashMap, Value<WORDS>, std::convert::identity, |guard| guard.reborrow());
kind!(PBTreeMap, Value<WORDS>, std::convert::identity, |guard| guard.reborrow());
// As programs keep large values: those in a table or a node are moved when others come.
kind!(PHashMap, PBox<Value<WORDS>>, PBox::new, |guard| guard.get_mut());
kind!(PBTreeMap, PBox<Value<WORDS>>, PBox::new, |guard| guard.get_mut());

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
    let mut contenders: Vec<(&'static str, &'static str, String, Box<dyn Contender + '_>)> = Vec::new();
    for (i, (policy, _)) in stores.iter().enumerate() {
        contenders.push(("PHashMap", policy, String::new(), ours::<H, WORDS>(&hashed[i], entries)?));
        contenders.push(("PBTreeMap", policy, String::new(), ours::<B, WORDS>(&sorted[i], entries)?));
    }
    for (name, database, version) in &databases {
        let mut rival = Rival { session: database.session(), value: vec![0; bytes] };
        for some in (0..entries).collect::<Vec<_>>().chunks(1000) {
            rival.session.begin()?;
            some.iter().try_for_each(|key| rival.session.put(scatter(*key), &rival.value))?;
            rival.session.commit()?;
        }
        contenders.push((name, "its own", version.clone(), Box::new(rival)));
    }
    let mut keys = Keys::new(entries);
    let mut inserted = vec![0u64; contenders.len()];
    for work in WORKLOADS {
        let mut lines: Vec<Line> = contenders
            .iter()
            .map(|(name, policy, version, _)| {
                let params =
                    json!({"ycsb": work.name, "bytes": bytes, "entries": entries, "version": version});
                Line::new(name, policy, "process", 1, params)
            })
            .collect();
        report::interleave(arguments.rounds, &mut lines, || {
            let each = contenders.iter_mut().zip(&mut inserted);
            each.map(|((_, _, _, map), inserted)| {
                round(&mut **map, work, &mut keys, (entries, inserted), arguments.seconds)
            })
            .collect()
        });
        report::print("maps", arguments.json, &lines, 0);
    }
    for (name, _, _, contender) in &mut contenders {
        if contender.updates(entries)? == 0 {
            return Err(format!("{name}: no record says that it was updated").into());
        }
    }
    Ok(())
}

fn ours<'o, M: Kind<WORDS> + 'o, const WORDS: usize>(
    objects: &'o Objects<M>,
    entries: u64,
) -> Result<Box<dyn Contender + 'o>, Failure> {
    let mut writer = objects.write();
    writer.set_class(Class::Process);
    for key in 0..entries {
        writer.update(|map| M::put(map, scatter(key), Value([0; WORDS])))?;
    }
    Ok(Box::new(Ours { writer }))
}
