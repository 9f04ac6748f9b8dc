//! One transaction at a time: for stores whose changes are told apart by pages, so that nobody could say what each
//! of two transactions has changed.

use caliburn_os::event::Event;
use caliburn_os::sync::{Mutex, MutexGuard};
use std::thread::ThreadId;

/// Whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The thread that began the transaction which is open.
    holder: Mutex<Option<ThreadId>>,
    given: Event,
}

/// The turn of somebody who is no transaction; given back when dropped.
pub(crate) struct Held<'t>(&'t Turn);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.give();
    }
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.holder.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits for the turn, and takes it. False if this thread took it last, and would wait for itself.
    pub fn take(&self) -> bool {
        let own = std::thread::current().id();
        loop {
            let seen = self.given.count();
            match &mut *self.lock() {
                Some(thread) if *thread == own => return false,
                Some(_) => {}
                free => {
                    *free = Some(own);
                    return true;
                }
            }
            self.given.wait(seen, None);
        }
    }

    /// Takes it if nobody has it.
    pub fn try_take(&self) -> Option<Held<'_>> {
        let mut holder = self.lock();
        if holder.is_some() {
            return None;
        }
        *holder = Some(std::thread::current().id());
        Some(Held(self))
    }

    /// It is the next one's.
    pub fn give(&self) {
        *self.lock() = None;
        self.given.signal();
    }
}
