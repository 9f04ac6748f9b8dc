//! What a node is in the middle of: the transactions that it coordinates, and those that it takes part in. It
//! carries messages to their machines, tells them of time, and asks whether those who began them are still there.
//!
//! ```text
//!   letters, what became durable, slots, votes, time  -->  Host  -->  steps, for whoever runs it
//! ```
//!
//! Without input or output as the machines are, so that a simulator runs what a node does.
//!
//! Invariant: what a node knows nothing of, it answers for as the protocols say: presumed abort.

use crate::commit::coordinator::Coordinator;
use crate::commit::participant::Participant;
use crate::commit::word::{
    Action, Incarnation, Message, Node, Outcome, Participants, Protocol, Record, Slot, Stay, Vote,
};
use crate::id::{News, Tid};
use crate::letter::{Brief, Letter, Word};
use crate::reliance::Reliance;
use crate::scope::Report;
use caliburn_nest::Timestamp;
use caliburn_os::simulated::{even_if, instead, planted, unless};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a node waits.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For votes, and for what was said to be heard, before it says it again; longer each time.
    pub answer: Duration,
    /// Between questions whether a transaction goes on that has not called for a while.
    pub probe: Duration,
    /// Without an answer to those, before it aborts here.
    pub silence: Duration,
    /// A wait for a lock, before it is asked whether it is part of a deadlock between nodes.
    pub chase: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        let seconds = Duration::from_secs;
        Patience {
            answer: seconds(1),
            probe: seconds(1),
            silence: seconds(4),
            chase: Duration::from_millis(300),
        }
    }
}

/// In what it takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// It decides.
    Coordinator,
    /// It votes.
    Participant,
}

/// What whoever runs a node is to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Sends a letter. It may be lost.
    Send(Letter),
    /// Asks what has been done here whether it can be prepared, once it has heard the news, and the clock the
    /// timestamp; says [`Host::voted`].
    Vote(Tid, Brief),
    /// Makes a record durable, and says [`Host::durable`], or [`Host::refused`] if it never will be. A participant's
    /// `Prepared` has what was changed here; a coordinator's `Commit` too, in the same force.
    Force(Tid, Role, Record),
    /// Writes a record, and says `durable` when it is.
    Write(Tid, Role, Record),
    /// Puts a value into the slot of a participant, if it is empty, or looks what is there, and says [`Host::slot`].
    /// When its own is to say yes, what was done here is durable first, also if it has only read.
    Put(Tid, Role, Participants, Node, Slot),
    /// What was done here stays, or is undone, and its locks are free.
    Finish(Tid, Outcome),
    /// What was judged here has ended so everywhere else, and not as it was judged.
    Wrong(Tid, Outcome),
    /// Whoever began it learns how it ended, and at what timestamp, if it has committed.
    Tell(Tid, Outcome, Timestamp),
    /// Deletes slots.
    Delete(Tid, Participants),
}

/// No two stays of a node are equal. A life has 2^44 numbers, and the number of a life comes again after 2^20 lives.
fn stay(life: Incarnation, number: u64) -> Stay {
    Stay((life.0 << instead("stays-of-32-bits", 44, 32)).wrapping_add(number))
}

/// A program that begins transactions here.
#[derive(Debug, Default)]
struct Client {
    /// All of its transactions with lesser numbers have ended.
    low: u64,
    /// And these.
    ended: BTreeSet<u64>,
}

#[derive(Debug)]
pub(crate) struct Coordinating {
    pub(crate) machine: Coordinator,
    /// When it began here, in this life.
    pub(crate) since: Option<Duration>,
    pub(crate) news: BTreeMap<Node, News>,
    pub(crate) at: Timestamp,
    pub(crate) tries: u32,
    pub(crate) due: Duration,
}

#[derive(Debug)]
pub(crate) struct TakingPart {
    pub(crate) machine: Participant,
    pub(crate) stay: Stay,
    /// When it came here, in this life.
    pub(crate) since: Option<Duration>,
    /// With whom, once it has voted.
    pub(crate) all: Option<Participants>,
    /// When the transaction was known to go on.
    pub(crate) heard: Duration,
    /// When it aborts here if it was not asked to prepare.
    pub(crate) expires: Duration,
    /// It was asked, and what it votes is not known yet.
    pub(crate) asked: Option<Participants>,
    pub(crate) tries: u32,
    pub(crate) due: Duration,
}

/// A node.
#[derive(Debug)]
pub struct Host {
    pub(crate) own: Node,
    pub(crate) incarnation: Incarnation,
    pub(crate) patience: Patience,
    clients: BTreeMap<u64, Client>,
    pub(crate) coordinating: BTreeMap<Tid, Coordinating>,
    pub(crate) taking_part: BTreeMap<Tid, TakingPart>,
    pub(crate) due: BTreeSet<(Duration, Tid, Role)>,
    pub(crate) stays: u64,
    /// What it has committed without blocking, in case that others ask.
    pub(crate) remembered: BTreeMap<Tid, Participants>,
    pub(crate) reliance: Reliance,
}

impl Host {
    /// A node that begins a life.
    pub fn new(own: Node, incarnation: Incarnation, patience: Patience) -> Host {
        Host {
            own,
            incarnation,
            patience,
            clients: BTreeMap::new(),
            coordinating: BTreeMap::new(),
            taking_part: BTreeMap::new(),
            due: BTreeSet::new(),
            stays: 0,
            remembered: BTreeMap::new(),
            reliance: Reliance::default(),
        }
    }

    /// How long it waits.
    pub fn patience(&self) -> Patience {
        self.patience
    }

    /// Its number.
    pub fn own(&self) -> Node {
        self.own
    }

    /// Which life this is.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// A program comes that begins transactions.
    pub fn client_comes(&mut self, client: u64) {
        self.clients.insert(client, Client::default());
    }

    /// All of its transactions with lesser numbers have ended.
    pub fn client_has_ended(&mut self, client: u64, below: u64) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.low = client.low.max(below);
            client.ended = client.ended.split_off(&client.low);
        }
    }

    /// It is gone: what it had begun and not asked to commit has aborted.
    pub fn client_goes(&mut self, client: u64) {
        self.clients.remove(&client);
    }

    /// Whether it commits a transaction at this moment.
    pub fn coordinates(&self, tid: &Tid) -> bool {
        self.coordinating.contains_key(tid)
    }

    /// Whether a transaction was begun here, and nobody has asked to end it.
    pub fn is_open(&self, tid: &Tid) -> bool {
        let here = tid.coordinator == self.own && tid.incarnation == self.incarnation;
        let client = self.clients.get(&tid.client);
        here && client.is_some_and(|client| tid.serial >= client.low && !client.ended.contains(&tid.serial))
    }

    /// Whether a transaction goes on, as far as its coordinator knows.
    pub(crate) fn goes_on(&self, tid: &Tid) -> bool {
        self.coordinates(tid) || self.is_open(tid)
    }

    fn has_ended(&mut self, tid: &Tid) {
        if let Some(client) = self.clients.get_mut(&tid.client)
            && tid.incarnation == self.incarnation
            && tid.serial >= client.low
        {
            client.ended.insert(tid.serial);
        }
    }

    /// How many transactions it coordinates, and takes part in.
    pub fn busy(&self) -> (usize, usize) {
        (self.coordinating.len(), self.taking_part.len())
    }

    /// The stay of a transaction that is here.
    pub fn stay(&self, tid: &Tid) -> Option<Stay> {
        self.taking_part.get(tid).map(|part| part.stay)
    }

    /// Whether it takes part in a transaction.
    pub fn takes_part(&self, tid: &Tid) -> bool {
        self.taking_part.contains_key(tid)
    }

    /// A call of a transaction comes, the first one or another: the stay, if it may begin. Not when the transaction
    /// has ended, or was asked to commit, as far as is known here.
    pub fn called(&mut self, tid: Tid, expires: Duration, now: Duration) -> Option<Stay> {
        let here = tid.coordinator == self.own;
        if here && (self.coordinating.contains_key(&tid) || !self.goes_on(&tid)) {
            return None;
        }
        if self.waits_for_keeper(&tid) && !self.taking_part.contains_key(&tid) {
            return None;
        }
        let part = self.taking_part.entry(tid).or_insert_with(|| {
            if !planted("one-stay-for-all") {
                self.stays += 1;
            }
            let stay = stay(self.incarnation, self.stays);
            let machine = Participant::new(tid.protocol, self.own, tid.coordinator, stay);
            let due = now + self.patience.probe;
            self.due.insert((due, tid, Role::Participant));
            let since = Some(now);
            TakingPart { machine, stay, since, all: None, heard: now, expires, asked: None, tries: 0, due }
        });
        part.heard = part.heard.max(now);
        part.expires = part.expires.max(expires);
        // What has been prepared, or has just ended, is as it was when it was asked.
        even_if("called-after-prepare", part.machine.is_active()).then_some(part.stay)
    }

    /// Commits a transaction that was begun here and is open, at a timestamp behind all that it has heard of. What
    /// was done here is no participant, blocking: `own` is what it votes, yes or that it has only read, if it was
    /// called.
    pub fn commit(
        &mut self,
        tid: Tid,
        report: Report,
        own: Option<Vote>,
        at: Timestamp,
        now: Duration,
    ) -> Vec<Step> {
        self.has_ended(&tid);
        let Report { used: mut participants, touched, untold: news, .. } = report;
        // Calls of which nothing stays.
        let others = touched.iter().filter(|node| !participants.contains_key(node)).copied().collect();
        let mut steps = self.abort_at(tid, &others);
        if own.is_some() {
            // What has been done here is decided here.
            self.forget(tid, Role::Participant);
            participants.remove(&self.own);
        }
        let (machine, actions) = Coordinator::new(tid.protocol, participants, own == Some(Vote::Yes));
        self.coordinate(tid, machine, (news, at), (Some(now), now));
        steps.extend(self.perform(tid, Role::Coordinator, actions));
        steps
    }

    /// Aborts a transaction that was begun here and is open, at the nodes that it has called.
    pub fn abort(&mut self, tid: Tid, nodes: &BTreeSet<Node>) -> Vec<Step> {
        self.has_ended(&tid);
        self.abort_at(tid, nodes)
    }

    fn abort_at(&self, tid: Tid, nodes: &BTreeSet<Node>) -> Vec<Step> {
        let word = || Word::Commit(Message::Outcome(Outcome::Aborted), Brief::default());
        nodes.iter().map(|node| self.letter(*node, tid, word())).collect()
    }

    fn coordinate(
        &mut self,
        tid: Tid,
        machine: Coordinator,
        (news, at): (BTreeMap<Node, News>, Timestamp),
        (since, now): (Option<Duration>, Duration),
    ) {
        let due = now + self.patience.answer;
        self.due.insert((due, tid, Role::Coordinator));
        self.coordinating.insert(tid, Coordinating { machine, since, news, at, tries: 0, due });
    }

    /// A `Commit` record, and no `End`: after a crash; or what was committed here without blocking, and nobody has
    /// said for long that all know.
    pub fn recover_commit(&mut self, tid: Tid, participants: Participants, now: Duration) -> Vec<Step> {
        if self.coordinating.contains_key(&tid) {
            return Vec::new();
        }
        if tid.protocol == Protocol::Slots {
            self.remembered.insert(tid, participants.clone());
        }
        let (machine, actions) = Coordinator::recovered(tid.protocol, participants);
        self.coordinate(tid, machine, Default::default(), (None, now));
        self.perform(tid, Role::Coordinator, actions)
    }

    /// After a crash: a `Prepared` record, and no decision.
    pub fn recover_prepared(&mut self, tid: Tid, participants: Participants, now: Duration) -> Vec<Step> {
        let (own, coordinator) = (self.own, tid.coordinator);
        let stay = participants.get(&own).copied().unwrap_or(Stay(0));
        let all = participants.clone();
        let (machine, actions) = Participant::recovered(tid.protocol, own, coordinator, stay, participants);
        let due = now + self.patience.answer;
        self.due.insert((due, tid, Role::Participant));
        self.take_part(tid, (machine, stay), (Some(all), now, due));
        self.perform(tid, Role::Participant, actions)
    }

    /// After a crash: a `Judged` record, and no `Settled`. `all`: with whom, if it is still prepared.
    pub fn recover_judged(
        &mut self,
        tid: Tid,
        outcome: Outcome,
        all: Option<Participants>,
        now: Duration,
    ) -> Vec<Step> {
        let (own, stay) = (self.own, Stay(0));
        let (machine, actions) =
            Participant::recovered_judged(tid.protocol, own, tid.coordinator, stay, outcome);
        let due = now + self.patience.answer;
        self.due.insert((due, tid, Role::Participant));
        let all = all.filter(|_| unless("judged-commits-denied", true));
        self.take_part(tid, (machine, stay), (all, now, due));
        self.perform(tid, Role::Participant, actions)
    }

    fn take_part(
        &mut self,
        tid: Tid,
        (machine, stay): (Participant, Stay),
        (all, now, due): (Option<Participants>, Duration, Duration),
    ) {
        let (heard, expires) = (now, now);
        let part = TakingPart { machine, stay, since: None, all, heard, expires, asked: None, tries: 0, due };
        self.taking_part.insert(tid, part);
    }

    /// Transactions that are prepared here, and wait to be told how they end; and whether they wait for others to
    /// say it, or for an administrator.
    pub fn undecided(&self) -> impl Iterator<Item = (Tid, &Participants, bool)> {
        let undecided = self.taking_part.iter().filter(|(_, part)| part.machine.is_undecided());
        undecided.filter_map(|(tid, part)| {
            let asks = part.machine.is_asking() || self.waits_for_keeper(tid);
            Some((*tid, part.machine.participants()?, asks))
        })
    }

    /// What was committed here without blocking, and others may not know.
    pub fn remembered(&self) -> &BTreeMap<Tid, Participants> {
        &self.remembered
    }

    /// An administrator decides: nothing unless it is prepared here, waits, and blocks.
    pub fn judge(&mut self, tid: Tid, outcome: Outcome) -> Option<Vec<Step>> {
        let part = self.taking_part.get_mut(&tid)?;
        let trust = self.reliance.trust(part.since, Duration::MAX);
        let actions = part.machine.judge(outcome, trust)?;
        Some(self.perform(tid, Role::Participant, actions))
    }

    /// Slots were found of a transaction that was begun here, in whatever life: after a crash, and now and then,
    /// since a put that was under way for long may make one again. Unless it is being committed, nobody else
    /// deletes them.
    pub fn sweep(&mut self, tid: Tid, participants: Participants, now: Duration) -> Vec<Step> {
        if self.coordinating.contains_key(&tid) {
            return Vec::new();
        }
        let (machine, actions) = Coordinator::left(participants);
        self.coordinate(tid, machine, Default::default(), (None, now));
        self.perform(tid, Role::Coordinator, actions)
    }

    /// What was done here is heard: an answer to [`Step::Vote`].
    pub fn voted(&mut self, tid: Tid, vote: Vote, now: Duration) -> Vec<Step> {
        let Some(part) = self.taking_part.get_mut(&tid) else { return Vec::new() };
        let Some(participants) = part.asked.take() else { return Vec::new() };
        part.all = Some(participants.clone());
        let actions = part.machine.receive(&Message::Prepare(participants), || vote);
        part.tries = 0;
        self.wait(tid, Role::Participant, now);
        self.perform(tid, Role::Participant, actions)
    }

    /// A record is durable.
    pub fn durable(&mut self, tid: Tid, role: Role, record: &Record) -> Vec<Step> {
        let actions = match role {
            Role::Coordinator => self.coordinating.get_mut(&tid).map(|it| it.machine.durable(record)),
            Role::Participant => self.taking_part.get_mut(&tid).map(|it| it.machine.durable(record)),
        };
        self.perform(tid, role, actions.unwrap_or_default())
    }

    /// A record that was to be forced is not durable, and never will be.
    pub fn refused(&mut self, tid: Tid, role: Role) -> Vec<Step> {
        let actions = match role {
            Role::Coordinator => self.coordinating.get_mut(&tid).map(|it| it.machine.refused()),
            Role::Participant => self.taking_part.get_mut(&tid).map(|it| it.machine.refused()),
        };
        self.perform(tid, role, actions.unwrap_or_default())
    }

    /// What is in a slot.
    pub fn slot(&mut self, tid: Tid, role: Role, of: Node, found: Slot) -> Vec<Step> {
        let actions = match role {
            Role::Coordinator => self.coordinating.get_mut(&tid).map(|it| it.machine.slot(of, found)),
            Role::Participant => self.taking_part.get_mut(&tid).map(|it| it.machine.slot(of, found)),
        };
        self.perform(tid, role, actions.unwrap_or_default())
    }

    /// When it wants to be told of time next.
    pub fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(due, ..)| *due)
    }

    /// It is later.
    pub fn tick(&mut self, now: Duration) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some((_, tid, role)) = self.due.first().copied().filter(|(due, ..)| *due <= now) {
            self.due.pop_first();
            self.wait(tid, role, now);
            let (actions, letter) = match role {
                Role::Coordinator => {
                    let it = self.coordinating.get_mut(&tid).expect("it is due");
                    (it.machine.timeout(self.reliance.trust(it.since, now)), None)
                }
                Role::Participant => {
                    let patience = self.patience;
                    let part = self.taking_part.get_mut(&tid).expect("it is due");
                    let silent = now.saturating_sub(part.heard) >= patience.silence;
                    let trust = self.reliance.trust(part.since, now);
                    match part.machine.is_active() {
                        // It votes at this moment.
                        true if part.asked.is_some() && now < part.expires => (Vec::new(), None),
                        true if now < part.expires && !silent => (Vec::new(), Some(Word::Probe)),
                        true if planted("orphans-stay") => (Vec::new(), None),
                        _ => (part.machine.timeout(trust), None),
                    }
                }
            };
            steps.extend(letter.map(|word| self.letter(tid.coordinator, tid, word)));
            steps.extend(self.perform(tid, role, actions));
        }
        steps
    }

    /// Sets when it is due, later each time.
    fn wait(&mut self, tid: Tid, role: Role, now: Duration) {
        let patience = self.patience;
        let (due, tries, time) = match role {
            Role::Coordinator => match self.coordinating.get_mut(&tid) {
                Some(it) => (&mut it.due, &mut it.tries, patience.answer),
                None => return,
            },
            Role::Participant => match self.taking_part.get_mut(&tid) {
                Some(it) if it.machine.is_active() => (&mut it.due, &mut 0, patience.probe),
                Some(it) => (&mut it.due, &mut it.tries, patience.answer),
                None => return,
            },
        };
        self.due.remove(&(*due, tid, role));
        *due = now + time * (1 << (*tries).min(4));
        *tries += 1;
        self.due.insert((*due, tid, role));
    }

    pub(crate) fn letter(&self, to: Node, tid: Tid, word: Word) -> Step {
        Step::Send(Letter { from: self.own, to, tid, word })
    }

    pub(crate) fn perform(&mut self, tid: Tid, role: Role, actions: Vec<Action>) -> Vec<Step> {
        let mut steps = Vec::new();
        for action in actions {
            match action {
                // That all know.
                Action::Send(to, Message::Ack)
                    if (to, role, tid.protocol) == (self.own, Role::Coordinator, Protocol::Slots) =>
                {
                    if self.remembered.remove(&tid).is_some() {
                        steps.push(Step::Write(tid, role, Record::End));
                    }
                }
                Action::Send(to, message) => {
                    let prepares = matches!(message, Message::Prepare(_));
                    let of = self.coordinating.get(&tid).filter(|_| prepares).map(|it| {
                        let news = it.news.get(&to).filter(|_| !planted("news-not-told"));
                        let at = if planted("timestamp-not-told") { Timestamp::default() } else { it.at };
                        Brief { news: news.cloned().unwrap_or_default(), at }
                    });
                    steps.push(self.letter(to, tid, Word::Commit(message, of.unwrap_or_default())));
                }
                Action::Force(record) => steps.push(Step::Force(tid, role, record)),
                Action::Write(Record::End) => {
                    let is_known = self.remembered.remove(&tid).is_some();
                    // Others say it of transactions that were not here.
                    if is_known || tid.protocol == Protocol::Blocking {
                        steps.push(Step::Write(tid, role, Record::End));
                    }
                }
                Action::Write(record) => steps.push(Step::Write(tid, role, record)),
                Action::Probe => steps.push(self.letter(tid.coordinator, tid, Word::Probe)),
                Action::Put(of, slot) => {
                    let participants = match role {
                        Role::Coordinator => self.coordinating.get(&tid).map(|it| it.machine.participants()),
                        Role::Participant => {
                            self.taking_part.get(&tid).and_then(|it| it.machine.participants())
                        }
                    };
                    let participants = participants.cloned().unwrap_or_default();
                    steps.push(Step::Put(tid, role, participants, of, slot));
                }
                Action::Finish(outcome) => {
                    if (outcome, role, tid.protocol)
                        == (Outcome::Committed, Role::Participant, Protocol::Slots)
                    {
                        let all = self.taking_part.get(&tid).and_then(|it| it.all.clone());
                        all.into_iter().for_each(|all| _ = self.remembered.insert(tid, all));
                    }
                    steps.push(Step::Finish(tid, outcome));
                }
                Action::Wrong(outcome) => steps.push(Step::Wrong(tid, outcome)),
                Action::Tell(outcome) => {
                    let at = self.coordinating.get(&tid).map(|it| it.at);
                    steps.push(Step::Tell(tid, outcome, at.unwrap_or_default()));
                }
                Action::Delete => {
                    let participants = self.coordinating[&tid].machine.participants().clone();
                    steps.push(Step::Delete(tid, participants));
                }
                Action::Forget => self.forget(tid, role),
            }
        }
        steps
    }

    fn forget(&mut self, tid: Tid, role: Role) {
        let due = match role {
            Role::Coordinator => self.coordinating.remove(&tid).map(|it| it.due),
            Role::Participant => self.taking_part.remove(&tid).map(|it| it.due),
        };
        if let Some(due) = due {
            self.due.remove(&(due, tid, role));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_of_lives_that_follow_each_other_are_not_equal() {
        let numbers = [1, u64::from(u32::MAX), 1 << 32, (1 << 32) + 1, 3 << 32 | 1, (1 << 44) - 1];
        for life in [1, 2, (1 << 20) - 1, u64::MAX - 3] {
            let lives = (life..life + 3).map(Incarnation);
            let all = lives.flat_map(|life| numbers.map(|number| stay(life, number)));
            assert_eq!(all.collect::<BTreeSet<Stay>>().len(), 3 * numbers.len());
        }
    }
}
