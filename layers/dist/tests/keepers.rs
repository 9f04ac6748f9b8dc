//! What a keeper of slots promises, of both: the one in memory, and etcd with three members that are killed.

use caliburn_dist::bank;
use caliburn_dist::client::{Application, Error};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::commit::word::{Incarnation, Node as NodeId, Protocol, Slot, Stay};
use caliburn_dist::host::Role;
use caliburn_dist::id::Tid;
use caliburn_dist::keep::etcd::{Etcd, KeepError};
use caliburn_dist::keep::keeper::Keeper;
use caliburn_dist::keep::members::{Members, MembersError};
use caliburn_dist::keep::names::Names;
use caliburn_dist::keep::{Claim, Doubt, Kept, Known, Looked, Newcomer};
use caliburn_dist::node::Node;
use caliburn_dist::proto::bank::AddRequest;
use caliburn_dist::proto::bank::bank_client::BankClient;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn tid(serial: u64) -> Tid {
    let (coordinator, incarnation) = (NodeId(1), Incarnation(1));
    Tid { coordinator, incarnation, client: 1, serial, protocol: Protocol::Slots }
}

fn claim(serial: u64, by: u64, life: Incarnation, of: u64, slot: Slot) -> Claim {
    let participants = [(NodeId(1), Stay(11)), (NodeId(2), Stay(22))].into();
    Claim {
        tid: tid(serial),
        by: NodeId(by),
        life,
        role: Role::Participant,
        participants,
        of: NodeId(of),
        slot,
    }
}

/// Asks again until it answers.
async fn put(keeper: &Keeper, claim: &Claim) -> Kept {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match keeper.put(claim, &Known::default()).await {
            Ok((kept, _)) => return kept,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    }
}

async fn keeps_its_promises(keeper: &Keeper) {
    let one = keeper.begin_life(NodeId(1), Incarnation(0)).await.unwrap();
    let two = keeper.begin_life(NodeId(2), Incarnation(7)).await.unwrap();
    assert_eq!((one, two), (Incarnation(1), Incarnation(8)));
    // What is put first stays.
    assert_eq!(put(keeper, &claim(1, 1, one, 1, Slot::Yes)).await, Kept::Slot(Slot::Yes));
    assert_eq!(put(keeper, &claim(1, 1, one, 1, Slot::Yes)).await, Kept::Slot(Slot::Yes));
    assert_eq!(put(keeper, &claim(1, 2, two, 1, Slot::Closed)).await, Kept::Slot(Slot::Yes));
    assert_eq!(put(keeper, &claim(1, 1, one, 2, Slot::Closed)).await, Kept::Slot(Slot::Closed));
    assert_eq!(put(keeper, &claim(1, 2, two, 2, Slot::Yes)).await, Kept::Slot(Slot::Closed));
    // An earlier life puts nothing.
    let again = keeper.begin_life(NodeId(2), Incarnation(0)).await.unwrap();
    assert_eq!(again, Incarnation(9));
    assert_eq!(put(keeper, &claim(2, 2, two, 2, Slot::Yes)).await, Kept::Fenced);
    assert_eq!(put(keeper, &claim(2, 2, again, 2, Slot::Closed)).await, Kept::Slot(Slot::Closed));
    let of = keeper.of(NodeId(1)).await.unwrap();
    let participants = claim(1, 1, one, 1, Slot::Yes).participants;
    assert_eq!(of, [(tid(1), participants.clone()), (tid(2), participants.clone())].into());
    keeper.delete(tid(1), &participants).await.unwrap();
    assert_eq!(keeper.of(NodeId(1)).await.unwrap().len(), 1);
    assert!(keeper.of(NodeId(2)).await.unwrap().is_empty());
}

#[tokio::test]
async fn one_in_memory_keeps_its_promises() {
    keeps_its_promises(&Keeper::Memory(Arc::default())).await;
    notices_what_is_lost(&Keeper::Memory(Arc::default())).await;
}

/// A node that knows more than the keeper has is told so, whatever else the keeper has by then.
async fn notices_what_is_lost(keeper: &Keeper) {
    let (one, two) = (NodeId(1), NodeId(2));
    let met = keeper.meet(&Newcomer::new(one, Incarnation(0), Known::default())).await.unwrap();
    assert!(met.doubt.is_none() && met.known.identity.is_some());
    let other = keeper.meet(&Newcomer::new(two, Incarnation(0), Known::default())).await.unwrap();
    assert_eq!(other.known.identity, met.known.identity, "it is the cluster's");
    let (kept, known) = keeper.put(&claim(1, 1, met.life, 1, Slot::Yes), &met.known).await.unwrap();
    assert_eq!((kept, known.mark), (Kept::Slot(Slot::Yes), met.known.mark + 1));
    // To look changes nothing.
    let look = claim(1, 1, met.life, 2, Slot::Empty);
    assert_eq!(keeper.put(&look, &known).await.unwrap().0, Kept::Slot(Slot::Empty));
    assert_eq!(keeper.put(&look, &known).await.unwrap().0, Kept::Slot(Slot::Empty));
    let look = claim(1, 2, other.life, 1, Slot::Empty);
    assert_eq!(keeper.put(&look, &other.known).await.unwrap().0, Kept::Slot(Slot::Yes));
    assert!(matches!(keeper.look(one, met.life, &known).await.unwrap(), Looked::Well(_)));
    // As if the keeper had lost the last put, one of a later life, or were another.
    let more = Known { mark: known.mark + 1, ..known };
    let another = Known { identity: Some([9; 16]), ..known };
    let later = Known { revision: known.revision + 1_000_000, ..known };
    for (lost, doubt) in [(more, Doubt::Earlier), (later, Doubt::Earlier), (another, Doubt::Another)] {
        let look = keeper.look(one, met.life, &lost).await.unwrap();
        assert_eq!(look, Looked::Forgot(doubt));
        // Of a revision it is told afterwards: nothing can compare that in the step of the put.
        if lost.revision == known.revision {
            let put = keeper.put(&claim(2, 1, met.life, 1, Slot::Yes), &lost).await.unwrap().0;
            assert_eq!(put, Kept::Forgot(doubt));
        }
        let met = keeper.meet(&Newcomer::new(one, met.life, lost)).await.unwrap();
        assert_eq!((met.doubt, met.known), (Some(doubt), lost));
    }
    let epoch = keeper.meet(&Newcomer::new(one, Incarnation(met.life.0 + 1), known)).await.unwrap();
    assert_eq!(epoch.doubt, Some(Doubt::Earlier), "its life is not there");
    assert_eq!(keeper.look(one, met.life, &known).await.unwrap(), Looked::Well(known), "nothing was put");
}

/// A node that is registered, stops, and runs again at another address: a program that follows calls it there.
#[tokio::test(flavor = "multi_thread")]
async fn programs_follow_a_server_to_another_address() {
    let dir = tempfile::tempdir().unwrap();
    let members = match Members::start(1, dir.path().join("etcd")) {
        Ok(members) => members,
        Err(error @ MembersError::NotInstalled) => return println!("not run: {error}"),
        Err(error) => panic!("{error}"),
    };
    let addresses = members.addresses();
    let etcd = Etcd::new(addresses.iter().map(String::as_str), "test").unwrap();
    let cluster = Cluster::new("test");
    let _names = Names::follow(etcd.clone(), cluster.clone()).await.unwrap();
    assert!(cluster.nodes().is_empty());
    let mut application = None;
    for turn in 1..=2 {
        // The node itself follows as well.
        let own = Cluster::new("test");
        let _own = Names::follow(etcd.clone(), own.clone()).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let node = bank::segment(Node::builder(own, 4, dir.path().join("store")));
        let node = node.keeper(Keeper::Etcd(etcd.clone())).start().await.unwrap();
        node.announce(&address, ["bank", "another"]);
        let serving = node.clone();
        let serving = tokio::spawn(async move {
            let bank = bank::service(&serving);
            serving.serve_on(listener, |services| _ = services.add_service(bank)).await.unwrap();
        });
        let until = Instant::now() + Duration::from_secs(30);
        while cluster.find("bank") != Ok(NodeId(4)) {
            assert!(Instant::now() < until, "it is not found");
            tokio::task::yield_now().await;
        }
        if application.is_none() {
            application = Some(Application::attach(cluster.clone(), 4).await.unwrap());
        }
        let balance = loop {
            // Until it has noticed that its node lives another life.
            let done = application.as_ref().unwrap().transact(async |tx| {
                let mut bank = BankClient::new(tx.to("bank@*")?);
                Ok::<_, Error>(
                    bank.add(AddRequest { account: 1, amount: 1, receipt: turn }).await?.into_inner(),
                )
            });
            match done.await {
                Ok(reply) => break reply.balance,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        };
        assert_eq!(balance, bank::FIRST + turn as i64);
        node.stop().await;
        serving.await.unwrap();
        // Nobody's, at once: it has given its lease back.
        while cluster.find("bank").is_ok() {
            assert!(Instant::now() < until, "it is still found");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_keeps_its_promises_while_members_are_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = match Members::start(3, dir.path()) {
        Ok(members) => members,
        Err(error @ MembersError::NotInstalled) => return println!("not run: {error}"),
        Err(error) => panic!("{error}"),
    };
    let addresses = members.addresses();
    let etcd = || Etcd::new(addresses.iter().map(String::as_str), "test").unwrap();
    let keeper = Keeper::Etcd(etcd());
    let until = Instant::now() + Duration::from_secs(60);
    while let Err(error) = keeper.of(NodeId(1)).await {
        assert!(Instant::now() < until, "{error}");
    }
    keeps_its_promises(&keeper).await;
    let other = Etcd::new(addresses.iter().map(String::as_str), "lost").unwrap();
    notices_what_is_lost(&Keeper::Etcd(other)).await;
    // Each member in turn, while slots are put.
    for (turn, member) in [0, 1, 2].into_iter().enumerate() {
        members.kill(member);
        for serial in 0..20 {
            let serial = 100 + turn as u64 * 100 + serial;
            assert_eq!(
                put(&keeper, &claim(serial, 1, Incarnation(1), 1, Slot::Yes)).await,
                Kept::Slot(Slot::Yes)
            );
        }
        members.run(member).unwrap();
    }
    // All at once: what was acknowledged is there.
    (0..3).for_each(|member| members.kill(member));
    assert!(matches!(
        keeper.put(&claim(999, 1, Incarnation(1), 1, Slot::Yes), &Known::default()).await,
        Err(KeepError::NoAnswer(_))
    ));
    (0..3).for_each(|member| members.run(member).unwrap());
    let mut there = keeper.of(NodeId(1)).await;
    let until = Instant::now() + Duration::from_secs(60);
    while there.is_err() && Instant::now() < until {
        there = keeper.of(NodeId(1)).await;
    }
    let there = there.unwrap();
    let all = (0..3).flat_map(|turn| (0..20).map(move |serial| 100 + turn * 100 + serial));
    for serial in all {
        assert!(there.contains_key(&tid(serial)), "{serial} was acknowledged, and is not there");
    }
    // Another cluster's part of the same etcd is empty.
    let another = Etcd::new(addresses.iter().map(String::as_str), "another").unwrap();
    assert!(another.of(NodeId(1)).await.unwrap().is_empty());
}
