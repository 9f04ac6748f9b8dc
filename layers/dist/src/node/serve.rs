//! The interface that a node has for programs and other nodes, served together with those of its data servers.

use crate::cluster::{ALIVE, CALLS, HEADERS, root};
use crate::commit::word::{Node as NodeId, Outcome};
use crate::credentials::Peer;
use crate::id::Tid;
use crate::node::door::{Door, Inside, Prove, Speaks, Whose};
use crate::node::guard::{Guard, is_from, may_be_of};
use crate::node::outside::Decision;
use crate::node::running::Node;
use crate::proto::caliburn::node_server::{Node as NodeService, NodeServer};
use crate::proto::caliburn::{
    AcceptRequest, Accepted, AttachRequest, Attached, Delivered, EndReply, EndRequest, HearRequest, Heard,
    JudgeRequest, Judged, Judgement, Letters, NamesReply, NamesRequest, Place, UndecidedReply,
    UndecidedRequest, UndecidedTransaction,
};
use crate::wire;
use caliburn_nest::Timestamp;
use caliburn_os::descriptors;
use caliburn_os::simulated::unless;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::{Routes, RoutesBuilder};
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};

/// A node that stops waits so long for those that are connected.
const DRAIN: Duration = Duration::from_secs(3);

/// See `proto/caliburn.proto`.
struct Service(Node, Arc<Clients>);

/// Whose the programs are that are attached, where that is known.
#[derive(Default)]
struct Clients(Mutex<HashMap<u64, Peer>>);

impl Clients {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Peer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl NodeService for Service {
    type AttachStream = ReceiverStream<Result<Attached, Status>>;

    async fn attach(&self, request: Request<AttachRequest>) -> Result<Response<Self::AttachStream>, Status> {
        let node = &self.0;
        node.same_cluster(&request.get_ref().cluster)?;
        wire::is_known(request.get_ref().needs)?;
        let outside = node.0.outside.clone();
        outside.goes_on()?;
        let client = outside.next_client().map_err(|error| Status::internal(error.to_string()))?;
        let clients = self.1.clone();
        let peer = request.extensions().get::<Peer>().cloned();
        peer.into_iter().for_each(|peer| _ = clients.all().insert(client, peer));
        let (sender, stream) = mpsc::channel(1);
        let clock = outside.time.shows().0;
        let attached = Attached { node: outside.own.0, incarnation: outside.incarnation.0, client, clock };
        let (come, has_come) = oneshot::channel();
        outside.decide(Decision::Comes(client, come));
        // It is gone when its stream is, and has come before.
        tokio::spawn(async move {
            let mut stopped = outside.stopped.subscribe();
            if has_come.await.is_ok() && sender.send(Ok(attached)).await.is_ok() {
                tokio::select! {
                    () = sender.closed() => {}
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
            }
            clients.all().remove(&client);
            outside.decide(Decision::Goes(client));
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn end(&self, request: Request<EndRequest>) -> Result<Response<EndReply>, Status> {
        let outside = self.0.0.outside.clone();
        outside.goes_on()?;
        let (peer, address) = (request.extensions().get::<Peer>().cloned(), request.remote_addr());
        let EndRequest { tid, commit, report, below, needs } = request.into_inner();
        wire::is_known(needs)?;
        let (tid, report) = (wire::tid(&tid)?, wire::report_from(report.unwrap_or_default())?);
        if (tid.coordinator, tid.incarnation) != (outside.own, outside.incarnation) {
            return Err(Status::aborted("it was begun in another life of this node, or at another one"));
        }
        if unless("ended-by-anybody", self.1.all().get(&tid.client) != peer.as_ref()) {
            return Err(Status::permission_denied("the transaction was begun by another program"));
        }
        outside.can(tid.protocol)?;
        let ahead = outside.time.hear(report.clock, peer.as_ref(), address).err();
        let told = outside.wait_for(tid);
        outside.decide(Decision::End(tid, commit && ahead.is_none(), report, below));
        let told = told.await;
        if let Some(ahead) = ahead {
            return Err(Status::aborted(ahead.message()));
        }
        let (outcome, at) = told.map_err(|_| Status::unavailable("how it ends is not known here"))?;
        Ok(Response::new(EndReply { committed: outcome == Outcome::Committed, at: at.0 }))
    }

    async fn hear(&self, request: Request<HearRequest>) -> Result<Response<Heard>, Status> {
        let (peer, address) = (request.extensions().get::<Peer>().cloned(), request.remote_addr());
        let HearRequest { cluster, tid, news, clock, needs } = request.into_inner();
        self.0.same_cluster(&cluster)?;
        wire::is_known(needs)?;
        let outside = &self.0.0.outside;
        let (tid, news) = (wire::tid(&tid)?, wire::news_from(news)?);
        may_be_of(peer.as_ref(), tid)?;
        outside.time.hear(Timestamp(clock), peer.as_ref(), address)?;
        let (hear, heard) = oneshot::channel();
        outside.decide(Decision::Hear(tid, news, hear));
        heard.await.map_err(|_| Status::unavailable("the node stops"))?;
        Ok(Response::new(Heard { clock: outside.time.shows().0 }))
    }

    async fn names(&self, request: Request<NamesRequest>) -> Result<Response<NamesReply>, Status> {
        let NamesRequest { cluster, needs } = request.into_inner();
        self.0.same_cluster(&cluster)?;
        wire::is_known(needs)?;
        let known = &self.0.0.outside.cluster;
        let place = |node: NodeId| {
            Some(Place { node: node.0, address: known.address(node)?, servers: known.servers(node) })
        };
        Ok(Response::new(NamesReply { places: known.nodes().into_iter().filter_map(place).collect() }))
    }

    async fn undecided(&self, _: Request<UndecidedRequest>) -> Result<Response<UndecidedReply>, Status> {
        let undecided = self.0.undecided().await?.into_iter().map(|undecided| UndecidedTransaction {
            transaction: undecided.tid.to_string(),
            participants: undecided.participants.into_iter().map(|node| node.0).collect(),
            asks: undecided.asks,
        });
        let judgements = self.0.judgements().await?.into_iter().map(|judgement| Judgement {
            transaction: judgement.tid.to_string(),
            outcome: wire::outcome_to(judgement.outcome),
            otherwise: judgement.otherwise.map_or(0, wire::outcome_to),
        });
        let (undecided, judgements) = (undecided.collect(), judgements.collect());
        let doubt = self.0.doubt().unwrap_or_default();
        Ok(Response::new(UndecidedReply { undecided, judgements, doubt }))
    }

    async fn accept(&self, _: Request<AcceptRequest>) -> Result<Response<Accepted>, Status> {
        self.0.accept().await?;
        Ok(Response::new(Accepted {}))
    }

    async fn judge(&self, request: Request<JudgeRequest>) -> Result<Response<Judged>, Status> {
        let JudgeRequest { transaction, outcome, needs } = request.into_inner();
        wire::is_known(needs)?;
        let outcome = match outcome {
            0 => None,
            outcome => Some(wire::outcome_from(outcome)?),
        };
        let all: Vec<Tid> = match outcome {
            Some(_) => self.0.undecided().await?.into_iter().map(|undecided| undecided.tid).collect(),
            None => self.0.judgements().await?.into_iter().map(|judgement| judgement.tid).collect(),
        };
        let tid = all.into_iter().find(|tid| tid.to_string() == transaction);
        let none = || {
            Status::not_found(format!(
                "no transaction {transaction:?} is undecided here, or was judged wrongly"
            ))
        };
        let tid = tid.ok_or_else(none)?;
        match outcome {
            Some(outcome) => self.0.judge(tid, outcome).await?,
            None => self.0.forget(tid).await?,
        }
        Ok(Response::new(Judged {}))
    }

    async fn deliver(&self, request: Request<Streaming<Letters>>) -> Result<Response<Delivered>, Status> {
        let node = &self.0;
        let peer = request.extensions().get::<Peer>().cloned();
        let mut stopped = node.0.outside.stopped.subscribe();
        let mut stream = request.into_inner();
        loop {
            let next = tokio::select! {
                next = stream.message() => next?,
                _ = stopped.wait_for(|stopped| *stopped) => None,
            };
            let Some(Letters { cluster, from, to, letters, clock, needs }) = next else { break };
            node.same_cluster(&cluster)?;
            wire::is_known(needs)?;
            let (from, own) = (NodeId(from), node.0.outside.own);
            is_from(peer.as_ref(), from)?;
            if NodeId(to) != own {
                return Err(Status::failed_precondition(format!(
                    "this is node {}, and not node {to}",
                    own.0
                )));
            }
            node.0.outside.time.hear_letters(Timestamp(clock));
            for letter in letters {
                let letter = wire::letter_from(letter, from, own)?;
                node.0.outside.decide(Decision::Letter(letter));
            }
        }
        Ok(Response::new(Delivered {}))
    }
}

/// Why a node does not serve, or not any longer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address could not be had.
    #[error("{0}: {1}")]
    Address(SocketAddr, std::io::Error),
    /// It has no certificate, and others than programs on this machine could reach it.
    #[error(
        "{0}: without certificates only loopback is served; give the cluster credentials (Cluster::secured)"
    )]
    Exposed(SocketAddr),
    /// Credentials that can't be used.
    #[error("the cluster's credentials: {0}")]
    Credentials(String),
    /// Connections could not be.
    #[error("{}", root(.0))]
    Transport(#[from] tonic::transport::Error),
    /// The node has failed: its store, or another process lives its life.
    #[error("{0}")]
    Failed(String),
}

impl Node {
    /// The services of this node and of its data servers, for a server that the program has. It is the program then
    /// that keeps others out: certificates and rights are looked at by [`Node::serve`] only.
    pub fn routes(&self, add: impl FnOnce(&mut RoutesBuilder)) -> Routes {
        let mut routes = Routes::builder();
        routes.add_service(NodeServer::new(Service(self.clone(), Arc::default())));
        add(&mut routes);
        routes.routes()
    }

    /// Serves its data servers at an address, until it is stopped: those that show a certificate of the cluster's,
    /// if it has [credentials](crate::cluster::Cluster::secured); else programs on this machine, and no others.
    ///
    /// # Errors
    /// When the address can't be had, or is not loopback and there are no credentials; when the node has failed.
    pub async fn serve(
        &self,
        address: SocketAddr,
        add: impl FnOnce(&mut RoutesBuilder),
    ) -> Result<(), ServeError> {
        descriptors::occupy();
        let listener = TcpListener::bind(address).await;
        self.serve_on(listener.map_err(|error| ServeError::Address(address, error))?, add).await
    }

    /// The same, on a listener.
    ///
    /// # Errors
    /// As [`Node::serve`].
    pub async fn serve_on(
        &self,
        listener: TcpListener,
        add: impl FnOnce(&mut RoutesBuilder),
    ) -> Result<(), ServeError> {
        descriptors::occupy();
        let cluster = &self.0.outside.cluster;
        match (cluster.credentials(), listener.local_addr()) {
            (Some(credentials), _) => {
                let acceptor = credentials.server().map_err(ServeError::Credentials)?;
                let cluster: Arc<str> = cluster.id().into();
                self.serve_those_that_prove(
                    listener,
                    Shows { acceptor, cluster: cluster.clone() },
                    Some(cluster),
                    add,
                )
                .await
            }
            (None, Ok(address)) if !address.ip().is_loopback() => Err(ServeError::Exposed(address)),
            (None, _) => {
                tracing::info!("node {} serves loopback only, having no certificate", self.number());
                self.serve_those_that_prove(listener, Speaks, None, add).await
            }
        }
    }

    async fn serve_those_that_prove<P: Prove>(
        &self,
        listener: TcpListener,
        by: P,
        cluster: Option<Arc<str>>,
        add: impl FnOnce(&mut RoutesBuilder),
    ) -> Result<(), ServeError>
    where
        P::Io: AsyncRead + AsyncWrite + Connected + Unpin,
    {
        let mut server = tonic::transport::Server::builder().http2_max_header_list_size(HEADERS);
        server = server.max_concurrent_streams(Some(CALLS));
        // A program whose machine is gone does not say so.
        server = server.http2_keepalive_interval(Some(ALIVE)).http2_keepalive_timeout(Some(ALIVE));
        let guard = Guard { cluster, rights: self.0.rights.clone() };
        let (inside, incoming) = mpsc::channel::<Inside<P::Io>>(1);
        let door = Door::new(self.0.connections.unwrap_or_default(), self.0.outside.notices.clone());
        // It closes the listener when the server takes nothing more.
        let accepting = async {
            door.run(listener, by, inside).await;
            std::future::pending::<()>().await;
        };
        let incoming = ReceiverStream::new(incoming).map(Ok::<_, std::io::Error>);
        let mut stopped = self.0.outside.stopped.subscribe();
        let until = async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        let routes = self.routes(add);
        let server = server.layer(guard).add_routes(routes);
        let mut stopped = self.0.outside.stopped.subscribe();
        let drained = async {
            let _ = stopped.wait_for(|stopped| *stopped).await;
            // Those that do not let go are left: some may hang.
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            served = server.serve_with_incoming_shutdown(incoming, until) => served?,
            () = drained => {}
            () = accepting => {}
        }
        match self.0.outside.failure() {
            Some(why) => Err(ServeError::Failed(why.to_owned())),
            None => Ok(()),
        }
    }
}

/// With certificates: the handshake.
#[derive(Clone)]
struct Shows {
    acceptor: TlsAcceptor,
    cluster: Arc<str>,
}

impl Prove for Shows {
    type Io = TlsStream<TcpStream>;

    async fn prove(&self, stream: TcpStream) -> std::io::Result<(Self::Io, Whose)> {
        let stream = self.acceptor.accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|all| all.first());
        let peer = shown.and_then(|certificate| Peer::of(&self.cluster, certificate));
        Ok((stream, peer.map_or(Whose::Stranger, Whose::Of)))
    }
}
