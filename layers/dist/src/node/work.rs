//! What a transaction holds at a node: a transaction of its store, or a part of one, and locks.

use crate::family::Level;
use caliburn_engine::{Branch, BranchError, RangeError, Transaction};
use caliburn_heap::{Allocations, Heap, Taken};
use caliburn_lock::Owner;
use caliburn_nest::Timestamp;

/// Changes and locks of a family, or of a call.
#[derive(Debug)]
pub(crate) struct Work<'t> {
    // Undone before anybody can have what it has allocated, and that before its locks.
    part: Part<'t>,
    /// One for each heap that it has used.
    allocations: Vec<Allocations<'t>>,
    /// What its family has allocated.
    taken: Taken,
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
        Work::new(Part::Top(transaction), owner, Timestamp::default())
    }

    /// What recovery found prepared.
    pub fn recovered(global_id: Vec<u8>, at: Timestamp, owner: Owner) -> Work<'t> {
        Work { wrote: true, ..Work::new(Part::Prepared(global_id), owner, at) }
    }

    fn new(part: Part<'t>, owner: Owner, at: Timestamp) -> Work<'t> {
        Work { part, allocations: Vec::new(), taken: Taken::default(), owner, wrote: false, at }
    }

    pub fn transaction(&mut self) -> Result<&mut Transaction<'t>, WorkError> {
        match &mut self.part {
            Part::Top(transaction) => Ok(transaction),
            Part::Branch(branch) => Ok(branch),
            Part::Away | Part::Prepared(_) => Err(WorkError::Prepared),
        }
    }

    /// What it has allocated and freed in a heap.
    pub fn allocations(&mut self, heap: &'t Heap) -> &mut Allocations<'t> {
        let at = self.allocations.iter().position(|of| std::ptr::eq(of.heap(), heap));
        let at = at.unwrap_or_else(|| {
            self.allocations.push(Allocations::new(heap, &self.taken));
            self.allocations.len() - 1
        });
        &mut self.allocations[at]
    }

    /// Takes the transaction, with what it has allocated, to prepare or commit it.
    pub fn take(&mut self) -> Option<(Transaction<'t>, Vec<Allocations<'t>>)> {
        match std::mem::replace(&mut self.part, Part::Away) {
            Part::Top(transaction) => Some((transaction, std::mem::take(&mut self.allocations))),
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
        let child = Work::new(Part::Branch(branch), self.owner.child(), self.at);
        Ok(Work { taken: self.taken.clone(), ..child })
    }

    fn adopt(&mut self, child: Work<'t>) -> Result<(), WorkError> {
        // If it can't be adopted, what it has allocated goes before its locks.
        let Work { owner, allocations, part, wrote, .. } = child;
        let Part::Branch(branch) = part else { return Err(WorkError::Prepared) };
        self.transaction()?.adopt(branch)?;
        allocations.into_iter().for_each(|of| self.allocations(of.heap()).adopt(of));
        self.wrote |= wrote;
        owner.commit();
        Ok(())
    }
}
