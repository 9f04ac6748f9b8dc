//! The C interface: `libcaliburn` and `caliburn.h`, which is generated from what is here.
//!
//! Everything is a thin cover over the crate `caliburn`: it checks what a C compiler cannot, turns errors into
//! codes and messages, and lets no panic through. The conventions are at the head of the header
//! (`cbindgen.toml`); the one contract that all `unsafe` here relies on is theirs: what a C program passes is
//! valid memory of the size and type that the function's own words say, for as long as they say.

#![allow(clippy::missing_safety_doc, reason = "the conventions at the head of caliburn.h are the contract")]
#![allow(non_camel_case_types, reason = "C's names")]

mod error;
mod heap;
mod options;
mod prepared;
mod query;
mod region;
mod segment;
mod store;
mod transaction;
