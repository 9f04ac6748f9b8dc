//! Servers with heaps: the bank allocates room for receipts, and frees what has become too small.

mod support;

use caliburn_dist::bank;
use caliburn_dist::client::Error;
use caliburn_dist::node::Node;
use caliburn_dist::proto::bank::bank_client::BankClient;
use caliburn_dist::proto::bank::bank_server::{Bank, BankServer};
use caliburn_dist::proto::bank::{
    AddReply, AddRequest, MoveRequest, ShowReply, ShowRequest, TotalReply, TotalRequest,
};
use caliburn_dist::{Heap, Place};
use caliburn_engine::Store;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use support::{BOTH, World, add};
use tonic::{Code, Request, Response, Status};

/// Transfers of all kinds at one time: what goes wrong leaves no object behind, and takes none away.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_undone_leaves_no_object_behind() {
    let world = World::new(2).await;
    let applications = [world.application(1).await, world.application(2).await];
    let (next, committed) = (Arc::new(AtomicU64::new(1)), AtomicU64::new(0));
    let one = async |worker: usize| {
        for round in 0..40 {
            let receipt = next.fetch_add(2, Ordering::Relaxed);
            let account = ((worker + round) % 6) as u32;
            let options = BOTH[round % 2];
            let done = applications[worker % 2].transact_with(options, async |tx| {
                // Undone alone.
                let undone = tx.nest(async |tx| {
                    add(tx, 1, account, 1, u64::MAX).await?;
                    add(tx, 2, account, 1, u64::MAX).await?;
                    Err::<(), _>(tx.abort("it is not wanted"))
                });
                assert!(undone.await.is_err());
                add(tx, 1, account, -1, receipt).await?;
                tx.nest(async |tx| add(tx, 2, account, 1, receipt + 1).await).await?;
                match round % 3 {
                    0 => Err(tx.abort("nor is this")),
                    _ => Ok(()),
                }
            });
            match done.await {
                Ok(()) => _ = committed.fetch_add(1, Ordering::Relaxed),
                Err(Error::Aborted(_)) => assert_eq!(round % 3, 0),
                // Of two that wait for each other.
                Err(error) => assert!(error.to_string().contains("deadlock"), "{error}"),
            }
        }
    };
    tokio::join!(one(0), one(1), one(2), one(3), one(4), one(5));
    let totals = world.totals().await;
    let receipts: BTreeSet<u64> = totals.iter().flat_map(|total| total.receipts.iter().copied()).collect();
    let committed = committed.into_inner();
    assert!(committed > 50, "{committed}");
    assert_eq!(receipts.len() as u64, 2 * committed);
    assert!(!receipts.contains(&u64::MAX));
    let dir = world.dir.path().to_owned();
    let kept = Arc::new(dir);
    let World { nodes, dir, .. } = world;
    for (node, serving) in nodes {
        node.stop().await;
        serving.await.unwrap();
    }
    for number in ["1", "2"] {
        let store = Store::open(kept.join(number)).unwrap();
        let heap = Heap::open(&store, "receipts").unwrap();
        heap.check().unwrap();
        let bank = store.segment("bank").unwrap().map_all().unwrap();
        let places = (0..bank::ACCOUNTS as usize).map(|account| bank.load::<u64>(account * 32 + 16));
        let used: BTreeSet<u64> = places.filter_map(|place| place.checked_sub(1)).collect();
        assert_eq!(used.len(), 6);
        let there: BTreeSet<u64> = heap.objects().map(|(place, _)| place.0).collect();
        assert_eq!(there, used);
    }
    drop(dir);
}

/// A server that does with its heap what its caller says.
struct Rough(Node);

#[tonic::async_trait]
impl Bank for Rough {
    async fn add(&self, request: Request<AddRequest>) -> Result<Response<AddReply>, Status> {
        let done = self.0.run(request, |call, AddRequest { amount, receipt, .. }| {
            let heap = call.heap("receipts")?;
            let balance = match amount {
                0 => {
                    call.free(heap, Place(receipt))?;
                    0
                }
                len => call.allocate(heap, len as usize)?.0 as i64,
            };
            Ok(AddReply { balance })
        });
        done.await
    }

    async fn r#move(&self, _: Request<MoveRequest>) -> Result<Response<AddReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn show(&self, _: Request<ShowRequest>) -> Result<Response<ShowReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn total(&self, _: Request<TotalRequest>) -> Result<Response<TotalReply>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_heap_can_not_do_is_said() {
    let mut world = World::new(1).await;
    let (node, serving) = world.nodes.remove(0);
    node.stop().await;
    serving.await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let cluster = world.cluster.clone().node(1, &address).unwrap();
    let node = support::node(&cluster, 1, world.dir.path()).heap("another", 1 << 20).start().await.unwrap();
    let serving = node.clone();
    let serving = tokio::spawn(async move {
        let rough = BankServer::new(Rough(serving.clone()));
        serving.serve_on(listener, |services| _ = services.add_service(rough)).await.unwrap();
    });
    let bank = BankClient::new(cluster.channel(caliburn_dist::commit::word::Node(1)).unwrap());
    let does = async |amount, receipt| {
        let done = bank.clone().add(AddRequest { account: 0, amount, receipt }).await;
        done.map(|reply| reply.into_inner().balance)
            .map_err(|status| (status.code(), status.message().to_owned()))
    };
    let place = does(100, 0).await.unwrap() as u64;
    let says = async |amount, receipt, code, text: &str| {
        let (had, message) = does(amount, receipt).await.unwrap_err();
        assert!(had == code && message.contains(text), "{amount} {receipt}: {had:?} {message}");
    };
    says(0, place + 8, Code::NotFound, "no object is allocated").await;
    says(0, u64::MAX - 7, Code::NotFound, "no object is allocated").await;
    says(65 << 20, 0, Code::ResourceExhausted, "may have 67108864 bytes").await;
    says(i64::MAX, 0, Code::InvalidArgument, "no heap is that large").await;
    does(0, place).await.unwrap();
    says(0, place, Code::NotFound, "it was freed already").await;
    node.stop().await;
    serving.await.unwrap();
}
