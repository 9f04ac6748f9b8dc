//! The redo policy.

mod commit;
