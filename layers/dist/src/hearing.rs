//! What a node does with letters that come: each is for it as a coordinator, as a participant, or, without
//! blocking, as both.

use crate::commit::coordinator::Coordinator;
use crate::commit::participant::Participant;
use crate::commit::word::{Action, Message, Node, Outcome, Protocol, Vote};
use crate::host::{Host, Role, Step};
use crate::id::Tid;
use crate::letter::{Brief, Letter, Word};
use caliburn_os::simulated::{even_if, planted, unless};
use std::time::Duration;

impl Host {
    /// A letter came.
    pub fn receive(&mut self, letter: Letter, now: Duration) -> Vec<Step> {
        let Letter { from, to, tid, word } = letter;
        // An address may have been another node's before.
        let is_its = match &word {
            Word::Probe => tid.coordinator == self.own,
            Word::Lives | Word::Gone | Word::Commit(Message::Prepare(_), _) => tid.coordinator == from,
            // Without blocking participants ask each other, and tell.
            Word::Commit(..) if tid.protocol == Protocol::Slots => true,
            Word::Commit(Message::Inquiry | Message::Vote(_) | Message::Ack, _) => {
                tid.coordinator == self.own
            }
            Word::Commit(Message::Outcome(_), _) => tid.coordinator == from,
            Word::Chase(_) | Word::Victim => true,
        };
        if to != self.own || !is_its {
            return Vec::new();
        }
        match word {
            Word::Probe => {
                self.probed(tid, now).map_or_else(Vec::new, |word| vec![self.letter(from, tid, word)])
            }
            Word::Lives => {
                if let Some(part) = self.taking_part.get_mut(&tid) {
                    part.heard = now;
                }
                Vec::new()
            }
            Word::Gone => match self.taking_part.get_mut(&tid) {
                Some(part) => {
                    let actions = part.machine.gone(self.reliance.trust(part.since, now));
                    self.perform(tid, Role::Participant, actions)
                }
                None => Vec::new(),
            },
            // Whoever runs the node knows who waits.
            Word::Chase(_) | Word::Victim => Vec::new(),
            // A node that doubts its keeper takes no votes, and gives none; but it hears, and says what it knows.
            Word::Commit(Message::Prepare(_) | Message::Vote(_), _) if self.waits_for_keeper(&tid) => {
                Vec::new()
            }
            Word::Commit(message, brief) if tid.protocol == Protocol::Slots => {
                let mut steps = self.receive_as_coordinator(tid, from, &message, now);
                steps.extend(self.receive_as_participant(tid, from, message, brief));
                steps
            }
            Word::Commit(message @ (Message::Prepare(_) | Message::Outcome(_)), brief) => {
                self.receive_as_participant(tid, from, message, brief)
            }
            Word::Commit(message, _) => self.receive_as_coordinator(tid, from, &message, now),
        }
    }

    /// What it says of a transaction that was begun here, if it can say it.
    fn probed(&self, tid: Tid, now: Duration) -> Option<Word> {
        // Who asks may have voted, in an earlier life of this node: what that one has done, the keeper knows.
        let earlier = tid.protocol == Protocol::Slots && tid.incarnation < self.incarnation;
        let knows = !earlier || self.reliance.vouches(tid.incarnation, now);
        let knows = even_if("doubtful-vouched", knows);
        if self.coordinating.get(&tid).is_some_and(|it| it.machine.vouches()) {
            return knows.then_some(Word::Gone);
        }
        if self.goes_on(&tid) || planted("orphans-live") {
            return Some(Word::Lives);
        }
        knows.then_some(Word::Gone)
    }

    fn receive_as_coordinator(
        &mut self,
        tid: Tid,
        from: Node,
        message: &Message,
        now: Duration,
    ) -> Vec<Step> {
        let actions = match self.coordinating.get_mut(&tid) {
            Some(it) => it.machine.receive(from, message, self.reliance.trust(it.since, now)),
            None if tid.coordinator == self.own => Coordinator::of_unknown(tid.protocol, from, message),
            None => Vec::new(),
        };
        self.perform(tid, Role::Coordinator, actions)
    }

    fn receive_as_participant(&mut self, tid: Tid, from: Node, message: Message, brief: Brief) -> Vec<Step> {
        let tells = unless("ack-taken-for-all", self.coordinates(&tid));
        let Some(part) = self.taking_part.get_mut(&tid) else {
            // What comes from a participant is for the coordinator, unless it asks, or tells.
            let actions = match self.remembered.get(&tid) {
                Some(_) if message == Message::Inquiry && unless("commits-not-remembered", true) => {
                    vec![Action::Send(from, Message::Outcome(Outcome::Committed))]
                }
                // It is for the coordinator; or from one that takes part, for this node, which tells it as well.
                _ if message == Message::Ack && (from != tid.coordinator || from == self.own || tells) => {
                    Vec::new()
                }
                _ => Participant::of_unknown(tid.protocol, from, &message),
            };
            return self.perform(tid, Role::Participant, actions);
        };
        match message {
            Message::Inquiry => {
                let action = part.machine.asked(from);
                self.perform(tid, Role::Participant, action.into_iter().collect())
            }
            Message::Vote(Vote::Yes) => {
                let actions = part.machine.is_undecided_at(from);
                self.perform(tid, Role::Participant, actions)
            }
            Message::Vote(_) | Message::Ack => Vec::new(),
            Message::Prepare(participants) if part.machine.is_active() => {
                if part.asked.replace(participants).is_some() {
                    return Vec::new();
                }
                vec![Step::Vote(tid, brief)]
            }
            message => {
                let actions = part.machine.receive(&message, || Vote::No);
                self.perform(tid, Role::Participant, actions)
            }
        }
    }
}
