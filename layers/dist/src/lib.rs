//! Transactions across machines (Camelot): nodes, data servers, and programs that run transactions over any of them;
//! `docs/camelot.md` has the pictures. The commit protocols are state machines without input or output: whoever runs
//! them carries their messages, makes their records durable, and tells them of time.
//!
//! | module | noun |
//! |---|---|
//! | [`client`] | a program, and its transactions |
//! | [`cluster`] | which nodes there are, and how they are reached |
//! | [`node`] | a node that runs: a store, operations, its part in the protocols |
//! | [`directory`] | names, as nodes tell them to programs |
//! | [`data_server`], [`environment`] | one as a process that is told by its environment |
//! | `exposure` | whether others than nodes could write what is in etcd |
//! | [`daemon`] | a machine's node: supervises data servers, and is administered |
//! | [`credentials`], [`rights`] | who somebody is, and what users may do |
//! | [`keep`] | what etcd keeps: slots, epochs, names, logs |
//! | [`commit`] | the protocols: who asks for votes, who votes, and slots for commitment without blocking |
//! | [`family`], [`scope`] | a family at one node, and as its program sees it |
//! | [`host`], [`letter`] | what a node is in the middle of; what nodes send each other |
//! | [`reliance`] | how far a node relies on what etcd keeps |
//! | [`chase`] | deadlocks between nodes |
//! | [`bank`], [`link`] | an example; a network that can be cut |
#![forbid(unsafe_code)]

pub mod bank;
pub mod chase;
pub mod client;
pub mod cluster;
pub mod commit;
pub mod credentials;
pub mod daemon;
pub mod data_server;
pub mod directory;
mod dumping;
pub mod environment;
mod exposure;
pub mod family;
mod hearing;
pub mod host;
pub mod id;
pub mod keep;
pub mod letter;
pub mod link;
pub mod log_plan;
pub mod node;
pub mod process_id;
pub mod proto;
pub mod reliance;
mod relying;
pub mod rights;
pub mod scope;
pub mod timetable;
pub mod travelling;
pub mod wire;

pub use caliburn_heap::{Heap, Place};
pub use caliburn_nest::Timestamp;
