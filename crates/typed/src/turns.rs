//! Who reads objects and who changes them: any number of readers, or one writer. A thread that would wait for
//! itself is told so.
//!
//! What comes with the turns, `T`, is read in each of them and changed in those of writers.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// The turns of a heap's objects.
#[derive(Default)]
pub(crate) struct Turns<T>(RwLock<T>);

/// What this thread has of some objects.
struct Held {
    turns: usize,
    views: u32,
    writes: bool,
}

thread_local! {
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

/// The right to read. It stays with its thread.
pub(crate) struct Reading<'t, T> {
    turns: &'t Turns<T>,
    lock: RwLockReadGuard<'t, T>,
    of_thread: PhantomData<*const ()>,
}

/// The right to change. It stays with its thread.
pub(crate) struct Writing<'t, T> {
    turns: &'t Turns<T>,
    lock: RwLockWriteGuard<'t, T>,
    of_thread: PhantomData<*const ()>,
}

impl<T> Turns<T> {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Changes what this thread has; forgets what it has not any more. A thread that is ending has nobody to warn.
    fn note<D: Default>(&self, change: impl FnOnce(&mut Held) -> D) -> D {
        let turns = self.address();
        let done = HELD.try_with(|all| {
            let mut all = all.borrow_mut();
            let at = all.iter().position(|held| held.turns == turns).unwrap_or_else(|| {
                all.push(Held { turns, views: 0, writes: false });
                all.len() - 1
            });
            let done = change(&mut all[at]);
            if all[at].views == 0 && !all[at].writes {
                all.swap_remove(at);
            }
            done
        });
        done.unwrap_or_default()
    }

    /// Waits for a turn to read.
    ///
    /// # Panics
    /// If this thread has the one to change.
    pub fn read(&self) -> Reading<'_, T> {
        let (views, writes) = self.note(|held| (held.views, held.writes));
        assert!(
            !writes,
            "a view inside of a transaction on the same objects: read through the transaction's guard"
        );
        // A writer that waits must not stand between two views of one thread.
        let lock = if views > 0 { self.0.read_recursive() } else { self.0.read() };
        self.note(|held| held.views += 1);
        Reading { turns: self, lock, of_thread: PhantomData }
    }

    /// Waits for a turn to change.
    ///
    /// # Panics
    /// If this thread reads, or has it already.
    pub fn write(&self) -> Writing<'_, T> {
        let (views, writes) = self.note(|held| (held.views, held.writes));
        assert!(
            !writes,
            "a transaction inside of another on the same objects: use the guard of the one that is open"
        );
        assert!(
            views == 0,
            "a transaction on objects of which this thread holds a view, which would be waited for without end: drop the \
             view first (one that is made in the head of a `for`, `match` or `if let` lives to its end)"
        );
        let lock = self.0.write();
        self.note(|held| held.writes = true);
        Writing { turns: self, lock, of_thread: PhantomData }
    }
}

impl<T> Deref for Reading<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.lock
    }
}

impl<T> Deref for Writing<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.lock
    }
}

impl<T> DerefMut for Writing<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.lock
    }
}

impl<T> Drop for Reading<'_, T> {
    fn drop(&mut self) {
        self.turns.note(|held| held.views = held.views.saturating_sub(1));
    }
}

impl<T> Drop for Writing<'_, T> {
    fn drop(&mut self) {
        self.turns.note(|held| held.writes = false);
    }
}
