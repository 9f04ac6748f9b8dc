//! What a node remembers itself, in recoverable memory: its life, what it knows of its keeper, and the commits that
//! it has decided, or done without blocking, and not all participants know of.
//!
//! ```text
//!   block 0: the life, whether it has begun, the clock's bound, the keeper | the last order to forget the bound
//!   block 1 .. : one decision each, or a part of one
//!   used | count | identity, padded | node, stay | node, stay | ...
//!   judged | how | and otherwise | identity, padded          in a block of its own
//! ```
//!
//! A decision is written in the transaction that commits what the node has changed itself: one force for both. What
//! is committed without blocking is remembered before it is decided in the store: it is in front of that in the log.

use crate::commit::word::{Incarnation, Node, Outcome, Participants, Protocol, Stay};
use crate::id::{TID_BYTES, Tid};
use crate::keep::known::Known;
use caliburn_engine::{Class, CommitError, Mode, RangeError, Region, Store, Transaction};
use caliburn_os::simulated::unless;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};

/// The segment's name. No program's may be called so.
pub(crate) const SEGMENT: &str = "caliburn-node";
/// Room for 65,535 decisions of which not all know: what there are more is refused.
pub(crate) const SEGMENT_BYTES: u64 = 16 << 20;

/// Where the clock's bound is.
pub(crate) const CLOCK: usize = 16;

/// Where it is what the node knows of its keeper: 1, or 0 if nothing | identity | etcd | revision | mark | and the
/// last life that had another keeper, which was lost.
const KEEPER: usize = 64;
const KEEPER_BYTES: usize = 56;

const BLOCK: usize = 256;
/// The last order to forget that bound, at the end of block 0.
const FORGOT: usize = BLOCK - 8;
const HEAD: usize = 48;
const IN_BLOCK: usize = (BLOCK - HEAD) / 16;

/// What the node's own commits survive: the loss of the machine, if its log is replicated.
pub(crate) fn lasting(store: &Store) -> Class {
    store.reach().max(Class::Power)
}

/// What an administrator has decided, in place of a coordinator that did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// Which transaction.
    pub tid: Tid,
    /// How it was made to end here.
    pub outcome: Outcome,
    /// How it has ended everywhere else, if that is known and is not the same: somebody must mend what depends on
    /// it.
    pub otherwise: Option<Outcome>,
}

/// The decisions.
pub(crate) struct Ledger<'t> {
    store: &'t Store,
    region: &'t Region,
    blocks: Mutex<Blocks>,
    judged: Mutex<BTreeMap<Tid, (usize, Judgement)>>,
    /// An operator has accepted another keeper: nothing is written of the former one any more.
    accepted: Mutex<bool>,
}

#[derive(Default)]
struct Blocks {
    free: Vec<usize>,
    /// The first that was never used.
    fresh: usize,
    used: HashMap<Tid, Vec<usize>>,
}

impl Blocks {
    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.fresh += 1;
            self.fresh - 1
        })
    }
}

impl<'t> Ledger<'t> {
    /// Reads it: the last life, and what was decided.
    pub fn open(
        store: &'t Store,
        region: &'t Region,
    ) -> (Ledger<'t>, Incarnation, BTreeMap<Tid, Participants>) {
        let mut judged = BTreeMap::new();
        let (mut blocks, mut found) = (Blocks { fresh: 1, ..Blocks::default() }, BTreeMap::new());
        let mut block = [0; BLOCK];
        for number in 1..region.len() / BLOCK {
            region.read(number * BLOCK, &mut block);
            // Any of them may be free: what took it may not have committed, or all know.
            let is_used = if let Some((tid, participants)) = decode(&block) {
                found.entry(tid).or_insert_with(Participants::new).extend(participants);
                blocks.used.entry(tid).or_default().push(number);
                true
            } else if let Some(judgement) = decode_judgement(&block) {
                judged.insert(judgement.tid, (number, judgement));
                true
            } else {
                false
            };
            if is_used {
                let before = std::mem::replace(&mut blocks.fresh, number + 1);
                blocks.free.extend(before..number);
            }
        }
        let life = Incarnation(region.load(0));
        let (blocks, judged, accepted) = (Mutex::new(blocks), Mutex::new(judged), Mutex::new(false));
        (Ledger { store, region, blocks, judged, accepted }, life, found)
    }

    /// What the node knows of its keeper, and the last life in which it had another one.
    pub fn keeper(&self) -> (Known, Incarnation) {
        decode_keeper(self.region)
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

    /// Remembers which life this is, and what is known of the keeper now.
    pub fn set_life(&self, life: Incarnation, known: &Known) -> Result<(), CommitError> {
        let accepted = self.accepted();
        let mut tx = self.store.begin(Mode::Restore).map_err(|_| CommitError::ReadOnly)?;
        tx.store(self.region, 0, &life.0)?;
        self.put_known(&mut tx, *accepted, known)?;
        tx.commit(lasting(self.store))
    }

    fn accepted(&self) -> MutexGuard<'_, bool> {
        self.accepted.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// One at a time: the caller has the lock.
    fn put_known(&self, tx: &mut Transaction<'t>, accepted: bool, known: &Known) -> Result<(), RangeError> {
        match known.identity.filter(|_| !accepted) {
            Some(_) => tx.write(self.region, KEEPER, &encode_keeper(known)),
            None => Ok(()),
        }
    }

    /// An operator has judged what an earlier keeper has left: the next life learns of the keeper that there is.
    pub fn accept(&self, life: Incarnation) -> Result<(), CommitError> {
        let mut accepted = self.accepted();
        let mut tx = self.store.begin(Mode::Restore).map_err(|_| CommitError::ReadOnly)?;
        tx.write(self.region, KEEPER, &[0; KEEPER_BYTES - 8])?;
        tx.store(self.region, KEEPER + KEEPER_BYTES - 8, &life.0)?;
        tx.commit(lasting(self.store))?;
        *accepted = true;
        Ok(())
    }

    /// Takes room for what will perhaps be committed without blocking. Whether there is some.
    pub fn reserve(&self, tid: Tid, count: usize) -> bool {
        let mut blocks = self.lock();
        if blocks.used.contains_key(&tid) {
            return true;
        }
        let needed = count.div_ceil(IN_BLOCK);
        let fresh = self.region.len() / BLOCK - blocks.fresh;
        if blocks.free.len() + fresh < needed {
            return false;
        }
        let taken = (0..needed).map(|_| blocks.take()).collect();
        blocks.used.insert(tid, taken);
        true
    }

    /// Remembers what was committed without blocking, and what is known of the keeper that the decision relies on:
    /// not forced, but in the log before all that is written later.
    pub fn remember(&self, tid: Tid, told: Option<&Participants>, known: &Known) -> Result<(), CommitError> {
        let accepted = self.accepted();
        let mut tx = self.store.begin(Mode::Restore).map_err(|_| CommitError::ReadOnly)?;
        match told {
            Some(told) if unless("commits-not-remembered", true) => {
                self.reserve(tid, told.len());
                let numbers = self.lock().used.get(&tid).cloned().unwrap_or_default();
                let told: Vec<(Node, Stay)> = told.iter().map(|(node, stay)| (*node, *stay)).collect();
                for (part, number) in told.chunks(IN_BLOCK).zip(numbers) {
                    tx.write(self.region, number * BLOCK, &encode(tid, part))?;
                }
            }
            _ => {}
        }
        self.put_known(&mut tx, *accepted, known)?;
        tx.commit(Class::Process)
    }

    /// Makes durable what is known of the keeper, before somebody is told what relies on it.
    pub fn know(&self, known: &Known) -> Result<(), CommitError> {
        let accepted = self.accepted();
        let mut tx = self.store.begin(Mode::Restore).map_err(|_| CommitError::ReadOnly)?;
        self.put_known(&mut tx, *accepted, known)?;
        tx.commit(lasting(self.store))
    }

    /// Forgets the clock's bound: what it was, if it did. An order is obeyed once.
    pub fn forget_clock(&self, order: Option<u64>) -> Result<Option<u64>, CommitError> {
        let before = self.region.load::<u64>(FORGOT);
        if order.is_some_and(|order| unless("clock-forgotten-again", order == before)) {
            return Ok(None);
        }
        let bound = self.region.load::<u64>(CLOCK);
        let mut tx = self.store.begin(Mode::Restore).map_err(|_| CommitError::ReadOnly)?;
        tx.store(self.region, CLOCK, &[0u64; 2])?;
        tx.store(self.region, FORGOT, &order.unwrap_or(before))?;
        tx.commit(lasting(self.store))?;
        Ok(Some(bound))
    }

    /// Adds a decision, as a part of a transaction. If that does not commit: [`Ledger::forget`].
    pub fn add(&self, tx: &mut Transaction<'t>, tid: Tid, told: &Participants) -> Result<(), RangeError> {
        let told: Vec<(Node, Stay)> = told.iter().map(|(node, stay)| (*node, *stay)).collect();
        for part in told.chunks(IN_BLOCK) {
            let number = {
                let mut blocks = self.lock();
                let number = blocks.take();
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

/// What judgements need, apart from the decisions.
impl Ledger<'_> {
    fn judged(&self) -> MutexGuard<'_, BTreeMap<Tid, (usize, Judgement)>> {
        self.judged.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Those that were not settled, or were wrong.
    pub fn judgements(&self) -> Vec<Judgement> {
        self.judged().values().map(|(_, judgement)| *judgement).collect()
    }

    /// Remembers a judgement, durably.
    pub fn judge(&self, tid: Tid, outcome: Outcome) -> Result<(), CommitError> {
        let number = self.lock().take();
        let judgement = Judgement { tid, outcome, otherwise: None };
        let done = self.put(number, &encode_judgement(&judgement));
        match done {
            Ok(()) => _ = self.judged().insert(tid, (number, judgement)),
            Err(_) => self.lock().free.push(number),
        }
        done
    }

    /// How it has ended everywhere else is known: a judgement that was right is forgotten, another one is kept.
    pub fn settle(&self, tid: Tid, right: bool) -> Result<(), CommitError> {
        let Some((number, mut judgement)) = self.judged().get(&tid).copied() else { return Ok(()) };
        if right {
            return self.remove_judgement(tid, number);
        }
        let otherwise = match judgement.outcome {
            Outcome::Committed => Outcome::Aborted,
            Outcome::Aborted => Outcome::Committed,
        };
        judgement.otherwise = Some(otherwise);
        self.put(number, &encode_judgement(&judgement))?;
        self.judged().insert(tid, (number, judgement));
        Ok(())
    }

    /// Forgets one that was wrong, or that nobody can compare. Whether there was one.
    pub fn forget_judgement(&self, tid: Tid) -> Result<bool, CommitError> {
        let known = |judgement: &Judgement| {
            judgement.otherwise.is_some() || judgement.tid.protocol == Protocol::Slots
        };
        let wrong = self.judged().get(&tid).copied().filter(|(_, judgement)| known(judgement));
        wrong.map_or(Ok(false), |(number, _)| self.remove_judgement(tid, number).map(|()| true))
    }

    fn remove_judgement(&self, tid: Tid, number: usize) -> Result<(), CommitError> {
        self.put(number, &[0; 4])?;
        self.judged().remove(&tid);
        self.lock().free.push(number);
        Ok(())
    }

    fn put(&self, number: usize, bytes: &[u8]) -> Result<(), CommitError> {
        let mut tx = self.store.begin(Mode::Restore).map_err(|_| CommitError::ReadOnly)?;
        tx.write(self.region, number * BLOCK, bytes)?;
        tx.commit(lasting(self.store))
    }
}

fn encode_keeper(known: &Known) -> [u8; KEEPER_BYTES - 8] {
    let mut bytes = [0; KEEPER_BYTES - 8];
    if let Some(identity) = known.identity {
        bytes[0] = 1;
        bytes[8..24].copy_from_slice(&identity);
    }
    for (at, word) in [known.etcd, known.revision, known.mark].into_iter().enumerate() {
        bytes[24 + at * 8..32 + at * 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn decode_keeper(region: &Region) -> (Known, Incarnation) {
    let mut bytes = [0; KEEPER_BYTES];
    region.read(KEEPER, &mut bytes);
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let accepted = Incarnation(word(KEEPER_BYTES - 8));
    if bytes[0] != 1 {
        return (Known::default(), accepted);
    }
    let identity = Some(bytes[8..24].try_into().expect("sixteen bytes"));
    (Known { identity, etcd: word(24), revision: word(32), mark: word(40) }, accepted)
}

const JUDGED: u8 = 2;

fn encode_judgement(judgement: &Judgement) -> [u8; HEAD] {
    let code = |outcome: Outcome| match outcome {
        Outcome::Committed => 1,
        Outcome::Aborted => 2,
    };
    let mut block = [0; HEAD];
    block[..3].copy_from_slice(&[JUDGED, code(judgement.outcome), judgement.otherwise.map_or(0, code)]);
    block[8..8 + TID_BYTES].copy_from_slice(&judgement.tid.to_bytes());
    block
}

fn decode_judgement(block: &[u8; BLOCK]) -> Option<Judgement> {
    let outcome = |code: u8| match code {
        1 => Some(Outcome::Committed),
        2 => Some(Outcome::Aborted),
        _ => None,
    };
    if block[0] != JUDGED {
        return None;
    }
    let tid = Tid::from_bytes(&block[8..8 + TID_BYTES])?;
    Some(Judgement { tid, outcome: outcome(block[1])?, otherwise: outcome(block[2]) })
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

    fn tid(serial: u64) -> Tid {
        let (coordinator, incarnation) = (Node(1), Incarnation(2));
        Tid { coordinator, incarnation, client: 3, serial, protocol: Protocol::Blocking }
    }

    #[test]
    fn judgements_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::options().create(true).open(dir.path().join("s")).unwrap();
        let region = store.create_segment(SEGMENT, 1 << 20).unwrap().map_all().unwrap();
        {
            let (ledger, ..) = Ledger::open(&store, &region);
            (0..3).for_each(|serial| ledger.judge(tid(serial), Outcome::Aborted).unwrap());
            ledger.settle(tid(0), true).unwrap();
            ledger.settle(tid(1), false).unwrap();
        }
        let (ledger, _, found) = Ledger::open(&store, &region);
        assert!(found.is_empty());
        let judged = |serial, otherwise| Judgement { tid: tid(serial), outcome: Outcome::Aborted, otherwise };
        assert_eq!(ledger.judgements(), [judged(1, Some(Outcome::Committed)), judged(2, None)]);
        assert!(!ledger.forget_judgement(tid(2)).unwrap(), "nobody knows yet");
        assert!(ledger.forget_judgement(tid(1)).unwrap());
        let (ledger, ..) = Ledger::open(&store, &region);
        assert_eq!(ledger.judgements(), [judged(2, None)]);
        // A decision takes what is free, and nothing else.
        let mut tx = store.begin(Mode::Restore).unwrap();
        let told: Participants = (0..40).map(|node| (Node(node), Stay(1))).collect();
        ledger.add(&mut tx, tid(9), &told).unwrap();
        tx.commit(Class::Process).unwrap();
        let (ledger, _, found) = Ledger::open(&store, &region);
        assert_eq!((ledger.judgements(), found), (vec![judged(2, None)], BTreeMap::from([(tid(9), told)])));
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
            ledger.set_life(Incarnation(7), &Known::default()).unwrap();
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

    #[test]
    fn blocks_come_back_at_every_corner() {
        let corners = [0, 1, u64::MAX];
        let tids = corners.into_iter().flat_map(|number| {
            let (coordinator, incarnation) = (Node(number), Incarnation(number));
            let of = |protocol| Tid { coordinator, incarnation, client: number, serial: number, protocol };
            [Protocol::Blocking, Protocol::Slots].map(of)
        });
        let outcomes = [Outcome::Committed, Outcome::Aborted];
        for tid in tids {
            for (count, word) in
                [0, 1, IN_BLOCK].into_iter().flat_map(|count| corners.map(|word| (count, word)))
            {
                let told: Vec<_> =
                    (0..count as u64).map(|node| (Node(word - word.min(node)), Stay(word))).collect();
                let block = encode(tid, &told);
                assert_eq!(decode(&block), Some((tid, told.iter().copied().collect())));
                assert_eq!(decode_judgement(&block), None);
            }
            for outcome in outcomes {
                for otherwise in outcomes.map(Some).into_iter().chain([None]) {
                    let judgement = Judgement { tid, outcome, otherwise };
                    let mut block = [0; BLOCK];
                    block[..HEAD].copy_from_slice(&encode_judgement(&judgement));
                    assert_eq!((decode_judgement(&block), decode(&block)), (Some(judgement), None));
                }
            }
        }
        assert_eq!((decode(&[0; BLOCK]), decode_judgement(&[0; BLOCK])), (None, None), "it is free");
    }

    #[test]
    fn what_is_known_of_a_keeper_comes_back_at_every_corner() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::options().create(true).open(dir.path().join("s")).unwrap();
        let region = store.create_segment(SEGMENT, 1 << 20).unwrap().map_all().unwrap();
        let known = || Ledger::open(&store, &region).0.keeper();
        assert_eq!(known(), (Known::default(), Incarnation(0)));
        for (identity, word) in
            [[0; 16], [0xFF; 16]].into_iter().flat_map(|id| [0, 1, u64::MAX].map(|word| (id, word)))
        {
            let (ledger, ..) = Ledger::open(&store, &region);
            let some = Known { identity: Some(identity), etcd: word, revision: !word, mark: word ^ 1 };
            ledger.set_life(Incarnation(word), &some).unwrap();
            let accepted = known().1;
            assert_eq!(known(), (some, accepted), "an identity of zeros is one");
            // Nothing is known of the next one.
            ledger.accept(Incarnation(word)).unwrap();
            assert_eq!(known(), (Known::default(), Incarnation(word)));
            // Nor does this life write of the former one any more.
            ledger.know(&some).unwrap();
            assert_eq!(known(), (Known::default(), Incarnation(word)));
            assert_eq!(Ledger::open(&store, &region).1, Incarnation(word));
        }
    }
}
