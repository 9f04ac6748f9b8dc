//! Calls of one family that are in each other's way, and what is around transactions: procedures that panic, nodes
//! whose threads all wait, programs that attach again all at once.

mod support;

use caliburn_dist::bank;
use caliburn_dist::client::{Error, Options};
use caliburn_dist::commit::word::Node as NodeId;
use caliburn_dist::node::Builder;
use caliburn_dist::proto::bank::bank_client::BankClient;
use caliburn_dist::proto::bank::{AddRequest, MoveRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{World, add, serve};
use tokio::net::TcpListener;

/// Less than anything that would wait for a time-out takes.
const SOON: Options = Options { blocking: true, time_out: Duration::from_secs(20) };

fn moving(account: u32, receipt: u64, to: &str, there: u32) -> MoveRequest {
    MoveRequest { from: Some(AddRequest { account, amount: 1, receipt }), to: to.into(), account: there }
}

/// What one call has locked another of the family may have, whoever calls and whatever is under way.
#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_family_share_what_they_lock() {
    let world = World::new(2).await;
    let application = world.application(1).await;
    let directly_and_through_a_server = application.transact_with(SOON, async |tx| {
        add(tx, 2, 1, 1, 0).await?;
        let mut bank = BankClient::new(tx.to("bank@1")?);
        bank.r#move(moving(5, 0, "bank@2", 1)).await?;
        bank.r#move(moving(5, 0, "bank@2", 1)).await?;
        Ok::<_, Error>(())
    });
    directly_and_through_a_server.await.unwrap();
    let side_by_side = application.transact_with(SOON, async |tx| {
        let (one, two) = tokio::join!(add(tx, 2, 1, 1, 0), add(tx, 2, 1, 1, 0));
        one.and(two)
    });
    side_by_side.await.unwrap();
    let nested_side_by_side = application.transact_with(SOON, async |tx| {
        let (one, two) = tokio::join!(
            tx.nest(async |child| add(child, 2, 1, 1, 0).await),
            tx.nest(async |child| add(child, 2, 1, 1, 0).await)
        );
        one.and(two)
    });
    nested_side_by_side.await.unwrap();
    let through_servers_side_by_side = application.transact_with(SOON, async |tx| {
        let mut first = BankClient::new(tx.to("bank@1")?);
        let mut second = first.clone();
        let (one, two) =
            tokio::join!(first.r#move(moving(6, 0, "bank@2", 1)), second.r#move(moving(6, 0, "bank@2", 1)));
        one.and(two)?;
        Ok::<_, Error>(())
    });
    through_servers_side_by_side.await.unwrap();
    let amounts: Vec<i64> = world.totals().await.iter().map(|total| total.amount).collect();
    assert_eq!(amounts[1] - i64::from(bank::ACCOUNTS) * bank::FIRST, 3 + 2 + 2 + 2);
    world.stop().await;
}

/// News that travel by themselves, while others are under way: who says that it has heard them has.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_side_by_side_is_all_there() {
    let world = World::new(2).await;
    let application = world.application(1).await;
    for receipt in 1..=60u64 {
        let account = (receipt % 50) as u32;
        let done = application.transact_with(SOON, async |tx| {
            let quick = tx.nest(async |child| add(child, 2, account, 1, receipt).await);
            let slow = tx.nest(async |child| {
                add(child, 2, 60 + account, 1, receipt).await?;
                add(child, 1, account, 1, receipt).await?;
                add(child, 1, 60 + account, 1, receipt).await
            });
            let (quick, slow) = tokio::join!(quick, slow);
            quick.and(slow)
        });
        done.await.unwrap();
    }
    let there: Vec<usize> = world.totals().await.iter().map(|total| total.receipts.len()).collect();
    assert_eq!(there, [120, 120]);
    world.stop().await;
}

/// The time of a nested transaction is its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_nested_transaction_does_not_shorten_its_parent() {
    let world = World::new(2).await;
    let application = world.application(1).await;
    let done = application.transact(async |tx| {
        tx.nest_with(Duration::from_millis(300), async |child| add(child, 2, 1, 1, 1).await).await?;
        tokio::time::sleep(Duration::from_millis(800)).await;
        Ok::<_, Error>(())
    });
    done.await.unwrap();
    world.stop().await;
}

/// Nodes with one thread for calls each.
async fn narrow(count: u64, build: impl Fn(Builder) -> Builder) -> World {
    World::built(count, |node| build(node.level(1))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_procedure_that_panics_refuses() {
    let first = Arc::new(AtomicBool::new(true));
    let panics = move |node: Builder| {
        let first = first.clone();
        node.on_prepare(
            move |_| if first.swap(false, Ordering::Relaxed) { panic!("as planned") } else { Ok(()) },
        )
    };
    let world = narrow(1, panics).await;
    let mut bank = BankClient::new(world.cluster.channel(NodeId(1)).unwrap());
    let mut add_one = async || bank.add(AddRequest { account: 1, amount: 5, receipt: 0 }).await;
    assert!(add_one().await.is_err());
    assert_eq!(add_one().await.unwrap().into_inner().balance, bank::FIRST + 5);
    world.stop().await;
}

/// Each node's thread waits for what a family holds that is about to call the other one.
#[tokio::test(flavor = "multi_thread")]
async fn threads_do_not_wait_in_a_circle() {
    let world = narrow(2, |node| node).await;
    let mut all = Vec::new();
    let both_hold = Arc::new(tokio::sync::Barrier::new(3));
    let both_wait = Arc::new(tokio::sync::Barrier::new(3));
    for (own, other) in [(1, 2), (2, 1)] {
        let application = world.application(own).await;
        let (both_hold, both_wait) = (both_hold.clone(), both_wait.clone());
        all.push(tokio::spawn(async move {
            let done = application.transact_with(SOON, async |tx| {
                add(tx, own, 1, 1, 1).await?;
                both_hold.wait().await;
                both_wait.wait().await;
                add(tx, other, 50, 1, 1).await
            });
            done.await
        }));
    }
    both_hold.wait().await;
    for node in [1, 2] {
        let application = world.application(node).await;
        all.push(tokio::spawn(async move {
            application.transact_with(SOON, async |tx| add(tx, node, 1, 1, 1).await).await
        }));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    both_wait.wait().await;
    for one in all {
        one.await.unwrap().unwrap();
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_attach_again_once() {
    let mut world = World::built(1, |node| node).await;
    let application = world.application(1).await;
    application.transact(async |tx| add(tx, 1, 1, 1, 1).await).await.unwrap();
    let (node, serving) = world.nodes.pop().unwrap();
    node.stop().await;
    serving.await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    // Whoever has the cluster knows the new address.
    world.cluster = world.cluster.node(1, &address).unwrap();
    let node = support::node(&world.cluster, 1, world.dir.path()).start().await.unwrap();
    let serving = serve(&node, listener);
    world.nodes.push((node, serving));
    // Until it has noticed.
    while application.transact(async |tx| add(tx, 1, 2, 1, 2).await).await.is_err() {}
    let all: Vec<_> = (0..16u32)
        .map(|number| {
            let application = application.clone();
            tokio::spawn(async move {
                let done = application.transact_with(SOON, async |tx| {
                    add(tx, 1, 10 + number, 1, 100 + u64::from(number)).await?;
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    Ok::<_, Error>(())
                });
                done.await
            })
        })
        .collect();
    for one in all {
        one.await.unwrap().unwrap();
    }
    world.stop().await;
}
