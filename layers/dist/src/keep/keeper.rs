//! Either keeper, as a node uses it.

use crate::commit::word::{Incarnation, Node, Participants};
use crate::id::Tid;
use crate::keep::claim::{Claim, Kept, Met, Newcomer};
use crate::keep::etcd::{Etcd, KeepError};
use crate::keep::known::{Known, Looked};
use crate::keep::memory::Memory;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Who keeps slots and epochs.
#[derive(Debug, Clone)]
pub enum Keeper {
    /// An etcd.
    Etcd(Etcd),
    /// This process: what it knows ends with it, so only nodes that end together may share one.
    Memory(Arc<Mutex<Memory>>),
}

fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Keeper {
    /// See [`Etcd::begin_life`].
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn begin_life(&self, node: Node, behind: Incarnation) -> Result<Incarnation, KeepError> {
        match self {
            Keeper::Etcd(etcd) => etcd.begin_life(node, behind).await,
            Keeper::Memory(memory) => Ok(lock(memory).begin_life(node, behind)),
        }
    }

    /// See [`Etcd::meet`].
    ///
    /// # Errors
    /// When it does not answer; when the system has no randomness.
    pub async fn meet(&self, newcomer: &Newcomer) -> Result<Met, KeepError> {
        match self {
            Keeper::Etcd(etcd) => etcd.meet(newcomer).await,
            Keeper::Memory(memory) => {
                let new = caliburn_os::host::random_id().map_err(KeepError::Random)?;
                Ok(lock(memory).meet(newcomer, new))
            }
        }
    }

    /// See [`Etcd::look`].
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn look(&self, node: Node, life: Incarnation, known: &Known) -> Result<Looked, KeepError> {
        match self {
            Keeper::Etcd(etcd) => etcd.look(node, life, known).await,
            Keeper::Memory(memory) => Ok(lock(memory).look(node, life, known)),
        }
    }

    /// See [`Etcd::put`].
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn put(&self, claim: &Claim, known: &Known) -> Result<(Kept, Known), KeepError> {
        match self {
            Keeper::Etcd(etcd) => etcd.put(claim, known).await,
            Keeper::Memory(memory) => Ok(lock(memory).put(claim, known)),
        }
    }

    /// See [`Etcd::delete`].
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn delete(&self, tid: Tid, participants: &Participants) -> Result<(), KeepError> {
        match self {
            Keeper::Etcd(etcd) => etcd.delete(tid).await,
            Keeper::Memory(memory) => {
                lock(memory).delete(tid, participants);
                Ok(())
            }
        }
    }

    /// See [`Etcd::of`].
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn of(&self, node: Node) -> Result<BTreeMap<Tid, Participants>, KeepError> {
        match self {
            Keeper::Etcd(etcd) => etcd.of(node).await,
            Keeper::Memory(memory) => Ok(lock(memory).of(node)),
        }
    }
}
