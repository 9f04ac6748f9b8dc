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
//! A node of a cluster without timestamps shows no clock, hears none, and gives out none: it refuses nobody whose
//! clock is wrong, is refused by nobody, and forces nothing for its clock.
//!
//! Invariant: who gets a lock has heard of the timestamps of those that have had it and committed. So the order of
//! timestamps is a serial order, with two-phase locking: also of those that have only read.

use crate::commit::word::{Node, Outcome};
use crate::credentials::Peer;
use crate::node::notices::Notices;
use caliburn_nest::{DRIFT_NS, Hybrid, Timestamp};
use caliburn_os::simulated::{planted, unless};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
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
    /// Whether the cluster has timestamps.
    pub is_used: bool,
    pub notices: Arc<Notices>,
}

/// Where notices about it stand.
const ABOUT: &str = "clock";

impl Time {
    /// What it shows: for others to hear.
    pub fn shows(&self) -> Timestamp {
        if unless("clock-shown-in-vain", !self.is_used) {
            return Timestamp::default();
        }
        self.hybrid.last().max(Timestamp((self.wall)()))
    }

    /// How far it is ahead of the wall's.
    fn ahead(&self) -> Duration {
        Duration::from_nanos(self.hybrid.last().0.saturating_sub((self.wall)()))
    }

    /// Says so as long as it is so far ahead of the wall's that others refuse it.
    pub async fn watch(self, own: Node) {
        let limit = Duration::from_nanos(DRIFT_NS);
        if !self.is_used || planted("clock-ahead-not-told") {
            return;
        }
        while let Some(wait) = self.ahead().checked_sub(limit) {
            let seconds = self.ahead().as_secs();
            self.notices.set(ABOUT, format!(
                "node {}: its clock is {seconds} s ahead of the machine's, which was set back: other nodes and programs refuse \
                 it until theirs have caught up. If nobody relies on the order of its timestamps, have it forget them: \
                 caliburn-node run --forget-clock, or caliburn-node restart --forget-clock of a data server; \
                 CALIBURN_FORGET_CLOCK; Builder::forget_clock",
                own.0
            ));
            // The machine's may be set again.
            tokio::time::sleep(wait.clamp(Duration::from_secs(1), Duration::from_secs(60))).await;
        }
        self.notices.clear(ABOUT);
    }

    /// It was told to forget how far it had gone.
    pub fn forgets(&self, own: Node, bound: u64) {
        let seconds = Duration::from_nanos(bound.saturating_sub((self.wall)())).as_secs();
        self.notices.once(format!(
            "node {}: its clock forgets what it has given out, up to {seconds} s ahead of the machine's: timestamps may come \
             again",
            own.0
        ));
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
        if !self.is_used {
            return Ok(());
        }
        if planted("any-clock-believed") {
            self.hybrid.remember(clock);
            return Ok(());
        }
        let drift = if let Some(Peer::User(_)) = peer { OF_USERS_NS } else { DRIFT_NS };
        let heard = self.hybrid.hear_within(clock, (self.wall)(), drift);
        heard.map_err(|ahead| {
            let text = format!("the clock of {}: {ahead}", whose(peer, address));
            self.notices.now_and_then("refused clock", format!("a message is refused: {text}"));
            Status::failed_precondition(text)
        })
    }

    /// Hears of that of a node that sends letters, if it is not too far ahead. They are taken all the same: they may
    /// say how transactions end.
    pub fn hear_letters(&self, clock: Timestamp) {
        if self.is_used {
            _ = self.hybrid.hear(clock, (self.wall)());
        }
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
