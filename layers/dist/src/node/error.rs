//! Why a node does not run.

use crate::keep::etcd::KeepError;
use std::io;
use std::path::{Path, PathBuf};

/// Why a node does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// Its store could not be opened.
    #[error("{0}: {1}")]
    Open(PathBuf, caliburn_engine::OpenError),
    /// A segment.
    #[error("segment {0:?}: {1}")]
    Segment(String, Box<dyn std::error::Error + Send + Sync>),
    /// A heap.
    #[error("heap {0:?}: {1}")]
    Heap(String, Box<caliburn_heap::HeapError>),
    /// Its segments and its log are more than it may have.
    #[error(
        "node {node} has a quota of {quota} bytes, and its segments, its heaps and its log take {needed}"
    )]
    Quota {
        /// The node.
        node: u64,
        /// What it may have.
        quota: u64,
        /// What it would.
        needed: u64,
    },
    /// Its life could not be remembered.
    #[error(transparent)]
    Commit(#[from] caliburn_engine::CommitError),
    /// What is to be done the first time was not.
    #[error("the first transaction: {0}")]
    First(String),
    /// Its epoch could not be had.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// Its log is replicated, and goes on in another store than the one that is here, or there is none.
    #[error(
        "node {node}: its log is that of store {named}, which is not at {}: another machine runs the node, or has run it last. If that one is gone, take the node over (Builder::take_over)",
        path.display()
    )]
    Replaced {
        /// The node.
        node: u64,
        /// The directory of its store here.
        path: PathBuf,
        /// The store whose log it is.
        named: String,
    },
    /// There is no dump to begin with.
    #[error("node {node}: {} has no dump of store {store}, from which it could be taken over", dumps.display())]
    NoDump {
        /// The node.
        node: u64,
        /// The store.
        store: String,
        /// Where its dumps should be.
        dumps: PathBuf,
    },
    /// A dump could not be made, or read.
    #[error("{0}: {1}")]
    Backup(PathBuf, Box<caliburn_engine::BackupError>),
    /// A file.
    #[error("{0} {1}: {2}")]
    File(&'static str, PathBuf, io::Error),
    /// What its store says of its clock.
    #[error("{0}")]
    Clock(String),
    /// Its log can't be replicated.
    #[error("{0}")]
    Log(String),
    /// It ended while it began.
    #[error("{0}")]
    Stopped(&'static str),
}

impl NodeError {
    /// What could not be done with a file.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NodeError {
        let path = path.to_owned();
        move |error| NodeError::File(action, path, error)
    }
}
