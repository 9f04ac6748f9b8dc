//! Stores that no transaction declared, as a program asks for them.

use crate::api::store::Store;
use crate::tracking::verify::Undeclared;

impl Store {
    /// What was stored to the mapped regions without being declared by a transaction that is open or has
    /// committed. Always empty without [`Options::verify`](crate::Options::verify), with which every commit
    /// looks for itself.
    ///
    /// # Panics
    /// As [`Store::segments`].
    pub fn undeclared(&self) -> Vec<Undeclared> {
        self.shared.storage.must_be_own();
        self.shared.tracked.undeclared()
    }

    /// Whether it was opened with [`Options::verify`](crate::Options::verify).
    #[inline]
    pub fn verifies(&self) -> bool {
        self.shared.tracked.verifies()
    }
}
