//! Transactions across machines (Camelot, sections 4.5 and 5). So far the commit protocols, as state machines
//! without input or output: whoever runs them carries their messages, makes their records durable, and tells them
//! of time.
//!
//! | module | noun |
//! |---|---|
//! | [`commit::word`] | what they say to each other, and to those who run them |
//! | [`commit::coordinator`] | who asks for votes and decides |
//! | [`commit::participant`] | who votes and is told |
//! | [`commit::slots`] | votes that are kept where anyone can close them: commitment without blocking |
#![forbid(unsafe_code)]

pub mod bank;
pub mod chase;
pub mod client;
pub mod cluster;
pub mod commit;
pub mod credentials;
pub mod daemon;
pub mod data_server;
pub mod family;
pub mod host;
pub mod id;
pub mod keep;
pub mod node;
pub mod process_id;
pub mod proto;
pub mod rights;
pub mod scope;
pub mod travelling;
pub mod wire;
