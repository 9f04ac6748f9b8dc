//! What a node remembers itself, in recoverable memory: its life, and the commits that it has decided and not all
//! participants know of.
//!
//! ```text
//!   block 0: the life, whether it has begun      block 1 .. : one decision each, or a part of one
//!   used | count | identity, padded | node, stay | node, stay | ...
//! ```
//!
//! A decision is written in the transaction that commits what the node has changed itself: one force for both.

use crate::commit::word::{Incarnation, Node, Participants, Stay};
use crate::id::{TID_BYTES, Tid};
use caliburn_engine::{Class, CommitError, Mode, RangeError, Region, Store, Transaction};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};

/// The segment's name. No program's may be called so.
pub(crate) const SEGMENT: &str = "caliburn-node";
/// Room for 65,535 decisions of which not all know: what there are more is refused.
pub(crate) const SEGMENT_BYTES: u64 = 16 << 20;

const BLOCK: usize = 256;
const HEAD: usize = 48;
const IN_BLOCK: usize = (BLOCK - HEAD) / 16;

/// What the node's own commits survive: the loss of the machine, if its log is replicated.
pub(crate) fn lasting(store: &Store) -> Class {
    store.reach().max(Class::Power)
}

/// The decisions.
pub(crate) struct Ledger<'t> {
    store: &'t Store,
    region: &'t Region,
    blocks: Mutex<Blocks>,
}

#[derive(Default)]
struct Blocks {
    free: Vec<usize>,
    /// The first that was never used.
    fresh: usize,
    used: HashMap<Tid, Vec<usize>>,
}

impl<'t> Ledger<'t> {
    /// Reads it: the last life, and what was decided.
    pub fn open(
        store: &'t Store,
        region: &'t Region,
    ) -> (Ledger<'t>, Incarnation, BTreeMap<Tid, Participants>) {
        let (mut blocks, mut found) = (Blocks { fresh: 1, ..Blocks::default() }, BTreeMap::new());
        let mut block = [0; BLOCK];
        for number in 1..region.len() / BLOCK {
            region.read(number * BLOCK, &mut block);
            // Any of them may be free: what took it may not have committed, or all know.
            if let Some((tid, participants)) = decode(&block) {
                found.entry(tid).or_insert_with(Participants::new).extend(participants);
                blocks.used.entry(tid).or_default().push(number);
                let before = std::mem::replace(&mut blocks.fresh, number + 1);
                blocks.free.extend(before..number);
            }
        }
        let life = Incarnation(region.load(0));
        (Ledger { store, region, blocks: Mutex::new(blocks) }, life, found)
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether the servers' first transaction has been.
    pub fn has_begun(&self) -> bool {
        self.region.load::<u64>(8) != 0
    }

    /// It is this one.
    pub fn begin(&self, tx: &mut Transaction<'t>) -> Result<(), RangeError> {
        tx.store(self.region, 8, &1u64)
    }

    /// Remembers which life this is.
    pub fn set_life(&self, life: Incarnation) -> Result<(), CommitError> {
        let mut tx = self.store.begin(Mode::Restore).map_err(|_| CommitError::ReadOnly)?;
        tx.store(self.region, 0, &life.0)?;
        tx.commit(lasting(self.store))
    }

    /// Adds a decision, as a part of a transaction. If that does not commit: [`Ledger::forget`].
    pub fn add(&self, tx: &mut Transaction<'t>, tid: Tid, told: &Participants) -> Result<(), RangeError> {
        let told: Vec<(Node, Stay)> = told.iter().map(|(node, stay)| (*node, *stay)).collect();
        for part in told.chunks(IN_BLOCK) {
            let number = {
                let mut blocks = self.lock();
                let number = blocks.free.pop().unwrap_or_else(|| {
                    blocks.fresh += 1;
                    blocks.fresh - 1
                });
                blocks.used.entry(tid).or_default().push(number);
                number
            };
            tx.write(self.region, number * BLOCK, &encode(tid, part))?;
        }
        Ok(())
    }

    /// The blocks of a decision that was not made after all.
    pub fn forget(&self, tid: Tid) {
        let mut blocks = self.lock();
        let its = blocks.used.remove(&tid).unwrap_or_default();
        blocks.free.extend(its);
    }

    /// All know of a decision. That this is forgotten in a crash does no harm.
    pub fn remove(&self, tid: Tid) -> Result<(), CommitError> {
        let its = self.lock().used.remove(&tid).unwrap_or_default();
        let mut tx = self.store.begin(Mode::Restore).map_err(|_| CommitError::ReadOnly)?;
        for number in &its {
            tx.store(self.region, number * BLOCK, &0u32)?;
        }
        tx.commit(Class::Process)?;
        self.lock().free.extend(its);
        Ok(())
    }
}

const USED: [u8; 4] = [1, 0, 0, 0];

fn encode(tid: Tid, told: &[(Node, Stay)]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..4].copy_from_slice(&USED);
    block[4..8].copy_from_slice(&(told.len() as u32).to_le_bytes());
    block[8..8 + TID_BYTES].copy_from_slice(&tid.to_bytes());
    for (at, (node, stay)) in told.iter().enumerate() {
        let at = HEAD + at * 16;
        block[at..at + 8].copy_from_slice(&node.0.to_le_bytes());
        block[at + 8..at + 16].copy_from_slice(&stay.0.to_le_bytes());
    }
    block
}

fn decode(block: &[u8; BLOCK]) -> Option<(Tid, Participants)> {
    let count = u32::from_le_bytes(block[4..8].try_into().expect("four bytes")) as usize;
    if block[..4] != USED || count > IN_BLOCK {
        return None;
    }
    let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    let told = (0..count).map(|at| HEAD + at * 16).map(|at| (Node(word(at)), Stay(word(at + 8))));
    Some((Tid::from_bytes(&block[8..8 + TID_BYTES])?, told.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::word::Protocol;

    fn tid(serial: u64) -> Tid {
        let (coordinator, incarnation) = (Node(1), Incarnation(2));
        Tid { coordinator, incarnation, client: 3, serial, protocol: Protocol::Blocking }
    }

    #[test]
    fn decisions_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::options().create(true).open(dir.path().join("s")).unwrap();
        let region = store.create_segment(SEGMENT, 1 << 20).unwrap().map_all().unwrap();
        let told: Participants = (0..40).map(|node| (Node(node), Stay(node + 100))).collect();
        {
            let (ledger, life, found) = Ledger::open(&store, &region);
            assert!(life == Incarnation(0) && found.is_empty());
            ledger.set_life(Incarnation(7)).unwrap();
            for serial in 0..3 {
                let mut tx = store.begin(Mode::Restore).unwrap();
                ledger.add(&mut tx, tid(serial), &told).unwrap();
                tx.commit(Class::Process).unwrap();
            }
            ledger.remove(tid(0)).unwrap();
            let mut tx = store.begin(Mode::Restore).unwrap();
            ledger.add(&mut tx, tid(3), &told).unwrap();
            drop(tx);
            ledger.forget(tid(3));
        }
        // Behind blocks that were taken and never written.
        {
            let (ledger, ..) = Ledger::open(&store, &region);
            let mut lost = store.begin(Mode::Restore).unwrap();
            let mut made = store.begin(Mode::Restore).unwrap();
            (0..10).for_each(|serial| ledger.add(&mut lost, tid(10 + serial), &told).unwrap());
            ledger.add(&mut made, tid(4), &told).unwrap();
            made.commit(Class::Process).unwrap();
        }
        let (ledger, life, found) = Ledger::open(&store, &region);
        assert_eq!(life, Incarnation(7));
        assert_eq!(found, BTreeMap::from([(tid(1), told.clone()), (tid(2), told.clone()), (tid(4), told)]));
        let blocks = ledger.lock();
        assert_eq!(blocks.free.len() + 3 * 4, blocks.fresh - 1, "none is lost");
    }
}
