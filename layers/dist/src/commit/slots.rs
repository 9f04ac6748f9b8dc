//! Closing the slots of a transaction: whoever has waited too long learns its outcome, and nobody can keep it from
//! that but who keeps the slots.

use crate::commit::word::{Action, Node, Outcome, Participants, Slot};
use caliburn_os::simulated::planted;
use std::collections::BTreeSet;

/// Somebody who closes slots.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Closing {
    /// Whose slots were not seen yet.
    waiting: BTreeSet<Node>,
}

impl Closing {
    /// Begins with all of them.
    pub fn new(participants: &Participants) -> (Closing, Vec<Action>) {
        let closing = Closing { waiting: participants.keys().copied().collect() };
        let actions = closing.ask_again();
        (closing, actions)
    }

    /// Asks for those that were not seen.
    pub fn ask_again(&self) -> Vec<Action> {
        self.waiting.iter().map(|node| Action::Put(*node, Slot::Closed)).collect()
    }

    /// What is in one. The outcome, when it is known: one that is closed is enough, all must say yes.
    pub fn found(&mut self, of: Node, slot: Slot) -> Option<Outcome> {
        self.waiting.remove(&of);
        match slot {
            Slot::Closed => Some(Outcome::Aborted),
            Slot::Yes if self.waiting.is_empty() || planted("one-slot-is-enough") => Some(Outcome::Committed),
            Slot::Yes => None,
        }
    }
}
