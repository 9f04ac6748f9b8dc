//! Deadlocks between transactions that wait at several nodes: edge chasing (Chandy, Misra and Haas 1983).
//!
//! ```text
//!   node 1: a waits for b --- chase [a, b] --> node 2: b waits for c --- chase [a, b, c] --> node 3: c waits for a
//!                                                                                a circle: its victim is told
//! ```
//!
//! A node chases what has waited for a while, and goes on chasing what others chase, along what waits at itself;
//! those that wait at one node alone are found there at once. Who sees the circle close names a victim that does
//! not depend on where the chase began.
//!
//! What one chase has seen is not of one moment: a transaction may be told to abort though it would have gone on.
//! None that waits for ever is missed, since every chase is begun again.

use crate::id::Tid;
use caliburn_os::simulated::planted;

/// Transactions that wait, each for the next one.
pub type Chase = Vec<Tid>;

/// Circles that are longer are left to time-outs.
pub const LONGEST: usize = 32;

/// Who waits at one node, for whom.
pub type Edges = [(Tid, Tid)];

/// What a node finds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Chased {
    /// To be chased by the other nodes.
    pub further: Vec<Chase>,
    /// To be aborted.
    pub victims: Vec<Tid>,
}

impl Chased {
    fn along(&mut self, edges: &Edges, chase: &Chase) {
        let last = *chase.last().expect("somebody is chased");
        for (_, next) in edges.iter().filter(|(from, _)| *from == last) {
            let mut longer = chase.clone();
            longer.push(*next);
            match chase.iter().position(|tid| tid == next) {
                // Only if it leads back to the first: the others begin chases themselves.
                Some(0) => self.victims.push(victim(chase)),
                Some(_) => {}
                None if longer.len() > LONGEST => {}
                None => {
                    self.along(edges, &longer);
                    self.further.push(longer);
                }
            }
        }
    }
}

/// The youngest of its program's, about; the same one wherever the circle is seen.
fn victim(circle: &[Tid]) -> Tid {
    let order = |tid: &Tid| (tid.serial, tid.client, tid.coordinator, tid.incarnation, tid.protocol);
    let youngest = circle.iter().max_by_key(|tid| order(tid));
    match planted("victim-is-the-first") {
        true => circle[0],
        false => *youngest.expect("somebody is chased"),
    }
}

/// Begins to chase all that waits here.
pub fn begin(edges: &Edges) -> Chased {
    let mut chased = Chased::default();
    let mut firsts: Vec<Tid> = edges.iter().map(|(from, _)| *from).collect();
    firsts.sort_unstable();
    firsts.dedup();
    for first in firsts {
        chased.along(edges, &vec![first]);
    }
    chased
}

/// Goes on with what another node chases.
pub fn follow(edges: &Edges, chase: &Chase) -> Chased {
    let mut chased = Chased::default();
    if (2..=LONGEST).contains(&chase.len()) && !planted("chase-not-followed") {
        chased.along(edges, chase);
    }
    chased
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::word::{Incarnation, Node, Protocol};
    use std::collections::{BTreeMap, BTreeSet};

    fn tid(serial: u64) -> Tid {
        let (coordinator, incarnation) = (Node(serial % 3), Incarnation(1));
        Tid { coordinator, incarnation, client: 1, serial, protocol: Protocol::Blocking }
    }

    fn below(state: &mut u64, n: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % n
    }

    /// Whether what waits is in a circle, by following all paths.
    fn in_circle(edges: &Edges, of: Tid) -> bool {
        let (mut seen, mut next) = (BTreeSet::new(), vec![of]);
        while let Some(at) = next.pop() {
            for (_, to) in edges.iter().filter(|(from, _)| *from == at) {
                if *to == of {
                    return true;
                }
                if seen.insert(*to) {
                    next.push(*to);
                }
            }
        }
        false
    }

    #[test]
    fn all_circles_are_found_and_nothing_else() {
        let mut state = 1;
        for _ in 0..3_000 {
            let mut nodes: BTreeMap<u64, Vec<(Tid, Tid)>> = BTreeMap::new();
            for _ in 0..1 + below(&mut state, 7) {
                let (from, to) = (tid(below(&mut state, 6)), tid(below(&mut state, 6)));
                if from != to {
                    nodes.entry(below(&mut state, 3)).or_default().push((from, to));
                }
            }
            let all: Vec<(Tid, Tid)> = nodes.values().flatten().copied().collect();
            let mut victims = BTreeSet::new();
            let mut letters: Vec<(u64, Chase)> = Vec::new();
            let mut take = |at: u64, chased: Chased, letters: &mut Vec<(u64, Chase)>| {
                victims.extend(chased.victims);
                for chase in chased.further {
                    letters.extend((0..3).filter(|to| *to != at).map(|to| (to, chase.clone())));
                }
            };
            for (at, edges) in &nodes {
                take(*at, begin(edges), &mut letters);
            }
            while let Some((at, chase)) = letters.pop() {
                let none = Vec::new();
                take(at, follow(nodes.get(&at).unwrap_or(&none), &chase), &mut letters);
            }
            for victim in &victims {
                assert!(in_circle(&all, *victim), "{victim} is in no circle of {all:?}");
            }
            let left: Vec<(Tid, Tid)> =
                all.iter().filter(|(a, b)| !victims.contains(a) && !victims.contains(b)).copied().collect();
            let stuck = left.iter().find(|(from, _)| in_circle(&left, *from));
            assert_eq!(stuck, None, "{all:?}, victims {victims:?}");
            // One victim breaks one circle.
            let circles = all.iter().filter(|(from, _)| in_circle(&all, *from)).count();
            assert!(victims.len() <= circles.div_ceil(2), "{victims:?} of {all:?}");
        }
    }
}
