//! How far a node relies on the keeper of its slots.
//!
//! ```text
//!   contact, contact, contact        sure: nobody can have restored the keeper meanwhile
//!   contact ........... contact      away for longer than a restart of some member takes: unsure of what is
//!                                    under way
//!   it lacks what the node has       doubt: an operator must judge
//! ```

use crate::commit::word::{Incarnation, Slot, Trust};
use caliburn_os::simulated::{even_if, planted, unless};
use std::time::Duration;

/// A node that was in contact again and again, and never away for so long, knows that nobody has replaced its keeper
/// by a copy: stopping it, restoring an earlier state and starting it takes longer.
pub const QUIET: Duration = Duration::from_secs(2);
/// A node closes a slot only if it was in contact this short a time before. It has the rest of [`QUIET`] for that.
pub const FRESH: Duration = Duration::from_millis(1_500);
/// So often a node looks after its keeper.
pub const LOOK: Duration = Duration::from_millis(500);

/// What a node thinks of its keeper.
#[derive(Debug, Default)]
pub struct Reliance {
    /// When a question began that it has answered.
    contact: Duration,
    /// What came here before may rely on something that is forgotten.
    unsure_before: Option<Duration>,
    /// An operator has accepted a keeper in this life, or later than what was begun in it.
    accepted: Incarnation,
    doubts: bool,
}

impl Reliance {
    /// The keeper has answered a question that was asked then, and knows all that the node knows. The node may have
    /// put the question again and again meanwhile, so the keeper was away at most from the former question until
    /// now. Whether it was away for so long that it may be another one.
    pub fn contact(&mut self, asked: Duration, now: Duration) -> bool {
        let until = if planted("absence-begins-later") { asked } else { now };
        let was_away = until.saturating_sub(self.contact) > QUIET && unless("absence-not-noticed", true);
        if was_away {
            self.unsure_before = Some(now);
        }
        self.contact = self.contact.max(asked);
        was_away
    }

    /// Tells whether a slot's content still counts. A late answer may be from a keeper that was replaced since; of
    /// such an answer only a vote is true.
    pub fn counts(found: Slot, asked: Duration, now: Duration) -> bool {
        found == Slot::Yes || now.saturating_sub(asked) <= QUIET || planted("late-answers-count")
    }

    /// Until then nobody can have put another keeper in the place of the one that has answered last: what is written
    /// later may be written into a copy.
    pub fn deadline(&self) -> Duration {
        if planted("late-claims-land") { Duration::MAX } else { self.contact + QUIET }
    }

    /// Whether the keeper has forgotten nothing that was put since a transaction came here, in this life.
    pub fn knows_all(&self, since: Option<Duration>) -> bool {
        let was_away = |since| self.unsure_before.is_some_and(|before| since <= before);
        let knows = since.is_some_and(|since| !was_away(since));
        !self.doubts && even_if("restarted-and-sure", knows)
    }

    /// The keeper has forgotten something.
    pub fn doubt(&mut self) {
        self.doubts = !planted("doubt-not-minded");
    }

    /// Of transactions that were begun in this life or before, a former keeper may have known more.
    pub fn accepted_in(&mut self, life: Incarnation) {
        self.accepted = life;
    }

    /// Whether an operator must judge.
    pub fn doubts(&self) -> bool {
        self.doubts
    }

    /// Of a transaction that came here then, in this life.
    pub fn trust(&self, since: Option<Duration>, now: Duration) -> Trust {
        let is_fresh = now.saturating_sub(self.contact) <= FRESH || planted("absence-not-noticed");
        match since {
            _ if self.doubts => Trust::Doubt,
            Some(_) if self.knows_all(since) && is_fresh => Trust::Sure,
            _ if planted("restarted-and-sure") => Trust::Sure,
            _ => Trust::Unsure,
        }
    }

    /// Whether the keeper has all that the node did in an earlier life.
    pub fn vouches(&self, life: Incarnation, now: Duration) -> bool {
        !self.doubts
            && even_if("vouched-for-the-lost", life > self.accepted)
            && now.saturating_sub(self.contact) <= FRESH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A question that was asked before the keeper went away, and put again until it was there again.
    #[test]
    fn an_absence_ends_with_an_answer() {
        let mut reliance = Reliance::default();
        let (first, second) = (1_000 * MS, 1_500 * MS);
        reliance.contact(first, first);
        reliance.contact(second, first + QUIET);
        assert_eq!(reliance.trust(Some(first), first + QUIET), Trust::Sure);
        let mut reliance = Reliance::default();
        reliance.contact(first, first);
        reliance.contact(second, first + QUIET + MS);
        let now = first + QUIET + MS;
        reliance.contact(now, now);
        assert_eq!(reliance.trust(Some(first), now), Trust::Unsure);
        // What came while it was away, too.
        assert_eq!(reliance.trust(Some(now), now), Trust::Unsure);
        assert_eq!(reliance.trust(Some(now + MS), now + MS), Trust::Sure);
        assert_eq!(reliance.trust(Some(now + MS), now + FRESH + MS), Trust::Unsure);
    }

    #[test]
    fn of_late_answers_only_votes_count() {
        for slot in [Slot::Empty, Slot::Closed, Slot::Yes] {
            assert!(Reliance::counts(slot, MS, MS + QUIET));
            assert_eq!(Reliance::counts(slot, MS, MS + QUIET + MS), slot == Slot::Yes);
        }
    }
}
