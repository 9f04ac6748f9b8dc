//! Small numbers for threads: each live thread has one that no other live thread has.
//!
//! What is indexed by a thread's ordinal belongs to that thread alone, so it can be taken and given back
//! with plain stores where others would need a locked instruction - which costs 8 ns by itself and, worse,
//! keeps the processor from overlapping the cache misses of one transaction with those of the next.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Mutex;

/// The ordinal of the current thread. Cannot leave it.
#[derive(Debug, Clone, Copy)]
pub struct Ordinal {
    number: usize,
    _of_this_thread: PhantomData<*const ()>,
}

impl Ordinal {
    /// The number; small if few threads live. `usize::MAX` in a thread that is ending, which owns nothing.
    #[inline(always)]
    pub fn number(self) -> usize {
        self.number
    }
}

const NONE: usize = usize::MAX - 1;
const ENDED: usize = usize::MAX;

crate::sync::thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(NONE) };
    static CLAIM: Claim = const { Claim { number: Cell::new(NONE) } };
}

/// Gives the number back when its thread ends.
struct Claim {
    number: Cell<usize>,
}

#[derive(Default)]
struct Numbers {
    free: Vec<usize>,
    next: usize,
}

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { free: Vec::new(), next: 0 });

impl Drop for Claim {
    fn drop(&mut self) {
        // The thread may come by once more while it ends; it owns nothing then.
        let _ = NUMBER.try_with(|n| n.set(ENDED));
        let number = self.number.get();
        if number < NONE {
            NUMBERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).free.push(number);
        }
    }
}

/// The current thread's number, if it has one that is less than `most`. A thread that never asked has none yet.
#[inline(always)]
pub fn below(most: usize) -> Option<usize> {
    Some(NUMBER.with(Cell::get)).filter(|number| *number < most)
}

/// The current thread's ordinal.
#[inline(always)]
pub fn current() -> Ordinal {
    let mut number = NUMBER.with(Cell::get);
    if number == NONE {
        number = claim();
    }
    Ordinal { number, _of_this_thread: PhantomData }
}

#[cold]
fn claim() -> usize {
    let claimed = CLAIM.try_with(|claim| {
        let mut numbers = NUMBERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // The lock orders what the last owner of a number did before what the next one does.
        numbers.free.sort_unstable_by(|a, b| b.cmp(a));
        let number = numbers.free.pop().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        });
        claim.number.set(number);
        number
    });
    let number = claimed.unwrap_or(ENDED);
    NUMBER.with(|n| n.set(number));
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn live_threads_differ_and_ended_threads_give_back() {
        let round = || {
            let barrier = Barrier::new(8);
            let mut numbers: Vec<usize> = std::thread::scope(|scope| {
                let work = || {
                    let number = current().number();
                    barrier.wait();
                    assert_eq!(current().number(), number);
                    number
                };
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), 8);
            numbers[7]
        };
        let most = (0..50).map(|_| round()).max().unwrap();
        assert!(most < 64, "numbers are not given back: {most}");
    }
}
