//! What users may do: which operations of which data servers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

/// Users, and what they may call. Clones are the same, and changes count from the next call on.
#[derive(Debug, Clone, Default)]
pub struct Rights(Arc<RwLock<BTreeMap<String, BTreeSet<String>>>>);

impl Rights {
    /// Nobody's.
    pub fn new() -> Rights {
        Rights::default()
    }

    /// Gives a user a right: to one operation (`caliburn.bank.v1.Bank/Add`), to all of a service
    /// (`caliburn.bank.v1.Bank/*`), or to all (`*`).
    pub fn allow(&self, user: impl Into<String>, operations: impl Into<String>) {
        let mut users = self.0.write().unwrap_or_else(PoisonError::into_inner);
        users.entry(user.into()).or_default().insert(operations.into());
    }

    /// These users from now on, and no others.
    pub fn set(&self, users: BTreeMap<String, BTreeSet<String>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = users;
    }

    /// Whether a user may call an operation, as gRPC names it: `<service>/<method>`.
    pub fn permits(&self, user: &str, operation: &str) -> bool {
        let users = self.0.read().unwrap_or_else(PoisonError::into_inner);
        users.get(user).is_some_and(|rights| rights.iter().any(|right| covers(right, operation)))
    }
}

/// Whether a right is one to an operation.
pub(crate) fn covers(right: &str, operation: &str) -> bool {
    let service = operation.split_once('/').map(|(service, _)| service);
    right == "*" || right == operation || right.strip_suffix("/*").is_some_and(|all| Some(all) == service)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_is_to_an_operation_a_service_or_all() {
        let rights = Rights::new();
        rights.allow("alice", "a.v1.Bank/Add");
        rights.allow("bob", "a.v1.Bank/*");
        rights.allow("carol", "*");
        let may =
            |operation: &str| ["alice", "bob", "carol", "dave"].map(|user| rights.permits(user, operation));
        assert_eq!(may("a.v1.Bank/Add"), [true, true, true, false]);
        assert_eq!(may("a.v1.Bank/Total"), [false, true, true, false]);
        assert_eq!(may("a.v1.Banker/Add"), [false, false, true, false]);
        assert_eq!(may(""), [false, false, true, false]);
        rights.set(BTreeMap::new());
        assert_eq!(may("a.v1.Bank/Add"), [false; 4]);
    }
}
