//! Objects whose changes commute (Camelot, section 4.2): several families may have changes of one outstanding at
//! once. What a family does to it is put off until its top commits, and made then.
//!
//! ```text
//!   a change:    the object's locks say whether it goes with what others have outstanding; then it is put off
//!   child:       commits: its changes are its parent's, still put off;     aborts: they are forgotten
//!   top commits: 1 the latches of the parts that it changes     2 their new bytes, in its own transaction
//!                3 it commits      4 the latches are given up, and only then the force is waited for
//! ```
//!
//! Recovery is the engine's, by values: no two change the object's bytes at once, since each does so under the
//! latch, from one that has committed in front of it.
//!
//! Invariant: latches of an object are taken in the order of its parts, and objects in the order of the
//! companions; while they are held, nothing is waited for but another latch.

use caliburn_engine::Transaction;
use caliburn_nest::{Error, Follow};
use caliburn_os::event::Event;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::atomic::{AtomicBool, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard, yield_now};
use std::sync::Arc;

/// An object in recoverable memory with changes that commute, in parts that are changed independently. What goes
/// with what, its locks say, which it takes before it puts a change off ([`Intentions::put_off`]).
pub trait Commute<'t>: Sync {
    /// A change.
    type Change: Clone + Send + Sync;

    /// The latches of its parts.
    fn latches(&self) -> &Latches;

    /// The part that is changed.
    fn part(&self, change: &Self::Change) -> usize {
        _ = change;
        0
    }

    /// A family commits: stores what changes of one part come to, in their order. Nobody else does so meanwhile.
    ///
    /// # Errors
    /// When it may not commit.
    fn apply(&self, part: usize, changes: &[Self::Change], tx: &mut Transaction<'t>) -> Result<(), Error>;

    /// Changes of one part are not outstanding any more: they have committed for all who are in this process, or
    /// were undone.
    fn settle(&self, part: usize, changes: &[Self::Change], commits: bool);
}

/// What a transaction has done to an object and put off: its companion, which goes in front of its
/// [`Owner`](crate::Owner).
pub struct Intentions<'c, 't, O: Commute<'t>> {
    object: &'c O,
    level: Arc<Level<O::Change>>,
    /// Parts whose latches it has.
    latched: Vec<usize>,
    of_region: std::marker::PhantomData<&'t ()>,
}

/// What a transaction of a family has put off.
struct Level<C> {
    parent: Option<Arc<Level<C>>>,
    changes: Mutex<Vec<C>>,
}

impl<C> Level<C> {
    fn new(parent: Option<Arc<Level<C>>>) -> Arc<Level<C>> {
        Arc::new(Level { parent, changes: Mutex::new(Vec::new()) })
    }

    fn changes(&self) -> MutexGuard<'_, Vec<C>> {
        self.changes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn each(&self, see: &mut impl FnMut(&C)) {
        if let Some(parent) = &self.parent {
            parent.each(see);
        }
        self.changes().iter().for_each(see);
    }
}

impl<'c, 't, O: Commute<'t>> Intentions<'c, 't, O> {
    /// For a top-level transaction.
    pub fn new(object: &'c O) -> Intentions<'c, 't, O> {
        Intentions::of(object, None)
    }

    fn of(object: &'c O, parent: Option<Arc<Level<O::Change>>>) -> Intentions<'c, 't, O> {
        Intentions {
            object,
            level: Level::new(parent),
            latched: Vec::new(),
            of_region: std::marker::PhantomData,
        }
    }

    /// The object.
    pub fn object(&self) -> &'c O {
        self.object
    }

    /// Puts a change off, whose locks the transaction has.
    pub fn put_off(&mut self, change: O::Change) {
        self.level.changes().push(change);
    }

    /// Sees what this transaction and those above it have put off, in their order.
    pub fn each(&self, mut see: impl FnMut(&O::Change)) {
        self.level.each(&mut see);
    }

    /// Nothing of it is outstanding any more.
    fn settle(&mut self, commits: bool) {
        let (object, mut changes) = (self.object, std::mem::take(&mut *self.level.changes()));
        by_parts(object, &mut changes).for_each(|(part, of_one)| object.settle(part, of_one, commits));
        self.latched.drain(..).for_each(|part| object.latches().0[part].give_up());
    }
}

/// Changes of an object by parts, in the order of those.
fn by_parts<'a, 't, O: Commute<'t>>(
    object: &'a O,
    changes: &'a mut [O::Change],
) -> impl Iterator<Item = (usize, &'a [O::Change])> {
    changes.sort_by_key(|change| object.part(change));
    let parts = changes.chunk_by(|a, b| object.part(a) == object.part(b));
    parts.map(|of_one| (object.part(&of_one[0]), of_one))
}

impl<'t, O: Commute<'t>> Follow<'t> for Intentions<'_, 't, O> {
    fn child(&mut self) -> Self {
        Intentions::of(self.object, Some(self.level.clone()))
    }

    fn independent(&mut self) -> Self {
        Intentions::of(self.object, None)
    }

    fn commit(self, parent: &mut Self) {
        if !planted("intentions-not-inherited") {
            parent.level.changes().append(&mut self.level.changes());
        }
    }

    /// Steps 1 and 2.
    fn apply(&mut self, tx: &mut Transaction<'t>) -> Result<(), Error> {
        let (object, mut changes) = (self.object, self.level.changes().clone());
        for (part, of_one) in by_parts(object, &mut changes) {
            if unless("counters-not-latched", true) {
                object.latches().0[part].take();
            }
            self.latched.push(part);
            object.apply(part, of_one, tx)?;
        }
        if planted("counters-not-latched") {
            yield_now();
        }
        Ok(())
    }

    /// Step 4.
    fn committed(&mut self) {
        self.settle(true);
    }

    fn end(self) {}

    fn abort(mut self) {
        self.settle(false);
    }
}

/// Latches of an object's parts: each is held while a transaction that changes the part commits, by whoever drives
/// it.
pub struct Latches(Box<[Latch]>);

impl Latches {
    /// For so many parts.
    pub fn new(parts: usize) -> Latches {
        Latches((0..parts).map(|_| Latch::default()).collect())
    }
}

#[derive(Default)]
struct Latch {
    taken: AtomicBool,
    event: Event,
}

impl Latch {
    fn take(&self) {
        loop {
            let seen = self.event.count();
            if !self.taken.swap(true, Ordering::Acquire) {
                return;
            }
            self.event.wait(seen, None);
        }
    }

    fn give_up(&self) {
        self.taken.store(false, Ordering::Release);
        self.event.signal_one();
    }
}
