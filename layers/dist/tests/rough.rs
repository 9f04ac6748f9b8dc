//! Programs and peers that behave badly: they vanish, ask twice, take too much, say what can't be.

mod support;

use caliburn_dist::bank;
use caliburn_dist::client::{Error, Options};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::commit::word::{Incarnation, Node as NodeId, Protocol};
use caliburn_dist::host::Patience;
use caliburn_dist::id::Tid;
use caliburn_dist::keep::keeper::Keeper;
use caliburn_dist::node::Node;
use caliburn_dist::proto::bank::bank_client::BankClient;
use caliburn_dist::proto::bank::bank_server::{Bank, BankServer};
use caliburn_dist::proto::bank::{
    AddReply, AddRequest, MoveRequest, ShowReply, ShowRequest, TotalReply, TotalRequest,
};
use caliburn_dist::proto::caliburn::node_client::NodeClient;
use caliburn_dist::proto::caliburn::{
    AttachRequest, Attached, Context, EndRequest, HearRequest, Letters, Participant, Report,
};
use prost::Message;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{BOTH, World, add, patience, serve};
use tokio::net::TcpListener;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

/// Receipts at node 2 and at node 3: what is at one of them only is half-done.
async fn at_two_and_three(world: &World) -> [BTreeSet<u64>; 2] {
    let totals = world.totals().await;
    [1, 2].map(|node| totals[node].receipts.iter().copied().collect())
}

/// A program that gives its transaction up while that commits: it has or has not, everywhere.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_gives_up_while_it_commits_gets_all_or_nothing() {
    let world = World::new(3).await;
    let application = world.application(1).await;
    let mut acknowledged = BTreeSet::new();
    for receipt in 1..=150u64 {
        let commits = AtomicBool::new(false);
        let account = (receipt % 100) as u32;
        let mut done = Box::pin(application.transact_with(BOTH[(receipt % 2) as usize], async |tx| {
            add(tx, 2, account, -1, receipt).await?;
            let added = add(tx, 3, account, 1, receipt).await;
            commits.store(true, Ordering::Relaxed);
            added
        }));
        let gives_up = async {
            while !commits.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(Duration::from_micros(receipt * 37 % 4_000)).await;
        };
        tokio::select! {
            done = &mut done => if done.is_ok() { acknowledged.insert(receipt); },
            () = gives_up => {}
        }
    }
    let [two, three] = at_two_and_three(&world).await;
    assert_eq!(two, three);
    assert!(two.is_superset(&acknowledged));
    world.stop().await;
}

/// It has just asked its node to commit, and the request may not have left: the node hears of it all the same, and
/// nothing stays locked.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_gives_up_as_soon_as_it_commits_holds_nothing() {
    let world = World::new(2).await;
    let application = world.application(1).await;
    for receipt in 1..=20u64 {
        let begun = application.begin(BOTH[(receipt % 2) as usize]).await.unwrap();
        for (node, amount) in [(1, -1), (2, 1)] {
            add(begun.tx(), node, receipt as u32, amount, receipt).await.unwrap();
        }
        tokio::select! {
            biased;
            _ = begun.commit() => {}
            () = std::future::ready(()) => {}
        }
    }
    // Not even those that nobody begins another one behind.
    let totals =
        tokio::time::timeout(Duration::from_secs(20), world.totals()).await.expect("nothing is locked");
    let [one, two] = [0, 1].map(|node| totals[node].receipts.iter().copied().collect::<BTreeSet<_>>());
    assert_eq!((one.len(), two), (20, one));
    world.stop().await;
}

/// A node that gives transactions up at once: what it has undone is not committed elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_hasty_node_gives_up_is_not_half_done() {
    let mut world = World::new(3).await;
    let (node, serving) = world.nodes.remove(1);
    node.stop().await;
    serving.await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let cluster = world.cluster.clone().node(2, &address).unwrap();
    let hasty = Patience { probe: Duration::from_millis(3), silence: Duration::ZERO, ..patience() };
    let node = bank::segment(Node::builder(cluster.clone(), 2, world.dir.path().join("2")));
    let node = node.patience(hasty).start().await.unwrap();
    let serving = serve(&node, listener);
    world.nodes.insert(1, (node, serving));
    world.cluster = cluster;
    let application = world.application(1).await;
    for receipt in 1..=40u64 {
        let account = (receipt % 100) as u32;
        let done = application.transact(async |tx| {
            // Of the first nothing stays, so that no stay of it is known.
            let _ = add(tx, 2, account, -1_000_000, receipt).await;
            add(tx, 2, account, -1, receipt).await?;
            add(tx, 3, account, 1, receipt).await
        });
        _ = done.await;
    }
    // One by one: of a transaction of both the hasty one could give its part up.
    let [two, three] = loop {
        let [two, three] = [2, 3].map(|node| world.cluster.channel(NodeId(node)).unwrap());
        let totals = (
            BankClient::new(two).total(TotalRequest {}).await,
            BankClient::new(three).total(TotalRequest {}).await,
        );
        if let (Ok(two), Ok(three)) = totals {
            break [two, three]
                .map(|total| total.into_inner().receipts.into_iter().collect::<BTreeSet<u64>>());
        }
    };
    assert_eq!(two, three);
    world.stop().await;
}

async fn attach(world: &World, node: u64) -> (NodeClient<Channel>, Attached, tonic::Streaming<Attached>) {
    let mut raw = NodeClient::new(world.cluster.channel(NodeId(node)).unwrap());
    let mut stream =
        raw.attach(AttachRequest { cluster: "test".into(), needs: 0 }).await.unwrap().into_inner();
    let attached = stream.message().await.unwrap().unwrap();
    (raw, attached, stream)
}

fn tid(attached: &Attached, serial: u64) -> Tid {
    let (coordinator, incarnation) = (NodeId(attached.node), Incarnation(attached.incarnation));
    Tid { coordinator, incarnation, client: attached.client, serial, protocol: Protocol::Blocking }
}

/// Ends one that has used a node which is not there.
fn end(attached: &Attached, serial: u64) -> EndRequest {
    let used = vec![Participant { node: 9, stay: 1 }];
    let report = Report { used, touched: vec![9], ..Report::default() };
    EndRequest {
        tid: tid(attached, serial).to_bytes().to_vec(),
        commit: true,
        report: Some(report),
        below: 0,
        needs: 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_ended_twice_ends_once() {
    let world = World::new(1).await;
    let (raw, attached, _stream) = attach(&world, 1).await;
    let both = [raw.clone(), raw.clone()].map(|mut raw| {
        let request = end(&attached, 1);
        tokio::spawn(async move { raw.end(request).await })
    });
    for one in both {
        assert!(!one.await.unwrap().unwrap().into_inner().committed);
    }
    // Long after: nobody here knows any more.
    assert_eq!(raw.clone().end(end(&attached, 1)).await.unwrap_err().code(), Code::Unavailable);
    // And the node's time goes on.
    assert!(!raw.clone().end(end(&attached, 2)).await.unwrap().into_inner().committed);
    world.stop().await;
}

/// Whoever has been updated first, and says what the others do not know.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_later_version_says_is_refused() {
    let world = World::new(1).await;
    let (mut raw, attached, _stream) = attach(&world, 1).await;
    let cluster = || "test".to_owned();
    let tid = tid(&attached, 1).to_bytes().to_vec();
    let attaches = raw.attach(AttachRequest { cluster: cluster(), needs: 2 }).await.map(drop);
    let hear = HearRequest { cluster: cluster(), tid: tid.clone(), needs: 2, ..HearRequest::default() };
    let heard = raw.hear(hear).await.map(drop);
    let letters = Letters { cluster: cluster(), from: 2, to: 1, needs: 2, ..Letters::default() };
    let delivered = raw.deliver(tokio_stream::once(letters)).await.map(drop);
    // What this version does not even find the parts of.
    let context = Context { cluster: cluster(), needs: 2, remaining: 1_000, ..Context::default() };
    let mut request = Request::new(AddRequest { account: 1, amount: 1, receipt: 1 });
    request.metadata_mut().insert_bin("caliburn-bin", MetadataValue::from_bytes(&context.encode_to_vec()));
    let called = BankClient::new(world.cluster.channel(NodeId(1)).unwrap()).add(request).await.map(drop);
    for refused in [attaches, heard, delivered, called] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(
            refused.message().contains("version 2 of the protocol, and this node none after 1"),
            "{refused}"
        );
    }
    // Of those before there was a number everything is heard.
    let hear = HearRequest { cluster: cluster(), tid, needs: 0, ..HearRequest::default() };
    raw.hear(hear).await.unwrap();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_without_end_is_refused() {
    let world = World::new(1).await;
    let (_, attached, _stream) = attach(&world, 1).await;
    let (cluster, tid) = ("test".into(), tid(&attached, 1).to_bytes().to_vec());
    let context = Context { cluster, tid, path: vec![1; 3_000], remaining: 1_000, ..Context::default() };
    let mut request = Request::new(AddRequest { account: 1, amount: 1, receipt: 1 });
    request.metadata_mut().insert_bin("caliburn-bin", MetadataValue::from_bytes(&context.encode_to_vec()));
    let refused = BankClient::new(world.cluster.channel(NodeId(1)).unwrap()).add(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_stops_while_something_commits() {
    let mut world = World::new(2).await;
    let application = world.application(1).await;
    let (called, is_called) = tokio::sync::oneshot::channel();
    let (gone, is_gone) = tokio::sync::oneshot::channel();
    let program = tokio::spawn(async move {
        let done = application.transact(async |tx| {
            add(tx, 2, 1, 1, 1).await?;
            let _ = called.send(());
            let _ = is_gone.await;
            Ok::<_, Error>(())
        });
        done.await
    });
    is_called.await.unwrap();
    let (two, serving) = world.nodes.remove(1);
    two.stop().await;
    serving.await.unwrap();
    let _ = gone.send(());
    tokio::time::timeout(Duration::from_secs(20), world.stop()).await.expect("it stops");
    assert!(program.await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_wait_leave_room_for_the_one_they_wait_for() {
    let world = World::new(1).await;
    let application = world.application(1).await;
    let options = Options { blocking: true, time_out: Duration::from_secs(20) };
    let (locked, mut is_locked) = tokio::sync::watch::channel(false);
    let holder = application.clone();
    let holder = tokio::spawn(async move {
        let done = holder.transact_with(options, async |tx| {
            add(tx, 1, 1, 1, 1).await?;
            locked.send_replace(true);
            tokio::time::sleep(Duration::from_millis(300)).await;
            add(tx, 1, 1, 1, 2).await
        });
        done.await
    });
    is_locked.wait_for(|locked| *locked).await.unwrap();
    // As many as the node has threads for calls.
    let waiting = (0..16).map(|number| {
        let application = application.clone();
        tokio::spawn(async move {
            application.transact_with(options, async |tx| add(tx, 1, 1, 1, 10 + number).await).await
        })
    });
    let waiting: Vec<_> = waiting.collect();
    holder.await.unwrap().unwrap();
    for one in waiting {
        one.await.unwrap().unwrap();
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_given_up_does_not_take_its_transaction_along() {
    for home in [1, 2] {
        let world = World::new(2).await;
        let (holder, application) = (world.application(1).await, world.application(home).await);
        let (locked, mut is_locked) = tokio::sync::watch::channel(false);
        let (free, is_free) = tokio::sync::oneshot::channel::<()>();
        let holder = tokio::spawn(async move {
            let done = holder.transact(async |tx| {
                add(tx, 1, 0, 1, 1).await?;
                locked.send_replace(true);
                let _ = is_free.await;
                Ok::<_, Error>(())
            });
            done.await
        });
        is_locked.wait_for(|locked| *locked).await.unwrap();
        let done = application.transact(async |tx| {
            add(tx, 1, 5, 1, 3).await?;
            // Not so long: rather another account.
            let waits = add(tx, 1, 0, 1, 2);
            assert!(tokio::time::timeout(Duration::from_millis(200), waits).await.is_err());
            add(tx, 2, 5, 1, 3).await
        });
        done.await.unwrap();
        drop(free);
        holder.await.unwrap().unwrap();
        let receipts: Vec<Vec<u64>> = world.totals().await.into_iter().map(|total| total.receipts).collect();
        assert_eq!(receipts, [vec![1, 3], vec![3]], "coordinated by {home}");
        world.stop().await;
    }
}

/// A server that loses the metadata of its answers, and one whose answers are larger than a client takes.
struct Careless(Node);

#[tonic::async_trait]
impl Bank for Careless {
    async fn add(&self, request: Request<AddRequest>) -> Result<Response<AddReply>, Status> {
        let added = self.0.run(request, |call, AddRequest { amount, .. }| {
            call.store(call.region("bank")?, 0, &amount)?;
            Ok(AddReply { balance: amount })
        });
        Ok(Response::new(added.await?.into_inner()))
    }

    async fn r#move(&self, _: Request<MoveRequest>) -> Result<Response<AddReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn show(&self, _: Request<ShowRequest>) -> Result<Response<ShowReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn total(&self, request: Request<TotalRequest>) -> Result<Response<TotalReply>, Status> {
        let total = self.0.run(request, |call, TotalRequest {}| {
            call.store(call.region("bank")?, 0, &7i64)?;
            Ok(TotalReply { amount: 0, receipts: vec![u64::MAX; 1 << 20] })
        });
        total.await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_program_takes_for_failed_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let cluster = Cluster::new("test").node(1, &address).unwrap().server("bank", 1);
    let node = bank::segment(Node::builder(cluster.clone(), 1, dir.path().join("1")));
    let node = node.keeper(Keeper::Memory(Arc::default())).start().await.unwrap();
    let careless = node.clone();
    let serving = tokio::spawn(async move {
        let bank = BankServer::new(Careless(careless.clone()));
        careless.serve_on(listener, |services| _ = services.add_service(bank)).await.unwrap();
    });
    let application = caliburn_dist::client::Application::attach(cluster, 1).await.unwrap();
    let done = application.transact(async |tx| {
        let mut bank = BankClient::new(tx.to("bank")?);
        let lost = bank.add(AddRequest { account: 0, amount: 42, receipt: 0 }).await.unwrap_err();
        assert!(lost.message().contains("metadata"), "{lost}");
        bank.total(TotalRequest {}).await.unwrap_err();
        Ok::<_, Error>(())
    });
    done.await.unwrap();
    node.stop().await;
    serving.await.unwrap();
    let store = caliburn::Store::open(dir.path().join("1")).unwrap();
    let bank = store.segment("bank").unwrap().map_all().unwrap();
    assert_eq!(bank.load::<i64>(0), 0);
}
