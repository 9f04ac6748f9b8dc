//! Who keeps the slots of transactions that commit without blocking, and the epochs of nodes: something that loses
//! nothing and compares in the same step as it puts.
//!
//! ```text
//!   epoch of a node        its present life; a put by an earlier one is refused
//!   slot of a participant  put by itself (yes), or by whoever closes it
//! ```
//!
//! A slot is deleted when all participants know how the transaction ended, all those of a transaction at once. Who
//! closes slots is a participant that does not know, or the coordinator, which deletes them itself: so nobody takes a
//! slot that was deleted for one that was never put. A put that was under way for long may make a slot again, which
//! nobody asks for; the coordinator looks for such now and then.

pub mod etcd;
pub mod keeper;
pub mod members;
pub mod memory;

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
