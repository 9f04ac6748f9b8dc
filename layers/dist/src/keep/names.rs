//! Which nodes there are, where, and which servers each has: in etcd, under leases, followed by whoever wants to
//! call them.
//!
//! ```text
//!   <cluster>/node/<node>    its address and its servers, one in each line
//! ```
//!
//! A node that ends, or cannot reach etcd for the time of its lease, is nobody's peer until it is back, there or
//! at another address. Only its present life registers it: the epoch is compared in the same step.

use crate::cluster::Cluster;
use crate::commit::word::{Incarnation, Node};
use crate::keep::etcd::{Etcd, KeepError, behind};
use crate::proto::etcd::event::EventType;
use crate::proto::etcd::lease_client::LeaseClient;
use crate::proto::etcd::watch_client::WatchClient;
use crate::proto::etcd::watch_request::RequestUnion;
use crate::proto::etcd::{
    KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, RangeRequest, WatchCreateRequest,
    WatchRequest,
};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Status;

/// A lease lasts so long, in seconds.
const LEASE: i64 = 6;
/// So often it is renewed.
const RENEWED: Duration = Duration::from_secs(2);
/// Before something that failed is tried again.
const AGAIN: Duration = Duration::from_millis(300);

/// Names that are followed: until this is dropped, a [`Cluster`] knows the nodes that etcd has.
#[derive(Debug)]
pub struct Names(JoinHandle<()>);

impl Drop for Names {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Names {
    /// Begins to follow; the cluster knows all that are registered by now when this returns.
    ///
    /// # Errors
    /// When etcd does not answer.
    pub async fn follow(etcd: Etcd, cluster: Cluster) -> Result<Names, KeepError> {
        let mut revision = list(&etcd, &cluster).await?;
        Ok(Names(tokio::spawn(async move {
            loop {
                if let Err(status) = changes(&etcd, &cluster, revision + 1).await {
                    tracing::debug!("names are listed again: {status}");
                }
                tokio::time::sleep(AGAIN).await;
                match list(&etcd, &cluster).await {
                    Ok(listed) => revision = listed,
                    Err(error) => tracing::warn!("names: {error}"),
                }
            }
        })))
    }
}

fn prefix(cluster: &str) -> Vec<u8> {
    format!("{cluster}/node/").into_bytes()
}

/// All that are there, and as of which revision.
async fn list(etcd: &Etcd, cluster: &Cluster) -> Result<i64, KeepError> {
    let key = prefix(cluster.id());
    let range = RangeRequest { range_end: behind(&key), key: key.clone(), ..RangeRequest::default() };
    let found = etcd.range(range).await?;
    let there: Vec<Node> = found.kvs.iter().filter_map(|kv| set(cluster, kv)).collect();
    for gone in cluster.nodes().into_iter().filter(|node| !there.contains(node)) {
        cluster.remove(gone);
    }
    Ok(found.header.map_or(0, |header| header.revision))
}

fn number(cluster: &Cluster, key: &[u8]) -> Option<Node> {
    let number = key.strip_prefix(&prefix(cluster.id())[..])?;
    u64::from_str_radix(std::str::from_utf8(number).ok()?, 16).ok().map(Node)
}

/// What one key says.
fn set(cluster: &Cluster, kv: &KeyValue) -> Option<Node> {
    let node = number(cluster, &kv.key)?;
    let mut lines = std::str::from_utf8(&kv.value).ok()?.lines();
    let address = lines.next()?;
    match cluster.set(node, address, lines.map(str::to_owned).collect()) {
        Ok(()) => Some(node),
        Err(error) => {
            tracing::warn!("node {} is registered wrongly: {error}", node.0);
            None
        }
    }
}

/// Follows from a revision on, until the stream ends.
async fn changes(etcd: &Etcd, cluster: &Cluster, start_revision: i64) -> Result<(), Status> {
    let key = prefix(cluster.id());
    let create = WatchCreateRequest { range_end: behind(&key), key, start_revision };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    // The stream of requests stays open as long as the answers are read.
    let (requests, stream) = tokio::sync::mpsc::channel(1);
    let _ = requests.send(request).await;
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let mut events = WatchClient::new(etcd.channel()).watch(stream).await?.into_inner();
    while let Some(response) = events.message().await? {
        if response.canceled {
            return Ok(());
        }
        for event in response.events {
            let kv = event.kv.unwrap_or_default();
            match EventType::try_from(event.r#type) {
                Ok(EventType::Delete) => {
                    number(cluster, &kv.key).into_iter().for_each(|node| cluster.remove(node))
                }
                _ => _ = set(cluster, &kv),
            }
        }
    }
    drop(requests);
    Ok(())
}

/// What a node registers.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub node: Node,
    pub life: Incarnation,
    pub address: String,
    pub servers: Vec<String>,
}

/// Keeps a node registered until it stops.
pub(crate) async fn register(etcd: Etcd, cluster: String, entry: Entry, mut stopped: watch::Receiver<bool>) {
    loop {
        let held = hold(&etcd, &cluster, &entry);
        let done = tokio::select! {
            done = held => done,
            _ = stopped.wait_for(|stopped| *stopped) => return,
        };
        match done {
            Ok(true) => {}
            // Another life has the name.
            Ok(false) => return,
            Err(status) => tracing::warn!("node {} is registered again: {status}", entry.node.0),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// A lease that is revoked when it is dropped.
struct Lease(LeaseClient<tonic::transport::Channel>, i64);

impl Drop for Lease {
    fn drop(&mut self) {
        let (mut client, id) = (self.0.clone(), self.1);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { client.lease_revoke(LeaseRevokeRequest { id }).await });
        }
    }
}

/// Registers, and renews the lease until that fails. Whether the name is this life's.
async fn hold(etcd: &Etcd, cluster: &str, entry: &Entry) -> Result<bool, Status> {
    let mut client = LeaseClient::new(etcd.channel());
    let granted = client.lease_grant(LeaseGrantRequest { ttl: LEASE, id: 0 }).await?.into_inner();
    let lease = Lease(client.clone(), granted.id);
    let key = [prefix(cluster), format!("{:016x}", entry.node.0).into_bytes()].concat();
    let lines: Vec<&str> =
        [&*entry.address].into_iter().chain(entry.servers.iter().map(|name| &**name)).collect();
    let put = etcd.put_as(entry.node, entry.life, key, lines.join("\n").into_bytes(), lease.1).await;
    if !put.map_err(|error| Status::unavailable(error.to_string()))? {
        return Ok(false);
    }
    let (requests, stream) = tokio::sync::mpsc::channel(1);
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let id = lease.1;
    let _ = requests.send(LeaseKeepAliveRequest { id }).await;
    let mut answers = client.lease_keep_alive(stream).await?.into_inner();
    loop {
        let answer = tokio::time::timeout(RENEWED * 2, answers.message()).await;
        let answer = answer.map_err(|_| Status::deadline_exceeded("the lease is not renewed"))??;
        if answer.is_none_or(|answer| answer.ttl <= 0) {
            return Err(Status::not_found("the lease is over"));
        }
        tokio::time::sleep(RENEWED).await;
        let _ = requests.send(LeaseKeepAliveRequest { id }).await;
    }
}
