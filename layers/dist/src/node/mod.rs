//! A node that runs: a store, data servers, and its part in the commit protocols.
//!
//! | module | noun |
//! |---|---|
//! | `work` | what a transaction holds: changes and locks |
//! | `ledger` | what the node itself remembers |
//! | `core` | does what its host wants |
//! | `outside` | where calls come in, and what is sent |
//! | [`call`] | an operation of a data server at work |
//! | `serve` | the node's own interface, for programs and other nodes |

pub mod call;
pub(crate) mod core;
mod ledger;
pub(crate) mod outside;
mod serve;
pub(crate) mod work;

use crate::cluster::Cluster;
use crate::commit::word::{Node as NodeId, Outcome, Protocol};
use crate::host::{Host, Patience};
use crate::id::{News, Tid};
use crate::keep::keeper::Keeper;
use crate::keep::memory::Memory;
use crate::node::call::{Call, Coming, execute};
use crate::node::core::{Core, Found};
use crate::node::ledger::Ledger;
use crate::node::outside::{DECIDING, Outside, Queues};
use crate::scope::{Scope, Untold};
use crate::{id::Path, wire};
use caliburn_engine::Store;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tonic::service::{Routes, RoutesBuilder};
use tonic::{Request, Response, Status};

/// So often slots are looked for that nobody deletes.
const SWEEP: Duration = Duration::from_secs(60);

/// A node that is to run.
#[derive(Debug)]
pub struct Builder {
    number: u64,
    cluster: Cluster,
    path: PathBuf,
    options: caliburn_engine::Options,
    segments: Vec<(String, u64)>,
    level: usize,
    patience: Patience,
    keeper: Keeper,
}

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
    /// Its life could not be remembered.
    #[error(transparent)]
    Commit(#[from] caliburn_engine::CommitError),
    /// Its epoch could not be had.
    #[error(transparent)]
    Keep(#[from] crate::keep::etcd::KeepError),
    /// The address could not be served, or not any longer.
    #[error(transparent)]
    Serve(#[from] tonic::transport::Error),
    /// The address could not be had.
    #[error("{0}: {1}")]
    Address(SocketAddr, std::io::Error),
    /// It was closed, or had failed.
    #[error("{0}")]
    Stopped(String),
}

impl Builder {
    /// Its store, with options; made if there is none.
    pub fn options(mut self, options: caliburn_engine::Options) -> Builder {
        self.options = options;
        self
    }

    /// A segment of its servers, made with zeros if there is none.
    pub fn segment(mut self, name: impl Into<String>, bytes: u64) -> Builder {
        self.segments.push((name.into(), bytes));
        self
    }

    /// How many calls are executed at one time; further ones wait, then are refused. 16 unless told.
    pub fn level(mut self, level: usize) -> Builder {
        self.level = level.max(1);
        self
    }

    /// How long it waits for others.
    pub fn patience(mut self, patience: Patience) -> Builder {
        self.patience = patience;
        self
    }

    /// Who keeps the slots of transactions that commit without blocking. Unless told, this process: then only its own
    /// nodes can take part in such transactions, and only while none of them crashes.
    pub fn keeper(mut self, keeper: Keeper) -> Builder {
        self.keeper = keeper;
        self
    }

    /// Opens the store, recovers, and runs, with threads of its own.
    ///
    /// # Errors
    /// [`NodeError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(self) -> Result<Node, NodeError> {
        let (ready, is_ready) = oneshot::channel();
        let (begin, may_begin) = oneshot::channel();
        let Builder { number, cluster, path, options, segments, level, patience, keeper } = self;
        let opening = Opening { number, path, options, segments, level, patience };
        let thread = std::thread::Builder::new().name(format!("caliburn-node-{number}"));
        let thread = thread.spawn(move || opening.run(ready, may_begin)).expect("a thread can be had");
        // The life that the store remembers.
        let life = is_ready.await.map_err(|_| NodeError::Stopped("the node could not open".into()))??;
        let own = NodeId(number);
        let incarnation = keeper.begin_life(own, life).await?;
        let slots = keeper.of(own).await?;
        let (outside, queues) = Outside::new(own, incarnation, cluster, keeper, level);
        let (recovered, is_recovered) = oneshot::channel();
        let begun = begin.send(Beginning { outside: outside.clone(), queues, slots, recovered });
        begun.map_err(|_| NodeError::Stopped("the node could not begin".into()))?;
        is_recovered.await.map_err(|_| NodeError::Stopped("the node could not recover".into()))??;
        tokio::spawn(outside.clone().sweep(SWEEP));
        Ok(Node { outside, thread: Arc::new(Mutex::new(Some(thread))) })
    }
}

struct Opening {
    number: u64,
    path: PathBuf,
    options: caliburn_engine::Options,
    segments: Vec<(String, u64)>,
    level: usize,
    patience: Patience,
}

struct Beginning {
    outside: Arc<Outside>,
    queues: Queues,
    slots: BTreeMap<Tid, crate::commit::word::Participants>,
    recovered: oneshot::Sender<Result<(), NodeError>>,
}

type Life = Result<crate::commit::word::Incarnation, NodeError>;

impl Opening {
    /// The node's own thread: owns the store.
    fn run(self, ready: oneshot::Sender<Life>, may_begin: oneshot::Receiver<Beginning>) {
        let mut ready = Some(ready);
        if let Err(error) = self.open(&mut ready, may_begin)
            && let Some(ready) = ready.take()
        {
            let _ = ready.send(Err(error));
        }
    }

    fn open(
        self,
        ready: &mut Option<oneshot::Sender<Life>>,
        may_begin: oneshot::Receiver<Beginning>,
    ) -> Result<(), NodeError> {
        let store = self.options.clone().create(true).open(&self.path);
        let store = store.map_err(|error| NodeError::Open(self.path.clone(), error))?;
        let map = |name: &str, bytes: u64| {
            let segment = store.segment_or_create(name, bytes);
            let segment = segment.map_err(|error| NodeError::Segment(name.to_owned(), Box::new(error)))?;
            segment.map_all().map_err(|error| NodeError::Segment(name.to_owned(), Box::new(error)))
        };
        let own = map(ledger::SEGMENT, ledger::SEGMENT_BYTES)?;
        let mapped = self.segments.iter().map(|(name, bytes)| Ok((name.clone(), map(name, *bytes)?)));
        let mapped = mapped.collect::<Result<Vec<_>, NodeError>>()?;
        {
            let (ledger, life, commits) = Ledger::open(&store, &own);
            let ready = ready.take().expect("it was not sent");
            let _ = ready.send(Ok(life));
            let Ok(Beginning { outside, queues, slots, recovered }) = may_begin.blocking_recv() else {
                return Ok(());
            };
            if let Err(error) = ledger.set_life(outside.incarnation) {
                let _ = recovered.send(Err(error.into()));
                return Ok(());
            }
            let host = Host::new(outside.own, outside.incarnation, self.patience);
            let regions = mapped.iter().map(|(name, region)| (name.clone(), region)).collect();
            let core = Core::new(&store, regions, ledger, outside, host);
            core.recover(Found { commits, slots });
            let _ = recovered.send(Ok(()));
            self.work(&core, &queues);
        }
        drop((own, mapped));
        if let Err(error) = store.close() {
            tracing::warn!("node {}: its store was not closed in good order: {error}", self.number);
        }
        Ok(())
    }

    /// Until it stops.
    fn work(&self, core: &Core<'_>, queues: &Queues) {
        std::thread::scope(|scope| {
            let take = |queue: &Mutex<std::sync::mpsc::Receiver<outside::Job>>| {
                queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).recv()
            };
            let run = move |queue: &Mutex<std::sync::mpsc::Receiver<outside::Job>>| {
                while !core.outside.is_stopping() {
                    if let Ok(job) = take(queue) {
                        job(core);
                    }
                }
            };
            for _ in 0..self.level {
                scope.spawn(move || run(&queues.calls));
            }
            for _ in 0..DECIDING {
                scope.spawn(move || run(&queues.decisions));
            }
            core.keep_time();
        });
    }
}

/// A node that runs. Clones are the same one.
#[derive(Clone)]
pub struct Node {
    outside: Arc<Outside>,
    thread: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("number", &self.outside.own.0).finish_non_exhaustive()
    }
}

impl Node {
    /// A node of a cluster, with its number there and the directory of its store.
    pub fn builder(cluster: Cluster, number: u64, path: impl Into<PathBuf>) -> Builder {
        Builder {
            number,
            cluster,
            path: path.into(),
            options: Store::options(),
            segments: Vec::new(),
            level: 16,
            patience: Patience::default(),
            keeper: Keeper::Memory(Arc::new(Mutex::new(Memory::default()))),
        }
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.outside.own.0
    }

    /// Executes an operation for a call that came, within the transaction that it belongs to; a call outside of any
    /// is a transaction of its own.
    ///
    /// # Errors
    /// What the operation returns; when the call may not begin, or its own transaction does not commit.
    pub async fn run<M, T>(
        &self,
        request: Request<M>,
        operation: impl for<'c, 't> FnOnce(&mut Call<'c, 't>, M) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status>
    where
        M: Send + 'static,
        T: Send + 'static,
    {
        let (metadata, _, message) = request.into_parts();
        let operation = move |call: &mut Call<'_, '_>| operation(call, message);
        let Some(context) = wire::context_from(&metadata)? else { return self.run_alone(operation).await };
        self.same_cluster(&context.cluster)?;
        let expires = self.outside.now() + Duration::from_millis(context.remaining);
        let coming = Coming { tid: context.tid, path: context.path, news: context.news, expires };
        let (answer, answered) = oneshot::channel();
        self.outside.call(Box::new(move |core| {
            let _ = answer.send(execute(core, coming, operation));
        }))?;
        let (value, report) = answered.await.map_err(|_| self.stops())??;
        let mut response = Response::new(value);
        wire::put_report(response.metadata_mut(), &report);
        Ok(response)
    }

    /// A call outside of transactions.
    async fn run_alone<T: Send + 'static>(
        &self,
        operation: impl for<'c, 't> FnOnce(&mut Call<'c, 't>) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let expires = self.outside.now() + crate::client::TIME_OUT;
        let (answer, answered) = oneshot::channel();
        self.outside.call(Box::new(move |core| {
            let serial = {
                let mut state = core.state();
                let serial = state.next_own;
                state.next_own += 1;
                state.own.insert(serial);
                serial
            };
            let (coordinator, incarnation) = (core.outside.own, core.outside.incarnation);
            let tid = Tid { coordinator, incarnation, client: 0, serial, protocol: Protocol::Blocking };
            let (mut scope, mut untold) = (Scope::new(Path::default()), Untold::default());
            let path = scope.next_child();
            let coming = Coming { tid, path: path.clone(), news: News::new(), expires };
            let done = execute(core, coming, operation);
            let value = match done {
                Ok((value, report)) => {
                    scope.answered(&mut untold, &path, report);
                    Ok(value)
                }
                Err(status) => {
                    scope.failed(&mut untold, &path, coordinator, None);
                    Err(status)
                }
            };
            let told = core.outside.wait_for(tid);
            core.end(tid, value.is_ok(), scope.into_report(untold));
            {
                let mut state = core.state();
                state.own.remove(&serial);
                let below = state.own.first().copied().unwrap_or(state.next_own);
                state.host.client_has_ended(0, below);
            }
            let _ = answer.send((value, told));
        }))?;
        let (value, told) = answered.await.map_err(|_| self.stops())?;
        let value = value?;
        match told.await.map_err(|_| self.stops())? {
            Outcome::Committed => Ok(Response::new(value)),
            Outcome::Aborted => Err(Status::aborted("its transaction did not commit")),
        }
    }

    fn stops(&self) -> Status {
        self.outside.goes_on().err().unwrap_or_else(|| Status::unavailable("the node stops"))
    }

    pub(crate) fn same_cluster(&self, cluster: &str) -> Result<(), Status> {
        let own = self.outside.cluster.id();
        if cluster == own {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "this node is of cluster {own:?}, and the peer of {cluster:?}"
        )))
    }

    /// The services of this node and of its data servers, for a server that the program has.
    pub fn routes(&self, add: impl FnOnce(&mut RoutesBuilder)) -> Routes {
        let mut routes = Routes::builder();
        routes.add_service(serve::service(self.clone()));
        add(&mut routes);
        routes.routes()
    }

    /// Serves its data servers at an address, until it is stopped.
    ///
    /// # Errors
    /// When the address can't be had; when the node has failed.
    pub async fn serve(
        &self,
        address: SocketAddr,
        add: impl FnOnce(&mut RoutesBuilder),
    ) -> Result<(), NodeError> {
        let listener = tokio::net::TcpListener::bind(address).await;
        self.serve_on(listener.map_err(|error| NodeError::Address(address, error))?, add).await
    }

    /// The same, on a listener.
    ///
    /// # Errors
    /// As [`Node::serve`].
    pub async fn serve_on(
        &self,
        listener: tokio::net::TcpListener,
        add: impl FnOnce(&mut RoutesBuilder),
    ) -> Result<(), NodeError> {
        let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
        let mut stopped = self.outside.stopped.subscribe();
        let until = async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        let routes = self.routes(add);
        let server = tonic::transport::Server::builder().add_routes(routes);
        server.serve_with_incoming_shutdown(incoming, until).await?;
        match self.outside.goes_on() {
            Err(status) if status.message().contains("has stopped") => {
                Err(NodeError::Stopped(status.message().to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Stops it, and closes its store. What is undecided waits until it runs again.
    pub async fn stop(&self) {
        self.outside.stop();
        let thread = self.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}
