//! A keeper in memory: for simulations, and for nodes of one process that end with it.

use crate::commit::word::{Incarnation, Node, Participants, Slot};
use crate::id::Tid;
use crate::keep::claim::{Claim, Kept, Met, Newcomer};
use crate::keep::known::{Identity, Known, Looked};
use caliburn_os::simulated::planted;
use std::collections::BTreeMap;

/// Slots and epochs. A clone is a backup.
#[derive(Debug, Default, Clone)]
pub struct Memory {
    identity: Option<Identity>,
    revision: u64,
    epochs: BTreeMap<Node, Incarnation>,
    marks: BTreeMap<Node, u64>,
    slots: BTreeMap<(Tid, Node), (Slot, Participants)>,
}

impl Memory {
    /// A node begins a life: behind all that it had, and behind what it knows itself.
    pub fn begin_life(&mut self, node: Node, behind: Incarnation) -> Incarnation {
        self.revision += 1;
        let epoch = self.epochs.entry(node).or_insert(Incarnation(0));
        epoch.0 = epoch.0.max(behind.0) + 1;
        *epoch
    }

    /// A node begins a life, unless this is not what it knows. `new`: the identity, if the cluster is made here.
    pub fn meet(&mut self, newcomer: &Newcomer, new: Identity) -> Met {
        let Newcomer { node, behind, known, .. } = *newcomer;
        if known.identity.is_none() {
            self.identity.get_or_insert(new);
        }
        let doubt = known.doubt(&self.has(node), (self.epoch(node), behind.0));
        let life = match doubt {
            Some(_) => Incarnation(behind.0 + 1),
            None => self.begin_life(node, behind),
        };
        let known = if doubt.is_some() { known } else { self.has(node) };
        Met { life, known, doubt }
    }

    fn epoch(&self, node: Node) -> u64 {
        self.epochs.get(&node).map_or(0, |epoch| epoch.0)
    }

    fn has(&self, node: Node) -> Known {
        let mark = self.marks.get(&node).copied().unwrap_or(0);
        Known { identity: self.identity, etcd: 0, revision: self.revision, mark }
    }

    /// Whether what a node knows is here.
    pub fn look(&self, node: Node, life: Incarnation, known: &Known) -> Looked {
        let (has, epoch) = (self.has(node), self.epoch(node));
        match known.doubt(&has, (epoch, life.0)) {
            Some(doubt) if !planted("marks-not-compared") => Looked::Forgot(doubt),
            _ if epoch != life.0 && !planted("epochs-not-compared") => Looked::Fenced,
            _ => Looked::Well(has),
        }
    }

    /// Puts a value into a slot; and what is known then of whoever did.
    pub fn put(&mut self, claim: &Claim, known: &Known) -> (Kept, Known) {
        match self.look(claim.by, claim.life, known) {
            Looked::Forgot(doubt) => return (Kept::Forgot(doubt), *known),
            Looked::Fenced => return (Kept::Fenced, *known),
            Looked::Well(_) => {}
        }
        let there = self.slots.get(&(claim.tid, claim.of)).map(|(slot, _)| *slot);
        let kept = match there {
            Some(slot) if !planted("slots-overwritten") => {
                if claim.relies_on(slot) {
                    *self.marks.entry(claim.by).or_default() += 1;
                    self.revision += 1;
                }
                slot
            }
            _ if claim.slot == Slot::Empty => there.unwrap_or(Slot::Empty),
            _ => {
                let new = (claim.slot, claim.participants.clone());
                self.slots.insert((claim.tid, claim.of), new);
                *self.marks.entry(claim.by).or_default() += 1;
                self.revision += 1;
                claim.slot
            }
        };
        (Kept::Slot(kept), self.has(claim.by))
    }

    /// Deletes the slots of a transaction, for its coordinator.
    pub fn delete(&mut self, tid: Tid, participants: &Participants) {
        self.revision += 1;
        for node in participants.keys() {
            self.slots.remove(&(tid, *node));
        }
    }

    /// Transactions that a node coordinates or has coordinated, in whatever life, and of which there are slots.
    pub fn of(&self, node: Node) -> BTreeMap<Tid, Participants> {
        let its = self.slots.iter().filter(|((tid, _), _)| tid.coordinator == node);
        its.map(|((tid, _), (_, participants))| (*tid, participants.clone())).collect()
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
}
