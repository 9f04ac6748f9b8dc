//! Names as nodes tell them: for programs, which know some nodes beforehand and have no access to etcd.
//!
//! What a program knew beforehand stays as it was told. All other nodes, their addresses and their servers are
//! what the first of those says that answers, asked again and again.

use crate::cluster::Cluster;
use crate::commit::word::Node;
use crate::proto::caliburn::node_client::NodeClient;
use crate::proto::caliburn::{NamesRequest, Place};
use crate::wire;
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::Status;

/// So often a node is asked.
const AGAIN: Duration = Duration::from_secs(5);
/// So long it is waited for, before another one is asked.
const PATIENCE: Duration = Duration::from_secs(1);
/// So long a program that begins waits for all of them.
const FIRST: Duration = Duration::from_secs(2);

/// Names that are followed: until this is dropped, a [`Cluster`] knows the nodes that others know.
#[derive(Debug)]
pub struct Directory(JoinHandle<()>);

impl Drop for Directory {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Directory {
    /// Begins to follow what the nodes say that a cluster has now. If one of them answers soon, it knows all when
    /// this returns.
    pub async fn follow(cluster: Cluster) -> Directory {
        let mut asked = Asked { known: cluster.nodes(), told: Vec::new(), cluster };
        // What does not answer by then is asked later.
        _ = tokio::time::timeout(FIRST, asked.ask()).await;
        Directory(tokio::spawn(async move {
            loop {
                tokio::time::sleep(AGAIN).await;
                asked.ask().await;
            }
        }))
    }
}

struct Asked {
    cluster: Cluster,
    /// Beforehand.
    known: Vec<Node>,
    /// By a node, the last time.
    told: Vec<Node>,
}

impl Asked {
    async fn ask(&mut self) {
        for node in self.known.clone() {
            let asked = tokio::time::timeout(PATIENCE, self.names(node)).await;
            match asked.unwrap_or_else(|_| Err(Status::deadline_exceeded("it does not answer"))) {
                Ok(places) => return self.take(places),
                Err(status) => tracing::debug!("node {} does not tell names: {}", node.0, status.message()),
            }
        }
    }

    async fn names(&self, node: Node) -> Result<Vec<Place>, Status> {
        let channel = self.cluster.channel(node).map_err(|error| Status::unavailable(error.to_string()))?;
        let request = NamesRequest { cluster: self.cluster.id().to_owned(), needs: wire::NEEDS };
        Ok(NodeClient::new(channel).names(request).await?.into_inner().places)
    }

    fn take(&mut self, places: Vec<Place>) {
        let mut told = Vec::new();
        for Place { node, address, servers } in places {
            let node = Node(node);
            if self.known.contains(&node) {
                continue;
            }
            match self.cluster.set(node, &address, servers) {
                Ok(()) => told.push(node),
                Err(error) => tracing::warn!("node {} is told wrongly: {error}", node.0),
            }
        }
        let gone = self.told.iter().filter(|node| !told.contains(node));
        gone.for_each(|node| self.cluster.remove(*node));
        self.told = told;
    }
}
