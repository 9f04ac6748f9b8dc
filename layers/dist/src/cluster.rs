//! A cluster as its members know it: which nodes there are, where, and which servers each has.

use crate::commit::word::Node;
use std::collections::BTreeMap;
use tonic::transport::{Channel, Endpoint};

/// Nodes and servers that are known beforehand.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    id: String,
    nodes: BTreeMap<Node, Channel>,
    servers: BTreeMap<String, Vec<Node>>,
}

/// A name that is nobody's, or an address that is none.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum NameError {
    /// An address.
    #[error("{0:?} is not an address such as http://10.0.0.1:4100")]
    Address(String),
    /// A server.
    #[error("no server is called {0:?}; there are {1:?}")]
    Server(String, Vec<String>),
    /// A node.
    #[error("there is no node {0}; there are {1:?}")]
    Node(u64, Vec<u64>),
}

impl Cluster {
    /// One without nodes. Those of clusters with different names refuse each other's messages.
    pub fn new(id: impl Into<String>) -> Cluster {
        Cluster { id: id.into(), ..Cluster::default() }
    }

    /// Adds a node, which is connected to when it is called first.
    ///
    /// # Errors
    /// [`NameError::Address`].
    pub fn node(mut self, number: u64, address: &str) -> Result<Cluster, NameError> {
        let endpoint = Endpoint::from_shared(address.to_owned());
        let endpoint = endpoint.map_err(|_| NameError::Address(address.to_owned()))?;
        let channel = endpoint.connect_timeout(std::time::Duration::from_secs(2)).connect_lazy();
        self.nodes.insert(Node(number), channel);
        Ok(self)
    }

    /// Adds a server at a node. There may be one at each.
    pub fn server(mut self, name: impl Into<String>, node: u64) -> Cluster {
        self.servers.entry(name.into()).or_default().push(Node(node));
        self
    }

    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The nodes.
    pub fn nodes(&self) -> impl Iterator<Item = Node> {
        self.nodes.keys().copied()
    }

    /// How to reach a node.
    ///
    /// # Errors
    /// [`NameError::Node`].
    pub fn channel(&self, node: Node) -> Result<Channel, NameError> {
        let known = || self.nodes.keys().map(|node| node.0).collect();
        self.nodes.get(&node).cloned().ok_or_else(|| NameError::Node(node.0, known()))
    }

    /// Where a server is: `name`, the first of that name, or `name@node` (Camelot's `"testserver@wales"`).
    ///
    /// # Errors
    /// [`NameError`].
    pub fn find(&self, name: &str) -> Result<Node, NameError> {
        let unknown = || NameError::Server(name.to_owned(), self.servers.keys().cloned().collect());
        let (name, at) = match name.split_once('@') {
            Some((name, node)) => (name, Some(Node(node.parse().map_err(|_| unknown())?))),
            None => (name, None),
        };
        let of = self.servers.get(name).ok_or_else(unknown)?;
        of.iter().find(|node| at.is_none_or(|at| at == **node)).copied().ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn servers_are_found_by_name_and_node() {
        let cluster =
            Cluster::new("c").node(1, "http://127.0.0.1:1").unwrap().server("bank", 1).server("bank", 2);
        assert_eq!(cluster.find("bank"), Ok(Node(1)));
        assert_eq!(cluster.find("bank@2"), Ok(Node(2)));
        assert!(matches!(cluster.find("bank@3"), Err(NameError::Server(..))));
        assert!(matches!(cluster.find("shop"), Err(NameError::Server(..))));
        assert!(matches!(cluster.channel(Node(2)), Err(NameError::Node(2, _))));
        assert!(matches!(Cluster::new("c").node(1, "no address"), Err(NameError::Address(_))));
    }
}
