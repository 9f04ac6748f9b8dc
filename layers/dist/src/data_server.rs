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
//! | `CALIBURN_ETCD_AUTHORITY`, `CALIBURN_ETCD_CERTIFICATE`, `CALIBURN_ETCD_KEY` | the same for etcd, if that has an authority of its own, as it should have where users have certificates |
//! | `CALIBURN_QUOTA` | bytes that its segments and its log may have together |
//! | `CALIBURN_LOG`, `CALIBURN_LOG_BYTES` | where its log is, and how long |
//! | `CALIBURN_DUPLEX_LOG` | a second copy of it, or `none` |
//! | `CALIBURN_FORMER_LOGS` | where it was, or a copy of it, with colons between: it comes from there |
//! | `CALIBURN_DUMPS`, `CALIBURN_DUMP_AT` | where dumps of its store go, and at which times of day, in UTC |
//! | `CALIBURN_RECOVERY_MS` | how long a recovery may take: so often the log is truncated |
//! | `CALIBURN_FORGET_CLOCK` | a number, not 0: its clock forgets how far it had gone, once for each number (docs/camelot.md, timestamps) |
//! | `CALIBURN_TIMESTAMPS` | `no`: its cluster has none, and clocks don't count |
//! | `CALIBURN_DAEMON` | `number=address` of the daemon, which says what users may do; without, whoever has a certificate may do all |
//! | `CALIBURN_SUPERVISOR` | its process: the server ends with it |
//! | `NOTIFY_SOCKET` | where it says that it serves, and what an operator should know, in systemd's format |

use crate::cluster::Cluster;
use crate::commit::word::Node;
use crate::credentials::{Peer, node_name};
use crate::dumping::dump_again_and_again;
pub use crate::environment::{Environment, EnvironmentError};
use crate::exposure::Exposure;
use crate::keep::etcd::Etcd;
use crate::keep::keeper::Keeper;
use crate::keep::names::Names;
use crate::node::door::raise_descriptors;
use crate::node::{Builder, Node as Running, ServeError};
use crate::process_id::ProcessId;
use crate::proto::admin::admin_client::AdminClient;
use crate::proto::admin::{FollowRequest, Neighbour, Surroundings};
use crate::rights::Rights;
use caliburn_os::descriptors::{self, above};
use caliburn_os::simulated::unless;
use rustix::event::{PollFd, PollFlags};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tonic::service::RoutesBuilder;

/// A data server that is to run, in a process of its own.
#[derive(Debug)]
pub struct DataServer {
    environment: Environment,
    cluster: Cluster,
    etcd: Option<Etcd>,
    exposure: Exposure,
    rights: Option<Rights>,
    _names: Option<Names>,
    /// What it was told of its neighbours last.
    neighbours: Mutex<Vec<Neighbour>>,
    gone: Gone,
    unregistered: bool,
}

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
        raise_descriptors();
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
        let exposure = Exposure::of(&environment, &cluster)?;
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
            exposure,
            rights,
            _names: names,
            neighbours,
            gone,
            unregistered: false,
        })
    }

    /// The node that it is, to be given segments and started.
    pub fn builder(&self) -> Builder {
        let Environment { number, store, quota, log, forget_clock, without_timestamps, .. } =
            &self.environment;
        let mut node = Running::builder(self.cluster.clone(), *number, store).log(log.clone());
        node = node.on_notice(|text| {
            // It is in the log in any case.
            let _ = notify(&format!("STATUS={text}"));
        });
        node = node.forget_clock_once(*forget_clock).timestamps(!without_timestamps);
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
        descriptors::occupy();
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
            match notify(READY) {
                Ok(()) => std::future::pending().await,
                Err(error) => error,
            }
        };
        tokio::select! {
            served = node.serve_on(listener, add) => Ok(served?),
            never = self.exposure.look_again_and_again(node) => match never {},
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

/// Tells the supervisor a state, if there is a supervisor. Only of one that says that it is ready it waits until
/// there is room: notices come from threads that have other things to do.
fn notify(state: &str) -> std::io::Result<()> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else { return Ok(()) };
    let address = match path.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => std::os::unix::net::SocketAddr::from_abstract_name(name)?,
        None => std::os::unix::net::SocketAddr::from_pathname(path)?,
    };
    tell(&address, state)
}

fn tell(address: &std::os::unix::net::SocketAddr, state: &str) -> std::io::Result<()> {
    let socket = above(UnixDatagram::unbound)?;
    socket.set_nonblocking(unless("notices-wait", state != READY))?;
    socket.send_to_addr(state.as_bytes(), address).map(|_| ())
}

const READY: &str = "READY=1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_that_does_not_listen_holds_nobody_up() {
        let name = format!("caliburn-test-{}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let supervisor = UnixDatagram::bind_addr(&address).unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let full = (0..100_000).find_map(|_| tell(&address, "STATUS=well").err());
            done.send(full.map(|error| error.kind())).unwrap();
        });
        let full = is_done.recv_timeout(Duration::from_secs(10)).expect("it waits");
        assert_eq!(full, Some(std::io::ErrorKind::WouldBlock));
        drop(supervisor);
    }
}
