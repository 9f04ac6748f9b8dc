//! Top-level transactions: a family each.
//!
//! ```text
//!   1 a transaction of the store begins            3 what follows it may refuse
//!   2 the closure, with children                   4 what was put off is done, and it commits in a failure class
//! ```

use crate::error::Error;
use crate::family::Family;
use crate::follow::Follow;
use crate::parallel::{Child, Crew, Threads, run_all};
use crate::transaction::{Part, Running, Tx};
use caliburn_engine::{Class, CommitError, Mode, Store, Transaction};
use std::sync::Arc;

/// Runs a top-level transaction (`BEGIN_TRANSACTION`): commits in a failure class when the closure returns `Ok`, is
/// undone when it returns `Err` or panics.
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
    let (part, mut following) = running.ending()?;
    let Part::Top(tx) = part else { unreachable!("it began as the top") };
    // 4
    commit(tx, following.companion(), class)?;
    following.take().end();
    Ok(value)
}

fn commit<'t, C: Follow<'t>>(mut tx: Transaction<'t>, companion: &mut C, class: Class) -> Result<(), Error> {
    companion.apply(&mut tx)?;
    if class == Class::Process {
        tx.commit(class)?;
        companion.committed();
        return Ok(());
    }
    let ticket = tx.commit_ticket(class)?;
    companion.committed();
    Ok(ticket.wait().map_err(CommitError::from)?)
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
