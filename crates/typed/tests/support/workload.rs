//! Transactions on all collections, of which each follows from its number, and what they leave.
#![allow(dead_code, reason = "each test needs a part of it")]

use caliburn::{
    Mut, PBTreeMap, PBox, PHashMap, PRc, PSlotMap, PString, PVec, PVecDeque, Recoverable, SlotKey,
};
use std::collections::{BTreeMap, HashMap, VecDeque};

#[derive(Recoverable, Default)]
#[repr(C)]
pub struct Root {
    /// Transactions that were committed.
    pub done: u64,
    hashed: PHashMap<PString, PVec<u64>>,
    sorted: PBTreeMap<u32, PString>,
    queue: PVecDeque<PString>,
    chain: Option<PBox<Link>>,
    nodes: PSlotMap<Node>,
    texts: PVec<PRc<PString>>,
}

#[derive(Recoverable)]
#[repr(C)]
pub struct Link {
    number: u64,
    next: Option<PBox<Link>>,
}

#[derive(Recoverable)]
#[repr(C)]
pub struct Node {
    number: u64,
    text: PRc<PString>,
    other: Option<SlotKey<Node>>,
}

/// What the root holds.
#[derive(Default, Debug, Clone, PartialEq)]
pub struct Model {
    hashed: HashMap<String, Vec<u64>>,
    sorted: BTreeMap<u32, String>,
    queue: VecDeque<String>,
    chain: Vec<u64>,
    nodes: Vec<(u64, String)>,
    texts: Vec<String>,
}

pub fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// The steps of a transaction: what, and with which number.
pub fn steps(number: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..1 + mix(number) % 6)
        .map(move |i| (mix(number.wrapping_mul(16) + i) % 12, mix(number.wrapping_mul(16) + i + 8) % 400))
}

fn text(number: u64) -> String {
    format!("text {number} of some length{}", ".".repeat(number as usize % 40))
}

pub fn step(root: &mut Mut<'_, '_, Root>, (kind, number): (u64, u64)) {
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

pub fn of_root(root: &Root) -> Model {
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
#[derive(Default)]
pub struct Expected {
    done: u64,
    model: Model,
    slots: Vec<Option<(u64, String)>>,
    free: Vec<usize>,
}

impl Expected {
    pub fn advance(&mut self, done: u64) -> &Model {
        while self.done < done {
            steps(self.done).for_each(|s| step_of_model(&mut self.model, &mut self.slots, &mut self.free, s));
            self.done += 1;
        }
        self.model.nodes = self.slots.iter().flatten().cloned().collect();
        &self.model
    }
}
