//! What every policy stands on: the catalog, segments and the checksums beside them, mapped regions, errors.

pub(crate) mod catalog;
pub(crate) mod class;
pub(crate) mod error;
pub(crate) mod kind;
pub(crate) mod redo_ranges;
pub(crate) mod region;
pub(crate) mod region_table;
pub(crate) mod segment;
pub(crate) mod sums;
pub(crate) mod tuning;
