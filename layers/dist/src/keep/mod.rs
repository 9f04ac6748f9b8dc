//! Who keeps the slots of transactions that commit without blocking, and the epochs of nodes: something that loses
//! nothing and compares in the same step as it puts.
//!
//! ```text
//!   epoch of a node        its present life; a put by an earlier one is refused
//!   slot of a participant  put by itself (yes), or by whoever closes it
//! ```
//!
//! A keeper may be lost, or restored from a backup: [`known`] says how each node notices that.
//!
//! A slot is deleted when all participants know how the transaction ended, all those of a transaction at once. Who
//! closes slots is a participant that does not know, or the coordinator, which deletes them itself: so nobody
//! takes a slot that was deleted for one that was never put. A put that was under way for long may make a slot
//! again, which nobody asks for; the coordinator looks for such now and then.

pub mod claim;
pub mod etcd;
pub mod keeper;
pub mod known;
pub(crate) mod log;
pub mod meeting;
pub mod members;
pub mod memory;
pub mod names;

pub use claim::{Claim, Kept, Met, Newcomer};
pub use known::{Doubt, Known, Looked};
