//! Owners of locks: a tree of transactions, with locks that go up it.

use crate::error::{LockError, OwnerId};
use crate::node::{Holding, Node, Place, Table};
use caliburn_os::simulated::{planted, unless};
use caliburn_os::sync::MutexGuard;
use std::fmt;
use std::sync::Arc;

/// A transaction that can hold locks. Dropped, it has aborted.
pub struct Owner {
    pub(crate) node: Arc<Node>,
    /// What it has locked itself.
    pub(crate) held: Holding,
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owner").field(&self.id()).finish()
    }
}

impl Owner {
    pub(crate) fn new(node: Arc<Node>) -> Owner {
        Owner { node, held: Holding::default() }
    }

    /// How texts name it.
    pub fn id(&self) -> OwnerId {
        self.node.id()
    }

    /// A child: it may hold what only its ancestors hold in its way.
    pub fn child(&self) -> Owner {
        Owner::new(self.node.child())
    }

    /// Another family, begun within this one, which waits until that has ended.
    pub fn independent(&self) -> Owner {
        Owner::new(Node::top(Some(self.node.clone())))
    }

    /// The top has aborted, and is tried again: an owner without locks that is as old. Among those in a deadlock
    /// the youngest is the victim, so that one that keeps its age gets through some time. Within a family whose
    /// other transaction is to abort, it is to abort as well: whoever tries again looks at that
    /// ([`Owner::goes_on`]).
    ///
    /// # Panics
    /// If it is a child.
    pub fn again(self) -> Owner {
        assert!(self.node.parent.is_none(), "a child is tried again by its parent, in another child");
        let again = self.node.again();
        drop(self);
        Owner::new(again)
    }

    /// Whether it may go on.
    ///
    /// # Errors
    /// [`LockError::Deadlock`] or [`LockError::Overlong`] when it, or one that it is part of, is to abort.
    pub fn goes_on(&self) -> Result<(), LockError> {
        match self.node.doomed() {
            Some(doom) if unless("victims-commit", true) => Err(doom.clone().into()),
            _ => Ok(()),
        }
    }

    /// Locks that it holds, itself or from children that have committed.
    pub fn locks(&self) -> usize {
        self.held.len() + self.inherited().len()
    }

    /// The child has committed: its locks are its parent's, in modes that are as strong as both's.
    ///
    /// # Panics
    /// If it is a top: that ends.
    pub fn commit(mut self) {
        let parent = self.node.parent.clone().expect("a top has no parent: it ends");
        if planted("locks-not-inherited") {
            return;
        }
        let mut inherited = std::mem::take(&mut *self.inherited());
        for holding in [&mut self.held, &mut inherited] {
            holding.inherit(&self.node, &parent, &parent.inherited);
        }
    }

    /// The top has committed, or the transaction has aborted: its locks are nobody's.
    pub fn end(self) {}

    pub(crate) fn has(&self, table: &impl Table, place: Place) -> bool {
        self.held.has(table, place) || self.inherited().has(table, place)
    }

    /// It holds this lock no more.
    pub(crate) fn forget(&mut self, table: &impl Table, place: Place) {
        if !self.held.remove(table, place) {
            self.inherited().remove(table, place);
        }
    }

    fn inherited(&self) -> MutexGuard<'_, Holding> {
        self.node.inherited.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Owner {
    #[inline]
    fn drop(&mut self) {
        self.held.release(&self.node);
        let mut inherited = std::mem::take(&mut *self.inherited());
        inherited.release(&self.node);
    }
}
