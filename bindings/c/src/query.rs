//! The state of a store, and the counters.

use crate::error::{Done, call};
use crate::region::{caliburn_region, region};
use crate::store::{caliburn_store, open};
use caliburn_c_common::text;
use std::ffi::{CStr, c_char, c_int};

/// The state of a store at one moment.
#[repr(C)]
#[derive(Default)]
pub struct caliburn_query {
    /// Transactions begun and neither committed nor aborted; prepared ones among them.
    pub uncommitted: u64,
    /// Prepared transactions that are undecided.
    pub prepared: u64,
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
    /// Whether the store has failed: 0 or 1.
    pub failed: u64,
    /// Bytes of pages that lie in files, since a transaction has outgrown the memory budget.
    pub overflow_bytes: u64,
}

/// Counters since the store was opened.
#[repr(C)]
#[derive(Default)]
pub struct caliburn_statistics {
    /// Transactions committed.
    pub committed: u64,
    /// Transactions aborted.
    pub aborted: u64,
    /// Ranges declared.
    pub ranges: u64,
    /// Bytes declared.
    pub declared_bytes: u64,
    /// Bytes declared again within a transaction.
    pub duplicate_bytes: u64,
    /// Ranges joined to adjacent or overlapping ones.
    pub joined_ranges: u64,
    /// Bytes of ranges handed to the log by commits.
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

/// Stores as much of a structure as the caller, compiled perhaps with an older header, has room for.
fn put_sized<T: Default>(what: &str, target: *mut T, size: usize, value: T) -> Done {
    text::check(what, target)?;
    let size = size.min(size_of::<T>());
    // SAFETY: the caller has room for so many bytes of the structure, which is plain numbers.
    unsafe { target.cast::<u8>().copy_from_nonoverlapping((&raw const value).cast(), size) };
    Ok(())
}

/// The state of a store. size: of the structure, as the program was compiled.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_query_store(
    store: *const caliburn_store,
    query: *mut caliburn_query,
    size: usize,
) -> c_int {
    call(|| {
        let found = open(store)?.store.query();
        let told = caliburn_query {
            uncommitted: found.uncommitted as u64,
            prepared: found.prepared as u64,
            log_bytes: found.log_bytes,
            log_used: found.log_used,
            log_unforced: found.log_unforced,
            dirty_pages: found.dirty_pages,
            private_pages: found.private_pages,
            page_bytes: found.page_bytes,
            memory_budget: found.memory_budget,
            failed: u64::from(found.failed),
            overflow_bytes: found.overflow_bytes,
        };
        put_sized("query", query, size, told)
    })
}

/// How many uncommitted transactions have ranges in a region; -1 if there is no such region, or the
/// store is the parent process's.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_region_uncommitted(handle: *const caliburn_region) -> i64 {
    let own = region(handle).ok().filter(|region| !region.is_inherited());
    own.map_or(-1, |region| region.query().uncommitted.len() as i64)
}

/// The counters of a store. size: of the structure, as the program was compiled.
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_statistics_get(
    store: *const caliburn_store,
    statistics: *mut caliburn_statistics,
    size: usize,
) -> c_int {
    call(|| {
        let found = open(store)?.store.statistics();
        let told = caliburn_statistics {
            committed: found.committed,
            aborted: found.aborted,
            ranges: found.ranges,
            declared_bytes: found.declared_bytes,
            duplicate_bytes: found.duplicate_bytes,
            joined_ranges: found.joined_ranges,
            committed_log_bytes: found.committed_log_bytes,
            merged_transactions: found.merged_transactions,
            merged_bytes: found.merged_bytes,
            records: found.records,
            log_bytes: found.log_bytes,
            flushes: found.flushes,
            forces: found.forces,
            truncations: found.truncations,
            epochs: found.epochs,
            pages_written: found.pages_written,
            pages_dropped: found.pages_dropped,
            pages_blocked: found.pages_blocked,
        };
        put_sized("statistics", statistics, size, told)
    })
}

/// The library's version, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn caliburn_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    let version = CStr::from_bytes_with_nul(VERSION.as_bytes()).expect("one zero, at the end");
    version.as_ptr()
}
