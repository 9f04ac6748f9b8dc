//! The C interface of `caliburn-pm`: `libcaliburn_pm` and `pm.h`, which is generated from what is here. The
//! conventions are at the head of the header (`cbindgen.toml`), and are the contract that all `unsafe` here relies
//! on.

#![allow(clippy::missing_safety_doc, reason = "the conventions at the head of pm.h are the contract")]
#![allow(non_camel_case_types, reason = "C's names")]

mod blocks;
mod error;
mod region;
mod segment;
