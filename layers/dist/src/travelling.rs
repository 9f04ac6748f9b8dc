//! Calls of a transaction, as whoever makes them sees it: what travels with them, what comes back, and what a
//! family in one program knows.

use crate::cluster::Cluster;
use crate::commit::word::Node;
use crate::id::{News, Path, Tid};
use crate::proto::caliburn::HearRequest;
use crate::proto::caliburn::node_client::NodeClient;
use crate::scope::{Report, Scope, Untold};
use crate::wire::{self, Context, KEY};
use caliburn_nest::{Hybrid, Timestamp};
use caliburn_os::clock::wall_ns;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{self, Poll};
use std::time::{Duration, Instant};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// What a family is to one program.
#[derive(Debug)]
pub(crate) struct Family {
    pub cluster: Cluster,
    pub tid: Tid,
    pub untold: Mutex<Untold>,
    /// Whether it may hold something somewhere.
    pub has_called: AtomicBool,
    /// Calls that are not answered.
    pub under_way: AtomicUsize,
    /// The nodes that are being told what they have not heard.
    pub telling: Mutex<BTreeSet<Node>>,
    pub until: Instant,
    /// What its program, or its node, has heard of last.
    pub clock: Arc<Hybrid>,
}

impl Family {
    /// A call, or a nested transaction, has ended. Those that are under way may wait for what it has locked, and no
    /// other call brings the news: they travel by themselves then.
    pub fn tell_those_that_wait(self: &Arc<Self>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.under_way.load(Ordering::Acquire) == 0 {
            return;
        }
        let nodes: Vec<Node> = lock(&self.untold).all().keys().copied().collect();
        for node in nodes {
            // One at a time for each node: it goes on until there is nothing to tell.
            if lock(&self.telling).insert(node) {
                runtime.spawn(self.clone().tell(node));
            }
        }
    }

    /// Hears of a node's clock.
    fn hear(&self, clock: Timestamp, node: Node) -> Result<(), Status> {
        let heard = self.clock.hear(clock, wall_ns());
        heard.map_err(|ahead| Status::failed_precondition(format!("the clock of node {}: {ahead}", node.0)))
    }

    async fn tell(self: Arc<Self>, node: Node) {
        loop {
            let news = {
                let mut telling = lock(&self.telling);
                let news = lock(&self.untold).of(node);
                if news.is_empty() || self.under_way.load(Ordering::Acquire) == 0 {
                    telling.remove(&node);
                    return;
                }
                news
            };
            let heard = async {
                let (cluster, tid) = (self.cluster.id().to_owned(), self.tid.to_bytes().to_vec());
                let (news, clock) = (wire::news_to(&news), self.clock.last().0);
                let request = HearRequest { cluster, tid, news, clock, needs: wire::NEEDS };
                let mut client = NodeClient::new(self.cluster.channel(node).ok()?);
                let heard = client.hear(request).await.ok()?;
                self.hear(Timestamp(heard.get_ref().clock), node).ok()
            };
            if heard.await.is_none() {
                // The next call brings it.
                lock(&self.telling).remove(&node);
                return;
            }
            lock(&self.untold).heard(node, &news);
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A connection whose calls are part of a transaction.
#[derive(Debug, Clone)]
pub struct Travelling {
    pub(crate) channel: Channel,
    pub(crate) node: Node,
    pub(crate) family: Arc<Family>,
    pub(crate) scope: Arc<Mutex<Scope>>,
    pub(crate) until: Instant,
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
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        {
            let (mut scope, mut untold) = (lock(&self.scope), lock(&self.family.untold));
            match (report, well) {
                (Some(report), true) => scope.answered(&mut untold, &self.path, report),
                (report, _) => scope.failed(&mut untold, &self.path, self.node, report),
            }
        }
        self.family.under_way.fetch_sub(1, Ordering::AcqRel);
        self.family.tell_those_that_wait();
    }
}

impl Drop for Under {
    fn drop(&mut self) {
        self.ends(None, false);
    }
}

/// The body of an answer: the call went well if it comes to its end, and says so there.
struct Watched {
    body: Body,
    under: Under,
    report: Option<Report>,
    news: News,
    until: Pin<Box<tokio::time::Sleep>>,
}

impl http_body::Body for Watched {
    type Data = <Body as http_body::Body>::Data;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            task::ready!(self.until.as_mut().poll(context));
            return Poll::Ready(Some(Err(Status::deadline_exceeded("the answer did not come to its end"))));
        };
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
        let path = lock(&scope).next_child();
        let (news, untold) = {
            let untold = lock(&family.untold);
            let others = untold.all().iter().filter(|(of, _)| **of != node);
            (untold.of(node), others.map(|(of, news)| (*of, news.clone())).collect())
        };
        let until = self.until;
        let [left, family_left] =
            [until, family.until].map(|at| at.saturating_duration_since(Instant::now()));
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let context = Context {
            cluster: family.cluster.id().to_owned(),
            tid: family.tid,
            path: path.clone(),
            news: news.clone(),
            remaining: milliseconds(left),
            again: family.has_called.swap(true, Ordering::AcqRel),
            untold,
            family: milliseconds(family_left),
            clock: family.clock.last(),
        };
        let mut metadata = tonic::metadata::MetadataMap::new();
        metadata.insert_bin(KEY, wire::context_to(&context));
        request.headers_mut().extend(metadata.into_headers());
        // Made now: a call that is never polled was given up too.
        family.under_way.fetch_add(1, Ordering::AcqRel);
        let mut under = Under { scope, family, node, path, ended: false };
        let calling = self.channel.call(request);
        Box::pin(async move {
            let answer = tokio::time::timeout(left, calling).await;
            let answer = answer.map_err(|_| Status::deadline_exceeded("the answer did not come in time"))?;
            let response = answer?;
            // Only one that has failed says so before its body.
            let well = Status::from_header_map(response.headers()).is_none();
            let mut report = wire::take_report(response.headers());
            if let Some(report) = report.as_mut()
                && let Err(ahead) = under.family.hear(report.clock, under.node)
            {
                // It has been there, and nothing of it stays.
                report.clock = Timestamp::default();
                under.ends(Some(report.clone()), false);
                return Err(ahead.into());
            }
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
            let until = Box::pin(tokio::time::sleep_until(until.into()));
            Ok(response.map(|body| Body::new(Watched { body, under, report, news, until })))
        })
    }
}
