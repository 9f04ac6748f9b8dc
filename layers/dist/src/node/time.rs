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
use caliburn_nest::{DRIFT_NS, Hybrid, Timestamp};
use caliburn_os::simulated::planted;
use std::net::SocketAddr;
use std::sync::Arc;
use tonic::Status;

/// Most that a user's program may be ahead: less than nodes, so that those that have heard of it are not refused by
/// others, whose clocks are behind theirs.
const OF_USERS_NS: u64 = DRIFT_NS / 2;

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

    /// Says so if it begins far ahead of the wall's.
    pub fn look(&self, own: Node) {
        let ahead = self.hybrid.last().0.saturating_sub((self.wall)());
        if ahead > DRIFT_NS {
            let seconds = ahead / 1_000_000_000;
            tracing::warn!(
                "node {}: its clock is {seconds} s ahead of the machine's, which was set back: others refuse it until theirs have caught up. If nobody relies on its timestamps: Builder::forget_clock",
                own.0
            );
        }
    }

    /// Hears of somebody else's, who calls.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`, which says whose it is, when it is too far ahead.
    pub fn hear(
        &self,
        clock: Timestamp,
        peer: Option<&Peer>,
        address: Option<SocketAddr>,
    ) -> Result<(), Status> {
        if planted("any-clock-believed") {
            self.hybrid.remember(clock);
            return Ok(());
        }
        let drift = if let Some(Peer::User(_)) = peer { OF_USERS_NS } else { DRIFT_NS };
        let heard = self.hybrid.hear_within(clock, (self.wall)(), drift);
        heard.map_err(|ahead| {
            let text = format!("the clock of {}: {ahead}", whose(peer, address));
            tracing::warn!("a message is refused: {text}");
            Status::failed_precondition(text)
        })
    }

    /// Hears of that of a node that sends letters, if it is not too far ahead. They are taken all the same: they may
    /// say how transactions end.
    pub fn hear_letters(&self, clock: Timestamp) {
        _ = self.hybrid.hear(clock, (self.wall)());
    }
}

/// The other end of a connection, for people.
fn whose(peer: Option<&Peer>, address: Option<SocketAddr>) -> String {
    match (peer, address) {
        (Some(Peer::Node(Node(node))), _) => format!("node {node}"),
        (Some(Peer::User(user)), _) => format!("user {user:?}'s program"),
        (None, Some(address)) => format!("the program at {address}"),
        (None, None) => "the program".into(),
    }
}
