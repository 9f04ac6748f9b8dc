//! Nodes with banks, and programs that are attached to them, in one process.
#![allow(dead_code, reason = "each test uses some of it")]

use caliburn_dist::bank;
use caliburn_dist::client::{Application, Error, Options};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::host::Patience;
use caliburn_dist::keep::keeper::Keeper;
use caliburn_dist::node::{Builder, Node};
use caliburn_dist::proto::bank::bank_client::BankClient;
use caliburn_dist::proto::bank::{AddRequest, TotalReply, TotalRequest};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub struct World {
    pub cluster: Cluster,
    pub nodes: Vec<(Node, JoinHandle<()>)>,
    pub dir: tempfile::TempDir,
}

pub fn patience() -> Patience {
    let ms = Duration::from_millis;
    Patience { answer: ms(200), probe: ms(200), silence: ms(1_000), chase: ms(200) }
}

pub fn node(cluster: &Cluster, number: u64, dir: &Path) -> Builder {
    bank::segment(Node::builder(cluster.clone(), number, dir.join(number.to_string()))).patience(patience())
}

pub async fn start(cluster: &Cluster, number: u64, dir: &Path, keeper: &Keeper) -> Node {
    node(cluster, number, dir).keeper(keeper.clone()).start().await.unwrap()
}

pub fn serve(node: &Node, listener: TcpListener) -> JoinHandle<()> {
    let node = node.clone();
    tokio::spawn(async move {
        let bank = bank::service(&node);
        node.serve_on(listener, |services| _ = services.add_service(bank)).await.unwrap();
    })
}

impl World {
    pub async fn new(count: u64) -> World {
        let keeper = Keeper::Memory(Arc::default());
        World::built(count, |node| node.keeper(keeper.clone())).await
    }

    pub async fn built(count: u64, build: impl Fn(Builder) -> Builder) -> World {
        let dir = tempfile::tempdir().unwrap();
        let (mut cluster, mut listeners) = (Cluster::new("test"), Vec::new());
        for number in 1..=count {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = format!("http://{}", listener.local_addr().unwrap());
            cluster = cluster.node(number, &address).unwrap().server("bank", number);
            listeners.push((number, listener));
        }
        let mut nodes = Vec::new();
        for (number, listener) in listeners {
            let node = build(node(&cluster, number, dir.path())).start().await.unwrap();
            let serving = serve(&node, listener);
            nodes.push((node, serving));
        }
        World { cluster, nodes, dir }
    }

    pub async fn application(&self, node: u64) -> Application {
        Application::attach(self.cluster.clone(), node).await.unwrap()
    }

    /// What each bank has, in one transaction.
    pub async fn totals(&self) -> Vec<TotalReply> {
        let application = self.application(1).await;
        let totals = application.transact(async |tx| {
            let mut totals = Vec::new();
            for number in 1..=self.nodes.len() {
                let mut bank = BankClient::new(tx.to(&format!("bank@{number}"))?);
                totals.push(bank.total(TotalRequest {}).await?.into_inner());
            }
            Ok::<_, Error>(totals)
        });
        totals.await.unwrap()
    }

    pub async fn stop(self) {
        for (node, serving) in self.nodes {
            node.stop().await;
            serving.await.unwrap();
        }
    }
}

pub async fn add(
    tx: &caliburn_dist::client::Tx,
    node: u64,
    account: u32,
    amount: i64,
    receipt: u64,
) -> Result<i64, Error> {
    let mut bank = BankClient::new(tx.to(&format!("bank@{node}"))?);
    Ok(bank.add(AddRequest { account, amount, receipt }).await?.into_inner().balance)
}

pub const BOTH: [Options; 2] = [
    Options { blocking: true, time_out: Duration::from_secs(60) },
    Options { blocking: false, time_out: Duration::from_secs(60) },
];
