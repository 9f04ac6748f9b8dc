//! The node's own interface.

use crate::commit::word::{Node as NodeId, Outcome};
use crate::node::Node;
use crate::proto::caliburn::node_server::{Node as NodeService, NodeServer};
use crate::proto::caliburn::{AttachRequest, Attached, Delivered, EndReply, EndRequest, Letters};
use crate::wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

pub(super) fn service(node: Node) -> NodeServer<Service> {
    NodeServer::new(Service(node))
}

/// See `proto/caliburn.proto`.
pub(super) struct Service(Node);

#[tonic::async_trait]
impl NodeService for Service {
    type AttachStream = ReceiverStream<Result<Attached, Status>>;

    async fn attach(&self, request: Request<AttachRequest>) -> Result<Response<Self::AttachStream>, Status> {
        let node = &self.0;
        node.same_cluster(&request.get_ref().cluster)?;
        let outside = node.outside.clone();
        outside.goes_on()?;
        let client = outside.next_client();
        let (sender, stream) = mpsc::channel(1);
        let attached = Attached { node: outside.own.0, incarnation: outside.incarnation.0, client };
        outside.decide(move |core| {
            core.state().host.client_comes(client);
            let _ = sender.try_send(Ok(attached));
            let outside = core.outside.clone();
            // It is gone when its stream is.
            core.outside.runtime().spawn(async move {
                let mut stopped = outside.stopped.subscribe();
                tokio::select! {
                    () = sender.closed() => {}
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
                outside.decide(move |core| core.state().host.client_goes(client));
            });
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn end(&self, request: Request<EndRequest>) -> Result<Response<EndReply>, Status> {
        let outside = self.0.outside.clone();
        outside.goes_on()?;
        let EndRequest { tid, commit, report, below } = request.into_inner();
        let (tid, report) = (wire::tid(&tid)?, wire::report_from(report.unwrap_or_default())?);
        if (tid.coordinator, tid.incarnation) != (outside.own, outside.incarnation) {
            return Err(Status::aborted("it was begun in another life of this node, or at another one"));
        }
        let told = outside.wait_for(tid);
        outside.decide(move |core| {
            core.end(tid, commit, report);
            core.state().host.client_has_ended(tid.client, below);
        });
        let outcome = told.await.map_err(|_| Status::unavailable("the node stops"))?;
        Ok(Response::new(EndReply { committed: outcome == Outcome::Committed }))
    }

    async fn deliver(&self, request: Request<Letters>) -> Result<Response<Delivered>, Status> {
        let node = &self.0;
        let Letters { cluster, from, letters } = request.into_inner();
        node.same_cluster(&cluster)?;
        let (from, own) = (NodeId(from), node.outside.own);
        for letter in letters {
            let letter = wire::letter_from(letter, from, own)?;
            node.outside.decide(move |core| core.receive(letter));
        }
        Ok(Response::new(Delivered {}))
    }
}
