//! Group commit: one force of the log covers all who came before it.
//!
//! A thread that waits for a force leads a round if nobody does: it moves what is staged to the log and forces.
//! The others wait, and those who come meanwhile gather for the next round.

use super::Redo;
use super::flusher::FlushBuffers;
use crate::policy::Recovery;
use crate::storage::class::Class;
use crate::storage::error::Failure;
use caliburn_os::event::Event;
use caliburn_os::simulated::{even_if, planted, unless};
use caliburn_os::sync::atomic::{AtomicU64, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;
use std::task::{Poll, Waker};
use std::time::Instant;

/// The rounds of group commit.
#[derive(Default)]
pub(super) struct Rounds {
    /// Every commit stamped before it survives a power cut.
    durable: AtomicU64,
    /// The number of the force that will cover the next committer: moves on just before its horizon is taken.
    round: AtomicU64,
    /// For those who wait for a round with an even and with an odd number. Everybody is woken when the round is
    /// over or the store fails, and one to lead it when the one before is over.
    moved: [Event; 2],
    /// Counts the threads that came to wait for a force.
    arrivals: AtomicU64,
    /// Whom to tell that a commit is durable, beside threads that sleep here: futures.
    wakers: Wakers,
}

/// Futures that wait for the commits with their stamps.
#[derive(Default)]
pub(super) struct Wakers(Mutex<Vec<(u64, Waker)>>);

impl Wakers {
    /// Has one told, unless it will be.
    fn add(&self, stamp: u64, waker: &Waker) {
        let mut wakers = self.lock();
        if !wakers.iter().any(|(of, known)| *of == stamp && known.will_wake(waker)) {
            wakers.push((stamp, waker.clone()));
        }
    }

    /// Tells those whose commit was stamped before the horizon.
    pub fn wake(&self, horizon: u64) {
        let told: Vec<_> = self.lock().extract_if(.., |(stamp, _)| *stamp < horizon).collect();
        told.into_iter().for_each(|(_, waker)| waker.wake());
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Waker)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rounds {
    /// Wakes the threads that sleep: the flush lock is free.
    pub fn wake_threads(&self) {
        self.moved.iter().for_each(Event::signal);
    }

    /// Wakes everybody: nothing may come any more of what they wait for.
    pub fn wake_all(&self) {
        self.wake_threads();
        self.wakers.wake(u64::MAX);
    }
}

/// Wakes everybody if its holder panics: the others must not sleep for its sake.
struct WakesInPanic<'a>(&'a Rounds);

impl Drop for WakesInPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.wake_all();
        }
    }
}

impl Redo {
    pub(super) fn is_forced(&self, stamp: u64) -> bool {
        self.rounds.durable.load(Ordering::Acquire) > stamp
    }

    pub(super) fn poll(&self, class: Class, stamp: u64, waker: &Waker) -> Poll<Result<(), Failure>> {
        let now = || match self.is_durable(stamp, class) {
            true => Poll::Ready(Ok(())),
            false => self.not_over().map_or_else(|failure| Poll::Ready(Err(failure)), |()| Poll::Pending),
        };
        if let Poll::Ready(done) = now() {
            return Poll::Ready(done);
        }
        match self.replication.as_ref().filter(|_| class == Class::Quorum) {
            Some(replication) => replication.wakers.add(stamp, waker),
            None => self.rounds.wakers.add(stamp, waker),
        }
        // Again: a force that ended before the waker was there told nobody.
        now()
    }

    /// Step 7 after the others, by the holder of the flush lock. Forces even if nothing was staged, since
    /// an earlier flush may not have forced.
    pub(super) fn force_flushed(&self, horizon: u64) -> Result<(), Failure> {
        if let Err(error) = self.storage.meter.force.time(|| self.log.force())
            && unless("failed-force-ignored", true)
        {
            return Err(self.fail(error));
        }
        self.storage.failure()?;
        self.flush.forces.fetch_add(1, Ordering::Relaxed);
        if let Some(replication) = &self.replication {
            // Before anybody who waited for the force waits for the replica.
            replication.note_force(horizon, self.log.forced());
        }
        self.rounds.durable.fetch_max(horizon, Ordering::SeqCst);
        if !planted("futures-not-woken") {
            self.rounds.wakers.wake(horizon);
        }
        Ok(())
    }

    /// Forces all that was committed before the call, merging what is lazy.
    pub(super) fn flush_all(&self) -> Result<(), Failure> {
        self.wait_forced(self.stage.lanes().now(), self.storage.tuning().merge_lazy)
    }

    /// Waits until everything stamped up to `stamp` survives a power cut.
    ///
    /// The first committer leads the round: it forces for all who came before its horizon, while those
    /// who come later gather for the next. When it is over it wakes one of those to lead, so that the disk has
    /// work again, then the others that it forced for.
    ///
    /// Invariant: while somebody sleeps here and the flush lock is free, somebody else is awake who takes the
    /// lock or passes the call to lead on.
    pub(super) fn wait_forced(&self, stamp: u64, merge: bool) -> Result<(), Failure> {
        self.rounds.arrivals.fetch_add(1, Ordering::SeqCst);
        let round = self.rounds.round.load(Ordering::SeqCst);
        let moved = &self.rounds.moved[round as usize % 2];
        loop {
            let seen = moved.count();
            if even_if("force-not-waited-for", self.is_forced(stamp)) {
                if unless("call-to-lead-kept", self.rounds.round.load(Ordering::SeqCst) == round) {
                    // Covered by the round before, having come while its horizon was taken.
                    moved.signal_one();
                }
                return Ok(());
            }
            self.storage.failure()?;
            // Let go after the lock.
            let _wakes = WakesInPanic(&self.rounds);
            let Some(mut work) = self.try_lock_flush() else {
                let _waiting = self.storage.meter.durable.begin("a force of the log");
                moved.wait(seen, None);
                continue;
            };
            if self.is_forced(stamp) {
                self.unlock_flush(work);
                return Ok(());
            }
            let done = self.lead(&mut work, round, merge);
            drop(work);
            if !planted("nobody-called-to-lead") {
                self.rounds.moved[(round + 1) as usize % 2].signal_one();
            }
            moved.signal();
            done?;
        }
    }

    /// Forces for all who wait for this round.
    fn lead(&self, work: &mut FlushBuffers, round: u64, merge: bool) -> Result<(), Failure> {
        let arrivals = || self.rounds.arrivals.load(Ordering::SeqCst);
        work.cohort.gather(arrivals);
        work.cohort.closed(arrivals());
        let led = self.rounds.round.fetch_add(1, Ordering::SeqCst);
        // Those who came for an earlier round are durable, or the store has failed.
        debug_assert!(led == round || self.storage.failure().is_err());
        let horizon = self.flush_staged(work, merge)?;
        let start = Instant::now();
        self.force_flushed(horizon)?;
        work.cohort.forced(start.elapsed(), arrivals());
        Ok(())
    }
}
