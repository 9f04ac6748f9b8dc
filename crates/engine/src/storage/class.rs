//! Failure classes: what a commit survives.

use caliburn_os::persist::Survives;

/// What a commit survives, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Class {
    /// The process may be killed. No system call. The commit is lazy towards the rest: it survives a
    /// power cut after the flush interval, or the next [`Store::flush`](crate::Store::flush).
    Process,
    /// The kernel may crash. On file and disk media only a force gives that, so it is like `Power`.
    Os,
    /// The power may fail: the commit waits until the log is forced, together with the others that wait.
    Power,
    /// The machine may be lost: the commit also waits until the log's [`Replica`](crate::Replica) has it.
    Quorum,
}

impl From<Survives> for Class {
    fn from(survives: Survives) -> Class {
        match survives {
            Survives::Process => Class::Process,
            Survives::Os => Class::Os,
            Survives::Power => Class::Power,
        }
    }
}

impl From<Class> for Survives {
    fn from(class: Class) -> Survives {
        match class {
            Class::Process => Survives::Process,
            Class::Os => Survives::Os,
            Class::Power | Class::Quorum => Survives::Power,
        }
    }
}
