//! Waiting for something to have happened: a counter that only grows, and the threads that wait for it.

use crate::sync::atomic::{AtomicU32, Ordering, fence};
use crate::sync::{Mutex, SCHEDULED, yield_now};
use rustix::thread::futex;
use std::time::Duration;

/// A counter of happenings. Read it, check the condition, then wait for it to move on.
#[derive(Debug, Default)]
pub struct Event {
    count: AtomicU32,
    waiters: AtomicU32,
    asleep: Mutex<Asleep>,
}

/// The futex's queue, first in, first out, in builds with a scheduler.
#[derive(Debug, Default)]
struct Asleep {
    /// How many ever fell asleep.
    fallen: u32,
    /// How many of them were woken.
    woken: u32,
}

impl Event {
    /// The present count, to pass to [`Event::wait`] after looking at the condition.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Whether somebody has looked and waits, or is about to.
    pub fn is_waited_for(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) != 0
    }

    fn word(&self) -> &std::sync::atomic::AtomicU32 {
        // SAFETY: the pointer is that of an atomic which lives as long as `self`.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(self.count.as_ptr()) }
    }

    /// Sleeps until the count differs from `seen`, or the time is over.
    pub fn wait(&self, seen: u32, limit: Option<Duration>) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        if SCHEDULED {
            self.wait_scheduled(seen, limit.is_some());
        } else if self.count() == seen {
            let limit = limit
                .map(|d| rustix::fs::Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos() as _ });
            // Errors mean: woken, changed already, interrupted, or timed out. The caller looks again.
            let _ = futex::wait(self.word(), futex::Flags::PRIVATE, seen, limit.as_ref());
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// What a futex does, by the scheduler's choices: who looked before the count moved does not fall asleep.
    /// The scheduler chooses how long a limit takes.
    fn wait_scheduled(&self, seen: u32, limited: bool) {
        let turn = {
            let mut asleep = self.asleep.lock().expect("no panic under this lock");
            if self.count() != seen {
                return;
            }
            asleep.fallen += 1;
            asleep.fallen
        };
        while !limited && self.asleep.lock().expect("no panic under this lock").woken < turn {
            yield_now();
        }
    }

    /// Counts one happening and wakes everybody. No system call when nobody waits.
    pub fn signal(&self) {
        self.wake(i32::MAX as u32);
    }

    /// Counts one happening and wakes one of those who sleep. Who is about to fall asleep does not.
    pub fn signal_one(&self) {
        self.wake(1);
    }

    fn wake(&self, most: u32) {
        if SCHEDULED {
            let mut asleep = self.asleep.lock().expect("no panic under this lock");
            self.count.fetch_add(1, Ordering::SeqCst);
            asleep.woken = asleep.woken.saturating_add(most).min(asleep.fallen);
            return;
        }
        self.count.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(self.word(), futex::Flags::PRIVATE, most);
        }
    }
}
