//! What a program can ask of an open store (RVM's `query`), and the counters.

use crate::api::region::Region;
use crate::api::shared::Shared;
use crate::api::store::Store;
use crate::api::transaction::TransactionId;
use crate::policy::query::{Query, Statistics};
use crate::storage::pool::PoolCounts;

/// The state of a region at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionQuery {
    /// Uncommitted transactions with ranges in the region.
    pub uncommitted: Vec<TransactionId>,
    /// Its pages with committed changes that the segment lacks.
    pub dirty_pages: u64,
}

impl Store {
    /// The state of the store.
    ///
    /// # Panics
    /// As [`Store::segments`].
    pub fn query(&self) -> Query {
        self.shared.storage.must_be_own();
        self.shared.query()
    }

    /// What the buffer pool has done, if there is one.
    ///
    /// # Panics
    /// As [`Store::segments`].
    pub fn buffer_pool(&self) -> Option<PoolCounts> {
        self.shared.storage.must_be_own();
        self.shared.storage.pool.as_ref().map(|pool| pool.counts())
    }

    /// The counters.
    ///
    /// # Panics
    /// As [`Store::segments`].
    pub fn statistics(&self) -> Statistics {
        self.shared.storage.must_be_own();
        self.shared.statistics()
    }
}

impl Shared {
    pub(super) fn query(&self) -> Query {
        let mut query = Query {
            uncommitted: self.sets.slots.open(),
            prepared: self.policy.undecided().list().len(),
            page_bytes: self.storage.page_size as u64,
            memory_budget: self.storage.memory_budget(),
            failed: self.storage.failure().is_err(),
            ..Query::default()
        };
        self.policy.query(&mut query);
        query
    }

    pub(super) fn statistics(&self) -> Statistics {
        let mut s = Statistics::default();
        self.policy.count(&mut s);
        for (_, slot) in self.sets.slots.iter() {
            let counters = &slot.counters;
            s.committed += slot.committed();
            s.aborted += counters.aborted.get();
            s.ranges += counters.ranges.get();
            s.declared_bytes += counters.declared_bytes.get();
            s.duplicate_bytes += counters.duplicate_bytes.get();
            s.joined_ranges += counters.joined_ranges.get();
            s.committed_log_bytes += counters.body_bytes.get();
        }
        s
    }
}

impl Region {
    /// The state of the region.
    ///
    /// # Panics
    /// As [`Store::segments`].
    pub fn query(&self) -> RegionQuery {
        self.store.storage.must_be_own();
        let state = &self.state;
        let touching = self.store.sets.slots.touching(state.id, state.start..state.end());
        RegionQuery {
            uncommitted: touching.into_iter().map(TransactionId).collect(),
            dirty_pages: self.store.policy.dirty_pages(state),
        }
    }
}
