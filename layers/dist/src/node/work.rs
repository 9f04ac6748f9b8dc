//! What a transaction holds at a node: a transaction of its store, or a part of one, and locks.

use crate::family::Level;
use caliburn_engine::{Branch, BranchError, RangeError, Transaction};
use caliburn_lock::Owner;
use caliburn_nest::Timestamp;

/// Changes and locks of a family, or of a call.
#[derive(Debug)]
pub(crate) struct Work<'t> {
    // Undone before anybody can have its locks.
    part: Part<'t>,
    pub owner: Owner,
    /// Whether it has changed anything.
    pub wrote: bool,
    /// Its timestamp, once it is asked to commit.
    pub at: Timestamp,
}

#[derive(Debug)]
enum Part<'t> {
    Top(Transaction<'t>),
    Branch(Branch<'t>),
    /// Somebody prepares it, or commits it.
    Away,
    /// It is prepared, under this identifier.
    Prepared(Vec<u8>),
}

/// Why a call can't begin, or what it did not stay.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkError {
    #[error(transparent)]
    Branch(#[from] BranchError),
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error("the transaction is prepared")]
    Prepared,
}

impl<'t> Work<'t> {
    pub fn top(transaction: Transaction<'t>, owner: Owner) -> Work<'t> {
        Work { part: Part::Top(transaction), owner, wrote: false, at: Timestamp::default() }
    }

    /// What recovery found prepared.
    pub fn recovered(global_id: Vec<u8>, at: Timestamp, owner: Owner) -> Work<'t> {
        Work { part: Part::Prepared(global_id), owner, wrote: true, at }
    }

    pub fn transaction(&mut self) -> Result<&mut Transaction<'t>, WorkError> {
        match &mut self.part {
            Part::Top(transaction) => Ok(transaction),
            Part::Branch(branch) => Ok(branch),
            Part::Away | Part::Prepared(_) => Err(WorkError::Prepared),
        }
    }

    /// Takes the transaction, to prepare or commit it.
    pub fn take(&mut self) -> Option<Transaction<'t>> {
        match std::mem::replace(&mut self.part, Part::Away) {
            Part::Top(transaction) => Some(transaction),
            part => {
                self.part = part;
                None
            }
        }
    }

    /// It was prepared.
    pub fn prepared(&mut self, global_id: Vec<u8>) {
        self.part = Part::Prepared(global_id);
    }

    /// Its identifier if it is prepared.
    pub fn global_id(&self) -> Option<&[u8]> {
        match &self.part {
            Part::Prepared(global_id) => Some(global_id),
            _ => None,
        }
    }
}

impl<'t> Level for Work<'t> {
    type Error = WorkError;

    fn child(&mut self) -> Result<Work<'t>, WorkError> {
        let branch = self.transaction()?.branch()?;
        let (owner, at) = (self.owner.child(), self.at);
        Ok(Work { part: Part::Branch(branch), owner, wrote: false, at })
    }

    fn adopt(&mut self, child: Work<'t>) -> Result<(), WorkError> {
        let Work { part, owner, wrote, .. } = child;
        let Part::Branch(branch) = part else { return Err(WorkError::Prepared) };
        self.transaction()?.adopt(branch)?;
        self.wrote |= wrote;
        owner.commit();
        Ok(())
    }
}
