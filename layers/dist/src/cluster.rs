//! A cluster as its members know it: which nodes there are, where, and which servers each has. Known beforehand, or
//! followed in etcd ([`Names`](crate::keep::names::Names)).

use crate::commit::word::Node;
use crate::credentials::{Credentials, CredentialsError, is_label, node_name};
use caliburn_os::descriptors;
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// Nodes and servers. Clones know the same.
#[derive(Debug, Clone)]
pub struct Cluster {
    id: Arc<str>,
    credentials: Option<Credentials>,
    known: Arc<RwLock<BTreeMap<Node, Known>>>,
}

/// What is known of a node.
#[derive(Debug, Default)]
struct Known {
    address: Option<(String, Channel)>,
    servers: Vec<String>,
}

/// A name that is nobody's, or an address that is none.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum NameError {
    /// An address.
    #[error("{0:?} is not an address such as {1}://10.0.0.1:4100")]
    Address(String, &'static str),
    /// A file of nodes that can't be read.
    #[error("{0}: {1}")]
    File(String, String),
    /// A line of it.
    #[error("{0}, line {1}: {2}; a line is: number address server ...")]
    Line(String, usize, String),
    /// Credentials that can't be used.
    #[error("the cluster's credentials: {0}")]
    Credentials(String),
    /// A server.
    #[error("no server is called {0:?}; there are {1:?}")]
    Server(String, Vec<String>),
    /// A node.
    #[error("there is no node {0}; there are {1:?}")]
    Node(u64, Vec<u64>),
}

/// So often a peer is asked whether it is there, and so long it is waited for.
pub(crate) const ALIVE: Duration = Duration::from_secs(5);
/// Bytes of the headers of calls and answers, in which the news are.
pub(crate) const HEADERS: u32 = 1 << 20;
/// Calls of one connection at a time; more wait. Without a limit one connection could take a node's memory.
pub(crate) const CALLS: u32 = 4096;

/// The last of an error's causes, which says most.
pub fn root(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root)
}

impl Cluster {
    /// One without nodes. Those of clusters with different names refuse each other's messages.
    pub fn new(id: impl Into<String>) -> Cluster {
        Cluster { id: id.into().into(), credentials: None, known: Arc::default() }
    }

    /// One whose nodes and programs know each other by certificates, and talk in secret. Addresses are
    /// `https://...`; a node must show the certificate of its number, wherever it is.
    ///
    /// # Errors
    /// [`CredentialsError::Cluster`].
    pub fn secured(id: impl Into<String>, credentials: Credentials) -> Result<Cluster, CredentialsError> {
        let cluster = Cluster { credentials: Some(credentials), ..Cluster::new(id) };
        match is_label(&cluster.id) {
            true => Ok(cluster),
            false => Err(CredentialsError::Cluster(cluster.id.to_string())),
        }
    }

    /// What its members show each other, if they do.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    fn connect(&self, node: Node, address: &str) -> Result<Channel, NameError> {
        descriptors::occupy();
        let scheme = if self.credentials.is_some() { "https" } else { "http" };
        let no_address = || NameError::Address(address.to_owned(), scheme);
        let endpoint = Endpoint::from_shared(address.to_owned()).map_err(|_| no_address())?;
        if endpoint.uri().scheme_str() != Some(scheme) {
            return Err(no_address());
        }
        let mut endpoint = endpoint.connect_timeout(Duration::from_secs(2));
        // A machine that is gone says nothing: what waits for it must hear.
        endpoint =
            endpoint.http2_keep_alive_interval(ALIVE).keep_alive_timeout(ALIVE).keep_alive_while_idle(true);
        if let Some(credentials) = &self.credentials {
            let tls = credentials.client(Some(node_name(&self.id, node.0)));
            endpoint = endpoint.tls_config(tls).map_err(|error| NameError::Credentials(root(&error)))?;
        }
        Ok(endpoint.http2_max_header_list_size(HEADERS).connect_lazy())
    }

    fn known(&self) -> RwLockReadGuard<'_, BTreeMap<Node, Known>> {
        self.known.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn known_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<Node, Known>> {
        self.known.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds a node, which is connected to when it is called first; or gives it another address.
    ///
    /// # Errors
    /// [`NameError::Address`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn node(self, number: u64, address: &str) -> Result<Cluster, NameError> {
        let address = (address.to_owned(), self.connect(Node(number), address)?);
        self.known_mut().entry(Node(number)).or_default().address = Some(address);
        Ok(self)
    }

    /// Adds the nodes and servers of a file: for one or two nodes that need no etcd. A line each: number, address,
    /// names of servers, with blanks between; `#` begins a comment.
    ///
    /// # Errors
    /// [`NameError::File`], [`NameError::Line`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn read_nodes(mut self, path: &std::path::Path) -> Result<Cluster, NameError> {
        let text = descriptors::read_text(path);
        let text = text.map_err(|error| NameError::File(path.display().to_string(), error.to_string()))?;
        for (number, line) in (1..).zip(text.lines()) {
            let wrong = |what: String| NameError::Line(path.display().to_string(), number, what);
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(first) = words.next() else { continue };
            let node = first.parse().map_err(|_| wrong(format!("{first:?} is no node's number")))?;
            let address = words.next().ok_or_else(|| wrong(format!("node {node} has no address")))?;
            self = self.node(node, address).map_err(|error| wrong(error.to_string()))?;
            self = words.fold(self, |cluster, server| cluster.server(server, node));
        }
        Ok(self)
    }

    /// Adds a server at a node. There may be one at each.
    pub fn server(self, name: impl Into<String>, node: u64) -> Cluster {
        self.known_mut().entry(Node(node)).or_default().servers.push(name.into());
        self
    }

    /// All that is known of a node from now on.
    ///
    /// # Errors
    /// [`NameError::Address`].
    pub(crate) fn set(&self, node: Node, address: &str, servers: Vec<String>) -> Result<(), NameError> {
        let mut known = self.known_mut();
        let before = known.get(&node).and_then(|known| known.address.clone());
        // A connection that is there stays.
        let address = match before.filter(|(before, _)| before == address) {
            Some(same) => same,
            None => (address.to_owned(), self.connect(node, address)?),
        };
        known.insert(node, Known { address: Some(address), servers });
        Ok(())
    }

    /// Nothing is known of a node any more.
    pub(crate) fn remove(&self, node: Node) {
        self.known_mut().remove(&node);
    }

    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The nodes.
    pub fn nodes(&self) -> Vec<Node> {
        self.known().keys().copied().collect()
    }

    /// Where a node is, if that is known.
    pub fn address(&self, node: Node) -> Option<String> {
        self.known().get(&node).and_then(|known| Some(known.address.as_ref()?.0.clone()))
    }

    /// Whether it is known where a node is; and that it is at an address.
    pub(crate) fn is_at(&self, node: Node, address: Option<&str>) -> bool {
        let known = self.known();
        let at = known.get(&node).and_then(|known| known.address.as_ref());
        at.is_some_and(|(at, _)| address.is_none_or(|address| at == address))
    }

    /// The servers that a node has.
    pub(crate) fn servers(&self, node: Node) -> Vec<String> {
        self.known().get(&node).map_or_else(Vec::new, |known| known.servers.clone())
    }

    /// How to reach a node.
    ///
    /// # Errors
    /// [`NameError::Node`].
    pub fn channel(&self, node: Node) -> Result<Channel, NameError> {
        // It may have to be opened again.
        descriptors::occupy();
        let known = self.known();
        let address = known.get(&node).and_then(|known| known.address.as_ref());
        let all = || known.keys().map(|node| node.0).collect();
        address.map(|(_, channel)| channel.clone()).ok_or_else(|| NameError::Node(node.0, all()))
    }

    /// The nodes that have a server of a name (Camelot's `name@*`).
    pub fn all(&self, name: &str) -> Vec<Node> {
        let known = self.known();
        let has = |known: &Known| known.servers.iter().any(|server| server == name);
        known.iter().filter(|(_, known)| has(known)).map(|(node, _)| *node).collect()
    }

    /// Where a server is: `name`, or `name@*`, the first of that name; or `name@node` (Camelot's
    /// `"testserver@wales"`).
    ///
    /// # Errors
    /// [`NameError::Server`].
    pub fn find(&self, name: &str) -> Result<Node, NameError> {
        self.choose(name, 0)
    }

    /// The same, of those with the name one that a number chooses: the same for the same number, as long as there
    /// are the same, and about as often each.
    ///
    /// # Errors
    /// [`NameError::Server`].
    pub fn choose(&self, name: &str, choice: u64) -> Result<Node, NameError> {
        let unknown = || {
            let known = self.known();
            let mut all: Vec<String> = known.values().flat_map(|known| known.servers.clone()).collect();
            all.sort();
            all.dedup();
            NameError::Server(name.to_owned(), all)
        };
        let (server, at) = match name.split_once('@') {
            None | Some((_, "*")) => (name.trim_end_matches("@*"), None),
            Some((server, node)) => (server, Some(Node(node.parse().map_err(|_| unknown())?))),
        };
        let mut of = self.all(server);
        of.retain(|node| at.is_none_or(|at| at == *node));
        // One that is not registered has a node without names.
        let unnamed = |node: &Node| self.known().get(node).is_some_and(|known| known.servers.is_empty());
        of.extend(at.filter(|node| of.is_empty() && unnamed(node)));
        let choice = choice.checked_rem(of.len() as u64).unwrap_or(0);
        of.get(choice as usize).copied().ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nodes_are_read_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nodes");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Cluster::new("c").read_nodes(&path)
        };
        let cluster = read("# ours\n\n1 http://a:1 bank shop  # the first\n 2\thttp://b:2 bank\n").unwrap();
        assert_eq!((cluster.all("bank"), cluster.find("shop")), (vec![Node(1), Node(2)], Ok(Node(1))));
        let line = |text: &str| read(text).map(|_| ()).unwrap_err().to_string();
        assert!(line("1 http://a:1\none http://b:1\n").contains("line 2: \"one\" is no node's number"));
        assert!(line("1\n").contains("line 1: node 1 has no address"));
        assert!(line("1 a b\n").contains("line 1: \"a\" is not an address"));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Cluster::new("c").read_nodes(&path), Err(NameError::File(..))));
    }

    #[tokio::test]
    async fn servers_are_found_by_name_and_node() {
        let cluster =
            Cluster::new("c").node(1, "http://127.0.0.1:1").unwrap().server("bank", 1).server("bank", 2);
        assert_eq!(cluster.find("bank"), Ok(Node(1)));
        assert_eq!(cluster.find("bank@2"), Ok(Node(2)));
        assert_eq!((cluster.find("bank@*"), cluster.all("bank")), (Ok(Node(1)), vec![Node(1), Node(2)]));
        let chosen: Vec<Node> = (0..4).map(|choice| cluster.choose("bank", choice).unwrap()).collect();
        assert_eq!(chosen, [Node(1), Node(2), Node(1), Node(2)]);
        assert_eq!(cluster.choose("bank@2", 7), Ok(Node(2)));
        assert!(matches!(cluster.find("bank@3"), Err(NameError::Server(..))));
        let unnamed = cluster.clone().node(4, "http://127.0.0.1:4").unwrap();
        assert_eq!((unnamed.find("bank@4"), unnamed.all("bank").len()), (Ok(Node(4)), 2));
        assert!(matches!(cluster.find("shop"), Err(NameError::Server(..))));
        assert!(matches!(cluster.channel(Node(2)), Err(NameError::Node(2, _))));
        assert!(matches!(Cluster::new("c").node(1, "no address"), Err(NameError::Address(..))));
    }
}
