//! Locks that follow nested transactions, from level to level.

use crate::error::LockError;
use crate::owner::Owner;
use caliburn_nest::{Error, Follow};

impl Follow<'_> for Owner {
    fn child(&mut self) -> Owner {
        Owner::child(self)
    }

    fn independent(&mut self) -> Owner {
        Owner::independent(self)
    }

    fn vote(&mut self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.goes_on()?)
    }

    fn commit(self, _: &mut Owner) {
        Owner::commit(self);
    }

    fn end(self) {
        Owner::end(self);
    }

    fn abort(self) {
        Owner::end(self);
    }
}

impl From<LockError> for Error {
    fn from(error: LockError) -> Error {
        Error::Followed(Box::new(error))
    }
}
