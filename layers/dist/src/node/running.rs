//! A node that runs, as its servers have it.

use crate::client::TIME_OUT;
use crate::commit::word::{Outcome, Protocol};
use crate::credentials::Peer;
use crate::id::{News, Path, Tid};
use crate::node::call::{Call, Coming, execute};
use crate::node::core::Core;
use crate::node::door::Connections;
use crate::node::dumps;
use crate::node::error::NodeError;
use crate::node::guard::may_be_of;
use crate::node::outside::Outside;
use crate::node::pool::Pool;
use crate::node::replicated::Copies;
use crate::node::time::Ended;
use crate::rights::Rights;
use crate::scope::{Scope, Untold};
use crate::wire::{self, Context};
use caliburn_nest::Timestamp;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tonic::{Request, Response, Status};

/// Milliseconds beyond which nobody counts.
const FOR_EVER: u64 = 1 << 40;

/// A call that waits for a thread.
pub(crate) type Job = Box<dyn for<'c, 't> FnOnce(&'c Core<'t>) + Send>;

/// A node that runs. Clones are the same one.
#[derive(Clone)]
pub struct Node(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub outside: Arc<Outside>,
    pub calls: SyncSender<Job>,
    pub further: Arc<Pool<Job>>,
    pub level: usize,
    pub thread: Mutex<Option<JoinHandle<()>>>,
    pub copies: Option<Copies>,
    pub rights: Option<Rights>,
    pub connections: Option<Connections>,
}

impl Inner {
    /// Has a call executed, when one of as many threads as the multiprogramming level is free; at once if its
    /// family has called before: others may wait for what it holds.
    fn call(&self, again: bool, job: Job) -> Result<(), Status> {
        self.outside.goes_on()?;
        if again {
            return self.further.push(job).map_err(|_| Status::unavailable("the node stops"));
        }
        self.calls.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => Status::resource_exhausted("too many calls wait here; try again later"),
            TrySendError::Disconnected(_) => Status::unavailable("the node stops"),
        })
    }

    fn stop(&self) {
        self.outside.stop();
        self.copies.iter().for_each(|copies| copies.log.end());
        // Something for each thread that waits for a call; if there is no room for it, none waits.
        (0..self.level).for_each(|_| _ = self.calls.try_send(Box::new(|_| {})));
        self.further.stop();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("number", &self.0.outside.own.0).finish_non_exhaustive()
    }
}

impl Node {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.0.outside.own.0
    }

    /// What an operator should know of it at this moment: what is wrong, and what to do.
    pub fn notices(&self) -> Vec<String> {
        self.0.outside.notices.all()
    }

    /// Its life: how often it was begun.
    pub fn incarnation(&self) -> u64 {
        self.0.outside.incarnation.0
    }

    /// Turns true when it stops.
    pub(crate) fn stopped(&self) -> watch::Receiver<bool> {
        self.0.outside.stopped.subscribe()
    }

    /// Registers it in its keeper's etcd with its address and its servers, as long as it runs: for those that
    /// [follow](crate::keep::names::Names) the names. Nothing happens without an etcd.
    pub fn announce<'n>(&self, address: &str, servers: impl IntoIterator<Item = &'n str>) {
        self.0.outside.announce(address.to_owned(), servers.into_iter().map(str::to_owned).collect());
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
        let address = request.remote_addr();
        let (metadata, extensions, message) = request.into_parts();
        let operation = move |call: &mut Call<'_, '_>| operation(call, message);
        let Some(context) = wire::context_from(&metadata)? else { return self.run_alone(operation).await };
        self.same_cluster(&context.cluster)?;
        may_be_of(extensions.get::<Peer>(), context.tid)?;
        self.0.outside.can(context.tid.protocol)?;
        self.0.outside.time.hear(context.clock, extensions.get::<Peer>(), address)?;
        let again = context.again;
        let now = self.0.outside.now();
        let [expires, family] =
            [context.remaining, context.family].map(|ms| now + Duration::from_millis(ms.min(FOR_EVER)));
        let Context { tid, path, news, untold, clock, .. } = context;
        let coming = Coming { tid, path, news, untold, expires, family, clock };
        let (answer, report) = self.on_thread(again, |core| execute(core, coming, operation)).await?;
        match answer {
            Ok(value) => {
                let mut response = Response::new(value);
                wire::put_report(response.metadata_mut(), &report);
                Ok(response)
            }
            // Whoever it has called must hear that it failed.
            Err(mut status) => {
                wire::put_report(status.metadata_mut(), &report);
                Err(status)
            }
        }
    }

    /// A call outside of transactions.
    async fn run_alone<T: Send + 'static>(
        &self,
        operation: impl for<'c, 't> FnOnce(&mut Call<'c, 't>) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let expires = self.0.outside.now() + TIME_OUT;
        let (value, told) = self.on_thread(false, move |core| alone(core, expires, operation)).await?;
        let value = value?;
        match told.await.map_err(|_| self.stops())? {
            (Outcome::Committed, _) => Ok(Response::new(value)),
            (Outcome::Aborted, _) => Err(Status::aborted("its transaction did not commit")),
        }
    }

    pub(crate) async fn on_thread<R: Send + 'static>(
        &self,
        again: bool,
        act: impl for<'c, 't> FnOnce(&'c Core<'t>) -> R + Send + 'static,
    ) -> Result<R, Status> {
        let (answer, answered) = oneshot::channel();
        self.0.call(again, Box::new(move |core| _ = answer.send(act(core))))?;
        answered.await.map_err(|_| self.stops())
    }

    fn stops(&self) -> Status {
        self.0.outside.goes_on().err().unwrap_or_else(|| Status::unavailable("the node stops"))
    }

    pub(crate) fn same_cluster(&self, cluster: &str) -> Result<(), Status> {
        let own = self.0.outside.cluster.id();
        if cluster == own {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "this node is of cluster {own:?}, and the peer of {cluster:?}"
        )))
    }

    /// Makes a dump of its store in a directory now; its file, which is named after the cluster, the node, and
    /// where in the log the dump ends.
    ///
    /// # Errors
    /// When it could not be made: nothing is left of it then.
    pub async fn dump_to(&self, dir: impl Into<PathBuf>) -> Result<PathBuf, NodeError> {
        let prefix = format!("{}-{}", self.0.outside.cluster.id(), self.number());
        let dir = dir.into();
        let done = self.on_thread(true, move |core| {
            let making = format!(".{prefix}.making");
            dumps::write(core.store, &dir, &making, |lsn| format!("{prefix}-{lsn:020}.dump"))
        });
        let (_, made) = done.await.map_err(|_| NodeError::Stopped("the node stops"))??;
        Ok(made)
    }

    /// Makes a dump of its store now, and lets go what it has of the log: of a node that is
    /// [replicated](crate::node::Builder::replicated).
    ///
    /// # Errors
    /// When it is not, or the dump could not be made; the one before is there then.
    pub async fn dump(&self) -> Result<(), NodeError> {
        let none = || NodeError::Log("the node's log is not replicated".into());
        let copies = self.0.copies.clone().ok_or_else(none)?;
        let done = self.on_thread(true, move |core| copies.dump(core.store)).await;
        done.map_err(|_| NodeError::Stopped("the node stops"))?
    }

    /// Stops it, and closes its store. What is undecided waits until it runs again. If its log is replicated, and
    /// etcd is away, whoever waits for that is told that nobody knows how it ends.
    pub async fn stop(&self) {
        self.0.stop();
        let thread = self.0.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

/// Executes an operation as a transaction of its own: what it says, and how that ends.
pub(crate) fn alone<T>(
    core: &Core<'_>,
    expires: Duration,
    operation: impl for<'c, 't> FnOnce(&mut Call<'c, 't>) -> Result<T, Status>,
) -> (Result<T, Status>, oneshot::Receiver<Ended>) {
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
    let coming = Coming {
        tid,
        path: path.clone(),
        news: News::new(),
        untold: BTreeMap::new(),
        expires,
        family: expires,
        clock: Timestamp::default(),
    };
    let (value, report) = execute(core, coming, operation);
    match &value {
        Ok(_) => scope.answered(&mut untold, &path, report),
        Err(_) => scope.failed(&mut untold, &path, coordinator, Some(report)),
    }
    let told = core.outside.wait_for(tid);
    core.end(tid, value.is_ok(), scope.into_report(untold));
    // It goes from the open ones when it ends, which may be later.
    let mut state = core.state();
    let below = state.own.first().copied().unwrap_or(state.next_own);
    state.host.client_has_ended(0, below);
    (value, told)
}
