//! Values in a store: what may be one, how it is described, and how a transaction changes it.

pub mod datum;
pub mod guard;
pub mod language;
pub mod layout;
pub mod nest;
pub mod recoverable;
pub mod tx;
