//! What a node does when its keeper has answered, and until when it may write there.

use crate::commit::word::{Node, Protocol, Slot};
use crate::host::{Coordinating, Host, Role, Step};
use crate::id::Tid;
use crate::reliance::Reliance;
use caliburn_os::simulated::{instead, planted};
use std::time::Duration;

impl Host {
    /// How far it relies on its keeper.
    pub fn reliance(&mut self) -> &mut Reliance {
        &mut self.reliance
    }

    /// Whether it does not rely on its keeper any more.
    pub fn doubts(&self) -> bool {
        self.reliance.doubts()
    }

    /// Whether a transaction depends on a keeper that is not relied on.
    pub(crate) fn waits_for_keeper(&self, tid: &Tid) -> bool {
        tid.protocol == Protocol::Slots && self.reliance.doubts()
    }

    /// How many transactions that commit without blocking it is telling their participants of, and would not tell in
    /// another life: it learns the end of those from the keeper then.
    pub fn telling(&self) -> usize {
        let tells = |tid: &Tid, it: &Coordinating| tid.protocol == Protocol::Slots && it.machine.tells();
        let count = self.coordinating.iter().filter(|(tid, it)| tells(tid, it)).count();
        instead("accepted-while-told", count, 0)
    }

    /// The keeper has answered a question that was asked then, and knows all that the node knows. If it was away for
    /// so long that it may be another one, the node asks again what it is asking: what it has heard was true of the
    /// former one.
    pub fn contact(&mut self, asked: Duration, now: Duration) -> Vec<Step> {
        if !self.reliance.contact(asked, now) || planted("words-outlive-an-absence") {
            return Vec::new();
        }
        let parts = self.taking_part.iter().filter(|(_, part)| part.machine.is_asking());
        let asking: Vec<Tid> = parts.map(|(tid, _)| *tid).collect();
        let again = |tid: Tid| {
            let part = self.taking_part.get_mut(&tid).expect("it asks");
            let actions = part.machine.timeout(self.reliance.trust(part.since, now));
            self.perform(tid, Role::Participant, actions)
        };
        asking.into_iter().flat_map(again).collect()
    }

    /// What a slot holds, by an answer of the keeper that may be too old to count: it was asked, and has answered,
    /// then.
    pub fn found(
        &mut self,
        (tid, role, of): (Tid, Role, Node),
        slot: Slot,
        (asked, answered): (Duration, Duration),
        now: Duration,
    ) -> Vec<Step> {
        let mut steps = self.contact(asked, answered);
        if Reliance::counts(slot, asked, now) {
            steps.extend(self.slot(tid, role, of, slot));
        }
        steps
    }

    /// Until when a value may be put into a slot of a transaction: later it could be put into a copy of the keeper.
    /// Nothing if the node has no reason any more to put it; it comes to another one when it has waited too long.
    pub fn deadline(&self, tid: Tid, role: Role, slot: Slot) -> Option<Duration> {
        let (since, may_vote) = match role {
            _ if slot == Slot::Empty => return Some(Duration::MAX),
            Role::Coordinator => (self.coordinating.get(&tid)?.since, false),
            Role::Participant => {
                let part = self.taking_part.get(&tid)?;
                (part.since, slot == Slot::Yes && part.machine.may_vote_again())
            }
        };
        let wrongly = match slot {
            Slot::Yes => planted("voted-unsure"),
            _ => planted("closed-unsure"),
        };
        let knows = wrongly || self.reliance.knows_all(since);
        (knows || (may_vote && !self.doubts())).then(|| self.reliance.deadline())
    }
}
