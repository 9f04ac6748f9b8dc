//! Tickets: commits that were made and are not waited for yet.

use crate::api::shared::Shared;
use crate::storage::error::Failure;

/// A commit on its way to the disk.
#[derive(Clone)]
pub struct Ticket<'t> {
    pub(crate) store: &'t Shared,
    /// None if there was nothing to commit, or it is durable already.
    pub(crate) stamp: Option<u64>,
}

impl std::fmt::Debug for Ticket<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("durable", &self.is_durable()).finish()
    }
}

impl Ticket<'_> {
    /// Whether the commit survives now what its class names: a power cut, if nothing else was said.
    pub fn is_durable(&self) -> bool {
        self.stamp.is_none_or(|stamp| self.store.policy.is_durable(stamp))
    }

    /// Waits until it does.
    ///
    /// # Errors
    /// When the store fails before that.
    pub fn wait(self) -> Result<(), Failure> {
        self.stamp.map_or(Ok(()), |stamp| self.store.policy.wait_durable(stamp))
    }
}
