//! Nodes and programs that know each other by certificates.

#[path = "support/authority.rs"]
mod authority;
mod support;

use authority::Authority;
use caliburn_dist::bank;
use caliburn_dist::client::{Application, Error, Tx};
use caliburn_dist::cluster::{Cluster, NameError};
use caliburn_dist::commit::word::{Incarnation, Node as NodeNumber};
use caliburn_dist::credentials::{Credentials, CredentialsError, node_name, user_name};
use caliburn_dist::directory::Directory;
use caliburn_dist::id::Tid;
use caliburn_dist::keep::etcd::Etcd;
use caliburn_dist::keep::keeper::Keeper;
use caliburn_dist::keep::members::free_addresses;
use caliburn_dist::keep::names::Names;
use caliburn_dist::node::{Node, ServeError};
use caliburn_dist::proto::bank::TotalRequest;
use caliburn_dist::proto::bank::bank_client::BankClient;
use caliburn_dist::proto::caliburn::node_client::NodeClient;
use caliburn_dist::proto::caliburn::{
    AttachRequest, EndRequest, HearRequest, Letters, News, Outcome, Participant, Report,
};
use caliburn_dist::rights::Rights;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{BOTH, add, serve, start};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::Code;

/// Two nodes, each with its own certificate.
struct Secured {
    authority: Authority,
    addresses: Vec<String>,
    nodes: Vec<(Node, JoinHandle<()>)>,
    rights: Rights,
    dir: tempfile::TempDir,
}

impl Secured {
    async fn new() -> Secured {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new(&dir.path().join("certificates"));
        let (mut addresses, mut listeners) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.push(format!("https://{}", listener.local_addr().unwrap()));
            listeners.push(listener);
        }
        let keeper = Keeper::Memory(Arc::default());
        let rights = Rights::new();
        rights.allow("alice", "*");
        rights.allow("bob", "caliburn.bank.v1.Bank/Total");
        let mut secured = Secured { authority, addresses, nodes: Vec::new(), rights, dir };
        for (number, listener) in (1..).zip(listeners) {
            let cluster = secured.cluster(node_name("bank", number));
            let node = support::node(&cluster, number, secured.dir.path()).keeper(keeper.clone());
            let node = node.rights(secured.rights.clone()).start().await.unwrap();
            let serving = serve(&node, listener);
            secured.nodes.push((node, serving));
        }
        secured
    }

    /// As whoever has a certificate of this name sees it.
    fn cluster(&self, name: String) -> Cluster {
        self.cluster_with(self.authority.credentials(name))
    }

    fn cluster_with(&self, credentials: Credentials) -> Cluster {
        let cluster = Cluster::secured("bank", credentials).unwrap();
        (1..).zip(&self.addresses).fold(cluster, |cluster, (number, address)| {
            cluster.node(number, address).unwrap().server("bank", number)
        })
    }

    async fn user(&self, user: &str) -> Application {
        Application::attach(self.cluster(user_name("bank", user)), 1).await.unwrap()
    }

    async fn stop(self) {
        for (node, serving) in self.nodes {
            node.stop().await;
            serving.await.unwrap();
        }
    }
}

async fn total(tx: &Tx, node: u64) -> Result<i64, Error> {
    let mut bank = BankClient::new(tx.to(&format!("bank@{node}"))?);
    Ok(bank.total(TotalRequest {}).await?.into_inner().amount)
}

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> (Code, String) {
    match result {
        Err(Error::Call(status)) => (status.code(), status.message().to_owned()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn users_do_what_they_have_rights_to() {
    let secured = Secured::new().await;
    let (alice, bob) = (secured.user("alice").await, secured.user("bob").await);
    for options in BOTH {
        let moved = alice.transact_with(options, async |tx| {
            add(tx, 1, 5, -100, 0).await?;
            add(tx, 2, 5, 100, 0).await
        });
        moved.await.unwrap();
    }
    let refused = bob.transact(async |tx| add(tx, 2, 5, 1, 0).await).await;
    let refused = code(refused);
    assert_eq!(refused.0, Code::PermissionDenied);
    assert!(refused.1.contains("user \"bob\" has no right to caliburn.bank.v1.Bank/Add"), "{}", refused.1);
    let sum = bob.transact(async |tx| Ok::<_, Error>(total(tx, 1).await? + total(tx, 2).await?)).await;
    let sum = sum.unwrap();
    assert_eq!(sum, 2 * i64::from(bank::ACCOUNTS) * bank::FIRST);
    // From the next call on.
    secured.rights.allow("bob", "caliburn.bank.v1.Bank/*");
    bob.transact(async |tx| add(tx, 2, 5, 1, 0).await).await.unwrap();
    secured.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_speaks_for_others() {
    let secured = Secured::new().await;
    let letters =
        |from| Letters { cluster: "bank".into(), from, to: 1, letters: Vec::new(), clock: 0, needs: 0 };
    let client = |name: String| {
        let channel = secured.cluster(name).channel(NodeNumber(1)).unwrap();
        NodeClient::new(channel)
    };
    let mut node = client(node_name("bank", 2));
    let stream = |from| tokio_stream::once(letters(from));
    node.deliver(stream(2)).await.unwrap();
    let refused = node.deliver(stream(3)).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::PermissionDenied, "node 2 speaks for node 3"));
    let mut mallory = client(user_name("bank", "mallory"));
    let refused = mallory.deliver(stream(2)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);

    // A transaction is ended by whoever began it.
    let alice = secured.user("alice").await;
    let done = alice.transact(async |tx| {
        add(tx, 2, 1, 7, 0).await?;
        let tid = tx.tid().to_bytes().to_vec();
        let attach = AttachRequest { cluster: "bank".into(), needs: 0 };
        let _there = mallory.attach(attach).await.unwrap();
        let end = EndRequest { tid, commit: false, report: None, below: 0, needs: 0 };
        let refused = mallory.end(end).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        add(tx, 2, 1, 7, 0).await
    });
    assert_eq!(done.await.unwrap(), bank::FIRST + 14);
    drop((alice, mallory));
    secured.stop().await;
}

/// Somebody without rights tells a node that calls of others have failed, of all transactions that could be guessed.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_undoes_what_others_do() {
    let secured = Secured::new().await;
    let channel = |name: String, node| secured.cluster(name).channel(NodeNumber(node)).unwrap();
    let mallory = |node| channel(user_name("bank", "mallory"), node);
    let alice = secured.user("alice").await;
    let news: Vec<News> =
        (0..4).map(|call| News { path: vec![call], outcome: Outcome::Aborted as i32 }).collect();
    let done = alice.transact(async |tx| {
        add(tx, 2, 5, -100, 0).await?;
        let stream =
            NodeClient::new(mallory(1)).attach(AttachRequest { cluster: "bank".into(), needs: 0 }).await;
        let own = stream.unwrap().into_inner().message().await.unwrap().unwrap();
        for client in (0..8).map(|before| own.client.wrapping_sub(before)) {
            for serial in 0..8 {
                let tid = Tid { client, serial, ..tx.tid() };
                let (cluster, tid, news) = ("bank".to_owned(), tid.to_bytes().to_vec(), news.clone());
                let _ = NodeClient::new(mallory(2))
                    .hear(HearRequest { cluster, tid, news, clock: 0, needs: 0 })
                    .await;
            }
        }
        tx.nest(async |_| Ok::<_, Error>(())).await?;
        tx.nest(async |child| add(child, 2, 6, 100, 0).await).await
    });
    done.await.unwrap();
    let total = alice.transact(async |tx| total(tx, 2).await).await.unwrap();
    assert_eq!(total, i64::from(bank::ACCOUNTS) * bank::FIRST);

    // What names more nodes than there can be does not take the node's memory.
    let mut node = NodeClient::new(mallory(1));
    let attach = AttachRequest { cluster: "bank".into(), needs: 0 };
    let own = node.attach(attach).await.unwrap().into_inner().message().await.unwrap().unwrap();
    let tid = alice.transact(async |tx| Ok::<_, Error>(tx.tid())).await.unwrap();
    let tid = Tid { client: own.client, ..tid }.to_bytes().to_vec();
    let used = (0..20_000).map(|node| Participant { node, stay: 1 }).collect();
    let report = Some(Report { used, ..Report::default() });
    let refused = node.end(EndRequest { tid, commit: true, report, below: 0, needs: 0 }).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");

    // What nodes begin by themselves could be guessed.
    let own =
        Tid { client: 0, serial: 1, ..alice.transact(async |tx| Ok::<_, Error>(tx.tid())).await.unwrap() };
    let request =
        HearRequest { cluster: "bank".into(), tid: own.to_bytes().to_vec(), news, clock: 0, needs: 0 };
    let refused = NodeClient::new(mallory(2)).hear(request).await.unwrap_err();
    assert!(refused.message().contains("user \"mallory\" has not begun"), "{refused}");
    drop(alice);
    secured.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_refused_and_told_why() {
    let secured = Secured::new().await;
    let attach = async |credentials: Credentials| {
        let attached = Application::attach(secured.cluster_with(credentials), 1).await;
        attached.map(|_| ()).unwrap_err().to_string()
    };
    // Of the same authority, but nobody of this cluster.
    let other = attach(secured.authority.credentials(node_name("shop", 1))).await;
    assert!(other.contains("names no node and no user of cluster"), "{other}");
    let [authority, certificate, key] = secured.authority.files(&[user_name("bank", "alice")], 2021);
    let expired = Credentials::read(authority, certificate, key).unwrap_err().to_string();
    assert!(expired.contains("alice.user.bank.pem: the certificate is valid from Jan"), "{expired}");
    let stranger = Authority::new(&secured.dir.path().join("other")).credentials(user_name("bank", "alice"));
    let unknown = attach(stranger).await;
    assert!(unknown.contains("UnknownIssuer") || unknown.contains("BadSignature"), "{unknown}");
    // A node that is reached at another's address.
    let crossed =
        Cluster::secured("bank", secured.authority.credentials(user_name("bank", "alice"))).unwrap();
    let crossed = crossed.node(2, &secured.addresses[0]).unwrap();
    let wrong = Application::attach(crossed, 2).await.map(|_| ()).unwrap_err().to_string();
    assert!(wrong.contains("node-2.bank"), "{wrong}");
    // Without a certificate.
    let plain = secured.addresses[0].replace("https", "http");
    let plain = Cluster::new("bank").node(1, &plain).unwrap();
    assert!(Application::attach(plain, 1).await.is_err());
    let (alice, address) = (secured.authority.credentials(user_name("bank", "alice")), "http://127.0.0.1:1");
    let http = Cluster::secured("bank", alice.clone()).unwrap().node(1, address).map(|_| ());
    assert_eq!(http, Err(NameError::Address(address.into(), "https")));
    assert!(matches!(Cluster::secured("Great Bank", alice), Err(CredentialsError::Cluster(_))));
    secured.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_loopback_is_served_without_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(&Cluster::new("bank"), 1, dir.path(), &Keeper::Memory(Arc::default())).await;
    let address = "0.0.0.0:0".parse().unwrap();
    let refused = node.serve(address, |_| {}).await;
    assert!(matches!(refused, Err(ServeError::Exposed(at)) if at.ip() == address.ip()), "{refused:?}");
    node.stop().await;
}

/// A program that knows one node, and has no access to etcd.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_tell_programs_where_others_are() {
    let secured = Secured::new().await;
    let alice = secured.authority.credentials(user_name("bank", "alice"));
    let one = Cluster::secured("bank", alice).unwrap().node(1, &secured.addresses[0]).unwrap();
    let known = one.server("other", 1);
    let directory = Directory::follow(known.clone()).await;
    assert_eq!(known.address(NodeNumber(2)).as_ref(), Some(&secured.addresses[1]));
    assert_eq!(known.all("bank"), [NodeNumber(2)], "what it knew of node 1 stays");
    let application = Application::attach(known, 1).await.unwrap();
    let added = application.transact(async |tx| add(tx, 2, 5, 1, 0).await).await.unwrap();
    assert_eq!(added, bank::FIRST + 1);
    drop((application, directory));
    secured.stop().await;
}

struct Member(std::process::Child);

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A member that wants certificates.
fn etcd(authority: &Authority, dir: &std::path::Path) -> (String, Member) {
    let [authority, certificate, key] = authority.files(&["localhost".into()], 2900);
    let addresses = free_addresses(2).unwrap();
    let client = format!("https://localhost:{}", addresses[0].port());
    let peer = format!("http://{}", addresses[1]);
    let log = std::fs::File::create(dir.join("etcd.log")).unwrap();
    let member = std::process::Command::new("etcd")
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--name", "m", "--initial-cluster", &format!("m={peer}"), "--client-cert-auth", "--data-dir"])
        .arg(dir.join("etcd"))
        .arg("--trusted-ca-file")
        .arg(authority)
        .arg("--cert-file")
        .arg(certificate)
        .arg("--key-file")
        .arg(key)
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn();
    (client, Member(member.unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_wants_certificates_too() {
    if std::process::Command::new("etcd").arg("--version").output().is_err() {
        eprintln!("not run: etcd is not installed (apt-get install etcd-server)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(&dir.path().join("certificates"));
    let (address, _member) = etcd(&authority, dir.path());
    let credentials = authority.credentials(node_name("bank", 1));
    let etcd = Etcd::secured([&*address], "bank", &credentials).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let life = loop {
        match etcd.begin_life(NodeNumber(1), Incarnation(0)).await {
            Ok(life) => break life,
            Err(error) => assert!(Instant::now() < until, "it is not there: {error}"),
        }
    };
    assert_eq!(life, Incarnation(1));
    let other = Authority::new(&dir.path().join("other")).credentials(node_name("bank", 1));
    let other = Etcd::secured([&*address], "bank", &other).unwrap();
    assert!(other.begin_life(NodeNumber(1), Incarnation(0)).await.is_err());

    // A node that others find in it.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("https://{}", listener.local_addr().unwrap());
    let cluster = Cluster::secured("bank", credentials).unwrap();
    let node =
        support::node(&cluster, 1, dir.path()).keeper(Keeper::Etcd(etcd.clone())).start().await.unwrap();
    let serving = serve(&node, listener);
    node.announce(&at, ["bank"]);
    let seen = Cluster::secured("bank", authority.credentials(user_name("bank", "alice"))).unwrap();
    let _names = Names::follow(etcd, seen.clone()).await.unwrap();
    while seen.find("bank").is_err() {
        assert!(Instant::now() < until, "nobody has registered");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let alice = Application::attach(seen, 1).await.unwrap();
    let options = BOTH[1];
    assert_eq!(
        alice.transact_with(options, async |tx| add(tx, 1, 1, 1, 0).await).await.unwrap(),
        bank::FIRST + 1
    );
    drop(alice);
    node.stop().await;
    serving.await.unwrap();
}
