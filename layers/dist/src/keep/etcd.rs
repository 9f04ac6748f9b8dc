//! Slots and epochs in etcd, which survive the loss of fewer than half of its members.
//!
//! ```text
//!   <cluster>/identity                     of the cluster, random: written once
//!   <cluster>/epoch/<node>                 the life of a node
//!   <cluster>/mark/<node>                  written with each slot that the node puts: its version counts them
//!   <cluster>/slot/<tid><participant>      what its slot holds, and all participants
//! ```
//!
//! A slot is put in one `Txn` that compares the epoch and the mark of whoever puts it, the identity, and that the
//! slot is not there (`meeting.rs`): a lease or a lock of etcd's is not enough, since its holder may have lost it
//! and not know. Trusted: that a majority of the members keeps what it has forced, and agrees. Not trusted: what
//! one of them serves; values have a checksum.

use crate::commit::word::{Incarnation, Node, Participants, Slot, Stay};
use crate::credentials::Credentials;
use crate::id::{TID_BYTES, Tid};
use crate::proto::etcd::kv_client::KvClient;
use crate::proto::etcd::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
    compare, request_op,
};
use caliburn_os::descriptors;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// Why the keeper did not answer.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// An address that is none.
    #[error("{0} is not the address of a member of etcd: {1}")]
    Address(String, tonic::transport::Error),
    /// No member answers, or no majority of them is there.
    #[error("etcd does not answer: {0}; it is asked again")]
    NoAnswer(#[from] Status),
    /// It takes nothing more. Until it does, those that commit without blocking wait, and so do nodes whose logs it
    /// has: nobody guesses.
    #[error(
        "etcd has reached its quota ({0}): delete what others have there, compact and defragment it (etcdctl defrag), and disarm its alarm (etcdctl alarm disarm); or give it more (--quota-backend-bytes)"
    )]
    Full(String),
    /// The system has none for the identity of a cluster.
    #[error("no random bytes can be had for the identity of the cluster: {0}")]
    Random(std::io::Error),
    /// What is there was not written by this program, or is damaged in all members that were asked.
    #[error("etcd has {} bytes at {key} that are no {what}; another program's, or damaged", bytes.len())]
    Damaged {
        /// The key.
        key: String,
        /// What should be there.
        what: &'static str,
        /// What is.
        bytes: Vec<u8>,
    },
}

/// A cluster's part of an etcd.
#[derive(Debug, Clone)]
pub struct Etcd {
    channel: Channel,
    cluster: String,
}

/// So often is something that is damaged read again; the next member that is asked is another one.
pub(crate) const READS: usize = 6;
/// So long members are asked that are away.
const PATIENCE: Duration = Duration::from_secs(5);

impl Etcd {
    /// The members at these addresses, such as `http://127.0.0.1:2379`. Connects when it is used first.
    ///
    /// # Errors
    /// [`KeepError::Address`].
    pub fn new<'m>(members: impl IntoIterator<Item = &'m str>, cluster: &str) -> Result<Etcd, KeepError> {
        Etcd::connect(members, cluster, None)
    }

    /// The same, at `https://...`: they show certificates of the credentials' authority for the hosts of their
    /// addresses, and are shown one.
    ///
    /// # Errors
    /// [`KeepError::Address`].
    pub fn secured<'m>(
        members: impl IntoIterator<Item = &'m str>,
        cluster: &str,
        credentials: &Credentials,
    ) -> Result<Etcd, KeepError> {
        Etcd::connect(members, cluster, Some(credentials))
    }

    fn connect<'m>(
        members: impl IntoIterator<Item = &'m str>,
        cluster: &str,
        credentials: Option<&Credentials>,
    ) -> Result<Etcd, KeepError> {
        descriptors::occupy();
        let endpoint = |member: &str| {
            let no_address = |error| KeepError::Address(member.to_owned(), error);
            let mut endpoint = Endpoint::from_shared(member.to_owned()).map_err(no_address)?;
            if let Some(credentials) = credentials {
                endpoint = endpoint.tls_config(credentials.client(None)).map_err(no_address)?;
            }
            Ok(endpoint.connect_timeout(Duration::from_secs(2)).timeout(Duration::from_secs(5)))
        };
        let endpoints = members.into_iter().map(endpoint).collect::<Result<Vec<_>, KeepError>>()?;
        let channel = Channel::balance_list(endpoints.into_iter());
        Ok(Etcd { channel, cluster: cluster.to_owned() })
    }

    /// Asks one member after the other, for some seconds: one may be away, or not know a leader. Whatever is asked
    /// here may be asked twice.
    async fn ask<T, F: Future<Output = Result<tonic::Response<T>, Status>>>(
        &self,
        request: impl Fn(KvClient<Channel>) -> F,
    ) -> Result<T, KeepError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match request(KvClient::new(self.channel())).await {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) if is_passing(&status) && Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(status) if is_full(&status) => return Err(KeepError::Full(status.message().to_owned())),
                Err(status) => return Err(status.into()),
            }
        }
    }

    /// The cluster.
    pub(crate) fn cluster(&self) -> &str {
        &self.cluster
    }

    /// A key of the cluster.
    pub(crate) fn key(&self, rest: &str) -> Vec<u8> {
        format!("{}/{rest}", self.cluster).into_bytes()
    }

    pub(crate) fn epoch_key(&self, node: Node) -> Vec<u8> {
        self.key(&format!("epoch/{:016x}", node.0))
    }

    fn slot_prefix(&self, rest: &[u8]) -> Vec<u8> {
        let mut key = self.key("slot/");
        key.extend(rest);
        key
    }

    /// To one of the members.
    pub(crate) fn channel(&self) -> Channel {
        // It may have to be opened again.
        descriptors::occupy();
        self.channel.clone()
    }

    /// What is in a range of keys.
    pub(crate) async fn range(&self, range: RangeRequest) -> Result<RangeResponse, KeepError> {
        self.ask(|mut kv| {
            let range = range.clone();
            async move { kv.range(range).await }
        })
        .await
    }

    /// Does what is asked for, if what it compares is so.
    pub(crate) async fn txn(&self, txn: &TxnRequest) -> Result<TxnResponse, KeepError> {
        self.ask(|mut kv| {
            let txn = txn.clone();
            async move { kv.txn(txn).await }
        })
        .await
    }

    /// Puts a value under a lease, if a node lives this life. Whether it does.
    pub(crate) async fn put_as(
        &self,
        node: Node,
        life: Incarnation,
        key: Vec<u8>,
        value: Vec<u8>,
        lease: i64,
    ) -> Result<bool, KeepError> {
        let put = PutRequest { key, value, lease };
        let put = RequestOp { request: Some(request_op::Request::RequestPut(put)) };
        let txn =
            TxnRequest { compare: vec![self.lives(node, life)], success: vec![put], failure: Vec::new() };
        Ok(self.txn(&txn).await?.succeeded)
    }

    /// That a node lives this life.
    pub(crate) fn lives(&self, node: Node, life: Incarnation) -> Compare {
        Compare {
            result: compare::CompareResult::Equal as i32,
            target: compare::CompareTarget::Value as i32,
            key: self.epoch_key(node),
            target_union: Some(compare::TargetUnion::Value(life.0.to_be_bytes().to_vec())),
        }
    }

    /// A node begins a life: behind all that it had, and behind what it knows itself.
    ///
    /// # Errors
    /// When etcd does not answer.
    pub async fn begin_life(&self, node: Node, behind: Incarnation) -> Result<Incarnation, KeepError> {
        loop {
            if let Some(life) = self.begin_life_if(node, behind, &[]).await? {
                return Ok(life);
            }
        }
    }

    /// The same, if what is compared is so.
    pub(crate) async fn begin_life_if(
        &self,
        node: Node,
        behind: Incarnation,
        compared: &[Compare],
    ) -> Result<Option<Incarnation>, KeepError> {
        let key = self.epoch_key(node);
        let range = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let found = self.range(range).await?.kvs.pop();
        let (before, revision) = match &found {
            None => (0, 0),
            Some(kv) => (epoch_of(&key, &kv.value)?, kv.mod_revision),
        };
        let next = before.max(behind.0) + 1;
        let unchanged = Compare {
            result: compare::CompareResult::Equal as i32,
            target: compare::CompareTarget::Mod as i32,
            key: key.clone(),
            target_union: Some(compare::TargetUnion::ModRevision(revision)),
        };
        let compare = [&[unchanged], compared].concat();
        let put = put(key.clone(), next.to_be_bytes().to_vec());
        let txn = TxnRequest { compare, success: vec![put], failure: Vec::new() };
        Ok(self.txn(&txn).await?.succeeded.then_some(Incarnation(next)))
    }

    pub(crate) fn slot_key(&self, tid: Tid, of: Node) -> Vec<u8> {
        let mut key = self.slot_prefix(&tid.to_bytes());
        key.extend(of.0.to_be_bytes());
        key
    }

    /// Deletes the slots of a transaction, for its coordinator.
    ///
    /// # Errors
    /// When etcd does not answer.
    pub async fn delete(&self, tid: Tid) -> Result<(), KeepError> {
        let key = self.slot_prefix(&tid.to_bytes());
        let range_end = behind(&key);
        let delete = DeleteRangeRequest { key, range_end };
        self.ask(|mut kv| {
            let delete = delete.clone();
            async move { kv.delete_range(delete).await }
        })
        .await?;
        Ok(())
    }

    /// Transactions that a node coordinates or has coordinated, in whatever life, and of which there are slots.
    ///
    /// # Errors
    /// When etcd does not answer, or has something else there.
    pub async fn of(&self, node: Node) -> Result<BTreeMap<Tid, Participants>, KeepError> {
        let prefix = self.slot_prefix(&node.0.to_be_bytes());
        let (start, range_end) = (self.slot_prefix(&[]).len(), behind(&prefix));
        let (mut key, mut all, mut tries) = (prefix, BTreeMap::new(), 0);
        loop {
            let range = RangeRequest {
                key: key.clone(),
                range_end: range_end.clone(),
                limit: 500,
                ..Default::default()
            };
            let found = self.range(range).await?;
            let mut whole = true;
            for kv in found.kvs {
                let tid = kv.key.get(start..start + TID_BYTES).and_then(Tid::from_bytes);
                let (Some(tid), Some((_, participants))) = (tid, decode(&kv.value)) else {
                    // From here on again, of another member.
                    (whole, tries) = (false, tries + 1);
                    if tries < READS {
                        break;
                    }
                    // The others are not to suffer.
                    tracing::warn!("{}", damaged(&kv.key, "slot", kv.value));
                    (whole, tries) = (true, 0);
                    key = kv.key.into_iter().chain([0]).collect();
                    continue;
                };
                all.insert(tid, participants);
                key = kv.key.into_iter().chain([0]).collect();
            }
            if whole && !found.more {
                return Ok(all);
            }
        }
    }
}

/// What another member may do, or the same one later.
/// Its quota is reached; not that it has too much to do.
fn is_full(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.message().contains("space exceeded")
}

fn is_passing(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown)
}

pub(crate) fn put(key: Vec<u8>, value: Vec<u8>) -> RequestOp {
    let put = PutRequest { key, value, lease: 0 };
    RequestOp { request: Some(request_op::Request::RequestPut(put)) }
}

pub(crate) fn get(key: Vec<u8>) -> RequestOp {
    let range = RangeRequest { key, ..RangeRequest::default() };
    RequestOp { request: Some(request_op::Request::RequestRange(range)) }
}

pub(crate) fn value(range: RangeResponse) -> Option<Vec<u8>> {
    range.kvs.into_iter().next().map(|kv| kv.value)
}

/// The first key behind all that begin so.
pub(crate) fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xFF {
            end.push(last + 1);
            break;
        }
    }
    end
}

pub(crate) fn damaged(key: &[u8], what: &'static str, bytes: Vec<u8>) -> KeepError {
    KeepError::Damaged { key: key.escape_ascii().to_string(), what, bytes }
}

pub(crate) fn epoch_of(key: &[u8], value: &[u8]) -> Result<u64, KeepError> {
    let bytes: Result<[u8; 8], _> = value.try_into();
    bytes.map(u64::from_be_bytes).map_err(|_| damaged(key, "epoch", value.to_vec()))
}

/// Version, slot, nodes and stays, checksum.
pub(crate) fn encode(slot: Slot, participants: &Participants) -> Vec<u8> {
    let mut bytes = vec![1, matches!(slot, Slot::Yes).into()];
    for (node, stay) in participants {
        bytes.extend(node.0.to_le_bytes());
        bytes.extend(stay.0.to_le_bytes());
    }
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

pub(crate) fn decode(bytes: &[u8]) -> Option<(Slot, Participants)> {
    let (body, sum) = bytes.split_last_chunk::<4>()?;
    let [1, slot @ (0 | 1), pairs @ ..] = body else { return None };
    if crc32c::crc32c(body) != u32::from_le_bytes(*sum) || pairs.len() % 16 != 0 {
        return None;
    }
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let participants =
        pairs.chunks(16).map(|pair| (Node(word(&pair[..8])), Stay(word(&pair[8..])))).collect();
    Some((if *slot == 1 { Slot::Yes } else { Slot::Closed }, participants))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_comes_back_or_is_seen_to_be_damaged() {
        let participants: Participants = [(Node(3), Stay(9)), (Node(u64::MAX), Stay(1 << 40))].into();
        let bytes = encode(Slot::Yes, &participants);
        assert_eq!(decode(&bytes), Some((Slot::Yes, participants)));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad), None, "bit {bit}");
        }
    }

    #[test]
    fn behind_a_prefix_is_the_next_one() {
        assert_eq!(behind(b"ab"), b"ac");
        assert_eq!(behind(&[1, 0xFF]), [2]);
    }
}
