//! What each open transaction has declared, with the old bytes: a run of ranges, published by one word.
//!
//! ```text
//!   slot --> | word | range old bytes | range old bytes | ...          the run's first chunk
//!       \--> | word | range old bytes | ...                            further chunks
//!
//!   declare:  write the range and its old bytes behind the last - publish the word - then store
//!   abort:    old bytes back, newest first - clear
//!   clear:    one store, under the number of the next transaction: nothing is declared any more
//! ```
//!
//! Both recovery policies keep their write sets so. With `undo` the run lies in memory that survives what the
//! transaction is to survive, and the word publishes it to recovery. With `redo` it is ordinary memory, and the
//! word publishes it to truncation, which must not write a page that an uncommitted transaction has declared
//! ([`reserve`] tells how the two find each other).

mod growth;
mod quiet;
mod ranges;
mod reserve;
mod run;
mod savepoint;
mod set;
mod slots;
mod turn;

pub(crate) use reserve::{RESERVED, Reserve};
pub(crate) use run::{Chunk, HEAD, Layout, Saved, set_word};
pub(crate) use set::{Position, Terms, WriteSet, Written};
pub(crate) use slots::Slots;
pub(crate) use turn::Turn;

/// The write sets of an open store.
pub(crate) struct Sets {
    pub slots: Slots,
    pub reserve: Reserve,
    /// Something tracks changes, and must see each declaration.
    pub tracked: bool,
    /// Whose turn it is, where one transaction at a time is open.
    pub turn: Turn,
}

impl Sets {
    pub fn new(layout: Layout, tracked: bool) -> Sets {
        Sets { slots: Slots::new(layout), reserve: Reserve::default(), tracked, turn: Turn::default() }
    }

    /// Says how much a transaction may declare before the policy must think, from the next ones on: nothing
    /// where each declaration is to be seen.
    pub fn grant(&self, most: usize) {
        self.slots.grant(if self.tracked { 0 } else { most });
    }
}
