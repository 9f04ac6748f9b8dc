//! Real processes with typed objects, really killed: random transactions on every collection, which also abort
//! and panic. After each death the objects are those of one number of whole transactions, none fewer than were
//! acknowledged; they can be emptied, and then nothing is left in the heap.

use caliburn::typed::Error;
use caliburn::{
    Class, Mut, Objects, Options, PBTreeMap, PBox, PHashMap, PRc, PSlotMap, PString, PVec, PVecDeque, Policy,
    Recoverable, SlotKey, Store,
};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[derive(Recoverable, Default)]
#[repr(C)]
struct Root {
    /// Transactions that were committed.
    done: u64,
    hashed: PHashMap<PString, PVec<u64>>,
    sorted: PBTreeMap<u32, PString>,
    queue: PVecDeque<PString>,
    chain: Option<PBox<Link>>,
    nodes: PSlotMap<Node>,
    texts: PVec<PRc<PString>>,
}

#[derive(Recoverable)]
#[repr(C)]
struct Link {
    number: u64,
    next: Option<PBox<Link>>,
}

#[derive(Recoverable)]
#[repr(C)]
struct Node {
    number: u64,
    text: PRc<PString>,
    other: Option<SlotKey<Node>>,
}

/// What the root holds.
#[derive(Default, Debug, PartialEq)]
struct Model {
    hashed: HashMap<String, Vec<u64>>,
    sorted: BTreeMap<u32, String>,
    queue: VecDeque<String>,
    chain: Vec<u64>,
    nodes: Vec<(u64, String)>,
    texts: Vec<String>,
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

fn options(policy: Policy) -> Options {
    let mut options = Store::options();
    options.create(true).policy(policy).log_bytes(4 << 20).stage_bytes(2 << 20).reserve_bytes(1 << 30);
    options
}

/// The steps of a transaction: what, and with which number.
fn steps(number: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..1 + mix(number) % 6)
        .map(move |i| (mix(number.wrapping_mul(16) + i) % 12, mix(number.wrapping_mul(16) + i + 8) % 400))
}

fn text(number: u64) -> String {
    format!("text {number} of some length{}", ".".repeat(number as usize % 40))
}

fn step(root: &mut Mut<'_, '_, Root>, (kind, number): (u64, u64)) {
    let tx = root.tx();
    let mut root = root.fields();
    match kind {
        0 | 1 => root.hashed.entry(text(number)).or_default().push(number),
        2 => drop(root.hashed.remove(text(number).as_str())),
        3 | 4 => drop(root.sorted.insert(number as u32, text(number))),
        5 => drop(root.sorted.remove(&(number as u32))),
        6 => root.queue.push_back(text(number)),
        7 => drop(root.queue.pop_front()),
        8 => {
            let next = root.chain.take();
            root.chain.set(Some(PBox::new(LinkInit { number, next })));
        }
        9 if root.texts.len() > 50 => root.texts.clear(),
        9 => {
            root.texts.push(PRc::new(text(number)));
            let shared = PRc::share(root.texts.last().unwrap(), tx);
            let other = root.nodes.iter().map(|(key, _)| key).next();
            root.nodes.insert(NodeInit { number, text: shared, other });
        }
        10 => {
            let key = root.nodes.iter().map(|(key, _)| key).nth(number as usize % 7);
            drop(key.and_then(|key| root.nodes.remove(key)));
        }
        _ if number % 20 == 0 => root.chain.set(None::<PBox<Link>>),
        _ => root.sorted.retain(|key, mut value| {
            value.push('!');
            key % 13 != 0 || value.len() < 60
        }),
    }
}

fn step_of_model(
    model: &mut Model,
    slots: &mut Vec<Option<(u64, String)>>,
    free: &mut Vec<usize>,
    (kind, number): (u64, u64),
) {
    match kind {
        0 | 1 => model.hashed.entry(text(number)).or_default().push(number),
        2 => drop(model.hashed.remove(&text(number))),
        3 | 4 => drop(model.sorted.insert(number as u32, text(number))),
        5 => drop(model.sorted.remove(&(number as u32))),
        6 => model.queue.push_back(text(number)),
        7 => drop(model.queue.pop_front()),
        8 => model.chain.insert(0, number),
        9 if model.texts.len() > 50 => model.texts.clear(),
        9 => {
            model.texts.push(text(number));
            match free.pop() {
                Some(slot) => slots[slot] = Some((number, text(number))),
                None => slots.push(Some((number, text(number)))),
            }
        }
        10 => {
            let there = slots.iter().enumerate().filter(|(_, slot)| slot.is_some()).map(|(i, _)| i);
            if let Some(slot) = there.collect::<Vec<_>>().into_iter().nth(number as usize % 7) {
                slots[slot] = None;
                free.push(slot);
            }
        }
        _ if number % 20 == 0 => model.chain.clear(),
        _ => model.sorted.retain(|key, value| {
            value.push('!');
            key % 13 != 0 || value.len() < 60
        }),
    }
}

fn of_root(root: &Root) -> Model {
    let mut chain = Vec::new();
    let mut next = &root.chain;
    while let Some(link) = next {
        chain.push(link.number);
        next = &link.next;
    }
    Model {
        hashed: root.hashed.iter().map(|(key, value)| (key.to_string(), value.to_vec())).collect(),
        sorted: root.sorted.iter().map(|(key, value)| (*key, value.to_string())).collect(),
        queue: root.queue.iter().map(|text| text.to_string()).collect(),
        chain,
        nodes: root.nodes.iter().map(|(_, node)| (node.number, node.text.to_string())).collect(),
        texts: root.texts.iter().map(|text| text.to_string()).collect(),
    }
}

/// What so many transactions leave.
struct Expected {
    done: u64,
    model: Model,
    slots: Vec<Option<(u64, String)>>,
    free: Vec<usize>,
}

impl Expected {
    fn advance(&mut self, done: u64) -> &Model {
        while self.done < done {
            steps(self.done).for_each(|s| step_of_model(&mut self.model, &mut self.slots, &mut self.free, s));
            self.done += 1;
        }
        self.model.nodes = self.slots.iter().flatten().cloned().collect();
        &self.model
    }
}

fn open(path: &Path, policy: Policy) -> Objects<Root> {
    Objects::open(&options(policy).open(path).unwrap(), "objects").unwrap()
}

/// Run in the child.
#[test]
fn child() {
    let Some(path) = std::env::var_os("CALIBURN_TYPED_STORE") else { return };
    let policy = if std::env::var_os("CALIBURN_TYPED_UNDO").is_some() { Policy::Undo } else { Policy::Redo };
    let objects = open(Path::new(&path), policy);
    let done = objects.read().done;
    for number in done.. {
        // Before it is done it is tried, and undone, in either way.
        let undone = |end: fn() -> Result<(), Error>| {
            catch_unwind(AssertUnwindSafe(|| {
                objects.transact_in(Class::Process, |mut root| {
                    steps(mix(number) & 0xFFFF).chain(steps(number)).for_each(|s| step(&mut root, s));
                    end()
                })
            }))
        };
        match mix(number * 5) % 4 {
            0 => assert!(undone(|| Err(Error::Unwound)).unwrap().is_err()),
            1 => assert!(undone(|| resume_unwind(Box::new(()))).is_err()),
            _ => {}
        }
        objects
            .transact_in::<_, Error>(Class::Process, |mut root| {
                steps(number).for_each(|s| step(&mut root, s));
                *root.fields().done = number + 1;
                Ok(())
            })
            .unwrap();
        std::io::stdout().lock().write_all(format!("ack {}\n", number + 1).as_bytes()).unwrap();
    }
}

fn kills(policy: Policy, kills: u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut expected = Expected { done: 0, model: Model::default(), slots: Vec::new(), free: Vec::new() };
    let mut acknowledged = 0;
    for kill in 0..kills {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child", "--exact", "--nocapture"]).env("CALIBURN_TYPED_STORE", &path);
        if policy == Policy::Undo {
            command.env("CALIBURN_TYPED_UNDO", "1");
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut left = 1 + mix(kill * 77 + u64::from(policy == Policy::Undo)) % 400;
        for line in out.lines().map_while(Result::ok) {
            let Some(number) = line.strip_prefix("ack ").and_then(|n| n.parse::<u64>().ok()) else {
                continue;
            };
            acknowledged = number;
            left -= 1;
            if left == 0 {
                // At any moment of the next ones.
                std::thread::sleep(Duration::from_micros(mix(kill) % 3000));
                child.kill().unwrap();
                left = u64::MAX;
            }
        }
        assert_eq!(child.wait().unwrap().signal(), Some(9), "the child ended by itself");
        let objects = open(&path, policy);
        let view = objects.read();
        assert!(
            view.done >= acknowledged,
            "{} of {acknowledged} acknowledged transactions are there",
            view.done
        );
        assert!(
            of_root(&view) == *expected.advance(view.done),
            "not the state after {} transactions",
            view.done
        );
    }
    let objects = open(&path, policy);
    assert!(objects.read().done > 100);
    objects.update(|mut root| root.set(Root::default())).unwrap();
    let statistics = objects.statistics();
    let left = statistics.large_objects + statistics.classes.iter().map(|class| class.objects).sum::<u64>();
    assert_eq!(left, 2, "objects beside the root and the record of its types");
}

#[test]
fn objects_survive_kills_with_the_redo_policy() {
    kills(Policy::Redo, 25);
}

#[test]
fn objects_survive_kills_with_the_undo_policy() {
    kills(Policy::Undo, 25);
}
