//! A participant that has voted yes, and stops: it has its locks again when it runs again, asks, and does what it
//! is told. The test is the coordinator.

#[path = "support/gate.rs"]
mod gate;
mod support;

use caliburn_dist::cluster::Cluster;
use caliburn_dist::commit::word::{Incarnation, Node as NodeId, Protocol};
use caliburn_dist::id::Tid;
use caliburn_dist::keep::etcd::Etcd;
use caliburn_dist::keep::keeper::Keeper;
use caliburn_dist::keep::members::{Members, MembersError};
use caliburn_dist::node::Builder;
use caliburn_dist::proto::bank::bank_client::BankClient;
use caliburn_dist::proto::bank::{AddRequest, TotalRequest};
use caliburn_dist::proto::caliburn::letter::Word as Said;
use caliburn_dist::proto::caliburn::node_client::NodeClient;
use caliburn_dist::proto::caliburn::node_server::{Node, NodeServer};
use caliburn_dist::proto::caliburn::{
    AcceptRequest, Accepted, AttachRequest, Attached, Context, Delivered, EndReply, EndRequest, HearRequest,
    Heard, JudgeRequest, Judged, Letter, Letters, NamesReply, NamesRequest, News, Outcome, Participant,
    Prepare, Report, UndecidedReply, UndecidedRequest, Vote, Word,
};
use caliburn_engine::{Store, Tuning};
use prost::Message;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::{node, serve};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};

struct Coordinator(UnboundedSender<Letter>);

#[tonic::async_trait]
impl Node for Coordinator {
    type AttachStream = tokio_stream::Empty<Result<Attached, Status>>;

    async fn attach(&self, _: Request<AttachRequest>) -> Result<Response<Self::AttachStream>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn end(&self, _: Request<EndRequest>) -> Result<Response<EndReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn hear(&self, _: Request<HearRequest>) -> Result<Response<Heard>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn names(&self, _: Request<NamesRequest>) -> Result<Response<NamesReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn undecided(&self, _: Request<UndecidedRequest>) -> Result<Response<UndecidedReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn judge(&self, _: Request<JudgeRequest>) -> Result<Response<Judged>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn accept(&self, _: Request<AcceptRequest>) -> Result<Response<Accepted>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn deliver(&self, request: Request<Streaming<Letters>>) -> Result<Response<Delivered>, Status> {
        let mut stream = request.into_inner();
        while let Some(letters) = stream.message().await? {
            letters.letters.into_iter().for_each(|letter| _ = self.0.send(letter));
        }
        Ok(Response::new(Delivered {}))
    }
}

async fn says(letters: &mut UnboundedReceiver<Letter>, said: &Said) {
    let come = async { while letters.recv().await.expect("it serves").word.as_ref() != Some(said) {} };
    tokio::time::timeout(Duration::from_secs(20), come).await.expect("the participant says it");
}

async fn tell(cluster: &Cluster, tid: Tid, word: Said) {
    let letter = Letter { tid: tid.to_bytes().to_vec(), word: Some(word) };
    let letters =
        Letters { cluster: "test".into(), from: 1, to: 2, letters: vec![letter], clock: 0, needs: 0 };
    let letters = tokio_stream::once(letters);
    NodeClient::new(cluster.channel(NodeId(2)).unwrap()).deliver(letters).await.unwrap();
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    (listener, address)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_participant_that_has_voted_does_what_it_is_told_when_it_runs_again() {
    let dir = tempfile::tempdir().unwrap();
    votes_and_is_told(dir.path(), &|node| node, &|| {}).await;
}

/// Its machine is lost when it has voted, with all that was there: it runs again on another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_participant_whose_machine_is_lost_does_what_it_is_told_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let members = match Members::start(1, dir.path().join("etcd")) {
        Ok(members) => members,
        Err(error @ MembersError::NotInstalled) => return println!("not run: {error}"),
        Err(error) => panic!("{error}"),
    };
    let addresses = members.addresses();
    let etcd = Etcd::new(addresses.iter().map(String::as_str), "test").unwrap();
    let (machine, dumps) = (dir.path().join("machine"), dir.path().join("dumps"));
    let build = |node: Builder| node.keeper(Keeper::Etcd(etcd.clone())).replicated(&dumps).take_over(true);
    votes_and_is_told(&machine, &build, &|| std::fs::remove_dir_all(&machine).unwrap()).await;
}

/// A cluster whose node 1 is the test, and what that is told.
async fn coordinate() -> (Cluster, UnboundedReceiver<Letter>) {
    let (listener, address) = listen().await;
    let cluster = Cluster::new("test").node(1, &address).unwrap();
    let (sender, letters) = unbounded_channel();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server = tonic::transport::Server::builder().add_service(NodeServer::new(Coordinator(sender)));
    tokio::spawn(server.serve_with_incoming(incoming));
    (cluster, letters)
}

/// Adds to an account at node 2, in a transaction of that number, and asks it to prepare.
async fn adds_and_is_asked(cluster: &Cluster, serial: u64) -> Tid {
    let (tid, participants) = adds(cluster, serial, Protocol::Blocking).await;
    ask(cluster, tid, participants).await;
    tid
}

async fn ask(cluster: &Cluster, tid: Tid, participants: Vec<Participant>) {
    let news = vec![News { path: vec![1], outcome: Outcome::Committed as i32 }];
    tell(cluster, tid, Said::Prepare(Prepare { participants, news, at: 0 })).await;
}

async fn adds(cluster: &Cluster, serial: u64, protocol: Protocol) -> (Tid, Vec<Participant>) {
    let (coordinator, incarnation) = (NodeId(1), Incarnation(1));
    let tid = Tid { coordinator, incarnation, client: 1, serial, protocol };
    let context = Context {
        cluster: "test".into(),
        tid: tid.to_bytes().to_vec(),
        path: vec![1],
        remaining: 60_000,
        family: 60_000,
        ..Context::default()
    };
    let mut request = Request::new(AddRequest { account: 1, amount: 1, receipt: serial });
    let context = MetadataValue::from_bytes(&context.encode_to_vec());
    request.metadata_mut().insert_bin("caliburn-bin", context);
    let answer = BankClient::new(cluster.channel(NodeId(2)).unwrap()).add(request).await.unwrap();
    let report = answer.metadata().get_bin("caliburn-bin").unwrap().to_bytes().unwrap();
    (tid, Report::decode(report).unwrap().used)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_is_acknowledged_when_something_else_was_forced() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, mut letters) = coordinate().await;
    let (listener, address) = listen().await;
    let cluster = cluster.node(2, &address).unwrap().server("bank", 2);
    let mut options = Store::options();
    options.tuning(Tuning { flush_interval: Duration::MAX, ..Tuning::default() });
    // Nor does the clock force anything, if time stands still.
    let participant = node(&cluster, 2, dir.path()).options(options).wall(|| 1).start().await.unwrap();
    let serving = serve(&participant, listener);
    let mut bank = BankClient::new(cluster.channel(NodeId(2)).unwrap());
    bank.add(AddRequest { account: 2, amount: 1, receipt: 0 }).await.unwrap();
    // The force of a vote may have another one behind it, which takes the decision along: then nothing is seen.
    let (mut serial, mut waited) = (0, 0);
    while waited < 5 {
        serial += 1;
        assert!(serial < 50, "a crash would forget what was acknowledged");
        let tid = adds_and_is_asked(&cluster, serial).await;
        says(&mut letters, &Said::Vote(Vote::Yes as i32)).await;
        tell(&cluster, tid, Said::Outcome(Outcome::Committed as i32)).await;
        for _ in 0..10 {
            // Its locks are free; and these force nothing.
            assert_eq!(
                bank.total(TotalRequest {}).await.unwrap().into_inner().receipts.len(),
                serial as usize
            );
        }
        if letters.try_recv().is_ok() {
            continue;
        }
        waited += 1;
        bank.add(AddRequest { account: 2, amount: 1, receipt: 0 }).await.unwrap();
        says(&mut letters, &Said::Plain(Word::Ack as i32)).await;
    }
    participant.stop().await;
    serving.await.unwrap();
}

/// It is told, without blocking, that it has aborted while it is still being made durable: its slot may not be
/// deleted before that is undone, or it would find neither when it runs again.
#[tokio::test(flavor = "multi_thread")]
async fn an_abort_is_not_acknowledged_while_it_is_being_prepared() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, mut letters) = coordinate().await;
    let (listener, address) = listen().await;
    let cluster = cluster.node(2, &address).unwrap().server("bank", 2);
    let gate = gate::Gate::default();
    let mut options = Store::options();
    options.media(Arc::new(gate.clone()));
    options.tuning(Tuning { flush_interval: Duration::MAX, ..Tuning::default() });
    let participant = node(&cluster, 2, dir.path()).options(options).wall(|| 1);
    let participant = participant.keeper(Keeper::Memory(Arc::default())).start().await.unwrap();
    let serving = serve(&participant, listener);
    let (tid, participants) = adds(&cluster, 1, Protocol::Slots).await;
    gate.shut();
    ask(&cluster, tid, participants).await;
    gate.is_waited_at();
    tell(&cluster, tid, Said::Outcome(Outcome::Aborted as i32)).await;
    let acknowledged = says(&mut letters, &Said::Plain(Word::Ack as i32));
    assert!(
        tokio::time::timeout(Duration::from_millis(300), acknowledged).await.is_err(),
        "it is not undone"
    );
    gate.open();
    let mut bank = BankClient::new(cluster.channel(NodeId(2)).unwrap());
    // Waits for its locks.
    assert_eq!(bank.total(TotalRequest {}).await.unwrap().into_inner().receipts, [0; 0]);
    bank.add(AddRequest { account: 2, amount: 1, receipt: 0 }).await.unwrap();
    says(&mut letters, &Said::Plain(Word::Ack as i32)).await;
    participant.stop().await;
    serving.await.unwrap();
}

async fn votes_and_is_told(dir: &Path, build: &dyn Fn(Builder) -> Builder, happens: &dyn Fn()) {
    let (mut cluster, mut letters) = coordinate().await;
    let mut expected = Vec::new();
    for (serial, outcome) in [(1, Outcome::Committed), (2, Outcome::Aborted), (3, Outcome::Committed)] {
        let (listener, address) = listen().await;
        cluster = cluster.node(2, &address).unwrap().server("bank", 2);
        let participant = build(node(&cluster, 2, dir)).start().await.unwrap();
        let serving = serve(&participant, listener);
        let tid = adds_and_is_asked(&cluster, serial).await;
        says(&mut letters, &Said::Vote(Vote::Yes as i32)).await;
        participant.stop().await;
        serving.await.unwrap();
        happens();

        let (listener, address) = listen().await;
        cluster = cluster.node(2, &address).unwrap();
        let participant = build(node(&cluster, 2, dir)).start().await.unwrap();
        let serving = serve(&participant, listener);
        says(&mut letters, &Said::Plain(Word::Inquiry as i32)).await;
        let mut bank = BankClient::new(cluster.channel(NodeId(2)).unwrap());
        let locked = bank.add(AddRequest { account: 1, amount: 0, receipt: 0 });
        assert!(tokio::time::timeout(Duration::from_millis(300), locked).await.is_err(), "{serial}: no lock");
        tell(&cluster, tid, Said::Outcome(outcome as i32)).await;
        if outcome == Outcome::Committed {
            expected.push(serial);
            says(&mut letters, &Said::Plain(Word::Ack as i32)).await;
        }
        // Waits for the lock.
        assert_eq!(bank.total(TotalRequest {}).await.unwrap().into_inner().receipts, expected);
        participant.stop().await;
        serving.await.unwrap();
    }
}
