//! A node that runs: a store, data servers, and its part in the commit protocols.
//!
//! | module | noun |
//! |---|---|
//! | `work` | what a transaction holds: changes and locks |
//! | `heaps` | what a transaction has allocated, made part of it |
//! | `ledger` | what the node itself remembers |
//! | `outside` | what the node has around it |
//! | `state` | what it is in the middle of |
//! | `core` | does what its host wants |
//! | `recovery` | what it does with what it finds when it runs again |
//! | [`call`] | an operation of a data server at work |
//! | `deadlocks` | what it knows of those between nodes |
//! | `pool` | threads for calls that must not wait for one |
//! | `running` | a node that runs, as its servers have it |
//! | `serve` | the interface for programs and other nodes |
//! | `door` | connections, before and after they have proven whose they are |
//! | `guard` | who may call what |
//! | `notices` | what an operator should know |
//! | `judgement` | what an administrator decides |
//! | `error` | why a node does not run |
//! | `ending` | how a transaction ends where it was begun |
//! | `time` | its clock, as its commits need it |
//! | `replicated` | a node whose log other machines have too |
//! | `open`, `opening` | a node that is to run; its own thread, which opens its store |

pub mod call;
pub(crate) mod core;
mod deadlocks;
pub(crate) mod door;
mod dumps;
mod ending;
mod error;
mod guard;
mod heaps;
mod judgement;
mod kept;
mod ledger;
pub(crate) mod notices;
mod open;
mod opening;
pub(crate) mod outside;
mod pool;
mod recovery;
mod replicated;
mod running;
mod serve;
mod state;
mod time;
pub(crate) mod work;

pub use door::Connections;
pub use error::NodeError;
pub use judgement::Undecided;
pub use ledger::Judgement;
pub use open::Builder;
pub use running::Node;
pub use serve::ServeError;
