//! Objects of older types, brought to those that the program has now.

use crate::error::Error;
use crate::objects::{ANCHOR, Anchor, Objects, TYPES, put_types, read_types, run};
use crate::value::guard::Mut;
use crate::value::layout::{self, Types};
use crate::value::recoverable::{Init, Recoverable};
use caliburn_engine::Store;
use caliburn_heap::Heap;
use caliburn_os::simulated::planted;

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
        if found != old || heap.usable_len(anchor)? < size_of::<Anchor<Old>>() as u64 {
            let difference = layout::difference(&found, &old);
            return Err(Error::Changed { heap: name.to_owned(), difference });
        }
        let base = heap.region().as_ptr();
        base.expose_provenance();
        let hash_keys = heap.region().load(anchor.0 as usize);
        let before = base.wrapping_add(anchor.0 as usize).cast::<Anchor<Old>>();
        let record_before = base.wrapping_add(types.0 as usize);
        run::<(), Error>(&heap, hash_keys, &[], None, |tx| {
            let after = tx.allocate::<Anchor<R>>(1);
            tx.declare(after, 1);
            // SAFETY: memory for an anchor, declared. The old root is a value of the type that the record
            // names, the new one is made before it has a guard, and nobody else has the heap.
            unsafe {
                (&raw mut (*after).hash_keys).write(hash_keys);
                R::default().init(&raw mut (*after).root, tx);
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
}
