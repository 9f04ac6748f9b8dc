//! The coordinator of a transaction: asks the participants for their votes, decides, and tells them until they all
//! know.

use crate::commit::slots::{Asking, Closing};
use crate::commit::word::{
    Action, Message, Node, Outcome, Participants, Protocol, Record, Slot, Trust, Vote,
};
use caliburn_os::simulated::{even_if, planted, unless};
use std::collections::BTreeSet;

/// A coordinator at work.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Coordinator {
    protocol: Protocol,
    participants: Participants,
    /// Blocking: its own node has changed something, which commits with the decision.
    works: bool,
    state: State,
    /// Without blocking, after a crash: the node has committed as a participant, and remembers it for others.
    remembers: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    /// Who has not voted, and who has voted yes.
    Voting {
        waiting: BTreeSet<Node>,
        yes: BTreeSet<Node>,
    },
    /// Without blocking: it has waited too long.
    Closing(Closing),
    /// The same, and what the keeper says may not be all.
    Asking(Asking),
    /// Blocking: all have voted, and the decision is not durable yet. To be told afterwards.
    Deciding(BTreeSet<Node>),
    /// Who is to be told, until it says that it knows.
    Telling(BTreeSet<Node>, Outcome),
    Done,
}

impl Coordinator {
    /// Begins to commit. `works` if its own node has changed something: blocking, that is no participant, and
    /// commits in the force that decides. Without blocking it is a participant like others.
    pub fn new(protocol: Protocol, participants: Participants, works: bool) -> (Coordinator, Vec<Action>) {
        let waiting: BTreeSet<Node> = participants.keys().copied().collect();
        let ask = |node: &Node| Action::Send(*node, Message::Prepare(participants.clone()));
        let mut actions: Vec<Action> = waiting.iter().map(ask).collect();
        let state = State::Voting { waiting, yes: BTreeSet::new() };
        let mut coordinator = Coordinator { protocol, participants, works, state, remembers: false };
        coordinator.count(&mut actions);
        (coordinator, actions)
    }

    /// The record says that it has committed, and no `End` that all know: after a crash. Without blocking it is a
    /// participant's.
    pub fn recovered(protocol: Protocol, participants: Participants) -> (Coordinator, Vec<Action>) {
        let nodes: BTreeSet<Node> = participants.keys().copied().collect();
        let state = State::Telling(nodes, Outcome::Committed);
        let coordinator = Coordinator { protocol, participants, works: false, state, remembers: true };
        let actions = coordinator.tell_again();
        (coordinator, actions)
    }

    /// After a crash, without blocking: slots of a transaction of an earlier life are left, and nobody tells.
    pub fn left(participants: Participants) -> (Coordinator, Vec<Action>) {
        let (state, actions) = match planted("restarted-and-sure") {
            true => {
                let (closing, actions) = Closing::new(&participants, None);
                (State::Closing(closing), actions)
            }
            false => {
                let (asking, actions) = Asking::new(&participants, None, true);
                (State::Asking(asking), actions)
            }
        };
        let protocol = Protocol::Slots;
        (Coordinator { protocol, participants, works: false, state, remembers: false }, actions)
    }

    /// Whether it has told nobody yet that the transaction aborted, and will not of its own accord.
    pub fn vouches(&self) -> bool {
        matches!(self.state, State::Asking(_))
    }

    /// Whether it tells what nobody here remembers if the node stops.
    pub fn tells(&self) -> bool {
        matches!(self.state, State::Telling(..)) && !self.remembers
    }

    /// The participants.
    pub fn participants(&self) -> &Participants {
        &self.participants
    }

    /// A message for a transaction of which the node knows nothing: it has aborted, or all know.
    pub fn of_unknown(protocol: Protocol, from: Node, message: &Message) -> Vec<Action> {
        let asks = matches!(message, Message::Inquiry | Message::Vote(Vote::Yes));
        let outcome = if planted("presumed-committed") { Outcome::Committed } else { Outcome::Aborted };
        // Slots tell, where there are some.
        match asks && protocol == Protocol::Blocking {
            true => vec![Action::Send(from, Message::Outcome(outcome))],
            false => Vec::new(),
        }
    }

    /// A message from a participant.
    pub fn receive(&mut self, from: Node, message: &Message, trust: Trust) -> Vec<Action> {
        let mut actions = Vec::new();
        match (&mut self.state, message) {
            (State::Voting { waiting, yes }, Message::Vote(vote)) if waiting.contains(&from) => match vote {
                Vote::No if even_if("no-believed", self.protocol == Protocol::Blocking) => {
                    self.abort(&mut actions)
                }
                // It may know nothing any more of what has been decided without this node.
                Vote::No => actions.extend(self.timeout(trust)),
                vote => {
                    waiting.remove(&from);
                    if *vote == Vote::Yes {
                        yes.insert(from);
                    }
                    self.count(&mut actions);
                }
            },
            (State::Asking(_), Message::Outcome(outcome)) if self.participants.contains_key(&from) => {
                let nodes = self.participants.keys().copied().collect();
                self.decided(nodes, *outcome, &mut actions);
            }
            (State::Telling(left, _), Message::Ack) => {
                left.remove(&from);
                self.end_if_told(&mut actions);
            }
            (State::Telling(_, outcome), Message::Inquiry | Message::Vote(Vote::Yes)) => {
                actions.push(Action::Send(from, Message::Outcome(*outcome)));
            }
            _ => {}
        }
        actions
    }

    /// The decision is durable.
    pub fn durable(&mut self, record: &Record) -> Vec<Action> {
        let mut actions = Vec::new();
        if let (State::Deciding(nodes), Record::Commit(_)) = (&self.state, record) {
            let nodes = nodes.clone();
            self.decided(nodes, Outcome::Committed, &mut actions);
        }
        actions
    }

    /// The decision could not be made durable, and never will be: its record was refused.
    pub fn refused(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        if let State::Deciding(nodes) = &self.state {
            let nodes = nodes.clone();
            self.decided(nodes, Outcome::Aborted, &mut actions);
        }
        actions
    }

    /// What is in a participant's slot.
    pub fn slot(&mut self, of: Node, found: Slot) -> Vec<Action> {
        let mut actions = Vec::new();
        if let State::Closing(closing) = &mut self.state
            && let Some(outcome) = closing.found(of, found)
        {
            let nodes = self.participants.keys().copied().collect();
            self.decided(nodes, outcome, &mut actions);
        } else if let State::Asking(asking) = &mut self.state {
            match asking.found(&self.participants, of, found) {
                Ok(outcome) => {
                    let nodes = self.participants.keys().copied().collect();
                    self.decided(nodes, outcome, &mut actions);
                }
                Err(more) => actions.extend(more),
            }
        }
        actions
    }

    /// It has waited too long.
    pub fn timeout(&mut self, trust: Trust) -> Vec<Action> {
        let looks = trust != Trust::Doubt;
        match (&mut self.state, self.protocol) {
            (State::Voting { .. }, Protocol::Blocking) => {
                let mut actions = Vec::new();
                self.abort(&mut actions);
                actions
            }
            (State::Asking(asking), _) => asking.again(&self.participants, looks),
            (State::Voting { .. } | State::Closing(_), Protocol::Slots) if trust != Trust::Sure => {
                let (asking, actions) = Asking::new(&self.participants, None, looks);
                self.state = State::Asking(asking);
                actions
            }
            (State::Voting { .. }, Protocol::Slots) => {
                let (closing, actions) = Closing::new(&self.participants, None);
                self.state = State::Closing(closing);
                actions
            }
            (State::Closing(closing), _) => closing.ask_again(),
            (State::Telling(..), _) => self.tell_again(),
            (State::Deciding(_) | State::Done, _) => Vec::new(),
        }
    }

    /// Whether it needs to be told of time: somebody is waited for.
    pub fn waits(&self) -> bool {
        !matches!(self.state, State::Deciding(_) | State::Done)
    }

    /// Decides when all have voted.
    fn count(&mut self, actions: &mut Vec<Action>) {
        let State::Voting { waiting, yes } = &self.state else { return };
        let enough = planted("one-vote-is-enough") && !yes.is_empty();
        if !waiting.is_empty() && !enough {
            return;
        }
        let yes = yes.clone();
        match self.protocol {
            // Nobody has changed anything, and all are out.
            Protocol::Blocking if yes.is_empty() && !self.works => {
                self.state = State::Done;
                actions.extend([Action::Tell(Outcome::Committed), Action::Forget]);
            }
            Protocol::Blocking if unless("commit-not-forced", true) => {
                let told: Participants = self
                    .participants
                    .iter()
                    .filter(|(n, _)| yes.contains(n))
                    .map(|(n, i)| (*n, *i))
                    .collect();
                self.state = State::Deciding(yes);
                actions.push(Action::Force(Record::Commit(told)));
            }
            Protocol::Blocking | Protocol::Slots => self.decided(yes, Outcome::Committed, actions),
        }
    }

    /// Somebody votes no, or is waited for too long. No record: whoever asks later is told the same.
    fn abort(&mut self, actions: &mut Vec<Action>) {
        let State::Voting { waiting, yes } = &self.state else { return };
        let nodes: BTreeSet<Node> = waiting.union(yes).copied().collect();
        self.decided(nodes, Outcome::Aborted, actions);
    }

    fn decided(&mut self, nodes: BTreeSet<Node>, outcome: Outcome, actions: &mut Vec<Action>) {
        if self.works {
            actions.push(Action::Finish(outcome));
        }
        actions.push(Action::Tell(outcome));
        actions.extend(nodes.iter().map(|node| Action::Send(*node, Message::Outcome(outcome))));
        if self.protocol == Protocol::Blocking && (outcome == Outcome::Aborted || nodes.is_empty()) {
            // Nobody is waited for: who asks of an abort is told the same by a coordinator that knows nothing, and a
            // decision that names nobody is of no use to it.
            self.state = State::Done;
            actions.push(Action::Forget);
            return;
        }
        self.state = State::Telling(nodes, outcome);
        self.end_if_told(actions);
    }

    fn end_if_told(&mut self, actions: &mut Vec<Action>) {
        let State::Telling(left, outcome) = &self.state else { return };
        let outcome = *outcome;
        if !left.is_empty() && unless("ended-before-all-know", true) {
            return;
        }
        self.state = State::Done;
        match self.protocol {
            Protocol::Blocking => actions.push(Action::Write(Record::End)),
            Protocol::Slots if self.remembers => actions.push(Action::Write(Record::End)),
            Protocol::Slots => {
                actions.push(Action::Delete);
                // Nobody will ask those that remember it.
                if outcome == Outcome::Committed {
                    let all = self.participants.keys();
                    actions.extend(all.map(|node| Action::Send(*node, Message::Ack)));
                }
            }
        }
        actions.push(Action::Forget);
    }

    fn tell_again(&self) -> Vec<Action> {
        let State::Telling(left, outcome) = &self.state else { return Vec::new() };
        left.iter().map(|node| Action::Send(*node, Message::Outcome(*outcome))).collect()
    }
}
