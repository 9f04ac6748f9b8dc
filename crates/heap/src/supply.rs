//! Where objects come from when a thread's cache has none: spans that are partly free, spans that hold nothing,
//! and more of both segments.

use crate::class::SPAN;
use crate::heap::{FreeSpans, Heap, HeapError, lock};
use crate::meta::{self, Kind};
use crate::span::{SPANS_MAX, SpanOwner};
use caliburn_os::sync::atomic::{AtomicU32, Ordering};
use std::sync::TryLockError;

/// Rows that are taken up before a span is taken that is not partly free.
const ROWS: u32 = 64;

impl Heap {
    /// Takes an object of a class when the cache has none.
    #[cold]
    pub(crate) fn refill(&self, cached: &AtomicU32, class: u8) -> Result<(u32, u32), HeapError> {
        loop {
            let now = cached.load(Ordering::Acquire);
            if let Some(number) = now.checked_sub(1) {
                if let Some(object) = self.spans.get(number).take(class) {
                    return Ok((number, object));
                }
                match cached.compare_exchange(now, 0, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => self.leave(number, class),
                    // Somebody took it from the cache meanwhile, and may have missed what we tried to take.
                    Err(_) => self.list_if_loose(number),
                }
                continue;
            }
            let listed = match self.unlist(class) {
                // Perhaps among those that nobody has looked at.
                None if self.take_up(&mut self.free_spans(), ROWS)? => self.unlist(class),
                listed => listed,
            };
            let number = match listed {
                Some(number) => number,
                None => match self.take_spans(1, self.most()) {
                    Ok(number) => {
                        let span = self.spans.get(number);
                        span.set_at(SpanOwner::Cache);
                        span.make(Kind::Small(class), |_| false);
                        number
                    }
                    // There may be room in what another thread's cache has.
                    Err(error) => self.steal(class).ok_or(error)?,
                },
            };
            if cached.compare_exchange(0, number + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // A thread that shares the cache was faster.
                self.leave(number, class);
            }
        }
    }

    /// A span comes out of a cache. A thread that puts an object back meanwhile sees it loose, or its object is
    /// seen here.
    fn leave(&self, number: u32, class: u8) {
        self.spans.get(number).set_at(SpanOwner::Loose);
        self.list(number, class);
    }

    fn list_if_loose(&self, number: u32) {
        let span = self.spans.get(number);
        if let (SpanOwner::Loose, Kind::Small(class)) = (span.at(), span.kind()) {
            self.list(number, class);
        }
    }

    /// Puts a loose span with free objects on the list of its class.
    pub(crate) fn list(&self, number: u32, class: u8) {
        let span = self.spans.get(number);
        let mut list = lock(&self.partial[usize::from(class)]);
        // In this order: the one that makes it a span of the class says first that it is for a cache, and it is of
        // the class as long as the list is locked.
        if span.kind() == Kind::Small(class) && span.at() == SpanOwner::Loose && span.has_free(class) {
            span.set_at(SpanOwner::List);
            list.push(number);
        }
    }

    /// Takes a span from the list of its class, for a cache.
    fn unlist(&self, class: u8) -> Option<u32> {
        let mut list = lock(&self.partial[usize::from(class)]);
        let number = list.pop()?;
        self.spans.get(number).set_at(SpanOwner::Cache);
        Some(number)
    }

    /// Takes a span with free objects from another cache.
    fn steal(&self, class: u8) -> Option<u32> {
        self.caches.iter().find_map(|cache| {
            let cached = &cache.0[usize::from(class)];
            let now = cached.load(Ordering::Acquire);
            let number = now.checked_sub(1).filter(|number| self.spans.get(*number).has_free(class))?;
            cached.compare_exchange(now, 0, Ordering::AcqRel, Ordering::Relaxed).ok().map(|_| number)
        })
    }

    /// Spans that programs' objects may be in.
    pub(crate) fn most(&self) -> u32 {
        let limit = self.limit.load(Ordering::Relaxed) / SPAN;
        u32::try_from(limit).map_or(SPANS_MAX, |most| most.min(SPANS_MAX))
    }

    /// Takes free spans for one object, for a transaction, of the first `most`.
    pub(crate) fn take_large(&self, spans: u32, most: u32) -> Result<u32, HeapError> {
        let number = self.take_spans(spans, most)?;
        self.spans.get(number).make_large(spans);
        Ok(number)
    }

    /// The first of so many free spans in a row; grows the heap if there are none.
    fn take_spans(&self, wanted: u32, most: u32) -> Result<u32, HeapError> {
        let mut spans = self.free_spans();
        loop {
            if let Some(first) = spans.take(wanted as usize, most as usize) {
                return Ok(first as u32);
            }
            if !self.take_up(&mut spans, ROWS)? && !self.reclaim(&mut spans) {
                let grown = self.grow(&mut spans, wanted, most);
                if grown.is_err() && !self.evict() {
                    return grown.map(|()| 0);
                }
            }
        }
    }

    /// Takes empty spans out of the caches. Whether there were any.
    fn evict(&self) -> bool {
        let mut any = false;
        for (class, cached) in self.caches.iter().flat_map(|cache| cache.0.iter().enumerate()) {
            let now = cached.load(Ordering::Acquire);
            let Some(number) = now.checked_sub(1).filter(|number| self.spans.get(*number).taken() == 0)
            else {
                continue;
            };
            if cached.compare_exchange(now, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.leave(number, class as u8);
                any = true;
            }
        }
        any
    }

    /// Gives back spans of small objects that have become empty. Whether there were any.
    pub(crate) fn reclaim(&self, spans: &mut FreeSpans) -> bool {
        let mut any = false;
        for number in 0..spans.free.len() {
            if spans.free[number] {
                continue;
            }
            let span = self.spans.get(number as u32);
            let _commit = match span.commit.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            let Kind::Small(class) = span.kind() else { continue };
            let mut list = lock(&self.partial[usize::from(class)]);
            if span.kind() == Kind::Small(class) && span.at() != SpanOwner::Cache && span.empty(class) {
                list.retain(|listed| *listed != number as u32);
                span.set_at(SpanOwner::Loose);
                spans.put(number..number + 1);
                any = true;
            }
        }
        any
    }

    fn grow(&self, known: &mut FreeSpans, wanted: u32, most: u32) -> Result<(), HeapError> {
        let now = known.free.len() as u32;
        let least = now.saturating_add(wanted);
        if least > SPANS_MAX {
            let why = "no heap is that large";
            let len = wanted as usize * SPAN as usize;
            return Err(HeapError::Size { heap: self.name.clone(), len, align: 1, why });
        }
        if least > most {
            let (limit, wanted) = (self.limit.load(Ordering::Relaxed), u64::from(least) * SPAN);
            return Err(HeapError::Full { heap: self.name.clone(), limit, wanted });
        }
        // Half as much again, if it may, and the disk has it.
        let wish = least.max(now + now / 2).min(most);
        let grown = self
            .grow_to(wish)
            .or_else(|error| if wish == least { Err(error) } else { self.grow_to(least).map_err(|_| error) });
        grown?;
        // As many as both segments have: anybody may have made the other longer.
        let rows = (self.meta.len() as u64).saturating_sub(meta::ROWS) / (meta::ROW_WORDS * 8);
        let spans = (self.data.len() as u64 / SPAN).min(rows) as u32;
        known.free.resize(spans as usize, false);
        known.put(now as usize..spans as usize);
        self.count.store(spans, Ordering::Release);
        Ok(())
    }

    fn grow_to(&self, spans: u32) -> Result<(), HeapError> {
        let (len, rows) = (u64::from(spans) * SPAN, meta::bytes_for(spans));
        if len > self.data.capacity() as u64 || rows > self.meta.capacity() as u64 {
            let why = "more than there is address space for: see Options::reserve_bytes";
            return Err(HeapError::Size { heap: self.name.clone(), len: len as usize, align: 1, why });
        }
        // The larger one first: where there is no room for it, nothing has grown.
        self.store.segment(&self.name)?.grow(len)?;
        self.data.grow(len as usize)?;
        self.grow_meta(spans)
    }

    pub(crate) fn grow_meta(&self, spans: u32) -> Result<(), HeapError> {
        let segment = self.store.segment(&format!("{}.heap", self.name))?;
        segment.grow(meta::bytes_for(spans))?;
        Ok(self.meta.grow(segment.len() as usize)?)
    }
}
