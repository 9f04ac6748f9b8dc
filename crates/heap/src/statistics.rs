//! What a heap holds, counted and verified.

use crate::class::{SIZES, SPAN};
use crate::heap::{Heap, HeapError, Place, lock};
use crate::meta::{self, Kind, PER_WORD, ROOT_BYTES, ROOTS};
use crate::span;
use caliburn_os::sync::atomic::Ordering;

/// Objects of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassStatistics {
    /// Bytes of an object.
    pub size: u32,
    /// Spans of 64 KiB.
    pub spans: u32,
    /// Objects that are allocated.
    pub objects: u64,
    /// Objects that could be allocated in these spans.
    pub free: u64,
}

/// What a heap holds, open transactions' objects included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statistics {
    /// The sizes that have spans.
    pub classes: Vec<ClassStatistics>,
    /// Objects that take whole spans.
    pub large_objects: u64,
    /// Bytes of their spans.
    pub large_bytes: u64,
    /// Bytes of spans that hold nothing.
    pub free_bytes: u64,
    /// Bytes of the segment of objects.
    pub bytes: u64,
}

impl Statistics {
    /// Share of the bytes in spans in use that no object takes, 0 to 1.
    pub fn fragmentation(&self) -> f64 {
        let used: u64 = self.classes.iter().map(|c| c.objects * u64::from(c.size)).sum();
        let held = self.bytes - self.free_bytes;
        if held == 0 { 0.0 } else { 1.0 - (used + self.large_bytes) as f64 / held as f64 }
    }
}

impl Heap {
    /// What the heap holds, as far as its own data is not damaged ([`Heap::check`]). Time in proportion to its
    /// length.
    pub fn statistics(&self) -> Statistics {
        let free = {
            let mut spans = self.free_spans();
            // What is behind damage seems to hold something.
            _ = self.take_up(&mut spans, u32::MAX);
            spans.free.clone()
        };
        let mut classes: Vec<ClassStatistics> =
            SIZES.iter().map(|size| ClassStatistics { size: *size, spans: 0, objects: 0, free: 0 }).collect();
        let (mut large_objects, mut large_bytes) = (0, 0);
        for number in (0..free.len()).filter(|number| !free[*number]) {
            let span = self.spans.get(number as u32);
            let kind = span.kind();
            match kind {
                Kind::Small(class) => {
                    let (class, taken) = (&mut classes[usize::from(class)], span.taken());
                    class.spans += 1;
                    // It may become another kind at this moment.
                    class.free += u64::from(span::count(kind).saturating_sub(taken));
                    class.objects += u64::from(taken);
                }
                Kind::Large(spans) => {
                    large_objects += 1;
                    large_bytes += u64::from(spans) * SPAN;
                }
                // What follows the first span of a large object, or is being taken.
                Kind::Free => {}
            }
        }
        classes.retain(|class| class.spans > 0);
        let free_bytes = free.iter().filter(|free| **free).count() as u64 * SPAN;
        Statistics { classes, large_objects, large_bytes, free_bytes, bytes: free.len() as u64 * SPAN }
    }

    /// The objects that are allocated, with the bytes that each can hold, in the order of their places. What
    /// transactions allocate and free meanwhile may be met or not.
    pub fn objects(&self) -> impl Iterator<Item = (Place, usize)> {
        _ = self.take_up_all();
        (0..self.count.load(Ordering::Acquire)).flat_map(move |number| {
            let span = self.spans.get(number);
            let kind = span.kind();
            let (count, size) = match kind {
                Kind::Small(class) => (span::count(kind), u64::from(SIZES[usize::from(class)])),
                Kind::Large(spans) => (1, u64::from(spans) * SPAN),
                Kind::Free => (0, 0),
            };
            let place = move |object| Place(u64::from(number) * SPAN + u64::from(object) * size);
            (0..count)
                .filter(move |object| span.holds(kind, *object))
                .map(move |object| (place(object), size as usize))
        })
    }

    /// The names of its roots, and what they name.
    pub fn roots(&self) -> Vec<(String, Place)> {
        lock(&self.roots).iter().flatten().map(|root| (root.name.clone(), root.place)).collect()
    }

    /// Verifies the heap's own data: every word's check, that every root names an object. Nobody must be
    /// committing meanwhile.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), HeapError> {
        self.read_header(false)?;
        let spans = self.count.load(Ordering::Acquire);
        let mut skip = 0;
        for number in 0..spans {
            let offset = meta::word_at(number, 0);
            let kind =
                Kind::decode(self.word(offset)?).ok_or_else(|| self.damaged(offset, "a span of no kind"))?;
            if skip > 0 && kind != Kind::Free {
                return Err(self.damaged(offset, "a span that belongs to the object before it"));
            }
            skip = if let Kind::Large(spans) = kind { spans - 1 } else { u32::saturating_sub(skip, 1) };
            let words = if let Kind::Small(class) = kind { crate::class::objects(class) } else { 0 };
            for word in 0..words.div_ceil(PER_WORD) {
                self.word(meta::word_at(number, 1 + word))?;
            }
        }
        for (number, root) in lock(&self.roots).iter().enumerate() {
            // Given up by a transaction that is open, it is still there.
            let there = |place| {
                let (number, object, _) = self.place_in_span(place).ok()?;
                Some(!self.spans.get(number).is_free(object))
            };
            if root.as_ref().is_some_and(|root| there(root.place) != Some(true)) {
                let offset = ROOTS + number as u64 * ROOT_BYTES;
                return Err(self.damaged(offset, "a root names a place where no object is"));
            }
        }
        Ok(())
    }
}
