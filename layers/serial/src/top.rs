//! Transactions that are tried until no deadlock is in the way, and readers.
//!
//! ```text
//!   1 begin, with a lock owner as old as that of the first try
//!   2 the closure: each cell that it reads or changes is locked
//!   3 commit, in a failure class; then the locks are given up
//!   in a deadlock:  undone, its locks given up, a pause, and from 1 on again
//! ```
//!
//! Invariant: of those in a circle the youngest is tried again, and never one that only reads. A transaction keeps
//! its age from try to try, so that it is the oldest some time.

use crate::cells::Cells;
use crate::error::Error;
use crate::transaction::{Reader, Tx};
use caliburn_engine::Class;
use caliburn_os::simulated::planted;
use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

/// Longest pause before a transaction is tried again.
const PAUSE_MAX: Duration = Duration::from_millis(1);

thread_local! {
    /// Cells on which this thread has a transaction.
    static WITHIN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// While this thread has a transaction on them.
struct Within;

impl Within {
    fn enter(cells: &Cells) -> Within {
        let at = std::ptr::from_ref(cells).addr();
        WITHIN.with_borrow_mut(|within| {
            assert!(
                !within.contains(&at),
                "a transaction within another on the same cells, which would wait for itself: use the one that is open, \
                 or Tx::nest"
            );
            within.push(at);
        });
        Within
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        WITHIN.with_borrow_mut(|within| within.pop());
    }
}

impl Cells {
    /// Runs a transaction: committed in a failure class when the closure returns `Ok`, undone when it returns
    /// `Err` or panics. If it was in a deadlock, it is undone and run again, as often as need be, whatever it
    /// returned.
    ///
    /// # Errors
    /// The closure's; when the transaction cannot begin or commit.
    ///
    /// # Panics
    /// Within a transaction of this thread on the same cells.
    pub fn transact<T, E: From<Error>>(
        &self,
        class: Class,
        mut body: impl FnMut(&mut Tx<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let _within = Within::enter(self);
        let mut owner = self.detector.owner();
        let mut tries = 1;
        loop {
            // 1
            let mut tx = Tx::new(self, self.heap.begin().map_err(Error::from)?, owner, tries);
            // 2
            let done = body(&mut tx);
            let (heap, locked, refused, failed) = tx.into_parts();
            let is_victim = locked.goes_on().is_err();
            match done {
                Ok(value) if !is_victim => {
                    if let Some(failed) = failed {
                        drop(heap);
                        return Err(failed.into());
                    }
                    // 3
                    heap.commit(class).map_err(Error::from)?;
                    drop(locked);
                    self.counts.committed.fetch_add(1, Relaxed);
                    return Ok(value);
                }
                Err(error) if !is_victim && !refused => {
                    heap.abort();
                    self.counts.aborted.fetch_add(1, Relaxed);
                    return Err(error);
                }
                Ok(_) | Err(_) => {
                    if planted("retries-keep-changes") {
                        heap.commit(class).map_err(Error::from)?;
                    } else {
                        heap.abort();
                    }
                    owner = locked.again();
                    tries += 1;
                    self.counts.retried.fetch_add(1, Relaxed);
                    self.counts.most_tries.fetch_max(tries, Relaxed);
                    pause(tries);
                }
            }
        }
    }

    /// Runs a transaction that only reads. It waits for those that change what it reads; it is never undone, nor
    /// run again.
    ///
    /// # Errors
    /// The closure's.
    ///
    /// # Panics
    /// Within a transaction of this thread on the same cells.
    pub fn read<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&mut Reader<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let _within = Within::enter(self);
        let value = body(&mut Reader::new(self, self.detector.reader()))?;
        self.counts.read.fetch_add(1, Relaxed);
        Ok(value)
    }
}

/// Lets the others of the circle get on.
fn pause(tries: u64) {
    match tries {
        0..=2 => thread::yield_now(),
        _ => thread::sleep(PAUSE_MAX.min(Duration::from_micros(10 << tries.min(16)))),
    }
}

/// Runs a transaction in the most lasting class that the store has: [`Cells::transact`].
///
/// # Errors
/// As there.
///
/// # Panics
/// As there.
pub fn serializable<T, E: From<Error>>(
    cells: &Cells,
    body: impl FnMut(&mut Tx<'_>) -> Result<T, E>,
) -> Result<T, E> {
    cells.transact(cells.store().reach(), body)
}
