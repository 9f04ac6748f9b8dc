//! Typed objects in recoverable memory. (The tour is in `caliburn`.)

mod error;
mod guard;
mod hash;
mod hash_map;
mod layout;
mod link;
mod objects;
mod pbox;
mod recoverable;
mod string;
mod tx;
mod vec;

pub use caliburn_derive::Recoverable;
pub use error::Error;
pub use guard::{Mut, Owned};
pub use hash_map::{
    Entry, Iter as HashMapIter, IterMut as HashMapIterMut, OccupiedEntry, PHashMap, VacantEntry,
};
pub use layout::{Definition, Types};
pub use objects::{Objects, View, Writer};
pub use pbox::{NewBox, PBox};
pub use recoverable::{Answer, Fields, Init, No, Recoverable, Taken, Yes};
pub use string::PString;
pub use tx::Tx;
pub use vec::{IterMut, PVec};
