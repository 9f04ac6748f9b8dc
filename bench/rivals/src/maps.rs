//! Maps: records of a size under 64-bit keys, read and updated in transactions of one operation each, `Process`
//! class. The work is that of YCSB (Cooper et al., 2010): of A half of the operations update a record, of B one in
//! twenty, of C none; those of F read it first. Keys are chosen by Zipf's law.

use crate::records::{Database, Session};
use crate::{Arguments, open};
use caliburn::typed::{AsKey, Init};
use caliburn::{Class, Mut, Objects, PBTreeMap, PHashMap, Policy, Recoverable, Store, Writer};
use caliburn_bench::report::{self, Line, Random, Sample};
use caliburn_bench::target::{Failure, options};
use serde_json::json;
use std::hint::black_box;

/// Records, and the workloads' shares of updates in percent, with whether they read first.
const WORKLOADS: [(&str, u64, bool); 4] =
    [("A", 50, false), ("B", 5, false), ("C", 0, false), ("F", 50, true)];

/// Keys as they are asked for: by Zipf's law with 0.99, scattered over the numbers.
struct Keys {
    keys: Vec<u64>,
    next: usize,
}

/// Mixes a number.
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
        let mut key = || {
            let at = (random.bits() >> 11) as f64 / (1u64 << 53) as f64 * sum;
            scatter(sums.partition_point(|below| *below < at) as u64)
        };
        Keys { keys: (0..1 << 20).map(|_| key()).collect(), next: 0 }
    }

    fn next(&mut self) -> u64 {
        self.next = (self.next + 1) % self.keys.len();
        self.keys[self.next]
    }
}

/// What is measured: a map.
trait Contender {
    /// Runs the operations of a workload for so many seconds.
    fn round(&mut self, workload: (&str, u64, bool), keys: &mut Keys, seconds: f64) -> Sample;
    /// How often records were updated, by what they say.
    fn updates(&mut self, entries: u64) -> Result<u64, Failure>;
}

/// A rival's records.
struct Rival<'d> {
    session: Box<dyn Session + Send + 'd>,
    value: Vec<u8>,
}

impl Rival<'_> {
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
        black_box(self.session.get(key, &mut self.value)?);
        self.session.commit()
    }
}

impl Contender for Rival<'_> {
    fn round(&mut self, (_, updates, first): (&str, u64, bool), keys: &mut Keys, seconds: f64) -> Sample {
        let mut turn = 0;
        report::measure(seconds, 16, || {
            turn += 1;
            let key = keys.next();
            let done = if turn * updates % 100 < updates { self.update(key, first) } else { self.read(key) };
            done.expect("the database works");
        })
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
    ($map:ident) => {
        impl<const WORDS: usize> Kind<WORDS> for $map<u64, Value<WORDS>> {
            fn get(&self, key: u64) -> Option<&Value<WORDS>> {
                $map::get(self, &key)
            }

            fn put<'id>(mut map: Mut<'_, 'id, Self>, key: u64, value: Value<WORDS>)
            where
                u64: AsKey<'id, u64>,
            {
                map.insert(key, value);
            }

            fn count<'id>(mut map: Mut<'_, 'id, Self>, key: u64) {
                // The whole record is replaced, as it is in the others.
                let mut value = map.get_mut(&key).expect("the record is there");
                let mut new = *value;
                new.0[0] += 1;
                value.set(new);
            }
        }
    };
}

kind!(PHashMap);
kind!(PBTreeMap);

struct Ours<'o, M, const WORDS: usize> {
    writer: Writer<'o, M>,
}

impl<M: Kind<WORDS>, const WORDS: usize> Contender for Ours<'_, M, WORDS> {
    fn round(&mut self, (_, updates, _): (&str, u64, bool), keys: &mut Keys, seconds: f64) -> Sample {
        let mut turn = 0;
        report::measure(seconds, 16, || {
            turn += 1;
            let key = keys.next();
            if turn * updates % 100 < updates {
                self.writer.update(|map| M::count(map, key)).expect("the store is sound");
            } else {
                black_box(self.writer.root().get(key).copied());
            }
        })
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
            8 => sized::<1>(arguments)?,
            64 => sized::<8>(arguments)?,
            256 => sized::<32>(arguments)?,
            1024 => sized::<128>(arguments)?,
            4096 => sized::<512>(arguments)?,
            other => {
                return Err(format!("records of {other} bytes: there are 8, 64, 256, 1024 and 4096").into());
            }
        }
    }
    Ok(())
}

fn sized<const WORDS: usize>(arguments: &Arguments) -> Result<(), Failure> {
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
        contenders.push((
            "PHashMap",
            policy,
            String::new(),
            ours::<PHashMap<u64, Value<WORDS>>, WORDS>(&hashed[i], entries)?,
        ));
        contenders.push((
            "PBTreeMap",
            policy,
            String::new(),
            ours::<PBTreeMap<u64, Value<WORDS>>, WORDS>(&sorted[i], entries)?,
        ));
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
    for workload in WORKLOADS {
        let mut lines: Vec<Line> = contenders
            .iter()
            .map(|(name, policy, version, _)| {
                let params =
                    json!({"ycsb": workload.0, "bytes": bytes, "entries": entries, "version": version});
                Line::new(name, policy, "process", 1, params)
            })
            .collect();
        report::interleave(arguments.rounds, &mut lines, || {
            let round = |(_, _, _, contender): &mut (_, _, _, Box<dyn Contender + '_>)| {
                contender.round(workload, &mut keys, arguments.seconds)
            };
            contenders.iter_mut().map(round).collect()
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
