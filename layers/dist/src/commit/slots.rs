//! How a node that has waited too long learns the outcome: it closes the slots; or it asks, when it can't be sure
//! that the keeper of the slots has forgotten nothing.

use crate::commit::word::{Action, Message, Node, Outcome, Participants, Slot};
use caliburn_os::simulated::{even_if, planted};
use std::collections::{BTreeMap, BTreeSet};

/// Somebody who closes slots.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Closing {
    /// Says yes in its own slot.
    own: Option<Node>,
    /// Whose slots were not seen yet.
    waiting: BTreeSet<Node>,
}

impl Closing {
    /// Begins with all of them.
    pub fn new(participants: &Participants, own: Option<Node>) -> (Closing, Vec<Action>) {
        let closing = Closing { own, waiting: participants.keys().copied().collect() };
        let actions = closing.ask_again();
        (closing, actions)
    }

    /// Asks for those that were not seen.
    pub fn ask_again(&self) -> Vec<Action> {
        let slot = |node| if Some(node) == self.own { Slot::Yes } else { Slot::Closed };
        self.waiting.iter().map(|node| Action::Put(*node, slot(*node))).collect()
    }

    /// What is in one. The outcome, when it is known: one that is closed is enough, all must say yes.
    pub fn found(&mut self, of: Node, slot: Slot) -> Option<Outcome> {
        if slot != Slot::Empty {
            self.waiting.remove(&of);
        }
        match slot {
            Slot::Empty => None,
            Slot::Closed => Some(Outcome::Aborted),
            Slot::Yes if self.waiting.is_empty() || planted("one-slot-is-enough") => Some(Outcome::Committed),
            Slot::Yes => None,
        }
    }
}

/// A node that is not sure of the keeper. It writes nothing that others could take for an older word, until all of
/// them have said that they have not decided.
///
/// ```text
///   look at all slots    all say yes: committed; one is closed: aborted
///   some are empty       ask the other participants, and the coordinator
///     a participant      knows how it ended; or has never voted, and never will: aborted; or is prepared as well
///     the coordinator    has told nobody that it aborted
///   all are prepared     write the own slot again, and look again
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Asking {
    /// The participant that asks; the coordinator has no slot.
    own: Option<Node>,
    /// What was seen since the last look at all of them.
    seen: BTreeMap<Node, Slot>,
    /// Participants that are prepared and have not decided.
    undecided: BTreeSet<Node>,
    /// The coordinator has told nobody that the transaction aborted.
    vouched: bool,
}

impl Asking {
    /// Begins, with a look at the slots; without one if the keeper can't be asked.
    pub fn new(participants: &Participants, own: Option<Node>, looks: bool) -> (Asking, Vec<Action>) {
        let mut asking = Asking { own, seen: BTreeMap::new(), undecided: BTreeSet::new(), vouched: false };
        let actions = asking.again(participants, looks);
        (asking, actions)
    }

    /// Once more.
    pub fn again(&mut self, participants: &Participants, looks: bool) -> Vec<Action> {
        self.seen.clear();
        self.undecided.clear();
        self.vouched = false;
        match looks {
            true => participants.keys().map(|node| Action::Put(*node, Slot::Empty)).collect(),
            false => self.ask(participants),
        }
    }

    fn ask(&self, participants: &Participants) -> Vec<Action> {
        let others = participants.keys().filter(|node| Some(**node) != self.own);
        let mut actions: Vec<Action> = others.map(|node| Action::Send(*node, Message::Inquiry)).collect();
        if self.own.is_some() {
            actions.push(Action::Probe);
        }
        actions
    }

    /// What is in a slot: the outcome, or what is to be done.
    pub fn found(
        &mut self,
        participants: &Participants,
        of: Node,
        slot: Slot,
    ) -> Result<Outcome, Vec<Action>> {
        self.seen.insert(of, slot);
        if slot == Slot::Closed {
            return Ok(Outcome::Aborted);
        }
        if self.seen.len() < participants.len() {
            return Err(Vec::new());
        }
        match self.seen.values().all(|slot| *slot == Slot::Yes) {
            true => Ok(Outcome::Committed),
            false => {
                let mut actions = self.ask(participants);
                actions.extend(self.vote(participants));
                Err(actions)
            }
        }
    }

    /// A participant is prepared, and has not decided.
    pub fn is_undecided(&mut self, participants: &Participants, node: Node) -> Vec<Action> {
        self.undecided.insert(node);
        self.vote(participants)
    }

    /// The coordinator knows nothing, or asks as well.
    pub fn is_vouched_for(&mut self, participants: &Participants) -> Vec<Action> {
        self.vouched = true;
        self.vote(participants)
    }

    /// Writes the own slot again when nobody has decided.
    fn vote(&self, participants: &Participants) -> Vec<Action> {
        let own = self.own.filter(|_| self.may_vote(participants));
        own.map(|own| Action::Put(own, Slot::Yes)).into_iter().collect()
    }

    /// Whether nobody has decided, as far as all have said since the last look at all slots.
    pub fn may_vote(&self, participants: &Participants) -> bool {
        let Some(own) = self.own.filter(|own| self.seen.get(own) == Some(&Slot::Empty)) else {
            return false;
        };
        let all = participants.keys().all(|node| *node == own || self.undecided.contains(node));
        let (all, vouched) =
            (even_if("voted-again-unasked", all), even_if("voted-again-unvouched", self.vouched));
        all && vouched
    }
}
