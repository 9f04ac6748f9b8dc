//! A node at work: runs what its host wants done on a store, with locks, by threads that may wait.
//!
//! ```text
//!   letters, time, calls  -->  State (host, families), behind one lock  -->  steps
//!   steps: prepare, commit, decide on the store; letters to others; claims to the keeper
//! ```
//!
//! Invariant: nothing waits, for a disk or a lock of a transaction, while it holds the state.

use crate::chase::{self, Chased};
use crate::commit::word::{Node, Outcome, Participants, Protocol, Record, Slot, Vote};
use crate::family::{Family, NotReady};
use crate::host::{Host, Letter, Role, Step, Word};
use crate::id::{News, TID_BYTES, Tid};
use crate::keep::{Claim, Kept};
use crate::node::ledger::Ledger;
use crate::node::outside::{Decision, Outside};
use crate::node::work::Work;
use crate::scope::Report;
use caliburn_engine::{BeginError, Class, Mode, Region, Store};
use caliburn_lock::{Detector, OwnerId, RangeLocks, Standard};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// What a node is in the middle of.
pub(crate) struct State<'t> {
    pub host: Host,
    pub families: HashMap<Tid, Family<Work<'t>>>,
    /// Asked for their votes, while calls of theirs run.
    votes: HashSet<Tid>,
    /// Of what commits here, what has been done here itself.
    works: HashSet<Tid>,
    /// Being prepared; how it has ended meanwhile.
    preparing: HashMap<Tid, Option<Outcome>>,
    /// Transactions that calls outside of any have begun.
    pub own: BTreeSet<u64>,
    pub next_own: u64,
    /// Who has locks, by the numbers that texts give them.
    owners: HashMap<u64, Tid>,
    /// Who has waited for a while for a lock.
    pub stuck: HashSet<OwnerId>,
    /// Victims of deadlocks between nodes, until they have ended here.
    victims: HashSet<Tid>,
}

/// A node.
pub(crate) struct Core<'t> {
    pub store: &'t Store,
    pub regions: BTreeMap<String, &'t Region>,
    pub detector: Detector,
    pub locks: RangeLocks<u32>,
    pub ledger: Ledger<'t>,
    pub outside: Arc<Outside>,
    state: Mutex<State<'t>>,
    /// Something is due earlier than before.
    earlier: Condvar,
}

/// The identifier of a prepared transaction: whose, and with whom.
fn global_id(tid: Tid, participants: &Participants) -> Vec<u8> {
    let mut id = tid.to_bytes().to_vec();
    for (node, stay) in participants {
        id.extend(node.0.to_be_bytes());
        id.extend(stay.0.to_be_bytes());
    }
    id
}

fn from_global_id(id: &[u8]) -> Option<(Tid, Participants)> {
    let tid = Tid::from_bytes(id.get(..TID_BYTES)?)?;
    let word = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
    let pairs = id[TID_BYTES..].chunks_exact(16);
    let whole = pairs.remainder().is_empty();
    let stay = |pair: &[u8]| (Node(word(&pair[..8])), crate::commit::word::Stay(word(&pair[8..])));
    whole.then(|| (tid, pairs.map(stay).collect()))
}

/// What recovery found.
pub(crate) struct Found {
    pub commits: BTreeMap<Tid, Participants>,
    pub slots: BTreeMap<Tid, Participants>,
}

impl<'t> Core<'t> {
    pub fn new(
        store: &'t Store,
        regions: BTreeMap<String, &'t Region>,
        ledger: Ledger<'t>,
        outside: Arc<Outside>,
        host: Host,
    ) -> Core<'t> {
        let detector = Detector::new();
        let state = State {
            host,
            families: HashMap::new(),
            votes: HashSet::new(),
            works: HashSet::new(),
            preparing: HashMap::new(),
            own: BTreeSet::new(),
            next_own: 1,
            owners: HashMap::new(),
            stuck: HashSet::new(),
            victims: HashSet::new(),
        };
        Core {
            store,
            regions,
            locks: detector.range_locks(),
            detector,
            ledger,
            outside,
            state: Mutex::new(state),
            earlier: Condvar::new(),
        }
    }

    /// Before anything is called: locks what is prepared, and asks how it ends.
    pub fn recover(&self, found: Found) {
        let now = self.outside.now();
        let mut steps = Vec::new();
        let mut state = self.state();
        state.host.client_comes(0);
        for prepared in self.store.prepared() {
            let Some((tid, participants)) = from_global_id(&prepared.global_id) else {
                tracing::warn!("a prepared transaction of another program is left as it is");
                continue;
            };
            let mut owner = self.detector.owner();
            for (segment, range) in &prepared.ranges {
                let locked = self.locks.try_lock(&mut owner, &segment.0, range.clone(), Standard::Exclusive);
                debug_assert!(matches!(locked, Ok(true)), "two that are undecided had one lock");
            }
            let mut family = Family::new(Work::recovered(prepared.global_id, owner));
            family.close();
            state.owners.insert(family.top().owner.id().family, tid);
            state.families.insert(tid, family);
            steps.extend(state.host.recover_prepared(tid, participants, now));
        }
        for (tid, participants) in found.commits {
            steps.extend(state.host.recover_commit(tid, participants, now));
        }
        for (tid, participants) in found.slots {
            steps.extend(state.host.sweep(tid, participants, now));
        }
        drop(state);
        self.perform(steps);
    }

    pub fn state(&self) -> MutexGuard<'_, State<'t>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Lets the host act, and does what it wants.
    fn with_host(&self, act: impl FnOnce(&mut Host, Duration) -> Vec<Step>) {
        let steps = self.host_steps(act);
        self.perform(steps);
    }

    fn host_steps(&self, act: impl FnOnce(&mut Host, Duration) -> Vec<Step>) -> Vec<Step> {
        let now = self.outside.now();
        let mut state = self.state();
        let before = state.host.next_due();
        let steps = act(&mut state.host, now);
        if state.host.next_due().is_some_and(|due| before.is_none_or(|before| due < before)) {
            self.earlier.notify_all();
        }
        steps
    }

    /// Begins a family here.
    pub fn begin<'s>(
        &self,
        state: &'s mut State<'t>,
        tid: Tid,
    ) -> Result<&'s mut Family<Work<'t>>, BeginError> {
        match state.families.entry(tid) {
            Entry::Occupied(family) => Ok(family.into_mut()),
            Entry::Vacant(none) => {
                let owner = self.detector.owner();
                state.owners.insert(owner.id().family, tid);
                Ok(none.insert(Family::new(Work::top(self.store.begin(Mode::Restore)?, owner))))
            }
        }
    }

    /// Whether a transaction is the victim of a deadlock between nodes.
    pub fn is_victim(&self, tid: &Tid) -> bool {
        self.state().victims.contains(tid)
    }

    /// Who has waited here for a while, and for whom.
    fn edges(&self) -> Vec<(Tid, Tid)> {
        if self.detector.waiting() == 0 {
            return Vec::new();
        }
        let held_up = self.detector.held_up();
        let state = self.state();
        let mut edges = Vec::new();
        for held in held_up.iter().filter(|held| state.stuck.contains(&held.owner)) {
            let from = state.owners.get(&held.owner.family);
            let to = held.by.iter().filter_map(|(by, _)| state.owners.get(&by.family));
            edges.extend(from.into_iter().flat_map(|from| to.clone().map(move |to| (*from, *to))));
        }
        edges.retain(|(from, to)| from != to);
        edges
    }

    /// Asks the others whether what waits here waits in a circle.
    pub fn chase(&self) {
        let edges = self.edges();
        self.chased(chase::begin(&edges));
    }

    fn chased(&self, chased: Chased) {
        for chase in chased.further {
            let tid = *chase.last().expect("somebody is chased");
            self.outside.post_to_all(tid, &Word::Chase(chase));
        }
        for victim in chased.victims {
            self.outside.post_to_all(victim, &Word::Victim);
            self.is_to_abort(victim);
        }
    }

    /// If it waits here, it learns it where it waits.
    fn is_to_abort(&self, victim: Tid) {
        let mut state = self.state();
        if state.families.contains_key(&victim) && state.host.takes_part(&victim) {
            state.victims.insert(victim);
        }
    }

    /// Tells the host of time, until the node stops.
    pub fn keep_time(&self) {
        let mut state = self.state();
        while !self.outside.is_stopping() {
            let now = self.outside.now();
            let due = state.host.next_due().unwrap_or(now + Duration::from_secs(1));
            if due <= now {
                let steps = state.host.tick(now);
                drop(state);
                // Each may wait for a disk.
                steps.into_iter().for_each(|step| self.outside.decide(Decision::Steps(vec![step])));
                state = self.state();
                continue;
            }
            let wait = (due - now).min(Duration::from_millis(200));
            let waited = self.earlier.wait_timeout(state, wait);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    /// Does what the host wants, and what it wants then.
    pub fn perform(&self, steps: Vec<Step>) {
        let mut steps = VecDeque::from(steps);
        while let Some(step) = steps.pop_front() {
            steps.extend(self.step(step));
        }
    }

    fn step(&self, step: Step) -> Vec<Step> {
        match step {
            Step::Send(letter) if letter.to == self.outside.own => {
                self.host_steps(|host, now| host.receive(letter, now))
            }
            Step::Send(letter) => {
                self.outside.post(letter);
                Vec::new()
            }
            Step::Vote(tid, news) => {
                let mut state = self.state();
                if let Some(family) = state.families.get_mut(&tid) {
                    family.hear(&news);
                    family.close();
                }
                state.votes.insert(tid);
                drop(state);
                self.vote(tid)
            }
            Step::Force(tid, Role::Participant, Record::Prepared(all)) => match self.prepare(tid, &all) {
                Some(true) => {
                    self.host_steps(|host, _| host.durable(tid, Role::Participant, &Record::Prepared(all)))
                }
                Some(false) => self.host_steps(|host, _| host.refused(tid, Role::Participant)),
                None => Vec::new(),
            },
            Step::Force(tid, role, record) => {
                let Record::Commit(told) = &record else { return Vec::new() };
                match self.commit(tid, told) {
                    Some(true) => self.host_steps(|host, _| host.durable(tid, role, &record)),
                    Some(false) => self.host_steps(|host, _| host.refused(tid, role)),
                    None => Vec::new(),
                }
            }
            Step::Write(tid, _, Record::End) => {
                self.unless_failed(self.ledger.remove(tid));
                Vec::new()
            }
            // What was prepared was decided when it was finished, durably.
            Step::Write(tid, role, record) => self.host_steps(|host, _| host.durable(tid, role, &record)),
            Step::Put(tid, role, participants, of, slot) => self.put(tid, role, participants, of, slot),
            Step::Finish(tid, outcome) => {
                self.finish(tid, outcome);
                Vec::new()
            }
            Step::Tell(tid, outcome) => {
                self.outside.tell(tid, outcome);
                Vec::new()
            }
            Step::Delete(tid, participants) => {
                self.outside.delete(tid, participants);
                Vec::new()
            }
        }
    }

    /// Votes, if it was asked and nothing runs any more.
    pub fn vote(&self, tid: Tid) -> Vec<Step> {
        let mut state = self.state();
        if !state.votes.contains(&tid) {
            return Vec::new();
        }
        let vote = match state.families.get_mut(&tid).map(Family::finish) {
            Some(Err(NotReady::Running)) => return Vec::new(),
            None | Some(Err(NotReady::Spoiled)) => Vote::No,
            // The victim of a deadlock, or one that was in others' way for too long.
            Some(Ok(top)) if top.owner.goes_on().is_err() => Vote::No,
            Some(Ok(top)) if top.wrote => Vote::Yes,
            Some(Ok(_)) => Vote::ReadOnly,
        };
        state.votes.remove(&tid);
        drop(state);
        let vote = if vote == Vote::No || self.outside.hooks.allow(tid) { vote } else { Vote::No };
        self.host_steps(|host, now| host.voted(tid, vote, now))
    }

    /// Makes what was done here durable and undecided. Whether it is; nothing if it has ended meanwhile.
    fn prepare(&self, tid: Tid, participants: &Participants) -> Option<bool> {
        let mut state = self.state();
        let top = state.families.get_mut(&tid).and_then(|family| family.finish().ok());
        let Some(transaction) = top.and_then(Work::take) else { return Some(false) };
        state.preparing.insert(tid, None);
        drop(state);
        let id = global_id(tid, participants);
        let done = transaction.prepare(&id);
        let mut state = self.state();
        let ended = state.preparing.remove(&tid).flatten();
        if done.is_ok()
            && let Some(Ok(top)) = state.families.get_mut(&tid).map(Family::finish)
        {
            top.prepared(id);
        }
        drop(state);
        if let Some(outcome) = ended {
            self.finish(tid, outcome);
            return None;
        }
        self.unless_failed(done)
    }

    /// Commits what has been done here, with the decision. Whether it has; nothing if nobody knows.
    fn commit(&self, tid: Tid, told: &Participants) -> Option<bool> {
        let mut state = self.state();
        let works = state.works.contains(&tid);
        let top = state.families.get_mut(&tid).filter(|_| works).and_then(|family| family.finish().ok());
        let mut transaction = match (top.and_then(Work::take), works) {
            (Some(transaction), _) => transaction,
            (None, true) => return Some(false),
            (None, false) => match self.store.begin(Mode::Restore) {
                Ok(transaction) => transaction,
                Err(_) => return None,
            },
        };
        drop(state);
        if let Err(error) = self.ledger.add(&mut transaction, tid, told) {
            tracing::warn!("no room for a decision: {error}");
            drop(transaction);
            self.ledger.forget(tid);
            return Some(false);
        }
        let done = transaction.commit(Class::Power);
        if done.is_err() {
            self.ledger.forget(tid);
        }
        self.unless_failed(done)
    }

    /// Whether it is done. Nothing if the store has failed: then nobody knows, and nothing goes on here.
    fn unless_failed<E: std::fmt::Display>(&self, done: Result<(), E>) -> Option<bool> {
        let Err(error) = done else { return Some(true) };
        match self.store.query().failed {
            true => {
                self.outside.fail(&format!("its store has failed: {error}"));
                None
            }
            false => {
                tracing::warn!("a transaction is refused: {error}");
                Some(false)
            }
        }
    }

    fn put(&self, tid: Tid, role: Role, participants: Participants, of: Node, slot: Slot) -> Vec<Step> {
        let own = self.outside.own;
        if of == own && slot == Slot::Yes {
            let mut state = self.state();
            if state.preparing.contains_key(&tid) {
                return Vec::new();
            }
            let family = state.families.get_mut(&tid).map(Family::finish);
            let Some(Ok(top)) = family else { return Vec::new() };
            let to_prepare = top.wrote && top.global_id().is_none();
            drop(state);
            if to_prepare {
                match self.prepare(tid, &participants) {
                    Some(true) => {}
                    Some(false) => return self.host_steps(|host, _| host.refused(tid, role)),
                    None => return Vec::new(),
                }
            }
        }
        let life = self.outside.incarnation;
        self.outside.claim(Claim { tid, by: own, life, role, participants, of, slot });
        Vec::new()
    }

    /// An answer of the keeper.
    fn kept(&self, claim: &Claim, kept: Kept) {
        match kept {
            Kept::Slot(slot) => self.with_host(|host, _| host.slot(claim.tid, claim.role, claim.of, slot)),
            Kept::Fenced => {
                self.outside.fail("another process has its identity: it lives another life there")
            }
        }
    }

    /// What was done here stays, or is undone.
    fn finish(&self, tid: Tid, outcome: Outcome) {
        let mut state = self.state();
        state.votes.remove(&tid);
        state.works.remove(&tid);
        if let Some(ended) = state.preparing.get_mut(&tid) {
            *ended = Some(outcome);
            return;
        }
        state.victims.remove(&tid);
        let Some(mut family) = state.families.remove(&tid) else { return };
        if outcome == Outcome::Aborted {
            family.abort();
            if family.runs() {
                // What runs goes on, for nothing, until it looks.
                state.families.insert(tid, family);
                return;
            }
        }
        state.owners.remove(&family.top().owner.id().family);
        drop(state);
        let top = family.into_top();
        if let Some(id) = top.global_id() {
            let done = match outcome {
                Outcome::Committed => self.store.commit_prepared(id),
                Outcome::Aborted => self.store.abort_prepared(id),
            };
            if self.unless_failed(done) != Some(true) {
                // Nobody may have its locks.
                std::mem::forget(top);
                return;
            }
        } else {
            drop(top);
        }
        self.outside.hooks.ended(tid, outcome);
    }

    /// A call has ended; perhaps its family was waited for.
    pub fn call_ended(&self, tid: Tid) {
        let mut state = self.state();
        let over = state.families.get(&tid).is_some_and(|family| !family.runs())
            && !state.host.takes_part(&tid)
            && !state.works.contains(&tid);
        // Of an orphan nobody tells.
        let family = if over { state.families.remove(&tid) } else { None };
        if let Some(family) = &family {
            state.owners.remove(&family.top().owner.id().family);
        }
        drop(state);
        drop(family);
        let steps = self.vote(tid);
        self.perform(steps);
    }

    /// Ends a transaction that was begun here, as its program wants: [`Outside::tell`] says how it did.
    pub fn end(&self, tid: Tid, commits: bool, report: Report) {
        let own = self.outside.own;
        let Report { used: mut participants, touched, untold: mut news } = report;
        let mut vote = None;
        if commits
            && tid.protocol == Protocol::Blocking
            && let Some(stay) = participants.remove(&own)
        {
            let mut state = self.state();
            let is_it = state.host.stay(&tid) == Some(stay);
            if let Some(family) = state.families.get_mut(&tid).filter(|_| is_it) {
                family.hear(&news.remove(&own).unwrap_or_else(News::new));
                family.close();
                vote = match family.finish() {
                    Ok(top) if top.owner.goes_on().is_err() => None,
                    Ok(top) if top.wrote => Some(Vote::Yes),
                    Ok(_) => Some(Vote::ReadOnly),
                    Err(_) => None,
                };
            }
            drop(state);
            vote = vote.filter(|_| self.outside.hooks.allow(tid));
            if vote == Some(Vote::Yes) {
                self.state().works.insert(tid);
            }
            match vote {
                Some(Vote::ReadOnly) => self.finish(tid, Outcome::Committed),
                Some(_) => {}
                None => return self.abort(tid, &touched),
            }
        }
        if !commits {
            return self.abort(tid, &touched);
        }
        let others = touched.iter().filter(|node| !participants.contains_key(node) && **node != own);
        let mut others: BTreeSet<Node> = others.copied().collect();
        if vote.is_none() && touched.contains(&own) && !participants.contains_key(&own) {
            others.insert(own);
        }
        self.with_host(|host, now| host.commit(tid, participants, news, &others, vote, now));
    }

    fn abort(&self, tid: Tid, touched: &BTreeSet<Node>) {
        self.with_host(|host, _| host.abort(tid, touched));
        self.outside.tell(tid, Outcome::Aborted);
    }

    /// Decides what there is to decide.
    pub fn decide(&self, decision: Decision) {
        match decision {
            Decision::Letter(Letter { word: Word::Chase(chase), .. }) => {
                self.chased(chase::follow(&self.edges(), &chase));
            }
            Decision::Letter(Letter { tid, word: Word::Victim, .. }) => self.is_to_abort(tid),
            Decision::Letter(letter) => self.with_host(|host, now| host.receive(letter, now)),
            Decision::Chase => self.chase(),
            Decision::Steps(steps) => self.perform(steps),
            Decision::Kept(claim, kept) => self.kept(&claim, kept),
            Decision::Sweep(all) => {
                for (tid, participants) in all {
                    self.with_host(|host, now| host.sweep(tid, participants, now));
                }
            }
            Decision::End(tid, commits, report, below) => {
                self.end(tid, commits, report);
                self.state().host.client_has_ended(tid.client, below);
            }
            Decision::Comes(client, can_begin) => {
                self.state().host.client_comes(client);
                let _ = can_begin.send(());
            }
            Decision::Goes(client) => self.state().host.client_goes(client),
            Decision::Stop => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::word::{Incarnation, Stay};

    #[test]
    fn an_identifier_names_all_participants() {
        let (coordinator, incarnation) = (Node(1), Incarnation(2));
        let tid = Tid { coordinator, incarnation, client: 3, serial: 4, protocol: Protocol::Slots };
        let all: Participants = (0..50).map(|node| (Node(node), Stay(node << 40))).collect();
        assert_eq!(from_global_id(&global_id(tid, &all)), Some((tid, all)));
        assert_eq!(from_global_id(b"another program's"), None);
    }
}
