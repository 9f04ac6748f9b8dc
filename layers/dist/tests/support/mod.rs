//! Nodes with banks, and programs that are attached to them, in one process.
#![allow(dead_code, reason = "each test uses some of it")]

use caliburn_dist::bank;
use caliburn_dist::client::{Application, Error, Options};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::host::Patience;
use caliburn_dist::keep::keeper::Keeper;
use caliburn_dist::node::Node;
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

pub async fn start(cluster: &Cluster, number: u64, dir: &Path, keeper: &Keeper) -> Node {
    let node = Node::builder(cluster.clone(), number, dir.join(number.to_string()));
    bank::segment(node).keeper(keeper.clone()).patience(patience()).start().await.unwrap()
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
        let dir = tempfile::tempdir().unwrap();
        let (mut cluster, mut listeners) = (Cluster::new("test"), Vec::new());
        for number in 1..=count {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = format!("http://{}", listener.local_addr().unwrap());
            cluster = cluster.node(number, &address).unwrap().server("bank", number);
            listeners.push((number, listener));
        }
        let keeper = Keeper::Memory(Arc::default());
        let mut nodes = Vec::new();
        for (number, listener) in listeners {
            let node = start(&cluster, number, dir.path(), &keeper).await;
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
