//! What a program can ask of an open store (RVM's `query`), and the counters.

use crate::api::store::Store;
use crate::api::transaction::TransactionId;
use crate::storage::region::Region;
use caliburn_os::sync::atomic::{AtomicU64, Ordering};

/// The state of a store at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Query {
    /// Transactions begun and neither committed nor aborted; prepared ones among them.
    pub uncommitted: usize,
    /// Prepared transactions that are undecided.
    pub prepared: usize,
    /// Bytes of the log's ring.
    pub log_bytes: u64,
    /// Bytes in use.
    pub log_used: u64,
    /// Bytes that are not forced yet.
    pub log_unforced: u64,
    /// Pages with committed changes that their segment lacks.
    pub dirty_pages: u64,
    /// Pages of which the process has a private copy.
    pub private_pages: u64,
    /// Bytes per page.
    pub page_bytes: u64,
    /// Bytes of private pages that may be kept.
    pub memory_budget: u64,
    /// Whether the store has failed.
    pub failed: bool,
}

/// The state of a region at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionQuery {
    /// Uncommitted transactions with ranges in the region.
    pub uncommitted: Vec<TransactionId>,
    /// Its pages with committed changes that the segment lacks.
    pub dirty_pages: u64,
}

/// Counters since the store was opened. Bytes saved are log bytes, range headers included, except
/// `duplicate_bytes` and `declared_bytes`, which are bytes of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Transactions committed, and aborted.
    pub committed: u64,
    /// Transactions aborted.
    pub aborted: u64,
    /// Calls of `set_range`.
    pub ranges: u64,
    /// Bytes declared by them.
    pub declared_bytes: u64,
    /// Bytes declared again within a transaction: the intra-transaction optimisation kept them out.
    pub duplicate_bytes: u64,
    /// Ranges joined to adjacent or overlapping ones.
    pub joined_ranges: u64,
    /// Bytes of ranges handed to the log by commits, before the inter-transaction optimisation.
    pub committed_log_bytes: u64,
    /// Transactions merged with others into one record.
    pub merged_transactions: u64,
    /// Log bytes dropped because a later lazy commit superseded them.
    pub merged_bytes: u64,
    /// Records written.
    pub records: u64,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// Movements from the stage to the log.
    pub flushes: u64,
    /// Forces of the log for commits.
    pub forces: u64,
    /// Incremental truncations that wrote something.
    pub truncations: u64,
    /// Epoch truncations.
    pub epochs: u64,
    /// Pages written to segments.
    pub pages_written: u64,
    /// Private pages given back to the system.
    pub pages_dropped: u64,
    /// Times that an uncommitted transaction kept a page from being written.
    pub pages_blocked: u64,
}

impl Store {
    /// The state of the store.
    pub fn query(&self) -> Query {
        let shared = &self.shared;
        let (dirty_pages, private_pages) = {
            let mut pages = shared.lock_pages();
            shared.note_private(&mut pages);
            (pages.dirty(), pages.private())
        };
        let log = shared.live.as_ref().map(|live| &live.log);
        Query {
            uncommitted: shared.slots.open(),
            prepared: self.prepared().len(),
            log_bytes: log.map_or(0, |l| l.capacity()),
            log_used: log.map_or(0, |l| l.used()),
            log_unforced: log.map_or(0, |l| l.appended().0.saturating_sub(l.forced().0)),
            dirty_pages,
            private_pages,
            page_bytes: shared.page_size as u64,
            memory_budget: shared.memory_budget(),
            failed: shared.failure().is_err(),
        }
    }

    /// The counters.
    pub fn statistics(&self) -> Statistics {
        let (flush, truncation) = (&self.shared.flush, &self.shared.truncation);
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut s = Statistics {
            merged_transactions: get(&flush.merged_transactions),
            merged_bytes: get(&flush.merged_bytes),
            records: get(&flush.records),
            log_bytes: get(&flush.log_bytes),
            flushes: get(&flush.flushes),
            forces: get(&flush.forces),
            truncations: get(&truncation.incremental),
            epochs: get(&truncation.epochs),
            pages_written: get(&truncation.pages_written),
            pages_dropped: get(&truncation.pages_dropped),
            pages_blocked: get(&truncation.pages_blocked),
            ..Statistics::default()
        };
        for (_, slot) in self.shared.slots.iter() {
            let tally = &slot.counters;
            s.committed += slot.committed();
            s.aborted += tally.aborted.get();
            s.ranges += tally.ranges.get();
            s.declared_bytes += tally.declared_bytes.get();
            s.duplicate_bytes += tally.duplicate_bytes.get();
            s.joined_ranges += tally.joined_ranges.get();
            s.committed_log_bytes += tally.body_bytes.get();
        }
        s
    }
}

impl Region {
    /// The state of the region.
    pub fn query(&self) -> RegionQuery {
        let (state, page) = (&self.state, self.store.page_size as u64);
        let touching = self.store.slots.touching(state.id, state.start..state.end());
        RegionQuery {
            uncommitted: touching.into_iter().map(TransactionId).collect(),
            dirty_pages: self.store.lock_pages().dirty_in(state.segment.id, state.pages(page)),
        }
    }
}
