//! Objects of older types, brought to those that the program has now: by a function, or by the names of fields.
//!
//! By names, the new objects are put together beside the old ones, in many transactions:
//!
//! ```text
//!   root: old   ---   root `next`: new, in the making   ---   root: new, root `kept`: old (see `kept`)
//!       planned:          a crash, a refusal, a panic:
//!       nothing that      what is in the making is freed,
//!       would be lost     at once or by the next try
//! ```
//!
//! Invariant: what types alone decide is known before the first store, and all else before the one transaction in
//! which the new objects become the heap's.

use crate::error::Error;
use crate::kept::{NEXT, forget_in, free_beside};
use crate::objects::{
    ANCHOR, Anchor, KEPT, KEPT_TYPES, Objects, TYPES, new_anchor, put_types, read_types, run,
};
use crate::pieces::{DEEPEST, Pieces};
use crate::plan::{Plan, Planning, plan};
use crate::reach::verify;
use crate::rebuild::{Progressed, Rebuild};
use crate::show::reader::Reader;
use crate::show::record::Record;
use crate::value::guard::Mut;
use crate::value::layout::{self, Types};
use crate::value::recoverable::{Init, Recoverable};
use caliburn_engine::Store;
use caliburn_heap::{Heap, HeapError, Place};
use caliburn_os::simulated::{planted, unless};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::panic::{self, AssertUnwindSafe};

impl<R> Objects<R>
where
    R: Recoverable + Default + for<'id> Init<'id, R>,
{
    /// Opens the objects in the heap of that name, which may still have a root of type `Old`: then `change`
    /// fills the new root, which is its type's default, from the old one. It can move what need not change,
    /// however much that is: `new.accounts.set(old.accounts.take())`. What it leaves in the old root is freed.
    ///
    /// All of it is one transaction: a crash, an error or a panic leaves the old objects, and the next try
    /// begins anew. When it is done, this is [`Objects::open`].
    ///
    /// ```
    /// use caliburn::prelude::*;
    ///
    /// mod old {
    ///     #[derive(caliburn::Recoverable, Default)]
    ///     #[repr(C)]
    ///     pub struct Bank {
    ///         pub accounts: caliburn::PHashMap<caliburn::PString, i64>,
    ///         pub transfers: u32,
    ///     }
    /// }
    ///
    /// #[derive(Recoverable, Default)]
    /// #[repr(C)]
    /// struct Bank {
    ///     accounts: PHashMap<PString, i64>,
    ///     transfers: u64, // wider
    ///     name: PString,  // new
    /// }
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::options().create(true).open(dir.path().join("bank"))?;
    /// # let made = Objects::<old::Bank>::open(&store, "bank")?;
    /// # made.update(|mut bank| drop(bank.fields().accounts.insert("ann", 5)))?;
    /// # drop(made);
    /// let bank = Objects::<Bank>::migrate(&store, "bank", |mut old: Mut<'_, '_, old::Bank>, mut new| {
    ///     let (mut old, mut new) = (old.fields(), new.fields());
    ///     new.accounts.set(old.accounts.take());
    ///     *new.transfers = u64::from(*old.transfers);
    ///     new.name.set("our bank");
    /// })?;
    /// assert_eq!(bank.read().accounts["ann"], 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Changed`] when the objects are neither of the one type nor of the other; when the log or the
    /// disk is full; as [`Objects::open`].
    pub fn migrate<Old: Recoverable>(
        store: &Store,
        name: &str,
        change: impl for<'id> FnOnce(Mut<'_, 'id, Old>, Mut<'_, 'id, R>),
    ) -> Result<Objects<R>, Error> {
        let heap = Heap::open(store, name)?;
        let (Some(anchor), Some(types)) = (heap.root(ANCHOR), heap.root(TYPES)) else {
            drop(heap);
            return Objects::open(store, name);
        };
        let (found, old, new) = (read_types(&heap, types)?, Types::record::<Old>(), Types::record::<R>());
        if found == new {
            drop(heap);
            return Objects::open(store, name);
        }
        if found != old || heap.usable_len(anchor)? < size_of::<Anchor<Old>>() {
            let difference = layout::difference(&found, &old);
            return Err(Error::Changed { heap: name.to_owned(), difference });
        }
        let base = heap.region().as_ptr();
        base.expose_provenance();
        let hash_keys = heap.region().load(anchor.0 as usize);
        let before = base.wrapping_add(anchor.0 as usize).cast::<Anchor<Old>>();
        let record_before = base.wrapping_add(types.0 as usize);
        run::<(), Error>(&heap, hash_keys, &[], None, |tx| {
            let after = new_anchor::<R>(tx, hash_keys);
            // SAFETY: the old root is a value of the type that the record names, the new one was made before it
            // has a guard, and nobody else has the heap.
            unsafe {
                change(Mut::new(&raw mut (*before).root, tx), Mut::new(&raw mut (*after).root, tx));
                Old::free(&raw mut (*before).root, tx);
            }
            tx.free(before);
            tx.free(record_before);
            tx.set_root(ANCHOR, after);
            if !planted("migrated-types-not-recorded") {
                put_types(tx, &new);
            }
            Ok(())
        })?;
        drop(heap);
        Objects::open(store, name)
    }

    /// Opens the objects in the heap of that name, which may have been made with older types: then they are made
    /// again, field by field, by the names that fields and variants have. A field may stand elsewhere, be
    /// wider (numbers must fit where they go), or have another name now: `#[recoverable(was = "its old name")]`. One
    /// that is new has the default of the root's type, or what `#[recoverable(default)]` or
    /// `#[recoverable(default = EXPRESSION)]` says. Keys of slots and weak pointers lead where they led.
    ///
    /// **Nothing is lost in silence.** A field that nothing takes, at any depth, is an error that lists it
    /// ([`Error::WouldLose`]), unless its type declares it gone: `#[recoverable(gone("its old name"))]` on the
    /// struct or the variant. A removed variant of which there are values is an error too. Declared gone on the
    /// enum, its values are dropped: from collections, with the entry of a map, as `None` from options. Where a
    /// value must be, it is refused. [`Objects::plan_fields`] tells all of that beforehand, and changes nothing.
    ///
    /// `progressed` is told how many values were moved, and may end it. After an error, an interruption or a crash
    /// the old objects are there as they were, and the next try begins at the beginning. When it is done, this is
    /// [`Objects::open`]. **The old objects stay** until the program says that it is content
    /// ([`Objects::forget_old`]), so the heap needs room for both; until then [`back_out`](crate::back_out) goes
    /// back to them. The next migration is refused while they are there.
    ///
    /// ```
    /// use caliburn::prelude::*;
    /// use std::ops::ControlFlow;
    ///
    /// mod old {
    ///     #[derive(caliburn::Recoverable, Default)]
    ///     #[repr(C)]
    ///     pub struct Bank {
    ///         pub accounts: caliburn::PHashMap<caliburn::PString, Account>,
    ///     }
    ///     #[derive(caliburn::Recoverable)]
    ///     #[repr(C)]
    ///     pub struct Account {
    ///         pub money: i32,
    ///     }
    /// }
    ///
    /// #[derive(Recoverable, Default)]
    /// #[repr(C)]
    /// struct Bank {
    ///     accounts: PBTreeMap<PString, Account>, // sorted now
    ///     name: PString,                         // new
    /// }
    /// #[derive(Recoverable)]
    /// #[repr(C)]
    /// struct Account {
    ///     #[recoverable(was = "money")]
    ///     balance: i64, // wider, and of another name
    ///     #[recoverable(default = 1)]
    ///     grade: u8,
    /// }
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::options().create(true).open(dir.path().join("bank"))?;
    /// # let made = Objects::<old::Bank>::open(&store, "bank")?;
    /// # made.update(|mut bank| drop(bank.fields().accounts.insert("ann", old::Account { money: 5 })))?;
    /// # drop(made);
    /// let bank = Objects::<Bank>::migrate_fields(&store, "bank", |_| ControlFlow::Continue(()))?;
    /// assert_eq!(bank.read().accounts["ann"].balance, 5);
    /// assert_eq!(bank.read().accounts["ann"].grade, 1);
    /// bank.forget_old()?; // we are content
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldLose`], [`Error::Kept`]; [`Error::NotMade`] when a value cannot be made of what there is;
    /// [`Error::Interrupted`]; when the log or the disk is full; as [`Objects::open`].
    pub fn migrate_fields(
        store: &Store,
        name: &str,
        mut progressed: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Objects<R>, Error> {
        let heap = Heap::open(store, name)?;
        if let Some((record, new, planning)) = Self::planned(&heap)? {
            // Nothing was stored so far.
            planning.plan.accept(&heap)?;
            if heap.root(KEPT).is_some() {
                return Err(Error::Kept { heap: name.to_owned() });
            }
            free_beside(&heap)?;
            let moving = || move_fields::<R>(&heap, (&record, &planning), &new, &mut progressed);
            let moved = panic::catch_unwind(AssertUnwindSafe(moving));
            if !matches!(moved, Ok(Ok(()))) && !planted("given-up-objects-stay") {
                // If that fails as well, the next try does it.
                let _ = free_beside(&heap);
            }
            moved.unwrap_or_else(|payload| panic::resume_unwind(payload))?;
        } else {
            free_beside(&heap)?;
        }
        drop(heap);
        Objects::open(store, name)
    }

    /// What [`Objects::migrate_fields`] would do: which fields are moved where, dropped, and made by default, and
    /// which would be lost, so that it is refused. Nothing is changed. Without parts where there is nothing to do.
    ///
    /// What values alone decide, as whether a number fits, is found when they are made.
    ///
    /// # Errors
    /// When the store has no such heap; [`Error::NotTyped`] when the heap is not what its record says; as
    /// [`Heap::open`].
    pub fn plan_fields(store: &Store, name: &str) -> Result<Plan, Error> {
        // An opening would make one.
        store.segment(name).map_err(HeapError::from)?;
        let heap = Heap::open(store, name)?;
        Ok(Self::planned(&heap)?.map(|(_, _, planning)| planning.plan).unwrap_or_default())
    }

    /// The record of the store's types and the text of the program's, if they differ, and what is to be done.
    fn planned(heap: &Heap) -> Result<Option<(Record, String, Planning)>, Error> {
        let Some((anchor, types)) = roots(heap) else { return Ok(None) };
        let bad = |why: String| Error::NotTyped { heap: heap.name().to_owned(), why };
        let (found, (types, new)) = (read_types(heap, types)?, Types::of::<R>());
        if found == new {
            return Ok(None);
        }
        let record = Record::parse(&found).map_err(bad)?;
        let planning = plan(heap, anchor, &record, (&types, &Record::parse(&new).map_err(bad)?))?;
        Ok(Some((record, new, planning)))
    }
}

/// Makes the new objects, and lets them take the place of the old ones, which are kept.
fn move_fields<R>(
    heap: &Heap,
    (old, planning): (&Record, &Planning),
    new: &str,
    progressed: &mut Progressed<'_>,
) -> Result<(), Error>
where
    R: Recoverable + Default + for<'id> Init<'id, R>,
{
    let bad = |why: String| Error::NotTyped { heap: heap.name().to_owned(), why };
    let (anchor, types) = roots(heap).expect("looked at before");
    let hash_keys: [u64; 2] = heap.region().load(anchor.0 as usize);
    run::<(), Error>(heap, hash_keys, &[], None, |tx| {
        tx.set_root(NEXT, new_anchor::<R>(tx, hash_keys));
        Ok(())
    })?;
    let next = heap.root(NEXT).expect("it was just named");
    // SAFETY: the anchor was made above, and nobody else has the heap.
    let mut rebuild = unsafe { Rebuild::<R>::new(heap, next, progressed) };
    let reader = Reader { bytes: heap.region(), record: old, left: Cell::new(u64::MAX), owns: &|_| Ok(()) };
    let (root, left_out) = (old.root_at(anchor.0).map_err(bad)?, planning.left_out());
    let mut failed = None;
    let taken_apart = Pieces::each(&reader, root, DEEPEST, &left_out, &mut |path, piece| {
        rebuild.put(path, piece).map_err(|error| {
            failed = Some(error);
            String::new()
        })
    });
    match (failed, taken_apart) {
        (Some(error), _) => return Err(error),
        (None, taken_apart) => taken_apart.map_err(bad)?,
    }
    rebuild.finish()?;
    // All that can be wrong is found before the new objects are the heap's.
    if unless("new-objects-unverified", true) {
        verify(heap, next, Record::parse(new).map_err(bad)?)?;
    }
    run::<(), Error>(heap, hash_keys, &[], None, |tx| {
        tx.set_root(KEPT, tx.at::<u8>(anchor));
        tx.set_root(KEPT_TYPES, tx.at::<u8>(types));
        tx.set_root(ANCHOR, tx.at::<u8>(next));
        tx.remove_root(NEXT);
        put_types(tx, new);
        Ok(())
    })?;
    if planted("old-objects-not-kept") {
        forget_in(heap)?;
    }
    Ok(())
}

/// The root of typed objects, and the record of their types.
fn roots(heap: &Heap) -> Option<(Place, Place)> {
    Some((heap.root(ANCHOR)?, heap.root(TYPES)?))
}
