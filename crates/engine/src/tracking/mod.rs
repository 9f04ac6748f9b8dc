//! Stores that no transaction declared: prevented by page protection or keys, found by comparing with a shadow.

pub(crate) mod guard;
pub(crate) mod verify;
