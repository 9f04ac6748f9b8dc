//! A transaction of a family, and its children one after the other.
//!
//! ```text
//!   levels:   own level   child   child of the child
//!             |           |       |
//!   run:      declared .. ^ .. .. ^ .. ..          ^ savepoint
//! ```
//!
//! One [`Tx`] stands for all that are open of such a line of children: the innermost. The closure of a child has
//! it, and so nobody else.

use crate::error::{Error, Reason};
use crate::family::{Family, FamilyId, Status, Watch};
use crate::follow::Follow;
use caliburn_engine::zerocopy::{Immutable, IntoBytes};
use caliburn_engine::{Branch, Region, SavepointError, Store, Transaction};
use caliburn_os::simulated::planted;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// The identity of a transaction: Camelot's `THIS_TID`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId {
    /// Its family.
    pub family: FamilyId,
    /// Its number there; that of the top is 0.
    pub number: u64,
}

/// A place in a transaction that it can be rolled back to, without a child: [`Tx::savepoint`].
#[derive(Debug, Clone, Copy)]
pub struct Savepoint {
    inner: caliburn_engine::Savepoint,
    family: FamilyId,
    /// The transaction whose it is: the serial of its level.
    level: u64,
}

/// A transaction of a family: the top, or a child. It can be used while it has no child that is open.
#[derive(Debug)]
pub struct Tx<'t, C: Follow<'t> = ()> {
    pub(crate) store: &'t Store,
    pub(crate) family: Arc<Family>,
    pub(crate) part: Part<'t>,
    /// Its own level, then a child in each.
    levels: Vec<Level<C>>,
    /// Levels that there ever were.
    serial: u64,
}

/// What of the store's transaction it is.
#[derive(Debug)]
pub(crate) enum Part<'t> {
    Top(Transaction<'t>),
    Branch(Branch<'t>),
}

impl<'t> Part<'t> {
    #[inline(always)]
    pub fn inner(&mut self) -> &mut Transaction<'t> {
        match self {
            Part::Top(tx) => tx,
            Part::Branch(branch) => branch,
        }
    }
}

#[derive(Debug)]
struct Level<C> {
    /// Where it began; none of the first.
    begun: Option<caliburn_engine::Savepoint>,
    serial: u64,
    number: Option<u64>,
    companion: Option<C>,
}

impl<'t, C: Follow<'t>> Tx<'t, C> {
    pub(crate) fn new(
        store: &'t Store,
        family: Arc<Family>,
        part: Part<'t>,
        number: Option<u64>,
        companion: C,
    ) -> Tx<'t, C> {
        let own = Level { begun: None, serial: 0, number, companion: Some(companion) };
        Tx { store, family, part, levels: vec![own], serial: 0 }
    }

    /// The store.
    pub fn store_of(&self) -> &'t Store {
        self.store
    }

    /// Its identity.
    pub fn id(&mut self) -> TxId {
        let family = &self.family;
        let level = self.levels.last_mut().expect("there is its own");
        TxId { family: family.id, number: *level.number.get_or_insert_with(|| family.number()) }
    }

    /// Tells how it is with the family, then and later.
    pub fn watch(&self) -> Watch {
        Watch(self.family.clone())
    }

    /// How many of its ancestors are open in this thread: a parallel child begins at none.
    pub fn depth(&self) -> usize {
        self.levels.len() - 1
    }

    /// Declares that bytes of a region are about to be changed:
    /// [`Transaction::set_range`](caliburn_engine::Transaction::set_range).
    ///
    /// # Errors
    /// [`Error::Range`]; when the family is aborted.
    #[inline]
    pub fn set_range(&mut self, region: &'t Region, range: Range<usize>) -> Result<(), Error> {
        self.family.goes_on()?;
        Ok(self.part.inner().set_range(region, range)?)
    }

    /// Declares and stores bytes.
    ///
    /// # Errors
    /// As [`Tx::set_range`].
    #[inline]
    pub fn write(&mut self, region: &'t Region, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.family.goes_on()?;
        Ok(self.part.inner().write(region, offset, bytes)?)
    }

    /// Declares and stores a value.
    ///
    /// # Errors
    /// As [`Tx::set_range`].
    #[inline]
    pub fn store<T: IntoBytes + Immutable>(
        &mut self,
        region: &'t Region,
        offset: usize,
        value: &T,
    ) -> Result<(), Error> {
        self.write(region, offset, value.as_bytes())
    }

    /// The store's transaction, for what else it can do, such as declaring by address. It is not to be rolled
    /// back, exchanged, or to have branches beyond the end of a child.
    ///
    /// # Errors
    /// When the family is aborted.
    pub fn inner(&mut self) -> Result<&mut Transaction<'t>, Error> {
        self.family.goes_on()?;
        Ok(self.part.inner())
    }

    /// Runs a child: it commits to this transaction when the closure returns `Ok`, and is undone when it returns
    /// `Err` or panics: what it has changed, and nothing else, is as it was when it began. The closure has this
    /// transaction as the child; the parent can't be used meanwhile.
    ///
    /// # Errors
    /// What the closure returns; when the child cannot begin, or may not commit.
    pub fn nest<T, E: From<Error>>(&mut self, child: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E> {
        let open = Open::begin(self)?;
        let value = child(open.tx)?;
        open.commit()?;
        Ok(value)
    }

    /// The error that aborts the innermost transaction: for its closure to return (`Camlib_AbortTransaction`).
    pub fn abort(&self, reason: impl Into<Reason>) -> Error {
        Error::Aborted(reason.into())
    }

    /// Aborts the whole family, from anywhere in it (`Camlib_AbortTopLevelTransaction`). Whoever is in it learns
    /// it at the next call, also those who ignore the error that this returns; none of it commits.
    pub fn abort_family(&self, reason: impl Into<Reason>) -> Error {
        self.family.abort(reason.into())
    }

    /// Marks a place that this transaction can be rolled back to, without a child.
    ///
    /// # Errors
    /// When the family is aborted.
    pub fn savepoint(&mut self) -> Result<Savepoint, Error> {
        self.family.goes_on()?;
        let (family, level) = (self.family.id, self.level());
        Ok(Savepoint { inner: self.part.inner().savepoint()?, family, level })
    }

    /// Undoes what was changed since a savepoint, which stays. What follows the transaction is not rolled back: it
    /// keeps its locks, and what it has put off. A child that aborts takes its own with it.
    ///
    /// # Errors
    /// When the savepoint is of another transaction, such as the parent, or gone.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<(), Error> {
        self.own(savepoint)?;
        Ok(self.part.inner().rollback_to(&savepoint.inner)?)
    }

    /// Forgets a savepoint, and those that came after it.
    ///
    /// # Errors
    /// As [`Tx::rollback_to`].
    pub fn release(&mut self, savepoint: &Savepoint) -> Result<(), Error> {
        self.own(savepoint)?;
        Ok(self.part.inner().release(&savepoint.inner)?)
    }

    fn own(&self, savepoint: &Savepoint) -> Result<(), Error> {
        self.family.goes_on()?;
        let own = savepoint.level == self.level() || planted("savepoints-of-the-parent");
        // In another store, another family's may look like its own.
        if own && savepoint.family == self.family.id { Ok(()) } else { Err(SavepointError::Gone.into()) }
    }

    fn level(&self) -> u64 {
        self.levels.last().expect("there is its own").serial
    }

    /// What follows this transaction. Made from its parent's when it is asked for first.
    pub fn companion(&mut self) -> &mut C {
        let has = |level: &Level<C>| level.companion.is_some();
        let first = self.levels.iter().rposition(has).expect("that of its own is there");
        for at in first + 1..self.levels.len() {
            let child = self.levels[at - 1].companion.as_mut().expect("it was made").child();
            self.levels[at].companion = Some(child);
        }
        self.levels.last_mut().and_then(|level| level.companion.as_mut()).expect("it was made")
    }

    /// The store's transaction, and what follows this one.
    pub(crate) fn halves(&mut self) -> (&mut Transaction<'t>, &mut C) {
        self.companion();
        let companion = self.levels.last_mut().and_then(|level| level.companion.as_mut());
        (self.part.inner(), companion.expect("it was made"))
    }

    /// Whether the companion lets it commit, if there is one.
    fn vote(&mut self) -> Result<(), Error> {
        self.family.goes_on()?;
        let level = self.levels.last_mut().expect("there is its own");
        level.companion.as_mut().map_or(Ok(()), C::vote)?;
        Ok(())
    }

    /// Undoes all of it; then nothing follows it any more.
    pub(crate) fn undo(self) {
        let Tx { part, levels, family, .. } = self;
        let is_top = matches!(part, Part::Top(_));
        // Bytes first: who gets a lock of it sees what was before.
        let companion = levels.into_iter().next().and_then(|level| level.companion);
        if planted("locks-released-before-undo") {
            companion.into_iter().for_each(C::abort);
            drop(part);
            return;
        }
        drop(part);
        if is_top {
            family.end(Status::Aborted);
        }
        companion.into_iter().for_each(C::abort);
    }
}

/// An open child. Dropped, it is undone.
struct Open<'a, 't, C: Follow<'t>> {
    tx: &'a mut Tx<'t, C>,
    ended: bool,
}

impl<'a, 't, C: Follow<'t>> Open<'a, 't, C> {
    fn begin(tx: &'a mut Tx<'t, C>) -> Result<Open<'a, 't, C>, Error> {
        tx.family.goes_on()?;
        let begun = tx.part.inner().savepoint()?;
        tx.serial += 1;
        tx.levels.push(Level { begun: Some(begun), serial: tx.serial, number: None, companion: None });
        Ok(Open { tx, ended: false })
    }

    fn commit(mut self) -> Result<(), Error> {
        self.tx.vote()?;
        self.end(true);
        Ok(())
    }

    /// Takes the level off.
    fn end(&mut self, commits: bool) {
        self.ended = true;
        let Tx { part, levels, .. } = &mut *self.tx;
        let Level { begun, companion, .. } = levels.pop().expect("the child's");
        let begun = begun.expect("it is not the first");
        let tx = part.inner();
        let commits = commits || planted("child-not-undone");
        if !commits {
            tx.rollback_to(&begun).expect("the savepoint is there, and children have ended");
        }
        tx.release(&begun).expect("the savepoint is there");
        let Some(companion) = companion else { return };
        match commits {
            true => {
                let parent = levels.last_mut().and_then(|level| level.companion.as_mut());
                companion.commit(parent.expect("a parent has one before its child"));
            }
            false => companion.abort(),
        }
    }
}

impl<'t, C: Follow<'t>> Drop for Open<'_, 't, C> {
    fn drop(&mut self) {
        if !self.ended {
            self.end(false);
        }
    }
}

/// A transaction that runs. Dropped, it is undone, and what follows it is told.
pub(crate) struct Running<'t, C: Follow<'t>>(pub Option<Tx<'t, C>>);

impl<'t, C: Follow<'t>> Running<'t, C> {
    pub fn tx(&mut self) -> &mut Tx<'t, C> {
        self.0.as_mut().expect("it runs")
    }

    /// Asks whether it may commit, and takes it apart if it may.
    pub fn ending(mut self) -> Result<(Part<'t>, Following<'t, C>, Arc<Family>), Error> {
        debug_assert_eq!(self.tx().levels.len(), 1, "a child ends before its parent");
        self.tx().vote()?;
        let Tx { part, levels, family, .. } = self.0.take().expect("it runs");
        let own = levels.into_iter().next().and_then(|level| level.companion);
        Ok((part, Following::new(own.expect("that of its own is there")), family))
    }
}

impl<'t, C: Follow<'t>> Drop for Running<'t, C> {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Tx::undo);
    }
}

/// What follows a transaction that is about to end. Dropped, as when something panics, it is told that the
/// transaction was undone.
pub(crate) struct Following<'t, C: Follow<'t>>(Option<C>, PhantomData<&'t ()>);

impl<'t, C: Follow<'t>> Following<'t, C> {
    pub fn new(companion: C) -> Following<'t, C> {
        Following(Some(companion), PhantomData)
    }

    pub fn companion(&mut self) -> &mut C {
        self.0.as_mut().expect("it has not ended")
    }

    /// The transaction has ended otherwise.
    pub fn take(mut self) -> C {
        self.0.take().expect("it has not ended")
    }
}

impl<'t, C: Follow<'t>> Drop for Following<'t, C> {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(C::abort);
    }
}
