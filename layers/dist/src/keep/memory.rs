//! A keeper in memory: for simulations, and for nodes of one process that end with it.

use crate::commit::word::{Incarnation, Node, Participants, Slot};
use crate::id::Tid;
use crate::keep::claim::{Claim, Kept};
use caliburn_os::simulated::planted;
use std::collections::BTreeMap;

/// Slots and epochs.
#[derive(Debug, Default)]
pub struct Memory {
    epochs: BTreeMap<Node, Incarnation>,
    slots: BTreeMap<(Tid, Node), (Slot, Participants)>,
}

impl Memory {
    /// A node begins a life: behind all that it had, and behind what it knows itself.
    pub fn begin_life(&mut self, node: Node, behind: Incarnation) -> Incarnation {
        let epoch = self.epochs.entry(node).or_insert(Incarnation(0));
        epoch.0 = epoch.0.max(behind.0) + 1;
        *epoch
    }

    fn is_fenced(&self, node: Node, life: Incarnation) -> bool {
        self.epochs.get(&node) != Some(&life) && !planted("epochs-not-compared")
    }

    /// Puts a value into a slot if it is empty.
    pub fn put(&mut self, claim: &Claim) -> Kept {
        if self.is_fenced(claim.by, claim.life) {
            return Kept::Fenced;
        }
        let new = (claim.slot, claim.participants.clone());
        let kept = self.slots.entry((claim.tid, claim.of)).or_insert(new);
        if planted("slots-overwritten") {
            kept.0 = claim.slot;
        }
        Kept::Slot(kept.0)
    }

    /// Deletes the slots of a transaction, for its coordinator.
    pub fn delete(&mut self, tid: Tid, participants: &Participants) {
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
