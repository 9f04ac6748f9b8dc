//! An etcd that begins with nothing, or is restored from a backup, under nodes that have committed with it: nothing
//! is half-done without notice, and an operator has them go on.

mod support;

use caliburn_dist::bank::FIRST;
use caliburn_dist::client::Application;
use caliburn_dist::cluster::Cluster;
use caliburn_dist::commit::word::{Node as NodeId, Outcome};
use caliburn_dist::keep::etcd::Etcd;
use caliburn_dist::keep::keeper::Keeper;
use caliburn_dist::keep::members::{Members, MembersError, free_addresses};
use caliburn_dist::link::Link;
use caliburn_dist::node::{Builder, Node};
use caliburn_dist::proto::bank::AddRequest;
use caliburn_dist::proto::bank::bank_client::BankClient;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{BOTH, add, serve};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => _ = fs::copy(entry.path(), to).unwrap(),
        }
    }
}

/// Whether one of etcd's commands has done something. False if it is not there.
fn does(name: &str, arguments: &[&str]) -> bool {
    let command = Command::new(name).env("ETCDCTL_API", "3").args(arguments).output();
    match command {
        Ok(done) => {
            assert!(done.status.success(), "{name} {arguments:?}: {done:?}");
            true
        }
        Err(_) => false,
    }
}

struct Place {
    dir: tempfile::TempDir,
    /// What operators were told.
    told: Arc<Mutex<Vec<String>>>,
    members: Members,
    /// Where nodes are; the third is reached by others through the link.
    addresses: Vec<SocketAddr>,
    link: Arc<Link>,
    clusters: [Cluster; 2],
}

struct Running {
    node: Node,
    serving: JoinHandle<()>,
}

impl Place {
    fn new() -> Option<Place> {
        let dir = tempfile::tempdir().unwrap();
        let members = match Members::start(1, dir.path().join("etcd")) {
            Ok(members) => members,
            Err(error @ MembersError::NotInstalled) => {
                println!("not run: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let addresses = free_addresses(3).unwrap();
        let link = Arc::new(Link::to(addresses[2]).unwrap());
        let cluster = |third: SocketAddr| {
            let all = [addresses[0], addresses[1], third];
            (1..).zip(all).fold(Cluster::new("test"), |cluster, (number, at)| {
                cluster.node(number, &format!("http://{at}")).unwrap().server("bank", number)
            })
        };
        let clusters = [cluster(link.address()), cluster(addresses[2])];
        Some(Place { dir, told: Arc::default(), members, addresses, link, clusters })
    }

    async fn run(&self, number: u64) -> Running {
        self.run_and(number, |node| node).await
    }

    async fn run_and(&self, number: u64, with: impl Fn(Builder) -> Builder) -> Running {
        let members = self.members.addresses();
        let etcd = Etcd::new(members.iter().map(String::as_str), "test").unwrap();
        let mut patience = support::patience();
        patience.answer = Duration::from_secs(2);
        let cluster = &self.clusters[usize::from(number == 3)];
        let until = Instant::now() + Duration::from_secs(30);
        let node = loop {
            let told = self.told.clone();
            let node = support::node(cluster, number, self.dir.path()).patience(patience);
            let node = node.on_notice(move |text| told.lock().unwrap().push(text.to_owned()));
            match with(node).keeper(Keeper::Etcd(etcd.clone())).start().await {
                Ok(node) => break node,
                // It has just begun.
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        };
        let listener = loop {
            match TcpListener::bind(self.addresses[number as usize - 1]).await {
                Ok(listener) => break listener,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let serving = serve(&node, listener);
        Running { node, serving }
    }

    /// A transfer from node 2 to node 3 that is acknowledged, and of which node 3 does not hear; then all are
    /// stopped.
    async fn half_told(&self) {
        let (one, two) = (self.run(1).await, self.run(2).await);
        // When it is asked for its vote it hears nothing any more; what it says is heard.
        let link = self.link.clone();
        let cut = move |_| {
            link.set_whole(false);
            Ok(())
        };
        let three = self.run_and(3, |node| node.on_prepare(cut.clone())).await;
        let application = Application::attach(self.clusters[0].clone(), 1).await.unwrap();
        let done = application.transact_with(BOTH[1], async |tx| {
            add(tx, 2, 7, -5, 1).await?;
            add(tx, 3, 7, 5, 1).await
        });
        done.await.unwrap();
        assert_eq!(three.node.undecided().await.unwrap().len(), 1, "it was told");
        for running in [three, one, two] {
            running.stop().await;
        }
        self.link.set_whole(true);
    }

    async fn balance(&self, number: u64) -> i64 {
        let mut bank = BankClient::new(self.clusters[1].channel(NodeId(number)).unwrap());
        let request = AddRequest { account: 7, amount: 0, receipt: 0 };
        bank.add(request).await.unwrap().into_inner().balance
    }

    /// A backup of etcd: a snapshot, or a copy of its data where its command is not installed.
    fn back_up(&mut self) -> PathBuf {
        let (backup, copied) = (self.dir.path().join("snapshot"), self.dir.path().join("copied"));
        let endpoint = format!("--endpoints={}", self.members.addresses()[0]);
        if does("etcdctl", &[&endpoint, "snapshot", "save", backup.to_str().unwrap()]) {
            return backup;
        }
        println!("etcdctl is not installed: the data is copied");
        self.members.kill(0);
        copy(&self.members.dir().join("m0"), &copied);
        self.members.run(0).unwrap();
        copied
    }

    /// Etcd, killed, with other data.
    fn replace(&mut self, with: Option<&Path>) {
        let data = self.members.dir().join("m0");
        self.members.kill(0);
        fs::remove_dir_all(&data).unwrap();
        match with {
            Some(backup) if backup.is_dir() => copy(backup, &data),
            Some(snapshot) => {
                let peer = self.members.peer(0);
                let (dir, all) =
                    (format!("--data-dir={}", data.display()), format!("--initial-cluster=m0={peer}"));
                let own = format!("--initial-advertise-peer-urls={peer}");
                let snapshot = snapshot.to_str().unwrap();
                let arguments = ["snapshot", "restore", snapshot, "--name=m0", &dir, &all, &own];
                // From 3.6 on only the first one does it, before 3.5 only the second.
                assert!(["etcdutl", "etcdctl"].iter().any(|name| does(name, &arguments)));
            }
            None => {}
        }
        self.members.run(0).unwrap();
    }

    /// How often operators were told so.
    fn told(&self, what: &str) -> usize {
        self.told.lock().unwrap().iter().filter(|text| text.contains(what)).count()
    }

    /// The operator has a node rely on its etcd, and starts it again.
    async fn accept(&self, running: Running, number: u64) -> Running {
        assert!(running.node.doubt().is_some(), "node {number} relies on it");
        running.node.accept().await.unwrap();
        running.serving.await.unwrap_err();
        running.node.stop().await;
        let running = self.run(number).await;
        assert_eq!(running.node.doubt(), None);
        running
    }

    async fn goes_on(&self) {
        let application = Application::attach(self.clusters[1].clone(), 1).await.unwrap();
        let done = application.transact_with(BOTH[1], async |tx| {
            add(tx, 2, 9, -1, 2).await?;
            add(tx, 3, 9, 1, 2).await
        });
        done.await.unwrap();
    }
}

impl Running {
    async fn stop(self) {
        self.node.stop().await;
        self.serving.await.unwrap();
    }
}

/// A backup of etcd from before a transfer is restored. Who was not told how that ended hears it of who was.
#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_of_before_halves_nothing() {
    let Some(mut place) = Place::new() else { return };
    for number in 1..=3 {
        place.run(number).await.stop().await;
    }
    assert_eq!(place.told("has learned the identity of its cluster"), 3);
    let backup = place.back_up();
    place.half_told().await;
    place.replace(Some(&backup));
    let three = place.run(3).await;
    // Longer than it waits before it asks.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let waits = three.node.undecided().await.unwrap();
    assert!(waits.len() == 1 && waits[0].asks, "{waits:?}: it has decided by slots that are lost");
    assert!(three.node.accept().await.is_err(), "something is undecided");
    let (one, two) = (place.run(1).await, place.run(2).await);
    assert_eq!(two.node.undecided().await.unwrap(), []);
    assert_eq!(place.balance(2).await, FIRST - 5);
    let until = Instant::now() + Duration::from_secs(30);
    while !three.node.undecided().await.unwrap().is_empty() {
        assert!(Instant::now() < until, "nobody tells it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(place.balance(3).await, FIRST + 5);
    // It says so to programs, and goes on when an operator has looked.
    let application = Application::attach(place.clusters[1].clone(), 1).await.unwrap();
    let refused = application.transact_with(BOTH[1], async |tx| add(tx, 2, 7, 1, 3).await).await.unwrap_err();
    assert!(refused.to_string().contains("earlier state"), "{refused}");
    application.transact_with(BOTH[0], async |tx| add(tx, 2, 7, 0, 0).await).await.unwrap();
    let one = place.accept(one, 1).await;
    let two = place.accept(two, 2).await;
    let three = place.accept(three, 3).await;
    place.goes_on().await;
    for running in [one, two, three] {
        running.stop().await;
    }
    assert_eq!(place.told("decides nothing any more"), 3);
    assert_eq!(place.told("an operator has accepted its etcd"), 3);
    assert_eq!(place.told("has learned the identity of its cluster"), 6);
}

/// An etcd that has lost all its data, and a participant that is not there to say how it ended: an operator judges.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_etcd_waits_for_an_operator() {
    let Some(mut place) = Place::new() else { return };
    place.half_told().await;
    place.replace(None);
    let three = place.run(3).await;
    let doubt = three.node.doubt().unwrap();
    assert!(doubt.contains("etcd has nothing of this cluster"), "{doubt}");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let waits = three.node.undecided().await.unwrap();
    assert!(waits.len() == 1 && waits[0].asks, "{waits:?}: it has decided by slots that are lost");
    assert!(three.node.accept().await.is_err(), "something is undecided");
    three.node.judge(waits[0].tid, Outcome::Committed).await.unwrap();
    assert_eq!(place.balance(3).await, FIRST + 5);
    let three = place.accept(three, 3).await;
    let one = place.run(1).await;
    let one = place.accept(one, 1).await;
    let two = place.run(2).await;
    assert_eq!(place.balance(2).await, FIRST - 5);
    let two = place.accept(two, 2).await;
    place.goes_on().await;
    for running in [one, two, three] {
        running.stop().await;
    }
}
