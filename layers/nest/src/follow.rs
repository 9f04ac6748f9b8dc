//! What goes with a family from level to level: its locks, caches of its own, what it has put off.

use crate::error::Error;
use caliburn_engine::Transaction;

/// A companion of a transaction. Each transaction that asks for it ([`Tx::companion`](crate::Tx::companion)) has
/// one, made from its parent's; children that do not ask have none.
pub trait Follow<'t>: Sized + Send {
    /// A child begins.
    fn child(&mut self) -> Self;

    /// A top-level transaction begins that is independent of this one, which waits until it has ended.
    fn independent(&mut self) -> Self;

    /// Whether the transaction may commit: asked before anything is done about it.
    ///
    /// # Errors
    /// When it may not; it is aborted then.
    fn vote(&mut self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }

    /// The child has committed: what it has is its parent's.
    fn commit(self, parent: &mut Self);

    /// The top is about to commit: what was put off until then is done now, in its transaction. If it does not
    /// commit after all, it is aborted.
    ///
    /// # Errors
    /// When it may not commit.
    fn apply(&mut self, tx: &mut Transaction<'t>) -> Result<(), Error> {
        _ = tx;
        Ok(())
    }

    /// The top has committed for all who are in this process, and in front of all that commit from now on. As
    /// durable as was asked it is later.
    fn committed(&mut self) {}

    /// The top has committed, and is as durable as was asked.
    fn end(self);

    /// The transaction was undone: every byte is as it was before. Or the store has failed while it committed, and
    /// nobody knows whether it did before the store is opened again.
    fn abort(self);
}

/// No companion.
impl Follow<'_> for () {
    fn child(&mut self) {}
    fn independent(&mut self) {}
    fn commit(self, (): &mut ()) {}
    fn end(self) {}
    fn abort(self) {}
}

/// Two companions. What is done with both is done with the first one first: an owner of locks goes behind what
/// relies on them, and [`Hooks`](crate::Hooks) last of all.
impl<'t, A: Follow<'t>, B: Follow<'t>> Follow<'t> for (A, B) {
    fn child(&mut self) -> Self {
        (self.0.child(), self.1.child())
    }

    fn independent(&mut self) -> Self {
        (self.0.independent(), self.1.independent())
    }

    fn vote(&mut self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.0.vote()?;
        self.1.vote()
    }

    fn commit(self, parent: &mut Self) {
        self.0.commit(&mut parent.0);
        self.1.commit(&mut parent.1);
    }

    fn apply(&mut self, tx: &mut Transaction<'t>) -> Result<(), Error> {
        self.0.apply(tx)?;
        self.1.apply(tx)
    }

    fn committed(&mut self) {
        self.0.committed();
        self.1.committed();
    }

    fn end(self) {
        self.0.end();
        self.1.end();
    }

    fn abort(self) {
        self.0.abort();
        self.1.abort();
    }
}
