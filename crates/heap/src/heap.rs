//! A heap: its two segments, its spans, its roots.

use crate::class::{self, CLASSES, SIZES, SPAN};
use crate::intentions::Intentions;
use crate::meta::{self, Kind, MAGIC, ROOT_BYTES, ROOT_COUNT, ROOTS, VERSION};
use crate::span::{self, Cache, SPANS_MAX, SpanOwner, Spans};
use caliburn_engine::zerocopy::FromBytes;
use caliburn_engine::{
    BeginError, Class, CommitError, MapError, Mode, RangeError, Region, SavepointError, SegmentError, Store,
    Undeclared,
};
use caliburn_os::ordinal;
use caliburn_os::sync::atomic::{AtomicU32, Ordering};
use caliburn_os::sync::{Mutex, MutexGuard};
use std::fmt;
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;

/// Where an object is: its first byte's offset in the heap's segment of objects. Valid across crashes and
/// openings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u64);

/// Why a heap could not be opened or used. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
pub enum HeapError {
    /// A segment could not be made, found or grown: the heap is full if the disk is.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// A segment could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A transaction could not be begun.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// A range could not be declared.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// A savepoint could not be made or used.
    #[error(transparent)]
    Savepoint(#[from] SavepointError),
    /// The transaction did not commit.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The heap's own data was overwritten, or is not a heap's.
    #[error("heap {heap:?}, byte {offset} of segment {heap}.heap: {text}")]
    Damaged {
        /// Name of the heap.
        heap: String,
        /// Where in the segment of the heap's own data.
        offset: u64,
        /// What is wrong.
        text: String,
    },
    /// No object begins there, or it was freed already.
    #[error(
        "heap {heap:?}: no object is allocated at {place:?}: it was freed already, or never came from this heap"
    )]
    NotAllocated {
        /// Name of the heap.
        heap: String,
        /// What was to be freed.
        place: Place,
    },
    /// The bytes are not all in the object.
    #[error("heap {heap:?}: {len} bytes at {offset} of the object at {place:?}, which has {usable}")]
    Beyond {
        /// Name of the heap.
        heap: String,
        /// The object.
        place: Place,
        /// First byte in it.
        offset: usize,
        /// Bytes asked for.
        len: usize,
        /// Bytes that it has.
        usable: usize,
    },
    /// A transaction cannot be prepared, since what it did to the heap could perhaps not be finished.
    #[error(
        "heap {heap:?}: a transaction that allocates or frees {objects} objects in so many places cannot be prepared: the log, or the memory budget, is too small for that"
    )]
    TooMany {
        /// Name of the heap.
        heap: String,
        /// Objects.
        objects: usize,
    },
    /// It may not grow any more.
    #[error("heap {heap:?} may have {limit} bytes, and {wanted} are needed: see Heap::set_limit")]
    Full {
        /// Name of the heap.
        heap: String,
        /// Bytes that it may have.
        limit: u64,
        /// Bytes that it would have.
        wanted: u64,
    },
    /// The object cannot have that size or alignment.
    #[error("heap {heap:?}: {len} bytes aligned to {align} cannot be had: {why}")]
    Size {
        /// Name of the heap.
        heap: String,
        /// Bytes asked for.
        len: usize,
        /// Alignment asked for.
        align: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// A root cannot have that name, or there are too many.
    #[error("heap {heap:?}, root {name:?}: {why}")]
    Root {
        /// Name of the heap.
        heap: String,
        /// Name of the root.
        name: String,
        /// What is wrong.
        why: &'static str,
    },
}

/// A root: a name for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    pub name: String,
    pub place: Place,
}

/// A heap in a store, which it keeps open. Any number of threads may use it, each in transactions of its own.
pub struct Heap {
    pub(crate) name: String,
    pub(crate) data: Region,
    pub(crate) meta: Region,
    pub(crate) spans: Spans,
    /// Spans that exist.
    pub(crate) count: AtomicU32,
    /// Which spans nothing is in. Locked before the lists.
    pub(crate) free: Mutex<FreeSpans>,
    /// Spans that nothing is in any more, which could not be told at once: who grows the heap waits for a disk, and
    /// who gives something back must not.
    pub(crate) returned: Mutex<Vec<Range<usize>>>,
    /// Spans of a class with free objects that are in no cache. Locked to put a span there, or take
    /// it away.
    pub(crate) partial: [Mutex<Vec<u32>>; CLASSES],
    pub(crate) caches: Box<[Cache]>,
    pub(crate) roots: Mutex<Vec<Option<Root>>>,
    /// Bytes that it may grow to.
    pub(crate) limit: AtomicU64,
    /// What prepared transactions did. Locked before spans.
    pub(crate) intentions: Mutex<Vec<Intentions>>,
    /// After the regions: a store that is closed with a heap knows nothing of it any more.
    pub(crate) store: Store,
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("name", &self.name).field("bytes", &self.data.len()).finish()
    }
}

/// What is known of spans in which nothing is.
#[derive(Debug, Default)]
pub(crate) struct FreeSpans {
    /// For each span that exists whether nothing is in it, as far as is known.
    pub free: Vec<bool>,
    /// The first span whose row was not looked at in turn, and the first that there was no row of when the heap
    /// was opened. Between them a span's row may have been looked at because an object of it was asked for.
    pub next: u32,
    pub end: u32,
    /// No span before it is free.
    low: usize,
}

impl FreeSpans {
    /// Takes the first so many free spans in a row, of the first `most` that there are; the first of them.
    pub fn take(&mut self, wanted: usize, most: usize) -> Option<usize> {
        self.low += self.free[self.low..].iter().take_while(|free| !**free).count();
        let mut run = 0;
        for at in self.low..self.free.len().min(most) {
            run = if self.free[at] { run + 1 } else { 0 };
            if run == wanted {
                self.free[at + 1 - run..=at].fill(false);
                return Some(at + 1 - run);
            }
        }
        None
    }

    /// Nothing is in these any more.
    pub fn put(&mut self, spans: Range<usize>) {
        self.low = self.low.min(spans.start);
        self.free[spans].fill(true);
    }
}

pub(crate) const CACHES: usize = 32;
/// Rows that opening looks at. A larger heap's others are looked at when they are needed, so that opening takes no
/// longer for it.
const EAGER: u32 = if cfg!(caliburn_sim) { 1 } else { 1024 };

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heap {
    /// Opens the heap of that name, made if there is none: segments `NAME` for the objects and `NAME.heap` for
    /// what the heap knows of them. However large it is, this takes a millisecond: what is beyond the first 64 MiB
    /// is looked at when it is needed, at the latest before the heap grows.
    ///
    /// # Errors
    /// When the segments cannot be made or mapped, or hold something else: [`HeapError::Damaged`]. Damage to what is
    /// looked at later is an error then; [`Heap::check`] looks at everything.
    pub fn open(store: &Store, name: &str) -> Result<Heap, HeapError> {
        let meta_name = format!("{name}.heap");
        let refused =
            |text: &str| HeapError::Damaged { heap: name.to_owned(), offset: 0, text: text.to_owned() };
        if name.ends_with(".heap") {
            return Err(refused("a heap's own name does not end in .heap"));
        }
        if store.segment(name).is_ok() && store.segment(&meta_name).is_err() {
            return Err(refused("there is none, and the segment of the heap's name is another's"));
        }
        // In this order: a segment of objects alone is never a heap's.
        let meta = store.segment_or_create(&meta_name, meta::bytes_for(1))?;
        let data = store.segment_or_create(name, SPAN)?;
        let heap = Heap {
            store: store.clone(),
            name: name.to_owned(),
            data: data.map_all()?,
            meta: meta.map_all()?,
            spans: Spans::default(),
            count: AtomicU32::new(0),
            free: Mutex::default(),
            partial: std::array::from_fn(|_| Mutex::default()),
            caches: (0..CACHES).map(|_| Cache::default()).collect(),
            roots: Mutex::default(),
            limit: AtomicU64::new(u64::MAX),
            returned: Mutex::default(),
            intentions: Mutex::default(),
        };
        heap.read_header(true)?;
        heap.read_roots()?;
        heap.read_rows()?;
        heap.read_intentions()?;
        Ok(heap)
    }

    /// The store that it is in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that it may grow to from now on, until it is opened again: what needs more is refused
    /// ([`HeapError::Full`]). What the heap knows of its objects comes on top, a hundredth ([`Heap::bytes_with`]),
    /// and lists of what is undecided.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that a heap with such a limit takes in its store at most, but for lists of what is undecided.
    pub fn bytes_with(limit: u64) -> u64 {
        let spans = (limit / SPAN).clamp(1, u64::from(span::SPANS_MAX));
        spans * SPAN + meta::bytes_for(spans as u32)
    }

    /// The region of the objects: [`Place`]s are offsets in it.
    pub fn region(&self) -> &Region {
        &self.data
    }

    /// The object that a root names.
    pub fn root(&self, name: &str) -> Option<Place> {
        lock(&self.roots).iter().flatten().find(|root| root.name == name).map(|root| root.place)
    }

    /// Bytes that the object can hold: at least what was asked for.
    ///
    /// # Errors
    /// [`HeapError::NotAllocated`] when no object can begin there.
    pub fn usable_len(&self, place: Place) -> Result<usize, HeapError> {
        let (_, _, kind) = self.look(place)?;
        Ok(match kind {
            Kind::Small(class) => SIZES[usize::from(class)] as usize,
            Kind::Large(spans) => spans as usize * SPAN as usize,
            Kind::Free => unreachable!("an object is in a span that is in use"),
        })
    }

    /// Copies bytes of an object out.
    ///
    /// # Errors
    /// [`HeapError::NotAllocated`] when no object begins there, [`HeapError::Beyond`] when it is shorter.
    pub fn read(&self, place: Place, offset: usize, target: &mut [u8]) -> Result<(), HeapError> {
        self.within(place, offset, target.len())?;
        self.data.read(place.0 as usize + offset, target);
        Ok(())
    }

    /// Copies a value out of an object.
    ///
    /// # Errors
    /// As [`Heap::read`].
    pub fn load<T: FromBytes>(&self, place: Place, offset: usize) -> Result<T, HeapError> {
        self.within(place, offset, size_of::<T>())?;
        Ok(self.data.load(place.0 as usize + offset))
    }

    fn within(&self, place: Place, offset: usize, len: usize) -> Result<(), HeapError> {
        let usable = self.usable_len(place)?;
        match offset.checked_add(len).is_some_and(|end| end <= usable) {
            true => Ok(()),
            false => Err(HeapError::Beyond { heap: self.name.clone(), place, offset, len, usable }),
        }
    }

    /// The object that a byte belongs to, and how many bytes it can hold.
    pub fn enclosing(&self, offset: u64) -> Option<(Place, usize)> {
        let number = u32::try_from(offset / SPAN).ok().filter(|n| *n < self.count.load(Ordering::Acquire))?;
        self.take_up_all().ok()?;
        // A large object's first span may be some way before.
        (0..=number).rev().find_map(|first| {
            let span = self.spans.get(first);
            let kind = span.kind();
            let (size, object) = match kind {
                Kind::Small(class) => {
                    let size = u64::from(SIZES[usize::from(class)]);
                    (size, (offset - u64::from(first) * SPAN) / size)
                }
                Kind::Large(spans) => (u64::from(spans) * SPAN, 0),
                Kind::Free => return None,
            };
            let place = u64::from(first) * SPAN + object * size;
            let there = u32::try_from(object).is_ok_and(|object| span.holds(kind, object));
            let within = there && (place..place + size).contains(&offset);
            Some(within.then_some((Place(place), size as usize)))
        })?
    }

    /// What was stored to the store's regions without being declared ([`Store::undeclared`]), each with the object
    /// of this heap that it is in.
    pub fn undeclared(&self) -> Vec<(Undeclared, Option<Place>)> {
        let object = |found: &Undeclared| {
            let mine = found.segment == self.name;
            mine.then(|| self.enclosing(found.offset)).flatten().map(|(place, _)| place)
        };
        let found = self.store.undeclared();
        found
            .into_iter()
            .map(|found| (object(&found), found))
            .map(|(object, found)| (found, object))
            .collect()
    }

    #[cold]
    pub(crate) fn not_allocated(&self, place: Place) -> HeapError {
        HeapError::NotAllocated { heap: self.name.clone(), place }
    }

    pub(crate) fn damaged(&self, offset: u64, text: impl Into<String>) -> HeapError {
        HeapError::Damaged { heap: self.name.clone(), offset, text: text.into() }
    }

    pub(crate) fn root_error(&self, name: &str, why: &'static str) -> HeapError {
        HeapError::Root { heap: self.name.clone(), name: name.to_owned(), why }
    }

    /// The span and the number of the object that begins at a place.
    pub(crate) fn find(&self, place: Place) -> Result<(u32, u32), HeapError> {
        self.look(place).map(|(span, object, _)| (span, object))
    }

    /// The same, and what the span is.
    #[inline]
    pub(crate) fn look(&self, place: Place) -> Result<(u32, u32, Kind), HeapError> {
        let (number, object, kind) = self.place_in_span(place)?;
        let holds = self.spans.get(number).holds(kind, object);
        if holds { Ok((number, object, kind)) } else { Err(self.not_allocated(place)) }
    }

    /// Which object of which span could begin at a place.
    #[inline]
    pub(crate) fn place_in_span(&self, place: Place) -> Result<(u32, u32, Kind), HeapError> {
        let number = place.0 / SPAN;
        if number >= u64::from(self.count.load(Ordering::Acquire)) {
            return Err(self.not_allocated(place));
        }
        let (number, inside) = (number as u32, (place.0 % SPAN) as u32);
        let span = self.spans.get(number);
        let kind = span.kind();
        let object = match kind {
            Kind::Small(class) => match class::object_at(class, inside) {
                (object, first) if first == inside => object,
                _ => return Err(self.not_allocated(place)),
            },
            Kind::Large(_) if inside == 0 => 0,
            Kind::Free if self.take_up_one(number)? => return self.place_in_span(place),
            _ => return Err(self.not_allocated(place)),
        };
        if object < span::count(kind) { Ok((number, object, kind)) } else { Err(self.not_allocated(place)) }
    }

    /// A recoverable word's bits.
    pub(crate) fn word(&self, offset: u64) -> Result<u64, HeapError> {
        let word: u64 = self.meta.load(offset as usize);
        meta::unseal(word, offset)
            .ok_or_else(|| self.damaged(offset, "a word was overwritten: its check does not match"))
    }

    pub(crate) fn read_header(&self, make: bool) -> Result<(), HeapError> {
        let header: [u64; 3] = self.meta.load(0);
        if header == [0; 3] && make {
            // New, or its making was cut short.
            let mut tx = self.store.begin(Mode::Restore)?;
            let check = meta::check_of([VERSION]);
            tx.store(&self.meta, 0, &[MAGIC, VERSION, check])?;
            return Ok(tx.commit(Class::Process)?);
        }
        let [magic, version, check] = header;
        if magic != MAGIC {
            return Err(
                self.damaged(0, "the segment is not that of a heap, or its beginning was overwritten")
            );
        }
        if version != VERSION {
            return Err(self.damaged(8, format!("its version is {version}; this program knows {VERSION}")));
        }
        if check != meta::check_of([version]) {
            return Err(self.damaged(16, "the header's check does not match"));
        }
        Ok(())
    }

    fn read_roots(&self) -> Result<(), HeapError> {
        let mut roots = lock(&self.roots);
        for number in 0..ROOT_COUNT {
            let offset = ROOTS + number as u64 * ROOT_BYTES;
            let words: [u64; 8] = self.meta.load(offset as usize);
            if words == [0; 8] {
                roots.push(None);
                continue;
            }
            if words[7] != meta::check_of(words[..7].iter().copied().chain([offset])) {
                return Err(self.damaged(offset, "a root was overwritten: its check does not match"));
            }
            let bytes: Vec<u8> = words[..6].iter().flat_map(|word| word.to_ne_bytes()).collect();
            let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            let name = String::from_utf8_lossy(&bytes[..len]).into_owned();
            roots.push(Some(Root { name, place: Place(words[6]) }));
        }
        Ok(())
    }

    /// Looks at the first rows, and how many there are.
    fn read_rows(&self) -> Result<(), HeapError> {
        let spans = (self.data.len() as u64 / SPAN).min(u64::from(SPANS_MAX)) as u32;
        // The segments grow one after the other.
        if (self.meta.len() as u64) < meta::bytes_for(spans) {
            self.grow_meta(spans)?;
        }
        let mut spans_free = self.free_spans();
        spans_free.free.resize(spans as usize, false);
        spans_free.end = spans;
        self.count.store(spans, Ordering::Release);
        self.take_up(&mut spans_free, EAGER)?;
        Ok(())
    }

    /// Takes an object of a class, for a transaction.
    #[inline]
    pub(crate) fn take_small(&self, class: u8) -> Result<(u32, u32), HeapError> {
        let cached = &self.caches[ordinal::current().number() % CACHES].0[usize::from(class)];
        if let Some(number) = cached.load(Ordering::Acquire).checked_sub(1)
            && let Some(object) = self.spans.get(number).take(class)
        {
            return Ok((number, object));
        }
        self.refill(cached, class)
    }

    /// Which spans nothing is in.
    pub(crate) fn free_spans(&self) -> MutexGuard<'_, FreeSpans> {
        let mut free = lock(&self.free);
        lock(&self.returned).drain(..).for_each(|spans| free.put(spans));
        free
    }

    /// Gives back what no transaction has any more.
    #[inline]
    pub(crate) fn put(&self, number: u32, object: u32) {
        let span = self.spans.get(number);
        match span.kind() {
            Kind::Small(class) => {
                span.put(object);
                if span.at() == SpanOwner::Loose {
                    self.list(number, class);
                }
            }
            Kind::Large(spans) => {
                span.put(0);
                span.set_kind(Kind::Free);
                let spans = number as usize..(number + spans) as usize;
                match self.free.try_lock() {
                    Ok(mut free) => free.put(spans),
                    Err(_) => lock(&self.returned).push(spans),
                }
            }
            Kind::Free => unreachable!("an object is in a span that is in use"),
        }
    }
}
