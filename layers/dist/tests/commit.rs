//! The commit protocols, explored to the end: everything that two and three participants can do, with messages that
//! are lost, doubled and overtaken, nodes that crash at every step, and records that were or were not durable then.

use caliburn_dist::commit::coordinator::Coordinator;
use caliburn_dist::commit::participant::Participant;
use caliburn_dist::commit::word::*;
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::{BTreeMap, BTreeSet};

/// The coordinator's number; the participants' are those behind it.
const COORDINATOR: Node = Node(0);

/// What to explore.
struct World {
    protocol: Protocol,
    /// What each would vote.
    votes: Vec<Vote>,
    /// Whether the coordinator's node has changed something itself.
    works: bool,
    /// Whether it calls again those that know nothing of it any more, though they have not crashed.
    again: bool,
    crashes: u32,
    /// Whether an administrator may decide, at each participant.
    judges: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    coordinator: Option<Coordinator>,
    participants: BTreeMap<Node, Option<Participant>>,
    lives: BTreeMap<Node, Incarnation>,
    /// Stays of the transaction at each, in all lives.
    stays: BTreeMap<Node, u64>,
    /// What was ever sent: it may arrive at any time, again and again, or never.
    sent: BTreeSet<Letter>,
    durable: BTreeMap<Node, Vec<Record>>,
    /// Written, and not durable yet.
    written: BTreeMap<Node, Vec<Record>>,
    slots: BTreeMap<Node, Slot>,
    slots_deleted: bool,
    /// What the program was told.
    told: BTreeSet<Outcome>,
    /// What became of what each participant has done.
    ends: BTreeMap<Node, Outcome>,
    /// Called when what the transaction had done there was lost, or had ended.
    orphans: BTreeSet<Node>,
    /// Who has crashed: it can't be sure of what the keeper has.
    unsure: BTreeSet<Node>,
    wrong: Option<&'static str>,
    /// What an administrator has decided.
    judged: BTreeMap<Node, Outcome>,
    crashes: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Letter {
    Message {
        from: Node,
        to: Node,
        message: Message,
    },
    /// A participant asks whether the transaction goes on at its coordinator; and the answer that it does not.
    Probe {
        from: Node,
    },
    Gone {
        to: Node,
    },
    /// To the keeper of the slots.
    Put {
        from: Node,
        life: Incarnation,
        of: Node,
        value: Slot,
    },
    Found {
        to: Node,
        life: Incarnation,
        of: Node,
        value: Slot,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Act {
    Deliver(Letter),
    Sync(Node),
    Timeout(Node),
    /// With what was written durable, or lost.
    Crash(Node, bool),
    /// The transaction calls a participant that knows nothing of it any more.
    CallAgain(Node),
    /// An administrator decides.
    Judge(Node, Outcome),
}

impl World {
    fn nodes(&self) -> impl Iterator<Item = Node> {
        (1..=self.votes.len() as u64).map(Node)
    }

    fn vote(&self, node: Node) -> Vote {
        self.votes[node.0 as usize - 1]
    }

    fn changes(&self, node: Node) -> bool {
        self.vote(node) != Vote::ReadOnly
    }

    fn participant(&self, node: Node, stay: u64) -> Participant {
        Participant::new(self.protocol, node, COORDINATOR, Stay(stay))
    }

    /// Does what a machine wants done.
    fn perform(&self, state: &mut State, own: Node, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(to, message) => {
                    _ = state.sent.insert(Letter::Message { from: own, to, message })
                }
                Action::Force(record) | Action::Write(record) => {
                    state.written.entry(own).or_default().push(record);
                }
                Action::Put(of, value) => {
                    let life = state.lives[&own];
                    state.sent.insert(Letter::Put { from: own, life, of, value });
                }
                Action::Finish(outcome) => {
                    // What an orphan has done is to be undone, whatever became of the rest.
                    let is_orphan = state.orphans.contains(&own);
                    if is_orphan && outcome == Outcome::Committed {
                        state.wrong = Some("an orphan has committed");
                    }
                    if !is_orphan && state.ends.insert(own, outcome).is_some_and(|before| before != outcome) {
                        state.wrong = Some("it has ended in both ways");
                    }
                }
                // Whoever asks is told by the record.
                Action::Wrong(_) => {}
                Action::Tell(outcome) => _ = state.told.insert(outcome),
                Action::Delete => state.slots_deleted = true,
                Action::Probe => _ = state.sent.insert(Letter::Probe { from: own }),
                Action::Forget => self.forget(state, own),
            }
        }
    }

    fn forget(&self, state: &mut State, own: Node) {
        match own {
            COORDINATOR => state.coordinator = None,
            own => _ = state.participants.insert(own, None),
        }
    }

    fn deliver(&self, state: &mut State, letter: &Letter) {
        match letter {
            Letter::Message { from, to: COORDINATOR, message } => {
                let actions = match &mut state.coordinator {
                    Some(coordinator) => coordinator.receive(*from, message, Trust::Sure),
                    None => Coordinator::of_unknown(self.protocol, *from, message),
                };
                self.perform(state, COORDINATOR, actions);
            }
            Letter::Message { from, to, message } => {
                let remembers =
                    state.ends.get(to) == Some(&Outcome::Committed) && !state.orphans.contains(to);
                let actions = match state.participants.get_mut(to).expect("it is one") {
                    Some(participant) => match message {
                        Message::Inquiry => participant.asked(*from).into_iter().collect(),
                        Message::Vote(_) => participant.is_undecided_at(*from),
                        message => participant.receive(message, || self.vote(*to)),
                    },
                    // As a host does: what has committed is remembered for those that ask.
                    None if *message == Message::Inquiry && remembers => {
                        vec![Action::Send(*from, Message::Outcome(Outcome::Committed))]
                    }
                    // There is nobody to tell that all know.
                    None if *message == Message::Ack => Vec::new(),
                    None => Participant::of_unknown(self.protocol, *from, message),
                };
                self.perform(state, *to, actions);
            }
            Letter::Probe { from } => {
                let vouches = state.coordinator.as_ref().is_none_or(Coordinator::vouches);
                if vouches {
                    state.sent.insert(Letter::Gone { to: *from });
                }
            }
            Letter::Gone { to } => {
                let trust = Self::trust(state, *to);
                let participant = state.participants.get_mut(to).expect("it is one").as_mut();
                let actions = participant.map(|participant| participant.gone(trust));
                self.perform(state, *to, actions.unwrap_or_default());
            }
            Letter::Put { from, life, of, value } => {
                // A comparison in the same step as the put.
                if state.lives[from] != *life || state.slots_deleted {
                    return;
                }
                let value = match value {
                    Slot::Empty => state.slots.get(of).copied().unwrap_or(Slot::Empty),
                    value => *state.slots.entry(*of).or_insert(*value),
                };
                state.sent.insert(Letter::Found { to: *from, life: *life, of: *of, value });
            }
            Letter::Found { to, life, .. } if state.lives[to] != *life => {}
            Letter::Found { to: COORDINATOR, of, value, .. } => {
                if let Some(coordinator) = &mut state.coordinator {
                    let actions = coordinator.slot(*of, *value);
                    self.perform(state, COORDINATOR, actions);
                }
            }
            Letter::Found { to, of, value, .. } => {
                if let Some(participant) = state.participants.get_mut(to).expect("it is one") {
                    let actions = participant.slot(*of, *value);
                    self.perform(state, *to, actions);
                }
            }
        }
    }

    /// The oldest record that is not durable becomes so.
    fn sync(&self, state: &mut State, own: Node) {
        let Some(written) = state.written.get_mut(&own).filter(|written| !written.is_empty()) else { return };
        let record = written.remove(0);
        state.durable.entry(own).or_default().push(record.clone());
        let actions = match own {
            COORDINATOR => state.coordinator.as_mut().map(|machine| machine.durable(&record)),
            own => state.participants.get_mut(&own).expect("it is one").as_mut().map(|m| m.durable(&record)),
        };
        self.perform(state, own, actions.unwrap_or_default());
    }

    fn trust(state: &State, own: Node) -> Trust {
        if state.unsure.contains(&own) { Trust::Unsure } else { Trust::Sure }
    }

    fn timeout(&self, state: &mut State, own: Node) {
        let trust = Self::trust(state, own);
        let actions = match own {
            COORDINATOR => state.coordinator.as_mut().map(|machine| machine.timeout(trust)),
            own => {
                let participant = state.participants.get_mut(&own).expect("it is one").as_mut();
                participant.map(|participant| participant.timeout(trust))
            }
        };
        self.perform(state, own, actions.unwrap_or_default());
    }

    fn crash(&self, state: &mut State, own: Node, kept: bool) {
        let written = state.written.remove(&own).unwrap_or_default();
        if kept {
            state.durable.entry(own).or_default().extend(written);
        }
        // No put of an earlier life counts from here on.
        state.lives.get_mut(&own).expect("it is one").0 += 1;
        state.unsure.insert(own);
        let known = state.durable.get(&own).cloned().unwrap_or_default();
        if own == COORDINATOR {
            let ended = known.contains(&Record::End);
            let committed = known.iter().find_map(|record| match record {
                Record::Commit(participants) if !ended && !participants.is_empty() => {
                    Some(participants.clone())
                }
                _ => None,
            });
            state.coordinator = None;
            if self.works && !state.ends.contains_key(&own) {
                let there = known.iter().any(|record| matches!(record, Record::Commit(_)));
                state.ends.insert(own, if there { Outcome::Committed } else { Outcome::Aborted });
            }
            if let Some(participants) = committed {
                let (coordinator, actions) = Coordinator::recovered(self.protocol, participants);
                state.coordinator = Some(coordinator);
                self.perform(state, own, actions);
            }
            return;
        }
        state.participants.insert(own, None);
        state.orphans.remove(&own);
        let all: Participants = self.nodes().map(|node| (node, Stay(1))).collect();
        let prepared = match self.protocol {
            Protocol::Blocking => known.iter().any(|record| matches!(record, Record::Prepared(_))),
            // What has been changed is in its slot.
            Protocol::Slots => state.slots.get(&own) == Some(&Slot::Yes) && !state.slots_deleted,
        };
        let has_ended =
            |record: &Record| matches!(record, Record::Committed | Record::Aborted | Record::Settled(_));
        if known.iter().any(has_ended) {
            return;
        }
        let judged = known.iter().find_map(|record| match record {
            Record::Judged(outcome) => Some(*outcome),
            _ => None,
        });
        if let Some(outcome) = judged {
            let (participant, actions) =
                Participant::recovered_judged(self.protocol, own, COORDINATOR, all[&own], outcome);
            state.participants.insert(own, Some(participant));
            return self.perform(state, own, actions);
        }
        // What an administrator has decided, and nobody remembers.
        if state.judged.remove(&own).is_some() && state.ends.contains_key(&own) {
            state.wrong = Some("a judgement was obeyed before it was durable");
        }
        if !prepared {
            // What was done is lost; who has only read has nothing to lose.
            if self.changes(own) && !state.ends.contains_key(&own) {
                state.ends.insert(own, Outcome::Aborted);
            }
            return;
        }
        state.ends.remove(&own);
        let (participant, actions) =
            Participant::recovered(self.protocol, own, COORDINATOR, all[&own], all.clone());
        state.participants.insert(own, Some(participant));
        self.perform(state, own, actions);
    }

    /// What is told, and has become of what was done, when whoever has not crashed for good goes on until nothing
    /// happens any more: every letter arrives.
    fn settled(&self, state: &State, alive: &BTreeSet<Node>) -> State {
        let mut state = state.clone();
        for _ in 0..8 {
            for own in alive {
                (0..4).for_each(|_| self.sync(&mut state, *own));
            }
            let reaches = |letter: &Letter| match letter {
                Letter::Message { to, .. } | Letter::Found { to, .. } | Letter::Gone { to } => {
                    alive.contains(to)
                }
                Letter::Put { from, .. } => alive.contains(from),
                Letter::Probe { .. } => alive.contains(&COORDINATOR),
            };
            for letter in state.sent.clone().into_iter().filter(reaches) {
                self.deliver(&mut state, &letter);
            }
            for own in alive {
                (0..4).for_each(|_| self.sync(&mut state, *own));
                let waits = match *own {
                    COORDINATOR => state.coordinator.as_ref().is_some_and(Coordinator::waits),
                    own => state.participants[&own].as_ref().is_some(),
                };
                if waits {
                    self.timeout(&mut state, *own);
                }
            }
        }
        state
    }

    fn is_undecided(state: &State, node: Node) -> bool {
        state.participants[&node].as_ref().is_some_and(Participant::is_undecided)
    }
}

impl Model for World {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let all: Participants = self.nodes().map(|node| (node, Stay(1))).collect();
        let (coordinator, actions) = Coordinator::new(self.protocol, all.clone(), self.works);
        let mut state = State {
            coordinator: Some(coordinator),
            participants: all
                .iter()
                .map(|(node, stay)| (*node, Some(self.participant(*node, stay.0))))
                .collect(),
            lives: [COORDINATOR].into_iter().chain(self.nodes()).map(|node| (node, Incarnation(1))).collect(),
            stays: all.iter().map(|(node, stay)| (*node, stay.0)).collect(),
            sent: BTreeSet::new(),
            durable: BTreeMap::new(),
            written: BTreeMap::new(),
            slots: BTreeMap::new(),
            slots_deleted: false,
            told: BTreeSet::new(),
            ends: BTreeMap::new(),
            orphans: BTreeSet::new(),
            unsure: BTreeSet::new(),
            wrong: None,
            judged: BTreeMap::new(),
            crashes: 0,
        };
        self.perform(&mut state, COORDINATOR, actions);
        vec![state]
    }

    fn actions(&self, state: &State, acts: &mut Vec<Act>) {
        acts.extend(state.sent.iter().cloned().map(Act::Deliver));
        for node in [COORDINATOR].into_iter().chain(self.nodes()) {
            if state.written.get(&node).is_some_and(|written| !written.is_empty()) {
                acts.push(Act::Sync(node));
            }
            acts.push(Act::Timeout(node));
            if state.crashes < self.crashes {
                acts.extend([Act::Crash(node, true), Act::Crash(node, false)]);
            }
            if self.judges && node != COORDINATOR && !state.judged.contains_key(&node) {
                acts.extend([Outcome::Committed, Outcome::Aborted].map(|outcome| Act::Judge(node, outcome)));
            }
            let forgot = node != COORDINATOR && state.participants[&node].is_none() && state.stays[&node] < 2;
            if forgot && (self.again || state.lives[&node].0 > 1) {
                acts.push(Act::CallAgain(node));
            }
        }
    }

    fn next_state(&self, before: &State, act: Act) -> Option<State> {
        let mut state = before.clone();
        match act {
            Act::Deliver(letter) => self.deliver(&mut state, &letter),
            Act::Sync(node) => self.sync(&mut state, node),
            Act::Timeout(node) => self.timeout(&mut state, node),
            Act::Crash(node, kept) => {
                state.crashes += 1;
                self.crash(&mut state, node, kept);
            }
            Act::Judge(node, outcome) => {
                let participant = state.participants.get_mut(&node).expect("it is one").as_mut()?;
                let actions = participant.judge(outcome, Trust::Sure)?;
                state.judged.insert(node, outcome);
                self.perform(&mut state, node, actions);
            }
            Act::CallAgain(node) => {
                state.unsure.remove(&node);
                let stay = state.stays.get_mut(&node).expect("it is one");
                *stay += 1;
                let again = self.participant(node, *stay);
                state.participants.insert(node, Some(again));
                state.orphans.insert(node);
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<World>> {
        let mut all = vec![
            Property::<World>::always("all end in the same way", |world, state| {
                let ends = state
                    .ends
                    .iter()
                    .filter(|(node, _)| **node == COORDINATOR || world.changes(**node))
                    .filter(|(node, _)| !state.judged.contains_key(node))
                    .map(|(_, end)| *end);
                let all: BTreeSet<Outcome> = ends.chain(state.told.iter().copied()).collect();
                all.len() <= 1 && state.wrong.is_none()
            }),
            Property::<World>::always("nobody is undecided when all go on", |world, state| {
                let alive = [COORDINATOR].into_iter().chain(world.nodes()).collect();
                let settled = world.settled(state, &alive);
                world.nodes().all(|node| settled.participants[&node].is_none())
                    && world.nodes().all(|node| settled.ends.contains_key(&node) || !world.changes(node))
                    && settled.coordinator.is_none()
            }),
        ];
        if self.judges {
            all.push(Property::<World>::always(
                "who was judged is told the truth when all go on",
                |world, state| {
                    let alive = [COORDINATOR].into_iter().chain(world.nodes()).collect();
                    let settled = world.settled(state, &alive);
                    let decided = settled.durable.get(&COORDINATOR).into_iter().flatten();
                    let committed = decided.into_iter().any(|record| matches!(record, Record::Commit(_)));
                    let truth = if committed { Outcome::Committed } else { Outcome::Aborted };
                    settled.judged.iter().all(|(node, judged)| {
                        let records = &settled.durable[node];
                        // What was judged and lost in a crash was not.
                        let lost = !records.contains(&Record::Judged(*judged));
                        let ends = settled.ends.get(node) == Some(if lost { &truth } else { judged });
                        let right = Record::Settled(*judged == truth);
                        ends && (lost || records.contains(&right))
                    })
                },
            ));
            let wrong = |_: &World, state: &State| {
                state.durable.values().any(|records| records.contains(&Record::Settled(false)))
            };
            all.push(Property::<World>::sometimes("a judgement was wrong", wrong));
        }
        if !self.votes.is_empty() {
            let aborts = |_: &World, state: &State| state.told.contains(&Outcome::Aborted);
            all.push(Property::<World>::sometimes("it aborts", aborts));
        }
        if !self.votes.contains(&Vote::No) {
            all.push(Property::<World>::sometimes("it commits", |world, state| {
                let there = |node| state.ends.get(&node) == Some(&Outcome::Committed);
                state.told.contains(&Outcome::Committed)
                    && world.nodes().all(|n| there(n) || !world.changes(n))
            }));
        }
        if self.protocol == Protocol::Slots {
            all.push(Property::<World>::always(
                "one that is left and has not crashed learns it",
                |world, state| {
                    let undecided = world.nodes().filter(|node| {
                        let all =
                            world.nodes().all(|of| state.slots.contains_key(&of)) && !state.slots_deleted;
                        World::is_undecided(state, *node) && (all || !state.unsure.contains(node))
                    });
                    undecided.map(|node| (node, world.settled(state, &[node].into()))).all(
                        |(node, settled)| {
                            !World::is_undecided(&settled, node) && settled.ends.contains_key(&node)
                        },
                    )
                },
            ));
        }
        all
    }
}

fn explore(protocol: Protocol, votes: &[Vote], crashes: u32) {
    let again = votes.len() < 3 && crashes < 2;
    explore_world(World { protocol, votes: votes.to_vec(), works: false, again, crashes, judges: false });
}

fn explore_world(world: World) {
    let checked = world.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    checked.assert_properties();
    let World { protocol, votes, works, crashes, .. } = checked.model();
    let states = checked.unique_state_count();
    println!("{protocol:?} {votes:?}, own work {works}, {crashes} crashes: {states} states");
}

/// As many crashes as a build can explore in some seconds.
const CRASHES: u32 = if cfg!(debug_assertions) { 1 } else { 2 };

#[test]
fn two_participants_end_in_the_same_way() {
    use Vote::*;
    for votes in [[Yes, Yes], [Yes, ReadOnly], [Yes, No], [ReadOnly, ReadOnly]] {
        explore(Protocol::Blocking, &votes, CRASHES);
    }
}

#[test]
fn a_coordinator_that_works_ends_in_the_same_way() {
    use Vote::*;
    for votes in [&[][..], &[Yes], &[No], &[ReadOnly], &[Yes, Yes], &[Yes, ReadOnly]] {
        let (protocol, votes) = (Protocol::Blocking, votes.to_vec());
        explore_world(World { protocol, votes, works: true, again: false, crashes: CRASHES, judges: false });
    }
}

#[test]
fn a_wrong_judgement_is_told() {
    use Vote::*;
    for votes in [&[Yes][..], &[Yes, Yes], &[Yes, No]] {
        let (protocol, votes) = (Protocol::Blocking, votes.to_vec());
        // With a crash at each step where that ends within seconds.
        let crashes = if votes.len() == 1 { 2 } else { CRASHES - 1 };
        explore_world(World { protocol, votes, works: false, again: false, crashes, judges: true });
    }
}

#[test]
fn two_participants_end_in_the_same_way_without_blocking() {
    use Vote::*;
    for votes in [[Yes, Yes], [Yes, ReadOnly], [Yes, No]] {
        explore(Protocol::Slots, &votes, CRASHES - 1);
    }
}

#[test]
fn three_participants_end_in_the_same_way() {
    use Vote::*;
    for votes in [[Yes, Yes, ReadOnly], [Yes, Yes, Yes], [Yes, ReadOnly, No]] {
        explore(Protocol::Blocking, &votes, CRASHES - 1);
    }
}

#[test]
fn three_participants_end_in_the_same_way_without_blocking() {
    use Vote::*;
    // More take minutes: see `docs/testing.md`.
    let votes: &[[Vote; 3]] =
        if cfg!(debug_assertions) { &[[Yes, No, No]] } else { &[[Yes, Yes, No], [Yes, Yes, Yes]] };
    votes.iter().for_each(|votes| explore(Protocol::Slots, votes, 0));
}

/// What a transaction costs when nothing goes wrong: messages, records that are forced, others, and slots written.
fn cost(protocol: Protocol, votes: &[Vote]) -> [usize; 4] {
    cost_with(protocol, votes, false)
}

fn cost_with(protocol: Protocol, votes: &[Vote], works: bool) -> [usize; 4] {
    let world = World { protocol, votes: votes.to_vec(), works, again: false, crashes: 0, judges: false };
    let mut state = world.init_states().pop().expect("there is one");
    let mut delivered = BTreeSet::new();
    loop {
        // Whatever can happen but a timeout, each letter once.
        let nodes = [COORDINATOR].into_iter().chain(world.nodes());
        let unsynced = nodes.into_iter().find(|node| state.written.get(node).is_some_and(|w| !w.is_empty()));
        if let Some(node) = unsynced {
            world.sync(&mut state, node);
        } else if let Some(letter) = state.sent.difference(&delivered).next().cloned() {
            world.deliver(&mut state, &letter);
            delivered.insert(letter);
        } else {
            break;
        }
    }
    assert!(state.coordinator.is_none() && state.participants.values().all(Option::is_none));
    let messages = state.sent.iter().filter(|letter| matches!(letter, Letter::Message { .. })).count();
    let is_forced = |record: &&Record| matches!(record, Record::Commit(_) | Record::Prepared(_));
    let records = || state.durable.values().flatten();
    let forced = records().filter(is_forced).count();
    [messages, forced, records().count() - forced, state.slots.len()]
}

/// The paper's figures (section 4.5), and those of presumed abort: the acknowledgement is carried along later.
#[test]
fn a_commit_costs_what_it_should() {
    use Vote::*;
    // For each that has changed something prepare, vote, outcome, and an acknowledgement; a forced record and one
    // that is not; at the coordinator the same.
    assert_eq!(cost(Protocol::Blocking, &[Yes]), [4, 2, 2, 0]);
    assert_eq!(cost(Protocol::Blocking, &[Yes, Yes, Yes]), [12, 4, 4, 0]);
    // Who has only read is out when it has voted.
    assert_eq!(cost(Protocol::Blocking, &[Yes, ReadOnly]), [6, 2, 2, 0]);
    assert_eq!(cost(Protocol::Blocking, &[ReadOnly, ReadOnly]), [4, 0, 0, 0]);
    // Nobody waits for a force but in a slot.
    // The last message is that all know: nobody waits for it.
    assert_eq!(cost(Protocol::Slots, &[Yes, Yes]), [10, 0, 2, 2]);
}

/// What the coordinator's node has changed itself commits in the force that decides.
#[test]
fn own_work_costs_nothing_more() {
    assert_eq!(cost_with(Protocol::Blocking, &[], true), [0, 1, 0, 0]);
    assert_eq!(cost_with(Protocol::Blocking, &[Vote::Yes], true), [4, 2, 2, 0]);
    assert_eq!(cost_with(Protocol::Blocking, &[Vote::ReadOnly], true), [2, 1, 0, 0]);
}

/// One that votes no is told nothing, and nothing is forced for it.
#[test]
fn an_abort_costs_less() {
    use Vote::*;
    let [messages, forced, ..] = cost(Protocol::Blocking, &[No, No]);
    assert!(messages <= 6 && forced == 0, "{messages} messages, {forced} forces");
}
