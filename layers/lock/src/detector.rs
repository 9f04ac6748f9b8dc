//! What all locks stand in, so that a circle through several tables is found.

use crate::deadlock::Waits;
use crate::mode::Mode;
use crate::node::Node;
use crate::owner::Owner;
use crate::table::{Locks, Name};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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

    /// An owner for a top-level transaction.
    pub fn owner(&self) -> Owner {
        Owner::new(Node::top(None))
    }

    /// An owner for a top-level transaction that takes shared locks only: it is never the victim of a deadlock.
    pub fn reader(&self) -> Owner {
        Owner::new(Node::reader())
    }

    /// How many transactions wait for locks at this moment.
    pub fn waiting(&self) -> usize {
        self.0.count()
    }

    /// How many deadlocks were found.
    pub fn deadlocks(&self) -> u64 {
        self.0.found.load(Ordering::Relaxed)
    }
}
