//! Identities of transactions, as C has them.

use caliburn_dist::id::{TID_BYTES, Tid};

/// One.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CTid([u8; TID_BYTES]);

impl From<Tid> for CTid {
    fn from(tid: Tid) -> CTid {
        CTid(tid.to_bytes())
    }
}

impl CTid {
    /// Of none.
    pub const NONE: CTid = CTid([0; TID_BYTES]);
}
