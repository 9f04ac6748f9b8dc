//! Transactions within a transaction: they commit to it, or are undone, and nothing else is.
//!
//! ```text
//!   parent's core: [frozen, its transaction lent]      guards of the parent change nothing meanwhile
//!   child's core:  has it, from a savepoint on         guards with a brand of their own
//! ```
//!
//! Invariant: nothing that a child has made or taken out outlives it, since it has another brand than its
//! parent's.

use crate::error::Error;
use crate::value::guard::Mut;
use crate::value::tx::{Tx, is_out_of_room};
use caliburn_heap::HeapError;
use caliburn_os::simulated::{planted, unless};
use std::panic::{self, AssertUnwindSafe};
use std::ptr;

impl<T> Mut<'_, '_, T> {
    /// Runs a nested transaction on the value: it commits to this transaction when the closure returns `Ok`. When
    /// that returns an error or panics, or there is no room, all that it has changed, allocated and freed is as it
    /// was when it began, and this transaction goes on.
    ///
    /// Meanwhile other guards of this transaction declare, allocate and free nothing: who tries panics. A value
    /// that was taken out by this transaction, and is dropped meanwhile, is not freed.
    ///
    /// ```
    /// # use caliburn::{Error, Objects, PVec};
    /// # let dir = tempfile::tempdir()?;
    /// let orders = Objects::<PVec<u64>>::create(dir.path().join("orders"))?;
    /// orders.update(|mut orders| {
    ///     orders.push(1);
    ///     let refused = orders.nest(|mut orders| {
    ///         orders.push(2);
    ///         Err::<(), Error>(Error::Interrupted)
    ///     });
    ///     assert!(refused.is_err());
    ///     orders.push(3);
    /// })?;
    /// assert_eq!(orders.read()[..], [1, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The closure's; and when the log or the memory is full.
    ///
    /// # Panics
    /// Whatever the closure panics with.
    pub fn nest<V, E: From<Error>>(
        &mut self,
        child: impl for<'b, 'c> FnOnce(Mut<'b, 'c, T>) -> Result<V, E>,
    ) -> Result<V, E> {
        let parent = self.tx();
        let mut lent = parent.lend();
        let begun = lent.tx().savepoint().map_err(|error| Error::from(HeapError::from(error)))?;
        let core = lent.core();
        // A value on its way is in no heap: the savepoint knows nothing of its own bytes.
        let at = self.as_ptr();
        let before = unless("typed-owned-not-undone", parent.is_outside(at)).then(|| {
            let mut before = Box::<T>::new_uninit();
            // SAFETY: it is a value; its bytes are copied, whatever they are.
            unsafe { ptr::copy_nonoverlapping(at, before.as_mut_ptr(), 1) };
            before
        });
        // SAFETY: the core outlives the call, and the closure takes any lifetime. The guard has the value alone,
        // and what the closure is given borrows it.
        let run = || child(unsafe { Mut::new(self.as_ptr(), Tx::new(&core)) });
        let done = panic::catch_unwind(AssertUnwindSafe(run));
        let failure = lent.take_back(core);
        let commits = matches!((&done, &failure), (Ok(Ok(_)), None)) || planted("typed-child-not-undone");
        let tx = lent.tx();
        if !commits {
            tx.rollback_to(&begun).expect("the savepoint is there, and there are no branches");
            if let Some(before) = before {
                // SAFETY: the guard has the place alone, and its child is gone.
                unsafe { ptr::copy_nonoverlapping(before.as_ptr(), at, 1) };
            }
        }
        tx.release(&begun).expect("the savepoint is there");
        match (done, failure) {
            (Ok(Err(error)), _) => Err(error),
            (Ok(Ok(_)), Some(failure)) => Err(failure.into()),
            (Ok(Ok(value)), None) => Ok(value),
            (Err(payload), Some(failure)) if is_out_of_room(&*payload) => Err(failure.into()),
            (Err(payload), _) => panic::resume_unwind(payload),
        }
    }
}
