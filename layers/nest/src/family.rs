//! What all transactions of a family share.

use crate::error::{Error, Reason};
use caliburn_os::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

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
}

impl Family {
    pub fn new() -> Family {
        static FAMILIES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let id = FamilyId(FAMILIES.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        Family { id, next: AtomicU64::new(1), aborted: OnceLock::new() }
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
