//! `typed`: what typed objects cost. Debit-credit through guards, against the same by offsets; and maps with
//! 8-byte keys and values, against those of the standard library and hashbrown, which survive nothing.

use crate::Arguments;
use crate::debit_credit::{self, Layout, Stream};
use crate::report::{self, Line, Random, Sample};
use crate::target::{Caliburn, Failure, Target, options};
use crate::work::Workload;
use caliburn::{Class, Mut, Objects, PBTreeMap, PHashMap, PVec, Policy, Recoverable, Store, Writer};
use hashbrown::HashMap;
use serde_json::json;
use std::collections::BTreeMap;
use std::hint::black_box;

/// A record of debit-credit.
#[derive(Recoverable, Debug, Clone, Copy)]
#[repr(C)]
struct Record {
    state: State,
    rest: [u64; 13],
}

#[derive(Recoverable, Debug, Clone, Copy, Default)]
#[repr(C)]
struct State {
    balance: i64,
    amount: i64,
    count: i64,
}

#[derive(Recoverable, Debug, Default)]
#[repr(C)]
struct Tables {
    accounts: PVec<Record>,
    tellers: PVec<Record>,
    branches: PVec<Record>,
    history: PVec<State>,
}

/// The same work as [`Stream`], through guards.
#[derive(Debug)]
pub struct Typed {
    tables: Objects<Tables>,
    random: Random,
    count: i64,
    total: i64,
}

const HISTORY: usize = (2 << 20) / 24;

impl Typed {
    /// Tables in a heap of a store.
    ///
    /// # Errors
    /// When they cannot be made.
    pub fn new(store: &Store, accounts: usize) -> Result<Typed, Failure> {
        let tables = Objects::<Tables>::open(store, "tables")?;
        let branches = accounts.div_ceil(100_000);
        tables.transact_in(Class::Process, |mut tables| {
            let fields = tables.fields();
            let record = Record { state: State::default(), rest: [0; 13] };
            for (mut table, len) in
                [(fields.accounts, accounts), (fields.tellers, 10 * branches), (fields.branches, branches)]
            {
                table.resize_with(len, || record);
            }
            let mut history = fields.history;
            history.resize_with(HISTORY, State::default);
            Ok::<(), caliburn::Error>(())
        })?;
        Ok(Typed { tables, random: Random(debit_credit::SEED), count: 0, total: 0 })
    }

    /// Hands out a transaction to be repeated, by the only writer.
    pub fn work<T>(&mut self, run: impl FnOnce(&mut dyn FnMut()) -> T) -> T {
        let Typed { tables, random, count, total } = self;
        let mut writer = tables.write();
        writer.set_class(Class::Process);
        run(&mut || Typed::step(random, count, total, &mut writer))
    }

    #[inline]
    fn step(random: &mut Random, count: &mut i64, total: &mut i64, writer: &mut Writer<'_, Tables>) {
        let accounts = writer.root().accounts.len();
        let account = random.below(accounts);
        let branch = account / 100_000;
        let teller = branch * 10 + (random.bits() >> 40) as usize % 10;
        let amount = (random.bits() >> 50) as i64 - 8000;
        *total += amount;
        let now = *count;
        *count += 1;
        let done = writer.update(|mut tables| {
            let mut fields = tables.fields();
            let change = |table: &mut Mut<'_, '_, PVec<Record>>, at: usize| {
                let mut record = table.at(at);
                let state = &mut *record.fields().state;
                state.balance += amount;
                state.amount = amount;
                state.count = now;
            };
            change(&mut fields.accounts, account);
            change(&mut fields.tellers, teller);
            change(&mut fields.branches, branch);
            *fields.history.at(now as usize % HISTORY) =
                State { balance: account as i64, amount, count: now };
        });
        done.expect("the store is sound");
    }

    /// Whether the tables hold what was done.
    ///
    /// # Errors
    /// When they do not.
    pub fn check(&self) -> Result<(), Failure> {
        let view = self.tables.read();
        let sum = |table: &PVec<Record>| table.iter().map(|record| record.state.balance).sum::<i64>();
        let found = [&view.accounts, &view.tellers, &view.branches].map(sum);
        if found == [self.total; 3] {
            Ok(())
        } else {
            Err(format!("balances {found:?}, expected {}", self.total).into())
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    debit_credit::<false>(arguments, "redo", Policy::Redo)?;
    debit_credit::<true>(arguments, "undo", Policy::Undo)?;
    for (name, policy) in [("redo", Policy::Redo), ("undo", Policy::Undo)] {
        hashed(arguments, name, policy)?;
        sorted(arguments, name, policy)?;
    }
    Ok(())
}

fn debit_credit<const UNDO: bool>(
    arguments: &Arguments,
    policy: &'static str,
    kind: Policy,
) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let layout = Layout::new(arguments.accounts);
    let base = options(arguments.log_mb, arguments.stage_mb);
    let mut offsets =
        Caliburn::<UNDO>::new(&dir.path().join("offsets"), &base, layout.bytes(), Class::Process)?;
    let mut stream = Stream::new(layout, debit_credit::SEED);
    let store = base.clone().policy(kind).open(dir.path().join("typed"))?;
    let mut typed = Typed::new(&store, arguments.accounts)?;
    let params = json!({"accounts": arguments.accounts, "what": "debit-credit"});
    let line = |system| Line::new(system, policy, "process", 1, params.clone());
    let mut lines = [line("offsets"), line("typed")];
    report::interleave(arguments.rounds, &mut lines, || {
        let by_offsets = report::measure(arguments.seconds, 64, || stream.step(&mut offsets));
        offsets.drain();
        let typed = typed.work(|step| report::measure(arguments.seconds, 64, step));
        crate::target::drain(&store);
        vec![by_offsets, typed]
    });
    report::print("typed", arguments.json, &lines, 0);
    stream.check(&offsets)?;
    typed.check()
}

/// Times `count` calls by batches of 64.
fn each(count: usize, mut call: impl FnMut(usize)) -> Sample {
    let start = std::time::Instant::now();
    (0..count).for_each(&mut call);
    Sample { ns_per_tx: start.elapsed().as_nanos() as f64 / count as f64, latencies: Vec::new() }
}

macro_rules! maps {
($name:ident, $ours:ident, $theirs:ident, $their_name:literal) => {
fn $name(arguments: &Arguments, policy: &'static str, kind: Policy) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let store =
        options(arguments.log_mb.max(256), arguments.stage_mb).policy(kind).open(dir.path().join("maps"))?;
    let hash = Objects::<$ours<u64, u64>>::open(&store, "map")?;
    let entries = arguments.accounts;
    let key = |i: usize| (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut model = $theirs::new();
    let line = |system, policy, what| {
        Line::new(system, policy, "process", 1, json!({"what": what, "entries": entries}))
    };
    let names = ["insert", "get", "update", "remove"];
    let mut lines: Vec<Line> = names
        .iter()
        .flat_map(|what| [line($their_name, "none", *what), line(stringify!($ours), policy, *what)])
        .collect();
    report::interleave(arguments.rounds, &mut lines, || {
        let mut writer = hash.write();
        writer.set_class(Class::Process);
        let mut samples = Vec::new();
        samples.push(each(entries, |i| {
            let _ = model.insert(key(i), i as u64);
        }));
        samples.push(each(entries, |i| {
            writer
                .update(|mut map| {
                    let _ = map.insert(key(i), i as u64);
                })
                .expect("there is room");
        }));
        let scattered = |i: usize| key(i.wrapping_mul(7919) % entries);
        samples.push(each(entries, |i| {
            let _ = black_box(model.get(&scattered(i)).copied());
        }));
        let root = writer.root();
        samples.push(each(entries, |i| {
            let _ = black_box(root.get(&scattered(i)).copied());
        }));
        samples.push(each(entries, |i| *model.get_mut(&scattered(i)).expect("it is there") += 1));
        samples.push(each(entries, |i| {
            let changed = writer.update(|mut map| *map.get_mut(&scattered(i)).expect("it is there") += 1);
            changed.expect("there is room");
        }));
        let same =
            model.len() == writer.root().len() && model.iter().all(|(k, v)| writer.root().get(k) == Some(v));
        assert!(same, "the maps differ");
        samples.push(each(entries, |i| {
            let _ = model.remove(&key(i));
        }));
        samples.push(each(entries, |i| {
            writer
                .update(|mut map| {
                    let _ = map.remove(&key(i));
                })
                .expect("there is room");
        }));
        assert!(writer.root().is_empty());
        drop(writer);
        crate::target::drain(&store);
        samples
    });
    lines.chunks(2).for_each(|pair| report::print("typed", arguments.json, pair, 0));
    Ok(())
}
};
}

maps!(hashed, PHashMap, HashMap, "hashbrown");
maps!(sorted, PBTreeMap, BTreeMap, "std's BTreeMap");
