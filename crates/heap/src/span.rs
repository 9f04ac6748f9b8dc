//! Spans as the process sees them: what is allocated, by committed transactions and by open ones.
//!
//! ```text
//!   FREE --taken for a class--> owned by a cache --exhausted--> on its own --an object is free--> partial
//!     ^                              ^                                                              |
//!     +---- empty when it is looked for space                +--------- taken by a cache -----------+
//! ```

use crate::class::{self, CLASSES};
use crate::meta::Kind;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// A span. `commit` is held while the recoverable words of the span change; `state` for moments.
#[derive(Debug)]
pub struct Span {
    pub commit: Mutex<()>,
    state: Mutex<State>,
}

/// What the process knows of a span.
#[derive(Debug)]
pub struct State {
    pub kind: Kind,
    /// Allocated, by whomever.
    taken: Vec<u64>,
    /// Given up by transactions that are open.
    freeing: Vec<u64>,
    /// Taken by transactions that are open.
    fresh: Vec<u64>,
    free: u32,
    /// A cache allocates from it.
    pub owned: bool,
    /// It is on the list of its class.
    pub listed: bool,
    hint: usize,
}

impl State {
    /// A span of a class; `taken` tells which objects there are.
    pub fn make(&mut self, kind: Kind, taken: impl Fn(u32) -> bool) {
        let count = if let Kind::Small(class) = kind { class::objects(class) } else { 1 };
        self.kind = kind;
        self.taken = vec![0; count.div_ceil(64) as usize];
        (self.freeing, self.fresh) = (self.taken.clone(), self.taken.clone());
        (self.free, self.hint, self.owned, self.listed) = (count, 0, false, false);
        for object in (0..count).filter(|object| taken(*object)) {
            set(&mut self.taken, object);
            self.free -= 1;
        }
        if count % 64 != 0 {
            // Beyond the last object.
            let last = self.taken.len() - 1;
            self.taken[last] |= !0 << (count % 64);
        }
    }

    /// Takes an object.
    pub fn take(&mut self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let words = self.taken.len();
        let at = (0..words).map(|i| (self.hint + i) % words).find(|at| self.taken[*at] != !0)?;
        let object = at as u32 * 64 + self.taken[at].trailing_ones();
        set(&mut self.taken, object);
        set(&mut self.fresh, object);
        (self.free, self.hint) = (self.free - 1, at);
        Some(object)
    }

    /// Takes back an object that nobody has any more.
    pub fn put(&mut self, object: u32) {
        clear(&mut self.taken, object);
        clear(&mut self.freeing, object);
        clear(&mut self.fresh, object);
        self.free += 1;
        self.hint = self.hint.min(object as usize / 64);
    }

    /// Notes that an open transaction gives an object up; false if it is not to be given up.
    pub fn give_up(&mut self, object: u32) -> bool {
        if !self.holds(object) {
            return false;
        }
        set(&mut self.freeing, object);
        true
    }

    /// Whether an object is there that nobody has given up.
    pub fn holds(&self, object: u32) -> bool {
        object < self.count() && is(&self.taken, object) && !is(&self.freeing, object)
    }

    /// Whether an open transaction has taken it.
    pub fn is_fresh(&self, object: u32) -> bool {
        is(&self.fresh, object)
    }

    /// Notes that the transaction which took it has committed.
    pub fn settle(&mut self, object: u32) {
        clear(&mut self.fresh, object);
    }

    /// Notes that an object that takes spans was taken.
    pub fn freshen(&mut self) {
        set(&mut self.fresh, 0);
    }

    /// Notes that it was not given up after all.
    pub fn keep(&mut self, object: u32) {
        clear(&mut self.freeing, object);
    }

    /// Objects that can be taken.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Objects there are.
    pub fn count(&self) -> u32 {
        if let Kind::Small(class) = self.kind { class::objects(class) } else { 1 }
    }
}

fn set(bits: &mut [u64], object: u32) {
    bits[object as usize / 64] |= 1 << (object % 64);
}

fn clear(bits: &mut [u64], object: u32) {
    bits[object as usize / 64] &= !(1 << (object % 64));
}

fn is(bits: &[u64], object: u32) -> bool {
    bits.get(object as usize / 64).is_some_and(|word| word >> (object % 64) & 1 == 1)
}

impl Span {
    fn new() -> Span {
        let state = State {
            kind: Kind::Free,
            taken: Vec::new(),
            freeing: Vec::new(),
            fresh: Vec::new(),
            free: 0,
            owned: false,
            listed: false,
            hint: 0,
        };
        Span { commit: Mutex::default(), state: Mutex::new(state) }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const TIERS: usize = 24;
const FIRST_TIER: usize = 64;

/// All spans. Grows, never moves: reaching one takes no lock.
#[derive(Debug, Default)]
pub struct Spans {
    tiers: [OnceLock<Box<[Span]>>; TIERS],
}

impl Spans {
    pub fn get(&self, number: u32) -> &Span {
        let mut at = number as usize;
        for (i, tier) in self.tiers.iter().enumerate() {
            let len = FIRST_TIER << i;
            if at < len {
                return &tier.get_or_init(|| (0..len).map(|_| Span::new()).collect())[at];
            }
            at -= len;
        }
        unreachable!("the heap's length is limited to what the tiers hold")
    }
}

/// Most spans that there can be.
pub const SPANS_MAX: u32 = ((FIRST_TIER << TIERS) - FIRST_TIER) as u32;

/// A thread's spans, one for each class that it allocates from.
#[derive(Debug)]
#[repr(align(128))]
pub struct Cache(pub Mutex<[Option<u32>; CLASSES]>);

impl Default for Cache {
    fn default() -> Cache {
        Cache(Mutex::new([None; CLASSES]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_is_taken_once_and_taken_again_when_it_was_put_back() {
        for class in [0u8, 3, 17, 39] {
            let span = Span::new();
            let mut state = span.lock();
            state.make(Kind::Small(class), |_| false);
            let count = class::objects(class);
            let mut all: Vec<u32> = std::iter::from_fn(|| state.take()).collect();
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
            assert!(state.give_up(count - 1) && !state.give_up(count - 1));
            assert_eq!(state.take(), None);
            state.put(count - 1);
            assert!(!state.give_up(count - 1));
            assert_eq!(state.take(), Some(count - 1));
            assert!(!state.give_up(count));
        }
    }
}
