//! What a program holds: a store and its options, segments, regions, transactions, tickets. It puts storage,
//! policy and tracking together, and decides nothing that is theirs.

mod backup;
pub(crate) mod compact;
mod ending;
pub(crate) mod image;
mod mapping;
pub(crate) mod metrics;
mod moving;
mod open;
pub mod options;
mod prepared;
pub(crate) mod query;
pub(crate) mod region;
pub(crate) mod segment;
mod shared;
pub(crate) mod store;
pub(crate) mod ticket;
pub(crate) mod transaction;
mod undeclared;
pub(crate) mod view;
