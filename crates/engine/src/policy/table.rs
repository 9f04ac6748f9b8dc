//! The policies that there are.

use super::kind::{Kind, Policy};
use super::{redo, shadow, undo};
use crate::storage::catalog::Catalog;
use crate::storage::directory;
use crate::storage::error::OpenError;
use caliburn_log::format::Defect;
use std::path::Path;

/// Every policy. A new one is a folder, its name in [`Policy`], and a line here.
const KINDS: [&dyn Kind; 3] = [&redo::Kind, &undo::Kind, &shadow::Kind];

/// What a policy does with stores that are not open.
pub(crate) fn kind(policy: Policy) -> &'static dyn Kind {
    KINDS.into_iter().find(|kind| kind.policy() == policy).expect("every policy has its line")
}

/// The policy that a catalog names.
pub(crate) fn kind_of(dir: &Path, catalog: &Catalog) -> Result<&'static dyn Kind, OpenError> {
    let found = KINDS.into_iter().find(|kind| kind.policy() as u16 == catalog.policy);
    found.ok_or_else(|| {
        let text = format!("it names recovery policy {}, which is unknown", catalog.policy);
        let (path, offset) = (dir.join(directory::CATALOG), 0);
        OpenError::Catalog { path, offset, defect: Defect::Value(text) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_one_line() {
        for policy in [Policy::Redo, Policy::Undo, Policy::Shadow] {
            assert_eq!(KINDS.iter().filter(|kind| kind.policy() == policy).count(), 1);
            assert_eq!(kind(policy).policy(), policy);
        }
    }
}
