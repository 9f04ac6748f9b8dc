//! Why a lock was not had, and who was in the way.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A transaction, as texts name it: the serial of its family's first, and its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId {
    /// Of its family's first transaction that had a lock.
    pub family: u64,
    /// Its own: larger ones are younger.
    pub serial: u64,
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.family, self.serial)
    }
}

/// A circle of transactions that waited for each other, and which of them was to abort.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlock {
    /// The victim. Below it, every call says so.
    pub victim: OwnerId,
    /// Who waited for what, held by whom: each waits for the next, the last for the first.
    pub waits: Vec<Waited>,
}

/// A transaction that waited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waited {
    /// The transaction.
    pub owner: OwnerId,
    /// The lock, and the mode that it asked for.
    pub wanted: String,
    /// Who was in its way.
    pub by: OwnerId,
    /// How: the mode in which it held the lock, or that it waited for.
    pub how: String,
}

impl std::error::Error for Deadlock {}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a deadlock, of which transaction {} is the victim:", self.victim)?;
        for Waited { owner, wanted, by, how } in &self.waits {
            write!(f, " {owner} waits for {wanted}, {how} by {by};")?;
        }
        write!(f, " try it again")
    }
}

/// A transaction that was in another's way for longer than the limit allows
/// ([`Detector::set_limit`](crate::Detector::set_limit)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlong {
    /// The transaction. It is to abort, with all below it.
    pub owner: OwnerId,
    /// The limit.
    pub limit: Duration,
    /// Who waited for it so long.
    pub waiter: OwnerId,
    /// The lock, and the mode that was wanted.
    pub wanted: String,
    /// How it was in the way.
    pub how: String,
}

impl std::error::Error for Overlong {}

impl fmt::Display for Overlong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Overlong { owner, limit, waiter, wanted, how } = self;
        write!(
            f,
            "transaction {owner} took too long: {waiter} has waited {limit:?} for {wanted}, {how} by it"
        )
    }
}

/// Why a transaction must abort.
#[derive(Debug, Clone)]
pub(crate) enum Doom {
    Deadlock(Arc<Deadlock>),
    Overlong(Arc<Overlong>),
    Cancelled,
}

impl From<Doom> for LockError {
    fn from(doom: Doom) -> LockError {
        match doom {
            Doom::Deadlock(deadlock) => deadlock.into(),
            Doom::Overlong(overlong) => overlong.into(),
            Doom::Cancelled => LockError::Cancelled,
        }
    }
}

/// Why a transaction does not hold a lock that it asked for.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// It, or one that it is part of, is the victim of a deadlock: that one is to abort, and may be tried again.
    #[error(transparent)]
    Deadlock(#[from] Arc<Deadlock>),
    /// It, or one that it is part of, was in another's way for too long: that one is to abort.
    #[error(transparent)]
    Overlong(#[from] Arc<Overlong>),
    /// It, or one that it is part of, was told to abort from elsewhere: [`Canceller`](crate::Canceller).
    #[error("the transaction was told to abort")]
    Cancelled,
    /// It was waited for long enough.
    #[error("{wanted} was not had within {waited:?}: {by}")]
    Timeout {
        /// The lock, and the mode that was asked for.
        wanted: String,
        /// How long it was waited for.
        waited: Duration,
        /// Who was in the way.
        by: String,
    },
    /// A lock was to be given up that is not held.
    #[error("{lock} is not held by transaction {owner}")]
    NotHeld {
        /// The lock.
        lock: String,
        /// The transaction.
        owner: OwnerId,
    },
}
