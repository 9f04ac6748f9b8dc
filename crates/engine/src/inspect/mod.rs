//! Looking at a store that is not open: checking it, and telling what it consists of.

pub(crate) mod check;
pub(crate) mod info;
