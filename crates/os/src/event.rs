//! Waiting for something to have happened: a counter that only grows, and the threads that wait for it.

use crate::sync::atomic::{AtomicU32, Ordering, fence};
use crate::sync::{SCHEDULED, yield_now};
use rustix::thread::futex;
use std::time::Duration;

/// A counter of happenings. Read it, check the condition, then wait for it to move on.
#[derive(Debug, Default)]
pub struct Event {
    count: AtomicU32,
    waiters: AtomicU32,
}

impl Event {
    /// The present count, to pass to [`Event::wait`] after looking at the condition.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    fn word(&self) -> &std::sync::atomic::AtomicU32 {
        // SAFETY: the pointer is that of an atomic which lives as long as `self`.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(self.count.as_ptr()) }
    }

    /// Sleeps until the count differs from `seen`, or the time is over.
    pub fn wait(&self, seen: u32, limit: Option<Duration>) {
        if SCHEDULED {
            // The scheduler chooses how long that takes.
            while self.count() == seen {
                yield_now();
                if limit.is_some() {
                    break;
                }
            }
            return;
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        if self.count() == seen {
            let limit = limit
                .map(|d| rustix::fs::Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos() as _ });
            // Errors mean: woken, changed already, interrupted, or timed out. The caller looks again.
            let _ = futex::wait(self.word(), futex::Flags::PRIVATE, seen, limit.as_ref());
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts one happening and wakes everybody. No system call when nobody waits.
    pub fn signal(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(self.word(), futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }
}
