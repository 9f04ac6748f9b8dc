//! A machine's node: coordinates transactions, supervises data servers, and is administered (Camelot, section 3.2).
//!
//! ```text
//!   daemon (a process): node server, in recoverable memory: data servers, users
//!      |  starts, watches, restarts
//!      |---- data server (a process): store, log, a number of its own in the cluster
//!      '---- data server
//! ```
//!
//! | module | noun |
//! |---|---|
//! | `keeping` | what is done to keep a server running |
//! | `table` | what the node server remembers |
//! | `events` | what has happened |
//! | `process` | a server's process |
//! | `service` | the interface for administrators |

mod events;
mod keeping;
mod process;
mod service;
mod table;

use crate::cluster::Cluster;
use crate::data_server::{DataServer, Environment, EnvironmentError, is_reachable, meet};
use crate::node::{Node, NodeError};
use crate::proto::admin::admin_server::AdminServer;
use crate::proto::admin::{Neighbour, Server, Surroundings, User};
use crate::rights::Rights;
use caliburn_os::descriptors;
use events::Events;
use process::{Around, Kept, Over, is_over};
use service::{Changes, Service};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tonic::{Request, Status};

/// Why a daemon does not run, or not any longer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// What it was told.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// Its node.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// Its directory.
    #[error("{0}: {1}")]
    Directory(PathBuf, std::io::Error),
    /// Where it should serve.
    #[error("{0}: {1}")]
    Listen(std::net::SocketAddr, String),
    /// What the node server remembers.
    #[error("the node server: {0}")]
    Table(Status),
}

/// A node's daemon, which runs in this process.
#[derive(Debug)]
pub struct Daemon {
    node: Node,
    data_server: DataServer,
    supervisor: Supervisor,
    changes: Arc<Changes>,
}

impl Daemon {
    /// Opens, or makes, what the node server remembers. `environment`: its store is the daemon's directory.
    /// `administrator`: the user who may do everything; without certificates, programs on this machine may.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn start(
        environment: Environment,
        administrator: Option<String>,
    ) -> Result<Daemon, DaemonError> {
        let dir = environment.store.clone();
        let own = environment.listen.ok_or(EnvironmentError::Missing("CALIBURN_LISTEN"))?;
        is_reachable(own).map_err(|why| DaemonError::Listen(own, why.into()))?;
        // Before anything is made.
        descriptors::occupy();
        let free = tokio::net::TcpListener::bind(own).await;
        free.map_err(|error| DaemonError::Listen(own, error.to_string()))?;
        let told = Environment { store: dir.join("store"), daemon: None, ..environment.clone() };
        let data_server = DataServer::new(told).await?;
        for part in ["run", "logs", "servers"] {
            let path = dir.join(part);
            std::fs::create_dir_all(&path).map_err(|error| DaemonError::Directory(path, error))?;
        }
        let path = dir.join("events.log");
        let events = Events::open(path.clone()).map_err(|error| DaemonError::Directory(path, error))?;
        let changes = Arc::new(Changes::default());
        let (committed, aborted, noticed) = (changes.clone(), changes.clone(), events.clone());
        let rights = Rights::new();
        let node = data_server.builder().rights(rights.clone()).segment(table::SEGMENT, table::SEGMENT_BYTES);
        let node = node.on_notice(move |text| noticed.add("", text));
        let node = node.on_commit(move |tid, _| committed.ended(tid, true));
        let node = node.on_abort(move |tid| aborted.ended(tid, false)).start().await?;
        events.add("", format!("node {} of cluster {:?} begins", environment.number, environment.cluster));
        let supervisor = Supervisor {
            node: node.clone(),
            around: Arc::new(Around { environment, dir, events }),
            kept: Arc::default(),
            told: watch::Sender::new(None),
            cluster: data_server.cluster().clone(),
            rights,
            administrator,
            former: Vec::new(),
            neighbours: Vec::new(),
            seen: None,
        };
        Ok(Daemon { node, data_server, supervisor, changes })
    }

    /// Serves, and keeps servers running, until it is told to stop (SIGTERM, SIGINT), or `stop` is over: then its
    /// data servers are stopped, and started again when it is.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), DaemonError> {
        let Daemon { node, data_server, mut supervisor, changes } = self;
        let Around { environment, events, .. } = &*supervisor.around.clone();
        let service = Service {
            node: node.clone(),
            cluster: environment.cluster.clone(),
            changes: changes.clone(),
            administrator: supervisor.administrator.clone(),
            is_found: !environment.etcd.is_empty(),
            kept: supervisor.kept.clone(),
            told: supervisor.told.clone(),
            events: events.clone(),
        };
        let serving =
            data_server.serve(&node, |services| _ = services.add_service(AdminServer::new(service)));
        let served = tokio::select! {
            served = serving => served.map_err(DaemonError::from),
            () = stop => Ok(()),
            error = supervisor.run(&changes) => Err(DaemonError::Table(error)),
        };
        node.stop().await;
        let all = std::mem::take(&mut *lock(&supervisor.kept));
        let ending: Vec<Over> = all.into_values().map(Kept::end).collect();
        let former = supervisor.former.into_iter().map(|(.., over)| over);
        for over in ending.into_iter().chain(former) {
            is_over(over).await;
        }
        events.add("", "node ends");
        served
    }
}

fn lock(kept: &Mutex<BTreeMap<String, Kept>>) -> MutexGuard<'_, BTreeMap<String, Kept>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes of the machine what the node server remembers.
#[derive(Debug)]
struct Supervisor {
    node: Node,
    around: Arc<Around>,
    kept: Arc<Mutex<BTreeMap<String, Kept>>>,
    told: watch::Sender<Option<Surroundings>>,
    cluster: Cluster,
    /// Of the node itself.
    rights: Rights,
    administrator: Option<String>,
    /// Of servers that were removed: names and numbers.
    former: Vec<(String, u64, Over)>,
    /// What others were told of last.
    neighbours: Vec<Neighbour>,
    seen: Option<(Vec<Server>, Vec<User>)>,
}

impl Supervisor {
    /// Until what is remembered can't be read.
    async fn run(&mut self, changes: &Changes) -> Status {
        loop {
            match self.node.run(Request::new(()), |call, ()| table::all(call)).await {
                Ok(all) => {
                    self.apply(all.into_inner());
                    changes.committed.notified().await;
                }
                // What is there can't be read; nothing that is done here makes it better.
                Err(status) if status.code() == tonic::Code::DataLoss => return status,
                // Somebody changes it, for long; or too many ask. If the node ends, whoever serves says why.
                Err(status) => {
                    tracing::debug!("the node server is asked again: {status}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn apply(&mut self, (servers, users): (Vec<Server>, Vec<User>)) {
        let before = self.seen.replace((servers.clone(), users.clone()));
        self.tell(before, &servers, &users);
        self.introduce(&servers, users);
        self.former.retain(|(.., over)| !*over.borrow());
        let mut kept = lock(&self.kept);
        let is_there =
            |name: &str, kept: &Kept| servers.iter().any(|server| server.name == name && kept.is(server));
        let gone = kept.extract_if(.., |name, kept| !is_there(name, kept));
        for (name, gone) in gone {
            let number = gone.status().server.map_or(0, |server| server.number);
            self.former.push((name, number, gone.end()));
        }
        for server in servers {
            if let Some(kept) = kept.get(&server.name) {
                kept.tell(server);
                continue;
            }
            let same =
                |(name, number, _): &&(String, u64, Over)| *name == server.name || *number == server.number;
            let former = self.former.iter().filter(same).map(|(.., over)| over.clone()).collect();
            kept.insert(server.name.clone(), Kept::begin(self.around.clone(), server, former));
        }
    }

    /// Tells the servers of each other, and of users.
    fn introduce(&mut self, servers: &[Server], users: Vec<User>) {
        let own = &self.around.environment;
        let neighbours = servers.iter().filter_map(|server| {
            let address = own.reached_at(server.listen.parse().ok()?);
            Some(Neighbour { name: server.name.clone(), number: server.number, address })
        });
        let neighbours: Vec<Neighbour> = neighbours.collect();
        meet(&self.cluster, own, &self.neighbours, &neighbours);
        self.neighbours.clone_from(&neighbours);
        let administrator =
            self.administrator.clone().map(|name| User { name, rights: vec!["*".to_owned()] });
        // Whoever may change the rights has them.
        let users: Vec<User> = users.into_iter().chain(administrator).collect();
        let rights = users.iter().cloned().map(|user| (user.name, user.rights.into_iter().collect()));
        self.rights.set(rights.collect());
        self.told.send_replace(Some(Surroundings { users, neighbours }));
    }

    /// What has changed.
    fn tell(&self, before: Option<(Vec<Server>, Vec<User>)>, servers: &[Server], users: &[User]) {
        let Some((old_servers, old_users)) = before else { return };
        let events = &self.around.events;
        for server in servers {
            match old_servers.iter().find(|old| old.name == server.name) {
                None => events.add(&server.name, format!("is added, as number {}", server.number)),
                Some(old) if old.wanted != server.wanted => {
                    events.add(&server.name, if server.wanted { "is to run" } else { "is to stop" });
                }
                Some(old) if old.started != server.started => events.add(&server.name, "is to run"),
                Some(old) if old.restarted != server.restarted => events.add(&server.name, "is to restart"),
                Some(old) if old.crashed != server.crashed => events.add(&server.name, "is to crash"),
                Some(old) if old != server => events.add(&server.name, "is changed"),
                Some(_) => {}
            }
        }
        for old in old_servers.iter().filter(|old| servers.iter().all(|server| server.name != old.name)) {
            events.add(&old.name, "is removed");
        }
        for user in users.iter().filter(|user| !old_users.contains(user)) {
            events.add("", format!("user {:?} may {}", user.name, user.rights.join(", ")));
        }
        for old in old_users.iter().filter(|old| users.iter().all(|user| user.name != old.name)) {
            events.add("", format!("user {:?} is removed", old.name));
        }
    }
}
