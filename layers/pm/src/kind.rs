//! What a region is on, and what that survives.

use caliburn_os::medium::{Medium, Survives};
use std::fmt;

/// What a region is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Persistent memory, mapped: an NVDIMM, CXL memory with a battery.
    Persistent,
    /// Ordinary memory that the kernel was told to leave alone (`memmap=`), mapped.
    Reserved,
    /// Memory of the system's: a file system in memory, huge pages, a device of ordinary memory.
    InMemory,
    /// A file, or a device with a page cache.
    File,
}

impl Kind {
    pub(crate) fn of(medium: &dyn Medium) -> Kind {
        match medium.memory().survives {
            Survives::Power => Kind::Persistent,
            Survives::Os => Kind::Reserved,
            Survives::Process if medium.volatile() => Kind::InMemory,
            Survives::Process => Kind::File,
        }
    }

    /// What a write that has returned survives.
    pub fn survives(self) -> Survives {
        match self {
            Kind::Persistent => Survives::Power,
            Kind::Reserved => Survives::Os,
            Kind::InMemory | Kind::File => Survives::Process,
        }
    }

    /// What a flush that has returned survives.
    pub fn survives_flushed(self) -> Survives {
        if self == Kind::File { Survives::Power } else { self.survives() }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Persistent => "persistent memory: what is written survives a power cut",
            Kind::Reserved => "reserved memory: what is written survives a warm start of the system",
            Kind::InMemory => "memory of the system's: what is written survives the process",
            Kind::File => "a file: what is written survives the process, what is flushed a power cut",
        })
    }
}
