//! Objects of older types, brought to those that the program has now: by a function, or by the names of fields.
//!
//! By names, the new objects are put together beside the old ones, in many transactions:
//!
//! ```text
//!   root: old     --- root `next`: new, in the making ---   root: new, root `old`   ---   root: new
//!         a crash: what is in the making is freed,          a crash: the old objects are freed
//!         and made anew, by the next try                    by the next try
//! ```

use crate::error::Error;
use crate::objects::{ANCHOR, Anchor, Objects, TYPES, new_anchor, put_types, read_types, run};
use crate::pieces::{DEEPEST, Pieces};
use crate::reach::reclaim;
use crate::rebuild::{Progressed, Rebuild};
use crate::show::reader::Reader;
use crate::show::record::Record;
use crate::value::guard::Mut;
use crate::value::layout::{self, Types};
use crate::value::recoverable::{Init, Recoverable};
use caliburn_engine::Store;
use caliburn_heap::Heap;
use caliburn_os::simulated::planted;
use std::cell::Cell;
use std::ops::ControlFlow;

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
    /// anew, field by field, by the names that fields and variants have. A field may be gone, stand elsewhere, be
    /// wider (numbers must fit where they go), or have another name now: `#[recoverable(was = "its old name")]`. One
    /// that is new has the default of the root's type, or what `#[recoverable(default)]` or
    /// `#[recoverable(default = EXPRESSION)]` says. Keys of slots and weak pointers lead where they led.
    ///
    /// The old objects stay until the new ones are complete, so the heap needs room for both. `progressed` is told
    /// how many values were moved, and may end it. After an error, an interruption or a crash the old objects are
    /// there as they were; the next try begins anew. When it is done, this is [`Objects::open`].
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
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotMade`] when a value cannot be made of what there is; [`Error::Interrupted`]; when the log or the
    /// disk is full; as [`Objects::open`].
    pub fn migrate_fields(
        store: &Store,
        name: &str,
        mut progressed: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Objects<R>, Error> {
        let heap = Heap::open(store, name)?;
        if heap.root(ANCHOR).is_some() && heap.root(TYPES).is_some() {
            free_beside(&heap)?;
            let types = heap.root(TYPES).expect("it was there");
            let (found, new) = (read_types(&heap, types)?, Types::record::<R>());
            if found != new {
                move_fields::<R>(&heap, &found, &new, &mut progressed)?;
            }
        }
        drop(heap);
        Objects::open(store, name)
    }
}

/// Names of the roots that there are meanwhile: of the new root in the making, and of the old one.
const NEXT: &str = "caliburn.next";
const OLD: &str = "caliburn.old";

/// Frees what a try that was cut short has left beside the root.
fn free_beside(heap: &Heap) -> Result<(), Error> {
    let beside = || [NEXT, OLD].into_iter().filter_map(|name| Some((name, heap.root(name)?)));
    if beside().next().is_none() {
        return Ok(());
    }
    // All that they lead to, and then themselves.
    reclaim(heap)?;
    run::<(), Error>(heap, [0; 2], &[], None, |tx| {
        for (name, place) in beside() {
            tx.remove_root(name);
            tx.free(tx.at::<u8>(place));
        }
        Ok(())
    })?;
    Ok(())
}

/// Makes the new objects, and lets them take the place of the old ones.
fn move_fields<R>(heap: &Heap, found: &str, new: &str, progressed: &mut Progressed<'_>) -> Result<(), Error>
where
    R: Recoverable + Default + for<'id> Init<'id, R>,
{
    let bad = |why: String| Error::NotTyped { heap: heap.name().to_owned(), why };
    let record = Record::parse(found).map_err(bad)?;
    let (anchor, types) = (heap.root(ANCHOR).expect("looked at before"), heap.root(TYPES));
    let hash_keys: [u64; 2] = heap.region().load(anchor.0 as usize);
    run::<(), Error>(heap, hash_keys, &[], None, |tx| {
        tx.set_root(NEXT, new_anchor::<R>(tx, hash_keys));
        Ok(())
    })?;
    let next = heap.root(NEXT).expect("it was just named");
    // SAFETY: the anchor was made above, and nobody else has the heap.
    let mut rebuild = unsafe { Rebuild::<R>::new(heap, next, progressed) };
    let reader =
        Reader { bytes: heap.region(), record: &record, left: Cell::new(u64::MAX), owns: &|_| Ok(()) };
    let mut failed = None;
    let taken_apart =
        Pieces::each(&reader, record.root_at(anchor.0).map_err(bad)?, DEEPEST, &mut |path, piece| {
            rebuild.put(path, piece).map_err(|error| {
                failed = Some(error);
                String::new()
            })
        });
    let moved = match (failed, taken_apart) {
        (Some(error), _) => Err(error),
        (None, Err(why)) => Err(bad(why)),
        (None, Ok(())) => rebuild.finish(),
    };
    if let Err(error) = moved {
        free_beside(heap)?;
        return Err(error);
    }
    run::<(), Error>(heap, hash_keys, &[], None, |tx| {
        tx.set_root(OLD, tx.at::<u8>(anchor));
        tx.set_root(ANCHOR, tx.at::<u8>(next));
        tx.remove_root(NEXT);
        if let Some(types) = types {
            tx.free(tx.at::<u8>(types));
        }
        put_types(tx, new);
        Ok(())
    })?;
    free_beside(heap)
}
