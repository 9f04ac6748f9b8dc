//! The words of the commit protocols. All are of one transaction, which whoever carries them names.

use std::collections::BTreeMap;

/// A node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u64);

/// Which life of a node: greater after each restart.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// A stay of a transaction at a node: from its first call there until it has ended there, or the node has crashed.
/// If it is called again then, that is another stay: what was done in the first is lost. No two of a node are
/// equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stay(pub u64);

/// The nodes that a transaction has used, and in which stays.
pub type Participants = BTreeMap<Node, Stay>;

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// What it has changed stays.
    Committed,
    /// Nothing of it does.
    Aborted,
}

/// Which of the two protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// A participant that is prepared waits for the coordinator, however long it is gone.
    Blocking,
    /// It closes the slots of those that it has waited for too long.
    Slots,
}

/// What a participant says when it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vote {
    /// It is prepared: it can do either.
    Yes,
    /// It aborts.
    No,
    /// It has changed nothing, and need not be told.
    ReadOnly,
}

/// What nodes send each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// The coordinator asks for a vote.
    Prepare(Participants),
    /// A participant votes.
    Vote(Vote),
    /// The coordinator tells.
    Outcome(Outcome),
    /// A participant will not forget that it has committed. Without blocking, from the coordinator: all know.
    Ack,
    /// A participant that is prepared asks. Without blocking it asks the other participants.
    Inquiry,
}

/// What a node remembers of a transaction across crashes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Record {
    /// A coordinator's: it has committed, and these must be told.
    Commit(Participants),
    /// A coordinator's: all know, and nobody asks any more.
    End,
    /// A participant's: what it has changed, undecided.
    Prepared(Participants),
    /// A participant's: what it has changed stays.
    Committed,
    /// A participant's: it does not.
    Aborted,
    /// A participant's: an administrator has decided, in place of a coordinator that did not answer.
    Judged(Outcome),
    /// A participant's: how it has ended everywhere else is known, and whether it was judged so.
    Settled(bool),
}

/// How far a node can rely on what the keeper says of one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trust {
    /// The keeper has forgotten nothing since the transaction came here: an empty slot was never written.
    Sure,
    /// It may have forgotten something meanwhile: an empty slot means nothing, one that was written is true.
    Unsure,
    /// It has forgotten something. Nothing is asked of it.
    Doubt,
}

/// What a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// Nothing. To put this is only to look.
    Empty,
    /// Its participant has voted so, and what it has changed is with it.
    Yes,
    /// Its participant, or somebody who has waited too long, has closed it.
    Closed,
}

/// What whoever runs a machine is to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Sends a message.
    Send(Node, Message),
    /// Makes a record durable, and says so: the machine's `durable`.
    Force(Record),
    /// Writes a record that becomes durable some time, and says so then.
    Write(Record),
    /// Puts a value into a participant's slot if it is empty, and says what is there afterwards: the machine's
    /// `slot`.
    Put(Node, Slot),
    /// Asks the coordinator whether the transaction goes on there.
    Probe,
    /// What the node has changed stays, or is undone; its locks are free.
    Finish(Outcome),
    /// The program learns how its transaction has ended.
    Tell(Outcome),
    /// All know how it has ended: its slots can be deleted, once nobody can close one any more.
    Delete,
    /// What was judged has ended otherwise everywhere else: somebody must know.
    Wrong(Outcome),
    /// The machine is done: what comes for it later is answered by its `of_unknown`.
    Forget,
}
