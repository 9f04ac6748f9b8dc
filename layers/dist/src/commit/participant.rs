//! A participant of a transaction: votes when it is asked, and then waits to be told.

use crate::commit::slots::{Asking, Closing};
use crate::commit::word::{
    Action, Message, Node, Outcome, Participants, Protocol, Record, Slot, Stay, Trust, Vote,
};
use caliburn_os::simulated::{even_if, planted, unless};

/// A participant at work, from the first call of the transaction on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Participant {
    protocol: Protocol,
    own: Node,
    coordinator: Node,
    stay: Stay,
    state: State,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    /// It was not asked yet.
    Active,
    /// Its vote is not durable yet.
    Preparing(Participants),
    /// It has voted yes.
    Prepared(Participants),
    /// Without blocking: it has waited too long.
    Closing(Participants, Closing),
    /// The same, and what the keeper says may not be all.
    Asking(Participants, Asking),
    /// An administrator has decided. It asks on, to know whether that was right.
    Judged(Participants, Outcome, Judged),
    /// It has committed, and could forget that in a crash.
    Committed,
    /// Without blocking: it has aborted what was prepared, likewise.
    Aborted,
    Done,
}

/// How far a judgement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Judged {
    /// Not durable yet.
    Beginning,
    /// Durable; that it has ended so here is not yet.
    Ending,
    Ended,
    /// It has ended so everywhere else; that this is known is not durable yet.
    Settling(Outcome),
}

impl Participant {
    /// The transaction makes its first call.
    pub fn new(protocol: Protocol, own: Node, coordinator: Node, stay: Stay) -> Participant {
        Participant { protocol, own, coordinator, stay, state: State::Active }
    }

    /// After a crash, with what was prepared and not decided: it asks.
    pub fn recovered(
        protocol: Protocol,
        own: Node,
        coordinator: Node,
        stay: Stay,
        participants: Participants,
    ) -> (Participant, Vec<Action>) {
        let state = State::Prepared(participants);
        let mut participant = Participant { protocol, own, coordinator, stay, state };
        // Nobody knows what the keeper has forgotten while the node was away.
        let trust = if planted("restarted-and-sure") { Trust::Sure } else { Trust::Unsure };
        let actions = participant.timeout(trust);
        (participant, actions)
    }

    /// After a crash, with a judgement that is durable.
    pub fn recovered_judged(
        protocol: Protocol,
        own: Node,
        coordinator: Node,
        stay: Stay,
        outcome: Outcome,
    ) -> (Participant, Vec<Action>) {
        let state = State::Judged(Participants::new(), outcome, Judged::Ending);
        let participant = Participant { protocol, own, coordinator, stay, state };
        (participant, vec![Action::Finish(outcome), Action::Write(Record::Judged(outcome))])
    }

    /// An administrator decides, since the coordinator is gone for too long, or for ever (a heuristic decision). It
    /// may be wrong. Nothing unless it is prepared, and blocks: without slots, or since it can't rely on them.
    pub fn judge(&mut self, outcome: Outcome, trust: Trust) -> Option<Vec<Action>> {
        let participants = match (&self.state, self.protocol) {
            (State::Prepared(participants), Protocol::Blocking) | (State::Asking(participants, _), _) => {
                participants
            }
            (State::Prepared(participants) | State::Closing(participants, _), _) if trust == Trust::Doubt => {
                participants
            }
            _ => return None,
        };
        self.state = State::Judged(participants.clone(), outcome, Judged::Beginning);
        Some(match planted("judged-unforced") {
            true => self.durable(&Record::Judged(outcome)),
            false => vec![Action::Force(Record::Judged(outcome))],
        })
    }

    /// A message for a transaction of which the node knows nothing: it has never made a call here, what it did is
    /// lost, or it has ended.
    pub fn of_unknown(protocol: Protocol, from: Node, message: &Message) -> Vec<Action> {
        match message {
            Message::Prepare(_) => {
                let vote = if planted("unknown-votes-read-only") { Vote::ReadOnly } else { Vote::No };
                vec![Action::Send(from, Message::Vote(vote))]
            }
            // Of an abort nobody waits to hear, blocking.
            Message::Outcome(Outcome::Aborted) if protocol == Protocol::Blocking => Vec::new(),
            // It has ended so, durably: else it would know.
            Message::Outcome(_) => vec![Action::Send(from, Message::Ack)],
            // It has never voted yes, or has aborted: what has committed it remembers for as long as somebody
            // may ask.
            Message::Inquiry if protocol == Protocol::Slots => {
                vec![Action::Send(from, Message::Outcome(Outcome::Aborted))]
            }
            // All know.
            Message::Ack if protocol == Protocol::Slots => vec![Action::Write(Record::End)],
            _ => Vec::new(),
        }
    }

    /// A message from the coordinator. `vote` is asked when the node is to say what it thinks.
    pub fn receive(&mut self, message: &Message, vote: impl FnOnce() -> Vote) -> Vec<Action> {
        match (&self.state, message) {
            (State::Active, Message::Prepare(participants)) => self.prepare(participants.clone(), vote()),
            // It was not heard.
            (State::Prepared(_) | State::Closing(..), Message::Prepare(_)) => {
                vec![self.say(Message::Vote(Vote::Yes))]
            }
            (State::Prepared(_) | State::Closing(..) | State::Asking(..), Message::Outcome(outcome)) => {
                self.decided(*outcome)
            }
            // What has committed was another stay, which has ended: this one has nothing to do with it.
            (State::Active, Message::Outcome(Outcome::Committed)) if unless("orphan-told-nothing", true) => {
                self.state = State::Done;
                vec![Action::Finish(Outcome::Aborted), self.say(Message::Ack), Action::Forget]
            }
            (State::Judged(all, judged, Judged::Ended), Message::Outcome(outcome)) => {
                let (judged, outcome) = (*judged, *outcome);
                self.state = State::Judged(all.clone(), judged, Judged::Settling(outcome));
                let right = even_if("wrong-judgement-forgotten", judged == outcome);
                vec![Action::Force(Record::Settled(right))]
            }
            (State::Active | State::Preparing(_), Message::Outcome(Outcome::Aborted)) => {
                self.decided(Outcome::Aborted)
            }
            _ => Vec::new(),
        }
    }

    /// A record is durable.
    pub fn durable(&mut self, record: &Record) -> Vec<Action> {
        match (&self.state, record) {
            (State::Preparing(participants), Record::Prepared(_)) => {
                self.state = State::Prepared(participants.clone());
                vec![self.say(Message::Vote(Vote::Yes))]
            }
            (State::Judged(all, outcome, Judged::Beginning), Record::Judged(_)) => {
                let outcome = *outcome;
                self.state = State::Judged(all.clone(), outcome, Judged::Ending);
                vec![Action::Finish(outcome), Action::Write(Record::Judged(outcome))]
            }
            // Only now may the truth be heard: what is settled is forgotten.
            (State::Judged(all, outcome, Judged::Ending), Record::Judged(_)) => {
                // Without blocking nobody may be there who knows: it is not waited for.
                if self.protocol == Protocol::Slots {
                    self.state = State::Done;
                    return vec![self.say(Message::Ack), Action::Forget];
                }
                self.state = State::Judged(all.clone(), *outcome, Judged::Ended);
                vec![self.say(Message::Inquiry)]
            }
            (State::Judged(_, judged, Judged::Settling(outcome)), Record::Settled(_)) => {
                let (wrong, outcome) = (judged != outcome, *outcome);
                self.state = State::Done;
                let mut actions = Vec::new();
                // The record says it too, for as long as nobody has seen it.
                if wrong {
                    actions.push(Action::Wrong(outcome));
                }
                // Of an abort nobody waits to hear.
                if outcome == Outcome::Committed {
                    actions.push(self.say(Message::Ack));
                }
                actions.push(Action::Forget);
                actions
            }
            (State::Committed, Record::Committed) | (State::Aborted, Record::Aborted) => {
                self.state = State::Done;
                vec![self.say(Message::Ack), Action::Forget]
            }
            _ => Vec::new(),
        }
    }

    /// Another participant asks how it has ended.
    pub fn asked(&self, from: Node) -> Option<Action> {
        let message = match &self.state {
            State::Prepared(_) | State::Closing(..) | State::Asking(..) => Message::Vote(Vote::Yes),
            State::Committed => Message::Outcome(Outcome::Committed),
            State::Aborted => Message::Outcome(Outcome::Aborted),
            // It may still do either; or it is not what the node has decided.
            State::Active | State::Preparing(_) | State::Judged(..) | State::Done => return None,
        };
        Some(Action::Send(from, message))
    }

    /// Another participant is prepared, and has not decided.
    pub fn is_undecided_at(&mut self, node: Node) -> Vec<Action> {
        match &mut self.state {
            State::Asking(participants, asking) => asking.is_undecided(participants, node),
            _ => Vec::new(),
        }
    }

    /// The transaction does not go on at its coordinator.
    pub fn gone(&mut self, trust: Trust) -> Vec<Action> {
        match &mut self.state {
            State::Asking(participants, asking) => asking.is_vouched_for(participants),
            _ => self.timeout(trust),
        }
    }

    /// What it was to make durable cannot be, and never will be.
    pub fn refused(&mut self) -> Vec<Action> {
        match &self.state {
            State::Preparing(_) | State::Asking(..) => return self.leave(Vote::No, Outcome::Aborted),
            // It waits on, and can be judged again.
            State::Judged(all, _, Judged::Beginning) => self.state = State::Prepared(all.clone()),
            // It asks again.
            State::Judged(all, judged, Judged::Settling(_)) => {
                self.state = State::Judged(all.clone(), *judged, Judged::Ended);
            }
            _ => {}
        }
        Vec::new()
    }

    /// What is in a slot.
    pub fn slot(&mut self, of: Node, found: Slot) -> Vec<Action> {
        let own = of == self.own;
        match (&mut self.state, found) {
            (State::Preparing(participants), Slot::Yes) if own => {
                self.state = State::Prepared(participants.clone());
                vec![self.say(Message::Vote(Vote::Yes))]
            }
            (State::Preparing(_), Slot::Closed) if own => {
                let mut actions = vec![self.say(Message::Vote(Vote::No))];
                actions.extend(self.decided(Outcome::Aborted));
                actions
            }
            (State::Closing(_, closing), found) => match closing.found(of, found) {
                Some(outcome) => self.decided(outcome),
                None => Vec::new(),
            },
            (State::Asking(participants, asking), found) => match asking.found(participants, of, found) {
                Ok(outcome) => self.decided(outcome),
                Err(actions) => actions,
            },
            _ => Vec::new(),
        }
    }

    /// It has waited too long.
    pub fn timeout(&mut self, trust: Trust) -> Vec<Action> {
        match (&mut self.state, self.protocol) {
            // Nobody can have committed what it has not voted for.
            (State::Active, _) => self.decided(Outcome::Aborted),
            (State::Asking(participants, asking), _) => asking.again(participants, trust != Trust::Doubt),
            (
                State::Preparing(participants)
                | State::Prepared(participants)
                | State::Closing(participants, _),
                Protocol::Slots,
            ) if trust != Trust::Sure => {
                let looks = trust != Trust::Doubt;
                let (asking, actions) = Asking::new(participants, Some(self.own), looks);
                self.state = State::Asking(participants.clone(), asking);
                actions
            }
            (State::Preparing(_), Protocol::Slots) => vec![Action::Put(self.own, Slot::Yes)],
            (State::Prepared(_), Protocol::Blocking) if planted("prepared-gives-up") => {
                self.decided(Outcome::Aborted)
            }
            (State::Prepared(_), Protocol::Blocking) => vec![self.say(Message::Inquiry)],
            (State::Prepared(participants), Protocol::Slots) => {
                let (closing, actions) = Closing::new(participants, Some(self.own));
                self.state = State::Closing(participants.clone(), closing);
                actions
            }
            (State::Closing(_, closing), _) => closing.ask_again(),
            (State::Judged(_, _, Judged::Ended), _) => vec![self.say(Message::Inquiry)],
            (State::Judged(..), _) => Vec::new(),
            (State::Preparing(_) | State::Committed | State::Aborted | State::Done, _) => Vec::new(),
        }
    }

    /// Whether it may vote again: all others have said that they have not decided.
    pub fn may_vote_again(&self) -> bool {
        match &self.state {
            State::Asking(participants, asking) => asking.may_vote(participants),
            _ => false,
        }
    }

    /// Whether it was not asked yet: it may abort by itself.
    pub fn is_active(&self) -> bool {
        matches!(self.state, State::Active)
    }

    /// With whom, once it was asked.
    pub fn participants(&self) -> Option<&Participants> {
        match &self.state {
            State::Preparing(participants)
            | State::Prepared(participants)
            | State::Closing(participants, _)
            | State::Asking(participants, _) => Some(participants),
            State::Active | State::Judged(..) | State::Committed | State::Aborted | State::Done => None,
        }
    }

    /// Whether it is prepared, and holds its locks until it is told, or learns, how the transaction ends.
    pub fn is_undecided(&self) -> bool {
        matches!(self.state, State::Prepared(_) | State::Closing(..) | State::Asking(..))
    }

    /// Whether nobody but an administrator may be able to end it.
    pub fn is_asking(&self) -> bool {
        matches!(self.state, State::Asking(..))
    }

    fn prepare(&mut self, participants: Participants, vote: Vote) -> Vec<Action> {
        // What was done in an earlier stay is lost; in this one there are only the calls since.
        let here = participants.get(&self.own) == Some(&self.stay);
        let vote = if unless("stays-not-compared", !here) { Vote::No } else { vote };
        match (vote, self.protocol) {
            (Vote::Yes, Protocol::Blocking) => {
                self.state = State::Preparing(participants.clone());
                if planted("prepared-unforced") {
                    return self.durable(&Record::Prepared(participants));
                }
                vec![Action::Force(Record::Prepared(participants))]
            }
            // Who has only read has a slot, too: what it says must be known where the outcome is learned.
            (Vote::Yes | Vote::ReadOnly, Protocol::Slots) => {
                self.state = State::Preparing(participants);
                vec![Action::Put(self.own, Slot::Yes)]
            }
            (Vote::ReadOnly, Protocol::Blocking) => self.leave(vote, Outcome::Committed),
            (Vote::No, _) => self.leave(vote, Outcome::Aborted),
        }
    }

    /// It is out when it has voted.
    fn leave(&mut self, vote: Vote, outcome: Outcome) -> Vec<Action> {
        self.state = State::Done;
        vec![self.say(Message::Vote(vote)), Action::Finish(outcome), Action::Forget]
    }

    fn decided(&mut self, outcome: Outcome) -> Vec<Action> {
        let was_prepared = !matches!(self.state, State::Active);
        match (outcome, self.protocol) {
            (Outcome::Committed, Protocol::Blocking) => {
                self.state = State::Committed;
                if planted("acknowledged-too-early") {
                    let mut actions = vec![Action::Finish(outcome), Action::Write(Record::Committed)];
                    actions.extend(self.durable(&Record::Committed));
                    return actions;
                }
                vec![Action::Finish(outcome), Action::Write(Record::Committed)]
            }
            (Outcome::Committed, Protocol::Slots) => {
                self.state = State::Committed;
                vec![Action::Finish(outcome), Action::Write(Record::Committed)]
            }
            // Its slot says yes, perhaps, and is not deleted before it knows for good that it has aborted.
            (Outcome::Aborted, Protocol::Slots) if was_prepared => {
                self.state = State::Aborted;
                vec![Action::Finish(outcome), Action::Write(Record::Aborted)]
            }
            (Outcome::Aborted, Protocol::Slots) => {
                self.state = State::Done;
                vec![Action::Finish(outcome), self.say(Message::Ack), Action::Forget]
            }
            (Outcome::Aborted, Protocol::Blocking) => {
                self.state = State::Done;
                let mut actions = vec![Action::Finish(outcome)];
                if was_prepared {
                    actions.push(Action::Write(Record::Aborted));
                }
                actions.push(Action::Forget);
                actions
            }
        }
    }

    fn say(&self, message: Message) -> Action {
        Action::Send(self.coordinator, message)
    }
}
