//! Who may call what: before a call reaches a service.

use crate::commit::word::Node as NodeId;
use crate::credentials::Peer;
use crate::id::Tid;
use crate::rights::Rights;
use caliburn_os::simulated::{even_if, unless};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use tower_layer::Layer;

/// What any program may ask of a node itself.
const PROGRAMS: [&str; 4] = [
    "/caliburn.v1.Node/Attach",
    "/caliburn.v1.Node/End",
    "/caliburn.v1.Node/Hear",
    "/caliburn.v1.Node/Names",
];
/// It asks itself who may do what.
const ADMIN: &str = "/caliburn.admin.v1.Admin/";
const NODES_ONLY: &str = "/caliburn.v1.Node/Deliver";
/// What decides over transactions of others: an operator's, who has the right to it, or a node's certificate.
const JUDGEMENTS: [&str; 2] = ["/caliburn.v1.Node/Judge", "/caliburn.v1.Node/Accept"];

/// Lets through whom the cluster knows, to what they have rights to.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    /// If peers have certificates.
    pub cluster: Option<Arc<str>>,
    pub rights: Option<Rights>,
}

impl Guard {
    /// Who calls.
    ///
    /// # Errors
    /// When that is nobody of the cluster, or has no right to it.
    fn admit(&self, request: &http::Request<Body>) -> Result<Option<Peer>, Status> {
        let Some(cluster) = &self.cluster else { return Ok(None) };
        let connection = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>();
        let certificates = connection.and_then(|connection| connection.peer_certs());
        let certificate = certificates.as_ref().and_then(|all| all.first());
        let certificate =
            certificate.ok_or_else(|| Status::unauthenticated("the peer has shown no certificate"))?;
        let peer = Peer::of(cluster, certificate).ok_or_else(|| {
            Status::unauthenticated(format!(
                "the peer's certificate names no node and no user of cluster {cluster:?}"
            ))
        })?;
        let path = request.uri().path();
        match &peer {
            Peer::Node(_) => {}
            Peer::User(_) if path == NODES_ONLY => {
                return Err(Status::permission_denied(format!("{peer}: only nodes may do this")));
            }
            Peer::User(_) if PROGRAMS.contains(&path) || path.starts_with(ADMIN) => {}
            Peer::User(user) => {
                let operation = path.trim_start_matches('/');
                if unless("rights-unchecked", !self.permits(user, path)) {
                    return Err(Status::permission_denied(format!("{peer} has no right to {operation}")));
                }
            }
        }
        Ok(Some(peer))
    }

    /// Whether a user may call what the node itself does not judge.
    fn permits(&self, user: &str, path: &str) -> bool {
        match &self.rights {
            Some(rights) => rights.permits(user, path.trim_start_matches('/')),
            None => even_if("anybody-judges", !JUDGEMENTS.contains(&path)),
        }
    }
}

/// That a message comes from the node that it names.
///
/// # Errors
/// When its certificate is another's.
pub(crate) fn is_from(peer: Option<&Peer>, node: NodeId) -> Result<(), Status> {
    match peer {
        Some(peer) if unless("senders-believed", *peer != Peer::Node(node)) => {
            Err(Status::permission_denied(format!("{peer} speaks for node {}", node.0)))
        }
        _ => Ok(()),
    }
}

/// That a user is not in a transaction that a node has begun by itself: its identity could be guessed, where those
/// of programs can't.
///
/// # Errors
/// When it is one.
pub(crate) fn may_be_of(peer: Option<&Peer>, tid: Tid) -> Result<(), Status> {
    match peer {
        Some(Peer::User(user)) if tid.client == 0 => {
            Err(Status::permission_denied(format!("user {user:?} has not begun transaction {tid}")))
        }
        _ => Ok(()),
    }
}

impl<S> Layer<S> for Guard {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { guard: self.clone(), inner }
    }
}

/// Services behind a guard.
#[derive(Debug, Clone)]
pub(crate) struct Guarded<S> {
    guard: Guard,
    inner: S,
}

impl<S> Service<http::Request<Body>> for Guarded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>> + Send,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        match self.guard.admit(&request) {
            Ok(peer) => {
                peer.into_iter().for_each(|peer| _ = request.extensions_mut().insert(peer));
                Box::pin(self.inner.call(request))
            }
            Err(status) => Box::pin(async move { Ok(status.into_http()) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_judges_has_the_right_to_it() {
        let of = |rights| Guard { cluster: Some("bank".into()), rights };
        let (without, with) = (of(None), of(Some(Rights::new())));
        assert!(without.permits("alice", "/a.v1.Bank/Add"));
        JUDGEMENTS.iter().for_each(|path| assert!(!without.permits("alice", path)));
        let rights = with.rights.clone().expect("it has them");
        for path in JUDGEMENTS {
            assert!(!with.permits("alice", path));
            rights.allow("alice", path.trim_start_matches('/'));
            assert!(with.permits("alice", path) && !with.permits("bob", path));
        }
    }
}
