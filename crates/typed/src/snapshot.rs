//! Objects as they were at one moment, read while transactions go on.

use crate::error::Error;
use crate::images::Readers;
use crate::objects::{Inner, Objects, Writer};
use crate::shared::PWeak;
use crate::value::recoverable::Recoverable;
use caliburn_engine::Image;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

/// The objects as they were when it was taken ([`Objects::snapshot`]): whole transactions,
/// whatever is changed meanwhile. Writers don't wait for it, however long it is kept. A handle: clones are cheap, go
/// to other threads, and hold the store open.
///
/// ```
/// use caliburn::{Objects, PVec};
///
/// # let dir = tempfile::tempdir()?;
/// let list = Objects::<PVec<u64>>::create(dir.path().join("list"))?;
/// list.update(|mut list| list.extend([1, 2, 3]))?;
/// let before = list.snapshot()?;
/// let reader = std::thread::spawn(move || before.iter().sum::<u64>());
/// list.update(|mut list| list.clear())?;
/// assert_eq!(reader.join().unwrap(), 6);
/// assert_eq!(list.read().len(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Snapshot<R> {
    readers: Arc<Readers>,
    inner: Arc<Inner>,
    root: PhantomData<fn() -> R>,
}

impl<R: Recoverable> Objects<R> {
    /// The root and all that it leads to as they are now, for as long as wanted: transactions go on. Waits for the
    /// end of the one that is open, and copies what was changed and is not yet in the segment (with the redo
    /// policy). Snapshots between which nothing was changed are one.
    ///
    /// A page is copied when it is first changed after the snapshot was taken. So a snapshot takes at most as much
    /// memory as the heap has when it is taken, and gives it back when the last clone is dropped.
    ///
    /// # Panics
    /// In a transaction on the same objects ([`Writer::snapshot`] is for those who have the turn).
    ///
    /// # Errors
    /// [`Error::Snapshots`] beyond the limit; when the system refuses the memory.
    pub fn snapshot(&self) -> Result<Snapshot<R>, Error> {
        let inner = &self.inner;
        loop {
            let turn = inner.turns.read();
            match inner.exchange.take(inner.heap.region(), turn)? {
                Some(readers) => return Ok(Snapshot::new(readers, inner.clone())),
                None => inner.exchange.wait(),
            }
        }
    }

    /// Lets the snapshots that are alive take at most so many bytes together: one that could pass it is refused.
    /// Without a limit to begin with.
    pub fn set_snapshot_limit(&self, bytes: u64) {
        self.inner.exchange.set_limit(bytes);
    }
}

impl<R: Recoverable> Writer<'_, R> {
    /// As [`Objects::snapshot`], of what the last transaction has left.
    ///
    /// # Errors
    /// Likewise.
    pub fn snapshot(&mut self) -> Result<Snapshot<R>, Error> {
        let inner = &self.objects.inner;
        loop {
            match inner.exchange.take(inner.heap.region(), &*self.turn)? {
                Some(readers) => return Ok(Snapshot::new(readers, inner.clone())),
                None => inner.exchange.wait(),
            }
        }
    }
}

impl<R> Snapshot<R> {
    /// Of objects whose image is read.
    fn new(readers: Arc<Readers>, inner: Arc<Inner>) -> Snapshot<R> {
        Snapshot { readers, inner, root: PhantomData }
    }

    pub(crate) fn image(&self) -> &Image {
        self.readers.image()
    }

    /// Bytes of memory that it takes so far: of pages that were changed since.
    pub fn kept_bytes(&self) -> u64 {
        self.image().kept_bytes()
    }

    /// The object of a weak pointer in the snapshot, if it still had owners.
    ///
    /// # Panics
    /// If the pointer is not in this snapshot.
    pub fn weak<'v, T>(&'v self, pointer: &'v PWeak<T>) -> Option<&'v T> {
        let image = self.image();
        let offset = std::ptr::from_ref(pointer).addr().wrapping_sub(image.as_ptr().addr());
        assert!(
            offset < image.len() || !pointer.has_owners(),
            "the pointer is not in this snapshot of {:?}",
            self.inner.heap.name()
        );
        // SAFETY: nothing in the image changes while the snapshot is there.
        unsafe { pointer.object() }
    }
}

impl<R> Clone for Snapshot<R> {
    fn clone(&self) -> Snapshot<R> {
        Snapshot { readers: self.readers.clone(), inner: self.inner.clone(), root: PhantomData }
    }
}

impl<R> Deref for Snapshot<R> {
    type Target = R;

    #[inline(always)]
    fn deref(&self) -> &R {
        // SAFETY: the image is settled, shows a value of the type at the root's place as it was between two
        // transactions, and does not change: every transaction on the heap gives it the pages that it changes.
        unsafe { &*self.image().as_ptr().wrapping_add(self.inner.root).cast() }
    }
}

impl<R: fmt::Debug> fmt::Debug for Snapshot<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
