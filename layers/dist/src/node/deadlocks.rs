//! What a node knows of deadlocks between nodes: who waits here, and for whom.

use crate::chase::{self, Chase, Chased};
use crate::id::Tid;
use crate::letter::Word;
use crate::node::core::Core;

impl Core<'_> {
    /// Whether a transaction is the victim of a deadlock between nodes.
    pub fn is_victim(&self, tid: &Tid) -> bool {
        self.state().victims.contains(tid)
    }

    /// Who has waited here for a while, and for whom.
    fn edges(&self) -> Vec<(Tid, Tid)> {
        if self.detector.waiting() == 0 {
            return Vec::new();
        }
        let held_up = self.detector.held_up();
        let state = self.state();
        let patience = state.host.patience().chase;
        let mut edges = Vec::new();
        for held in held_up.iter().filter(|held| held.waited >= patience) {
            let from = state.owners.get(&held.owner.family);
            let to = held.by.iter().filter_map(|(by, _)| state.owners.get(&by.family));
            edges.extend(from.into_iter().flat_map(|from| to.clone().map(move |to| (*from, *to))));
        }
        edges.retain(|(from, to)| from != to);
        edges
    }

    /// Asks the others whether what waits here waits in a circle.
    pub fn chase(&self) {
        let edges = self.edges();
        self.chased(chase::begin(&edges));
    }

    /// Goes on with what another node chases.
    pub fn follow(&self, chase: &Chase) {
        self.chased(chase::follow(&self.edges(), chase));
    }

    fn chased(&self, chased: Chased) {
        for chase in chased.further {
            let tid = *chase.last().expect("somebody is chased");
            self.outside.post_to_all(tid, &Word::Chase(chase));
        }
        for victim in chased.victims {
            self.outside.post_to_all(victim, &Word::Victim);
            self.is_to_abort(victim);
        }
    }

    /// If it waits here, it learns it where it waits.
    pub fn is_to_abort(&self, victim: Tid) {
        let mut state = self.state();
        if state.families.contains_key(&victim) && state.host.takes_part(&victim) {
            state.victims.insert(victim);
            state.cancel(victim);
        }
    }
}
