//! A node's clock, as its commits need it (Camelot, 4.2 and 4.6).
//!
//! ```text
//!   program                node 1 (coordinates)              node 2
//!     | call, clock --------------------------------------> | heard
//!     | <------------------------------------ answer, clock | of all whose locks the call has had
//!     | end, clock ------> | timestamp: behind all of them  |
//!     |                    | prepare, timestamp ----------> | heard, for good; then it votes
//!     | <--- timestamp     | committed -------------------> | locks are free
//! ```
//!
//! Invariant: who gets a lock has heard of the timestamps of those that have had it and committed. So the order of
//! timestamps is a serial order, with two-phase locking: also of those that have only read.

use crate::commit::word::{Node, Outcome};
use crate::credentials::Peer;
use caliburn_nest::{Hybrid, Timestamp};
use caliburn_os::simulated::planted;
use std::net::SocketAddr;
use std::sync::Arc;
use tonic::Status;

/// How a transaction has ended: when, if it has committed.
pub(crate) type Ended = (Outcome, Timestamp);

/// A node's clock, for whoever sends and receives.
#[derive(Debug, Clone)]
pub(crate) struct Time {
    pub hybrid: Arc<Hybrid>,
    pub wall: fn() -> u64,
}

impl Time {
    /// What it shows: for others to hear.
    pub fn shows(&self) -> Timestamp {
        self.hybrid.last().max(Timestamp((self.wall)()))
    }

    /// Hears of somebody else's.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`, which says whose it is, when it is too far ahead.
    pub fn hear(&self, clock: Timestamp, whose: impl FnOnce() -> String) -> Result<(), Status> {
        if planted("any-clock-believed") {
            self.hybrid.remember(clock);
            return Ok(());
        }
        let heard = self.hybrid.hear(clock, (self.wall)());
        heard.map_err(|ahead| {
            let status = Status::failed_precondition(format!("the clock of {}: {ahead}", whose()));
            tracing::warn!("a message is refused: {}", status.message());
            status
        })
    }
}

/// The other end of a connection, for people.
pub(crate) fn whose(peer: Option<&Peer>, address: Option<SocketAddr>) -> String {
    match (peer, address) {
        (Some(Peer::Node(Node(node))), _) => format!("node {node}"),
        (Some(Peer::User(user)), _) => format!("user {user:?}'s program"),
        (None, Some(address)) => format!("the program at {address}"),
        (None, None) => "the program".into(),
    }
}
