//! Spans as the process sees them: what is allocated, by committed transactions and by open ones. Two bits for
//! each object, changed in one step, so that allocating and freeing take no lock:
//!
//! ```text
//!            taken            committed             given up            committed
//!   FREE ------------> FRESH ------------> THERE ------------> GIVEN UP ----------> FREE
//!     ^                  | aborted            ^                  | aborted
//!     +------------------+                    +------------------+
//! ```
//!
//! A span of small objects is in one place: with a cache, which threads allocate from; on the list of its
//! class, since it has free objects; or loose, since it had none.

use crate::class::{self, CLASSES};
use crate::meta::Kind;
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use caliburn_os::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use caliburn_os::sync::{self, Mutex};
use std::sync::OnceLock;

/// States of an object.
const FRESH: u64 = 1;
const THERE: u64 = 2;
const GIVEN_UP: u64 = 3;
/// No kind: nobody has looked what the span is.
const UNKNOWN: u64 = u64::MAX;
/// Objects in a word, the lower bit of each, and words of a span.
const IN_WORD: u32 = 32;
const LOWER: u64 = 0x5555_5555_5555_5555;
const WORDS: usize = 4096 / IN_WORD as usize;

const _: () = assert!(class::objects(0) as usize <= WORDS * IN_WORD as usize);

/// Where a span is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SpanOwner {
    /// Nowhere, when it was last looked for free objects.
    Loose,
    /// In a cache, or on its way there.
    Cache,
    /// On the list of its class.
    List,
}

/// A span.
#[derive(Debug)]
pub struct Span {
    /// Held while the recoverable words of the span change.
    pub commit: Mutex<()>,
    kind: AtomicU64,
    at: AtomicU8,
    /// A word that has free objects, perhaps.
    hint: AtomicU32,
    objects: OnceLock<Box<[AtomicU64; WORDS]>>,
}

impl Span {
    fn new() -> Span {
        Span {
            commit: Mutex::default(),
            kind: AtomicU64::new(UNKNOWN),
            at: AtomicU8::new(SpanOwner::Loose as u8),
            hint: AtomicU32::new(0),
            objects: OnceLock::new(),
        }
    }

    /// What it is. Free while it is unknown.
    #[inline]
    pub fn kind(&self) -> Kind {
        Kind::of(self.kind.load(SeqCst))
    }

    /// Whether its row was not looked at yet.
    pub fn is_unknown(&self) -> bool {
        self.kind.load(SeqCst) == UNKNOWN
    }

    /// Makes it another kind. For the thread that has it alone, or takes it back.
    pub fn set_kind(&self, kind: Kind) {
        self.kind.store(kind.encode(), SeqCst);
    }

    /// Says that it is free, if nobody knows: it is, or will be, taken by whoever says so.
    pub fn make_known(&self) {
        _ = self.kind.compare_exchange(UNKNOWN, Kind::Free.encode(), SeqCst, SeqCst);
    }

    /// Where it is.
    pub fn at(&self) -> SpanOwner {
        match self.at.load(SeqCst) {
            0 => SpanOwner::Loose,
            1 => SpanOwner::Cache,
            _ => SpanOwner::List,
        }
    }

    /// Says where it is now.
    pub fn set_at(&self, at: SpanOwner) {
        self.at.store(at as u8, SeqCst);
    }

    #[inline]
    fn words(&self) -> &[AtomicU64; WORDS] {
        self.objects.get_or_init(|| Box::new([const { AtomicU64::new(0) }; WORDS]))
    }

    #[inline]
    fn word(&self, object: u32) -> (&AtomicU64, u32) {
        (&self.words()[(object / IN_WORD) as usize], object % IN_WORD * 2)
    }

    /// Makes a free span, in which nothing is, one of that kind with the objects that `there` names. For
    /// the thread that has it alone; but somebody from whose cache it was stolen may try an object, find that
    /// it is not what it was, and put the object back.
    pub fn make(&self, kind: Kind, there: impl Fn(u32) -> bool) {
        for object in (0..count(kind)).filter(|object| there(*object)) {
            let (word, shift) = self.word(object);
            word.fetch_or(THERE << shift, Relaxed);
        }
        self.hint.store(0, Relaxed);
        self.set_kind(kind);
    }

    /// The same with one object of several spans, taken by an open transaction.
    pub fn make_large(&self, spans: u32) {
        while self.words()[0].compare_exchange_weak(0, FRESH, SeqCst, Relaxed).is_err() {
            sync::yield_now();
        }
        self.set_kind(Kind::Large(spans));
    }

    /// Makes a span of small objects free, if nothing is in it; never seems free while something is. For
    /// the thread that has it alone, but for those from whose cache it was stolen: they find every object given up
    /// meanwhile, or all free and the span not what it was.
    pub fn empty(&self, class: u8) -> bool {
        let words = &self.words()[..class::objects(class).div_ceil(IN_WORD) as usize];
        let close = |word: &AtomicU64| word.compare_exchange(0, !0, SeqCst, Relaxed).is_ok();
        let closed = words.iter().take_while(|word| close(word)).count();
        let all = closed == words.len();
        if all {
            self.set_kind(Kind::Free);
        }
        words[..closed].iter().for_each(|word| word.store(0, SeqCst));
        all
    }

    /// Takes an object of that class.
    #[inline]
    pub fn take(&self, class: u8) -> Option<u32> {
        let objects = class::objects(class);
        let words = objects.div_ceil(IN_WORD);
        let from = Some(self.hint.load(Relaxed)).filter(|from| *from < words).unwrap_or(0);
        for (i, at) in (from..words).chain(0..from).enumerate() {
            let word = &self.words()[at as usize];
            let mut now = word.load(Relaxed);
            loop {
                let shift = (!(now | now >> 1) & LOWER).trailing_zeros();
                let object = at * IN_WORD + shift / 2;
                if shift == 64 || object >= objects {
                    break;
                }
                if planted("heap-object-taken-twice") {
                    word.store(now | FRESH << shift, SeqCst);
                    return Some(object);
                }
                match word.compare_exchange_weak(now, now | FRESH << shift, SeqCst, Relaxed) {
                    Err(changed) => now = changed,
                    // It was taken from our cache meanwhile, and became something else.
                    Ok(_) if self.kind() != Kind::Small(class) => {
                        word.fetch_and(!(GIVEN_UP << shift), Release);
                        return None;
                    }
                    Ok(_) => {
                        if i > 0 {
                            self.hint.store(at, Relaxed);
                        }
                        return Some(object);
                    }
                }
            }
        }
        None
    }

    /// The object is nobody's any more.
    #[inline]
    pub fn put(&self, object: u32) {
        let (word, shift) = self.word(object);
        word.fetch_and(!(GIVEN_UP << shift), SeqCst);
        if object / IN_WORD < self.hint.load(Relaxed) {
            self.hint.store(object / IN_WORD, Relaxed);
        }
    }

    /// Whether an object is fresh, or there and not given up; nothing if it is neither.
    #[inline]
    pub fn freshness(&self, object: u32) -> Option<bool> {
        match self.state(object) {
            FRESH => Some(true),
            THERE => Some(false),
            _ => None,
        }
    }

    /// Notes that an open transaction gives an object up, which is fresh or not; false if it is not so.
    #[inline]
    pub fn give_up(&self, kind: Kind, object: u32, fresh: bool) -> bool {
        let (word, shift) = self.word(object);
        let expected = if fresh { FRESH } else { THERE };
        let mut now = word.load(Acquire);
        loop {
            if now >> shift & GIVEN_UP != expected {
                return false;
            }
            match word.compare_exchange_weak(now, now | GIVEN_UP << shift, SeqCst, Acquire) {
                Err(changed) => now = changed,
                // Freed twice, the second time while the span became something else: not this object.
                Ok(_) if self.kind() != kind => {
                    word.fetch_sub((GIVEN_UP - expected) << shift, SeqCst);
                    return false;
                }
                Ok(_) => return true,
            }
        }
    }

    /// The transaction that took it has committed.
    #[inline]
    pub fn mark_allocated(&self, object: u32) {
        let (word, shift) = self.word(object);
        word.fetch_add((THERE - FRESH) << shift, Release);
    }

    /// The transaction that took it is undecided, found so by recovery.
    pub fn mark_fresh(&self, object: u32) {
        let (word, shift) = self.word(object);
        word.fetch_sub((THERE - FRESH) << shift, Release);
    }

    /// It was not given up after all, and is fresh or not, as it was.
    pub fn keep(&self, object: u32, fresh: bool) {
        let (word, shift) = self.word(object);
        let before = if unless("kept-as-committed", fresh) { FRESH } else { THERE };
        word.fetch_sub((GIVEN_UP - before) << shift, Release);
    }

    #[inline]
    fn state(&self, object: u32) -> u64 {
        let (word, shift) = self.word(object);
        word.load(Acquire) >> shift & GIVEN_UP
    }

    /// Whether an object is there that nobody has given up.
    #[inline]
    pub fn holds(&self, kind: Kind, object: u32) -> bool {
        object < count(kind) && matches!(self.state(object), FRESH | THERE)
    }

    /// Whether nobody has the object, not even an open transaction that gives it up.
    pub fn is_free(&self, object: u32) -> bool {
        self.state(object) == 0
    }

    /// Objects that are not free.
    pub fn taken(&self) -> u32 {
        let words = self.words().iter();
        words.map(|word| word.load(SeqCst)).map(|word| ((word | word >> 1) & LOWER).count_ones()).sum()
    }

    /// Whether it has free objects of its class.
    pub fn has_free(&self, class: u8) -> bool {
        self.taken() < class::objects(class)
    }
}

/// Objects in a span of a kind.
pub fn count(kind: Kind) -> u32 {
    if let Kind::Small(class) = kind { class::objects(class) } else { 1 }
}

const TIERS: usize = 24;
const FIRST_TIER: usize = 64;

/// All spans. Grows, never moves: reaching one takes no lock.
#[derive(Debug, Default)]
pub struct Spans {
    tiers: [OnceLock<Box<[Span]>>; TIERS],
}

impl Spans {
    #[inline]
    pub fn get(&self, number: u32) -> &Span {
        // Tiers double in size: tier t begins at (2^t - 1) first tiers.
        let place = number as usize + FIRST_TIER;
        let tier = (place / FIRST_TIER).ilog2() as usize;
        let len = FIRST_TIER << tier;
        &self.tiers[tier].get_or_init(|| (0..len).map(|_| Span::new()).collect())[place - len]
    }
}

/// Most spans that there can be.
pub const SPANS_MAX: u32 = ((FIRST_TIER << TIERS) - FIRST_TIER) as u32;

/// Spans that threads allocate from, one for each class: its number and 1, or 0. A thread has a cache to itself
/// while there are few threads, and nothing breaks when it has not.
#[derive(Debug)]
#[repr(align(128))]
pub struct Cache(pub [AtomicU32; CLASSES]);

impl Default for Cache {
    fn default() -> Cache {
        Cache([const { AtomicU32::new(0) }; CLASSES])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_is_taken_once_and_taken_again_when_it_was_put_back() {
        for class in [0u8, 3, 17, 39] {
            let (span, kind) = (Span::new(), Kind::Small(class));
            span.make(kind, |_| false);
            let count = class::objects(class);
            let mut all: Vec<u32> = std::iter::from_fn(|| span.take(class)).collect();
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
            let last = count - 1;
            assert!(span.holds(kind, last) && span.freshness(last) == Some(true));
            assert!(!span.give_up(kind, last, false));
            span.mark_allocated(last);
            assert!(span.holds(kind, last) && span.freshness(last) == Some(false));
            assert!(span.give_up(kind, last, false) && !span.give_up(kind, last, false));
            assert!(!span.holds(kind, last) && span.freshness(last).is_none());
            assert_eq!((span.take(class), span.taken()), (None, count));
            span.keep(last, false);
            assert!(span.give_up(kind, last, false));
            span.put(last);
            assert!(!span.give_up(kind, last, false) && span.has_free(class));
            assert_eq!(span.take(class), Some(last));
            assert!(!span.holds(kind, count));
        }
    }

    #[test]
    fn only_an_empty_span_becomes_free() {
        let span = Span::new();
        assert!(span.is_unknown() && span.kind() == Kind::Free);
        span.make(Kind::Small(0), |object| object == 3000);
        assert!(!span.empty(0) && !span.is_unknown());
        assert_eq!((span.kind(), span.taken()), (Kind::Small(0), 1));
        assert!(span.give_up(Kind::Small(0), 3000, false));
        span.put(3000);
        assert!(span.empty(0));
        assert_eq!((span.kind(), span.taken()), (Kind::Free, 0));
    }

    #[test]
    fn a_span_that_became_something_else_gives_nothing() {
        let span = Span::new();
        span.make(Kind::Small(3), |object| object == 5);
        assert!(!span.give_up(Kind::Small(4), 5, false) && span.holds(Kind::Small(3), 5));
        assert_eq!((span.take(4), span.taken()), (None, 1));
    }

    #[test]
    fn spans_stay_where_they_are() {
        let spans = Spans::default();
        let mut all: Vec<*const Span> = (0..5000).map(|n| &raw const *spans.get(n)).collect();
        assert!((0..5000).all(|n| std::ptr::eq(all[n as usize], spans.get(n))));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 5000);
    }

    #[test]
    fn threads_take_and_put_without_meeting_in_an_object() {
        let span = Span::new();
        span.make(Kind::Small(0), |_| false);
        let owner: Vec<AtomicU32> = (0..class::objects(0)).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 1..=4u32 {
                let (span, owner) = (&span, &owner);
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    for round in 0..20_000u32 {
                        if let Some(object) = span.take(0) {
                            assert_eq!(owner[object as usize].swap(thread, SeqCst), 0, "taken twice");
                            mine.push(object);
                        }
                        if round % 3 > 0 || mine.len() > 900 {
                            let object = mine.swap_remove(round as usize % mine.len());
                            assert_eq!(owner[object as usize].swap(0, SeqCst), thread);
                            span.put(object);
                        }
                    }
                    mine.into_iter().for_each(|object| {
                        owner[object as usize].store(0, SeqCst);
                        span.put(object);
                    });
                });
            }
        });
        assert_eq!(span.taken(), 0);
    }
}
