//! What nodes send each other. Any letter may be lost, come twice, or overtake others.

use crate::chase::Chase;
use crate::commit::word::{Message, Node};
use crate::id::{News, Tid};
use caliburn_nest::Timestamp;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// By whom.
    pub from: Node,
    /// To whom.
    pub to: Node,
    /// Of which transaction.
    pub tid: Tid,
    /// What.
    pub word: Word,
}

/// What goes with `Prepare`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Brief {
    /// What the node must hear before it votes.
    pub news: News,
    /// The transaction's timestamp, if it commits: behind all that its nodes had heard of.
    pub at: Timestamp,
}

/// What a letter says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// A word of the commit protocol.
    Commit(Message, Brief),
    /// Does the transaction go on?
    Probe,
    /// It does.
    Lives,
    /// It does not, or never did.
    Gone,
    /// Transactions that wait for each other, of which it is the last: see [`chase`](crate::chase).
    Chase(Chase),
    /// It is the victim of a deadlock.
    Victim,
}
