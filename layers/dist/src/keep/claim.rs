//! What is asked of a keeper, and what it answers.

use crate::commit::word::{Incarnation, Node, Participants, Slot};
use crate::host::Role;
use crate::id::Tid;

/// A value to be put into a slot if it is empty.
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

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The slot holds this now: what was put, or what was there.
    Slot(Slot),
    /// The node lives another life somewhere: whoever claims must stop.
    Fenced,
}
