//! Connections that prove nothing keep nobody out, and do not stay.

#[path = "support/authority.rs"]
mod authority;
mod support;

use authority::Authority;
use caliburn_dist::bank;
use caliburn_dist::client::{Application, Error};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::credentials::{node_name, user_name};
use caliburn_dist::data_server::{DataServer, Environment};
use caliburn_dist::node::Connections;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{add, serve};
use tokio::net::TcpListener;

const IDLE: usize = 300;

/// Connections that say nothing, without blocking from here on.
fn idle(address: SocketAddr) -> Vec<TcpStream> {
    let connect = |_| {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    };
    (0..IDLE).map(connect).collect()
}

/// How many of them the node has not closed.
fn open(all: &[TcpStream]) -> usize {
    let is_open = |mut stream: &TcpStream| matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
    all.iter().filter(|stream| is_open(stream)).count()
}

async fn come_to(most: usize, all: &[TcpStream]) {
    let until = Instant::now() + Duration::from_secs(10);
    while open(all) > most {
        assert!(Instant::now() < until, "{} of {IDLE} stay open", open(all));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A node is flooded while a program works, with certificates or without.
async fn flooded(
    secured: bool,
    limits: Connections,
    check: impl AsyncFnOnce(SocketAddr, Cluster),
) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(&dir.path().join("certificates"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let cluster = |name: String| {
        let (cluster, at) = match secured {
            true => {
                (Cluster::secured("bank", authority.credentials(name)).unwrap(), format!("https://{address}"))
            }
            false => (Cluster::new("bank"), format!("http://{address}")),
        };
        cluster.node(1, &at).unwrap().server("bank", 1)
    };
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let node = support::node(&cluster(node_name("bank", 1)), 1, dir.path()).connections(limits);
    let node = node.on_notice(move |text| tell.lock().unwrap().push(text.to_owned())).start().await.unwrap();
    let serving = serve(&node, listener);
    check(address, cluster(user_name("bank", "alice"))).await;
    node.stop().await;
    serving.await.unwrap();
    let told = told.lock().unwrap();
    told.clone()
}

async fn deposit(cluster: Cluster) -> i64 {
    let alice = Application::attach(cluster, 1).await.unwrap();
    alice.transact(async |tx| Ok::<_, Error>(add(tx, 1, 1, 1, 0).await?)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_too_many_the_oldest_go_and_others_get_in() {
    for secured in [true, false] {
        let limits = Connections { unproven: 8, handshake: Duration::from_secs(60), all: 64, of_one: 16 };
        let told = flooded(secured, limits, async |address, cluster| {
            let first = idle(address);
            assert_eq!(deposit(cluster.clone()).await, bank::FIRST + 1);
            come_to(8, &first).await;
            let second = idle(address);
            assert_eq!(deposit(cluster).await, bank::FIRST + 2);
            come_to(8, &second).await;
            assert_eq!(open(&first), 0, "the older ones have gone first");
        });
        let told = told.await;
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("1 since more than 8 had shown no certificate"), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_shows_nothing_is_closed_after_a_while() {
    for secured in [true, false] {
        let limits =
            Connections { unproven: 512, handshake: Duration::from_millis(300), all: 64, of_one: 16 };
        let told = flooded(secured, limits, async |address, cluster| {
            let all = idle(address);
            come_to(0, &all).await;
            assert_eq!(deposit(cluster).await, bank::FIRST + 1);
        });
        let told = told.await;
        assert!(told[0].contains("1 that had shown none within 300ms"), "{told:?}");
    }
}

#[tokio::test]
async fn a_data_server_takes_the_descriptors_that_it_needs() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(800), maximum }).unwrap();
    let environment = Environment { cluster: "bank".into(), number: 1, ..Environment::default() };
    DataServer::new(environment).await.unwrap();
    let needed = maximum.map_or(65_536, |maximum| maximum.min(65_536));
    assert_eq!(getrlimit(Resource::Nofile), Rlimit { current: Some(needed), maximum });
}
