//! What a node is in the middle of, behind one lock: its host, and families with what they hold.
//!
//! Invariant: what the host says has ended leaves the state before anybody else looks at it. Whatever is called from
//! then on is another stay, and finds nothing of it.

use crate::commit::word::{Node, Outcome, Participants, Record, Stay, Vote};
use crate::family::Family;
use crate::host::{Host, Role, Step};
use crate::id::{Path, TID_BYTES, Tid};
use crate::node::work::Work;
use crate::scope::Report;
use caliburn_engine::Ticket;
use caliburn_lock::Canceller;
use caliburn_nest::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What a node is in the middle of.
pub(crate) struct State<'t> {
    pub host: Host,
    pub families: HashMap<Tid, Family<Work<'t>>>,
    /// Asked for their votes, while calls of theirs run.
    pub votes: HashSet<Tid>,
    /// Of what commits here, what has been done here itself.
    pub works: HashSet<Tid>,
    pub preparing: HashMap<Tid, Preparing<'t>>,
    /// Transactions that calls outside of any have begun.
    pub own: BTreeSet<u64>,
    pub next_own: u64,
    /// Who has locks, by the numbers that texts give them.
    pub owners: HashMap<u64, Tid>,
    /// What tells the calls that run to abort.
    pub running: BTreeMap<(Tid, Path), Canceller>,
    /// Victims of deadlocks between nodes, until they have ended here.
    pub victims: HashSet<Tid>,
    /// To be committed when what runs here has ended.
    pub ending: HashMap<Tid, Ending>,
    /// Remembered for others when slots were last looked for.
    pub told_before: HashSet<Tid>,
    /// Decided, and not durably yet.
    pub unforced: HashMap<Tid, Ticket>,
}

/// What is being prepared, and what has happened meanwhile.
#[derive(Default)]
pub(crate) struct Preparing<'t> {
    pub ended: Option<(Outcome, Family<Work<'t>>)>,
    /// A record of how: it is durable when that is decided, which can't be yet.
    pub record: Option<(Role, Record)>,
}

/// What is to commit when what runs here has ended.
pub(crate) struct Ending {
    /// The stay here that its program knows.
    pub stay: Stay,
    pub report: Report,
}

/// What is to be done.
pub(crate) enum Doing<'t> {
    Step(Step),
    /// A family that has left the state.
    Ended(Tid, Outcome, Family<Work<'t>>),
}

impl<'t> State<'t> {
    /// One that begins.
    pub fn new(host: Host) -> State<'t> {
        State {
            host,
            families: HashMap::new(),
            votes: HashSet::new(),
            works: HashSet::new(),
            preparing: HashMap::new(),
            own: BTreeSet::new(),
            next_own: 1,
            owners: HashMap::new(),
            running: BTreeMap::new(),
            victims: HashSet::new(),
            ending: HashMap::new(),
            told_before: HashSet::new(),
            unforced: HashMap::new(),
        }
    }

    /// What has ended leaves the state, and is done with later: undone, or decided.
    pub fn begin_to_end(&mut self, steps: Vec<Step>) -> Vec<Doing<'t>> {
        let doing = steps.into_iter().filter_map(|step| match step {
            Step::Finish(tid, outcome) => {
                self.leave(tid, outcome).map(|family| Doing::Ended(tid, outcome, family))
            }
            step => Some(Doing::Step(step)),
        });
        doing.collect()
    }

    /// The family, unless it is waited for.
    fn leave(&mut self, tid: Tid, outcome: Outcome) -> Option<Family<Work<'t>>> {
        self.votes.remove(&tid);
        self.works.remove(&tid);
        self.victims.remove(&tid);
        let mut family = self.families.remove(&tid)?;
        if let Some(preparing) = self.preparing.get_mut(&tid) {
            debug_assert!(preparing.ended.is_none(), "nothing began in between");
            self.owners.remove(&family.top().owner.id().family);
            preparing.ended = Some((outcome, family));
            return None;
        }
        if outcome == Outcome::Aborted {
            family.abort();
            if family.runs() {
                // What runs goes on, for nothing, until it looks. Nothing more begins in it.
                self.families.insert(tid, family);
                self.cancel(tid);
                return None;
            }
        }
        self.owners.remove(&family.top().owner.id().family);
        Some(family)
    }

    /// Whether something of a stay that has ended, or is about to, is left here: nothing begins until it is gone.
    pub fn is_leaving(&self, tid: &Tid) -> bool {
        self.preparing.contains_key(tid)
            || self.ending.contains_key(tid)
            || self.families.get(tid).is_some_and(Family::has_aborted)
    }

    /// Tells calls of a transaction that run for nothing.
    pub fn cancel(&mut self, tid: Tid) {
        let Some(family) = self.families.get(&tid) else { return };
        let all = self.victims.contains(&tid);
        let its = self.running.range((tid, Path::default())..).take_while(|((of, _), _)| *of == tid);
        for ((_, path), canceller) in its {
            if all || family.is_doomed(path) {
                canceller.cancel();
            }
        }
    }

    /// How a transaction that commits here votes for its own work; nothing if it can't commit.
    pub fn own_vote(&mut self, tid: Tid, stay: Stay) -> Option<Vote> {
        if self.host.stay(&tid) != Some(stay) {
            return None;
        }
        let top = self.families.get_mut(&tid)?.finish().ok()?;
        top.owner.goes_on().ok()?;
        Some(if top.wrote { Vote::Yes } else { Vote::ReadOnly })
    }
}

/// The identifier of a prepared transaction: whose, when, if it commits, and with whom.
pub(crate) fn global_id(tid: Tid, at: Timestamp, participants: &Participants) -> Vec<u8> {
    let mut id = tid.to_bytes().to_vec();
    id.extend(at.0.to_be_bytes());
    for (node, stay) in participants {
        id.extend(node.0.to_be_bytes());
        id.extend(stay.0.to_be_bytes());
    }
    id
}

pub(crate) fn from_global_id(id: &[u8]) -> Option<(Tid, Timestamp, Participants)> {
    let (tid, rest) = id.split_at_checked(TID_BYTES)?;
    // Those of the first version had no timestamp.
    let (at, rest) = if rest.len() % 16 == 8 { rest.split_at(8) } else { (&[0; 8][..], rest) };
    let word = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
    let pairs = rest.chunks_exact(16);
    let whole = pairs.remainder().is_empty();
    let stay = |pair: &[u8]| (Node(word(&pair[..8])), Stay(word(&pair[8..])));
    Some((Tid::from_bytes(tid)?, Timestamp(word(at)), pairs.map(stay).collect())).filter(|_| whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::word::{Incarnation, Protocol};

    #[test]
    fn an_identifier_names_all_participants() {
        let (coordinator, incarnation) = (Node(1), Incarnation(2));
        let tid = Tid { coordinator, incarnation, client: 3, serial: 4, protocol: Protocol::Slots };
        let all: Participants = (0..50).map(|node| (Node(node), Stay(node << 40))).collect();
        let at = Timestamp(5);
        assert_eq!(from_global_id(&global_id(tid, at, &all)), Some((tid, at, all)));
        for word in [0, 1, u64::MAX] {
            let all = Participants::from([(Node(word), Stay(word)), (Node(!word), Stay(!word))]);
            let id = global_id(tid, Timestamp(word), &all);
            assert_eq!(from_global_id(&id), Some((tid, Timestamp(word), all)));
            let id = global_id(tid, Timestamp(word), &Participants::new());
            assert_eq!(from_global_id(&id), Some((tid, Timestamp(word), Participants::new())));
        }
        let former: Vec<u8> = [&tid.to_bytes()[..], &[0; 32]].concat();
        assert!(from_global_id(&former).is_some_and(|(_, at, all)| at.0 == 0 && all.len() == 1));
        assert_eq!(from_global_id(b"another program's"), None);
    }
}
