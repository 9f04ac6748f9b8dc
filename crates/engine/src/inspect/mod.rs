//! Looking at a store: checking it, and telling what it holds and does.

pub(crate) mod check;
pub(crate) mod info;
pub(crate) mod query;
