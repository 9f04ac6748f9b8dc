//! What can happen in the world.

use crate::store::List;
use caliburn_dist::commit::word::{Incarnation, Node, Participants};
use caliburn_dist::id::{News, Path, Tid};
use caliburn_dist::keep::{Claim, Kept, Known, Looked};
use caliburn_dist::letter::Letter;
use caliburn_dist::scope::Report;
use caliburn_nest::Timestamp;
use std::time::Duration;

/// What a call does: appends a token, or reads; and then calls another server.
#[derive(Debug, Clone)]
pub struct Op {
    pub at: Node,
    pub list: usize,
    pub token: Option<u64>,
    pub then: Option<Box<Op>>,
}

/// What was done: lists of the whole world have their own numbers.
#[derive(Debug, Clone)]
pub enum Seen {
    Append(usize, u64),
    Read(usize, List),
}

/// Who waits for an answer.
#[derive(Debug, Clone)]
pub enum Caller {
    Client(usize, Tid),
    /// A call that runs at a node, in one of its lives.
    Call(Node, Incarnation, Tid, Path),
}

#[derive(Debug, Clone)]
pub struct Call {
    pub tid: Tid,
    pub path: Path,
    pub news: News,
    pub op: Op,
    pub expires: Duration,
    /// The last timestamp that its caller has heard of.
    pub clock: Timestamp,
    pub caller: Caller,
}

pub type Answer = Result<(Report, Vec<Seen>), Option<Report>>;

#[derive(Debug, Clone)]
pub enum Event {
    Letter(Letter),
    Call(Call),
    Answer {
        caller: Caller,
        call: Path,
        news: News,
        from: Node,
        answer: Answer,
    },
    /// The call is waited for no longer.
    GiveUp {
        caller: Caller,
        call: Path,
        to: Node,
    },
    Sync(Node, Incarnation),
    /// To the keeper; when it was asked, and until when it is tried.
    Claim(Claim, Known, (Duration, Duration)),
    /// What it answers to what was asked then.
    Kept(Claim, Kept, Known, Duration),
    /// The node looks whether its keeper is well.
    Look(Node, Incarnation),
    Looked(Node, Incarnation, Looked, Duration),
    /// The keeper comes back with what it had in a backup of the last so many changes; or with nothing.
    Restored(Option<usize>),
    Delete(Tid, Participants),
    Client(usize),
    Crash(Node),
    Restart(Node),
    Sweep(Node, Incarnation),
    Cut(Node, Node, bool),
    Pause(Node, Duration),
    KeeperDown(bool),
}
