//! Transactions that are tried until no deadlock is in the way, and readers.
//!
//! ```text
//!   1 begin, with a lock owner as old as that of the first try
//!   2 the closure: each cell that it reads or changes is locked
//!   3 commit, in a failure class; then the locks are given up
//!   in a deadlock:  undone, its locks given up, a pause, and from 1 on again; at last behind a gate that it closes
//! ```
//!
//! Invariant: of those in a circle the youngest is tried again, and never one that only reads. A transaction keeps
//! its age from try to try, so that it is the oldest some time; readers, however young, it gets by with the gate.

use crate::cells::Cells;
use crate::error::Error;
use crate::transaction::{Reader, Tx};
use caliburn_engine::Class;
use caliburn_lock::LockError;
use caliburn_os::simulated::{planted, unless};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

/// Longest pause before a transaction is tried again.
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// Tries after which a transaction closes the gate.
const TRIES: u64 = 8;

thread_local! {
    /// Whether this thread has a transaction, or a reader.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// While this thread has one. Of two, the one within would go on when the other is undone, and a circle through
/// both would not be found.
struct Within;

impl Within {
    fn enter() -> Within {
        assert!(
            !WITHIN.replace(true),
            "a transaction on cells within another of this thread, for which it could wait for ever: use the one that is \
             open, or Tx::nest"
        );
        Within
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        WITHIN.set(false);
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
    /// Within a transaction or reader of this thread, on whichever cells.
    pub fn transact<T, E: From<Error>>(
        &self,
        class: Class,
        mut body: impl FnMut(&mut Tx<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let _within = Within::enter();
        self.gate.pass();
        let (mut owner, mut closed) = (self.detector.owner(), None);
        for tries in 1.. {
            // 1
            let mut tx = Tx::new(self, self.heap.begin().map_err(Error::from)?, owner, tries);
            // 2
            let done = body(&mut tx);
            let (heap, locked, refused, failed) = tx.into_parts();
            if let Some(LockError::Deadlock(_)) = refused {
                if planted("retries-keep-changes") {
                    heap.commit(class).map_err(Error::from)?;
                } else {
                    heap.abort();
                }
                owner = locked.again();
                self.counts.retried.fetch_add(1, Relaxed);
                self.counts.most_tries.fetch_max(tries + 1, Relaxed);
                match tries {
                    TRIES if unless("gate-not-closed", true) => closed = Some(self.gate.close()),
                    _ if closed.is_none() => {
                        pause(tries);
                        self.gate.pass();
                    }
                    _ => {}
                }
                continue;
            }
            let refused = refused.map(Error::from).or(failed).map_or(Ok(()), |error| Err(error.into()));
            let value = match done.and_then(|value| refused.map(|()| value)) {
                Ok(value) => value,
                Err(error) => {
                    heap.abort();
                    self.counts.aborted.fetch_add(1, Relaxed);
                    return Err(error);
                }
            };
            // 3
            heap.commit(class).map_err(Error::from)?;
            drop(locked);
            self.counts.committed.fetch_add(1, Relaxed);
            return Ok(value);
        }
        unreachable!("it is tried until it ends")
    }

    /// Runs a transaction that only reads. It waits for those that change what it reads; it is never undone, nor
    /// run again.
    ///
    /// # Errors
    /// The closure's.
    ///
    /// # Panics
    /// Within a transaction or reader of this thread, on whichever cells.
    pub fn read<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&mut Reader<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let _within = Within::enter();
        self.gate.pass();
        let value = body(&mut Reader::new(self, self.detector.reader()))?;
        self.counts.read.fetch_add(1, Relaxed);
        Ok(value)
    }
}

/// Lets the others of the circle get on.
fn pause(tries: u64) {
    match tries {
        1 => thread::yield_now(),
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
