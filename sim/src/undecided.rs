//! Prepared transactions of a life, and how they are decided.

use crate::model::Changes;
use caliburn::{CommitError, Store};

/// One that is undecided.
pub struct Undecided {
    /// Its identifier.
    pub id: Vec<u8>,
    /// What it is to change.
    pub changes: Changes,
    /// Recovery found it.
    pub recovered: bool,
}

/// Half of the decisions nobody waits for.
pub fn is_decided_lazily(id: &[u8]) -> bool {
    id.last().is_some_and(|byte| byte % 4 < 2)
}

/// Decides about one; `lazily`: without waiting for that to be durable.
pub fn decide(store: &Store, id: &[u8], commit: bool, lazily: bool) -> Result<(), CommitError> {
    match (commit, lazily) {
        (true, false) => store.commit_prepared(id),
        (false, false) => store.abort_prepared(id),
        (true, true) => store.commit_prepared_ticket(id).map(drop),
        (false, true) => store.abort_prepared_ticket(id).map(drop),
    }
}
