//! A data server as a process: what it is told by whoever runs it, which may be a node's daemon, another supervisor
//! (systemd), or a person; in environment variables, so that the program has no arguments of its own.
//!
//! | variable | |
//! |---|---|
//! | `CALIBURN_SERVER` | its name |
//! | `CALIBURN_CLUSTER`, `CALIBURN_NUMBER` | the cluster, and its number there |
//! | `CALIBURN_STORE` | the directory of its store |
//! | `CALIBURN_LISTEN` | where it serves: `127.0.0.1:4101` |
//! | `CALIBURN_ETCD` | members of etcd, with commas between; it keeps slots, and others find the server there |
//! | `CALIBURN_NODES` | a file of nodes ([`Cluster::read_nodes`]), in place of etcd |
//! | `CALIBURN_AUTHORITY`, `CALIBURN_CERTIFICATE`, `CALIBURN_KEY` | PEM files, if peers have certificates |
//! | `CALIBURN_QUOTA` | bytes that its segments and its log may have together |
//! | `CALIBURN_LOG`, `CALIBURN_LOG_BYTES` | where its log is, and how long |
//! | `CALIBURN_DUPLEX_LOG` | a second copy of it, or `none` |
//! | `CALIBURN_FORMER_LOGS` | where it was, or a copy of it, with colons between: it comes from there |
//! | `CALIBURN_DUMPS`, `CALIBURN_DUMP_AT` | where dumps of its store go, and at which times of day, in UTC |
//! | `CALIBURN_RECOVERY_MS` | how long a recovery may take: so often the log is truncated |
//! | `CALIBURN_DAEMON` | `number=address` of the daemon, which says what users may do; without, whoever has a certificate may do all |
//! | `CALIBURN_SUPERVISOR` | its process: the server ends with it |
//! | `NOTIFY_SOCKET` | where it says that it serves, as systemd wants it |

use crate::cluster::{Cluster, NameError};
use crate::commit::word::Node;
use crate::credentials::{Credentials, CredentialsError, Peer, node_name};
use crate::dumping::dump_again_and_again;
use crate::keep::etcd::{Etcd, KeepError};
use crate::keep::keeper::Keeper;
use crate::keep::names::Names;
use crate::log_plan::LogPlan;
use crate::node::{Builder, Node as Running, ServeError};
use crate::process_id::ProcessId;
use crate::proto::admin::admin_client::AdminClient;
use crate::proto::admin::{FollowRequest, Neighbour, Surroundings};
use crate::rights::Rights;
use caliburn_os::simulated::unless;
use rustix::event::{PollFd, PollFlags};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tonic::service::RoutesBuilder;

/// All that a process can be told in.
pub(crate) const VARIABLES: [&str; 20] = [
    "CALIBURN_SERVER",
    "CALIBURN_CLUSTER",
    "CALIBURN_NUMBER",
    "CALIBURN_STORE",
    "CALIBURN_LISTEN",
    "CALIBURN_ETCD",
    "CALIBURN_NODES",
    "CALIBURN_AUTHORITY",
    "CALIBURN_CERTIFICATE",
    "CALIBURN_KEY",
    "CALIBURN_QUOTA",
    "CALIBURN_LOG",
    "CALIBURN_LOG_BYTES",
    "CALIBURN_DUPLEX_LOG",
    "CALIBURN_RECOVERY_MS",
    "CALIBURN_FORMER_LOGS",
    "CALIBURN_DUMPS",
    "CALIBURN_DUMP_AT",
    "CALIBURN_DAEMON",
    "CALIBURN_SUPERVISOR",
];

/// What a process is told.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// Its name.
    pub name: String,
    /// The cluster.
    pub cluster: String,
    /// Its number in the cluster.
    pub number: u64,
    /// The directory of its store.
    pub store: PathBuf,
    /// Where it serves.
    pub listen: Option<SocketAddr>,
    /// Members of etcd.
    pub etcd: Vec<String>,
    /// A file of nodes.
    pub nodes: Option<PathBuf>,
    /// PEM files: the authority's certificate, its own, its key.
    pub certificates: Option<[PathBuf; 3]>,
    /// Bytes of segments and log.
    pub quota: Option<u64>,
    /// Where its log is.
    pub log: LogPlan,
    /// The daemon's number and address.
    pub daemon: Option<(u64, String)>,
    /// The process that supervises it.
    pub supervisor: Option<ProcessId>,
}

/// What an environment variable has to do with it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// It is not there.
    #[error(
        "{0} is not set: see the documentation of caliburn_dist::data_server, or start the server by caliburn node"
    )]
    Missing(&'static str),
    /// It is not what it should be.
    #[error("{0} is {1:?}, and should be {2}")]
    Wrong(&'static str, String, &'static str),
    /// Certificates.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A certificate is somebody else's.
    #[error("{0}: the certificate should name {1}")]
    Certificate(PathBuf, String),
    /// Nodes.
    #[error(transparent)]
    Names(#[from] NameError),
    /// The members of etcd.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// What the operating system says.
    #[error("{0}: {1}")]
    Io(&'static str, std::io::Error),
    /// While it served.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl Environment {
    /// Reads the variables.
    ///
    /// # Errors
    /// [`EnvironmentError::Missing`], [`EnvironmentError::Wrong`].
    pub fn read() -> Result<Environment, EnvironmentError> {
        Environment::of(|name| std::env::var(name).ok())
    }

    fn of(get: impl Fn(&str) -> Option<String>) -> Result<Environment, EnvironmentError> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let need = |name: &'static str| get(name).ok_or(EnvironmentError::Missing(name));
        fn parsed<T: std::str::FromStr>(
            name: &'static str,
            value: String,
            what: &'static str,
        ) -> Result<T, EnvironmentError> {
            value.parse().map_err(|_| EnvironmentError::Wrong(name, value, what))
        }
        let pem = ["CALIBURN_AUTHORITY", "CALIBURN_CERTIFICATE", "CALIBURN_KEY"];
        let certificates = match pem.iter().any(|name| get(name).is_some()) {
            true => Some([need(pem[0])?.into(), need(pem[1])?.into(), need(pem[2])?.into()]),
            false => None,
        };
        let daemon = get("CALIBURN_DAEMON").map(|value| {
            let parts =
                value.split_once('=').and_then(|(number, at)| Some((number.parse().ok()?, at.to_owned())));
            parts.ok_or(EnvironmentError::Wrong("CALIBURN_DAEMON", value, "number=address"))
        });
        let supervisor = get("CALIBURN_SUPERVISOR")
            .map(|value| parsed("CALIBURN_SUPERVISOR", value, "a process, as the daemon writes it"));
        let number = |name| get(name).map(|value| parsed(name, value, "a number")).transpose();
        Ok(Environment {
            name: need("CALIBURN_SERVER")?,
            cluster: need("CALIBURN_CLUSTER")?,
            number: parsed("CALIBURN_NUMBER", need("CALIBURN_NUMBER")?, "a number")?,
            store: need("CALIBURN_STORE")?.into(),
            listen: Some(parsed("CALIBURN_LISTEN", need("CALIBURN_LISTEN")?, "such as 127.0.0.1:4101")?),
            etcd: get("CALIBURN_ETCD")
                .map_or_else(Vec::new, |all| all.split(',').map(str::to_owned).collect()),
            nodes: get("CALIBURN_NODES").map(PathBuf::from),
            certificates,
            quota: number("CALIBURN_QUOTA")?,
            log: LogPlan {
                path: get("CALIBURN_LOG").map(PathBuf::from),
                bytes: number("CALIBURN_LOG_BYTES")?,
                second: get("CALIBURN_DUPLEX_LOG").map(|path| (path != "none").then(|| path.into())),
                recovery: number("CALIBURN_RECOVERY_MS")?.map(Duration::from_millis),
                former: get("CALIBURN_FORMER_LOGS")
                    .map_or_else(Vec::new, |all| all.split(':').map(PathBuf::from).collect()),
                dumps: get("CALIBURN_DUMPS").map(PathBuf::from),
                dump_at: get("CALIBURN_DUMP_AT")
                    .map(|at| parsed("CALIBURN_DUMP_AT", at, TIMES))
                    .transpose()?,
            },
            daemon: daemon.transpose()?,
            supervisor: supervisor.transpose()?,
        })
    }

    /// Reads what a program is told that begins transactions: of the variables those of the cluster, and
    /// `CALIBURN_NODE`, the number of the node that is to coordinate.
    ///
    /// # Errors
    /// [`EnvironmentError::Missing`], [`EnvironmentError::Wrong`].
    pub fn read_program() -> Result<Environment, EnvironmentError> {
        let get = |name: &str| std::env::var(name).ok();
        let node = get("CALIBURN_NODE").ok_or(EnvironmentError::Missing("CALIBURN_NODE"))?;
        Environment::of(|name| match name {
            "CALIBURN_NUMBER" => Some(node.clone()),
            // A program has neither of these.
            "CALIBURN_SERVER" | "CALIBURN_STORE" => Some("program".into()),
            "CALIBURN_LISTEN" => Some("127.0.0.1:0".into()),
            _ => get(name),
        })
    }

    /// The cluster, with all that etcd knows of it, which is followed as long as the second lives.
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub async fn found(&self) -> Result<(Cluster, Option<Names>), EnvironmentError> {
        let cluster = self.cluster()?;
        let names = match self.etcd(&cluster)? {
            Some(etcd) => Some(Names::follow(etcd, cluster.clone()).await?),
            None => None,
        };
        Ok((cluster, names))
    }

    /// The variables that say this.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let path = |path: &PathBuf| path.to_string_lossy().into_owned();
        let mut all = vec![
            ("CALIBURN_SERVER", self.name.clone()),
            ("CALIBURN_CLUSTER", self.cluster.clone()),
            ("CALIBURN_NUMBER", self.number.to_string()),
            ("CALIBURN_STORE", path(&self.store)),
            ("CALIBURN_ETCD", self.etcd.join(",")),
        ];
        all.extend(self.listen.map(|listen| ("CALIBURN_LISTEN", listen.to_string())));
        all.extend(self.nodes.iter().map(|nodes| ("CALIBURN_NODES", path(nodes))));
        if let Some([authority, certificate, key]) = &self.certificates {
            all.push(("CALIBURN_AUTHORITY", path(authority)));
            all.push(("CALIBURN_CERTIFICATE", path(certificate)));
            all.push(("CALIBURN_KEY", path(key)));
        }
        all.extend(self.quota.map(|quota| ("CALIBURN_QUOTA", quota.to_string())));
        all.extend(self.log.variables());
        all.extend(self.daemon.iter().map(|(number, at)| ("CALIBURN_DAEMON", format!("{number}={at}"))));
        all.extend(self.supervisor.map(|pid| ("CALIBURN_SUPERVISOR", pid.to_string())));
        all
    }

    /// The cluster, as far as it is known without etcd.
    ///
    /// # Errors
    /// When certificates can't be used, or the file of nodes.
    pub fn cluster(&self) -> Result<Cluster, EnvironmentError> {
        let cluster = match &self.certificates {
            None => Cluster::new(&*self.cluster),
            Some([authority, certificate, key]) => {
                Cluster::secured(&*self.cluster, Credentials::read(authority, certificate, key)?)?
            }
        };
        match &self.nodes {
            None => Ok(cluster),
            Some(file) => Ok(cluster.read_nodes(file)?),
        }
    }

    /// Whoever keeps slots and names.
    fn etcd(&self, cluster: &Cluster) -> Result<Option<Etcd>, KeepError> {
        if self.etcd.is_empty() {
            return Ok(None);
        }
        let members = self.etcd.iter().map(String::as_str);
        match cluster.credentials() {
            None => Etcd::new(members, &self.cluster).map(Some),
            Some(credentials) => Etcd::secured(members, &self.cluster, credentials).map(Some),
        }
    }

    /// How others reach what serves at an address.
    pub fn reached_at(&self, address: SocketAddr) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        format!("{scheme}://{address}")
    }
}

/// A data server that is to run, in a process of its own.
#[derive(Debug)]
pub struct DataServer {
    environment: Environment,
    cluster: Cluster,
    etcd: Option<Etcd>,
    rights: Option<Rights>,
    _names: Option<Names>,
    /// What it was told of its neighbours last.
    neighbours: Mutex<Vec<Neighbour>>,
    gone: Gone,
    unregistered: bool,
}

/// What times of day are like.
const TIMES: &str = "times of day in UTC, such as 03:00,15:30";

/// Turns true when whoever supervises the process has ended.
type Gone = watch::Receiver<bool>;

/// After that, this process may take so long to end.
const GRACE: Duration = Duration::from_secs(10);

impl DataServer {
    /// One that is told by its environment. The names of the cluster are known when this returns.
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub async fn from_environment() -> Result<DataServer, EnvironmentError> {
        DataServer::new(Environment::read()?).await
    }

    /// One that is told this.
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub async fn new(environment: Environment) -> Result<DataServer, EnvironmentError> {
        // From the first moment on.
        let gone = watch_supervisor(environment.supervisor);
        let mut cluster = environment.cluster()?;
        if let (Some(credentials), Some([_, file, _])) = (cluster.credentials(), &environment.certificates) {
            let (cluster, number) = (&environment.cluster, environment.number);
            if credentials.peer(cluster) != Some(Peer::Node(Node(number))) {
                return Err(EnvironmentError::Certificate(file.clone(), node_name(cluster, number)));
            }
        }
        if let Some((number, at)) = &environment.daemon {
            cluster = cluster.node(*number, at)?;
        }
        let etcd = environment.etcd(&cluster)?;
        let names = match &etcd {
            Some(etcd) => Some(Names::follow(etcd.clone(), cluster.clone()).await?),
            None => None,
        };
        // Nobody may do anything until the daemon has said who.
        let rights = (environment.daemon.is_some() && environment.certificates.is_some()).then(Rights::new);
        let neighbours = Mutex::default();
        Ok(DataServer {
            environment,
            cluster,
            etcd,
            rights,
            _names: names,
            neighbours,
            gone,
            unregistered: false,
        })
    }

    /// The node that it is, to be given segments and started.
    pub fn builder(&self) -> Builder {
        let Environment { number, store, quota, log, .. } = &self.environment;
        let mut node = Running::builder(self.cluster.clone(), *number, store).log(log.clone());
        if let Some(etcd) = &self.etcd {
            node = node.keeper(Keeper::Etcd(etcd.clone()));
        }
        if let Some(quota) = quota {
            node = node.quota(*quota);
        }
        if let Some(rights) = &self.rights {
            node = node.rights(rights.clone());
        }
        node
    }

    /// Not to be found by its name: only who knows its node calls it.
    pub fn unregistered(mut self, yes: bool) -> DataServer {
        self.unregistered = yes;
        self
    }

    /// Its cluster, as far as it knows it.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// What it is told.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Serves, says so to its supervisor and to the cluster, and stops in good order when it is told to (SIGTERM,
    /// SIGINT), or when its supervisor is gone.
    ///
    /// # Errors
    /// [`EnvironmentError`]; the node has stopped then.
    pub async fn serve(
        &self,
        node: &Running,
        add: impl FnOnce(&mut RoutesBuilder),
    ) -> Result<(), EnvironmentError> {
        let served = self.serve_until_told(node, add).await;
        node.stop().await;
        served
    }

    async fn serve_until_told(
        &self,
        node: &Running,
        add: impl FnOnce(&mut RoutesBuilder),
    ) -> Result<(), EnvironmentError> {
        let io = |what| move |error| EnvironmentError::Io(what, error);
        let mut terminate = signal(SignalKind::terminate()).map_err(io("SIGTERM"))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(io("SIGINT"))?;
        let mut gone = self.gone.clone();
        let address = self.environment.listen.ok_or(EnvironmentError::Missing("CALIBURN_LISTEN"))?;
        let listener = tokio::net::TcpListener::bind(address).await;
        let listener = listener.map_err(|error| ServeError::Address(address, error))?;
        let at = self.environment.reached_at(listener.local_addr().map_err(io("its address"))?);
        let name = Some(&*self.environment.name).filter(|_| !self.unregistered);
        node.announce(&at, name);
        let (first, heard) = oneshot::channel();
        let follow = async {
            match &self.environment.daemon {
                Some((number, at)) => self.follow(*number, at, first).await,
                None => {
                    let _ = first.send(());
                    std::future::pending().await
                }
            }
        };
        // It serves when it knows for whom.
        let ready = async {
            let _ = heard.await;
            match notify() {
                Ok(()) => std::future::pending().await,
                Err(error) => error,
            }
        };
        tokio::select! {
            served = node.serve_on(listener, add) => Ok(served?),
            never = dump_again_and_again(node, &self.environment.log) => match never {},
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
            _ = gone.wait_for(|gone| *gone) => Ok(()),
            () = follow => Ok(()),
            error = ready => Err(EnvironmentError::Io("NOTIFY_SOCKET", error)),
        }
    }

    /// Hears from the daemon what users may do, and who its neighbours are, for ever; while it can't be asked, what
    /// was heard last counts.
    async fn follow(&self, number: u64, at: &str, first: oneshot::Sender<()>) {
        const AGAIN: Duration = Duration::from_millis(500);
        let mut first = Some(first);
        loop {
            if let Err(error) = self.hear(number, at, &mut first).await {
                tracing::warn!("node {number} can't be asked what users may do: {error}");
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn hear(
        &self,
        number: u64,
        at: &str,
        first: &mut Option<oneshot::Sender<()>>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        // Of its own: names that are followed come and go.
        let environment = Environment { nodes: None, ..self.environment.clone() };
        let channel = environment.cluster()?.node(number, at)?.channel(Node(number))?;
        let mut told = AdminClient::new(channel).follow(FollowRequest {}).await?.into_inner();
        while let Some(Surroundings { users, neighbours }) = told.message().await? {
            if let Some(rights) = &self.rights {
                let users = users.into_iter().map(|user| (user.name, user.rights.into_iter().collect()));
                rights.set(users.collect());
            }
            let mut before = self.neighbours.lock().unwrap_or_else(PoisonError::into_inner);
            meet(&self.cluster, &self.environment, &before, &neighbours);
            *before = neighbours;
            drop(before);
            first.take().into_iter().for_each(|first| _ = first.send(()));
        }
        Ok(())
    }
}

/// Ends this process in some time when the one that supervises it has ended: also while it recovers.
fn watch_supervisor(supervisor: Option<ProcessId>) -> Gone {
    let (tell, told) = watch::channel(false);
    let Some(supervisor) = supervisor else {
        // For as long as the process runs.
        std::mem::forget(tell);
        return told;
    };
    std::thread::spawn(move || {
        if let Some(runs) = supervisor.open() {
            let mut wait = [PollFd::new(&runs, PollFlags::IN)];
            while rustix::event::poll(&mut wait, None) == Err(rustix::io::Errno::INTR) {}
        }
        if !unless("servers-outlive-the-daemon", true) {
            std::mem::forget(tell);
            return;
        }
        let _ = tell.send(true);
        std::thread::sleep(GRACE);
        eprintln!("the process that supervises this one has ended");
        std::process::exit(1);
    });
    told
}

/// That others find at an address what serves there.
pub(crate) fn is_reachable(address: SocketAddr) -> Result<(), &'static str> {
    match (address.port(), address.ip().is_unspecified()) {
        (0, _) => Err("a port is needed that others can be told"),
        (_, true) => Err("an address is needed that others can be told, and not all of this machine"),
        _ => Ok(()),
    }
}

/// Has a cluster know servers, where there is no etcd that knows them all.
pub(crate) fn meet(
    cluster: &Cluster,
    environment: &Environment,
    before: &[Neighbour],
    neighbours: &[Neighbour],
) {
    if !environment.etcd.is_empty() {
        return;
    }
    let is_there = |number: u64| neighbours.iter().any(|neighbour| neighbour.number == number);
    let gone = before.iter().filter(|gone| !is_there(gone.number) && gone.number != environment.number);
    gone.for_each(|gone| cluster.remove(Node(gone.number)));
    for neighbour in neighbours.iter().filter(|neighbour| neighbour.number != environment.number) {
        let Neighbour { name, number, address } = neighbour;
        if let Err(error) = cluster.set(Node(*number), address, vec![name.clone()]) {
            tracing::warn!("server {name:?}: {error}");
        }
    }
}

/// Says that this process serves, if somebody wants to know.
fn notify() -> std::io::Result<()> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else { return Ok(()) };
    let address = match path.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => std::os::unix::net::SocketAddr::from_abstract_name(name)?,
        None => std::os::unix::net::SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn read(variables: &[(&'static str, String)]) -> Result<Environment, EnvironmentError> {
        let all: BTreeMap<&str, String> = variables.iter().cloned().collect();
        Environment::of(|name| all.get(name).cloned())
    }

    #[test]
    fn what_is_told_is_read() {
        let told = Environment {
            name: "bank".into(),
            cluster: "c".into(),
            number: 7,
            store: "/s".into(),
            listen: Some("127.0.0.1:4101".parse().unwrap()),
            etcd: vec!["http://a:1".into(), "http://b:2".into()],
            nodes: Some("/n".into()),
            certificates: Some(["/a".into(), "/c".into(), "/k".into()]),
            quota: Some(1 << 30),
            log: LogPlan {
                path: Some("/log".into()),
                bytes: Some(1 << 20),
                second: Some(None),
                recovery: Some(Duration::from_millis(500)),
                former: vec!["/before".into(), "/and before".into()],
                dumps: Some("/dumps".into()),
                dump_at: Some("03:00".parse().unwrap()),
            },
            daemon: Some((1, "https://127.0.0.1:4100".into())),
            supervisor: ProcessId::of(std::process::id()),
        };
        assert_eq!(read(&told.variables()).unwrap().variables(), told.variables());
        let without = |name: &str| {
            let mut all = told.variables();
            all.retain(|variable| variable.0 != name);
            read(&all).unwrap_err().to_string()
        };
        assert!(without("CALIBURN_STORE").starts_with("CALIBURN_STORE is not set"));
        assert!(without("CALIBURN_KEY").starts_with("CALIBURN_KEY is not set"));
        let mut wrong = told.variables();
        wrong.push(("CALIBURN_DAEMON", "1:x".into()));
        let wrong = read(&wrong).unwrap_err().to_string();
        assert_eq!(wrong, "CALIBURN_DAEMON is \"1:x\", and should be number=address");
    }
}
