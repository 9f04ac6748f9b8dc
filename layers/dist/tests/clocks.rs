//! Timestamps of transactions over nodes whose walls' clocks differ: in the order in which they happened, also after
//! restarts; and a clock that is far ahead is refused, and named.

mod support;

use caliburn_dist::Timestamp;
use caliburn_dist::client::{Application, Error, Options};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::commit::word::{Incarnation, Node as NodeId, Protocol};
use caliburn_dist::id::Tid;
use caliburn_dist::keep::keeper::Keeper;
use caliburn_dist::node::Builder;
use caliburn_dist::proto::bank::AddRequest;
use caliburn_dist::proto::bank::bank_client::BankClient;
use caliburn_dist::proto::caliburn::node_client::NodeClient;
use caliburn_dist::proto::caliburn::{AttachRequest, EndRequest, Letters, Report};
use caliburn_os::clock::wall_ns;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{BOTH, World, add, node, serve};
use tokio::net::TcpListener;
use tonic::Code;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3_600 * SECOND;

/// Node 1's wall is some seconds ahead, node 3's some behind.
fn skewed(builder: Builder, number: u64) -> Builder {
    builder.wall(match number {
        1 => || wall_ns() + 20 * SECOND,
        2 => wall_ns,
        _ => || wall_ns() - 20 * SECOND,
    })
}

async fn skewed_world() -> World {
    let keeper = Keeper::Memory(Arc::default());
    let number = AtomicU64::new(0);
    World::built(3, |builder| {
        skewed(builder.keeper(keeper.clone()), number.fetch_add(1, Ordering::Relaxed) + 1)
    })
    .await
}

/// Changes an account at each of two nodes: when, and what it has there then.
async fn change(
    by: &Application,
    options: Options,
    [a, b]: [u64; 2],
) -> Result<(Timestamp, [i64; 2]), Error> {
    let (balances, at) = by
        .transact_at(options, async |tx| {
            // The same order for all: no deadlocks.
            Ok::<_, Error>([add(tx, a.min(b), 7, 1, 0).await?, add(tx, a.max(b), 7, 1, 0).await?])
        })
        .await?;
    Ok((at, balances))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timestamps_are_in_the_order_of_what_happened() {
    let world = skewed_world().await;
    let mut programs = Vec::new();
    for number in 1..=3u64 {
        let application = world.application(number).await;
        programs.push(tokio::spawn(async move {
            let (mut seen, mut last) = (Vec::new(), Timestamp::default());
            for round in 0..40 {
                let pair = [[1, 2], [2, 3], [3, 1]][(round as u64 + number) as usize % 3];
                let (at, [low, high]) = change(&application, BOTH[round % 2], pair).await.unwrap();
                assert!(at > last, "a program's own go forward");
                assert_eq!(application.clock(), at);
                last = at;
                let [a, b] = [pair[0].min(pair[1]), pair[0].max(pair[1])];
                seen.extend([(a, low, at), (b, high, at)]);
            }
            seen
        }));
    }
    let mut seen = Vec::new();
    for program in programs {
        seen.extend(program.await.unwrap());
    }
    // Each change of an account finds what the one before it has left: the balance tells the order.
    seen.sort_unstable();
    let wrong = seen.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].2 >= pair[1].2);
    assert_eq!(wrong, None);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_forgets_no_timestamp_and_hooks_are_told_of_them() {
    let mut world = skewed_world().await;
    let application = world.application(1).await;
    let (before, _) = change(&application, BOTH[0], [1, 3]).await.unwrap();
    // Node 3, whose wall is far behind, has heard of it, and begins again.
    let address = world.cluster.address(NodeId(3)).unwrap();
    let (old, serving) = world.nodes.pop().unwrap();
    old.stop().await;
    serving.await.unwrap();
    drop(old);
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let again = skewed(node(&world.cluster, 3, world.dir.path()), 3)
        .on_commit(move |_, at| tell.lock().unwrap().push(at))
        .start()
        .await
        .unwrap();
    let listener = TcpListener::bind(address.strip_prefix("http://").unwrap()).await.unwrap();
    let serving = serve(&again, listener);
    world.nodes.push((again, serving));
    // A program that has heard of nothing.
    let stranger = world.application(3).await;
    let changed = stranger.transact_at(BOTH[0], async |tx| add(tx, 3, 7, 1, 0).await).await;
    let after = changed.unwrap().1;
    assert!(after > before, "{after} is not behind {before}");
    assert_eq!(told.lock().unwrap().last(), Some(&after));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_tell_each_other_of_timestamps() {
    let world = skewed_world().await;
    let (ahead, behind) = (world.application(1).await, world.application(3).await);
    let (_, first) = ahead.transact_at(BOTH[0], async |tx| add(tx, 1, 1, 1, 0).await).await.unwrap();
    behind.hear(first).unwrap();
    let (_, second) = behind.transact_at(BOTH[0], async |tx| add(tx, 3, 1, 1, 0).await).await.unwrap();
    assert!(second > first);
    // One that calls nobody.
    let (_, third) = behind.transact_at(BOTH[0], async |_| Ok::<_, Error>(())).await.unwrap();
    assert_eq!(third, second);
    let error = behind.hear(Timestamp(wall_ns() + HOUR)).unwrap_err();
    assert!(error.to_string().contains("in front of the wall's clock"), "{error}");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_an_hour_ahead_is_refused_and_named() {
    let number = AtomicU64::new(0);
    let world = World::built(2, |builder| match number.fetch_add(1, Ordering::Relaxed) {
        0 => builder,
        _ => builder.wall(|| wall_ns() + HOUR),
    })
    .await;
    let is_named = |error: &Error| error.to_string().contains("the clock of node 2: ");
    // As a coordinator.
    let error = Application::attach(world.cluster.clone(), 2).await.unwrap_err();
    assert!(is_named(&error), "{error}");
    // As a participant; and the program goes on without it.
    let application = world.application(1).await;
    for options in [BOTH[0]; 2] {
        let done = application.transact_with(options, async |tx| {
            add(tx, 1, 1, 5, 0).await?;
            let there = tx.nest(async |child| add(child, 2, 1, 5, 0).await).await.unwrap_err();
            assert!(is_named(&there), "{there}");
            add(tx, 1, 2, 5, 0).await
        });
        done.await.unwrap();
    }
    assert!(application.clock().0 < wall_ns() + HOUR / 2, "nobody has followed it");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_or_a_letter_that_is_an_hour_ahead_is_not_followed() {
    let world = World::new(2).await;
    let mut raw = NodeClient::new(world.cluster.channel(NodeId(1)).unwrap());
    let mut stream =
        raw.attach(AttachRequest { cluster: "test".into(), needs: 0 }).await.unwrap().into_inner();
    let attached = stream.message().await.unwrap().unwrap();
    let clock = wall_ns() + HOUR;
    let tid = Tid {
        coordinator: NodeId(1),
        incarnation: Incarnation(attached.incarnation),
        client: attached.client,
        serial: 1,
        protocol: Protocol::Blocking,
    };
    let end = EndRequest {
        tid: tid.to_bytes().to_vec(),
        commit: true,
        report: Some(Report { clock, touched: vec![2], ..Report::default() }),
        below: 0,
        needs: 0,
    };
    let refused = raw.end(end).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    assert!(refused.message().contains("the clock of the program at 127.0.0.1:"), "{refused}");
    let letters = Letters { cluster: "test".into(), from: 2, to: 1, letters: vec![], clock, needs: 0 };
    // Letters may say how transactions end.
    raw.deliver(tokio_stream::once(letters)).await.unwrap();
    // It has followed neither.
    let application = world.application(1).await;
    let done = application.transact_at(BOTH[0], async |tx| add(tx, 1, 1, 1, 0).await);
    let (_, at) = tokio::time::timeout(Duration::from_secs(30), done).await.unwrap().unwrap();
    assert!(at.0 < wall_ns() + HOUR / 2);
    world.stop().await;
}

/// Its machine's clock is an hour ahead, and is set right.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_machine_is_set_back_goes_on_and_can_forget() {
    static AHEAD: AtomicU64 = AtomicU64::new(HOUR);
    let wall = || wall_ns() + AHEAD.load(Ordering::SeqCst);
    let world = World::built(1, |builder| builder.wall(wall)).await;
    let mut bank = BankClient::new(world.cluster.channel(NodeId(1)).unwrap());
    let one = AddRequest { account: 1, amount: 1, receipt: 0 };
    bank.add(one).await.unwrap();
    AHEAD.store(0, Ordering::SeqCst);
    // What it has given out itself is no reason to refuse anything.
    bank.add(one).await.unwrap();
    let (cluster, dir) = (world.cluster.clone(), world.dir.path().to_owned());
    world.nodes[0].0.stop().await;
    for (forgets, is_refused) in [(false, true), (true, false)] {
        let again = node(&cluster, 1, &dir).wall(wall).forget_clock(forgets).start().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let cluster = Cluster::new("test").node(1, &address).unwrap();
        let serving = serve(&again, listener);
        let attached = Application::attach(cluster, 1).await;
        assert_eq!(attached.is_err(), is_refused, "{attached:?}");
        again.stop().await;
        serving.await.unwrap();
    }
}

/// Begins node 1 again in a directory, on an address of its own: whether a program whose clock is right can attach.
async fn again(
    dir: &std::path::Path,
    build: impl FnOnce(Builder) -> Builder,
) -> (Result<(), Error>, Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let cluster =
        Cluster::new("test").node(1, &format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let node =
        build(node(&cluster, 1, dir)).on_notice(move |text| tell.lock().unwrap().push(text.to_owned()));
    let node = node.start().await.unwrap();
    let serving = serve(&node, listener);
    let attached = Application::attach(cluster.clone(), 1).await.map(drop);
    // It has given out something by then.
    let mut bank = BankClient::new(cluster.channel(NodeId(1)).unwrap());
    bank.add(AddRequest { account: 1, amount: 1, receipt: 0 }).await.unwrap();
    // Its connection ends with them.
    drop((bank, cluster));
    node.stop().await;
    serving.await.unwrap();
    let told = told.lock().unwrap().clone();
    (attached, told)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_to_forget_is_obeyed_once_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let ahead = |builder: Builder| builder.wall(|| wall_ns() + HOUR);
    again(dir.path(), ahead).await.0.unwrap_err();
    let (refused, told) = again(dir.path(), |builder| builder).await;
    assert!(refused.unwrap_err().to_string().contains("the clock of node 1: "));
    assert!(told[0].contains("s ahead of the machine's, which was set back"), "{told:?}");
    assert!(told[0].contains("CALIBURN_FORGET_CLOCK"), "{told:?}");
    let (forgot, told) = again(dir.path(), |builder| builder.forget_clock_once(7)).await;
    forgot.unwrap();
    assert!(told.len() == 1 && told[0].contains("forgets what it has given out"), "{told:?}");
    // The machine is wrong again; an order that was left in the environment is no new one.
    again(dir.path(), ahead).await.0.unwrap_err();
    let (refused, _) = again(dir.path(), |builder| builder.forget_clock_once(7)).await;
    refused.unwrap_err();
    again(dir.path(), |builder| builder.forget_clock_once(8)).await.0.unwrap();
    let (well, told) = again(dir.path(), |builder| builder).await;
    well.unwrap();
    assert!(told.is_empty(), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_timestamps_no_clock_is_refused_or_kept() {
    let number = AtomicU64::new(0);
    let world = World::built(2, |builder| match number.fetch_add(1, Ordering::Relaxed) {
        0 => builder.timestamps(false),
        _ => builder.timestamps(false).wall(|| wall_ns() + HOUR),
    })
    .await;
    for home in [1, 2] {
        let application = world.application(home).await;
        let both = application.transact(async |tx| {
            add(tx, 1, 1, 1, 0).await?;
            add(tx, 2, 1, 1, 0).await
        });
        both.await.unwrap();
        let asked = application.transact_at(BOTH[0], async |tx| add(tx, 1, 1, 1, 0).await).await.unwrap_err();
        assert!(asked.to_string().contains("gives no timestamps"), "{asked}");
    }
    for (node, serving) in world.nodes {
        node.stop().await;
        serving.await.unwrap();
    }
    let dir = world.dir.path().join("2");
    // Its clock has gone nowhere: with timestamps, nobody refuses it.
    let parent = tempfile::tempdir().unwrap();
    std::fs::rename(&dir, parent.path().join("1")).unwrap();
    again(parent.path(), |builder| builder).await.0.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_timestamps_is_in_no_transaction_that_has_one() {
    let number = AtomicU64::new(0);
    let told = Arc::new(Mutex::new(Vec::new()));
    let world = World::built(2, |builder| match number.fetch_add(1, Ordering::Relaxed) {
        0 => builder,
        _ => {
            let tell = told.clone();
            builder.timestamps(false).on_notice(move |text| tell.lock().unwrap().push(text.to_owned()))
        }
    })
    .await;
    let application = world.application(1).await;
    application.transact_at(BOTH[0], async |tx| add(tx, 1, 1, 1, 0).await).await.unwrap();
    let both = application.transact(async |tx| {
        add(tx, 1, 1, 1, 0).await?;
        add(tx, 2, 1, 1, 0).await
    });
    assert!(matches!(both.await, Err(Error::NotCommitted(_))));
    let told = told.lock().unwrap().clone();
    assert!(told[0].contains("node 1 gives timestamps, and this one doesn't"), "{told:?}");
    world.stop().await;
}
