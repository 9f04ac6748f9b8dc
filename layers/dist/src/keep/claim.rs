//! What is asked of a keeper, and what it answers.

use crate::commit::word::{Incarnation, Node, Participants, Slot};
use crate::host::Role;
use crate::id::Tid;
use crate::keep::known::{Doubt, Known};
use caliburn_os::simulated::unless;

/// A value to be put into a slot if it is empty; [`Slot::Empty`] only looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Of which transaction.
    pub tid: Tid,
    /// By whom.
    pub by: Node,
    /// In which life.
    pub life: Incarnation,
    /// As what.
    pub role: Role,
    /// All participants: whoever finds the slot can close the others.
    pub participants: Participants,
    /// Whose slot.
    pub of: Node,
    /// What.
    pub slot: Slot,
}

impl Claim {
    /// Whether whoever claims tells of an abort if the slot holds this. A coordinator tells its program, and denies
    /// it in another life unless it notices then that the keeper lacks the slot: so it leaves a mark, also if
    /// another node has closed it.
    pub fn relies_on(&self, found: Slot) -> bool {
        unless("unmarked-aborts-told", (self.role, found) == (Role::Coordinator, Slot::Closed))
    }
}

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The slot holds this now: what was put, or what was there.
    Slot(Slot),
    /// The node lives another life somewhere: whoever claims must stop.
    Fenced,
    /// The keeper lacks what whoever claims knows to have been there.
    Forgot(Doubt),
}

/// A node that is about to begin a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newcomer {
    /// Which.
    pub node: Node,
    /// The last life that it knows of.
    pub behind: Incarnation,
    /// The life, if it has begun already.
    pub begun: Option<Incarnation>,
    /// What it knows of its keeper.
    pub known: Known,
}

impl Newcomer {
    /// One whose life has not begun.
    pub fn new(node: Node, behind: Incarnation, known: Known) -> Newcomer {
        Newcomer { node, behind, begun: None, known }
    }
}

/// How a node has met its keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Met {
    /// The life that has begun.
    pub life: Incarnation,
    /// What it knows now.
    pub known: Known,
    /// Why it does not rely on it. Nothing was written there then.
    pub doubt: Option<Doubt>,
}
