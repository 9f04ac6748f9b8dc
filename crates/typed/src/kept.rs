//! The objects of older types that a migration by the names of fields has left: kept until the program says that it
//! is content with the new ones, or goes back.
//!
//! ```text
//!   migrated                forget_old                     forgotten
//!   root: new, kept: old -> root: new, in freeing: old --> root: new
//!                     \
//!                      `--> root: old, in freeing: new --> root: old
//!                           back_out                       backed out
//! ```
//!
//! Each arrow begins with one transaction, which decides. What is in freeing after a crash is freed by the next call
//! of any of these, or of a migration.

use crate::error::Error;
use crate::objects::{ANCHOR, KEPT, KEPT_TYPES, Objects, TYPES, read_types, run};
use crate::reach::{batches, unreached, verify};
use crate::show::record::Record;
use crate::value::recoverable::Recoverable;
use crate::value::tx::Tx;
use caliburn_engine::Store;
use caliburn_heap::{Heap, Place};
use caliburn_os::simulated::unless;

/// Names of what is to be freed: a root in the making that was given up, and one that is used no more.
pub(crate) const NEXT: &str = "caliburn.next";
pub(crate) const OLD: &str = "caliburn.old";

/// Runs a transaction that is committed when the closure returns.
type Transact<'t> = dyn FnMut(&dyn Fn(Tx<'_>)) -> Result<(), Error> + 't;

/// Transactions on a heap that nobody else has.
fn on(heap: &Heap) -> Box<Transact<'_>> {
    Box::new(move |body| {
        run::<(), Error>(heap, [0; 2], &[], None, |tx| {
            body(tx);
            Ok(())
        })?;
        Ok(())
    })
}

/// Frees what a try that was cut short has left beside the root.
pub(crate) fn free_beside(heap: &Heap) -> Result<(), Error> {
    free_by(heap, &mut *on(heap))
}

fn free_by(heap: &Heap, transact: &mut Transact<'_>) -> Result<(), Error> {
    let beside = || [NEXT, OLD].into_iter().filter_map(|name| Some((name, heap.root(name)?)));
    if beside().next().is_none() {
        return Ok(());
    }
    // All that they lead to, and then themselves.
    let found = unreached(heap)?;
    batches(&found).try_for_each(|batch| transact(&|tx| batch.apply(tx)))?;
    let beside: Vec<_> = beside().collect();
    transact(&|tx| {
        for (name, place) in &beside {
            tx.remove_root(name);
            tx.free(tx.at::<u8>(*place));
        }
    })
}

/// The old objects that are kept, and the record of their types.
fn kept(heap: &Heap) -> Result<Option<(Place, Place)>, Error> {
    match (heap.root(KEPT), heap.root(KEPT_TYPES)) {
        (None, None) => Ok(None),
        (Some(anchor), Some(types)) => Ok(Some((anchor, types))),
        _ => {
            let why = "one of the two roots of the objects that it keeps is missing".to_owned();
            Err(Error::NotTyped { heap: heap.name().to_owned(), why })
        }
    }
}

fn forget(heap: &Heap, transact: &mut Transact<'_>) -> Result<bool, Error> {
    free_by(heap, transact)?;
    let Some((anchor, types)) = kept(heap)? else { return Ok(false) };
    transact(&|tx| {
        tx.set_root(OLD, tx.at::<u8>(anchor));
        tx.remove_root(KEPT);
        tx.remove_root(KEPT_TYPES);
        tx.free(tx.at::<u8>(types));
    })?;
    free_by(heap, transact)?;
    Ok(true)
}

/// Frees the objects that a heap keeps from before its last migration by the names of fields. From here on there is
/// no way back to them. Whether there were some. [`Objects::forget_old`] does it while the heap is open.
///
/// # Errors
/// When the log or the disk is full: what was begun is ended by the next call; as [`Heap::open`].
pub fn forget_old(store: &Store, name: &str) -> Result<bool, Error> {
    forget_in(&Heap::open(store, name)?)
}

/// The same in a heap that nobody else has.
pub(crate) fn forget_in(heap: &Heap) -> Result<bool, Error> {
    forget(heap, &mut *on(heap))
}

/// Goes back to the objects that a heap keeps from before its last migration by the names of fields, with the types
/// that they had, and frees the new ones: what was changed since is lost. Whether there were some.
///
/// # Errors
/// [`Error::NotTyped`] when the old objects are damaged, as by an older program that has freed what it does not
/// know: the new ones stay. When the log or the disk is full; as [`Heap::open`].
pub fn back_out(store: &Store, name: &str) -> Result<bool, Error> {
    let heap = Heap::open(store, name)?;
    free_beside(&heap)?;
    let Some((anchor, types)) = kept(&heap)? else { return Ok(false) };
    let bad = |why: String| Error::NotTyped { heap: name.to_owned(), why };
    if unless("backed-out-unverified", true) {
        verify(&heap, anchor, Record::parse(&read_types(&heap, types)?).map_err(bad)?)?;
    }
    let (new, record) = (heap.root(ANCHOR), heap.root(TYPES));
    on(&heap)(&|tx| {
        tx.set_root(ANCHOR, tx.at::<u8>(anchor));
        tx.set_root(TYPES, tx.at::<u8>(types));
        tx.remove_root(KEPT);
        tx.remove_root(KEPT_TYPES);
        if let Some(new) = new {
            tx.set_root(OLD, tx.at::<u8>(new));
        }
        if let Some(record) = record {
            tx.free(tx.at::<u8>(record));
        }
    })?;
    free_beside(&heap)?;
    Ok(true)
}

impl<R: Recoverable> Objects<R> {
    /// Says that the program is content with what [`Objects::migrate_fields`] has made: the objects from before are
    /// freed, and there is no way back to them. Whether there were some. Waits for its turn, in which it takes some
    /// transactions.
    ///
    /// # Panics
    /// As [`Objects::write`].
    ///
    /// # Errors
    /// As [`forget_old`].
    pub fn forget_old(&self) -> Result<bool, Error> {
        let mut writer = self.write();
        forget(&self.inner.heap, &mut |body| {
            writer.transact(|root| {
                body(root.tx());
                Ok(())
            })
        })
    }

    /// Whether the objects from before the last migration by the names of fields are still kept.
    pub fn keeps_old(&self) -> bool {
        self.inner.heap.root(KEPT).is_some()
    }
}
