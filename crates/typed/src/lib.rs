//! Typed objects in recoverable memory: structs and collections that are reached from a root, read as plain
//! references, and changed through guards that a transaction lends. RVM's authors name the forgotten
//! `set_range` as the worst of its users' mistakes, and a language as the cure (section 6 and 8): here a change
//! that is not declared does not compile.
//!
//! | module | noun |
//! |---|---|
//! | `value` | what may be in a store, and how it is described; guards; transactions as closures see them |
//! | `objects` | a heap with a root: opening, reading, transactions |
//! | `turns` | one writer, many readers |
//! | `images`, `snapshot` | objects as they were, while transactions go on |
//! | `link`, `pbox`, `shared` | pointers |
//! | `vec`, `string`, `deque`, `hash_map`, `btree_map`, `set`, `slot_map`, `log` | collections, `entry` their entries, `hash` their hash function |
//! | `map` | stores that are simply maps |
//! | `migrate` | objects of older types; `plan` what a migration would do, `kept` the old objects after it |
//! | `show` | objects without their types |
//! | `reach` | objects that nothing owns |
//! | `portable` | objects as text, and as CBOR (feature `serde`) |
//! | `pieces`, `rebuild` | objects taken apart, and put together again |
//!
//! The tour is in `caliburn`, which re-exports all of it; docs/safety.md says what safe code can rely on.

mod btree_map;
mod deque;
mod entry;
mod error;
mod hash;
mod hash_map;
mod images;
mod kept;
mod link;
mod log;
mod map;
mod migrate;
mod objects;
mod pbox;
mod pieces;
mod plan;
#[cfg(feature = "serde")]
mod portable;
mod reach;
mod rebuild;
mod set;
mod shared;
mod show;
mod slot_map;
mod snapshot;
mod string;
mod turns;
mod value;
mod vec;

pub use btree_map::{Iter as BTreeMapIter, IterMut as BTreeMapIterMut, PBTreeMap};
pub use caliburn_derive::Recoverable;
pub use deque::PVecDeque;
pub use entry::{AsKey, Entry, OccupiedEntry, VacantEntry};
pub use error::Error;
pub use hash_map::{Iter as HashMapIter, IterMut as HashMapIterMut, PHashMap};
pub use kept::{back_out, forget_old};
pub use log::PLog;
pub use map::{Map, SortedMap, map, sorted_map};
pub use objects::{Objects, View, Writer};
pub use pbox::{NewBox, PBox};
pub use plan::{Fate, Plan, Planned};
#[cfg(feature = "serde")]
pub use portable::{Format, export};
pub use reach::{Unreached, reclaim, unreached};
pub use rebuild::Progressed;
pub use set::{PBTreeSet, PHashSet};
pub use shared::{NewRc, PArc, PRc, PWeak, Shared};
pub use show::{Extent, Shown, place, recorded_root, recorded_types, show};
pub use slot_map::{PSlotMap, SlotKey};
pub use snapshot::Snapshot;
pub use string::PString;
#[doc(hidden)]
pub use value::datum::replace;
pub use value::datum::{Datum, Loader, Parts, Piece};
pub use value::guard::{Mut, Owned};
pub use value::layout::{Definition, Types};
pub use value::recoverable::{Answer, Fields, Init, No, Recoverable, Taken, Yes};
pub use value::tx::Tx;
pub use vec::{IterMut, PVec};
