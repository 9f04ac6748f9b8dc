//! A gate through which transactions and readers go when they begin. It is open, but when one was run again so
//! often that it would be for ever: it closes the gate then, those that are inside come to an end, and it gets
//! through.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: AtomicBool,
    turn: Mutex<()>,
}

/// While it is closed.
pub(crate) struct Closed<'g> {
    gate: &'g Gate,
    _turn: MutexGuard<'g, ()>,
}

impl Gate {
    /// Goes through, with nothing locked.
    #[inline]
    pub fn pass(&self) {
        if self.closed.load(Ordering::Acquire) {
            drop(self.lock());
        }
    }

    /// Closes it, with nothing locked.
    pub fn close(&self) -> Closed<'_> {
        let turn = self.lock();
        self.closed.store(true, Ordering::Release);
        Closed { gate: self, _turn: turn }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.gate.closed.store(false, Ordering::Release);
    }
}
