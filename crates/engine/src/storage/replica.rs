//! Where the log of a store is kept beside this machine (Camelot, section 4.4): what class `Quorum` waits for.

use caliburn_os::host::Id;

/// Keeps the log of a store on other machines, for as long as it is needed there. The engine hands it the records
/// that are forced here, in their order, from one thread at a time.
///
/// A store is made again of a dump and of what is kept: written to files of these names, the parts are an archive
/// ([`RestoreOptions::archive`](crate::RestoreOptions::archive)).
pub trait Replica: std::fmt::Debug + Send + Sync {
    /// Where the log of this store goes on: the end of the last part that was appended. If there is none, it
    /// begins at `end`: a dump that is made from now on can be brought further with it.
    ///
    /// # Errors
    /// When that can't be found out, or another one keeps the log.
    fn begin(&self, store: Id, end: u64) -> Result<u64, ReplicaError>;

    /// Appends a part, which begins where the log goes on. Returns where it goes on now: behind the part; or
    /// earlier, at the end of one that came before, from the same place, and whose answer was lost. A part is kept
    /// whole or not at all. What an error leaves open is asked again.
    ///
    /// # Errors
    /// When it is not known to be kept, or never will be.
    fn append(&self, part: &ReplicaPart) -> Result<u64, ReplicaError>;
}

/// A part of a store's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaPart {
    /// LSN of the first record.
    pub from: u64,
    /// LSN behind the last one.
    pub to: u64,
    /// The name that it has as a file of an archive.
    pub name: String,
    /// That file: with a checksum, the store's identity, and its catalog.
    pub bytes: Vec<u8>,
}

/// Why a part is not kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// Not now, or it is not known whether it is: it is tried again, and whoever commits in class `Quorum` waits.
    #[error("the log's replica can't be reached: {0}")]
    Unavailable(String),
    /// Another one has taken over, or what is kept is not this store's log: this store must not go on.
    #[error("the log's replica does not take what this store writes: {0}")]
    Refused(String),
}
