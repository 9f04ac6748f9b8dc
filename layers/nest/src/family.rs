//! What all transactions of a family share.

use crate::error::{Error, Reason};
use caliburn_os::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The identity of a family, within this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FamilyId(pub u64);

/// A top-level transaction with all its nested ones.
#[derive(Debug)]
pub(crate) struct Family {
    pub id: FamilyId,
    /// The number of the next transaction in it.
    next: AtomicU64,
    /// Why it is aborted, once it is. Whoever is in it learns it at the next call.
    aborted: OnceLock<Reason>,
    status: OnceLock<Status>,
}

/// How it is with a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It goes on.
    Active,
    /// Its top was prepared. Whether it was decided, [`Store::prepared`](caliburn_engine::Store::prepared) tells,
    /// also when the store was opened again.
    Prepared,
    /// It has committed, and is as durable as was asked.
    Committed,
    /// All of it was undone.
    Aborted,
    /// The store has failed while it committed: what is there is known when the store was opened again.
    Unknown,
}

/// Says that a family was undone when it goes, if nobody has said otherwise.
pub(crate) struct Ends(pub Arc<Family>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end(Status::Aborted);
    }
}

/// Tells of a family, as long as the process lives: [`Tx::watch`](crate::Tx::watch).
#[derive(Debug, Clone)]
pub struct Watch(pub(crate) Arc<Family>);

impl Watch {
    /// The family.
    pub fn family(&self) -> FamilyId {
        self.0.id
    }

    /// How it is with it.
    pub fn status(&self) -> Status {
        self.0.status.get().copied().unwrap_or(Status::Active)
    }
}

impl Family {
    pub fn new() -> Family {
        static FAMILIES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let id = FamilyId(FAMILIES.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        Family { id, next: AtomicU64::new(1), aborted: OnceLock::new(), status: OnceLock::new() }
    }

    /// Its top has ended, or was prepared.
    pub fn end(&self, status: Status) {
        _ = self.status.set(status);
    }

    /// A number that no other transaction of the family has.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Aborts all of it. The first reason stays.
    pub fn abort(&self, reason: Reason) -> Error {
        Error::Family(self.aborted.get_or_init(|| reason).clone())
    }

    #[inline(always)]
    pub fn goes_on(&self) -> Result<(), Error> {
        match self.aborted.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Family(reason.clone())),
        }
    }
}
