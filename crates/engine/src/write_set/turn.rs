//! One transaction at a time: for stores whose changes are told apart by pages, so that nobody could say what each
//! of two transactions has changed.

use caliburn_os::event::Event;
use caliburn_os::sync::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A number that no other thread ever has.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    caliburn_os::sync::thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// Whose turn it is. Who comes first is first.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    state: Mutex<State>,
    given: Event,
}

#[derive(Debug, Default)]
struct State {
    /// The thread that began the transaction which is open.
    holder: Option<u64>,
    /// Numbers of those who wait: of the next one to come, and of the one whose turn comes next.
    next: u64,
    serving: u64,
    /// Those who want that no transaction is open.
    wanted: u32,
}

/// Somebody waits until no transaction is open: none begins.
pub(crate) struct Wanted<'t>(&'t Turn);

/// No transaction is open, as long as this is kept.
pub(crate) struct Held<'t>(&'t Turn);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.lock().wanted -= 1;
        self.0.given.signal();
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.give();
    }
}

impl<'t> Wanted<'t> {
    /// Waits for so long for the one that is open.
    pub fn take_within(&self, limit: Duration) -> Option<Held<'t>> {
        let begun = Instant::now();
        loop {
            let seen = self.0.given.count();
            {
                let mut state = self.0.lock();
                if state.holder.is_none() {
                    state.holder = Some(this_thread());
                    return Some(Held(self.0));
                }
                if state.holder == Some(this_thread()) {
                    // It would wait for itself.
                    return None;
                }
            }
            let left = limit.checked_sub(begun.elapsed())?;
            self.0.given.wait(seen, Some(left));
        }
    }
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits for the turn, and takes it. False if this thread took it last, and would wait for itself.
    pub fn take(&self) -> bool {
        let own = Some(this_thread());
        let number = {
            let mut state = self.lock();
            if state.holder == own {
                return false;
            }
            state.next += 1;
            state.next - 1
        };
        loop {
            let seen = self.given.count();
            {
                let mut state = self.lock();
                if state.holder.is_none() && state.serving == number && state.wanted == 0 {
                    (state.holder, state.serving) = (own, number + 1);
                    return true;
                }
            }
            self.given.wait(seen, None);
        }
    }

    /// Says that no transaction is to begin.
    pub fn want(&self) -> Wanted<'_> {
        self.lock().wanted += 1;
        Wanted(self)
    }

    /// It is the next one's.
    pub fn give(&self) {
        self.lock().holder = None;
        self.given.signal();
    }
}
