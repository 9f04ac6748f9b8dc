//! A heap in recoverable memory (Vista, section 3.2): objects are allocated and freed in transactions, with either
//! recovery policy. What a transaction allocated or freed is so when it has committed; aborted, or cut short by a
//! crash, it leaves the heap as it was.
//!
//! | module | noun |
//! |---|---|
//! | `heap` | a heap: two segments of a store, its spans, its roots |
//! | `rows` | what is allocated, taken up when it is needed |
//! | `supply` | where objects come from when a cache is empty |
//! | `clear` | zeros where nothing is |
//! | `statistics` | what it holds, counted and verified |
//! | `transaction` | a transaction with allocations |
//! | `allocations` | what a part of a transaction has allocated, where that is in other hands |
//! | `change` | what it did with an object |
//! | `prepared` | transactions with allocations that are undecided |
//! | `intentions` | the list of what one of them did |
//! | `span` | 64 KiB of objects of one size, as the process sees them |
//! | `meta` | what is in recoverable memory: self-checking words, apart from the objects |
//! | `class` | sizes |
//!
//! Invariant: objects and what the heap knows of them are in different segments: a program that writes beyond an
//! object's end does not reach the heap's own data (Vista's isolation).
//! Invariant: recoverable words change only when a transaction commits, under the locks of their spans; what open
//! transactions have taken or are giving up is known to the process alone, and of prepared ones in a list of theirs.
#![forbid(unsafe_code)]

mod allocations;
mod change;
mod class;
mod clear;
mod heap;
mod intentions;
mod meta;
mod prepared;
mod rows;
mod span;
mod statistics;
mod supply;
mod transaction;

pub use allocations::{Allocations, Intended, Taken, Undecided};
pub use heap::{Heap, HeapError, Place};
pub use statistics::{ClassStatistics, Statistics};
pub use transaction::{HeapTransaction, Savepoint};
