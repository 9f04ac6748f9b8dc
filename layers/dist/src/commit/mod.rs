//! How the nodes that a transaction has used come to the same end of it.
//!
//! ```text
//!   blocking (presumed abort)                        without blocking (slots)
//!
//!   coordinator          participant                 coordinator          participant
//!        | prepare ------------> |                        | prepare ------------> |
//!        |                 force Prepared                 |                 put Yes in its slot
//!        | <--------------- yes  |                        | <--------------- yes  |
//!   force Commit                 |                        | committed ----------> |
//!        | committed ----------> |                        | <--------------- ack  |
//!        |                 write Committed           delete the slots
//!        | <--------------- ack  | when that is durable
//!   write End
//! ```
//!
//! Blocking: for each participant that has changed something one forced record and three messages; one force at
//! the coordinator; nothing is forced for those that abort. A participant that has only read is out when it has
//! voted (R*: Mohan, Lindsay, Obermarck 1986). Who is prepared and hears nothing asks; a coordinator that knows
//! nothing of a transaction says that it aborted.
//!
//! Without blocking: a transaction is committed if and only if all slots say yes. A slot is written once, by its
//! participant or by whoever has waited too long and closes it (Cornus: Guo and others 2022): all nodes but one
//! may be gone, and it learns the outcome of the slots.
//!
//! Invariant: nobody does, or tells, that a transaction has committed and another that it has aborted.
//! Invariant: a node votes for what it has done: what was done before it crashed is lost, and it votes no.

pub mod coordinator;
pub mod participant;
pub mod slots;
pub mod word;
