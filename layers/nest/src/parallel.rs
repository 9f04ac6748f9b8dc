//! Children side by side (`COBEGIN`, `COFOR`), and threads that share one transaction (`THREAD_COBEGIN`).
//!
//! ```text
//!   a child:   1 a branch of the parent     2 its closure, on some thread
//!              3 what follows it may refuse 4 the parent adopts the branch   5 what follows it is the parent's
//!   undone:                                   the branch is dropped            it is told
//! ```
//!
//! The parent's thread waits, or runs one of them; the parent itself is behind a lock, for steps 1, 4 and 5.

use crate::error::Error;
use crate::family::Family;
use crate::follow::Follow;
use crate::transaction::{Part, Running, Tx};
use caliburn_engine::zerocopy::{Immutable, IntoBytes};
use caliburn_engine::{Region, Store, Transaction};
use caliburn_os::simulated::planted;
use caliburn_os::sync::{Mutex, MutexGuard};
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// What a child does, on a thread of its own.
pub type Child<'a, 't, C, T, E> = Box<dyn FnOnce(&mut Tx<'t, C>) -> Result<T, E> + Send + 'a>;

/// A child for [`Tx::cobegin`], or a transaction for [`cobegin`](crate::cobegin).
pub fn child<'a, 't, C: Follow<'t>, T, E>(
    closure: impl FnOnce(&mut Tx<'t, C>) -> Result<T, E> + Send + 'a,
) -> Child<'a, 't, C, T, E> {
    Box::new(closure)
}

impl<'t, C: Follow<'t>> Tx<'t, C> {
    /// Runs children side by side, each on a thread of its own, one of them on this one, and waits for all
    /// (`COBEGIN`). How each has ended.
    ///
    /// Two of them must not declare the same bytes, unless one has ended before the other begins to: that is what
    /// locks are for.
    pub fn cobegin<'a, T: Send, E: From<Error> + Send>(
        &mut self,
        children: impl IntoIterator<Item = Child<'a, 't, C, T, E>>,
    ) -> Vec<Result<T, E>> {
        let parent = Parent::of(self);
        run_all(children.into_iter().collect(), |child| parent.run(child))
    }

    /// Runs so many children side by side, on at most as many threads as there are processors, or two, this one
    /// among them (`COFOR`). They are begun in their order, and do not wait for those after them. How each has
    /// ended.
    pub fn cofor<T: Send, E: From<Error> + Send>(
        &mut self,
        count: usize,
        child: impl Fn(usize, &mut Tx<'t, C>) -> Result<T, E> + Sync,
    ) -> Vec<Result<T, E>> {
        self.cofor_on(&Threads, count, child)
    }

    /// The same, on a crew's threads.
    pub fn cofor_on<T: Send, E: From<Error> + Send>(
        &mut self,
        crew: &impl Crew,
        count: usize,
        child: impl Fn(usize, &mut Tx<'t, C>) -> Result<T, E> + Sync,
    ) -> Vec<Result<T, E>> {
        let parent = Parent::of(self);
        crew.outcomes(count, |number| parent.run(|tx| child(number, tx)))
    }

    /// Runs several threads in this transaction, without nesting (`THREAD_COBEGIN`): what each does is the
    /// transaction's, also if others fail. What they return. Bytes that two of them change the program keeps
    /// apart.
    pub fn threads<T: Send>(
        &mut self,
        count: usize,
        work: impl Fn(usize, &Shared<'_, 't, C>) -> T + Sync,
    ) -> Vec<T> {
        let shared = Shared(Mutex::new(self));
        let work = |number| work(number, &shared);
        run_all((0..count).collect(), work)
    }
}

/// A transaction that several threads are in: [`Tx::threads`]. One call of it at a time.
pub struct Shared<'a, 't, C: Follow<'t> = ()>(Mutex<&'a mut Tx<'t, C>>);

impl<'a, 't, C: Follow<'t>> Shared<'a, 't, C> {
    /// Has the transaction for itself meanwhile; this thread, too, does all with what is returned.
    pub fn lock(&self) -> MutexGuard<'_, &'a mut Tx<'t, C>> {
        lock(&self.0)
    }

    /// [`Tx::set_range`].
    ///
    /// # Errors
    /// As there.
    pub fn set_range(&self, region: &'t Region, range: Range<usize>) -> Result<(), Error> {
        self.lock().set_range(region, range)
    }

    /// [`Tx::write`].
    ///
    /// # Errors
    /// As there.
    pub fn write(&self, region: &'t Region, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.lock().write(region, offset, bytes)
    }

    /// [`Tx::store`].
    ///
    /// # Errors
    /// As there.
    pub fn store<T: IntoBytes + Immutable>(
        &self,
        region: &'t Region,
        offset: usize,
        value: &T,
    ) -> Result<(), Error> {
        self.write(region, offset, value.as_bytes())
    }
}

/// A transaction whose children run.
struct Parent<'a, 't, C: Follow<'t>> {
    store: &'t Store,
    family: Arc<Family>,
    halves: Mutex<(&'a mut Transaction<'t>, &'a mut C)>,
}

impl<'a, 't, C: Follow<'t>> Parent<'a, 't, C> {
    fn of(tx: &'a mut Tx<'t, C>) -> Parent<'a, 't, C> {
        let (store, family) = (tx.store, tx.family.clone());
        Parent { store, family, halves: Mutex::new(tx.halves()) }
    }

    fn run<T, E: From<Error>>(&self, child: impl FnOnce(&mut Tx<'t, C>) -> Result<T, E>) -> Result<T, E> {
        // 1
        let mut running = Running(Some(self.begin()?));
        // 2
        let value = child(running.tx())?;
        // 3
        let (part, following, _) = running.ending()?;
        let Part::Branch(branch) = part else { unreachable!("it began as a branch") };
        if planted("passed-before-adopted") {
            following.take().commit(lock(&self.halves).1);
            // So that others come in between.
            std::thread::sleep(std::time::Duration::from_micros(200));
            lock(&self.halves).0.adopt(branch).map_err(Error::from)?;
            return Ok(value);
        }
        let (tx, parents) = &mut *lock(&self.halves);
        // 4
        // If it fails, it is undone, and nobody has seen that it was not.
        tx.adopt(branch).map_err(Error::from)?;
        // 5
        following.take().commit(parents);
        Ok(value)
    }

    fn begin(&self) -> Result<Tx<'t, C>, Error> {
        self.family.goes_on()?;
        let (tx, companion) = &mut *lock(&self.halves);
        let branch = tx.branch()?;
        Ok(Tx::new(self.store, self.family.clone(), Part::Branch(branch), None, companion.child()))
    }
}

/// Threads that run children.
pub trait Crew {
    /// Calls `work` with each number below `count`, on any of its threads, in any order, and returns when all
    /// calls have returned. If one panics, so does this, afterwards.
    fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync));

    /// What `work` returns for each number.
    fn outcomes<T: Send>(&self, count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T>
    where
        Self: Sized,
    {
        let places: Vec<Mutex<Option<T>>> = (0..count).map(|_| Mutex::new(None)).collect();
        self.run(count, &|number| {
            let outcome = work(number);
            *lock(&places[number]) = Some(outcome);
        });
        let taken = |place: Mutex<Option<T>>| {
            place.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).expect("all were run")
        };
        places.into_iter().map(taken).collect()
    }
}

/// Threads that end with what they run: one for each processor, or two. The caller is one of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Threads;

impl Crew for Threads {
    fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        let processors = thread::available_parallelism().map_or(2, |n| n.get().max(2));
        let next = AtomicUsize::new(0);
        let go_on = || {
            while let Some(number) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < count) {
                work(number);
            }
        };
        run_all(vec![(); count.min(processors)], |()| go_on());
    }
}

/// A thread of the pool that waits for children of its own may run others meanwhile, and not go on before they
/// end: a child that has children on the same pool must hold no lock that those others want.
#[cfg(feature = "rayon")]
impl Crew for rayon::ThreadPool {
    fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        use rayon::prelude::*;
        self.install(|| (0..count).into_par_iter().for_each(work));
    }
}

/// Runs all, the first on this thread and each other on one of its own. What they return, when all have ended; if
/// one has panicked, that goes on here.
pub(crate) fn run_all<W: Send, T: Send>(all: Vec<W>, work: impl Fn(W) -> T + Sync) -> Vec<T> {
    let mut all = all.into_iter();
    let Some(first) = all.next() else { return Vec::new() };
    thread::scope(|scope| {
        let others: Vec<_> = all.map(|one| scope.spawn(|| work(one))).collect();
        let first = work(first);
        let others =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        [first].into_iter().chain(others).collect()
    })
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
