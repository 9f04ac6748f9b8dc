//! Nodes with stores, and programs that run transactions over them, in one process.

mod support;

use caliburn_dist::bank::{self, ACCOUNTS, FIRST};
use caliburn_dist::client::{Application, Error};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::keep::keeper::Keeper;
use caliburn_dist::node::Node;
use caliburn_dist::proto::bank::bank_client::BankClient;
use caliburn_dist::proto::bank::{AddRequest, MoveRequest, TotalRequest};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use support::{BOTH, World, add, serve, start};
use tokio::net::TcpListener;
use tonic::{Code, Status};

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_is_done_on_both_nodes_or_on_none() {
    let world = World::new(3).await;
    let application = world.application(1).await;
    for (receipt, options) in (1..).zip(BOTH) {
        let moved = application.transact_with(options, async |tx| {
            add(tx, 2, 5, -100, receipt).await?;
            add(tx, 3, 6, 100, receipt).await
        });
        assert!(moved.await.unwrap() > FIRST);
        let aborted = application.transact_with(options, async |tx| {
            add(tx, 1, 5, -100, 77).await?;
            add(tx, 2, 6, 100, 77).await?;
            Err::<(), Error>(tx.abort("for no reason"))
        });
        assert!(matches!(aborted.await, Err(Error::Aborted(_))));
    }
    let totals = world.totals().await;
    let amounts: Vec<i64> = totals.iter().map(|total| total.amount - i64::from(ACCOUNTS) * FIRST).collect();
    assert_eq!(amounts, [0, -200, 200]);
    assert!(totals[0].receipts.is_empty());
    assert_eq!(totals[1].receipts, [1, 2]);
    assert_eq!(totals[2].receipts, [1, 2]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_transactions_and_failed_calls_are_undone_alone() {
    let world = World::new(2).await;
    let application = world.application(1).await;
    for options in BOTH {
        let done = application.transact_with(options, async |tx| {
            add(tx, 1, 1, 1, 0).await?;
            let nested = tx.nest(async |child| {
                add(child, 1, 1, 10, 0).await?;
                add(child, 2, 1, 10, 0).await?;
                Err::<(), Error>(child.abort("no seat is left"))
            });
            assert!(matches!(nested.await, Err(Error::Aborted(_))));
            tx.nest(async |child| {
                add(child, 2, 1, 100, 0).await?;
                // What the other nested one had locked is free.
                add(child, 1, 1, 100, 0).await
            })
            .await?;
            // More than there is: the operation fails, and the transaction goes on.
            let failed = add(tx, 2, 2, -FIRST * 2, 0).await;
            assert!(matches!(failed, Err(Error::Call(status)) if status.code() == Code::FailedPrecondition));
            // Side by side, on the same account of the same server too.
            let (one, two) = tokio::join!(
                tx.nest(async |child| add(child, 1, 1, 1_000, 0).await),
                add(tx, 2, 1, 1_000, 0)
            );
            one.and(two)
        });
        done.await.unwrap();
    }
    let totals = world.totals().await;
    let amounts: Vec<i64> = totals.iter().map(|total| total.amount - i64::from(ACCOUNTS) * FIRST).collect();
    assert_eq!(amounts, [2 * 1_101, 2 * 1_100]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_side_by_side_lose_nothing() {
    let world = World::new(3).await;
    let (receipts, mut threads) = (Arc::new(AtomicU64::new(1)), Vec::new());
    for thread in 0..6u64 {
        let (application, receipts) = (world.application(1 + thread % 3).await, receipts.clone());
        threads.push(tokio::spawn(async move {
            let mut acknowledged = Vec::new();
            for turn in 0..40u64 {
                let receipt = receipts.fetch_add(1, Ordering::Relaxed);
                let options = BOTH[(turn % 2) as usize];
                let (from, to) = (1 + receipt % 3, 1 + receipt / 3 % 3);
                let done = application.transact_with(options, async |tx| {
                    // Few accounts: they are in each other's way.
                    add(tx, from, (receipt % 7) as u32, -3, receipt).await?;
                    add(tx, to, (receipt % 5) as u32, 3, receipt).await
                });
                match done.await {
                    Ok(_) => acknowledged.push(receipt),
                    Err(Error::Call(status)) if status.code() == Code::Aborted => {}
                    Err(Error::NotCommitted(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            acknowledged
        }));
    }
    let mut acknowledged = Vec::new();
    for thread in threads {
        acknowledged.extend(thread.await.unwrap());
    }
    let totals = world.totals().await;
    assert_eq!(totals.iter().map(|total| total.amount).sum::<i64>(), 3 * i64::from(ACCOUNTS) * FIRST);
    let mut twice: Vec<u64> = acknowledged.iter().flat_map(|receipt| [*receipt; 2]).collect();
    let mut there: Vec<u64> = totals.iter().flat_map(|total| total.receipts.clone()).collect();
    twice.sort_unstable();
    there.sort_unstable();
    assert_eq!(there, twice);
    assert!(acknowledged.len() > 60, "only {} of 240 got through", acknowledged.len());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_there_when_nodes_run_again() {
    let World { cluster, mut nodes, dir } = World::new(2).await;
    let keeper = Keeper::Memory(Arc::default());
    let application = Application::attach(cluster.clone(), 1).await.unwrap();
    let moved = application.transact(async |tx| {
        add(tx, 1, 0, -1, 1).await?;
        add(tx, 2, 0, 1, 1).await
    });
    moved.await.unwrap();
    // Both stop and run again, at other addresses, with all that was acknowledged.
    for (node, serving) in nodes.drain(..) {
        node.stop().await;
        serving.await.unwrap();
    }
    let (mut again, mut listeners) = (Cluster::new("test"), Vec::new());
    for number in 1..=2 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        again = again.node(number, &address).unwrap().server("bank", number);
        listeners.push((number, listener));
    }
    for (number, listener) in listeners {
        let node = start(&again, number, dir.path(), &keeper).await;
        let serving = serve(&node, listener);
        nodes.push((node, serving));
    }
    let world = World { cluster: again, nodes, dir };
    let receipts: Vec<_> = world.totals().await.into_iter().map(|total| total.receipts).collect();
    assert_eq!(receipts, [[1], [1]]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_outside_of_transactions_is_one_of_its_own() {
    let world = World::new(1).await;
    let mut bank = BankClient::new(world.cluster.channel(caliburn_dist::commit::word::Node(1)).unwrap());
    let balance =
        bank.add(AddRequest { account: 3, amount: 5, receipt: 9 }).await.unwrap().into_inner().balance;
    assert_eq!(balance, FIRST + 5);
    let refused: Status = bank.add(AddRequest { account: 3, amount: -5_000, receipt: 10 }).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(bank.total(TotalRequest {}).await.unwrap().into_inner().receipts, [9]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_call_servers() {
    let world = World::new(3).await;
    let application = world.application(1).await;
    let moving = |account, amount, receipt, to: &str, there| MoveRequest {
        from: Some(AddRequest { account, amount, receipt }),
        to: to.into(),
        account: there,
    };
    for (receipt, options) in (1..).zip(BOTH) {
        let done = application.transact_with(options, async |tx| {
            let mut bank = BankClient::new(tx.to("bank@2")?);
            bank.r#move(moving(1, 10, receipt, "bank@3", 1)).await?;
            // To another account of itself: the call comes back to where it came from.
            bank.r#move(moving(2, 5, receipt, "bank@2", 3)).await?;
            // What fails beyond the one that is called fails it, and is undone there.
            let failed = bank.r#move(moving(4, 5, 99, "bank@3", 100_000)).await;
            assert_eq!(failed.unwrap_err().code(), Code::NotFound);
            let failed = bank.r#move(moving(4, 5, 99, "bank@9", 1)).await;
            assert_eq!(failed.unwrap_err().code(), Code::NotFound);
            // A nested one that called, and is undone on both.
            let undone = tx.nest(async |child| {
                let mut bank = BankClient::new(child.to("bank@2")?);
                bank.r#move(moving(5, 10, 99, "bank@3", 5)).await?;
                Err::<(), Error>(child.abort("thought better of"))
            });
            assert!(undone.await.is_err());
            Ok::<_, Error>(())
        });
        done.await.unwrap();
    }
    // Outside of transactions.
    let channel = world.cluster.channel(caliburn_dist::commit::word::Node(1)).unwrap();
    BankClient::new(channel).r#move(moving(1, 7, 3, "bank@2", 9)).await.unwrap();
    let totals = world.totals().await;
    let amounts: Vec<i64> = totals.iter().map(|total| total.amount - i64::from(ACCOUNTS) * FIRST).collect();
    assert_eq!(amounts, [-7, -20 + 7, 20]);
    let receipts: Vec<Vec<u64>> = totals.into_iter().map(|total| total.receipts).collect();
    assert_eq!(receipts, [vec![3], vec![1, 2, 1, 2, 1, 2, 3], vec![1, 2]]);
    world.stop().await;
}

/// Three that wait for each other, each at another node.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_between_nodes_is_broken() {
    let world = World::new(3).await;
    let all_have_one = Arc::new(tokio::sync::Barrier::new(3));
    let mut threads = Vec::new();
    for number in 1..=3u64 {
        let (application, barrier) = (world.application(number).await, all_have_one.clone());
        threads.push(tokio::spawn(async move {
            let done = application.transact(async |tx| {
                add(tx, number, 0, 1, number).await?;
                barrier.wait().await;
                add(tx, number % 3 + 1, 0, 1, number).await
            });
            done.await.map(drop)
        }));
    }
    let begun = std::time::Instant::now();
    let mut victims = 0;
    for thread in threads {
        match thread.await.unwrap() {
            Ok(()) => {}
            Err(Error::Call(status)) => {
                assert!(status.code() == Code::Aborted && status.message().contains("deadlock"), "{status}");
                victims += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(victims, 1);
    assert!(begun.elapsed() < Duration::from_secs(20), "found by a time-out");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_first_is_done_once_and_hooks_are_asked() {
    let dir = tempfile::tempdir().unwrap();
    let (committed, aborted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    for life in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let cluster = Cluster::new("test").node(1, &address).unwrap().server("bank", 1);
        let node = bank::segment(Node::builder(cluster.clone(), 1, dir.path().join("store")));
        let failing = node.first(|_| Err(Status::internal("not yet")));
        if life == 0 {
            let error = failing.start().await.unwrap_err();
            assert!(error.to_string().contains("not yet"), "{error}");
            continue;
        }
        let node = bank::segment(Node::builder(cluster.clone(), 1, dir.path().join("store")));
        let first = node.first(|call| {
            let bank = call.region("bank")?;
            let before: i64 = call.load(bank, 0)?;
            call.store(bank, 0, &(before + 7))
        });
        let (commits, aborts) = (committed.clone(), aborted.clone());
        let allowed = Arc::new(AtomicU64::new(1));
        let hooked = first
            .on_prepare(move |_| match allowed.swap(0, Ordering::Relaxed) {
                1 => Ok(()),
                _ => Err("one is enough".into()),
            })
            .on_commit(move |_, _| _ = commits.fetch_add(1, Ordering::Relaxed))
            .on_abort(move |_| _ = aborts.fetch_add(1, Ordering::Relaxed));
        let node = hooked.start().await.unwrap();
        let serving = serve(&node, listener);
        let application = Application::attach(cluster, 1).await.unwrap();
        let add_one = || application.transact(async |tx| add(tx, 1, 1, 1, 0).await);
        // The first life's initialisation was allowed in place of this one.
        assert_eq!(add_one().await.is_ok(), life == 2);
        assert!(matches!(add_one().await, Err(Error::NotCommitted(_))));
        node.stop().await;
        serving.await.unwrap();
    }
    assert_eq!((committed.load(Ordering::Relaxed), aborted.load(Ordering::Relaxed)), (2, 3));
    let store = caliburn::Store::open(dir.path().join("store")).unwrap();
    let bank = store.segment("bank").unwrap().map_all().unwrap();
    assert_eq!(bank.load::<i64>(0), 7, "it was done once");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_goes_leaves_no_locks() {
    let world = World::new(2).await;
    let application = world.application(1).await;
    // A transaction that holds locks on both, and is dropped.
    let stuck = application.transact(async |tx| {
        add(tx, 1, 0, 1, 1).await?;
        add(tx, 2, 0, 1, 1).await?;
        std::future::pending::<Result<(), Error>>().await
    });
    assert!(tokio::time::timeout(Duration::from_millis(300), stuck).await.is_err());
    // A program that goes without a word: what it has begun is an orphan.
    let gone = world.application(1).await;
    let left = gone.transact(async |tx| {
        add(tx, 2, 1, 1, 2).await?;
        std::mem::forget(tx.to("bank@2")?);
        Err::<(), Error>(tx.abort("x"))
    });
    assert!(left.await.is_err());
    drop(gone);
    let done = application.transact(async |tx| {
        add(tx, 1, 0, 1, 3).await?;
        add(tx, 2, 0, -1, 3).await?;
        add(tx, 2, 1, 0, 3).await
    });
    tokio::time::timeout(Duration::from_secs(10), done).await.expect("locks are free").unwrap();
    let receipts: HashSet<u64> = world.totals().await.into_iter().flat_map(|total| total.receipts).collect();
    assert_eq!(receipts, HashSet::from([3]));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_of_another_cluster_are_refused() {
    let world = World::new(1).await;
    let node = caliburn_dist::commit::word::Node(1);
    let channel = world.cluster.channel(node).unwrap();
    let mut raw = caliburn_dist::proto::caliburn::node_client::NodeClient::new(channel);
    let request = caliburn_dist::proto::caliburn::AttachRequest { cluster: "another".into(), needs: 0 };
    let refused = raw.attach(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("\"test\"") && refused.message().contains("\"another\""));
    let end = caliburn_dist::proto::caliburn::EndRequest { tid: vec![1, 2], ..Default::default() };
    assert_eq!(raw.end(end).await.unwrap_err().code(), Code::InvalidArgument);
    world.stop().await;
}
