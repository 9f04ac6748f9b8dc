//! What all locks stand in, so that a circle through several tables is found.

use crate::deadlock::{HeldUp, Waits};
use crate::error::Doom;
use crate::mode::Mode;
use crate::node::Node;
use crate::owner::Owner;
use crate::ranges::RangeLocks;
use crate::table::{Locks, Name};
use caliburn_os::simulated::planted;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Tells a transaction to abort: [`Detector::canceller`].
#[derive(Clone)]
pub struct Canceller {
    node: Arc<Node>,
    waits: Arc<Waits>,
}

impl Canceller {
    /// It, and all below it, has no lock from now on: whoever waits for one is told so, and so is whoever asks.
    /// What is held is held until it has ended.
    pub fn cancel(&self) {
        self.node.doom(Doom::Cancelled);
        let all = self.waits.lock();
        if !planted("cancelled-not-woken") {
            self.waits.wake_below(&all, &self.node);
        }
    }
}

impl std::fmt::Debug for Canceller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Canceller").field(&self.node.id()).finish()
    }
}

/// What tables of locks share, so that deadlocks between them are found.
#[derive(Default, Clone)]
pub struct Detector(Arc<Waits>);

impl Detector {
    /// Knows of no locks yet.
    pub fn new() -> Detector {
        Detector::default()
    }

    /// Makes a table of locks.
    ///
    /// # Panics
    /// If the table of modes is wrong: [`check`](crate::check).
    pub fn locks<K: Name, M: Mode>(&self) -> Locks<K, M> {
        Locks::new(self.0.clone())
    }

    /// Makes a table of locks of ranges.
    pub fn range_locks<K: Name + Clone>(&self) -> RangeLocks<K> {
        RangeLocks::new(self.locks())
    }

    /// An owner for a top-level transaction.
    pub fn owner(&self) -> Owner {
        Owner::new(Node::top(None))
    }

    /// An owner for a top-level transaction that takes shared locks only: it is never the victim of a deadlock.
    pub fn reader(&self) -> Owner {
        Owner::new(Node::reader())
    }

    /// What tells a transaction to abort, from anywhere.
    pub fn canceller(&self, owner: &Owner) -> Canceller {
        Canceller { node: owner.node.clone(), waits: self.0.clone() }
    }

    /// How many transactions wait for locks at this moment.
    pub fn waiting(&self) -> usize {
        self.0.count()
    }

    /// Who waits at this moment, for what, how long, and who holds it up.
    pub fn held_up(&self) -> Vec<HeldUp> {
        self.0.held_up()
    }

    /// Lets nobody hold another up for longer than this: who is in the way of one that waits for half of it is
    /// warned about (a `tracing` event), and after all of it to abort, which it learns by [`LockError::Overlong`]
    /// when it locks something or commits. None, as at first: as long as it takes. Those that wait already are not
    /// looked at. A [`reader`](Detector::reader) is only warned about.
    ///
    /// [`LockError::Overlong`]: crate::LockError::Overlong
    pub fn set_limit(&self, limit: Option<Duration>) {
        let ns = limit.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(1));
        self.0.limit.store(ns, Ordering::Relaxed);
    }

    /// How many were to abort since they held others up for longer than the limit.
    pub fn overlong(&self) -> u64 {
        self.0.overlong.load(Ordering::Relaxed)
    }

    /// How many deadlocks were found.
    pub fn deadlocks(&self) -> u64 {
        self.0.found.load(Ordering::Relaxed)
    }
}
