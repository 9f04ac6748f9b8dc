//! Heuristic decisions: an administrator ends what is undecided, and is told when that was wrong.

mod support;

use caliburn_dist::bank::FIRST;
use caliburn_dist::client::{Application, Error};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::commit::word::Outcome;
use caliburn_dist::id::Tid;
use caliburn_dist::keep::members::free_addresses;
use caliburn_dist::node::{Judgement, Node};
use caliburn_dist::proto::bank::AddRequest;
use caliburn_dist::proto::bank::bank_client::BankClient;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use support::add;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::{Code, Status};

struct World {
    dir: tempfile::TempDir,
    cluster: Cluster,
    addresses: Vec<SocketAddr>,
}

impl World {
    fn new() -> World {
        let (dir, addresses) = (tempfile::tempdir().unwrap(), free_addresses(2).unwrap());
        let cluster = (1..).zip(&addresses).fold(Cluster::new("test"), |cluster, (number, address)| {
            cluster.node(number, &format!("http://{address}")).unwrap().server("bank", number)
        });
        World { dir, cluster, addresses }
    }

    /// Waits, before it votes, until it may.
    async fn run(
        &self,
        number: u64,
        may_vote: Option<(std::sync::mpsc::Sender<()>, Receiver<()>)>,
    ) -> Running {
        let mut node = support::node(&self.cluster, number, self.dir.path());
        if let Some((asked, may_vote)) = may_vote {
            let may_vote = Mutex::new(may_vote);
            node = node.on_prepare(move |_| {
                let _ = asked.send(());
                _ = may_vote.lock().unwrap().recv();
                Ok(())
            });
        }
        let node = node.start().await.unwrap();
        let address = self.addresses[number as usize - 1];
        let until = Instant::now() + Duration::from_secs(60);
        let listener = loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let serving = support::serve(&node, listener);
        Running { node, serving }
    }
}

struct Running {
    node: Node,
    serving: JoinHandle<()>,
}

impl Running {
    async fn stop(self) {
        self.node.stop().await;
        self.serving.await.unwrap();
    }

    async fn judgements_are(&self, are: impl Fn(&[Judgement]) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let judgements = self.node.judgements().await.unwrap();
            if are(&judgements) {
                return;
            }
            assert!(Instant::now() < until, "{judgements:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn balance(&self, world: &World) -> i64 {
        let mut bank = BankClient::new(world.cluster.channel(caliburn_dist::commit::word::Node(2)).unwrap());
        let request = AddRequest { account: 1, amount: 0, receipt: 0 };
        bank.add(request).await.unwrap().into_inner().balance
    }
}

/// Node 2 with a transaction whose coordinator is gone.
async fn undecided(world: &World) -> (Running, Tid) {
    let ((asked, is_asked), (may_vote, waits)) = (channel(), channel());
    let (one, two) = (world.run(1, None).await, world.run(2, Some((asked, waits))).await);
    let application = Application::attach(world.cluster.clone(), 1).await.unwrap();
    let transaction = tokio::spawn(async move {
        let done = application.transact(async |tx| {
            add(tx, 1, 1, -5, 0).await?;
            add(tx, 2, 1, 5, 0).await
        });
        done.await
    });
    tokio::task::spawn_blocking(move || is_asked.recv().unwrap()).await.unwrap();
    one.stop().await;
    // Nobody waits in the procedure from now on.
    drop(may_vote);
    assert!(matches!(transaction.await.unwrap(), Err(Error::Unknown(..))));
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let [only] = &two.node.undecided().await.unwrap()[..] {
            assert_eq!(only.participants, [caliburn_dist::commit::word::Node(2)]);
            return (two, only.tid);
        }
        assert!(Instant::now() < until, "it is not prepared");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn code(done: Result<(), Status>) -> Code {
    done.map_or_else(|status| status.code(), |()| Code::Ok)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_judgement_is_told_for_as_long_as_nobody_has_seen_it() {
    let world = World::new();
    let (mut two, tid) = undecided(&world).await;
    two.node.judge(tid, Outcome::Committed).await.unwrap();
    assert_eq!(two.balance(&world).await, FIRST + 5, "its locks are free");
    assert_eq!(code(two.node.judge(tid, Outcome::Aborted).await), Code::FailedPrecondition, "once");
    assert_eq!(two.node.undecided().await.unwrap(), []);
    let judged = |otherwise| [Judgement { tid, outcome: Outcome::Committed, otherwise }];
    // It is remembered in another life.
    two.stop().await;
    two = world.run(2, None).await;
    assert_eq!(two.node.judgements().await.unwrap(), judged(None));
    assert_eq!(code(two.node.forget(tid).await), Code::NotFound, "it may have been right");
    // The coordinator is there again, after all, and has never decided.
    let one = world.run(1, None).await;
    two.judgements_are(|judgements| judgements == judged(Some(Outcome::Aborted))).await;
    two.stop().await;
    two = world.run(2, None).await;
    assert_eq!(two.node.judgements().await.unwrap(), judged(Some(Outcome::Aborted)));
    assert_eq!(two.balance(&world).await, FIRST + 5, "what was judged stays so");
    two.node.forget(tid).await.unwrap();
    assert_eq!(two.node.judgements().await.unwrap(), []);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_judgement_that_was_right_is_forgotten() {
    let world = World::new();
    let (two, tid) = undecided(&world).await;
    two.node.judge(tid, Outcome::Aborted).await.unwrap();
    assert_eq!(two.balance(&world).await, FIRST);
    let one = world.run(1, None).await;
    two.judgements_are(<[Judgement]>::is_empty).await;
    one.stop().await;
    two.stop().await;
}
