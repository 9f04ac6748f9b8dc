//! Programs that run transactions over any servers on any nodes.
//!
//! ```text
//!   attach to a node, which is to coordinate
//!   transact: BEGIN_TRANSACTION            no message
//!     tx.to(server): calls                 one each
//!     tx.nest: nested transactions         no message
//!   END_TRANSACTION                        one, if it has called anybody
//! ```

use crate::cluster::{Cluster, NameError};
use crate::commit::word::{Incarnation, Node, Protocol};
use crate::id::{Path, Tid};
use crate::proto::caliburn::node_client::NodeClient;
use crate::proto::caliburn::{AttachRequest, EndReply, EndRequest};
use crate::scope::{Scope, Untold};
use crate::travelling::{Family, Travelling, lock};
use crate::wire;
use caliburn_nest::{Hybrid, Timestamp};
use caliburn_os::clock::wall_ns;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tonic::{Code, Status};

/// A transaction takes no longer than this, unless told.
pub const TIME_OUT: Duration = Duration::from_secs(60);
/// At least so long its end is waited for.
const END: Duration = Duration::from_secs(2);

/// Why a transaction did not commit, or may not have.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program aborted the innermost transaction: [`Tx::abort`].
    #[error("aborted: {0}")]
    Aborted(String),
    /// It did not commit, everywhere: a participant voted no, was not there, or has crashed since it was called.
    #[error("did not commit: {0}")]
    NotCommitted(String),
    /// Its node was lost while it committed: nobody here knows whether it has. It has or has not everywhere.
    #[error("transaction {0}: whether it has committed is not known here, since its node was lost: {1}")]
    Unknown(Tid, Status),
    /// A call failed.
    #[error("{0}")]
    Call(#[from] Status),
    /// A name is nobody's.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A timestamp is too far ahead of this program's clock.
    #[error("{0}")]
    Clock(#[from] caliburn_nest::Ahead),
    /// A timestamp was asked for where there are none.
    #[error(
        "node {0} gives no timestamps: its cluster is run without them (CALIBURN_TIMESTAMPS, Builder::timestamps)"
    )]
    NoTimestamps(u64),
    /// Its time was over.
    #[error("took longer than {0:?}")]
    TimeOut(Duration),
}

/// How transactions are run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Whether a participant may have to wait for the coordinator, however long it is gone: faster, and the default.
    pub blocking: bool,
    /// How long one may take: [`TIME_OUT`].
    pub time_out: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { blocking: true, time_out: TIME_OUT }
    }
}

/// A program, attached to the node that coordinates its transactions.
#[derive(Debug, Clone)]
pub struct Application(Arc<Attached>);

#[derive(Debug)]
struct Attached {
    cluster: Cluster,
    coordinator: Node,
    /// What it has heard of last.
    clock: Arc<Hybrid>,
    place: Mutex<Place>,
    /// Whoever attaches again.
    attaching: tokio::sync::Mutex<()>,
}

/// Its place at the node; another one after the node has crashed.
#[derive(Debug)]
struct Place {
    incarnation: Incarnation,
    client: u64,
    serial: u64,
    /// Transactions that have not ended.
    open: BTreeSet<u64>,
    /// Whether the node gives timestamps.
    has_timestamps: bool,
    /// The node is there no more, or lives another life.
    lost: Arc<AtomicBool>,
    /// Ends with the program.
    _stream: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Application {
    /// Attaches to a node of a cluster (`InitializeAppl`).
    ///
    /// # Errors
    /// When there is no such node, or it does not answer.
    pub async fn attach(cluster: Cluster, node: u64) -> Result<Application, Error> {
        let coordinator = Node(node);
        let clock = Arc::default();
        let place = Mutex::new(attach(&cluster, coordinator, &clock).await?);
        Ok(Application(Arc::new(Attached {
            cluster,
            coordinator,
            clock,
            place,
            attaching: tokio::sync::Mutex::default(),
        })))
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.0.place.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The last timestamp that it has heard of: all that its transactions have seen is before it.
    pub fn clock(&self) -> Timestamp {
        self.0.clock.last()
    }

    /// Hears of another program's: its transactions commit behind that from now on.
    ///
    /// # Errors
    /// When it is too far ahead of this program's clock: one of the two is wrong.
    pub fn hear(&self, clock: Timestamp) -> Result<(), Error> {
        Ok(self.0.clock.hear(clock, wall_ns())?)
    }

    /// Runs a transaction (`BEGIN_TRANSACTION`): commits when the closure returns `Ok`, is undone everywhere when
    /// it returns `Err`.
    ///
    /// # Errors
    /// What the closure returns; [`Error`] when it does not commit.
    pub async fn transact<T, E: From<Error>>(
        &self,
        body: impl AsyncFnOnce(&Tx) -> Result<T, E>,
    ) -> Result<T, E> {
        self.transact_with(Options::default(), body).await
    }

    /// The same, with options (`BEGIN_TRANSACTION_2`).
    ///
    /// # Errors
    /// As [`Application::transact`].
    pub async fn transact_with<T, E: From<Error>>(
        &self,
        options: Options,
        body: impl AsyncFnOnce(&Tx) -> Result<T, E>,
    ) -> Result<T, E> {
        Ok(self.run(self.begin(options).await?, options, body).await?.0)
    }

    /// The same, with its timestamp (Camelot, 4.2): if two transactions have touched the same, the order of their
    /// timestamps is that in which they did; and whoever hears of one, by a call, an answer, or
    /// [`Application::hear`], commits behind it. One that has called nobody has no place of its own: the last that
    /// its program has heard of.
    ///
    /// # Errors
    /// As [`Application::transact`].
    pub async fn transact_at<T, E: From<Error>>(
        &self,
        options: Options,
        body: impl AsyncFnOnce(&Tx) -> Result<T, E>,
    ) -> Result<(T, Timestamp), E> {
        let begun = self.begin(options).await?;
        if !self.place().has_timestamps {
            return Err(Error::NoTimestamps(self.0.coordinator.0).into());
        }
        self.run(begun, options, body).await
    }

    async fn run<T, E: From<Error>>(
        &self,
        begun: Begun,
        options: Options,
        body: impl AsyncFnOnce(&Tx) -> Result<T, E>,
    ) -> Result<(T, Timestamp), E> {
        let done = tokio::time::timeout_at(begun.tx.until.into(), body(&begun.tx)).await;
        match done.unwrap_or_else(|_| Err(Error::TimeOut(options.time_out).into())) {
            Ok(value) => Ok((value, begun.commit().await?)),
            Err(error) => {
                begun.abort().await;
                Err(error)
            }
        }
    }

    /// Begins a transaction that ends where the program says, and not where a closure does: for other languages.
    ///
    /// # Errors
    /// When its node can't be reached.
    pub async fn begin(&self, options: Options) -> Result<Begun, Error> {
        let tid = self.identity(options).await?;
        let until = after(options.time_out);
        let family = Family {
            cluster: self.0.cluster.clone(),
            tid,
            untold: Mutex::default(),
            has_called: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            telling: Mutex::default(),
            until,
            clock: self.0.clock.clone(),
        };
        let mut scope = Scope::new(Path::default());
        scope.hear(self.clock());
        let scope = Arc::new(Mutex::new(scope));
        let tx = Tx { family: Arc::new(family), scope, until };
        let open = Some(Open { application: self.clone(), tid });
        Ok(Begun { application: self.clone(), tx, open })
    }

    fn is_lost(&self) -> bool {
        self.place().lost.load(Ordering::Acquire)
    }

    async fn identity(&self, options: Options) -> Result<Tid, Error> {
        if self.is_lost() {
            let _one = self.0.attaching.lock().await;
            // Another may have been first.
            if self.is_lost() {
                let place = attach(&self.0.cluster, self.0.coordinator, &self.0.clock).await?;
                *self.place() = place;
            }
        }
        let mut place = self.place();
        place.serial += 1;
        let serial = place.serial;
        place.open.insert(serial);
        let protocol = if options.blocking { Protocol::Blocking } else { Protocol::Slots };
        let Place { incarnation, client, .. } = *place;
        Ok(Tid { coordinator: self.0.coordinator, incarnation, client, serial, protocol })
    }
}

/// A transaction that has not ended. When it is dropped, it aborts; at once if that is within a runtime.
#[derive(Debug)]
pub struct Begun {
    application: Application,
    tx: Tx,
    /// Until its end is asked for.
    open: Option<Open>,
}

/// A transaction that has not ended, as far as its program knows: its node must not take it for one that has.
#[derive(Debug)]
struct Open {
    application: Application,
    tid: Tid,
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut place = self.application.place();
        if (self.tid.client, self.tid.incarnation) == (place.client, place.incarnation) {
            place.open.remove(&self.tid.serial);
        }
    }
}

impl Begun {
    /// What it does.
    pub fn tx(&self) -> &Tx {
        &self.tx
    }

    /// Its first call does not wait for a thread of the node's level, as its later ones don't: others may wait for
    /// what it does. For those that an operation begins.
    pub fn without_waiting(self) -> Begun {
        self.tx.family.has_called.store(true, Ordering::Release);
        self
    }

    /// Whether it has taken longer than it may.
    pub fn is_overdue(&self) -> bool {
        Instant::now() >= self.tx.until
    }

    /// Commits it: its timestamp. What is nested in it must have ended before: it is undone.
    ///
    /// # Errors
    /// When it does not commit, or nobody knows.
    pub async fn commit(mut self) -> Result<Timestamp, Error> {
        if let Err(lost) = self.tx.lost() {
            self.abort().await;
            return Err(lost);
        }
        match self.end(true).await {
            None => Ok(self.application.clock()),
            Some(Ok(EndReply { committed: true, at })) => {
                let (at, Attached { clock, coordinator, .. }) = (Timestamp(at), &*self.application.0);
                if let Err(ahead) = clock.hear(at, wall_ns()) {
                    // It has committed, all the same.
                    tracing::warn!("the clock of node {}: {ahead}", coordinator.0);
                }
                Ok(at)
            }
            Some(Ok(_)) => Err(Error::NotCommitted("a participant could not".into())),
            Some(Err(status)) if is_of_one_that_did_not_begin(status.code()) => {
                Err(Error::NotCommitted(status.message().to_owned()))
            }
            Some(Err(status)) => Err(Error::Unknown(self.tx.tid(), status)),
        }
    }

    /// Undoes it everywhere.
    pub async fn abort(mut self) {
        _ = self.end(false).await;
    }

    /// Has its node end it: nothing to do if it has called nobody. From here on its node decides, also if nobody
    /// waits to hear.
    async fn end(&mut self, commit: bool) -> Option<Result<EndReply, Status>> {
        let request = self.ending(commit);
        let open = self.open.take();
        // By itself: a request whose answer nobody waits for may never be sent, and its node would hear of nothing.
        let ended = tokio::spawn(self.ask(request?, open)).await;
        Some(ended.unwrap_or_else(|_| Err(Status::unavailable("the program's runtime stops"))))
    }

    /// Asks its node to end it, which is open until the node has.
    fn ask(
        &self,
        request: EndRequest,
        open: Option<Open>,
    ) -> impl Future<Output = Result<EndReply, Status>> + Send + 'static {
        let Attached { cluster, coordinator, .. } = &*self.application.0;
        let node = cluster.channel(*coordinator).map(NodeClient::new);
        let left = self.tx.until.saturating_duration_since(Instant::now()).max(END);
        async move {
            let _open = open;
            let mut node = node.map_err(|error| Status::unavailable(error.to_string()))?;
            let ended = tokio::time::timeout(left, node.end(request)).await;
            let ended = ended.unwrap_or_else(|_| Err(Status::deadline_exceeded("its node does not answer")));
            ended.map(tonic::Response::into_inner)
        }
    }

    /// Below this, all have ended, this one not counted.
    fn below(&self) -> u64 {
        let place = self.application.place();
        let own = self.tx.tid().serial;
        let mut others = place.open.iter().filter(|serial| **serial != own);
        others.next().copied().unwrap_or(place.serial + 1)
    }

    /// What ends it; nothing if it has called nobody.
    fn ending(&self, commit: bool) -> Option<EndRequest> {
        let scope = lock(&self.tx.scope).clone();
        if scope.touched().is_empty() {
            return None;
        }
        let untold = std::mem::take(&mut *lock(&self.tx.family.untold));
        let report = Some(wire::report_to(&scope.into_report(untold)));
        let (tid, below) = (self.tx.tid().to_bytes().to_vec(), self.below());
        Some(EndRequest { tid, commit, report, below, needs: wire::NEEDS })
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // Given up while it ran: whoever it has called need not wait to find out.
        if let Some(open) = self.open.take()
            && let Some(request) = self.ending(false)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(self.ask(request, Some(open)));
        }
    }
}

async fn attach(cluster: &Cluster, coordinator: Node, clock: &Hybrid) -> Result<Place, Error> {
    // Where it is now.
    let mut node = NodeClient::new(cluster.channel(coordinator)?);
    let request = AttachRequest { cluster: cluster.id().to_owned(), needs: wire::NEEDS };
    let mut stream = node.attach(request).await?.into_inner();
    let attached = stream.message().await?.ok_or_else(|| Status::unavailable("the node stops"))?;
    let heard = clock.hear(Timestamp(attached.clock), wall_ns());
    heard.map_err(|ahead| {
        Status::failed_precondition(format!("the clock of node {}: {ahead}", coordinator.0))
    })?;
    let lost = Arc::new(AtomicBool::new(false));
    let (program, mut ended) = tokio::sync::oneshot::channel();
    let notes = lost.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = &mut ended => {}
            // Nothing more comes but its end.
            _ = stream.message() => notes.store(true, Ordering::Release),
        }
    });
    let incarnation = Incarnation(attached.incarnation);
    let (client, open, has_timestamps) = (attached.client, BTreeSet::new(), attached.clock != 0);
    Ok(Place { incarnation, client, serial: 0, open, has_timestamps, lost, _stream: Some(program) })
}

/// Whether a node says so only of what it has not begun to commit.
fn is_of_one_that_did_not_begin(code: Code) -> bool {
    matches!(code, Code::Aborted | Code::InvalidArgument | Code::FailedPrecondition | Code::PermissionDenied)
}

/// A moment that there is.
fn after(time: Duration) -> Instant {
    Instant::now() + time.min(Duration::from_secs(1 << 30))
}

/// A transaction, top-level or nested, as its program has it. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Tx {
    family: Arc<Family>,
    scope: Arc<Mutex<Scope>>,
    until: Instant,
}

impl Tx {
    /// A call that calls others: of its transaction, at its place.
    /// `until`: it is waited for, and its family has ended.
    pub(crate) fn of_call(
        (cluster, clock): (Cluster, Arc<Hybrid>),
        tid: Tid,
        scope: Scope,
        untold: Untold,
        [until, family_until]: [Instant; 2],
    ) -> Tx {
        let family = Family {
            cluster,
            tid,
            untold: Mutex::new(untold),
            has_called: AtomicBool::new(true),
            under_way: AtomicUsize::new(0),
            telling: Mutex::default(),
            until: family_until,
            clock,
        };
        Tx { family: Arc::new(family), scope: Arc::new(Mutex::new(scope)), until }
    }

    /// What it has used, when nobody uses it any more.
    pub(crate) fn into_parts(self) -> (Scope, Untold) {
        let untold = std::mem::take(&mut *lock(&self.family.untold));
        let scope = lock(&self.scope).clone();
        (scope, untold)
    }

    /// The identity of its family.
    pub fn tid(&self) -> Tid {
        self.family.tid
    }

    /// The connection to a server, for the client that tonic makes of its interface: calls through it are part of
    /// this transaction. `name`: of those that are called so one, the same for all calls of a family; or
    /// `name@node`.
    ///
    /// # Errors
    /// When there is no such server.
    pub fn to(&self, name: &str) -> Result<Travelling, Error> {
        // One for all calls of a family; another one for the next.
        let Tid { client, serial, .. } = self.family.tid;
        let node = self.family.cluster.choose(name, client.wrapping_add(serial))?;
        let channel = self.family.cluster.channel(node)?;
        Ok(Travelling {
            channel,
            node,
            family: self.family.clone(),
            scope: self.scope.clone(),
            until: self.until,
        })
    }

    /// Runs a nested transaction: what it has done, on whatever nodes, is undone when the closure returns `Err`, and
    /// nothing else is. Several may run side by side.
    ///
    /// # Errors
    /// What the closure returns; when a node that it has used has crashed.
    pub async fn nest<T, E: From<Error>>(&self, body: impl AsyncFnOnce(&Tx) -> Result<T, E>) -> Result<T, E> {
        let left = self.until.saturating_duration_since(Instant::now());
        self.nest_with(left, body).await
    }

    /// The same, for no longer than a time: then it is aborted, and this transaction goes on.
    ///
    /// # Errors
    /// As [`Tx::nest`]; [`Error::TimeOut`].
    pub async fn nest_with<T, E: From<Error>>(
        &self,
        time_out: Duration,
        body: impl AsyncFnOnce(&Tx) -> Result<T, E>,
    ) -> Result<T, E> {
        let nested = self.begin_nested(time_out);
        let done = tokio::time::timeout_at(nested.tx.until.into(), body(&nested.tx)).await;
        let value = done.unwrap_or_else(|_| Err(Error::TimeOut(time_out).into()))?;
        nested.commit()?;
        Ok(value)
    }

    /// Begins a nested transaction that ends where the program says.
    pub fn begin_nested(&self, time_out: Duration) -> Nested {
        let path = lock(&self.scope).next_child();
        let scope = Arc::new(Mutex::new(Scope::new(path)));
        let until = self.until.min(after(time_out));
        let tx = Tx { family: self.family.clone(), scope, until };
        Nested { parent: self.scope.clone(), tx, committed: false }
    }

    /// The error that aborts the innermost transaction, for its closure to return.
    pub fn abort(&self, reason: impl Into<String>) -> Error {
        Error::Aborted(reason.into())
    }

    fn lost(&self) -> Result<(), Error> {
        match lock(&self.scope).lost() {
            Some(node) => Err(Error::NotCommitted(format!(
                "node {} has crashed, or given the transaction up, since it was called",
                node.0
            ))),
            None => Ok(()),
        }
    }
}

/// A nested transaction that has not ended. It ends before its parent does. When it is dropped, it aborts; those
/// that wait for it are told if that is within a runtime.
#[derive(Debug)]
pub struct Nested {
    parent: Arc<Mutex<Scope>>,
    tx: Tx,
    committed: bool,
}

impl Nested {
    /// What it does.
    pub fn tx(&self) -> &Tx {
        &self.tx
    }

    /// Commits to its parent.
    ///
    /// # Errors
    /// When a node that it has used has crashed.
    pub fn commit(mut self) -> Result<(), Error> {
        self.tx.lost()?;
        self.committed = true;
        Ok(())
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        let child = lock(&self.tx.scope).clone();
        {
            let (mut scope, mut untold) = (lock(&self.parent), lock(&self.tx.family.untold));
            match self.committed {
                true => scope.committed(&mut untold, &child),
                false => scope.aborted(&mut untold, &child),
            }
        }
        self.tx.family.tell_those_that_wait();
    }
}
