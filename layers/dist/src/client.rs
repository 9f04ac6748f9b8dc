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
use crate::id::{News, Path, Tid};
use crate::proto::caliburn::node_client::NodeClient;
use crate::proto::caliburn::{AttachRequest, EndRequest};
use crate::scope::{Report, Scope, Untold};
use crate::wire::{self, Context, KEY};
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{self, Poll};
use std::time::{Duration, Instant};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Channel;
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
    place: Mutex<Place>,
}

/// Its place at the node; another one after the node has crashed.
#[derive(Debug)]
struct Place {
    incarnation: Incarnation,
    client: u64,
    serial: u64,
    /// Transactions that have not ended.
    open: BTreeSet<u64>,
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
        let place = Mutex::new(attach(&cluster, coordinator).await?);
        Ok(Application(Arc::new(Attached { cluster, coordinator, place })))
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.0.place.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
        let tid = self.begin(options).await?;
        let family = Family {
            cluster: self.0.cluster.clone(),
            tid,
            untold: Mutex::default(),
            called: Mutex::default(),
            is_within: false,
            options,
        };
        let scope = Arc::new(Mutex::new(Scope::new(Path::default())));
        let tx = Tx { family: Arc::new(family), scope, until: after(options.time_out) };
        let mut open = Open { application: self, tx: &tx, ended: false };
        let done = tokio::time::timeout_at(tx.until.into(), body(&tx)).await;
        let done = done.unwrap_or_else(|_| Err(Error::TimeOut(options.time_out).into()));
        let value = match (done, tx.lost()) {
            (Ok(value), Ok(())) => Ok(value),
            (Ok(_), Err(error)) => Err(error.into()),
            (Err(error), _) => Err(error),
        };
        let Some(request) = open.ending(value.is_ok()) else { return value };
        // From here on its node decides: also if nobody waits to hear.
        open.ended = true;
        let node = self.0.cluster.channel(self.0.coordinator).map(NodeClient::new);
        let left = tx.until.saturating_duration_since(Instant::now()).max(END);
        let ending = async {
            let mut node = node.map_err(|error| Status::unavailable(error.to_string()))?;
            node.end(request).await
        };
        let ended = tokio::time::timeout(left, ending).await;
        let ended = ended.unwrap_or_else(|_| Err(Status::deadline_exceeded("its node does not answer")));
        match (value, ended) {
            (Err(error), _) => Err(error),
            (Ok(value), Ok(reply)) if reply.get_ref().committed => Ok(value),
            (Ok(_), Ok(_)) => Err(Error::NotCommitted("a participant could not".into()).into()),
            (Ok(_), Err(status)) => {
                // What it says only of one that it has not begun to commit.
                match status.code() {
                    Code::Aborted | Code::InvalidArgument => {
                        Err(Error::NotCommitted(status.message().to_owned()).into())
                    }
                    _ => Err(Error::Unknown(tid, status).into()),
                }
            }
        }
    }

    async fn begin(&self, options: Options) -> Result<Tid, Error> {
        if self.place().lost.load(Ordering::Acquire) {
            let place = attach(&self.0.cluster, self.0.coordinator).await?;
            *self.place() = place;
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

/// A transaction that has not ended.
struct Open<'a> {
    application: &'a Application,
    tx: &'a Tx,
    ended: bool,
}

impl Open<'_> {
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
        Some(EndRequest { tid: self.tx.tid().to_bytes().to_vec(), commit, report, below: self.below() })
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let tid = self.tx.tid();
        let mut place = self.application.place();
        if (tid.client, tid.incarnation) == (place.client, place.incarnation) {
            place.open.remove(&tid.serial);
        }
        drop(place);
        // Given up while it ran: whoever it has called need not wait to find out.
        if !self.ended
            && let Some(request) = self.ending(false)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let Attached { cluster, coordinator, .. } = &*self.application.0;
            if let Ok(channel) = cluster.channel(*coordinator) {
                runtime.spawn(async move { NodeClient::new(channel).end(request).await });
            }
        }
    }
}

async fn attach(cluster: &Cluster, coordinator: Node) -> Result<Place, Error> {
    // Where it is now.
    let mut node = NodeClient::new(cluster.channel(coordinator)?);
    let request = AttachRequest { cluster: cluster.id().to_owned() };
    let mut stream = node.attach(request).await?.into_inner();
    let attached = stream.message().await?.ok_or_else(|| Status::unavailable("the node stops"))?;
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
    let (client, open) = (attached.client, BTreeSet::new());
    Ok(Place { incarnation, client, serial: 0, open, lost, _stream: Some(program) })
}

#[derive(Debug)]
struct Family {
    cluster: Cluster,
    tid: Tid,
    untold: Mutex<Untold>,
    /// The nodes that it has called.
    called: Mutex<BTreeSet<Node>>,
    /// It is a part, of a call that holds something.
    is_within: bool,
    options: Options,
}

/// A moment that there is.
fn after(time: Duration) -> Instant {
    Instant::now() + time.min(Duration::from_secs(1 << 30))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A transaction, top-level or nested, as its program has it.
#[derive(Debug)]
pub struct Tx {
    family: Arc<Family>,
    scope: Arc<Mutex<Scope>>,
    until: Instant,
}

impl Tx {
    /// A call that calls others: of its transaction, at its place.
    pub(crate) fn of_call(cluster: Cluster, tid: Tid, scope: Scope, until: Instant) -> Tx {
        let (untold, options) = (Mutex::new(Untold::default()), Options::default());
        let family =
            Arc::new(Family { cluster, tid, untold, called: Mutex::default(), is_within: true, options });
        Tx { family, scope: Arc::new(Mutex::new(scope)), until }
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
    /// this transaction. `name`, or `name@node`.
    ///
    /// # Errors
    /// When there is no such server.
    pub fn to(&self, name: &str) -> Result<Travelling, Error> {
        let node = self.family.cluster.find(name)?;
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
        let path = lock(&self.scope).next_child();
        let until = self.until.min(after(time_out));
        let scope = Arc::new(Mutex::new(Scope::new(path)));
        let child = Tx { family: self.family.clone(), scope, until };
        // Aborted unless it says otherwise, also when it is dropped while it waits.
        let ending = Nested { parent: self, child: &child, committed: false };
        let done = tokio::time::timeout_at(until.into(), body(&child)).await;
        let value = done.unwrap_or_else(|_| Err(Error::TimeOut(time_out).into()))?;
        child.lost()?;
        ending.commit();
        Ok(value)
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

struct Nested<'a> {
    parent: &'a Tx,
    child: &'a Tx,
    committed: bool,
}

impl Nested<'_> {
    fn commit(mut self) {
        self.committed = true;
    }
}

impl Drop for Nested<'_> {
    fn drop(&mut self) {
        let child = lock(&self.child.scope).clone();
        let (mut scope, mut untold) = (lock(&self.parent.scope), lock(&self.parent.family.untold));
        match self.committed {
            true => scope.committed(&mut untold, &child),
            false => scope.aborted(&mut untold, &child),
        }
    }
}

/// A connection whose calls are part of a transaction.
#[derive(Debug, Clone)]
pub struct Travelling {
    channel: Channel,
    node: Node,
    family: Arc<Family>,
    scope: Arc<Mutex<Scope>>,
    until: Instant,
}

/// A call under way. Unless it is answered, it was given up.
struct Under {
    scope: Arc<Mutex<Scope>>,
    family: Arc<Family>,
    node: Node,
    path: Path,
    ended: bool,
}

impl Under {
    fn ends(&mut self, report: Option<Report>, well: bool) {
        self.ended = true;
        let (mut scope, mut untold) = (lock(&self.scope), lock(&self.family.untold));
        match (report, well) {
            (Some(report), true) => scope.answered(&mut untold, &self.path, report),
            (report, _) => scope.failed(&mut untold, &self.path, self.node, report),
        }
    }
}

impl Drop for Under {
    fn drop(&mut self) {
        if !self.ended {
            self.ends(None, false);
        }
    }
}

/// The body of an answer: the call went well if it comes to its end, and says so there.
struct Watched {
    body: Body,
    under: Under,
    report: Option<Report>,
    news: News,
}

impl http_body::Body for Watched {
    type Data = <Body as http_body::Body>::Data;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        let frame = task::ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            let well = Status::from_header_map(trailers).is_some_and(|status| status.code() == Code::Ok);
            let report = self.report.take();
            if well {
                lock(&self.under.family.untold).heard(self.under.node, &self.news);
            }
            self.under.ends(report, well);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

type Answer = Result<http::Response<Body>, tonic::codegen::StdError>;

impl Service<http::Request<Body>> for Travelling {
    type Response = http::Response<Body>;
    type Error = tonic::codegen::StdError;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, context: &mut task::Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let (family, scope, node) = (self.family.clone(), self.scope.clone(), self.node);
        let (path, news) = (lock(&scope).next_child(), lock(&family.untold).of(node));
        let left = self.until.saturating_duration_since(Instant::now());
        let context = Context {
            cluster: family.cluster.id().to_owned(),
            tid: family.tid,
            path: path.clone(),
            news: news.clone(),
            remaining: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            again: !lock(&family.called).insert(node) || family.is_within,
        };
        let mut metadata = tonic::metadata::MetadataMap::new();
        metadata.insert_bin(KEY, wire::context_to(&context));
        request.headers_mut().extend(metadata.into_headers());
        // Made now: a call that is never polled was given up too.
        let mut under = Under { scope, family, node, path, ended: false };
        let time_out = under.family.options.time_out;
        let calling = self.channel.call(request);
        Box::pin(async move {
            let answer = tokio::time::timeout(left, calling).await;
            let answer =
                answer.map_err(|_| Status::deadline_exceeded(Error::TimeOut(time_out).to_string()))?;
            let response = answer?;
            // Only one that has failed says so before its body.
            let well = Status::from_header_map(response.headers()).is_none();
            let report = wire::take_report(response.headers());
            if well && report.is_none() {
                under.ends(None, false);
                return Err(Status::internal(
                    "the answer does not say what the call has used, so it is undone: a server must return the metadata of \
                     what Node::run has returned",
                )
                .into());
            }
            if !well {
                under.ends(report, false);
                return Ok(response);
            }
            // Whether it went well is said behind its body.
            Ok(response.map(|body| Body::new(Watched { body, under, report, news })))
        })
    }
}
