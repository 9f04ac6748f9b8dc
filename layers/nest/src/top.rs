//! Top-level transactions: a family each.
//!
//! ```text
//!   1 a transaction of the store begins            3 what follows it may refuse
//!   2 the closure, with children                   4 what was put off is done, its timestamp drawn, and it commits
//! ```

use crate::clock::{Clock, Timestamp};
use crate::error::Error;
use crate::family::{Ends, Family, Status};
use crate::follow::Follow;
use crate::parallel::{Child, Crew, Threads, run_all};
use crate::transaction::{Following, Part, Running, Tx};
use caliburn_engine::{Class, CommitError, Mode, Store, Transaction};
use std::sync::Arc;

/// Runs a top-level transaction (`BEGIN_TRANSACTION`): commits in a failure class when the closure returns `Ok`,
/// is undone when it returns `Err` or panics.
///
/// # Errors
/// What the closure returns; when the transaction cannot begin, or not commit.
pub fn transact<'t, T, E: From<Error>>(
    store: &'t Store,
    class: Class,
    top: impl FnOnce(&mut Tx<'t>) -> Result<T, E>,
) -> Result<T, E> {
    transact_following(store, (), class, top)
}

/// The same, with a companion.
///
/// # Errors
/// As [`transact`].
pub fn transact_following<'t, C: Follow<'t>, T, E: From<Error>>(
    store: &'t Store,
    companion: C,
    class: Class,
    top: impl FnOnce(&mut Tx<'t, C>) -> Result<T, E>,
) -> Result<T, E> {
    Ok(run(store, companion, class, top, || Ok(()))?.0)
}

/// The same; its timestamp is later than those of all transactions that it had to wait for, and earlier than those
/// of all that had to wait for it. It is drawn when all locks are held and nothing can refuse the commit but the
/// store.
///
/// # Errors
/// As [`transact`], and when the clock's bound could not be moved on.
pub fn transact_at<'t, C: Follow<'t>, T, E: From<Error>>(
    store: &'t Store,
    clock: &Clock<'_>,
    companion: C,
    class: Class,
    top: impl FnOnce(&mut Tx<'t, C>) -> Result<T, E>,
) -> Result<(T, Timestamp), E> {
    run(store, companion, class, top, || clock.now())
}

fn run<'t, C: Follow<'t>, T, S, E: From<Error>>(
    store: &'t Store,
    companion: C,
    class: Class,
    top: impl FnOnce(&mut Tx<'t, C>) -> Result<T, E>,
    stamp: impl FnOnce() -> Result<S, Error>,
) -> Result<(T, S), E> {
    let (value, Ending { mut tx, mut following, family }) = ended(store, companion, top)?;
    // 4
    let done = following.companion().apply(&mut tx).and_then(|()| stamp());
    let done = done.and_then(|stamp| commit(tx, following.companion(), class).map(|()| stamp));
    let stamp = done.inspect_err(|_| family.refused(store))?;
    family.0.end(Status::Committed);
    following.take().end();
    Ok((value, stamp))
}

/// What is to be committed or prepared.
struct Ending<'t, C: Follow<'t>> {
    tx: Transaction<'t>,
    following: Following<'t, C>,
    family: Ends,
}

impl Ends {
    /// The commit was refused, or the store has failed meanwhile.
    fn refused(&self, store: &Store) {
        if store.query().failed {
            self.0.end(Status::Unknown);
        }
    }
}

/// Steps 1 to 3.
fn ended<'t, C: Follow<'t>, T, E: From<Error>>(
    store: &'t Store,
    companion: C,
    top: impl FnOnce(&mut Tx<'t, C>) -> Result<T, E>,
) -> Result<(T, Ending<'t, C>), E> {
    // 1
    let tx = match store.begin(Mode::Restore) {
        Ok(tx) => tx,
        Err(error) => {
            companion.abort();
            return Err(Error::from(error).into());
        }
    };
    let mut running =
        Running(Some(Tx::new(store, Arc::new(Family::new()), Part::Top(tx), Some(0), companion)));
    // 2
    let value = top(running.tx())?;
    // 3
    let (part, following, family) = running.ending()?;
    let Part::Top(tx) = part else { unreachable!("it began as the top") };
    Ok((value, Ending { tx, following, family: Ends(family) }))
}

fn commit<'t, C: Follow<'t>>(tx: Transaction<'t>, companion: &mut C, class: Class) -> Result<(), Error> {
    if class == Class::Process {
        tx.commit(class)?;
        companion.committed();
        return Ok(());
    }
    let ticket = tx.commit_ticket(class)?;
    companion.committed();
    Ok(ticket.wait().map_err(CommitError::from)?)
}

/// Runs a top-level transaction, and prepares it in place of committing: durable but undecided, under an
/// identifier that the program's coordinator knows. What follows it, its locks too, stays until it is decided.
///
/// # Errors
/// As [`transact`]; when the identifier is too long or in use.
pub fn prepare<'t, C: Follow<'t>, T, E: From<Error>>(
    store: &'t Store,
    companion: C,
    global_id: &[u8],
    top: impl FnOnce(&mut Tx<'t, C>) -> Result<T, E>,
) -> Result<(T, Prepared<'t, C>), E> {
    let (value, Ending { mut tx, mut following, family }) = ended(store, companion, top)?;
    let done = following.companion().apply(&mut tx).and_then(|()| Ok(tx.prepare(global_id)?));
    done.inspect_err(|_| family.refused(store))?;
    family.0.end(Status::Prepared);
    Ok((value, Prepared { store, global_id: global_id.to_vec(), companion: Some(following.take()) }))
}

/// A family that is prepared and undecided. Dropped, it stays so, with its locks, until the process ends; then the
/// store lists it ([`Store::prepared`]), and its bytes are to be kept from others before anything else is done.
#[must_use = "it is to be decided"]
pub struct Prepared<'t, C: Follow<'t>> {
    store: &'t Store,
    global_id: Vec<u8>,
    companion: Option<C>,
}

impl<'t, C: Follow<'t>> Prepared<'t, C> {
    /// The identifier.
    pub fn global_id(&self) -> &[u8] {
        &self.global_id
    }

    /// Commits it, durably.
    ///
    /// # Errors
    /// When the store has failed: it is undecided then.
    pub fn commit(mut self) -> Result<(), Error> {
        self.store.commit_prepared(&self.global_id)?;
        let mut companion = self.companion.take().expect("it is undecided");
        companion.committed();
        companion.end();
        Ok(())
    }

    /// Aborts it, durably.
    ///
    /// # Errors
    /// As [`Prepared::commit`].
    pub fn abort(mut self) -> Result<(), Error> {
        self.store.abort_prepared(&self.global_id)?;
        self.companion.take().expect("it is undecided").abort();
        Ok(())
    }
}

impl<'t, C: Follow<'t>> Drop for Prepared<'t, C> {
    fn drop(&mut self) {
        // Nobody may have its locks.
        std::mem::forget(self.companion.take());
    }
}

impl<'t, C: Follow<'t>> Tx<'t, C> {
    /// Runs a top-level transaction that is independent of this one, though begun within it
    /// (`BEGIN_TOP_LEVEL_TRANSACTION`): what it commits stays whatever becomes of this family. It must not change
    /// bytes that this family has changed: [`caliburn_engine::Transaction`].
    ///
    /// # Errors
    /// As [`transact`](crate::transact).
    pub fn independent<T, E: From<Error>>(
        &mut self,
        class: Class,
        top: impl FnOnce(&mut Tx<'t, C>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.family.goes_on()?;
        let companion = self.companion().independent();
        transact_following(self.store, companion, class, top)
    }
}

/// Runs several top-level transactions side by side: [`Tx::cobegin`] outside of a transaction. How each has ended.
pub fn cobegin<'a, 't, T: Send, E: From<Error> + Send>(
    store: &'t Store,
    class: Class,
    transactions: impl IntoIterator<Item = Child<'a, 't, (), T, E>>,
) -> Vec<Result<T, E>> {
    run_all(transactions.into_iter().collect(), |transaction| transact(store, class, transaction))
}

/// Runs so many top-level transactions side by side: [`Tx::cofor`] outside of a transaction. How each has ended.
pub fn cofor<'t, T: Send, E: From<Error> + Send>(
    store: &'t Store,
    class: Class,
    count: usize,
    transaction: impl Fn(usize, &mut Tx<'t>) -> Result<T, E> + Sync,
) -> Vec<Result<T, E>> {
    Threads.outcomes(count, |number| transact(store, class, |tx| transaction(number, tx)))
}
