//! Objects put together from pieces, in transactions of bounded size: those of another heap, of a file, or of the
//! same heap before its types changed.

use crate::error::Error;
use crate::objects::Anchor;
use crate::shared::release;
use crate::value::datum::{CountedObjects, Loader, Piece};
use crate::value::recoverable::Recoverable;
use crate::value::tx::Tx;
use caliburn_heap::{Heap, Place};
use caliburn_os::simulated::unless;
use std::ops::ControlFlow;

/// Pieces, and about as many bytes of them, that a transaction takes.
const PIECES: usize = 256;
const WEIGHT: usize = 64 << 10;

/// Is told how many pieces are done, and may end the work: [`Error::Interrupted`].
pub type Progressed<'p> = dyn FnMut(u64) -> ControlFlow<()> + 'p;

/// A root that is being put together.
pub(crate) struct Rebuild<'h, R> {
    heap: &'h Heap,
    hash_keys: [u64; 2],
    root: *mut R,
    counted: CountedObjects,
    waiting: Vec<(Vec<String>, Piece)>,
    weight: usize,
    done: u64,
    progressed: &'h mut Progressed<'h>,
}

impl<'h, R: Recoverable> Rebuild<'h, R> {
    /// Of the root of the anchor at `anchor`.
    ///
    /// # Safety
    /// An anchor with such a root is there, which nobody else refers to until this is dropped.
    pub unsafe fn new(heap: &'h Heap, anchor: Place, progressed: &'h mut Progressed<'h>) -> Rebuild<'h, R> {
        let anchor_at = heap.region().as_ptr().wrapping_add(anchor.0 as usize).cast::<Anchor<R>>();
        heap.region().as_ptr().expose_provenance();
        Rebuild {
            hash_keys: heap.region().load(anchor.0 as usize),
            heap,
            // SAFETY: the caller's word.
            root: unsafe { &raw mut (*anchor_at).root },
            counted: CountedObjects::default(),
            waiting: Vec::new(),
            weight: 0,
            done: 0,
            progressed,
        }
    }

    /// Puts a piece where it belongs, now or with those that come next.
    pub fn put(&mut self, path: &[String], piece: Piece) -> Result<(), Error> {
        self.weight += piece.weight();
        self.waiting.push((path.to_vec(), piece));
        if self.waiting.len() >= PIECES || self.weight >= WEIGHT {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        let (root, count) = (self.root, self.waiting.len() as u64);
        let waiting = std::mem::take(&mut self.waiting);
        let counted = &self.counted;
        in_transaction(self.heap, self.hash_keys, |tx| {
            let loader = Loader::new(tx, counted);
            for (path, piece) in waiting {
                // SAFETY: the root is a value of this heap, which nobody else refers to.
                unsafe { R::absorb(root, &path, piece, &loader) }
            }
        })?;
        self.weight = 0;
        self.done += count;
        match (self.progressed)(self.done) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Interrupted),
        }
    }

    /// Puts the rest, and gives back what the numbers of objects were needed for. How many pieces there were.
    pub fn finish(mut self) -> Result<u64, Error> {
        self.flush()?;
        let places: Vec<Place> = self.counted.take().into_values().map(|numbered| numbered.place).collect();
        for batch in places.chunks(4096).filter(|_| unless("numbers-kept", true)) {
            in_transaction(self.heap, self.hash_keys, |tx| {
                batch.iter().for_each(|place| release(tx, *place))
            })?;
        }
        Ok(self.done)
    }
}

/// Runs a transaction that is not waited for: whoever makes many of them forces the last.
pub(crate) fn in_transaction(
    heap: &Heap,
    hash_keys: [u64; 2],
    body: impl for<'id> FnOnce(Tx<'id>),
) -> Result<(), Error> {
    let class = Some(caliburn_engine::Class::Process);
    let done = crate::objects::run(heap, hash_keys, &[], class, |tx| {
        body(tx);
        Ok::<(), Error>(())
    });
    done.map(|_| ())
}

/// Frees all objects of a heap, in transactions of some thousand; the roots with the last of them. Whenever it is
/// cut short, the roots are there still.
#[cfg(feature = "serde")]
pub(crate) fn wipe(heap: &Heap) -> Result<(), Error> {
    let roots = heap.roots();
    let named = |place: &Place| roots.iter().any(|(_, root)| root == place);
    let objects: Vec<Place> = heap.objects().map(|(place, _)| place).filter(|place| !named(place)).collect();
    for batch in objects.chunks(4096) {
        in_transaction(heap, [0; 2], |tx| batch.iter().for_each(|place| tx.free(tx.at::<u8>(*place))))?;
    }
    crate::objects::run::<(), Error>(heap, [0; 2], &[], None, |tx| {
        roots.iter().for_each(|(name, _)| tx.remove_root(name));
        // Several names may be those of one object.
        let mut places: Vec<Place> = roots.iter().map(|(_, place)| *place).collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().for_each(|place| tx.free(tx.at::<u8>(place)));
        Ok(())
    })?;
    Ok(())
}
