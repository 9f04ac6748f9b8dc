//! Typed objects in recoverable memory. (The tour is in `caliburn`.)

mod btree_map;
mod deque;
mod entry;
mod error;
mod hash;
mod hash_map;
mod link;
mod map;
mod objects;
mod pbox;
mod set;
mod shared;
mod slot_map;
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
pub use map::{Map, SortedMap, map, sorted_map};
pub use objects::{Objects, View, Writer};
pub use pbox::{NewBox, PBox};
pub use set::{PBTreeSet, PHashSet};
pub use shared::{NewRc, PArc, PRc, PWeak, Shared};
pub use slot_map::{PSlotMap, SlotKey};
pub use string::PString;
pub use value::guard::{Mut, Owned};
pub use value::layout::{Definition, Types};
pub use value::recoverable::{Answer, Fields, Init, No, Recoverable, Taken, Yes};
pub use value::tx::Tx;
pub use vec::{IterMut, PVec};
