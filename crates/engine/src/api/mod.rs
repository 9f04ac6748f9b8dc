//! What a program holds: a store and its options, segments, regions, transactions, tickets.

pub(crate) mod mapping;
pub mod options;
pub(crate) mod recovery;
pub(crate) mod shared;
pub(crate) mod store;
pub(crate) mod ticket;
pub(crate) mod transaction;
