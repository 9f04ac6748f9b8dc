//! A node at work: runs what its host wants done on a store, with locks, by threads that may wait.
//!
//! ```text
//!   letters, time, calls  -->  State (host, families), behind one lock  -->  steps
//!   steps: prepare, commit, decide on the store; letters to others; claims to the keeper
//! ```
//!
//! Invariant: nothing waits, for a disk or a lock of a transaction, while it holds the state.

use crate::commit::word::{Node, Outcome, Participants, Protocol, Record, Slot, Vote};
use crate::family::{Family, NotReady};
use crate::host::{Host, Role, Step};
use crate::id::Tid;
use crate::keep::Claim;
use crate::letter::{Brief, Letter, Word};
use crate::node::heaps;
use crate::node::ledger::{Ledger, lasting};
use crate::node::outside::{Decision, Outside};
use crate::node::state::{Doing, Preparing, State, from_global_id, global_id};
use crate::node::work::Work;
use caliburn_engine::{BeginError, Mode, Region, Store};
use caliburn_heap::{Heap, HeapError};
use caliburn_lock::{Canceller, Detector, Locks, RangeLocks, Standard};
use caliburn_nest::{Clock, Timestamp};
use caliburn_os::simulated::{even_if, planted, unless};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// When a program is told that a transaction has ended here.
pub(super) enum Hook {
    Now,
    /// Whoever ends it must not wait.
    Later,
}

/// What a program may call a lock, beside the bytes that it is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    /// This number.
    Number(u64),
    /// All of them: recovery does not know those of what it has found undecided. Whoever locks a name has the
    /// intention here first.
    Any,
}

/// What became of what was to be prepared.
enum Made {
    Durable,
    /// It is not, and never will be.
    Refused,
    /// Somebody else says so; or it has ended; or the node has failed.
    Elsewhere,
}

/// A node.
pub(crate) struct Core<'t> {
    pub store: &'t Store,
    pub regions: BTreeMap<String, &'t Region>,
    pub heaps: &'t [Heap],
    pub detector: Detector,
    pub locks: RangeLocks<u32>,
    pub names: Locks<Name, Standard>,
    pub ledger: Ledger<'t>,
    pub clock: Clock<'t>,
    pub outside: Arc<Outside>,
    state: Mutex<State<'t>>,
    /// Something is due earlier than before.
    earlier: Condvar,
}

impl<'t> Core<'t> {
    pub fn new(
        store: &'t Store,
        (regions, heaps): (BTreeMap<String, &'t Region>, &'t [Heap]),
        ledger: Ledger<'t>,
        clock: Clock<'t>,
        outside: Arc<Outside>,
        host: Host,
    ) -> Core<'t> {
        let detector = Detector::new();
        Core {
            store,
            regions,
            heaps,
            locks: detector.range_locks(),
            names: detector.locks(),
            detector,
            ledger,
            clock,
            outside,
            state: Mutex::new(State::new(host)),
            earlier: Condvar::new(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State<'t>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Lets the host act, and does what it wants.
    pub(super) fn with_host(&self, act: impl FnOnce(&mut Host, Duration) -> Vec<Step>) {
        let doing = self.host_steps(act);
        self.perform(doing);
    }

    /// What the host says has ended leaves the state in the same critical section: whatever is called from then on
    /// is another stay, and finds nothing of it.
    pub fn host_steps(&self, act: impl FnOnce(&mut Host, Duration) -> Vec<Step>) -> Vec<Doing<'t>> {
        self.state_steps(|state, now| act(&mut state.host, now))
    }

    pub(super) fn state_steps(
        &self,
        act: impl FnOnce(&mut State<'t>, Duration) -> Vec<Step>,
    ) -> Vec<Doing<'t>> {
        let now = self.outside.now();
        let mut state = self.state();
        let before = state.host.next_due();
        let steps = act(&mut state, now);
        let doing = state.begin_to_end(steps);
        if state.host.next_due().is_some_and(|due| before.is_none_or(|before| due < before)) {
            self.earlier.notify_all();
        }
        doing
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
                let (transaction, owner) = (self.store.begin(Mode::Restore)?, self.detector.owner());
                state.owners.insert(owner.id().family, tid);
                Ok(none.insert(Family::new(Work::top(transaction, owner))))
            }
        }
    }

    /// A panic in the middle of what the node decides leaves it in nobody knows what state: it stops, and recovers
    /// when it runs again.
    pub fn or_fail(&self, act: impl FnOnce()) {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err() {
            self.outside.fail("it has panicked: this is a bug");
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
                let doing = state.begin_to_end(steps);
                drop(state);
                for doing in doing {
                    match doing {
                        // It may wait for a disk.
                        Doing::Step(step) => self.outside.decide(Decision::Steps(vec![step])),
                        // What nobody has prepared is undone in memory.
                        Doing::Ended(tid, outcome, family) => {
                            self.end_family(tid, outcome, family, Hook::Later);
                        }
                    }
                }
                state = self.state();
                continue;
            }
            let wait = (due - now).min(Duration::from_millis(200));
            let waited = self.earlier.wait_timeout(state, wait);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        // What waits for a lock need not wait any more.
        state.running.values().for_each(Canceller::cancel);
    }

    /// Does what the host wants, and what it wants then. When something can't be done, nobody goes on here, and
    /// nothing is said that relies on it.
    pub fn perform(&self, doing: Vec<Doing<'t>>) {
        let mut doing = VecDeque::from(doing);
        while let Some(one) = doing.pop_front() {
            match self.do_one(one) {
                Some(more) => doing.extend(more),
                None => return,
            }
        }
    }

    /// What is to be done then; nothing if the node has failed.
    fn do_one(&self, doing: Doing<'t>) -> Option<Vec<Doing<'t>>> {
        match doing {
            Doing::Ended(tid, outcome, family) => {
                self.end_family(tid, outcome, family, Hook::Now).then(Vec::new)
            }
            Doing::Step(step) => Some(self.step(step)),
        }
    }

    fn step(&self, step: Step) -> Vec<Doing<'t>> {
        match step {
            Step::Send(letter) if letter.to == self.outside.own => {
                self.host_steps(|host, now| host.receive(letter, now))
            }
            Step::Send(letter) => {
                self.outside.post(letter);
                Vec::new()
            }
            Step::Vote(tid, brief) => self.asked(tid, brief),
            Step::Force(tid, Role::Participant, Record::Prepared(all)) => match self.prepare(tid, &all) {
                Made::Durable => {
                    self.host_steps(|host, _| host.durable(tid, Role::Participant, &Record::Prepared(all)))
                }
                Made::Refused => self.host_steps(|host, _| host.refused(tid, Role::Participant)),
                Made::Elsewhere => Vec::new(),
            },
            Step::Force(tid, role, record) => {
                let done = match &record {
                    Record::Commit(told) => self.commit(tid, told),
                    Record::Judged(outcome) => self.unless_failed(self.ledger.judge(tid, *outcome)),
                    Record::Settled(right) => self.unless_failed(self.ledger.settle(tid, *right)),
                    _ => return Vec::new(),
                };
                match done {
                    Some(true) => self.host_steps(|host, _| host.durable(tid, role, &record)),
                    Some(false) => self.host_steps(|host, _| host.refused(tid, role)),
                    None => Vec::new(),
                }
            }
            Step::Write(tid, _, Record::End) => {
                self.unless_failed(self.ledger.remove(tid));
                Vec::new()
            }
            Step::Write(tid, role, record) => self.written(tid, role, record),
            Step::Put(tid, role, participants, of, slot) => self.put(tid, role, participants, of, slot),
            Step::Wrong(tid, outcome) => {
                tracing::error!(
                    "transaction {tid} was judged wrongly here: it is {outcome:?} everywhere else"
                );
                Vec::new()
            }
            Step::Finish(..) => unreachable!("it has left the state when the host said so"),
            Step::Tell(tid, outcome, at) => {
                self.outside.tell(tid, outcome, at);
                Vec::new()
            }
            Step::Delete(tid, participants) => {
                self.outside.delete(tid, participants);
                Vec::new()
            }
        }
    }

    /// It is asked for its vote. What takes its locks then has heard of its timestamp here, also after a crash.
    fn asked(&self, tid: Tid, Brief { news, at }: Brief) -> Vec<Doing<'t>> {
        if !self.has_heard(tid, at) {
            return self.host_steps(|host, now| host.voted(tid, Vote::No, now));
        }
        let mut state = self.state();
        if let Some(family) = state.families.get_mut(&tid) {
            family.hear(&news);
            family.close();
            family.top_mut().at = at;
        }
        state.votes.insert(tid);
        state.cancel(tid);
        drop(state);
        self.vote(tid)
    }

    /// Whether the clock has heard of a transaction's timestamp, for good.
    fn has_heard(&self, tid: Tid, at: Timestamp) -> bool {
        if !self.outside.time.is_used {
            let is_without = at == Timestamp::default();
            if !is_without {
                let text = "a transaction is refused: node {} gives timestamps, and this one doesn't. All of a cluster do, or none";
                let text = text.replace("{}", &tid.coordinator.0.to_string());
                self.outside.notices.now_and_then("timestamps", text);
            }
            return is_without;
        }
        if let Err(error) = self.clock.observe(at) {
            tracing::warn!(
                "the clock of node {}: {error}; its transaction {tid} is refused",
                tid.coordinator.0
            );
            return false;
        }
        let kept = if planted("heard-not-kept") { Ok(()) } else { self.clock.keep(at) };
        self.unless_failed(kept) == Some(true)
    }

    /// Of a record that was written: says that it is durable, when it is. What was prepared was decided when it was
    /// finished; what is being prepared now will be.
    fn written(&self, tid: Tid, role: Role, record: Record) -> Vec<Doing<'t>> {
        let mut state = self.state();
        if let Some(preparing) =
            state.preparing.get_mut(&tid).filter(|_| unless("acknowledged-undecided", true))
        {
            preparing.record = Some((role, record));
            return Vec::new();
        }
        let ticket = state.unforced.remove(&tid);
        drop(state);
        match ticket {
            Some(ticket) => {
                self.outside.decide_when_durable(ticket, Decision::Durable(tid, role, record));
                Vec::new()
            }
            None => self.host_steps(|host, _| host.durable(tid, role, &record)),
        }
    }

    /// Votes, if it was asked and nothing runs any more.
    pub(super) fn vote(&self, tid: Tid) -> Vec<Doing<'t>> {
        let mut state = self.state();
        if !state.votes.contains(&tid) {
            return Vec::new();
        }
        let vote = match state.families.get_mut(&tid).map(Family::finish) {
            Some(Err(NotReady::Running)) => {
                state.cancel(tid);
                return Vec::new();
            }
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

    /// Makes what was done here durable and undecided, if it is not and nobody is at it.
    fn prepare(&self, tid: Tid, participants: &Participants) -> Made {
        let mut state = self.state();
        if state.preparing.contains_key(&tid) {
            return Made::Elsewhere;
        }
        let (transaction, allocations) = match state.families.get_mut(&tid).map(Family::finish) {
            None => return Made::Elsewhere,
            Some(Err(_)) => return Made::Refused,
            Some(Ok(top)) if top.global_id().is_some() => return Made::Durable,
            // What has only read is remembered where slots decide: it is asked for its vote if those are lost.
            Some(Ok(top)) if !top.wrote && tid.protocol == Protocol::Blocking => return Made::Durable,
            Some(Ok(_))
                if tid.protocol == Protocol::Slots && !self.ledger.reserve(tid, participants.len()) =>
            {
                tracing::warn!("no room to remember transaction {tid}, if it commits");
                return Made::Refused;
            }
            // If it is away, the store has refused it.
            Some(Ok(top)) => match top.take() {
                Some(both) => both,
                None => return Made::Refused,
            },
        };
        let at = state.families.get(&tid).map(|family| family.top().at).unwrap_or_default();
        state.preparing.insert(tid, Preparing::default());
        drop(state);
        let id = global_id(tid, at, participants);
        let intended = heaps::intend(transaction, allocations, &id);
        let done = intended.and_then(|(transaction, intended)| {
            let done = transaction.prepare(&id);
            if done.is_err() {
                heaps::settle(intended, Outcome::Aborted);
            }
            Ok(done?)
        });
        let mut state = self.state();
        let Preparing { mut ended, record } = state.preparing.remove(&tid).unwrap_or_default();
        let family = match &mut ended {
            Some((_, family)) => Some(family),
            None => state.families.get_mut(&tid),
        };
        if let (Ok(()), Some(family)) = (&done, family) {
            family.top_mut().prepared(id);
        }
        drop(state);
        let made = match self.unless_failed(done) {
            Some(true) => Made::Durable,
            Some(false) => Made::Refused,
            None => Made::Elsewhere,
        };
        match ended {
            Some((outcome, family)) => {
                let ended = self.end_family(tid, outcome, family, Hook::Now);
                if let Some((role, record)) = record.filter(|_| ended) {
                    let doing = self.written(tid, role, record);
                    self.perform(doing);
                }
                Made::Elsewhere
            }
            None => made,
        }
    }

    /// Commits what has been done here, with the decision. Whether it has; nothing if nobody knows.
    fn commit(&self, tid: Tid, told: &Participants) -> Option<bool> {
        let mut state = self.state();
        let works = state.works.contains(&tid);
        let top = state.families.get_mut(&tid).filter(|_| works).and_then(|family| family.finish().ok());
        let (mut transaction, allocations) = match (top.and_then(Work::take), works) {
            (Some(both), _) => both,
            (None, true) => return Some(false),
            (None, false) => match self.store.begin(Mode::Restore) {
                Ok(transaction) => (transaction, Vec::new()),
                Err(error) => return self.unless_failed(Err(error)),
            },
        };
        drop(state);
        if let Err(error) = self.ledger.add(&mut transaction, tid, told) {
            tracing::warn!("no room for a decision: {error}");
            // Before what it has allocated.
            drop(transaction);
            self.ledger.forget(tid);
            return Some(false);
        }
        let intended = heaps::intend(transaction, allocations, b"");
        let done = intended.and_then(|(transaction, intended)| {
            let done = transaction.commit(lasting(self.store));
            let outcome = if done.is_ok() { Outcome::Committed } else { Outcome::Aborted };
            heaps::settle(intended, outcome);
            Ok::<_, HeapError>(done?)
        });
        if done.is_err() {
            self.ledger.forget(tid);
        }
        self.unless_failed(done)
    }

    /// Whether it is done. Nothing if the store has failed: then nobody knows, and nothing goes on here.
    pub fn unless_failed<E: std::fmt::Display>(&self, done: Result<(), E>) -> Option<bool> {
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

    fn put(&self, tid: Tid, role: Role, participants: Participants, of: Node, slot: Slot) -> Vec<Doing<'t>> {
        let own = self.outside.own;
        if of == own && slot == Slot::Yes {
            match self.prepare(tid, &participants) {
                Made::Durable => {}
                Made::Refused => return self.host_steps(|host, _| host.refused(tid, role)),
                Made::Elsewhere => return Vec::new(),
            }
        }
        let life = self.outside.incarnation;
        // It may have waited for a force, or for a thread: what was so when the host said it may be so no more.
        if let Some(until) = self.state().host.deadline(tid, role, slot) {
            self.outside.claim(Claim { tid, by: own, life, role, participants, of, slot }, until);
        }
        Vec::new()
    }

    /// What was done here stays, or is undone, and its locks are free. Whether it could be.
    pub(super) fn end_family(
        &self,
        tid: Tid,
        outcome: Outcome,
        family: Family<Work<'t>>,
        hook: Hook,
    ) -> bool {
        let top = family.into_top();
        let at = top.at;
        if let Some(id) = top.global_id() {
            let intended = heaps::intended(self.heaps.iter(), id);
            if tid.protocol == Protocol::Slots {
                let told =
                    from_global_id(id).map(|(_, _, all)| all).filter(|_| outcome == Outcome::Committed);
                if let Err(error) = self.ledger.remember(tid, told.as_ref(), &self.outside.known()) {
                    self.outside.fail(&format!("it could not remember how transaction {tid} ends: {error}"));
                    std::mem::forget(top);
                    return false;
                }
                if outcome == Outcome::Aborted {
                    self.ledger.forget(tid);
                }
            }
            // Nobody waits for a force: after a crash it is undecided again, and its coordinator remembers.
            let done = match outcome {
                Outcome::Committed => self.store.commit_prepared_ticket(id),
                Outcome::Aborted => self.store.abort_prepared_ticket(id),
            };
            match done {
                Ok(ticket) if even_if("acknowledged-unforced", ticket.is_durable()) => {}
                Ok(ticket) => _ = self.state().unforced.insert(tid, ticket),
                Err(error) => {
                    // It is decided when the node runs again. Until then nobody has its locks.
                    let why = format!("it could not end transaction {tid}, which is prepared: {error}");
                    self.outside.fail(&why);
                    std::mem::forget(top);
                    return false;
                }
            }
            heaps::settle(intended, outcome);
        }
        drop(top);
        match hook {
            Hook::Now => self.outside.hooks.ended(tid, outcome, at),
            Hook::Later => self.outside.decide(Decision::Ended(tid, outcome, at)),
        }
        true
    }

    /// Decides what there is to decide.
    pub fn decide(&self, decision: Decision) {
        match decision {
            Decision::Letter(Letter { word: Word::Chase(chase), .. }) => {
                self.follow(&chase);
            }
            Decision::Letter(Letter { tid, word: Word::Victim, .. }) => self.is_to_abort(tid),
            Decision::Letter(letter) => self.with_host(|host, now| host.receive(letter, now)),
            Decision::Durable(tid, role, what) => self.with_host(|host, _| host.durable(tid, role, &what)),
            Decision::Chase => self.chase(),
            Decision::Steps(steps) => self.perform(steps.into_iter().map(Doing::Step).collect()),
            Decision::Kept(claim, kept, times) => self.kept(&claim, kept, times),
            Decision::Looked(looked, times) => self.looked(looked, times),
            Decision::Sweep(all) => {
                self.tell_again();
                for (tid, participants) in all {
                    self.with_host(|host, now| host.sweep(tid, participants, now));
                }
            }
            Decision::End(tid, commits, report, below) => {
                // Itself it has not ended yet.
                self.state().host.client_has_ended(tid.client, below.min(tid.serial));
                self.end(tid, commits, report);
            }
            Decision::Comes(client, can_begin) => {
                self.state().host.client_comes(client);
                let _ = can_begin.send(());
            }
            Decision::Goes(client) => self.state().host.client_goes(client),
            Decision::Hear(tid, news, heard) => {
                if planted("heard-too-early") {
                    let _ = heard.send(());
                    return std::thread::sleep(Duration::from_millis(20));
                }
                let mut state = self.state();
                if let Some(family) = state.families.get_mut(&tid) {
                    family.hear(&news);
                    state.cancel(tid);
                }
                let _ = heard.send(());
            }
            Decision::Ended(tid, outcome, at) => self.outside.hooks.ended(tid, outcome, at),
            Decision::Stop => {}
        }
    }
}
