//! Camelot's library for C: what `include/camelot.h` declares. Jumps, and the macros' frames, are in `frames.c`; the
//! transactions themselves, and all else, are here, on a stack for each thread.
//!
//! | module | noun |
//! |---|---|
//! | `status` | how a transaction or a call has ended, in numbers and words |
//! | `tid` | identities of transactions |
//! | `bytes` | messages as they are |
//! | `program` | what the whole process has: a runtime, a cluster, an application |
//! | `stack` | the transactions of a thread |
//! | `call` | calls of servers |
//! | `server` | a data server |
//! | `objects` | recoverable objects, and locks |
//! | [`stubs`] | makes stubs of an interface |
//!
//! Contract of all `unsafe` here: what a C program passes is valid memory of the type that the header says, for as
//! long as the call runs. No panic leaves: whoever catches one in C would find its transactions half ended.

mod bytes;
mod call;
mod objects;
mod program;
mod server;
mod stack;
mod status;
pub mod stubs;
mod tid;
