//! Transactions: what they read and change is locked, and stays so until they end.

use crate::cell::{Head, Ptr, VALUE, Value};
use crate::cells::Cells;
use crate::error::Error;
use caliburn_heap::{HeapTransaction, Place};
use caliburn_lock::{LockError, Locks, Name, Owner, Standard};
use caliburn_os::simulated::{planted, unless};
use std::ops::{Deref, DerefMut};

/// A transaction on cells, as [`Cells::transact`] lends it. All of its reads and writes are as if nobody else were
/// there.
pub struct Tx<'c> {
    cells: &'c Cells,
    // Undone before its locks are given up: in this order.
    heap: HeapTransaction<'c>,
    /// Of the transaction, and of each child that is open.
    owners: Vec<Owner>,
    /// A try, from 1 on.
    tries: u64,
    /// Why it, or a child, was to abort for others, if it was.
    refused: Option<LockError>,
    /// Why what was changed could not be stored.
    failed: Option<Error>,
}

impl std::fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tx").field("heap", &self.heap).field("tries", &self.tries).finish_non_exhaustive()
    }
}

impl<'c> Tx<'c> {
    pub(crate) fn new(cells: &'c Cells, heap: HeapTransaction<'c>, owner: Owner, tries: u64) -> Tx<'c> {
        Tx { cells, heap, owners: vec![owner], tries, refused: None, failed: None }
    }

    /// Its parts, when it has ended: what is to be committed, who has the locks, whether it was to abort for
    /// others, and why it cannot commit.
    pub(crate) fn into_parts(mut self) -> (HeapTransaction<'c>, Owner, Option<LockError>, Option<Error>) {
        let owner = self.owners.pop().expect("its own is there");
        let refused = self.refused.or_else(|| owner.goes_on().err());
        (self.heap, owner, refused, self.failed)
    }

    /// Which try of the closure this is, from 1 on: it is run again when it was in a deadlock.
    pub fn tries(&self) -> u64 {
        self.tries
    }

    fn lock<K: Name>(&mut self, locks: &Locks<K, Standard>, name: K, mode: Standard) -> Result<(), Error> {
        let owner = self.owners.last_mut().expect("its own is there");
        locks.lock(owner, name, mode).map_err(|error| {
            self.refused.get_or_insert_with(|| error.clone());
            error.into()
        })
    }

    /// The value of a cell. Nobody changes it before the transaction ends.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Type`]; [`Error::Lock`] when the transaction was in a deadlock: to be passed on.
    pub fn read<T: Value>(&mut self, cell: &Ptr<T>) -> Result<T, Error> {
        if !planted("cells-read-unlocked") {
            self.lock(&self.cells.locks, cell.place().0, Standard::Shared)?;
        }
        self.cells.load(cell)
    }

    /// The value of a cell, to be changed: what it is when the guard goes is stored. Nobody else reads or changes
    /// it before the transaction ends. Who has read a cell and then changes it may find another who does the same:
    /// one of the two is tried again. Who asks to write at once does not.
    ///
    /// # Errors
    /// As [`Tx::read`]; when the log or the memory is full.
    pub fn write<T: Value>(&mut self, cell: &Ptr<T>) -> Result<Writing<'_, 'c, T>, Error> {
        self.lock(&self.cells.locks, cell.place().0, Standard::Exclusive)?;
        let value = self.cells.load(cell)?;
        let at = cell.place().0 as usize + VALUE;
        self.heap.set_range(self.cells.heap.region(), at..at + size_of::<T>())?;
        Ok(Writing { tx: self, place: cell.place(), value })
    }

    /// Makes a cell. It is the transaction's own until it is reached from another.
    ///
    /// # Errors
    /// When the heap, the log or the memory is full.
    pub fn insert<T: Value>(&mut self, value: T) -> Result<Ptr<T>, Error> {
        let place = self.heap.allocate(VALUE + size_of::<T>())?;
        let filled = self.fill(place, &value);
        if filled.is_err() {
            self.heap.free(place)?;
        }
        Ok(Ptr::new(place, filled?))
    }

    /// Makes a cell of an object. Its number.
    fn fill<T: Value>(&mut self, place: Place, value: &T) -> Result<u64, Error> {
        // Its pointer may be told to others before this is committed. Whoever has one of an older cell there only
        // looks.
        if unless("new-cells-unlocked", true) {
            self.lock(&self.cells.locks, place.0, Standard::Exclusive)?;
        }
        let number = self.cells.numbers.next();
        self.heap.store(place, 0, &Head { number, len: size_of::<T>() as u64 })?;
        self.heap.write(place, VALUE, value.as_bytes())?;
        Ok(number)
    }

    /// Removes a cell. Its value; pointers to it lead nowhere from then on.
    ///
    /// # Errors
    /// As [`Tx::write`].
    pub fn remove<T: Value>(&mut self, cell: &Ptr<T>) -> Result<T, Error> {
        self.lock(&self.cells.locks, cell.place().0, Standard::Exclusive)?;
        let value = self.cells.load(cell)?;
        self.heap.store(cell.place(), 0, &Head { number: 0, len: 0 })?;
        self.heap.free(cell.place())?;
        Ok(value)
    }

    /// The cell of a name, if it has one.
    ///
    /// # Errors
    /// As [`Tx::read`].
    pub fn root<T: Value>(&mut self, name: &str) -> Result<Option<Ptr<T>>, Error> {
        self.lock(&self.cells.names, name.to_owned(), Standard::Shared)?;
        self.cells.named(self.heap.root(name))
    }

    /// Names a cell, or takes the name away.
    ///
    /// # Errors
    /// When a name is empty, or longer than 48 bytes; as [`Tx::read`].
    pub fn set_root<T: Value>(&mut self, name: &str, cell: Option<&Ptr<T>>) -> Result<(), Error> {
        self.lock(&self.cells.names, name.to_owned(), Standard::Exclusive)?;
        match (self.heap.root(name), cell) {
            (Some(place), Some(cell)) => self.heap.store(place, VALUE, cell)?,
            (None, Some(cell)) => {
                let place = self.insert(*cell)?.place();
                if let Err(error) = self.heap.set_root(name, Some(place)) {
                    self.heap.free(place)?;
                    return Err(error.into());
                }
            }
            (Some(place), None) => {
                self.heap.set_root(name, None)?;
                self.heap.free(place)?;
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// The error that aborts the transaction, or the child whose closure returns it.
    pub fn abort(&self, reason: impl Into<String>) -> Error {
        Error::Aborted(reason.into())
    }

    /// Runs a child: it commits to this transaction when the closure returns `Ok`; when that returns an error or
    /// panics, all that it has changed is undone. What it has locked stays locked: this transaction may know what
    /// the child has read.
    ///
    /// # Errors
    /// The closure's. If the child was in a deadlock, all of the transaction is run again when it ends, whatever
    /// it makes of that.
    pub fn nest<V, E: From<Error>>(&mut self, child: impl FnOnce(&mut Self) -> Result<V, E>) -> Result<V, E> {
        let open = Open::begin(self)?;
        let value = child(open.tx)?;
        open.commit()?;
        Ok(value)
    }
}

/// An open child. Dropped, it is undone.
struct Open<'a, 'c> {
    tx: &'a mut Tx<'c>,
    begun: caliburn_heap::Savepoint,
    commits: bool,
    /// The parent's.
    failed: Option<Error>,
}

impl<'a, 'c> Open<'a, 'c> {
    fn begin(tx: &'a mut Tx<'c>) -> Result<Open<'a, 'c>, Error> {
        let begun = tx.heap.savepoint()?;
        let child = tx.owners.last().expect("its own is there").child();
        tx.owners.push(child);
        let failed = tx.failed.take();
        Ok(Open { tx, begun, commits: false, failed })
    }

    fn commit(mut self) -> Result<(), Error> {
        if let Some(failed) = self.tx.failed.take() {
            return Err(failed);
        }
        self.tx.owners.last().expect("the child's").goes_on()?;
        self.commits = true;
        Ok(())
    }
}

impl Drop for Open<'_, '_> {
    fn drop(&mut self) {
        let Tx { heap, owners, failed, refused, .. } = &mut *self.tx;
        let owner = owners.pop().expect("the child's");
        *failed = self.failed.take();
        if !self.commits {
            heap.rollback_to(&self.begun).expect("the savepoint is there, and there are no branches");
        }
        heap.release(&self.begun).expect("the savepoint is there");
        match owner.goes_on() {
            Ok(()) => owner.commit(),
            // Others wait for what it holds, and its parent may know what it has read: all is to abort.
            Err(error) => {
                refused.get_or_insert(error);
                owner.end();
            }
        }
    }
}

/// A cell's value, which is stored when this goes: [`Tx::write`].
#[derive(Debug)]
pub struct Writing<'a, 'c, T: Value> {
    tx: &'a mut Tx<'c>,
    place: Place,
    value: T,
}

impl<T: Value> Deref for Writing<'_, '_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Value> DerefMut for Writing<'_, '_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: Value> Drop for Writing<'_, '_, T> {
    fn drop(&mut self) {
        if let Err(error) = self.tx.heap.write(self.place, VALUE, self.value.as_bytes()) {
            self.tx.failed.get_or_insert(error.into());
        }
    }
}

/// A transaction that only reads, as [`Cells::read`] lends it.
#[derive(Debug)]
pub struct Reader<'c> {
    cells: &'c Cells,
    owner: Owner,
}

impl<'c> Reader<'c> {
    pub(crate) fn new(cells: &'c Cells, owner: Owner) -> Reader<'c> {
        Reader { cells, owner }
    }

    /// The value of a cell: [`Tx::read`].
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Type`].
    pub fn read<T: Value>(&mut self, cell: &Ptr<T>) -> Result<T, Error> {
        self.cells.locks.lock(&mut self.owner, cell.place().0, Standard::Shared)?;
        self.cells.load(cell)
    }

    /// The cell of a name, if it has one.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn root<T: Value>(&mut self, name: &str) -> Result<Option<Ptr<T>>, Error> {
        self.cells.names.lock(&mut self.owner, name.to_owned(), Standard::Shared)?;
        self.cells.named(self.cells.heap.root(name))
    }
}
